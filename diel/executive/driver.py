"""The loop of rank 0: events to the scheduler, its instructions to the ranks.

Decides nothing: what is to be done is the scheduler's word, how it is written the recorder's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diel.comm import tags
from diel.comm.mailbox import Mailbox
from diel.comm.waiting import wait_for
from diel.executive.deadlock import WaitWatch
from diel.executive.messages import (
    Goodbye,
    Leave,
    RankFailed,
    RankFinished,
    RankStopped,
    Recorded,
    Report,
    RunCopy,
    Stop,
    Waiting,
    Welcome,
    roster_of,
)
from diel.executive.scheduler import (
    CopyRankFailed,
    CopyRankFinished,
    DeadlockFound,
    EndRun,
    Event,
    GroupPlan,
    Instruction,
    NoteCopyFinished,
    NoteGroupFinished,
    Scheduler,
    StartGroup,
    StopAsked,
    StopRun,
)

if TYPE_CHECKING:
    from diel.comm.parent import Parent
    from diel.loading.spec import ModuleSpec
    from diel.run.journal import Record
    from diel.run.recorder import Recorder
    from diel.tuples.client import TupleClient

STOPPED_BY_USER = 130
FAILED = 1

_HOUSEKEEPING_EVERY_S = 0.2
_FAREWELL_TIMEOUT_S = 5.0


class Driver:
    """Runs a planned workflow on the ranks of a parent communicator.

    Parameters
    ----------
    parent : Parent
    recorder : Recorder
    groups : sequence of GroupPlan
    specs : mapping of str to ModuleSpec
        By module name.
    server_ranks : sequence of int
    pool : sequence of int
    announce : callable
        Told the record of the failure that is the root cause, before any rank leaves.
    housekeeping : callable
        Called a few times a second.
    """

    def __init__(
        self,
        parent: Parent,
        recorder: Recorder,
        *,
        groups: Sequence[GroupPlan],
        specs: Mapping[str, ModuleSpec],
        server_ranks: Sequence[int],
        pool: Sequence[int],
        announce: Callable[[Record], None],
        housekeeping: Callable[[], None],
    ) -> None:
        self._parent = parent
        self._recorder = recorder
        self._groups = {group.name: group for group in groups}
        self._specs = specs
        self._server_ranks = tuple(server_ranks)
        self._pool = tuple(pool)
        self._announce = announce
        self._housekeeping = housekeeping
        self._scheduler = Scheduler(groups, pool)
        self._mailbox: Mailbox[Report] = Mailbox(
            parent.comm, sends=tags.EXECUTIVE_TO_WORKER, receives=tags.WORKER_TO_EXECUTIVE
        )
        self._stops: Mailbox[Any] = Mailbox(
            parent.comm, sends=tags.EXECUTIVE_TO_ALL_STOP, receives=tags.WORKER_TO_EXECUTIVE
        )
        self._exit_code: int | None = None
        self._present = {*self._server_ranks, *self._pool}
        self._tuples_left = 0
        self._next_housekeeping_s = 0.0
        self._stop_asked: StopAsked | DeadlockFound | None = None
        self._waits = WaitWatch()
        self._ended: list[str] = []
        self._suspected = False
        self._survey_client: TupleClient | None = None

    def run(self, workflow_name: str, welcome: Welcome, facts: Mapping[str, Any]) -> int:
        """Run the workflow to its end.

        Parameters
        ----------
        workflow_name : str
        welcome : Welcome
        facts : mapping
            Further fields of the journal's first record.

        Returns
        -------
        int
            The exit code: 0, 1 after a failure, 130 if somebody asked the run to stop.
        """
        self._recorder.record(
            "RunStarted",
            workflow=workflow_name,
            ranks=self._parent.size,
            groups=list(self._groups),
            **facts,
        )
        for rank in sorted(self._present):
            self._mailbox.send(welcome, rank)
        self._perform(self._scheduler.start())
        while self._exit_code is None:
            self._perform(self._scheduler.handle(self._next_event()))
        exit_code = self._exit_code
        self._farewell(stopping=exit_code != 0)
        self._recorder.record("RunEnded", exit_code=exit_code, tuples_left=self._tuples_left)
        self._recorder.close()
        return exit_code

    def abort_missing(self, exit_code: int) -> None:
        """End the ranks that did not say goodbye, if any, and this one with them.

        They compute, or wait in MPI calls of their own, and would never leave.
        """
        if self._present:
            self._parent.abort(exit_code or FAILED)

    # -- events -------------------------------------------------------------------------------

    def _next_event(self) -> Event:
        while True:
            self._keep_house()  # also where messages come so fast that no wait ever sleeps
            if self._stop_asked is not None:
                return self._stop_asked
            # One wait for as long as nothing happens, so that its pauses grow.
            arrival = wait_for(self._poll, safe_point=self._keep_house)
            event = self._to_event(*arrival) if isinstance(arrival, tuple) else None
            if event is not None:
                return event

    def _poll(self) -> tuple[int, Report] | StopAsked | DeadlockFound | None:
        return self._mailbox.poll() or self._stop_asked

    def _to_event(self, rank: int, report: Report) -> Event | None:
        if isinstance(report, Recorded):
            self._recorder.record(report.event, **report.fields)
        elif isinstance(report, RankFinished):
            self._waits.note_end(rank, report.serial, report.account)
            if report.leftover_messages:
                plan = self._scheduler.plan_of(report.serial)
                self._warn(
                    plan.module,
                    plan.copy_index,
                    f"{report.leftover_messages} message(s) sent on its communicator "
                    f"to rank {plan.ranks.index(rank)} of the copy were never received",
                )
            return CopyRankFinished(report.serial, rank, report.returned)
        elif isinstance(report, Waiting):
            self._note_wait(rank, report)
        elif isinstance(report, RankFailed):
            self._waits.note_end(rank, report.serial, report.account)
            self._record_failure(rank, report)
            return CopyRankFailed(report.serial, rank)
        elif isinstance(report, Goodbye):
            self._present.discard(rank)
            self._tuples_left += report.tuples_left
        return None

    def _record_failure(self, rank: int, report: RankFailed) -> None:
        plan = self._scheduler.plan_of(report.serial)
        record = self._recorder.record(
            "ModuleFailed",
            group=plan.group,
            module=plan.module,
            copy=plan.copy_index,
            rank=rank,
            copy_rank=plan.ranks.index(rank),
            host=report.host,
            error=report.error,
            detail=report.detail,
        )
        self._recorder.sync()
        self._announce(record)

    def _note_wait(self, rank: int, report: Waiting) -> None:
        plan = self._scheduler.plan_of(report.serial)
        self._waits.note(rank, plan, report, time.monotonic())
        if report.what.startswith("tput"):
            text = f"{report.what} waits for room: the tuple server is full"
            self._warn(plan.module, plan.copy_index, text)

    def _look_for_deadlock(self) -> DeadlockFound | None:
        """Say so if every module waits and the servers, asked twice, confirm it."""
        running = self._scheduler.running_ranks
        if not self._waits.all_wait(running):
            self._suspected = False
            return None
        surveys = self._survey()
        if not self._waits.is_deadlock(running, surveys):
            self._suspected = False
            return None
        if not self._suspected:  # the next round of housekeeping asks again
            self._suspected = True
            return None
        explanation = self._waits.explain(
            running,
            surveys,
            ended=self._ended,
            groups_to_come=self._scheduler.groups_to_come,
            now_s=time.monotonic(),
        )
        record = self._recorder.record("DeadlockFound", explanation=explanation)
        self._recorder.sync()
        self._announce(record)
        return DeadlockFound(explanation)

    def _survey(self) -> list[dict[str, Any]]:
        """Ask every tuple server what it holds."""
        if self._survey_client is None:
            from diel.tuples.client import TupleClient
            from diel.tuples.transport import MpiTransport

            transport = MpiTransport(self._parent.comm, self._server_ranks, lambda: None)
            self._survey_client = TupleClient(transport)
        return [self._survey_client.survey(server) for server in range(len(self._server_ranks))]

    def _warn(self, module: str, copy_index: int, text: str) -> None:
        self._recorder.record(
            "MessageLogged", module=module, copy=copy_index, level="WARNING", text=text
        )

    def _keep_house(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_housekeeping_s:
            self._next_housekeeping_s = now_s + _HOUSEKEEPING_EVERY_S
            self._housekeeping()
            if self._recorder.directory.stop_requested():
                self._stop_asked = StopAsked("a stop was asked for")
            elif self._exit_code is None and self._stop_asked is None:
                self._stop_asked = self._look_for_deadlock()

    # -- instructions -------------------------------------------------------------------------

    def _perform(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, StartGroup):
                self._start_group(instruction)
            elif isinstance(instruction, NoteCopyFinished):
                plan = instruction.plan
                self._ended.append(f"{plan.module}.{plan.copy_index}")
                self._recorder.record(
                    "CopyFinished",
                    group=plan.group,
                    module=plan.module,
                    copy=plan.copy_index,
                    returned=instruction.returned,
                )
            elif isinstance(instruction, NoteGroupFinished):
                self._recorder.record("GroupFinished", group=instruction.group)
            elif isinstance(instruction, StopRun):
                self._stop_run(instruction)
            elif isinstance(instruction, EndRun):
                self._exit_code = 0

    def _start_group(self, instruction: StartGroup) -> None:
        group = self._groups[instruction.group]
        copies_of = {module.module: module.copies for module in group.modules}
        self._recorder.record(
            "GroupStarted",
            group=group.name,
            copies=copies_of,
            placement={
                f"{plan.module}.{plan.copy_index}": list(plan.ranks) for plan in instruction.copies
            },
        )
        roster = roster_of(group.name, instruction.copies, self._specs)
        for plan in instruction.copies:
            order = RunCopy(plan, self._specs[plan.module], copies_of, roster)
            for rank in plan.ranks:
                self._mailbox.send(order, rank)

    def _stop_run(self, instruction: StopRun) -> None:
        self._recorder.record("StopOrdered", reason=instruction.reason)
        self._exit_code = FAILED if instruction.is_failure else STOPPED_BY_USER
        for rank in self._pool:
            self._stops.send(Stop(instruction.reason), rank)

    # -- the end ------------------------------------------------------------------------------

    def _farewell(self, *, stopping: bool) -> None:
        """Let every rank go, the servers last, and wait until they say goodbye."""
        if not stopping:
            for rank in self._pool:
                self._mailbox.send(Leave(), rank)
        deadline_s = time.monotonic() + _FAREWELL_TIMEOUT_S
        self._await_goodbyes(self._pool, deadline_s)
        for rank in self._server_ranks:
            self._mailbox.send(Leave(), rank)
        self._await_goodbyes(self._server_ranks, max(deadline_s, time.monotonic() + 1.0))
        if self._present:
            self._recorder.record("RanksAborted", ranks=sorted(self._present))

    def _await_goodbyes(self, ranks: Sequence[int], deadline_s: float) -> None:
        while self._present.intersection(ranks):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            arrival = self._mailbox.wait(timeout_s=left_s)
            if arrival is None:
                continue
            rank, report = arrival
            if not isinstance(report, (RankFailed, RankFinished, RankStopped)):
                self._to_event(rank, report)
