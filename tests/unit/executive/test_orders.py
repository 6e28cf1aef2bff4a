from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from diel.executive.events import StartGroup
from diel.executive.messages import RunGroup
from diel.executive.plans import GroupPlan, ModulePlan, place_modules, serials_of
from diel.executive.scheduler import Scheduler


@given(sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=4))
def test_ranks_place_copies_as_the_scheduler_does(sizes: list[tuple[int, int]]) -> None:
    modules = tuple(ModulePlan(f"m{i}", copies, ranks) for i, (copies, ranks) in enumerate(sizes))
    group = GroupPlan("g", modules, iterations=2)
    scheduler = Scheduler([group], range(5, 5 + group.ranks))
    started, _ = scheduler.start()
    assert isinstance(started, StartGroup)
    first = started.copies[0].module_serial
    ranks = tuple(rank for plan in started.copies for rank in plan.ranks)
    placed = tuple(
        placement.copy(index, "g", started.iteration)
        for placement in place_modules(group, ranks, first)
        for index in range(placement.plan.copies)
    )
    assert placed == started.copies
    serials = {plan.serial for plan in started.copies} | {p.module_serial for p in started.copies}
    assert serials == set(range(first, first + serials_of(group)))


def test_an_order_names_no_copy() -> None:
    order = RunGroup(899, (3, 17), tuple(range(2, 66)), 123_456)
    assert len(pickle.dumps(order, pickle.HIGHEST_PROTOCOL)) < 400
