"""A Slurm of four nodes on this machine, for tests that submit jobs to it: needs root."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import subprocess
from pathlib import Path

from support import Finished, execute, wait_until

NODES = 4
CORES = 4  # of each node, as Slurm believes
DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "sinfo")

CONFIGURATION = """\
ClusterName=diel
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
KillWait=2
ReturnToService=2
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A running Slurm; its commands are told of it by the environment.

    Parameters
    ----------
    folder : Path
        Where it keeps everything; the path of a socket there must be short.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start all daemons, and wait until every node is idle."""
        ports = _free_ports(NODES + 1)
        host = platform.node()
        nodes = "\n".join(
            f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CORES} "
            "State=UNKNOWN"
            for number, port in enumerate(ports[1:], start=1)
        )
        text = CONFIGURATION.format(host=host, folder=self.folder, ports=ports, nodes=nodes)
        Path(self.environment["SLURM_CONF"]).write_text(text)
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        names = {name: self.folder / f"munge.{name}" for name in ("pid", "seed", "log", "socket")}
        self._start(
            *("munged", "--foreground", "--force", f"--key-file={key}", "--num-threads=2"),
            f"--socket={names['socket']}",
            f"--pid-file={names['pid']}",
            f"--seed-file={names['seed']}",
            f"--log-file={names['log']}",
        )
        wait_until(names["socket"].exists, 10)
        self._start("slurmctld", "-D", "-i")
        for number in range(1, NODES + 1):
            (self.folder / f"tmp-n{number}").mkdir()  # or nodes would share folders of PMIx
            self._start("slurmd", "-D", "-N", f"n{number}")
        wait_until(lambda: self.command("sinfo", "-h", "-o", "%D %t").stdout == "4 idle\n", 30)

    def _start(self, *command: str) -> None:
        # In a session of its own, so that whatever it has started ends with it.
        log = (self.folder / f"{len(self._daemons)}-{command[0]}.out").open("wb")
        with log:
            process = subprocess.Popen(
                command,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._daemons.append(process)

    def stop(self) -> None:
        """End all jobs and daemons."""
        with contextlib.suppress(AssertionError):
            self.command("scancel", "--user=root", "--signal=KILL", "--full")
            self.command("scancel", "--user=root")
            wait_until(lambda: not self.command("squeue", "-h").stdout, 10)
        for process in reversed(self._daemons):
            process.terminate()
        for process in self._daemons:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def command(self, *command: object, cwd: Path | None = None, timeout_s: float = 30) -> Finished:
        """Run one of Slurm's commands to its end."""
        return execute(list(command), cwd=cwd, environment=self.environment, timeout_s=timeout_s)

    def submit(self, script: Path) -> str:
        """Submit a script in its folder; return the number of the job."""
        done = self.command("sbatch", "--parsable", script.name, cwd=script.parent)
        assert done.status == 0, done.output
        return done.stdout.strip()

    def wait_for(self, job: str, timeout_s: float = 120) -> None:
        """Wait until a job has ended."""
        try:
            wait_until(lambda: not self._is_there(job), timeout_s)
        except AssertionError:
            shown = self.command("scontrol", "show", "job", job)
            raise AssertionError(f"job {job} goes on: {shown.output}{self.log()}") from None

    def _is_there(self, job: str) -> bool:
        return bool(self.command("squeue", "-h", "-j", job, "-t", "PD,R,CG,S").stdout.strip())

    def exit_code(self, job: str) -> int:
        """Return the exit code of a job that has ended."""
        shown = self.command("scontrol", "show", "job", job).stdout
        (field,) = [word for word in shown.split() if word.startswith("ExitCode=")]
        return int(field.removeprefix("ExitCode=").partition(":")[0])

    def log(self) -> str:
        """Return the last of what its daemons have written."""
        files = sorted(self.folder.glob("*.log"))
        return "".join(f"\n{file.name}:\n{file.read_text()[-2000:]}" for file in files)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
