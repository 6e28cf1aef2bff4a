"""Communicators over MPI do what those of threads do."""

from __future__ import annotations

import numpy as np
import pytest
from communicator_cases import CASES, check_disagreement, check_messages, check_routines
from support import wait_until

from dnn.distributed import communicator_of, mpi
from dnn.errors import PeerError

pytestmark = pytest.mark.mpi


@pytest.fixture
def comm():
    from mpi4py import MPI

    made = communicator_of(MPI.COMM_WORLD, timeout_s=30)
    # A failure that a test reports would end the making of it on a rank that is still at it.
    MPI.COMM_WORLD.Barrier()
    yield made
    MPI.COMM_WORLD.Barrier()


@pytest.mark.parametrize("check", CASES, ids=lambda check: check.__name__)
def test_communicators(comm, check):
    if comm.size > 1 or check.__name__ not in ("check_failure", "check_mistakes"):
        check(comm)


@pytest.mark.mpi(min_size=2)
def test_ranks_that_sum_different_arrays(comm):
    check_disagreement(comm)


def test_arrays_that_take_several_messages(comm, monkeypatch):
    monkeypatch.setattr(mpi, "LARGEST_MESSAGE", 3000)
    check_messages(comm)
    check_routines(comm)


@pytest.mark.mpi(min_size=2)
def test_a_receive_that_was_given_up_writes_nothing(comm):
    """A message that comes after a failure is not written to memory with other owners."""
    world, mine = comm._comm, np.zeros(100)
    if comm.rank == 1:
        comm.report_failure(ValueError("no such thing"))
    elif comm.rank == 0:
        coming = comm.receive(mine, 1, 5)
        with pytest.raises(PeerError, match="no such thing"):
            coming.wait()
    world.Barrier()
    if comm.rank == 1:
        world.Send(np.full(100, 7.0), 0, 5)
    elif comm.rank == 0:
        wait_until(lambda: world.Iprobe(1, 5), 30)  # which the given-up one would have taken
        assert not mine.any()
        world.Recv(np.empty(100), 1, 5)


def test_ranks_speak_to_each_other(comm):
    array = np.array([1.0])
    comm.sum(array)
    assert array[0] == comm.size
    assert comm.nodes == (0,) * comm.size
