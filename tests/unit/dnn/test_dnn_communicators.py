"""Communicators of threads, and sums made of messages."""

import numpy as np
import pytest
from communicator_cases import CASES

from dnn.distributed import communicator_of, run_on_threads
from dnn.errors import ConfigurationError, PeerError


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("check", CASES, ids=lambda check: check.__name__)
def test_threads(check, size):
    if size > 1 or check.__name__ not in ("check_failure", "check_mistakes"):
        run_on_threads(size, check, timeout_s=60)


def test_who_has_failed_first_is_raised():
    def fail(comm):
        if comm.rank == 1:
            raise ZeroDivisionError("of rank 1")
        try:
            comm.sum(np.zeros(3))
        except PeerError as error:
            heard.append(error.rank)
            raise

    heard = []
    with pytest.raises(ZeroDivisionError, match="of rank 1"):
        run_on_threads(3, fail)
    assert heard == [1, 1]


def test_what_a_communicator_may_be():
    def same(comm):
        return communicator_of(comm) is comm

    assert run_on_threads(2, same) == [True, True]
    with pytest.raises(ConfigurationError, match="one of mpi4py"):
        communicator_of("COMM_WORLD")
