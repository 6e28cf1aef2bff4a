"""The loop of rank 0: events to the scheduler, its instructions to the ranks.

Decides nothing: what is to be done is the scheduler's word, how it is written the recorder's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from diel.comm import tags
from diel.comm.mailbox import Mailbox
from diel.comm.waiting import wait_for
from diel.errors import CheckpointError, TupleError
from diel.executive import messages
from diel.executive.checkpoints import Checkpoints
from diel.executive.deadlock import WaitWatch
from diel.executive.events import (
    EndRun,
    Event,
    Instruction,
    LookForTag,
    StopAsked,
    StopRun,
    TagLooked,
)
from diel.executive.heartbeats import Heartbeats
from diel.executive.listener import Listener, StatusWriter, TimeTable
from diel.executive.lost_ranks import LostRanks, ServerLost
from diel.executive.orders import Orders
from diel.executive.outside import OutsideSocket
from diel.executive.plans import GroupPlan
from diel.executive.scheduler import Scheduler
from diel.exit_codes import FAILED
from diel.run.directory import LOST_OR_ENDED
from diel.run.fields import Record
from diel.run.records import (
    CopyFinished,
    CopyGivenUp,
    DeadlockFound,
    Failure,
    Finished,
    GroupFinished,
    JournalLost,
    MessageLogged,
    ModuleFailed,
    RanksAborted,
    RanksLost,
    RunEnded,
    RunStarted,
)

if TYPE_CHECKING:
    from diel.comm.parent import Parent
    from diel.executive.messages import Report, Welcome
    from diel.executive.placement.assignment import RankAssignment
    from diel.run.recorder import Recorder
    from diel.run.resuming import Resumption
    from diel.tuples.client import TupleClient

_HOUSEKEEPING_EVERY_S = 0.2
_LOOKS_FOR_LOSS_EVERY_S = 1.0
_FAREWELL_TIMEOUT_S = 5.0


class Driver:
    """Runs a planned workflow on the ranks of a parent communicator.

    Parameters
    ----------
    parent : Parent
    recorder : Recorder
    groups : sequence of GroupPlan
    assignment : RankAssignment
        Which ranks a copy takes, and which GPUs a rank has.
    server_ranks : sequence of int
    tail_ranks : sequence of int
        For each of these its twin; empty if there are none.
    pool : sequence of int
    heartbeat_timeout_s : float
        How long a rank or a host may be silent.
    announce : callable
        Told the record of the failure that is the root cause, before any rank leaves.
    housekeeping : callable
        Called a few times a second.
    resumption : Resumption, optional
        Where an earlier run of the same workflow stood at its last checkpoint.
    checkpoint_every_s : float, optional
        How often to save a checkpoint while groups run.
    survives_loss : bool, optional
        Whether the run may go on without ranks that have died.
    """

    def __init__(
        self,
        parent: Parent,
        recorder: Recorder,
        *,
        groups: Sequence[GroupPlan],
        assignment: RankAssignment,
        server_ranks: Sequence[int],
        tail_ranks: Sequence[int] = (),
        pool: Sequence[int],
        heartbeat_timeout_s: float,
        announce: Callable[[Failure], None],
        housekeeping: Callable[[], object],
        resumption: Resumption | None = None,
        checkpoint_every_s: float | None = None,
        survives_loss: bool = False,
    ) -> None:
        self._parent = parent
        self._recorder = recorder
        self._server_ranks = tuple(server_ranks)
        self._tail_ranks = tuple(tail_ranks)
        twins = tuple(zip(server_ranks, tail_ranks, strict=True)) if tail_ranks else ()
        self._pool = tuple(pool)
        self._announce = announce
        self._housekeeping = housekeeping
        self._resumption = resumption
        self._finished_before: dict[str, Finished] = (
            {} if resumption is None else resumption.finished
        )
        self._assignment = assignment
        self._scheduler = Scheduler(
            groups,
            pool,
            self._finished_before,
            choose=assignment.choose,
            twins=twins,
        )
        self._mailbox: Mailbox[Report] = Mailbox(
            parent.comm, sends=tags.EXECUTIVE_TO_WORKER, receives=tags.WORKER_TO_EXECUTIVE
        )
        self._stops: Mailbox[Any] = Mailbox(
            parent.comm, sends=tags.EXECUTIVE_TO_ALL_STOP, receives=tags.WORKER_TO_EXECUTIVE
        )
        self._leaves: Mailbox[Any] = Mailbox(
            parent.comm,
            sends=tags.EXECUTIVE_TO_WORKER_LEAVE_COPY,
            receives=tags.WORKER_TO_EXECUTIVE,
        )
        self._heartbeats = Heartbeats(
            parent, heartbeat_timeout_s, self._warn, is_for_all=survives_loss
        )
        self._lost = LostRanks(
            parent,
            self._heartbeats,
            () if tail_ranks else server_ranks,
            forget=self._forget_ranks,
            survives_loss=survives_loss,
        )
        self._exit_code: int | None = None
        self._next_housekeeping_s = 0.0
        self._next_look_for_loss_s = 0.0
        self._noticed: deque[Event] = deque()  # what no rank has reported
        self._waits = WaitWatch()
        self._status = StatusWriter(recorder.directory, self._waits)
        self._time_table = TimeTable(
            self._server_ranks, self._pool, lambda rank: parent.hosts_and_gpus[rank][0]
        )
        self._orders = Orders(
            self._mailbox,
            self._leaves,
            groups=groups,
            assignment=assignment,
            waits=self._waits,
            time_table=self._time_table,
        )
        number = 0 if resumption is None else resumption.number
        states = () if resumption is None else resumption.states
        self._checkpoints = Checkpoints(
            recorder, self._tuple_client, number, states, every_s=checkpoint_every_s
        )
        self._listener = Listener(
            recorder,
            (*self._server_ranks, *self._pool),
            plan_of=self._scheduler.plan_of,
            modules=self._orders.modules,
            waits=self._waits,
            status=self._status,
            time_table=self._time_table,
            state_saved=self._checkpoints.note_state,
        )
        self._ended: dict[str, None] = {}  # copies, in order
        self._tuples: TupleClient | None = None
        self._outside = OutsideSocket(recorder.directory, self._tuple_client, self._warn)
        self._has_company = False  # whether somebody outside was connected when this wait began
        self._performers: dict[type, Callable[[Any], None]] = {
            LookForTag: self._look_for_tag,
            StopRun: self._stop_run,
            EndRun: self._end_run,
        }

    def run(self, welcome: Welcome, started: RunStarted, warning: str = "") -> int:
        """Run the workflow to its end.

        Parameters
        ----------
        welcome : Welcome
        started : RunStarted
            The record to begin with, but for what is finished before.
        warning : str, optional
            What is to be said then.

        Returns
        -------
        int
            The exit code, as `diel.exit_codes` lists them.

        Raises
        ------
        CheckpointError
            If the tuples of the run that is resumed cannot be had; nothing has started.
        OSError
            If nothing can be recorded any more, as where the disk is full.
        """
        self._recorder.record(started.replace(finished=self._finished_before))
        if warning:
            self._warn(warning)
        welcome = welcome.replace(heartbeat=self._heartbeats.address)
        for rank in self._server_ranks:
            self._mailbox.send(welcome, rank)
        self._orders.specs = welcome.specs
        try:
            self._restore_tuples()
            for gpus, ranks in self._pool_by_gpus().items():
                self._mailbox.send_to_all(welcome.replace(gpus=gpus), ranks)
            self._perform(self._scheduler.start())
        except (ServerLost, TupleError) as error:
            self._perform(self._scheduler.handle(self._lost.loss_behind(error)))
        while self._exit_code is None:
            try:
                self._perform(self._scheduler.handle(self._next_event()))
            except (ServerLost, TupleError) as error:
                self._perform(self._scheduler.handle(self._lost.loss_behind(error)))
            except OSError:  # such as that of a folder that somebody has removed
                lost = self._look_for_loss()
                if lost is None:
                    raise
                self._perform(self._scheduler.handle(lost))
        return self._conclude(self._exit_code)

    def _restore_tuples(self) -> None:
        if self._resumption is None or self._resumption.checkpoint is None:
            return
        try:
            self._tuple_client().restore(self._resumption.checkpoint)
        except OSError as error:
            raise CheckpointError(str(error)) from error

    def _pool_by_gpus(self) -> dict[tuple[str, ...] | None, list[int]]:
        ranks_with: dict[tuple[str, ...] | None, list[int]] = {}
        for rank in self._pool:
            ranks_with.setdefault(self._assignment.gpus_of(rank), []).append(rank)
        return ranks_with

    def abort_missing(self, exit_code: int) -> None:
        """End the ranks that did not say goodbye, if any, and this one with them.

        They compute, or wait in MPI calls of their own, and would never leave.
        """
        if self._listener.present:
            self._parent.abort(exit_code or FAILED)

    # -- events -------------------------------------------------------------------------------

    def _next_event(self) -> Event:
        while True:
            self._do_housekeeping()  # also where messages come so fast that no wait ever sleeps
            if (died := self._lost.look_for_deaths()) is not None:
                return died
            if self._noticed:
                return self._noticed.popleft()
            # One wait for as long as nothing happens, so that its pauses grow.
            self._has_company = self._outside.is_connected
            arrival = wait_for(
                self._poll,
                safe_point=self._do_housekeeping,
                wakeup=self._parent.wakeup,
                wakes=(self._outside,) if self._has_company else (),
            )
            event = self._hear(*arrival) if isinstance(arrival, tuple) else None
            if event is not None:
                return event

    def _hear(self, rank: int, report: Report) -> Event | None:
        if rank in self._lost.dead and not isinstance(report, messages.Recorded):
            return None  # what it was doing is given up
        event = self._listener.hear(rank, report)
        if not isinstance(event, messages.RankFailed):
            return event
        # Perhaps since the folder for its log is gone, or another rank, which is the cause then.
        self._parent.dead_ranks.look()
        if (died := self._lost.look_for_deaths()) is not None:
            self._noticed.append(event)
            return died
        return self._look_for_loss() or event

    def _hear_all(self) -> None:
        """Take in what has come, and leave for later what the scheduler has to be told."""
        while (arrival := self._mailbox.poll()) is not None:
            if (event := self._hear(*arrival)) is not None:
                self._noticed.append(event)

    def _poll(self) -> tuple[int, Report] | bool | None:
        if self._outside.is_connected:
            self._outside.serve()
        is_other = self._has_company != self._outside.is_connected  # then it waits otherwise
        arrival = self._mailbox.poll()
        return arrival or self._has_news() or is_other or None

    def _has_news(self) -> bool:
        return bool(self._noticed) or self._lost.has_news

    def _look_for_deadlock(self) -> DeadlockFound | None:
        """Say so if every module waits and the servers confirm it."""
        running = self._scheduler.running_ranks
        surveys = self._waits.search(running, self._survey)
        if surveys is None:
            return None
        explanation = self._waits.explain(
            running,
            surveys,
            ended=self._ended,
            groups_to_come=self._scheduler.groups_to_come,
            now_s=time.monotonic(),
        )
        return DeadlockFound(explanation=explanation)

    def _look_for_loss(self) -> JournalLost | None:
        """Say so if the journal or the run directory is no longer there."""
        loss = self._recorder.loss()
        if not loss:
            return None
        return JournalLost(
            explanation=f"{loss} while the run went on, so no more of it can be recorded, and it "
            "was ended. Start the workflow again"
        )

    def _survey(self) -> list[dict[str, Any]]:
        """Ask every tuple server what it holds."""
        return [self._tuple_client().survey(server) for server in range(len(self._server_ranks))]

    def _tuple_client(self) -> TupleClient:
        if self._tuples is None:
            from diel.tuples.client import TupleClient
            from diel.tuples.replicated_transport import open_transport

            transport = open_transport(
                self._parent.comm,
                self._server_ranks,
                self._tail_ranks,
                self._lost.raise_if_server_is_lost,
            )
            self._tuples = TupleClient(transport)
        return self._tuples

    def _forget_ranks(self, dead: set[int]) -> None:
        """Let nobody wait any more for ranks that have died."""
        self._listener.present -= dead
        for rank in dead:
            self._waits.forget(rank)
        order = messages.ForgetRanks(tuple(sorted(dead)))
        for server in self._listener.present.intersection(self._server_ranks):
            self._mailbox.send(order, server)
        if self._tail_ranks and not dead.isdisjoint(self._server_ranks):
            self._leaves.send_to_all(order, self._listener.present.intersection(self._pool))

    def _do_housekeeping(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_housekeeping_s:
            return
        self._next_housekeeping_s = now_s + _HOUSEKEEPING_EVERY_S
        if self._server_ranks:
            self._outside.serve()
        self._housekeeping()
        self._status.write_if_due(now_s)
        if self._exit_code is not None or self._noticed:
            return
        if (silence := self._lost.look_for_silence(now_s)) is not None:
            self._noticed.append(silence)
            return
        if now_s >= self._next_look_for_loss_s:
            self._next_look_for_loss_s = now_s + _LOOKS_FOR_LOSS_EVERY_S
            if (lost := self._look_for_loss()) is not None:
                self._noticed.append(lost)
                return
        directory = self._recorder.directory
        if directory.stop_requested():
            why, exit_code = directory.why_stop(), directory.exit_code_of_stop()
            # Not where a rank was lost: tuples may be lost with it.
            if LOST_OR_ENDED not in why and self._checkpoints.is_wanted_before_end():
                self._save_checkpoint()
            self._noticed.append(StopAsked(why, exit_code))
            return
        self._noticed.extend(self._orders.overdue(now_s))
        if self._checkpoints.is_due_by_time():
            self._save_checkpoint()
        # Somebody outside of the run may put what all wait for.
        if self._noticed or self._outside.is_connected:
            return
        if (deadlock := self._look_for_deadlock()) is not None:
            self._noticed.append(deadlock)

    # -- instructions -------------------------------------------------------------------------

    def _perform(self, instructions: Sequence[Instruction]) -> None:
        # Orders first: ranks work while it is written down why. A crash in between only means that
        # a resumed run does something again. But a checkpoint is of the moment before the orders.
        kinds = {type(instruction) for instruction in instructions}
        if GroupFinished in kinds and EndRun not in kinds and self._checkpoints.is_due():
            self._write_down(instructions)
            self._save_checkpoint()
            self._orders.give(instructions)
        else:
            self._orders.give(instructions)
            self._write_down(instructions)

    def _write_down(self, instructions: Sequence[Instruction]) -> None:
        with self._recorder.batch():
            for instruction in instructions:
                if isinstance(instruction, Record):
                    self._write(instruction)
                elif type(instruction) in self._performers:
                    self._performers[type(instruction)](instruction)

    def _write(self, record: Record) -> None:
        """Write a record to the journal, and do what follows from it here."""
        record = self._recorder.record(record)
        if isinstance(record, (CopyFinished, ModuleFailed)):
            self._orders.note_end(record)
        if isinstance(record, (CopyFinished, CopyGivenUp)):
            self._ended[record.name] = None
            self._status.forget_progress(record.name)
        elif isinstance(record, GroupFinished):
            self._checkpoints.forget_states(record.group)
        elif isinstance(record, Failure):
            self._recorder.sync()
            if not isinstance(record, (ModuleFailed, RanksLost)) or record.stops_run:
                self._announce(record)

    def _look_for_tag(self, instruction: LookForTag) -> None:
        is_there = self._tuple_client().count(instruction.tag) > 0
        self._noticed.append(TagLooked(instruction.group, instruction.iteration, is_there))

    def _save_checkpoint(self) -> None:
        try:
            # What was recorded before the tuples were copied has to count where these do.
            self._checkpoints.save(self._hear_all)
        except OSError as error:
            self._warn(f"no checkpoint could be written, the last one stays: {error}")

    def _warn(self, text: str) -> None:
        self._recorder.record(MessageLogged(module="executive", copy=0, level="WARNING", text=text))

    def _stop_run(self, instruction: StopRun) -> None:
        self._exit_code = instruction.exit_code
        self._stops.send_to_all(messages.Stop(instruction.reason, self._exit_code), self._pool)

    def _end_run(self, _: EndRun) -> None:
        self._exit_code = 0

    # -- the end ------------------------------------------------------------------------------

    def _conclude(self, exit_code: int) -> int:
        """Let every rank go and write the last records; return the exit code of the run."""
        self._outside.close()
        self._farewell(stopping=exit_code != 0)
        self._heartbeats.close(kills=bool(self._listener.present))
        if exit_code == 0 and (lost := self._look_for_loss()) is not None:
            self._write(lost)
            exit_code = FAILED
        self._recorder.record(self._time_table.record())
        restarts = 0 if self._resumption is None else self._resumption.restart
        self._recorder.record(
            RunEnded(exit_code=exit_code, tuples_left=self._listener.tuples_left, restarts=restarts)
        )
        self._recorder.close()
        return exit_code

    def _farewell(self, *, stopping: bool) -> None:
        """Let every rank go, the servers last, and wait until they say goodbye."""
        if not stopping:
            for rank in self._pool:
                self._mailbox.send(self._leave(), rank)
        deadline_s = time.monotonic() + _FAREWELL_TIMEOUT_S
        self._await_goodbyes(self._pool, deadline_s)
        for rank in self._server_ranks:
            self._mailbox.send(self._leave(), rank)
        self._await_goodbyes(self._server_ranks, max(deadline_s, time.monotonic() + 1.0))
        if self._listener.present:
            self._recorder.record(RanksAborted(ranks=sorted(self._listener.present)))

    def _leave(self) -> messages.Leave:
        return messages.Leave(self._exit_code or 0, tuple(sorted(self._lost.dead)))

    def _await_goodbyes(self, ranks: Sequence[int], deadline_s: float) -> None:
        while (self._listener.present - self._lost.silent).intersection(ranks):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            arrival = self._mailbox.wait(timeout_s=left_s)
            if arrival is not None:
                self._listener.hear_late(*arrival)
