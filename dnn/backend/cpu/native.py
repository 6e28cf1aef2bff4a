"""Compiled functions that call each other without Python in between.

Every kernel is a C function of one argument, the address of a record::

    record:  | field | field | ...     addresses of arrays, lengths, strides: 64 bits each

so that a sequence of calls is data. `Program` lays records one behind the other, and one compiled
loop walks through them::

    words:   | kernel | length | fields ... | kernel | length | fields ... |

A call from Python costs about a microsecond with its arrays; a step of a small network makes 60 of
them, and takes 30 us altogether in this form.
"""

# Numba infers the types of what it compiles.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import cfunc, types
from numba.extending import intrinsic

from dnn.backend.cpu.cache import compiled_here
from dnn.backend.ops import Array

__all__ = [
    "KERNEL_TYPE",
    "Native",
    "Program",
    "Record",
    "Step",
    "address_of",
    "address_of_words",
    "call_kernel",
    "laid_out",
    "pointer",
    "runner",
]

KERNEL_TYPE = types.void(types.CPointer(types.int64))
"""What every kernel is in Numba's terms."""

Record = tuple[int, list[int]]
"""The address of a kernel and the fields that it is called with."""

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


def _walk(words):
    at = 1
    start = address_of_words(words)
    while at < words[0]:
        call_kernel(words[at], start + 8 * (at + 2))
        at += words[at + 1]


_run: Callable[[Any], None] | None = None


def runner() -> Callable[[Any], None]:
    """Return the loop that walks through a program, as a function of the program's address."""
    global _run
    if _run is None:
        walk = compiled_here(lambda cache: cfunc(KERNEL_TYPE, cache=cache)(_walk))
        _run = ctypes.CFUNCTYPE(None, ctypes.c_int64)(walk.address)
        _run.keep = walk  # type: ignore[attr-defined]
    return _run


class Program:
    """Kernels and their records, in the order in which they run.

    Parameters
    ----------
    records : sequence of (address, fields)
    keep : object
        What owns the arrays that the records point to.
    """

    def __init__(self, records: Sequence[Record], keep: object) -> None:
        words = [0, *laid_out(records)]
        words[0] = len(words)
        self.words = np.array(words, np.int64)
        self.keep = keep
        # What ctypes passes for this object.
        self._as_parameter_ = int(self.words.ctypes.data)

    def run(self) -> None:
        """Run it once."""
        runner()(self)


def laid_out(records: Sequence[Record]) -> list[int]:
    """Return records as words, one behind the other."""
    words: list[int] = []
    for kernel, fields in records:
        words += [kernel, 2 + len(fields), *fields]
    return words


class Native:
    """A function that a program can contain.

    Parameters
    ----------
    record : callable
        From the arguments to a record, or None for arrays that the kernel does not take.
    oracle : callable
        The same function in NumPy; called for those arrays.
    split : callable, optional
        From the arguments and a number of parts to the arguments of each part, where that pays;
        else to nothing.
    """

    def __init__(
        self,
        record: Callable[..., Record | None],
        oracle: Callable[..., object],
        split: Callable[[tuple[Any, ...], int], Sequence[tuple[Any, ...]]] | None = None,
    ) -> None:
        self.record = record
        self.oracle = oracle
        self._split = split

    def parts(self, arguments: tuple[Any, ...], number: int) -> list[Record]:
        """Return the records of its parts, or none where it is not to be split."""
        pieces = () if self._split is None or number < 2 else self._split(arguments, number)
        records = [record for piece in pieces if (record := self.record(*piece)) is not None]
        return records if len(records) == len(pieces) else []

    def __call__(self, *arguments: Any) -> None:
        """Run it at once, as an eager mode does."""
        record = self.record(*arguments)
        if record is None:
            self.oracle(*arguments)
        else:
            Program([record], arguments).run()


Step = tuple[Callable[..., object], tuple[Any, ...]]


def address_of(x: Array) -> int:
    """Return where an array begins."""
    return int(x.ctypes.data)
