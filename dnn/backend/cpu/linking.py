"""From steps to programs: neighbouring kernels become one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dnn.backend.cpu.native import Native, Program, Record, Step, laid_out, runner
from dnn.backend.cpu.team import LIMIT_OF_HELPERS, blas_threads, team

__all__ = ["link"]


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
    """Return the record of a kernel in parts."""
    return team().share, [*team().share_fields, len(parts), *laid_out(parts)]


def _program(records: Sequence[Record], keep: object, threads: int) -> Step:
    """Return the call of a program, with helpers if it has kernels in parts."""
    if threads == 1 or all(kernel != team().share for kernel, _ in records):
        return runner(), (Program(records, keep),)
    fields = team().blas_fields
    whole = Program([(team().begin, fields), *records, (team().end, fields)], keep)
    return _with_helpers(threads - 1), (whole,)


def _with_helpers(helpers: int) -> Callable[[Program], None]:
    run, wake = runner(), team().wake

    def run_with_helpers(program: Program) -> None:
        wake(helpers)
        run(program)

    return run_with_helpers
