"""A tuple server: receives requests, hands them to the store, sends the replies.

It never blocks on one client: payloads come and go in the background, and what a client sends
behind an unfinished payload of its own is held back until that is whole, so that order is kept.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diel.comm import tags
from diel.comm.waiting import Patience
from diel.tuples.protocol import Buffer, Reply, Request, chunks, pack_reply, unpack_request
from diel.tuples.store import TupleStore

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass
class _Transfer:
    """A payload on its way in, and what its client has sent since."""

    request: Request
    pieces: list[MPI.Request]
    held_back: deque[tuple[Request, int]] = field(default_factory=deque)


class TupleServer:
    """Serves one `TupleStore` to the clients on a communicator.

    Parameters
    ----------
    comm : MPI.Intracomm
    clock : callable, optional
        Returns seconds; the store itself has no clock.
    """

    def __init__(self, comm: MPI.Intracomm, clock: Callable[[], float] = time.monotonic) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = comm
        self._clock = clock
        self._transfers: dict[int, _Transfer] = {}
        self._sending: deque[tuple[MPI.Request, Buffer]] = deque()
        self.store = TupleStore()

    def serve(self, should_leave: Callable[[], bool]) -> None:
        """Serve until `should_leave`, which is asked when there is nothing else to do."""
        patience = Patience()
        while True:
            if self._serve_once():
                patience.reset()
            elif not self._moving() and patience.pause() and should_leave():
                return

    def _serve_once(self) -> bool:
        """Do what can be done without waiting; say whether there was anything."""
        busy = self._receive_request()
        if self._transfers:
            busy |= self._finish_transfers()
        if self.store.next_deadline_s() <= (now_s := self._clock()):
            self._send(self.store.expire(now_s))
            busy = True
        while self._sending and self._sending[0][0].Test():
            self._sending.popleft()
        return busy

    def _moving(self) -> bool:
        """Whether a transfer of our own is under way: MPI moves it only while it is called."""
        return bool(self._transfers or self._sending)

    def _receive_request(self) -> bool:
        status = self._mpi.Status()
        message = self._comm.Improbe(self._mpi.ANY_SOURCE, tags.CLIENT_TO_SERVER, status)
        if message is None:
            return False
        data = bytearray(status.Get_count(self._mpi.BYTE))
        message.Recv([data, self._mpi.BYTE])
        client = status.Get_source()
        request, payload_bytes = unpack_request(data, client)
        transfer = self._transfers.get(client)
        if transfer is None:
            self._accept(request, payload_bytes)
        else:
            transfer.held_back.append((request, payload_bytes))
        return True

    def _accept(self, request: Request, payload_bytes: int) -> None:
        if not payload_bytes:
            self._send(self.store.handle(request, self._clock()))
            return
        payload = bytearray(payload_bytes)
        pieces = [
            self._comm.Irecv([piece, self._mpi.BYTE], request.client, tags.CLIENT_TO_SERVER_PAYLOAD)
            for piece in chunks(payload)
        ]
        whole = request._replace(payload=payload)
        self._transfers[request.client] = _Transfer(whole, pieces)

    def _finish_transfers(self) -> bool:
        finished = [
            client
            for client, transfer in self._transfers.items()
            if self._mpi.Request.Testall(transfer.pieces)
        ]
        for client in finished:
            transfer = self._transfers.pop(client)
            self._send(self.store.handle(transfer.request, self._clock()))
            while transfer.held_back and client not in self._transfers:
                self._accept(*transfer.held_back.popleft())
            if transfer.held_back:
                self._transfers[client].held_back = transfer.held_back
        return bool(finished)

    def _send(self, replies: list[Reply]) -> None:
        for reply in replies:
            message, payload = pack_reply(reply)
            self._start_sending(message, reply.client, tags.SERVER_TO_CLIENT)
            if payload is not None:
                for piece in chunks(payload):
                    self._start_sending(piece, reply.client, tags.SERVER_TO_CLIENT_PAYLOAD)

    def _start_sending(self, data: Buffer, client: int, tag: int) -> None:
        request = self._comm.Isend([data, self._mpi.BYTE], client, tag)
        if not request.Test():
            self._sending.append((request, data))
