"""What a trainer runs for each trial, and a runner in this process.

Those of `rank_group` run on all ranks of a copy, those of `subprocess_runner` in another process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..trial import (
    IsToStop,
    LearningCurve,
    OnReport,
    Report,
    Train,
    Trial,
    TrialResult,
    check_metrics,
    run_trial,
    telling_failures,
)

if TYPE_CHECKING:
    from dnn.distributed import Communicator

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


class ShowsTrial(Protocol):
    """Shows how far trials are."""

    def begin(self, trial: int, curve: LearningCurve) -> None:
        """Take the learning curve of the trial that begins, which grows as the trial reports."""
        ...

    def __call__(self, done: float, total: float | None, text: str) -> None:
        """Show how far it is, of how much, and what is being done."""
        ...


class InProcessRunner:
    """Runs trials in this process.

    `is_to_stop` says of a trial whether somebody has asked that it ends.
    `note` is called as `InFlightTrials.note`, since a trial may be the last thing that this process
    does; `comm` and `communicator`, which may be replaced between trials, are what the function
    finds in its report.
    """

    def __init__(
        self,
        task: Task,
        comm: Any = None,
        note: Callable[[int, int], None] | None = None,
        progress: ShowsTrial | None = None,
    ) -> None:
        self._train = task.load()
        self._progress = progress
        self._note = note or (lambda start, stop: None)
        self.saves_models: bool = hasattr(self._train, "save_model")
        """Whether it can write the model of a trial."""
        self.facts = facts_of(self._train)
        """What computes, as far as the task says it."""
        self._task, self._comm = task, comm
        self.communicator: Communicator | None = None
        self.is_to_stop: IsToStop | None = None
        self.trains_networks = not isinstance(task.function, str)
        """Whether the task is ours, and its ranks wait in the communicator alone."""

    @property
    def at_once(self) -> int:
        """How many trials the task runs together; it may find out more as it runs them."""
        at_once: int = getattr(self._train, "at_once", 1)
        return at_once

    def __call__(self, trial: Trial, on_report: OnReport | None) -> TrialResult:
        """Run a trial."""
        self._note(trial.number, trial.number + 1)
        report = self._report(trial, on_report)
        if self._progress is not None:
            self._progress.begin(trial.number, report.curve)
        result = run_trial(self._train, trial.parameters, report)
        self._note(0, 0)
        return result

    def _report(self, trial: Trial, on_report: OnReport | None = None) -> Report:
        return self._task.report(
            trial,
            comm=self._comm,
            communicator=self.communicator,
            on_report=on_report,
            progress=self._progress,
            is_to_stop=self.is_to_stop,
        )

    def save_model(self, trial: Trial, path: Path) -> Path:
        """Write the model of a trial; return its file."""
        report = self._report(trial)
        with telling_failures(self.communicator):
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
            else TrialResult(
                check_metrics(metrics), is_stopped=report.is_stopped, reports=report.curve.points
            )
            for metrics, report in zip(found, reports, strict=True)
        ]
