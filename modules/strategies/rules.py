"""Rules that stop a trial early: asynchronous successive halving, and the median.

A rule says for every step at which trials report what score is good enough to go on: a *cutoff*.
The verdict on a trial is a pure function of its own reports and the cutoffs, so it can be given
from those of the moment (`EarlyStopping`) or from those of an earlier one (`Lagged`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from .window import WINDOW, Window

History = Sequence[tuple[int, float]]
"""The reports of a trial so far: step and score, larger scores better, steps rising."""

Cutoffs = Callable[[int], float]
"""Of a step: the least score that goes on; minus infinity where all go on."""


class Rule(Protocol):
    """Decides whether a trial is worth going on with."""

    def cutoff(self, step: int) -> float:
        """Return the least score that goes on at a step, as things are now."""
        ...

    def frozen(self) -> Cutoffs:
        """Return the cutoffs of this moment, which later reports will not change."""
        ...

    def stops(self, history: History, cutoffs: Cutoffs) -> bool:
        """Whether the last report of a trial ends it."""
        ...

    def reported(self, history: History) -> None:
        """Take the last report of a trial."""
        ...

    def completed(self, history: History) -> None:
        """Take a trial that came to its end."""
        ...


class Halving:
    """Asynchronous successive halving: at each rung one trial in `reduction` goes on.

    Rungs are at steps ``min_steps * reduction**i``. A trial that reaches one goes on if its score
    is among the best ``1 / reduction`` of all that have reached it; nobody waits for the others.
    The first ones at a rung go on only if they are the best so far.

    Parameters
    ----------
    min_steps : int, at least 1
        The first rung.
    reduction : int, at least 2
    window : int
        How many of the last scores count at a rung.

    References
    ----------
    .. [1] Li et al., A system for massively parallel hyperparameter tuning, MLSys 2020: ASHA, in
       the variant that stops trials and never resumes one, as in Optuna's
       SuccessiveHalvingPruner.
    """

    def __init__(self, min_steps: int = 1, reduction: int = 3, window: int = WINDOW) -> None:
        self._min_steps, self._reduction, self._window = min_steps, reduction, window
        # By the rung's step.
        self._rungs: dict[int, Window] = {}

    def cutoff(self, step: int) -> float:
        """Return the least score that is promoted at a rung, beside those that are there."""
        rung = self._rungs.get(step)
        if not rung:
            return -math.inf
        promoted = max((len(rung) + 1) // self._reduction, 1)
        return rung.largest(promoted)

    def frozen(self) -> Cutoffs:
        """Return the cutoffs of this moment."""
        cutoffs = {step: self.cutoff(step) for step in self._rungs}
        return lambda step: cutoffs.get(step, -math.inf)

    def stops(self, history: History, cutoffs: Cutoffs) -> bool:
        """Whether the last report falls short at a rung that it reaches."""
        score = history[-1][1]
        return any(not score >= cutoffs(step) for step in self._reached(history))

    def reported(self, history: History) -> None:
        """Take a report: it counts at the rungs up to the one where it falls short."""
        score = history[-1][1]
        for step in self._reached(history):
            if score != score:
                return
            goes_on = score >= self.cutoff(step)
            self._rungs.setdefault(step, Window(self._window)).add(score)
            if not goes_on:
                return

    def completed(self, history: History) -> None:
        """Do nothing: all that counts was reported."""

    def _reached(self, history: History) -> list[int]:
        """Return the rungs that the last report reaches and no earlier one has."""
        last = history[-1][0]
        before = history[-2][0] if len(history) > 1 else -1
        rungs, step = [], self._min_steps
        while step <= last:
            if step > before:
                rungs.append(step)
            step *= self._reduction
        return rungs


class Median:
    """Stops a trial whose best score so far is below the median of completed ones at this step.

    Parameters
    ----------
    startup_trials : int
        As many have to be completed before any is stopped.
    warmup_steps : int
        No trial is stopped before this step.
    window : int
        How many of the last completed trials count.

    References
    ----------
    .. [1] Golovin et al., Google Vizier, KDD 2017, section 3.2.2; Optuna's MedianPruner.
    """

    _FRACTION = 0.5

    def __init__(self, startup_trials: int = 5, warmup_steps: int = 0, window: int = 1024) -> None:
        self._startup, self._warmup, self._window = startup_trials, warmup_steps, window
        self._completed = 0
        self._steps: dict[int, Window] = {}

    def cutoff(self, step: int) -> float:
        """Return the median of completed trials at a step."""
        scores = self._steps.get(step)
        if self._completed < self._startup or step < self._warmup or not scores:
            return -math.inf
        return scores.quantile(self._FRACTION)

    def frozen(self) -> Cutoffs:
        """Return the cutoffs of this moment."""
        cutoffs = {step: self.cutoff(step) for step in self._steps}
        return lambda step: cutoffs.get(step, -math.inf)

    def stops(self, history: History, cutoffs: Cutoffs) -> bool:
        """Whether the best score so far is below the cutoff of the last step."""
        scores = [score for _, score in history if score == score]
        if not scores:
            return cutoffs(history[-1][0]) > -math.inf  # nothing but NaN
        return max(scores) < cutoffs(history[-1][0])

    def reported(self, history: History) -> None:
        """Do nothing: a trial counts once it is completed."""

    def completed(self, history: History) -> None:
        """Take all reports of a trial."""
        self._completed += 1
        for step, score in history:
            if score == score:
                self._steps.setdefault(step, Window(self._window)).add(score)
