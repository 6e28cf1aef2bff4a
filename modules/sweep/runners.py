"""The function that a trainer runs for each trial, and a runner that calls it in this process.

The runner of `rank_group` runs trials on all ranks of a copy, that of `subprocess_runner` in
another process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from diel import import_function, restoring
from diel.errors import RunStopped

from ..attributes import describe_unknown, unknown_attributes
from ..trial import (
    IsToStop,
    LearningCurve,
    OnReport,
    Report,
    Train,
    Trial,
    TrialResult,
    check_metrics,
    reporting_failures,
    run_trial,
)

if TYPE_CHECKING:
    from dnn.distributed import Communicator

TRAINERS: Final = "trainers"
"""The kind of plugins among which a function for trials is looked for by its name."""
_UNITS: Final = {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_MEMORY: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]iB|B)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Task:
    """The function that a trainer calls for each trial, and its options."""

    function: str | Callable[[Mapping[str, Any], Path], Train]
    """``train(parameters, report)``: where it is, as a workflow file says it. Or a function
    ``prepare(options, folder)`` that returns it."""
    options: Mapping[str, Any]
    """Options of the function in the workflow file."""
    folder: Path
    """Folder of the workflow file."""

    def load(self) -> Train:
        """Return the function that is called for each trial: imported, or prepared."""
        if not isinstance(self.function, str):
            return self.function(self.options, self.folder)
        train: Train = import_function(self.function, self.folder, TRAINERS)
        return train

    def report(self, trial: Trial, **more: Any) -> Report:
        """Return the report of a trial that the function gets; `more` are fields of `Report`."""
        return Report(
            trial.number,
            trial.seed,
            trial.attempt,
            options=self.options,
            folder=self.folder,
            **more,
        )


def agreement_facts(train: Train) -> dict[str, str]:
    """Return the device facts of a function: its attribute ``facts``; empty if it has none."""
    facts = getattr(train, "facts", None)
    if not isinstance(facts, Mapping):
        return {}
    return {str(name): str(fact) for name, fact in facts.items()}


def unread_attributes(task: Task, train: Train) -> list[str]:
    """Return a text on each attribute of a user's function that nobody reads."""
    if not isinstance(task.function, str):
        return []
    return [describe_unknown(task.function, name) for name in unknown_attributes(train)]


@dataclass(frozen=True)
class Limits:
    """Limits of one trial; if there are any, it runs in a process of its own."""

    isolated: bool = False
    """Whether to use a process of its own in any case."""
    time_s: float | None = None
    memory_bytes: int | None = None
    """Most resident memory of the process."""

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
        """Run a trial; `on_report` takes its intermediate reports."""
        ...


class TrialProgress(Protocol):
    """Shows the progress of trials."""

    def begin(self, trial: int, curve: LearningCurve) -> None:
        """Show a trial that begins; its learning curve grows as the trial reports."""
        ...

    def __call__(self, done: float, total: float | None, text: str) -> None:
        """Show how much of the trial is done, of which total, and a text."""
        ...


class InProcessRunner:
    """Runs trials in this process.

    `is_to_stop` returns whether a trial has been requested to stop. `note` is called as
    `InFlightTrials.note`, since a trial may kill this process; `comm` and `communicator`, which may
    be replaced between trials, are what the function finds in its report.
    """

    def __init__(
        self,
        task: Task,
        comm: Any = None,
        note: Callable[[int, int], None] | None = None,
        progress: TrialProgress | None = None,
    ) -> None:
        self._train = task.load()
        self.trains_networks = not isinstance(task.function, str)
        """Whether the function trains networks of dnn; ranks then wait in the communicator only."""
        self._try = self._restoring(self._train)
        self._progress = progress
        self._note = note or (lambda start, stop: None)
        self.saves_models: bool = hasattr(self._train, "save_model")
        """Whether the function can write the model of a trial."""
        self.unread = unread_attributes(task, self._train)
        """A text on each attribute of the function that nobody reads."""
        self.facts = agreement_facts(self._train)
        """Device facts of the function; empty if it has none."""
        self._task, self._comm = task, comm
        self.communicator: Communicator | None = None
        self.is_to_stop: IsToStop | None = None

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
        result = run_trial(self._try, trial.parameters, report)
        self._note(0, 0)
        return result

    def _restoring(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function if self.trains_networks else restoring(function)

    def _report(self, trial: Trial, on_report: OnReport | None = None) -> Report:
        return self._task.report(
            trial,
            comm=self._comm,
            communicator=self.communicator,
            on_report=on_report,
            progress=self._progress,
            is_to_stop=self.is_to_stop,
        )

    def save_model(self, trial: Trial, path: Path, provenance: Mapping[str, Any]) -> Path:
        """Write the model of a trial; return its file."""
        report = self._report(trial)
        report.provenance = provenance
        with reporting_failures(self.communicator):
            save_model = self._restoring(self._train.save_model)  # type: ignore[attr-defined]
            file = save_model(trial.parameters, report, path)
        if self.communicator is not None and self.communicator.rank:
            return path  # rank 0 says which file it is
        if not isinstance(file, (str, PathLike)) or not Path(file).is_file():
            raise ValueError(f"save_model returns the file that it has written, not {file!r:.100}")
        return Path(file)

    def run_together(self, trials: Sequence[Trial]) -> list[TrialResult | None]:
        """Run neighbouring trials at once; None for those that have to be run alone.

        An error may be that of a single trial, which is found when each runs alone.
        """
        self._note(trials[0].number, trials[-1].number + 1)
        reports = [self._report(trial) for trial in trials]
        try:
            train_together = self._restoring(self._train.train_together)  # type: ignore[attr-defined]
            found = train_together(
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
