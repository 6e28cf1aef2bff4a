"""Recurrent cells over all time steps as one kernel each, forward and gradient.

Each time step is a product of the states with the weights, by BLAS or by `register_tiles`, and a
loop over the rows of the batch that computes all the rest of the cell. Rows do not depend on each
other, so threads share the batch, each over all time steps. The loops are in `recurrence_kernels`.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
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

ForwardFields = namedtuple(
    "ForwardFields",
    "gemm count rows units at_states step at_cells at_gates gates_step at_x x_step at_bias"
    " at_hidden_bias at_weights at_lengths first forwards gap from_zeros",
)
"""Fields of a forward pass: what is `at_` is an address, and what ends in `step` the bytes to the
next time step; `first` is the number of the time step that comes first."""

_FORWARD = """\
    bias = carray(pointer(at_bias), ({products} * units,), {code})
    hidden_bias = carray(pointer(at_hidden_bias), ({products} * units,), {code})
    lengths = carray(pointer(at_lengths), ((rows - 1) * gap + 1,), {code})
    for s in range(count):
        h, h_after = at_states + s * step, at_states + (s + 1) * step
        c, c_after = at_cells + s * step, at_cells + (s + 1) * step
        gates = at_gates + s * gates_step
        if s == 0 and from_zeros != 0:  # of zeros
            loops.fill_rows({code}(0), carray(pointer({out}), (rows, {leading} * units), {code}))
        else:
{product}        loops.{cell}_rows(
            carray(pointer(gates), (rows, {leading} * units), {code}),
            carray(pointer(at_x + s * x_step), (rows, {products} * units), {code}),
            bias, hidden_bias,
            carray(pointer(c), (rows, units), {code}),
            carray(pointer(c_after), (rows, units), {code}),
            carray(pointer(h), (rows, units), {code}),
            carray(pointer(h_after), (rows, units), {code}),
            lengths, gap, first + s * forwards, intrinsics.part,
            vector_math.sigmoid_{code}, vector_math.tanh_{code},
        )
"""

GradientFields = namedtuple(
    "GradientFields",
    "gemm count rows units at_states step at_cells at_gates gates_step at_dy dy_step at_dx dx_step"
    " at_weights at_dh at_dc at_space at_hidden at_lengths first forwards at_start at_arriving"
    " dy_row gap",
)
"""Fields of a gradient, as `ForwardFields`: `at_start` is 0 if no gradient of what the first time
step starts from is wanted; gradients arrive in dh or dc."""

_GRADIENT = """\
    lengths = carray(pointer(at_lengths), ((rows - 1) * gap + 1,), {code})
    dh = carray(pointer(at_dh), (rows, units), {code})
    dc = carray(pointer(at_dc), (rows, units), {code})
    space = carray(pointer(at_space), (rows, units), {code})
    arriving = carray(pointer(at_arriving), (rows, units), {code})
    hidden = carray(pointer(at_hidden), (rows, {products} * units), {code})
    loops.fill_rows({code}(0), dh)
    loops.fill_rows({code}(0), dc)
    for s in range(count):
        h, h_after = at_states - s * step, at_states - (s - 1) * step
        c, c_after = at_cells - s * step, at_cells - (s - 1) * step
        dx = at_dx - s * dx_step
        for b in range(rows):
            row = carray(pointer(at_dy - s * dy_step + b * dy_row), (units,), {code})
            loops.added(row, intrinsics.part(arriving, b * units, units))
        loops.{cell}_gradient_rows(
            carray(pointer(at_gates - s * gates_step), (rows, {leading} * units), {code}),
            carray(pointer(c), (rows, units), {code}),
            carray(pointer(c_after), (rows, units), {code}),
            carray(pointer(h), (rows, units), {code}),
            carray(pointer(h_after), (rows, units), {code}),
            carray(pointer(dx), (rows, {products} * units), {code}),
            dh, dc, space, hidden, lengths, gap, first - s * forwards,
            intrinsics.part, vector_math.tanh_{code},
        )
        # Of what the first time step starts from a gradient may not be wanted.
        if s + 1 < count or at_start != 0:
{product}            loops.added_rows(space, dh)
    if at_start != 0:
        start = carray(pointer(at_start), (rows, {products} * units), {code})
        loops.copy_rows(dh, start, 0)
{of_first_cell}
"""

_BY_BLAS = """\
            intrinsics.call_gemm_{bits}(
                gemm, {unchanged}, {unchanged}, rows, {columns}, {depth}, {code}(1),
                {a}, {depth}, at_weights, {columns}, {code}(0), {out}, {leading},
            )
"""
_IN_REGISTERS = """\
            for panel in range({columns} // {panel}):
                for row in range(0, rows, {block}):
                    # The last block begins so that it ends with the rows.
                    at = min(row, rows - {block})
                    register_tiles.{of_block}(
                        {a} + 4 * at * {depth}, 4 * {depth},
                        at_weights + 4 * {panel} * panel * {depth}, {depth},
                        {out} + 4 * (at * {leading} + panel * {panel}), 4 * {leading}, 0,
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


def _header(fields: Sequence[str], block: int) -> str:
    """Return the beginning of a source, in which the fields have their names."""
    names = "".join(f"    {name} = r[{at}]\n" for at, name in enumerate(fields))
    return f"{_LOOPS}{_TILES if block else ''}{HEADER}{names}"


@cache
def _forward_source(cell: Cell, code: str, block: int) -> str:
    leading, out = f"{cell.gates or 1} * units", "gates" if cell.gates else "h_after"
    product = _product(
        block, code, columns=f"({cell.products} * units)", depth="units", a="h",
        out=out, leading=f"({leading})",
    )  # fmt: skip
    return _header(ForwardFields._fields, block) + _FORWARD.format(
        cell=cell.name, code=code, products=cell.products, leading=cell.gates or 1,
        product=product, out=out,
    )  # fmt: skip


@cache
def _gradient_source(cell: Cell, code: str, block: int) -> str:
    of_first_cell = "        loops.copy_rows(dc, start, units)\n" if cell.has_cell else ""
    product = _product(
        block, code, columns="units", depth=f"({cell.products} * units)",
        a="at_hidden" if cell.name == "gru" else "dx", out="at_space", leading="units",
    )  # fmt: skip
    return _header(GradientFields._fields, block) + _GRADIENT.format(
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
        fields = ForwardFields(
            gemm=found.address, count=count, rows=states.shape[1], units=states.shape[2],
            at_states=address_of(states[first]), step=forwards * states.strides[0],
            at_cells=address_of(cells[first]),
            at_gates=address_of(gates[first]), gates_step=forwards * gates.strides[0],
            at_x=address_of(inputs[first]), x_step=forwards * inputs.strides[0],
            at_bias=address_of(bias), at_hidden_bias=address_of(hidden_bias),
            at_weights=address_of(transposed), at_lengths=address_of(lengths),
            first=first % count, forwards=forwards, gap=_gap(lengths), from_zeros=int(from_zeros),
        )  # fmt: skip
        source = _forward_source(cell, code, _block_of(tiles, states.shape[1]))
        return entry_of(source), list(fields)

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
        fields = GradientFields(
            gemm=found.address, count=count, rows=states.shape[1], units=states.shape[2],
            at_states=address_of(states[before]), step=forwards * states.strides[0],
            at_cells=address_of(cells[before]),
            at_gates=address_of(gates[last]), gates_step=forwards * gates.strides[0],
            at_dy=address_of(dy[last]), dy_step=forwards * dy.strides[0],
            at_dx=address_of(dx[last % count]), dx_step=forwards * dx.strides[0],
            at_weights=address_of(weight), at_dh=address_of(dh), at_dc=address_of(dc),
            at_space=address_of(space), at_hidden=address_of(hidden),
            at_lengths=address_of(lengths), first=last % count, forwards=forwards,
            at_start=address_of(dx[count]) if starts else 0,
            at_arriving=address_of(dc if of_cells else dh), dy_row=dy.strides[1],
            gap=_gap(lengths),
        )  # fmt: skip
        source = _gradient_source(cell, code, _block_of(tiles, states.shape[1]))
        return entry_of(source), list(fields)

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
