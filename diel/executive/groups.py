"""Groups while they run: which one is next to begin an iteration, and how far its copies are. Pure.

A group of modules is a leaf: it waits in `GroupTree.ready` for its ranks, and the scheduler reports
when an iteration is done. A group of groups is done with an iteration when all groups inside have
finished. A group is inside one other group at most and runs one iteration at a time, so the number
of iterations finished in the current pass is its whole state; a pass is an iteration of the
enclosing group. ``depends`` and ``until`` decide which groups are next, and ``when`` whether one is
skipped: that is judged once in a pass, before the first iteration.

When a copy of a module has failed, its other ranks are ordered to leave it; once all have left, it
starts again on the same ranks or is given up. Copies that share their module's communicator are
left together, since none of them could use it without the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from diel.executive.events import EndedBy, Instruction, LookForTag, Policy, ReadTuples
from diel.executive.plans import (
    CopyPlan,
    GroupPlan,
    Iteration,
    ModulePlan,
    place_modules,
    serials_of,
)
from diel.run.records import Finished, GroupFinished, GroupSkipped, GroupStarted, TasksFailed
from diel.run.tasks import ProgramEnd


@dataclass(slots=True)
class _Node:
    plan: GroupPlan
    parent: _Node | None = None
    inside: list[_Node] = field(default_factory=list)
    dependants: list[_Node] = field(default_factory=list)
    around: Iteration = ()  # iteration of the parent
    done: int = 0  # iterations of this pass that are finished
    unmet: int = 0  # groups in `depends` that have not finished
    unfinished_inside: int = 0
    is_finished: bool = False
    is_looking: bool = False
    is_judged: bool = False  # in this pass
    has_failed: bool = False  # copies of it, or of groups inside, were given up in this pass
    failed_before: str = ""  # a group before it in its element, which has failed in this pass
    held: deque[_Node] = field(default_factory=deque)  # elements that wait for their turn
    failed_inside: int = 0  # elements, in this iteration

    @property
    def iteration(self) -> Iteration:
        return (*self.around, self.done)

    @property
    def may_fail(self) -> bool:
        """Whether it is an element, or in one, that may fail without an end of the run."""
        around = self.parent
        if around is None:
            return False
        elements = around.plan.elements
        return (elements is not None and elements.failures is not None) or around.may_fail


class GroupTree:
    """The groups of a workflow, how far each is, and which are ready for their next iteration.

    Parameters
    ----------
    groups : sequence of GroupPlan
        In the order of the workflow file, which decides among groups that become ready together.
    finished : mapping of str to Finished, optional
        Iterations that an earlier session has finished; iterations that it had only begun are
        repeated.
    outcomes : mapping of str to str, optional
        How groups have ended there, where not as ``finished``.

    Attributes
    ----------
    ready : deque of str
        Groups of modules whose next iteration waits for ranks, in the order in which they became
        ready.
    excess : str
        Why the run has to end, once more elements have failed than may; empty before.

    Raises
    ------
    ValueError
        If a group could never start: it depends on itself or is inside itself, directly or not,
        or on a group that is not its sibling.
    """

    def __init__(
        self,
        groups: Sequence[GroupPlan],
        finished: Mapping[str, Finished] | None = None,
        outcomes: Mapping[str, str] | None = None,
    ) -> None:
        self._nodes = {plan.name: _Node(plan) for plan in groups}
        self._finished = dict(finished or {})
        self._outcomes = dict(outcomes or {})
        self.ready: deque[str] = deque()
        self.excess = ""
        for node in self._nodes.values():
            for name in node.plan.groups:
                if self._nodes[name].parent is not None:
                    raise ValueError(f"group {name} is inside two others")
                self._nodes[name].parent = node
        for node in self._nodes.values():
            if node.parent is not None:
                node.parent.inside.append(node)
        self._outermost = [node for node in self._nodes.values() if node.parent is None]
        for node in self._nodes.values():
            for name in node.plan.depends:
                other = self._nodes.get(name)
                if other is None or other.parent is not node.parent:
                    raise ValueError(f"group {node.plan.name} could never start: {name} is no peer")
                other.dependants.append(node)
        self._check_startable()
        self._unfinished_outermost = len(self._outermost)

    def _check_startable(self) -> None:
        """Simulate one pass of all groups; raise if some group could never start."""
        unmet = {name: len(node.plan.depends) for name, node in self._nodes.items()}
        reachable = list(self._outermost)
        startable = [node for node in reachable if not unmet[node.plan.name]]
        started = set()
        while startable:
            node = startable.pop()
            started.add(node.plan.name)
            startable += [inner for inner in node.inside if not unmet[inner.plan.name]]
            for dependant in node.dependants:
                unmet[dependant.plan.name] -= 1
                if not unmet[dependant.plan.name]:
                    startable.append(dependant)
        never = [name for name in self._nodes if name not in started]
        if never:
            raise ValueError(f"these groups could never start: {', '.join(never)}")

    @property
    def is_finished(self) -> bool:
        """Whether every group has finished."""
        return self._unfinished_outermost == 0

    @property
    def finished(self) -> dict[str, Finished]:
        """The last finished iteration of each group, as a resumed run needs it."""
        return dict(self._finished)

    @property
    def outcomes(self) -> dict[str, str]:
        """How groups have ended, where not as ``finished``, as a resumed run needs it."""
        return dict(self._outcomes)

    @property
    def skipped(self) -> list[str]:
        """The groups that were skipped and have not run since, each with its condition."""
        return [
            f"{name}, when = {node.plan.when.text!r} was false"
            for name, node in self._nodes.items()
            if node.plan.when is not None and self._outcomes.get(name) == "skipped"
        ]

    def iteration_of(self, group: str) -> Iteration:
        """Return the iteration that a group is in, or would begin next."""
        return self._nodes[group].iteration

    def unmet(self, group: str) -> list[str]:
        """Return the groups that a group depends on and that have not finished."""
        return [
            name for name in self._nodes[group].plan.depends if not self._nodes[name].is_finished
        ]

    def has_ended(self, group: str) -> bool:
        """Whether a group has finished, or one around it that will not run it again."""
        node = self._nodes[group]
        if node.parent is None or node.parent.unfinished_inside:
            return node.is_finished
        return self.has_ended(node.parent.plan.name)

    def around(self, group: str) -> str | None:
        """Return the group that a group is inside of; None for an outermost group."""
        parent = self._nodes[group].parent
        return None if parent is None else parent.plan.name

    def is_held(self, group: str) -> bool:
        """Whether a group is an element that waits until fewer of them run."""
        parent = self._nodes[group].parent
        return parent is not None and self._nodes[group] in parent.held

    def may_fail(self, group: str) -> bool:
        """Whether a group is an element, or in one, that may fail without an end of the run."""
        return self._nodes[group].may_fail

    def has_begun(self, group: str) -> bool:
        """Whether a group of groups is in an iteration."""
        return self._nodes[group].unfinished_inside > 0

    def to_come(self, running: Iterable[str]) -> list[str]:
        """Return the groups with iterations that have not begun, each as a text."""
        busy = set(running)
        words = []
        for name, node in self._nodes.items():
            most = node.plan.iterations
            is_queued = name in self.ready
            has_begun = name in busy or (node.inside and node.unfinished_inside > 0) or node.done
            if node.is_finished or node.is_looking:
                continue
            if not has_begun:
                words.append(name)
            elif is_queued or most is None or node.done + 1 < most:
                words.append(f"{name} (further iterations)")
        return words

    def start(self) -> list[Instruction]:
        """Begin with the first groups, or go on from where an earlier session ended."""
        self._unfinished_outermost = self._enter(self._outermost, ())
        return self._begin_startable(self._outermost)

    def iteration_done(self, group: str, has_failed: bool = False) -> list[Instruction]:
        """Record that the modules of a group have finished its current iteration.

        `has_failed` says whether copies of it were given up.
        """
        node = self._nodes[group]
        node.has_failed = node.has_failed or has_failed
        return self._done(node)

    def tuples_read(
        self, group: str, iteration: Iteration, tuples: Mapping[Any, Any]
    ) -> list[Instruction]:
        """Begin a group, or skip it, by the values of the tuples that its condition asks for.

        An `ExpressionError` if the condition has no value.
        """
        node, when = self._nodes[group], self._nodes[group].plan.when
        if when is None or node.is_judged or node.iteration != iteration:
            return []
        outcomes = {name: self._outcome(name) for name in when.groups}
        runs = when.judge(tuples, outcomes)
        node.is_judged = True
        if runs:
            return self._begin_iteration(node)
        return self._skip(node, when.text, when.seen(tuples, outcomes))

    def _skip(self, node: _Node, condition: str, values: Mapping[str, Any]) -> list[Instruction]:
        name, iteration = node.plan.name, node.iteration
        self._finished[name] = Finished(iteration, True)
        self._outcomes[name] = "skipped"
        node.done += 1
        note = GroupSkipped(
            group=name, iteration=iteration, condition=condition, values=dict(values)
        )
        return [note, *self._finish(node)]

    def _outcome(self, group: str) -> str:
        """Return how a group has ended; one inside a group that was skipped was, too.

        A group that the run leaves out counts as finished.
        """
        around = self._nodes.get(group)
        while around is not None and around.parent is not None:
            around = around.parent
            if self._outcomes.get(around.plan.name) == "skipped":
                return "skipped"
        return self._outcomes.get(group, "finished")

    def tag_looked(self, group: str, iteration: Iteration, is_there: bool) -> list[Instruction]:
        """Record whether a tuple with the `until` tag of a group exists."""
        node = self._nodes[group]
        if not node.is_looking or node.iteration != iteration:
            return []
        node.is_looking = False
        return self._end_iteration(node, is_there)

    # -- inside -------------------------------------------------------------------------------

    def _enter(self, nodes: Sequence[_Node], around: Iteration) -> int:
        """Set sibling groups to the start of a pass, or to where an earlier session ended.

        Returns
        -------
        int
            How many of them are not finished.
        """
        unfinished = 0
        for node in nodes:
            node.around = around
            node.done, node.is_finished = 0, False
            node.is_judged = node.has_failed = False
            node.failed_before = ""
            earlier = self._finished.get(node.plan.name)
            if earlier is None or earlier.iteration[:-1] != around:
                self._outcomes.pop(node.plan.name, None)
            else:
                node.has_failed = self._outcomes.get(node.plan.name) == "failed"
                if node.parent is not None and node.has_failed:
                    node.parent.has_failed = True
                node.done = earlier.iteration[-1] + 1
                most = node.plan.iterations
                # The number of iterations may be smaller in a changed workflow file.
                node.is_finished = earlier.is_last or (most is not None and node.done >= most)
            unfinished += not node.is_finished
            node.unmet = len(node.plan.depends)
        for node in nodes:
            if node.is_finished:
                for dependant in node.dependants:
                    dependant.unmet -= 1
        return unfinished

    def _begin_startable(self, nodes: Sequence[_Node]) -> list[Instruction]:
        # A list, before any begins: a group that finishes at once begins its own dependants.
        startable = [node for node in nodes if not node.unmet and not node.is_finished]
        around = startable[0].parent if startable else None
        if around is not None and around.plan.elements is not None:
            first = around.plan.elements.at_once
            around.held = deque(() if first is None else startable[first:])
            startable = startable[:first]
        return [order for node in startable for order in self._begin_iteration(node)]

    def _begin_iteration(self, node: _Node) -> list[Instruction]:
        if node.failed_before:
            question = f"outcome('{node.failed_before}')"
            return self._skip(node, f"{question} != 'failed'", {question: "failed"})
        when = node.plan.when
        if when is not None and not node.done and not node.is_judged:
            return [ReadTuples(node.plan.name, node.iteration, tuple(when.tags))]
        if not node.inside:
            self.ready.append(node.plan.name)
            return []
        iteration = node.iteration
        node.unfinished_inside = self._enter(node.inside, iteration)
        node.failed_inside = 0
        note = GroupStarted(group=node.plan.name, iteration=iteration, groups=node.plan.groups)
        if not node.unfinished_inside:  # the earlier session ended between this and the next
            return [note, *self._done(node)]
        return [note, *self._begin_startable(node.inside)]

    def _done(self, node: _Node) -> list[Instruction]:
        until = node.plan.until
        if until is None:
            return self._end_iteration(node, is_there=False)
        node.is_looking = True
        return [LookForTag(node.plan.name, node.iteration, until)]

    def _end_iteration(self, node: _Node, is_there: bool) -> list[Instruction]:
        name, iteration, most = node.plan.name, node.iteration, node.plan.iterations
        ended_by: EndedBy | None = None
        if is_there:
            ended_by = "until"
        elif most is not None and node.done + 1 >= most:
            ended_by = "iterations"
        self._finished[name] = Finished(iteration, ended_by is not None)
        outcome = "failed" if node.has_failed else "finished"
        if node.has_failed:
            self._outcomes[name] = outcome
        note = GroupFinished(group=name, iteration=iteration, ended_by=ended_by, outcome=outcome)
        node.done += 1
        if ended_by is None:
            return [note, *self._begin_iteration(node)]
        return [note, *self._finish(node)]

    def _finish(self, node: _Node) -> list[Instruction]:
        node.is_finished = True
        instructions: list[Instruction] = []
        failed = node.plan.name if node.has_failed and node.may_fail else node.failed_before
        for dependant in node.dependants:
            dependant.unmet -= 1
            dependant.failed_before = dependant.failed_before or failed
            if not dependant.unmet:
                instructions += self._begin_iteration(dependant)
        if node.parent is None:
            self._unfinished_outermost -= 1
        else:
            node.parent.has_failed = node.parent.has_failed or node.has_failed
            node.parent.unfinished_inside -= 1
            self._count_failure(node, node.parent)
            if node.parent.held and not self.excess:
                instructions += self._begin_iteration(node.parent.held.popleft())
            if not node.parent.unfinished_inside and not self.excess:
                instructions += self._done(node.parent)
        return instructions

    def _count_failure(self, node: _Node, around: _Node) -> None:
        elements = around.plan.elements
        if elements is None or elements.failures is None or not node.has_failed:
            return
        around.failed_inside += 1
        if around.failed_inside > elements.failures:
            self.excess = (
                f"{around.failed_inside} of the {len(elements.rows)} elements of "
                f"{around.plan.name} have failed, and max_failures is {elements.failures}"
            )


# -- a running iteration ---------------------------------------------------------------------------


def policy_for(module: ModulePlan, attempt: int) -> Policy:
    """Return the policy that applies when this attempt of a copy has failed."""
    return "retry" if attempt <= module.retries else module.on_failure


@dataclass(slots=True, eq=False)
class RunningCopy:
    """A copy that has been started, and how far it is.

    Attributes
    ----------
    plan : CopyPlan
    module : RunningModule
    working : set of int
        Ranks that have not reported the end of their part of the copy.
    returned : object
        What rank 0 of the copy has returned.
    program : ProgramEnd or None
        How its program has finished, if it is an executable.
    policy : str or None
        If the copy has failed: what follows once all ranks have left it.
    error : str
        Why the copy failed.
    leaving_with : sequence of RunningCopy
        The copies that all ranks have to leave first, this copy included.
    may_be_lost : bool
        Whether the module's other copies can go on if this copy's rank dies.
    is_lost : bool
        Whether its rank has died.
    is_settled : bool
        Whether it counts as done for its group: finished, or given up.
    """

    plan: CopyPlan
    module: RunningModule
    working: set[int]
    returned: Any = None
    program: ProgramEnd | None = None
    policy: Policy | None = None
    error: str = ""
    leaving_with: Sequence[RunningCopy] = ()
    may_be_lost: bool = False
    is_lost: bool = False
    is_settled: bool = False

    @property
    def is_left(self) -> bool:
        """Whether all ranks have left this copy and the copies that are left with it."""
        return not any(copy.working for copy in self.leaving_with)


@dataclass(slots=True, eq=False)
class RunningModule:
    """A module of a running group, with its copies.

    Attributes
    ----------
    plan : ModulePlan
    copies : list of RunningCopy
        By copy index.
    asked : set of int
        Ranks that wait for the communicator of all copies.
    has_comm : bool
        Whether that communicator has been made.
    """

    plan: ModulePlan
    copies: list[RunningCopy] = field(default_factory=list)
    asked: set[int] = field(default_factory=set)
    has_comm: bool = False

    def fail(self, failed: RunningCopy, policy: Policy, error: str) -> Sequence[RunningCopy]:
        """Mark a copy as failed, or all if they share a communicator; return the marked copies."""
        together = self.copies if self.has_comm else [failed]
        for copy in together:
            copy.policy, copy.error, copy.leaving_with = policy, error, together
            self.asked.difference_update(copy.plan.ranks)
        return together

    def restart(
        self, copies: Sequence[RunningCopy], serials: Iterator[int]
    ) -> tuple[CopyPlan, ...]:
        """Set copies that were left to a new attempt with new serials; return their plans."""
        attempt = max(copy.plan.attempt for copy in copies) + 1
        module_serial = next(serials) if self.has_comm else copies[0].plan.module_serial
        self.has_comm = False
        for copy in copies:
            copy.plan = copy.plan.replace(
                serial=next(serials), module_serial=module_serial, attempt=attempt
            )
            copy.working = set(copy.plan.ranks)
            copy.returned, copy.policy, copy.leaving_with = None, None, ()
            copy.program = None
            copy.is_settled = copy.may_be_lost = False
        return tuple(copy.plan for copy in copies)


@dataclass(slots=True, eq=False)
class RunningGroup:
    """A running iteration of a group of modules.

    Attributes
    ----------
    plan : GroupPlan
    iteration : tuple of int
    ranks : tuple of int
        All ranks that it has taken from the pool.
    modules : list of RunningModule
    unsettled : int
        Copies that are neither finished nor given up.
    has_failed : bool
        Whether copies were given up.
    """

    plan: GroupPlan
    iteration: Iteration
    ranks: tuple[int, ...]
    modules: list[RunningModule] = field(default_factory=list)
    unsettled: int = 0
    has_failed: bool = False

    def place(self, serials: Iterator[int]) -> list[RunningCopy]:
        """Put the copies of all modules on the ranks, in order."""
        first_serial, *_ = islice(serials, serials_of(self.plan))
        for placement in place_modules(self.plan, self.ranks, first_serial):
            module = RunningModule(placement.plan)
            for index in range(placement.plan.copies):
                copy = placement.copy(index, self.plan.name, self.iteration)
                module.copies.append(RunningCopy(copy, module, set(copy.ranks)))
            self.modules.append(module)
        placed = [copy for module in self.modules for copy in module.copies]
        self.unsettled = len(placed)
        return placed

    def fail(self, failed: RunningCopy, error: str) -> Sequence[RunningCopy]:
        """Give up all copies that have not finished; return them."""
        copies = [copy for module in self.modules for copy in module.copies]
        together = [copy for copy in copies if not copy.is_settled]
        for copy in together:
            copy.policy, copy.leaving_with = "continue", together
            copy.error = error if copy is failed else f"{failed.plan.name} failed: {error}"
            copy.module.asked.difference_update(copy.plan.ranks)
        return together

    def failed_tasks(self) -> list[TasksFailed]:
        """Return a record for each module with tasks that have failed, once all copies are done."""
        copies = [copy for module in self.modules for copy in module.copies]
        are_apart = all(copy.program is not None and copy.program.is_apart for copy in copies)
        records = []
        for module in self.modules:
            ends = [copy.program for copy in module.copies if copy.program is not None]
            if failed := sorted(task for end in ends for task in end.failed_tasks):
                record = TasksFailed(
                    group=self.plan.name,
                    iteration=self.iteration,
                    module=module.plan.module,
                    failed=failed,
                    total=module.plan.tasks or 0,
                    is_repeatable=are_apart,
                )
                records.append(record)
        return records
