"""How a sweep stands: its best rows, and which columns are the same in all rows."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from typing import Any, TypeAlias

Badness: TypeAlias = "tuple[bool, float, int]"


class Standing:
    """Keeps the best rows of a sweep, however many there are.

    Parameters
    ----------
    objective : str
        The column that ranks rows.
    maximise : bool
    kept : int, optional
        How many of the best rows to keep.
    """

    def __init__(self, objective: str, *, maximise: bool, kept: int = 20) -> None:
        self._objective = objective
        self._sign = -1.0 if maximise else 1.0
        self._kept = kept
        self._best: list[tuple[Badness, dict[str, Any]]] = []
        self._worst_kept: Badness | None = None
        self._constants: dict[str, Any] | None = None
        self._version = 0

    @property
    def best(self) -> list[dict[str, Any]]:
        """The best rows, best first: NaN last, of equals the earlier trial first."""
        return [row for _, row in self._best]

    @property
    def constants(self) -> dict[str, Any]:
        """The columns that have had one value so far, but for the objective."""
        return dict(self._constants or {})

    @property
    def version(self) -> int:
        """A number that grows when `best` or `constants` change."""
        return self._version

    def would_keep(self, value: float) -> bool:
        """Whether a row with this objective may be among the best."""
        if value != value or self._worst_kept is None:
            return value == value
        return self._sign * value <= self._worst_kept[1]

    def add(self, row: Mapping[str, Any]) -> bool:
        """Take a row into account; return whether it is among the best so far.

        Parameters
        ----------
        row : mapping
            ``trial``, the objective and any other columns.
        """
        if self._constants is None:
            self._constants = {name: one for name, one in row.items() if name != self._objective}
        elif self._constants:
            varies = [
                name
                for name, value in self._constants.items()
                if name not in row or row[name] != value
            ]
            for name in varies:
                del self._constants[name]
                self._version += 1
        value = float(row[self._objective])
        badness = (value != value, self._sign * value if value == value else 0.0, row["trial"])
        if self._worst_kept is not None and badness > self._worst_kept:
            return False
        insort(self._best, (badness, dict(row)), key=lambda one: one[0])
        del self._best[self._kept :]
        if len(self._best) == self._kept:
            self._worst_kept = self._best[-1][0]
        self._version += 1
        return True
