"""The groups of a workflow as a picture in SVG, which a page can colour while the run goes on.

::

    draw_svg(drawing)     Drawing -> text
      1. sizes            from the texts, inner groups first
      2. places           steps below each other, the boxes of a step in a row
      3. edges            from a box's lower border to the upper border of a group that waits for it

Every group is a ``<g class="group" data-group="NAME">`` and every module in it a
``<g class="module" data-group="NAME" data-module="NAME">`` behind it; both are buttons that take
the keyboard's focus, so neither stands inside another. A class that is added to one (``running``,
``finished``, ``failed``, ``waiting``, ``stopped``, ``skipped``, ``selected``, ``problem``) changes
its colours; a group that may be skipped has the class ``unsure``, and one that will be ``skipped``.
The empty ``<text class="state">`` of a group has room for a few words. All names are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

from diel.workflow.drawing import Drawing, GroupBox

_LETTER: Final = 7.3  # the width of a letter of 13 px, rather too large than too small
_LINE: Final = 20.0
_TITLE: Final = 28.0
_PADDING: Final = 12.0
_GAP: Final = 20.0
_BETWEEN_STEPS: Final = 36.0
_STATE: Final = 96.0  # width that is kept free for a group's state in a run
_SMALLEST: Final = 150.0
_LONGEST_TEXT: Final = 38  # letters; the full text is shown on hovering
_EDGE_ROOM: Final = 14.0  # the width that an edge takes in a step that it passes

STYLE: Final = """\
.diel-graph { --box: #ffffff; --outer: #f3f5f8; --line: #8a94a3; --ink: #1c232d; --soft: #566171;
  --running: #0072b2; --finished: #009e73; --failed: #d55e00; --waiting: #b8860b;
  --stopped: #7f5a83; font: 13px system-ui, sans-serif; max-width: 100%; height: auto; }
@media (prefers-color-scheme: dark) { .diel-graph:not(.on-page) { --box: #1d242e; --outer: #151a21;
  --line: #748091; --ink: #e7ebf0; --soft: #a3aebc; --running: #56b4e9; --finished: #2fc99b;
  --failed: #ff8a3c; --waiting: #e6c229; --stopped: #cc99cf; } }
.diel-graph .ground { fill: var(--box); }
.diel-graph text { fill: var(--ink); }
.diel-graph .name { font-weight: 600; }
.diel-graph .again, .diel-graph .needs, .diel-graph .state { fill: var(--soft); font-size: 12px; }
.diel-graph .box { fill: var(--box); stroke: var(--line); stroke-width: 1.2; }
.diel-graph .outer > .box { fill: var(--outer); }
.diel-graph .module-box { fill: transparent; stroke: none; }
.diel-graph .loose .module-box { stroke: var(--line); stroke-dasharray: 4 3; }
.diel-graph .edge { fill: none; stroke: var(--line); stroke-width: 1.5; }
.diel-graph .arrow { fill: var(--line); }
.diel-graph .running > .box { stroke: var(--running); stroke-width: 3; }
.diel-graph .finished > .box { stroke: var(--finished); stroke-width: 2.4; }
.diel-graph .failed > .box { stroke: var(--failed); stroke-width: 3.4; stroke-dasharray: 7 3; }
.diel-graph .waiting > .box { stroke: var(--waiting); stroke-width: 2.4; stroke-dasharray: 2 3; }
.diel-graph .stopped > .box { stroke: var(--stopped); stroke-width: 2.4; stroke-dasharray: 9 4; }
.diel-graph .unsure > .box { stroke-dasharray: 5 4; }
.diel-graph .skipped > .box { stroke: var(--soft); stroke-width: 1.2; stroke-dasharray: 1 4; }
.diel-graph g.skipped > text { fill: var(--soft); }
.diel-graph .problem > .box, .diel-graph .problem > .module-box { stroke: var(--failed);
  stroke-width: 2.4; stroke-dasharray: none; }
.diel-graph .selected > .box, .diel-graph .selected > .module-box { stroke: var(--running);
  stroke-width: 3; }
.diel-graph [tabindex] { cursor: pointer; outline: none; }
.diel-graph [tabindex]:focus-visible > .box, .diel-graph [tabindex]:focus-visible > .module-box {
  stroke: var(--running); stroke-width: 3.6; }
"""
_GROUND: Final = '<rect class="ground" width="100%" height="100%"/>'


@dataclass
class _Shape:
    """A box with its size and place, or the room that an edge takes where it passes a step."""

    box: GroupBox | None
    width: float
    height: float
    rows: list[list[_Shape]] = field(default_factory=list)
    x: float = 0.0
    y: float = 0.0
    end_of_step: float = 0.0  # where the tallest box beside it ends

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


Edge = tuple[GroupBox, GroupBox, "list[_Shape]"]


Classes = Mapping["tuple[str, str]", str]
"""CSS classes to add, by the names (group, module); one of the two may be empty."""


def draw_svg(drawing: Drawing, *, on_page: bool = False, classes: Classes | None = None) -> str:
    """Return a drawing as the text of one ``<svg>`` element.

    Parameters
    ----------
    drawing : Drawing
    on_page : bool, optional
        Whether it is put into a page that has `STYLE` and its own light and dark colours; if not,
        it is a file by itself, with both included.
    classes : mapping from (group, module) to str, optional
        Further CSS classes of a group, ``("search", "")``, of a module in it,
        ``("search", "trainer")``, or of a module in no group, ``("", "trainer")``.
    """
    more = classes or {}
    edges: list[Edge] = []
    rows = [_row(step, drawing.steps, index, edges) for index, step in enumerate(drawing.steps)]
    _put_edges_between(rows, drawing.steps, edges)
    width, height = _extent(rows)
    loose = [_loose_width(name, needs) for name, needs in drawing.in_no_group]
    width = max(width, *(loose or [0.0]), _SMALLEST)
    _place(rows, _GAP, _GAP, width)
    parts = [part for row in rows for shape in row for part in _drawn(shape, more)]
    parts += _edges(edges, {shape.box.name: shape for shape in _all(rows) if shape.box})
    bottom = _GAP + height + (_GAP if rows else 0.0)
    x = _GAP
    for (name, needs), room in zip(drawing.in_no_group, loose, strict=True):
        if x > _GAP and x + room > _GAP + width:
            x, bottom = _GAP, bottom + _LINE + 10
        parts += _module("", name, needs, x, bottom, room, f"loose {more.get(('', name), '')}")
        x += room + _GAP / 2
    if loose:
        bottom += _LINE + _GAP
    full = width + 2 * _GAP
    size = f'viewBox="0 0 {full:g} {bottom:g}" width="{full:g}" height="{bottom:g}"'
    kind = "diel-graph on-page" if on_page else "diel-graph"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="{kind}" role="group" {size} '
            f'aria-label="{_text(f"groups of {drawing.name}")}">',
            *([] if on_page else [f"<style>{STYLE}</style>", _GROUND]),
            *parts,
            "</svg>",
        ]
    )


# -- sizes ----------------------------------------------------------------------------------------


def _row(
    step: Sequence[GroupBox], steps: Sequence[Sequence[GroupBox]], index: int, edges: list[Edge]
) -> list[_Shape]:
    row = [_shape(box, edges) for box in step]
    if index:  # place each box near the groups that it waits for
        order = {box.name: place for place, box in enumerate(steps[index - 1])}
        row.sort(key=lambda shape: _place_of_needed(shape.box, order))
    return row


def _place_of_needed(box: GroupBox | None, order: Mapping[str, int]) -> float:
    places = [order[name] for name in (box.depends if box else ()) if name in order]
    return sum(places) / len(places) if places else float(len(order))


def _shape(box: GroupBox, edges: list[Edge]) -> _Shape:
    texts = [_width(box.name) + _STATE, _width(box.again), _width(box.when)]
    head = _head(box)
    if not box.inside:
        texts += [_module_width(name, needs) for name, needs in box.modules]
        width = max(_SMALLEST, *texts) + 2 * _PADDING
        return _Shape(box, width, head + _LINE * len(box.modules) + _PADDING)
    inner: list[Edge] = []
    rows = [_row(step, box.inside, index, edges) for index, step in enumerate(box.inside)]
    _put_edges_between(rows, box.inside, inner)
    edges += inner
    width, height = _extent(rows)
    width = max(width, *texts) + 2 * _PADDING
    return _Shape(box, width, head + height + 2 * _PADDING, rows)


def _head(box: GroupBox) -> float:
    """Return the height of a group's name, and of how it is repeated and its condition below."""
    return _TITLE + _LINE * (bool(box.again) + bool(box.when))


def _put_edges_between(
    rows: list[list[_Shape]], steps: Sequence[Sequence[GroupBox]], edges: list[Edge]
) -> None:
    """Collect the edges between groups of these steps; add space where an edge passes a step."""
    level = {box.name: (number, box) for number, step in enumerate(steps) for box in step}
    for number, box in level.values():
        for name in box.depends:
            if name not in level:
                continue
            first, before = level[name]
            passed = [_Shape(None, _EDGE_ROOM, _LINE) for _ in range(first + 1, number)]
            for row, shape in zip(rows[first + 1 : number], passed, strict=True):
                row.append(shape)
            edges.append((before, box, passed))


def _extent(rows: Sequence[Sequence[_Shape]]) -> tuple[float, float]:
    if not rows:
        return 0.0, 0.0
    width = max(sum(shape.width for shape in row) + _GAP * (len(row) - 1) for row in rows)
    heights = [max(shape.height for shape in row) for row in rows]
    return width, sum(heights) + _BETWEEN_STEPS * (len(rows) - 1)


def _width(text: str) -> float:
    from rich.cells import cell_len  # East Asian letters are two columns wide

    return cell_len(_short(text)) * _LETTER


def _module_width(name: str, needs: str) -> float:
    return _width(name) + (_width(needs) + 2 * _LETTER if needs else 0.0)


def _loose_width(name: str, needs: str) -> float:
    return _module_width(name, needs) + 2 * _PADDING


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


# -- places ---------------------------------------------------------------------------------------


def _place(rows: Sequence[Sequence[_Shape]], x: float, y: float, width: float) -> None:
    for row in rows:
        at = x + (width - sum(shape.width for shape in row) - _GAP * (len(row) - 1)) / 2
        tallest = max(shape.height for shape in row)
        for shape in row:
            shape.x, shape.y, shape.end_of_step = at, y, y + tallest
            shape.height = shape.height if shape.box else tallest
            at += shape.width + _GAP
            if shape.box is not None and shape.rows:
                _place(
                    shape.rows,
                    shape.x + _PADDING,
                    y + _head(shape.box) + _PADDING,
                    shape.width - 2 * _PADDING,
                )
        y += tallest + _BETWEEN_STEPS


# -- elements -------------------------------------------------------------------------------------


def _text(text: str) -> str:
    """Escape a text for XML; control characters, which XML does not allow, become spaces."""
    return escape("".join(sign if sign >= " " or sign == "\t" else " " for sign in text))


def _drawn(shape: _Shape, classes: Classes) -> Iterator[str]:
    box = shape.box
    if box is None:
        return
    x, y = shape.x + _PADDING, shape.y + 19
    names = ", ".join(name for name, _ in box.modules)
    label = f"group {box.title}" + (f", modules {names}" if names else "")
    kind = "group outer" if box.inside else "group"
    kind += {"may be skipped": " unsure", "will be skipped": " skipped"}.get(box.skip, "")
    kind = f"{kind} {classes.get((box.name, ''), '')}".strip()
    yield (
        f'<g class="{kind}" data-group="{_text(box.name)}" tabindex="0" role="button" '
        f'aria-label="{_text(label)}">'
    )
    yield (
        f'<rect class="box" x="{shape.x:g}" y="{shape.y:g}" width="{shape.width:g}" '
        f'height="{shape.height:g}" rx="7"/>'
    )
    yield f'<text class="name" x="{x:g}" y="{y:g}">{_titled(box.name)}</text>'
    right = shape.x + shape.width - _PADDING
    yield f'<text class="state" x="{right:g}" y="{y:g}" text-anchor="end"></text>'
    top = shape.y + _TITLE
    for sign, note in (("↻ ", box.again), ("", box.when)):
        if note:
            yield f'<text class="again" x="{x:g}" y="{top + 10:g}">{sign}{_titled(note)}</text>'
            top += _LINE
    yield "</g>"
    for name, needs in box.modules:
        more = classes.get((box.name, name), "")
        yield from _module(box.name, name, needs, shape.x + 4, top, shape.width - 8, more)
        top += _LINE
    for row in shape.rows:
        for inner in row:
            yield from _drawn(inner, classes)


def _module(
    group: str, name: str, needs: str, x: float, y: float, width: float, classes: str = ""
) -> Iterator[str]:
    kind = f"module {classes}".strip()
    label = f"module {name}" + (f", {needs}" if needs else "") + ("" if group else ", in no group")
    inner = x + _PADDING - 4
    yield (
        f'<g class="{kind}" data-group="{_text(group)}" data-module="{_text(name)}" '
        f'tabindex="0" role="button" aria-label="{_text(label)}">'
    )
    yield (
        f'<rect class="module-box" x="{x:g}" y="{y:g}" width="{width:g}" '
        f'height="{_LINE:g}" rx="4"/>'
    )
    yield f'<text x="{inner:g}" y="{y + 14:g}">{_titled(name)}</text>'
    if needs:
        right = x + width - _PADDING + 4
        yield (
            f'<text class="needs" x="{right:g}" y="{y + 14:g}" text-anchor="end">'
            f"{_titled(needs)}</text>"
        )
    yield "</g>"


def _titled(text: str) -> str:
    short = _short(text)
    return _text(short) if short == text else f"{_text(short)}<title>{_text(text)}</title>"


def _all(rows: Sequence[Sequence[_Shape]]) -> Iterator[_Shape]:
    for row in rows:
        for shape in row:
            yield shape
            yield from _all(shape.rows)


def _edges(edges: Sequence[Edge], shapes: Mapping[str, _Shape]) -> Iterator[str]:
    for before, box, passed in edges:
        tail, head = shapes[before.name], shapes[box.name]
        x, y = tail.middle, tail.y + tail.height
        path = f"M{x:g} {y:g} L{x:g} {tail.end_of_step:g}"
        y = tail.end_of_step
        ends = [(shape.middle, shape.y) for shape in passed] + [(head.middle, head.y - 6)]
        for number, (to_x, to_y) in enumerate(ends):
            bend = (to_y - y) / 2
            path += f" C{x:g} {y + bend:g} {to_x:g} {to_y - bend:g} {to_x:g} {to_y:g}"
            x, y = to_x, to_y
            if number < len(passed):  # straight down beside the boxes of a step
                y += passed[number].height
                path += f" L{x:g} {y:g}"
        yield (
            f'<g class="dependency" data-from="{_text(before.name)}" data-to="{_text(box.name)}">'
            f'<path class="edge" d="{path}"/>'
            f'<path class="arrow" d="M{x - 4:g} {y - 1:g}h8l-4 7z"/></g>'
        )
