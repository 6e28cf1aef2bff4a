"""Who is silent, and for how long: without MPI."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support import wait_until

from diel.comm.heartbeat import Processes
from diel.executive.heartbeats import Heartbeats, SilenceWatch, beat_every_s, start_heartbeat


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_a_rank_is_lost_when_it_has_been_silent_for_long() -> None:
    watch = SilenceWatch(timeout_s=30, every_s=5)
    watch.note([3, 4], 0)
    for now_s in range(1, 30):
        watch.note([4], now_s)
        assert watch.silent(now_s) == {}
    assert watch.silent(30) == {3: 30}
    watch.forget(3)
    watch.note([3, 4], 30)  # said before it left, and read after
    for now_s in range(31, 90):
        watch.note([4], now_s)
    assert watch.silent(90) == {}


def test_time_in_which_nobody_listened_is_a_beat_at_most() -> None:
    watch = SilenceWatch(timeout_s=30, every_s=5)
    watch.note([3], 0)
    assert watch.silent(1000) == {}
    assert watch.silent(1000 + 5) == {}
    for now_s in range(1006, 1025):
        assert watch.silent(now_s) == {}
    assert watch.silent(1025) == {3: 30}


def test_ranks_are_heard_of_every_few_seconds() -> None:
    assert beat_every_s(30) == 5
    assert beat_every_s(3600) == 5
    assert beat_every_s(3) == 0.5


def test_a_process_that_is_stopped_is_not_heard(sleepers: list[subprocess.Popen[bytes]]) -> None:
    pids = {rank: process.pid for rank, process in enumerate(sleepers)}
    processes = Processes({**pids, 7: 2**22})  # one that cannot be seen is not watched
    assert processes.ranks == processes.heard() == [0, 1]
    sleepers[0].send_signal(signal.SIGSTOP)
    wait_until(lambda: processes.heard() == [1])
    assert processes.left() == [0, 1]
    sleepers[0].send_signal(signal.SIGCONT)
    wait_until(lambda: processes.heard() == [0, 1])
    processes.kill()
    for process in sleepers:
        assert process.wait(60) == -signal.SIGKILL
    assert processes.left() == []


def rank0_of(pids_there: dict[int, int], warned: list[str]) -> Heartbeats:
    hosts = {0: "here", **dict.fromkeys(pids_there, "there")}
    parent: Any = SimpleNamespace(
        rank=0,
        host="here",
        pids_here={0: os.getpid()},
        hosts_and_gpus=[(hosts[rank], ()) for rank in sorted(hosts)],
    )
    return Heartbeats(parent, 2.0, warned.append)


def test_ranks_of_another_host_are_heard(sleepers: list[subprocess.Popen[bytes]]) -> None:
    warned: list[str] = []
    pids = {rank: process.pid for rank, process in enumerate(sleepers, 1)}
    rank0 = rank0_of(pids, warned)
    assert rank0.address is not None
    address = rank0.address._replace(addresses=("127.0.0.1",))
    helper = start_heartbeat(address, pids)
    sleepers[1].send_signal(signal.SIGSTOP)
    silent: dict[int, float] = {}

    def is_silent() -> bool:
        silent.update(rank0.look(time.monotonic()))
        return bool(silent)

    wait_until(is_silent)
    assert list(silent) == [2]
    assert silent[2] >= 2.0
    rank0.close(kills=False)
    assert helper.wait(60) == 0
    assert sleepers[0].poll() is None
    assert warned == []


def test_ranks_are_not_lost_with_the_process_that_tells_of_them(
    sleepers: list[subprocess.Popen[bytes]],
) -> None:
    warned: list[str] = []
    rank0 = rank0_of({rank: process.pid for rank, process in enumerate(sleepers, 1)}, warned)
    assert rank0.address is not None
    address = rank0.address._replace(addresses=("127.0.0.1",))
    helper = start_heartbeat(address, {1: sleepers[0].pid})

    def look() -> bool:
        assert not rank0.look(time.monotonic())
        return bool(rank0._watch._heard_s)

    wait_until(look)
    helper.kill()
    helper.wait()
    wait_until(lambda: not look())
    assert len(warned) == 1
    assert "the process on there that tells which ranks live there has ended" in warned[0]
    # Where the ranks themselves have ended they are silent, and it says so before it ends.
    helper = start_heartbeat(address, {2: sleepers[1].pid})
    wait_until(look)
    sleepers[1].kill()
    sleepers[1].wait()
    assert helper.wait(60) == 0
    wait_until(lambda: list(rank0.look(time.monotonic())) == [2])
    assert len(warned) == 1
    rank0.close(kills=False)


@pytest.mark.parametrize(
    "line", ["guessed 1\n1", "", "TOKEN x", "TOKEN 1e3", "TOKEN " + "9" * 5000, "TOKEN 1\n\xff"]
)
def test_nobody_is_heard_without_the_token_or_without_ranks(line: str) -> None:
    rank0 = rank0_of({1: 2**22}, [])
    assert rank0.address is not None
    with socket.create_connection(("127.0.0.1", rank0.address.port), timeout=60) as stranger:
        stranger.sendall(line.replace("TOKEN", rank0.address.token).encode() + b"\n")
        stranger.setblocking(False)

        def is_hung_up() -> bool:
            rank0.look(time.monotonic())
            with contextlib.suppress(BlockingIOError):
                return not stranger.recv(1)
            return False

        wait_until(is_hung_up)
    assert not rank0._watch.silent(time.monotonic() + 100)
    rank0.close(kills=True)


def test_a_host_that_cannot_reach_rank0_says_so() -> None:
    rank0 = rank0_of({1: 2**22}, [])
    assert rank0.address is not None
    address = rank0.address._replace(addresses=("127.0.0.1",))
    rank0.close(kills=False)
    with pytest.raises(OSError, match="refused"):
        start_heartbeat(address, {1: os.getpid()})


def test_a_host_without_its_rank0_ends_its_ranks(sleepers: list[subprocess.Popen[bytes]]) -> None:
    rank0 = rank0_of({1: sleepers[0].pid}, [])
    assert rank0.address is not None
    address = rank0.address._replace(addresses=("127.0.0.1",), leave_s=0.1)
    helper = start_heartbeat(address, {1: sleepers[0].pid})
    rank0.close(kills=True)
    assert helper.wait(60) == 0
    assert sleepers[0].wait(60) == -signal.SIGKILL
    assert sleepers[1].poll() is None


def test_a_rank_that_ends_is_told_at_once(sleepers: list[subprocess.Popen[bytes]]) -> None:
    pids = {rank: process.pid for rank, process in enumerate(sleepers, 1)}
    parent: Any = SimpleNamespace(
        rank=0, host="here", pids_here={0: os.getpid(), **pids}, hosts_and_gpus=[("here", ())] * 3
    )
    rank0 = Heartbeats(parent, 600, pytest.fail, is_for_all=True)
    assert rank0.address is not None
    assert rank0.address.is_for_all
    helper = start_heartbeat(rank0.address._replace(every_s=300.0), pids)
    rank0.look(time.monotonic())
    assert not rank0.ended
    sleepers[1].kill()
    sleepers[1].wait()

    def is_told() -> bool:
        rank0.look(time.monotonic())
        return rank0.ended == {2}

    wait_until(is_told, 60)  # and not at the next beat
    rank0.close(kills=False)
    assert helper.wait(60) == 0
    assert sleepers[0].poll() is None


def test_ranks_end_soon_after_rank0_has_died(sleepers: list[subprocess.Popen[bytes]]) -> None:
    rank0 = rank0_of({1: sleepers[0].pid}, [])
    assert rank0.address is not None
    address = rank0.address._replace(addresses=("127.0.0.1",), leave_s=600.0)
    helper = start_heartbeat(address, {1: sleepers[0].pid})
    rank0.look(time.monotonic())
    for key in list(rank0._selector.get_map().values()):  # as the kernel does
        key.fileobj.close()  # type: ignore[union-attr]
    assert helper.wait(60) == 0
    assert sleepers[0].wait(60) == -signal.SIGKILL
