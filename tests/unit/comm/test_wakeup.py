from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diel.comm.waiting import Backoff, wait_for
from diel.comm.wakeup import LINE, Wakeup


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Wakeup, Wakeup]]:
    """Two ranks of a run on one host."""
    both = Wakeup(0, 2), Wakeup(1, 2)
    for wakeup in both:
        wakeup.open("token", tmp_path)
    yield both
    for wakeup in both:
        wakeup.close()


def test_who_has_announced_a_sleep_is_woken(pair: tuple[Wakeup, Wakeup]) -> None:
    sleeper, sender = pair
    sleeper.announce()
    sender.wake(0)  # between the last look at MPI and the sleep: no sleep at all
    assert sleeper.sleep(20)
    sleeper.announce()
    timer = threading.Timer(0.05, sender.wake, [0])
    timer.start()
    assert sleeper.sleep(20)
    timer.join()
    sleeper.announce()
    assert not sleeper.sleep(0.001), "an old datagram woke it"


def test_who_does_not_sleep_is_sent_nothing(pair: tuple[Wakeup, Wakeup]) -> None:
    receiver, sender = pair
    sender.wake(0)
    receiver.announce()
    receiver.call_off()
    sender.wake(0)
    receiver.announce()
    assert not receiver.sleep(0.001)


def test_a_datagram_is_sent_once_for_a_sleep(pair: tuple[Wakeup, Wakeup]) -> None:
    sleeper, sender = pair
    sleeper.announce()
    for _ in range(1000):
        sender.wake(0)
    assert sleeper.flags[0] == 0
    assert sleeper.sleep(0)
    sleeper.announce()
    assert not sleeper.sleep(0.001)


def test_all_can_wake_a_rank_once_all_have_come(tmp_path: Path) -> None:
    early, late = Wakeup(0, 2), Wakeup(1, 2)
    assert not early.wakes_all
    assert not early.can_sleep()
    early.open("token", tmp_path)
    assert not early.wakes_all
    late.open("token", tmp_path)
    assert early.wakes_all
    assert late.wakes_all
    early.close()
    late.close()


def test_the_folder_is_private_names_its_maker_and_goes_with_the_last_rank(tmp_path: Path) -> None:
    ranks = [Wakeup(rank, 3) for rank in range(3)]
    for wakeup in ranks:
        wakeup.open("token", tmp_path)
    (folder,) = tmp_path.iterdir()
    assert folder.name == f"diel-{os.geteuid()}-token"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (folder / "pid").read_text() == f"{os.getpid()}\n"
    for wakeup in ranks:
        assert folder.exists()
        wakeup.close()
    assert not folder.exists()
    ranks[0].wake(1)  # nobody is there: nothing happens


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"diel-{os.geteuid()}-token").symlink_to(tmp_path / "elsewhere")
    wakeup = Wakeup(0, 1)
    with pytest.raises(OSError, match="token"):
        wakeup.open("token", tmp_path)
    assert not wakeup.can_sleep()


def test_what_is_under_way_keeps_a_rank_from_sleeping(pair: tuple[Wakeup, Wakeup]) -> None:
    mine = pair[0]
    under_way = [True]
    mine.sending.append(lambda: under_way[0])
    assert not mine.can_sleep()
    under_way[0] = False
    assert mine.can_sleep()


def test_a_wait_ends_when_its_rank_is_woken(pair: tuple[Wakeup, Wakeup]) -> None:
    sleeper, sender = pair
    found: list[str] = []

    def tell() -> None:
        while not sleeper.flags[0]:
            time.sleep(1e-3)
        found.append("it")
        sender.wake(0)

    thread = threading.Thread(target=tell)
    thread.start()
    assert wait_for(lambda: found[0] if found else None, 20, wakeup=sleeper)
    thread.join()
    assert sleeper.flags[0] == 0


def test_whoever_is_woken_checks_its_safe_point_at_once(pair: tuple[Wakeup, Wakeup]) -> None:
    backoff = Backoff(wakeup=pair[0])
    while not pair[0].flags[0]:
        backoff.pause()
    assert not backoff.pause()  # a poll more: Open MPI's probe finds what the one before took in
    assert pair[0].flags[0]
    pair[1].wake(0)
    assert backoff.pause()
    backoff.end()


def test_a_wait_that_has_ended_wants_no_wake_up(pair: tuple[Wakeup, Wakeup]) -> None:
    mine = pair[0]
    looks = [0]

    def look() -> bool | None:
        looks[0] += 1
        return True if mine.flags[0] else None  # it comes just before the sleep

    assert wait_for(look, 20, wakeup=mine)
    assert mine.flags[0] == 0


def test_sleeps_of_a_rank_that_all_can_wake_are_a_tenth_of_the_wait(
    pair: tuple[Wakeup, Wakeup], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    clock = [1000.0]

    def sleep(timeout_s: float, files: object = ()) -> bool:
        slept.append(timeout_s)
        clock[0] += timeout_s
        return False

    def now() -> float:
        clock[0] += 1e-6
        return clock[0]

    monkeypatch.setattr(pair[0], "sleep", sleep)
    monkeypatch.setattr(time, "perf_counter", now)
    backoff = Backoff(wakeup=pair[0])
    while clock[0] < 1010:
        backoff.pause()
    assert slept == sorted(slept)
    assert (slept[0], slept[-1]) == (50e-3, 0.2)
    assert len(slept) < 150


@pytest.mark.parametrize("with_wakeup", [False, True])
def test_a_file_that_can_be_read_ends_a_sleep(
    pair: tuple[Wakeup, Wakeup], with_wakeup: bool
) -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)

    def read() -> bytes | None:
        try:
            return os.read(reading, 10)
        except BlockingIOError:
            return None

    timer = threading.Timer(0.05, os.write, [writing, b"news"])
    timer.start()
    wakeup = pair[0] if with_wakeup else None
    assert wait_for(read, 20, wakeup=wakeup, wakes=[reading]) == b"news"
    timer.join()
    os.close(reading)
    os.close(writing)


def test_flags_of_ranks_are_a_cache_line_apart(pair: tuple[Wakeup, Wakeup]) -> None:
    before = bytes(pair[0].flags)  # with the process ids
    pair[1].announce()
    assert [at for at in range(2 * LINE) if pair[0].flags[at] != before[at]] == [LINE]


def test_a_host_is_crowded_when_modules_of_other_ranks_want_all_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    ranks = [Wakeup(rank, 4) for rank in range(4)]
    for wakeup in ranks:
        wakeup.open("token", tmp_path)
    try:
        assert not ranks[0].is_crowded, "nobody runs a module"
        for wakeup in ranks[:3]:
            wakeup.runs_module = True
        assert ranks[3].is_crowded
        assert ranks[0].is_crowded, "two others run modules on two cores"
        ranks[2].announce()
        assert not ranks[0].is_crowded, "one of them sleeps"
        ranks[2].call_off()
        backoff = Backoff(wakeup=ranks[0])
        assert not backoff.pause()
        assert ranks[0].flags[0] == 1, "it polls although others want its core"
        backoff.end()
        ranks[1].runs_module = False
        assert not ranks[0].is_crowded
    finally:
        for wakeup in ranks:
            wakeup.close()


def test_a_rank_that_is_bound_to_a_core_of_its_own_is_not_crowded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    for ranks, crowded in ((64, False), (65, True)):
        wakeup = Wakeup(0, ranks)
        wakeup.flags[LINE + 1 :: LINE] = bytes([1]) * (ranks - 1)
        assert wakeup.is_crowded is crowded
