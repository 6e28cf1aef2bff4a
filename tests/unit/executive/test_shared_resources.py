"""Groups share resources such as licences: none starts without them, and all finish."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support import case_count, record

from diel.executive.events import EndRun, StartGroup
from diel.executive.explanation import explain
from diel.executive.messages import RankFailed, RankFinished
from diel.executive.placement.planning import limit_fills
from diel.executive.plans import CopyPlan, GroupPlan, ModulePlan, recorded
from diel.executive.scheduler import Scheduler
from diel.run.status import StatusView
from diel.run.view import RunView
from diel.workflow.model import Module


def group(name: str, copies: int, depends: tuple[str, ...] = (), **taken: int) -> GroupPlan:
    return GroupPlan(name, (ModulePlan(f"m-{name}", copies, 1, resources=taken),), depends)


def started(instructions: list[Any]) -> list[str]:
    return [each.group for each in instructions if isinstance(each, StartGroup)]


def test_a_group_waits_until_its_resources_are_free() -> None:
    groups = [group("a", 2, licence=1), group("b", 1, licence=1), group("c", 1)]
    scheduler = Scheduler(groups, range(2, 12), resources={"licence": 2})
    first = scheduler.start()
    assert started(first) == ["a"], "and c does not overtake b"
    assert scheduler.groups_to_come == ["b (licence: 2 of 2 in use by group a)", "c"]
    (start,) = (each for each in first if isinstance(each, StartGroup))
    one, other = start.copies
    assert started(scheduler.handle(RankFinished(one.serial, one.ranks[0]))) == []
    assert started(scheduler.handle(RankFinished(other.serial, other.ranks[0]))) == ["b", "c"]


@pytest.mark.parametrize("resources", [{}, {"licence": 1}, {"disk": 9}])
def test_a_group_that_could_never_start_is_refused(resources: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"group 'a' takes 2 licence, and there are \d"):
        Scheduler([group("a", 2, licence=1)], range(5), resources=resources)


def test_explain_says_who_has_them() -> None:
    groups = [group("a", 1, licence=2), group("b", 1, licence=1, disk=1), group("c", 1)]
    view = RunView()
    for one in (
        record(
            "RunStarted", 1.0, workflow="w", ranks=9, servers=[1],
            resources={"licence": 2, "disk": 1}, **recorded(groups),
        ),
        record("GroupStarted", 2.0, group="a", copies={"m-a": 1}, placement={"m-a.0": [2]}),
    ):  # fmt: skip
        view.apply(one)
    texts = {each.group: each.text for each in explain(view, StatusView(), 3.0).groups}
    assert texts["b"] == (
        "is ready, and waits for licence: 2 of 2 in use by group a; it takes 1 licence"
    )
    assert texts["c"] == "is ready, behind b in the queue for ranks: none overtakes another"


def test_a_fill_has_no_more_copies_than_resources_allow() -> None:
    def module(name: str, copies: Any, **taken: int) -> Module:
        return Module(name=name, executable=("x",), copies=copies, resources=taken)

    modules = [module("a", 2, r=1), module("b", "fill", r=2), module("c", "fill", r=3)]
    filled = {"a": 2, "b": 6, "c": 6}
    assert limit_fills(modules, filled, {"r": 100}) == filled
    assert limit_fills(modules, filled, {"r": 20}) == {"a": 2, "b": 6, "c": 2}
    assert limit_fills(modules, filled, {"r": 10}) == {"a": 2, "b": 2, "c": 1}
    assert limit_fills(modules, filled, {}) == filled


def drawn_groups(drawn: random.Random, total: dict[str, int]) -> list[GroupPlan]:
    groups: list[GroupPlan] = []
    for index in range(drawn.randint(2, 8)):
        before = tuple(each.name for each in groups if drawn.random() < 0.2)
        copies = drawn.randint(1, 3)
        taken = {
            name: drawn.randint(1, most // copies)
            for name, most in total.items()
            if drawn.random() < 0.6 and most >= copies
        }
        plan = group(f"g{index}", copies, before, **taken)
        module = plan.modules[0].replace(retries=drawn.randint(0, 1), on_failure="continue")
        groups.append(plan.replace(modules=(module,), iterations=drawn.randint(1, 3)))
    return groups


@pytest.mark.parametrize("seed", range(case_count(100)))
def test_never_more_in_use_than_there_is_and_all_groups_finish(seed: int) -> None:
    drawn = random.Random(seed)
    total = {"licence": drawn.randint(1, 4), "disk": drawn.randint(1, 9)}
    groups = drawn_groups(drawn, total)
    plans = {each.name: each for each in groups}
    scheduler = Scheduler(groups, range(1, 7), resources=total)
    copies: dict[int, CopyPlan] = {}
    begun: list[str] = []
    instructions = scheduler.start()
    while EndRun() not in instructions:
        for each in instructions:
            if isinstance(each, StartGroup):
                begun.append(each.group)
            if hasattr(each, "copies") and not hasattr(each, "time_s"):
                copies.update((plan.serial, plan) for plan in each.copies)
        running = {plan.group for plan in copies.values()}
        for name, there in total.items():
            assert sum(plans[each].resources.get(name, 0) for each in running) <= there
        assert copies, "nothing runs, and it is not the end"
        plan = copies.pop(drawn.choice(sorted(copies)))
        event: Any = RankFinished(plan.serial, plan.ranks[0])
        if drawn.random() < 0.3:
            event = RankFailed(plan.serial, plan.ranks[0], "an error", "here", "")
        instructions = scheduler.handle(event)
    assert sorted(begun) == sorted(
        each.name for each in groups for _ in range(each.iterations or 1)
    )
