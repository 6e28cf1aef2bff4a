from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diel.executive.events import (
    CopyRankFailed,
    CopyRankFinished,
    EndRun,
    Event,
    Instruction,
    NoteCopyFailed,
    NoteCopyFinished,
    NoteGroupFinished,
    StartGroup,
    StopAsked,
    StopRun,
)
from diel.executive.plans import CopyPlan, GroupPlan, ModulePlan
from diel.executive.scheduler import Scheduler


def group(name: str, *modules: tuple[str, int, int], depends: Sequence[str] = ()) -> GroupPlan:
    return GroupPlan(name, tuple(ModulePlan(*one) for one in modules), tuple(depends))


def finish(scheduler: Scheduler, plan: CopyPlan) -> list[Instruction]:
    """Let all ranks of a copy finish."""
    return [
        instruction
        for rank in plan.ranks
        for instruction in scheduler.handle(CopyRankFinished(plan.serial, rank))
    ]


def started(instructions: Sequence[Instruction]) -> list[StartGroup]:
    return [one for one in instructions if isinstance(one, StartGroup)]


# -- by hand --------------------------------------------------------------------------------------


def test_nothing_to_run_ends_at_once() -> None:
    assert Scheduler([], range(2, 4)).start() == [EndRun()]


def test_copies_get_their_ranks_in_order() -> None:
    scheduler = Scheduler([group("g", ("a", 2, 2), ("b", 1, 1))], [7, 3, 4, 9, 5, 6])
    (start,) = started(scheduler.start())
    assert [(one.module, one.copy_index, one.ranks) for one in start.copies] == [
        ("a", 0, (3, 4)),
        ("a", 1, (5, 6)),
        ("b", 0, (7,)),
    ]
    assert [one.module_ranks for one in start.copies] == [(3, 4, 5, 6), (3, 4, 5, 6), (7,)]
    assert scheduler.free_ranks == (9,)
    assert [one.copies for one in start.copies] == [2, 2, 1]
    assert scheduler.plan_of(start.copies[1].serial) is start.copies[1]


def test_a_copy_returns_what_its_rank_0_returned() -> None:
    scheduler = Scheduler([group("g", ("a", 1, 3))], [2, 3, 4])
    (start,) = started(scheduler.start())
    (plan,) = start.copies
    assert scheduler.handle(CopyRankFinished(plan.serial, 2, "of rank 0")) == []
    assert scheduler.handle(CopyRankFinished(plan.serial, 4, "of rank 2")) == []
    assert scheduler.handle(CopyRankFinished(plan.serial, 3, "of rank 1")) == [
        NoteCopyFinished(plan, "of rank 0"),
        NoteGroupFinished("g", (0,)),
        EndRun(),
    ]


def test_a_large_group_is_not_overtaken() -> None:
    groups = [group("first", ("a", 2, 1)), group("large", ("b", 3, 1)), group("small", ("c", 1, 1))]
    scheduler = Scheduler(groups, range(2, 5))
    (first,) = started(scheduler.start())
    assert scheduler.free_ranks == (4,)  # enough for "small", which waits behind "large"
    assert started(finish(scheduler, first.copies[0])) == []
    (large,) = started(finish(scheduler, first.copies[1]))
    assert large.group == "large"


def test_a_module_that_two_groups_share_runs_in_one_at_a_time() -> None:
    scheduler = Scheduler([group("g", ("a", 1, 1)), group("h", ("a", 1, 1))], range(2, 6))
    (first,) = started(scheduler.start())
    assert first.group == "g"
    (second,) = started(finish(scheduler, first.copies[0]))
    assert second.group == "h"
    assert second.copies[0].serial != first.copies[0].serial


def test_a_group_that_never_fits_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"group 'g' needs 3 ranks of the pool, which has 2"):
        Scheduler([group("g", ("a", 3, 1))], [2, 3])


def test_a_failure_names_the_copy_and_the_rank() -> None:
    scheduler = Scheduler([group("g", ("a", 2, 2))], range(2, 6))
    (start,) = started(scheduler.start())
    stop = scheduler.handle(CopyRankFailed(start.copies[1].serial, 5))
    assert stop == [
        NoteCopyFailed(start.copies[1], "stop", False, 5, ""),
        StopRun(start.copies[1], 5, "a.1 failed"),
    ]
    assert scheduler.stopping
    assert scheduler.handle(CopyRankFailed(start.copies[0].serial, 2)) == []


def test_a_stop_that_was_asked_for_has_no_culprit() -> None:
    scheduler = Scheduler([group("g", ("a", 1, 1))], [2])
    scheduler.start()
    assert scheduler.handle(StopAsked("enough")) == [
        StopRun(None, None, "enough", is_failure=False)
    ]


# -- any workflow ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A workflow, a pool that it fits into, and the order in which things end."""

    groups: tuple[GroupPlan, ...]
    pool: tuple[int, ...]
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    modules = [
        ModulePlan(f"m{index}", draw(st.integers(1, 3)), draw(st.integers(1, 3)))
        for index in range(draw(st.integers(1, 5)))
    ]
    names = [f"g{index}" for index in range(draw(st.integers(1, 7)))]
    order = draw(st.permutations(names))  # the file need not list groups in a possible order
    groups = []
    for name in names:
        earlier = order[: order.index(name)]
        depends = draw(st.lists(st.sampled_from(earlier), unique=True)) if earlier else []
        chosen = draw(
            st.lists(st.sampled_from(modules), min_size=1, max_size=3, unique_by=lambda m: m.module)
        )
        groups.append(GroupPlan(name, tuple(chosen), tuple(depends)))
    size = max(one.ranks for one in groups) + draw(st.integers(0, 12))
    first = draw(st.integers(0, 3))
    return Case(tuple(groups), tuple(range(first, first + size)), draw(st.integers(0, 2**32)))


@dataclass
class Simulation:
    """Lets the ranks of running copies finish in random order, and watches the rules."""

    case: Case
    scheduler: Scheduler = field(init=False)
    running: dict[int, CopyPlan] = field(default_factory=dict)
    unfinished: list[tuple[int, int]] = field(default_factory=list)  # (serial, rank)
    started: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    ready: list[str] = field(default_factory=list)  # in the order in which they became ready
    history: list[object] = field(default_factory=list)
    serials: set[int] = field(default_factory=set)
    ended: bool = False

    def __post_init__(self) -> None:
        self.plans = {one.name: one for one in self.case.groups}
        self.random = random.Random(self.case.seed)
        self.scheduler = Scheduler(self.case.groups, self.case.pool)

    def run(self, stop_after: int | None = None) -> None:
        """Run to the end, or for so many events."""
        self.note_ready()
        self.perform(self.scheduler.start())
        events = 0
        while not self.ended and events != stop_after:
            assert self.unfinished, "nothing runs, and it is not the end"
            serial, rank = self.unfinished.pop(self.random.randrange(len(self.unfinished)))
            self.perform(self.scheduler.handle(CopyRankFinished(serial, rank, (serial, rank))))
            events += 1

    def perform(self, instructions: Sequence[Instruction]) -> None:
        for one in instructions:
            self.history.append(one)
            assert not self.ended, "something after the end"
            if isinstance(one, StartGroup):
                self.start(one)
            elif isinstance(one, NoteCopyFinished):
                plan = self.running.pop(one.plan.serial)
                assert plan == one.plan
                assert all(serial != plan.serial for serial, _ in self.unfinished)
                assert one.returned == (plan.serial, plan.ranks[0])
            elif isinstance(one, NoteGroupFinished):
                assert all(plan.group != one.group for plan in self.running.values())
                self.finished.append(one.group)
                self.note_ready()
            else:
                assert isinstance(one, EndRun)
                assert self.running == {}
                self.ended = True
        busy = {rank for plan in self.running.values() for rank in plan.ranks}
        held = [self.plans[name] for name in self.started if name not in self.finished]
        free = set(self.scheduler.free_ranks)
        assert not busy & free
        assert len(free) == len(self.case.pool) - sum(plan.ranks for plan in held)
        self.check_nothing_is_held_up(free)

    def note_ready(self) -> None:
        for name, plan in self.plans.items():
            if name not in self.ready and set(plan.depends) <= set(self.finished):
                self.ready.append(name)

    def start(self, instruction: StartGroup) -> None:
        plan = self.plans[instruction.group]
        assert set(plan.depends) <= set(self.finished)
        # No overtaking: groups start in the order in which they became ready.
        assert self.ready[len(self.started)] == plan.name
        self.started.append(plan.name)
        busy = {rank for one in self.running.values() for rank in one.ranks}
        working = {one.module for one in self.running.values()}
        taken = [rank for copy in instruction.copies for rank in copy.ranks]
        assert len(taken) == len(set(taken)) == plan.ranks
        assert set(taken) <= set(self.case.pool) - busy
        assert working.isdisjoint(one.module for one in plan.modules)
        for module in plan.modules:
            copies = [one for one in instruction.copies if one.module == module.module]
            assert [one.copy_index for one in copies] == list(range(module.copies))
            assert {len(one.ranks) for one in copies} == {module.processes}
            assert len({one.module_serial for one in copies}) == 1
            together = tuple(rank for one in copies for rank in one.ranks)
            assert {one.module_ranks for one in copies} == {together}
        new = [one.serial for one in instruction.copies]
        new += sorted({one.module_serial for one in instruction.copies})
        assert len(new) == len(set(new))
        assert self.serials.isdisjoint(new)
        self.serials.update(new)
        for one in instruction.copies:
            self.running[one.serial] = one
            self.unfinished += [(one.serial, rank) for rank in one.ranks]

    def check_nothing_is_held_up(self, free: set[int]) -> None:
        """The first group that waits waits for ranks or for a module, never for nothing."""
        waiting = [name for name in self.ready if name not in self.started]
        if waiting:
            first = self.plans[waiting[0]]
            held = [self.plans[name] for name in self.started if name not in self.finished]
            busy = {module.module for plan in held for module in plan.modules}
            needed = {module.module for module in first.modules}
            assert first.ranks > len(free) or busy & needed


@given(cases())
def test_every_workflow_runs_to_its_end_by_the_rules(case: Case) -> None:
    simulation = Simulation(case)
    simulation.run()
    assert sorted(simulation.finished) == sorted(one.name for one in case.groups)
    assert simulation.scheduler.free_ranks == tuple(sorted(case.pool))
    assert sum(isinstance(one, EndRun) for one in simulation.history) == 1


@given(cases())
def test_the_same_events_give_the_same_instructions(case: Case) -> None:
    first, second = Simulation(case), Simulation(case)
    first.run()
    second.run()
    assert first.history == second.history


@given(cases(), st.integers(0, 12), st.booleans())
def test_after_a_stop_nothing_is_started(case: Case, events: int, fails: bool) -> None:
    simulation = Simulation(case)
    simulation.run(stop_after=events)
    if simulation.ended:
        return
    serial, rank = simulation.unfinished.pop(0)
    cause: Event = CopyRankFailed(serial, rank) if fails else StopAsked("enough")
    *_, stop = simulation.scheduler.handle(cause)
    assert isinstance(stop, StopRun)
    assert stop.failed == (simulation.running[serial] if fails else None)
    assert stop.failed_rank == (rank if fails else None)
    later = [CopyRankFinished(*one) for one in simulation.unfinished]
    later += [CopyRankFailed(*one) for one in simulation.unfinished]
    simulation.random.shuffle(later)
    assert [simulation.scheduler.handle(one) for one in [*later, StopAsked("again")]] == [
        [] for _ in range(len(later) + 1)
    ]
