"""Which rank gets which GPUs: even, enough for every group, and for life."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diel.executive.placement.gpus import (
    NO_GPUS,
    Node,
    RankGpus,
    Size,
    TooFewGpus,
    assign_gpus,
    exact_size,
    nodes_of,
    required_ranks,
)

HALF, THIRD, QUARTER = (Fraction(1, count) for count in (2, 3, 4))


def node(ranks: range, gpus: int, host: str = "a") -> Node:
    return Node(host, tuple(ranks), tuple(map(str, range(gpus))))


def sizes(assigned: dict[int, RankGpus]) -> list[Size]:
    return [assigned[rank].size for rank in sorted(assigned)]


def names(assigned: dict[int, RankGpus]) -> str:
    return " ".join("+".join(assigned[rank].names) or "-" for rank in sorted(assigned))


def test_nodes_come_in_the_order_of_their_first_ranks() -> None:
    seen = [(2, "b", ("0", "1")), (3, "a", ("0",)), (4, "b", ("0", "1")), (5, "a", ("0",))]
    assert nodes_of(seen) == [Node("b", (2, 4), ("0", "1")), Node("a", (3, 5), ("0",))]


def test_a_launcher_that_has_dealt_the_gpus_is_believed() -> None:
    (only,) = nodes_of([(2, "a", ("0",)), (3, "a", ("1",)), (4, "a", ())])
    assert only == Node("a", (2, 3, 4), ("0", "1"), {2: ("0",), 3: ("1",), 4: ()})
    assert names(assign_gpus([only], [[1, 1]])) == "0 1 -"
    with pytest.raises(TooFewGpus):
        assign_gpus([only], [[2]])


@pytest.mark.parametrize(
    ("demands", "expected"),
    [
        ([[1]], [1, 1, 1, 1]),  # what is left goes to further ranks
        ([[2]], [2, 2, 0, 0]),
        ([[3]], [3, 0, 0, 0]),  # one GPU is left that nobody could use
        ([[2], [1, 1]], [2, 1, 1, 0]),
        ([[2, 1, 1]], [2, 1, 1, 0]),
        ([[4], [1]], [4, 0, 0, 0]),  # the rank with 4 will do for 1
        ([[], []], [0, 0, 0, 0]),
    ],
)
def test_one_node_with_four_gpus_and_four_ranks(
    demands: list[list[int]], expected: list[int]
) -> None:
    assert sizes(assign_gpus([node(range(2, 6), 4)], demands)) == expected


@pytest.mark.parametrize("demands", [[[5]], [[2, 2, 1]], [[1] * 5], [[2, 2], [2, 1, 1]]])
def test_what_one_node_cannot_give(demands: list[list[int]]) -> None:
    with pytest.raises(TooFewGpus):
        assign_gpus([node(range(2, 6), 4)], demands)


def test_nodes_are_dealt_evenly() -> None:
    nodes = [node(range(4), 4, "a"), node(range(4, 8), 4, "b")]
    assert sizes(assign_gpus(nodes, [[2, 2]])) == [2, 2, 0, 0, 2, 2, 0, 0]
    assert sizes(assign_gpus(nodes, [[4, 1]])) == [4, 0, 0, 0, 1, 1, 1, 1]
    with pytest.raises(TooFewGpus):
        assign_gpus(nodes, [[3, 3, 2]])


def test_where_even_does_not_fit_the_fullest_node_comes_first() -> None:
    nodes = [node(range(4), 4, "a"), node(range(4, 8), 3, "b")]
    assert sizes(assign_gpus(nodes, [[3, 2, 2]])) == [2, 2, 0, 0, 3, 0, 0, 0]


def test_names_are_those_of_the_node() -> None:
    named = Node("a", (7, 8), ("GPU-x", "GPU-y", "GPU-z"))
    assert assign_gpus([named], [[2]]) == {7: RankGpus(("GPU-x", "GPU-y"), 2), 8: NO_GPUS}


@pytest.mark.parametrize(
    ("gpus", "demands", "expected"),
    [
        (1, [[QUARTER]], "0 0 0 0 -"),  # what is left goes to further ranks
        (2, [[QUARTER]], "0 1 0 1 0"),  # no GPU idles while others are shared
        (2, [[HALF, HALF, HALF]], "0 1 0 1 -"),
        (1, [[THIRD, THIRD, THIRD]], "0 0 0 - -"),
        (2, [[1, QUARTER, QUARTER]], "0 1 1 1 1"),
        (2, [[1, 1], [QUARTER, QUARTER]], "0 1 - - -"),  # a rank with one will do for a share
        (2, [[2], [HALF]], "0+1 - - - -"),
        (4, [[2, HALF]], "0+1 2 3 2 3"),
        (3, [[HALF, HALF, THIRD, THIRD, THIRD]], "0 1 2 2 0"),
    ],
)
def test_ranks_share_gpus(gpus: int, demands: list[list[Size]], expected: str) -> None:
    assert names(assign_gpus([node(range(5), gpus)], demands)) == expected


@pytest.mark.parametrize(
    "demands", [[[QUARTER] * 9], [[1, 1, QUARTER]], [[HALF] * 5], [[1, HALF, HALF, QUARTER]]]
)
def test_shares_for_which_two_gpus_are_too_few(demands: list[list[Size]]) -> None:
    with pytest.raises(TooFewGpus):
        assign_gpus([node(range(9), 2)], demands)


def test_shares_are_even_over_nodes_and_full_where_they_must_be() -> None:
    nodes = [node(range(4), 1, "a"), node(range(4, 8), 1, "b")]
    assert names(assign_gpus(nodes, [[QUARTER] * 2])) == "0 0 0 0 0 0 0 0"
    assert sizes(assign_gpus(nodes, [[1, QUARTER, QUARTER]]))[:1] == [1]
    assert names(assign_gpus(nodes, [[1, QUARTER, QUARTER]])) == "0 - - - 0 0 0 0"


def test_a_share_is_an_exact_number() -> None:
    assert [exact_size(gpus) for gpus in (0, 2, 0.5, 1 / 3, 1 / 64)] == [
        0,
        2,
        HALF,
        THIRD,
        Fraction(1, 64),
    ]


SIZES = st.one_of(st.integers(1, 4), st.integers(2, 6).map(lambda count: Fraction(1, count)))
DEMANDS = st.lists(
    st.lists(SIZES, max_size=6).map(lambda sizes: sorted(sizes, reverse=True)), max_size=4
)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 8)), min_size=1, max_size=3), DEMANDS)
def test_every_group_finds_its_ranks_and_no_gpu_is_given_more_than_once(
    shapes: list[tuple[int, int]], demands: list[list[Size]]
) -> None:
    nodes, first = [], 0
    for index, (ranks, gpus) in enumerate(shapes):
        nodes.append(node(range(first, first + ranks), gpus, str(index)))
        first += ranks
    required = required_ranks(demands)
    whole_needed = sum(size for size in required if size >= 1)
    try:
        assigned = assign_gpus(nodes, demands)
    except TooFewGpus:
        if len(nodes) == 1:
            # A GPU with no room for a share of at most 1/2 is more than half full.
            share_rooms = 2 * (shapes[0][1] - whole_needed)
            assert len(required) > shapes[0][0] or share_rooms < sum(size < 1 for size in required)
        return
    assert sorted(assigned) == list(range(first))
    for one in nodes:
        given = dict.fromkeys(one.gpus, Fraction(0))
        for rank in one.ranks:
            gpu_names, size = assigned[rank]
            assert len(set(gpu_names)) == len(gpu_names) == -(-size // 1)
            for gpu in gpu_names:
                given[gpu] += min(size, Fraction(1))
        assert all(share <= 1 for share in given.values())
    counts = sorted((gpus.size for gpus in assigned.values()), reverse=True)
    for demand in demands:
        assert all(count >= size for count, size in zip(counts, demand, strict=False))
        assert len(counts) >= len(demand)
