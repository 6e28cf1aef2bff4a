"""Which ranks run a trial, where trials have different numbers of ranks."""

from __future__ import annotations

from collections import defaultdict, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.sweep.rank_queues import RankQueues, Ranks


def queues(copies: int = 1, ranks: int = 4) -> RankQueues:
    found = RankQueues(copies, ranks)
    for copy in range(copies):
        assert found.begin(copy, f"s{copy}") == []
    return found


def test_small_trials_leave_room_for_large_ones() -> None:
    found, places = queues(copies=2), []
    for lease, count in enumerate((1, 1, 2, 4)):
        place = found.place(count)
        assert place is not None
        found.give(lease, place)
        places.append((place.copy_index, *place))
    assert places == [(0, 0), (0, 1), (0, 2, 3), (1, 0, 1, 2, 3)]
    assert found.place(1) is None
    assert not found.has_room(1)
    found.came_back(1)
    found.came_back(1)  # of a trainer that was given up
    assert found.place(1) == Ranks(0, "s0", 1, 1)


def test_ranks_of_a_group_wait_for_a_large_trial_and_for_no_second_one() -> None:
    found = queues()
    found.give(0, Ranks(0, "s0", 0, 1))
    wide = found.place(4)
    assert wide == Ranks(0, "s0", 0, 4)
    found.give(1, wide)
    assert found.place(1) is None  # nothing passes it
    assert found.place(4) is None
    found.came_back(0)
    assert found.place(4) == wide


def test_three_of_four_ranks_are_one_group() -> None:
    found = queues()
    assert found.place(3) == Ranks(0, "s0", 0, 3)
    found.give(0, Ranks(0, "s0", 0, 3))
    assert found.place(1) == Ranks(0, "s0", 3, 1)


def test_a_copy_that_begins_again_has_lost_its_leases() -> None:
    found = RankQueues(2, 2)
    assert not found.are_known
    assert found.place(1) is None
    found.begin(1, "first")
    found.give(7, Ranks(1, "first", 0, 2))
    assert found.begin(0, "other") == []
    assert found.begin(1, "first") == []  # told twice
    assert found.begin(1, "second") == [7]
    found.came_back(7)
    assert found.ranks_of(7) is None
    assert found.group_of(2, 1) == Ranks(1, "second", 0, 1)
    assert found.group_of(None, 2) == Ranks(0, "other", 0, 2)


def test_a_copy_that_has_failed_gets_nothing_until_it_begins_again() -> None:
    found = queues(copies=2, ranks=2)
    given = Ranks(0, "s0", 0, 2)
    found.give(3, given)
    assert found.end(0, "before") == []  # told late
    assert found.has(given)
    assert found.end(0, "s0") == [3]
    assert found.end(0, "s0") == []
    assert not found.has(given)
    assert found.place(1) == Ranks(1, "s1", 0, 1)
    assert found.group_of(0, 1) == Ranks(1, "s1", 0, 1)
    found.begin(0, "again")
    assert found.place(1) == Ranks(0, "again", 0, 1)


@given(
    st.integers(1, 3),
    st.integers(1, 6),
    st.lists(st.integers(1, 6), min_size=1, max_size=30),
    st.integers(1, 2),
    st.randoms(use_true_random=False),
)
def test_every_trial_ends_in_whatever_order_ranks_are_done(
    copies: int, ranks: int, counts: list[int], most: int, order: object
) -> None:
    """Ranks take their orders one after the other; a group begins when all of it have come."""
    found = queues(copies, ranks)
    waiting = deque(enumerate(min(count, ranks) for count in counts))
    orders: dict[tuple[int, int], deque[int]] = defaultdict(deque)
    out: dict[int, Ranks] = {}
    begun = []
    while waiting or out:
        while waiting and (place := found.place(waiting[0][1], most)) is not None:
            lease, _ = waiting.popleft()
            begun.append(lease)
            found.give(lease, place)
            out[lease] = place
            for rank in place:
                orders[place.copy_index, rank].append(lease)
        running = [
            lease
            for lease, place in out.items()
            if all(orders[place.copy_index, rank][0] == lease for rank in place)
        ]
        assert running, "ranks wait for each other in a circle"
        done = order.choice(running)  # type: ignore[attr-defined]
        place = out.pop(done)
        found.came_back(done)
        for rank in place:
            orders[place.copy_index, rank].popleft()
    assert begun == sorted(begun)
    assert all(found.place(ranks) is not None for _ in range(2))


@pytest.mark.parametrize("most", [1, 2])
def test_a_rank_has_no_more_orders_than_asked(most: int) -> None:
    found = queues(ranks=2)
    for lease in range(2 * most):
        place = found.place(1, most)
        assert place is not None
        found.give(lease, place)
    assert found.place(1, most) is None
