"""Communicators over MPI do what those of threads do."""

from __future__ import annotations

import numpy as np
import pytest
from communicator_cases import CASES, check_disagreement, check_messages, check_routines

from dnn.distributed import communicator_of, mpi

pytestmark = pytest.mark.mpi


@pytest.fixture
def comm():
    from mpi4py import MPI

    yield communicator_of(MPI.COMM_WORLD, timeout_s=30)
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


def test_ranks_speak_to_each_other(comm):
    array = np.array([1.0])
    comm.sum(array)
    assert array[0] == comm.size
    assert comm.nodes == (0,) * comm.size
