"""What Numba itself does not offer: calls of C functions and of kernels, by their addresses.

Imported when something is compiled, and only then: see `cache`.
"""

# Numba infers the types of what it compiles.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from dnn.backend.cpu.blas import ROW_MAJOR

__all__ = [
    "KERNEL_TYPE",
    "address_of_words",
    "call_gemm_32",
    "call_gemm_64",
    "call_kernel",
    "pointer",
    "walk",
]

KERNEL_TYPE = types.void(types.CPointer(types.int64))
"""What every kernel is in Numba's terms."""

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


@njit
def walk(words):
    """Run the kernels of a program, one after the other; see `native`."""
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
