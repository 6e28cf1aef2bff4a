"""Who would sit where: what ``diel check --per-node`` prints, and what it complains about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from diel.cli.output import aligned
from diel.errors import LaunchError
from diel.executive.arrangement import arrange, fewest_gpus_per_node, simulated_nodes
from diel.executive.placement import pool_ranks, server_ranks
from diel.executive.plans import GroupPlan
from diel.executive.seating import Seating
from diel.executive.sittings import Sitting, moments, threads_on
from diel.workflow.model import Workflow


def print_seats(
    workflow: Workflow,
    plans: Sequence[GroupPlan],
    *,
    ranks: int,
    per_node: int,
    gpus_per_node: int | None,
    cores_per_node: int | None,
    shown_as: str,
) -> None:
    """Print a table of nodes, and who would run on which ranks of them.

    Parameters
    ----------
    workflow : Workflow
    plans : sequence of GroupPlan
        For this number of ranks.
    ranks, per_node : int
        In all, and on each node.
    gpus_per_node, cores_per_node : int or None
        What each node has; without a number of GPUs, as few as are needed.
    shown_as : str
        The workflow file as the user named it.

    Raises
    ------
    WorkflowError
        If there are too few GPUs.
    LaunchError
        If at some moment the ranks of a node have more threads than it has cores.
    """
    pool = pool_ranks(workflow, ranks)
    fewest = gpus_per_node is None
    if gpus_per_node is None:
        gpus_per_node = fewest_gpus_per_node(workflow, plans, pool, per_node)
    nodes = simulated_nodes(pool, per_node, gpus_per_node)
    plans, seating = arrange(workflow, plans, nodes, shown_as)
    told = moments(plans, seating)
    head = f"who sits where, with {per_node} ranks on each node"
    if any(module.gpus for module in workflow.modules):
        head += f" and {gpus_per_node} GPUs{', as few as are needed' if fewest else ''}"
    print(f"{head}:\n")
    rows: list[tuple[str, ...]] = [("node", "moment", "who", "copies", "ranks", "GPUs", "threads")]
    for node in range(-(-ranks // per_node)):
        here = range(node * per_node, min(ranks, (node + 1) * per_node))
        lines = list(_lines(workflow, here, told, seating))
        rows += [(f"node {node}" if not index else "", *one) for index, one in enumerate(lines)]
    print("\n".join(aligned(rows)))
    if cores_per_node is not None:
        _check_cores(workflow, told, ranks=ranks, per_node=per_node, cores=cores_per_node)


def _lines(
    workflow: Workflow, here: range, told: Sequence[Sequence[Sitting]], seating: Seating
) -> Iterator[tuple[str, ...]]:
    """Yield the lines of one node: moment, who, copies, ranks, GPUs, threads."""
    busy: set[int] = set()
    if 0 in here:
        yield "", "the executive", "", "0", "", ""
    servers = [rank for rank in server_ranks(workflow) if rank in here]
    if servers:
        who = "tuple servers" if len(servers) > 1 else "tuple server"
        yield "", who, "", spans(servers), "", ""
    by_module: dict[tuple[int, str, str], list[Sitting]] = {}
    for number, moment in enumerate(told, start=1):
        for sitting in moment:
            if any(rank in here for rank in sitting.ranks):
                key = (number, sitting.group, sitting.module)
                by_module.setdefault(key, []).append(sitting)
    for (number, group, name), sittings in by_module.items():
        module = workflow.module(name)
        ranks = sorted(rank for one in sittings for rank in one.ranks if rank in here)
        busy.update(ranks)
        gpus = [gpu for rank in ranks for gpu in (seating.gpus_of(rank) or ())[: module.gpus]]
        yield (
            str(number),
            f"{group}: {name}",
            spans(one.copy_index for one in sittings),
            spans(ranks),
            spans(map(int, gpus)),
            f"{len(ranks)} x {module.threads}",
        )
    idle = [rank for rank in here if rank in pool_ranks(workflow, here.stop) and rank not in busy]
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


def _check_cores(
    workflow: Workflow,
    told: Sequence[Sequence[Sitting]],
    *,
    ranks: int,
    per_node: int,
    cores: int,
) -> None:
    # The executive and the servers sleep while they wait: they need no cores of their own.
    threads = {module.name: module.threads for module in workflow.modules}
    for node in range(-(-ranks // per_node)):
        here = range(node * per_node, min(ranks, (node + 1) * per_node))
        busiest = max((threads_on(here, moment, threads) for moment in told), key=_sum, default={})
        if _sum(busiest) > cores:
            who = " and ".join(f"{count} of {name}" for name, count in busiest.items())
            raise LaunchError(
                f"node {node} has {cores} cores, and at one moment its ranks have "
                f"{_sum(busiest)} threads: {who}; put fewer ranks on a node, or give them fewer "
                "threads"
            )


def _sum(threads: dict[str, int]) -> int:
    return sum(threads.values())
