"""How many ranks a workflow needs, and how a pool is shared among modules that fill it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diel.executive.placement.planning import RankNeeds, fill_group, needs
from diel.workflow.model import Group, Module, Workflow

SERVICE = 2  # the executive and the tuple server


def module(name: str, copies: int | Literal["fill"] = 1, processes: int = 1) -> Module:
    return Module(name=name, function="a:b", copies=copies, processes=processes)


def workflow(modules: list[Module], **groups: tuple[list[str], list[str]]) -> Workflow:
    return Workflow(
        name="w",
        modules=tuple(modules),
        groups=tuple(
            Group(name=name, modules=tuple(inside), depends=tuple(depends))
            for name, (inside, depends) in groups.items()
        ),
        file=Path("/w.toml"),
    )


def test_a_job_needs_its_largest_moment() -> None:
    study = workflow(
        [module("a", 3), module("b", 2, processes=4), module("c"), module("d", 5)],
        first=(["a"], []),
        second=(["b", "c"], ["first"]),
        beside=(["d"], []),
    )
    assert needs(study, cores=8) == RankNeeds(
        minimum=SERVICE + 9, moment=SERVICE + 14, total=SERVICE + 17
    )


def test_fills_count_one_copy_at_least_and_share_what_is_usual() -> None:
    study = workflow(
        [module("master"), module("x", "fill"), module("y", "fill", processes=3)],
        search=(["master", "x", "y"], []),
    )
    assert needs(study, cores=5) == RankNeeds(
        minimum=SERVICE + 5, moment=SERVICE + 1 + 3 + 6, total=SERVICE + 10
    )
    assert needs(study, cores=1).moment == SERVICE + 5


@pytest.mark.parametrize(
    ("modules", "pool_ranks", "copies"),
    [
        ([module("a"), module("b", 2)], 9, {"a": 1, "b": 2}),
        ([module("a"), module("b", "fill")], 9, {"a": 1, "b": 8}),
        ([module("a", "fill"), module("b", "fill")], 9, {"a": 5, "b": 4}),
        # In ranks, not in copies: 8 ranks each.
        ([module("a", "fill"), module("b", "fill", 4)], 16, {"a": 8, "b": 2}),
        # 10 ranks: 5 each; b leaves one, a can use it.
        ([module("a", "fill"), module("b", "fill", 4)], 10, {"a": 6, "b": 1}),
        # A copy larger than an equal share still gets that copy.
        ([module("a", "fill"), module("b", "fill", 8)], 9, {"a": 1, "b": 1}),
        ([module("a", "fill", 4), module("b", "fill", 4)], 15, {"a": 2, "b": 1}),
        ([], 0, {}),
    ],
)
def test_a_pool_is_shared_equally(
    modules: list[Module], pool_ranks: int, copies: dict[str, int]
) -> None:
    assert fill_group(modules, pool_ranks) == copies


@pytest.mark.parametrize("pool_ranks", [-1, 0, 6])
def test_too_small_a_pool_says_needed_and_available(pool_ranks: int) -> None:
    modules = [module("a", 2, processes=2), module("b", "fill", 3)]
    with pytest.raises(ValueError, match=rf"^a, b together need 7 ranks, {max(pool_ranks, 0)} av"):
        fill_group(modules, pool_ranks)


@st.composite
def groups(draw: st.DrawFn) -> list[Module]:
    copies = st.integers(0, 5)
    shapes = draw(st.lists(st.tuples(copies, st.integers(1, 6)), min_size=1, max_size=5))
    return [module(f"m{i}", copies or "fill", ranks) for i, (copies, ranks) in enumerate(shapes)]


@given(groups(), st.integers(0, 60))
def test_any_pool_from_the_minimum_on_is_used_as_far_as_copies_fit(
    modules: list[Module], spare: int
) -> None:
    names = [one.name for one in modules]
    found = needs(workflow(modules, g=(names, [])), cores=4)
    pool_ranks = found.minimum - SERVICE + spare
    copies = fill_group(modules, pool_ranks)
    used = sum(one.processes * copies[one.name] for one in modules)
    fills = [one for one in modules if one.copies == "fill"]
    assert used <= pool_ranks
    assert all(copies[fill.name] >= 1 for fill in fills)
    assert all(copies[one.name] == one.copies for one in modules if one not in fills)
    if fills:
        assert pool_ranks - used < min(fill.processes for fill in fills)
    with pytest.raises(ValueError, match="need"):
        fill_group(modules, found.minimum - SERVICE - 1)
    assert found.minimum <= found.moment <= found.total
