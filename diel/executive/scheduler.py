"""Which group runs when, on which ranks, and what follows a failure: a pure state machine.

``start()`` and ``handle(event)`` return instructions, which the driver performs; there is no I/O
and no clock here.

::

    scheduler.py    ready groups take their ranks from the pool and return them
    group_tree.py   which iteration of which group is ready
    copies.py       the copies of one iteration, and what follows a failure
    plans.py        what there is to run          events.py   what goes in and out

A group becomes ready when every group that it depends on has finished, and again for each further
iteration. Ready groups take their ranks from the pool in the order in which they became ready, each
all of its ranks at once, and none overtakes another, so that a large group is not starved by small
ones. After each iteration the ranks return to the pool. A module runs in one group at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, count
from typing import Any, TypeAlias

from diel.executive.copies import RunningCopy, RunningGroup, policy_for
from diel.executive.events import (
    AbandonCopy,
    ConnectModule,
    EndRun,
    Event,
    Instruction,
    LeaveTimedOut,
    RanksDied,
    RanksSilent,
    RestartCopies,
    StartGroup,
    StopAsked,
    StopRun,
    TagLooked,
    TimeLimitPassed,
)
from diel.executive.group_tree import GroupTree
from diel.executive.messages import LossAllowed, ModuleCommAsked, RankFailed, RankFinished, RankLeft
from diel.executive.plans import CopyPlan, GroupPlan, Iteration
from diel.exit_codes import FAILED
from diel.frozen import Frozen
from diel.run import records
from diel.run.records import Finished
from diel.text import format_duration

Choose: TypeAlias = "Callable[[GroupPlan, Sequence[int]], tuple[tuple[int, ...], ...] | None]"
"""From a group and the free ranks, in ascending order, to the ranks of each copy, module by module
in the group's order; None if these ranks will not do."""


def in_order(plan: GroupPlan, free: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
    """Give each copy the next free ranks."""
    if plan.ranks > len(free):
        return None
    left = iter(free)
    return tuple(
        tuple(next(left) for _ in range(module.processes))
        for module in plan.modules
        for _ in range(module.copies)
    )


class Obstacle(Frozen):
    """Why the first of the groups that are ready cannot start now.

    Attributes
    ----------
    busy_modules : tuple of str
        Modules of it that run in another group.
    wanted, free : int
        Ranks. Where enough are free, they are not those that it needs: they lack its GPUs.
    """

    busy_modules: tuple[str, ...]
    wanted: int
    free: int


def find_ranks(
    plan: GroupPlan, free: Sequence[int], busy_modules: Collection[str], choose: Choose = in_order
) -> tuple[int, ...] | Obstacle:
    """Return the ranks of all copies of a group in order, or why it cannot start now."""
    busy = tuple(module.module for module in plan.modules if module.module in busy_modules)
    ranks = None if busy else choose(plan, free)
    if ranks is None:
        return Obstacle(busy, plan.ranks, len(free))
    return tuple(chain.from_iterable(ranks))


class Scheduler:
    """Runs groups by their dependencies on a pool of ranks.

    Parameters
    ----------
    groups : sequence of GroupPlan
        In the order of the workflow file, which decides among groups that become ready together.
    pool : iterable of int
        Ranks for copies.
    choose : callable, optional
        Which of the free ranks a group takes, copy by copy in the group's order; with the whole
        pool free it never says None. Default: the first ones.
    finished : mapping of str to Finished, optional
        What an earlier run has behind it, from its `finished`: every iteration that it had not
        finished is run, also if it had begun. Neither the ranks nor the copies need be the same.
    twins : sequence of (int, int), optional
        Tuple servers that hold the same tuples: the run goes on without one of them.

    Raises
    ------
    ValueError
        If a group needs more ranks than the pool has, or could never start.
    """

    def __init__(
        self,
        groups: Sequence[GroupPlan],
        pool: Iterable[int],
        finished: Mapping[str, Finished] | None = None,
        choose: Choose = in_order,
        twins: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._choose = choose
        self._plans = {group.name: group for group in groups}
        self._free = sorted(pool)
        self._pool = set(self._free)
        self._twins = tuple(twins)
        self._servers = {rank for pair in twins for rank in pair}
        self._dead: dict[int, str] = {}
        for group in groups:
            if group.ranks > len(self._free):
                raise ValueError(
                    f"group {group.name!r} needs {group.ranks} ranks of the pool, "
                    f"which has {len(self._free)}"
                )
        self._tree = GroupTree(groups, finished)
        self._running: dict[str, RunningGroup] = {}
        self._busy_modules: set[str] = set()
        self._copies: dict[int, RunningCopy] = {}  # those with ranks that work, by serial
        self._serials = count(1)
        self._handlers: dict[type, Callable[[Any], list[Instruction]]] = {
            RankFinished: self._rank_finished,
            RankFailed: self._rank_failed,
            RankLeft: self._rank_left,
            TimeLimitPassed: self._time_limit_passed,
            LeaveTimedOut: self._leave_timed_out,
            ModuleCommAsked: self._module_comm_asked,
            TagLooked: self._tag_looked,
            LossAllowed: self._loss_allowed,
            RanksSilent: self._ranks_silent,
            RanksDied: self._ranks_died,
            StopAsked: self._stop_asked,
            records.DeadlockFound: self._deadlock_found,
            records.JournalLost: self._journal_lost,
        }
        self.stopping = False

    # -- its state ----------------------------------------------------------------------------

    @property
    def free_ranks(self) -> tuple[int, ...]:
        """Ranks of the pool that nothing runs on."""
        return tuple(self._free)

    @property
    def running_ranks(self) -> set[int]:
        """Ranks that have not finished their part of a copy."""
        return {rank for copy in self._copies.values() for rank in copy.working}

    @property
    def groups_to_come(self) -> list[str]:
        """Groups that have not started, or have further iterations."""
        return self._tree.to_come(self._running)

    @property
    def finished(self) -> dict[str, Finished]:
        """What is behind: a later run that is given this goes on from here."""
        return self._tree.finished

    def plan_of(self, serial: int) -> CopyPlan:
        """Return the plan of a copy that is running."""
        return self._copies[serial].plan

    @property
    def ready(self) -> list[tuple[str, Iteration]]:
        """Groups whose next iteration waits for ranks, in the order in which they start."""
        return [(name, self._tree.iteration_of(name)) for name in self._tree.ready]

    # -- events ------------------------------------------------------------------------------

    def start(self) -> list[Instruction]:
        """Begin; returns the first instructions."""
        return [*self._tree.start(), *self._advance()]

    def handle(self, event: Event) -> list[Instruction]:
        """Take an event into account and return what is to be done about it.

        Returns
        -------
        list of Instruction
            To be performed in this order.
        """
        if self.stopping:
            return []  # what ends now is a consequence of the stop
        return self._handlers[type(event)](event)

    def _advance(self) -> list[Instruction]:
        """Start what can start now."""
        ready = self._tree.ready
        instructions: list[Instruction] = []
        while ready:
            plan = self._plans[ready[0]]
            ranks = find_ranks(plan, self._free, self._busy_modules, self._choose)
            if isinstance(ranks, Obstacle):
                if plan.ranks > len(self._pool):  # some have died since it was planned
                    left = (
                        f"group {plan.name!r} needs {plan.ranks} ranks, {len(self._pool)} are left"
                    )
                    instructions += self._lose(self._dead, [left])
                break
            instructions += self._start_group(ready.popleft(), ranks)
        if self._tree.is_finished:
            instructions.append(EndRun())
        return instructions

    def _start_group(self, name: str, taken: tuple[int, ...]) -> list[Instruction]:
        plan = self._plans[name]
        self._free = sorted(set(self._free).difference(taken))
        group = RunningGroup(plan, self._tree.iteration_of(name), taken)
        copies = group.place(self._serials)
        self._running[name] = group
        self._busy_modules.update(module.module for module in plan.modules)
        self._copies.update((copy.plan.serial, copy) for copy in copies)
        plans = tuple(copy.plan for copy in copies)
        note = records.GroupStarted(
            group=name,
            iteration=group.iteration,
            copies={module.module: module.copies for module in plan.modules},
            placement={plan.name: plan.ranks for plan in plans},
        )
        return [StartGroup(name, group.iteration, plans), note]

    def _settle(self, copies: Sequence[RunningCopy]) -> list[Instruction]:
        """Count copies as done; go on if they were the last of their group."""
        group = self._running[copies[0].plan.group]
        for copy in copies:
            copy.is_settled = True
        group.unsettled -= len(copies)
        if group.unsettled:
            return []
        name = group.plan.name
        del self._running[name]
        self._busy_modules.difference_update(module.module for module in group.plan.modules)
        self._free = sorted([*self._free, *(rank for rank in group.ranks if rank in self._pool)])
        return [*self._tree.iteration_done(name), *self._advance()]

    # -- ranks report -------------------------------------------------------------------------

    def _rank_finished(self, event: RankFinished) -> list[Instruction]:
        copy = self._copies.get(event.serial)
        if copy is None:
            return []  # its rank has died since
        if event.rank == copy.plan.ranks[0]:
            copy.returned = event.returned
        if copy.policy is not None:
            return self._rank_out(copy, event.rank)
        copy.working.discard(event.rank)
        if copy.working:
            return []
        del self._copies[event.serial]
        note = records.CopyFinished.of(copy.returned, **copy.plan.place)
        return [note, *self._settle([copy])]

    def _rank_failed(self, event: RankFailed) -> list[Instruction]:
        copy = self._copies.get(event.serial)
        if copy is None:
            return []  # its rank has died since
        if copy.policy is not None:  # a consequence of the order to leave
            return self._rank_out(copy, event.rank)
        noted = self._fail(copy, event.rank, event.error, event.host, event.detail)
        return noted if self.stopping else [*noted, *self._rank_out(copy, event.rank)]

    def _rank_left(self, event: RankLeft) -> list[Instruction]:
        copy = self._copies.get(event.serial)
        return [] if copy is None else self._rank_out(copy, event.rank)

    def _module_comm_asked(self, event: ModuleCommAsked) -> list[Instruction]:
        copy = self._copies.get(event.serial)
        if copy is None or copy.policy is not None:
            return []  # its rank has died, or is about to hear that it has to leave
        plan, module = copy.plan, copy.module
        module.asked.add(event.rank)
        if len(module.asked) < len(plan.module_ranks):
            return []
        module.has_comm = True
        return [
            ConnectModule(
                plan.group, plan.iteration, plan.module, plan.module_serial, plan.module_ranks
            ),
            records.ModuleCommMade(group=plan.group, iteration=plan.iteration, module=plan.module),
        ]

    # -- failures -----------------------------------------------------------------------------

    def _time_limit_passed(self, event: TimeLimitPassed) -> list[Instruction]:
        copy = self._copies.get(event.serial)
        if copy is None or copy.policy is not None:
            return []
        return self._fail(copy, None, event.error)

    def _fail(
        self, copy: RunningCopy, rank: int | None, error: str, host: str = "", detail: str = ""
    ) -> list[Instruction]:
        """Begin to do what the policy of a copy's module says."""
        plan, module = copy.plan, copy.module
        policy = policy_for(module.plan, plan.attempt)
        whole = module.has_comm and len(module.copies) > 1
        noted = records.ModuleFailed(
            **plan.place,
            rank=rank,
            copy_rank=None if rank is None else plan.ranks.index(rank),
            ranks=plan.ranks,
            host=host,
            error=error,
            detail=detail,
            policy=policy,
            whole_module=whole,
        )
        if policy == "stop":
            return [noted, *self._stop(f"{plan.name} failed")]
        leaves: list[Instruction] = []
        for left in module.fail(copy, policy, error):
            self._copies[left.plan.serial] = left  # until all ranks are out, if they had finished
            ranks = tuple(sorted(left.working - ({rank} if left is copy else set())))
            if ranks:
                leaves.append(AbandonCopy(left.plan, ranks))
        return [noted, *leaves]

    def _rank_out(self, copy: RunningCopy, rank: int) -> list[Instruction]:
        """Record that a rank is done with a copy that has failed."""
        copy.working.discard(rank)
        if not copy.is_left:
            return []
        together = copy.leaving_with
        for left in together:
            del self._copies[left.plan.serial]
        if copy.policy == "retry":
            return self._restart(copy, together)
        given_up = [left for left in together if not left.is_settled]
        notes = [records.CopyGivenUp(**left.plan.place, error=left.error) for left in given_up]
        return [*notes, *self._settle(given_up)]

    def _restart(self, copy: RunningCopy, together: Sequence[RunningCopy]) -> list[Instruction]:
        group = self._running[copy.plan.group]
        group.unsettled += sum(again.is_settled for again in together)
        plans = copy.module.restart(together, self._serials)
        self._copies.update((again.plan.serial, again) for again in together)
        note = records.CopiesRestarted(
            group=group.plan.name,
            iteration=group.iteration,
            module=plans[0].module,
            copies=[plan.copy_index for plan in plans],
            attempt=plans[0].attempt,
        )
        return [RestartCopies(group.plan.name, group.iteration, plans), note]

    def _leave_timed_out(self, event: LeaveTimedOut) -> list[Instruction]:
        copy = self._copies.get(event.serial)
        if copy is None or copy.policy is None or not copy.working:
            return []
        plan, ranks = copy.plan, tuple(sorted(copy.working))
        names = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        reason = f"{names} did not leave {plan.name}, which has failed"
        note = records.LeaveIgnored(
            group=plan.group,
            module=plan.module,
            copy=plan.copy_index,
            ranks=ranks,
            explanation=f"{reason}, within {event.timeout_s:g} s: it computes, or "
            "sits in an MPI call of its own,\nand only a wait in diel can be ended from outside",
        )
        return [note, *self._stop(reason)]

    # -- the rest -----------------------------------------------------------------------------

    def _tag_looked(self, event: TagLooked) -> list[Instruction]:
        instructions = self._tree.tag_looked(event.group, event.iteration, event.is_there)
        return [*instructions, *self._advance()]

    # -- ranks that are lost ------------------------------------------------------------------

    def _ranks_silent(self, event: RanksSilent) -> list[Instruction]:
        ranks, hosts = sorted(event.hosts), sorted(set(event.hosts.values()))
        whole = f"host {', '.join(hosts)}" if len(ranks) > 1 else f"rank {ranks[0]}"
        silent = f"has not been heard of for {format_duration(event.silent_s)}"
        return self._lose(
            event.hosts, [f"{whole} {silent}, since {event.since}", *self._described(event.hosts)]
        )

    def _loss_allowed(self, event: LossAllowed) -> list[Instruction]:
        copy = self._copies.get(event.serial)
        if copy is not None:
            copy.may_be_lost = len(copy.plan.ranks) == 1
        return []

    def _ranks_died(self, event: RanksDied) -> list[Instruction]:
        """Go on without ranks, if what ran there can be done without; else end the run."""
        self._dead.update(event.hosts)
        plural = "s" if len(event.hosts) > 1 else ""
        words = f"rank{plural} {', '.join(map(str, sorted(event.hosts)))} died"
        described = self._described(event.hosts)
        lost = [copy for copy in self._copies.values() if copy.working & event.hosts.keys()]
        for copy in lost:
            copy.is_lost = True
        can_go_on = (self._pool | self._servers).issuperset(event.hosts)
        are_tuples_left = all(set(pair).difference(self._dead) for pair in self._twins)
        if not (can_go_on and are_tuples_left and all(map(_can_be_missed, lost))):
            return self._lose(event.hosts, [words, *described])
        self._pool.difference_update(event.hosts)
        self._free = [rank for rank in self._free if rank in self._pool]
        lines = [f"{words}, and the run goes on", *described]
        instructions: list[Instruction] = [_record_of(event.hosts, lines, "continue")]
        for copy in lost:
            copy.working.clear()
            del self._copies[copy.plan.serial]
            instructions.append(records.CopyGivenUp(**copy.plan.place, error=words))
            instructions += self._settle([copy])
        return instructions

    def _lose(self, hosts: Mapping[int, str], lines: Sequence[str]) -> list[Instruction]:
        """End the run for ranks that are lost; the first of the lines says why."""
        return [_record_of(hosts, lines, "stop"), *self._stop(lines[0])]

    def _described(self, hosts: Mapping[int, str]) -> list[str]:
        """Say in lines what runs on some ranks."""
        runs_on = {
            rank: copy.plan.name for copy in self._copies.values() for rank in copy.plan.ranks
        }
        none = dict.fromkeys(self._pool, "no module at this moment")
        return [
            f"rank {rank} on {hosts[rank]}: "
            + (runs_on.get(rank) or none.get(rank) or self._described_server(rank))
            for rank in sorted(hosts)
        ]

    def _described_server(self, rank: int) -> str:
        """Say that a rank serves tuples, and who has them too."""
        twins = sorted({twin for pair in self._twins if rank in pair for twin in pair} - {rank})
        if not twins:
            return "a tuple server"
        left = [twin for twin in twins if twin not in self._dead]
        if len(left) < len(twins):
            return "a tuple server, whose twin has died too"
        plural = "s" if len(left) > 1 else ""
        return f"a tuple server; its tuples are on rank{plural} {', '.join(map(str, left))} too"

    def _stop_asked(self, event: StopAsked) -> list[Instruction]:
        return self._stop(event.reason, event.exit_code)

    def _deadlock_found(self, record: records.DeadlockFound) -> list[Instruction]:
        return [record, *self._stop("deadlock")]

    def _journal_lost(self, record: records.JournalLost) -> list[Instruction]:
        return [record, *self._stop("the journal is lost")]

    def _stop(self, reason: str, exit_code: int = FAILED) -> list[Instruction]:
        self.stopping = True
        return [records.StopOrdered(reason=reason), StopRun(reason, exit_code)]


def _can_be_missed(copy: RunningCopy) -> bool:
    """Whether the others can go on without a copy whose rank has died.

    They cannot where ranks wait for the module's communicator, or have it.
    """
    others = copy.module.copies
    are_left = any(not other.is_lost and other.policy != "continue" for other in others)
    is_alone = not copy.module.asked and not copy.module.has_comm
    return copy.may_be_lost and copy.policy is None and is_alone and are_left


def _record_of(hosts: Mapping[int, str], lines: Sequence[str], policy: str) -> records.RanksLost:
    return records.RanksLost(
        ranks=sorted(hosts),
        hosts=sorted(set(hosts.values())),
        explanation="\n".join(lines),
        policy=policy,
    )
