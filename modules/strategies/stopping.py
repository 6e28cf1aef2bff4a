"""Stopping trials early: asynchronous halving, Hyperband, the median, and how they are applied.

A rule says for every step at which trials report what score is good enough to go on: a *cutoff*.
The verdict on a trial is a pure function of its own reports and the cutoffs, so it can be given
from the current cutoffs (`StrategyWithRule`) or from those of an earlier moment (`Lagged`). What a
rule judges by can be sent as plain data (`Cutoffs`): trials that are trained together are judged
where they train, by a `Cohort`, and nobody waits for an answer.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Annotated, Any, Final, Protocol

from pydantic import Field

from ..space import Parameters
from .catalogue import make_rule, stopping_rule, strategy
from .strategy import WAIT, Random, Strategy, Wait

_MOST_STEPS: Final = 2**31
_GOLDEN: Final = (math.sqrt(5) - 1) / 2
"""Multiples of it, without their whole parts, lie evenly between 0 and 1."""
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

    def from_largest(self, first: int, last: int) -> list[float]:
        """Return the numbers from the `first`-th largest to the `last`-th, as far as there are."""
        end = len(self._sorted)
        return self._sorted[max(end - last, 0) : end - first + 1][::-1]

    def quantile(self, fraction: float) -> float:
        """Return a quantile, linear between two numbers, as `numpy.quantile` does."""
        position = fraction * (len(self._sorted) - 1)
        below = int(position)
        above = min(below + 1, len(self._sorted) - 1)
        low, high = self._sorted[below], self._sorted[above]
        return low if low == high else low + (position - below) * (high - low)


History = Sequence[tuple[int, float]]
"""The reports of a trial so far: step and score, larger scores better, steps rising."""

Cutoff = Callable[[int], float]
"""From a step to the least score that goes on there; minus infinity where all go on."""


@dataclass(frozen=True)
class Cutoffs:
    """What a rule judges by at one moment: plain data, which later reports do not change."""

    rule: Mapping[str, Any]
    """The table of the rule, from which `make_rule` makes one that judges alike."""
    numbers: Mapping[int, Sequence[float]]
    """By step, the numbers from which `StoppingRule.least` has the cutoff."""


class StoppingRule(Protocol):
    """Decides whether a trial is stopped early."""

    def bracket(self, trial: int) -> StoppingRule:
        """Return the rule of a trial: this one, or that of the bracket in which the trial is."""
        ...

    @property
    def steps(self) -> Sequence[int]:
        """The steps at which a report may end a trial, ascending; empty if all steps may."""
        ...

    def cutoff(self, step: int) -> float:
        """Return the least score that goes on at a step, by the reports so far."""
        ...

    def frozen(self, together: int = 1) -> Cutoffs:
        """Return what to judge so many trials of a lease by that begins now."""
        ...

    def least(self, numbers: Sequence[float], scores: Sequence[float]) -> float:
        """Return the least score that goes on at a step.

        `numbers` are those of `Cutoffs` for the step, empty if it has none, and `scores` those of
        the trials there that are trained together, without NaN.
        """
        ...

    def stops(self, history: History, cutoff: Cutoff) -> bool:
        """Whether the last report of a trial ends it."""
        ...

    def reported(self, history: History) -> None:
        """Record the last report of a trial."""
        ...

    def completed(self, history: History) -> None:
        """Record a trial that came to its end."""
        ...


class Cohort:
    """Trials of one lease, which are judged where they run: by its cutoffs and by each other."""

    def __init__(self, cutoffs: Cutoffs) -> None:
        self._rule, self._numbers = make_rule(cutoffs.rule), cutoffs.numbers
        self._histories: dict[int, list[tuple[int, float]]] = {}
        self._scores: dict[int, dict[int, float]] = {}

    @property
    def steps(self) -> Sequence[int]:
        """As `StoppingRule.steps`."""
        return self._rule.steps

    def report(self, step: int, scores: Mapping[int, float]) -> set[int]:
        """Record the scores of trials that have come to a step; return those that are to end.

        All trials that are there are compared with each other, those of earlier calls included. A
        trial that starts again counts once.
        """
        there = self._scores.setdefault(step, {})
        there.update((trial, score) for trial, score in scores.items() if score == score)
        for trial, score in scores.items():
            extended(self._histories.setdefault(trial, []), step, score)

        def cutoff(step: int) -> float:
            here = self._scores.get(step, {})
            return self._rule.least(self._numbers.get(step, ()), [*here.values()])

        return {trial for trial in scores if self._rule.stops(self._histories[trial], cutoff)}


@stopping_rule("halving")
class Halving:
    """Asynchronous successive halving: at each rung one trial in `reduction` goes on.

    Rungs are at steps ``min_steps * reduction**i``. A trial that reaches one goes on if its score
    is among the best ``1 / reduction`` of all that have reached it; no trial waits for others.
    The first trials at a rung go on only if they are the best so far. Trials that are trained
    together come to a rung at once: each is compared with all others and with all before them, so
    that of a first cohort the best ``1 / reduction`` go on.

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

    @property
    def steps(self) -> Sequence[int]:
        """The steps of all rungs that a trial may reach."""
        rungs = (self._min_steps * self._reduction**place for place in range(_MOST_STEPS))
        return [*takewhile(lambda step: step <= _MOST_STEPS, rungs)]

    def bracket(self, trial: int) -> StoppingRule:
        """Return this rule."""
        return self

    def cutoff(self, step: int) -> float:
        """Return the least score that is promoted at a rung, by the scores that are there."""
        rung = self._rungs.get(step)
        if not rung:
            return -math.inf
        promoted = max((len(rung) + 1) // self._reduction, 1)
        return rung.largest(promoted)

    def frozen(self, together: int = 1) -> Cutoffs:
        """Return, of each rung, how many scores there are, and those between which a cutoff lies.

        So many trials move the cutoff by no more than their number of places, up or down.
        """
        table = {"rule": "halving", "min_steps": self._min_steps, "reduction": self._reduction}
        numbers = {}
        for step, rung in self._rungs.items():
            first = max(len(rung) // self._reduction - together + 1, 1)
            last = max((len(rung) + together) // self._reduction, 1)
            numbers[step] = [len(rung), first - 1, *rung.from_largest(first, last)]
        return Cutoffs(table, numbers)

    def least(self, numbers: Sequence[float], scores: Sequence[float]) -> float:
        """Return the least score that is promoted, of those before and of those trained together.

        `numbers` are how many scores there were before, how many of these are larger than those
        that follow, and the ones around the cutoff, the largest first.
        """
        count, larger, *before = numbers or (0, 0)
        promoted = max(int(count + max(len(scores), 1)) // self._reduction, 1)
        others = sorted([*before, *scores], reverse=True)
        place = promoted - int(larger)
        return others[place - 1] if place <= len(others) else -math.inf

    def stops(self, history: History, cutoff: Cutoff) -> bool:
        """Whether the last report falls short at a rung that it reaches."""
        score = history[-1][1]
        return any(not score >= cutoff(step) for step in self._reached(history))

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


@stopping_rule("hyperband")
class Hyperband(Halving):
    """Successive halving in several brackets, each of which begins a rung later (Hyperband).

    Where early scores say little about late ones, a later first rung is better; which one is, need
    not be known. Each bracket gets about the same part of all steps: so the first one has most
    trials, and which one a trial is in follows from its number.

    Parameters
    ----------
    min_steps : int, at least 1
        The first rung of the first bracket.
    reduction : int, at least 2
    brackets : int, at least 1
    window : int
        As for `Halving`.

    References
    ----------
    .. [1] Li et al., Hyperband: a novel bandit-based approach to hyperparameter optimization,
       JMLR 18, 2018; with a model that is told of all trials, Falkner et al., BOHB, ICML 2018.
    """

    def __init__(
        self,
        min_steps: Annotated[
            int, Field(ge=1, description="the step of the first bracket's first rung")
        ] = 1,
        reduction: Annotated[
            int, Field(ge=2, description="the ratio of a rung's step to that before")
        ] = 3,
        brackets: Annotated[
            int, Field(ge=1, le=16, description="each begins a rung later than the one before")
        ] = 3,
        window: int = WINDOW,
    ) -> None:
        super().__init__(min_steps, reduction, window)
        later = range(1, brackets)
        self._brackets = [
            self,
            *(Halving(min_steps * reduction**place, reduction, window) for place in later),
        ]
        # Trials of a bracket with so many rungs left before the last one's, as in [1].
        left = reversed(range(brackets))
        trials = [brackets * reduction**rungs / (rungs + 1) for rungs in left]
        self._ends = [sum(trials[: place + 1]) / sum(trials) for place in range(brackets)]

    def bracket(self, trial: int) -> StoppingRule:
        """Return the rule of a trial's bracket; neighbours are spread over all of them."""
        share = (trial * _GOLDEN) % 1.0
        return self._brackets[bisect_left(self._ends[:-1], share)]


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

    def bracket(self, trial: int) -> StoppingRule:
        """Return this rule."""
        return self

    @property
    def steps(self) -> Sequence[int]:
        """Nothing: any report may end a trial."""
        return ()

    def frozen(self, together: int = 1) -> Cutoffs:
        """Return the medians of this moment, however many trials are trained together."""
        numbers = {step: [self.cutoff(step)] for step in self._steps}
        return Cutoffs({"rule": "median"}, numbers)

    def least(self, numbers: Sequence[float], scores: Sequence[float]) -> float:
        """Return the median: a trial that is not completed is compared with no other."""
        return numbers[0] if numbers else -math.inf

    def stops(self, history: History, cutoff: Cutoff) -> bool:
        """Whether the best score so far is below the cutoff of the last step."""
        scores = [score for _, score in history if score == score]
        if not scores:
            return cutoff(history[-1][0]) > -math.inf  # nothing but NaN
        return max(scores) < cutoff(history[-1][0])

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

    def ask_alike(
        self, trial: int, like: Parameters, free: Collection[str]
    ) -> Parameters | Wait | None:
        """Return parameters that agree with `like` in all but those in `free`; None for none."""
        return _ask_alike(self.strategy, trial, like, free)

    def report(self, trial: int, step: int, score: float) -> bool:
        """Record an intermediate score; True if the trial is to be stopped.

        A trial that starts again reports the same steps again; they count once.
        """
        history = extended(self._histories.setdefault(trial, []), step, score)
        rule = self.rule.bracket(trial)
        stops = rule.stops(history, rule.cutoff)
        if step > self._taken.get(trial, -1):
            self._taken[trial] = step
            rule.reported(history)
        return stops and not self._lets_all_finish

    def cohorts(self, trials: Sequence[int]) -> tuple[list[Cutoffs], list[int]]:
        """Return what to judge the trials of a lease by, and by which of it each one.

        Trials that have the same cutoffs are compared with each other.
        """
        if self._lets_all_finish:
            alone = [replace(self.rule.bracket(trial).frozen(), numbers={}) for trial in trials]
            return alone, [*range(len(trials))]
        rules = [self.rule.bracket(trial) for trial in trials]
        brackets = list(dict.fromkeys(rules))
        cutoffs = [rule.frozen(rules.count(rule)) for rule in brackets]
        return cutoffs, [brackets.index(rule) for rule in rules]

    @property
    def _lets_all_finish(self) -> bool:
        return getattr(self.strategy, "lets_all_finish", False)

    def tell(self, trial: int, parameters: Parameters, score: float | None) -> None:
        """Record the score of a trial; None if it failed or was stopped."""
        history = self._histories.pop(trial, [])
        self._taken.pop(trial, None)
        if score is not None:
            self.rule.bracket(trial).completed(history)
        _tell(self.strategy, trial, parameters, history, score)

    def add(self, parameters: Parameters, score: float) -> None:
        """Take a score of a point that was not asked for."""
        if (add := getattr(self.strategy, "add", None)) is not None:
            add(parameters, score)


def _ask_alike(
    strategy: Strategy, trial: int, like: Parameters, free: Collection[str]
) -> Parameters | Wait | None:
    ask_alike = getattr(strategy, "ask_alike", None)
    found: Parameters | Wait | None = None if ask_alike is None else ask_alike(trial, like, free)
    return found


def _tell(
    strategy: Strategy, trial: int, parameters: Parameters, history: History, score: float | None
) -> None:
    """Tell a strategy the score of a trial, and its reports if it learns from these."""
    if (tell_curve := getattr(strategy, "tell_curve", None)) is None:
        strategy.tell(trial, parameters, score)
    else:
        reports = [report for report in history if report[1] == report[1]]
        tell_curve(trial, parameters, reports, score)


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
        return self._asked(trial, self.strategy.ask)

    def ask_alike(
        self, trial: int, like: Parameters, free: Collection[str]
    ) -> Parameters | Wait | None:
        """Return parameters that agree with `like` in all but those in `free`; None for none."""
        return self._asked(trial, lambda number: _ask_alike(self.strategy, number, like, free))

    def _asked(
        self, trial: int, ask: Callable[[int], Parameters | Wait | None]
    ) -> Parameters | Wait | None:
        while self._told < trial - self._lag:
            if self._told not in self._early:
                return WAIT
            self._apply(self._told, *self._early.pop(self._told))
            self._told += 1
        asked = ask(trial)
        if self.rule is not None and isinstance(asked, dict) and trial not in self._early:
            self._cutoffs[trial] = self.rule.bracket(trial).frozen()
        return asked

    def report(self, trial: int, step: int, score: float) -> bool:
        """Record an intermediate score; True if the trial is to be stopped."""
        if self.rule is None:
            return False
        history = extended(self._histories.setdefault(trial, []), step, score)
        # Without an entry the trial is replayed from a record: its verdict is known.
        cutoffs, rule = self._cutoffs.get(trial), self.rule.bracket(trial)
        return cutoffs is not None and rule.stops(
            history, lambda step: rule.least(cutoffs.numbers.get(step, ()), ())
        )

    def cohorts(self, trials: Sequence[int]) -> tuple[list[Cutoffs], list[int]] | None:
        """Return the cutoffs of each trial; None without a rule.

        Which trials are trained together depends on the number of trainers, so none is compared
        with another of them.
        """
        if self.rule is None or any(trial not in self._cutoffs for trial in trials):
            return None
        return [self._cutoffs[trial] for trial in trials], [*range(len(trials))]

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
            rule = self.rule.bracket(trial)
            for length in range(1, len(history) + 1):
                rule.reported(history[:length])
            if score is not None:
                rule.completed(history)
        _tell(self.strategy, trial, parameters, history, score)


def with_rule(strategy: Strategy, rule: StoppingRule | None, lag: int | None) -> Strategy:
    """Wrap a strategy in a stopping rule and a lag, where there are any."""
    kinds = ("is_stateless", "is_reproducible")
    if lag is not None and (rule or not any(getattr(strategy, kind, False) for kind in kinds)):
        return Lagged(strategy, lag, rule)
    return StrategyWithRule(strategy, rule) if rule is not None else strategy
