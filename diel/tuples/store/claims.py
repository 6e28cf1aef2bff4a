"""Tuples of a store that clients have claimed.

A tuple that is claimed is out of sight until its holder acknowledges it, when it is gone, or gives
it back, when it lies in its old place. The end of its lease and the death of its holder give it
back too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from diel.tuples.protocol import Out, Outs, Query, Status, answer
from diel.tuples.store.memory import Memory, cost_of
from diel.tuples.store.queues import Entry


@dataclass(slots=True)
class Claimed:
    """A tuple that is out with a client; it has a lease or stays as long as its holder lives."""

    client: int
    key: bytes
    entry: Entry
    lease_ends_s: float


class Claims:
    """All claims of one store.

    Parameters
    ----------
    memory : Memory
        Of the store, in which claimed tuples count.
    put_back : callable
        Given a tag and its tuple, puts it back to its old place, or gives it to who waits for it;
        returns the replies.

    Attributes
    ----------
    by_name : dict of int to claim
        By the version that a claimed tuple has for its holder.
    """

    def __init__(self, memory: Memory, put_back: Callable[[bytes, Entry], list[Out]]) -> None:
        self.by_name: dict[int, Claimed] = {}
        self._memory = memory
        self._put_back = put_back

    def __len__(self) -> int:
        return len(self.by_name)

    def hold(self, name: int, client: int, key: bytes, entry: Entry, lease_ends_s: float) -> None:
        """Record that a client holds a tuple, until a moment or as long as it lives (infinity)."""
        self.by_name[name] = Claimed(client, key, entry, lease_ends_s)

    def has(self, key: bytes) -> bool:
        """Whether a tuple of this tag is claimed."""
        return any(claim.key == key for claim in self.by_name.values())

    def acknowledge(self, query: Query, now_s: float) -> Outs:
        """End a claim, named by `argument`: its tuple is gone."""
        claim = self._claim_of(query)
        if claim is None:
            return (answer(query.client, query.request_id, Status.GONE),)
        del self.by_name[query.argument]
        released = self._memory.release(cost_of(claim.entry))
        return [answer(query.client, query.request_id, Status.OK), *released]

    def give_back(self, query: Query, now_s: float) -> Outs:
        """End a claim, named by `argument`: its tuple is there again."""
        if self._claim_of(query) is None:
            return (answer(query.client, query.request_id, Status.GONE),)
        returned = self._return([query.argument])
        return [answer(query.client, query.request_id, Status.OK), *returned]

    def renew(self, query: Query, now_s: float) -> Outs:
        """Extend the lease of a claim, named by `argument`, to `timeout_s` from now."""
        claim = self._claim_of(query)
        if claim is None:
            return (answer(query.client, query.request_id, Status.GONE),)
        claim.lease_ends_s = now_s + query.timeout_s
        return (answer(query.client, query.request_id, Status.OK),)

    def expire(self, now_s: float) -> list[Out]:
        """Take back what has no lease any more."""
        if not self.by_name:
            return []
        late = [name for name, claim in self.by_name.items() if claim.lease_ends_s <= now_s]
        return self._return(late)

    def next_deadline_s(self) -> float:
        """Return when `expire` has something to do next."""
        if not self.by_name:
            return math.inf
        return min(claim.lease_ends_s for claim in self.by_name.values())

    def client_died(self, client: int) -> list[Out]:
        """Take back what a client held."""
        return self._return(
            [name for name, claim in self.by_name.items() if claim.client == client]
        )

    def _claim_of(self, query: Query) -> Claimed | None:
        claim = self.by_name.get(query.argument)
        return claim if claim is not None and claim.client == query.client else None

    def _return(self, names: list[int]) -> list[Out]:
        """Give several back, the oldest tuple first: the longest waiter gets that."""
        replies: list[Out] = []
        for name in sorted(names, key=lambda name: self.by_name[name].entry[0]):
            claim = self.by_name.pop(name)
            replies += self._put_back(claim.key, claim.entry)
        return replies
