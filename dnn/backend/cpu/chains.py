"""Chains of elementwise operations as one loop each, written from their formulas.

A chain is a tuple of instructions, each a formula and the places of its operands: first come the
inputs, then the results of the instructions before. ``((add, 0, 1), (tanh, 2))`` is
``tanh(a + b)``.

The loop runs over three axes at most, which is what broadcasting commonly leaves when neighbouring
axes that are contiguous in every array are joined::

    for i in range(n0):
        for j in range(n1):
            for k in range(n2):                 out[k] = f(a[k], b[0], ...), in vector registers
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from dnn.backend.cpu.cache import HEADER, entry_of
from dnn.backend.cpu.kernels import LINE_ELEMENTS, SPLIT_ELEMENTS, cuts
from dnn.backend.cpu.program import Native, Record, address_of, type_code
from dnn.backend.formula import COPY, Formula, Language, Writer
from dnn.backend.ops import Array, Chain, Ops

__all__ = ["NUMBA", "chain_kernel", "chain_record", "copy", "elementwise_kernel", "fill"]

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
    if out.shape[axis] < parts:
        return []
    views = [np.broadcast_to(x, out.shape) for x in inputs]
    result = []
    for cut in cuts(out.shape[axis], parts, unit):
        place = (slice(None),) * axis + (cut,)
        result.append((*(view[place] for view in views), out[place]))
    return result


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

    Parameters
    ----------
    x, out : array, of one shape and type
    lengths : list of int
        Lengths of the axes of both, with neighbouring axes joined where both arrays allow it.
    strides : pair of list of int, bytes
        Strides of x and of out along these axes.
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
