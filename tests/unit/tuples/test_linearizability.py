"""Concurrent histories against real stores are linearizable, and the check can tell."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from typing import Any

import pytest
from support import case_count
from unit.tuples.linearizability import Event, Recording, explains

from diel.tuples.protocol import PREFIX, Operation, Out, Payload
from diel.tuples.store import TupleStore
from diel.tuples.store.queues import Entry, Queues

FIRST_SEED = int(os.environ.get("DIEL_SEED", "0"))
HISTORIES = int(os.environ.get("DIEL_HISTORIES", case_count(4_000)))


@pytest.mark.parametrize("part", range(4))
def test_concurrent_histories_are_linearizable(part: int) -> None:
    size = HISTORIES // 4
    for seed in range(FIRST_SEED + part * size, FIRST_SEED + (part + 1) * size):
        recording = Recording(seed)
        assert recording.is_linearizable(), told(recording, seed)


def told(recording: Recording, seed: int) -> str:
    lines = [f"not linearizable: DIEL_SEED={seed} DIEL_HISTORIES=4 pytest {__file__}"]
    if recording.blocked_with_tuples:
        lines.append("a client waits for a tuple that is there")
    for history in recording.histories:
        if not explains(history):
            lines += [str(event) for event in sorted(history)]
    return "\n".join(lines)


def test_the_histories_are_concurrent_and_of_all_kinds() -> None:
    """Else the check above would say little."""
    overlapping = events = 0
    seen: set[tuple[str, bool]] = set()
    for seed in range(500):
        for history in Recording(seed).histories:
            ordered = sorted(history)
            events += len(ordered)
            seen |= {(event.operation, bool(event.result)) for event in ordered}
            overlapping += sum(after.call < before.returned for before, after in pairwise(ordered))
    assert overlapping > events / 4
    both = {"take", "read", "claim", "put_if_absent", "replace", "count", "collect"}
    assert {(operation, result) for operation in both for result in (True, False)} <= seen
    assert {operation for operation, _ in seen} == both | {
        *("put", "increment", "acknowledge", "give_back")
    }


def test_the_same_seed_gives_the_same_history() -> None:
    assert Recording(7).histories == Recording(7).histories


# -- faults that the check must see ---------------------------------------------------------------


class LastInFirstOut(TupleStore):
    class Stack(Queues):
        def first(self, key: bytes) -> Entry | None:
            return (self.of(key) or [None])[-1]

        def take_first(self, key: bytes) -> Entry | None:
            entry = self.first(key)
            if entry is not None:
                kept = [record for record in self.of(key) if record is not entry]
                del self.by_key[key]
                for one in kept:
                    self.append(key, one)
            return entry

    def __init__(self) -> None:
        super().__init__()
        self.queues = self.Stack()


class Faulty(TupleStore):
    """Does something wrong at every other request of a kind."""

    operation: Operation

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def handle(
        self, client: int, message: bytes, now_s: float, payload: Payload = None
    ) -> Sequence[Out]:
        if message[0] == self.operation:
            self.requests += 1
            if self.requests % 2 == 0:
                return self.go_wrong(client, message)
        return super().handle(client, message, now_s, payload)

    def go_wrong(self, client: int, message: bytes) -> Sequence[Out]:
        raise NotImplementedError

    def instead(self, client: int, message: bytes, operation: Operation) -> Sequence[Out]:
        return super().handle(client, bytes([operation]) + message[1:], 0.0)


class LosesPuts(Faulty):
    operation = Operation.PUT

    def go_wrong(self, client: int, message: bytes) -> Sequence[Out]:
        return ()


class PutsTwice(Faulty):
    operation = Operation.PUT

    def go_wrong(self, client: int, message: bytes) -> Sequence[Out]:
        first = self.instead(client, message, Operation.PUT)
        return [*first, *self.instead(client, message, Operation.PUT)]


class DeliversTwice(Faulty):
    operation = Operation.TAKE

    def go_wrong(self, client: int, message: bytes) -> Sequence[Out]:
        return self.instead(client, message, Operation.READ)


class LosesWhatIsGivenBack(Faulty):
    operation = Operation.GIVE_BACK

    def go_wrong(self, client: int, message: bytes) -> Sequence[Out]:
        return self.instead(client, message, Operation.ACKNOWLEDGE)


class GivesBackWhatIsDone(Faulty):
    operation = Operation.ACKNOWLEDGE

    def go_wrong(self, client: int, message: bytes) -> Sequence[Out]:
        return self.instead(client, message, Operation.GIVE_BACK)


class GivesBackToTheEnd(TupleStore):
    class Forgetful(Queues):
        def restore(self, key: bytes, entry: Entry) -> None:
            self.append(key, entry)

    def __init__(self) -> None:
        super().__init__()
        self.queues = self.Forgetful()


class ReadsOldValues(TupleStore):
    """Answers a read with what the last one of that tag has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[bytes, bytes] = {}

    def handle(
        self, client: int, message: bytes, now_s: float, payload: Payload = None
    ) -> Sequence[Out]:
        replies = super().handle(client, message, now_s, payload)
        if message[0] != Operation.READ or not replies:
            return replies
        tag = message[-20:]
        body = self.seen.get(tag, replies[0].message)
        self.seen[tag] = replies[0].message
        request_id = PREFIX.unpack_from(message)[3]
        status, flags, empty, _, number = PREFIX.unpack_from(body)
        prefix = PREFIX.pack(status, flags, empty, request_id, number)
        return [Out(client, prefix + body[PREFIX.size :])]


class ForgetsWhoWaits(TupleStore):
    """Leaves a tuple there without a word to who waits, every other time."""

    def __init__(self) -> None:
        super().__init__()
        self.offers = 0

    def _offer_to_waiters(self, key: bytes, entry: Entry) -> Any:
        self.offers += 1
        return (None, []) if self.offers % 2 == 0 else super()._offer_to_waiters(key, entry)


class PutsLate(TupleStore):
    """Applies a put only when the next request but one has been answered."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[tuple[int, int, bytes, Payload]] = []

    def handle(
        self, client: int, message: bytes, now_s: float, payload: Payload = None
    ) -> Sequence[Out]:
        self.late = [(left - 1, *rest) for left, *rest in self.late]  # type: ignore[misc]
        replies: list[Out] = []
        while self.late and self.late[0][0] < 0:
            _, *put = self.late.pop(0)
            replies += super().handle(put[0], put[1], now_s, put[2])
        if message[0] == Operation.PUT:
            self.late.append((2, client, message, payload))
            return replies
        return [*replies, *super().handle(client, message, now_s, payload)]


FAULTS = [
    *(LastInFirstOut, LosesPuts, PutsTwice, DeliversTwice, LosesWhatIsGivenBack),
    *(GivesBackWhatIsDone, GivesBackToTheEnd, ReadsOldValues, ForgetsWhoWaits, PutsLate),
]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault: Callable[[], TupleStore]) -> None:
    noticed = (seed for seed in range(400) if not Recording(seed, fault).is_linearizable())
    assert len(list(islice(noticed, 4))) == 4


# -- the check itself, on histories written by hand -----------------------------------------------


def at(call: float, returned: float, operation: str, argument: Any = None, result: Any = None):
    return Event(call, returned, operation, argument, result)


@pytest.mark.parametrize(
    "history",
    [
        [],
        [at(1, 2, "put", 5), at(3, 4, "take", None, 5)],
        [at(1, 9, "put", 5), at(2, 3, "take", None, 5)],  # not confirmed, and taken already
        [at(1, 9, "put", 5), at(2, 3, "take", None, None), at(4, 5, "take", None, 5)],
        [at(1, 4, "put", 5), at(2, 3, "put", 6), at(5, 6, "take", None, 6)],  # either is first
        [at(1, 2, "put", 5), at(3, 6, "take", None, 5), at(4, 5, "read", None, None)],
        [at(1, 2, "put", 5), at(3, 4, "claim", 1, 5), at(5, 6, "put_if_absent", 7, False)],
        [at(1, 2, "increment", 3, 3), at(3, 4, "increment", 4, 7), at(5, 6, "count", None, 1)],
        [at(1, 2, "put", 5), at(3, 4, "replace", (5, 6), True), at(5, 6, "read", None, 6)],
        [at(1, math.inf, "put", 5), at(2, 3, "collect", None, ())],
    ],
)
def test_what_can_have_been_is_accepted(history: list[Event]) -> None:
    assert explains(history)


@pytest.mark.parametrize(
    "history",
    [
        [at(1, 2, "take", None, 5)],
        [at(1, 2, "put", 5), at(3, 4, "take", None, None)],  # lost
        [at(1, 2, "put", 5), at(3, 4, "read", None, None)],  # old
        [at(1, 2, "take", None, 5), at(3, 4, "put", 5)],  # before it was put
        [at(1, 2, "put", 5), at(3, 4, "put", 6), at(5, 6, "take", None, 6)],  # last in
        [at(1, 2, "put", 5), at(3, 6, "take", None, 5), at(4, 7, "take", None, 5)],  # twice
        [at(1, 2, "put", 5), at(3, 4, "claim", 1, 5), at(5, 6, "put_if_absent", 7, True)],
        [at(1, 2, "put", 5), at(3, 4, "claim", 1, 5), at(5, 6, "read", None, 5)],
        [at(1, 4, "increment", 3, 3), at(2, 5, "increment", 4, 4)],
        [at(1, 2, "put", 5), at(3, 6, "replace", (5, 6), True), at(4, 5, "replace", (5, 7), True)],
        [
            *(at(1, 2, "put", 5), at(3, 4, "put", 6), at(5, 6, "claim", 1, 5)),
            *(at(7, 8, "give_back", 1), at(9, 10, "take", None, 6)),  # lost its place
        ],
        [at(1, 2, "put", 5), at(3, 4, "count", None, 0)],
        [at(1, 2, "put", 5), at(3, 4, "put", 6), at(5, 6, "collect", None, (6, 5))],
    ],
)
def test_what_cannot_have_been_is_rejected(history: list[Event]) -> None:
    assert not explains(history)
