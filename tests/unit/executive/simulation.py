"""A whole run without ranks: random workflows, ranks that end in random order, and the rules.

Its records are those that a run would write, as they are read again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import strategies as st

from diel.executive.events import (
    AbandonCopy,
    ConnectModule,
    EndRun,
    Event,
    Instruction,
    LookForTag,
    ReadTuples,
    RestartCopies,
    StartGroup,
    StopRun,
    TagLooked,
    TimeLimitPassed,
    TuplesRead,
)
from diel.executive.messages import ModuleCommAsked, RankFailed, RankFinished, RankLeft
from diel.executive.plans import CopyPlan, GroupPlan, ModulePlan, recorded
from diel.executive.scheduler import Scheduler
from diel.run.fields import Record, encoded
from diel.run.json_values import plain
from diel.run.records import (
    CopyFinished,
    CopyGivenUp,
    DeadlockFound,
    Finished,
    GroupFinished,
    GroupSkipped,
    GroupStarted,
    ModuleFailed,
    RunStarted,
    decode,
)
from diel.workflow.when import When

Place = tuple[str, tuple[int, ...]]
"""A group and the iteration of the group around it: one pass."""


@dataclass(frozen=True)
class Case:
    """A workflow, a pool that it fits into, and how things go."""

    groups: tuple[GroupPlan, ...]
    pool: tuple[int, ...]
    seed: int
    failures: float = 0.0  # how likely a rank fails rather than finishes
    with_module_comm: frozenset[str] = frozenset()


@st.composite
def cases(draw: st.DrawFn, failing: bool = False, conditional: bool = False) -> Case:
    """Draw nested groups that depend on each other, iterations, policies and rank counts."""
    policy: st.SearchStrategy[Literal["stop", "continue"]] = st.sampled_from(["continue", "stop"])
    modules = [
        ModulePlan(
            f"m{index}",
            draw(st.integers(1, 3)),
            draw(st.integers(1, 3)),
            on_failure=draw(policy) if failing else "stop",
            retries=draw(st.integers(0, 2)) if failing else 0,
        )
        for index in range(draw(st.integers(1, 4)))
    ]
    plans = {f"g{index}": _leaf(draw, f"g{index}", modules) for index in range(draw(SIZES))}
    beside = [list(plans)]  # lists of groups that stand beside each other
    for index in range(draw(st.integers(0, 3))):
        outermost = beside[0]
        chosen = draw(st.lists(st.sampled_from(outermost), min_size=1, unique=True))
        name = f"n{index}"
        plans[name] = GroupPlan(name, groups=tuple(chosen), **_repeats(draw))
        beside[0] = [*(one for one in outermost if one not in chosen), name]
        beside.append(chosen)
    for names in beside:
        order = draw(st.permutations(names))  # the file need not list groups in a possible order
        for place, name in enumerate(order):
            depends = draw(st.lists(st.sampled_from(order[:place]), unique=True)) if place else []
            when = _when(draw, depends) if conditional else None
            plans[name] = plans[name].replace(depends=tuple(depends), when=when)
    groups = tuple(draw(st.permutations(list(plans.values()))))
    size = max(group.ranks for group in groups) + draw(st.integers(0, 8))
    first = draw(st.integers(0, 3))
    names = [module.module for module in modules]
    return Case(
        groups,
        tuple(range(first, first + size)),
        draw(st.integers(0, 2**32)),
        draw(st.sampled_from([0.05, 0.3])) if failing else 0.0,
        frozenset(draw(st.lists(st.sampled_from(names), unique=True))),
    )


SIZES = st.integers(1, 6)


def _leaf(draw: st.DrawFn, name: str, modules: Sequence[ModulePlan]) -> GroupPlan:
    chosen = draw(
        st.lists(st.sampled_from(modules), min_size=1, max_size=3, unique_by=lambda m: m.module)
    )
    return GroupPlan(name, tuple(chosen), **_repeats(draw))


def _when(draw: st.DrawFn, depends: Sequence[str]) -> When | None:
    texts = ["", "false", "value('x') > 0.5", "not value(['x', 1])"]
    if depends:
        asked = draw(st.sampled_from(depends))
        texts += [f"outcome('{asked}') == '{ended}'" for ended in ("finished", "skipped")]
        texts.append(f"outcome('{asked}') != 'failed' or value('x') > 0.5")
    text = draw(st.sampled_from(texts))
    return When(text) if text else None


def _repeats(draw: st.DrawFn) -> dict[str, Any]:
    until = draw(st.sampled_from([None, None, "t", ("t", 1)]))
    iterations = draw(st.integers(1, 3))
    return (
        {"until": until, "iterations": draw(st.sampled_from([iterations, None]))}
        if until
        else {"iterations": iterations}
    )


@dataclass
class Simulation:
    """Lets the ranks of running copies end in random order, and watches the rules."""

    case: Case
    finished_before: Mapping[str, Finished] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    running: dict[int, CopyPlan] = field(default_factory=dict)  # by serial, until all are out
    working: set[tuple[int, int]] = field(default_factory=set)  # (serial, rank)
    leaving: set[tuple[int, int]] = field(default_factory=set)
    asking: set[tuple[int, int]] = field(default_factory=set)  # they wait for ctx.module_comm
    unasked: set[tuple[int, int]] = field(default_factory=set)  # they have yet to ask
    looking: list[LookForTag] = field(default_factory=list)
    reading: list[ReadTuples] = field(default_factory=list)
    outcomes: dict[str, str] = field(default_factory=dict)
    outcomes_before: Mapping[str, str] = field(default_factory=dict)
    with_failures: set[Place] = field(default_factory=set)
    began: dict[Place, int] = field(default_factory=dict)  # iterations
    ended: dict[Place, int] = field(default_factory=dict)
    complete: set[Place] = field(default_factory=set)
    held: dict[str, StartGroup] = field(default_factory=dict)
    started: list[Place] = field(default_factory=list)
    queue: list[Any] = field(default_factory=list)
    attempts: dict[tuple[str, int], int] = field(default_factory=dict)
    sharing: set[str] = field(default_factory=set)  # modules with a communicator of all copies
    failed: dict[int, ModuleFailed] = field(default_factory=dict)
    history: list[object] = field(default_factory=list)
    serials: set[int] = field(default_factory=set)
    is_over: bool = False
    time_s: float = 1.0  # of records that follow from one event
    stop: StopRun | None = None

    def __post_init__(self) -> None:
        self.plans = {group.name: group for group in self.case.groups}
        self.parents = {child: group.name for group in self.case.groups for child in group.groups}
        self.random = random.Random(self.case.seed)
        self.scheduler = Scheduler(
            self.case.groups, self.case.pool, self.finished_before, outcomes=self.outcomes_before
        )
        started = RunStarted(
            workflow="w",
            ranks=self.case.pool[-1] + 1,
            servers=list(range(1, self.case.pool[0])),
            finished=self.finished_before,
            outcomes=self.outcomes_before,
            **recorded(self.case.groups),
        )
        self.note(started)
        for name, one in self.finished_before.items():
            place = name, one.iteration[:-1]
            self.began[place] = self.ended[place] = one.iteration[-1] + 1
            if one.is_last:
                self.complete.add(place)

    def note(self, record: Record) -> None:
        self.records.append(decode(json.dumps(plain(encoded(record, self.time_s))).encode()))

    def start(self) -> None:
        self.perform(self.scheduler.start())

    def run(self, stop_after: int | None = None) -> None:
        """Run to the end, or for so many events."""
        self.start()
        events = 0
        while not self.is_over and events != stop_after:
            self.step()
            events += 1

    def step(self) -> None:
        self.perform(self.scheduler.handle(self.next_event()))

    def next_event(self) -> Event:
        """Let something happen."""
        if self.looking:
            look = self.looking.pop(0)
            is_there = self.random.random() < 0.4
            return TagLooked(look.group, look.iteration, is_there)
        if self.reading:
            read = self.reading.pop(0)
            values = {tag: self.random.choice([None, 0, 0.7, 1]) for tag in read.tags}
            if not all(isinstance(tag, str) for tag in values):
                values = dict.fromkeys(values, self.random.choice([None, True, False]))
            return TuplesRead(read.group, read.iteration, values)
        able = sorted(self.working - self.asking) + sorted(self.leaving)
        if not able:
            assert self.asking, "nothing runs, and it is not the end"
            return DeadlockFound(explanation="copies that were given up will never ask")
        serial, rank = self.random.choice(able)
        if (serial, rank) in self.unasked and (serial, rank) not in self.leaving:
            self.unasked.discard((serial, rank))
            self.asking.add((serial, rank))
            return ModuleCommAsked(serial, rank)
        fails = self.random.random() < self.case.failures
        if fails and serial not in self.failed and self.random.random() < 0.3:
            return TimeLimitPassed(serial, "time limit of 1 s exceeded")
        if (serial, rank) in self.leaving and self.random.random() < 0.7:
            self.out(serial, rank)
            return RankLeft(serial, rank)
        self.out(serial, rank)
        if fails:
            return RankFailed(serial, rank, "an error", "a host", "a traceback")
        return RankFinished(serial, rank, (serial, rank))

    def out(self, serial: int, rank: int) -> None:
        for those in (self.working, self.leaving, self.asking, self.unasked):
            those.discard((serial, rank))

    # -- what the scheduler says ---------------------------------------------------------------

    def perform(self, instructions: Sequence[Instruction]) -> None:
        self.time_s += 1.0
        starts = []
        for instruction in instructions:
            self.history.append(instruction)
            assert not self.is_over, "something after the end"
            if isinstance(instruction, StartGroup):
                starts.append((instruction.group, instruction.iteration))
            if isinstance(instruction, Record):
                self.note(instruction)
            if handler := getattr(self, f"on_{type(instruction).__name__}", None):
                handler(instruction)
        self.check_queue(starts)
        self.check_ranks()

    def on_StartGroup(self, instruction: StartGroup) -> None:
        plan = self.plans[instruction.group]
        self.begin(instruction.group, instruction.iteration)
        busy = {rank for copy in self.running.values() for rank in copy.ranks}
        taken = [rank for copy in instruction.copies for rank in copy.ranks]
        assert len(taken) == len(set(taken)) == plan.ranks
        assert set(taken) <= set(self.case.pool) - busy
        others = {module.module for name in self.held for module in self.plans[name].modules}
        assert others.isdisjoint(module.module for module in plan.modules)
        self.held[instruction.group] = instruction
        self.sharing.difference_update(module.module for module in plan.modules)
        for module in plan.modules:
            copies = [copy for copy in instruction.copies if copy.module == module.module]
            assert [copy.copy_index for copy in copies] == list(range(module.copies))
            assert {len(copy.ranks) for copy in copies} == {module.processes}
            assert len({copy.module_serial for copy in copies}) == 1
            together = tuple(rank for copy in copies for rank in copy.ranks)
            assert {copy.module_ranks for copy in copies} == {together}
            for copy in copies:
                assert copy.attempt == 1
                self.attempts[copy.module, copy.copy_index] = 1
        self.start_copies(
            instruction.copies, sorted({copy.module_serial for copy in instruction.copies})
        )

    def start_copies(self, copies: Sequence[CopyPlan], module_serials: Sequence[int]) -> None:
        new = [copy.serial for copy in copies] + list(module_serials)
        assert len(new) == len(set(new))
        assert self.serials.isdisjoint(new)
        self.serials.update(new)
        for copy in copies:
            ranks = {(copy.serial, rank) for rank in copy.ranks}
            self.running[copy.serial] = copy
            self.working |= ranks
            if copy.module in self.case.with_module_comm:
                self.unasked |= ranks

    def on_GroupStarted(self, record: GroupStarted) -> None:
        plan = self.plans[record.group]
        assert record.groups == plan.groups
        if plan.groups:
            self.begin(record.group, record.iteration)
        else:
            assert self.history[-2] == self.held[record.group]
            assert dict(record.copies) == {module.module: module.copies for module in plan.modules}
            assert record.placement == {
                copy.name: copy.ranks for copy in self.held[record.group].copies
            }

    def begin(self, group: str, iteration: tuple[int, ...]) -> None:
        """An iteration follows the one before it, within one of the group around, if any."""
        around = iteration[:-1]
        place = group, around
        assert self.began.get(place, 0) == self.ended.get(place, 0) == iteration[-1]
        assert place not in self.complete
        self.began[place] = iteration[-1] + 1
        plan = self.plans[group]
        assert plan.iterations is None or iteration[-1] < plan.iterations
        for needed in plan.depends:
            assert (needed, around) in self.complete, f"{group} before {needed}"
        parent = self.parents.get(group)
        assert (parent is None) == (around == ())
        if parent is not None:
            passing = parent, around[:-1]
            assert self.began[passing] == around[-1] + 1
            assert self.ended.get(passing, 0) == around[-1]

    def on_GroupFinished(self, record: GroupFinished) -> None:
        plan, around = self.plans[record.group], record.iteration[:-1]
        place = record.group, around
        self.ended[place] = self.ended.get(place, 0) + 1
        self.outcomes[record.group] = record.outcome
        inside = {(child, record.iteration) for child in plan.groups}
        if inside & self.with_failures:
            self.with_failures.add(place)
        assert record.outcome == ("failed" if place in self.with_failures else "finished")
        assert self.ended[place] == self.began[place] == record.iteration[-1] + 1
        assert all(copy.group != record.group for copy in self.running.values())
        for child in plan.groups:
            assert (child, record.iteration) in self.complete
        reached = plan.iterations is not None and self.ended[place] == plan.iterations
        assert (record.ended_by is None) <= (not reached)
        if record.ended_by == "iterations":
            assert reached
        elif record.ended_by == "until":
            assert plan.until is not None
        if record.ended_by is not None:
            self.complete.add(place)

    def on_LookForTag(self, instruction: LookForTag) -> None:
        assert instruction.tag == self.plans[instruction.group].until
        self.looking.append(instruction)

    def on_ReadTuples(self, instruction: ReadTuples) -> None:
        """A group is judged before it first runs in a pass, after those that it depends on."""
        around = instruction.iteration[:-1]
        assert self.began.get((instruction.group, around), 0) == instruction.iteration[-1] == 0
        for needed in self.plans[instruction.group].depends:
            assert (needed, around) in self.complete
        self.reading.append(instruction)

    def on_GroupSkipped(self, record: GroupSkipped) -> None:
        place = record.group, record.iteration[:-1]
        assert place not in self.complete
        assert self.began.get(place, 0) == record.iteration[-1] == 0
        for name, seen in record.values.items():
            if name.startswith("outcome("):
                assert seen == self.outcomes[name[len("outcome('") : -len("')")]]
        self.complete.add(place)
        self.outcomes[record.group] = "skipped"

    def on_ConnectModule(self, instruction: ConnectModule) -> None:
        asking = {(serial, rank) for serial, rank in self.asking if rank in instruction.ranks}
        assert {rank for _, rank in asking} == set(instruction.ranks)
        assert not {serial for serial, _ in asking} & set(self.failed)
        self.asking -= asking
        self.sharing.add(instruction.module)

    def on_CopyFinished(self, record: CopyFinished) -> None:
        plan = self.running.pop(self.serial_of(record))
        assert not any(serial == plan.serial for serial, _ in self.working)
        assert record.returned == (plan.serial, plan.ranks[0])
        self.let_go(plan.group)

    def serial_of(self, record: CopyFinished | ModuleFailed | CopyGivenUp) -> int:
        (serial,) = (
            serial
            for serial, plan in self.running.items()
            if (plan.name, plan.iteration, plan.attempt)
            == (record.name, record.iteration, record.attempt)
        )
        return serial

    def let_go(self, group: str) -> None:
        """A group's ranks are free when the last of its copies is done."""
        if not any(copy.group == group for copy in self.running.values()):
            self.held.pop(group, None)

    def on_ModuleFailed(self, record: ModuleFailed) -> None:
        (module,) = (m for m in self.plans[record.group].modules if m.module == record.module)
        assert record.attempt == self.attempts[record.module, record.copy]
        expected = "retry" if record.attempt <= module.retries else module.on_failure
        assert record.policy == expected
        self.failed[self.serial_of(record)] = record

    def on_AbandonCopy(self, record: AbandonCopy) -> None:
        told = {(record.plan.serial, rank) for rank in record.ranks}
        assert told == {place for place in self.working if place[0] == record.plan.serial}
        self.leaving |= told
        self.asking -= told
        self.working -= told
        self.running.setdefault(record.plan.serial, record.plan)
        self.failed.setdefault(record.plan.serial, next(reversed(self.failed.values())))

    def on_RestartCopies(self, record: RestartCopies) -> None:
        for copy in record.copies:
            key = copy.module, copy.copy_index
            assert copy.attempt > self.attempts[key]
            self.attempts[key] = copy.attempt
            for serial, plan in list(self.running.items()):
                if (plan.module, plan.copy_index) == key:
                    assert not any(at == serial for at, _ in self.working | self.leaving)
                    assert plan.ranks == copy.ranks
                    del self.running[serial]
        serials = {copy.module_serial for copy in record.copies}
        if record.copies[0].module in self.sharing:  # a communicator that is never used again
            self.sharing.discard(record.copies[0].module)
            assert len(record.copies) == record.copies[0].copies
            assert len(serials) == 1
            assert serials.isdisjoint(self.serials)
        self.start_copies(record.copies, sorted(serials - self.serials))
        self.held.setdefault(
            record.group, StartGroup(record.group, record.iteration, record.copies)
        )

    def on_CopyGivenUp(self, record: CopyGivenUp) -> None:
        serial = self.serial_of(record)
        plan = self.running.pop(serial)
        assert not any(at == serial for at, _ in self.working | self.leaving)
        self.with_failures.add((plan.group, plan.iteration[:-1]))
        self.let_go(plan.group)

    def on_StopRun(self, record: StopRun) -> None:
        self.stop = record
        self.is_over = True

    def on_EndRun(self, record: EndRun) -> None:
        assert self.running == {}
        self.is_over = True

    # -- rules ----------------------------------------------------------------------------------

    def check_queue(self, starts: list[Any]) -> None:
        """First come, first served; and the first that waits waits for something."""
        queue = self.scheduler.ready
        known = [*self.queue, *starts[len(self.queue) :]]
        assert starts == known[: len(starts)]
        left = self.queue[len(starts) :]
        assert queue[: len(left)] == left
        self.queue = queue
        if queue and not self.is_over:
            first = self.plans[queue[0][0]]
            busy = {module.module for name in self.held for module in self.plans[name].modules}
            needed = {module.module for module in first.modules}
            assert first.ranks > len(self.scheduler.free_ranks) or busy & needed

    def check_ranks(self) -> None:
        if self.stop is not None:
            return
        busy = {rank for plan in self.running.values() for rank in plan.ranks}
        free = set(self.scheduler.free_ranks)
        assert not busy & free
        taken = sum(self.plans[name].ranks for name in self.held)
        assert len(free) == len(self.case.pool) - taken
        at_work = {rank for _, rank in self.working | self.leaving}
        assert self.scheduler.running_ranks == at_work
