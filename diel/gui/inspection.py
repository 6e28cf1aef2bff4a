"""Inspect a workflow file while it is edited: check it, and call the code of its modules.

Files that define ``Options`` are imported, as `diel check` does, and nothing else of a module is.
That code may hang, exit or crash, so it runs in a process of its own, whose function is `main`;
`diel.gui.inspector` starts that process and asks it::

    {"text": ..., "file": ...}                   the question, a line of JSON
    {"begins": ..., "module": ...}               what it is about to do, before it does it
    {"found": {...}}                             the answer

Beside ``preview_sweep`` these functions are called, if such a file has them::

    describe_network(options, folder, point)     returns rows: name, shape, parameters; for a layer
                                                 that an option lists also layer: its index
    option_groups()                              returns names of groups of options, each with the
                                                 options in it; a table's name stands for its keys
    option_variants()                            returns for options that are tables, or lists of
                                                 tables, the key that decides which other keys they
                                                 have, and a model for each value of that key
"""

from __future__ import annotations

import functools
import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from diel.errors import DielError, Problem, WorkflowError
from diel.executive.launch import available_cores
from diel.executive.placement.planning import RankNeeds, needs, plan_groups
from diel.executive.placement.preview import NODE_COLUMNS, place_on_nodes
from diel.gui.forms import FormField, Variants, fields_of
from diel.loading.functions import (
    OPTIONS_CLASS,
    ModulePart,
    check_options,
    import_code,
    look_at_data,
    missing_here,
    options_model,
    parts_with_options,
)
from diel.text import describe_error, format_value, trials_in_words
from diel.workflow.annotations import FieldType
from diel.workflow.load import Draft, draft_of_text
from diel.workflow.model import Workflow
from diel.workflow.problems import keys_of

_MOST_NODES: Final = 64
_MOST_RANKS: Final = 100_000
_LONGEST: Final = 200
_LARGEST_READ_BYTES: Final = 2**22
"""Of a file of data; a larger one would keep the page waiting."""
_T = TypeVar("_T")


@dataclass
class Findings:
    """What was found by checking a text and calling its modules' code; all of it fits JSON.

    Attributes
    ----------
    problems : list of Problem
        Everything that `diel check` finds, in the order of the file.
    remarks : list of Problem
        What this machine lacks to run it, and what is wrong with its data, or odd about them.
    fields : dict from module name to list of FormField
        The ``Options`` of modules whose code defines them.
    sweeps : dict from module name to str
        What the sweep of a module will do, in a line.
    points : dict from module name to list of str
        The first points of its sweep, each in a line.
    networks : dict from module name to list of dict
        The layers of the network of the first point that a module tries: name, shape, parameters.
    failures : dict from module name to str
        Why its layers, or the kinds of its options, could not be found out.
    variants : dict from module name to dict of str to Variants
        The kinds of its options that are tables, by the options' names.
    """

    problems: list[Problem] = field(default_factory=list)
    remarks: list[Problem] = field(default_factory=list)
    fields: dict[str, list[FormField]] = field(default_factory=dict)
    sweeps: dict[str, str] = field(default_factory=dict)
    points: dict[str, list[str]] = field(default_factory=dict)
    networks: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    variants: dict[str, dict[str, Variants]] = field(default_factory=dict)

    def as_plain(self) -> dict[str, Any]:
        """Return the findings as JSON values; `of_plain` reverses it."""
        fields = {name: _plain_fields(listed) for name, listed in self.fields.items()}
        variants = {
            name: {
                option: [
                    each.key,
                    {kind: _plain_fields(listed) for kind, listed in each.fields.items()},
                ]
                for option, each in options.items()
            }
            for name, options in self.variants.items()
        }
        return asdict(self) | {"fields": fields, "variants": variants}

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> Findings:
        """Return the findings that `as_plain` has made JSON values of.

        Raises
        ------
        TypeError, KeyError, ValueError, AttributeError
            If the values have another form.
        """
        rest = {name: plain[name] for name in ("sweeps", "points", "networks", "failures")}
        return cls(
            problems=[Problem(**each) for each in plain["problems"]],
            remarks=[Problem(**each) for each in plain["remarks"]],
            fields={name: _fields_of_plain(listed) for name, listed in plain["fields"].items()},
            variants={
                name: {
                    option: Variants(
                        key, {kind: _fields_of_plain(listed) for kind, listed in fields.items()}
                    )
                    for option, (key, fields) in options.items()
                }
                for name, options in plain["variants"].items()
            },
            **rest,
        )


def _plain_fields(fields: Iterable[FormField]) -> list[dict[str, Any]]:
    return [field.as_dict() for field in fields]


def _fields_of_plain(plain: Iterable[Mapping[str, Any]]) -> list[FormField]:
    lists = ("path", "choices", "holds")
    return [FormField(**{**each, **{name: tuple(each[name]) for name in lists}}) for each in plain]


@dataclass
class Inspection(Findings):
    """The findings of a text, with its workflow and the ranks that this needs if it is valid.

    Attributes
    ----------
    source : str or None
        The text; None as long as it is being inspected again.
    workflow : Workflow or None
        If there is no problem.
    needs : RankNeeds or None
    """

    source: str | None = None
    workflow: Workflow | None = None
    needs: RankNeeds | None = None


def runs_code(draft: Draft) -> bool:
    """Whether code of modules has to be run to know all of a draft."""
    return any(OPTIONS_CLASS in location.classes for location in draft.locations.values())


def inspection_of(draft: Draft, findings: Findings) -> Inspection:
    """Return the inspection of a draft, from what its modules' code has answered."""
    found = Inspection(**vars(findings), source=draft.source)
    if not found.problems:
        try:
            found.workflow = draft.finish()
        except WorkflowError as error:  # a file was removed since, say
            found.problems = list(error.problems)
        else:
            found.needs = needs(found.workflow, available_cores())
    return found


def _ignore(module: str, begins: str) -> None:
    """Do nothing."""


def inspect(draft: Draft, tell: Callable[[str, str], None] = _ignore) -> Findings:
    """Check a draft and call the code of its modules; imports files that define ``Options``.

    Parameters
    ----------
    draft : Draft
    tell : callable, optional
        Called before code of a module is run, with the module, empty for the whole file, and with
        what that code is to do.
    """
    found = Findings()
    _find_fields(found, draft, tell)
    tell("", "checking the options")
    try:
        workflow = check_options(draft)
    except WorkflowError as error:
        found.problems = list(error.problems)
        return found
    tell("", "asking what this machine lacks")
    found.remarks = missing_here(draft)
    tell("", "looking at the data")
    # No problem of the text: the data may be mended while it is not edited.
    problems, oddities = look_at_data(draft, workflow, _LARGEST_READ_BYTES)
    found.remarks += [*problems, *(Problem("", odd) for odd in oddities)]
    parts = {part.module.name: part for part in parts_with_options(draft, workflow)}
    for name, part in parts.items():
        if hasattr(part.code, "preview_sweep"):
            tell(name, "its preview_sweep")
            _preview(found, part, parts, draft, tell)
    for name, part in parts.items():
        if name not in {**found.networks, **found.failures}:
            _describe(found, part, {}, draft, tell)
    return found


def _find_fields(found: Findings, draft: Draft, tell: Callable[[str, str], None]) -> None:
    for name, location in draft.locations.items():
        if OPTIONS_CLASS not in location.classes:
            continue
        tell(name, f"importing {location.spec.rpartition(':')[0]}")
        try:
            code = import_code(location, draft.file.parent)
            model = options_model(code, location)
            fields = [] if model is None else list(fields_of(model))
        except (Exception, SystemExit):  # check_options reports it
            continue
        if model is None:
            continue
        grouped, _ = _answer(functools.partial(_with_groups, code, fields))
        fields = fields if grouped is None else grouped
        found.fields[name] = fields
        variants, failure = _answer(functools.partial(_variants_of, code))
        if variants is None:
            found.failures[name] = f"no forms of its tables: {failure}"
            continue
        found.variants[name] = variants
        lists = {key for key, info in keys_of(model).items() if FieldType.of(info).is_list}
        for number, each in enumerate(fields):
            if each.label in variants:
                kind = "tables" if each.label in lists else "variant"
                names = tuple(variants[each.label].fields)
                fields[number] = each.replace(kind=kind, choices=names)


def _with_groups(code: Any, fields: list[FormField]) -> list[FormField]:
    """Return the fields with their groups: that of the key itself, or else that of its table."""
    offered: Mapping[str, Iterable[str]] = getattr(code, "option_groups", dict)()
    groups = {option: group for group, options in offered.items() for option in options}
    return [
        each.replace(group=groups.get(each.label, groups.get(each.path[0], ""))) for each in fields
    ]


def _variants_of(code: Any) -> dict[str, Variants]:
    offered: Mapping[str, Any] = getattr(code, "option_variants", dict)()
    return {
        option: Variants(
            key, {kind: list(fields_of(each, (key,))) for kind, each in models.items()}
        )
        for option, (key, models) in offered.items()
    }


def _answer(ask: Callable[[], _T]) -> tuple[_T | None, str]:
    """Call a user's code, which can raise anything; return its result or None, and the error."""
    try:
        return ask(), ""
    except (Exception, SystemExit) as error:
        return None, describe_error(error)[:_LONGEST]


def _preview(
    found: Findings,
    part: ModulePart,
    parts: Mapping[str, ModulePart],
    draft: Draft,
    tell: Callable[[str, str], None],
) -> None:
    name = part.module.name

    def ask() -> tuple[str, list[str], str, list[Mapping[str, Any]]]:
        preview = part.code.preview_sweep(part.options, draft.file.parent)
        size = trials_in_words(preview.size)
        summary = f"{size}, {preview.strategy}, tried by {preview.trainer}"
        points = [point_in_words(point) for point in preview.points]
        return summary, points, preview.trainer, preview.points

    answer, failure = _answer(ask)
    if answer is None:
        found.sweeps[name] = f"no preview: {failure}"
        return
    found.sweeps[name], found.points[name], trainer, points = answer
    if points and trainer in parts:
        _describe(found, parts[trainer], points[0], draft, tell)


def _describe(
    found: Findings,
    part: ModulePart,
    point: Mapping[str, Any],
    draft: Draft,
    tell: Callable[[str, str], None],
) -> None:
    describe = getattr(part.code, "describe_network", None)
    if describe is None:
        return
    name = part.module.name
    tell(name, "its describe_network")

    def ask() -> list[dict[str, str]]:
        rows = describe(part.options, draft.file.parent, point) or []
        return [{str(key): str(value) for key, value in row.items()} for row in rows]

    rows, failure = _answer(ask)
    if rows is None:
        of = f"of the point {point_in_words(point)}" if point else "without a point of a sweep"
        found.failures[name] = f"no table of layers {of}: {failure}"
    elif rows:
        found.networks[name] = rows


def main(descriptor: int) -> None:
    """Inspect the text that comes through a socket, and send back what was found.

    Parameters
    ----------
    descriptor : int
        Of the socket.
    """
    os.set_inheritable(descriptor, False)  # not for processes that a user's code starts
    with (
        socket.socket(fileno=descriptor) as connection,
        connection.makefile("rw", encoding="ascii") as stream,
    ):

        def send(message: Mapping[str, Any]) -> None:
            stream.write(json.dumps(message) + "\n")
            stream.flush()

        question = json.loads(stream.readline())
        draft = draft_of_text(question["text"], Path(question["file"]), given=question["given"])
        found = inspect(draft, lambda module, begins: send({"module": module, "begins": begins}))
        send({"found": found.as_plain()})


def point_in_words(point: Mapping[str, Any]) -> str:
    """Return a point of a sweep as a line of text."""
    return ", ".join(f"{name} = {format_value(value, digits=6)}" for name, value in point.items())


# -- where ranks would be -------------------------------------------------------------------------


@dataclass(frozen=True)
class Places:
    """A table of the nodes of a run, and of the copies that would run on their ranks.

    Attributes
    ----------
    columns : tuple of str
    rows : list of tuple of str
        The node first.
    note : str
        How many nodes are not shown; empty if all are.
    """

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""


def places(workflow: Workflow, *, ranks: int, per_node: int, shown_as: str) -> Places:
    """Return which copies of a workflow would run on which ranks.

    Raises
    ------
    DielError
        If the workflow cannot run on so many ranks, or on such nodes.
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
