"""How rank 0 processes the reports of other ranks.

A `Listener` passes them on: some are events of the scheduler, others go to the journal, to the
`TimeTable`, which adds up what ranks spend their time on, and to the `StatusWriter`, whose file
shows the state of the run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from diel.comm.meter import NO_TIMES, Times
from diel.executive import messages
from diel.executive.events import Event
from diel.executive.groups import policy_for
from diel.run.json_values import plain
from diel.run.records import MessageLogged, ModuleTimes, ProgressMade, RankTimes, TimeAccounted
from diel.run.status import write_status

if TYPE_CHECKING:
    from diel.executive.deadlock import WaitWatch
    from diel.executive.messages import Report, ServerStatus
    from diel.executive.plans import CopyPlan, RunPlan
    from diel.run.directory import RunDirectory
    from diel.run.journal import Recorder


_SERVER: Final = "tuple server"
_PROGRESS_EVERY_S: Final = 1.0
_PROGRESS_SHARE: Final = 0.01
_STATUS_EVERY_S: Final = 0.4


class Listener:
    """Processes the reports of all other ranks on rank 0.

    Parameters
    ----------
    recorder : Recorder
    plan : RunPlan
    plan_of : callable
        From the serial of a copy to its plan.
    waits : WaitWatch
    status : StatusWriter
    time_table : TimeTable
    state_saved : callable
        Called for each state that a module has saved.

    Attributes
    ----------
    present : set of int
        Ranks that have not said goodbye.
    tuples_left : int
        How many tuples servers held at their goodbyes.
    """

    def __init__(
        self,
        recorder: Recorder,
        plan: RunPlan,
        *,
        plan_of: Callable[[int], CopyPlan],
        waits: WaitWatch,
        status: StatusWriter,
        time_table: TimeTable,
        state_saved: Callable[[messages.StateSaved], object],
    ) -> None:
        self._recorder = recorder
        self._plan_of = plan_of
        self._modules = plan.modules
        self._waits = waits
        self._status = status
        self._time_table = time_table
        self._state_saved = state_saved
        self._started_s = time.monotonic()
        self._due_s: dict[str, float] = {}
        self.present = {*plan.server_ranks, *plan.pool}
        self.tuples_left = 0

    def hear(self, rank: int, report: Report) -> Event | None:
        """Process a report; return the event for the scheduler, if it is one."""
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
        """Process a report after the run's end was decided: only records and times still count."""
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
        """Note a copy's progress for the status file; return whether the journal records it too.

        The status file has the latest progress of each copy. The journal, which only grows, has the
        last step, and before it records at growing intervals: at least a second and 1 % of the time
        that the run has taken, about a hundred records while that time grows e-fold.
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
            report = report.replace(has_timeout=True)  # the copy's time limit ends the wait
        earlier = self._waits.waits.get(rank)  # of the same wait, if messages came meanwhile
        is_new = earlier is None or earlier.report.request != report.request
        self._waits.note(rank, plan, report, time.monotonic())
        if is_new and report.what.startswith("tput"):
            self._warn(plan, f"{report.what} waits: the tuple server is full, or slow to answer")

    def _warn(self, plan: CopyPlan, text: str) -> None:
        self._recorder.record(
            MessageLogged(module=plan.module, copy=plan.copy_index, level="WARNING", text=text)
        )


class TimeTable:
    """Adds up the times that ranks report, by rank and by module."""

    def __init__(
        self, servers: Iterable[int], pool: Iterable[int], host_of: Callable[[int], str]
    ) -> None:
        self._host_of = host_of
        self._copies: dict[int, dict[str, None]] = {
            **{rank: {_SERVER: None} for rank in servers},
            **{rank: {} for rank in pool},
        }
        self._current: dict[int, CopyPlan] = {}
        self._unfinished: set[int] = set()  # ranks whose current copy has not ended
        self._spent = dict.fromkeys(self._copies, NO_TIMES)
        self._total: dict[int, Times] = {}
        self._modules: dict[str, Times] = {}
        self._ranks_of: dict[str, set[int]] = {}

    def note_order(self, plan: CopyPlan) -> None:
        """Record that the ranks of a copy have been ordered to run it."""
        for rank in plan.ranks:
            self._current[rank] = plan
        self._unfinished.update(plan.ranks)

    def note_copy(self, rank: int, serial: int, times: Times) -> None:
        """Record how a rank spent its time on its current copy; an earlier copy is ignored."""
        plan = self._current[rank]
        if plan.serial != serial:
            return
        self._unfinished.discard(rank)
        self._copies[rank][plan.name] = None
        self._spent[rank] = self._spent[rank].plus(times)
        self._modules[plan.module] = self._modules.get(plan.module, NO_TIMES).plus(times)
        self._ranks_of.setdefault(plan.module, set()).add(rank)

    def note_total(self, rank: int, times: Times) -> None:
        """Record how a rank spent its whole time, as it reports in its goodbye."""
        self._total[rank] = times

    def record(self) -> TimeAccounted:
        """Return all times as a record for the journal.

        For a rank without a goodbye, only the times of copies that it ended are known; the copy
        that it had not ended is named too.
        """
        for rank in self._unfinished - self._total.keys():
            self._copies[rank][f"{self._current[rank].name} (did not end)"] = None
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
    """Writes the status file: ranks that wait, what the servers hold, how far copies are."""

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
        fields = {"done": progress.done, "total": progress.total, "text": progress.text}
        self._progress[progress.name] = {"copy": progress.name, **plain(fields)}

    def forget_progress(self, copy: str) -> None:
        """Remove the progress of a copy, which has ended."""
        self._progress.pop(copy, None)

    def write_if_due(self, now_s: float, unix_time: Callable[[], float] = time.time) -> None:
        """Write the file if anything has changed, at most every 0.4 s.

        `now_s` is on the clock of the reported waits, `unix_time` returns seconds since 1970.
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
