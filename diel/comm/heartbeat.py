"""The process that tells rank 0 which ranks of another host live; one beside the ranks of each.

Neither MPI nor its launcher notice in time that a host's network is cut, or that a process has been
stopped. A rank that computes cannot say that it lives; this process can, at no cost to it::

    python -I -S heartbeat.py DESCRIPTOR
    rank -> here        JSON, in a line: who, where, how often
    here -> rank        an empty line when rank 0 is reached; else why it is not, in a line

    here -> rank 0      the token and all ranks of this host, in a line; then, every few
                        seconds, a line with those whose processes live and are not stopped; and
                        at once, with a minus sign, those whose processes have ended
    rank 0 -> here      an empty line: the run is over, nobody needs to be told any more
                        a line with an x: what is left of the ranks a while later is killed

It ends with the last of its ranks, or by the first of these. When rank 0 cannot be reached for as
long as a host may be silent, or has died, what is left of its ranks is killed: rank 0 takes them
for lost, or cannot let them go, and what goes on elsewhere must not meet them.

It runs without diel, so as to start in milliseconds.
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

    None if it is gone, or not to be seen from here.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    state = fields[0].decode()
    return None if state in "ZXx" else (state, int(fields[19]))


class Processes:
    """The ranks of one host, which are known by their processes.

    Parameters
    ----------
    pids : dict of int to int
        By rank. Those that cannot be seen, as from another container, are left out.
    """

    def __init__(self, pids: dict[int, int]) -> None:
        seen = {rank: (pid, look_at(pid)) for rank, pid in pids.items()}
        self._found = {rank: (pid, look[1]) for rank, (pid, look) in seen.items() if look}
        self._files: dict[int, int] = {}

    @property
    def ranks(self) -> list[int]:
        """Those that could be seen when this was made."""
        return list(self._found)

    def heard(self) -> list[int]:
        """Return the ranks whose processes live and are not stopped; a debugger does not count."""
        return [rank for rank in self._found if self._state(rank) not in ("", "T")]

    def left(self) -> list[int]:
        """Return the ranks whose processes are there, stopped or not."""
        return [rank for rank in self._found if self._state(rank)]

    def watch(self) -> None:
        """Have `files` end a wait."""
        for rank, (pid, _) in self._found.items():
            try:
                self._files[rank] = os.pidfd_open(pid)
            except OSError:  # it has just ended, or this system has no such files
                continue

    @property
    def files(self) -> list[int]:
        """Descriptors that can be read when a process has ended which `ended` has not named."""
        return list(self._files.values())

    def ended(self) -> list[int]:
        """Return, and forget, the ranks whose processes have ended."""
        gone = [rank for rank in self._found if not self._state(rank)]
        for rank in gone:
            del self._found[rank]
            if rank in self._files:
                os.close(self._files.pop(rank))
        return gone

    def kill(self) -> None:
        """Kill all that are left."""
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
        # The system of rank 0's host acknowledges what is sent, however busy rank 0 is itself.
        timeout_ms = int(timeout_s * 1000)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection
    raise problem


def _seconds_left(connection: socket.socket, leave_s: float) -> float | None:
    """Return how many seconds ranks have left after the last word of rank 0, or none."""
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
    """Tell who lives until no process is left, or rank 0 is gone.

    Return how many seconds are left to the ranks then; None if they may stay.
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
        except OSError:  # no way to it: no rank here could hear that it has to leave
            return 0.0


def main() -> None:
    """Serve until the ranks of this host are gone."""
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
