"""The rows of a sweep that a report shows, chosen from those that were gathered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from .gather import Gatherer, Row, ShownRow
from .markup import as_number, show
from .scales import LinearScale, focus
from .sweep import CURVE, STATE, STOPPED, TRAINER, TRIAL, Moment, Sweep

SHADES: Final = 7
"""Steps of the colour scale, from the worst to the best."""
_LINES: Final = 700
_TOLD: Final = 10
BEST_CURVES: Final = 10
STOPPED_CURVES: Final = 40


@dataclass(frozen=True)
class Picture:
    """The rows that a report shows: a sample, improvements, the best and the Pareto front."""

    gathered: Gatherer
    moment: Moment
    rows: list[Row]
    """In the order in which they came; the lists below hold indices into it."""
    orders: list[int]
    """Number of trials before each row."""
    sampled: list[int]
    steps: list[int]
    top: list[int]
    front: list[int]
    """Indices of the random sample; of rows better than all before; of the best, best first; of the
    Pareto front, cheapest first."""

    @classmethod
    def of(cls, gathered: Gatherer, moment: Moment) -> Picture:
        """Choose the rows that a report shows from those that were gathered."""
        steps, top = gathered.steps, gathered.top
        front, sampled = gathered.front.front, gathered.sampled
        by_order = dict(sampled)
        by_order.update((kept.order, kept.row) for kept in (*steps, *top))
        by_order.update(front)
        orders = sorted(by_order)
        number = {order: place for place, order in enumerate(orders)}

        def places(kept: Iterable[ShownRow]) -> list[int]:
            return [number[row.order] for row in kept]

        return cls(
            gathered,
            moment,
            [_with_none(by_order[order]) for order in orders],
            orders,
            [number[order] for order, _ in sampled],
            places(steps),
            places(top),
            [number[order] for order, _ in front],
        )

    @property
    def sweep(self) -> Sweep:
        """The sweep that the rows are from."""
        return self.gathered.sweep

    @property
    def trials_text(self) -> str:
        """How many trials have an objective, in words."""
        return f"{self.gathered.good:,} trial{'s' if self.gathered.good != 1 else ''}"

    def curve_of(self, place: int) -> list[tuple[float, float]]:
        """Return the points of a row's learning curve that can be drawn, if there are several."""
        points = []
        for step, value in self.rows[place].get(CURVE) or ():
            x, y = as_number(step), as_number(value)
            if x is not None and y is not None:
                points.append((x, y))
        return points if len(points) > 1 else []

    @cached_property
    def curves(self) -> list[int]:
        """The rows whose learning curves are drawn: the best, best first, then stopped ones."""
        best = [place for place in self.top if self.curve_of(place)][:BEST_CURVES]
        stopped = [
            place
            for place in self.sampled
            if str(self.rows[place].get(STATE)).lower() in STOPPED and self.curve_of(place)
        ]
        return [*best, *stopped[:: -(-len(stopped) // STOPPED_CURVES) or 1]]

    @property
    def best(self) -> Row | None:
        """The best trial."""
        return self.rows[self.top[0]] if self.top else None

    def objective_of(self, place: int) -> float:
        """Return the objective of a row."""
        return float(self.rows[place][self.sweep.objective])

    @cached_property
    def axis(self) -> LinearScale:
        """The scale of the objective."""
        return focus([self.objective_of(place) for place in range(len(self.rows))] or [0.0],
                     self.sweep.maximise)  # fmt: skip

    def shade(self, place: int) -> int:
        """Return the colour of a row: from 0 for the worst to ``SHADES - 1`` for the best."""
        where = self.axis.place(self.objective_of(place)) or 0.0
        if not self.sweep.maximise:
            where = 1.0 - where
        return min(SHADES - 1, int(where * SHADES))

    @cached_property
    def against_cost(self) -> dict[int, tuple[float, float]]:
        """Cost and quality of the rows that have both, by index of the row."""
        sweep = self.sweep
        return {
            place: (cost, quality)
            for place, row in enumerate(self.rows)
            if (cost := as_number(row.get(sweep.cost))) is not None
            and (quality := as_number(row.get(sweep.quality))) is not None
        }

    @cached_property
    def constants(self) -> dict[str, str]:
        """Parameters that are the same in every row that is shown, and their values as text."""
        found = {}
        for name in self.sweep.parameters:
            shown = {show(row.get(name)) for row in self.rows}
            if len(shown) == 1 and len(self.rows) > 1:
                found[name] = shown.pop()
        return found

    @cached_property
    def varying(self) -> list[str]:
        """Parameters that differ between the rows that are shown."""
        return [name for name in self.sweep.parameters if name not in self.constants]

    @cached_property
    def lines(self) -> list[int]:
        """Rows that are drawn as lines, worst first: of very many a part, with all of the best."""
        chosen = set(self.sampled[:: -(-len(self.sampled) // _LINES)] if self.sampled else ())
        chosen.update(self.top)
        sign = 1 if self.sweep.maximise else -1
        drawn = sorted(chosen, key=lambda place: (sign * self.objective_of(place), place))
        if self.top:
            drawn.remove(self.top[0])
            drawn.append(self.top[0])  # drawn last, so that no other line hides it
        return drawn

    def by_number(self, places: Iterable[int]) -> list[int]:
        """Return rows in the order of their trials' numbers; those without one come last."""

        def key(place: int) -> tuple[bool, float, int]:
            number = as_number(self.rows[place].get(TRIAL))
            return number is None, number or 0.0, place

        return sorted(places, key=key)

    def numbers(self, name: str, places: Iterable[int]) -> list[float]:
        """Return the values of a column that are numbers."""
        found = (as_number(self.rows[place].get(name)) for place in places)
        return [value for value in found if value is not None]

    def columns(self) -> list[str]:
        """Return the columns of the table of trials, in their order."""
        sweep = self.sweep
        known = {name for row in self.rows for name in row}
        wanted = [TRIAL, *self.varying, sweep.objective, *sweep.metrics]
        wanted += [TRAINER, "seed"]
        return [name for name in dict.fromkeys(wanted) if name in known]

    def tell(self, place: int | str) -> list[tuple[str, Any]]:
        """Return what a figure tells of a row: names and values, its trial's number first."""
        row = self.rows[int(place)]
        names = [TRIAL, self.sweep.objective, *self.varying[:_TOLD]]
        return [(name, row.get(name)) for name in dict.fromkeys(names)]

    def cells(self, place: int, columns: Iterable[str]) -> list[Any]:
        """Return a row's values for JSON: numbers, and text for all other values."""
        row = self.rows[place]
        return [_cell(row.get(name)) for name in columns]


def _with_none(row: Row) -> Row:
    """Return a row with None for empty text: a parameter that the trial does not have."""
    return {
        name: None if isinstance(value, str) and not value else value for name, value in row.items()
    }


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return show(value)
    number = as_number(value)
    if number is None:
        return show(value)
    return int(value) if number.is_integer() and abs(number) < 2**53 else float(f"{number:.7g}")
