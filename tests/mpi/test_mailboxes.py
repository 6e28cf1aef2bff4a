"""Objects between ranks: order, size, no blocking."""

from __future__ import annotations

import time

import pytest

from diel.comm.mailbox import Mailbox

pytestmark = pytest.mark.mpi(min_size=2)

MIB = 2**20


def test_messages_of_all_sizes_keep_their_order(parent):
    messages = [(index, bytes(size)) for index, size in enumerate([3, 8 * MIB, 1, MIB, 0, 5000])]
    if parent.rank == 0:
        mailbox = Mailbox(parent.comm, sends=1, receives=2)
        for rank in range(1, parent.size):
            for message in messages:
                mailbox.send(message, rank)
        assert mailbox.flush(timeout_s=30)
    else:
        mailbox = Mailbox(parent.comm, sends=2, receives=1)
        received = [mailbox.wait(timeout_s=30) for _ in messages]
        assert received == [(0, message) for message in messages]


def test_a_sender_that_computes_does_not_hold_up_the_receiver(parent):
    """A message too large for MPI's eager path moves only while its sender is in MPI."""
    if parent.rank == 0:
        mailbox = Mailbox(parent.comm, sends=1, receives=2)
        mailbox.send(bytes(16 * MIB), 1)
        time.sleep(1.0)
        mailbox.send("small", 1)
        assert mailbox.flush(timeout_s=30)
    elif parent.rank == 1:
        mailbox = Mailbox(parent.comm, sends=2, receives=1)
        started_s = time.perf_counter()
        longest_poll_s = 0.0
        first = None
        while first is None:
            poll_s = time.perf_counter()
            first = mailbox.poll()
            longest_poll_s = max(longest_poll_s, time.perf_counter() - poll_s)
            assert time.perf_counter() - started_s < 30
        assert longest_poll_s < 0.9  # none waited for the sender to come back
        assert mailbox.wait(timeout_s=30) == (0, "small")


def test_waiting_gives_up_after_its_timeout(parent):
    mailbox = Mailbox(parent.comm, sends=1, receives=2)
    started_s = time.perf_counter()
    assert mailbox.wait(timeout_s=0.2) is None
    assert 0.2 <= time.perf_counter() - started_s < 2


def test_a_blocked_rank_sleeps(parent):
    mailbox = Mailbox(parent.comm, sends=1, receives=2)
    cpu_s = time.process_time()
    assert mailbox.wait(timeout_s=1.5) is None
    assert time.process_time() - cpu_s < 0.15


def test_a_rank_that_sleeps_is_woken_by_a_message(parent):
    """Each wake-up that is lost would cost the whole of a sleep: 50 ms."""
    rounds = 40
    if parent.rank > 1:
        return
    sends, receives = (1, 2) if parent.rank == 0 else (2, 1)
    mailbox = Mailbox(parent.comm, sends=sends, receives=receives)
    taken_s = []
    for number in range(rounds):
        if parent.rank == 0:
            time.sleep(2e-3)  # the other one sleeps by then
            started_s = time.perf_counter()
            mailbox.send(number, 1)
            assert mailbox.wait(timeout_s=30) == (1, number)
            taken_s.append(time.perf_counter() - started_s)
        else:
            assert mailbox.wait(timeout_s=30) == (0, number)
            time.sleep(1e-3)  # and the one before
            mailbox.send(number, 0)
    assert mailbox.flush(timeout_s=30)
    if parent.rank == 0:
        assert parent.wakeup.wakes_all
        assert sorted(taken_s)[rounds // 2] < 40e-3
