"""The section of a report that shows the expected objective over pairs of parameters."""

from __future__ import annotations

import json
from typing import Final

from .importance import Importance, Plane
from .markup import Markup, place, section, tag, words
from .picture import SHADES, Picture
from .plot import NamedScale, Plot

_PAIRS: Final = 3


def contour_section(picture: Picture, found: Importance | None) -> Markup | None:
    """Show the expected objective over pairs of parameters; None if it is not known."""
    planes = found.planes[:_PAIRS] if found is not None else []
    if not planes:
        return None
    shown = [
        tag("figure", tag("figcaption", f"{words(plane.first)} and {words(plane.second)}"),
            _draw_plane(plane, picture.sweep.maximise))
        for plane in planes
    ]  # fmt: skip
    return section(
        "contour",
        "Two parameters together",
        tag("div", *shown, class_="planes"),
        note=f"The {words(picture.sweep.objective)} that the forest expects, whatever the other "
        "parameters are, of the pairs that do most together: the darker the better (the brighter, "
        "on a dark page). Dots are where trials have been.",
        wide=True,
    )


def _draw_plane(plane: Plane, maximise: bool) -> Markup:
    """Draw the objective that the forest expects at each pair of values: a path for each shade."""
    values = [value for row in plane.mean for value in row]
    low, high = min(values), max(values)
    labels_x, labels_y = plane.labels
    plot = Plot(
        360, 300, NamedScale(labels_x, most=5), NamedScale(labels_y, most=8),
        words(plane.first), words(plane.second), left=64,
    )  # fmt: skip
    across, up = len(labels_x), len(labels_y)
    wide, high_px = plot.across(1.0) - plot.across(0.0), plot.down(0.0) - plot.down(1.0)
    # Labels stand in the middle of their cells, the first and the last at the ends of the axis.
    step_x, step_y = wide / max(1, across - 1), high_px / max(1, up - 1)
    paths: dict[int, list[str]] = {}
    tried = []
    for i, row in enumerate(plane.mean):
        for j, value in enumerate(row):
            where = (value - low) / (high - low) if high > low else 0.5
            shade = min(SHADES - 1, int((where if maximise else 1 - where) * SHADES))
            x, y = (
                plot.across(plot.x.place(labels_x[i]) or 0.0),
                plot.down(plot.y.place(labels_y[j]) or 0.0),
            )
            left, right = max(x - step_x / 2, plot.across(0.0)), min(x + step_x / 2, plot.across(1))
            top, bottom = max(y - step_y / 2, plot.down(1.0)), min(y + step_y / 2, plot.down(0.0))
            if across == 1:
                left, right = plot.across(0.0), plot.across(1.0)
            if up == 1:
                top, bottom = plot.down(1.0), plot.down(0.0)
            box = f"M{place(left)},{place(top)}H{place(right)}V{place(bottom)}H{place(left)}z"
            paths.setdefault(shade, []).append(box)
            if plane.trials[i][j]:
                tried.append(f"M{place(x)},{place(y)}h0")
    plane_data = {
        "x": labels_x,
        "y": labels_y,
        "z": [[float(f"{value:.4g}") for value in row] for row in plane.mean],
        "trials": plane.trials,
    }
    return plot.draw(
        *(tag("path", d="".join(boxes), class_=f"cell f{shade}") for shade, boxes in paths.items()),
        tag("path", d="".join(tried), class_="dots tried"),
        label=f"what the objective is with each {words(plane.first)} and {words(plane.second)}",
        kind="plane",
        data_plane=json.dumps(plane_data, separators=(",", ":"), allow_nan=False),
        data_box=" ".join(
            place(at) for at in (plot.across(0.0), plot.down(1.0), plot.across(1.0), plot.down(0.0))
        ),
    )
