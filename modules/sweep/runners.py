"""Where a trial runs: in this process or on all ranks of a copy; `subprocess_runner`: beside it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..trial import (
    OnReport,
    Report,
    ShowProgress,
    Train,
    Trial,
    TrialResult,
    check_metrics,
    run_trial,
)
from .messages import Tags

if TYPE_CHECKING:
    from diel import Context

TRAINERS: Final = "trainers"
"""The kind of plugins among which a function for trials is looked for by its name."""
_UNITS: Final = {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_MEMORY: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]iB|B)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Task:
    """What a trainer calls for each trial."""

    function: str | Callable[[Mapping[str, Any], Path], Train]
    """``train(parameters, report)``: where it is, as a workflow file says it. Or a function
    ``prepare(options, folder)`` that returns it."""
    options: Mapping[str, Any]
    """What the file gives to it."""
    folder: Path
    """Of the workflow file."""

    def load(self) -> Train:
        """Import the function; prepare what it needs."""
        if not isinstance(self.function, str):
            return self.function(self.options, self.folder)
        from diel import import_function

        train: Train = import_function(self.function, self.folder, TRAINERS)
        return train

    def report(self, trial: Trial, **more: Any) -> Report:
        """Return what the function finds out about a trial; `more` as in `Report`."""
        return Report(
            trial.number,
            trial.seed,
            trial.attempt,
            options=self.options,
            folder=self.folder,
            **more,
        )


def facts_of(train: Train) -> dict[str, str]:
    """Return what a task says of what computes: its attribute ``facts``, if it has one."""
    facts = getattr(train, "facts", None)
    if not isinstance(facts, Mapping):
        return {}
    return {str(name): str(fact) for name, fact in facts.items()}


@dataclass(frozen=True)
class Limits:
    """Limits of one trial; if there are any, it runs in a process of its own."""

    isolated: bool = False
    """Whether to use a process of its own in any case."""
    time_s: float | None = None
    memory_bytes: int | None = None
    """Of the process as the system counts them (resident)."""

    @property
    def needs_process(self) -> bool:
        """Whether trials run in a process of their own."""
        return self.isolated or self.time_s is not None or self.memory_bytes is not None


def parse_memory(text: str | int | None) -> int | None:
    """Return the bytes of ``"4 GiB"``, say; a ValueError if it is no amount of memory."""
    if text is None:
        return None
    if isinstance(text, int):
        amount = text
    else:
        found = _MEMORY.fullmatch(text)
        if found is None:
            raise ValueError(f'memory_limit = {text!r}: write "512 MiB" or "4 GiB"')
        amount = int(float(found[1]) * _UNITS[found[2].upper()])
    if amount < 1:
        raise ValueError(f"memory_limit = {text!r}: at least a byte")
    return amount


class TrialRunner(Protocol):
    """Runs one trial."""

    def __call__(self, trial: Trial, on_report: OnReport | None) -> TrialResult:
        """Run it; `on_report` takes what the trial reports meanwhile."""
        ...


class InProcessRunner:
    """Runs trials in this process.

    `note` is called as `InFlightTrials.note`, since a trial may be the last thing that this process
    does; `comm` is the communicator that the function finds in its report.
    """

    def __init__(
        self,
        task: Task,
        comm: Any = None,
        note: Callable[[int, int], None] | None = None,
        progress: ShowProgress | None = None,
    ) -> None:
        self._train = task.load()
        self._progress = progress
        self._note = note or (lambda start, stop: None)
        self.saves_models: bool = hasattr(self._train, "save_model")
        """Whether it can write the model of a trial."""
        self.facts = facts_of(self._train)
        """What computes, as far as the task says it."""
        self._task, self._comm = task, comm

    @property
    def at_once(self) -> int:
        """How many trials the task runs together; it may find out more as it runs them."""
        at_once: int = getattr(self._train, "at_once", 1)
        return at_once

    def __call__(self, trial: Trial, on_report: OnReport | None) -> TrialResult:
        """Run a trial."""
        self._note(trial.number, trial.number + 1)
        result = run_trial(self._train, trial.parameters, self._report(trial, on_report))
        self._note(0, 0)
        return result

    def _report(self, trial: Trial, on_report: OnReport | None = None) -> Report:
        return self._task.report(
            trial, comm=self._comm, on_report=on_report, progress=self._progress
        )

    def save_model(self, trial: Trial, path: Path) -> Path:
        """Write the model of a trial; return its file."""
        report = self._report(trial)
        file: Path = self._train.save_model(trial.parameters, report, path)  # type: ignore[attr-defined]
        return file

    def run_together(self, trials: Sequence[Trial]) -> list[TrialResult | None]:
        """Run neighbouring trials at once; None for those that have to be run alone.

        An error of all may be that of a single trial, which is found when each runs alone.
        """
        from diel.errors import RunStopped

        self._note(trials[0].number, trials[-1].number + 1)
        reports = [self._report(trial) for trial in trials]
        try:
            found = self._train.train_together(  # type: ignore[attr-defined]
                [(trial.parameters, report) for trial, report in zip(trials, reports, strict=True)]
            )
        except RunStopped:
            raise
        except Exception:
            return [None] * len(trials)
        finally:
            self._note(0, 0)
        return [
            None
            if metrics is None
            else TrialResult(check_metrics(metrics), reports=report.curve.points)
            for metrics, report in zip(found, reports, strict=True)
        ]


# -- on all ranks of a copy -----------------------------------------------------------------------


class SeveralRanksFailed(RuntimeError):
    """A trial failed on a trainer with several ranks, which may be out of step now."""


class RankGroupRunner:
    """Runs trials on all ranks of the copy; for its rank 0, which takes the leases.

    The other ranks wait for their trials in the tuple space, and not in a collective call of MPI,
    which would take a core from those who work, and where nobody could tell them that the run ends.
    `runner` runs a trial on this rank.
    """

    def __init__(self, ctx: Context, tags: Tags, runner: TrialRunner) -> None:
        self._ctx = ctx
        session = ctx.comm.bcast(uuid.uuid4().hex)
        self._tags = [tags.point(ctx.copy_index, session, rank) for rank in range(1, ctx.comm.size)]
        self._runner = runner
        self.facts: dict[str, str] = getattr(runner, "facts", {})

    def __call__(self, trial: Trial, on_report: OnReport | None) -> TrialResult:
        """Run a trial on every rank."""
        for tag in self._tags:
            self._ctx.tuples.tput(tag, trial)
        result = self._runner(trial, _verdict_of_rank0(self._ctx, on_report))
        _raise_if_failed(result, trial)
        return result

    def dismiss(self) -> None:
        """Let the other ranks go."""
        for tag in self._tags:
            self._ctx.tuples.tput(tag, None)


def follow_rank0(ctx: Context, tags: Tags, runner: TrialRunner) -> int:
    """Run the trials that rank 0 of the copy runs; return how many it was."""
    trials, session = 0, ctx.comm.bcast(None)
    while True:
        trial = ctx.tuples.tget(tags.point(ctx.copy_index, session, ctx.comm.rank))
        if trial is None:
            return trials
        result = runner(trial, _verdict_of_rank0(ctx, None))
        _raise_if_failed(result, trial)
        trials += 1


def _verdict_of_rank0(ctx: Context, on_report: OnReport | None) -> OnReport:
    """Return an `on_report` by which all ranks go on or stop as the master has told rank 0."""

    def report(trial: int, step: int, metrics: dict[str, Any]) -> bool:
        verdict = on_report(trial, step, metrics) if on_report is not None else True
        goes_on: bool = ctx.comm.bcast(verdict)
        return goes_on

    return report


def _raise_if_failed(result: TrialResult, trial: Trial) -> None:
    # The other ranks may wait for this rank in a collective call: only a new start helps.
    if result.reason:
        raise SeveralRanksFailed(f"trial {trial.number} failed: {result.reason}\n{result.detail}")
