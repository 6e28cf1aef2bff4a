"""What a sweep writes for people: its table, its best rows, its report, and exports.

Exports to CSV, JSON, Parquet and Optuna's dashboard read the ledger as a stream, so a million
trials need no memory; for Parquet and Optuna it is read twice, since they need the type of each
column first.
"""

from __future__ import annotations

import csv
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

from diel import __version__, file_opener, open_regular, repeat_command, replacing

from ..metrics import SPLITS, is_splits
from ..objective import Objective, ObjectiveError
from ..trial import OUT_OF_TIME
from ..trial_plan import SEEDS
from .leases import TrialQueue
from .ledger import (
    DIVERGED,
    FAILED,
    FINISHED,
    INFEASIBLE,
    RESULTS,
    STOPPED,
    VIOLATION,
    LedgerError,
    about_of,
    as_numbers,
    encode,
    trials_of,
)
from .lineage import LINEAGE
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
    """Writes the table of a sweep to `file`, and its `report`, and shows its progress."""

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
        self.report = open_report(ctx, file, search, seed)
        self._table: CsvTable | None = None
        self._facts: dict[str, str] = {}
        self._untabled: list[dict[str, Any]] = []
        self._shown_s = 0.0
        self._shown_version = -1

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Write rows to the table; its columns are known once a trial has succeeded."""
        self.report.add(rows)
        if self._table is None:
            self._untabled += rows
            known = {"trial", CURVE, LINEAGE, *self._search.space.names, *AFTER_METRICS}
            good = (
                row
                for row in self._untabled
                if row["state"] in (FINISHED, STOPPED)
                or row["state"].startswith((OUT_OF_TIME, INFEASIBLE))
            )
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
        self.report.add_facts({name.replace("_", " "): fact for name, fact in facts.items()})

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
        """Show the Pareto front, the selection bias of the best score, repeats, and `more`.

        And first, if no trial keeps the constraints, that none does.
        """
        notes = [text] if (text := self._results.infeasible_text) else []
        notes += self._search.front_lines()
        report = self._search.bias.report()
        if report is not None:
            notes += report.lines()
        notes += [*self._search.repeat_lines(), *more]
        if notes:
            self._ctx.results.show(len(self._queue.recorded), notes=notes)

    def log_unranked(self, ledger: Path) -> None:
        """Log how many trials failed, diverged or break constraints, and where to see why."""
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
        if text := self._results.infeasible_text:
            self._ctx.log.warning("%s", text)

    def close(self, state: str) -> None:
        """Bring everything to its files; `state` is how the sweep has ended."""
        self.report.expect(self._queue.expected)
        self.report.close(state)
        if self.report.problem:
            self._ctx.log.warning("%s", self.report.problem)
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
            command=repeat_command(ctx.run_dir),
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


# -- exports --------------------------------------------------------------------------------------

Rows: TypeAlias = "Callable[[], Iterator[dict[str, Any]]]"

_BATCH: Final = 10_000
_NEEDED: Final = {"parquet": "pyarrow", "optuna": "optuna"}
_OWN: Final = ("trainer", "seed", "state", "reason", VIOLATION, "attempt", "started_s", "seconds")


class ExportError(ValueError):
    """A sweep cannot be exported as asked."""


def export(ledger: Path, formats: list[str], folder: Path) -> list[Path]:
    """Export a ledger in other formats (keys of `FORMATS`), to files beside it; return their paths.

    Functions that are objectives are looked for beside the workflow file, in `folder`. An
    `ExportError` if a format is unknown, or what it needs is not installed.
    """
    check_formats(formats)
    return [path for name in formats for path in FORMATS[name](ledger, folder)]


def check_formats(formats: list[str]) -> None:
    """Check, before a sweep is run, that it can be exported so; errors as `export`."""
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise ExportError(f"no such format: {', '.join(unknown)}; there are {', '.join(FORMATS)}")
    for name in formats:
        if name in _NEEDED and find_spec(_NEEDED[name]) is None:
            raise ExportError(f"{name} needs {_NEEDED[name]}: pip install {_NEEDED[name]}")


def rows_of(ledger: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a flat row for each record: trial, parameters, metrics, objectives, and the rest."""
    objectives = objectives_of(ledger, folder)
    for record in trials_of(ledger):
        metrics = as_numbers(record["metrics"])
        own = {"trial": record["trial"], **record["parameters"]}
        row = {**own, **metrics, **own}
        if record["state"] in (*RESULTS, STOPPED):
            for objective in objectives:
                # Without metrics: a trial that was stopped before it began.
                with suppress(ObjectiveError):
                    if type(row.get(objective.text)) not in (int, float):
                        row[objective.text] = objective.value(metrics)
        for objective in objectives:
            if isinstance(row.get(objective.text), str):  # else the column is text in all rows
                del row[objective.text]
        seeds = record[SPLITS].get(SEEDS) if is_splits(record.get(SPLITS)) else None
        for number, each in enumerate(seeds if isinstance(seeds, list) else (), 1):
            row |= {f"{name}_seed_{number}": value for name, value in as_numbers(each).items()}
        for name in _OWN:
            if name in record:
                row[name] = record[name]
        yield row


def reports_of(ledger: Path) -> Iterator[dict[str, Any]]:
    """Yield a flat row for each point of a learning curve: trial, step, and metrics."""
    for record in trials_of(ledger):
        for step, metrics in record.get("reports", ()):
            own = {"trial": record["trial"], "step": step}
            yield {**own, **as_numbers(metrics), **own}


def curves_of(ledger: Path, folder: Path) -> Iterator[tuple[int, list[tuple[int, float]]]]:
    """Yield, for each record, its trial and its learning curve: (step, first objective) pairs.

    A ValueError if the ledger is damaged, or there is no such objective.
    """
    objective = objectives_of(ledger, folder)[0]
    for record in trials_of(ledger):
        reports = record.get("reports", ())
        yield record["trial"], objective.curve((step, as_numbers(each)) for step, each in reports)


def objectives_of(ledger: Path, folder: Path) -> list[Objective]:
    """Return the objectives of a ledger's sweep."""
    about = about_of(ledger)
    texts, maximise = about.get("objective"), about.get("maximise")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise LedgerError(f"{ledger} does not say what its sweep was for")
    directions = maximise if isinstance(maximise, list) else [maximise] * len(texts)
    return [
        Objective.parse(text, larger, folder)
        for text, larger in zip(texts, directions, strict=True)
    ]


def _columns(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return the columns of all rows, in the order in which they first occur."""
    names: dict[str, None] = {}
    for row in rows:
        if not row.keys() <= names.keys():
            names.update(dict.fromkeys(row))
    return [*(name for name in names if name not in _OWN), *(n for n in _OWN if n in names)]


def _tables(ledger: Path, folder: Path) -> Iterator[tuple[str, Rows]]:
    """Yield the name of each table, trials and curves, and a function that yields its rows."""
    yield "trials", lambda: rows_of(ledger, folder)
    if next(reports_of(ledger), None) is not None:
        yield "curves", lambda: reports_of(ledger)


def _to_csv(ledger: Path, folder: Path) -> list[Path]:
    paths = []
    for name, all_rows in _tables(ledger, folder):
        paths.append(ledger.with_name(f"{name}.csv"))
        with replacing(paths[-1], text=True) as file:
            table = CsvTable(paths[-1], _columns(all_rows()), file)
            rows = all_rows()
            while batch := list(islice(rows, _BATCH)):
                table.write(batch)
    return paths


def _to_json(ledger: Path, folder: Path) -> list[Path]:
    path = ledger.with_name("trials.json")
    rows = zip(rows_of(ledger, folder), trials_of(ledger), strict=True)
    with replacing(path, text=True) as file:
        file.write("[")
        for number, (row, record) in enumerate(rows):
            if "reports" in record:
                row["reports"] = record["reports"]
            file.write(("," if number else "") + "\n" + encode(row))
        file.write("\n]\n")
    return [path]


def _to_parquet(ledger: Path, folder: Path) -> list[Path]:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    paths = []
    types = {int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_(), str: arrow.string()}
    for name, all_rows in _tables(ledger, folder):
        columns = _columns(all_rows())
        kinds: dict[str, type] = {}
        for row in all_rows():
            for column, value in row.items():
                kinds[column] = _wider(kinds.get(column), _kind_of(value))
        schema = arrow.schema([(column, types[kinds[column]]) for column in columns])
        paths.append(ledger.with_name(f"{name}.parquet"))
        rows = all_rows()
        with replacing(paths[-1]) as file, parquet.ParquetWriter(file, schema) as writer:
            while batch := list(islice(rows, _BATCH)):
                arrays = [
                    arrow.array(
                        [
                            _as(kinds[column], row[column]) if column in row else None
                            for row in batch
                        ],
                        schema.field(column).type,
                    )
                    for column in columns
                ]
                writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))
    return paths


def _kind_of(value: Any) -> type:
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind
    return str


def _wider(so_far: type | None, kind: type) -> type:
    if so_far is None or so_far is kind:
        return kind
    return float if {so_far, kind} == {int, float} else str


def _as(kind: type, value: Any) -> Any:
    return str(cell(value)) if kind is str else kind(value)


def _to_optuna(ledger: Path, folder: Path) -> list[Path]:
    """Write a journal storage, which ``optuna-dashboard FILE`` shows."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = ledger.with_name("optuna.log")
    path.unlink(missing_ok=True)
    objectives = objectives_of(ledger, folder)
    distributions = _distributions(ledger, optuna.distributions)
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(path))),
        study_name=ledger.parent.name,
        directions=["maximize" if objective.maximise else "minimize" for objective in objectives],
    )
    states = {
        **{FINISHED: "COMPLETE", INFEASIBLE: "COMPLETE", STOPPED: "PRUNED"},
        **{FAILED: "FAIL", DIVERGED: "FAIL"},
    }
    has_constraints = bool(about_of(ledger).get("constraints"))
    for record, (_, curve) in zip(trials_of(ledger), curves_of(ledger, folder), strict=True):
        metrics = as_numbers(record["metrics"])
        parameters = record["parameters"]
        state = states[record["state"]]
        values = None
        if state == "COMPLETE":
            with suppress(ObjectiveError):
                values = [objective.value(metrics) for objective in objectives]
            if values is None or any(map(math.isnan, values)):
                state, values = "FAIL", None  # Optuna has no NaN
        notes: dict[str, Any] = {**metrics, **{n: record[n] for n in _OWN if n in record}}
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState[state],
                values=values,
                params={name: _categorical(value) for name, value in parameters.items()},
                distributions={name: distributions[name] for name in parameters},
                user_attrs=notes,
                intermediate_values=dict(curve) if len(objectives) == 1 else {},
                # As Optuna's own samplers note it: more than 0 is infeasible.
                system_attrs={"constraints": [record.get(VIOLATION, 0.0)]}
                if has_constraints and state == "COMPLETE"
                else {},
            )
        )
    return [path]


def _distributions(ledger: Path, kinds: Any) -> dict[str, Any]:
    """Return Optuna's distribution of each parameter: a range or choices with all its values."""
    numbers: dict[str, tuple[float, float]] = {}
    whole: dict[str, bool] = {}
    words: dict[str, dict[Any, None]] = {}
    for record in trials_of(ledger):
        for name, value in record["parameters"].items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                low, high = numbers.get(name, (value, value))
                numbers[name] = min(low, value), max(high, value)
                whole[name] = whole.get(name, True) and isinstance(value, int)
            else:
                words.setdefault(name, {})[_categorical(value)] = None
    found: dict[str, Any] = {}
    for name, (low, high) in numbers.items():
        if name not in words:
            kind = kinds.IntDistribution if whole[name] else kinds.FloatDistribution
            found[name] = kind(low, high)
    for name in words:
        if name in numbers:  # numbers and words: all of them are choices
            values = {record["parameters"].get(name) for record in trials_of(ledger)}
            words[name] = dict.fromkeys(
                _categorical(value) for value in values if value is not None
            )
        found[name] = kinds.CategoricalDistribution(list(words[name]))
    return found


def _categorical(value: Any) -> Any:
    return str(cell(value)) if isinstance(value, (list, tuple, dict)) else value


FORMATS: Final[Mapping[str, Callable[[Path, Path], list[Path]]]] = {
    "csv": _to_csv,
    "json": _to_json,
    "parquet": _to_parquet,
    "optuna": _to_optuna,
}
