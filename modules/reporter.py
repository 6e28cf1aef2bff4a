"""The reporter of sweeps, as `diel` finds it: an entry point of the group ``diel.reporters``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diel import Reporter, repeat_command

from .sweep import in_flight
from .sweep.ledger import about_of, ledgers_in
from .sweep.models import how_to_use
from .sweep.output import FORMATS, curves_of

if TYPE_CHECKING:
    from diel import ResultsTable

    from .sweep.watched import WatchedSweep


class SweepReporter(Reporter):
    """Reports on sweeps and their models; `diel.Reporter` says what each method is for."""

    def write_report(self, table: ResultsTable) -> Path:
        """Write ``report.html``, with learning curves if the table is that of a sweep."""
        from .report import Moment, RankAccount, Sweep, write_report
        from .report.live import now

        sweep = Sweep(
            name=table.run,
            objective=table.objective,
            maximise=table.maximise,
            parameters=table.parameters,
            metrics=table.metrics,
            expected=table.expected,
            workflow=table.workflow,
            command=repeat_command(table.run_dir),
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
        write_report(table.report, sweep, _with_curves(table), moment)
        return table.report

    def conclude_report(
        self, report: Path, state: str, accounts: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add how the run ended; a ValueError if the file is no report of a sweep."""
        from .report import conclude_report

        conclude_report(report, state, accounts)

    def explain_lost_ranks(self, run_dir: Path, copies: Collection[str]) -> list[str]:
        """Return which trials were in flight."""
        return in_flight.explain_lost_ranks(run_dir, copies)

    # -- sweeps -----------------------------------------------------------------------------------

    def watch_sweeps(self, run_dir: Path) -> list[WatchedSweep]:
        """Return the sweeps of a run that have begun, each to be read as it grows."""
        from .sweep.watched import watched_sweeps

        return watched_sweeps(run_dir)

    def compare_sweeps(self, sweeps: Mapping[str, Any], theme: str = "light") -> dict[str, Any]:
        """Compare sweeps; a ValueError if their objectives differ."""
        from .sweep.watched import compare

        return compare(sweeps)

    def write_comparison(self, sweeps: Mapping[str, Any], path: Path) -> Path:
        """Write one report over several sweeps; errors as `compare_sweeps`, or an OSError."""
        from .sweep.watched import write_comparison

        return write_comparison(sweeps, path)

    def steer_sweep(
        self, run_dir: Path, asked: Sequence[Mapping[str, Any]], sweep: str
    ) -> tuple[str, Callable[[float], list[dict[str, Any]]]]:
        """Check requests to a sweep; return its name, and a function that sends them."""
        from .sweep.steering import SteeringError, answers_to, ask, requests_for

        ledgers = {path.parent.name: path for path in ledgers_in(run_dir)}
        names = ", ".join(sorted(ledgers))
        if sweep not in ledgers and (sweep or len(ledgers) != 1):
            if not ledgers:
                raise SteeringError(f"{run_dir} has no sweep that has begun")
            raise SteeringError(f"say which sweep, with --sweep: there are {names}")
        (name, ledger), *_ = [(name, at) for name, at in ledgers.items() if sweep in ("", name)]
        requests = requests_for(ledger, asked)

        def send(wait_s: float) -> list[dict[str, Any]]:
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

        return name, send

    def joinable_sweeps(self, run_dir: Path) -> list[dict[str, Any]]:
        """Return the sweeps of a run that have begun, with what a worker needs to join them."""
        found = []
        for name, ledger in _ledgers(run_dir).items():
            with contextlib.suppress(ValueError, KeyError):  # raised by a damaged ledger
                about = about_of(ledger)
                group, _, master = name.partition(".")
                modules = {"group": group, "master": master, "trainer": str(about["trainer"])}
                found.append({"name": name, **modules, "ledger": str(ledger)})
        return found

    def record_participation(self, run_dir: Path, said: Mapping[str, Any]) -> None:
        """Write the fields of `modules.sweep.shared.Participation` that `said` has."""
        from .sweep.shared import Participation

        Participation(**said).save(run_dir)

    def list_workers(self, run_dir: Path) -> list[dict[str, Any]]:
        """Return entries of `modules.sweep.joining.list_workers`, with ``sweep`` added."""
        from .sweep import joining

        return [
            {"sweep": name, **worker}
            for name, ledger in _ledgers(run_dir).items()
            for worker in joining.list_workers(ledger, time.time())
        ]

    def describe_sweep(
        self, name: str, train: str, asked: Mapping[str, Any], options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the tables of a workflow file with a master, `asked`, and a trainer.

        Without a function the options are those of the trainer, whose path is relative to the
        folder of this process.
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

    def new_sweep(self) -> dict[str, Any]:
        """Return tables that can run once the trainer has data, or a function, to train with."""
        asked = {
            "strategy": "random",
            "trials": 20,
            "space": {"learning_rate": {"from": 0.001, "to": 1.0, "scale": "log"}},
        }
        tables = self.describe_sweep("sweep", "", asked, {})
        return {"workflow": tables.pop("workflow"), "tuple_space": {"servers": 1}, **tables}

    def export_formats(self) -> list[str]:
        """Return the formats in which a sweep can be exported."""
        return [*FORMATS]

    # -- models, and the machine ------------------------------------------------------------------

    def find_model(self, run_dir: Path, sweep: str, trial: int | None) -> dict[str, Any]:
        """Return where the model of a trial is, by default of the best one: see `choose_model`."""
        from .sweep.models import choose_model

        return choose_model(*_watched(run_dir, sweep), trial)

    def find_candidates(self, run_dir: Path, sweep: str, count: int) -> dict[str, Any]:
        """Return of which trials an average is chosen: see `choose_candidates`."""
        from .sweep.models import choose_candidates

        return choose_candidates(*_watched(run_dir, sweep), count)

    def average_models(self, models: Sequence[Any], chosen: Mapping[str, Any]) -> Any:
        """Return a `dnn.AveragedModel`, whose provenance is the choice, as `choose` returns it."""
        from dnn import AveragedModel

        from .averaging import score_lines

        weights = [count for _, count in chosen["members"]]
        return AveragedModel(models, weights, provenance={**chosen, "said": score_lines(chosen)})

    def load_model(self, file: Path) -> Any:
        """Load a `dnn.TrainedModel`; an ImportError if safetensors is not installed."""
        from dnn import load

        return load(file)

    def describe_machine(self) -> Iterator[tuple[str, str]]:
        """Yield what this machine has to train networks on."""
        from .compute import describe_machine

        try:
            yield from describe_machine()
        except Exception as error:  # a broken driver may raise any error
            yield "GPUs", f"not known: {error}"


def _watched(run_dir: Path, sweep: str) -> tuple[WatchedSweep, Path]:
    """Return a sweep of a run, by default the only one, and its ledger; or raise a ValueError."""
    from .sweep.watched import WatchedSweep

    ledgers = _ledgers(run_dir)
    chosen = [ledger for name, ledger in ledgers.items() if sweep in ("", name)]
    if len(chosen) != 1:
        names = ", ".join(ledgers)
        if not ledgers:
            raise ValueError(f"{run_dir} has no sweep that has begun")
        problem = f"has no sweep {sweep!r}" if sweep else "has several sweeps"
        raise ValueError(f"{run_dir} {problem}: name one of {names}")
    watched = WatchedSweep(run_dir, chosen[0])
    watched.catch_up()
    return watched, chosen[0]


def _ledgers(run_dir: Path) -> dict[str, Path]:
    """Return the ledgers of a run's sweeps by their names; a shared sweep has one for all runs."""
    from .sweep.shared import Participation

    part = Participation.of_run(run_dir)
    place = run_dir if part is None or part.share is None else Path(part.share)
    return {path.parent.name: path for path in ledgers_in(place)}


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
