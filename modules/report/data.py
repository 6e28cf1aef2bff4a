"""What a report shows of a sweep: its description, its state, and rows of any number of trials.

A `RowSelection` keeps, in bounded memory, counts, the rows that were better than all before them,
the best `top` rows, the Pareto front, a uniform sample of all rows and the first failures. Which
rows the sample takes follows from their number alone, so the same rows in the same order give the
same report. A `SweepView` is what it holds at one time.

References
----------
.. [1] Li, Reservoir-Sampling Algorithms of Time Complexity O(n(1 + log(N/n))), 1994: algorithm L,
   which skips the rows that it does not take.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import heappush, heapreplace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from diel import format_value

from ..metrics import METRICS
from ..pareto import ParetoFront
from ..predictions import Predictions, read_predictions
from ..trial import OUT_OF_TIME
from .markup import LARGEST, as_number, show
from .panels import LinearScale, focus

if TYPE_CHECKING:
    from ..evaluation import BiasReport

# Columns that belong to every trial; rows need not have them.
TRIAL: Final = "trial"
TRAINER: Final = "trainer"
STATE: Final = "state"
"""How a trial ended: a state in neither `DONE` nor `STOPPED` nor `DIVERGED` is a failure, but for
those that begin as `OUT_OF_TIME` or `INFEASIBLE`."""
REASON: Final = "reason"
"""Why a trial failed; without a reason, its state is shown."""
STARTED: Final = "started_s"
"""When a trial began, in seconds since 1970."""
TOOK: Final = "seconds"
"""How long a trial took on its trainer, in seconds."""
CURVE: Final = "learning curve"
"""Steps and objectives that a trial reported: drawn, and in no table."""
LINEAGE: Final = "went on from"
"""The trial from which a trial went on, or None, the step at which that had ended, and the trial's
own last step: drawn, and in no table."""

DONE: Final = frozenset({"", "ok", "done", "finished", "complete", "completed"})
"""States of a trial whose objective counts."""
DIVERGED: Final = frozenset({"diverged"})
"""States of a trial that came to its end with NaN or infinity, and has no result."""
INFEASIBLE: Final = "infeasible"
"""Begins the state of a trial that breaks a constraint: it is shown, and never the best."""
STOPPED: Final = frozenset({"stopped", "pruned"})
"""States of a trial that was stopped early: its objective is of a training that is not over."""


@dataclass(frozen=True)
class Sweep:
    """What is known of a sweep from its start.

    Attributes
    ----------
    name : str
    objective : str
        The column that ranks the trials.
    maximise : bool
        Whether a larger value is better.
    parameters : sequence of str
        The columns that were chosen for a trial.
    metrics : sequence of str
        The columns that a trial reported; if none are named, those of the first row that are
        nothing else.
    expected : int or None
        How many trials there will be, where that is known.
    cost : str
        The column of what a trial costs: its training time in seconds.
    workflow : str
        The text of the workflow file.
    command : str
        The command that repeats the sweep.
    facts : mapping of str to str
        What else is needed to repeat it: versions, the machine, seeds.
    about : str
        What tells it from other sweeps of that name, in a few words.
    model : mapping of str to str
        How to use the model of the best trial: its ``file``, a ``command`` that scores new rows
        with it, and the same in ``python``; and the file of its ``predictions``, if there is one.
        Empty if there is no model.
    """

    name: str
    objective: str
    maximise: bool
    parameters: Sequence[str]
    metrics: Sequence[str] = ()
    expected: int | None = None
    cost: str = "training_time_s"
    workflow: str = ""
    command: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    about: str = ""
    model: Mapping[str, str] = field(default_factory=dict)

    def metrics_of(self, row: Mapping[str, Any]) -> list[str]:
        """Return the columns of a row that are metrics of the trial."""
        known = {TRIAL, TRAINER, STATE, REASON, CURVE, LINEAGE, "seed", STARTED, TOOK}
        known -= {self.objective, self.cost}  # which may have such a name
        return [name for name in row if name not in known and name not in self.parameters]

    @property
    def direction(self) -> str:
        """The word for the better end of the objective: ``highest`` or ``lowest``."""
        return "highest" if self.maximise else "lowest"

    @property
    def quality(self) -> str:
        """The column that is shown against the cost: the objective, unless that is the cost."""
        if self.objective != self.cost:
            return self.objective
        metrics = [name for name in self.metrics if name != self.cost]
        return "accuracy" if "accuracy" in metrics or not metrics else metrics[0]

    @property
    def maximise_quality(self) -> bool:
        """Whether more of `quality` is better."""
        if self.quality == self.objective:
            return self.maximise
        return self.quality in METRICS and METRICS[self.quality].maximise


@dataclass(frozen=True)
class RankAccount:
    """How one rank spent its time, from the journal's record ``TimeAccounted``."""

    rank: int
    host: str
    copies: Sequence[str]
    """Copies of modules that ran on the rank."""
    working_s: float
    waiting_s: float
    communicating_s: float
    cpu_s: float | None = None
    """CPU time in all of this; None where it was not measured."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> RankAccount:
        """Return the account of a rank from the journal's record ``TimeAccounted``."""
        known = [name for name in cls.__dataclass_fields__ if name != "cpu_s"]
        return cls(**{name: record[name] for name in known}, cpu_s=record.get("cpu_s"))


@dataclass(frozen=True)
class Moment:
    """How a sweep stood when its report was written: running or over, its time, its bias.

    Attributes
    ----------
    state : str
        ``running``, ``finished``, ``failed`` or ``stopped``.
    elapsed_s : float or None
        Seconds since the sweep began, or was resumed.
    written : str
        Date and time, in words.
    accounts : sequence of RankAccount
        Known when the run has ended.
    bias : BiasReport or None
        Selection bias of the best score.
    earlier : int
        How many trials are from before that time, in a sweep that was resumed.
    reload_s : float or None
        How often a browser reads the page again.
    """

    state: str = "finished"
    elapsed_s: float | None = None
    written: str = ""
    accounts: Sequence[RankAccount] = ()
    bias: BiasReport | None = None
    earlier: int = 0
    reload_s: float | None = None


# -- the selection of rows ------------------------------------------------------------------------

Row: TypeAlias = Mapping[str, Any]

SAMPLE: Final = 1500
TOP: Final = 100
_STEPS: Final = 1000
_FRONT: Final = 400
_FAILURES_KEPT: Final = 50
_REASONS: Final = 20
_OTHER_REASONS: Final = "other reasons"
_TRAINERS: Final = 4096
SHADES: Final = 7
"""Steps of the colour scale, from the worst to the best."""
_LINES: Final = 700
_INFEASIBLE: Final = 300
"""Trials that break constraints, of those that are shown."""
_TOLD: Final = 10
BEST_CURVES: Final = 10
STOPPED_CURVES: Final = 40


@dataclass(frozen=True)
class ShownRow:
    """A row of the results that a report shows, with its score."""

    order: int
    """Number of rows before it."""
    score: float
    """Its objective, negated if less is better."""
    row: Row


class RowSelection:
    """Collects the rows that a report shows, and counts of all rows.

    Parameters
    ----------
    sample, top : int, optional
        Size of the random sample, and number of best rows.

    Attributes
    ----------
    count, failed, diverged, infeasible, stopped, out_of_time, good : int
        Rows so far; how many of them failed; diverged (by their state, or because their objective
        is no finite number); break a constraint; were stopped early (those two can be neither best
        nor on the front); were ended by time; have an objective that counts.
    steps : list of ShownRow
        The rows that were better than all before them; every second one of the early ones is
        dropped where there are very many.
    reasons : Counter
        How many trials failed, diverged or break a constraint, by reason.
    failures : list of (int, Row)
        The first of these rows, each with the number of rows before it.
    trainers : Counter
        Number of trials, by trainer.
    """

    def __init__(self, sweep: Sweep, *, sample: int = SAMPLE, top: int = TOP) -> None:
        self.sweep = sweep
        self.count = 0
        self.failed = 0
        self.diverged = 0
        self.infeasible = 0
        self.stopped = self.out_of_time = 0
        self.good = 0
        self.steps: list[ShownRow] = []
        self.reasons: Counter[str] = Counter()
        self.failures: list[tuple[int, Row]] = []
        self.trainers: Counter[Any] = Counter()
        self.front: ParetoFront[tuple[int, Row]] = ParetoFront(_FRONT)
        self._reservoir = _Reservoir(sample)
        self._infeasible, self._seen_infeasible = _Reservoir(_INFEASIBLE), 0
        self._top_size = top
        self._top: list[tuple[float, float, int, Row]] = []

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows in the order in which their trials finished.

        Rows are kept, not copied: they must not be changed later.
        """
        sweep = self.sweep
        objective, cost = sweep.objective, sweep.cost
        quality, better = sweep.quality, 1.0 if sweep.maximise_quality else -1.0
        sign = 1.0 if sweep.maximise else -1.0
        for row in rows:
            order = self.count
            self.count = order + 1
            spent = _number(row.get(cost))
            self._note_trainer(row.get(TRAINER))
            score = sign * _number(row.get(objective))
            stopped = self._note_state(order, row, is_scored=score == score)
            if score != score or stopped is None:
                continue
            number = self.good
            self.good = number + 1
            if number >= self._reservoir.next_taken:
                self._reservoir.take(number, (order, row))
            if stopped:
                continue
            if not self.steps and not sweep.metrics:
                self.sweep = sweep = replace(sweep, metrics=sweep.metrics_of(row))
                quality, better = sweep.quality, 1.0 if sweep.maximise_quality else -1.0
            if not self.steps or score > self.steps[-1].score:
                self._note_step(ShownRow(order, score, row))
            if len(self._top) < self._top_size or score >= self._top[0][0]:
                self._note_top(score, order, row)
            gained = better * _number(row.get(quality))
            if spent == spent and gained == gained:
                self.front.add(order, (-spent, gained), (order, row))

    def _note_state(self, order: int, row: Row, *, is_scored: bool) -> bool | None:
        """Count a row by its state; return whether it was stopped early, None if it was lost."""
        state = str(row.get(STATE) or "").lower()
        if state in STOPPED:
            self.stopped += 1
            return True
        is_late = state.startswith(OUT_OF_TIME)
        if is_scored and (state in DONE or is_late):
            self.out_of_time += is_late
            return False
        if is_infeasible(row):
            self.infeasible += 1
            if is_scored:
                if self._seen_infeasible >= self._infeasible.next_taken:
                    self._infeasible.take(self._seen_infeasible, (order, row))
                self._seen_infeasible += 1
        elif state in DIVERGED or state in DONE:
            self.diverged += 1
        else:
            self.failed += 1
        self._note_failure(order, row)
        return None

    @property
    def top(self) -> list[ShownRow]:
        """The best rows, the best first; of equals the one with the smaller number."""
        ranked = sorted(self._top, key=lambda entry: (-entry[0], -entry[1], entry[2]))
        return [ShownRow(order, score, row) for score, _, order, row in ranked]

    @property
    def sampled(self) -> list[tuple[int, Row]]:
        """The rows of the sample, in the order in which they came."""
        return sorted(self._reservoir.rows, key=lambda entry: entry[0])

    @property
    def sampled_infeasible(self) -> list[tuple[int, Row]]:
        """Rows that break constraints, of very many a sample, in the order in which they came."""
        return sorted(self._infeasible.rows, key=lambda entry: entry[0])

    @property
    def shows_all(self) -> bool:
        """Whether the sample holds every row that has an objective."""
        return len(self._reservoir.rows) == self.good

    def _note_step(self, step: ShownRow) -> None:
        self.steps.append(step)
        if len(self.steps) > _STEPS:
            half = len(self.steps) // 2
            del self.steps[1:half:2]

    def _note_top(self, score: float, order: int, row: Row) -> None:
        number = as_number(row.get(TRIAL))
        tie = -float(order) if number is None else -number
        entry = (score, tie, order, row)
        if len(self._top) < self._top_size:
            heappush(self._top, entry)
        elif entry[:2] > self._top[0][:2]:
            heapreplace(self._top, entry)

    @property
    def lost(self) -> int:
        """How many rows have no result that counts: they failed, diverged or break a constraint."""
        return self.failed + self.diverged + self.infeasible

    def _note_failure(self, order: int, row: Row) -> None:
        reason = row.get(REASON) or row.get(STATE)
        text = format_value(" ".join(str(reason or "").split()), longest=200)
        if not text or text.lower() in DONE:
            text = f"{self.sweep.objective} is {show(row.get(self.sweep.objective))}"
        if text not in self.reasons and len(self.reasons) >= _REASONS:
            text = _OTHER_REASONS
        self.reasons[text] += 1
        if len(self.failures) < _FAILURES_KEPT:
            self.failures.append((order, row))

    def _note_trainer(self, trainer: Any) -> None:
        if trainer is not None and (trainer in self.trainers or len(self.trainers) < _TRAINERS):
            self.trainers[trainer] += 1


def is_infeasible(row: Row) -> bool:
    """Whether the trial of a row breaks a constraint."""
    return str(row.get(STATE)).lower().startswith(INFEASIBLE)


class _Reservoir:
    """A uniform random sample of rows, of bounded size."""

    def __init__(self, size: int) -> None:
        self.rows: list[tuple[int, Row]] = []
        self.next_taken = 0
        self._size = size
        self._random = Random(0)
        self._weight = 1.0

    def take(self, order: int, entry: tuple[int, Row]) -> None:
        """Take a row whose number is `next_taken` or more."""
        if len(self.rows) < self._size:
            self.rows.append(entry)
            if len(self.rows) == self._size:
                self._skip(order)
            return
        self.rows[self._random.randrange(self._size)] = entry
        self._skip(order)

    def _skip(self, order: int) -> None:
        self._weight *= math.exp(math.log(1.0 - self._random.random()) / self._size)
        step = math.log(1.0 - self._random.random()) / math.log1p(-self._weight)
        self.next_taken = order + 1 + int(min(step, 2.0**60))


def _number(value: Any) -> float:
    """Return a value as a float; NaN if it is no number, or beyond what can be drawn."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return number if -LARGEST <= number <= LARGEST else math.nan


# -- the rows at one time -------------------------------------------------------------------------


@dataclass(frozen=True)
class SweepView:
    """The rows that a report shows: a sample, improvements, the best and the Pareto front."""

    selection: RowSelection
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
    infeasible: list[int]
    """Indices of rows that break constraints, which are in none of the other lists."""

    @classmethod
    def of(cls, selection: RowSelection, moment: Moment) -> SweepView:
        """Choose the rows that a report shows from those that were selection."""
        steps, top = selection.steps, selection.top
        front, sampled = selection.front.front, selection.sampled
        infeasible = selection.sampled_infeasible
        by_order = dict(sampled)
        by_order.update(infeasible)
        by_order.update((kept.order, kept.row) for kept in (*steps, *top))
        by_order.update(front)
        orders = sorted(by_order)
        number = {order: place for place, order in enumerate(orders)}

        def places(kept: Iterable[ShownRow]) -> list[int]:
            return [number[row.order] for row in kept]

        return cls(
            selection,
            moment,
            [_with_none(by_order[order]) for order in orders],
            orders,
            [number[order] for order, _ in sampled],
            places(steps),
            places(top),
            [number[order] for order, _ in front],
            [number[order] for order, _ in infeasible],
        )

    @property
    def sweep(self) -> Sweep:
        """The sweep that the rows are from."""
        return self.selection.sweep

    @cached_property
    def predictions(self) -> Predictions | None:
        """Predictions of the best trial's model, if they are there."""
        file = self.sweep.model.get("predictions")
        return None if file is None else read_predictions(Path(file))

    @property
    def trials_text(self) -> str:
        """How many trials have an objective, in words."""
        return f"{self.selection.good:,} trial{'s' if self.selection.good != 1 else ''}"

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
