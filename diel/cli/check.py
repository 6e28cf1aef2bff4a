"""``diel check``: the verdict on a workflow file, and the ranks it needs."""

from __future__ import annotations

import argparse

from diel.cli.seats import print_seats
from diel.errors import LaunchError
from diel.executive.launch import available_cores
from diel.executive.placement import needs, plan_groups
from diel.loading.environment import set_thread_environment
from diel.loading.options import finish
from diel.workflow.load import read_draft
from diel.workflow.model import Module


def check(options: argparse.Namespace) -> int:
    """Print the verdict; return the exit code.

    Raises
    ------
    WorkflowError
        With every problem of the file.
    LaunchError
        If the threads of some ranks would not find a core each.
    """
    file, ranks = options.file, options.ranks
    if options.per_node is None and (options.gpus_per_node or options.cores_per_node):
        raise LaunchError("--gpus-per-node and --cores-per-node go with --per-node M")
    set_thread_environment(1)
    workflow = finish(read_draft(file))
    cores = available_cores()
    plans = plan_groups(workflow, ranks, file) if ranks is not None else []
    need = needs(workflow, cores)
    on_cores = f", on {cores} cores" if _fills(workflow.modules) else ""
    print(
        f"{file}: fine; {_count(workflow.modules, 'module')}, {_count(workflow.groups, 'group')}\n"
        f"ranks, 1 for the executive and {workflow.tuple_space.servers} for tuples included:\n"
        f"  {need.minimum:5d}  the largest group: the least that it runs on\n"
        f"  {need.moment:5d}  the largest moment: what diel run takes{on_cores}\n"
        f"  {need.total:5d}  in sum"
    )
    for plan in plans:
        if not plan.modules:
            continue
        copies = ", ".join(f"{module.module} x {module.copies}" for module in plan.modules)
        print(f"on {ranks} ranks, group {plan.name}: {copies}")
    if options.per_node is not None:
        if ranks is None:
            ranks = need.moment
            plans = plan_groups(workflow, ranks, file)
        print()
        print_seats(
            workflow,
            plans,
            ranks=ranks,
            per_node=options.per_node,
            gpus_per_node=options.gpus_per_node,
            cores_per_node=options.cores_per_node,
            shown_as=file,
        )
    return 0


def _fills(modules: tuple[Module, ...]) -> bool:
    return any(module.copies == "fill" for module in modules)


def _count(things: tuple[object, ...], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"
