"""Many tuples of a store at once: how many match, all that match, and a copy of everything."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from diel.tuples import codec
from diel.tuples.protocol import Out, Outs, Query, Status, answer, pack_frames, pack_put
from diel.tuples.store.memory import Memory, cost_of, loaded
from diel.tuples.store.pending import Claims
from diel.tuples.store.queues import Entry, Queues
from diel.tuples.tags import is_wildcard, split_fields

REPLY_BYTES: Final = 64 * 2**20
"""A reply with many tuples holds about so much at most; the client asks again for the rest."""


class Bulk:
    """Operations on many tuples of one store: count, collect, dump.

    Parameters
    ----------
    queues, memory, claims
        Of the store.
    """

    def __init__(self, queues: Queues, memory: Memory, claims: Claims) -> None:
        self._queues = queues
        self._memory = memory
        self._claims = claims
        self._dumps: dict[int, deque[Entry]] = {}

    def count(self, query: Query, now_s: float) -> Outs:
        """Answer how many tuples match; claimed ones do not."""
        count = len(self._matching(query.key))
        return (answer(query.client, query.request_id, Status.OK, count),)

    def collect(self, query: Query, now_s: float) -> Outs:
        """Take all tuples that match; `argument` limits them, 0 for no limit.

        The reply's meta is not empty where there are more than fit into it.
        """
        taken: list[Entry] = []
        size, more = 0, b""
        released: list[Out] = []
        for key, entry in self._matching(query.key):
            if query.argument and len(taken) >= query.argument:
                break
            if size >= REPLY_BYTES:
                more = b"+"
                break
            self._queues.take_first(key)  # matches come oldest first, so it is this one
            released += self._memory.release(cost_of(entry))
            taken.append(entry)
            size += cost_of(entry)
        return [_reply(query, taken, more), *released]

    def dump(self, query: Query, now_s: float) -> Outs:
        """Copy all tuples, oldest first, in pieces; `argument` is 0 for the first piece."""
        if query.argument == 0:
            everything = sorted(self.entries(), key=lambda item: item[1][0])
            self._dumps[query.client] = deque(entry for _, entry in everything)
        rest = self._dumps.get(query.client, deque())
        piece: list[Entry] = []
        size = 0
        while rest and size < REPLY_BYTES:
            piece.append(rest.popleft())
            size += cost_of(piece[-1])
        if not rest:
            self._dumps.pop(query.client, None)
        return (_reply(query, piece),)

    def entries(self) -> Iterator[tuple[bytes, Entry]]:
        """Iterate over all tuples by tag; claimed ones lie where they would be given back to."""
        for key in self._queues:
            for entry in self._queues.of(key):
                yield key, entry
        for claim in self._claims.by_name.values():
            yield claim.key, claim.entry

    def client_died(self, client: int) -> None:
        """Forget what a client has yet to ask for."""
        self._dumps.pop(client, None)

    def _matching(self, key: bytes) -> list[tuple[bytes, Entry]]:
        fields = split_fields(key)
        if any(map(is_wildcard, fields)):
            return self._queues.matching(fields)
        return [(key, entry) for entry in self._queues.of(key)]


def _reply(query: Query, entries: Sequence[Entry], meta: bytes = b"") -> Out:
    frames = pack_frames([(body, loaded(payload)) for _, _, body, payload in entries])
    message, payload = pack_put(
        Status.OK, query.request_id, len(entries), codec.BYTES, b"", meta, frames
    )
    return Out(query.client, message, payload)
