"""How many copies each module has, which ranks serve tuples, and which ranks have GPUs.

All of it is fixed before the first group starts: by rank 0 for the nodes that its ranks are on, by
``diel check`` and ``diel batch`` for the nodes that the user describes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Final

from diel.errors import Problem, WorkflowError
from diel.executive.placement.assignment import RankAssignment, demand_of
from diel.executive.placement.gpus import Node, TooFewGpus, assign_gpus, required_ranks
from diel.executive.plans import GroupPlan, ModulePlan, Need, RunPlan
from diel.frozen import Frozen
from diel.loading.module_spec import ModuleSpec
from diel.run.records import Elements
from diel.workflow.graph import heaviest_antichain

if TYPE_CHECKING:
    from diel.workflow.load import Draft
    from diel.workflow.model import Group, Module, Workflow

_NODES_SHOWN: Final = 4
MOST_GPUS_OF_A_NODE: Final = 4096


def server_ranks(workflow: Workflow) -> tuple[int, ...]:
    """Return the ranks that serve tuples: the ranks that follow rank 0, the executive."""
    return tuple(range(1, _service_ranks(workflow)))


def spread_servers(servers: int, hosts: Sequence[str]) -> tuple[int, ...]:
    """Choose the ranks that serve tuples, on as many as possible of the hosts, given by rank.

    Rank 0, the executive, serves no tuples.
    """
    ranks_of: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts[1:], 1):
        ranks_of.setdefault(host, []).append(rank)
    by_turns = (rank for turn in zip_longest(*ranks_of.values()) for rank in turn)
    return tuple(sorted(islice((rank for rank in by_turns if rank is not None), servers)))


def pool_ranks(workflow: Workflow, world_size: int) -> range:
    """Return the ranks that run modules."""
    return range(_service_ranks(workflow), world_size)


def _service_ranks(workflow: Workflow) -> int:
    return 1 + workflow.tuple_space.servers  # the executive and the tuple servers


def plan_run(workflow: Workflow, draft: Draft, world_size: int) -> RunPlan:
    """Return the plan of a workflow, which was read from a draft, for a number of ranks.

    A WorkflowError if some group of modules needs more ranks than there are; it has both numbers.
    """
    settings, tuple_space = workflow.settings, workflow.tuple_space
    return RunPlan(
        file=str(workflow.file),
        ranks=world_size,
        name=workflow.name,
        private=settings.private,
        server_ranks=server_ranks(workflow),
        replicas=tuple_space.replicas,
        server_memory_bytes=tuple_space.memory_bytes,
        refuse_when_full=tuple_space.when_full == "raise",
        spill=tuple_space.spill,
        survives_loss=settings.on_rank_loss == "continue",
        heartbeat_timeout_s=settings.heartbeat_timeout_s,
        log_size_bytes=settings.log_size_bytes,
        returned_size_bytes=settings.returned_size_bytes,
        returned_total_bytes=settings.returned_total_bytes,
        restarts=settings.restarts,
        checkpoint_every_s=settings.checkpoint_every_s,
        signal_before_s=settings.signal_before_s,
        groups=tuple(plan_groups(workflow, world_size, draft.shown_as)),
        specs={
            module.name: ModuleSpec.of(module, draft.locations.get(module.name), workflow.expansion)
            for module in workflow.modules
        },
        needs=needs_of(workflow),
        resources=dict(settings.resources),
        boundaries=workflow.boundaries,
        parameters=workflow.values,
        given=draft.given,
    )


def plan_groups(workflow: Workflow, world_size: int, shown_as: str) -> list[GroupPlan]:
    """Return the plan of every group, with the number of copies for a number of ranks.

    These are all ranks, the executive and the servers included. A WorkflowError if some group of
    modules needs more than there are; it has both numbers, and names the file as the user did.
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
    is_skipped = group.name in workflow.surely_skipped
    modules = [] if is_skipped else [workflow.module(name) for name in group.modules]
    when = workflow.when_of(group)
    try:
        filled = fill_group(modules, available)
    except ValueError:
        return None
    filled = limit_fills(modules, filled, workflow.settings.resources)
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
                resources=dict(module.resources),
                tasks=module.tasks,
            )
            for module in modules
        ),
        depends=group.depends,
        groups=group.groups,
        iterations=group.most_iterations,
        until=group.until,
        when=None if when is None or when.decided is True else when,
        elements=_elements(workflow, group),
    )


def _elements(workflow: Workflow, group: Group) -> Elements | None:
    array = workflow.expansion.arrays.get(group.name)
    if array is None:
        return None
    # A part of the file may have some of them alone.
    elements = [each for each in array.elements if each.name in group.groups]
    return Elements(
        group.name,
        array.columns,
        [[*element.values.values()] for element in elements],
        group.at_once,
        group.failures_allowed_of(len(elements)),
    )


# -- how many ranks --------------------------------------------------------------------------------


class RankNeeds(Frozen):
    """How many ranks a workflow needs, the executive and the tuple servers included.

    Attributes
    ----------
    minimum : int
        For the largest group of modules, with one copy for each "fill"; with fewer ranks the
        workflow cannot run.
    moment : int
        For the groups that may run at the same time: with so many, no group waits for ranks.
    total : int
        For all groups together, each counted once.
    """

    minimum: int
    moment: int
    total: int


def needs(workflow: Workflow, cores: int) -> RankNeeds:
    """Count the ranks that a workflow needs.

    For `moment` and `total` the "fill" modules of one group share so many cores; each has at least
    one copy. A group that will be skipped needs none. Of elements that may all run at once, as many
    count for `moment` as those cores have room for, one at least.
    """
    service_ranks = _service_ranks(workflow)
    skipped = workflow.surely_skipped
    leaves = [group for group in workflow.groups if group.modules and group.name not in skipped]
    least = [_ranks(workflow, group, fill_copies=0) for group in leaves]
    usual = {group.name: _ranks(workflow, group, cores) for group in leaves}
    inside = {name for group in workflow.groups for name in group.groups}
    outermost = [group for group in workflow.groups if group.name not in inside]
    return RankNeeds(
        minimum=service_ranks + max(least, default=0),
        moment=service_ranks + _moment(workflow, outermost, usual, cores),
        total=service_ranks + sum(usual.values()),
    )


def _moment(
    workflow: Workflow, beside: Sequence[Group], ranks: Mapping[str, int], cores: int
) -> int:
    """Return the most ranks that sibling groups, with the groups inside them, use at a time.

    A group of groups weighs as much as the groups inside it can use at a time.
    """
    weights = {}
    for group in beside:
        inside = [workflow.group(name) for name in group.groups]
        if group.modules:
            weights[group.name] = ranks.get(group.name, 0)
        elif group.name in workflow.expansion.arrays:
            taken = sorted(_moment(workflow, [element], ranks, cores) for element in inside)
            at_once = group.at_once or max(1, cores // max(1, *taken))
            weights[group.name] = sum(taken[-at_once:])
        else:
            weights[group.name] = _moment(workflow, inside, ranks, cores)
    return heaviest_antichain(weights, {group.name: group.depends for group in beside})[0]


def fill_group(group_modules: Sequence[Module], pool_ranks: int) -> dict[str, int]:
    """Return how many copies each module of a group gets on a number of ranks, by name.

    Modules without "fill" have the copies of the file. The fills share the ranks that the other
    modules leave equally. A fill whose copy is larger than its share still gets that one copy, and
    the other fills share the rest: so every pool that holds one copy of each is enough. Ranks that
    remain go to the first fill whose copies fit into them; fewer ranks than the smallest copy has
    stay unused. A ValueError if the pool is too small for one copy of each "fill" beside the other
    modules.
    """
    needed = sum(module.processes * _fixed_copies(module, 1) for module in group_modules)
    if needed > pool_ranks:
        names = ", ".join(module.name for module in group_modules)
        raise ValueError(f"{names} together need {needed} ranks, {max(pool_ranks, 0)} available")
    copies = {module.name: _fixed_copies(module, 1) for module in group_modules}
    fills = [module for module in group_modules if module.copies == "fill"]
    available = pool_ranks - needed + sum(module.processes for module in fills)
    sharing = fills
    while sharing:
        share = available // len(sharing)
        large = [module for module in sharing if module.processes > share]
        if not large:
            break
        available -= sum(module.processes for module in large)
        sharing = [module for module in sharing if module.processes <= share]
    for module in sharing:
        copies[module.name] = share // module.processes
    remaining = pool_ranks - sum(module.processes * copies[module.name] for module in group_modules)
    for module in fills:
        more = remaining // module.processes
        copies[module.name] += more
        remaining -= more * module.processes
    return copies


def limit_fills(
    group_modules: Sequence[Module], copies: Mapping[str, int], resources: Mapping[str, int]
) -> dict[str, int]:
    """Return the copies of a group's modules, with no more of fills than resources allow.

    The last fills lose copies first; each keeps one.
    """
    limited = dict(copies)
    for name, there in resources.items():
        users = [module for module in group_modules if name in module.resources]
        taken = sum(limited[module.name] * module.resources[name] for module in users)
        for module in reversed(users):
            if module.copies == "fill" and taken > there:
                each = module.resources[name]
                fewer = min(limited[module.name] - 1, -(-(taken - there) // each))
                limited[module.name] -= fewer
                taken -= fewer * each
    return limited


def _ranks(workflow: Workflow, group: Group, fill_copies: int) -> int:
    modules = [workflow.module(name) for name in group.modules]
    fills = [module for module in modules if module.copies == "fill"]
    each, first = divmod(fill_copies, len(fills)) if fills else (0, 0)
    shared = {module.name: max(1, each + (index < first)) for index, module in enumerate(fills)}
    return sum(
        module.processes * _fixed_copies(module, shared.get(module.name, 1)) for module in modules
    )


def _fixed_copies(module: Module, fill: int) -> int:
    return fill if module.copies == "fill" else module.copies


# -- GPUs -----------------------------------------------------------------------------------------


def needs_of(workflow: Workflow) -> dict[str, Need]:
    """Return the requirements of each module on its ranks, by name."""
    return {
        module.name: Need(module.gpus, module.placement == "spread", module.copies == "fill")
        for module in workflow.modules
    }


def assign_ranks(
    plans: Sequence[GroupPlan],
    needs: Mapping[str, Need],
    nodes: Sequence[Node],
    shown_as: str,
    no_gpu_remedy: str = "give the nodes some, with --gpus-per-node G",
) -> tuple[list[GroupPlan], RankAssignment]:
    """Assign GPUs to ranks, and limit the copies of "fill" modules to the available GPUs.

    Returns the plans, from `plan_groups`, in which a "fill" with GPUs has no more copies than there
    are GPUs for, and the assignment. A WorkflowError if there are too few GPUs; it has both
    numbers, names the file as the user did, and says the remedy where no node has a GPU: the
    default is for simulated nodes.
    """
    plans = list(plans)
    if not any(need.gpus for need in needs.values()):
        return plans, RankAssignment(nodes, needs, [])
    fills = {name for name, need in needs.items() if need.is_fill and need.gpus > 0}
    plans = _limit_fills(plans, fills, lambda limited: _have_enough_gpus(limited, needs, nodes))
    try:
        return plans, RankAssignment(nodes, needs, plans)
    except TooFewGpus:
        problem = _too_few(plans, needs, nodes, no_gpu_remedy)
        raise WorkflowError(shown_as, [problem]) from None


def simulated_nodes(pool: Sequence[int], per_node: int, gpus_per_node: int) -> list[Node]:
    """Return imaginary nodes with equally many ranks, in order, and equally many GPUs.

    The ranks of a node include rank 0 and the tuple servers, which are not in the pool.
    """
    gpus = tuple(str(index) for index in range(gpus_per_node))
    ranks: dict[int, list[int]] = {}
    for rank in pool:
        ranks.setdefault(rank // per_node, []).append(rank)
    return [Node(f"node {index}", tuple(ranks[index]), gpus) for index in ranks]


def fewest_gpus_per_node(
    workflow: Workflow, plans: Sequence[GroupPlan], pool: Sequence[int], per_node: int
) -> int:
    """Return the smallest number of GPUs on each node with which all copies run as planned.

    A ValueError if no number is enough.
    """
    needs = needs_of(workflow)
    if not any(need.gpus for need in needs.values()):
        return 0

    def is_enough(gpus_per_node: int) -> bool:
        return _have_enough_gpus(plans, needs, simulated_nodes(pool, per_node, gpus_per_node))

    return _smallest(is_enough, 0, MOST_GPUS_OF_A_NODE)


def _have_enough_gpus(
    plans: Sequence[GroupPlan], needs: Mapping[str, Need], nodes: Sequence[Node]
) -> bool:
    try:
        assign_gpus(nodes, [demand_of(group, needs) for group in plans])
    except TooFewGpus:
        return False
    return True


def _limit_fills(
    plans: list[GroupPlan], fills: set[str], fits: Callable[[Sequence[GroupPlan]], bool]
) -> list[GroupPlan]:
    """Reduce the copies of fills until the plans fit, as little as possible, last groups first."""
    if not fills or fits(plans):
        return plans
    limits = {group.name: 1 for group in plans}
    for group in plans:
        largest = max(
            (module.copies for module in group.modules if module.module in fills), default=1
        )

        def is_too_much(limit: int, name: str = group.name) -> bool:
            return not fits(_limited(plans, fills, {**limits, name: limit}))

        if is_too_much(1):
            return plans  # no number of copies would do
        limits[group.name] = (
            _smallest(is_too_much, 1, largest) - 1 if is_too_much(largest) else largest
        )
    return _limited(plans, fills, limits)


def _limited(
    plans: Sequence[GroupPlan], fills: set[str], limits: dict[str, int]
) -> list[GroupPlan]:
    limited = []
    for plan in plans:
        modules = tuple(
            module.replace(copies=min(module.copies, limits[plan.name]))
            if module.module in fills
            else module
            for module in plan.modules
        )
        limited.append(plan.replace(modules=modules))
    return limited


def _smallest(is_enough: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest number from low to high that is enough, by bisection."""
    if not is_enough(high):
        raise ValueError("none is enough")
    while low < high:
        middle = (low + high) // 2
        if is_enough(middle):
            high = middle
        else:
            low = middle + 1
    return low


def _too_few(
    plans: Sequence[GroupPlan],
    needs: Mapping[str, Need],
    nodes: Sequence[Node],
    no_gpu_remedy: str,
) -> Problem:
    misfits = [group for group in plans if not _have_enough_gpus([group], needs, nodes)]
    sizes = required_ranks([demand_of(group, needs) for group in misfits or plans])
    needed = " and ".join(
        f"{count} rank{'s' if count > 1 else ''} with {size}"
        for size, count in sorted(Counter(sizes).items(), reverse=True)
    )
    total = sum(len(node.gpus) for node in nodes)
    if total:
        available = ", ".join(
            f"{len(node.gpus)} for {len(node.ranks)} ranks on {node.host}"
            for node in nodes[:_NODES_SHOWN]
        )
    else:
        available = f"none on {', '.join(node.host for node in nodes[:_NODES_SHOWN])}"
    if len(nodes) > _NODES_SHOWN:
        available += f", ... {total} on {len(nodes)} nodes"
    groups = ", ".join(repr(group.name) for group in misfits) or "the groups one after another"
    since = "" if misfits else ", since a rank keeps its GPUs for life"
    return Problem(
        "",
        f"too few GPUs for {groups}: {sum(sizes)} needed ({needed}){since}; available: {available}",
        "each rank's GPUs are on its own node, and every rank must see all GPUs of its node: "
        "with srun say --gpus-per-node, not --gpus-per-task"
        if total
        else no_gpu_remedy,
    )
