"""A store, and a few words to drive it with: what a client and the wire would do."""

from __future__ import annotations

import math
from typing import Any

from diel.tuples import codec
from diel.tuples.protocol import (
    TUPLE_OVERHEAD_BYTES,
    Operation,
    Reply,
    Status,
    pack_put,
    pack_query,
    unpack_reply,
)
from diel.tuples.store import TupleStore
from diel.tuples.tags import encode_pattern

Answer = tuple[int, int, bytes]

PATIENCE_S = 20  # for what should come at once


def key_bytes(tag: Any) -> bytes:
    return b"" if tag is None else encode_pattern(tag)[0]


def unpack(out: tuple[int, bytes, Any]) -> tuple[int, Reply]:
    client, message, payload = out
    return client, unpack_reply(message, payload)


class Driver:
    """Sends requests to a store as several clients and tells the replies."""

    def __init__(self, capacity_bytes: int = 2**30, refuse_when_full: bool = False) -> None:
        self.store = TupleStore(capacity_bytes, refuse_when_full)
        self.now_s = 0.0
        self.request_id = 0
        self.credit: dict[int, int] = {}
        """As the clients count it."""

    @property
    def held_bytes(self) -> int:
        return self.store.memory.held_bytes

    def put(
        self,
        tag: Any,
        payload: bytes = b"",
        *,
        client: int = 0,
        operation: Operation = Operation.PUT,
        argument: int = 0,
        request_id: int = 0,
        kind: int = codec.BYTES,
        meta: bytes = b"",
    ) -> list[tuple[int, Reply]]:
        message, apart = pack_put(
            operation, request_id, argument, kind, key_bytes(tag), meta, payload
        )
        cost = TUPLE_OVERHEAD_BYTES + len(message) + (0 if apart is None else len(apart))
        self._spend(client, cost)
        return self._tell(self.store.handle(client, message, self.now_s, apart))

    def ask(
        self,
        operation: Operation,
        tag: Any = None,
        *,
        client: int = 0,
        request_id: int = 0,
        timeout_s: float = math.inf,
        argument: int = 0,
        kind: int = -1,
        meta: bytes = b"",
    ) -> list[tuple[int, Reply]]:
        message = pack_query(
            operation,
            request_id,
            key_bytes(tag),
            timeout_s=timeout_s,
            argument=argument,
            kind=kind,
            meta=meta,
        )
        if operation == Operation.INCREMENT:
            self._spend(client, TUPLE_OVERHEAD_BYTES + len(message))
        return self._tell(self.store.handle(client, message, self.now_s))

    def only(self, operation: Operation, tag: Any = None, **fields: Any) -> Reply:
        """Ask, and return the one reply."""
        ((_, reply),) = self.ask(operation, tag, **fields)
        return reply

    def take(self, tag: Any, client: int = 0) -> bytes | None:
        """Take without waiting."""
        told = self.ask(Operation.TAKE, tag, timeout_s=0, client=client)
        assert told[0][0] == client
        reply = told[0][1]
        return bytes(reply.payload) if reply.status == Status.OK else None

    def claim(self, tag: Any, client: int = 1, lease_ms: int = 0) -> int:
        """Claim without waiting; return the claim's name."""
        reply = self.only(Operation.CLAIM, tag, client=client, argument=lease_ms, timeout_s=0)
        assert reply.status == Status.OK
        return reply.number

    def expire(self, seconds: float = 0.0) -> list[tuple[int, Reply]]:
        self.now_s += seconds
        return self._tell(self.store.expire(self.now_s))

    def client_died(self, client: int) -> list[tuple[int, Reply]]:
        self.credit.pop(client, None)
        return self._tell(self.store.client_died(client, self.now_s))

    def _spend(self, client: int, cost: int) -> None:
        if client in self.credit:
            assert cost <= self.credit[client], "a client puts without credit"
            self.credit[client] -= cost

    @staticmethod
    def _tell(replies: Any) -> list[tuple[int, Reply]]:
        return [unpack(out) for out in replies]


def cost_of(tag: Any, payload: bytes = b"", meta: bytes = b"") -> int:
    """Return what a tuple costs, message and all."""
    message, apart = pack_put(Operation.PUT, 0, 0, codec.BYTES, key_bytes(tag), meta, payload)
    return TUPLE_OVERHEAD_BYTES + len(message) + (0 if apart is None else len(apart))


def answers(told: list[tuple[int, Reply]]) -> list[Answer]:
    """Say who was told what."""
    return [(client, reply.status, bytes(reply.payload)) for client, reply in told]


def held(stores: list[TupleStore]) -> tuple[int, int]:
    """Return how many tuples there are and what they take."""
    return (
        sum(store.tuples_held for store in stores),
        sum(store.memory.held_bytes for store in stores),
    )


def integer(value: int) -> dict[str, Any]:
    """Return the fields of a message that hold an integer."""
    return {"kind": codec.INTEGER, "meta": value.to_bytes(8, "little", signed=True)}


def number_in(reply: Reply) -> float:
    assert reply.status == Status.OK
    return codec.decode_number(reply.kind, reply.payload)


class Unreadable:
    """Can be pickled, and not be rebuilt."""

    def __reduce__(self) -> Any:
        return int, ("no number",)
