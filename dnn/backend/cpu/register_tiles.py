"""Blocks of a matrix product that stay in registers, as vector code, and moves of what they read.

One block is ``rows`` x ``panel`` elements of ``c = a @ b`` (see `registers`), summed over the whole
depth. The columns of b for it are contiguous, a panel; elements of a are read one by one and copied
to all lanes of a vector. LLVM keeps the block in registers because nothing here is an array.
[1]_ [2]_

Imported when something is compiled, and only then: see `cache`.

References
----------
.. [1] Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008.
.. [2] Dukhan, The Indirect Convolution Algorithm, 2019: rows of a by a list of addresses.
"""

# Numba infers the types of what it compiles.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

from llvmlite import ir
from numba import carray, float32, njit, types
from numba.extending import intrinsic

from dnn.backend.cpu.cache import FLAGS
from dnn.backend.cpu.convolution_work import FLOAT_BYTES
from dnn.backend.cpu.intrinsics import pointer, transpose_four
from dnn.backend.cpu.registers import registers
from dnn.backend.cpu.vectors import FAST, WORD, Vectors, load_word

__all__ = [
    "LANES",
    "PANEL",
    "ROWS",
    "ROW_BYTES",
    "VECTOR_BYTES",
    "clear",
    "copy_floats",
    "product_of_columns",
    "product_of_listed_columns",
    "product_of_listed_rows",
    "product_of_more_rows",
    "product_of_rows",
    "transposed",
    "weights_and_bias",
]

LANES, PANEL, ROWS, MORE_ROWS = registers()
VECTOR_BYTES = FLOAT_BYTES * LANES
ROW_BYTES = FLOAT_BYTES * PANEL
"""Size of a row of a panel."""


def _product(builder, depth, start, targets, operands):
    """Generate one block of a product.

    Parameters
    ----------
    depth : number of terms
    start : whether to add to the present values of c, instead of to 0
    targets : addresses of the block's rows in c
    operands : function of k to the addresses of the elements of a, one for each row, and of b's row
    """
    v = Vectors("f4", builder)
    zero = ir.Constant(v.type, None)
    columns = [VECTOR_BYTES * v for v in range(PANEL // LANES)]
    places = [builder.add(row, WORD(column)) for row in targets for column in columns]

    before = builder.block
    loading = builder.append_basic_block("loading")
    entered = builder.append_basic_block("entered")
    builder.cbranch(builder.icmp_signed("!=", start, WORD(0)), loading, entered)
    builder.position_at_end(loading)
    given = [v.load(place) for place in places]
    builder.branch(entered)

    builder.position_at_end(entered)
    sums = []
    for value in given:
        node = builder.phi(v.type)
        node.add_incoming(zero, before)
        node.add_incoming(value, loading)
        sums.append(node)
    body = builder.append_basic_block("body")
    done = builder.append_basic_block("done")
    builder.cbranch(builder.icmp_signed(">", depth, WORD(0)), body, done)

    builder.position_at_end(body)
    k = builder.phi(WORD)
    k.add_incoming(WORD(0), entered)
    nodes = []
    for value in sums:
        node = builder.phi(v.type)
        node.add_incoming(value, entered)
        nodes.append(node)
    elements, b_row = operands(k)
    vectors = [v.load(builder.add(b_row, WORD(column))) for column in columns]
    totals = []
    for i, element in enumerate(elements):
        factor = v.splat(v.number(element))
        for j, vector in enumerate(vectors):
            term = builder.fmul(factor, vector, flags=FAST)
            totals.append(builder.fadd(term, nodes[i * len(vectors) + j], flags=FAST))
    following = builder.add(k, WORD(1))
    k.add_incoming(following, body)
    for node, total in zip(nodes, totals, strict=True):
        node.add_incoming(total, body)
    builder.cbranch(builder.icmp_signed("<", following, depth), body, done)

    builder.position_at_end(done)
    results = []
    for value, total in zip(sums, totals, strict=True):
        node = builder.phi(v.type)
        node.add_incoming(value, entered)
        node.add_incoming(total, body)
        results.append(node)
    for node, place in zip(results, places, strict=True):
        v.store(node, place)


def _steps(builder, base, step, rows=ROWS):
    """Return the addresses of a block's rows that are `step` bytes apart."""
    return [builder.add(base, builder.mul(step, WORD(i))) for i in range(rows)]


_SIX, _SEVEN = (types.void(*[types.int64] * n) for n in (6, 7))


def _product_of(count):
    """Return `product_of_rows` for blocks of so many rows."""

    @intrinsic
    def product(context, a, a_step, b, depth, c, c_step, start):
        """``c[i] = sum(a[i, k] * b[k] for k)``; steps are bytes from row to row of a and of c."""

        def generate(context, builder, signature, arguments):
            a, a_step, b, depth, c, c_step, start = arguments
            rows = _steps(builder, a, a_step, count)

            def operands(k):
                along = builder.mul(k, WORD(FLOAT_BYTES))
                panel_row = builder.add(b, builder.mul(k, WORD(ROW_BYTES)))
                return [builder.add(row, along) for row in rows], panel_row

            _product(builder, depth, start, _steps(builder, c, c_step, count), operands)
            return context.get_dummy_value()

        return _SEVEN, generate

    return product


product_of_rows = _product_of(ROWS)
product_of_more_rows = _product_of(MORE_ROWS)


@intrinsic
def product_of_columns(context, a, a_step, b, depth, c, c_step, start):
    """``c[i] = sum(a[k, i] * b[k] for k)``."""

    def generate(context, builder, signature, arguments):
        a, a_step, b, depth, c, c_step, start = arguments

        def operands(k):
            row = builder.add(a, builder.mul(k, a_step))
            panel_row = builder.add(b, builder.mul(k, WORD(ROW_BYTES)))
            return _steps(builder, row, WORD(FLOAT_BYTES)), panel_row

        _product(builder, depth, start, _steps(builder, c, c_step), operands)
        return context.get_dummy_value()

    return _SEVEN, generate


@intrinsic
def product_of_listed_rows(context, a_rows, a_offset, b, depth, c, c_step):
    """``c[i] += sum(a[i, k] * b[k] for k)``; rows of a begin at the addresses in a list."""

    def generate(context, builder, signature, arguments):
        a_rows, a_offset, b, depth, c, c_step = arguments
        places = _steps(builder, a_rows, WORD(8))
        rows = [builder.add(load_word(builder, place), a_offset) for place in places]

        def operands(k):
            along = builder.mul(k, WORD(FLOAT_BYTES))
            panel_row = builder.add(b, builder.mul(k, WORD(ROW_BYTES)))
            return [builder.add(row, along) for row in rows], panel_row

        _product(builder, depth, WORD(1), _steps(builder, c, c_step), operands)
        return context.get_dummy_value()

    return _SIX, generate


@intrinsic
def product_of_listed_columns(context, a_rows, a_offset, b_rows, b_offset, depth, c, c_step):
    """``c[i] += sum(a[k, i] * b[k] for k)``; rows of a and b begin at addresses in two lists."""

    def generate(context, builder, signature, arguments):
        a_rows, a_offset, b_rows, b_offset, depth, c, c_step = arguments

        def operands(k):
            word = builder.mul(k, WORD(8))
            row = builder.add(load_word(builder, builder.add(a_rows, word)), a_offset)
            panel_row = builder.add(load_word(builder, builder.add(b_rows, word)), b_offset)
            return _steps(builder, row, WORD(FLOAT_BYTES)), panel_row

        _product(builder, depth, WORD(1), _steps(builder, c, c_step), operands)
        return context.get_dummy_value()

    return _SEVEN, generate


@njit(**FLAGS)
def clear(address, floats):
    """Write `floats` zeros from an address on."""
    values = carray(pointer(address), (floats,), float32)
    for i in range(floats):
        values[i] = 0


@njit(**FLAGS)
def copy_floats(source, target, floats):
    """Copy `floats` numbers from one address to another."""
    given = carray(pointer(source), (floats,), float32)
    values = carray(pointer(target), (floats,), float32)
    for i in range(floats):
        values[i] = given[i]


@njit(**FLAGS)
def transposed(source, source_step, rows, columns, target, target_step):
    """``target[j, i] = source[i, j]``; steps are bytes from row to row."""
    for i in range(0, rows - 3, 4):
        for j in range(0, columns - 3, 4):
            start = source + i * source_step + j * FLOAT_BYTES
            to = target + j * target_step + i * FLOAT_BYTES
            transpose_four(start, source_step, to, target_step, float32(0))
    for i in range(rows):
        row = carray(pointer(source + i * source_step), (columns,), float32)
        for j in range(0 if i >= rows // 4 * 4 else columns // 4 * 4, columns):
            place = target + j * target_step + i * FLOAT_BYTES
            carray(pointer(place), (1,), float32)[0] = row[j]


@njit(**FLAGS)
def weights_and_bias(dy, dy_step, x, x_step, rows, begin, end, wide, units, space, weights, bias,
                     depth):  # fmt: skip
    """``weights = dy^T x`` of the rows from `begin` to `end`, and the sums of dy over all rows.

    Matrices have many rows. `depth` of them are copied to panels at a time; the gradient is summed
    up behind each panel, as its transpose, which is transposed to `weights` in the end.
    """
    panels, panel_bytes = wide // PANEL, (depth + units) * ROW_BYTES
    total = carray(pointer(bias), (wide,), float32)
    for j in range(wide):
        total[j] = 0
    for first in range(0, rows, depth):
        last = min(first + depth, rows)
        for i in range(first, last):
            row = dy + i * dy_step
            given = carray(pointer(row), (wide,), float32)
            for panel in range(panels):
                place = space + panel * panel_bytes + (i - first) * ROW_BYTES
                copy_floats(row + panel * ROW_BYTES, place, PANEL)
            for j in range(wide):
                total[j] += given[j]
        low, high = max(first, begin), min(last, end)
        for panel in range(panels if low < high else 0):
            terms = space + panel * panel_bytes
            for column in range(0, units, ROWS):
                product_of_columns(
                    x + low * x_step + column * FLOAT_BYTES, x_step,
                    terms + (low - first) * ROW_BYTES, high - low,
                    terms + (depth + column) * ROW_BYTES, ROW_BYTES, low - begin,
                )  # fmt: skip
    for panel in range(panels):
        sums = space + panel * panel_bytes + depth * ROW_BYTES
        place = weights + panel * PANEL * units * FLOAT_BYTES
        transposed(sums, ROW_BYTES, units, PANEL, place, units * FLOAT_BYTES)
