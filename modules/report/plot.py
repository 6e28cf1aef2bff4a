"""A plot with two axes, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from diel import format_value

from .scales import Scale
from .wording import Markup, escape, join, place, tag

_LIFT: Final = 8.0
"""From the horizontal axis up to the lowest value: what lies on the edge hides no label."""


@dataclass(frozen=True)
class Plot:
    """The frame of a plot: its size, its scales and what stands beside them.

    Attributes
    ----------
    width, height : float
        Of the drawing, axes and all.
    x, y : Scale
    x_title, y_title : str
    left, right, top, bottom : float
        Margins.
    """

    width: float
    height: float
    x: Scale
    y: Scale
    x_title: str
    y_title: str
    left: float = 58
    right: float = 14
    top: float = 26
    bottom: float = 40
    x_ticks: int = 6
    y_ticks: int = 5

    def at(self, x: object, y: object) -> tuple[float, float] | None:
        """Return where a pair of values lies; None if it has no place."""
        across, up = self.x.place(x), self.y.place(y)
        if across is None or up is None:
            return None
        return self.across(across), self.down(up)

    def across(self, where: float) -> float:
        """Return the x of a place on the horizontal axis, 0 to 1."""
        return self.left + where * (self.width - self.left - self.right)

    def down(self, where: float) -> float:
        """Return the y of a place on the vertical axis, 0 to 1."""
        return (
            self.height
            - self.bottom
            - _LIFT
            - where * (self.height - self.top - self.bottom - _LIFT)
        )

    def draw(self, *content: Markup, label: str, kind: str = "points", style: str = "") -> Markup:
        """Return the drawing.

        Parameters
        ----------
        *content : Markup
            What is drawn over the grid.
        label : str
            What the drawing shows, for those who cannot see it.
        kind : str, optional
            What the page's script makes of it.
        style : str, optional
        """
        return tag(
            "svg",
            self._grid(),
            *content,
            tag("g", class_="over"),
            viewBox=f"0 0 {place(self.width)} {place(self.height)}",
            role="img",
            aria_label=label,
            data_chart=kind,
            class_=style or None,
        )

    def _grid(self) -> Markup:
        lines, bottom, right = [], self.height - self.bottom, self.width - self.right
        for where, label in self.y.ticks(self.y_ticks):
            y = self.down(where)
            lines.append(line(self.left, y, right, y, "grid"))
            lines.append(text(self.left - 8, y + 4, label, "tick end"))
        for where, label in self.x.ticks(self.x_ticks):
            x = self.across(where)
            lines.append(line(x, bottom, x, bottom + 4, "axis"))
            lines.append(text(x, bottom + 17, format_value(label, longest=14), "tick middle"))
        lines.append(line(self.left, bottom, right, bottom, "axis"))
        lines.append(text((self.left + right) / 2, self.height - 5, self.x_title, "name middle"))
        lines.append(text(4, 13, self.y_title, "name"))
        return join(*lines)


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> Markup:
    """Return a straight line."""
    return tag("path", d=f"M{place(x1)},{place(y1)}L{place(x2)},{place(y2)}", class_=style)


def text(x: float, y: float, words: str, style: str) -> Markup:
    """Return a line of text; `style` says how it is aligned: middle, end, or from `x` on."""
    return tag("text", escape(words), x=place(x), y=place(y), class_=style)


def dots(points: Sequence[tuple[int, float, float]], style: str) -> Markup:
    """Return dots as one path, which is the smallest there is: (row, x, y) of each."""
    if not points:
        return Markup("")
    return tag(
        "path",
        d="".join(f"M{place(x)},{place(y)}h0" for _, x, y in points),
        class_=f"dots {style}",
        data_rows=" ".join(str(row) for row, _, _ in points),
    )


def stairs(points: Sequence[tuple[float, float]], end: float, style: str) -> Markup:
    """Return a line that keeps its height until the next point, and up to `end`."""
    if not points:
        return Markup("")
    (x, y), *others = points
    path = f"M{place(x)},{place(y)}" + "".join(f"H{place(x)}V{place(y)}" for x, y in others)
    return tag("path", d=f"{path}H{place(max(end, points[-1][0]))}", class_=style)
