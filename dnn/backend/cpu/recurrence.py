"""Recurrent cells over all time steps as one kernel each, forward and gradient.

Each time step is a product of the states with the weights, by BLAS or by `register_tiles`, and a
loop over the rows of the batch that computes all the rest of the cell. Rows do not depend on each
other, so threads share the batch, each over all time steps. The loops are in `recurrence_kernels`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from dnn.backend.cpu.blas import UNCHANGED, Gemm, find_gemm
from dnn.backend.cpu.cache import HEADER, entry_of
from dnn.backend.cpu.kernels import SPLIT_OPERATIONS, cuts
from dnn.backend.cpu.program import Native, Record, address_of, type_code
from dnn.backend.cpu.registers import registers
from dnn.backend.ops import Array, Step
from dnn.backend.recurrence import WEIGHT_ROWS, Cell, GradientArrays, Recurrence

__all__ = ["gradient_steps", "steps", "weight_steps"]

_LOOPS = """\
import dnn.backend.cpu.recurrence_kernels
from dnn.backend.cpu.cache import compiled_loops

loops = compiled_loops(dnn.backend.cpu.recurrence_kernels)
"""

_FORWARD = """\
    rows, units, step = r[2], r[3], r[5]
    bias = carray(pointer(r[11]), ({products} * units,), {code})
    hidden_bias = carray(pointer(r[12]), ({products} * units,), {code})
    lengths = carray(pointer(r[14]), ((rows - 1) * r[17] + 1,), {code})
    for s in range(r[1]):
        h, h_after = r[4] + s * step, r[4] + (s + 1) * step
        c, c_after = r[6] + s * step, r[6] + (s + 1) * step
        gates = r[7] + s * r[8]
        if s == 0 and r[18] != 0:  # of zeros
            loops.fill_rows({code}(0), carray(pointer({out}), (rows, {leading} * units), {code}))
        else:
{product}        loops.{cell}_rows(
            carray(pointer(gates), (rows, {leading} * units), {code}),
            carray(pointer(r[9] + s * r[10]), (rows, {products} * units), {code}),
            bias, hidden_bias,
            carray(pointer(c), (rows, units), {code}),
            carray(pointer(c_after), (rows, units), {code}),
            carray(pointer(h), (rows, units), {code}),
            carray(pointer(h_after), (rows, units), {code}),
            lengths, r[17], r[15] + s * r[16], intrinsics.part,
            vector_math.sigmoid_{code}, vector_math.tanh_{code},
        )
"""

_GRADIENT = """\
    rows, units, step = r[2], r[3], r[5]
    lengths = carray(pointer(r[18]), ((rows - 1) * r[24] + 1,), {code})
    dh = carray(pointer(r[14]), (rows, units), {code})
    dc = carray(pointer(r[15]), (rows, units), {code})
    space = carray(pointer(r[16]), (rows, units), {code})
    arriving = carray(pointer(r[22]), (rows, units), {code})
    hidden = carray(pointer(r[17]), (rows, {products} * units), {code})
    loops.fill_rows({code}(0), dh)
    loops.fill_rows({code}(0), dc)
    for s in range(r[1]):
        h, h_after = r[4] - s * step, r[4] - (s - 1) * step
        c, c_after = r[6] - s * step, r[6] - (s - 1) * step
        dx = r[11] - s * r[12]
        for b in range(rows):
            row = carray(pointer(r[9] - s * r[10] + b * r[23]), (units,), {code})
            loops.added(row, intrinsics.part(arriving, b * units, units))
        loops.{cell}_gradient_rows(
            carray(pointer(r[7] - s * r[8]), (rows, {leading} * units), {code}),
            carray(pointer(c), (rows, units), {code}),
            carray(pointer(c_after), (rows, units), {code}),
            carray(pointer(h), (rows, units), {code}),
            carray(pointer(h_after), (rows, units), {code}),
            carray(pointer(dx), (rows, {products} * units), {code}),
            dh, dc, space, hidden, lengths, r[24], r[19] - s * r[20],
            intrinsics.part, vector_math.tanh_{code},
        )
        # Of what the first time step starts from a gradient may not be wanted.
        if s + 1 < r[1] or r[21] != 0:
{product}            loops.added_rows(space, dh)
    if r[21] != 0:
        first = carray(pointer(r[21]), (rows, {products} * units), {code})
        loops.copy_rows(dh, first, 0)
{of_first_cell}
"""

_BY_BLAS = """\
            intrinsics.call_gemm_{bits}(
                r[0], {unchanged}, {unchanged}, rows, {columns}, {depth}, {code}(1),
                {a}, {depth}, r[13], {columns}, {code}(0), {out}, {leading},
            )
"""
_IN_REGISTERS = """\
            for panel in range({columns} // {panel}):
                for row in range(0, rows, {block}):
                    # The last block begins so that it ends with the rows.
                    at = min(row, rows - {block})
                    register_tiles.{of_block}(
                        {a} + 4 * at * {depth}, 4 * {depth}, r[13] + 4 * {panel} * panel * {depth},
                        {depth}, {out} + 4 * (at * {leading} + panel * {panel}), 4 * {leading}, 0,
                    )
"""
"""Products with weights in panels of some columns each, as `register_tiles` takes them."""

_TRANSPOSE = """\
    x = carray(pointer(r[0]), (r[1] * r[2],), {code})
    intrinsics.transpose(x, r[2], carray(pointer(r[3]), (r[2], r[1]), {code}))
"""
_TRANSPOSED_PANELS = """\
    for panel in range(r[1] // {panel}):
        register_tiles.transposed(
            r[0] + 4 * {panel} * panel * r[2], 4 * r[2], {panel}, r[2],
            r[3] + 4 * {panel} * panel * r[2], 4 * {panel},
        )
"""
_PANELS = """\
    for panel in range(r[2] // {panel}):
        for row in range(r[1]):
            register_tiles.copy_floats(
                r[0] + 4 * (row * r[2] + panel * {panel}),
                r[3] + 4 * {panel} * (panel * r[1] + row), {panel},
            )
"""
_TILES = "from dnn.backend.cpu import register_tiles\n"


_WEIGHTS = """\
    register_tiles.weights_and_bias(
        r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8], r[9], r[10], r[11], r[12],
    )
"""
TALL_ROWS = 512
"""From so many rows on the gradient of weights is one pass over them, instead of BLAS' product."""


def _in_registers(recurrence: Recurrence) -> bool:
    """Return whether `register_tiles` computes the products with weights; else BLAS does."""
    rows, units = recurrence.packed.shape[1:]
    fits = units % registers().panel == 0 and rows >= registers().more_rows
    return bool(recurrence.packed.dtype == np.float32) and fits


def _block_of(tiles: bool, rows: int) -> int:
    """Return the rows of blocks that overlap least, 0 where BLAS computes products."""
    choices = (registers().rows, registers().more_rows)
    return min(choices, key=lambda block: -(-rows // block) * block) if tiles else 0


def _product(block: int, code: str, **names: str) -> str:
    """Return the lines of a product: `a` and `out` are addresses, the other names are lengths."""
    if not block:
        bits = _gemm(code).integer_bits
        return _BY_BLAS.format(code=code, bits=bits, unchanged=UNCHANGED, **names)
    of_block = "product_of_rows" if block == registers().rows else "product_of_more_rows"
    return _IN_REGISTERS.format(panel=registers().panel, block=block, of_block=of_block, **names)


def _gemm(code: str) -> Gemm:
    found = find_gemm(code)
    assert found is not None
    return found


@cache
def _forward_source(cell: Cell, code: str, block: int) -> str:
    leading, out = f"{cell.gates or 1} * units", "gates" if cell.gates else "h_after"
    product = _product(
        block, code, columns=f"({cell.products} * units)", depth="units", a="h",
        out=out, leading=f"({leading})",
    )  # fmt: skip
    return f"{_LOOPS}{_TILES if block else ''}{HEADER}" + _FORWARD.format(
        cell=cell.name, code=code, products=cell.products, leading=cell.gates or 1,
        product=product, out=out,
    )  # fmt: skip


@cache
def _gradient_source(cell: Cell, code: str, block: int) -> str:
    of_first_cell = "        loops.copy_rows(dc, first, units)\n" if cell.has_cell else ""
    product = _product(
        block, code, columns="units", depth=f"({cell.products} * units)",
        a="r[17]" if cell.name == "gru" else "dx", out="r[16]", leading="units",
    )  # fmt: skip
    return f"{_LOOPS}{_TILES if block else ''}{HEADER}" + _GRADIENT.format(
        cell=cell.name, code=code, products=cell.products, leading=cell.gates or 1,
        product=product, of_first_cell=of_first_cell,
    )  # fmt: skip


def _rows_of(recurrence: Recurrence) -> tuple[Array, Array, Array]:
    """Return cells, gates and states; states, unread, in place of arrays that the cell lacks."""
    states = recurrence.states
    cells = recurrence.cells if recurrence.cell.has_cell else states
    return cells, recurrence.gates if recurrence.cell.gates else states[:-1], states


def _takes(*arrays: Array, lengths: Array | None = None) -> str | None:
    """Return the code of the type of all elements, None where rows are not contiguous.

    Lengths may be a column of other numbers, and rows any number of bytes apart.
    """
    code, dtype = type_code(arrays[0].dtype), arrays[0].dtype
    for x in arrays:
        inner = x.itemsize
        within = slice(None) if x.ndim == 1 else slice(1, None)
        pairs = zip(x.shape[within], x.strides[within], strict=True)
        for length, stride in reversed([*pairs]):
            if length != 1 and stride != inner:
                return None
            inner *= length
        if x.dtype != dtype or not x.size:
            return None
    if lengths is not None and (lengths.dtype != dtype or _gap(lengths) < 0 or not lengths.size):
        return None
    return code if code in ("f4", "f8") else None


def _gap(lengths: Array) -> int:
    """Return the stride of the lengths of sequences, in elements."""
    return int(lengths.strides[0] // lengths.itemsize)


def _batch_parts(
    arguments: tuple[Any, ...], parts: int, axes: tuple[int | None, ...], operations: int
) -> list[tuple[Any, ...]]:
    """Cut arrays along the axis of the batch in `axes`, None for arrays that all rows share."""
    batch = arguments[-1].shape[1]
    if operations < SPLIT_OPERATIONS or batch < 2 * registers().rows * parts:
        return []
    pieces = []
    for cut in cuts(batch, parts):
        pair = zip(arguments, axes, strict=True)
        pieces.append(
            tuple(x if axis is None else x[(slice(None),) * axis + (cut,)] for x, axis in pair)
        )
    return pieces


@cache
def _arranged(tiles: bool, transposed: bool) -> Native:
    """Return the kernel that copies weights to the order in which products read them."""

    def record(x: Array, out: Array) -> Record | None:
        code = _takes(x, out)
        if code is None:
            return None
        body = _TRANSPOSE
        if tiles:
            body = _TRANSPOSED_PANELS if transposed else _PANELS
        source = (_TILES if tiles else "") + HEADER
        source += body.format(code=code, panel=registers().panel)
        return entry_of(source), [address_of(x), *x.shape, address_of(out)]

    return Native(record)


@cache
def _forward_kernel(cell: Cell, reverse: bool, from_zeros: bool, tiles: bool) -> Native:
    """Return the kernel of a forward pass; `record` lists its arguments."""
    first, forwards = (-1, -1) if reverse else (0, 1)

    def record(*arrays: Array) -> Record | None:
        inputs, bias, hidden_bias, transposed, lengths, cells, gates, states = arrays
        code = _takes(inputs, bias, hidden_bias, transposed, *arrays[5:], lengths=lengths)
        found = None if code is None else find_gemm(code)
        if code is None or found is None:
            return None
        count = len(inputs)
        fields = [
            found.address, count, states.shape[1], states.shape[2],
            address_of(states[first]), forwards * states.strides[0], address_of(cells[first]),
            address_of(gates[first]), forwards * gates.strides[0],
            address_of(inputs[first]), forwards * inputs.strides[0],
            address_of(bias), address_of(hidden_bias), address_of(transposed), address_of(lengths),
            first % count, forwards, _gap(lengths), int(from_zeros),
        ]  # fmt: skip
        return entry_of(_forward_source(cell, code, _block_of(tiles, states.shape[1]))), fields

    def split(arguments: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
        operations = 2 * arguments[0].size * arguments[-1].shape[-1]
        return _batch_parts(arguments, parts, (1, None, None, None, 0, 1, 1, 1), operations)

    return Native(record, None, split)


def steps(
    recurrence: Recurrence, inputs: Array, bias: Array, hidden_bias: Array, transposed: Array
) -> list[Step] | None:
    """Return the calls of a recurrence, None for arrays that the kernel does not take."""
    tiles = _in_registers(recurrence)
    kernel = _forward_kernel(recurrence.cell, recurrence.reverse, recurrence.from_zeros, tiles)
    arranged = _arranged(tiles, True)
    arguments = (inputs, bias, hidden_bias, transposed, recurrence.lengths, *_rows_of(recurrence))
    if kernel.record(*arguments) is None or arranged.record(recurrence.weight, transposed) is None:
        return None
    return [(arranged, (recurrence.weight, transposed)), (kernel, arguments)]


@cache
def _gradient_kernel(
    cell: Cell, reverse: bool, of_cells: bool, starts: bool, tiles: bool
) -> Native:
    """Return the kernel of a gradient; `record` lists its arguments."""
    # The last time step comes first.
    last, forwards = (0, -1) if reverse else (-1, 1)

    def record(*arrays: Array) -> Record | None:
        weight, lengths, dy, dh, dc, space, hidden, cells, gates, states, dx = arrays
        # Of dy only the last axis has to be contiguous.
        code = _takes(weight, dy[:1, :1], *arrays[3:], lengths=lengths)
        found = None if code is None else find_gemm(code)
        if code is None or found is None:
            return None
        count = len(dy)
        before = 1 if reverse else count - 1
        fields = [
            found.address, count, states.shape[1], states.shape[2],
            address_of(states[before]), forwards * states.strides[0], address_of(cells[before]),
            address_of(gates[last]), forwards * gates.strides[0],
            address_of(dy[last]), forwards * dy.strides[0],
            address_of(dx[last % count]), forwards * dx.strides[0],
            *map(address_of, (weight, dh, dc, space, hidden, lengths)),
            last % count, forwards, address_of(dx[count]) if starts else 0,
            address_of(dc if of_cells else dh), dy.strides[1],
            _gap(lengths),
        ]  # fmt: skip
        return entry_of(_gradient_source(cell, code, _block_of(tiles, states.shape[1]))), fields

    def split(arguments: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
        operations = 2 * arguments[-1].size * arguments[0].shape[-1]
        axes = (None, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1)
        return _batch_parts(arguments, parts, axes, operations)

    return Native(record, None, split)


def gradient_steps(recurrence: Recurrence, gradients: GradientArrays) -> list[Step] | None:
    """Return the calls of a recurrence's gradient, None for arrays that the kernel refuses."""
    starts, tiles = len(gradients.products) > recurrence.steps, _in_registers(recurrence)
    kernel = _gradient_kernel(
        recurrence.cell, recurrence.reverse, gradients.of_cells, starts, tiles
    )
    *workspace, panels = gradients.workspace
    weight = panels if tiles else recurrence.weight
    arguments = (
        weight, recurrence.lengths, gradients.outputs, *workspace, *_rows_of(recurrence),
        gradients.products,
    )  # fmt: skip
    if kernel.record(*arguments) is None:
        return None
    arranged = _arranged(tiles, False)
    if tiles and arranged.record(recurrence.weight, panels) is None:
        return None
    return [*([(arranged, (recurrence.weight, panels))] if tiles else []), (kernel, arguments)]


@cache
def _weights_kernel() -> Native:
    """Return the kernel of the gradient of weights and bias; `record` lists its arguments.

    Of x the rows from `begin` to `end` are read. Threads have columns of dy of their own, in whole
    panels.
    """

    def record(*arguments: Any) -> Record | None:
        dy, x, weights, bias, space, begin, end = arguments
        (rows, wide), units, panel = dy.shape, x.shape[1], registers().panel
        arrays = (dy, x, weights, bias, space)
        fits = not wide % panel and not units % registers().rows and rows >= TALL_ROWS
        inner = all(each.strides[-1] == each.itemsize for each in arrays)
        if not fits or not inner or any(each.dtype != np.float32 for each in arrays):
            return None
        if not weights.flags.c_contiguous or space.size < wide * (WEIGHT_ROWS + units):
            return None
        fields = [
            address_of(dy), dy.strides[0], address_of(x), x.strides[0], rows, begin, end, wide,
            units, *map(address_of, (space, weights, bias)), WEIGHT_ROWS,
        ]  # fmt: skip
        return entry_of(f"{_TILES}{HEADER}{_WEIGHTS}"), fields

    def split(arguments: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
        dy, x, weights, bias, space, *rows = arguments
        if 2 * dy.size * x.shape[1] < SPLIT_OPERATIONS:
            return []
        each = WEIGHT_ROWS + x.shape[1]
        return [
            (dy[:, cut], x, weights[cut], bias[:, cut],
             space[cut.start * each : cut.stop * each], *rows)
            for cut in cuts(dy.shape[1], parts, registers().panel)
        ]  # fmt: skip

    return Native(record, None, split)


def weight_steps(
    dy: Array, x: Array, weights: Array, bias: Array, space: Array, rows: slice
) -> list[Step] | None:
    """Return the call of a gradient of weights and bias, None for arrays it does not take."""
    arguments = (dy, x, weights, bias, space, rows.start, rows.stop)
    kernel = _weights_kernel()
    return None if kernel.record(*arguments) is None else [(kernel, arguments)]
