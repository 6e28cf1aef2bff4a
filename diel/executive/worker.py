"""The loop of every rank of the pool: receive an order, perform it, report."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from diel.comm import tags
from diel.comm.cores import bound_to, read_topology
from diel.comm.devices import VISIBLE_GPUS
from diel.comm.direct import MpiPort
from diel.comm.mailbox import Mailbox
from diel.comm.meter import Meter
from diel.comm.mpi import finalize_refused
from diel.compiled.loaded import load_code
from diel.coupling.address import Address
from diel.coupling.channel import Channel
from diel.coupling.messages import MessageCounts
from diel.errors import CopyStopped, RunStopped, TupleError
from diel.executive.leftovers import ChildProcesses
from diel.executive.messages import (
    CoresFound,
    ForgetRanks,
    Goodbye,
    Leave,
    LeaveCopy,
    LossAllowed,
    MakeModuleComm,
    ModuleCommAsked,
    Order,
    RankFailed,
    RankFinished,
    RankLeft,
    RankStopped,
    Recorded,
    Report,
    RunCopy,
    RunGroup,
    StateSaved,
    Stop,
    Welcome,
    starting_peers,
)
from diel.executive.outcome import (
    CrashNote,
    ReturnedFolder,
    detail,
    noting_crashes,
    recordable,
)
from diel.executive.plans import CopyPlan, place_modules
from diel.executive.rank_times import SpanRecorder, trace_calls
from diel.executive.signals import release_signals
from diel.executive.tuple_server import GOODBYE_TIMEOUT_S, serve_tuples
from diel.executive.wait_reporter import WaitReporter
from diel.loading import files
from diel.loading.context import Context, Place, running
from diel.loading.deadline import Deadline
from diel.loading.environment import ThreadLimiter, set_thread_environment
from diel.loading.forks import ending_forks, handling_forks, refuse
from diel.loading.functions import find_function, parse_options
from diel.loading.output import RankOutput, shorten
from diel.loading.process_items import end_timers
from diel.loading.process_state import ProcessState
from diel.loading.state import SavedState
from diel.run.directory import RunDirectory, state_of, state_stem
from diel.run.json_values import StoredValue, plain
from diel.text import describe_error
from diel.tuples.client import TupleClient
from diel.tuples.mpi_transport import open_transport
from diel.workflow.programs import launcher_forgotten

if TYPE_CHECKING:
    from types import ModuleType

    from mpi4py import MPI

    from diel.comm.parent import Parent
    from diel.executive.heartbeats import HeartbeatAddress
    from diel.loading.module_spec import ModuleSpec
    from diel.programs.executables import ExecutableCopies
    from diel.run.fields import Record
    from diel.run.tasks import ProgramEnd

_Ended: TypeAlias = "RankFinished | RankFailed | RankStopped | RankLeft"
_ENDS = {
    RankFinished: "finished",
    RankFailed: "failed",
    RankStopped: "stopped",
    RankLeft: "left",
}


def run_worker(parent: Parent) -> int:
    """Perform the orders of rank 0 until it dismisses this rank or the run stops.

    Returns
    -------
    int
        The exit code of the run.
    """
    mailbox: Mailbox[Order] = Mailbox(
        parent.comm, sends=tags.WORKER_TO_EXECUTIVE, receives=tags.EXECUTIVE_TO_WORKER
    )
    goodbye = Goodbye()
    spans: SpanRecorder | None = None
    try:
        order = _next_order(mailbox, parent)
        if isinstance(order, Welcome):
            set_thread_environment(order.plan.max_threads)
            if order.gpus is not None:
                os.environ[VISIBLE_GPUS] = ",".join(order.gpus)
            if order.heartbeat is not None:
                _start_heartbeat(order.heartbeat, parent, mailbox)
            if parent.rank in order.plan.server_ranks:
                return serve_tuples(parent, mailbox, order)
            meter = Meter(keeps_short_waits=order.traces_all)
            directory = RunDirectory(order.run_dir)
            spans = SpanRecorder(directory, parent.rank, meter)
            with (
                launcher_forgotten(),
                noting_crashes(directory.crash_note(parent.rank)) as crash_note,
            ):
                if order.plan.pins and parent.rank == min(
                    set(order.plan.pool).intersection(parent.pids_here)
                ):
                    mailbox.send(CoresFound(read_topology()), parent.EXECUTIVE_RANK)
                worker = _Worker(parent, mailbox, order, spans, crash_note)
                try:
                    with handling_forks(worker.flush_output, worker.begin_fork):
                        order = worker.work()
                finally:
                    worker.close()
        assert isinstance(order, Leave)
        parent.dead_ranks.add(order.dead)
        exit_code = order.exit_code
    except RunStopped:
        exit_code = _exit_code_of_stop(parent)
    if spans is not None:
        goodbye = Goodbye(times=spans.close())
    mailbox.send(goodbye, parent.EXECUTIVE_RANK)
    mailbox.flush(GOODBYE_TIMEOUT_S)
    return exit_code


def _start_heartbeat(address: HeartbeatAddress, parent: Parent, mailbox: Mailbox[Order]) -> None:
    """Start this host's heartbeat to rank 0, on its first rank; warn rank 0 if that fails."""
    pids = {rank: pid for rank, pid in parent.pids_here.items() if rank != parent.EXECUTIVE_RANK}
    if parent.rank != min(pids) or (parent.is_beside_rank0 and not address.is_for_all):
        return
    from diel.executive.heartbeats import start_heartbeat  # needed only with several hosts
    from diel.run.records import MessageLogged

    try:
        parent.beside.append(start_heartbeat(address, pids))
    except OSError as error:
        text = (
            f"{parent.host} cannot reach port {address.port} of {address.addresses[0]} ({error}), "
            "perhaps for a firewall: that it falls silent will not be noticed"
        )
        warning = MessageLogged(module="executive", copy=0, level="WARNING", text=text)
        mailbox.send(Recorded(warning), parent.EXECUTIVE_RANK)


def _exit_code_of_stop(parent: Parent) -> int:
    stops: Mailbox[Stop] = Mailbox(
        parent.comm, sends=tags.WORKER_TO_EXECUTIVE, receives=tags.EXECUTIVE_TO_ALL_STOP
    )
    arrival = stops.wait(GOODBYE_TIMEOUT_S)
    return 1 if arrival is None else arrival[1].exit_code


def _next_order(
    mailbox: Mailbox[Order], parent: Parent, safe_point: Callable[[], None] | None = None
) -> Order:
    arrival = mailbox.wait(safe_point=safe_point or parent.raise_if_stopped)
    assert arrival is not None  # a wait without a timeout always returns a message
    return arrival[1]


class _Worker:
    """The state of one rank of the pool, and how it performs each order."""

    def __init__(
        self,
        parent: Parent,
        mailbox: Mailbox[Order],
        welcome: Welcome,
        spans: SpanRecorder,
        crash_note: CrashNote,
    ) -> None:
        self._spans, self._meter = spans, spans.meter
        self._parent = parent
        self._mailbox = mailbox
        plan = self._run_plan = welcome.plan
        self._specs = plan.specs
        self._modules = plan.modules
        left_s = plan.time_left_s
        self._run_ends_s = math.inf if left_s is None else time.monotonic() + left_s
        self._folder = plan.folder
        specs = self._specs.values()
        files.use_folder(
            self._folder, [file for spec in specs for file in spec.files(self._folder)]
        )
        self._directory = RunDirectory(welcome.run_dir)
        self._limiter = ThreadLimiter()
        self.children = ChildProcesses(self._warn_always)
        self._output = RankOutput(plan.log_size_bytes)
        self._directory_before = os.getcwd()
        os.chdir(self._folder)
        self._crash_note = crash_note
        self._process_state = ProcessState(crash_note.renew)
        self._returned = ReturnedFolder(
            self._directory.returned, plan.returned_total_bytes, parent.size
        )
        self._warned_of_returned: set[str] = set()  # modules: each is warned of once
        self._functions: dict[str, tuple[ModuleType, Callable[[Any], Any]]] = {}
        transport = open_transport(
            parent.comm,
            plan.server_ranks,
            plan.tail_ranks,
            self._safe_point,
            parent.raise_if_stopped,
            self._meter,
        )
        self._transport = transport
        self._tuples = TupleClient(transport)
        if welcome.traces_all:
            trace_calls(self._tuples, self._meter)
        self._leaves: Mailbox[LeaveCopy | ForgetRanks] = Mailbox(
            parent.comm,
            sends=tags.WORKER_TO_EXECUTIVE,
            receives=tags.EXECUTIVE_TO_WORKER_LEAVE_COPY,
        )
        self._port = MpiPort(parent.comm)
        self._channel = Channel(self._port, self._safe_point, self._warn, self._meter)
        self._wait_reporter = WaitReporter(
            self._tuples, transport, self._channel, self._meter, self._report
        )
        self._session = welcome.session
        self._states = {state_stem(name): name for name in welcome.states}
        self._executables: ExecutableCopies | None = None
        self._context: Context | None = None  # of the present or the last copy
        self._serial, self._began_s = 0, 0.0
        self._has_to_leave = False

    def _raise_if_ordered(self) -> None:
        """Raise `RunStopped` if the run is stopping, `CopyStopped` if rank 0 ended this copy."""
        self._parent.raise_if_stopped()
        self._process_interrupts()
        if self._has_to_leave:
            raise CopyStopped("the copy has failed: it starts again, or the run goes on without it")

    def _process_interrupts(self) -> None:
        """Process the orders that rank 0 sends to ranks in the middle of a copy."""
        while (arrival := self._leaves.poll()) is not None:
            order = arrival[1]
            if isinstance(order, ForgetRanks):
                self._parent.dead_ranks.add(order.ranks)
            else:  # an order for an earlier copy may have crossed with the report of its end
                self._has_to_leave |= order.serial == self._serial

    def _safe_point(self) -> None:
        """Raise if the current wait has to end; report it to rank 0 if it has lasted a while."""
        self._channel.poll()
        waiting = self._wait_reporter.current
        if waiting is None:  # a server answers at once: only a stop of the whole run is urgent
            self._parent.raise_if_stopped()
            self._process_interrupts()
            return
        self._raise_if_ordered()
        self._wait_reporter.report_if_long(waiting)

    def flush_output(self) -> None:
        """Write what was printed, so that a process that is forked now does not write it again."""
        self._output.flush()

    def begin_fork(self) -> None:
        """In a process that a module has just forked: give up all that is the rank's."""
        release_signals()
        self._output.begin_fork()
        if self._context is not None:
            self._context.forget_communicators()
        parts = self._tuples, self._transport, self._channel, self._port, self._mailbox
        refuse(*parts)

    def work(self) -> Leave:
        """Perform orders until the order to leave comes; return that order."""
        while True:
            with self._meter.waiting("work"):
                order = _next_order(self._mailbox, self._parent, self._between_copies)
            if isinstance(order, Leave):
                self._channel.poll()  # warns of messages that no module received
                self._port.close()
                self._transport.close()
                return order
            if isinstance(order, RunGroup):
                order = self._my_copy(order)
            if isinstance(order, RunCopy):
                before = self._meter.times()
                report = self._perform(order)
                self._report(report.replace(times=self._meter.times().minus(before)))
                os.sched_yield()  # rank 0 may share this core: it goes on first
                copy = order.plan.module, order.plan.copy_index
                self._process_state.restore(partial(self._warn, *copy))
                self._spans.save_if_due()
            else:  # it came after this rank had left the copy
                assert isinstance(order, MakeModuleComm)

    def close(self) -> None:
        """End the processes that programs and function modules have left on this rank."""
        if self._executables is not None:
            with contextlib.suppress(RunStopped, TupleError):
                self._executables.close()
        self.children.end()
        self._limiter.close()
        self._output.close()
        with contextlib.suppress(OSError):  # it was removed
            os.chdir(self._directory_before)

    def _my_copy(self, order: RunGroup) -> RunCopy:
        """Return the order for this rank's own copy, from the order to its whole group."""
        group = self._run_plan.groups[order.group]
        modules = list(place_modules(group, order.ranks, order.first_serial))
        mine = next(module for module in modules if self._parent.rank in module.ranks)
        index = mine.ranks.index(self._parent.rank) // mine.plan.processes
        gpus = cpus = None
        if order.gpus is not None or order.cpus is not None:
            before = modules[: modules.index(mine)]
            number = sum(module.plan.copies for module in before) + index
            gpus = None if order.gpus is None else order.gpus[number]
            cpus = None if order.cpus is None else order.cpus[number]
        return RunCopy(
            mine.copy(index, group.name, order.iteration),
            {self._specs[each.module].own_name: each.copies for each in group.modules},
            starting_peers(group.name, modules, self._specs),
            gpus,
            cpus,
        )

    def _between_copies(self) -> None:
        self._parent.raise_if_stopped()
        self._channel.poll()  # drops late messages for a copy that has ended
        self._spans.save_if_due()

    def _allow_loss(self, serial: int) -> None:
        if self._run_plan.survives_loss:
            self._report(LossAllowed(serial))

    def _report(self, report: Report) -> None:
        self._mailbox.send(report, self._parent.EXECUTIVE_RANK)

    def _perform(self, order: RunCopy) -> _Ended:
        self._serial, self._has_to_leave = order.plan.serial, False
        self._began_s = time.monotonic()
        self._wait_reporter.begin(self._serial)
        with self._spans.copy(order.plan) as span_fields:
            report: _Ended
            try:
                report = self._run_copy(order)
            except BaseException as error:  # a module may raise anything, SystemExit too
                report = self._report_of(error, order)
            finally:
                self._channel.abandon()  # has no effect after `close`
                self._parent.let_module_block(False)
            span_fields["ended"] = _ENDS[type(report)]
        plan = order.plan
        self.children.note_copy(
            (plan.module, plan.copy_index),
            is_function=self._specs[plan.module].function is not None,
            failed=isinstance(report, (RankFailed, RankLeft)),
        )
        self._warn_of_log(plan, self._output.take_left_out_bytes())
        if isinstance(report, (RankFailed, RankLeft)):
            # Before the report, so that the next copy finds the tuples that this one held. A
            # server that does not answer must not delay the report of the failure.
            with contextlib.suppress(RunStopped, TupleError):
                self._tuples.start_over()
        return report

    def _report_of(self, error: BaseException, order: RunCopy) -> _Ended:
        """Return the report of an exception, which is no failure if the run is stopping."""
        serial, rank, counts = order.plan.serial, self._parent.rank, self._counts(order)
        try:
            self._raise_if_ordered()
        except CopyStopped:
            return RankLeft(serial, rank, counts)
        except RunStopped:
            return RankStopped(serial)
        return RankFailed(
            serial, rank, describe_error(error), self._parent.host, detail(error), counts
        )

    def _counts(self, order: RunCopy) -> MessageCounts:
        is_function = self._specs[order.plan.module].function is not None
        return self._channel.counts() if is_function else MessageCounts()

    def _run_copy(self, order: RunCopy) -> RankFinished:
        plan = order.plan
        spec = self._specs[plan.module]
        if spec.inputs or spec.outputs:
            return self._run_unless_current(order, spec)
        if spec.function is None and len(plan.ranks) == 1:
            # It shares nothing with this process, and no other rank waits for its end.
            program = self._run_program(order)
            counts = self._counts(order)
            return RankFinished(plan.serial, self._parent.rank, counts=counts, program=program)
        comm = None  # a copy of one rank makes its communicator when its module asks for it
        self._parent.let_module_block(len(plan.ranks) > 1)
        if len(plan.ranks) > 1:
            with self._meter.communicating("make the copy's communicator"):
                comm = self._parent.create_communicator(plan.ranks, plan.serial)
        return self._run_on_ranks(order, comm)

    def _run_unless_current(self, order: RunCopy, spec: ModuleSpec) -> RankFinished:
        """Run a copy unless its outputs are current: its first rank looks, and tells the others."""
        from diel.loading.outputs import CopyOutputs  # here, since few modules declare any
        from diel.run.records import OutputsCurrent
        from diel.run.tasks import ProgramEnd

        plan, comm = order.plan, None
        self._parent.let_module_block(len(plan.ranks) > 1)
        if len(plan.ranks) > 1:
            with self._meter.communicating("make the copy's communicator"):
                comm = self._parent.create_communicator(plan.ranks, plan.serial)
        if self._parent.rank != plan.ranks[0]:
            assert comm is not None
            if comm.bcast(None):
                return self._run_on_ranks(order, comm)
            return RankFinished(plan.serial, self._parent.rank, None, self._retire(comm))
        places = spec.places(
            copy=plan.copy_index,
            copies=plan.copies,
            processes=len(plan.ranks),
            group=plan.group,
            iteration=plan.iteration,
            run_dir=self._directory.path,
            folder=self._folder,
        )
        has_to_tell = comm is not None
        try:
            outputs = CopyOutputs(spec, places, Path(self._run_plan.file))
            with outputs.making(force=self._run_plan.makes_all) as is_current:
                has_to_tell = False
                if comm is not None:
                    comm.bcast(not is_current)
                if not is_current:
                    return self._run_on_ranks(order, comm)
                self._recorder_for(order)(OutputsCurrent, group=plan.group)
                leftovers = 0 if comm is None else self._retire(comm)
                apart = ProgramEnd(is_apart=True)
                return RankFinished(plan.serial, self._parent.rank, None, leftovers, program=apart)
        except BaseException:
            if comm is not None and has_to_tell:
                comm.bcast(False)  # the others wait for this, and have nothing to run
            raise

    def _run_on_ranks(self, order: RunCopy, comm: MPI.Intracomm | None) -> RankFinished:
        plan, spec = order.plan, self._specs[order.plan.module]
        run = self._run_function if spec.function is not None else self._run_executable
        self._parent.wakeup.runs_module = True
        try:
            returned, leftovers = run(order, comm)
        finally:
            self._parent.wakeup.runs_module = False
            end_timers()
        # The other ranks of a program lend it their cores, so that this counts as work.
        if comm is not None:
            leftovers += self._retire(comm, lends_core=spec.function is None)
        report = RankFinished(
            plan.serial, self._parent.rank, returned, leftovers, self._counts(order)
        )
        return (
            report if spec.function is not None else report.replace(returned=None, program=returned)
        )

    def _run_function(self, order: RunCopy, comm: MPI.Intracomm | None) -> tuple[Any, int]:
        plan, spec = order.plan, self._specs[order.plan.module]
        assert spec.function is not None
        copy_rank = plan.ranks.index(self._parent.rank)
        place = Place(
            group=plan.group,
            module=spec.own_name,
            copy_index=plan.copy_index,
            copies=plan.copies,
            copies_of=order.copies_of,
            run_dir=self._directory.path,
            folder=self._folder,
            iteration=plan.iteration,
            element=spec.element,
        )
        address = Address(spec.own_name, plan.copy_index, copy_rank)
        self._channel.open(address, order.peers)
        log = self._directory.module_log(plan.module, plan.copy_index, copy_rank)
        with self._output.to(log):
            files.forget_plain_names()
            with ending_forks():
                code, function = self._find_function(spec)
            own = self._process_state.begin(code.__name__)
            self._limiter.apply(spec.threads)
            specs = self._specs_within(spec)
            context = self._context = Context(
                place,
                comm=comm,
                make_comm=lambda: self._parent.create_communicator(plan.ranks, plan.serial),
                make_module_comm=lambda: self._make_module_comm(plan),
                options=parse_options(
                    code,
                    spec.function,
                    spec.options,
                    self._folder,
                    self._directory.path,
                    {name: each.options for name, each in specs.items()},
                    {name: each.function for name, each in specs.items() if each.function},
                ),
                threads=spec.threads,
                tuples=self._tuples,
                record=self._recorder_for(order),
                gpus=range(math.ceil(spec.gpus)),
                gpu_share=spec.gpus if 0 < spec.gpus < 1 else 1.0,
                channel=self._channel,
                boundaries=self._run_plan.boundaries,
                state=self._state_of(place, copy_rank),
                session=self._session,
                allow_loss=lambda: self._allow_loss(plan.serial),
                deadline=self._deadline_of(plan, spec),
            )
            puts_before = tuple(self._tuples.puts)
            with bound_to(order.cpus_of(self._parent.rank)):
                value = own.run(_call, function, context)
            returned = self._recordable(plan, value) if copy_rank == 0 else None
            del value  # it may be large
            if puts_before != tuple(self._tuples.puts):
                self._tuples.flush()
            self._channel.close()
            for complaint in self._limiter.exceeding(spec.threads):
                context.log.warning("%s", complaint)
        leftovers = 0
        if context.module_comm_was_made:
            leftovers = self._retire(context.module_comm)
        if comm is None and context.comm_was_made:
            leftovers += self._retire(context.comm)
        return returned, leftovers

    def _specs_within(self, spec: ModuleSpec) -> dict[str, ModuleSpec]:
        """Return the modules that a module knows, by the names that it has for them."""
        own = spec.element and spec.element.name
        known = [each for each in self._specs.values() if each.element is None]
        known += [each for each in self._specs.values() if own and each.is_of(own)]
        return {each.own_name: each for each in known}

    def _deadline_of(self, plan: CopyPlan, spec: ModuleSpec) -> Deadline:
        return Deadline.of(
            self._began_s,
            self._modules[plan.group, plan.module].time_limit_s,
            spec.signal_before_s,
            self._run_ends_s,
            self._run_plan.signal_before_s,
        )

    def _state_of(self, place: Place, copy_rank: int) -> SavedState:
        stem = state_of(place.module, place.copy_index, copy_rank, place.group, place.iteration)

        def note(name: str) -> None:
            self._states[stem] = name  # for a copy that fails and starts again
            self._report(StateSaved(name))

        return SavedState(self._directory.states, stem, self._states.get(stem, ""), note)

    def _recordable(self, plan: CopyPlan, value: Any) -> Any:
        """Return a copy's returned value as the journal can hold it; warn if it is too large."""
        iteration = "-".join(map(str, plan.iteration))
        stem = f"{plan.module}.{plan.copy_index}.{plan.group}.{iteration}"
        returned = recordable(value, self._returned, stem, self._run_plan.returned_size_bytes)
        if isinstance(returned, StoredValue) and (
            returned.problem or (returned.file and plan.module not in self._warned_of_returned)
        ):
            self._warned_of_returned.add(plan.module)
            problem = f" ({returned.problem})" if returned.problem else ""
            self._warn(
                plan.module,
                plan.copy_index,
                f"it returned more than {self._run_plan.returned_size_bytes:,} bytes, which the "
                f"journal does not hold (returned_size in [workflow]): {returned}{problem}",
            )
        return returned

    def _find_function(self, spec: ModuleSpec) -> tuple[ModuleType, Callable[[Any], Any]]:
        """Return a module's code and function, cached if the module has run on this rank before."""
        assert spec.function is not None
        found = self._functions.get(spec.name)
        if found is None or sys.modules.get(found[0].__name__) is not found[0]:
            set_thread_environment(spec.threads)  # before it imports NumPy
            load = partial(load_code, spec.function, self._folder, self._crash_note.descriptor)
            code = self._process_state.load(load)
            found = self._functions[spec.name] = code, find_function(spec.function, code)
        return found

    def _make_module_comm(self, plan: CopyPlan) -> MPI.Intracomm:
        """Make the communicator of all copies of a module, once all of their ranks ask for it.

        MPI would wait for these ranks too, but that wait could not be ended if one of them fails.
        """
        if len(plan.module_ranks) > 1:
            self._parent.let_module_block(True)
            self._report(ModuleCommAsked(plan.serial, self._parent.rank))
            with self._wait_reporter.waiting("ctx.module_comm for the module's other ranks"):
                try:
                    self._mailbox.wait(safe_point=self._safe_point)
                except CopyStopped:
                    # Ranks that were ordered to make it cannot do so without this rank.
                    if self._mailbox.poll() is None:
                        raise
        with self._meter.communicating("make ctx.module_comm"):
            return self._parent.create_communicator(plan.module_ranks, plan.module_serial)

    def _retire(self, comm: Any, *, lends_core: bool = False) -> int:
        if comm.Get_size() == 1:
            with self._meter.communicating("free a communicator"):
                return self._parent.retire_communicator(comm, self._safe_point)
        with self._wait_reporter.waiting(
            "the end of the copy's other ranks", counts=not lends_core
        ):
            return self._parent.retire_communicator(comm, self._safe_point)

    def _run_executable(self, order: RunCopy, _: object) -> tuple[ProgramEnd | None, int]:
        # The copy's other ranks only reserve the cores that the program may use.
        is_first = order.plan.ranks[0] == self._parent.rank
        return self._run_program(order) if is_first else None, 0

    def _run_program(self, order: RunCopy) -> ProgramEnd:
        if self._executables is None:
            # Imported here, so that ranks that run no programs start sooner.
            from diel.programs.executables import ExecutableCopies

            self._executables = ExecutableCopies(
                self._directory, self._folder, self._tuples, self._parent.wakeup, self._session
            )
        plan, left_out_bytes = order.plan, 0
        log = self._directory.module_log(plan.module, plan.copy_index, 0)

        def check_program() -> None:
            nonlocal left_out_bytes
            for file in (log, log.with_suffix(".err")):
                left_out_bytes += shorten(file, self._run_plan.log_size_bytes)
            self._raise_if_ordered()

        try:
            spec = self._specs[plan.module]
            deadline = self._deadline_of(plan, spec)
            recorder = self._recorder_for(order)
            return self._executables.run(order, spec, deadline, check_program, recorder)
        finally:
            with contextlib.suppress(CopyStopped, RunStopped):
                check_program()
            self._warn_of_log(plan, left_out_bytes)

    def _warn_of_log(self, plan: CopyPlan, left_out_bytes: int) -> None:
        if left_out_bytes:
            text = (
                f"it printed more than {self._run_plan.log_size_bytes:,} bytes into a log file: "
                f"{left_out_bytes:,} in the middle are left out (log_size in [workflow])"
            )
            self._warn(plan.module, plan.copy_index, text)

    def _warn(self, module: str, copy_index: int, text: str) -> None:
        if self._parent.stop_was_announced():
            return  # a consequence of the stop
        self._warn_always(module, copy_index, text)

    def _warn_always(self, module: str, copy_index: int, text: str) -> None:
        from diel.run.records import MessageLogged  # imported here: few ranks ever need it

        message = MessageLogged(module=module, copy=copy_index, level="WARNING", text=text)
        self._report(Recorded(message))

    def _recorder_for(self, order: RunCopy) -> Any:
        copy_fields: dict[str, Any] = {"module": order.plan.module, "copy": order.plan.copy_index}

        def record(kind: type[Record], **fields: Any) -> None:
            self._report(Recorded(kind(**copy_fields, **plain(fields))))

        return record


def _call(function: Any, context: Context) -> Any:
    try:
        with running(context), finalize_refused(), ending_forks():
            return function(context)
    except SystemExit as request:
        if request.code not in (None, 0):
            raise
        return None
