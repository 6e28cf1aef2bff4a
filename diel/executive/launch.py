"""Starting mpiexec, srun or flux, and waiting for it, for ``diel run`` outside of MPI."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from diel.comm.devices import visible_gpus
from diel.errors import LaunchError
from diel.executive.batch_scripts import SCHEDULERS
from diel.executive.placement.gpus import Node
from diel.executive.signals import STOP_SIGNALS, before_time_limit, exit_code_after
from diel.exit_codes import STOPPED
from diel.loading.environment import thread_environment
from diel.loading.output import shorten
from diel.programs.supervised import Program, Supervisor
from diel.run.directory import RunDirectory
from diel.run.files import file_opener, is_locked, open_regular
from diel.run.journal import JournalReader
from diel.run.records import RunCreated, RunResumed

if TYPE_CHECKING:
    from diel.executive.plans import RunPlan

# If any of these is set, mpiexec may start ranks on other machines too.
_BATCH_VARIABLES: Final = (
    *(scheduler.within_job for scheduler in SCHEDULERS.values()),
    "PE_HOSTFILE",
    "COBALT_JOBID",
)
_HOST_FILE: Final = ("HOSTFILE", "HOST_FILE", "hostfile")
_POLL_S: Final = 0.05
# How long mpiexec may take to end after the run's last record: ranks finalize, or are aborted.
_AFTER_SUCCESS_S: Final = 30.0
_AFTER_FAILURE_S: Final = 3.0
_POLITE_STOP_S: Final = 8.0
# How long mpiexec may take to end the other ranks itself when it has lost one.
_AFTER_LOSS_S: Final = 2.0
_TERMINATION_S: Final = 1.0
# How often to look whether the journal is locked, and for how long it may not be.
_JOURNAL_LOOK_S: Final = 1.0
_ABANDONED_S: Final = 10.0
_READ_BYTES: Final = 64 * 1024
ATTEMPTS: Final = 3
# Open MPI's launcher fails with this about once in hundreds of starts, if another job of the same
# user is just removing the folder for its sockets.
_LISTENER_FAILED: Final = "PMIx server's listener thread failed to start"
# Open MPI's message when a module has started MPI processes of its own (MPI_Comm_spawn), which
# share no memory with it: the module would wait for them for ever.
_UNREACHABLE: Final = b"At least one pair of MPI processes are unable to reach each other"
_SPAWN_ADVICE: Final = (
    "a module started MPI processes of its own, and on one machine ranks have shared memory alone: "
    "OMPI_MCA_btl=^ofi diel run ... lets them use TCP too"
)


def failed_before_ranks(directory: RunDirectory) -> bool:
    """Whether mpiexec failed before it had started any rank, so that a retry is safe."""
    if directory.stop_requested() or _LISTENER_FAILED not in directory.launcher_output():
        return False
    records = JournalReader(directory.journal).new_records()
    return not records or isinstance(records[-1], (RunCreated, RunResumed))


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def node_of_all(pool: Sequence[int], environment: Mapping[str, str]) -> Node:
    """Return this machine as a `Node` that has all ranks of the pool."""
    return Node(platform.node() or "this machine", tuple(pool), visible_gpus(environment))


def check_pins(plan: RunPlan) -> None:
    """Raise LaunchError if ``pin`` needs more cores than ranks on this machine may use."""
    from diel.comm.cores import read_topology
    from diel.executive.placement.pinning import Pins

    host, usable = platform.node() or "this machine", tuple(sorted(os.sched_getaffinity(0)))
    pins = Pins(
        [host] * plan.ranks, {host: read_topology()}, dict.fromkeys(plan.pool, usable), plan.specs
    )
    pins.check(plan.groups, plan.pool)


def is_one_machine(environment: Mapping[str, str]) -> bool:
    """Whether mpiexec will start all ranks here: not in a batch job, nor with a host file."""
    return not any(name in _BATCH_VARIABLES or name.endswith(_HOST_FILE) for name in environment)


class LauncherSignals:
    """A context in which Ctrl-C, SIGHUP, SIGTERM and SIGUSR1, unless ignored, ask a run to stop.

    Signals that are ignored at the start stay so: nohup ignores SIGHUP, a shell SIGINT for "&".

    Attributes
    ----------
    number : int
        The first signal that has come in this block; 0 if none has.
    """

    def __init__(self) -> None:
        self.number = 0
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> LauncherSignals:
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._ask)
        return self

    @property
    def is_asked(self) -> bool:
        """Whether a signal has come in this block."""
        return bool(self.number)

    def request_stop(self, directory: RunDirectory) -> None:
        """Ask a run to stop, with the exit code that belongs to the signal.

        An OSError if somebody has removed the folder.
        """
        exit_code = exit_code_after(self.number)
        if exit_code == STOPPED:
            directory.request_stop()
        else:
            directory.request_stop(before_time_limit(self.number), exit_code)

    def _ask(self, number: int, _: object) -> None:
        self.number = self.number or number

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


class Launched:
    """A running mpiexec under a supervisor, in its own session, which Ctrl-C does not reach.

    When this process is killed, the supervisor ends mpiexec, the ranks and all their processes.
    What these write by themselves goes to ``logs/launcher.log``, up to `log_size_bytes`. The
    environment has variables for so many BLAS/OpenMP threads, which are read when NumPy is
    imported, and further ones.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: RunDirectory,
        threads: int,
        log_size_bytes: int,
        variables: Iterable[tuple[str, str]] = (),
    ) -> None:
        self._command = command[0]
        self._log_size_bytes = log_size_bytes
        self._directory = directory
        log = directory.launcher_log
        self._log_read_bytes = directory.note_start()
        # The journal may never be seen locked: its file system may have no locks.
        self._next_look_s, self._last_locked_s = 0.0, math.inf
        self._end_at_s = math.inf
        self._has_asked = self._has_run_ended = self._is_ended_here = False
        environment = {**os.environ, **thread_environment(threads), **dict(variables)}
        self._supervisor = Supervisor(environment)
        try:
            launcher = Program(command, Path.cwd(), added={})
            self._program = self._supervisor.start(
                [launcher], stdout=log, stderr=log, grace_s=_TERMINATION_S
            )
        except OSError as error:
            raise LaunchError(f"{command[0]} cannot be started: {error}") from error

    def wait(
        self, refresh: Callable[[], int | None], signals: LauncherSignals | None = None
    ) -> int:
        """Wait for mpiexec to end; after a stop or a loss, end it if it does not end by itself.

        Signals ask the run to stop through its directory. mpiexec is ended 8 s after such a
        request, or 2 s after a rank has asked since a rank was killed: mpiexec then asks the others
        to end, and sometimes never ends itself. So it is ended, too, once no process has held the
        journal's lock for 10 s: rank 0 is dead then.

        `refresh` shows new events, and returns the run's exit code once it has written its last
        record. By default signals are handled while this waits. Returns the exit status of mpiexec;
        the run's own verdict is in its journal. A LaunchError if it could not be started.
        """
        if signals is None:
            with LauncherSignals() as own:
                return self.wait(refresh, own)
        try:
            while (ending := self._program.poll()) is None:
                exit_code, now_s = refresh(), time.monotonic()
                self._pass_on(signals, now_s)
                self._read_log()
                self._decide_end(exit_code, now_s)
                if now_s >= self._end_at_s:
                    self._is_ended_here = True
                    self._program.end()
                else:
                    select.select([self._program], [], [], _POLL_S)
            refresh()
        except BaseException:  # mpiexec must not go on unwatched
            self._program.end()
            raise
        finally:
            self._supervisor.close()
        if ending.supervisor or (ending.signal is not None and not self._is_ended_here):
            with (
                contextlib.suppress(OSError),
                open(self._directory.launcher_log, "a", opener=file_opener) as log,
            ):
                log.write(f"diel: {self._command} {ending}\n")
        if ending.errno is not None:
            raise LaunchError(f"{self._command} {ending}")
        return ending.exit_status

    def _pass_on(self, signals: LauncherSignals, now_s: float) -> None:
        """Ask the run to stop, once a signal has come."""
        if self._has_asked or not signals.is_asked:
            return
        self._has_asked = True
        if not self._has_run_ended:
            self._end_at_s = math.inf  # a rank may have asked before
        try:
            signals.request_stop(self._directory)
        except OSError:  # the run directory was removed: no request can be made
            self._end_at_s = now_s

    def _read_log(self) -> None:
        if shorten(self._directory.launcher_log, self._log_size_bytes):
            self._log_read_bytes = 0
        if self._cannot_reach_spawned():
            self._directory.request_stop(_SPAWN_ADVICE)

    def _decide_end(self, exit_code: int | None, now_s: float) -> None:
        """Decide when mpiexec is to be ended, if it does not end by itself."""
        if self._end_at_s == math.inf and self._journal_is_abandoned(now_s):
            self._end_at_s = now_s
        if self._end_at_s == math.inf and self._directory.stop_requested():
            is_loss = not self._has_asked and self._directory.is_lost_or_ended()
            self._end_at_s = now_s + (_AFTER_LOSS_S if is_loss else _POLITE_STOP_S)
        if exit_code is not None and not self._has_run_ended:
            self._has_run_ended = True
            self._end_at_s = now_s + (_AFTER_FAILURE_S if exit_code else _AFTER_SUCCESS_S)

    def _journal_is_abandoned(self, now_s: float) -> bool:
        """Whether the rank that wrote the journal is dead for a while, though mpiexec lives on."""
        if now_s < self._next_look_s:
            return False
        self._next_look_s = now_s + _JOURNAL_LOOK_S
        if is_locked(self._directory.journal):
            self._last_locked_s = now_s
        return now_s - self._last_locked_s > _ABANDONED_S

    def _cannot_reach_spawned(self) -> bool:
        """Whether a rank has newly said that it cannot reach a process that a module spawned."""
        with contextlib.suppress(OSError), open_regular(self._directory.launcher_log) as log:
            log.seek(self._log_read_bytes)
            new = log.read(_READ_BYTES)
            # The end is read again, since it may hold a part of the message.
            self._log_read_bytes += max(0, len(new) - len(_UNREACHABLE))
            return _UNREACHABLE in new
        return False  # the run directory was removed
