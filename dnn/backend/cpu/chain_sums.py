"""Sums of the result of a chain of elementwise operations, which is never written to memory.

The axes that are summed are neighbours. Of rows of channels (NHWC) the columns are summed, and of
channels first (CHWN) the rows; each in blocks, whose sums are added in float64. Threads have
columns, or rows, of their own, so no result depends on how many there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from dnn.backend.cpu.cache import HEADER, entry_of
from dnn.backend.cpu.chains import NUMBA
from dnn.backend.cpu.kernels import LINE_ELEMENTS, SPLIT_ELEMENTS, cuts
from dnn.backend.cpu.program import Native, Record, address_of, type_code
from dnn.backend.formula import Writer
from dnn.backend.ops import Array, Chain

__all__ = ["chain_sum"]

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

# For columns and for rows. In a row terms may be added in any order, so that vector registers are
# used; as in `chains` nothing is contracted.
_FLAGS = '**{**FLAGS, "fastmath": {"nsz"}}', '**{**FLAGS, "fastmath": {"nsz", "reassoc"}}'


@cache
def _source(chain: Chain, along: tuple[bool, ...], code: str, of_rows: bool) -> str:
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
    header = HEADER.replace("**FLAGS", _FLAGS[of_rows])
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
    """Return the kernel that sums a chain over axes.

    Parameters
    ----------
    chain : Chain
    shape : tuple of int
        What the inputs broadcast to.
    axes : tuple of int
        Of `shape`, in ascending order; they have length 1 in the result.

    Returns
    -------
    Native
        Its arguments are the inputs, and the result.
    """

    def record(*arguments: Any) -> Record | None:
        *inputs, out = arguments
        expected = tuple(1 if i in axes else n for i, n in enumerate(out.shape))
        if expected != out.shape:
            return None
        whole = tuple(shape[i] if i in axes else n for i, n in enumerate(out.shape))
        return _record(chain, inputs, out, whole, axes)

    def split(arguments: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
        *inputs, out = arguments
        axis = axes[-1] + 1 if math.prod(shape[axes[-1] + 1 :]) > 1 else 0
        axis = next((i for i in range(axis, len(shape)) if shape[i] > 1), axis)
        if math.prod(shape) < SPLIT_ELEMENTS or axis in axes or axis >= len(shape):
            return []
        unit = LINE_ELEMENTS if axis > axes[-1] else 1
        views = [np.broadcast_to(x, shape) for x in inputs]
        result = []
        for cut in cuts(shape[axis], parts, unit):
            place = (slice(None),) * axis + (cut,)
            result.append((*(view[place] for view in views), out[place]))
        return result if len(result) > 1 else []

    return Native(record, None, split)


_Axes = tuple[int, list[int]]
"""Joined axes: their length, and the stride in each array."""


def _record(
    chain: Chain, inputs: Sequence[Array], out: Array, shape: tuple[int, ...], axes: tuple[int, ...]
) -> Record | None:
    code, item = type_code(out.dtype), out.itemsize
    if code not in ("f4", "f8") or any(x.dtype != out.dtype for x in inputs) or not out.size:
        return None
    views = [np.broadcast_to(x, shape) for x in inputs]
    found = _loops(views, out, shape, axes)
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
    return entry_of(_source(chain, tuple(step == item for step in inner), code, of_rows)), fields


def _loops(
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
