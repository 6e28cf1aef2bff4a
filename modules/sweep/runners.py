"""How a trainer runs trials: its function, called in this process or on all ranks of its copy.

The runner of `subprocess_runner` calls it in another process. On several ranks rank 0 takes the
leases, and the other ranks follow it; so do the ranks of each group, where trials have different
numbers of ranks::

    rank 0   ── RunTrial, SaveModel, Renew, None ──>  each other rank    "point", rank
             <── Ended, of the first two ───────────                     "ended", rank

These go through the tuple space, where a rank sleeps while it waits, and wakes up if the run ends.
What a trial's function exchanges goes through communicators. A trial that fails on one rank fails
on all: a rank that waits in the `Communicator` gets an error there. When all ranks have ended the
trial they make a new communicator, in which no message of that trial can be, and go on with the
next trial. A function that waits in MPI itself cannot be interrupted: then the copy fails.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from diel import import_function, restoring
from diel.errors import RunStopped, TupleTimeout

from ..attributes import describe_unknown, unknown_attributes
from ..metrics import DIVERGED, check_metrics
from ..trial import (
    IsToStop,
    Judge,
    LearningCurve,
    OnReport,
    Report,
    StopCause,
    Train,
    Trial,
    TrialResult,
    failed_result,
    reporting_failures,
    run_trial,
)
from .messages import SaveModel, Tags
from .rank_queues import Ranks

if TYPE_CHECKING:
    from diel import Context
    from dnn.distributed import Communicator

    from ..objective import Aim

TRAINERS: Final = "trainers"
"""The kind of plugins among which a function for trials is looked for by its name."""
NO_CHECKPOINT: Final = (
    "train has written nothing at report.checkpoint: trials of this strategy go on from each "
    "other, each from what is at report.parent_checkpoint"
)
"""Reason of failure of a trial from which no other could go on."""
_UNITS: Final = {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_MEMORY: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]iB|B)\s*", re.IGNORECASE)
_SETTLING_S: Final = 2.0
"""How long ranks wait for each other after a failure, where one may wait in MPI itself."""
_SETTLING_NETWORKS_S: Final = 60.0
"""The same for networks of dnn: a rank may still compile, and gets the failure afterwards."""


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
            judged_at=trial.judged_at,
            checkpoint=trial.checkpoint,
            parent_checkpoint=trial.parent_checkpoint,
            options=self.options,
            folder=self.folder,
            **more,
        )


def facts_of(train: Train) -> dict[str, str]:
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


class AimedRunner(TrialRunner, Protocol):
    """Runs one trial of a sweep, of which trials are told what it is for."""

    aim: Aim | None


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

    `is_to_stop` returns whether a trial has to stop; `aim` is what the sweep is for. `note` is
    called as `InFlightTrials.note`, since a trial may kill this process; `comm`, `communicator` and
    `progress`, which may be replaced between trials, are what the function finds in its report.
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
        self.progress = progress
        self._note = note or (lambda start, stop: None)
        self.saves_models: bool = hasattr(self._train, "save_model")
        """Whether the function can write the model of a trial."""
        self.unread = unread_attributes(task, self._train)
        """A text on each attribute of the function that nobody reads."""
        self.facts = facts_of(self._train)
        """Device facts of the function; empty if it has none."""
        self._task, self.comm = task, comm
        self.communicator: Communicator | None = None
        self.is_to_stop: IsToStop | None = None
        self.aim: Aim | None = None

    @property
    def at_once(self) -> int:
        """How many trials the task runs together; it may find out more as it runs them."""
        at_once: int = getattr(self._train, "at_once", 1)
        return at_once

    @property
    def kept_trial(self) -> int | None:
        """The trial whose network the task keeps; None if it keeps none."""
        kept: int | None = (
            getattr(self._train, "kept_trial", None) if self.trains_networks else None
        )
        return kept

    def __call__(self, trial: Trial, on_report: OnReport | None) -> TrialResult:
        """Run a trial."""
        self._note(trial.number, trial.number + 1)
        report = self._report(trial, on_report)
        if self.progress is not None:
            self.progress.begin(trial.number, report.curve)
        result = run_trial(self._try, trial.parameters, report)
        self._note(0, 0)
        if not self.trains_networks and self._lacks_checkpoint(trial, result):
            result.reason = NO_CHECKPOINT
        return result

    def _lacks_checkpoint(self, trial: Trial, result: TrialResult) -> bool:
        """Whether a trial with a result has left nothing from which others could go on."""
        if trial.checkpoint is None or result.reason or DIVERGED in result.metrics:
            return False
        # Of several ranks the first one writes.
        is_first = self.communicator is None or not self.communicator.rank
        return is_first and not trial.checkpoint.exists()

    def _restoring(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function if self.trains_networks else restoring(function)

    def _report(
        self, trial: Trial, on_report: OnReport | None = None, judge: Judge | None = None
    ) -> Report:
        return self._task.report(
            trial,
            judge=judge,
            comm=self.comm,
            communicator=self.communicator,
            on_report=on_report,
            progress=self.progress,
            is_to_stop=self.is_to_stop,
            aim=self.aim,
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

    def run_together(
        self, trials: Sequence[Trial], judge: Judge | None = None
    ) -> list[TrialResult | None]:
        """Run neighbouring trials at once; None for those that have to be run alone, or later.

        `judge` says which of them end early. An error may be that of a single trial, which is found
        when each runs alone.
        """
        self._note(trials[0].number, trials[-1].number + 1)
        reports = [self._report(trial, judge=judge) for trial in trials]
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
            if metrics is None and not report.is_out_of_time
            else TrialResult(
                check_metrics(metrics or {}),
                is_stopped=report.is_stopped,
                is_out_of_time=report.is_out_of_time,
                reports=report.curve.points,
            )
            for metrics, report in zip(found, reports, strict=True)
        ]


# -- on all ranks of a copy -----------------------------------------------------------------------


class RankGroupFailed(RuntimeError):
    """A trial failed on some ranks of a copy, and others have not ended it since."""


@dataclass(frozen=True)
class RunTrial:
    """Order to run a trial; if it `may_be_stopped`, rank 0 decides that after each report."""

    trial: Trial
    may_be_stopped: bool
    aim: Aim | None = None


@dataclass(frozen=True)
class Renew:
    """Order to make a new communicator: the trial has failed, and all ranks have ended it."""


@dataclass(frozen=True)
class Ended:
    """How a trial has ended on a rank; `reason` is empty unless it has failed there."""

    reason: str
    detail: str
    is_consequence: bool


def session_of(communicator: Communicator | None) -> str:
    """Return a text that is new, and the same on all ranks; without a communicator there is one."""
    if communicator is None:
        return uuid.uuid4().hex
    values = communicator.gather_values("" if communicator.rank else uuid.uuid4().hex)
    return str(values[0])


class _RankOfGroup:
    """Common base of rank 0 and the other ranks of a group: of all ranks of a copy, or some."""

    def __init__(
        self, ctx: Context, tags: Tags, runner: InProcessRunner, ranks: Ranks | None = None
    ) -> None:
        self._ctx = ctx
        self._runner = runner
        self._asked = runner.is_to_stop
        self._communicator: Communicator | None = None
        self._comm: Any = None
        if ranks is None:
            self._comm = ctx.comm
            self.rank, size = ctx.comm.rank, ctx.comm.size
            self._renew()
            session = session_of(self._communicator)
        else:
            # They connect when they have come together.
            self.rank, size = ctx.comm.rank - ranks.first, ranks.count
            session = f"{ranks.session}.{size}.{ranks.first}"
        self._ranks = ranks
        self._points = {rank: tags.point(ctx.copy_index, session, rank) for rank in range(1, size)}
        self._ends = {rank: tags.ended(ctx.copy_index, session, rank) for rank in range(1, size)}
        # Not for a user's function, which may report on some of its ranks alone.
        if runner.trains_networks and ranks is None:
            runner.is_to_stop = self._agree_to_stop
        self._settling_s = _SETTLING_NETWORKS_S if runner.trains_networks else _SETTLING_S

    def _renew(self) -> None:
        from dnn.distributed import communicator_of

        if self._comm is None:
            assert self._ranks is not None
            group = self._ctx.comm.Get_group().Incl(list(self._ranks))
            self._comm = self._ctx.comm.Create_group(group, self._ranks.count)
        self._runner.comm = self._comm
        self._communicator = self._runner.communicator = communicator_of(self._comm)

    def begin(self, asked: IsToStop | None, progress: TrialProgress | None) -> None:
        """Have the runner run trials of this group; `asked` and `progress` are for rank 0."""
        runner = self._runner
        self._asked, runner.progress = asked, progress
        runner.is_to_stop = self._agree_to_stop if runner.trains_networks else self._asked
        runner.comm, runner.communicator = self._comm, self._communicator

    def _run(self, order: RunTrial, on_report: OnReport | None = None) -> TrialResult:
        """Run a trial here; all ranks go on or stop as the master has told rank 0."""

        def report(trial: int, step: int, metrics: dict[str, Any]) -> bool:
            goes_on = on_report is None or on_report(trial, step, metrics)
            return bool(self._as_on_rank0(goes_on))

        self._runner.aim = order.aim
        return self._runner(order.trial, report if order.may_be_stopped else None)

    def _agree_to_stop(self, trial: int) -> StopCause:
        """Whether a trial is to stop, as rank 0 knows it: the same on all ranks."""
        cause = StopCause.NO if self._asked is None else self._asked(trial)
        return StopCause(self._as_on_rank0(cause))

    def _as_on_rank0(self, verdict: int) -> int:
        import numpy as np

        told = np.array([verdict], np.int8)
        assert self._communicator is not None
        self._communicator.broadcast(told)
        return int(told[0])

    def _save(self, order: SaveModel) -> tuple[TrialResult, Path]:
        """Train a trial's network once more; return its file too, which rank 0 has written."""
        try:
            file = self._runner.save_model(order.trial, order.path, order.provenance)
            return TrialResult(), file
        except RunStopped:
            raise
        except Exception as error:
            return failed_result(error), order.path


class RankGroupRunner(_RankOfGroup):
    """Runs trials on all ranks of a group; for its rank 0, which takes the leases.

    The other ranks call `Follower.follow`. `runner` runs a trial on this rank; `ranks` are those of
    the group, if it has not all ranks of the copy. Then all are to `begin`, and rank 0 is to `meet`
    the others, before each lease.
    """

    def __init__(
        self, ctx: Context, tags: Tags, runner: InProcessRunner, ranks: Ranks | None = None
    ) -> None:
        super().__init__(ctx, tags, runner, ranks)
        self.facts = runner.facts
        self.saves_models = runner.saves_models
        self.aim: Aim | None = None

    def __call__(self, trial: Trial, on_report: OnReport | None) -> TrialResult:
        """Run a trial on every rank; its metrics are those of this one."""
        order = RunTrial(trial, on_report is not None, self.aim)
        self._send(order)
        return self._settled(trial, self._run(order, on_report))

    def save_model(self, trial: Trial, path: Path, provenance: Mapping[str, Any]) -> Path:
        """Write the model of a trial; return its file."""
        order = SaveModel("", trial, path, provenance)
        self._send(order)
        result, file = self._save(order)
        if reason := self._settled(trial, result).reason:
            raise RuntimeError(reason)
        return file

    def meet(self) -> None:
        """Wait until all ranks of the group have come; the first time, connect them."""
        for tag in self._ends.values():
            self._ctx.tuples.tget(tag)
        if self._communicator is None:
            self._send(Renew())
            self._renew()

    def dismiss(self) -> None:
        """Tell the other ranks that there are no more trials."""
        self._send(None)

    def _send(self, order: RunTrial | SaveModel | Renew | None) -> None:
        for tag in self._points.values():
            self._ctx.tuples.tput(tag, order)

    def _settled(self, trial: Trial, own_result: TrialResult) -> TrialResult:
        """Wait until all ranks have ended the trial; return the result, with the first cause."""
        ends = {
            0: Ended(own_result.reason, own_result.detail, own_result.is_consequence),
            **self._ends_of(own_result),
        }
        failed = {rank: end for rank, end in ends.items() if end.reason}
        if not failed:
            return own_result
        missing = [rank for rank in self._ends if rank not in ends]
        causes = {rank: end for rank, end in failed.items() if not end.is_consequence} or failed
        rank, cause = next(iter(causes.items()))
        alike = len(causes) == len(self._ends) + 1 and len({e.reason for e in causes.values()}) == 1
        reason = cause.reason if alike or cause.is_consequence else f"rank {rank}: {cause.reason}"
        if missing:
            raise RankGroupFailed(
                f"trial {trial.number} failed: {reason}; rank {missing[0]} has not ended it "
                f"{self._settling_s:g} s later: it may wait in MPI, where it cannot be told\n"
                f"{cause.detail}"
            )
        self._send(Renew())
        self._renew()
        return replace(own_result, reason=reason, detail=cause.detail)

    def _ends_of(self, own_result: TrialResult) -> dict[int, Ended]:
        """Return how the trial ended on the other ranks; after a failure they have limited time."""
        ends: dict[int, Ended] = {}
        deadline_s = time.monotonic() + self._settling_s if own_result.reason else None
        for rank, tag in self._ends.items():
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            try:
                ends[rank] = self._ctx.tuples.tget(tag, timeout=left_s)
            except TupleTimeout:
                continue
            if ends[rank].reason and deadline_s is None:
                deadline_s = time.monotonic() + self._settling_s
        return ends


class Follower(_RankOfGroup):
    """A rank other than 0 of a group, which carries out the orders of rank 0."""

    def follow(self) -> int:
        """Run the trials that rank 0 runs, until there are no more; return how many there were.

        `RankGroupFailed` if a trial has failed here, and rank 0 does not end it.
        """
        rank, trials = self.rank, 0
        ended = Ended("", "", False)
        if self._ranks is not None:
            self._ctx.tuples.tput(self._ends[rank], ended)  # it has come, and rank 0 may be late
        while True:
            limit_s = self._settling_s if ended.reason else None
            try:
                order = self._ctx.tuples.tget(self._points[rank], timeout=limit_s)
            except TupleTimeout:
                raise RankGroupFailed(
                    f"a trial failed on rank {rank}: {ended.reason}; rank 0 has not ended it "
                    f"{limit_s:g} s later: it may wait in MPI, where it cannot be told\n"
                    f"{ended.detail}"
                ) from None
            if order is None:
                return trials
            if isinstance(order, Renew):
                ended = Ended("", "", False)
                self._renew()
                continue
            if isinstance(order, SaveModel):
                result, _ = self._save(order)
            else:
                result = self._run(order)
                trials += 1
            ended = Ended(result.reason, result.detail, result.is_consequence)
            self._ctx.tuples.tput(self._ends[rank], ended)
