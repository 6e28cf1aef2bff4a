"""Collects, from any number of rows, those that a report shows, in bounded memory.

It keeps counts, the rows that were better than all before them, the best `top` rows, the Pareto
front, a uniform sample of all rows and the first failures. Which rows the sample takes follows from
their number alone, so the same rows in the same order give the same report.

References
----------
.. [1] Li, Reservoir-Sampling Algorithms of Time Complexity O(n(1 + log(N/n))), 1994: algorithm L,
   which skips the rows that it does not take.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import heappush, heapreplace
from random import Random
from typing import Any, Final, TypeAlias

from diel import format_value

from ..pareto import ParetoFront
from .markup import LARGEST, as_number, show
from .sweep import DIVERGED, DONE, REASON, STATE, STOPPED, TRAINER, TRIAL, Sweep

Row: TypeAlias = Mapping[str, Any]

SAMPLE: Final = 1500
TOP: Final = 100
_STEPS: Final = 1000
_FRONT: Final = 400
_FAILURES_KEPT: Final = 50
_REASONS: Final = 20
_OTHER_REASONS: Final = "other reasons"
_TRAINERS: Final = 4096


@dataclass(frozen=True)
class ShownRow:
    """A row of the results that a report shows, with its score."""

    order: int
    """Number of rows before it."""
    score: float
    """Its objective, negated if less is better."""
    row: Row


class Gatherer:
    """Collects the rows that a report shows, and counts of all rows.

    Parameters
    ----------
    sample, top : int, optional
        Size of the random sample, and number of best rows.

    Attributes
    ----------
    count, failed, diverged, stopped, good : int
        Rows so far; how many of them failed; diverged (by their state, or because their objective
        is no finite number); were stopped early (those can be neither best nor on the front); have
        an objective.
    steps : list of ShownRow
        The rows that were better than all before them; every second one of the early ones is
        dropped where there are very many.
    reasons : Counter
        How many trials failed or diverged, by reason.
    failures : list of (int, Row)
        The first rows that failed or diverged, each with the number of rows before it.
    trainers : Counter
        Number of trials, by trainer.
    """

    def __init__(self, sweep: Sweep, *, sample: int = SAMPLE, top: int = TOP) -> None:
        self.sweep = sweep
        self.count = 0
        self.failed = 0
        self.diverged = 0
        self.stopped = 0
        self.good = 0
        self.steps: list[ShownRow] = []
        self.reasons: Counter[str] = Counter()
        self.failures: list[tuple[int, Row]] = []
        self.trainers: Counter[Any] = Counter()
        self.front: ParetoFront[tuple[int, Row]] = ParetoFront(_FRONT)
        self._reservoir = _Reservoir(sample)
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
            state = str(row.get(STATE) or "").lower()
            stopped = state in STOPPED
            if stopped:
                self.stopped += 1
            elif state in DIVERGED or (score != score and state in DONE):
                self.diverged += 1
                self._note_failure(order, row)
            elif state not in DONE:
                self.failed += 1
                self._note_failure(order, row)
            if score != score or not (stopped or state in DONE):
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
            if spent == spent:
                gained = better * _number(row.get(quality))
                if gained == gained:
                    self.front.add(order, (-spent, gained), (order, row))

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
        """How many rows have no result: they failed, or diverged."""
        return self.failed + self.diverged

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
