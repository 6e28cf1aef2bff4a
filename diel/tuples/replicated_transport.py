"""The transport of a client's requests over MPI to replicated servers, each of which has a twin."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from diel.errors import TupleError
from diel.tuples.mpi_transport import MpiTransport
from diel.tuples.protocol import (
    MOST_RECEIPTS,
    Operation,
    Payload,
    Reply,
    Seal,
    pack_notice,
    seal,
    unpack_prefix,
)
from diel.tuples.transport import Targets, Transport

if TYPE_CHECKING:
    from mpi4py import MPI

    from diel.comm.meter import Meter

_NOTHING: Final = Reply(0, 0, 0)  # no request has the number 0


def open_transport(
    comm: MPI.Intracomm,
    servers: Sequence[int],
    tails: Sequence[int],
    safe_point: Callable[[], None],
    transfer_safe_point: Callable[[], None] | None = None,
    meter: Meter | None = None,
) -> MpiTransport:
    """Return a transport to tuple servers: replicated if they have twins (`tails`), else plain."""
    if not tails:
        return MpiTransport(comm, servers, safe_point, transfer_safe_point, meter)
    return ReplicatedTransport(comm, servers, tails, safe_point, transfer_safe_point, meter)


class ReplicatedTransport(MpiTransport):
    """A transport to tuple servers, and to the twins of servers that have died.

    Here a server's index is the number of a partition; `tails` are the ranks of the twins, and the
    other parameters those of `MpiTransport`. Payloads are copied, since they may have to be resent.
    """

    def __init__(
        self, comm: MPI.Intracomm, servers: Sequence[int], tails: Sequence[int], *others: Any
    ) -> None:
        super().__init__(comm, servers, *others)
        self._sent = SentMessages(servers, tails)
        self._ranks = self._sent.ranks
        self._known_dead: set[int] = set()

    @property
    def gpu_aware(self) -> bool:
        """Whether payloads may be in GPU memory: never, since they are copied."""
        return False

    def send(self, server: int, message: bytes, payload: Payload = None) -> None:
        """Send a request; return when the payload may be changed."""
        copy = None if payload is None else bytes(payload)
        self._send_sealed(server, self._sent.add(server, message, copy), copy)
        self._look_for_deaths()

    # Not those of `MpiTransport`, which send by themselves: every message goes through `send`.
    send_all = Transport.send_all
    sender = Transport.sender
    take_quickly = Transport.take_quickly

    def drop(self, request_id: int) -> None:
        """Stop keeping the reply to a request, and do not resend the request."""
        super().drop(request_id)
        self._sent.forget(request_id)

    def _is_here(self) -> bool:
        is_here = super()._is_here()
        self._look_for_deaths()
        return is_here

    def _look_for_deaths(self) -> None:
        """Resend unanswered messages to the twins of servers that have newly died."""
        dead = self._dead_ranks.ranks
        if len(dead) > len(self._known_dead):
            self._known_dead = set(dead)
            for server, message, payload in self._sent.fail_over(dead):
                self._send_sealed(server, message, payload)

    def _send_sealed(self, server: int, message: bytes, payload: Payload = None) -> None:
        with contextlib.suppress(TupleError):  # the server has died during a payload: resent later
            super().send(server, message, payload)

    def _take_reply(
        self, request_ids: Collection[int], targets: Targets
    ) -> tuple[int, Reply, list[MPI.Request] | None]:
        """Return server and reply, with its whole payload; `_NOTHING` for a duplicate reply."""
        try:
            _, reply, pieces = super()._take_reply(request_ids, targets)
            if pieces is not None:
                self._finish_receiving(pieces, reply)
        except (self._mpi.Exception, TupleError) as error:
            # The server has died during the payload: its twin sends the whole reply.
            if isinstance(error, self._mpi.Exception):
                self._dead_ranks.note(error)
            return 0, _NOTHING, None
        server = self._sent.received(reply.request_id)
        if server is None:
            return 0, _NOTHING, None
        if pieces is not None:  # confirm at once, so that the head can free the large reply
            self._send_sealed(server, self._sent.confirmation(server))
        return server, reply, None

    def _start_payload(self, payload: Payload, rank: int) -> list[MPI.Request]:
        try:
            return super()._start_payload(payload, rank)
        except self._mpi.Exception as error:
            self._dead_ranks.note(error)
            return []


# -- messages that may have to be sent again -------------------------------------------------------


class SentMessages:
    """The messages that a client has sent to replicated servers and may have to resend.

    A reply means that all earlier messages to that partition are in both stores. Puts have no
    reply, but their number is limited by credit, and the request for more credit has a reply.

    Parameters
    ----------
    heads, tails : sequence of int
        The ranks of the head and the tail of each partition.

    Attributes
    ----------
    ranks : list of int
        The rank that requests for each partition go to at present.
    """

    def __init__(self, heads: Sequence[int], tails: Sequence[int]) -> None:
        self.ranks = list(heads)
        self._tails = tuple(tails)
        self._numbers = [0] * len(heads)
        self._receipts: list[list[int]] = [[] for _ in heads]
        # By number, oldest first: puts, which have no reply, and requests without a reply so far.
        self._puts: list[deque[tuple[int, bytes, Payload]]] = [deque() for _ in heads]
        self._asked: list[dict[int, tuple[bytes, Payload]]] = [{} for _ in heads]
        self._places: dict[int, tuple[int, int]] = {}  # partition and number, by request id

    def add(self, partition: int, message: bytes, payload: Payload = None) -> bytes:
        """Record a message that is about to be sent; return it with its seal."""
        self._numbers[partition] = number = self._numbers[partition] + 1
        sealed = seal(message, Seal(partition, number, self._take_receipts(partition)))
        request_id = unpack_prefix(message)[0]
        if request_id:
            self._places[request_id] = partition, number
            self._asked[partition][number] = sealed, payload
        else:
            self._puts[partition].append((number, sealed, payload))
        return sealed

    def confirmation(self, partition: int) -> bytes:
        """Return a CONFIRM message, which contains only receipts of replies."""
        receipts = self._take_receipts(partition)
        return seal(pack_notice(Operation.CONFIRM), Seal(partition, 0, receipts))

    def received(self, request_id: int) -> int | None:
        """Record a reply; return its partition, None if it is a duplicate or no longer awaited."""
        if request_id not in self._places:
            return None
        partition, number = self._places[request_id]
        self.forget(request_id)
        puts = self._puts[partition]
        while puts and puts[0][0] < number:
            puts.popleft()
        return partition

    def forget(self, request_id: int) -> None:
        """Drop a request that need not be resent, and add its id to the receipts."""
        if request_id in self._places:
            partition, number = self._places.pop(request_id)
            del self._asked[partition][number]
            self._receipts[partition].append(request_id)

    def fail_over(self, dead: Collection[int]) -> list[tuple[int, bytes, Payload]]:
        """Switch to the tails of partitions whose heads have died.

        Returns
        -------
        list of (int, bytes, payload)
            The messages to resend, in this order: partition, message and payload.

        Raises
        ------
        TupleError
            If both servers of a partition have died.
        """
        resent: list[tuple[int, bytes, Payload]] = []
        for partition, (rank, tail) in enumerate(zip(self.ranks, self._tails, strict=True)):
            if rank not in dead:
                continue
            if tail in dead:
                raise TupleError(
                    f"the tuple servers on ranks {rank} and {tail} have died"
                    if rank != tail
                    else f"the tuple server on rank {tail} has died, as its twin had before"
                )
            self.ranks[partition] = tail
            asked = [(number, *sent) for number, sent in self._asked[partition].items()]
            for _, sealed, payload in sorted([*self._puts[partition], *asked], key=itemgetter(0)):
                resent.append((partition, sealed, payload))
        return resent

    def _take_receipts(self, partition: int) -> list[int]:
        waiting = self._receipts[partition]
        if not waiting:
            return waiting
        receipts, self._receipts[partition] = waiting[:MOST_RECEIPTS], waiting[MOST_RECEIPTS:]
        return receipts
