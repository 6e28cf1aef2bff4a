"""The output of a sweep: ``results.csv``, the best rows, the report, the notes below."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from diel import __version__, file_opener, open_regular

from .leases import TrialQueue
from .ledger import FINISHED, STOPPED
from .models import name_of_run
from .results import CURVE, SweepResults

if TYPE_CHECKING:
    from diel import Context

    from ..report import LiveReport
    from ..search import Search

_SHOW_EVERY_S: Final = 0.5
AFTER_METRICS: Final = ("trainer", "seed", "state")
"""Columns of the table behind the metrics."""


class SweepOutput:
    """Writes the table of a sweep to `file`, and its report, and shows its progress."""

    def __init__(
        self,
        ctx: Context,
        search: Search,
        queue: TrialQueue,
        results: SweepResults,
        seed: int,
        file: Path,
    ) -> None:
        self._ctx = ctx
        self._search = search
        self._objective = search.objectives[0]
        self._queue = queue
        self._results = results
        self._best_rows = results.best_rows
        self._file = file
        self._report = open_report(ctx, file, search, seed)
        self._table: CsvTable | None = None
        self._facts: dict[str, str] = {}
        self._untabled: list[dict[str, Any]] = []
        self._shown_s = 0.0
        self._shown_version = -1

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Write rows to the table; its columns are known once a trial has succeeded."""
        self._report.add(rows)
        if self._table is None:
            self._untabled += rows
            known = {"trial", CURVE, *self._search.space.names, *AFTER_METRICS}
            good = (row for row in self._untabled if row["state"] in (FINISHED, STOPPED))
            # A trial that was stopped before it began has no metrics.
            metrics = next(filter(None, ([n for n in row if n not in known] for row in good)), None)
            if metrics is None:
                return
            self._make_table(metrics)
            rows, self._untabled = self._untabled, []
        assert self._table is not None
        self._table.write(rows)

    def add_facts(self, facts: Mapping[str, str]) -> None:
        """Add facts about the trainers' devices, by name, to the report and the table's entry."""
        self._facts |= facts
        self._report.add_facts({name.replace("_", " "): fact for name, fact in facts.items()})

    def add_model(self, usage: Mapping[str, str]) -> None:
        """Show in the report how to use the model of the best trial."""
        self._report.add_model(usage)

    def resume(self) -> None:
        """Record that all rows so far are from an earlier session of the sweep."""
        self._report.resume()

    def _columns(self, metrics: Sequence[str]) -> list[str]:
        names = ["trial", *self._search.space.names, *metrics]
        texts = (objective.text for objective in self._search.objectives)
        return [*names, *(text for text in texts if text not in names)]

    def _make_table(self, metrics: list[str]) -> None:
        columns = self._columns(metrics)
        self._table = CsvTable(self._file, [*columns, *AFTER_METRICS])
        if self._shown_s:
            self.declare()

    def declare(self) -> None:
        """Declare the columns of the table, as far as they are known."""
        self._shown_s, self._shown_version = time.monotonic(), -1
        columns = self._columns([])
        if self._table is not None:
            columns = list(self._table.columns[: -len(AFTER_METRICS)])
        self._ctx.results.declare(
            [*columns, "trainer", "seed"],
            objective=self._objective.text,
            maximise=self._objective.maximise,
            expected=self._queue.expected,
            file=self._file,
            parameters=self._search.space.names,
            facts=self._facts,
        )

    def show(self, *, at_once: bool = False) -> None:
        """Show how many rows there are and the best ones, if it is time for that."""
        now_s = time.monotonic()
        if not at_once and now_s - self._shown_s < _SHOW_EVERY_S:
            return
        self._shown_s = now_s
        count, unranked = len(self._queue.recorded), self._results.unranked
        if self._best_rows.version == self._shown_version:
            self._ctx.results.show(count, unranked=unranked)
            return
        self._shown_version = self._best_rows.version
        best, constants = self._best_rows.best, self._best_rows.constants
        self._ctx.results.show(count, best=best, constants=constants, unranked=unranked)

    def show_notes(self, more: Sequence[str] = ()) -> None:
        """Show the Pareto front, the selection bias of the best score, repeats, and `more`."""
        notes = self._search.front_lines()
        report = self._search.bias.report()
        if report is not None:
            notes += report.lines()
        notes += [*self._search.repeat_lines(), *more]
        if notes:
            self._ctx.results.show(len(self._queue.recorded), notes=notes)

    def log_unranked(self, ledger: Path) -> None:
        """Log how many trials failed or diverged, and where to see why."""
        if self._results.failed:
            self._ctx.log.warning(
                "%d of %d trials failed: see %s, and tracebacks in %s",
                self._results.failed,
                len(self._queue.recorded),
                ledger,
                self._ctx.run_dir / "logs",
            )
        if self._results.diverged:
            self._ctx.log.warning(
                "%d of %d trials diverged: their training, or %s, came to NaN or infinity, and "
                "they are not ranked",
                self._results.diverged,
                len(self._queue.recorded),
                " or ".join(objective.text for objective in self._search.objectives),
            )

    def close(self, state: str) -> None:
        """Bring everything to its files; `state` is how the sweep has ended."""
        self._report.expect(self._queue.expected)
        self._report.close(state)
        if self._report.problem:
            self._ctx.log.warning("%s", self._report.problem)
        if self._table is None and self._untabled:  # none has succeeded: there are no metrics
            self._table = CsvTable(self._file, [*self._columns([]), *AFTER_METRICS])
            self._table.write(self._untabled)
        if self._table is not None:
            self._table.close()


def open_report(ctx: Context, table: Path, search: Search, seed: int) -> LiveReport:
    """Begin the report beside a table of results: ``report.html`` for ``results.csv``."""
    from ..report import LiveReport, Sweep  # import NumPy, which `diel check` does not need
    from ..report.live import environment

    objective = search.objectives[0]
    workflow = ctx.run_dir / "workflow.toml"
    facts = {
        "run": ctx.run_dir.name,
        "seed": str(seed),
        "trainers": str(ctx.copies_of.get(ctx.options.trainer, "")),
        "diel": __version__,
        **environment(),
    }
    return LiveReport(
        table.with_name(table.name.replace("results", "report")).with_suffix(".html"),
        Sweep(
            name=name_of_run(ctx.run_dir),
            objective=objective.text,
            maximise=objective.maximise,
            parameters=search.space.names,
            expected=search.size,
            workflow=_text_of(workflow),
            command="diel run workflow.toml",
            facts=facts,
            about=f"module {ctx.module} in group {ctx.group}",
        ),
        bias=search.bias.report,
    )


def _text_of(workflow: Path) -> str:
    """Return a workflow file as a report shows it; empty if it cannot be read."""
    try:
        with open_regular(workflow) as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""


class CsvTable:
    """Writes rows of a fixed set of columns, many at a time, to a new file, or to an open one."""

    def __init__(self, path: Path, columns: Sequence[str], file: IO[str] | None = None) -> None:
        self.columns = tuple(columns)
        self._file = file or open(  # noqa: SIM115
            path, "w", encoding="utf-8", errors="replace", newline="", opener=file_opener
        )
        self._csv = csv.writer(self._file, lineterminator="\n")
        self._csv.writerow(self.columns)
        self._file.flush()

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows; they are in the file when this returns. What a row lacks stays empty."""
        columns = self.columns
        self._csv.writerows([[cell(row.get(column)) for column in columns] for row in rows])
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def cell(value: Any) -> Any:
    """Return a value as a cell: ``64x32`` or ``none`` for a list, floats to the last digit."""
    if type(value) is float or type(value) is int or type(value) is str:
        return value
    if isinstance(value, float):
        return repr(float(value))  # NumPy's repr names the type
    if isinstance(value, (list, tuple)):
        return "x".join(str(item) for item in value) or "none"  # empty means absent
    return value
