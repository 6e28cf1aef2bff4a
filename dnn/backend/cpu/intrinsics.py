"""Functions that Numba does not have: calls by address, memory on the stack, register shuffles.

Imported when something is compiled, and only then: see `cache`.
"""

# Numba infers the types of what it compiles.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

from dnn.backend.cpu.blas import ROW_MAJOR
from dnn.backend.cpu.cache import FLAGS

__all__ = [
    "KERNEL_TYPE",
    "address_of_words",
    "call_gemm_32",
    "call_gemm_64",
    "call_kernel",
    "fields_type",
    "flat",
    "part",
    "pointer",
    "scratch",
    "transpose",
    "transpose_four",
    "walk",
]

KERNEL_TYPE = types.void(types.CPointer(types.int64))
"""Signature of every kernel, as a type of Numba."""

_WORD = ir.IntType(64)


@intrinsic
def pointer(context, address):
    """Turn an address into a pointer that `numba.carray` takes."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(address), generate


@intrinsic
def call_kernel(context, kernel, record):
    """Call the kernel at an address with the address of its record."""

    def generate(context, builder, signature, arguments):
        kernel_type = ir.FunctionType(ir.VoidType(), [_WORD.as_pointer()])
        function = builder.inttoptr(arguments[0], kernel_type.as_pointer())
        builder.call(function, [builder.inttoptr(arguments[1], _WORD.as_pointer())])
        return context.get_dummy_value()

    return types.void(kernel, record), generate


@intrinsic
def address_of_words(context, words):
    """Return the address of a pointer."""

    def generate(context, builder, signature, arguments):
        return builder.ptrtoint(arguments[0], _WORD)

    return types.int64(words), generate


def fields_type(fields):
    """Return the type of a record for `numba.carray`: integers, by the names in a named tuple.

    Each is read from memory where a kernel uses it.
    """
    return np.dtype([(name, np.int64) for name in fields._fields])


@njit
def walk(words):
    """Run the kernels of a program, one after the other; see `program`."""
    at = 1
    start = address_of_words(words)
    while at < words[0]:
        call_kernel(words[at], start + 8 * (at + 2))
        at += words[at + 1]


def _caller(integer_bits):
    integer = ir.IntType(integer_bits)

    def call(context, gemm, a_form, b_form, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
        def generate(context, builder, signature, arguments):
            address, *given = arguments
            real = context.get_value_type(alpha)
            byte = ir.IntType(8).as_pointer()
            flag = ir.IntType(32)
            # cblas_sgemm(order, a_form, b_form, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
            parameters = [flag, flag, flag, integer, integer, integer, real, byte, integer, byte,
                          integer, real, byte, integer]  # fmt: skip
            values = [flag(ROW_MAJOR)]
            for value, wanted in zip(given, parameters[1:], strict=True):
                if wanted == byte:
                    values.append(builder.inttoptr(value, byte))
                elif wanted == real or value.type == wanted:
                    values.append(value)
                else:
                    values.append(builder.trunc(value, wanted))
            kind = ir.FunctionType(ir.VoidType(), parameters).as_pointer()
            builder.call(builder.inttoptr(address, kind), values)
            return context.get_dummy_value()

        word = types.int64
        signature = types.void(
            word, word, word, word, word, word, alpha, word, word, word, word, alpha, word, word
        )
        return signature, generate

    return call


call_gemm_32, call_gemm_64 = intrinsic(_caller(32)), intrinsic(_caller(64))


# Transposing small matrices. LLVM makes a load and a store for each element of such a loop; four
# rows of four elements are transposed by eight shuffles of registers that every processor with
# vectors has.

_LOW, _HIGH = (0, 4, 1, 5), (2, 6, 3, 7)
"""The first halves of two registers, element by element in turn, and the second halves."""


@intrinsic(prefer_literal=True)
def scratch(context, size_bytes):
    """Return the address of memory on the stack, valid until the calling function returns."""

    def generate(context, builder, signature, arguments):
        with builder.goto_entry_block():
            place = builder.alloca(ir.IntType(8), size_bytes.literal_value)
        place.align = 64
        return builder.ptrtoint(place, _WORD)

    return types.int64(size_bytes), generate


@intrinsic
def transpose_four(context, source, source_step, target, target_step, like):
    """Transpose a block of four rows: addresses, and bytes from row to row."""

    def generate(context, builder, signature, arguments):
        start, step, out, out_step, one = arguments
        four = ir.VectorType(one.type, 4)
        size = context.get_abi_sizeof(one.type)

        def place(at, step, row):
            address = builder.add(at, builder.mul(step, _WORD(row)))
            return builder.inttoptr(address, four.as_pointer())

        rows = [builder.load(place(start, step, row), align=size) for row in range(4)]
        for _ in range(2):
            # Rows i and i + 2 become rows 2 i and 2 i + 1; twice that transposes the block.
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
def transpose(x, leading, out):
    """``out[j, i] = x[i, j]``; the rows of x, a flat array, begin `leading` elements apart."""
    columns, rows = out.shape
    item = x.itemsize
    source, target = x.ctypes.data, out.ctypes.data
    for i in range(0, rows - 3, 4):
        for j in range(0, columns - 3, 4):
            at, to = source + (i * leading + j) * item, target + (j * rows + i) * item
            transpose_four(at, leading * item, to, rows * item, x[0])
        for j in range(columns // 4 * 4, columns):
            for k in range(i, i + 4):
                out[j, k] = x[k * leading + j]
    for i in range(rows // 4 * 4, rows):
        for j in range(columns):
            out[j, i] = x[i * leading + j]


@njit(**FLAGS)
def flat(x):
    """Return a contiguous array as a view with one axis; `reshape` would call a Numba function."""
    return carray(pointer(x.ctypes.data), (x.size,), x.dtype)


@njit(**FLAGS)
def part(x, start, length):
    """Return a view with one axis of `length` elements of a contiguous array, from `start` on."""
    return carray(pointer(x.ctypes.data + start * x.itemsize), (length,), x.dtype)
