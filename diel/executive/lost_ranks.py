"""Detection of lost ranks on rank 0: ranks that MPI reports as dead, or that are silent too long.

Each loss is one event for the scheduler. Where rank 0 itself waits for the answer of a tuple server
that is lost, `ServerLost` ends the wait and carries the event.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from diel.errors import TupleError
from diel.executive.events import Event, RanksDied, RanksSilent

if TYPE_CHECKING:
    from diel.comm.parent import Parent
    from diel.executive.heartbeats import Heartbeats


class ServerLost(Exception):
    """Ranks were lost while rank 0 waited for a tuple server's answer, which may never come."""

    def __init__(self, event: RanksSilent | RanksDied) -> None:
        super().__init__(event)
        self.event = event


class LostRanks:
    """Detects which ranks have died or fallen silent, and returns events for the scheduler.

    Parameters
    ----------
    parent : Parent
    heartbeats : Heartbeats
    lone_servers : sequence of int
        Tuple servers without a twin; where there is a twin, the client turns to it by itself.
    forget : callable
        Called with ranks that have died, before the event is returned.
    survives_loss : bool
        Whether the run may go on without ranks that have died.

    Attributes
    ----------
    dead, silent : set of int
        Ranks for which there has been an event.
    """

    def __init__(
        self,
        parent: Parent,
        heartbeats: Heartbeats,
        lone_servers: Sequence[int],
        *,
        forget: Callable[[set[int]], None],
        survives_loss: bool,
    ) -> None:
        self._parent, self._heartbeats = parent, heartbeats
        self._lone_servers = tuple(lone_servers)
        self._forget = forget
        self._survives_loss = survives_loss
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
