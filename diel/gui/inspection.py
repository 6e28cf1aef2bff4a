"""What is known of a workflow file while it is edited, beyond its text: pure, but for imports.

Files that define ``Options`` are imported, as `diel check` does, and nothing else of a module is.
Beside ``preview_sweep`` these names are looked for in such a file::

    describe_network(options, folder, point)     rows: name, shape, parameters
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel

from diel.errors import DielError, Problem, WorkflowError
from diel.executive.launch import available_cores
from diel.executive.placement.planning import RankNeeds, needs, plan_groups
from diel.executive.placement.preview import NODE_COLUMNS, place_on_nodes
from diel.loading.functions import (
    OPTIONS_CLASS,
    ModulePart,
    check_options,
    import_code,
    missing_here,
    options_model,
    parts_with_options,
)
from diel.text import describe_error, format_value
from diel.workflow.load import Draft
from diel.workflow.model import Workflow

_MOST_NODES: Final = 64
_MOST_RANKS: Final = 100_000
_LONGEST: Final = 200


@dataclass
class Inspection:
    """What was found out about a text.

    Attributes
    ----------
    source : str
        The text.
    problems : list of Problem
        Everything that `diel check` finds, in the order of the file.
    remarks : list of Problem
        What this machine lacks to run it.
    workflow : Workflow or None
        If there is no problem.
    models : dict from module name to model
        The ``Options`` of modules whose code defines them.
    sweeps : dict from module name to str
        What the sweep of a module will do, in a line.
    points : dict from module name to list of dict
        The first points of its sweep.
    networks : dict from module name to list of dict
        The layers of the network of the first point that a module tries: name, shape, parameters.
    needs : RankNeeds or None
    """

    source: str
    problems: list[Problem] = field(default_factory=list)
    remarks: list[Problem] = field(default_factory=list)
    workflow: Workflow | None = None
    models: dict[str, type[BaseModel]] = field(default_factory=dict)
    sweeps: dict[str, str] = field(default_factory=dict)
    points: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    networks: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    needs: RankNeeds | None = None


def inspect(draft: Draft) -> Inspection:
    """Find out all that can be known of a draft; imports the files that define ``Options``."""
    found = Inspection(draft.source)
    try:
        found.workflow = check_options(draft)
    except WorkflowError as error:
        found.problems = list(error.problems)
    found.models = _models(draft)
    if found.workflow is not None:
        found.needs = needs(found.workflow, available_cores())
        found.remarks = missing_here(draft)
        parts = {part.module.name: part for part in parts_with_options(draft, found.workflow)}
        for part in parts.values():
            if hasattr(part.code, "preview_sweep"):
                _preview(found, part, parts, draft)
        for name, part in parts.items():
            if name not in found.networks:
                _describe(found, part, {}, draft)
    return found


def _models(draft: Draft) -> dict[str, type[BaseModel]]:
    models = {}
    for name, location in draft.locations.items():
        if OPTIONS_CLASS not in location.classes:
            continue
        try:
            model = options_model(import_code(location, draft.file.parent), location)
        except (Exception, SystemExit):  # which is a problem of the file already
            continue
        if model is not None:
            models[name] = model
    return models


def _preview(
    found: Inspection, part: ModulePart, parts: Mapping[str, ModulePart], draft: Draft
) -> None:
    name = part.module.name
    try:
        preview = part.code.preview_sweep(part.options, draft.file.parent)
    except Exception as error:  # a strategy of a user's can raise anything
        found.sweeps[name] = f"no preview: {describe_error(error)[:_LONGEST]}"
        return
    size = "no last trial" if preview.size is None else f"{preview.size:,} trials"
    found.sweeps[name] = f"{size}, {preview.strategy}, tried by {preview.trainer}"
    found.points[name] = list(preview.points)
    if preview.points and preview.trainer in parts:
        _describe(found, parts[preview.trainer], preview.points[0], draft)


def _describe(found: Inspection, part: ModulePart, point: Mapping[str, Any], draft: Draft) -> None:
    describe = getattr(part.code, "describe_network", None)
    if describe is None:
        return
    try:
        rows = describe(part.options, draft.file.parent, point)
    except Exception:  # of a point that lacks what the network needs, or data that are not here
        return
    if rows:
        found.networks[part.module.name] = list(rows)


def point_in_words(point: Mapping[str, Any]) -> str:
    """Write a point of a sweep in a line."""
    return ", ".join(f"{name} = {format_value(value, digits=6)}" for name, value in point.items())


# -- where ranks would be -------------------------------------------------------------------------


@dataclass(frozen=True)
class Places:
    """Where the ranks of a run would be.

    Attributes
    ----------
    columns : tuple of str
    rows : list of tuple of str
        The node first.
    note : str
        What is not shown; empty if all is.
    """

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""


def places(workflow: Workflow, *, ranks: int, per_node: int, shown_as: str) -> Places:
    """Say which copies would run on which ranks.

    Raises
    ------
    DielError
        If it cannot run on so many ranks, or on such nodes.
    """
    if ranks < 1 or per_node < 1:
        raise DielError("at least one rank, and one on each node")
    if ranks > _MOST_RANKS:
        raise DielError(f"places of more than {_MOST_RANKS:,} ranks are not shown here")
    plans = plan_groups(workflow, ranks, shown_as)
    placed = place_on_nodes(
        workflow,
        plans,
        ranks=ranks,
        per_node=per_node,
        shown_as=shown_as,
        most_nodes=_MOST_NODES,
    )
    rows = [(f"node {node}", *line) for node, lines in enumerate(placed.nodes) for line in lines]
    more = -(-ranks // per_node) - len(placed.nodes)
    return Places(("node", *NODE_COLUMNS), rows, f"and {more} nodes more" if more else "")
