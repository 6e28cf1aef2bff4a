"""The store against a naive model: lists that are looked through from their start."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support import case_count
from unit.tuples.driving import Answer, Driver, answers, cost_of

from diel import ANY
from diel.tuples import codec
from diel.tuples.protocol import Operation, Reply, Status, unpack_frames

OK, TIMEOUT, GONE = Status.OK, Status.TIMEOUT, Status.GONE
TAKE, READ, CLAIM, WATCH = Operation.TAKE, Operation.READ, Operation.CLAIM, Operation.WATCH

CLIENT = st.integers(0, 2)
FIELD = st.sampled_from(["a", "b", 1])
TAG = st.lists(FIELD, min_size=1, max_size=3).map(tuple)
PATTERN = st.lists(FIELD | st.just(ANY), min_size=1, max_size=3).map(tuple)
TIMEOUT_S = st.sampled_from([0.0, 0.0, 1.0, 3.0, math.inf])


def matches(pattern: tuple[Any, ...], tag: tuple[Any, ...]) -> bool:
    return len(pattern) == len(tag) and all(
        wanted is ANY or wanted == field for wanted, field in zip(pattern, tag, strict=True)
    )


@dataclass(eq=False)
class Item:
    number: int
    tag: tuple[Any, ...]
    payload: bytes
    is_number: bool
    claim: int | None = None  # which one, counted by the model
    holder: int = -1
    lease_ends_s: float = math.inf


@dataclass(eq=False)
class Waiting:
    client: int
    operation: Operation
    pattern: tuple[Any, ...]
    deadline_s: float
    lease_s: float = math.inf


@dataclass(eq=False)
class Following:
    client: int
    name: int
    pattern: tuple[Any, ...]
    backlog: list[Item] = field(default_factory=list)
    waits_until_s: float | None = None


class NaiveStore:
    """All tuples in one list in order of arrival, all waiters in another."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.items: list[Item] = []
        self.waiters: list[Waiting] = []
        self.following: list[Following] = []
        self.numbers = 0
        self.claims = 0

    def put(self, item: Item) -> list[Answer]:
        told = []
        for one in self.following:
            if not matches(one.pattern, item.tag):
                continue
            if one.waits_until_s is not None:
                one.waits_until_s = None
                told.append((one.client, OK, item.payload))
            else:
                one.backlog.append(item)
        self.items.append(item)
        return told + self.offer(item)

    def offer(self, item: Item) -> list[Answer]:
        told = []
        for waiter in list(self.waiters):
            if matches(waiter.pattern, item.tag):
                self.waiters.remove(waiter)
                told.append(self.give(waiter, item))
                if waiter.operation in (TAKE, CLAIM):
                    break
        return told

    def give(self, waiter: Waiting, item: Item) -> Answer:
        if waiter.operation == WATCH:
            return waiter.client, OK, b""
        if waiter.operation == TAKE:
            self.items.remove(item)
        if waiter.operation == CLAIM:
            self.claims += 1
            item.claim, item.holder = self.claims, waiter.client
            item.lease_ends_s = self.now_s + waiter.lease_s
        return waiter.client, OK, item.payload

    def visible(self, pattern: tuple[Any, ...]) -> list[Item]:
        return [item for item in self.items if item.claim is None and matches(pattern, item.tag)]

    def get(self, waiter: Waiting) -> list[Answer]:
        for item in self.visible(waiter.pattern):
            return [self.give(waiter, item)]
        if waiter.deadline_s <= self.now_s:
            return [(waiter.client, TIMEOUT, b"")]
        self.waiters.append(waiter)
        return []

    def claimed(self, claim: int, client: int) -> Item | None:
        found = [item for item in self.items if item.claim == claim and item.holder == client]
        return found[0] if found else None

    def give_back(self, item: Item) -> list[Answer]:
        item.claim, item.holder, item.lease_ends_s = None, -1, math.inf
        return self.offer(item)

    def expire(self) -> list[Answer]:
        told = []
        for waiter in [one for one in self.waiters if one.deadline_s <= self.now_s]:
            self.waiters.remove(waiter)
            told.append((waiter.client, TIMEOUT, b""))
        for one in self.following:
            if one.waits_until_s is not None and one.waits_until_s <= self.now_s:
                one.waits_until_s = None
                told.append((one.client, TIMEOUT, b""))
        for item in [one for one in self.items if one.lease_ends_s <= self.now_s]:
            told += self.give_back(item)
        return told

    def die(self, client: int) -> list[Answer]:
        self.waiters = [waiter for waiter in self.waiters if waiter.client != client]
        self.following = [one for one in self.following if one.client != client]
        told = []
        for item in [one for one in self.items if one.holder == client]:
            told += self.give_back(item)
        return told

    def held_bytes(self) -> int:
        backlogs = [item for one in self.following for item in one.backlog]
        return sum(cost_of(item.tag, item.payload) for item in self.items + backlogs)


class StoreAgainstModel(RuleBasedStateMachine):
    """All operations by tags and patterns, waits, expiry and deaths, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.model = NaiveStore()
        self.number = 0
        self.names: dict[int, int] = {}  # a claim, counted by the model -> the store's name
        self.versions: list[tuple[Item, int]] = []

    def new_item(self, tag: tuple[Any, ...], is_number: bool, size: int = 0) -> Item:
        self.number += 1
        payload = self.number.to_bytes(8, "little") + (b"" if is_number else bytes(size))
        return Item(self.number, tag, payload, is_number)

    def check(self, told: list[tuple[int, Reply]], expected: list[Answer]) -> None:
        """Compare replies; note the names of the claims among them."""
        before = set(self.names)
        assert answers(told) == expected
        new = [one for one in self.model.items if one.claim is not None and one.claim not in before]
        for item in new:
            (name,) = (
                reply.number
                for client, reply in told
                if client == item.holder
                and bytes(reply.payload) == item.payload
                and reply.number in self.driver.store.claims.by_name
            )
            self.names[item.claim] = name  # type: ignore[index]

    @rule(
        client=CLIENT,
        tag=TAG,
        many=st.integers(1, 3),
        is_number=st.booleans(),
        size=st.sampled_from([0, 10, 20_000]),
    )
    def put(self, client: int, tag: Any, many: int, is_number: bool, size: int) -> None:
        for _ in range(many):
            item = self.new_item(tag, is_number, size)
            kind = codec.INTEGER if item.is_number else codec.BYTES
            told = self.driver.put(tag, item.payload, client=client, kind=kind)
            self.check(told, self.model.put(item))

    @rule(client=CLIENT, tag=TAG)
    def put_if_absent(self, client: int, tag: Any) -> None:
        item = self.new_item(tag, False)
        present = any(one.tag == tag for one in self.model.items)
        told = self.driver.put(tag, item.payload, client=client, operation=Operation.PUT_IF_ABSENT)
        assert (told[0][0], told[0][1].number) == (client, 0 if present else 1)
        self.check(told[1:], [] if present else self.model.put(item))

    @rule(
        client=CLIENT,
        operation=st.sampled_from([TAKE, TAKE, READ, CLAIM, CLAIM, WATCH]),
        pattern=PATTERN,
        timeout_s=TIMEOUT_S,
        lease_s=st.sampled_from([1.0, 2.5, math.inf]),
    )
    def get(
        self, client: int, operation: Any, pattern: Any, timeout_s: float, lease_s: float
    ) -> None:
        lease_ms = 0 if lease_s == math.inf else round(lease_s * 1000)
        told = self.driver.ask(
            operation,
            pattern,
            client=client,
            timeout_s=timeout_s,
            argument=lease_ms if operation == CLAIM else 0,
        )
        deadline_s = self.model.now_s + timeout_s
        self.check(told, self.model.get(Waiting(client, operation, pattern, deadline_s, lease_s)))

    @precondition(lambda self: self.names)
    @rule(
        data=st.data(),
        operation=st.sampled_from([Operation.ACKNOWLEDGE, Operation.GIVE_BACK, Operation.RENEW]),
        client=CLIENT,
    )
    def end_a_claim(self, data: st.DataObject, operation: Any, client: int) -> None:
        claim = data.draw(st.sampled_from(sorted(self.names)))
        claims = [one.holder for one in self.model.items if one.claim == claim]
        client = claims[0] if claims and data.draw(st.booleans()) else client
        told = self.driver.ask(operation, client=client, argument=self.names[claim], timeout_s=2.0)
        item = self.model.claimed(claim, client)
        expected = [(client, GONE if item is None else OK, b"")]
        if item is not None and operation == Operation.ACKNOWLEDGE:
            self.model.items.remove(item)
        elif item is not None and operation == Operation.GIVE_BACK:
            expected += self.model.give_back(item)
        elif item is not None:
            item.lease_ends_s = self.model.now_s + 2.0
        self.check(told, expected)

    @rule(client=CLIENT, tag=TAG, by=st.integers(-2, 2))
    def increment(self, client: int, tag: Any, by: int) -> None:
        meta = by.to_bytes(8, "little", signed=True)
        told = self.driver.ask(
            Operation.INCREMENT, tag, client=client, kind=codec.INTEGER, meta=meta
        )
        found = self.model.visible(tag)
        if not found:
            item = Item(self.number, tag, meta, True)
            self.check(told, [(client, OK, meta), *self.model.put(item)])
        elif not found[0].is_number:
            self.check(told, [(client, Status.NOT_A_NUMBER, b"")])
        else:
            total = int.from_bytes(found[0].payload, "little", signed=True) + by
            # Backlogs keep what was put: the item changes, its copies do not.
            changed = Item(found[0].number, tag, total.to_bytes(8, "little", signed=True), True)
            self.model.items[self.model.items.index(found[0])] = changed
            self.check(told, [(client, OK, changed.payload)])

    @rule(client=CLIENT, tag=TAG)
    def read_for_an_update(self, client: int, tag: Any) -> None:
        ((_, reply),) = self.driver.ask(READ, tag, client=client, timeout_s=0)
        found = self.model.visible(tag)
        assert (reply.status == OK) == bool(found)
        if found:
            self.versions.append((found[0], reply.number))

    @precondition(lambda self: self.versions)
    @rule(client=CLIENT, data=st.data(), size=st.sampled_from([0, 30_000]))
    def replace(self, client: int, data: st.DataObject, size: int) -> None:
        old, version = data.draw(st.sampled_from(self.versions))
        changed = self.new_item(old.tag, False, size)
        told = self.driver.put(
            old.tag,
            changed.payload,
            client=client,
            operation=Operation.REPLACE,
            argument=version,
        )
        place = [
            place for place, one in enumerate(self.model.items) if one is old and one.claim is None
        ]
        self.check(told, [(client, OK if place else Status.CONFLICT, b"")])
        if place:
            self.model.items[place[0]] = changed

    @rule(client=CLIENT, pattern=PATTERN)
    def count(self, client: int, pattern: Any) -> None:
        reply = self.driver.only(Operation.COUNT, pattern, client=client)
        assert reply.number == len(self.model.visible(pattern))

    @rule(client=CLIENT, pattern=PATTERN, limit=st.sampled_from([0, 0, 1, 2]))
    def collect(self, client: int, pattern: Any, limit: int) -> None:
        reply = self.driver.only(Operation.COLLECT, pattern, client=client, argument=limit)
        found = self.model.visible(pattern)[: limit or None]
        collected = [bytes(frame.payload) for frame in unpack_frames(reply.payload)]
        assert collected == [item.payload for item in found]
        for item in found:
            self.model.items.remove(item)

    @rule(client=CLIENT, pattern=PATTERN)
    def subscribe(self, client: int, pattern: Any) -> None:
        self.number += 1
        self.driver.ask(Operation.SUBSCRIBE, pattern, client=client, request_id=self.number)
        self.model.following.append(Following(client, self.number, pattern))

    @precondition(lambda self: self.model.following)
    @rule(data=st.data(), timeout_s=TIMEOUT_S, ends=st.booleans())
    def follow(self, data: st.DataObject, timeout_s: float, ends: bool) -> None:
        one = data.draw(st.sampled_from(self.model.following))
        if ends:
            self.driver.ask(Operation.UNSUBSCRIBE, client=one.client, argument=one.name)
            self.model.following.remove(one)
        elif one.waits_until_s is None:
            told = self.driver.ask(
                Operation.NEXT, client=one.client, argument=one.name, timeout_s=timeout_s
            )
            if one.backlog:
                self.check(told, [(one.client, OK, one.backlog.pop(0).payload)])
            elif timeout_s <= 0:
                self.check(told, [(one.client, TIMEOUT, b"")])
            else:
                self.check(told, [])
                one.waits_until_s = self.model.now_s + timeout_s

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0]))
    def let_time_pass(self, seconds: float) -> None:
        told = self.driver.expire(seconds)
        self.model.now_s += seconds
        expected = self.model.expire()
        # Deadlines at one moment may end in any order; a stable sort keeps the rest.
        told.sort(key=lambda one: (one[1].status, one[0], bytes(one[1].payload)))
        self.check(told, sorted(expected, key=lambda one: (one[1], one[0], one[2])))

    @rule(client=CLIENT)
    def a_client_dies(self, client: int) -> None:
        self.check(self.driver.client_died(client), self.model.die(client))

    @invariant()
    def counts_agree(self) -> None:
        store = self.driver.store
        assert store.tuples_held == len(self.model.items)
        assert self.driver.held_bytes == self.model.held_bytes()
        deadlines = [waiter.deadline_s for waiter in self.model.waiters]
        deadlines += [item.lease_ends_s for item in self.model.items]
        deadlines += [one.waits_until_s or math.inf for one in self.model.following]
        assert store.next_deadline_s() == min(deadlines, default=math.inf)

    def teardown(self) -> None:
        """Let everybody die and take everything that is left."""
        for client in range(3):
            self.a_client_dies(client)
        for arity in (1, 2, 3):
            pattern = (ANY,) * arity
            for item in self.model.visible(pattern):
                assert self.driver.take(pattern, client=9) == item.payload
        assert (self.driver.store.tuples_held, self.driver.held_bytes) == (0, 0)


StoreAgainstModel.TestCase.settings = settings(max_examples=case_count(120), stateful_step_count=50)
TestStoreAgainstModel = StoreAgainstModel.TestCase
