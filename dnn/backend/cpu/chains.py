"""Chains of elementwise operations, and sums of their results, as one loop each.

A chain is a tuple of instructions, each a formula and the places of its operands: first come the
inputs, then the results of the instructions before. ``((add, 0, 1), (tanh, 2))`` is
``tanh(a + b)``.

The loop runs over three axes at most, which is what broadcasting commonly leaves when neighbouring
axes that are contiguous in every array are joined::

    for i in range(n0):
        for j in range(n1):
            for k in range(n2):                 out[k] = f(a[k], b[0], ...), in vector registers

A sum of a chain never writes the result of the chain to memory. The axes that are summed are
neighbours. Of rows of channels (NHWC) the columns are summed, and of channels first (CHWN) the
rows; each in blocks, whose sums are added in float64. Threads have columns, or rows, of their own,
so no result depends on how many there are.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from dnn.backend.cpu.cache import HEADER, entry_of
from dnn.backend.cpu.kernels import LINE_ELEMENTS, SPLIT_ELEMENTS, cuts
from dnn.backend.cpu.program import Native, Record, address_of, type_code
from dnn.backend.formula import COPY, Formula, Language, Writer
from dnn.backend.ops import Array, Chain, Ops

__all__ = [
    "NUMBA",
    "chain_kernel",
    "chain_record",
    "chain_sum",
    "copy",
    "elementwise_kernel",
    "fill",
]

VECTOR_MATH = ("exp", "expm1", "log", "sigmoid", "tanh")
"""Functions that `vector_math` has for each type."""

LARGEST_AXES = 3


class Access(enum.Enum):
    """How a loop reads an input."""

    ALONG = "element by element along the innermost axis"
    SAME = "one element, the same all along"
    IN_PLACE = "the very memory of the result, not to be taken for an overlap"


NUMBA = Language(
    number="{type}({0})",  # or it would be computed in float64
    power="{type}({0} ** {1})",
    choice="{1} if {0} else {2}",
    either="{0} or {1}",
    both="{0} and {1}",
    inverse="not {0}",
    truth="b1({0})",
    assignment="{0} = {1}",
    functions={
        **{name: f"vector_math.{name}_{{type}}({{0}})" for name in VECTOR_MATH},
        **{name: f"{{type}}(np.{name}({{0}}))" for name in ("log1p", "sqrt")},
    },
    routines=VECTOR_MATH,
)


def chain_record(chain: Chain, inputs: Sequence[Array], out: Array) -> Record | None:
    """Return the kernel of a chain and its fields, or None for arrays that it does not take."""
    code = _element_code(out.dtype)
    codes = tuple(_element_code(x.dtype) for x in inputs)
    if code is None or None in codes or not out.size:
        return None
    if not _takes([formula for formula, *_ in chain], codes, code):
        return None
    views = [x if x.shape == out.shape else np.broadcast_to(x, out.shape) for x in inputs]
    shape, strides = collapse(out.shape, [view.strides for view in (*views, out)])
    if len(shape) > LARGEST_AXES or strides[-1][-1] not in (0, out.itemsize):
        return None
    accesses = []
    for x, steps in zip(inputs, strides, strict=False):
        if steps[-1] not in (0, x.itemsize):
            return None
        if steps == strides[-1] and address_of(x) == address_of(out) and x.dtype == out.dtype:
            accesses.append(Access.IN_PLACE)
        else:
            accesses.append(Access.ALONG if steps[-1] else Access.SAME)
    fields = [*shape, address_of(out), *strides[-1][:-1]]
    for x, steps in zip(inputs, strides, strict=False):
        fields += [address_of(x), *steps[:-1]]
    return entry_of(chain_source(chain, tuple(accesses), (*codes, code))), fields


def _takes(formulas: Sequence[Formula], codes: Sequence[str | None], code: str) -> bool:
    """Return whether formulas can be compiled for these types of the inputs and of the result."""
    if formulas == [COPY] or not formulas[0].has_one_type:  # which is alone in its chain
        return True
    exact = all(formula.is_exact_in_integers for formula in formulas)
    return set(codes) == {code} and (code in ("f4", "f8") or exact)


@cache
def _element_code(dtype: np.dtype[Any]) -> str | None:
    return "b1" if dtype == np.bool_ else type_code(dtype)


def collapse(
    shape: tuple[int, ...], strides: Sequence[tuple[int, ...]]
) -> tuple[list[int], list[list[int]]]:
    """Join neighbouring axes where every array allows it; return at least `LARGEST_AXES` axes."""
    lengths: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis, length in enumerate(shape):
        if length == 1:
            continue
        joined = bool(lengths) and all(
            joined_strides[-1] == array_strides[axis] * length
            for joined_strides, array_strides in zip(steps, strides, strict=True)
        )
        if joined:
            lengths[-1] *= length
        else:
            lengths.append(length)
        for joined_strides, array_strides in zip(steps, strides, strict=True):
            if joined:
                joined_strides[-1] = array_strides[axis]
            else:
                joined_strides.append(array_strides[axis])
    while len(lengths) < LARGEST_AXES:
        lengths.insert(0, 1)
        for joined_strides in steps:
            # An axis of length 1 needs no stride.
            joined_strides.insert(0, 0)
    return lengths, steps


# Without contraction: products of inputs that are the same all along are moved out of the loop and
# rounded, while inside they would not be, so that one network and K at once would differ.
_HEADER = HEADER.replace("**FLAGS", '**{**FLAGS, "fastmath": {"nsz"}}')


@cache
def chain_source(chain: Chain, accesses: tuple[Access, ...], codes: tuple[str, ...]) -> str:
    """Return the source of a chain's kernel.

    `codes` are those of each input and of the result: ``"f4"``, ``"f8"``, ``"b1"``, ``"i8"``,
    ``"u8"``.
    """
    lines = []
    names = []
    result = codes[-1]
    for number, (access, code) in enumerate(zip(accesses, codes, strict=False)):
        at = 6 + 3 * number
        place = f"pointer(r[{at}] + i * r[{at + 1}] + j * r[{at + 2}])"
        if access is Access.ALONG:
            lines.append(f"            x{number} = carray({place}, (n,), {code})")
            names.append(f"x{number}[k]")
        elif access is Access.SAME:
            lines.append(f"            x{number} = carray({place}, (1,), {code})[0]")
            names.append(f"x{number}")
        else:
            names.append("out[k]")
    writer = Writer(NUMBA, codes[0] if result == "b1" else result)
    for formula, *operands in chain:
        value = writer.formula(formula, [names[operand] for operand in operands])
        if formula == COPY and codes[0] != result:
            value = f"{result}({value})"
        names.append(writer.named(value))
    inner = "".join(
        f"                {line}\n" for line in [*writer.lines, f"out[k] = {names[-1]}"]
    )
    return (
        f"{_HEADER}    n = r[2]\n    for i in range(r[0]):\n        for j in range(r[1]):\n"
        f"            out = carray(pointer(r[3] + i * r[4] + j * r[5]), (n,), {result})\n"
        + "\n".join([*lines, f"            for k in range(n):\n{inner}"])
    )


def _split_elements(arguments: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
    *inputs, out = arguments
    if out.size < SPLIT_ELEMENTS:
        return []
    axis = next(i for i, length in enumerate(out.shape) if length > 1)
    unit = LINE_ELEMENTS if axis == out.ndim - 1 else 1
    return [] if out.shape[axis] < parts else _pieces(inputs, out, out.shape, axis, parts, unit)


def _pieces(
    inputs: Sequence[Array], out: Array, shape: tuple[int, ...], axis: int, parts: int, unit: int
) -> list[tuple[Any, ...]]:
    """Cut a result, and the inputs as they broadcast to a shape, into parts along an axis."""
    views = [np.broadcast_to(x, shape) for x in inputs]
    places = [(slice(None),) * axis + (cut,) for cut in cuts(shape[axis], parts, unit)]
    return [(*(view[place] for view in views), out[place]) for place in places]


@cache
def elementwise_kernel(formula: Formula) -> Native:
    """Return the kernel of a formula: a chain of length 1."""
    count = len(formula.names)

    def record(*arguments: Any) -> Record | None:
        # Between the inputs and the result there may be workspace, which the kernel does not need.
        return chain_record(((formula, *range(count)),), arguments[:count], arguments[-1])

    return Native(record, formula.numpy, _split_elements)


_TRANSPOSITION = """\
    n, m, leading = r[1], r[2], r[7]
    for k in range(r[0]):
        x = carray(pointer(r[3] + k * r[4]), (m * leading,), {code})
        out = carray(pointer(r[5] + k * r[6]), (n, m), {code})
        intrinsics.transpose(x, leading, out)
"""


def _transposition_record(x: Array, out: Array, lengths: list[int], strides: Any) -> Record | None:
    """Return the record of ``out[...] = x`` for matrices that are transposed, else None.

    `lengths` and `strides` are those of x and of out, with neighbouring axes joined.
    """
    code = type_code(out.dtype)
    item = out.itemsize
    if code not in ("f4", "f8") or x.dtype != out.dtype or len(lengths) != 3:
        return None
    matrices, n, m = lengths
    (x_matrix, x_row, x_column), (out_matrix, out_row, out_column) = strides
    if x_row != item or x_column % item or x_column < n * item:
        return None
    if out_column != item or out_row != m * item:
        return None
    fields = [matrices, n, m, address_of(x), x_matrix, address_of(out), out_matrix]
    return entry_of(_transposition_source(code)), [*fields, x_column // item]


@cache
def _transposition_source(code: str) -> str:
    return HEADER + _TRANSPOSITION.format(code=code)


def _copy() -> Native:
    """Return the kernel that copies an array and, to types of floats, casts it."""

    def record(x: Array, out: Array) -> Record | None:
        if x.dtype != out.dtype and (out.dtype.kind != "f" or x.ndim > out.ndim):
            return None
        found = chain_record(((COPY, 0),), (x,), out)
        if found is None and x.shape == out.shape and out.size:
            found = _transposition_record(x, out, *collapse(out.shape, [x.strides, out.strides]))
        return found

    return Native(record, Ops.copy, _split_elements)


@cache
def _number(value: float, dtype: np.dtype[Any]) -> Array:
    """Return a number as an array, which lasts as long as the process: records hold addresses."""
    return np.full((), value, dtype)


def _fill() -> Native:
    """Return the kernel that sets every element of an array."""

    def record(value: float, out: Array) -> Record | None:
        return chain_record(((COPY, 0),), (_number(value, out.dtype),), out)

    def split(arguments: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
        value, out = arguments
        return [(value, *part) for part in _split_elements((out,), parts)]

    return Native(record, Ops.fill, split)


def chain_kernel(chain: Chain) -> Native:
    """Return the kernel of a chain for arrays that `chain_record` takes."""

    def record(*arguments: Any) -> Record | None:
        return chain_record(chain, arguments[:-1], arguments[-1])

    return Native(record, None, _split_elements)


copy = _copy()
fill = _fill()


TILE = 128
"""Columns whose sums are on the stack at once."""

BLOCK_ROWS = 64
BLOCK_COLUMNS = 1024
"""How many terms are added before their sum goes to float64."""

_COLUMNS = """\
    n = r[2]
    block = carray(pointer(intrinsics.scratch({tile_bytes})), ({tile},), {code})
    total = carray(pointer(intrinsics.scratch({total_bytes})), ({tile},), f8)
    for g in range(r[0]):
        for begin in range(0, n, {tile}):
            width = {tile} if begin + {tile} < n else n - begin
            for k in range(width):
                total[k] = f8(0)
            for first in range(0, r[1], {rows}):
                last = first + {rows} if first + {rows} < r[1] else r[1]
                for k in range(width):
                    block[k] = {code}(0)
                for i in range(first, last):
{arrays}
                    for k in range(width):
{lines}
                        block[k] = block[k] + {value}
                for k in range(width):
                    total[k] = total[k] + block[k]
            out = carray(pointer(r[3] + g * r[4] + begin * {item}), (width,), {code})
            for k in range(width):
                out[k] = {code}(total[k])
"""

_ROWS = """\
    n = r[2]
    for g in range(r[0]):
        for i in range(r[1]):
{arrays}
            total = f8(0)
            for first in range(0, n, {columns}):
                last = first + {columns} if first + {columns} < n else n
                part = {code}(0)
                for k in range(first, last):
{lines}
                    part = part + {value}
                total = total + part
            carray(pointer(r[3] + g * r[4] + i * r[5]), (1,), {code})[0] = {code}(total)
"""


@cache
def _sum_source(chain: Chain, along: tuple[bool, ...], code: str, of_rows: bool) -> str:
    writer = Writer(NUMBA, code)
    item = np.dtype(code).itemsize
    indent = " " * (12 if of_rows else 20)
    arrays, names = [], []
    for number, is_along in enumerate(along):
        at = (6 if of_rows else 5) + 3 * number
        place = f"r[{at}] + g * r[{at + 1}] + i * r[{at + 2}]"
        if is_along:
            shift, length = ("", "n") if of_rows else (f" + begin * {item}", "width")
            array = f"carray(pointer({place}{shift}), ({length},), {code})"
            names.append(f"x{number}[k]")
        else:
            array = f"carray(pointer({place}), (1,), {code})[0]"
            names.append(f"x{number}")
        arrays.append(f"{indent}x{number} = {array}")
    for formula, *operands in chain:
        value = writer.formula(formula, [names[operand] for operand in operands])
        names.append(writer.named(value))
    inner = " " * (20 if of_rows else 24)
    # In a row terms may be added in any order, so that vector registers are used.
    header = _HEADER.replace('{"nsz"}', '{"nsz", "reassoc"}') if of_rows else _HEADER
    return header + (_ROWS if of_rows else _COLUMNS).format(
        code=code,
        item=item,
        tile=TILE,
        tile_bytes=TILE * item,
        total_bytes=TILE * 8,
        rows=BLOCK_ROWS,
        columns=BLOCK_COLUMNS,
        arrays="\n".join(arrays),
        lines="\n".join(inner + line for line in writer.lines),
        value=names[-1],
    )


def chain_sum(chain: Chain, shape: tuple[int, ...], axes: tuple[int, ...]) -> Native:
    """Return the kernel that sums a chain over axes; its arguments are the inputs, and the result.

    The inputs broadcast to `shape`, whose `axes`, in ascending order, have length 1 in the result.
    """

    def record(*arguments: Any) -> Record | None:
        *inputs, out = arguments
        expected = tuple(1 if i in axes else n for i, n in enumerate(out.shape))
        if expected != out.shape:
            return None
        whole = tuple(shape[i] if i in axes else n for i, n in enumerate(out.shape))
        return _sum_record(chain, inputs, out, whole, axes)

    def split(arguments: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
        *inputs, out = arguments
        axis = axes[-1] + 1 if math.prod(shape[axes[-1] + 1 :]) > 1 else 0
        axis = next((i for i in range(axis, len(shape)) if shape[i] > 1), axis)
        if math.prod(shape) < SPLIT_ELEMENTS or axis in axes or axis >= len(shape):
            return []
        unit = LINE_ELEMENTS if axis > axes[-1] else 1
        result = _pieces(inputs, out, shape, axis, parts, unit)
        return result if len(result) > 1 else []

    return Native(record, None, split)


_Axes = tuple[int, list[int]]
"""Joined axes: their length, and the stride in each array."""


def _sum_record(
    chain: Chain, inputs: Sequence[Array], out: Array, shape: tuple[int, ...], axes: tuple[int, ...]
) -> Record | None:
    code, item = type_code(out.dtype), out.itemsize
    if code not in ("f4", "f8") or any(x.dtype != out.dtype for x in inputs) or not out.size:
        return None
    views = [np.broadcast_to(x, shape) for x in inputs]
    found = _axes_of_sum(views, out, shape, axes)
    if found is None:
        return None
    before, summed, after, of_out, columns = found
    of_rows = after[0] == 1  # the innermost axis is summed
    inner = (summed if of_rows else after)[1]
    if any(step not in (0, item) for step in inner) or (not of_rows and columns[1][0] != item):
        return None
    groups, rows = ([0] * len(views), before[1]) if of_rows else (before[1], summed[1])
    lengths = [1, before[0], summed[0]] if of_rows else [before[0], summed[0], after[0]]
    of_result = [0, of_out[1][0]] if of_rows else [of_out[1][0]]
    fields = [*lengths, address_of(out), *of_result]
    for view, group, row in zip(views, groups, rows, strict=True):
        fields += [address_of(view), group, row]
    along = tuple(step == item for step in inner)
    return entry_of(_sum_source(chain, along, code, of_rows)), fields


def _axes_of_sum(
    views: Sequence[Array], out: Array, shape: tuple[int, ...], axes: tuple[int, ...]
) -> list[_Axes] | None:
    """Return the joined axes before, among and after those that are summed; None if there are more.

    Then those of the result, before and after.
    """
    first, last = axes[0], axes[-1] + 1
    parts = slice(first), slice(first, last), slice(last, None)
    joined = [_joined(shape[part], [view.strides[part] for view in views]) for part in parts]
    joined += [_joined(out.shape[part], [out.strides[part]]) for part in parts[::2]]
    found = [each for each in joined if each is not None]
    return found if len(found) == len(joined) and len(axes) == last - first else None


def _joined(shape: tuple[int, ...], strides: Sequence[tuple[int, ...]]) -> _Axes | None:
    """Join axes; None where they cannot be one."""
    length, steps = 1, [0] * len(strides)
    for axis in reversed(range(len(shape))):
        if shape[axis] == 1:
            continue
        if length == 1:
            steps = [array_strides[axis] for array_strides in strides]
        elif any(
            array_strides[axis] != step * length
            for array_strides, step in zip(strides, steps, strict=True)
        ):
            return None
        length *= shape[axis]
    return length, steps
