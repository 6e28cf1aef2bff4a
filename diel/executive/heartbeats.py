"""Rank 0's side of heartbeats: which ranks or hosts are silent or dead, and thus lost.

Each loss is one event for the scheduler. Where rank 0 itself waits for the answer of a tuple server
that is lost, `ServerLost` ends the wait and carries the event.

A host whose network is cut, and a process that was stopped, leave MPI waiting for good. Rank 0
looks at the processes of its own host, and a small process on each other host reports which ranks
are alive there (`diel.comm.heartbeat`), over a connection that begins with the token of the run. If
the run may go on without ranks that have died, rank 0's own host has such a process too: it reports
at once which rank's process has ended, and ends the ranks of its host if rank 0 has died.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import re
import secrets
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from diel.comm import heartbeat
from diel.errors import TupleError
from diel.executive.events import Event, RanksDied, RanksSilent
from diel.processes import start_helper

if TYPE_CHECKING:
    from diel.comm.parent import Parent
    from diel.executive.plans import RunPlan

_BEATS: Final = 6
"""A rank counts as lost when it has missed so many heartbeats."""
_LONGEST_BEAT_S: Final = 5.0
_READ_BYTES: Final = 64 * 1024
_LONGEST_LINE_BYTES: Final = 1 << 20
_BACKLOG: Final = 1024
_STARTING_S: Final = 20.0
_THIS_HOST: Final = "127.0.0.1"
_RANK: Final = re.compile(rb"-?[0-9]{1,9}")


def beat_every_s(timeout_s: float) -> float:
    """Return the interval of heartbeats for a timeout after which silent ranks count as lost."""
    return min(timeout_s / _BEATS, _LONGEST_BEAT_S)


class SilenceWatch:
    """Tracks each rank's last heartbeat, and which ranks are silent for too long; pure.

    Time in which rank 0 was stopped or busy counts as one beat at most: heartbeats that were sent
    meanwhile have yet to be read.
    """

    def __init__(self, timeout_s: float, every_s: float) -> None:
        self._timeout_s = timeout_s
        self._every_s = every_s
        self._listened_s = 0.0
        self._looked_s: float | None = None
        self._heard_s: dict[int, float] = {}
        self._forgotten: set[int] = set()

    def note(self, ranks: Iterable[int], now_s: float) -> None:
        """Record heartbeats of ranks; a rank is watched from its first heartbeat on."""
        self._listen(now_s)
        heard = set(ranks) - self._forgotten  # a late heartbeat must not start the watch again
        self._heard_s.update(dict.fromkeys(heard, self._listened_s))

    def forget(self, rank: int) -> bool:
        """Stop watching a rank, which leaves the run; return whether it was watched."""
        self._forgotten.add(rank)
        return self._heard_s.pop(rank, None) is not None

    def silent(self, now_s: float) -> dict[int, float]:
        """Return the ranks that are lost, with the seconds that each has been silent."""
        self._listen(now_s)
        since = {rank: self._listened_s - heard_s for rank, heard_s in self._heard_s.items()}
        return {rank: silent_s for rank, silent_s in since.items() if silent_s >= self._timeout_s}

    def _listen(self, now_s: float) -> None:
        if self._looked_s is not None:
            self._listened_s += min(max(0.0, now_s - self._looked_s), self._every_s)
        self._looked_s = now_s


class HeartbeatAddress(NamedTuple):
    """Rank 0's address for heartbeats, with their interval and timeout.

    Attributes
    ----------
    addresses : tuple of str
        Host names and IP addresses of rank 0's host; the first that answers is used.
    port : int
    token : str
    every_s, timeout_s : float
    is_for_all : bool
        Whether rank 0's own host sends heartbeats to it too.
    leave_s : float
        How long ranks may take to leave by themselves when rank 0 is gone: longer than it takes
        where MPI hangs as it is finalized.
    """

    addresses: tuple[str, ...]
    port: int
    token: str
    every_s: float
    timeout_s: float
    is_for_all: bool = False
    leave_s: float = 12.0


def start_heartbeat(address: HeartbeatAddress, pids: Mapping[int, int]) -> subprocess.Popen[bytes]:
    """Start the process that reports to rank 0 which ranks of this host are alive.

    `pids` has their process ids. An OSError if it cannot be started, or does not reach rank 0.
    """
    settings = {**address._asdict(), "pids": pids}
    own_socket, helper_socket = socket.socketpair()
    with own_socket:
        with helper_socket:
            line = [sys.executable, "-I", "-S", heartbeat.__file__, str(helper_socket.fileno())]
            helper = start_helper(line, helper_socket.fileno(), environment=os.environ)
        own_socket.settimeout(_STARTING_S)
        own_socket.sendall(json.dumps(settings).encode() + b"\n")
        with own_socket.makefile("r") as answer:
            problem = answer.readline()
    if problem != "\n":
        helper.kill()
        helper.wait()
        raise OSError(problem.strip() or "the process that was to reach it has ended")
    return helper


class Heartbeats:
    """Receives the heartbeats of all ranks, on rank 0.

    Parameters
    ----------
    parent : Parent
    timeout_s : float
        How long a rank may be silent.
    warn : callable
        Called with the reason if heartbeats cannot be received.
    is_for_all : bool, optional
        Whether a process on this host, too, reports which of its ranks have ended.

    Attributes
    ----------
    address : HeartbeatAddress or None
        For the other hosts, or for all; None if no heartbeats are to be sent.
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
        other_pids = {rank: pid for rank, pid in parent.pids_here.items() if rank != parent.rank}
        self._here = heartbeat.Processes(other_pids)
        self._next_look_s = 0.0
        self._listening: socket.socket | None = None
        self._selector = selectors.DefaultSelector()
        self.address: HeartbeatAddress | None = None
        self.ended: set[int] = set()
        is_alone = all(host == parent.host for host, _ in parent.hosts_and_gpus)
        if not is_alone or (is_for_all and other_pids):
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
        """Read heartbeats; return the ranks that are silent for too long, with their seconds."""
        if self._listening is not None:
            self._read(now_s)
        if now_s < self._next_look_s:
            return {}
        is_first = not self._next_look_s
        self._next_look_s = now_s + self._every_s / 2
        self._watch.note(self._here.ranks if is_first else self._here.heard(), now_s)
        return self._watch.silent(now_s)

    def forget(self, rank: int) -> None:
        """Stop watching a rank, which leaves the run."""
        self._watch.forget(rank)

    def close(self, *, kills: bool) -> None:
        """Close all connections; `kills` says whether hosts shall kill the ranks that are left."""
        for key in list(self._selector.get_map().values()):
            if key.fileobj is not self._listening:
                with contextlib.suppress(OSError):
                    message = heartbeat.LEAVE if kills else heartbeat.OVER
                    key.fileobj.send(message)  # type: ignore[union-attr]
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
            except OSError:  # the connection is lost, so the host's ranks will count as silent
                data = None
            heard = host.take(data, self.address) if data else None
            if heard is None:  # its ranks have left, or the token is wrong
                self._selector.unregister(connection)
                connection.close()
                if data == b"":
                    self._stop_watching(host)
                continue
            living = {rank for rank in heard if rank > 0}
            host.ranks |= living
            self._watch.note(living, now_s)
            self.ended.update(-rank for rank in heard if rank < 0)

    def _stop_watching(self, host: _Host) -> None:
        """Stop watching the ranks of a host whose heartbeat process has ended before them."""
        reported = sorted((host.ranks - self.ended).difference(self._here.ranks))
        unwatched = [rank for rank in reported if self._watch.forget(rank)]
        if unwatched:
            name = self._parent.hosts_and_gpus[unwatched[0]][0]
            self._warn(
                f"the process on {name} that tells which ranks live there has ended before them: "
                f"that {name} falls silent will not be noticed"
            )

    def _accept(self) -> None:
        assert self._listening is not None
        with contextlib.suppress(OSError):
            while True:  # until no connection is pending
                accepted, _ = self._listening.accept()
                accepted.setblocking(False)
                self._selector.register(accepted, selectors.EVENT_READ, _Host())


class _Host:
    """The connection of one host: the bytes of an incomplete line, and the ranks it reported."""

    def __init__(self) -> None:
        self.ranks: set[int] = set()
        self._received = b""
        self._is_known = False

    def take(self, data: bytes, address: HeartbeatAddress | None) -> set[int] | None:
        """Return the ranks with a heartbeat in received data; a negative rank has ended.

        None if the sender does not have the token of the run, or sends anything but ranks.
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
            if not all(_RANK.fullmatch(word) for word in words):
                return None
            heard.update(map(int, words))
        return heard


# -- what the scheduler is told --------------------------------------------------------------------


class ServerLost(Exception):
    """Ranks were lost while rank 0 waited for a tuple server's answer, which may never come."""

    def __init__(self, event: RanksSilent | RanksDied) -> None:
        super().__init__(event)
        self.event = event


class LostRanks:
    """Detects which ranks have died or fallen silent, and returns events for the scheduler.

    `forget` is called with ranks that have died, before the event is returned. There has been an
    event for those that are in `dead` and `silent`.
    """

    def __init__(
        self,
        parent: Parent,
        heartbeats: Heartbeats,
        plan: RunPlan,
        forget: Callable[[set[int]], None],
    ) -> None:
        self._parent, self._heartbeats = parent, heartbeats
        # Where a server has a twin, the client turns to that by itself.
        self._lone_servers = () if plan.tail_ranks else plan.server_ranks
        self._forget = forget
        self._survives_loss = plan.survives_loss
        self.dead: set[int] = set()
        self.silent: set[int] = set()

    @property
    def has_news(self) -> bool:
        """Whether `look_for_deaths` would return an event."""
        return self._parent.dead_ranks.ranks != self.dead

    def look_for_deaths(self) -> RanksDied | None:
        """Return an event if ranks have died since the last call."""
        dead = self._parent.dead_ranks.ranks - self.dead
        if not dead:
            return None
        self.dead |= dead
        for rank in dead:
            self._heartbeats.forget(rank)
        self._forget(dead)
        return RanksDied({rank: self._parent.hosts_and_gpus[rank][0] for rank in dead})

    def look_for_silence(self, now_s: float) -> RanksSilent | None:
        """Return an event if ranks have sent no heartbeat for too long."""
        silent = self._heartbeats.look(now_s)
        if self._survives_loss:
            self._parent.dead_ranks.add(self._heartbeats.ended)
        if not silent:
            return None
        hosts = {rank: self._parent.hosts_and_gpus[rank][0] for rank in silent}
        self.silent.update(silent)
        silent_s = max(silent.values())
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - silent_s))
        return RanksSilent(hosts, silent_s, since)

    def raise_if_server_is_lost(self) -> None:
        """Raise `ServerLost` if a tuple server without a twin has died, or any rank is silent."""
        silence = self.look_for_silence(time.monotonic())
        if silence is not None:
            raise ServerLost(silence)
        if not self._parent.dead_ranks.ranks.isdisjoint(self._lone_servers):
            died = self.look_for_deaths()
            if died is not None:
                raise ServerLost(died)

    def event_of_loss(self, error: ServerLost | TupleError) -> Event:
        """Return the event of the loss behind a failed request to a server; else raise `error`."""
        if isinstance(error, ServerLost):
            return error.event
        died = self.look_for_deaths()  # a server that dies during a payload causes a TupleError
        if died is None:
            raise error
        return died
