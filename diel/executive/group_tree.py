"""Which iteration of which group comes next: groups inside groups, ``depends`` and ``until``.

A group of modules is a leaf: it waits in `GroupTree.ready` for its ranks and is done when the
scheduler says so. A group of groups is done with an iteration when all groups inside are finished.
A group stands in one place and runs one iteration at a time, so all that is to be known of it is
how many iterations of the present pass are behind it: a pass is an iteration of the group around.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from diel.executive.events import EndedBy, Instruction, LookForTag
from diel.executive.plans import GroupPlan, Iteration
from diel.run.records import Finished, GroupFinished, GroupStarted


@dataclass(slots=True)
class _Node:
    plan: GroupPlan
    parent: _Node | None = None
    inside: list[_Node] = field(default_factory=list)
    dependants: list[_Node] = field(default_factory=list)
    around: Iteration = ()  # the iteration of the parent
    done: int = 0  # iterations of this pass that are finished
    unmet: int = 0  # groups to wait for
    unfinished_inside: int = 0
    is_finished: bool = False
    is_looking: bool = False

    @property
    def iteration(self) -> Iteration:
        return (*self.around, self.done)


class GroupTree:
    """All groups of a workflow, and how far each is.

    Parameters
    ----------
    groups : sequence of GroupPlan
        In the order of the workflow file, which decides among groups that become ready together.
    finished : mapping of str to Finished, optional
        What an earlier run has behind it. Iterations that it had begun are repeated.

    Attributes
    ----------
    ready : deque of str
        Groups of modules whose next iteration waits for ranks, in the order in which they became
        ready.

    Raises
    ------
    ValueError
        If a group could never start: it depends on itself or is inside itself, directly or not,
        or on a group that does not stand beside it.
    """

    def __init__(
        self, groups: Sequence[GroupPlan], finished: Mapping[str, Finished] | None = None
    ) -> None:
        self._nodes = {plan.name: _Node(plan) for plan in groups}
        self._finished = dict(finished or {})
        self.ready: deque[str] = deque()
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
        """Walk through one pass of everything; whatever is not reached could never start."""
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
        """Whether every group is."""
        return self._unfinished_outermost == 0

    @property
    def finished(self) -> dict[str, Finished]:
        """What is behind: enough to go on from there."""
        return dict(self._finished)

    def iteration_of(self, group: str) -> Iteration:
        """Return the iteration that a group is in, or that it would begin with."""
        return self._nodes[group].iteration

    def unmet(self, group: str) -> list[str]:
        """Return the groups beside it that a group depends on and that have not finished."""
        return [
            name for name in self._nodes[group].plan.depends if not self._nodes[name].is_finished
        ]

    def around(self, group: str) -> str | None:
        """Return the group that a group is inside of, if there is one."""
        parent = self._nodes[group].parent
        return None if parent is None else parent.plan.name

    def has_begun(self, group: str) -> bool:
        """Whether a group of groups is in an iteration."""
        return self._nodes[group].unfinished_inside > 0

    def to_come(self, running: Iterable[str]) -> list[str]:
        """Say in words which groups have iterations that have not begun."""
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
        """Begin, or go on where an earlier run has ended."""
        self._unfinished_outermost = self._enter(self._outermost, ())
        return self._begin_startable(self._outermost)

    def iteration_done(self, group: str) -> list[Instruction]:
        """Record that the modules of a group are done with its iteration."""
        return self._done(self._nodes[group])

    def tag_looked(self, group: str, iteration: Iteration, is_there: bool) -> list[Instruction]:
        """Record whether the tag that ends a group is there."""
        node = self._nodes[group]
        if not node.is_looking or node.iteration != iteration:
            return []
        node.is_looking = False
        return self._end_iteration(node, is_there)

    # -- inside -------------------------------------------------------------------------------

    def _enter(self, nodes: Sequence[_Node], around: Iteration) -> int:
        """Set groups beside each other to the start of a pass, or to where an earlier run was.

        Returns
        -------
        int
            How many of them are not finished.
        """
        unfinished = 0
        for node in nodes:
            node.around = around
            node.done, node.is_finished = 0, False
            behind = self._finished.get(node.plan.name)
            if behind is not None and behind.iteration[:-1] == around:
                node.done = behind.iteration[-1] + 1
                most = node.plan.iterations
                # The second is for a workflow file that was changed in between.
                node.is_finished = behind.is_last or (most is not None and node.done >= most)
            unfinished += not node.is_finished
            node.unmet = len(node.plan.depends)
        for node in nodes:
            if node.is_finished:
                for dependant in node.dependants:
                    dependant.unmet -= 1
        return unfinished

    def _begin_startable(self, nodes: Sequence[_Node]) -> list[Instruction]:
        # Chosen first: where a group turns out to be finished, its dependants follow from that.
        startable = [node for node in nodes if not node.unmet and not node.is_finished]
        return [order for node in startable for order in self._begin_iteration(node)]

    def _begin_iteration(self, node: _Node) -> list[Instruction]:
        if not node.inside:
            self.ready.append(node.plan.name)
            return []
        iteration = node.iteration
        node.unfinished_inside = self._enter(node.inside, iteration)
        note = GroupStarted(group=node.plan.name, iteration=iteration, groups=node.plan.groups)
        if not node.unfinished_inside:  # an earlier run ended just here
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
        note = GroupFinished(group=name, iteration=iteration, ended_by=ended_by)
        node.done += 1
        if ended_by is None:
            return [note, *self._begin_iteration(node)]
        return [note, *self._finish(node)]

    def _finish(self, node: _Node) -> list[Instruction]:
        node.is_finished = True
        instructions: list[Instruction] = []
        for dependant in node.dependants:
            dependant.unmet -= 1
            if not dependant.unmet:
                instructions += self._begin_iteration(dependant)
        if node.parent is None:
            self._unfinished_outermost -= 1
        else:
            node.parent.unfinished_inside -= 1
            if not node.parent.unfinished_inside:
                instructions += self._done(node.parent)
        return instructions
