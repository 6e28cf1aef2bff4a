"""Data parallelism over MPI equals one process, and fails if ranks do not speak to each other."""

from __future__ import annotations

import pytest
from data_parallel_cases import CASES

from dnn.distributed import communicator_of

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("check", CASES, ids=lambda check: check.__name__)
def test_ranks_train_together(check):
    from mpi4py import MPI

    check(communicator_of(MPI.COMM_WORLD, timeout_s=30))
    MPI.COMM_WORLD.Barrier()
