"""The groups of a workflow as a drawing: text for people, DOT for Graphviz, Mermaid for Markdown.

::

    drawing_of(workflow)     Workflow -> Drawing: groups inside groups, neighbours in steps
    drawing_of_draft(draft)  the same for a file with mistakes in it, as far as it can be drawn
    draw_text(drawing)       steps below each other with arrows between them
    draw_dot(drawing)        a cluster for each group of groups, a box for each group of modules
    draw_mermaid(drawing)    the same as a flowchart

These write what the drawing says and nothing else, so they agree; `svg` draws it as a picture.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diel.expressions import ExpressionError
from diel.frozen import Frozen
from diel.text import show
from diel.workflow.elements import Expansion
from diel.workflow.graph import dependency_order, find_cycle
from diel.workflow.model import Group, Module, Workflow
from diel.workflow.references import DEEPEST, names_in, tables_in
from diel.workflow.when import Skip, When

if TYPE_CHECKING:
    from diel.workflow.load import Draft


class GroupBox(Frozen):
    """A group in a drawing: its name, its modules or inner groups, and its dependencies."""

    name: str
    again: str  # how it is repeated, such as ``3 times, until "converged"``; empty if it is not
    depends: tuple[str, ...]  # groups beside it that finish first
    modules: tuple[tuple[str, str], ...]  # (name, resources), such as ("trainer", "4 copies")
    # Inner groups, in steps: a group depends only on groups of earlier steps.
    inside: tuple[tuple[GroupBox, ...], ...]
    when: str = ""  # its condition, such as ``when refine: will be skipped``
    skip: Skip = ""

    @property
    def title(self) -> str:
        """The name of the group, how it is repeated, and its condition."""
        return "  ".join(part for part in (self.name, self.again, self.when) if part)


class Drawing(Frozen):
    """A whole workflow: the outermost groups in steps."""

    name: str
    steps: tuple[tuple[GroupBox, ...], ...]
    in_no_group: tuple[tuple[str, str], ...] = ()  # modules; only a draft may have such


class _Node(Frozen):
    """The fields of a group that a drawing needs, with its modules and inner groups by name."""

    name: str
    again: str
    depends: tuple[str, ...]
    modules: tuple[str, ...]
    groups: tuple[str, ...]
    when: str = ""
    skip: Skip = ""


def drawing_of(workflow: Workflow) -> Drawing:
    """Return the drawing of a valid workflow."""
    nodes = {
        group.name: _Node(
            group.name,
            _again(group),
            group.depends,
            group.modules,
            group.groups,
            *_condition(group, workflow.when_of(group)),
        )
        for group in workflow.groups
    }
    modules = {module.name: _resources(module) for module in workflow.modules}
    expansion = workflow.expansion
    return _arranged(workflow.name, _folded(nodes, expansion), _own_names(modules, expansion))


def drawing_of_draft(draft: Draft) -> Drawing:
    """Return the drawing of a file that may have mistakes, as far as it can be drawn.

    A module is drawn by its name where its other keys are wrong. A dependency that closes a cycle
    is left out, and so are a group inside itself and unknown names. Groups that are nested too deep
    to run are drawn beside the other groups.
    """
    entries = _named(draft.document, "group")
    again = {group.name: _again(group) for _, group in draft.groups}
    conditions: dict[str, tuple[str, Skip]] = {}
    for _, group in draft.groups:
        with contextlib.suppress(ExpressionError):  # it is said among the problems
            values = {**draft.values, **draft.expansion.values_of("group", group.name)}
            when = None if group.when is None else When.of(group.when, values)
            conditions[group.name] = _condition(group, when)
    parents = _parents_in(entries)
    depends = _dependencies_in(entries, parents)
    nodes = {
        name: _Node(
            name,
            again.get(name, ""),
            tuple(depends[name]),
            tuple(_names(entry, "modules")),
            tuple(child for child, parent in parents.items() if parent == name),
            *conditions.get(name, ("", "")),
        )
        for name, entry in entries.items()
    }
    valid = {module.name: _resources(module) for _, module in draft.modules}
    modules = {name: valid.get(name, "") for name in _named(draft.document, "module")}
    nodes, modules = _folded(nodes, draft.expansion), _own_names(modules, draft.expansion)
    drawing = _arranged(draft.settings.name or draft.file.stem, nodes, modules)
    used = {name for node in nodes.values() for name in node.modules}
    rest = tuple(item for item in modules.items() if item[0] not in used)
    return drawing.replace(in_no_group=rest)


def _folded(nodes: Mapping[str, _Node], expansion: Expansion) -> dict[str, _Node]:
    """Return the groups with one element in place of all, by the names of the file."""
    if not expansion.arrays:
        return dict(nodes)
    shown: dict[str, _Node] = {}
    for name, node in nodes.items():
        element = expansion.elements.get(("group", name))
        if element is None and name not in expansion.arrays:
            shown[name] = node
        elif element is None:
            shown[name] = _array_node(node, nodes[node.groups[0]], expansion)
        elif element.index == 0 and name != element.name:
            shown[expansion.templates["group", name]] = _named_as_in_file(node, expansion)
    return shown


def _array_node(array: _Node, first: _Node, expansion: Expansion) -> _Node:
    count = len(expansion.arrays[array.name].elements)
    own = _named_as_in_file(first, expansion)
    words = [f"for each of {count}", own.again]
    return own.replace(
        name=array.name,
        again=", ".join(word for word in words if word),
        depends=array.depends,
        when=array.when or own.when,
        skip=array.skip or (own.skip and "may be skipped"),
    )


def _named_as_in_file(node: _Node, expansion: Expansion) -> _Node:
    groups = expansion.templates
    when = node.when.partition(": will be ")[0]
    for (kind, name), template in groups.items() if when else ():
        if kind == "group" and expansion.elements[kind, name].index == 0:
            when = re.sub(rf"""(['"]){re.escape(name)}\1""", rf"\g<1>{template}\1", when)
    return node.replace(
        name=groups["group", node.name],
        depends=tuple(groups["group", name] for name in node.depends),
        modules=tuple(map(expansion.own_name, node.modules)),
        groups=tuple(groups["group", name] for name in node.groups),
        # Which of the elements are skipped differs.
        when=when,
        skip="may be skipped" if node.skip else "",
    )


def _own_names(modules: Mapping[str, str], expansion: Expansion) -> dict[str, str]:
    return {expansion.own_name(name): resources for name, resources in modules.items()}


def _parents_in(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the group around each group, without circles and not too deep."""
    parents: dict[str, str] = {}
    for name, entry in entries.items():
        for child in _names(entry, "groups"):
            if child in entries and child not in parents and not _is_inside(name, child, parents):
                parents[child] = name
    for name in _too_deep(parents):
        del parents[name]
    return parents


def _dependencies_in(
    entries: Mapping[str, Mapping[str, Any]], parents: Mapping[str, str]
) -> dict[str, list[str]]:
    """Return the groups beside it that each group depends on, without circles."""
    depends = {
        name: [
            other
            for other in _names(entry, "depends")
            if other in entries and other != name and parents.get(other) == parents.get(name)
        ]
        for name, entry in entries.items()
    }
    while cycle := find_cycle(depends):
        depends[cycle[-2]].remove(cycle[-1])
    return depends


def _named(document: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
    """Return the tables of a list that have a name, the first of each name."""
    found: dict[str, dict[str, Any]] = {}
    for _, entry in tables_in(document, key):
        if isinstance(entry.get("name"), str):
            found.setdefault(entry["name"], entry)
    return found


def _names(entry: Mapping[str, Any], key: str) -> list[str]:
    return list(dict.fromkeys(name for _, name in names_in(entry, key)))


def _is_inside(name: str | None, other: str, parents: Mapping[str, str]) -> bool:
    """Whether a group is the other group, or inside it."""
    while name is not None and name != other:
        name = parents.get(name)
    return name is not None


def _too_deep(parents: Mapping[str, str]) -> list[str]:
    """Return the groups to take out of their parents, so that no group is nested too deep."""
    depth: dict[str, int] = {}
    for name in parents:
        path = [name]
        while path[-1] in parents and path[-1] not in depth:
            path.append(parents[path[-1]])
        for outer in reversed(path):
            depth.setdefault(outer, depth[parents[outer]] + 1 if outer in parents else 0)
    return [name for name in parents if depth[name] % DEEPEST == 0]


def _arranged(name: str, nodes: Mapping[str, _Node], modules: Mapping[str, str]) -> Drawing:
    inner = {child for node in nodes.values() for child in node.groups}

    def box(node: _Node) -> GroupBox:
        return GroupBox(
            name=node.name,
            again=node.again,
            depends=node.depends,
            modules=tuple((name, modules.get(name, "")) for name in node.modules),
            inside=steps([nodes[name] for name in node.groups]),
            when=node.when,
            skip=node.skip,
        )

    def steps(neighbours: Sequence[_Node]) -> tuple[tuple[GroupBox, ...], ...]:
        levels = _levels({node.name: node.depends for node in neighbours})
        return tuple(tuple(box(nodes[name]) for name in level) for level in levels)

    return Drawing(name, steps([node for node in nodes.values() if node.name not in inner]))


def _levels(depends: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return groups in steps, each group as early as its dependencies allow."""
    level: dict[str, int] = {}
    for name in dependency_order(depends):
        level[name] = 1 + max((level[group] for group in depends[name]), default=-1)
    return [
        [name for name in depends if level[name] == number] for number in sorted({*level.values()})
    ]


def _again(group: Group) -> str:
    words = []
    if group.iterations is not None and group.iterations != 1:
        words.append(f"{group.iterations} times")
    if group.until is not None:
        tag = group.until if isinstance(group.until, str) else list(group.until)
        words.append(f"until {show(tag)}")
    return ", ".join(words)


def _condition(group: Group, when: When | None) -> tuple[str, Skip]:
    """Return a group's condition in words, and whether it may or will be skipped."""
    if when is None:
        return "", ""
    skip = when.in_words()
    return f"when {group.when}{f': {skip}' if skip else ''}", skip


def _resources(module: Module) -> str:
    """Return a module's copies, ranks, threads and GPUs in words, without those by default."""
    words = []
    if module.copies == "fill":
        words.append("as many copies as fit")
    elif module.copies > 1:
        words.append(f"{module.copies} copies")
    for number, noun in ((module.processes, "ranks"), (module.threads, "threads")):
        if number > 1:
            words.append(f"{number} {noun}")
    if module.gpus:
        share = f"1/{round(1 / module.gpus)}" if module.gpus < 1 else f"{module.gpus}"
        words.append(f"{share} GPU{'s' if module.gpus > 1 else ''}")
    return " x ".join(words)


# -- text -----------------------------------------------------------------------------------------

ASCII = str.maketrans({"├": "|", "└": "`", "─": "-", "│": "|", "▼": "v", "↻": "@"})
"""Replacements for the characters of a drawing, for an output that has ASCII only."""


def draw_text(drawing: Drawing) -> str:
    """Return the drawing as text, without a line break at its end."""
    return "\n".join([drawing.name, "", *(f"  {line}".rstrip() for line in _text(drawing.steps))])


def _text(steps: Sequence[Sequence[GroupBox]]) -> Iterator[str]:
    for number, step in enumerate(steps):
        if number:
            yield "  ▼"
        for box in step:
            yield from _text_of(box, is_first=number == 0)


def _text_of(box: GroupBox, *, is_first: bool) -> Iterator[str]:
    head = f"{box.name}  ↻ {box.again}" if box.again else box.name
    head += f"  [{box.when}]" if box.when else ""
    yield head if is_first else f"{head}  after {', '.join(box.depends)}"
    if box.inside:
        yield from (f"│ {line}" for line in _text(box.inside))
    from rich.cells import cell_len  # East Asian letters are two columns wide

    width = max((cell_len(name) for name, _ in box.modules), default=0)
    for index, (name, resources) in enumerate(box.modules, start=1):
        branch = "└─" if index == len(box.modules) else "├─"
        filler = " " * (width - cell_len(name))
        yield f"{branch} {name}{filler}  {resources}".rstrip()


# -- Graphviz and Mermaid -------------------------------------------------------------------------


def draw_dot(drawing: Drawing) -> str:
    """Return the drawing in DOT, the language of Graphviz."""
    lines = [
        f"digraph {_dot(drawing.name)} {{",
        f'  label={_dot(drawing.name)}; labelloc="t"; compound=true; rankdir="TB";',
        '  node [shape="box", style="rounded"];',
    ]
    ids = _ids(drawing)
    lines += [f"  {line}" for line in _dot_boxes(drawing.steps, ids)]
    for box, before in _edges(drawing.steps):
        # DOT's edges connect nodes; to connect a cluster, an edge is clipped at its border.
        tail, head = _last(before), _first(box)
        borders = [
            f"{end}={_dot('cluster_' + ids[group.name])}"
            for end, group in (("ltail", before), ("lhead", box))
            if group.inside
        ]
        attributes = f" [{', '.join(borders)}]" if borders else ""
        lines.append(f"  {ids[tail.name]} -> {ids[head.name]}{attributes};")
    return "\n".join([*lines, "}"])


def _dot_boxes(steps: Sequence[Sequence[GroupBox]], ids: Mapping[str, str]) -> Iterator[str]:
    for box in _flat(steps):
        if box.inside:
            yield f"subgraph {_dot('cluster_' + ids[box.name])} {{"
            yield f"  label={_dot(box.title)};"
            yield from (f"  {line}" for line in _dot_boxes(box.inside, ids))
            yield "}"
        else:
            # \l ends a line that is set to the left.
            lines = [box.title, *_module_lines(box)]
            label = "".join(_dot_text(line) + r"\l" for line in lines)
            style = ', style="rounded,dashed"' if box.skip else ""
            yield f'{ids[box.name]} [label="{label}"{style}];'


def _dot(text: str) -> str:
    return f'"{_dot_text(text)}"'


def _dot_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def draw_mermaid(drawing: Drawing) -> str:
    """Return the drawing as a Mermaid flowchart, which GitHub and GitLab show in Markdown."""
    ids = _ids(drawing)
    lines = ["---", f"title: {show(drawing.name)}", "---", "flowchart TB"]
    lines += [f"  {line}" for line in _mermaid_boxes(drawing.steps, ids)]
    lines += [f"  {ids[before.name]} --> {ids[box.name]}" for box, before in _edges(drawing.steps)]
    return "\n".join(lines)


def _mermaid_boxes(steps: Sequence[Sequence[GroupBox]], ids: Mapping[str, str]) -> Iterator[str]:
    for box in _flat(steps):
        if box.inside:
            yield f"subgraph {ids[box.name]}[{_mermaid([box.title])}]"
            yield from (f"  {line}" for line in _mermaid_boxes(box.inside, ids))
            yield "end"
        else:
            yield f"{ids[box.name]}[{_mermaid([box.title, *_module_lines(box)])}]"


def _mermaid(lines: Sequence[str]) -> str:
    """Quote lines as a label; characters that are special in Mermaid are written as ``#CODE;``."""
    special = {ord(sign): f"#{ord(sign)};" for sign in '#"<>&`\\\n*_~[]{}()'}
    return f'"{"<br/>".join(line.translate(special) for line in lines)}"'


def _module_lines(box: GroupBox) -> list[str]:
    return [f"{name}: {resources}" if resources else name for name, resources in box.modules]


def _flat(steps: Sequence[Sequence[GroupBox]]) -> Iterator[GroupBox]:
    for step in steps:
        yield from step


def _edges(steps: Sequence[Sequence[GroupBox]]) -> Iterator[tuple[GroupBox, GroupBox]]:
    """Yield each group with each group that it depends on, inner groups too."""
    boxes = {box.name: box for box in _flat(steps)}
    for box in boxes.values():
        yield from ((box, boxes[name]) for name in box.depends)
        yield from _edges(box.inside)


def _first(box: GroupBox) -> GroupBox:
    return _first(box.inside[0][0]) if box.inside else box


def _last(box: GroupBox) -> GroupBox:
    return _last(box.inside[-1][-1]) if box.inside else box


def _ids(drawing: Drawing) -> dict[str, str]:
    """Return an identifier for each group, as its name may be a keyword or have dashes."""

    def names(steps: Sequence[Sequence[GroupBox]]) -> Iterator[str]:
        for box in _flat(steps):
            yield box.name
            yield from names(box.inside)

    return {name: f"g{number}" for number, name in enumerate(names(drawing.steps), start=1)}
