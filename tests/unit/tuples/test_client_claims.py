"""Claims as a client holds them: to their end, until a lease ends, until it dies."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from unit.tuples.driving import PATIENCE_S, Unreadable, held

from diel import ANY
from diel.errors import ClaimLost, PayloadError, TupleTimeout
from diel.tuples.client import TupleClient
from diel.tuples.store import TupleStore
from diel.tuples.transport import LocalTransport


def test_a_claim_ends_with_its_block(tuples: TupleClient, stores: list[TupleStore]) -> None:
    for number in range(2):
        tuples.tput(("job", number), np.full(30_000, number))
    with tuples.claim(("job", ANY)) as job:
        assert (job.tag, job.value.tolist()) == (("job", 0), [0] * 30_000)
        assert tuples.count(("job", ANY)) == 1
        assert held(stores)[0] == 2
    tuples.tget(("job", 1), timeout=0)
    assert held(stores) == (0, 0)


def test_a_claim_whose_block_raises_is_given_back_to_its_place(tuples: TupleClient) -> None:
    for number in range(3):
        tuples.tput(("job", number % 2), number)
    with pytest.raises(ZeroDivisionError), tuples.claim(("job", ANY)):
        raise ZeroDivisionError
    assert [tuples.tget(("job", ANY), timeout=0) for _ in range(3)] == [0, 1, 2]


def test_a_claim_can_be_ended_by_hand(tuples: TupleClient) -> None:
    tuples.tput("a", 1)
    with tuples.claim("a") as claim:
        claim.give_back()
    with tuples.claim("a") as claim:
        claim.acknowledge()
    for end in (claim.acknowledge, claim.give_back, lambda: claim.renew(1)):
        with pytest.raises(ClaimLost, match="'a'"):
            end()
    assert tuples.count("a") == 0


def test_a_claim_that_waits_goes_to_who_came_first(
    transport: LocalTransport, threads: ThreadPoolExecutor
) -> None:
    tuples = TupleClient(transport)
    tuples.tput("a", 1)
    first = tuples.claim("a")
    waiting = threads.submit(TupleClient(transport.another_client()).claim, "a", timeout=PATIENCE_S)
    time.sleep(0.05)
    first.give_back()
    second = waiting.result(PATIENCE_S)
    assert second.value == 1
    second.acknowledge()
    assert tuples.count("a") == 0


def test_a_lease_that_ends_loses_the_claim(tuples: TupleClient, other: TupleClient) -> None:
    tuples.tput("a", 1)
    with pytest.raises(ClaimLost), tuples.claim("a", lease=0.05):
        assert other.tget("a", timeout=PATIENCE_S) == 1
    tuples.tput("a", 2)
    # What the block raises says more than the loss.
    with pytest.raises(ZeroDivisionError), tuples.claim("a", lease=0.05):
        other.tget("a", timeout=PATIENCE_S) / 0


def test_a_lease_is_renewed_by_its_holder(tuples: TupleClient, other: TupleClient) -> None:
    tuples.tput("a", 1)
    with tuples.claim("a", lease=30) as claim:
        claim.renew(0.2)
        with pytest.raises(TupleTimeout):
            other.tget("a", timeout=0.05)
        claim.renew(30)
        with pytest.raises(TupleTimeout):
            other.tget("a", timeout=0.3)


@pytest.mark.parametrize("lease", [0, -1, float("nan")])
def test_a_lease_takes_a_while(tuples: TupleClient, lease: float) -> None:
    tuples.tput("a", 1)
    with pytest.raises(ValueError, match="lease"):
        tuples.claim("a", lease=lease)
    with tuples.claim("a") as claim, pytest.raises(ValueError, match="lease"):
        claim.renew(lease)


def test_the_claims_of_the_dead_go_to_the_living(
    tuples: TupleClient, other: TupleClient, stores: list[TupleStore]
) -> None:
    tuples.tput("a", 1)
    lost = other.claim("a")
    assert not lost.held_by_dead
    for store in stores:
        store.client_died(1)
    with tuples.claim("a", timeout=0) as found:
        assert (found.value, found.held_by_dead) == (1, True)
    with pytest.raises(ClaimLost):
        lost.acknowledge()


def test_a_claim_on_what_cannot_be_rebuilt_is_given_back(tuples: TupleClient) -> None:
    tuples.tput("a", Unreadable())
    with pytest.raises(PayloadError, match="cannot be rebuilt"):
        tuples.claim("a")
    assert tuples.count("a") == 1
