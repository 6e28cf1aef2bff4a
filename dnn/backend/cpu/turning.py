"""Transposing small matrices, and memory on the stack for them.

LLVM makes a load and a store for each element of such a loop. Four rows of four elements are turned
by eight shuffles of registers that every processor with vectors has.
"""

# Numba infers the types of what it compiles.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from dnn.backend.cpu.vector_math import FLAGS

__all__ = ["scratch", "turn"]

_WORD = ir.IntType(64)
_LOW, _HIGH = (0, 4, 1, 5), (2, 6, 3, 7)
"""The first halves of two registers, element by element in turn, and the second halves."""


@intrinsic(prefer_literal=True)
def scratch(context, size_bytes):
    """Return the address of memory on the stack, there as long as the function that asks runs."""

    def generate(context, builder, signature, arguments):
        with builder.goto_entry_block():
            place = builder.alloca(ir.IntType(8), size_bytes.literal_value)
        place.align = 64
        return builder.ptrtoint(place, _WORD)

    return types.int64(size_bytes), generate


@intrinsic
def _turn_four(context, source, source_step, target, target_step, like):
    """Turn a block of four rows: addresses, and bytes from row to row."""

    def generate(context, builder, signature, arguments):
        start, step, out, out_step, one = arguments
        four = ir.VectorType(one.type, 4)
        size = context.get_abi_sizeof(one.type)

        def place(at, step, row):
            address = builder.add(at, builder.mul(step, _WORD(row)))
            return builder.inttoptr(address, four.as_pointer())

        rows = [builder.load(place(start, step, row), align=size) for row in range(4)]
        for _ in range(2):
            # Of rows i and i + 2 rows 2 i and 2 i + 1; twice that turns the block.
            rows = [
                builder.shuffle_vector(rows[i], rows[i + 2], ir.Constant(_MASK, mask))
                for i in range(2)
                for mask in (_LOW, _HIGH)
            ]
        for row, values in enumerate(rows):
            builder.store(values, place(out, out_step, row), align=size)
        return context.get_dummy_value()

    word = types.int64
    return types.void(word, word, word, word, like), generate


_MASK = ir.VectorType(ir.IntType(32), 4)


@njit(**FLAGS)
def turn(x, leading, out):
    """``out[j, i] = x[i, j]``; the rows of x, a flat array, begin `leading` elements apart."""
    columns, rows = out.shape
    item = x.itemsize
    source, target = x.ctypes.data, out.ctypes.data
    for i in range(0, rows - 3, 4):
        for j in range(0, columns - 3, 4):
            at, to = source + (i * leading + j) * item, target + (j * rows + i) * item
            _turn_four(at, leading * item, to, rows * item, x[0])
        for j in range(columns // 4 * 4, columns):
            for k in range(i, i + 4):
                out[j, k] = x[k * leading + j]
    for i in range(rows // 4 * 4, rows):
        for j in range(columns):
            out[j, i] = x[i * leading + j]
