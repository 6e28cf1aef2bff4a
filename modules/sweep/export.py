"""Exports what a sweep has recorded: to CSV, JSON, Parquet, and Optuna's dashboard.

A ledger is read as a stream, so a million trials need no memory; for Parquet and Optuna it is read
twice, since they need the type of each column first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

from diel import replacing

from ..objective import Objective, ObjectiveError
from .ledger import (
    DIVERGED,
    FAILED,
    FINISHED,
    STOPPED,
    LedgerError,
    about_of,
    as_numbers,
    encode,
    trials_of,
)
from .output import CsvTable, cell

Rows: TypeAlias = "Callable[[], Iterator[dict[str, Any]]]"

_BATCH: Final = 10_000
_NEEDED: Final = {"parquet": "pyarrow", "optuna": "optuna"}
_OWN: Final = ("trainer", "seed", "state", "reason", "attempt", "started_s", "seconds")


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
        if record["state"] in (FINISHED, STOPPED):
            for objective in objectives:
                # Without metrics: a trial that was stopped before it began.
                with suppress(ObjectiveError):
                    if type(row.get(objective.text)) not in (int, float):
                        row[objective.text] = objective.value(metrics)
        for objective in objectives:
            if isinstance(row.get(objective.text), str):  # else the column is text in all rows
                del row[objective.text]
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
    states = {FINISHED: "COMPLETE", STOPPED: "PRUNED", FAILED: "FAIL", DIVERGED: "FAIL"}
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
