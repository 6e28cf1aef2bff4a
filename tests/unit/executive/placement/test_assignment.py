"""Which ranks a copy takes: packed or spread, on nodes with and without GPUs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diel.executive.events import StartGroup
from diel.executive.messages import RankFinished
from diel.executive.placement.assignment import RankAssignment
from diel.executive.placement.gpus import Node, TooFewGpus
from diel.executive.plans import GroupPlan, ModulePlan, Need
from diel.executive.scheduler import Scheduler, in_order


def nodes(*shapes: tuple[int, int]) -> list[Node]:
    """Return nodes of so many ranks and GPUs each, the first rank being 0."""
    made, first = [], 0
    for index, (ranks, gpus) in enumerate(shapes):
        names = tuple(str(gpu) for gpu in range(gpus))
        made.append(Node(f"n{index}", tuple(range(first, first + ranks)), names))
        first += ranks
    return made


def plan(**modules: tuple[int, int]) -> GroupPlan:
    """Return a group of modules given as (copies, processes)."""
    return GroupPlan("g", tuple(ModulePlan(name, *shape) for name, shape in modules.items()))


def all_ranks(places: list[Node]) -> list[int]:
    return [rank for node in places for rank in node.ranks]


def choose(
    places: list[Node], group: GroupPlan, free: list[int] | None = None, **needs: Need
) -> object:
    assignment = RankAssignment(places, needs, [group])
    return assignment.choose(group, all_ranks(places) if free is None else free)


SPREAD = Need(is_spread=True)


def test_a_share_of_a_gpu_goes_to_ranks_that_have_one_or_more() -> None:
    group = plan(large=(1, 1), small=(3, 1))
    places, needs = nodes((4, 2)), {"large": Need(1), "small": Need(1 / 3)}
    assignment = RankAssignment(places, needs, [group])
    assert [assignment.gpus_of(rank) for rank in range(4)] == [("0",), ("1",), ("1",), ("1",)]
    assert assignment.choose(group, range(4)) == ((0,), (1,), (2,), (3,))
    assert assignment.gpus_of_copy("small", [0]) == ("0",)
    assert assignment.gpus_of_copy("small", [1, 2]) == ("1",)  # a program sees it once
    alone = plan(small=(2, 1))
    assert assignment.choose(alone, [0, 3]) == ((3,), (0,))  # who has no more than it asks for


def test_on_one_node_ranks_come_in_order() -> None:
    group = plan(a=(2, 1), b=(1, 3))
    assert choose(nodes((8, 0)), group) == ((0,), (1,), (2, 3, 4))
    assert choose(nodes((8, 0)), group, [1, 3, 4, 6, 7]) == ((1,), (3,), (4, 6, 7))
    assert choose(nodes((8, 0)), group, [1, 3, 4, 6]) is None


@pytest.mark.parametrize(
    ("shapes", "copies", "expected"),
    [
        ([(4, 0), (4, 0)], (3, 1), ((0,), (1,), (2,))),
        ([(2, 0), (4, 0)], (3, 1), ((2,), (3,), (4,))),  # where all of them fit
        ([(4, 0), (2, 0)], (2, 1), ((4,), (5,))),  # and no larger than that
        ([(2, 0), (3, 0), (2, 0)], (4, 1), ((2,), (3,), (4,), (0,))),  # else the largest first
        ([(3, 0), (3, 0)], (2, 2), ((0, 1), (3, 4))),  # copies stay whole
        ([(3, 0), (2, 0)], (1, 4), ((0, 1, 2, 3),)),  # unless no node is large enough
    ],
)
def test_packed(
    shapes: list[tuple[int, int]], copies: tuple[int, int], expected: tuple[tuple[int, ...], ...]
) -> None:
    assert choose(nodes(*shapes), plan(a=copies)) == expected


@pytest.mark.parametrize(
    ("shapes", "copies", "expected"),
    [
        ([(4, 0), (4, 0)], (3, 1), ((0,), (4,), (1,))),
        ([(2, 0), (4, 0)], (3, 1), ((2,), (0,), (3,))),
        ([(1, 0), (4, 0)], (4, 1), ((1,), (0,), (2,), (3,))),
        ([(4, 0), (4, 0)], (3, 2), ((0, 1), (4, 5), (2, 3))),
        ([(3, 0), (3, 0)], (3, 2), ((0, 1), (3, 4), (2, 5))),  # the last one is split
    ],
)
def test_spread(
    shapes: list[tuple[int, int]], copies: tuple[int, int], expected: tuple[tuple[int, ...], ...]
) -> None:
    assert choose(nodes(*shapes), plan(a=copies), a=SPREAD) == expected


def test_a_group_keeps_to_the_nodes_that_it_is_on() -> None:
    places = nodes((4, 0), (4, 0), (4, 0))
    assert choose(places, plan(a=(1, 1), b=(3, 1)), [1, 2, 4, 5, 6, 7, 8, 9, 10, 11]) == (
        (1,),
        (4,),
        (5,),
        (6,),
    )
    assert choose(places, plan(a=(1, 2), b=(1, 2)), [4, 5, 6, 7, 8, 9, 10, 11]) == ((4, 5), (6, 7))


def test_ranks_with_gpus_go_to_those_that_need_them() -> None:
    places = nodes((4, 2))  # ranks 0 and 1 have one each
    group = plan(master=(1, 1), trainer=(2, 1))
    needs = {"master": Need(), "trainer": Need(gpus=1)}
    assert choose(places, group, **needs) == ((2,), (0,), (1,))
    # Others may have the GPUs at that moment: then it waits.
    assert choose(places, group, [1, 2, 3], **needs) is None


def test_without_others_a_module_without_gpus_takes_any_rank() -> None:
    places = nodes((4, 2))
    assert choose(places, plan(a=(3, 1)), a=Need(), b=Need(gpus=1)) == ((0,), (1,), (2,))


def test_the_larger_demand_comes_first() -> None:
    places = nodes((3, 4))  # 2, 1 and 1
    group = plan(small=(2, 1), large=(1, 1))
    assignment = RankAssignment(places, {"small": Need(gpus=1), "large": Need(gpus=2)}, [group])
    assert [assignment.gpus_of(rank) for rank in range(3)] == [("0", "1"), ("2",), ("3",)]
    assert assignment.choose(group, [0, 1, 2]) == ((1,), (2,), (0,))


def test_modules_with_gpus_choose_before_those_that_would_fill_their_node() -> None:
    places = nodes((3, 3), (2, 0))
    group = plan(plain=(3, 1), trainer=(1, 1))
    needs = {"plain": Need(), "trainer": Need(gpus=1), "other": Need(gpus=1)}
    others = [GroupPlan("h", (ModulePlan("other", 3, 1),))]
    assignment = RankAssignment(places, needs, [group, *others])
    assert assignment.choose(group, [0, 1, 2, 3, 4]) == ((1,), (2,), (3,), (0,))


def test_what_a_rank_and_a_copy_may_see() -> None:
    places = nodes((3, 4), (2, 4))
    group = plan(pair=(1, 4))
    assignment = RankAssignment(places, {"pair": Need(gpus=2), "plain": Need()}, [group])
    assert [assignment.gpus_of(rank) for rank in range(5)] == [
        *[("0", "1"), ("2", "3"), ()],
        *[("0", "1"), ("2", "3")],
    ]
    assert assignment.gpus_of(99) == ()  # a tuple server, say
    assert assignment.choose(group, [0, 1, 2, 3, 4]) == ((0, 1, 3, 4),)
    # Of the node of the first rank: no program reaches further.
    assert assignment.gpus_of_copy("pair", (0, 1, 3, 4)) == ("0", "1", "2", "3")
    assert assignment.gpus_of_copy("pair", (2, 3, 4)) == ()
    assert assignment.gpus_of_copy("plain", (0,)) == ()


def test_who_asks_for_no_gpus_keeps_the_environment() -> None:
    assignment = RankAssignment(nodes((2, 4)), {"a": Need()}, [plan(a=(2, 1))])
    assert assignment.gpus_of(0) is None
    assert assignment.gpus_of_copy("a", (0, 1)) is None


def test_too_few_gpus() -> None:
    with pytest.raises(TooFewGpus):
        RankAssignment(nodes((4, 1)), {"a": Need(gpus=1)}, [plan(a=(2, 1))])


SHAPES = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=4)
MODULES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.booleans()),
    min_size=1,
    max_size=3,
)


@given(SHAPES, MODULES, st.data())
def test_choices_are_right_whatever_is_free(
    shapes: list[tuple[int, int]], modules: list[tuple[int, int, int, bool]], data: st.DataObject
) -> None:
    places = nodes(*shapes)
    names = "abc"[: len(modules)]
    group = plan(**{name: one[:2] for name, one in zip(names, modules, strict=True)})
    needs = {name: Need(*one[2:]) for name, one in zip(names, modules, strict=True)}
    try:
        assignment = RankAssignment(places, needs, [group])
    except TooFewGpus:
        return
    everyone = all_ranks(places)
    if group.ranks <= len(everyone):
        assert assignment.choose(group, everyone) is not None
    free = sorted(data.draw(st.sets(st.sampled_from(everyone))))
    ranks_of_copies = assignment.choose(group, free)
    assert ranks_of_copies == assignment.choose(group, free)
    if ranks_of_copies is None:
        # Nobody could: for some number of GPUs there are fewer ranks than needed.
        owned = [len(assignment.gpus_of(rank) or ()) for rank in free]
        asked = [module[2] for module in modules for _ in range(module[0] * module[1])]
        assert any(
            sum(size >= least for size in owned) < sum(size >= least for size in asked)
            for least in range(3)
        )
        return
    taken = [rank for ranks in ranks_of_copies for rank in ranks]
    assert len(taken) == len(set(taken)) == group.ranks
    assert set(taken) <= set(free)
    shapes_in_order = [(module[1], module[2]) for module in modules for _ in range(module[0])]
    for ranks, (processes, gpus) in zip(ranks_of_copies, shapes_in_order, strict=True):
        assert len(ranks) == processes
        assert list(ranks) == sorted(ranks)
        assert all(len(assignment.gpus_of(rank) or ()) >= gpus for rank in ranks)


@given(st.integers(1, 12), MODULES)
def test_one_node_without_gpus_is_the_scheduler_without_an_assignment(
    size: int, modules: list[tuple[int, int, int, bool]]
) -> None:
    names = "abc"[: len(modules)]
    group = plan(**{name: one[:2] for name, one in zip(names, modules, strict=True)})
    assignment = RankAssignment(nodes((size, 0)), {name: Need() for name in names}, [group])
    assert assignment.choose(group, list(range(size))) == in_order(group, list(range(size)))


@pytest.mark.parametrize("need", [Need(gpus=1), SPREAD])
def test_a_large_machine(need: Need) -> None:
    places = nodes(*[(8, 8)] * 500)
    group = plan(a=(4000, 1))
    ranks_of_copies = RankAssignment(places, {"a": need}, [group]).choose(group, list(range(4000)))
    assert ranks_of_copies is not None
    assert sorted(rank for ranks in ranks_of_copies for rank in ranks) == list(range(4000))


def test_the_scheduler_asks_the_rank_assignment() -> None:
    """A group waits for ranks with GPUs, although there are enough without."""
    places = nodes((4, 1))
    groups = [
        GroupPlan("first", (ModulePlan("a", 1, 1),)),
        GroupPlan("second", (ModulePlan("b", 1, 1),)),
        GroupPlan("third", (ModulePlan("c", 1, 1),)),
    ]
    needs = {"a": Need(gpus=1), "b": Need(gpus=1), "c": Need()}
    assignment = RankAssignment(places, needs, groups)
    scheduler = Scheduler(groups, all_ranks(places), choose=assignment.choose)
    first, _ = scheduler.start()
    assert isinstance(first, StartGroup)
    assert [(copy.module, copy.ranks) for copy in first.copies] == [("a", (0,))]
    told = scheduler.handle(RankFinished(first.copies[0].serial, 0))
    started = [one for one in told if isinstance(one, StartGroup)]
    assert [(one.group, one.copies[0].ranks) for one in started] == [
        ("second", (0,)),
        ("third", (1,)),
    ]
