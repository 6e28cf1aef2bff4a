"""One trial: parameters, seed, the `report` that its function is given, and how it is run.

A trainer is a function ``train(parameters, report) -> metrics``. It may come from a function
``prepare(options, folder)`` that loads the data once for all trials, say.
"""

from __future__ import annotations

import contextlib
import copy
import math
import numbers
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from difflib import get_close_matches
from enum import IntEnum
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from diel import describe_error, describe_traceback
from diel.errors import RunStopped
from dnn import catalogue

if TYPE_CHECKING:
    from dnn.distributed import Communicator

    from .objective import Aim

Metrics: TypeAlias = "dict[str, Any]"
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

SPLITS: Final = "splits"
"""Key among metrics: the metrics of each split, as `modules.evaluation` has them."""
_LARGEST: Final = 2**1023
"""Whole numbers beyond this are no floats, and those of some thousand digits no text either."""


@dataclass(frozen=True)
class Metric:
    """Whether a larger value of a metric is better, and between which bounds it lies."""

    maximise: bool
    lowest: float
    highest: float
    task: str = ""
    """The task whose networks have it, as `dnn.Dataset.task`; empty if all have."""
    on_request: tuple[str, ...] = ()
    """Tasks whose networks have it if it is asked for."""


TEXT: Final = "text, and no number: return float(...) of it"
"""What is wrong with a text where a number is needed, and what to do."""
METRICS: Final[Mapping[str, Metric]] = {
    **{
        name: Metric(
            *(metric.more_is_better, metric.lowest, metric.highest, metric.task, metric.on_request)
        )
        for name, metric in catalogue("metric").items()
    },
    "training_time_s": Metric(False, 0.0, math.inf),
}
"""Metrics that the trainer of this package can report, in this order."""


def metrics_of_task(task: str, *, on_request: bool = False) -> dict[str, Metric]:
    """Return the metrics that the trainer reports of a task, the usual objective first.

    Behind them those that it reports `on_request`, if these are wanted too.
    """
    found = {name: metric for name, metric in METRICS.items() if metric.task in ("", task)}
    if on_request:
        found |= {name: each for name, each in METRICS.items() if task in each.on_request}
    return found


def known_metrics(found: Mapping[str, Any], parameters: Collection[str] = ()) -> Metrics:
    """Return those of some values that are metrics of the trainer, in their order.

    One whose name is among `parameters` is left out: losses of different kinds cannot be compared.
    """
    return {name: found[name] for name in METRICS if name in found and name not in parameters}


ERRORS: Final = "standard errors"
"""Key of what a training with a single split returns beside its metrics."""
OUT_OF_TIME: Final = "ended by time"
"""How the state of a trial begins, in tables, that has a result though time has ended it."""
DIVERGED: Final = "diverged"
"""The metric by which a trainer says that a training has come to NaN or infinity."""


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


def marked(metrics: Mapping[str, Any], *, is_diverged: bool = False) -> dict[str, Any]:
    """Return metrics, with `DIVERGED` if the training diverged, or one is NaN or infinite."""
    numbers = (value for value in metrics.values() if isinstance(value, float))
    if is_diverged or not all(map(math.isfinite, numbers)):
        return {**metrics, DIVERGED: True}
    return dict(metrics)


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


def check_metrics(given: Any) -> Metrics:
    """Return metrics as plain numbers and text; a TypeError if they are no dictionary by name."""
    if not isinstance(given, Mapping):
        raise TypeError(f"train returned {_shown(given)}, and not a dictionary of metrics")
    for name, value in given.items():
        kind = type(value)
        if kind is int:
            if not -_LARGEST <= value <= _LARGEST:
                return _plain_metrics(given)
        elif kind is not float:
            return _plain_metrics(given)
        if type(name) is not str:
            return _plain_metrics(given)
    return given if type(given) is dict else dict(given)


def sound_metrics(given: Mapping[Any, Any]) -> Metrics:
    """Return the values that are valid metrics, and leave out all others."""
    with contextlib.suppress(TypeError):
        return check_metrics(given)
    sound: Metrics = {}
    for name, value in given.items():
        with contextlib.suppress(TypeError):
            sound |= _plain_metrics({name: value})
    return sound


def plain_number(value: Any) -> int | float:
    """Return a number of any kind, as of NumPy or PyTorch, as Python's int or float.

    An array of one element is a number too, True is 1 and False 0. A TypeError says what else the
    value is: text is no number, whatever is written there.
    """
    plain = _plain_value(value)
    if isinstance(plain, str):
        raise TypeError(TEXT)
    if plain is None:
        raise TypeError("no number")
    return int(plain) if type(plain) is bool else plain


def _plain_value(value: Any) -> int | float | bool | str | None:
    """Return a number or text of any kind as one of Python's; a TypeError says what else it is."""
    kind = type(value).__name__
    try:
        if hasattr(value, "item") and getattr(value, "size", 1) == 1:  # NumPy's and PyTorch's
            value = math.nan if kind == "MaskedConstant" else value.item()
        if value is None or type(value) is bool:
            return value
        if isinstance(value, str):
            return str.__str__(value)  # a class of the user's own cannot be read on another rank
        if isinstance(value, numbers.Integral):
            whole = int(value)
            if -_LARGEST <= whole <= _LARGEST:
                return whole
            raise OverflowError
        if isinstance(value, (numbers.Real, Decimal)):
            return float(value)
    except OverflowError:
        raise TypeError("too large a number") from None
    except Exception as error:
        raise TypeError(f"a {kind} that cannot be read: {describe_error(error)}") from error
    raise TypeError(f"a {kind}, and no number")


def is_splits(value: Any) -> bool:
    """Whether a value has the metrics of each split, as `modules.evaluation` makes them."""
    if not isinstance(value, dict) or type(value.get("rows")) is not int:
        return False
    splits = [value.get(name, ()) for name in ("choice", "test")]
    return all(
        isinstance(several, (list, tuple)) and all(isinstance(split, dict) for split in several)
        for several in splits
    )


def _whole(step: Any) -> int:
    """Return a step that is a whole number of any kind, as NumPy's are."""
    try:
        return operator.index(step)
    except TypeError:
        raise TypeError(f"a step is a whole number, not {_shown(step)}") from None


def _plain_metrics(given: Mapping[Any, Any]) -> Metrics:
    plain: Metrics = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise TypeError(f"a metric is called {_shown(name)}, which is no string")
        is_known = name == SPLITS and is_splits(value)
        try:
            plain[str.__str__(name)] = value if is_known else _plain_value(value)
        except TypeError as error:
            raise TypeError(f"metric {name!r} is {error}") from None
    return plain


def _shown(value: Any) -> str:
    """Return a value as text of at most 100 characters, whatever its class makes of that."""
    try:
        return f"{value!r:.100}"
    except Exception:
        return f"a {type(value).__name__}"
