"""Communicators of threads, and sums made of messages."""

import numpy as np
import pytest
from communicator_cases import CASES, check_disagreement

from dnn.distributed import communicator_of, run_on_threads
from dnn.errors import ConfigurationError, PeerError

# On which host each rank is: one host, hosts of their own, and hosts with several ranks.
HOSTS = [[0], [0, 0], [0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 1, 1], [0, 1, 1, 1, 0], [0] * 7]


@pytest.mark.parametrize("hosts", HOSTS, ids=lambda hosts: "".join(map(str, hosts)))
@pytest.mark.parametrize("check", CASES, ids=lambda check: check.__name__)
def test_threads(check, hosts):
    if len(hosts) > 1 or check.__name__ not in ("check_failure", "check_mistakes"):
        run_on_threads(len(hosts), check, nodes=hosts, timeout_s=60)


def test_ranks_that_sum_different_arrays():
    run_on_threads(2, check_disagreement, timeout_s=10)


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
