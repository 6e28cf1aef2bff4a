"""What rank 0 makes of the reports of other ranks.

A `Listener` receives them: some are events of the scheduler, others go to the journal, to the
`TimeTable`, which adds up what ranks spend their time on, and to the `StatusWriter`, for whoever
watches the run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from diel.comm.meter import NO_TIMES, Times
from diel.executive import messages
from diel.executive.copies import policy_for
from diel.executive.events import Event
from diel.run.json_values import plain
from diel.run.records import MessageLogged, ModuleTimes, ProgressMade, RankTimes, TimeAccounted
from diel.run.status import write_status

if TYPE_CHECKING:
    from diel.executive.deadlock import WaitWatch
    from diel.executive.messages import Report, ServerStatus
    from diel.executive.plans import CopyPlan, ModulePlan
    from diel.run.directory import RunDirectory
    from diel.run.recorder import Recorder


_SERVER: Final = "tuple server"
_PROGRESS_EVERY_S: Final = 1.0
_PROGRESS_SHARE: Final = 0.01
_STATUS_EVERY_S: Final = 0.4


class Listener:
    """Takes in the reports of all other ranks.

    Parameters
    ----------
    recorder : Recorder
    ranks : iterable of int
        All that are there.
    plan_of : callable
        From the serial of a copy to its plan.
    modules : mapping of (str, str) to ModulePlan
        By group and name.
    waits : WaitWatch
    status : StatusWriter
    time_table : TimeTable
    state_saved : callable
        Told of each state that a module has saved.

    Attributes
    ----------
    present : set of int
        Ranks that have not said goodbye.
    tuples_left : int
        What servers held when they did.
    """

    def __init__(
        self,
        recorder: Recorder,
        ranks: Iterable[int],
        *,
        plan_of: Callable[[int], CopyPlan],
        modules: Mapping[tuple[str, str], ModulePlan],
        waits: WaitWatch,
        status: StatusWriter,
        time_table: TimeTable,
        state_saved: Callable[[messages.StateSaved], object],
    ) -> None:
        self._recorder = recorder
        self._plan_of = plan_of
        self._modules = modules
        self._waits = waits
        self._status = status
        self._time_table = time_table
        self._state_saved = state_saved
        self._started_s = time.monotonic()
        self._due_s: dict[str, float] = {}
        self.present = set(ranks)
        self.tuples_left = 0

    def hear(self, rank: int, report: Report) -> Event | None:
        """Note a report where it belongs; return what the scheduler has to be told, if anything."""
        self._note_times(rank, report)
        if isinstance(report, messages.Recorded):
            record = report.record
            if not isinstance(record, ProgressMade) or self._is_due(record):
                self._recorder.record(record)
        elif isinstance(report, (messages.RankFinished, messages.RankFailed, messages.RankLeft)):
            self._waits.note_end(rank, report.serial, report.counts)
            if isinstance(report, messages.RankFinished) and report.leftover_messages:
                plan = self._plan_of(report.serial)
                self._warn(
                    plan,
                    f"{report.leftover_messages} message(s) sent on its communicator "
                    f"to rank {plan.ranks.index(rank)} of the copy were never received",
                )
            return report
        elif isinstance(report, (messages.ModuleCommAsked, messages.LossAllowed)):
            return report
        elif isinstance(report, messages.StateSaved):
            self._state_saved(report)
        elif isinstance(report, messages.Waiting):
            self._note_wait(rank, report)
        elif isinstance(report, messages.WaitOver):
            self._waits.forget(rank)
        elif isinstance(report, messages.Goodbye):
            self.present.discard(rank)
            self.tuples_left += report.tuples_left
        elif isinstance(report, messages.ServerStatus):
            self._status.note_server(rank, report)
        return None

    def hear_late(self, rank: int, report: Report) -> None:
        """Note a report after the last decision: what happens to copies counts no more."""
        if isinstance(report, (messages.Recorded, messages.Goodbye)):
            self.hear(rank, report)
        else:
            self._note_times(rank, report)

    def _note_times(self, rank: int, report: Report) -> None:
        if isinstance(report, messages.Goodbye):
            self._time_table.note_total(rank, report.times)
        elif isinstance(report, messages.COPY_ENDED):
            self._time_table.note_copy(rank, report.serial, report.times)

    def _is_due(self, progress: ProgressMade) -> bool:
        """Note how far a copy is; whether the journal is to have it as well.

        The status file has the last word of each copy. The journal, which only grows, has the end
        and what comes at times ever further apart: a hundred records in which the run grows e-fold.
        """
        copy = progress.name
        self._status.note_progress(progress)
        now_s = time.monotonic()
        is_due = progress.done == progress.total or now_s >= self._due_s.get(copy, 0)
        if is_due:
            every_s = max(_PROGRESS_EVERY_S, _PROGRESS_SHARE * (now_s - self._started_s))
            self._due_s[copy] = now_s + every_s
        return is_due

    def _note_wait(self, rank: int, report: messages.Waiting) -> None:
        plan = self._plan_of(report.serial)
        module = self._modules[plan.group, plan.module]
        if module.time_limit_s is not None and policy_for(module, plan.attempt) != "stop":
            report = report.replace(has_timeout=True)  # its end is no end of the run
        self._waits.note(rank, plan, report, time.monotonic())
        if report.what.startswith("tput"):
            self._warn(plan, f"{report.what} waits: the tuple server is full, or slow to answer")

    def _warn(self, plan: CopyPlan, text: str) -> None:
        self._recorder.record(
            MessageLogged(module=plan.module, copy=plan.copy_index, level="WARNING", text=text)
        )


class TimeTable:
    """Adds up what ranks report of their time, by rank and by module.

    Parameters
    ----------
    servers, pool : iterable of int
    host_of : callable
        From a rank to its host.
    """

    def __init__(
        self, servers: Iterable[int], pool: Iterable[int], host_of: Callable[[int], str]
    ) -> None:
        self._host_of = host_of
        self._copies: dict[int, dict[str, None]] = {
            **{rank: {_SERVER: None} for rank in servers},
            **{rank: {} for rank in pool},
        }
        self._current: dict[int, CopyPlan] = {}
        self._spent = dict.fromkeys(self._copies, NO_TIMES)
        self._total: dict[int, Times] = {}
        self._modules: dict[str, Times] = {}
        self._ranks_of: dict[str, set[int]] = {}

    def note_order(self, plan: CopyPlan) -> None:
        """Record that the ranks of a copy are told to run it."""
        for rank in plan.ranks:
            self._current[rank] = plan

    def note_copy(self, rank: int, serial: int, times: Times) -> None:
        """Record what a rank has spent on the copy that it was told to run."""
        plan = self._current[rank]
        if plan.serial != serial:
            return
        self._copies[rank][plan.name] = None
        self._spent[rank] = self._spent[rank].plus(times)
        self._modules[plan.module] = self._modules.get(plan.module, NO_TIMES).plus(times)
        self._ranks_of.setdefault(plan.module, set()).add(rank)

    def note_total(self, rank: int, times: Times) -> None:
        """Record the times of a whole rank, which it reports when it leaves."""
        self._total[rank] = times

    def record(self) -> TimeAccounted:
        """Return the times as the journal has them.

        Of a rank that never said goodbye only the copies that it ended are known.
        """
        return TimeAccounted(
            ranks=[
                RankTimes(
                    rank,
                    self._host_of(rank),
                    tuple(copies),
                    *_rounded(self._total.get(rank, self._spent[rank])),
                )
                for rank, copies in sorted(self._copies.items())
            ],
            modules=[
                ModuleTimes(name, len(self._ranks_of[name]), *_rounded(times))
                for name, times in self._modules.items()
            ],
        )


def _rounded(times: Times) -> list[float]:
    return [round(seconds, 6) for seconds in times]


class StatusWriter:
    """Writes who waits, what the servers hold and how far copies are, where that has changed."""

    def __init__(self, directory: RunDirectory, waits: WaitWatch) -> None:
        self._directory = directory
        self._waits = waits
        self._servers: dict[int, ServerStatus] = {}
        self._progress: dict[str, dict[str, Any]] = {}
        self._written: dict[str, Any] = {"waiting": [], "servers": [], "progress": []}
        self._next_s = 0.0

    def note_server(self, rank: int, status: ServerStatus) -> None:
        """Record what a tuple server holds."""
        self._servers[rank] = status

    def note_progress(self, progress: ProgressMade) -> None:
        """Record how far a copy is."""
        far = {"done": progress.done, "total": progress.total, "text": progress.text}
        self._progress[progress.name] = {"copy": progress.name, **plain(far)}

    def forget_progress(self, copy: str) -> None:
        """Record that a copy has ended."""
        self._progress.pop(copy, None)

    def write_if_due(self, now_s: float, unix_time: Callable[[], float] = time.time) -> None:
        """Write, if something has changed and the last time is a while ago.

        Parameters
        ----------
        now_s : float
            On the clock of the waits.
        unix_time : callable, optional
            Returns seconds since 1970.
        """
        if now_s < self._next_s:
            return
        self._next_s = now_s + _STATUS_EVERY_S
        offset_s = unix_time() - now_s
        status = {
            "waiting": [
                {
                    "rank": rank,
                    "copy": waits.plan.name,
                    "what": waits.report.what,
                    # To a tenth: the two clocks are never read at the same instant.
                    "has_timeout": waits.report.has_timeout,
                    "since_s": round(waits.reported_s - waits.report.waited_s + offset_s, 1),
                }
                for rank, waits in sorted(self._waits.waits.items())
            ],
            "servers": [
                {
                    "rank": rank,
                    "tuples": status.tuples,
                    "size_bytes": status.size_bytes,
                    "capacity_bytes": status.capacity_bytes,
                }
                for rank, status in sorted(self._servers.items())
            ],
            "progress": list(self._progress.values()),
        }
        if status != self._written:
            self._written = status
            with contextlib.suppress(OSError):  # a full disk does not end a run
                write_status(self._directory, status)
