"""The loop of every rank of the pool: receive an order, perform it, report."""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diel.comm import tags
from diel.comm.mailbox import Mailbox
from diel.errors import ModuleFailed, RunStopped
from diel.executive.messages import (
    Goodbye,
    Leave,
    Order,
    RankFailed,
    RankFinished,
    RankStopped,
    Recorded,
    Report,
    RunCopy,
    Welcome,
)
from diel.loading.checking import parse_options
from diel.loading.context import Context, Place
from diel.loading.executables import run_executable
from diel.loading.functions import find_function, import_code
from diel.loading.threads import ThreadLimiter, set_thread_environment, thread_environment
from diel.run.directory import RunDirectory
from diel.run.journal import plain

if TYPE_CHECKING:
    from diel.comm.parent import Parent
    from diel.tuples.client import TupleClient

_GOODBYE_TIMEOUT_S = 1.0


def follow(parent: Parent) -> None:
    """Do what rank 0 orders, until it lets this rank leave or the run stops.

    Parameters
    ----------
    parent : Parent
    """
    mailbox: Mailbox[Order] = Mailbox(
        parent.comm, sends=tags.WORKER_TO_EXECUTIVE, receives=tags.EXECUTIVE_TO_WORKER
    )
    with contextlib.suppress(RunStopped):
        order = _next_order(mailbox, parent)
        if isinstance(order, Welcome):
            set_thread_environment(order.max_threads)
            if parent.rank in order.server_ranks:
                _serve_tuples(parent, mailbox)
                return
            _Worker(parent, mailbox, order).work()
    mailbox.send(Goodbye(), parent.EXECUTIVE_RANK)
    mailbox.flush(_GOODBYE_TIMEOUT_S)


def _next_order(mailbox: Mailbox[Order], parent: Parent) -> Order:
    arrival = mailbox.wait(safe_point=parent.raise_if_stopped)
    assert arrival is not None  # without a timeout there is always one
    return arrival[1]


def _serve_tuples(parent: Parent, mailbox: Mailbox[Order]) -> None:
    # Imported after the thread limits are set: it imports NumPy.
    from diel.tuples.server import TupleServer

    server = TupleServer(parent.comm)
    # A stop is for the modules; the server serves until all of them are gone.
    server.serve(should_leave=lambda: mailbox.poll() is not None)
    mailbox.send(Goodbye(tuples_left=server.store.tuples_held), parent.EXECUTIVE_RANK)
    mailbox.flush(_GOODBYE_TIMEOUT_S)


class _Worker:
    """One rank of the pool."""

    def __init__(self, parent: Parent, mailbox: Mailbox[Order], welcome: Welcome) -> None:
        from diel.tuples.client import TupleClient
        from diel.tuples.transport import MpiTransport

        self._parent = parent
        self._mailbox = mailbox
        self._folder = Path(welcome.folder)
        self._directory = RunDirectory(welcome.run_dir)
        self._limiter = ThreadLimiter()
        transport = MpiTransport(parent.comm, welcome.server_ranks[0], parent.raise_if_stopped)
        self._tuples: TupleClient = TupleClient(transport)

    def work(self) -> None:
        while True:
            order = _next_order(self._mailbox, self._parent)
            if isinstance(order, Leave):
                break
            assert isinstance(order, RunCopy)
            self._report(self._perform(order))

    def _report(self, report: Report) -> None:
        self._mailbox.send(report, self._parent.EXECUTIVE_RANK)

    def _perform(self, order: RunCopy) -> Report:
        serial = order.plan.serial
        try:
            return self._run_copy(order)
        except RunStopped:
            return RankStopped(serial)
        except BaseException as error:  # a module may raise anything, SystemExit too
            if self._parent.stop_was_announced():
                return RankStopped(serial)  # what a stop leads to is no cause
            return RankFailed(serial, self._parent.host, _one_line(error), _detail(error))

    def _run_copy(self, order: RunCopy) -> RankFinished:
        plan = order.plan
        comm = self._parent.create_communicator(plan.ranks, plan.serial)
        run = self._run_function if order.spec.function is not None else self._run_executable
        with _restored_process_state():
            os.chdir(self._folder)
            returned, leftovers = run(order, comm)
        leftovers += self._parent.retire_communicator(comm)
        return RankFinished(plan.serial, returned, leftovers)

    def _run_function(self, order: RunCopy, comm: Any) -> tuple[Any, int]:
        plan, spec = order.plan, order.spec
        assert spec.function is not None
        place = Place(
            group=plan.group,
            module=plan.module,
            copy_index=plan.copy_index,
            copies=plan.copies,
            copies_of=order.copies_of,
            run_dir=self._directory.path,
            folder=self._folder,
        )
        log = self._directory.module_log(plan.module, plan.copy_index, comm.Get_rank())
        with log.open("a", encoding="utf-8", buffering=1) as file, _output_to(file):
            set_thread_environment(spec.threads)
            code = import_code(spec.function, self._folder)
            function = find_function(spec.function, code)
            self._limiter.apply(spec.threads)
            context = Context(
                place,
                comm=comm,
                make_module_comm=lambda: self._parent.create_communicator(
                    plan.module_ranks, plan.module_serial
                ),
                options=parse_options(code, spec.function, spec.options, self._folder),
                threads=spec.threads,
                tuples=self._tuples,
                record=self._recorder_for(order),
            )
            returned = plain(_call(function, context))
            self._tuples.flush()
            for complaint in self._limiter.exceeding(spec.threads):
                context.log.warning("%s", complaint)
        leftovers = 0
        if context.module_comm_was_made:
            leftovers = self._parent.retire_communicator(context.module_comm)
        return returned, leftovers

    def _run_executable(self, order: RunCopy, comm: Any) -> tuple[None, int]:
        plan, spec = order.plan, order.spec
        assert spec.executable is not None
        if comm.Get_rank() == 0:  # the copy's other ranks are the cores that it may use
            facts = {
                "DIEL_RUN_DIR": self._directory.path,
                "DIEL_WORKFLOW_DIR": self._folder,
                "DIEL_GROUP": plan.group,
                "DIEL_MODULE": plan.module,
                "DIEL_COPY": plan.copy_index,
                "DIEL_COPIES": plan.copies,
                "DIEL_PROCESSES": len(plan.ranks),
                "DIEL_THREADS": spec.threads,
                **thread_environment(spec.threads),
            }
            run_executable(
                spec.executable,
                folder=self._folder,
                facts=facts,
                log=self._directory.module_log(plan.module, plan.copy_index, 0),
                safe_point=self._parent.raise_if_stopped,
            )
        return None, 0

    def _recorder_for(self, order: RunCopy) -> Any:
        who = {"module": order.plan.module, "copy": order.plan.copy_index}

        def record(event: str, **fields: Any) -> None:
            self._report(Recorded(event, who | plain(fields)))

        return record


def _call(function: Any, context: Context) -> Any:
    try:
        return function(context)
    except SystemExit as request:
        if request.code not in (None, 0):
            raise
        return None


@contextlib.contextmanager
def _restored_process_state() -> Iterator[None]:
    """Give the rank back its working directory, environment and random state afterwards."""
    directory, environment = os.getcwd(), dict(os.environ)
    state = random.getstate()
    numpy_random = sys.modules.get("numpy.random")
    numpy_state = numpy_random.get_state() if numpy_random else None
    try:
        yield
    finally:
        os.chdir(directory)
        if dict(os.environ) != environment:
            os.environ.clear()
            os.environ.update(environment)
        random.setstate(state)
        if numpy_random and numpy_state is not None:
            numpy_random.set_state(numpy_state)


@contextlib.contextmanager
def _output_to(file: io.TextIOBase) -> Iterator[None]:
    with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield


def _one_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _detail(error: BaseException) -> str:
    if isinstance(error, ModuleFailed):
        # Its own words say all; a traceback through diel would not help.
        return str(error).partition("\n")[2]
    # From the module's own frame on: the frames of this file are nobody's business.
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames)).rstrip()
