from __future__ import annotations

import itertools
import os
import threading
import time
from bisect import bisect
from collections.abc import Callable

import pytest

from diel.comm.waiting import Backoff, wait_for


def after(polls: int, found: object) -> Callable[[], object]:
    """Return what a poll says that finds something after so many polls."""
    counter = itertools.count()
    return lambda: found if next(counter) >= polls else None


@pytest.mark.parametrize("polls", [0, 1, 60, 400])
def test_what_is_found_is_returned(polls: int) -> None:
    assert wait_for(after(polls, "it")) == "it"


@pytest.mark.parametrize("found", [0, False, "", ()])
def test_only_none_means_not_yet(found: object) -> None:
    assert wait_for(lambda: found, timeout_s=0) is found


def test_what_is_there_already_asks_no_safe_point() -> None:
    def never() -> None:
        raise AssertionError

    assert wait_for(lambda: 1, timeout_s=0, safe_point=never) == 1


@pytest.mark.parametrize("timeout_s", [0, 0.02, 0.15])
def test_a_wait_ends_at_its_timeout_and_not_before(timeout_s: float) -> None:
    started_s = time.perf_counter()
    assert wait_for(lambda: None, timeout_s) is None
    assert time.perf_counter() - started_s >= timeout_s


def test_a_file_that_can_be_read_ends_a_pause_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diel.comm.waiting._FIRST_SLEEP_S", 20.0)
    monkeypatch.setattr("diel.comm.waiting._LONG_SLEEP_S", 20.0)
    reading, writing = os.pipe()
    found = []
    timer = threading.Timer(0.05, lambda: (found.append("it"), os.write(writing, b"x")))
    started_s = time.perf_counter()
    timer.start()
    polls = itertools.count()
    assert wait_for(lambda: (next(polls) and found) or None, timeout_s=60, wakes=[reading]) == [
        "it"
    ]
    assert time.perf_counter() - started_s < 10
    assert next(polls) <= 3  # it slept meanwhile
    timer.join()
    os.close(reading)
    os.close(writing)


def test_what_a_poll_raises_ends_the_wait() -> None:
    def poll() -> None:
        raise KeyError("poll")

    with pytest.raises(KeyError):
        wait_for(poll, timeout_s=10)


def test_a_safe_point_is_asked_while_waiting_and_ends_the_wait() -> None:
    asked = []

    def safe_point() -> None:
        asked.append("it")
        if len(asked) == 20:
            raise InterruptedError("the run is stopping")

    with pytest.raises(InterruptedError):
        wait_for(lambda: None, timeout_s=20, safe_point=safe_point)
    assert len(asked) == 20


def test_a_long_wait_leaves_the_core_to_others() -> None:
    started_s, used_s = time.perf_counter(), time.thread_time()
    wait_for(lambda: None, timeout_s=2)
    waited_s, used_s = time.perf_counter() - started_s, time.thread_time() - used_s
    assert waited_s >= 2
    assert used_s < 0.3 * waited_s


def test_backoff_spins_first_then_sleeps_longer_and_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    clock = [1000.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    backoff = Backoff()
    assert not any(backoff.pause() for _ in range(200))
    assert slept == []
    while clock[0] < 1001.5:
        backoff.pause()
    assert slept == sorted(slept)
    assert slept[0] < 1e-4
    first_second = slept[: bisect(list(itertools.accumulate(slept)), 1.0)]
    assert (max(first_second), max(slept)) == (1e-3, 5e-3)
    backoff.reset()
    assert not backoff.pause()


def test_who_has_a_payload_under_way_sleeps_late_and_never_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(os, "sched_yield", lambda: None)  # others may keep the core for long
    backoff = Backoff(brisk=True)
    assert not any(backoff.pause() for _ in range(4000))
    while len(slept) < 2000:
        backoff.pause()
    assert max(slept) <= 100e-6
    assert wait_for(after(9000, "it"), brisk=True) == "it"
