"""From a workflow and the nodes of a job to an assignment of ranks, or to what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diel.errors import WorkflowError
from diel.executive.placement.assignment import RankAssignment
from diel.executive.placement.gpus import Node
from diel.executive.placement.planning import (
    assign_ranks,
    fewest_gpus_per_node,
    needs_of,
    plan_groups,
    pool_ranks,
    simulated_nodes,
)
from diel.executive.placement.preview import moments
from diel.executive.plans import GroupPlan, ModulePlan
from diel.workflow.model import Group, Module, Workflow


def workflow(groups: dict[str, tuple[list[str], list[str]]], **modules: dict[str, Any]) -> Workflow:
    """Return a workflow; a group is given as (modules, depends)."""
    return Workflow(
        name="w",
        modules=tuple(
            Module(name=name, function="m:f", **module) for name, module in modules.items()
        ),
        groups=tuple(
            Group(name=name, modules=names, depends=depends)
            for name, (names, depends) in groups.items()
        ),
        file=Path("/w.toml"),
    )


def arranged(
    work: Workflow, ranks: int, per_node: int, gpus_per_node: int
) -> tuple[list[GroupPlan], RankAssignment]:
    nodes = simulated_nodes(pool_ranks(work, ranks), per_node, gpus_per_node)
    plans = plan_groups(work, ranks, "w.toml")
    return assign_ranks(plans, needs_of(work), nodes, "w.toml")


def copies(plans: list[GroupPlan]) -> dict[str, dict[str, int]]:
    return {plan.name: {module.module: module.copies for module in plan.modules} for plan in plans}


def test_nodes_hold_so_many_ranks_each_those_that_serve_included() -> None:
    assert simulated_nodes(range(2, 9), 4, 2) == [
        Node("node 0", (2, 3), ("0", "1")),
        Node("node 1", (4, 5, 6, 7), ("0", "1")),
        Node("node 2", (8,), ("0", "1")),
    ]
    # The executive and a server may be alone on a node.
    assert [node.host for node in simulated_nodes(range(2, 4), 2, 0)] == ["node 1"]


def test_a_fill_with_gpus_takes_what_there_are_gpus_for() -> None:
    work = workflow({"g": (["a", "b"], [])}, a={"copies": "fill", "gpus": 2}, b={})
    plans, assignment = arranged(work, ranks=10, per_node=10, gpus_per_node=6)
    assert copies(plans) == {"g": {"a": 3, "b": 1}}
    assert sum(bool(assignment.gpus_of(rank)) for rank in range(2, 10)) == 3


def test_fills_share_the_gpus() -> None:
    work = workflow(
        {"g": (["a", "b"], []), "h": (["b"], ["g"])},
        a={"copies": "fill", "gpus": 1},
        b={"copies": "fill", "gpus": 1},
    )
    plans, _ = arranged(work, ranks=18, per_node=18, gpus_per_node=7)
    assert copies(plans) == {"g": {"a": 3, "b": 3}, "h": {"b": 7}}


def test_a_fill_leaves_what_other_groups_need() -> None:
    """A rank keeps its GPUs: four ranks with two are fewer than eight with one."""
    work = workflow(
        {"g": (["a"], []), "h": (["b"], ["g"])},
        a={"copies": "fill", "gpus": 1},
        b={"copies": 4, "gpus": 2},
    )
    plans, _ = arranged(work, ranks=10, per_node=10, gpus_per_node=8)
    assert copies(plans) == {"g": {"a": 4}, "h": {"b": 4}}


def test_without_gpus_plans_stay_as_they_are() -> None:
    work = workflow({"g": (["a"], [])}, a={"copies": "fill"})
    plans, assignment = arranged(work, ranks=10, per_node=4, gpus_per_node=2)
    assert copies(plans) == {"g": {"a": 8}}
    assert assignment.gpus_of(2) is None


def test_too_few_gpus_says_needed_and_available_by_node() -> None:
    work = workflow({"g": (["a", "b"], []), "h": (["b"], [])}, a={"copies": 3, "gpus": 2}, b={})
    with pytest.raises(WorkflowError) as caught:
        arranged(work, ranks=8, per_node=4, gpus_per_node=3)
    (problem,) = caught.value.problems
    assert problem.message == (
        "too few GPUs for 'g': 6 needed (3 ranks with 2); "
        "available: 3 for 2 ranks on node 0, 3 for 4 ranks on node 1"
    )
    assert "--gpus-per-node" in problem.remedy


def test_where_no_node_has_a_gpu_the_driver_may_be_missing() -> None:
    work = workflow({"g": (["a"], [])}, a={"gpus": 0.5})
    plans, nodes = plan_groups(work, 3, "w.toml"), [Node("vm", (2,))]
    with pytest.raises(WorkflowError) as caught:
        assign_ranks(plans, needs_of(work), nodes, "w.toml", "is there a driver?")
    (problem,) = caught.value.problems
    assert problem.message == (
        "too few GPUs for 'g': 1/2 needed (1 rank with 1/2); available: none on vm"
    )
    assert problem.remedy == "is there a driver?"
    with pytest.raises(WorkflowError, match=r"none on node 0, .* on 6 nodes .*--gpus-per-node G"):
        arranged(work, ranks=24, per_node=4, gpus_per_node=0)


def test_many_nodes_are_summed_up() -> None:
    work = workflow({"g": (["a"], [])}, a={"gpus": 9})
    with pytest.raises(WorkflowError, match=r"on node 3, \.\.\. 24 on 6 nodes"):
        arranged(work, ranks=24, per_node=4, gpus_per_node=4)


def test_groups_that_do_not_fit_one_after_another() -> None:
    work = workflow(
        {"g": (["a"], []), "h": (["b"], ["g"])},
        a={"copies": 4, "gpus": 1},
        b={"copies": 2, "gpus": 2},
    )
    with pytest.raises(WorkflowError) as caught:
        arranged(work, ranks=8, per_node=8, gpus_per_node=4)
    assert "too few GPUs for the groups one after another: 6 needed" in str(caught.value)
    assert "2 ranks with 2 and 2 ranks with 1" in str(caught.value)
    assert "keeps its GPUs for life" in str(caught.value)


@pytest.mark.parametrize(("ranks", "per_node", "expected"), [(10, 10, 6), (10, 5, 4), (12, 3, 2)])
def test_the_fewest_gpus_that_each_node_must_have(ranks: int, per_node: int, expected: int) -> None:
    work = workflow({"g": (["a", "b"], [])}, a={"copies": 3, "gpus": 2}, b={"copies": 4})
    plans = plan_groups(work, ranks, "w.toml")
    pool = pool_ranks(work, ranks)
    assert fewest_gpus_per_node(work, plans, pool, per_node) == expected
    arranged(work, ranks, per_node, expected)
    with pytest.raises(WorkflowError):
        arranged(work, ranks, per_node, expected - 1)


def test_ranks_that_share_need_fewer_gpus() -> None:
    work = workflow({"g": (["a", "b"], [])}, a={"copies": 5, "gpus": 0.25}, b={"copies": 2})
    plans, pool = plan_groups(work, 9, "w.toml"), pool_ranks(work, 9)
    assert fewest_gpus_per_node(work, plans, pool, per_node=9) == 2
    assert fewest_gpus_per_node(work, plans, pool, per_node=6) == 1


# -- moments --------------------------------------------------------------------------------------


def told(work: Workflow, ranks: int, per_node: int = 100) -> list[list[tuple[Any, ...]]]:
    plans, assignment = arranged(work, ranks, per_node, gpus_per_node=0)
    return [
        [(one.group, one.module, one.copy_index, one.ranks) for one in moment]
        for moment in moments(plans, assignment)
    ]


def test_groups_run_together_as_far_as_dependencies_and_ranks_allow() -> None:
    work = workflow(
        {"a": (["m"], []), "b": (["n"], []), "c": (["o"], ["a"]), "d": (["m"], [])},
        m={"copies": 2},
        n={"processes": 2},
        o={},
    )
    assert told(work, ranks=6) == [
        [("a", "m", 0, (2,)), ("a", "m", 1, (3,)), ("b", "n", 0, (4, 5))],
        # The module runs in one group at a time, and nobody overtakes.
        [("d", "m", 0, (2,)), ("d", "m", 1, (3,)), ("c", "o", 0, (4,))],
    ]
    assert [{one[0] for one in moment} for moment in told(work, ranks=5)] == [
        {"a"},
        {"b"},
        {"d", "c"},
    ]


def test_groups_inside_groups() -> None:
    def leaf(name: str, *depends: str) -> GroupPlan:
        return GroupPlan(name, (ModulePlan(name, 1, 1),), depends)

    plans = [
        leaf("last", "outer"),
        GroupPlan("outer", depends=("first",), groups=("y", "x", "inner"), iterations=3),
        leaf("y", "x"),
        leaf("x"),
        GroupPlan("inner", groups=("z",)),
        leaf("z"),
        leaf("first"),
    ]
    assignment = RankAssignment([Node("n", (2, 3, 4, 5), ())], {}, [])
    assert [[one.group for one in moment] for moment in moments(plans, assignment)] == [
        ["first"],
        ["x", "z"],
        ["y"],
        ["last"],
    ]
