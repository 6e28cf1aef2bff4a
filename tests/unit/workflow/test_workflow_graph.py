"""Cycles, orders and the heaviest antichain, against brute force where it is small."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diel.workflow.graph import dependency_order, find_cycle, heaviest_antichain

Graph = dict[str, list[str]]


@st.composite
def graphs(draw: st.DrawFn, acyclic: bool) -> Graph:
    names = draw(st.permutations("abcdefgh"))[: draw(st.integers(0, 8))]
    return {
        name: draw(st.lists(st.sampled_from(others), unique=True, max_size=4)) if others else []
        for index, name in enumerate(names)
        for others in [names[:index] if acyclic else names]
    }


def ancestors(depends: Graph) -> dict[str, set[str]]:
    reached = {name: set(needed) for name, needed in depends.items()}
    for _ in depends:
        for name in depends:
            for needed in list(reached[name]):
                reached[name] |= reached[needed]
    return reached


@given(graphs(acyclic=False))
def test_a_cycle_is_found_if_there_is_one(depends: Graph) -> None:
    cycle = find_cycle(depends)
    has_one = any(name in above for name, above in ancestors(depends).items())
    assert (cycle is not None) == has_one
    if cycle:
        assert cycle[0] == cycle[-1]
        assert len(set(cycle)) == len(cycle) - 1
        assert all(after in depends[before] for before, after in pairwise(cycle))


def test_the_first_cycle_in_file_order() -> None:
    depends = {"a": [], "b": ["a", "d"], "c": ["b"], "d": ["c"], "e": ["e"]}
    assert find_cycle(depends) == ["b", "d", "c", "b"]
    assert find_cycle({"a": ["a"]}) == ["a", "a"]


def test_a_name_that_is_no_group_is_passed_over() -> None:
    depends = {"a": ["ghost"], "b": ["a"]}
    assert find_cycle(depends) is None
    assert dependency_order(depends) == ["a", "b"]
    assert heaviest_antichain({"a": 1, "b": 2}, depends)[0] == 2


def test_order_is_file_order_among_the_ready() -> None:
    assert dependency_order({"d": ["b"], "c": [], "b": [], "a": []}) == ["c", "b", "d", "a"]


@given(graphs(acyclic=True))
def test_order_puts_each_group_after_what_it_needs(depends: Graph) -> None:
    order = dependency_order(depends)
    assert sorted(order) == sorted(depends)
    for name, needed in depends.items():
        assert all(order.index(one) < order.index(name) for one in needed)


def test_no_order_for_a_cycle() -> None:
    with pytest.raises(ValueError, match="groups wait for each other"):
        dependency_order({"a": ["b"], "b": ["a"]})


@given(graphs(acyclic=True), st.data())
def test_heaviest_antichain_is_what_brute_force_finds(depends: Graph, data: st.DataObject) -> None:
    weights = {name: data.draw(st.integers(0, 9), label=name) for name in sorted(depends)}
    above = ancestors(depends)

    def is_antichain(groups: tuple[str, ...]) -> bool:
        return all(b not in above[a] and a not in above[b] for a, b in combinations(groups, 2))

    sums = [
        sum(weights[name] for name in groups)
        for size in range(len(weights) + 1)
        for groups in combinations(weights, size)
        if is_antichain(groups)
    ]
    weight, chosen = heaviest_antichain(weights, depends)
    assert weight == max(sums)
    assert is_antichain(tuple(chosen))
    assert sum(weights[name] for name in chosen) == weight


def test_an_antichain_sees_through_a_light_group_in_between() -> None:
    weights = {"a": 5, "between": 1, "b": 5, "beside": 3}
    depends = {"between": ["a"], "b": ["between"]}
    assert heaviest_antichain(weights, depends)[0] == 8


def test_a_thousand_groups_take_no_recursion() -> None:
    names = [f"g{index}" for index in range(1000)]
    chain = {name: names[max(0, index - 1) : index] for index, name in enumerate(names)}
    assert heaviest_antichain(dict.fromkeys(names, 3), chain)[0] == 3
    assert find_cycle({**chain, "g0": ["g999"]}) is not None
    assert dependency_order(chain) == names
