"""How rank 0 finds ranks and hosts that have fallen silent, which nothing else would tell.

A host whose network is cut, and a process that was stopped, leave MPI waiting for good. Rank 0
looks at the processes of its own host, and a small process on each other host tells it which ranks
live there (`diel.comm.heartbeat`), over a connection that begins with the token of the run. Where a
run goes on without ranks that have died, rank 0's own host has such a process too: it says at once
whose process has ended, and ends the ranks of its host if rank 0 has died.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import selectors
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from diel.comm import heartbeat
from diel.processes import start_helper

if TYPE_CHECKING:
    from diel.comm.parent import Parent

_BEATS: Final = 6
"""So many of them are missed before a rank is lost."""
_LONGEST_BEAT_S: Final = 5.0
_READ_BYTES: Final = 64 * 1024
_LONGEST_LINE_BYTES: Final = 1 << 20
_BACKLOG: Final = 1024
_STARTING_S: Final = 20.0
_THIS_HOST: Final = "127.0.0.1"


def beat_every_s(timeout_s: float) -> float:
    """Return how often ranks are heard of where silence of `timeout_s` means that they are lost."""
    return min(timeout_s / _BEATS, _LONGEST_BEAT_S)


class SilenceWatch:
    """Who has been heard of when, and who is silent for too long; pure.

    Time in which nobody listened, since rank 0 was stopped or busy, counts as one beat: what was
    said meanwhile has yet to be read.

    Parameters
    ----------
    timeout_s : float
    every_s : float
        How often ranks are heard of.
    """

    def __init__(self, timeout_s: float, every_s: float) -> None:
        self._timeout_s = timeout_s
        self._every_s = every_s
        self._listened_s = 0.0
        self._looked_s: float | None = None
        self._heard_s: dict[int, float] = {}
        self._forgotten: set[int] = set()

    def note(self, ranks: Iterable[int], now_s: float) -> None:
        """Record that ranks have been heard of; from the first time on they are watched."""
        self._listen(now_s)
        heard = set(ranks) - self._forgotten  # what has been said of these may come late
        self._heard_s.update(dict.fromkeys(heard, self._listened_s))

    def forget(self, rank: int) -> bool:
        """Watch a rank no longer: it leaves. Return whether it was watched."""
        self._forgotten.add(rank)
        return self._heard_s.pop(rank, None) is not None

    def silent(self, now_s: float) -> dict[int, float]:
        """Return the ranks that are lost, and for how many seconds each has been silent."""
        self._listen(now_s)
        since = {rank: self._listened_s - heard_s for rank, heard_s in self._heard_s.items()}
        return {rank: silent_s for rank, silent_s in since.items() if silent_s >= self._timeout_s}

    def _listen(self, now_s: float) -> None:
        if self._looked_s is not None:
            self._listened_s += min(max(0.0, now_s - self._looked_s), self._every_s)
        self._looked_s = now_s


class HeartbeatAddress(NamedTuple):
    """Where ranks are heard, and how often they are to say something.

    Attributes
    ----------
    addresses : tuple of str
        Names and numbers of rank 0's host; the first that answers is taken.
    port : int
    token : str
    every_s, timeout_s : float
    is_for_all : bool
        Whether ranks of rank 0's own host are to be heard there too.
    leave_s : float
        What ranks have to leave by themselves when rank 0 is gone: longer than it takes with MPI
        that hangs in its end.
    """

    addresses: tuple[str, ...]
    port: int
    token: str
    every_s: float
    timeout_s: float
    is_for_all: bool = False
    leave_s: float = 12.0


def start_heartbeat(address: HeartbeatAddress, pids: Mapping[int, int]) -> subprocess.Popen[bytes]:
    """Start the process that tells which ranks of this host live.

    Parameters
    ----------
    address : HeartbeatAddress
    pids : mapping of int to int
        The processes of this host's ranks.

    Returns
    -------
    subprocess.Popen

    Raises
    ------
    OSError
        If it cannot be started, or does not reach rank 0.
    """
    settings = {**address._asdict(), "pids": pids}
    ours, its = socket.socketpair()
    with ours:
        with its:
            line = [sys.executable, "-I", "-S", heartbeat.__file__, str(its.fileno())]
            helper = start_helper(line, its.fileno(), environment=os.environ)
        ours.settimeout(_STARTING_S)
        ours.sendall(json.dumps(settings).encode() + b"\n")
        with ours.makefile("r") as answer:
            problem = answer.readline()
    if problem != "\n":
        helper.kill()
        helper.wait()
        raise OSError(problem.strip() or "the process that was to reach it has ended")
    return helper


class Heartbeats:
    """Hears of the ranks of all hosts, as rank 0.

    Parameters
    ----------
    parent : Parent
    timeout_s : float
        How long a rank may be silent.
    warn : callable
        Told why other hosts cannot be heard, if so.
    is_for_all : bool, optional
        Whether a process beside the ranks of this host, too, says which of them have ended.

    Attributes
    ----------
    address : HeartbeatAddress or None
        For the other hosts, if there are some, or for all.
    ended : set of int
        Ranks whose processes are known to have ended.
    """

    def __init__(
        self,
        parent: Parent,
        timeout_s: float,
        warn: Callable[[str], object],
        *,
        is_for_all: bool = False,
    ) -> None:
        self._parent = parent
        self._timeout_s = timeout_s
        self._warn = warn
        self._every_s = beat_every_s(timeout_s)
        self._watch = SilenceWatch(timeout_s, self._every_s)
        others = {rank: pid for rank, pid in parent.pids_here.items() if rank != parent.rank}
        self._here = heartbeat.Processes(others)
        self._next_look_s = 0.0
        self._listening: socket.socket | None = None
        self._selector = selectors.DefaultSelector()
        self.address: HeartbeatAddress | None = None
        self.ended: set[int] = set()
        is_alone = all(host == parent.host for host, _ in parent.hosts_and_gpus)
        if not is_alone or (is_for_all and others):
            self.address = self._listen(is_alone=is_alone, is_for_all=is_for_all)

    def _listen(self, *, is_alone: bool, is_for_all: bool) -> HeartbeatAddress | None:
        both = socket.has_dualstack_ipv6() and not is_alone
        family = socket.AF_INET6 if both else socket.AF_INET
        place = _THIS_HOST if is_alone else ""
        try:
            self._listening = socket.create_server(
                (place, 0), family=family, backlog=_BACKLOG, dualstack_ipv6=both
            )
        except OSError as error:
            self._warn(f"that another host falls silent will not be noticed: no socket: {error}")
            return None
        self._listening.setblocking(False)
        self._selector.register(self._listening, selectors.EVENT_READ)
        names = [_THIS_HOST] if is_alone else [self._parent.host]
        with contextlib.suppress(OSError):
            names += [] if is_alone else socket.gethostbyname_ex(self._parent.host)[2]
        return HeartbeatAddress(
            tuple(dict.fromkeys(names)),
            self._listening.getsockname()[1],
            secrets.token_hex(16),
            self._every_s,
            self._timeout_s,
            is_for_all,
        )

    def look(self, now_s: float) -> dict[int, float]:
        """Take in what has been heard; return who is silent for too long, and how many seconds."""
        if self._listening is not None:
            self._read(now_s)
        if now_s < self._next_look_s:
            return {}
        is_first = not self._next_look_s
        self._next_look_s = now_s + self._every_s / 2
        self._watch.note(self._here.ranks if is_first else self._here.heard(), now_s)
        return self._watch.silent(now_s)

    def forget(self, rank: int) -> None:
        """Watch a rank no longer: it leaves."""
        self._watch.forget(rank)

    def close(self, *, kills: bool) -> None:
        """Hear no more; `kills` says that what is left on other hosts is killed there."""
        for key in list(self._selector.get_map().values()):
            if key.fileobj is not self._listening:
                with contextlib.suppress(OSError):
                    last = heartbeat.LEAVE if kills else heartbeat.OVER
                    key.fileobj.send(last)  # type: ignore[union-attr]
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()
        self._listening = None

    def _read(self, now_s: float) -> None:
        for key, _ in self._selector.select(0):
            if key.data is None:
                self._accept()
                continue
            connection, host = cast("socket.socket", key.fileobj), cast("_Host", key.data)
            try:
                data: bytes | None = connection.recv(_READ_BYTES)
            except BlockingIOError:
                continue
            except OSError:  # its ranks fall silent with it
                data = None
            heard = host.take(data, self.address) if data else None
            if heard is None:  # its ranks have left, or it is none of ours
                self._selector.unregister(connection)
                connection.close()
                if data == b"":
                    self._watch_no_more(host)
                continue
            living = {rank for rank in heard if rank > 0}
            host.ranks |= living
            self._watch.note(living, now_s)
            self.ended.update(-rank for rank in heard if rank < 0)

    def _watch_no_more(self, host: _Host) -> None:
        """Watch the ranks of a host no longer whose process that tells of them was killed."""
        told = sorted((host.ranks - self.ended).difference(self._here.ranks))
        left = [rank for rank in told if self._watch.forget(rank)]
        if left:
            name = self._parent.hosts_and_gpus[left[0]][0]
            self._warn(
                f"the process on {name} that tells which ranks live there has ended before them: "
                f"that {name} falls silent will not be noticed"
            )

    def _accept(self) -> None:
        assert self._listening is not None
        with contextlib.suppress(OSError):
            while True:  # until there are no more
                accepted, _ = self._listening.accept()
                accepted.setblocking(False)
                self._selector.register(accepted, selectors.EVENT_READ, _Host())


class _Host:
    """What one host has said, and of which ranks so far."""

    def __init__(self) -> None:
        self.ranks: set[int] = set()
        self._received = b""
        self._is_known = False

    def take(self, data: bytes, address: HeartbeatAddress | None) -> set[int] | None:
        """Return the ranks that have been heard of, below 0 those that have ended.

        None if it is somebody else who speaks.
        """
        *lines, self._received = (self._received + data).split(b"\n")
        if len(self._received) > _LONGEST_LINE_BYTES or address is None:
            return None
        heard: set[int] = set()
        for line in lines:
            words = line.split()
            if not self._is_known:
                token = words.pop(0) if words else b""
                if not hmac.compare_digest(token, address.token.encode()):
                    return None
                self._is_known = True
            heard.update(map(int, words))
        return heard
