"""What people see of a sweep: the table, the best rows, the report, the notes below."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .leases import LeaseBook
from .ledger import FINISHED, STOPPED
from .recording import CURVE, Recording
from .table import Table

if TYPE_CHECKING:
    from diel import Context

    from ..search import Search

_SHOW_EVERY_S: Final = 0.5
AFTER_METRICS: Final = ("trainer", "seed", "state")
"""Columns of the table behind the metrics."""


class Showing:
    """Writes the table and the report of a sweep, and shows how it stands.

    Parameters
    ----------
    ctx : Context
    search : Search
    book : LeaseBook
        Says how many trials there are and how many are recorded.
    recording : Recording
        Knows the best rows, and how many are none.
    seed : int
        Of the sweep.
    file : Path
        Of the table.
    """

    def __init__(
        self,
        ctx: Context,
        search: Search,
        book: LeaseBook,
        recording: Recording,
        seed: int,
        file: Path,
    ) -> None:
        from .reporting import open_report  # takes NumPy, which `diel check` can do without

        self._ctx = ctx
        self._search = search
        self._objective = search.objectives[0]
        self._book = book
        self._recording = recording
        self._standing = recording.standing
        self._file = file
        self._report = open_report(ctx, file, search, seed)
        self._table: Table | None = None
        self._untabled: list[dict[str, Any]] = []
        self._shown_s = 0.0
        self._shown_version = -1

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Write rows to the table; its columns are known once a trial has succeeded."""
        self._report.add(rows)
        if self._table is None:
            self._untabled += rows
            good = next((row for row in self._untabled if row["state"] in (FINISHED, STOPPED)), {})
            if not good:
                return
            known = {"trial", CURVE, *self._search.space.names, *AFTER_METRICS}
            self._make_table([name for name in good if name not in known])
            rows, self._untabled = self._untabled, []
        assert self._table is not None
        self._table.write(rows)

    def resume(self) -> None:
        """Take in that all rows so far are from an earlier life of the sweep."""
        self._report.resume()

    def _columns(self, metrics: Sequence[str]) -> list[str]:
        names = ["trial", *self._search.space.names, *metrics]
        texts = (objective.text for objective in self._search.objectives)
        return [*names, *(text for text in texts if text not in names)]

    def _make_table(self, metrics: list[str]) -> None:
        columns = self._columns(metrics)
        self._table = Table(self._file, [*columns, *AFTER_METRICS])
        if self._shown_s:
            self.declare()

    def declare(self) -> None:
        """Say what the table looks like, as far as that is known."""
        self._shown_s, self._shown_version = time.monotonic(), -1
        columns = self._columns([])
        if self._table is not None:
            columns = list(self._table.columns[: -len(AFTER_METRICS)])
        self._ctx.results.declare(
            [*columns, "trainer", "seed"],
            objective=self._objective.text,
            maximise=self._objective.maximise,
            expected=self._book.total,
            file=self._file,
            parameters=self._search.space.names,
        )

    def show(self, *, at_once: bool = False) -> None:
        """Show how many rows there are and the best ones, if it is time for that."""
        now_s = time.monotonic()
        if not at_once and now_s - self._shown_s < _SHOW_EVERY_S:
            return
        self._shown_s = now_s
        count, unranked = len(self._book.recorded), self._recording.unranked
        if self._standing.version == self._shown_version:
            self._ctx.results.show(count, unranked=unranked)
            return
        self._shown_version = self._standing.version
        best, constants = self._standing.best, self._standing.constants
        self._ctx.results.show(count, best=best, constants=constants, unranked=unranked)

    def show_notes(self, more: Sequence[str] = ()) -> None:
        """Say which trials none other beats, how far to believe the best score, and `more`."""
        notes = self._search.front_lines()
        report = self._search.bias.report()
        if report is not None:
            notes += report.lines()
        notes += more
        if notes:
            self._ctx.results.show(len(self._book.recorded), notes=notes)

    def close(self, state: str) -> None:
        """Bring everything to its files; `state` is how the sweep has ended."""
        from .reporting import close_report

        self._report.expect(self._book.total)
        close_report(self._ctx, self._report, state)
        if self._table is None and self._untabled:  # none has succeeded: there are no metrics
            self._table = Table(self._file, [*self._columns([]), *AFTER_METRICS])
            self._table.write(self._untabled)
        if self._table is not None:
            self._table.close()
