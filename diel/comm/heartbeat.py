"""The process on a host that watches its ranks' processes and reports to rank 0: its program.

Neither MPI nor its launcher notice in time that a host's network is cut, or that a process has been
stopped. A rank that computes cannot report; this process can, at no cost to the rank::

    python -I -S heartbeat.py DESCRIPTOR
    rank -> here        a line of JSON: the ranks' process ids, rank 0's addresses, intervals
    here -> rank        an empty line when rank 0 is reached; else why it is not, in a line

    here -> rank 0      the token and all ranks of this host, in a line; then, every few
                        seconds, a line with the ranks whose processes run; and at once, with a
                        minus sign, the ranks whose processes have ended
    rank 0 -> here      an empty line: the run is over, no further report is needed
                        a line with an x: ranks that are there a while later are killed

It ends after the last of its ranks, or at the empty line of rank 0. When rank 0 has died, or cannot
be reached for as long as a host may be silent, the ranks that are left are killed: rank 0 counts
them as lost, or cannot release them, and they must not meet the ranks that go on elsewhere.

It imports nothing of diel, so that it starts in milliseconds.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time

OVER = b"\n"
LEAVE = b"x\n"

_LOOK_EVERY_S = 0.1
_AFTER_DEATH_S = 1.0
_CONNECTING_S = 3.0


def look_at(pid: int) -> tuple[str, int] | None:
    """Return the state of a process, as a letter of ps, and the ticks at which it started.

    None if it has ended, or is not visible from here.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    state = fields[0].decode()
    return None if state in "ZXx" else (state, int(fields[19]))


class Processes:
    """The processes of one host's ranks: which run, which are stopped, which have ended.

    Parameters
    ----------
    pids : dict of int to int
        By rank. Processes that are not visible, as in another container, are left out.
    """

    def __init__(self, pids: dict[int, int]) -> None:
        seen = {rank: (pid, look_at(pid)) for rank, pid in pids.items()}
        self._found = {rank: (pid, look[1]) for rank, (pid, look) in seen.items() if look}
        self._files: dict[int, int] = {}

    @property
    def ranks(self) -> list[int]:
        """Ranks whose processes were visible at the start, without those that `ended` returned."""
        return list(self._found)

    def heard(self) -> list[int]:
        """Return the ranks whose processes run: none that is stopped, except by a debugger."""
        return [rank for rank in self._found if self._state(rank) not in ("", "T")]

    def left(self) -> list[int]:
        """Return the ranks whose processes have not ended, stopped or not."""
        return [rank for rank in self._found if self._state(rank)]

    def watch(self) -> None:
        """Open a descriptor for each process, for `files`."""
        for rank, (pid, _) in self._found.items():
            try:
                self._files[rank] = os.pidfd_open(pid)
            except OSError:  # the process has just ended, or this system has no such descriptors
                continue

    @property
    def files(self) -> list[int]:
        """Descriptors, each readable from the end of its process until `ended` has returned it."""
        return list(self._files.values())

    def ended(self) -> list[int]:
        """Return the ranks whose processes have ended since the last call."""
        gone = [rank for rank in self._found if not self._state(rank)]
        for rank in gone:
            del self._found[rank]
            if rank in self._files:
                os.close(self._files.pop(rank))
        return gone

    def kill(self) -> None:
        """Kill all processes that have not ended."""
        for rank in self.left():
            try:
                os.kill(self._found[rank][0], signal.SIGKILL)
            except OSError:  # it has just ended
                continue

    def _state(self, rank: int) -> str:
        pid, started_ticks = self._found[rank]
        look = look_at(pid)
        return look[0] if look is not None and look[1] == started_ticks else ""


def _connect(addresses: list[str], port: int, timeout_s: float) -> socket.socket:
    problem = OSError("no address is known")
    for address in addresses:
        try:
            connection = socket.create_connection((address, port), _CONNECTING_S)
        except OSError as error:
            problem = error
            continue
        connection.settimeout(timeout_s)
        # The kernel of rank 0's host acknowledges what is sent, however busy rank 0 itself is.
        timeout_ms = int(timeout_s * 1000)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    raise problem


def _seconds_left(connection: socket.socket, leave_s: float) -> float | None:
    """Return seconds until ranks are killed after rank 0's last message; None if they may stay."""
    try:
        said = connection.recv(1)
    except ConnectionError:
        said = b""
    if not said:  # rank 0 has died
        return _AFTER_DEATH_S
    return None if said == OVER[:1] else leave_s


def _beat(
    connection: socket.socket, processes: Processes, every_s: float, leave_s: float
) -> float | None:
    """Report which ranks run until no process is left, or rank 0 ends the reports.

    Return seconds until the ranks that are left are killed; None if they may stay.
    """
    processes.watch()
    while True:
        ended = [f"-{rank}" for rank in processes.ended()]
        try:
            connection.sendall(" ".join([*map(str, processes.heard()), *ended]).encode() + b"\n")
            if not processes.left():
                return None
            waits_for = [connection.fileno(), *processes.files]
            if connection.fileno() in select.select(waits_for, [], [], every_s)[0]:
                return _seconds_left(connection, leave_s)
        except (ConnectionResetError, BrokenPipeError):  # rank 0 has ended
            return _seconds_left(connection, leave_s)
        except OSError:  # rank 0 cannot be reached, so it could not tell ranks here to leave
            return 0.0


def main() -> None:
    """Report to rank 0 until it ends the reports; kill the ranks of this host that must end."""
    with open(int(sys.argv[1]), "r+b", buffering=0) as rank:
        settings = json.loads(rank.readline())
        processes = Processes({int(rank): pid for rank, pid in settings["pids"].items()})
        try:
            connection = _connect(settings["addresses"], settings["port"], settings["timeout_s"])
            hello = [settings["token"], *map(str, processes.ranks)]
            connection.sendall(" ".join(hello).encode() + b"\n")
        except OSError as error:
            rank.write(f"{error}\n".encode())
            return
        rank.write(b"\n")
    left_s = _beat(connection, processes, settings["every_s"], settings["leave_s"])
    if left_s is None:
        return
    deadline_s = time.monotonic() + left_s
    while processes.left() and time.monotonic() < deadline_s:
        time.sleep(_LOOK_EVERY_S)
    processes.kill()


if __name__ == "__main__":
    main()
