"""Which copies of a workflow would run where and at the same time, without a run.

The scheduler itself decides, with events that every copy has finished. It is an assumption that all
groups of a moment end together, since how long a module takes is not known. Each group is shown
once, however often it is repeated, and so is a group that may be skipped; one that will be is not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from diel.executive.events import EndRun, Instruction, ReadTuples, StartGroup, TuplesRead
from diel.executive.messages import RankFinished
from diel.executive.placement.assignment import GroupRanks, RankAssignment
from diel.executive.placement.planning import (
    assign_ranks,
    fewest_gpus_per_node,
    needs_of,
    pool_ranks,
    server_ranks,
    simulated_nodes,
)
from diel.executive.plans import CopyPlan, GroupPlan
from diel.executive.scheduler import Scheduler
from diel.frozen import Frozen
from diel.workflow.model import Workflow

NODE_COLUMNS = ("moment", "who", "copies", "ranks", "GPUs", "threads")


class PreviewRow(Frozen):
    """A row of the preview: copies of a module on given ranks at one moment.

    Attributes
    ----------
    moment : int
        Counted from 1.
    group, module : str
    copies, ranks : sequence of int
        Indices of the copies, and the ranks among the given ones that run them.
    gpus : sequence of str
        The GPUs that the copies see on these ranks.
    """

    moment: int
    group: str
    module: str
    copies: Sequence[int]
    ranks: Sequence[int]
    gpus: Sequence[str]


class SchedulePreview:
    """Which copies would run where, moment after moment, by plans and ranks of `assign_ranks`."""

    def __init__(
        self, workflow: Workflow, plans: Sequence[GroupPlan], assignment: RankAssignment
    ) -> None:
        self._modules = {module.name: module for module in workflow.modules}
        self._assignment = assignment
        self._moments = moments(plans, assignment, workflow.settings.resources)

    def rows(self, ranks: Collection[int]) -> Iterator[PreviewRow]:
        """Yield the rows for some ranks, such as the ranks of a node."""
        for number, moment in enumerate(self._moments, start=1):
            by_module: dict[tuple[str, str], list[CopyPlan]] = {}
            for copy in moment:
                if any(rank in ranks for rank in copy.ranks):
                    by_module.setdefault((copy.group, copy.module), []).append(copy)
            for (group, name), copies in by_module.items():
                used = sorted(rank for copy in copies for rank in copy.ranks if rank in ranks)
                count = math.ceil(self._modules[name].gpus)
                gpus = [gpu for rank in used for gpu in self._gpus_of(rank)[:count]]
                indices = [copy.copy_index for copy in copies]
                yield PreviewRow(number, group, name, indices, used, gpus)

    def _gpus_of(self, rank: int) -> tuple[str, ...]:
        return self._assignment.gpus_of(rank) or ()

    def most_threads(self, ranks: Collection[int]) -> dict[str, int]:
        """Return the threads of each module on some ranks, at the moment with most threads."""
        by_moment: dict[int, dict[str, int]] = {}
        for row in self.rows(ranks):
            threads = by_moment.setdefault(row.moment, {})
            count = len(row.ranks) * self._modules[row.module].threads
            threads[row.module] = threads.get(row.module, 0) + count
        return max(by_moment.values(), key=lambda threads: sum(threads.values()), default={})


def moments(
    plans: Sequence[GroupPlan],
    assignment: RankAssignment,
    resources: Mapping[str, int] = MappingProxyType({}),
) -> list[list[CopyPlan]]:
    """Return, moment after moment, the copies that would run at the same time.

    Groups share so many of each of the resources.
    A ValueError if a group could never start; no valid workflow has such a group.
    """
    once = [
        plan.replace(iterations=1, until=None, when=plan.when if _is_skipped(plan) else None)
        for plan in plans
    ]
    is_moment_over = True

    def choose(plan: GroupPlan, free: Sequence[int]) -> GroupRanks | None:
        return assignment.choose(plan, free) if is_moment_over else None

    pool = [rank for node in assignment.nodes for rank in node.ranks]
    scheduler = Scheduler(once, pool, choose=choose, resources=resources)
    instructions = _judged(scheduler, scheduler.start())
    found: list[list[CopyPlan]] = []
    while EndRun() not in instructions:
        started = [order for order in instructions if isinstance(order, StartGroup)]
        if not started:
            raise ValueError("groups that can never start")
        copies = [copy for group in started for copy in group.copies]
        found.append(copies)
        ends = [RankFinished(copy.serial, rank) for copy in copies for rank in copy.ranks]
        instructions = []
        for end in ends:
            is_moment_over = end is ends[-1]
            instructions += _judged(scheduler, scheduler.handle(end))
    return found


def _is_skipped(plan: GroupPlan) -> bool:
    return plan.when is not None and plan.when.decided is False


def _judged(scheduler: Scheduler, instructions: Sequence[Instruction]) -> list[Instruction]:
    """Return instructions, with those that follow for groups that will be skipped."""
    found = list(instructions)
    for order in found:  # which grows
        if isinstance(order, ReadTuples):
            found += scheduler.handle(TuplesRead(order.group, order.iteration, {}))
    return found


class NodePreview(Frozen):
    """The preview of what would run on each node.

    Attributes
    ----------
    nodes : sequence of sequences of tuple of str
        For each requested node, the lines of its table, with the columns `NODE_COLUMNS`.
    gpus_per_node : int
    preview : SchedulePreview
    """

    nodes: Sequence[Sequence[tuple[str, ...]]]
    gpus_per_node: int
    preview: SchedulePreview


def place_on_nodes(
    workflow: Workflow,
    plans: Sequence[GroupPlan],
    *,
    ranks: int,
    per_node: int,
    gpus_per_node: int | None = None,
    shown_as: str,
    most_nodes: int | None = None,
) -> NodePreview:
    """Return which copies would run on which ranks of equal nodes, by the plans of `plan_groups`.

    By default each node has the smallest number of GPUs that suffices. The first `most_nodes` are
    shown, by default all. A WorkflowError if there are too few GPUs; it names the file as the user
    did.
    """
    pool = pool_ranks(workflow, ranks)
    if gpus_per_node is None:
        gpus_per_node = fewest_gpus_per_node(workflow, plans, pool, per_node)
    nodes = simulated_nodes(pool, per_node, gpus_per_node)
    plans, assignment = assign_ranks(plans, needs_of(workflow), nodes, shown_as)
    preview = SchedulePreview(workflow, plans, assignment)
    firsts = range(0, ranks, per_node)[:most_nodes]
    spread = [range(first, min(ranks, first + per_node)) for first in firsts]
    lines = [list(_lines(workflow, node, preview)) for node in spread]
    return NodePreview(lines, gpus_per_node, preview)


def _lines(
    workflow: Workflow, node_ranks: range, preview: SchedulePreview
) -> Iterator[tuple[str, ...]]:
    """Yield the lines of a node's table, with the columns `NODE_COLUMNS`."""
    busy: set[int] = set()
    if 0 in node_ranks:
        yield "", "the executive", "", "0", "", ""
    servers = [rank for rank in server_ranks(workflow) if rank in node_ranks]
    if servers:
        label = "tuple servers" if len(servers) > 1 else "tuple server"
        yield "", label, "", spans(servers), "", ""
    for row in preview.rows(node_ranks):
        busy.update(row.ranks)
        module = workflow.module(row.module)
        yield (
            str(row.moment),
            f"{row.group}: {row.module}",
            spans(row.copies),
            spans(row.ranks),
            spans(map(int, row.gpus)),
            f"{len(row.ranks)} x {module.threads}"
            + (f", pinned: {module.pin}" if module.pin != "none" else ""),
        )
    pool = pool_ranks(workflow, node_ranks.stop)
    idle = [rank for rank in node_ranks if rank in pool and rank not in busy]
    if idle:
        yield "", "nobody", "", spans(idle), "", ""


def spans(numbers: Iterable[int]) -> str:
    """Return whole numbers as a text of ranges: ``0-3, 7``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
