"""The reporter of sweeps, as `diel` finds it: an entry point of the group ``diel.reporters``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .sweep import in_flight
from .sweep.export import curves_of
from .sweep.ledger import about_of, ledgers_in
from .sweep.models import how_to_use

if TYPE_CHECKING:
    from diel import ResultsTable

    from .sweep.watched import WatchedSweep


def write_report(table: ResultsTable) -> Path:
    """Write ``report.html`` on a table of results; return its file. An OSError if that fails."""
    from .report import Moment, RankAccount, Sweep
    from .report import write_report as write
    from .report.live import now

    sweep = Sweep(
        name=table.run,
        objective=table.objective,
        maximise=table.maximise,
        parameters=table.parameters,
        metrics=table.metrics,
        expected=table.expected,
        workflow=table.workflow,
        command="diel run workflow.toml",
        facts=table.facts,
        about=f"module {table.module}",
    )
    for ledger in _ledgers(table.run_dir).values():
        with contextlib.suppress(OSError, ValueError):  # raised by a damaged ledger
            if about_of(ledger).get("table") == table.file.name:
                sweep = replace(sweep, model=how_to_use(table.run_dir, ledger))
    moment = Moment(
        state=table.state,
        elapsed_s=table.elapsed_s,
        written=now(),
        accounts=[RankAccount.of(account) for account in table.accounts],
    )
    path: Path = table.report
    write(path, sweep, _with_curves(table), moment)
    return path


def conclude_report(report: Path, state: str, accounts: Sequence[Mapping[str, Any]]) -> None:
    """Add how the run ended, and where its time went, to a report.

    An OSError if it cannot be read or written, a ValueError if it is no report of a sweep.
    """
    from .report import conclude_report as conclude

    conclude(report, state, accounts)


def watch_sweeps(run_dir: Path) -> list[WatchedSweep]:
    """Return the sweeps of a run that have begun, each to be read as it grows."""
    from .sweep.watched import watched_sweeps

    return watched_sweeps(run_dir)


def compare_sweeps(sweeps: Mapping[str, WatchedSweep], theme: str = "light") -> dict[str, Any]:
    """Compare sweeps by their names; a ValueError if their objectives differ."""
    from .sweep.comparison import compare

    return compare(sweeps)


def write_comparison(sweeps: Mapping[str, WatchedSweep], path: Path) -> Path:
    """Write one report over several sweeps; errors as `compare_sweeps`, or an OSError."""
    from .sweep import comparison

    return comparison.write_comparison(sweeps, path)


def steer_sweep(
    run_dir: Path, asked: Sequence[Mapping[str, Any]], name: str
) -> tuple[str, Callable[[float], list[dict[str, Any]]]]:
    """Check requests to a sweep of a run; return its name, and a function that sends them.

    The function takes how many seconds to wait for the master, and returns of each request its
    ``kind``, ``accepted``, ``answer`` and ``trial``. A ValueError if there is no such sweep, or
    something asked for cannot be done; an OSError if a file cannot be read or written.
    """
    from .sweep.steering import SteeringError, answers_to, ask, requests_for

    ledgers = {path.parent.name: path for path in ledgers_in(run_dir)}
    names = ", ".join(sorted(ledgers))
    if name not in ledgers and (name or len(ledgers) != 1):
        if not ledgers:
            raise SteeringError(f"{run_dir} has no sweep that has begun")
        raise SteeringError(f"say which sweep, with --sweep: there are {names}")
    (name, ledger), *_ = [(sweep, at) for sweep, at in ledgers.items() if name in ("", sweep)]
    requests = requests_for(ledger, asked)

    def perform(wait_s: float) -> list[dict[str, Any]]:
        ask(ledger, requests)
        return [
            {
                "kind": answer.request.kind,
                "accepted": answer.accepted,
                "answer": answer.text,
                "trial": answer.trial,
            }
            for answer in answers_to(ledger, requests, wait_s)
        ]

    return name, perform


def find_model(run_dir: Path, name: str, trial: int | None) -> dict[str, Any]:
    """Return where the model of a trial is, by default of the best one: see `choose_model`.

    A ValueError if there is no such sweep, trial or model; an OSError if a file cannot be read.
    """
    from .sweep.models import choose_model
    from .sweep.watched import WatchedSweep

    ledgers = _ledgers(run_dir)
    chosen = [ledger for sweep, ledger in ledgers.items() if name in ("", sweep)]
    if len(chosen) != 1:
        names = ", ".join(ledgers)
        if not ledgers:
            raise ValueError(f"{run_dir} has no sweep that has begun")
        problem = f"has no sweep {name!r}" if name else "has several sweeps"
        raise ValueError(f"{run_dir} {problem}: name one of {names}")
    watched = WatchedSweep(run_dir, chosen[0])
    watched.catch_up()
    return choose_model(watched, chosen[0], trial)


def load_model(file: Path) -> Any:
    """Load a trained model, ready for raw samples: a `dnn.TrainedModel`.

    A ValueError if it cannot be read, an ImportError if safetensors is not installed.
    """
    from dnn import load

    return load(file)


def record_participation(run_dir: Path, said: Mapping[str, Any]) -> None:
    """Record in the directory of a run that has not begun which sweep it takes part in.

    `said` has the fields of `Participation` in `sweep.shared`. An OSError if it cannot be written.
    """
    from .sweep.shared import Participation

    Participation(**said).save(run_dir)


def joinable_sweeps(run_dir: Path) -> list[dict[str, Any]]:
    """Return the sweeps of a run that have begun, with what a worker needs to join them.

    ``name``; ``group``, ``master`` and ``trainer``: its modules; ``ledger``. In an iteration of its
    group ``master`` is followed by its number. An OSError if a file cannot be read.
    """
    found = []
    for name, ledger in _ledgers(run_dir).items():
        with contextlib.suppress(ValueError, KeyError):  # raised by a damaged ledger
            about = about_of(ledger)
            group, _, master = name.partition(".")
            modules = {"group": group, "master": master, "trainer": str(about["trainer"])}
            found.append({"name": name, **modules, "ledger": str(ledger)})
    return found


def list_workers(run_dir: Path) -> list[dict[str, Any]]:
    """Return the workers of other runs that take part in the sweeps of a run, or did.

    Each is an entry of `modules.sweep.joining.list_workers`, with ``sweep`` added.
    """
    from .sweep import joining

    return [
        {"sweep": name, **worker}
        for name, ledger in _ledgers(run_dir).items()
        for worker in joining.list_workers(ledger, time.time())
    ]


def _ledgers(run_dir: Path) -> dict[str, Path]:
    """Return the ledgers of a run's sweeps by their names; a shared sweep has one for all runs."""
    from .sweep.shared import Participation

    part = Participation.of_run(run_dir)
    place = run_dir if part is None or part.share is None else Path(part.share)
    return {path.parent.name: path for path in ledgers_in(place)}


def describe_sweep(
    name: str, train: str, asked: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the tables of a workflow file that sweeps a function, for `diel.sweep`.

    `train` is the place of the function, `asked` are the options of the master, `options` what the
    function finds in its report. Without a function they are those of the trainer, whose path is
    relative to the folder of this process.
    """
    if train:
        of_trainer = {"train": train, **({"options": dict(options)} if options else {})}
    else:
        of_trainer = dict(options)
        path = of_trainer.get("path")
        if isinstance(path, str) and not path.startswith(("$", "~")):
            of_trainer["path"] = str(Path(path).absolute())
    master = {"name": "master", "function": "modules.master:run", "options": dict(asked)}
    trainer = {"name": "trainer", "function": "modules.trainer:run", "copies": "fill"}
    return {
        "workflow": {"name": name},
        "module": [master, {**trainer, **({"options": of_trainer} if of_trainer else {})}],
        "group": [{"name": "search", "modules": ["master", "trainer"]}],
    }


def new_sweep() -> dict[str, Any]:
    """Return the tables of a workflow file with a sweep that is still to be filled in.

    It runs once its trainer has data, or a function, to train with.
    """
    asked = {
        "objective": "accuracy",
        "strategy": "random",
        "trials": 20,
        "space": {"learning_rate": {"from": 0.001, "to": 1.0, "scale": "log"}},
    }
    tables = describe_sweep("sweep", "", asked, {})
    return {"workflow": tables.pop("workflow"), "tuple_space": {"servers": 1}, **tables}


def explain_lost_ranks(run_dir: Path, copies: Collection[str]) -> list[str]:
    """Return which trials were in flight when a run was ended by the death of a rank."""
    return in_flight.explain_lost_ranks(run_dir, copies)


def export_formats() -> list[str]:
    """Return the formats in which a sweep can be exported."""
    from .sweep.export import FORMATS

    return [*FORMATS]


def describe_machine() -> Iterator[tuple[str, str]]:
    """Yield what this machine has to train networks on, for `diel doctor`."""
    from .compute import describe_machine as describe

    try:
        yield from describe()
    except Exception as error:  # a broken driver may raise any error
        yield "GPUs", f"not known: {error}"


def _with_curves(table: ResultsTable) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table, with learning curves if it is of a sweep that has some.

    A ledger has its records in the order of the rows.
    """
    curves: Iterator[tuple[int, Any]] = iter(())
    for ledger in ledgers_in(table.run_dir):
        with contextlib.suppress(OSError, ValueError):  # raised by a damaged ledger
            if about_of(ledger).get("table") == table.file.name:
                curves = curves_of(ledger, table.run_dir)
    trial, curve = None, None
    for row in table.rows():
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            while trial != row.get("trial"):
                trial, curve = next(curves, (row.get("trial"), None))
        yield {**row, "learning curve": curve} if curve else row
