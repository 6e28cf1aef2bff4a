"""How many copies of each module, and which ranks serve whom: fixed before a run starts."""

from __future__ import annotations

from diel.errors import Problem, WorkflowError
from diel.executive.plans import GroupPlan, ModulePlan
from diel.workflow.model import Group, Workflow
from diel.workflow.size import RankNeeds, fill_group, rank_needs


def server_ranks(workflow: Workflow) -> tuple[int, ...]:
    """Return the ranks that serve tuples: those behind the executive."""
    return tuple(range(1, _service_ranks(workflow)))


def pool_ranks(workflow: Workflow, world_size: int) -> range:
    """Return the ranks that run modules."""
    return range(_service_ranks(workflow), world_size)


def needs(workflow: Workflow, cores: int) -> RankNeeds:
    """Return the numbers of ranks that a workflow can use, with one copy of a fill a core."""
    return rank_needs(workflow, fill_copies=cores, service_ranks=_service_ranks(workflow))


def _service_ranks(workflow: Workflow) -> int:
    return 1 + workflow.tuple_space.servers  # the executive and the tuple servers


def plan_groups(workflow: Workflow, world_size: int, shown_as: str) -> list[GroupPlan]:
    """Fix the copies of every group for a number of ranks.

    Parameters
    ----------
    workflow : Workflow
    world_size : int
        All ranks, the executive and the servers included.
    shown_as : str
        The workflow file as the user named it.

    Raises
    ------
    WorkflowError
        If some group of modules needs more ranks than there are; says needed and available.
    """
    available = len(pool_ranks(workflow, world_size))
    plans = [_plan_group(workflow, group, available) for group in workflow.groups]
    fitting = [plan for plan in plans if plan is not None and plan.ranks <= available]
    if len(fitting) == len(plans):
        return fitting
    fits = {plan.name for plan in fitting}
    misfits = ", ".join(repr(group.name) for group in workflow.groups if group.name not in fits)
    least = needs(workflow, cores=1).minimum
    problem = Problem(
        "",
        f"too few ranks for {misfits}: {least} needed, {world_size} available",
        f"start it with at least -n {least}",
    )
    raise WorkflowError(shown_as, [problem])


def _plan_group(workflow: Workflow, group: Group, available: int) -> GroupPlan | None:
    modules = [workflow.module(name) for name in group.modules]
    try:
        filled = fill_group(modules, available)
    except ValueError:
        return None
    return GroupPlan(
        name=group.name,
        modules=tuple(
            ModulePlan(
                module.name,
                filled[module.name] if module.copies == "fill" else module.copies,
                module.processes,
                on_failure=module.on_failure,
                retries=module.retries,
                time_limit_s=module.time_limit_s,
            )
            for module in modules
        ),
        depends=group.depends,
        groups=group.groups,
        iterations=group.most_iterations,
        until=group.until,
    )
