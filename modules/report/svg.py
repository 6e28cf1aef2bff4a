"""Draws panels as SVG, or HTML where text and bars do, styled by figures.css.

What figures.js reads is in attributes: ``data-chart`` says what a drawing is, ``data-rows`` which
trials its dots are, ``data-row`` which trial an element is, ``data-text`` what is told of one that
is no trial, and ``data-name`` by which key a layer is hidden.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import pairwise
from typing import Any, Final, TypeAlias

from diel import format_value

from .data import SHADES
from .markup import Markup, bar_row, escape, join, place, tag
from .panels import Axis, Heatmap, Layer, Panel, ParallelCoordinates, Plot, Scale, StackedBars

Written: TypeAlias = "Callable[[str], str]"
"""Writes the name of a column for people."""

_HEIGHT: Final = 320.0
_SMALL: Final = (270.0, 170.0)
_PLANE: Final = (360.0, 300.0)
_LIFT: Final = 8.0
"""Pixels from the horizontal axis up to the lowest value, so that dots there hide no label."""
_LETTER: Final = 6.6
"""Width of a letter on an axis, in pixels."""
_BAR: Final = 0.76
"""Thickness of a bar, as a share of its band."""
_AXIS_ROOM: Final = 104.0
COLOURS: Final = 7
"""How many sweeps have colours of their own."""
_FEW: Final = 100
_MANY: Final = 500


@singledispatch
def draw(panel: Panel, width: float, written: Written) -> Markup:
    """Draw a panel; `written` writes names of columns on its axes.

    `width` is that of large ones in pixels; small ones have one size.
    """
    raise TypeError(f"{panel!r} is no panel")


@dataclass(frozen=True)
class Frame:
    """Where values are between the axes of a plot, in pixels."""

    width: float
    height: float
    x: Scale
    y: Scale
    left: float = 58.0
    right: float = 14.0
    top: float = 26.0
    bottom: float = 40.0
    """Margins."""

    def at(self, x: object, y: object) -> tuple[float, float] | None:
        """Return the coordinates of a pair of values; None if one of them has no place."""
        across, up = self.x.place(x), self.y.place(y)
        if across is None or up is None:
            return None
        return self.across(across), self.down(up)

    def across(self, where: float) -> float:
        """Return the x of a place on the horizontal axis, 0 to 1."""
        return self.left + where * (self.width - self.left - self.right)

    def down(self, where: float) -> float:
        """Return the y of a place on the vertical axis, 0 to 1."""
        whole = self.height - self.top - self.bottom - _LIFT
        return self.height - self.bottom - _LIFT - where * whole

    def draw(self, content: Sequence[str], titles: tuple[str, str], ticks: tuple[int, int],
             **about: Any) -> Markup:  # fmt: skip
        """Return the drawing, with `content` over the grid and labels over all of it."""
        lines, labels = [], []
        bottom, right = self.height - self.bottom, self.width - self.right
        for where, label in self.y.ticks(ticks[1]):
            y = self.down(where)
            lines.append(_line(self.left, y, right, y, "grid"))
            shown = format_value(label, longest=max(4, int((self.left - 10) / _LETTER)))
            labels.append(text(self.left - 8, y + 4, shown, "tick end halo"))
        for where, label in self.x.ticks(ticks[0]):
            x = self.across(where)
            lines.append(_line(x, bottom, x, bottom + 4, "axis"))
            shown = format_value(label, longest=14)
            inside = min(x, self.width - len(shown) * _LETTER / 2)
            labels.append(text(inside, bottom + 17, shown, "tick middle halo"))
        lines.append(_line(self.left, bottom, right, bottom, "axis"))
        middle = (self.left + right) / 2
        labels.append(text(middle, self.height - 5, titles[0], "name middle halo"))
        labels.append(text(4, 13, titles[1], "name halo"))
        return tag(
            "svg", *lines, *content, tag("g", class_="over"), *labels,
            viewBox=f"0 0 {place(self.width)} {place(self.height)}", role="img", **about,
        )  # fmt: skip


@draw.register
def _(plot: Plot, width: float, written: Written) -> Markup:
    if plot.caption and not plot.has_titles:
        frame = Frame(*_SMALL, plot.x.scale, plot.y.scale, 48.0, 16.0, 8.0, 24.0)
        titles, ticks = ("", ""), (5, 3)
    else:
        width, height = _PLANE if plot.caption else (width, _HEIGHT)
        longest = max((len(label) for _, label in plot.y.scale.ticks(5)), default=0)
        left = min(0.35 * width, max(58.0, longest * _LETTER + 14))
        frame = Frame(width, height, plot.x.scale, plot.y.scale, left)
        titles = (_cut(written(plot.x.title), width - left), _cut(written(plot.y.title), width))
        ticks = (max(2, min(6, int(width / 80))), 5)
    content = [_LAYERS[layer.kind](layer, frame) for layer in plot.layers]
    dots = sum(len(layer.x) for layer in plot.layers if layer.kind == "dots")
    return frame.draw(
        content, titles, ticks, aria_label=plot.label, data_chart="points", class_=_crowd(dots)
    )


def _draw_dots(layer: Layer, frame: Frame) -> Markup:
    """Draw dots as one path, the shortest HTML for them."""
    places = [frame.at(x, y) for x, y in zip(layer.x, layer.y, strict=True)]
    rows = layer.rows or [""] * len(places)
    known = [(str(row), at) for row, at in zip(rows, places, strict=True) if at is not None]
    return tag(
        "path",
        d="".join(f"M{place(x)},{place(y)}h0" for _, (x, y) in known),
        class_=f"dots {class_of(layer.style)}",
        data_rows=" ".join(row for row, _ in known) if layer.rows else None,
        data_name=layer.name or None,
    )


def _draw_line(layer: Layer, frame: Frame) -> Markup:
    points = [at for x, y in zip(layer.x, layer.y, strict=True) if (at := frame.at(x, y))]
    if len(points) == 1:
        return _draw_dots(layer, frame)
    if layer.kind == "stairs":
        corners = [(end[0], start[1]) for start, end in pairwise(points)]
        later = zip(corners, points[1:], strict=True)
        points = [*points[:1], *(point for pair in later for point in pair)]
    row = layer.rows[0] if layer.rows else None
    told = {"data_text": layer.text or None, "data_name": layer.name or None}
    return _polyline(points, f"line {class_of(layer.style)}", row, **told)


def _draw_ticks(layer: Layer, frame: Frame) -> Markup:
    foot = place(frame.down(0.0))
    places = [where for x in layer.x if (where := frame.x.place(x)) is not None]
    path = "".join(f"M{place(frame.across(where))},{foot}v-7" for where in places)
    return tag("path", d=path, class_=f"line {class_of(layer.style)}", data_name=layer.name or None)


def _draw_bars(layer: Layer, frame: Frame) -> Markup:
    bands = len(getattr(frame.y, "labels", ())) or 1
    thick = max(1.0, _BAR * (frame.down(0.0) - frame.down(1.0)) / bands)
    bars = []
    for row, x, y, length in zip(layer.rows, layer.x, layer.y, layer.lengths, strict=True):
        start, end = frame.at(x, y), frame.at(x + length, y)
        if start is not None and end is not None:
            bars.append(
                tag("rect", x=place(start[0]), y=place(start[1] - thick / 2), data_row=row,
                    width=place(max(0.5, end[0] - start[0])), height=place(thick))
            )  # fmt: skip
    return tag("g", *bars, class_=f"span {class_of(layer.style)}", data_name=layer.name or None)


_LAYERS: Final[dict[str, Callable[[Layer, Frame], Markup]]] = {
    "dots": _draw_dots,
    "line": _draw_line,
    "stairs": _draw_line,
    "ticks": _draw_ticks,
    "bars": _draw_bars,
}


@draw.register
def _(plane: Heatmap, width: float, written: Written) -> Markup:
    """Draw a path for each shade, and a dot wherever trials have been."""
    x, y = plane.scales()
    size = _PLANE if plane.caption else (width, _PLANE[1])
    longest = max(map(len, plane.labels[1]), default=0)
    left = min(120.0, max(64.0, longest * _LETTER + 24))
    frame = Frame(*size, x, y, left)
    values = [value for row in plane.value for value in row]
    low, high = min(values), max(values)
    left, right = frame.across(0.0), frame.across(1.0)
    top, bottom = frame.down(1.0), frame.down(0.0)
    step_x = (right - left) / len(x.labels)
    step_y = (bottom - top) / len(y.labels)
    paths: dict[int, list[str]] = {}
    tried, numbers = [], []
    for i, row in enumerate(plane.value):
        for j, value in enumerate(row):
            where = (value - low) / (high - low) if high > low else 0.5
            shade = min(SHADES - 1, int((where if plane.maximise else 1 - where) * SHADES))
            across, down = frame.across(x.place_of(i)), frame.down(y.place_of(j))
            box = (
                f"M{place(across - step_x / 2)},{place(down - step_y / 2)}"
                f"H{place(across + step_x / 2)}V{place(down + step_y / 2)}"
                f"H{place(across - step_x / 2)}z"
            )
            paths.setdefault(shade, []).append(box)
            if plane.trials[i][j] and plane.are_trials:
                tried.append(f"M{place(across)},{place(down)}h0")
            if plane.trials[i][j] and plane.writes_counts:
                count = f"{plane.trials[i][j]:,}"
                inside = " inside" if shade > SHADES // 2 else ""
                numbers.append(text(across, down + 4, count, f"count middle{inside}"))
    told = {
        "names": [written(plane.x), written(plane.y)],
        "labels": [*plane.labels],
        "value": [[float(f"{value:.4g}") for value in row] for row in plane.value],
        "trials": plane.trials,
        "told": ["expected" if plane.are_trials else plane.title, plane.counted],
        "box": [round(edge, 1) for edge in (left, top, right, bottom)],
    }
    content = [
        *(tag("path", d="".join(boxes), class_=f"cell q{shade}") for shade, boxes in paths.items()),
        tag("path", d="".join(tried), class_="dots tried"),
        *numbers,
    ]
    return frame.draw(
        content,
        (written(plane.x), written(plane.y)),
        (5, 8),
        aria_label=plane.label,
        data_chart="plane",
        data_plane=json.dumps(told, separators=(",", ":"), allow_nan=False),
    )


@draw.register
def _(shares: StackedBars, width: float, written: Written) -> Markup:
    rows = [
        bar_row(
            written(label),
            f"{parts[0]:.0%}",
            *((part, style) for part, (_, style) in zip(parts, shares.parts, strict=True)),
            title=label,
        )
        for label, parts in shares.rows
    ]
    return tag("div", *rows, class_="bars")


@draw.register
def _(parallel: ParallelCoordinates, width: float, written: Written) -> Markup:
    lanes = len(parallel.axes)
    width, height = max(width, _AXIS_ROOM * lanes), 380.0
    longest = max((len(label) for _, label in parallel.ticks(parallel.axes[0], 6)), default=0)
    left, right = min(150.0, max(74.0, longest * _LETTER + 16)), width - 64.0
    top, bottom = 44.0, height - 18.0
    across = [left + lane * (right - left) / (lanes - 1) for lane in range(lanes)]

    def down(where: float) -> float:
        return bottom - where * (bottom - top)

    lines = []
    entries = zip(parallel.rows, parallel.values, parallel.shades, strict=True)
    for row, values, shade in entries:
        places = zip(across, parallel.places(values), strict=True)
        points = [(x, down(where)) for x, where in places if where is not None]
        style = "best" if row == parallel.rows[-1] else f"q{shade}"
        lines.append(_polyline(points, style, row))
    rooms = [left, *[min(170.0, (right - left) / (lanes - 1))] * (lanes - 1)]
    axes = [
        _parallel_axis(axis, parallel, x, (top, bottom), int(room / _LETTER) - 2, written)
        for axis, x, room in zip(parallel.axes, across, rooms, strict=True)
    ]
    drawing = tag(
        "svg",
        tag("g", *lines, class_=f"lines {_crowd(len(lines))}"),
        *axes,
        tag("g", class_="over"),
        viewBox=f"0 0 {place(width)} {place(height)}",
        style=f"min-width:{place(min(width, 120.0 * lanes))}px",
        role="img",
        aria_label="parallel coordinates of the parameters and the objective",
        data_chart="parallel",
        data_top=place(top),
        data_bottom=place(bottom),
    )
    ramp = tag("span", *(tag("i", class_=f"q{shade}") for shade in range(SHADES)), class_="ramp")
    legend = tag(
        "span",
        tag("span", parallel.ends[0]),
        ramp,
        tag("span", f"{parallel.ends[1]} {written(parallel.axes[-1].title)}"),
        tag("span", tag("i", class_="mark best"), "the best"),
        class_="legend",
    )
    chosen = tag("span", "", class_="chosen-count")
    clear = tag("button", "clear", type="button", class_="clear", hidden=True)
    return join(
        tag("div", legend, chosen, clear, class_="bar"),
        tag("div", drawing, class_="scrolls", tabindex=0, role="group",
            aria_label="parallel coordinates"),
    )  # fmt: skip


def _parallel_axis(
    axis: Axis,
    parallel: ParallelCoordinates,
    x: float,
    ends: tuple[float, float],
    room: int,
    written: Written,
) -> Markup:
    """Draw an axis of parallel coordinates, with the area in which a range is chosen.

    There is `room` for so many letters beside it.
    """
    top, bottom = ends
    marks = [tag("title", axis.title), _line(x, top, x, bottom, "axis")]
    for where, label in parallel.ticks(axis, 6):
        y = bottom - where * (bottom - top)
        marks.append(_line(x - 4, y, x, y, "axis"))
        marks.append(text(x - 8, y + 4, format_value(label, longest=room), "tick end halo"))
    style = "name middle" + (" chosen" if axis is parallel.axes[-1] else "")
    marks.append(text(x, 20, format_value(written(axis.title), longest=18), style))
    marks.append(
        tag("rect", x=place(x - 14), y=place(top), width="28", height=place(bottom - top),
            class_="grip")
    )  # fmt: skip
    return tag("g", *marks, class_="dimension", data_x=place(x), data_name=axis.title)


def class_of(style: str) -> str:
    """Return the class of a layer's style: of many sweeps some share a colour, and are dashed."""
    if not style[1:].isdecimal():
        return style
    number = int(style[1:])
    return f"r{number % COLOURS}" + (" again" if number >= COLOURS else "")


def _crowd(count: int) -> str:
    """Return the style that keeps so many dots or lines apart."""
    return "few" if count < _FEW else "some" if count < _MANY else "many"


def _cut(title: str, width: float) -> str:
    return format_value(title, longest=max(8, int(width / _LETTER)))


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> Markup:
    return tag("path", d=f"M{place(x1)},{place(y1)}L{place(x2)},{place(y2)}", class_=style)


def _polyline(
    points: Sequence[tuple[float, float]], style: str, row: object, **about: Any
) -> Markup:
    places = " ".join(f"{place(x)},{place(y)}" for x, y in points)
    return tag("polyline", points=places, class_=style, data_row=row, **about)


def text(x: float, y: float, words: str, style: str) -> Markup:
    """Return a line of text; `style` says how it is aligned: middle, end, or from `x` on."""
    return tag("text", escape(words), x=place(x), y=place(y), class_=style)
