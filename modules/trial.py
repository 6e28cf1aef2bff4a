"""One trial: parameters, seed, the `report` that its function is given, and how it is run.

A trainer is a function ``train(parameters, report) -> metrics``. It may come from a function
``prepare(options, folder)`` that loads the data once for all trials, say.
"""

from __future__ import annotations

import contextlib
import copy
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import IntEnum
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from diel import describe_error, describe_traceback
from diel.errors import RunStopped

from .metrics import Metrics, check_metrics, shown, sound_metrics

if TYPE_CHECKING:
    from dnn.distributed import Communicator

    from .objective import Aim

Train: TypeAlias = "Callable[[dict[str, Any], Report], Mapping[str, Any]]"
OnReport: TypeAlias = "Callable[[int, int, Metrics], bool]"
"""Takes a trial, a step and metrics; returns whether the trial shall go on."""
Judge: TypeAlias = "Callable[[int, Mapping[int, Metrics]], Collection[int]]"
"""Takes a step and the metrics of trials that have come to it together; returns those to end."""
IsToStop: TypeAlias = "Callable[[int], StopCause | bool]"
"""Returns whether a trial is to end, and why; cheap enough to be called each step."""
ShowProgress: TypeAlias = "Callable[[float, float | None, str], None]"
"""Takes how much is done, of which total, and a text, as `Context.progress` does."""
Reports: TypeAlias = "list[tuple[int, Metrics]]"
"""Steps, and the metrics that were reported at each."""

MOST_REPORTS: Final = 64
"""A trial's learning curve has at most so many points."""


OUT_OF_TIME: Final = "ended by time"
"""How the state of a trial begins, in tables, that has a result though time has ended it."""


class StopCause(IntEnum):
    """Why a trial is to end before it has come to its end; `NO`: it goes on."""

    NO = 0
    REQUESTED = 1
    """By a rule or a user."""
    TIME_ONCE_REPORTED = 2
    """The time of the sweep is over, and no trial has a result yet: it ends once it has one."""
    TIME = 3
    """The time of the sweep is over."""


def trial_seed(sweep_seed: int, index: int) -> int:
    """Return the seed of a trial, below 2**32: the same on any trainer, in whatever order."""
    digest = blake2b(f"{sweep_seed}/{index}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


class Trial(NamedTuple):
    """A trial to run: its number, parameters and seed."""

    number: int
    """Within its sweep, from 0."""
    parameters: dict[str, Any]
    seed: int
    """As `trial_seed` gives it."""
    attempt: int = 1
    """From 1: how often it has been run, this time included."""
    judged_at: tuple[int, ...] | None = None
    """The steps at which a rule needs its reports, where it says so."""
    checkpoint: Path | None = None
    """Where it leaves its state, if others may go on from it."""
    parent_checkpoint: Path | None = None
    """The state that it goes on from; None if it begins anew."""


class LearningCurve:
    """The reports of a trial, of very many some at equal distances, and the last one."""

    def __init__(self) -> None:
        self.last: tuple[int, Metrics] | None = None
        self._kept: Reports = []
        self._every = 1
        self._count = 0

    def add(self, step: int, metrics: Metrics) -> None:
        """Add a report; of several with the same step, the last one counts."""
        is_again = self.last is not None and self.last[0] == step
        self.last = (step, metrics)
        if is_again:
            if self._kept[-1][0] == step:
                self._kept[-1] = (step, sound_metrics(metrics))
            return
        if self._count % self._every == 0:
            # As numbers: a tensor of PyTorch's may hold all that it was computed from.
            self._kept.append((step, sound_metrics(metrics)))
            if len(self._kept) == MOST_REPORTS:
                del self._kept[1::2]
                self._every *= 2
        self._count += 1

    @property
    def points(self) -> Reports:
        """Steps and the metrics reported there, in order, as plain numbers and text."""
        points = list(self._kept)
        if self.last is not None and points[-1][0] != self.last[0]:
            step, metrics = self.last
            points.append((step, sound_metrics(metrics)))
        return points


def thinned(reports: Iterable[tuple[int, Metrics]]) -> Reports:
    """Return some of very many reports, as a `LearningCurve` keeps them."""
    curve = LearningCurve()
    for step, metrics in reports:
        curve.add(step, metrics)
    return curve.points


class Report:
    """Tells a trial's function about its trial, and takes the metrics that the function reports.

    Attributes
    ----------
    trial : int
        Number of the trial.
    seed : int
        Seed of the trial: the same on whichever trainer, and on any number of ranks.
    attempt : int
        From 1.
    options : mapping
        What the workflow file gives to the function.
    folder : Path
        Of the workflow file.
    comm : MPI.Intracomm or None
        The communicator of the trainer's copy; None in a process of the trial's own.
    communicator : dnn.distributed.Communicator or None
        The same ranks for the schemes of dnn, such as `dnn.DataParallel`; None of one rank alone.
        A trial that fails on one rank while others wait in it fails on all of them.
    metrics : dict
        The metrics that were reported last.
    curve : LearningCurve
        The metrics that were reported, by step.
    judge : function or None
        Takes the reports of trials that are trained together, in place of a call for each.
    judged_at : tuple of int or None
        The steps at which the rule that may stop the trial needs a report; None if that is not
        known.
    progress : function
        Shows how far something is that takes long: ``progress(done, total, text)``.
    total : int or None
        How many steps there will be, if the function sets it: for displays.
    aim : Aim or None
        The first objective of the sweep, as far as it is known here, and whether it has a time.
    checkpoint : Path or None
        Where the function writes the state of its training at its end, a file or a folder, since
        other trials may go on from it; None if none does.
    parent_checkpoint : Path or None
        What another trial has written so: the function goes on from there, with the parameters of
        its own trial. None if it begins anew.
    is_out_of_time : bool
        Whether the trial was told to stop since the time of the sweep is over.
    provenance : mapping
        Where the trial comes from, as values of JSON, where its model is to be written: ``run``,
        ``sweep``, ``trial``, ``objective``, ``metrics`` and so on. Empty in a trial.
    """

    __slots__ = (
        "_is_stopped",
        "_is_to_stop",
        "_on_report",
        "aim",
        "attempt",
        "checkpoint",
        "comm",
        "communicator",
        "curve",
        "folder",
        "is_out_of_time",
        "judge",
        "judged_at",
        "metrics",
        "options",
        "parent_checkpoint",
        "progress",
        "provenance",
        "seed",
        "total",
        "trial",
    )

    def __init__(
        self,
        trial: int,
        seed: int,
        attempt: int = 1,
        *,
        options: Mapping[str, Any],
        folder: Path,
        comm: Any = None,
        communicator: Communicator | None = None,
        on_report: OnReport | None = None,
        progress: ShowProgress | None = None,
        is_to_stop: IsToStop | None = None,
        judge: Judge | None = None,
        judged_at: tuple[int, ...] | None = None,
        aim: Aim | None = None,
        checkpoint: Path | None = None,
        parent_checkpoint: Path | None = None,
    ) -> None:
        self.judge, self.judged_at = judge, judged_at
        self.checkpoint, self.parent_checkpoint = checkpoint, parent_checkpoint
        self.trial = trial
        self.aim = aim
        self.is_out_of_time = False
        self.seed = seed
        self.attempt = attempt
        self.options = options
        self.folder = folder
        self.comm = comm
        self.communicator = communicator
        self.metrics: Metrics = {}
        self.curve = LearningCurve()
        self.progress: ShowProgress = progress or _show_nothing
        self.total: int | None = None
        self.provenance: Mapping[str, Any] = {}
        self._on_report = on_report
        self._is_to_stop = is_to_stop
        self._is_stopped = False

    def __call__(self, step: int, **metrics: Any) -> bool:
        """Report the step that the trial has reached, and its metrics there.

        Parameters
        ----------
        step : int
            Epochs, say; grows from call to call.
        **metrics
            As the function will return them.

        Returns
        -------
        bool
            Whether to go on. If not, the function should return what it has.

        Raises
        ------
        TypeError
            If the step is no whole number.
        """
        if type(step) is not int:
            step = _whole(step)
        self.metrics = metrics
        self.curve.add(step, metrics)
        self.show(step)
        if self._is_stopped or (self._on_report is None and self.judge is None):
            return not self._is_stopped
        if self.judge is not None:
            self._is_stopped = self.trial in self.judge(step, {self.trial: sound_metrics(metrics)})
        elif self._on_report is not None:
            self._is_stopped = not self._on_report(self.trial, step, sound_metrics(metrics))
        if self._is_stopped:
            self.is_out_of_time = self.is_time_over(has_reported=True)
        return not self._is_stopped

    def show(self, step: int) -> None:
        """Show how far the trial is, without a report, and find out whether it is to stop."""
        self.check_stop()
        of = "" if self.total is None else f" of {self.total}"
        self.progress(step, self.total, f"trial {self.trial}, step {step}{of}")

    def check_stop(self, *, has_reported: bool | None = None) -> bool:
        """Whether the trial is to stop, also if a user has requested that meanwhile.

        `has_reported` says whether it has a result, where that is not reported yet.
        """
        if not self._is_stopped and self._is_to_stop is not None:
            cause = self._is_to_stop(self.trial)
            if cause == StopCause.TIME_ONCE_REPORTED:
                has_reported = self.curve.last is not None if has_reported is None else has_reported
                cause = StopCause.TIME if has_reported else StopCause.NO
            self._is_stopped, self.is_out_of_time = bool(cause), cause == StopCause.TIME
        return self._is_stopped

    def stop(self) -> None:
        """Have the trial end early."""
        self._is_stopped = True

    @property
    def may_run_out(self) -> bool:
        """Whether the time of the sweep may end the trial."""
        return self.aim is not None and self.aim.has_time_limit

    def is_time_over(self, *, has_reported: bool) -> bool:
        """Whether the time of the sweep is over for a trial that has a result or not."""
        cause = StopCause.NO if self._is_to_stop is None else self._is_to_stop(self.trial)
        is_over = cause == StopCause.TIME
        return is_over or (has_reported and cause == StopCause.TIME_ONCE_REPORTED)

    def complete(self) -> None:
        """Note that the training has come to its end, though its time was over at that moment."""
        if self.is_out_of_time:
            self._is_stopped = self.is_out_of_time = False

    def score(self, metrics: Mapping[str, Any]) -> float | None:
        """Return how good metrics are by the first objective, larger being better.

        None if they cannot be ranked, or the objective is not known here.
        """
        return None if self.aim is None else self.aim.score(metrics, self.folder)

    @property
    def may_be_stopped(self) -> bool:
        """Whether a rule may stop the trial early: if not, some reports will do for its curve."""
        return self._on_report is not None or self.judge is not None

    @property
    def is_stopped(self) -> bool:
        """Whether the trial was told to stop early."""
        return self._is_stopped


@dataclass
class TrialResult:
    """The result of a trial: its metrics, or why it failed."""

    metrics: Metrics = field(default_factory=dict)
    """Metrics of the trial; if it failed, those that it reported last."""
    reason: str = ""
    """Why it failed; empty if it did not."""
    detail: str = ""
    """A traceback, where there is one."""
    is_stopped: bool = False
    """Whether it was stopped early."""
    is_out_of_time: bool = False
    """Whether it was stopped since the time of the sweep was over."""
    has_died: bool = False
    """Whether the process that ran it has died."""
    is_consequence: bool = False
    """Whether it failed here since another rank of its trainer has failed."""
    reports: Reports = field(default_factory=list)
    """Its learning curve."""


def run_trial(train: Train, parameters: dict[str, Any], report: Report) -> TrialResult:
    """Run a trial in this process; an error that its function raises is the trial's failure.

    The function gets a copy of the parameters, which it may change.

    Raises
    ------
    RunStopped, KeyboardInterrupt
        What concerns the whole run. `sys.exit` in a function of the trial's does not.
    """
    try:
        metrics = check_metrics(train(_copy_of(parameters), report))
        return TrialResult(
            metrics,
            is_stopped=report.is_stopped,
            is_out_of_time=report.is_out_of_time,
            reports=report.curve.points,
        )
    except BaseException as error:
        _tell_failure(report.communicator, error)
        if isinstance(error, RunStopped) or not isinstance(error, (Exception, SystemExit)):
            raise
        failed = failed_result(error)
        failed.metrics, failed.reports = sound_metrics(report.metrics), report.curve.points
        return failed


def failed_result(error: BaseException) -> TrialResult:
    """Return the result of a trial that has raised."""
    from dnn import PeerError

    return TrialResult(
        reason=describe_error(error),
        detail=describe_traceback(error),
        is_consequence=isinstance(error, PeerError),
    )


@contextlib.contextmanager
def reporting_failures(communicator: Communicator | None) -> Iterator[None]:
    """Return a context that reports its errors to the trainer's other ranks, so that none waits."""
    try:
        yield
    except BaseException as error:
        _tell_failure(communicator, error)
        raise


def _tell_failure(communicator: Communicator | None, error: BaseException) -> None:
    if communicator is not None:
        communicator.report_failure(error)


def _show_nothing(done: float, total: float | None, text: str) -> None:
    """Do nothing: progress of a trial that is not shown."""


class NoSuchParameter(KeyError):
    """A trial's function asks for a parameter that its point does not have."""

    def __str__(self) -> str:
        return str(self.args[0])


class _Parameters(dict[str, Any]):
    """The parameters of a trial; the error for a missing name lists the names there are."""

    def __missing__(self, name: Any) -> Any:
        near = get_close_matches(str(name), self, 1) or _abbreviated(str(name), self)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        there = ", ".join(self) or "none"
        raise NoSuchParameter(f"{name!r} is no parameter of this trial{meant}: there are {there}")

    def pop(self, name: Any, *default: Any) -> Any:
        if name not in self and not default:
            self.__missing__(name)
        return super().pop(name, *default)


def _abbreviated(name: str, names: Iterable[str]) -> list[str]:
    """Return the names that `name` abbreviates, as ``lr`` does ``learning_rate``."""
    found = []
    for known in names:
        letters = iter(known)
        if known[:1] == name[:1] and all(letter in letters for letter in name):
            found.append(known)
    return found


def _copy_of(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of parameters that shares no value with those that are recorded."""
    own = _Parameters(parameters)
    for name, value in own.items():
        kind = type(value)
        if kind is list or kind is dict:
            own[name] = copy.deepcopy(value)
    return own


def _whole(step: Any) -> int:
    """Return a step that is a whole number of any kind, as NumPy's are."""
    try:
        return operator.index(step)
    except TypeError:
        raise TypeError(f"a step is a whole number, not {shown(step)}") from None
