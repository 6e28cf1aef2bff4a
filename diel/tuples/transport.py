"""The base class of what carries the requests of a client to its servers.

`mpi_transport` does it over MPI, `local_transport` within one process.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeAlias

from diel.tuples.protocol import Payload, Reply

LARGEST_REQUEST_ID: Final = 2**32 - 1

Targets: TypeAlias = "Mapping[int, memoryview] | None"
"""Where large payloads shall land, by request."""


class Transport(ABC):
    """Carries the requests of one client to its servers, and keeps replies until they are wanted.

    Parameters
    ----------
    servers : int
        How many there are, numbered from 0.

    Attributes
    ----------
    cut_short : dict of int to int
        Requests whose replies nobody waits for any more since an exception ended the wait, and
        their operations, 0 where that is not known here.
    """

    def __init__(self, servers: int) -> None:
        self.servers = servers
        self.cut_short: dict[int, int] = {}
        self._request_id = 0
        self._kept: set[int] = set()
        self._early: dict[int, tuple[int, Reply]] = {}

    @abstractmethod
    def send(self, server: int, message: bytes, payload: Payload = None) -> None:
        """Send a request; return when the payload may be changed."""

    @abstractmethod
    def sender(self, server: int) -> Callable[[bytes], None]:
        """Return what sends to a server messages without a payload."""

    def send_all(self, parts: Sequence[tuple[int, bytes, Payload]]) -> None:
        """Send (server, message, payload) to several servers at the same time."""
        for server, message, payload in parts:
            self.send(server, message, payload)

    @abstractmethod
    def take_quickly(self, server: int, rest: bytes) -> tuple[int, bytes | None]:
        """Ask for a tuple, and look for the reply for a short while.

        Parameters
        ----------
        server : int
        rest : bytes
            All of the `PLAIN` question behind its number.

        Returns
        -------
        int
            The number of the request.
        bytes or None
            The tuple's value, if that is bytes; None if the reply is to be had with `receive`.
        """

    @abstractmethod
    def receive(
        self, request_ids: Collection[int], timeout_s: float = math.inf, targets: Targets = None
    ) -> tuple[int, Reply]:
        """Wait for the reply to one of some requests; return (server, reply).

        A payload that travels apart lands in the memory that `targets` has for its request, if that
        has its size. Replies to other requests are kept if they were announced with `keep`, and
        dropped otherwise.
        """

    @abstractmethod
    def receive_all(
        self, request_ids: Collection[int], targets: Targets = None
    ) -> list[tuple[int, Reply]]:
        """Wait for the replies to all of some requests, whose payloads come at the same time."""

    @abstractmethod
    def poll(self, request_ids: Collection[int]) -> tuple[int, Reply] | None:
        """Return the reply to one of some requests, as `receive`, if it is here."""

    # -- requests and early replies -----------------------------------------------------------

    def next_request_id(self) -> int:
        """Return a number for a request, different from all that are under way."""
        self._request_id = self._request_id % LARGEST_REQUEST_ID + 1
        return self._request_id

    @property
    def latest_request_id(self) -> int:
        """The number of the latest request."""
        return self._request_id

    def keep(self, request_id: int) -> None:
        """Keep the reply to a request until it is received."""
        self._kept.add(request_id)

    def kept(self, request_ids: Collection[int]) -> list[tuple[int, Reply]]:
        """Return the (server, reply) to kept requests that are here."""
        return [self._early[request_id] for request_id in request_ids if request_id in self._early]

    def drop(self, request_id: int) -> None:
        """Do not keep the reply to a request any longer."""
        self._kept.discard(request_id)
        self._early.pop(request_id, None)

    def _note_cut_short(self, request_ids: Collection[int], operation: int = 0) -> None:
        """Remember that a wait was ended; a tuple that comes all the same must not be lost."""
        self.cut_short.update(dict.fromkeys(request_ids, operation))
        self._kept.update(request_ids)

    def _take_early(self, request_ids: Collection[int]) -> tuple[int, Reply] | None:
        if self._early:
            for request_id in request_ids:
                if request_id in self._early:
                    return self._early.pop(request_id)
        return None

    def _sort(self, server: int, reply: Reply) -> None:
        if reply.request_id in self._kept:
            self._early[reply.request_id] = (server, reply)
