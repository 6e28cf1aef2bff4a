"""Objects between ranks: order, size, no blocking."""

from __future__ import annotations

import time

import pytest
from support import wait_until

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


def test_a_sender_that_computes_does_not_hold_up_the_receiver(parent, place):
    """A message too large for MPI's eager path moves only while its sender is in MPI."""
    large, sent, polled = bytes(16 * MIB), place / "sent", place / "polled"
    if parent.rank == 0:
        mailbox = Mailbox(parent.comm, sends=1, receives=2)
        mailbox.send(large, 1)
        sent.touch()
        wait_until(polled.exists, 30)  # outside of MPI: a poll that waited for it would not end
        mailbox.send("small", 1)
        assert mailbox.flush(timeout_s=30)
    elif parent.rank == 1:
        mailbox = Mailbox(parent.comm, sends=2, receives=1)
        wait_until(sent.exists, 30)
        found = [mailbox.poll() for _ in range(20)]
        polled.touch()
        first = next(filter(None, found), None) or mailbox.wait(timeout_s=30)
        assert first == (0, large)
        assert mailbox.wait(timeout_s=30) == (0, "small")


def test_waiting_gives_up_after_its_timeout(parent):
    mailbox = Mailbox(parent.comm, sends=1, receives=2)
    started_s = time.perf_counter()
    assert mailbox.wait(timeout_s=0.2) is None
    assert time.perf_counter() - started_s >= 0.2


def test_a_blocked_rank_sleeps(parent):
    mailbox = Mailbox(parent.comm, sends=1, receives=2)
    cpu_s = time.process_time()
    assert mailbox.wait(timeout_s=1.5) is None
    assert time.process_time() - cpu_s < 0.5


def test_a_rank_that_sleeps_is_woken_by_a_message(parent, monkeypatch):
    """The last sleep before a message does not last to its end, but where the message comes later.

    That may be now and then, where ranks share their cores with others.
    """
    if parent.rank > 1:
        return
    sends, receives = (1, 2) if parent.rank == 0 else (2, 1)
    mailbox = Mailbox(parent.comm, sends=sends, receives=receives)
    sleep, woken, last = parent.wakeup.sleep, [], []

    def note(*arguments):
        last[:] = [sleep(*arguments)]
        return last[0]

    monkeypatch.setattr(parent.wakeup, "sleep", note)
    for number in range(40):
        if parent.rank == 0:
            time.sleep(2e-3)  # the other one sleeps by then
            mailbox.send(number, 1)
            assert mailbox.wait(timeout_s=30) == (1, number)
        else:
            assert mailbox.wait(timeout_s=30) == (0, number)
            time.sleep(1e-3)  # and the one before
            mailbox.send(number, 0)
        woken += last
        last.clear()
    assert mailbox.flush(timeout_s=30)
    assert parent.wakeup.wakes_all
    assert 2 * sum(woken) >= len(woken)
