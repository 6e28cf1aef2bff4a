"""Several hosts on one machine, for tests of runs over nodes: network and UTS namespaces.

They are called ``hosta``, ``hostb``, ... and know each other by these names. Making them takes root
and iproute2, and mpiexec has to be that of Open MPI, which is told how to reach them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import execute, mpi_implementation

BRIDGE = "bridge"
SWITCH = "dieltests"  # a namespace too: for other programs the machine's network does not change
NETWORK = "10.78.0.0/24"
FILES = Path("/etc/netns")  # what is in a folder here lies over /etc in the namespace of its name
AGENT = """\
#!/bin/sh
# As a remote shell: AGENT HOST COMMAND...
host=$1; shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"
"""


class Hosts:
    """Hosts that are up."""

    def __init__(self, count: int, folder: Path) -> None:
        self.names = [f"host{letter}" for letter in "abcdefgh"[:count]]
        self._agent = folder / "agent"
        self._agent.write_text(AGENT)
        self._agent.chmod(0o700)
        self._list = folder / "hosts"

    def up(self) -> None:
        self.down()  # what is left of tests that were killed
        ip("netns", "add", SWITCH)
        ip("-n", SWITCH, "link", "add", BRIDGE, "type", "bridge")
        ip("-n", SWITCH, "link", "set", BRIDGE, "up")
        known = ["127.0.0.1 localhost"]
        known += [f"10.78.0.{10 + number} {name}" for number, name in enumerate(self.names)]
        for number, name in enumerate(self.names):
            (FILES / name).mkdir(parents=True, exist_ok=True)
            (FILES / name / "hosts").write_text("\n".join(known) + "\n")
            ip("netns", "add", name)
            cable = ["type", "veth", "peer", "name", "eth0", "netns", name]
            ip("-n", SWITCH, "link", "add", f"to-{name}", *cable)
            ip("-n", SWITCH, "link", "set", f"to-{name}", "master", BRIDGE, "up")
            ip("-n", name, "addr", "add", f"10.78.0.{10 + number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")

    def down(self) -> None:
        for name in self.names:
            self.kill(name)
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
            shutil.rmtree(FILES / name, ignore_errors=True)
        subprocess.run(["ip", "netns", "del", SWITCH], check=False, capture_output=True)
        with contextlib.suppress(OSError):
            FILES.rmdir()

    def on(self, name: str, *words: object) -> list[object]:
        """Return the command line that runs a command on a host."""
        text = " ".join(f"'{word}'" for word in words)
        return [self._agent, name, f"exec {text}"]

    def environment(self, slots: int) -> dict[str, str]:
        """Return what lets mpiexec start so many ranks on each host, beginning with the first."""
        self._list.write_text("".join(f"{name} slots={slots}\n" for name in self.names))
        return {
            "PRTE_MCA_plm": "ssh",
            "PRTE_MCA_plm_ssh_agent": str(self._agent),
            "PRTE_MCA_prte_if_include": NETWORK,
            "PRTE_MCA_prte_default_hostfile": str(self._list),
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "tcp,self,sm",
            "OMPI_MCA_btl_tcp_if_include": NETWORK,
        }

    @staticmethod
    def port(name: str) -> list[str]:
        """Return the words for ``ip`` that set what a host is connected to."""
        return ["-n", SWITCH, "link", "set", f"to-{name}"]

    def dropping(self, name: str, *, after: Path, times: int, for_s: float) -> list[object]:
        """Return what to put before a command: a host's packets are dropped meanwhile.

        So many times, for so long each, once a file is there.
        """
        port = shlex.join(["ip", *self.port(name)])
        outage = f"{port} nomaster; sleep {for_s}; {port} master {BRIDGE}; sleep {for_s}"
        waiting = f"while [ ! -e '{after}' ]; do sleep 0.05; done"
        script = f"{waiting}; for _ in $(seq {times}); do {outage}; done; touch '{after}.done'"
        return ["sh", "-c", f'({script}) & exec "$@"', "sh"]

    def kill(self, name: str) -> None:
        """Kill all processes of a host at once."""
        for pid in self.pids(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)

    def pids(self, name: str) -> list[int]:
        """Return the processes of a host."""
        found = subprocess.run(
            ["ip", "netns", "pids", name], check=False, capture_output=True, text=True
        )
        return [int(pid) for pid in found.stdout.split()]


def ip(*words: str) -> None:
    """Do it, or skip the test: the kernel may not allow it here."""
    done = execute(["ip", *words], timeout_s=10)
    if done.status:
        pytest.skip(f"no hosts can be made here: ip {' '.join(words)}: {done.output}")


@contextlib.contextmanager
def hosts(count: int) -> Iterator[Hosts]:
    """Make hosts, and remove them; skip the test where that cannot be done."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("hosts are network namespaces: making them takes root, and iproute2")
    if mpi_implementation() != "Open MPI":
        pytest.skip("the hosts are reached through options of Open MPI")
    place = Path(tempfile.gettempdir())
    with (place / "diel-test-hosts.lock").open("w") as lock, tempfile.TemporaryDirectory() as work:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = Hosts(count, Path(work))
        try:
            made.up()
            yield made
        finally:
            made.down()
