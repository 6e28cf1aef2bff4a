from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diel.errors import WorkflowError
from diel.executive.placement.planning import (
    needs,
    plan_groups,
    pool_ranks,
    server_ranks,
    spread_servers,
)
from diel.workflow.model import Group, Module, TupleSpace, Workflow

SERVICE_RANKS = 2  # the executive, and a tuple server


def workflow(groups: dict[str, list[str]], **modules: tuple[Any, int]) -> Workflow:
    """Return a workflow of modules given as (copies, processes)."""
    return Workflow(
        name="w",
        modules=tuple(
            Module(name=name, function="m:f", copies=copies, processes=processes)
            for name, (copies, processes) in modules.items()
        ),
        groups=tuple(Group(name=name, modules=names) for name, names in groups.items()),
        file=Path("/w.toml"),
    )


def copies(work: Workflow, world_size: int) -> dict[str, dict[str, int]]:
    return {
        plan.name: {module.module: module.copies for module in plan.modules}
        for plan in plan_groups(work, world_size, "w.toml")
    }


def test_rank_0_is_the_executive_then_the_servers_then_the_pool() -> None:
    work = workflow({"g": ["a"]}, a=(1, 1))
    assert server_ranks(work) == (1,)
    assert pool_ranks(work, 5) == range(2, 5)
    assert len(pool_ranks(work, 1)) == 0
    three = work.model_copy(update={"tuple_space": TupleSpace(servers=3)})
    assert server_ranks(three) == (1, 2, 3)
    assert pool_ranks(three, 6) == range(4, 6)
    assert needs(three, cores=1).minimum == 5


def test_servers_with_twins_are_on_as_many_hosts_as_there_are() -> None:
    assert spread_servers(2, ["a"] * 4) == (1, 2)
    assert spread_servers(2, ["a", "a", "a", "b", "b", "c"]) == (1, 3)
    assert spread_servers(4, ["a", "a", "a", "b", "b", "c"]) == (1, 2, 3, 5)
    assert spread_servers(2, ["a", "b", "c"]) == (1, 2)


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        (2, {"master": 1, "trainer": 1}),
        (3, {"master": 1, "trainer": 2}),
        (9, {"master": 1, "trainer": 8}),
    ],
)
def test_a_fill_takes_what_the_others_leave(pool: int, expected: dict[str, int]) -> None:
    work = workflow({"g": ["master", "trainer"]}, master=(1, 1), trainer=("fill", 1))
    assert copies(work, SERVICE_RANKS + pool) == {"g": expected}


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        (3, {"a": 1, "b": 1}),
        (4, {"a": 2, "b": 1}),  # what cannot be shared goes to the first
        (5, {"a": 2, "b": 2}),
        (8, {"a": 4, "b": 3}),
    ],
)
def test_fills_share_equally(pool: int, expected: dict[str, int]) -> None:
    work = workflow({"g": ["a", "fixed", "b"]}, a=("fill", 1), fixed=(1, 1), b=("fill", 1))
    assert copies(work, SERVICE_RANKS + pool) == {"g": {**expected, "fixed": 1}}


def test_a_fill_of_several_processes_takes_whole_copies() -> None:
    work = workflow({"g": ["a"]}, a=("fill", 3))
    assert copies(work, SERVICE_RANKS + 11) == {"g": {"a": 3}}


def test_each_group_fills_for_itself() -> None:
    work = workflow({"g": ["a"], "h": ["b", "a"]}, a=("fill", 1), b=(2, 2))
    assert copies(work, SERVICE_RANKS + 6) == {"g": {"a": 6}, "h": {"b": 2, "a": 2}}


def test_the_order_of_groups_and_their_depends_are_kept() -> None:
    base = workflow({"g": ["a"], "h": ["a"]}, a=(1, 1))
    later = base.groups[0].model_copy(update={"depends": ("h",)})
    work = base.model_copy(update={"groups": (later, base.groups[1])})
    assert [(group.name, group.depends) for group in plan_groups(work, 3, "w.toml")] == [
        ("g", ("h",)),
        ("h", ()),
    ]


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_too_few_ranks_says_needed_and_available(world_size: int) -> None:
    work = workflow({"small": ["a"], "g": ["a", "b"], "h": ["c"]}, a=(1, 1), b=(3, 1), c=(1, 4))
    with pytest.raises(WorkflowError) as caught:
        plan_groups(work, world_size, "shown.toml")
    text = str(caught.value)
    assert text.startswith("shown.toml: 1 problem")
    assert f"6 needed, {world_size} available" in text
    assert "-n 6" in text
    assert "'g', 'h'" in text
    assert ("'small'" in text) == (world_size < 3)


def test_as_many_as_needed_are_enough() -> None:
    work = workflow({"g": ["a", "b"]}, a=(1, 2), b=("fill", 3))
    least = needs(work, cores=64).minimum
    assert least == SERVICE_RANKS + 5
    assert copies(work, least) == {"g": {"a": 1, "b": 1}}
    with pytest.raises(WorkflowError, match="7 needed, 6 available"):
        plan_groups(work, least - 1, "w.toml")


SHAPE = st.tuples(st.integers(1, 3) | st.just("fill"), st.integers(1, 4))


@given(st.dictionaries(st.sampled_from("abcd"), SHAPE, min_size=1), st.integers(1, 40))
def test_copies_never_exceed_the_pool_and_no_fill_could_grow(
    modules: dict[str, tuple[Any, int]], world_size: int
) -> None:
    work = workflow({"g": list(modules)}, **modules)
    least = needs(work, cores=1).minimum
    if world_size < least:
        with pytest.raises(WorkflowError, match=f"{least} needed, {world_size} available"):
            plan_groups(work, world_size, "w.toml")
        return
    (plan,) = plan_groups(work, world_size, "w.toml")
    left = len(pool_ranks(work, world_size)) - plan.ranks
    assert left >= 0
    for module in plan.modules:
        wanted, processes = modules[module.module]
        assert module.processes == processes
        if wanted == "fill":
            assert module.copies >= 1
            assert processes > left
        else:
            assert module.copies == wanted
