"""Data parallelism over MPI equals one process, and fails if ranks do not speak to each other."""

from __future__ import annotations

import pytest
from data_parallel_cases import CASES, check_joined_batch, check_overlap, make_buckets_small

import dnn.backend
from dnn.distributed import communicator_of

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("check", CASES, ids=lambda check: check.__name__)
def test_ranks_train_together(check, monkeypatch):
    """Most on NumPy alone: kernels would have to be compiled first."""
    from mpi4py import MPI

    if check not in (check_joined_batch, check_overlap, make_buckets_small):
        monkeypatch.setattr(dnn.backend, "has_numba", lambda: False)
    make_buckets_small(monkeypatch)
    check(communicator_of(MPI.COMM_WORLD, timeout_s=30))
    MPI.COMM_WORLD.Barrier()
