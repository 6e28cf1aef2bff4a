"""Which rank gets which GPUs: even, enough for every group, and for life."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diel.executive.placement.gpus import Node, TooFewGpus, assign_gpus, nodes_of, required_ranks


def node(ranks: range, gpus: int, host: str = "a") -> Node:
    return Node(host, tuple(ranks), tuple(map(str, range(gpus))))


def sizes(assigned: dict[int, tuple[str, ...]]) -> list[int]:
    return [len(assigned[rank]) for rank in sorted(assigned)]


def test_nodes_come_in_the_order_of_their_first_ranks() -> None:
    seen = [(2, "b", ("0", "1")), (3, "a", ("0",)), (4, "b", ("0", "1")), (5, "a", ("0",))]
    assert nodes_of(seen) == [Node("b", (2, 4), ("0", "1")), Node("a", (3, 5), ("0",))]


def test_a_launcher_that_has_dealt_the_gpus_is_believed() -> None:
    (only,) = nodes_of([(2, "a", ("0",)), (3, "a", ("1",)), (4, "a", ())])
    assert only == Node("a", (2, 3, 4), ("0", "1"), {2: ("0",), 3: ("1",), 4: ()})
    assert assign_gpus([only], [[1, 1]]) == {2: ("0",), 3: ("1",), 4: ()}
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
    assert assign_gpus([named], [[2]]) == {7: ("GPU-x", "GPU-y"), 8: ()}


DEMANDS = st.lists(
    st.lists(st.integers(1, 4), max_size=6).map(lambda one: sorted(one, reverse=True)), max_size=4
)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 8)), min_size=1, max_size=3), DEMANDS)
def test_every_group_finds_its_seats_and_no_gpu_has_two_ranks(
    shapes: list[tuple[int, int]], demands: list[list[int]]
) -> None:
    nodes, first = [], 0
    for index, (ranks, gpus) in enumerate(shapes):
        nodes.append(node(range(first, first + ranks), gpus, str(index)))
        first += ranks
    total_needed = sum(required_ranks(demands))
    try:
        assigned = assign_gpus(nodes, demands)
    except TooFewGpus:
        if len(nodes) == 1:
            assert total_needed > shapes[0][1] or len(required_ranks(demands)) > shapes[0][0]
        return
    assert sorted(assigned) == list(range(first))
    for one in nodes:
        given = [gpu for rank in one.ranks for gpu in assigned[rank]]
        assert len(given) == len(set(given))
        assert set(given) <= set(one.gpus)
    counts = sorted((len(gpus) for gpus in assigned.values()), reverse=True)
    for demand in demands:
        assert all(count >= size for count, size in zip(counts, demand, strict=False))
        assert len(counts) >= len(demand)
