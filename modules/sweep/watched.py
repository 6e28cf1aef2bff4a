"""Sweeps as their files have them so far, for displays: results, table, figures, comparison.

::

    trials.jsonl ──> LedgerReader ──> rows ──> RowSelection ──> SweepView ──> figures
                                        └────> the table

Nothing of the workflow's own code is run: where the objective is a function of the user's, its
values come from the table of results.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from glob import escape
from itertools import islice
from pathlib import Path
from typing import Any, Final

from diel import open_regular, replace_file

from ..objective import Objective, ObjectiveError
from ..report.comparison import comparison_figures
from ..report.data import (
    CURVE,
    REASON,
    STATE,
    STOPPED,
    TRIAL,
    Moment,
    RowSelection,
    Sweep,
    SweepView,
)
from ..report.figure import Figure
from ..report.figures import figures_of, trial_curves
from ..report.live import now
from ..report.page import GrowingImportance, comparison_page
from ..report.panels import ParallelCoordinates
from ..space import Space, SpaceError
from ..trial import Reports, thinned
from .in_flight import read_running_curves
from .ledger import (
    ENDED_BY_TIME,
    FAILED,
    FINISHED,
    RESULTS,
    VIOLATION,
    LedgerError,
    LedgerReader,
    about_of,
    as_numbers,
    ledgers_in,
    record_at,
    table_of,
    trials_of,
)
from .lineage import LINEAGE, PARENT, Parent, drawn
from .models import how_to_use
from .output import cell
from .steering import point_problems

_AT_ONCE: Final = 20_000
_TABLE_ROWS: Final = 20_000
"""Most trials of the table, beside later ones that are better than all before."""
_NOT_CHOSEN: Final = object()
_DRAWN: Final = (CURVE, LINEAGE)
"""Keys of rows that are no columns."""
_LAST_COLUMNS: Final = ("seconds", "trainer", "seed", REASON, VIOLATION)
"""Columns of the table behind the metrics."""


class WatchedSweep:
    """A sweep of a run, read from its ledger while that grows: what `diel.Reporter` returns.

    A `LedgerError` if the file is no ledger, an OSError if it cannot be read.
    """

    def __init__(self, run_dir: Path, ledger: Path) -> None:
        about = about_of(ledger)
        self.run_dir, self.name, self.complaint = run_dir, ledger.parent.name, ""
        self._ledger, self._reader = ledger, LedgerReader(ledger)
        self._trials = LedgerReader(ledger)
        self._text, self._maximise, self._objective = _objective_of(about, ledger)
        self._trainer = str(about.get("trainer", ""))
        self._of_strategy, self._enqueued, self._decided = _expected(about), 0, 0
        space = about.get("space")
        self.space: Mapping[str, Any] = space if isinstance(space, dict) else {}
        sweep = Sweep(
            name=run_dir.name,
            objective=self._text,
            maximise=self._maximise,
            parameters=list(self.space),
            expected=self._of_strategy,
            about=f"sweep {self.name}",
        )
        self._table = run_dir / table_of(about)
        self._selection = RowSelection(sweep)
        self._places: dict[int, int] = {}
        self._columns: dict[str, None] = {}
        self._rows: list[dict[str, Any]] = []
        self._importance = GrowingImportance()
        self._running: dict[int, Reports] = {}
        self._parallel: ParallelCoordinates | None = None

    # -- reading ----------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Read what the sweep has written since the last call; return whether there was anything.

        Of a very long ledger a part is read at each call: until it returns False there is more. An
        OSError if a file cannot be read.
        """
        records = self._reader.new_records(_AT_ONCE)
        self.complaint = self._reader.complaint
        rows = self._flat([record for _, record in records])
        for (place, record), row in zip(records, rows, strict=True):
            self._places[record["trial"]] = place
            self._selection.add([row])
            steps = self._selection.steps
            if len(self._rows) < _TABLE_ROWS or (steps and steps[-1].row is row):
                row = {name: value for name, value in row.items() if name not in _DRAWN}
                self._columns.update(dict.fromkeys(row))
                self._rows.append(row)
        running = read_running_curves(self.run_dir, self._group, self._trainer, self._places)
        is_new = bool(records) or running != self._running
        self._running = running
        return self._apply_decisions() or is_new

    def catch_up(self) -> None:
        """Read everything that the ledger holds by now; an OSError if a file cannot be read."""
        size = self._ledger.stat().st_size
        while self.refresh() and self._reader.offset < size:
            pass

    def _apply_decisions(self) -> bool:
        """Apply new decisions to the number of expected trials; return whether there were any."""
        new = self._reader.decisions[self._decided :]
        self._decided += len(new)
        for decision in new:
            kind, number = (decision["request"].get(key) for key in ("kind", "number"))
            if decision["accepted"] and kind == "trials" and type(number) is int:
                self._of_strategy = number
            self._enqueued += decision["accepted"] and kind == "enqueue"
        if self._of_strategy is not None:
            expected = self._of_strategy + self._enqueued
            self._selection.sweep = replace(self._selection.sweep, expected=expected)
        return bool(new)

    @property
    def _group(self) -> str:
        return self.name.partition(".")[0]

    def _flat(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return records as rows: trial, parameters, metrics, the objective, and the rest."""
        values = self._values_in_table() if self._objective is None and records else {}
        rows = []
        for record in records:
            metrics = as_numbers(record["metrics"])
            own = {TRIAL: record["trial"], **record["parameters"]}
            row = {**own, **metrics, **own}
            row.pop(CURVE, None)  # a metric of that name
            if self._objective is None:
                row.setdefault(self._text, values.get(record["trial"]))
            else:
                try:
                    value = self._objective.value(metrics)
                    if type(row.get(self._text)) not in (int, float):
                        row[self._text] = value
                except ObjectiveError as error:
                    if record[STATE] in RESULTS:  # an earlier version took text for a number
                        record |= {STATE: FAILED, REASON: str(error)}
            row |= {name: record[name] for name in ("trainer", "seed", STATE) if name in record}
            row |= {name: record[name] for name in ("started_s", "seconds") if name in record}
            row |= {name: record[name] for name in (REASON, VIOLATION) if record.get(name)}
            if "reports" in record and (record[STATE] in STOPPED or record[STATE] == FINISHED):
                row[CURVE] = self._curve_of(thinned(record["reports"]))
            if PARENT in record:
                row[LINEAGE] = drawn(record)
            rows.append(row)
        return rows

    def _values_in_table(self) -> dict[int, float]:
        """Return the objective of each trial as the table of results has it."""
        found: dict[int, float] = {}
        with (
            contextlib.suppress(OSError, csv.Error),
            open_regular(self._table) as binary,
            io.TextIOWrapper(binary, "utf-8", "replace", newline="") as file,
        ):
            for row in csv.DictReader(file):
                with contextlib.suppress(KeyError, TypeError, ValueError):  # it is being written
                    found[int(row[TRIAL])] = float(row[self._text])
        return found

    def _curve_of(self, reports: Reports) -> list[tuple[int, float]]:
        """Return a learning curve: (step, objective) pairs; none for a function of the user's."""
        if self._objective is None:
            return []
        return self._objective.curve((step, as_numbers(metrics)) for step, metrics in reports)

    # -- results ----------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """Return the state and the best trial of the sweep, as plain values."""
        selection, sweep = self._selection, self._selection.sweep
        top = selection.top
        best = {name: _plain(value) for name, value in top[0].row.items()} if top else None
        if best is not None:
            for name in _DRAWN:
                best.pop(name, None)
        return {
            "objective": sweep.objective,
            "maximise": sweep.maximise,
            "parameters": list(sweep.parameters),
            "trials": selection.count,
            "expected": sweep.expected,
            "failed": selection.failed,
            "diverged": selection.diverged,
            "infeasible": selection.infeasible,
            "stopped": selection.stopped,
            "best": best,
            "running": sorted(self._running),
            "complaint": self.complaint,
            "table": self._table.name,
            "model": how_to_use(self.run_dir, self._ledger),
        }

    def columns(self) -> list[str]:
        """Return the columns of the table, in their order; more may come with new rows."""
        sweep = self._selection.sweep
        first = [TRIAL, STATE, sweep.objective, *sweep.parameters]
        metrics = [
            name for name in self._columns if name not in {*first, *_LAST_COLUMNS, "started_s"}
        ]
        wanted = [*first, *metrics, *_LAST_COLUMNS]
        return [name for name in dict.fromkeys(wanted) if name in self._columns]

    def rows(self, start: int = 0) -> list[dict[str, Any]]:
        """Return the rows of the table from an index on, in the order in which trials ended."""
        return [
            {name: _plain(value) for name, value in row.items() if name != "started_s"}
            for row in self._rows[start:]
        ]

    def trials(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each trial that has ended, with ``curve``: steps and objectives.

        A `LedgerError` if the ledger is damaged, an OSError if it cannot be read.
        """
        records = trials_of(self._ledger)
        while part := list(islice(records, _AT_ONCE)):
            for row in self._flat(part):
                curve = [list(point) for point in row.pop(CURVE, ())]
                row.pop(LINEAGE, None)
                yield {**{name: _plain(value) for name, value in row.items()}, "curve": curve}

    def new_trials(self) -> list[dict[str, Any]]:
        """Return trials that have ended since the last call; each with its ``reports``."""
        return [
            {**_data_of(record), "reports": record.get("reports", [])}
            for _, record in self._trials.new_records(_AT_ONCE)
        ]

    def figures(self, theme: str = "light") -> dict[str, Figure]:
        """Return the figures that have something to show, by name; see `figures_of`.

        They know the colours of both themes.
        """
        model = how_to_use(self.run_dir, self._ledger)
        self._selection.sweep = replace(self._selection.sweep, model=model)
        view = self.view()
        running = {trial: self._curve_of(curve) for trial, curve in self._running.items()}
        figures = figures_of(view, self._importance.of(view), running)
        panels = figures["parallel"].panels if "parallel" in figures else ()
        self._parallel = next(
            (panel for panel in panels if isinstance(panel, ParallelCoordinates)), None
        )
        return figures

    def within(self, ranges: Mapping[str, tuple[float, float]]) -> list[int]:
        """Return the trials of the table within ranges of the axes of the figure ``parallel``."""
        panel = self._parallel
        names = [axis.title for axis in panel.axes] if panel is not None else []
        found = []
        for row in self._rows:
            places = panel.places([row.get(name) for name in names]) if panel is not None else []
            at = dict(zip(names, places, strict=True))
            if all(
                (where := at[name]) is not None and low <= where <= high
                for name, (low, high) in ranges.items()
                if name in at
            ):
                found.append(row[TRIAL])
        return found

    def point_of(self, chosen: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return a point with the values that were chosen, and what is wrong, by parameter."""
        try:
            space = Space.parse(self.space)
        except SpaceError:  # a space that JSON cannot express: its master decides
            return dict(chosen), {}
        point = space.build(lambda name: chosen.get(name, _NOT_CHOSEN))
        point = {name: value for name, value in point.items() if value is not _NOT_CHOSEN}
        return point, point_problems(space, point)

    def view(self) -> SweepView:
        """Return the rows that figures show."""
        return SweepView.of(self._selection, Moment())

    @property
    def goal(self) -> str:
        """What the sweep is for, in words: ``maximises accuracy``."""
        return f"{'maximises' if self._maximise else 'minimises'} {self._text}"

    def trial(self, number: int, theme: str = "light") -> dict[str, Any] | None:
        """Return what is known of a trial, in JSON's types; None if there is no such trial yet.

        An OSError if the ledger cannot be read.
        """
        reports = self._running.get(number)
        record: dict[str, Any] = {"trial": number, STATE: "running", "parameters": {}}
        if number in self._places:
            record = record_at(self._ledger, self._places[number])
            reports = [(step, metrics) for step, metrics in record.get("reports", ())]
        elif reports is None:
            return None
        curve = trial_curves(self._selection.sweep, reports or [])
        is_alone = len(ledgers_in(self.run_dir)) == 1
        which = str(number) if is_alone else f"{self.name}:{number}"
        command = ["diel", "sweep", str(self.run_dir), "--repeat", which]
        ancestors = self.ancestors(record)
        can_be_repeated = ancestors is not None and number in self._places
        return {
            **_data_of(record),
            "figure": curve,
            "command": shlex.join(command) if can_be_repeated else "",
            "ancestors": ancestors,
            "files": self._files_of(record),
        }

    def _files_of(self, record: Mapping[str, Any]) -> list[str]:
        """Return the files of the run on a trial: logs of its trainer, models and states of it."""
        number, trainer, sweep = record["trial"], record.get("trainer"), escape(self.name)
        patterns = [
            f"sweeps/{sweep}/trial-{number}.*",
            f"sweeps/{sweep}/checkpoints/trial-{number}",
            f"sweeps/{sweep}/checkpoints/trial-{number}/*",
            f"tensorboard/{sweep}/trial-{number}/*",
        ]
        if type(trainer) is int:
            patterns.insert(0, f"logs/{escape(self._trainer)}.{trainer}.*.log")
        best = self._selection.top
        if best and best[0].row[TRIAL] == number:
            patterns.append(f"sweeps/{sweep}/best.*")
        places = (place for each in patterns for place in sorted(self.run_dir.glob(each)))
        return [place.relative_to(self.run_dir).as_posix() for place in places if place.is_file()]

    def ancestors(self, record: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """Return the trials that one comes from, the first one first; None if any is not recorded.

        The ``trial``, ``parameters`` and ``seed`` of each.
        """
        found: list[dict[str, Any]] = []
        while (parent := Parent.of(record)) is not None:
            if parent.trial not in self._places or parent.trial >= record["trial"]:
                return None
            record = record_at(self._ledger, self._places[parent.trial])
            found.append({name: record.get(name) for name in ("trial", "parameters", "seed")})
        return found[::-1]


def _data_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a record says of a trial, with None for what it does not say."""
    names = ("trial", STATE, "seed", "trainer", "started_s", "seconds", "attempt", REASON)
    plain = {name: _plain(record.get(name)) for name in names}
    return {
        **plain,
        "parameters": record["parameters"],
        "metrics": record.get("metrics", {}),
        **{name: record[name] for name in (ENDED_BY_TIME, PARENT) if name in record},
    }


def watched_sweeps(run_dir: Path) -> list[WatchedSweep]:
    """Return the sweeps of a run, those that have begun; damaged ledgers are left out."""
    found = []
    for ledger in ledgers_in(run_dir):
        with contextlib.suppress(OSError, LedgerError):
            found.append(WatchedSweep(run_dir, ledger))
    return found


def _objective_of(about: Mapping[str, Any], ledger: Path) -> tuple[str, bool, Objective | None]:
    """Return the first objective as text, its direction, and parsed; None for a user's function."""
    texts, maximise = about.get("objective"), about.get("maximise")
    if not isinstance(texts, list) or not texts or not isinstance(texts[0], str):
        raise LedgerError(f"{ledger} does not say what its sweep was for")
    larger = maximise[0] if isinstance(maximise, list) and maximise else maximise
    if ":" in texts[0]:  # a function of the user's, which is not run here
        return texts[0], bool(larger), None
    try:
        objective = Objective.parse(texts[0], larger if isinstance(larger, bool) else None)
    except ValueError as error:
        raise LedgerError(f"{ledger}: {error}") from error
    return objective.text, objective.maximise, objective


def _expected(about: Mapping[str, Any]) -> int | None:
    """Return how many trials a sweep is to have, as far as its ledger says it."""
    trials, strategy = about.get("trials"), about.get("strategy")
    if isinstance(trials, int):
        return trials
    if isinstance(strategy, dict) and strategy.get("name") == "grid":
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            return Space.parse(about["space"]).size
    return None


def _plain(value: Any) -> Any:
    """Return a value as JSON and a table have it: a number, a word, or None."""
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, (list, tuple)):
        return str(cell(value))
    return json.dumps(value, default=str)


# -- several sweeps -------------------------------------------------------------------------------


class NotComparable(ValueError):
    """Sweeps that are to be compared differ in their objectives."""


def compare(sweeps: Mapping[str, WatchedSweep]) -> dict[str, Any]:
    """Compare sweeps, as far as they have been read, by the names that tell them apart.

    Returns ``objective``, ``maximise``; ``rows``: of each sweep its name, ``trials``, the objective
    of its best trial, that trial's number and its parameters; ``figures`` by name. `NotComparable`
    if objectives or their directions differ.
    """
    views = _comparable(sweeps)
    first = next(iter(views.values())).sweep
    return {
        "objective": first.objective,
        "maximise": first.maximise,
        "rows": [_best_row(name, sweep) for name, sweep in sweeps.items()],
        "figures": comparison_figures(views),
    }


def write_comparison(sweeps: Mapping[str, WatchedSweep], path: Path) -> Path:
    """Write one report over several sweeps; return its file.

    An OSError if that fails, `NotComparable` as `compare`.
    """
    replace_file(path, comparison_page(_comparable(sweeps), written=now()))
    return path


def _comparable(sweeps: Mapping[str, WatchedSweep]) -> dict[str, SweepView]:
    """Return what a report shows of sweeps that have one objective, in one direction."""
    (first, reference), *rest = sweeps.items()
    for name, sweep in rest:
        if sweep.goal != reference.goal:
            raise NotComparable(
                f"these sweeps have different goals: {first} {reference.goal}, and {name} "
                f"{sweep.goal}; compare sweeps of one objective"
            )
    return {name: sweep.view() for name, sweep in sweeps.items()}


def _best_row(name: str, sweep: WatchedSweep) -> dict[str, Any]:
    """Return a row of a table on one sweep: its number of trials, and its best trial."""
    summary = sweep.summary()
    best = summary["best"] or {}
    objective = summary["objective"]
    row = {"run": name, "trials": summary["trials"], objective: best.get(objective)}
    return {**row, "trial": best.get("trial"), **{p: best.get(p) for p in summary["parameters"]}}
