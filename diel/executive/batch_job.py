"""What a workflow asks of a batch scheduler: nodes, ranks, cores, GPUs, time; pure.

`diel.executive.batch_scripts` writes it for each batch scheduler.
"""

from __future__ import annotations

import re
from typing import Final

from diel.errors import LaunchError
from diel.executive.placement.planning import fewest_gpus_per_node, needs, plan_groups, pool_ranks
from diel.frozen import Frozen
from diel.workflow.model import Workflow

# minutes, minutes:seconds, hours:minutes:seconds; days-hours, with minutes, with seconds
_TIME_LIMIT: Final = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,@+-]*")


class Job(Frozen):
    """The resources and settings that a batch job asks for.

    Attributes
    ----------
    name : str
    ranks : int
    nodes, per_node : int or None
        Nodes, and ranks on each of them at most; None where the scheduler may choose.
    threads : int
        Cores of each rank.
    gpus_per_node : int
    time_limit_s : int or None, seconds
    queue, account : str or None
        The queue, which Slurm calls a partition, and the account to charge; None for the
        site's defaults.
    """

    name: str
    ranks: int
    nodes: int | None
    per_node: int | None
    threads: int
    gpus_per_node: int
    time_limit_s: int | None = None
    queue: str | None = None
    account: str | None = None

    @property
    def ranks_by_node(self) -> tuple[int, ...]:
        """The number of ranks on each node; empty where the scheduler may choose."""
        if self.nodes is None or self.per_node is None:
            return ()
        full, rest = divmod(self.ranks, self.per_node)
        return (self.per_node,) * full + ((rest,) if rest else ())


def job_for(
    workflow: Workflow,
    shown_as: str,
    *,
    ranks: int | None = None,
    nodes: int | None = None,
    per_node: int | None = None,
    time_limit: str | None = None,
    queue: str | None = None,
    account: str | None = None,
) -> Job:
    """Return the batch job that a workflow needs.

    Parameters
    ----------
    workflow : Workflow
    shown_as : str
        The workflow file as the user named it.
    ranks, nodes, per_node : int, optional
        What the user has decided. The default of `ranks` is what the nodes hold, if `nodes` and
        `per_node` are given, and else what the file can use at once.
    time_limit : str, optional
        As Slurm writes it: minutes, H:M:S, D-H, ...
    queue, account : str, optional

    Raises
    ------
    LaunchError
        If the numbers contradict each other, a "fill" leaves the number of ranks open, or the
        scheduler would not understand a word.
    WorkflowError
        If these are too few ranks.
    """
    for option, name in (("queue", queue), ("account", account)):
        if name is not None and not _NAME.fullmatch(name):
            raise LaunchError(f"{name!r} is no {option}: letters, digits and _ - . , @ +")
    if ranks is None and nodes is not None and per_node is not None:
        ranks = nodes * per_node
    if ranks is None:
        fills = [module.name for module in workflow.modules if module.copies == "fill"]
        if fills:
            raise LaunchError(
                f'{", ".join(fills)} of {shown_as} has copies = "fill", as many as the ranks '
                "allow: say how many ranks (--ranks N), or how many nodes and how many ranks on "
                "each (--nodes N --per-node M)"
            )
        ranks = needs(workflow, cores=1).moment
    plans = plan_groups(workflow, ranks, shown_as)
    if nodes is None and any(module.gpus for module in workflow.modules):
        nodes = 1 if per_node is None else -(-ranks // per_node)
    if nodes is not None:
        least = -(-ranks // nodes)
        per_node = least if per_node is None else per_node
        if per_node < least:
            raise LaunchError(
                f"{nodes} nodes with {per_node} ranks each hold {nodes * per_node} ranks, "
                f"{ranks} are needed"
            )
    elif per_node is not None:
        nodes = -(-ranks // per_node)
    gpus_per_node = 0
    if per_node is not None:
        pool = pool_ranks(workflow, ranks)
        gpus_per_node = fewest_gpus_per_node(workflow, plans, pool, per_node)
    return Job(
        name=workflow.name,
        ranks=ranks,
        nodes=nodes,
        per_node=per_node,
        threads=workflow.max_threads,
        gpus_per_node=gpus_per_node,
        time_limit_s=None if time_limit is None else time_limit_s(time_limit),
        queue=queue,
        account=account,
    )


def time_limit_s(limit: str) -> int:
    """Return a time limit, as Slurm writes it, in seconds.

    Raises
    ------
    LaunchError
        If the time limit is invalid.
    """
    found = _TIME_LIMIT.fullmatch(limit)
    if found is None or not any(int(part or 0) for part in found.groups()):
        raise LaunchError(
            f"{limit!r} is no time limit: write minutes, H:M:S, D-H or D-H:M:S, as in 1:30:00"
        )
    days, *parts = found.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None:  # hours, minutes, seconds
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:  # minutes, seconds
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
