"""Why each group of a run does not run yet, and which copies or groups could end each wait.

Pure, from the journal and the status of the run. The reasons are the scheduler's own: `GroupTree`
says which groups are ready, and `find_ranks` what the first of them lacks. Groups are queued in the
order in which they became ready; groups that one event made ready have equal times in the journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Literal, TypeAlias

from diel.executive.groups import GroupTree
from diel.executive.plans import GroupPlan, planned
from diel.executive.resources import SharedResources
from diel.executive.scheduler import Obstacle, find_ranks
from diel.frozen import Frozen
from diel.run.history import ENDS
from diel.run.records import DeadlockFound, Finished, ModuleFailed
from diel.run.status import StatusView, WaitView
from diel.run.view import GroupView, RunView
from diel.text import as_toml, format_duration

Situation: TypeAlias = Literal[
    "running", "starting", "queued", "waiting", "finished", "skipped", "stopped", "never started"
]
_SHOWN: Final = 6
_ENDED: Final[Mapping[str, Situation]] = {"finished": "finished", "skipped": "skipped"}


class GroupExplanation(Frozen):
    """The situation of a group, and why it does not run.

    Attributes
    ----------
    group : str
    situation : str
        ``starting``: nothing is missing; ``queued``: it waits for ranks, or for a module that runs
        in another group; ``waiting``: it waits for other groups.
    text : str
        The situation and its reason in words.
    wanted : int
        Ranks that an iteration of its own modules takes.
    """

    group: str
    situation: Situation
    text: str
    wanted: int


class WaitExplanation(Frozen):
    """A rank that waits: for what, since when, and which copies or groups could end the wait.

    Attributes
    ----------
    rank : int
    copy : str
    what : str
        The call, with its tag.
    could_end_it : tuple of str
        Copies that do not wait, then groups that are to come; empty if there are none.
    text : str
        All of this in a sentence.
    """

    rank: int
    copy: str
    what: str
    could_end_it: tuple[str, ...]
    text: str


class RunExplanation(Frozen):
    """The situation of all groups and waits of a run, and why it has ended.

    Attributes
    ----------
    groups : tuple of GroupExplanation
        In the order of the file.
    waits : tuple of WaitExplanation
        By rank.
    ended : str
        Why the run has ended; empty if it goes on.
    """

    groups: tuple[GroupExplanation, ...]
    waits: tuple[WaitExplanation, ...]
    ended: str

    def lines(self) -> list[str]:
        """Return the explanation as lines of text: the end, the groups, the waits."""
        width = max((len(each.group) for each in self.groups), default=0)
        found = [f"{each.group:{width}}  {each.text}" for each in self.groups]
        found += [each.text for each in self.waits]
        return [*self.ended.splitlines(), *found]


def explain(view: RunView, status: StatusView, now_s: float) -> RunExplanation:
    """Return why each group does not run, and which copies or groups could end each rank's wait.

    For a run that has not begun the result is empty. A ValueError if the groups of a damaged
    journal could never start.
    """
    if view.started is None:
        return RunExplanation((), (), view.refusal)
    queue = RankQueue(view)
    groups = tuple(queue.explain(name) for name in _of_interest(view))
    if view.exit_code is not None:
        return RunExplanation(groups, (), _why_ended(view))
    waits = tuple(_waits(view, status, queue, now_s))
    return RunExplanation(groups, waits, "")


def _of_interest(view: RunView) -> Iterator[str]:
    """Yield the groups; of elements only the first that have not ended, with what is in them."""
    shown = {
        element
        for array in view.arrays.values()
        for element in islice(
            (name for name in array.rows if view.groups[name].state in ("waiting", "running")),
            _SHOWN,
        )
    }
    for name in view.groups:
        element = view.element_of(name)
        if element is None or element.name in shown:
            yield name


class RankQueue:
    """The queue of groups that wait for ranks, and the situation of all other groups of a run.

    Attributes
    ----------
    ready : list of str
        Groups whose next iteration waits for ranks.
    free : list of int
        Ranks of the pool that no group holds.
    """

    def __init__(self, view: RunView) -> None:
        assert view.started is not None
        self._view = view
        plans = planned(view.started)
        self._plans = {plan.name: plan for plan in plans}
        self._tree = GroupTree(plans, _finished_so_far(view, self._plans))
        self._tree.start()
        held = {rank for group in view.groups.values() for rank in group.ranks}
        held.update(view.started.servers)
        self.free = [rank for rank in range(1, view.ranks) if rank not in held]
        self._busy = {
            module.module: group.name
            for group in view.groups.values()
            if group.ranks
            for module in self._plans[group.name].modules
        }
        self._resources = SharedResources(
            view.started.resources,
            [self._plans[group.name] for group in view.groups.values() if group.ranks],
        )
        ready = [name for name in self._tree.ready if not view.groups[name].ranks]
        self.ready = sorted(ready, key=self._ready_since)  # stable: equal times in tree order
        self._taken: dict[str, tuple[int, ...]] = {}
        self._obstacle = self._take_ranks()

    def _take_ranks(self) -> tuple[str, Obstacle] | None:
        """Assign ranks to ready groups in order; return the first that cannot start, and why."""
        free, busy = self.free, set(self._busy)
        for name in self.ready:
            plan = self._plans[name]
            found = find_ranks(plan, free, busy, self._resources)
            if isinstance(found, Obstacle):
                return name, found
            self._taken[name] = found
            free = [rank for rank in free if rank not in found]
            busy.update(module.module for module in plan.modules)
            self._resources.take(plan)
        return None

    def _ready_since(self, name: str) -> tuple[float, bool]:
        """Return when a group became ready, and whether its condition had to be judged first."""
        groups = self._view.groups
        around = self._tree.around(name)
        times = [groups[other].finished_s for other in self._plans[name].depends]
        times += [groups[name].finished_s, self._view.first_group_s]
        if around is not None:
            times.append(groups[around].started_s)
        return max(times), bool(groups[name].when)

    @property
    def to_come(self) -> list[str]:
        """Groups of modules that do not run now, but still have an iteration to run."""
        return [
            plan.name
            for plan in self._plans.values()
            if plan.modules and self._situation(plan.name) in ("starting", "queued", "waiting")
        ]

    def comes_after(self, name: str, other: str) -> bool:
        """Whether group `name` cannot begin before group `other` has finished."""
        ends, known = {*self._enclosing(other)}, {*self._enclosing(name)}
        left = [*known]
        while left:
            for earlier in self._plans[left.pop()].depends:
                if earlier in ends:
                    return True
                if earlier not in known:
                    known.add(earlier)
                    left.append(earlier)
        return False

    def _enclosing(self, name: str) -> Iterator[str]:
        """Yield a group and all groups that it is inside of, innermost first."""
        around: str | None = name
        while around is not None:
            yield around
            around = self._tree.around(around)

    def explain(self, name: str) -> GroupExplanation:
        """Return the situation of a group, and why it does not run."""
        plan, situation = self._plans[name], self._situation(name)
        text: str = situation
        if situation == "waiting":
            text = self._waiting(plan)
            if when := self._view.groups[name].when:
                text += f"; may be skipped: when = {as_toml(when)}"
        elif name in self.ready and situation in ("starting", "queued"):
            text = self._queued(name)
        elif situation == "running":
            text = _running(self._view.groups[name], plan)
            if name in self._view.arrays:
                text = f"runs, {self._view.arrays[name]}"
        elif situation == "skipped" and (why := self._view.groups[name].why_skipped):
            text = f"skipped: {why}"
        return GroupExplanation(name, situation, text, plan.ranks)

    def _situation(self, name: str) -> Situation:
        group = self._view.groups[name]
        if self._view.exit_code is not None:
            if group.state == "waiting":
                return "never started"
            return _ENDED.get(group.state, "stopped")
        if group.ranks or (self._plans[name].groups and self._tree.has_begun(name)):
            return "running"
        if name in self.ready:
            return "starting" if name in self._taken else "queued"
        if self._is_to_come(name):
            return "waiting"
        return "skipped" if group.state == "skipped" else "finished"

    def _is_to_come(self, name: str) -> bool:
        """Whether a group that is neither running nor ready has to wait for other groups."""
        if self._tree.is_held(name):
            return True
        if self._tree.has_ended(name):
            return False
        if self._tree.unmet(name):
            return True
        around = self._tree.around(name)
        if around is None or self._tree.has_begun(around):
            return False
        return self._is_to_come(around)

    def _queued(self, name: str) -> str:
        if name in self._taken:
            return f"starts now, on {_ranks(self._taken[name])}"
        assert self._obstacle is not None
        first, obstacle = self._obstacle
        if first != name:
            return f"is ready, behind {first} in the queue for ranks: none overtakes another"
        if obstacle.busy_modules:
            busy = " and ".join(
                f"{module}, which runs in {self._busy.get(module, 'another group')}"
                for module in obstacle.busy_modules
            )
            return f"is ready, and waits for {busy}: a module runs in one group at a time"
        if obstacle.lacking:
            wants = ", ".join(
                f"{amount} {resource}"
                for resource, amount in self._plans[name].resources.items()
                if resource in obstacle.lacking
            )
            in_use = self._resources.describe(obstacle.lacking)
            return f"is ready, and waits for {in_use}; it takes {wants}"
        held_by = [
            f"{group.name} has {len(group.ranks)}"
            for group in self._view.groups.values()
            if group.ranks
        ]
        free = f"it wants {obstacle.wanted}, {obstacle.free} are free"
        held = f"; {', '.join(held_by)}" if held_by else ""
        return f"is ready, and waits for ranks: {free}{held}"

    def _waiting(self, plan: GroupPlan) -> str:
        if waits_for := self._tree.unmet(plan.name):
            return "waits for " + ", ".join(self._describe_dependency(name) for name in waits_for)
        around = self._tree.around(plan.name)
        if self._tree.is_held(plan.name) and around is not None:
            elements = self._plans[around].elements
            at_once = elements and elements.at_once
            return f"waits for its turn: {at_once} elements of {around} run at the same time"
        return f"waits for {self._tree.around(plan.name)} to begin, which it is inside of"

    def _describe_dependency(self, name: str) -> str:
        """Describe in words how far a group is that another group waits for."""
        situation = self._situation(name)
        if situation != "running":
            return f"{name} ({situation})"
        group = self._view.groups[name]
        how_far = _iteration(group, self._plans[name])
        left = f"{group.copies_finished} of {group.copies} copies have ended" if group.ranks else ""
        return f"{name} (running{''.join(f', {part}' for part in (how_far, left) if part)})"


def _finished_so_far(view: RunView, plans: Mapping[str, GroupPlan]) -> dict[str, Finished]:
    """Return which iterations have finished by now, as `RunStarted.finished` of a resumed run."""
    finished = dict(view.started.finished) if view.started is not None else {}
    for name, group in view.groups.items():
        if not group.iteration:
            continue
        *around, own = group.iteration
        if group.state in _ENDED:
            finished[name] = Finished(group.iteration, True)
        elif group.started_s and not group.ranks and not plans[name].groups:
            finished[name] = Finished(group.iteration, False)  # it waits for ranks again
        elif group.started_s and own > 0:
            finished[name] = Finished((*around, own - 1), False)
    return finished


def _running(group: GroupView, plan: GroupPlan) -> str:
    if plan.groups:
        parts = ["runs", f"the groups inside are {', '.join(plan.groups[:_SHOWN])}"]
    else:
        left = group.copies - group.copies_finished
        parts = [f"runs on {_ranks(group.ranks)}", f"{left} of {group.copies} copies go on"]
    if iteration := _iteration(group, plan):
        parts.insert(1, iteration)
    return ", ".join(parts)


def _iteration(group: GroupView, plan: GroupPlan) -> str:
    if not group.iteration or (not group.repeats and plan.until is None):
        return ""
    text = group.describe_iteration(group.iteration[-1:])
    return text if plan.until is None else f"{text}, until a tuple {plan.until} is there"


def _ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:_SHOWN]))
    more = "" if len(ranks) <= _SHOWN else f" and {len(ranks) - _SHOWN} more"
    return f"rank{'s' if len(ranks) > 1 else ''} {named}{more}"


def _waits(
    view: RunView, status: StatusView, queue: RankQueue, now_s: float
) -> list[WaitExplanation]:
    ranks = {rank: copy for copy in view.running.values() for rank in copy.ranks}
    waiting = {wait.rank: wait for wait in status.waiting if wait.rank in ranks}
    working = [
        name
        for name, copy in view.running.items()
        if any(rank not in waiting for rank in copy.ranks)
    ]
    to_come = queue.to_come
    later = {
        group: [f"group {name}" for name in to_come if not queue.comes_after(name, group)]
        for group in {ranks[rank].group for rank in waiting}
    }
    return [
        _wait(
            wait,
            (*(name for name in working if name != wait.copy), *later[ranks[rank].group]),
            now_s,
        )
        for rank, wait in sorted(waiting.items())
    ]


def _wait(wait: WaitView, could_end_it: tuple[str, ...], now_s: float) -> WaitExplanation:
    waited_s = max(0.0, now_s - wait.since_s)
    text = f"rank {wait.rank}: {wait.copy} has waited {format_duration(waited_s)} in {wait.what}; "
    if could_end_it:
        named = ", ".join(could_end_it[:_SHOWN])
        more = len(could_end_it) - _SHOWN
        text += f"those that go on: {named}{f' and {more} more' if more > 0 else ''}"
    elif wait.has_timeout:
        text += "it ends by itself in time, though nobody else computes or is to come"
    else:
        text += (
            "nobody else computes or is to come: if no wait has a timeout, this is a deadlock, and "
            "rank 0 will end the run"
        )
    return WaitExplanation(wait.rank, wait.copy, wait.what, could_end_it, text)


def _why_ended(view: RunView) -> str:
    failure = view.failure
    if isinstance(failure, DeadlockFound):
        head = "the run was ended, since everybody waited for what nobody would do:"
        return f"{head}\n{failure.explanation}"
    if isinstance(failure, ModuleFailed):
        return f"the run was ended, since {failure.name} failed: {failure.error}"
    if failure is not None:
        return f"the run was ended: {failure.explanation}"
    if view.refusal:
        return f"the run was refused: {view.refusal}"
    if view.exit_code == 0:
        return "the run has finished"
    if ENDS.get(view.exit_code or 0) == "stopped":
        return "the run was stopped"
    return f"the run has ended with exit code {view.exit_code}; its logs may say why"
