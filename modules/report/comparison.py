"""Figures over several sweeps: the best so far of each, and fronts of quality against cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .data import SweepView
from .figure import Figure
from .figures import cost_scale
from .markup import with_unit, words
from .panels import Axis, Layer, LinearScale, Plot, focus
from .plotly import Told


def comparison_figures(views: Mapping[str, SweepView]) -> dict[str, Figure]:
    """Return figures over several sweeps, by their names: ``history`` and ``cost``.

    The best so far against the number of trials, and the fronts of quality against cost.
    """
    first = next(iter(views.values())).sweep
    better = f"The {first.direction} {words(first.objective)} so far"
    steps = {
        name: {row: (view.orders[row] + 1.0, view.objective_of(row)) for row in view.steps}
        for name, view in views.items()
    }
    fronts = {
        name: {row: pair for row in view.front if (pair := view.against_cost.get(row))}
        for name, view in views.items()
    }
    counts = [view.selection.count for view in views.values()]
    values = [y for places in steps.values() for _, y in places.values()]
    pairs = [pair for places in fronts.values() for pair in places.values()]
    described = []
    if values:
        plot = Plot(
            Axis(
                "trials, in order of completion",
                LinearScale(0.0, float(max(1, *counts)), is_whole=True),
            ),
            Axis(first.objective, focus(values, first.maximise)),
            _lines_of(steps, counts),
            f"{first.direction} {first.objective} so far, of each sweep",
        )
        described.append(("history", "History", f"{better}, of each sweep.", plot))
    if pairs:
        ends = [max((x for x, _ in places.values()), default=0.0) for places in fronts.values()]
        plot = Plot(
            Axis(with_unit(first.cost), cost_scale([spent for spent, _ in pairs])),
            Axis(first.quality, focus([y for _, y in pairs], first.maximise_quality)),
            _lines_of(fronts, ends),
            f"fronts of {first.quality} against {first.cost}, of each sweep",
        )
        title = f"{words(first.quality).capitalize()} against {words(first.cost)}"
        note = "Of each sweep the Pareto front: none of its trials is both better and cheaper."
        described.append(("cost", title, note, plot))

    def tell(row: object) -> Told:
        number, _, place = str(row).partition(".")
        name, view = list(views.items())[int(number)]
        trial, *others = view.tell(int(place))
        return [trial, ("run", name), *others]

    return {name: Figure(name, title, note, [plot], tell) for name, title, note, plot in described}


def _lines_of(
    places_of: Mapping[str, Mapping[int, tuple[float, float]]], ends: Sequence[float]
) -> list[Layer]:
    """Return stairs and dots for each sweep."""
    layers = []
    for number, ((name, places), end) in enumerate(zip(places_of.items(), ends, strict=True)):
        style, rows = f"r{number}", [f"{number}.{row}" for row in places]
        xs, ys = ([pair[axis] for pair in places.values()] for axis in (0, 1))
        if xs:
            layers.append(Layer("stairs", style, name, [*xs, end], [*ys, ys[-1]]))
            layers.append(Layer("dots", style, name, xs, ys, rows))
    return layers
