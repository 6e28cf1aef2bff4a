"""How many MPI ranks a workflow needs.

The executive and the tuple servers are ranks of their own; all others are a pool, whose ranks go
from group to group. So a job needs its largest moment, not the sum of its groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from diel.frozen import Frozen
from diel.workflow.graph import heaviest_antichain

if TYPE_CHECKING:
    from diel.workflow.model import Group, Module, Workflow


class RankNeeds(Frozen):
    """How many ranks a workflow needs, the executive and the tuple servers included.

    Attributes
    ----------
    minimum : int
        The largest group of modules, with one copy for each "fill": with fewer it cannot run.
    moment : int
        The largest moment: with these, no group ever waits for ranks.
    total : int
        All groups together, each once.
    """

    minimum: int
    moment: int
    total: int


def rank_needs(workflow: Workflow, fill_copies: int, service_ranks: int) -> RankNeeds:
    """Count the ranks that a workflow needs.

    Parameters
    ----------
    workflow : Workflow
    fill_copies : int
        Copies that the "fill" modules of one group share, for `moment` and `total`; each gets at
        least one.
    service_ranks : int
        The executive and the tuple servers.
    """
    leaves = [group for group in workflow.groups if group.modules]
    least = [_ranks(workflow, group, fill_copies=0) for group in leaves]
    usual = {group.name: _ranks(workflow, group, fill_copies) for group in leaves}
    inside = {name for group in workflow.groups for name in group.groups}
    outermost = [group for group in workflow.groups if group.name not in inside]
    return RankNeeds(
        minimum=service_ranks + max(least, default=0),
        moment=service_ranks + _moment(workflow, outermost, usual),
        total=service_ranks + sum(usual.values()),
    )


def _moment(workflow: Workflow, beside: Sequence[Group], ranks: Mapping[str, int]) -> int:
    """Return the most ranks that groups beside each other, and those inside, use at a time.

    A group that others stand in weighs as much as the largest moment among them.
    """
    weights = {
        group.name: ranks[group.name]
        if group.modules
        else _moment(workflow, [workflow.group(name) for name in group.groups], ranks)
        for group in beside
    }
    return heaviest_antichain(weights, {group.name: group.depends for group in beside})[0]


def fill_group(group_modules: Sequence[Module], pool_ranks: int) -> dict[str, int]:
    """Decide how many copies each module of a group gets.

    Parameters
    ----------
    group_modules : sequence of Module
        In the group's order.
    pool_ranks : int
        Ranks that the group may use.

    Returns
    -------
    dict from module name to copies
        Every module of the group; those that are not "fill" as the file says.

    Raises
    ------
    ValueError
        If the pool is too small for one copy of each "fill" beside the other modules.

    Notes
    -----
    What the other modules leave is shared equally, in ranks. A fill whose copy is larger than its
    share still gets that one copy, and the others share the rest: so every pool that holds one
    copy of each is enough. Ranks that remain go to the first fill that can make a copy of them;
    fewer than its smallest copy stay unused.
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
