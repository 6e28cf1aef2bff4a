"""Which copies would run where, and at the same time, without running them.

The scheduler itself decides, told that every copy has finished. That all groups of a moment end
together is an assumption, since how long a module takes is not known. Each group is shown once,
however often it is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence

from diel.executive.events import EndRun, StartGroup
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
    """Copies of a module that run on some ranks at one moment.

    Attributes
    ----------
    moment : int
        Counted from 1.
    group, module : str
    copies, ranks : sequence of int
        Which copies, and which of those ranks run them.
    gpus : sequence of str
        Those that the copies see there.
    """

    moment: int
    group: str
    module: str
    copies: Sequence[int]
    ranks: Sequence[int]
    gpus: Sequence[str]


class SchedulePreview:
    """Who would run where, moment after moment.

    Parameters
    ----------
    workflow : Workflow
    plans : sequence of GroupPlan
        As `diel.executive.placement.planning.assign_ranks` returns them.
    assignment : RankAssignment
    """

    def __init__(
        self, workflow: Workflow, plans: Sequence[GroupPlan], assignment: RankAssignment
    ) -> None:
        self._modules = {module.name: module for module in workflow.modules}
        self._assignment = assignment
        self._moments = moments(plans, assignment)

    def rows(self, ranks: Collection[int]) -> Iterator[PreviewRow]:
        """Yield what runs on some ranks, those of a node, say."""
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
        """Return how many threads each module has on some ranks when they have most of them."""
        by_moment: dict[int, dict[str, int]] = {}
        for row in self.rows(ranks):
            threads = by_moment.setdefault(row.moment, {})
            count = len(row.ranks) * self._modules[row.module].threads
            threads[row.module] = threads.get(row.module, 0) + count
        return max(by_moment.values(), key=lambda threads: sum(threads.values()), default={})


def moments(plans: Sequence[GroupPlan], assignment: RankAssignment) -> list[list[CopyPlan]]:
    """Return which copies would run at the same time, one moment after another.

    Raises
    ------
    ValueError
        If a group could never start, which no valid workflow has.
    """
    once = [plan.replace(iterations=1, until=None) for plan in plans]
    is_moment_over = True

    def choose(plan: GroupPlan, free: Sequence[int]) -> GroupRanks | None:
        return assignment.choose(plan, free) if is_moment_over else None

    pool = [rank for node in assignment.nodes for rank in node.ranks]
    scheduler = Scheduler(once, pool, choose=choose)
    instructions = scheduler.start()
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
            instructions += scheduler.handle(end)
    return found


class NodePreview(Frozen):
    """What would run on each node.

    Attributes
    ----------
    nodes : sequence of sequences of tuple of str
        Of each node that was asked for its lines, in words, under `NODE_COLUMNS`.
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
    """Say which copies would run on which ranks of equal nodes.

    Parameters
    ----------
    workflow : Workflow
    plans : sequence of GroupPlan
        For that many ranks, as `diel.executive.placement.planning.plan_groups` returns them.
    ranks, per_node : int
    gpus_per_node : int, optional
        By default as few as are needed.
    shown_as : str
        The workflow file as the user named it.
    most_nodes : int, optional
        How many nodes are wanted, the first ones; by default all.

    Raises
    ------
    WorkflowError
        If there are too few GPUs.
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
    """Yield the lines of one node, under `NODE_COLUMNS`."""
    busy: set[int] = set()
    if 0 in node_ranks:
        yield "", "the executive", "", "0", "", ""
    servers = [rank for rank in server_ranks(workflow) if rank in node_ranks]
    if servers:
        who = "tuple servers" if len(servers) > 1 else "tuple server"
        yield "", who, "", spans(servers), "", ""
    for row in preview.rows(node_ranks):
        busy.update(row.ranks)
        yield (
            str(row.moment),
            f"{row.group}: {row.module}",
            spans(row.copies),
            spans(row.ranks),
            spans(map(int, row.gpus)),
            f"{len(row.ranks)} x {workflow.module(row.module).threads}",
        )
    pool = pool_ranks(workflow, node_ranks.stop)
    idle = [rank for rank in node_ranks if rank in pool and rank not in busy]
    if idle:
        yield "", "nobody", "", spans(idle), "", ""


def spans(numbers: Iterable[int]) -> str:
    """Write whole numbers shortly: ``0-3, 7``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
