"""Sequences of compiled kernels that run without Python in between.

Every kernel is a C function of one argument, the address of a record::

    record:  | field | field | ...     addresses of arrays, lengths, strides: 64 bits each

so that a sequence of calls is data. `Program` stores records one behind the other, and one compiled
loop walks through them::

    words:   | kernel | length | fields ... | kernel | length | fields ... |

A call from Python costs about a microsecond with its arrays; a step of a small network makes 60 of
them, and takes 30 us altogether in this form.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from dnn.backend.cpu.blas import blas_threads
from dnn.backend.cpu.cache import HEADER, entry_of
from dnn.backend.cpu.thread_pool import LIMIT_OF_HELPERS, thread_pool
from dnn.backend.ops import Array, Step

__all__ = [
    "Native",
    "Program",
    "Record",
    "address_of",
    "link",
    "record_words",
    "runner",
    "type_code",
]

Record = tuple[int, list[int]]
"""The address of a kernel and the fields that it is called with."""


@cache
def runner() -> Callable[[Any], None]:
    """Return the loop that walks through a program, as a function of the program's address."""
    address = entry_of(f"{HEADER}    intrinsics.walk(r)\n")
    return ctypes.CFUNCTYPE(None, ctypes.c_int64)(address)


class Program:
    """Kernels and their records, in the order in which they run.

    Parameters
    ----------
    records : sequence of (address, fields)
    keep : object
        Owner of the arrays that the records point to.
    """

    def __init__(self, records: Sequence[Record], keep: object) -> None:
        words = [0, *record_words(records)]
        words[0] = len(words)
        self.words = np.array(words, np.int64)
        self.keep = keep
        # ctypes passes this number for the object.
        self._as_parameter_ = int(self.words.ctypes.data)

    def run(self) -> None:
        """Run all kernels once, in order."""
        runner()(self)


def record_words(records: Sequence[Record]) -> list[int]:
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
        Returns, for arguments, a record, or None for arrays that the kernel does not take.
    oracle : callable, optional
        The same function in NumPy; called for arrays that the kernel does not take. If left out,
        the kernel is called only with arrays that it takes.
    split : callable, optional
        Returns, for arguments and a number of parts, the arguments of each part, or nothing where
        splitting is not worthwhile.
    """

    def __init__(
        self,
        record: Callable[..., Record | None],
        oracle: Callable[..., object] | None = None,
        split: Callable[[tuple[Any, ...], int], Sequence[tuple[Any, ...]]] | None = None,
    ) -> None:
        self.record = record
        self.oracle = oracle or self._refuse
        self._split = split

    def _refuse(self, *arguments: Any) -> None:
        raise AssertionError(f"{self!r} was compiled for arrays that it does not take")

    def parts(self, arguments: tuple[Any, ...], number: int) -> list[Record]:
        """Return the records of the parts of a call, or none where it is not to be split."""
        pieces = () if self._split is None or number < 2 else self._split(arguments, number)
        records = [record for piece in pieces if (record := self.record(*piece)) is not None]
        return records if len(records) == len(pieces) else []

    def __call__(self, *arguments: Any) -> None:
        """Run the kernel at once, or its oracle for arrays that the kernel does not take."""
        record = self.record(*arguments)
        if record is None:
            self.oracle(*arguments)
        else:
            Program([record], arguments).run()


def address_of(x: Array) -> int:
    """Return the address of an array's first element."""
    return int(x.ctypes.data)


Splits = Callable[[Native, tuple[Any, ...]], bool]


def link(steps: Sequence[Step], splits: Splits = lambda function, arguments: True) -> list[Step]:
    """Put neighbouring native steps into one program; other steps stay as they are.

    Large kernels are split over as many threads as BLAS has now, where `splits` says so.
    """
    threads = min(blas_threads(), LIMIT_OF_HELPERS + 1)
    linked: list[Step] = []
    records: list[Record] = []
    kept: list[tuple[Any, ...]] = []

    def close() -> None:
        if records:
            linked.append(_program(records, list(kept), threads))
            records.clear()
            kept.clear()

    for function, arguments in steps:
        record = function.record(*arguments) if isinstance(function, Native) else None
        if not isinstance(function, Native) or record is None:
            close()
            oracle = function.oracle if isinstance(function, Native) else function
            linked.append((oracle, arguments))
            continue
        splitting = threads if splits(function, arguments) else 1
        parts = function.parts(arguments, splitting)
        records.append(_shared(parts) if parts else record)
        kept.append(arguments)
    close()
    return linked


def _shared(parts: Sequence[Record]) -> Record:
    """Return the record that runs the parts of a kernel on several threads."""
    return thread_pool().share, [*thread_pool().share_fields, len(parts), *record_words(parts)]


def _program(records: Sequence[Record], keep: object, threads: int) -> Step:
    """Return the call of a program, with helper threads if it has kernels in parts.

    A product that is not in parts runs on one thread in either case, so that its bits do not depend
    on what else is in the program: with some kernels of OpenBLAS they depend on its threads.
    """
    if threads == 1:
        return runner(), (Program(records, keep),)
    pool = thread_pool()
    whole = Program([(pool.begin, pool.blas_fields), *records, (pool.end, pool.blas_fields)], keep)
    if all(kernel != pool.share for kernel, _ in records):
        return runner(), (whole,)
    return _with_helpers(threads - 1), (whole,)


def _with_helpers(helpers: int) -> Callable[[Program], None]:
    run, wake = runner(), thread_pool().wake

    def run_with_helpers(program: Program) -> None:
        wake(helpers)
        run(program)

    return run_with_helpers


@cache
def type_code(dtype: np.dtype[Any]) -> str | None:
    """Return the type of elements as kernels spell it, None for one that they do not take."""
    return {"f4": "f4", "f8": "f8", "i8": "i8", "u8": "u8"}.get(dtype.str.lstrip("<=|"))
