"""Communicators made from the parent: overlapping, one after the other, with leftovers."""

from __future__ import annotations

import time

import pytest

from diel.comm import tags

pytestmark = pytest.mark.mpi


def test_one_rank_gets_a_communicator_of_its_own(parent):
    comm = parent.create_communicator([parent.rank], serial=1)
    assert comm.Get_size() == 1
    assert parent.retire_communicator(comm) == 0


def test_ranks_keep_the_order_they_were_given_in(parent):
    ranks = list(reversed(range(parent.size)))
    comm = parent.create_communicator(ranks, serial=2)
    assert comm.Get_rank() == ranks.index(parent.rank)
    assert parent.retire_communicator(comm) == 0


def test_thousands_of_communicators_can_follow_each_other(parent):
    """MPICH allows 2,046 at a time: a leak would end this, unless the ranks hardly get a core."""
    end_s = time.monotonic() + 20
    for serial in range(2500):
        comm = parent.create_communicator(range(parent.size), serial)
        is_late = serial % 50 == 0 and comm.bcast(time.monotonic() > end_s)
        comm.Free()
        if is_late:
            break


@pytest.mark.mpi(min_size=4)
def test_two_groups_are_made_at_the_same_time(parent):
    mine = [0, 1] if parent.rank < 2 else [2, 3]
    comm = parent.create_communicator(mine[: parent.size], serial=10 + mine[0])
    assert comm.allreduce(parent.rank) == sum(mine)
    assert parent.retire_communicator(comm) == 0


@pytest.mark.mpi(min_size=4)
def test_copies_share_a_rank_with_nobody_but_meet_in_the_module(parent):
    copy = [0, 1] if parent.rank < 2 else [2, 3]
    comm = parent.create_communicator(copy, serial=20 + copy[0])
    module_comm = parent.create_communicator([0, 1, 2, 3], serial=30)
    assert comm.Get_size() == 2
    assert module_comm.allreduce(1) == 4
    assert parent.retire_communicator(module_comm) == 0
    assert parent.retire_communicator(comm) == 0


@pytest.mark.mpi(min_size=2)
def test_a_message_nobody_received_is_counted_and_does_not_reach_the_next(parent):
    for serial in range(25):
        comm = parent.create_communicator([0, 1], serial) if parent.rank < 2 else None
        if comm is None:
            continue
        if serial % 2 == 0 and comm.Get_rank() == 0:
            comm.isend("left behind", dest=1, tag=7)
        leftovers = parent.retire_communicator(comm)
        assert leftovers == (1 if serial % 2 == 0 and parent.rank == 1 else 0)


@pytest.mark.mpi(min_size=2)
def test_making_one_does_not_meet_a_receive_that_waits_for_our_own_tags(parent):
    """Clients keep one open for their server; Open MPI sends with the communicator's number."""
    if parent.rank >= 2:
        return
    buffer = bytearray(100)
    receive = parent.comm.Irecv(buffer, tag=tags.SERVER_TO_CLIENT)
    for serial in range(2 * tags.SERVER_TO_CLIENT):
        comm = parent.create_communicator([0, 1], serial)
        assert parent.retire_communicator(comm) == 0
    assert not receive.Test()
    receive.Cancel()
    receive.Wait()
