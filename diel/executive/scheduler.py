"""Which group runs when, on which ranks, and what follows a failure: a pure state machine.

``start()`` and ``handle(event)`` return instructions, which the driver performs; there is no I/O
and no clock here.

::

    scheduler.py    ready groups take their ranks from the pool and return them
    groups.py       which iteration of which group is ready, and how far its copies are
    plans.py        groups, modules and copies    events.py   events and instructions

A group becomes ready when every group that it depends on has finished, and again for each further
iteration. Before the first one its ``when`` is judged, if it has one: a skipped group has finished.
Ready groups take their ranks from the pool in the order in which they became ready, each all of its
ranks at once, and none overtakes another, so that a large group is not starved by small ones. After
each iteration the ranks return to the pool. A module runs in one group at a time. Resources of the
run, such as licences, are taken and given back with the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, count
from types import MappingProxyType
from typing import Any, TypeAlias

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
    TuplesRead,
)
from diel.executive.groups import GroupTree, RunningCopy, RunningGroup, policy_for
from diel.executive.messages import LossAllowed, ModuleCommAsked, RankFailed, RankFinished, RankLeft
from diel.executive.plans import CopyPlan, GroupPlan, Iteration
from diel.executive.resources import SharedResources
from diel.exit_codes import FAILED
from diel.expressions import ExpressionError
from diel.frozen import Frozen
from diel.run import records
from diel.run.records import Finished
from diel.text import format_duration

Choose: TypeAlias = "Callable[[GroupPlan, Sequence[int]], tuple[tuple[int, ...], ...] | None]"
"""A function from a group and the free ranks, in ascending order, to the ranks of each copy, module
by module in the group's order; it returns None if these ranks do not suffice."""


def in_order(plan: GroupPlan, free: Sequence[int]) -> tuple[tuple[int, ...], ...] | None:
    """Assign the free ranks to copies in order; the default of `Choose`."""
    if plan.ranks > len(free):
        return None
    left = iter(free)
    return tuple(
        tuple(next(left) for _ in range(module.processes))
        for module in plan.modules
        for _ in range(module.copies)
    )


class Obstacle(Frozen):
    """The reason why the first ready group cannot start now.

    Attributes
    ----------
    busy_modules : tuple of str
        Modules of it that run in another group.
    wanted, free : int
        Ranks that the group takes, and free ranks. If enough are free, they lack GPUs.
    lacking : tuple of str
        Resources of which it takes more than are free.
    """

    busy_modules: tuple[str, ...]
    wanted: int
    free: int
    lacking: tuple[str, ...] = ()


def find_ranks(
    plan: GroupPlan,
    free: Sequence[int],
    busy_modules: Collection[str],
    resources: SharedResources,
    choose: Choose = in_order,
) -> tuple[int, ...] | Obstacle:
    """Return the ranks of a group's copies, in order, or the reason why it cannot start now."""
    busy = tuple(module.module for module in plan.modules if module.module in busy_modules)
    lacking = resources.lacking(plan)
    ranks = None if busy or lacking else choose(plan, free)
    if ranks is None:
        return Obstacle(busy, plan.ranks, len(free), lacking)
    return tuple(chain.from_iterable(ranks))


class Scheduler:
    """A state machine that runs groups, in the order of their dependencies, on a pool of ranks.

    Parameters
    ----------
    groups : sequence of GroupPlan
        In the order of the workflow file, which decides among groups that become ready together.
    pool : iterable of int
        Ranks for copies.
    choose : callable, optional
        Chooses the ranks of a group among the free ranks; with the whole pool free it never
        returns None. Default: `in_order`.
    finished : mapping of str to Finished, optional
        The iterations that an earlier session has finished, from its `finished`; an iteration that
        had only begun is run again. Neither the ranks nor the copies need be the same.
    twins : sequence of (int, int), optional
        Pairs of tuple servers that hold the same tuples: the run goes on without one of a pair.
    outcomes : mapping of str to str, optional
        How groups have ended in that session, where not as ``finished``, from its `outcomes`.
    resources : mapping of str to int, optional
        How many there are of each resource that groups share.

    Raises
    ------
    ValueError
        If a group needs more ranks than the pool has or more resources than there are, or could
        never start.
    """

    def __init__(
        self,
        groups: Sequence[GroupPlan],
        pool: Iterable[int],
        finished: Mapping[str, Finished] | None = None,
        choose: Choose = in_order,
        twins: Sequence[tuple[int, int]] = (),
        outcomes: Mapping[str, str] | None = None,
        resources: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._choose = choose
        self._plans = {group.name: group for group in groups}
        self._free = sorted(pool)
        self._pool = set(self._free)
        self._twins = tuple(twins)
        self._servers = {rank for pair in twins for rank in pair}
        self._dead: dict[int, str] = {}
        self._resources = SharedResources(resources)
        for group in groups:
            if too_few := self._resources.too_few(group):
                raise ValueError(f"group {group.name!r} takes {too_few}")
            if group.ranks > len(self._free):
                raise ValueError(
                    f"group {group.name!r} needs {group.ranks} ranks of the pool, "
                    f"which has {len(self._free)}"
                )
        self._tree = GroupTree(groups, finished, outcomes)
        self._running: dict[str, RunningGroup] = {}
        self._busy_modules: set[str] = set()
        self._copies: dict[int, RunningCopy] = {}  # copies on which ranks still work, by serial
        self._serials = count(1)
        self._handlers: dict[type, Callable[[Any], list[Instruction]]] = {
            RankFinished: self._rank_finished,
            RankFailed: self._rank_failed,
            RankLeft: self._rank_left,
            TimeLimitPassed: self._time_limit_passed,
            LeaveTimedOut: self._leave_timed_out,
            ModuleCommAsked: self._module_comm_asked,
            TagLooked: self._tag_looked,
            TuplesRead: self._tuples_read,
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
        """Ranks of the pool on which no copy runs."""
        return tuple(self._free)

    @property
    def running_ranks(self) -> set[int]:
        """Ranks that have not finished their part of a copy."""
        return {rank for copy in self._copies.values() for rank in copy.working}

    @property
    def groups_to_come(self) -> list[str]:
        """Groups that have not started, or have further iterations, each as a text."""
        first = self._tree.ready[0] if self._tree.ready else ""
        lacking = self._resources.lacking(self._plans[first]) if first else ()
        reason = f" ({self._resources.describe(lacking)})" if lacking else ""
        return [
            f"{text}{reason if text.partition(' ')[0] == first else ''}"
            for text in self._tree.to_come(self._running)
        ]

    @property
    def finished(self) -> dict[str, Finished]:
        """The last finished iteration of each group, as a resumed run needs it."""
        return self._tree.finished

    @property
    def outcomes(self) -> dict[str, str]:
        """How groups have ended, where not as ``finished``, as a resumed run needs it."""
        return self._tree.outcomes

    @property
    def skipped_groups(self) -> list[str]:
        """Groups that were skipped, each with its condition."""
        return self._tree.skipped

    def plan_of(self, serial: int) -> CopyPlan:
        """Return the plan of a running copy."""
        return self._copies[serial].plan

    @property
    def ready(self) -> list[tuple[str, Iteration]]:
        """Groups whose next iteration waits for ranks, in the order in which they start."""
        return [(name, self._tree.iteration_of(name)) for name in self._tree.ready]

    # -- events ------------------------------------------------------------------------------

    def start(self) -> list[Instruction]:
        """Start the first groups; return the first instructions."""
        return [*self._tree.start(), *self._advance()]

    def handle(self, event: Event) -> list[Instruction]:
        """Process an event; return the instructions that follow, to be performed in this order."""
        if self.stopping:
            return []  # whatever happens now is a consequence of the stop
        return self._handlers[type(event)](event)

    def _advance(self) -> list[Instruction]:
        """Start the ready groups for which ranks are free; end the run if all groups finished."""
        ready = self._tree.ready
        instructions: list[Instruction] = []
        while ready:
            plan = self._plans[ready[0]]
            ranks = find_ranks(plan, self._free, self._busy_modules, self._resources, self._choose)
            if isinstance(ranks, Obstacle):
                if plan.ranks > len(self._pool):  # ranks have died since the group was planned
                    explanation = (
                        f"group {plan.name!r} needs {plan.ranks} ranks, {len(self._pool)} are left"
                    )
                    instructions += self._lose(self._dead, [explanation])
                break
            instructions += self._start_group(ready.popleft(), ranks)
        if self._tree.is_finished:
            instructions.append(EndRun())
        return instructions

    def _start_group(self, name: str, taken: tuple[int, ...]) -> list[Instruction]:
        plan = self._plans[name]
        self._free = sorted(set(self._free).difference(taken))
        self._resources.take(plan)
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
        """Count copies as done; if they are the last of their group, end its iteration."""
        group = self._running[copies[0].plan.group]
        for copy in copies:
            copy.is_settled = True
        group.unsettled -= len(copies)
        if group.unsettled:
            return []
        name = group.plan.name
        del self._running[name]
        self._busy_modules.difference_update(module.module for module in group.plan.modules)
        self._resources.give_back(group.plan)
        self._free = sorted([*self._free, *(rank for rank in group.ranks if rank in self._pool)])
        ended = [*group.failed_tasks(), *self._tree.iteration_done(name, group.has_failed)]
        if self._tree.excess:
            return [*ended, *self._stop(self._tree.excess)]
        return [*ended, *self._advance()]

    # -- ranks report -------------------------------------------------------------------------

    def _rank_finished(self, event: RankFinished) -> list[Instruction]:
        copy = self._copies.get(event.serial)
        if copy is None:
            return []  # its rank has died since
        if event.rank == copy.plan.ranks[0]:
            copy.returned, copy.program = event.returned, event.program
        if copy.policy is not None:
            return self._rank_out(copy, event.rank)
        copy.working.discard(event.rank)
        if copy.working:
            return []
        del self._copies[event.serial]
        is_apart = copy.program is not None and copy.program.is_apart
        note = records.CopyFinished.of(copy.returned, **copy.plan.place, is_apart=is_apart)
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
            return []  # its rank has died, or has been ordered to leave
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
        """Record a copy's failure, and begin what its module's policy says: stop, or leave it."""
        plan, module = copy.plan, copy.module
        policy = policy_for(module.plan, plan.attempt)
        fails_element = policy == "stop" and self._tree.may_fail(plan.group)
        policy = "continue" if fails_element else policy
        is_whole_module = module.has_comm and len(module.copies) > 1
        noted = records.ModuleFailed(
            **plan.place,
            rank=rank,
            copy_rank=None if rank is None else plan.ranks.index(rank),
            ranks=plan.ranks,
            host=host,
            error=error,
            detail=detail,
            policy=policy,
            whole_module=is_whole_module,
        )
        if policy == "stop":
            return [noted, *self._stop(f"{plan.name} failed")]
        leaves: list[Instruction] = []
        together = (
            self._running[plan.group].fail(copy, error)
            if fails_element
            else module.fail(copy, policy, error)
        )
        for leaving in together:
            # Also a copy that had finished: until all ranks have left.
            self._copies[leaving.plan.serial] = leaving
            ranks = tuple(sorted(leaving.working - ({rank} if leaving is copy else set())))
            if ranks:
                leaves.append(AbandonCopy(leaving.plan, ranks))
        return [noted, *leaves]

    def _rank_out(self, copy: RunningCopy, rank: int) -> list[Instruction]:
        """Record that a rank has left a failed copy; restart or give up the copy after the last."""
        copy.working.discard(rank)
        if not copy.is_left:
            return []
        together = copy.leaving_with
        for leaving in together:
            del self._copies[leaving.plan.serial]
        if copy.policy == "retry":
            return self._restart(copy, together)
        given_up = [leaving for leaving in together if not leaving.is_settled]
        notes = [
            records.CopyGivenUp(**leaving.plan.place, error=leaving.error) for leaving in given_up
        ]
        self._running[copy.plan.group].has_failed = True
        return [*notes, *self._settle(given_up)]

    def _restart(self, copy: RunningCopy, together: Sequence[RunningCopy]) -> list[Instruction]:
        group = self._running[copy.plan.group]
        group.unsettled += sum(restarted.is_settled for restarted in together)
        plans = copy.module.restart(together, self._serials)
        self._copies.update((restarted.plan.serial, restarted) for restarted in together)
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

    # -- tags ---------------------------------------------------------------------------------

    def _tag_looked(self, event: TagLooked) -> list[Instruction]:
        instructions = self._tree.tag_looked(event.group, event.iteration, event.is_there)
        return [*instructions, *self._advance()]

    def _tuples_read(self, event: TuplesRead) -> list[Instruction]:
        try:
            if event.error:
                raise ExpressionError(event.error)
            judged = self._tree.tuples_read(event.group, event.iteration, event.values)
        except ExpressionError as error:
            when = self._plans[event.group].when
            assert when is not None
            note = records.WhenFailed(
                group=event.group,
                iteration=event.iteration,
                explanation=when.describe_failure(event.group, str(error), event.values),
            )
            return [note, *self._stop(f"when of group {event.group} cannot be judged")]
        return [*judged, *self._advance()]

    # -- ranks that are lost ------------------------------------------------------------------

    def _ranks_silent(self, event: RanksSilent) -> list[Instruction]:
        ranks, hosts = sorted(event.hosts), sorted(set(event.hosts.values()))
        subject = f"host {', '.join(hosts)}" if len(ranks) > 1 else f"rank {ranks[0]}"
        silent = f"has not been heard of for {format_duration(event.silent_s)}"
        return self._lose(
            event.hosts, [f"{subject} {silent}, since {event.since}", *self._described(event.hosts)]
        )

    def _loss_allowed(self, event: LossAllowed) -> list[Instruction]:
        copy = self._copies.get(event.serial)
        if copy is not None:
            copy.may_be_lost = len(copy.plan.ranks) == 1
        return []

    def _ranks_died(self, event: RanksDied) -> list[Instruction]:
        """Go on without ranks that have died, if no group needs their copies; else end the run."""
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
        """End the run because ranks are lost; the first line is the reason."""
        return [_record_of(hosts, lines, "stop"), *self._stop(lines[0])]

    def _described(self, hosts: Mapping[int, str]) -> list[str]:
        """Return a line for each rank that says what ran on it."""
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
        """Return a text for a rank that serves tuples: whether its twin still has them."""
        twins = sorted({twin for pair in self._twins if rank in pair for twin in pair} - {rank})
        if not twins:
            return "a tuple server"
        living = [twin for twin in twins if twin not in self._dead]
        if len(living) < len(twins):
            return "a tuple server, whose twin has died too"
        plural = "s" if len(living) > 1 else ""
        return f"a tuple server; its tuples are on rank{plural} {', '.join(map(str, living))} too"

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
    """Whether the other copies can go on without a copy whose rank has died.

    They cannot if ranks wait for the module's communicator, or have it.
    """
    copies = copy.module.copies
    are_left = any(not other.is_lost and other.policy != "continue" for other in copies)
    is_alone = not copy.module.asked and not copy.module.has_comm
    return copy.may_be_lost and copy.policy is None and is_alone and are_left


def _record_of(hosts: Mapping[int, str], lines: Sequence[str], policy: str) -> records.RanksLost:
    return records.RanksLost(
        ranks=sorted(hosts),
        hosts=sorted(set(hosts.values())),
        explanation="\n".join(lines),
        policy=policy,
    )
