"""Which routine does what, by size: measured once, kept, and never changed within a run.

There are several ways to sum columns or to multiply matrices, and which is fastest depends on the
machine and on the size. They round differently, so a run measures once, keeps the table with its
results, gives it to every rank and takes it again when it is resumed.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from dnn.errors import ConfigurationError

__all__ = ["CANDIDATES", "RoutineTable"]

CANDIDATES = {
    # Sums over rows: a compiled loop, NumPy's reduction, a product with a row of ones. By elements.
    "sum": ("loop", "numpy", "ones"),
    # Matrix products: in parts, one for each thread, or whole, by one. By multiplications.
    "product": ("parts", "whole"),
    # On a GPU. Sums over rows or columns: a kernel of ours, cuBLAS with a vector of ones, CuPy's
    # reduction. By elements.
    "gpu_sum": ("kernel", "gemv", "library"),
    # Networks that train at once. By the parameters of one.
    "gpu_models": ("1", "16", "64", "256", "1024"),
}

Choices = Mapping[str, Sequence[tuple[int, str]]]


class RoutineTable:
    """A choice for each operation and size.

    Parameters
    ----------
    choices : mapping of str to sequence of (int, str)
        For each operation of `CANDIDATES`: from which size on, in ascending order and from 0, which
        candidate.

    Raises
    ------
    ConfigurationError
        If it is no such table.
    """

    def __init__(self, choices: Choices) -> None:
        self.choices = {name: [(int(a), str(b)) for a, b in rows] for name, rows in choices.items()}
        for name, rows in self.choices.items():
            sizes = [size for size, _ in rows]
            known = name in CANDIDATES and all(how in CANDIDATES[name] for _, how in rows)
            if not known or sizes[:1] != [0] or sizes != sorted(set(sizes)):
                raise ConfigurationError(f"routines: {name!r} with {rows} is no table of routines")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RoutineTable) and self.choices == other.choices

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, operation: str, size: int) -> str | None:
        """Return the candidate for an operation of a size; None where the table has no row."""
        rows = self.choices.get(operation)
        if rows is None:
            return None
        return rows[bisect_right(rows, size, key=lambda row: row[0]) - 1][1]

    def to_json(self) -> str:
        """Return the table as text, to be kept with the results of a run."""
        return json.dumps(self.choices, indent=1)

    @classmethod
    def from_json(cls, text: str) -> RoutineTable:
        """Return the table of a text from `to_json`; `ConfigurationError` if it is none."""
        try:
            given = json.loads(text)
            return cls({name: [(row[0], row[1]) for row in rows] for name, rows in given.items()})
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            raise ConfigurationError(f"routines: no table of routines: {error}") from error

    @classmethod
    def measure(cls, ops: Any, clock: Callable[[], float] = time.perf_counter) -> RoutineTable:
        """Time what ``ops.candidates()`` names at a few sizes, a tenth of a second altogether."""
        choices: dict[str, list[tuple[int, str]]] = {}
        for operation, size, calls in ops.candidates():
            fastest = min(calls, key=lambda name: _seconds(calls[name], clock))
            rows = choices.setdefault(operation, [])
            if not rows or rows[-1][1] != fastest:
                rows.append((size if rows else 0, fastest))
        return cls(choices)


def _seconds(call: Callable[[], object], clock: Callable[[], float], times: int = 15) -> float:
    call()
    taken = []
    for _ in range(times):
        began = clock()
        call()
        taken.append(clock() - began)
    return median(taken)
