"""Which waits rank 0 is told of, and that it hears when they are over."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from diel.comm.meter import Meter
from diel.coupling.messages import MessageCounts
from diel.executive import wait_reporter
from diel.executive.messages import Waiting, WaitOver
from diel.executive.wait_reporter import WaitReporter


class Rank:
    """A rank that waits when it is told to, on a clock that goes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(wait_reporter.time, "monotonic", lambda: self.now_s)
        self.tuples = SimpleNamespace(waiting_for=None, puts=[3, 4])
        transport: Any = SimpleNamespace(latest_request_id=9)
        self.channel = SimpleNamespace(waiting_for=None, counts=MessageCounts, changes=0)
        self.told: list[Any] = []
        self.meter = Meter()
        tuples: Any = self.tuples
        channel: Any = self.channel
        self.wait_reporter = WaitReporter(tuples, transport, channel, self.meter, self.told.append)
        self.wait_reporter.begin(7)

    def look(self, seconds: float = 0.0) -> None:
        """Let time pass, and do what is done now and then while the rank waits."""
        self.now_s += seconds
        if self.wait_reporter.current is not None:
            self.wait_reporter.report_if_long(self.wait_reporter.current)


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(monkeypatch)


def test_a_wait_that_lasts_is_told_once(rank: Rank) -> None:
    rank.tuples.waiting_for = ("tget", ("a", 1), 5.0)
    for seconds in (0, 0.5, 0.4):
        rank.look(seconds)
        assert rank.told == []
    rank.look(0.2)
    rank.look(10)
    (told,) = rank.told
    assert told == Waiting(7, "tget(('a', 1))", "('a', 1)", True, True, (3, 4), told.waited_s, 9)
    assert told.waited_s == pytest.approx(1.1)


def test_a_wait_is_told_again_if_messages_came_meanwhile(rank: Rank) -> None:
    rank.tuples.waiting_for = ("tget", ("a", 1), math.inf)
    for _ in range(4):  # what it has sent and received is not what it told
        rank.channel.changes += 1
        rank.look()
        rank.look(0.6)
    rank.look(0.6)
    rank.look(10)
    rank.channel.changes += 1
    rank.look()
    rank.look(1)
    rank.look(10)
    assert [told.waited_s for told in rank.told] == pytest.approx([3.0, 14.0])


def test_waits_that_follow_each_other_are_not_one_that_lasts(rank: Rank) -> None:
    for _ in range(5):
        rank.tuples.waiting_for = ("tget", "a", math.inf)  # each is an object of its own
        rank.look()
        rank.look(0.9)
        rank.tuples.waiting_for = None
    assert rank.told == []


def test_a_wait_for_a_message_is_at_no_server(rank: Rank) -> None:
    rank.channel.waiting_for = ("recv from b", "", math.inf)
    rank.look()
    rank.look(1)
    (told,) = rank.told
    assert (told.what, told.at_server, told.has_timeout) == ("recv from b", False, False)


def test_a_wait_for_other_ranks_has_a_name_while_it_lasts(rank: Rank) -> None:
    with rank.wait_reporter.waiting("the others"):
        assert rank.wait_reporter.current == ("the others", "", math.inf)
        rank.look()
        rank.look(2)
    assert rank.wait_reporter.current is None
    assert [one.what for one in rank.told if isinstance(one, Waiting)] == ["the others"]


def test_what_was_told_is_taken_back_and_may_be_told_again(rank: Rank) -> None:
    wait = ("tget", "a", math.inf)
    rank.meter.after_wait()
    assert rank.told == []  # nothing was told
    for _ in range(2):
        rank.tuples.waiting_for = wait
        rank.look()
        rank.look(1)
        rank.tuples.waiting_for = None
        rank.meter.after_wait()
    assert [type(one) for one in rank.told] == [Waiting, WaitOver, Waiting, WaitOver]


def test_the_meter_asks_what_a_wait_is_for(rank: Rank) -> None:
    assert rank.meter.name_wait() == ("a tuple server's answer", None)
    rank.channel.waiting_for = ("recv", "tag", 1.0)
    assert rank.meter.name_wait() == ("recv", "tag")
    rank.tuples.waiting_for = ("tget", "a", 1.0)
    assert rank.meter.name_wait() == ("tget", "a")
