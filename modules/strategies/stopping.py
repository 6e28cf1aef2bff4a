"""Stopping trials early: asynchronous successive halving, the median, and how they are applied.

A rule says for every step at which trials report what score is good enough to go on: a *cutoff*.
The verdict on a trial is a pure function of its own reports and the cutoffs, so it can be given
from the current cutoffs (`StrategyWithRule`) or from those of an earlier moment (`Lagged`).
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from typing import Annotated, Protocol

from pydantic import Field

from ..space import Parameters
from .catalogue import stopping_rule, strategy
from .strategy import WAIT, Random, Strategy, Wait

WINDOW = 4096
"""How many scores are kept at most: a rule costs the same after any number of trials."""


class Window:
    """The last `limit` numbers that were added."""

    def __init__(self, limit: int = WINDOW) -> None:
        self._limit = limit
        self._arrived: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, score: float) -> None:
        """Add a number, not NaN; the oldest one leaves when there are too many."""
        if len(self._sorted) == self._limit:
            del self._sorted[bisect_left(self._sorted, self._arrived.popleft())]
        self._arrived.append(score)
        insort(self._sorted, score)

    def largest(self, place: int) -> float:
        """Return the `place`-th largest number; place 1 is the largest."""
        return self._sorted[-place]

    def quantile(self, fraction: float) -> float:
        """Return a quantile, linear between two numbers, as `numpy.quantile` does."""
        position = fraction * (len(self._sorted) - 1)
        below = int(position)
        above = min(below + 1, len(self._sorted) - 1)
        low, high = self._sorted[below], self._sorted[above]
        return low if low == high else low + (position - below) * (high - low)


History = Sequence[tuple[int, float]]
"""The reports of a trial so far: step and score, larger scores better, steps rising."""

Cutoffs = Callable[[int], float]
"""From a step to the least score that goes on there; minus infinity where all go on."""


class StoppingRule(Protocol):
    """Decides whether a trial is stopped early."""

    def cutoff(self, step: int) -> float:
        """Return the least score that goes on at a step, by the reports so far."""
        ...

    def frozen(self) -> Cutoffs:
        """Return the cutoffs of this moment, which later reports will not change."""
        ...

    def stops(self, history: History, cutoffs: Cutoffs) -> bool:
        """Whether the last report of a trial ends it."""
        ...

    def reported(self, history: History) -> None:
        """Record the last report of a trial."""
        ...

    def completed(self, history: History) -> None:
        """Record a trial that came to its end."""
        ...


@stopping_rule("halving")
class Halving:
    """Asynchronous successive halving: at each rung one trial in `reduction` goes on.

    Rungs are at steps ``min_steps * reduction**i``. A trial that reaches one goes on if its score
    is among the best ``1 / reduction`` of all that have reached it; no trial waits for others.
    The first trials at a rung go on only if they are the best so far.

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

    def __init__(
        self,
        min_steps: Annotated[int, Field(ge=1, description="the step of the first rung")] = 1,
        reduction: Annotated[
            int, Field(ge=2, description="the ratio of a rung's step to that before")
        ] = 3,
        window: int = WINDOW,
    ) -> None:
        self._min_steps, self._reduction, self._window = min_steps, reduction, window
        # Scores at each rung, by its step.
        self._rungs: dict[int, Window] = {}

    def cutoff(self, step: int) -> float:
        """Return the least score that is promoted at a rung, by the scores that are there."""
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
        """Record a report: it counts at the rungs up to the one where it falls short."""
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


strategy("halving", rule="halving")(Random)


@stopping_rule("median")
class Median:
    """Stops a trial whose best score so far is below the median of completed ones at this step.

    Parameters
    ----------
    startup_trials : int
        Number of trials that have to be completed before any is stopped.
    warmup_steps : int
        No trial is stopped before this step.
    window : int
        How many of the last completed trials count.

    References
    ----------
    .. [1] Golovin et al., Google Vizier, KDD 2017, section 3.2.2; Optuna's MedianPruner.
    """

    _FRACTION = 0.5

    def __init__(
        self,
        startup_trials: Annotated[
            int, Field(ge=1, description="completed trials before any is stopped")
        ] = 5,
        warmup_steps: Annotated[
            int, Field(ge=0, description="steps before any trial is stopped")
        ] = 0,
        window: int = 1024,
    ) -> None:
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
        """Record all reports of a completed trial."""
        self._completed += 1
        for step, score in history:
            if score == score:
                self._steps.setdefault(step, Window(self._window)).add(score)


class StrategyWithRule:
    """Asks a strategy, and stops trials by a rule.

    Notes
    -----
    Which trials are stopped depends on the order in which reports come; with `Lagged` it does not.
    """

    def __init__(self, strategy: Strategy, rule: StoppingRule) -> None:
        self.strategy, self.rule = strategy, rule
        self.size = getattr(strategy, "size", None)
        self.is_stateless = bool(getattr(strategy, "is_stateless", False))
        # Of trials in flight: their reports, and the last step that the rule has recorded.
        self._histories: dict[int, list[tuple[int, float]]] = {}
        self._taken: dict[int, int] = {}

    def ask(self, trial: int) -> Parameters | Wait | None:
        """Return the parameters that the strategy chooses for a trial."""
        return self.strategy.ask(trial)

    def report(self, trial: int, step: int, score: float) -> bool:
        """Record an intermediate score; True if the trial is to be stopped.

        A trial that starts again reports the same steps again; they count once.
        """
        history = extended(self._histories.setdefault(trial, []), step, score)
        stops = self.rule.stops(history, self.rule.cutoff)
        if step > self._taken.get(trial, -1):
            self._taken[trial] = step
            self.rule.reported(history)
        return stops

    def tell(self, trial: int, parameters: Parameters, score: float | None) -> None:
        """Record the score of a trial; None if it failed or was stopped."""
        history = self._histories.pop(trial, [])
        self._taken.pop(trial, None)
        if score is not None:
            self.rule.completed(history)
        self.strategy.tell(trial, parameters, score)

    def add(self, parameters: Parameters, score: float) -> None:
        """Take a score of a point that was not asked for."""
        if (add := getattr(self.strategy, "add", None)) is not None:
            add(parameters, score)


def extended(history: list[tuple[int, float]], step: int, score: float) -> list[tuple[int, float]]:
    """Add a report in place; reports from that step on, of an earlier try of the trial, go."""
    while history and history[-1][0] >= step:
        history.pop()
    history.append((step, score))
    return history


class Lagged:
    """Makes an adaptive strategy reproducible: trial t depends on trials before ``t - lag`` alone.

    Parameters
    ----------
    lag : int, at least 1
        At most ``lag + 1`` trials can be in flight: enough that no trainer waits, but no more,
        since the strategy learns later by as many trials.
    rule : StoppingRule, optional
        Stops trials early, by the reports of the same trials.

    Notes
    -----
    After a crash, tell it everything that was recorded, in any order, and `ask` for every trial
    again in order, also for those that were recorded: what it returns for them is known already.
    """

    is_stateless = False

    def __init__(self, strategy: Strategy, lag: int, rule: StoppingRule | None = None) -> None:
        self.strategy, self.rule, self._lag = strategy, rule, lag
        self.size = getattr(strategy, "size", None)
        self._told = 0
        self._early: dict[int, tuple[Parameters, float | None]] = {}
        self._histories: dict[int, list[tuple[int, float]]] = {}
        self._cutoffs: dict[int, Cutoffs] = {}

    def ask(self, trial: int) -> Parameters | Wait | None:
        """Return the strategy's parameters; `WAIT` until every trial before the lag is recorded."""
        while self._told < trial - self._lag:
            if self._told not in self._early:
                return WAIT
            self._apply(self._told, *self._early.pop(self._told))
            self._told += 1
        asked = self.strategy.ask(trial)
        if self.rule is not None and isinstance(asked, dict) and trial not in self._early:
            self._cutoffs[trial] = self.rule.frozen()
        return asked

    def report(self, trial: int, step: int, score: float) -> bool:
        """Record an intermediate score; True if the trial is to be stopped."""
        if self.rule is None:
            return False
        history = extended(self._histories.setdefault(trial, []), step, score)
        # Without an entry the trial is replayed from a record: its verdict is known.
        cutoffs = self._cutoffs.get(trial)
        return cutoffs is not None and self.rule.stops(history, cutoffs)

    def tell(self, trial: int, parameters: Parameters, score: float | None) -> None:
        """Keep a score until all earlier trials have been recorded."""
        self._early[trial] = (parameters, score)
        self._cutoffs.pop(trial, None)

    def add(self, parameters: Parameters, score: float) -> None:
        """Take a score of a point that was not asked for."""
        if (add := getattr(self.strategy, "add", None)) is not None:
            add(parameters, score)

    def _apply(self, trial: int, parameters: Parameters, score: float | None) -> None:
        history = self._histories.pop(trial, [])
        if self.rule is not None:
            for length in range(1, len(history) + 1):
                self.rule.reported(history[:length])
            if score is not None:
                self.rule.completed(history)
        self.strategy.tell(trial, parameters, score)


def with_rule(strategy: Strategy, rule: StoppingRule | None, lag: int | None) -> Strategy:
    """Wrap a strategy in a stopping rule and a lag, where there are any."""
    if lag is not None and (rule is not None or not getattr(strategy, "is_stateless", False)):
        return Lagged(strategy, lag, rule)
    return StrategyWithRule(strategy, rule) if rule is not None else strategy
