"""Which ranks are lost to rank 0: dead, as MPI says, or silent for too long.

A rank is lost once. The scheduler is told of it by an event; where rank 0 itself waits for the
answer of a tuple server that will not come, `ServerLost` ends the wait and brings the event.
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
    """Ranks are lost, perhaps the tuple server that was asked: no answer is waited for."""

    def __init__(self, event: RanksSilent | RanksDied) -> None:
        super().__init__(event)
        self.event = event


class LostRanks:
    """Finds out which ranks are lost.

    Parameters
    ----------
    parent : Parent
    heartbeats : Heartbeats
    lone_servers : sequence of int
        Tuple servers without a twin; of one that has a twin the client itself asks that.
    forget : callable
        Told of ranks that have died, before the event.
    survives_loss : bool
        Whether the run may go on without ranks that have died.

    Attributes
    ----------
    dead, silent : set of int
        Those of which there has been an event.
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
        """Say so if ranks have died that were not known to be dead."""
        dead = self._parent.dead_ranks.ranks - self.dead
        if not dead:
            return None
        self.dead |= dead
        for rank in dead:
            self._heartbeats.forget(rank)
        self._forget(dead)
        return RanksDied({rank: self._parent.hosts_and_gpus[rank][0] for rank in dead})

    def look_for_silence(self, now_s: float) -> RanksSilent | None:
        """Say so if ranks have not been heard of for too long."""
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
        """Raise `ServerLost` if a tuple server that nobody stands in for has died, or silence."""
        silence = self.look_for_silence(time.monotonic())
        if silence is not None:
            raise ServerLost(silence)
        if not self._parent.dead_ranks.ranks.isdisjoint(self._lone_servers):
            died = self.look_for_deaths()
            if died is not None:
                raise ServerLost(died)

    def loss_behind(self, error: ServerLost | TupleError) -> Event:
        """Return the loss of ranks that has ended a request to a server; raise what was none."""
        if isinstance(error, ServerLost):
            return error.event
        died = self.look_for_deaths()  # in the middle of a payload
        if died is None:
            raise error
        return died
