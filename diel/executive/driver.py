"""The loop of rank 0: events to the scheduler, its instructions to the ranks.

The scheduler decides what is to be done, the recorder how it is written to the journal.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from diel.comm import tags
from diel.comm.mailbox import Mailbox
from diel.comm.waiting import wait_for
from diel.errors import CheckpointError, LaunchError, PayloadError, TupleError, TupleTimeout
from diel.executive import messages
from diel.executive.checkpoints import Checkpoints
from diel.executive.deadlock import WaitWatch
from diel.executive.events import (
    EndRun,
    Event,
    Instruction,
    LookForTag,
    ReadTuples,
    StartGroup,
    StopAsked,
    StopRun,
    TagLooked,
    TuplesRead,
)
from diel.executive.heartbeats import Heartbeats, LostRanks, ServerLost
from diel.executive.listener import Listener, StatusWriter, TimeTable
from diel.executive.orders import Orders
from diel.executive.outside_socket import OutsideSocket
from diel.executive.scheduler import Scheduler
from diel.exit_codes import FAILED
from diel.run.directory import LOST_OR_ENDED
from diel.run.fields import Record
from diel.run.records import (
    CopyFinished,
    CopyGivenUp,
    DeadlockFound,
    Failure,
    GroupFinished,
    JournalLost,
    MessageLogged,
    ModuleFailed,
    RanksAborted,
    RanksLost,
    RunEnded,
    RunStarted,
    TasksFailed,
)
from diel.run.tasks import keep_done

if TYPE_CHECKING:
    from diel.comm.cores import Topology
    from diel.comm.parent import Parent
    from diel.executive.binding import Binding
    from diel.executive.messages import Report
    from diel.executive.placement.assignment import RankAssignment
    from diel.executive.plans import CopyPlan, RunPlan
    from diel.loading.module_spec import ModuleSpec
    from diel.run.element_tables import ElementTables
    from diel.run.journal import Recorder
    from diel.run.resumption import Resumption
    from diel.tuples.client import TupleClient

_HOUSEKEEPING_EVERY_S = 0.2
_KILLED_BY_STOP = r"was killed by SIG(TERM|INT|HUP)$"
_LOOKS_FOR_LOSS_EVERY_S = 1.0
_FAREWELL_TIMEOUT_S = 5.0  # of a run that stops: ranks may be in a C call of a module
_FAREWELL_OF_IDLE_RANKS_TIMEOUT_S = 60.0  # of one that has finished: the machine may be busy


class RunObserver(Protocol):
    """Shows a run to a person while rank 0 drives it; it shows nothing by itself."""

    def refresh(self) -> object:
        """Show new events; called a few times a second."""
        return None

    def announce(self, failure: Failure) -> object:
        """Show the root cause of a failure at once, before any rank leaves."""
        return None

    def conclude(self) -> object:
        """Show how the run ended; the journal is complete."""
        return None


class Driver:
    """Runs a planned workflow on the ranks of a parent communicator.

    The plan is complete: with the twins of servers, and the copies for which there are GPUs. A
    resumed run begins at the last checkpoint of an earlier start. `binding` looks whether the cores
    of ranks suffice, if some are bound to cores.
    """

    def __init__(
        self,
        parent: Parent,
        recorder: Recorder,
        plan: RunPlan,
        assignment: RankAssignment,
        observer: RunObserver,
        resumption: Resumption,
        binding: Binding | None = None,
    ) -> None:
        self._parent = parent
        self._plan = plan
        self._binding = binding
        self._recorder = recorder
        self._server_ranks, self._pool = plan.server_ranks, plan.pool
        self._observer = observer
        self._resumption = resumption
        self._assignment = assignment
        twins = zip(plan.server_ranks, plan.tail_ranks, strict=True) if plan.tail_ranks else ()
        self._scheduler = Scheduler(
            plan.groups,
            self._pool,
            resumption.finished,
            choose=assignment.choose,
            resources=plan.resources,
            twins=tuple(twins),
            outcomes=resumption.outcomes,
        )

        def mailbox(sends: int) -> Mailbox[Any]:
            return Mailbox(parent.comm, sends=sends, receives=tags.WORKER_TO_EXECUTIVE)

        self._mailbox: Mailbox[Report] = mailbox(tags.EXECUTIVE_TO_WORKER)
        self._stops = mailbox(tags.EXECUTIVE_TO_ALL_STOP)
        self._leaves = mailbox(tags.EXECUTIVE_TO_WORKER_LEAVE_COPY)
        self._heartbeats = Heartbeats(
            parent, plan.heartbeat_timeout_s, self._warn, is_for_all=plan.survives_loss
        )
        self._lost = LostRanks(parent, self._heartbeats, plan, self._forget_ranks)
        self._exit_code: int | None = None
        self._next_housekeeping_s = 0.0
        self._next_look_for_loss_s = 0.0
        self._pending_events: deque[Event] = deque()  # still to be handled by the scheduler
        self._topologies: dict[str, Topology] = {}  # by host, where modules are pinned
        self._waits = WaitWatch()
        self._status = StatusWriter(recorder.directory, self._waits)
        self._time_table = TimeTable(
            self._server_ranks, self._pool, lambda rank: parent.hosts_and_gpus[rank][0]
        )
        self._orders = Orders(
            self._mailbox,
            self._leaves,
            plan=plan,
            assignment=assignment,
            waits=self._waits,
            time_table=self._time_table,
            note_copy=None if binding is None else self._warn_of_cores,
            warn=self._warn_of_copy,
        )
        self._checkpoints = Checkpoints(
            recorder,
            self._tuple_client,
            resumption.number,
            resumption.states,
            every_s=plan.checkpoint_every_s,
            pinned=resumption.pinned,
        )
        self._listener = Listener(
            recorder,
            plan,
            plan_of=self._scheduler.plan_of,
            waits=self._waits,
            status=self._status,
            time_table=self._time_table,
            state_saved=self._checkpoints.note_state,
        )
        self._tables: ElementTables | None = None
        self._arrays = {plan.name for plan in plan.groups if plan.elements is not None}
        self._ended: dict[str, None] = {}  # copies, in order
        self._tuples: TupleClient | None = None
        self._outside = OutsideSocket(recorder.directory, self._tuple_client, self._warn)
        self._was_outside_connected = False  # when the present wait began
        self._performers: dict[type, Callable[[Any], None]] = {
            LookForTag: self._look_for_tag,
            ReadTuples: self._read_tuples,
            StopRun: self._stop_run,
            EndRun: self._end_run,
        }

    def run(self, started: RunStarted, warning: str = "", *, traces_all: bool = False) -> int:
        """Run the workflow to its end, and return the exit code, as `diel.exit_codes` lists them.

        `started` is the first record; the text of a warning is recorded after it. A CheckpointError
        if the tuples of a resumed run cannot be restored; no module has started. An OSError if
        nothing can be recorded any more, as where the disk is full.
        """
        self._recorder.record(started)
        if warning:
            self._warn(warning)
        welcome = messages.Welcome(
            self._plan,
            str(self._recorder.directory.path),
            session=os.urandom(4).hex(),
            traces_all=traces_all,
            states=tuple(self._resumption.states),
            heartbeat=self._heartbeats.address,
        )
        for rank in self._server_ranks:
            self._mailbox.send(welcome, rank)
        if self._binding is not None and (shared := self._binding.shared(self._pool)):
            self._warn(shared)
        try:
            self._restore_tuples()
            for gpus, ranks in self._pool_by_gpus().items():
                self._mailbox.send_to_all(welcome.replace(gpus=gpus), ranks)
            if self._plan.pins:
                self._await_cores()
            if self._exit_code is None:
                first = self._scheduler.start()
                # Whether a group runs whose condition is to be judged is not known yet.
                goes_on = StartGroup, ReadTuples
                begun = {(i.group, i.iteration) for i in first if isinstance(i, goes_on)}
                keep_done(self._recorder.directory, begun.union(self._scheduler.ready))
                if self._arrays:
                    self._write_tables_of_earlier()
                self._perform(first)
        except (ServerLost, TupleError) as error:
            self._perform(self._scheduler.handle(self._lost.event_of_loss(error)))
        while self._exit_code is None:
            try:
                self._perform(self._scheduler.handle(self._next_event()))
            except (ServerLost, TupleError) as error:
                self._perform(self._scheduler.handle(self._lost.event_of_loss(error)))
            except OSError:  # for instance, the run directory was removed
                lost = self._look_for_loss()
                if lost is None:
                    raise
                self._perform(self._scheduler.handle(lost))
        return self._conclude(self._exit_code)

    def _warn_of_cores(self, plan: CopyPlan, spec: ModuleSpec) -> None:
        assert self._binding is not None
        if text := self._binding.too_few_for(plan, spec):
            self._warn_of_copy(plan, text)

    def _warn_of_copy(self, plan: CopyPlan, text: str) -> None:
        self._recorder.record(
            MessageLogged(module=plan.module, copy=plan.copy_index, level="WARNING", text=text)
        )

    def _await_cores(self) -> None:
        """Wait until each host has reported its cores; then these can be given to ranks.

        A LaunchError if modules with ``pin`` need more cores than there are.
        """
        from diel.executive.placement.pinning import Pins  # few workflows pin ranks

        hosts = [host for host, _ in self._parent.hosts_and_gpus]
        first = {hosts[rank]: rank for rank in sorted(self._pool, reverse=True)}
        while self._exit_code is None and not first.keys() <= self._topologies.keys():
            self._do_housekeeping()
            if (died := self._lost.look_for_deaths()) is not None:
                self._pending_events.append(died)
                if not self._lost.dead.isdisjoint(first.values()):
                    raise LaunchError("a rank died before it had said which cores its host has")
            while self._pending_events:
                self._perform(self._scheduler.handle(self._pending_events.popleft()))
            arrival = self._mailbox.wait(timeout_s=_HOUSEKEEPING_EVERY_S)
            if arrival is not None and (event := self._hear(*arrival)) is not None:
                self._pending_events.append(event)
        if self._exit_code is not None:
            return
        pins = Pins(hosts, self._topologies, self._parent.bound_cores, self._plan.specs)
        pins.check(self._plan.groups, self._pool)
        self._orders.pins = pins

    def _restore_tuples(self) -> None:
        if self._resumption.checkpoint is None:
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
        """Abort MPI if some rank has not said goodbye: this ends all ranks, rank 0 included.

        Such ranks compute, or wait in MPI calls of their own, and would never leave.
        """
        if self._listener.present:
            self._parent.abort(exit_code or FAILED)

    # -- events -------------------------------------------------------------------------------

    def _next_event(self) -> Event:
        while True:
            self._do_housekeeping()  # also while messages come so fast that no wait ever sleeps
            if (died := self._lost.look_for_deaths()) is not None:
                return died
            if self._pending_events:
                return self._pending_events.popleft()
            # One wait for as long as nothing happens, so that its pauses grow.
            self._was_outside_connected = self._outside.is_connected
            arrival = wait_for(
                self._poll,
                safe_point=self._do_housekeeping,
                wakeup=self._parent.wakeup,
                wakes=(self._outside,) if self._was_outside_connected else (),
            )
            event = self._hear(*arrival) if isinstance(arrival, tuple) else None
            if event is not None:
                return event

    def _hear(self, rank: int, report: Report) -> Event | None:
        if rank in self._lost.dead and not isinstance(report, messages.Recorded):
            return None  # its copy has been given up
        if isinstance(report, messages.CoresFound):
            self._topologies[self._parent.hosts_and_gpus[rank][0]] = report.topology
            return None
        event = self._listener.hear(rank, report)
        if not isinstance(event, messages.RankFailed):
            return event
        # The cause may be that the run directory is gone, or that another rank has died.
        self._parent.dead_ranks.look()
        if (died := self._lost.look_for_deaths()) is not None:
            self._pending_events.append(event)
            return died
        directory = self._recorder.directory
        if (
            self._exit_code is None
            and re.search(_KILLED_BY_STOP, event.error)
            and directory.is_lost_or_ended()
        ):  # the signal that ended this program has come to ranks too: it is no failure of its own
            self._pending_events.append(event)
            return StopAsked(directory.stop_reason(), directory.exit_code_of_stop())
        return self._look_for_loss() or event

    def _hear_all(self) -> None:
        """Process all reports that have arrived; queue the events that the scheduler handles."""
        while (arrival := self._mailbox.poll()) is not None:
            if (event := self._hear(*arrival)) is not None:
                self._pending_events.append(event)

    def _poll(self) -> tuple[int, Report] | bool | None:
        if self._was_outside_connected:
            self._outside.serve()
        return self._mailbox.poll() or self._has_news() or None

    def _has_news(self) -> bool:
        return (
            bool(self._pending_events)
            or self._lost.has_news
            # A connection decides what ends the wait's sleeps, so that a new wait has to begin.
            or self._outside.is_connected != self._was_outside_connected
        )

    def _look_for_deadlock(self) -> DeadlockFound | None:
        """Return a record if every module waits and the tuple servers confirm the deadlock."""
        running = self._scheduler.running_ranks
        surveys = self._waits.search(running, self._survey)
        if surveys is None:
            return None
        explanation = self._waits.explain(
            running,
            surveys,
            ended=self._ended,
            groups_to_come=self._scheduler.groups_to_come,
            skipped=self._scheduler.skipped_groups,
            now_s=time.monotonic(),
        )
        return DeadlockFound(explanation=explanation)

    def _look_for_loss(self) -> JournalLost | None:
        """Return a record if the journal or the run directory no longer exists."""
        loss = self._recorder.loss()
        if not loss:
            return None
        return JournalLost(
            explanation=f"{loss} while the run went on, so no more of it can be recorded, and it "
            "was ended. Start the workflow again"
        )

    def _survey(self) -> list[dict[str, Any]]:
        """Return what each tuple server holds: its tags, its waiting requests, its puts."""
        return [self._tuple_client().survey(server) for server in range(len(self._server_ranks))]

    def _tuple_client(self) -> TupleClient:
        if self._tuples is None:
            from diel.tuples.client import TupleClient
            from diel.tuples.mpi_transport import open_transport

            transport = open_transport(
                self._parent.comm,
                self._server_ranks,
                self._plan.tail_ranks,
                self._lost.raise_if_server_is_lost,
            )
            self._tuples = TupleClient(transport)
        return self._tuples

    def _forget_ranks(self, dead: set[int]) -> None:
        """End all waits for ranks that have died: at rank 0, the servers and the pool."""
        self._listener.present -= dead
        if self._orders.pins is not None:
            self._orders.pins.release(dead)
        for rank in dead:
            self._waits.forget(rank)
        order = messages.ForgetRanks(tuple(sorted(dead)))
        for server in self._listener.present.intersection(self._server_ranks):
            self._mailbox.send(order, server)
        if self._plan.tail_ranks and not dead.isdisjoint(self._server_ranks):
            self._leaves.send_to_all(order, self._listener.present.intersection(self._pool))

    def _do_housekeeping(self) -> None:
        now_s = time.monotonic()
        if now_s < self._next_housekeeping_s:
            return
        self._next_housekeeping_s = now_s + _HOUSEKEEPING_EVERY_S
        if self._server_ranks:
            self._outside.serve()
        self._observer.refresh()
        self._status.write_if_due(now_s)
        if self._exit_code is not None or self._pending_events:
            return
        if (silence := self._lost.look_for_silence(now_s)) is not None:
            self._pending_events.append(silence)
            return
        if now_s >= self._next_look_for_loss_s:
            self._next_look_for_loss_s = now_s + _LOOKS_FOR_LOSS_EVERY_S
            if (lost := self._look_for_loss()) is not None:
                self._pending_events.append(lost)
                return
        directory = self._recorder.directory
        if directory.stop_requested():
            why, exit_code = directory.stop_reason(), directory.exit_code_of_stop()
            # Not after a rank was lost: tuples may be lost with it.
            if LOST_OR_ENDED not in why and self._checkpoints.is_wanted_before_end():
                self._save_checkpoint()
            self._pending_events.append(StopAsked(why, exit_code))
            return
        self._pending_events.extend(self._orders.overdue(now_s))
        if self._checkpoints.is_due_by_time():
            self._save_checkpoint()
        # A process outside of the run may put the tuple that all wait for.
        if self._pending_events or self._outside.is_connected:
            return
        if (deadlock := self._look_for_deadlock()) is not None:
            self._pending_events.append(deadlock)

    # -- instructions -------------------------------------------------------------------------

    def _perform(self, instructions: Sequence[Instruction]) -> None:
        if not instructions:
            return
        # Orders first, so that ranks work while the records are written. After a crash in between,
        # a resumed run merely repeats work. A checkpoint, though, has to precede the orders.
        kinds = {type(instruction) for instruction in instructions}
        free = self._scheduler.free_ranks if self._plan.pins else ()
        if not kinds.isdisjoint((TasksFailed, GroupFinished)) and any(
            map(self._is_repeatable, instructions)
        ):
            self._checkpoints.note_failures()
        is_due = self._checkpoints.is_pin_due or (
            EndRun not in kinds and self._checkpoints.is_due()
        )
        arrays = self._ended_arrays(instructions) if self._arrays else []
        if (GroupFinished in kinds and is_due) or arrays:
            self._write_down(instructions)
            for group in arrays:  # before what comes after it, which may read it
                self._write_table(group)
            if is_due:
                self._save_checkpoint()
            self._orders.give(instructions, free)
        else:
            self._orders.give(instructions, free)
            self._write_down(instructions)

    def _is_repeatable(self, instruction: Instruction) -> bool:
        """Whether a group ends with failed tasks or elements, which a run can repeat."""
        if isinstance(instruction, TasksFailed):
            return instruction.is_repeatable
        return (
            isinstance(instruction, GroupFinished)
            and instruction.outcome == "failed"
            and instruction.group in self._arrays
        )

    def _ended_arrays(self, instructions: Sequence[Instruction]) -> list[str]:
        return [
            each.group
            for each in instructions
            if isinstance(each, GroupFinished) and each.group in self._arrays
        ]

    def _write_tables_of_earlier(self) -> None:
        """Write tables of groups that had ended when an earlier session was killed."""
        for group in self._tables_of_run().ended(self._arrays):
            self._write_table(group)

    def _write_table(self, group: str) -> None:
        try:
            self._tables_of_run().write(group)
        except OSError as error:
            self._warn(f"no table of the elements of {group} could be written: {error}")

    def _tables_of_run(self) -> ElementTables:
        from diel.run.element_tables import ElementTables  # few workflows have any

        self._tables = self._tables or ElementTables(self._recorder.directory)
        return self._tables

    def _write_down(self, instructions: Sequence[Instruction]) -> None:
        with self._recorder.batch():
            for instruction in instructions:
                if isinstance(instruction, Record):
                    self._write(instruction)
                elif type(instruction) in self._performers:
                    self._performers[type(instruction)](instruction)

    def _write(self, record: Record) -> None:
        """Write a record to the journal, and update alarms, status and checkpoints by it."""
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
                self._observer.announce(record)

    def _look_for_tag(self, instruction: LookForTag) -> None:
        is_there = self._tuple_client().count(instruction.tag) > 0
        self._pending_events.append(TagLooked(instruction.group, instruction.iteration, is_there))

    def _read_tuples(self, instruction: ReadTuples) -> None:
        values: dict[Any, Any] = {}
        error = ""
        for tag in instruction.tags:
            try:
                values[tag] = self._tuple_client().tread_nowait(tag)
            except TupleTimeout:
                values[tag] = None
            except PayloadError as unreadable:  # of a class that this rank cannot import
                error = error or str(unreadable)
        read = TuplesRead(instruction.group, instruction.iteration, values, error)
        self._pending_events.append(read)

    def _save_checkpoint(self) -> None:
        try:
            # Reports sent before the tuples were copied belong to the same checkpoint.
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
        """Dismiss every rank and write the last records; return the exit code of the run."""
        self._outside.close()
        self._farewell(stopping=exit_code != 0)
        self._heartbeats.close(kills=bool(self._listener.present))
        if exit_code == 0 and (lost := self._look_for_loss()) is not None:
            self._write(lost)
            exit_code = FAILED
        self._recorder.record(self._time_table.record())
        self._recorder.record(
            RunEnded(
                exit_code=exit_code,
                tuples_left=self._listener.tuples_left,
                restarts=self._resumption.restart,
            )
        )
        self._recorder.close()
        return exit_code

    def _farewell(self, *, stopping: bool) -> None:
        """Dismiss every rank, the servers last, and wait for their goodbyes."""
        if not stopping:
            for rank in self._pool:
                self._mailbox.send(self._leave(), rank)
        timeout_s = _FAREWELL_TIMEOUT_S if stopping else _FAREWELL_OF_IDLE_RANKS_TIMEOUT_S
        deadline_s = time.monotonic() + timeout_s
        self._await_goodbyes(self._pool, deadline_s)
        for rank in self._server_ranks:
            self._mailbox.send(self._leave(), rank)
        self._await_goodbyes(self._server_ranks, max(deadline_s, time.monotonic() + 1.0))
        if self._listener.present:
            self._recorder.record(RanksAborted(ranks=sorted(self._listener.present)))

    def _leave(self) -> messages.Leave:
        return messages.Leave(self._exit_code or 0, tuple(sorted(self._lost.dead)))

    def _await_goodbyes(self, ranks: Sequence[int], deadline_s: float) -> None:
        dead = self._parent.dead_ranks
        while (self._listener.present - self._lost.silent - dead.ranks).intersection(ranks):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            arrival = self._mailbox.wait(timeout_s=min(left_s, _LOOKS_FOR_LOSS_EVERY_S))
            if arrival is not None:
                self._listener.hear_late(*arrival)
            else:
                dead.look()
