"""A module whose copies use the tuple space in every way at random, and account for each tuple.

Values carry their number, so that a tuple that is lost, doubled or damaged is found by name.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections import Counter
from typing import Any

import numpy as np

from diel import ANY
from diel.errors import PayloadError, TupleTimeout

PATIENCE_S = 60
LEAST_ROUNDS = 50
"""In which each action is drawn several times, however slow it is."""
ANYTHING = (ANY, ANY, ANY)
FIELD = 1000
LARGEST_BYTES = 4 * 2**20
BY_COPY = 10**9


class OnPurpose(Exception):
    """A claim's block fails."""


class Soak:
    """What one copy does, and what it has put and taken."""

    def __init__(self, ctx: Any, others: int) -> None:
        self.tuples = ctx.tuples
        self.copy = ctx.copy_index
        self.copies = others
        self.random = random.Random(1000 * ctx.options["seed"] + self.copy)
        self.counts: Counter[str] = Counter()
        self.number = self.copy * BY_COPY
        self.put: list[int] = []
        self.taken: list[int] = []
        self.clicks = self.ledger = self.news_put = 0
        self.news_seen = [0] * others
        self.news_number = 0

    # -- values that carry their number ---------------------------------------------------------

    def new_number(self) -> int:
        self.number += 1
        return self.number

    def size(self) -> int:
        """Return bytes from 8 to the largest; each power of two is as likely."""
        return int(8 * (LARGEST_BYTES / 8) ** (self.random.random() ** 2))

    def value(self, number: int, kind: str) -> Any:
        if kind == "number":
            return number
        if kind == "field":
            return np.full(FIELD, number)
        size = self.size()
        if kind == "array":
            return np.full((size // 8,), number)
        head = number.to_bytes(8, "little")
        return head * (size // 8) if kind == "bytes" else {"number": number, "data": head * 50}

    def number_in(self, value: Any) -> int:
        """Return the number of a value, all of which must be whole."""
        if isinstance(value, np.ndarray):
            assert value.min() == value.max(), "a damaged array"
            return int(value[0])
        if isinstance(value, bytes):
            assert value == value[:8] * (len(value) // 8), "damaged bytes"
            return int.from_bytes(value[:8], "little")
        if isinstance(value, dict):
            assert value["data"] == value["number"].to_bytes(8, "little") * 50
            return int(value["number"])
        assert type(value) is int
        return value

    def tag(self) -> tuple[str, str, int]:
        kind = self.random.choice(["number", "field", "array", "bytes", "pickle"])
        return f"soak {self.random.randrange(6)}", kind, self.random.randrange(3)

    def pattern(self) -> Any:
        first, kind, last = self.tag()
        patterns = [(first, kind, last), (first, ANY, last), (first, ANY, ANY), (ANY, kind, ANY)]
        return self.random.choice([*patterns, ANYTHING])

    # -- what is done -----------------------------------------------------------------------------

    def do_put(self) -> None:
        tag, number = self.tag(), self.new_number()
        try:
            self.tuples.tput(
                tag, self.value(number, tag[1]), wait=self.random.random() < 0.1, timeout=0.5
            )
        except TupleTimeout:
            self.counts["puts without room"] += 1
            self.make_room()
        else:
            self.put.append(number)

    def fill(self) -> None:
        """Put until there is no room, then take."""
        with contextlib.suppress(TupleTimeout):
            for _ in range(30):
                number = self.new_number()
                tag = (f"soak {number % 6}", "array", 0)
                self.tuples.tput(tag, np.full(LARGEST_BYTES // 8, number), timeout=0.05)
                self.put.append(number)
        self.make_room()

    def make_room(self) -> None:
        self.note(self.tuples.collect(ANYTHING, limit=200))

    def do_put_if_absent(self) -> None:
        tag, number = self.tag(), self.new_number()
        if self.tuples.put_if_absent(tag, self.value(number, tag[1])):
            self.put.append(number)

    def note(self, found: list[tuple[Any, Any]]) -> None:
        self.taken += [self.number_in(value) for _, value in found]

    def do_take(self) -> None:
        timeout = self.random.choice([0, 0, 0, 0.01])
        tag, value = self.tuples.tget(self.pattern(), timeout=timeout, with_tag=True)
        self.note([(tag, value)])

    def do_take_out(self) -> None:
        first, _, last = self.tag()
        out = np.empty(FIELD, np.int64)
        tag = (first, "field", last)
        self.note([(tag, self.tuples.tget(tag, out=out, timeout=0))])

    def do_take_misfit(self) -> None:
        self.tuples.tget(
            (f"soak {self.random.randrange(6)}", "field", ANY), out=np.empty(3), timeout=0
        )

    def do_read(self) -> None:
        self.number_in(self.tuples.tread(self.pattern(), timeout=0))

    def do_claim(self) -> None:
        lease = self.random.choice([None, PATIENCE_S])
        fails = self.random.random() < 0.5
        with (
            contextlib.suppress(OnPurpose),
            self.tuples.claim(self.pattern(), timeout=0, lease=lease) as claim,
        ):
            number = self.number_in(claim.value)
            if fails:
                raise OnPurpose
            if lease:
                claim.renew(PATIENCE_S)
        if not fails:
            self.taken.append(number)

    def do_collect(self) -> None:
        self.note(self.tuples.collect(self.pattern(), limit=self.random.choice([1, 5, 20])))

    def do_count(self) -> None:
        assert self.tuples.count(self.pattern()) >= 0

    def do_increment(self) -> None:
        by = self.random.randrange(1, 10)
        self.clicks += by
        assert self.tuples.increment("clicks", by) >= self.clicks

    def do_update(self) -> None:
        self.ledger += 1
        self.tuples.update("ledger", lambda value: [value[0] + 1, *value[1:]])

    def do_news(self) -> None:
        """Put what all copies have subscribed to; nobody takes it, so it is taken back."""
        self.news_put += 1
        self.tuples.tput(("news", self.copy), self.news_put, timeout=PATIENCE_S)
        self.tuples.tget(("news", self.copy))

    def do_hear(self) -> None:
        self.hear(0)

    def hear(self, timeout_s: float) -> None:
        (_, who), number = self.news.next(timeout=timeout_s)
        assert number == self.news_seen[who] + 1, "news were missed"
        self.news_seen[who] = number

    def do_flush(self) -> None:
        self.tuples.flush()

    def do_dist(self) -> None:
        number = self.new_number()
        with contextlib.suppress(TupleTimeout):
            value = self.value(number, self.random.choice(["array", "bytes"]))
            self.tuples.dist_tput(("dist", number % 4), value, timeout=0.5)
            self.put.append(number)

    def do_dist_take(self) -> None:
        self.note([((), self.tuples.dist_tget(("dist", ANY), timeout=0))])

    # -- from the start to the account ----------------------------------------------------------

    def meet(self, place: str) -> None:
        """Wait for the other copies."""
        self.tuples.tput(("here", place, self.copy, 0), self.news_put)
        for copy in range(self.copies):
            self.tuples.tread(("here", place, copy, 0), timeout=PATIENCE_S)

    def run(self, seconds: float) -> None:
        self.news = self.tuples.subscribe(("news", ANY))
        if self.copy == 0:
            self.tuples.tput("ledger", [0, bytes(30_000)])
        self.meet("start")
        actions, weights = zip(*ACTIONS.items(), strict=True)
        ends_s = time.monotonic() + seconds
        for number in itertools.count():
            if number >= LEAST_ROUNDS and time.monotonic() > ends_s:
                break
            for action in self.random.choices(actions, weights, k=20):
                try:
                    action(self)
                except TupleTimeout:
                    self.counts[f"{action.__name__} in vain"] += 1
                except PayloadError:
                    assert action is Soak.do_take_misfit
                    self.counts["misfits"] += 1
                self.counts[action.__name__] += 1
        self.meet("end")
        for who in range(self.copies):
            last = self.tuples.tread(("here", "end", who, 0))
            while self.news_seen[who] < last:
                self.hear(PATIENCE_S)
        self.news.close()

    def account(self) -> dict[str, Any]:
        """Tell the first copy what this one has put and taken; there, compare with what is left."""
        mine = [np.array(numbers, np.int64) for numbers in (self.put, self.taken)]
        self.tuples.tput("accounts", (self.clicks, self.ledger, mine))
        if self.copy > 0:
            return dict(self.counts)
        accounts = [self.tuples.tget("accounts", timeout=PATIENCE_S) for _ in range(self.copies)]
        left = [self.number_in(value) for _, value in self.tuples.collect(ANYTHING)]
        with contextlib.suppress(TupleTimeout):
            while True:
                left.append(self.number_in(self.tuples.dist_tget(("dist", ANY), timeout=0)))
        put = np.concatenate([numbers for _, _, (numbers, _) in accounts])
        taken = np.concatenate([numbers for _, _, (_, numbers) in accounts])
        out = np.concatenate([taken, np.array(left, np.int64)])
        clicks = self.tuples.tget("clicks", timeout=0)
        ledger = self.tuples.tget("ledger", timeout=0)[0]
        self.tuples.collect(("here", ANY, ANY, ANY))
        return dict(self.counts) | {
            "put": len(put),
            "taken": len(taken),
            "left": len(left),
            "lost": len(np.setdiff1d(put, out)),
            "made up": len(np.setdiff1d(out, put)),
            "doubled": len(out) - len(np.unique(out)),
            "clicks missing": sum(clicks for clicks, _, _ in accounts) - clicks,
            "updates missing": sum(ledger for _, ledger, _ in accounts) - ledger,
        }


ACTIONS = {
    Soak.do_put: 20,
    Soak.do_take: 26,
    Soak.do_put_if_absent: 4,
    Soak.do_take_out: 6,
    Soak.do_take_misfit: 2,
    Soak.do_read: 8,
    Soak.do_claim: 10,
    Soak.do_collect: 2,
    Soak.do_count: 2,
    Soak.do_increment: 5,
    Soak.do_update: 4,
    Soak.do_news: 4,
    Soak.do_hear: 10,
    Soak.do_flush: 1,
    Soak.do_dist: 2,
    Soak.do_dist_take: 3,
    Soak.fill: 0.1,
}


def run(ctx: Any) -> dict[str, Any]:
    """Use the tuple space for a while; the first copy returns the account."""
    soak = Soak(ctx, ctx.copies_of["soak"])
    soak.run(ctx.options["seconds"])
    return soak.account()
