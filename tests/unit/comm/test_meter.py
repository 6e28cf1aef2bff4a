"""Time is work unless it was measured to be something else."""

from __future__ import annotations

import pickle

import pytest

from diel.comm import meter
from diel.comm.meter import Meter, ServerMeter, Span, Times


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> float:
        self.now_s += seconds
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_what_is_neither_a_wait_nor_a_transfer_is_work(clock: Clock) -> None:
    cpu_s = iter((10.0, 11.5, 12.0))
    one = Meter(clock=clock, cpu_clock=lambda: next(cpu_s))
    clock.advance(2.0)
    with one.waiting("work"):
        clock.advance(3.0)
    since_s = clock()
    clock.advance(0.5)
    one.communicated(since_s, "send", None, 10)
    times = one.times()
    assert times == Times(2.0, 3.0, 0.5, 1.5)
    assert sum(times[:3]) == 5.5  # CPU time is a part of it
    assert one.times().minus(times) == Times(cpu_s=0.5)


def test_only_long_waits_are_kept_and_told_of(clock: Clock) -> None:
    ended: list[float] = []
    one = Meter(clock=clock, cpu_clock=lambda: 0.0)
    one.name_wait = lambda: ("tget", ("job", 1))
    one.after_wait = lambda: ended.append(clock())
    for seconds in (0.25 * meter.NOTABLE_S, 2.0):
        since_s = clock()
        clock.advance(seconds)
        one.waited(since_s)
    (kept,) = one.take_spans()
    assert (kept.kind, kept.what, kept.about) == ("wait", "tget", ("job", 1))
    assert kept.end_s - kept.start_s == pytest.approx(2.0)
    assert ended == [clock()]
    assert one.times().waiting_s == pytest.approx(2.00025)
    assert one.take_spans() == []


def test_all_waits_are_kept_where_that_was_asked_for(clock: Clock) -> None:
    one = Meter(keeps_short_waits=True, clock=clock, cpu_clock=lambda: 0.0)
    one.waited(clock(), "nothing")
    with one.communicating("a communicator"):
        pass
    assert [span.what for span in one.take_spans()] == ["nothing", "a communicator"]


def test_a_wait_of_a_rank_that_lends_its_core_is_work(clock: Clock) -> None:
    one = Meter(clock=clock, cpu_clock=lambda: 0.0)
    with one.waiting("the program", counts=False):
        clock.advance(4.0)
    assert one.times() == Times(4.0, 0.0, 0.0)
    assert len(one.take_spans()) == 1


def test_a_wait_that_raises_counts(clock: Clock) -> None:
    one = Meter(clock=clock, cpu_clock=lambda: 0.0)

    def wait() -> None:
        with one.waiting("work"):
            clock.advance(1.0)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        wait()
    assert one.times().waiting_s == 1.0


def test_no_more_spans_are_kept_than_there_is_room_for(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "SPANS_KEPT", 3)
    one = Meter(clock=clock, cpu_clock=lambda: 0.0)
    for _ in range(2):
        one.keep(Span("module", 0.0, 1.0, "m.0"))
    assert len(one.take_spans()) == 2
    for _ in range(3):
        one.keep(Span("module", 0.0, 1.0, "m.0"))
    assert (len(one.take_spans()), one.left_out) == (1, 2)


def test_the_states_of_a_server(clock: Clock) -> None:
    one = ServerMeter(clock=clock, cpu_clock=lambda: 0.0)
    handled_s = clock.advance(1.0)
    clock.advance(0.5)  # polls that found nothing
    one.wait(handled_s)
    one.wait(handled_s)
    clock.advance(1.5)
    one.work()
    one.work()
    clock.advance(1.0)
    one.moved(700)
    one.move()
    clock.advance(4.0)
    one.moved(50)
    one.wait(handled_s)  # not since then: payloads were under way meanwhile
    clock.advance(1.0)
    one.work()
    assert one.times() == Times(2.0, 3.0, 4.0)
    waited, moved, waited_again = one.take_spans()
    assert (waited.what, waited.start_s, waited.end_s) == ("requests", 101.0, 103.0)
    assert (moved.what, moved.size_bytes) == ("payloads", 750)
    assert waited_again.start_s == moved.end_s


def test_times_can_be_added_and_subtracted_and_travel() -> None:
    one, other = Times(1.0, 2.0, 3.0), Times(0.5, 0.5, 0.5)
    assert one.plus(other).minus(other) == one
    assert pickle.loads(pickle.dumps(one)) == one
