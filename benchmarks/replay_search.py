"""A search on recorded curves: two workers, a clock that follows from what epochs cost."""

from __future__ import annotations

import heapq
import itertools
import math
from bisect import insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from replay_curves import EPOCHS, STRUCTURES
from replay_models import model
from replay_table import Curves, Point, Trial, structure_of

WORKERS = 2


@dataclass(frozen=True)
class Policy:
    """How a search goes about its trials."""

    name: str
    model: str = "random"
    """See `replay_models.model`."""
    told: str = "fail"
    """What the model hears of stopped trials: ``fail``, ``last`` or ``curve``."""
    rule: str = "none"
    """Which trials end early.

    ``halving``, ``median``: those of `modules`, at each report; ``ray``: ASHA with its percentile;
    ``hyperband``: Optuna's pruner; ``promote``: ASHA that pauses trials at rungs and goes on with
    the best, ``restart``: the same, but begins them anew; ``rungs``: in cohorts, against all that
    have reached the rung, ``cohort``: in cohorts, among themselves.
    """
    reduction: int = 3
    grace: int = 1
    """The first rung."""
    top: int = EPOCHS
    """No rung lies behind it."""
    ahead: int = 0
    """Points that are asked for before the trials before them have begun."""
    cohort: int = 1
    """Trials of a lease."""
    alike: bool = False
    """Whether the networks of a lease have one structure."""
    trials: float = math.inf
    """How many trials begin at most."""
    engine: str = "ours"
    """Whose epochs are counted: ``ours`` or ``torch``."""

    def rungs(self) -> list[int]:
        """Return after which epochs trials are judged, and the last one."""
        if self.rule == "none":
            return [EPOCHS]
        if self.rule == "median":
            return [*range(1, EPOCHS + 1)]
        last = min(self.top, EPOCHS - 1)
        steps = itertools.takewhile(
            lambda step: step <= last, (self.grace * self.reduction**i for i in range(9))
        )
        return [*steps, EPOCHS]


class RayAsha:
    """Ray Tune's ASHA, one bracket: the cutoff at a rung is a percentile of those before."""

    def __init__(self, reduction: int) -> None:
        self._share = 100 * (1 - 1 / reduction)
        self._rungs: dict[int, list[float]] = {}

    def stops(self, reports: list[tuple[int, float]]) -> bool:
        """Record the last report; whether it falls short."""
        step, score = reports[-1]
        rung = self._rungs.setdefault(step, [])
        falls_short = bool(rung) and score < np.percentile(rung, self._share)
        rung.append(score)
        return bool(falls_short)


class Rule:
    """A rule of `modules`, as `StrategyWithRule` applies it."""

    def __init__(self, rule: Any) -> None:
        self._rule = rule

    def stops(self, reports: list[tuple[int, float]]) -> bool:
        """Record the last report; whether it falls short."""
        verdict = bool(self._rule.stops(reports, self._rule.cutoff))
        self._rule.reported(reports)
        return verdict

    def completed(self, reports: list[tuple[int, float]]) -> None:
        """Record a finished trial."""
        self._rule.completed(reports)


@dataclass
class Found:
    """What a search has to show: finished trials, and how it went."""

    finished: list[tuple[float, float, float]] = field(default_factory=list)
    """Time in units, validation accuracy, test accuracy."""
    begun: int = 0
    off: list[float] = field(default_factory=list)
    """How far recorded points are from those proposed."""
    at_top_s: float = 0.0
    """Seconds of training that trials took which were stopped at the last rung."""


class Search:
    """One search by a policy with a seed."""

    def __init__(self, policy: Policy, curves: Curves, seed: int, *, snaps: bool = False) -> None:
        self._policy, self._curves, self._seed = policy, curves, seed
        self._model = model(policy.model, policy.told, seed, policy.rule)
        self._used = np.zeros(len(curves), bool) if snaps else None
        self._queue: deque[tuple[int, Point]] = deque()
        self._asked = itertools.count()
        self._now_s = 0.0
        self._rungs = policy.rungs()
        self._scores: dict[int, list[float]] = {}
        self._paused: dict[int, list[tuple[float, Trial]]] = {}
        self._rule = self._made_rule()
        self.found = Found()

    def _made_rule(self) -> Any:
        from modules.strategies import Halving, Median

        policy = self._policy
        if policy.rule == "halving":
            return Rule(Halving(policy.grace, policy.reduction))
        if policy.rule == "median":
            return Rule(Median(5, 2))
        return RayAsha(policy.reduction) if policy.rule == "ray" else None

    def run(self, most_units: float) -> Found:
        """Search until a time, in units of an average full training."""
        work = {
            "promote": self._promoting,
            "restart": self._promoting,
            "rungs": self._cohorts,
            "cohort": self._cohorts,
        }.get(self._policy.rule, self._cohorts if self._policy.cohort > 1 else self._singles)
        order = itertools.count()
        clock = [(0.0, next(order), work()) for _ in range(WORKERS)]
        while clock:
            self._now_s, _, worker = heapq.heappop(clock)
            if self._now_s > most_units * self._curves.unit_s:
                break
            if (taken_s := next(worker, None)) is not None:
                heapq.heappush(clock, (self._now_s + taken_s, next(order), worker))
        return self.found

    # -- workers: each yields seconds of training -------------------------------------------------

    def _singles(self) -> Iterator[float]:
        """Train one trial after the other, judged at each report."""
        while self._may_begin:
            trial = self._taken()
            for before, step in itertools.pairwise([0, *self._rungs]):
                yield (step - before) * self._epoch_s(trial, 1)
                self._report(trial, step)
                if step < EPOCHS and self._stops(trial, step):
                    break
            self._end(trial)

    def _stops(self, trial: Trial, step: int) -> bool:
        if self._policy.rule == "hyperband":
            return bool(self._model.prunes(trial.number, step, trial.reports[-1][1]))
        return self._rule is not None and self._rule.stops(trial.reports)

    def _promoting(self) -> Iterator[float]:
        """Train a paused trial to its next rung if one is to be promoted, else a new one."""
        goes_on = self._policy.rule == "promote"
        while True:
            trial = self._promoted() or self._taken()
            before = trial.reports[-1][0] if trial.reports else 0
            step = next(rung for rung in self._rungs if rung > before)
            yield (step - (before if goes_on else 0)) * self._epoch_s(trial, 1)
            self._report(trial, step)
            if step == EPOCHS:
                self._end(trial)
            else:
                insort(self._scores.setdefault(step, []), trial.reports[-1][1])
                self._paused.setdefault(step, []).append((trial.reports[-1][1], trial))

    def _promoted(self) -> Trial | None:
        """Return a paused trial among the best ``1 / reduction`` of its rung, the furthest rung."""
        for step in reversed(self._rungs[:-1]):
            scores, paused = self._scores.get(step, []), self._paused.get(step, [])
            if (promoted := len(scores) // self._policy.reduction) and paused:
                best = max(range(len(paused)), key=lambda place: paused[place][0])
                if paused[best][0] >= scores[-promoted]:
                    return paused.pop(best)[1]
        return None

    def _cohorts(self) -> Iterator[float]:
        """Train leases: all their networks to a rung, those of a structure at once, then judge."""
        while self._may_begin:
            active = self._lease()
            for before, step in itertools.pairwise([0, *self._rungs]):
                groups: dict[tuple[int, ...], list[Trial]] = {}
                for trial in active:
                    groups.setdefault(structure_of(trial.point), []).append(trial)
                yield sum(
                    (step - before) * self._epoch_s(group[0], len(group))
                    for group in groups.values()
                )
                for trial in active:
                    self._report(trial, step)
                if step == EPOCHS:
                    break
                kept = self._kept(active, step)
                for trial in active:
                    if trial not in kept:
                        self._end(trial)
                active = kept
                if not active:
                    break
            for trial in active:
                self._end(trial)

    def _kept(self, active: list[Trial], step: int) -> list[Trial]:
        """Return those of a lease that go on from a rung."""
        by_score = sorted(active, key=lambda trial: -trial.reports[-1][1])
        if self._policy.rule == "cohort":
            return by_score[: max(1, len(active) // self._policy.reduction)]
        rung = self._scores.setdefault(step, [])
        for trial in active:
            insort(rung, trial.reports[-1][1])
        cutoff = rung[-max(1, len(rung) // self._policy.reduction)]
        return [trial for trial in by_score if trial.reports[-1][1] >= cutoff]

    def _lease(self) -> list[Trial]:
        first = self._taken()
        like = first.point if self._policy.alike else None
        count = int(min(self._policy.cohort - 1, self._policy.trials - self.found.begun))
        return [first, *(self._taken(like) for _ in range(count))]

    @property
    def _may_begin(self) -> bool:
        return self.found.begun < self._policy.trials

    # -- trials -----------------------------------------------------------------------------------

    def _taken(self, like: Point | None = None) -> Trial:
        """Return a new trial."""
        while len(self._queue) <= (0 if like is not None else self._policy.ahead):
            number = next(self._asked)
            self._queue.append((number, self._model.ask(number, like)))
        number, point = self._queue.popleft()
        if self._used is None:
            random = np.random.default_rng([self._seed, number])
            val, test, off = self._curves.predicted(point, random)
        else:
            val, test, off = self._curves.recorded(point, self._used)
        self.found.begun += 1
        self.found.off.append(off)
        return Trial(number, point, STRUCTURES.index(structure_of(point)), val, test, [])

    def _epoch_s(self, trial: Trial, networks: int) -> float:
        return self._curves.epoch_s(trial.structure, networks, self._policy.engine)

    def _report(self, trial: Trial, step: int) -> None:
        trial.reports.append((step, float(trial.val[step - 1])))

    def _end(self, trial: Trial) -> None:
        finished = trial.reports[-1][0] == EPOCHS
        if finished:
            time = self._now_s / self._curves.unit_s
            self.found.finished.append((time, trial.reports[-1][1], trial.test))
            if isinstance(self._rule, Rule):
                self._rule.completed(trial.reports)
        elif len(self._rungs) > 1 and trial.reports[-1][0] == self._rungs[-2]:
            self.found.at_top_s += trial.reports[-1][0] * self._epoch_s(trial, 1)
        self._hear(trial)

    def _hear(self, trial: Trial) -> None:
        finished = trial.reports[-1][0] == EPOCHS
        self._model.tell(trial.number, trial.point, trial.reports, finished=finished)


def best_at(found: Found, time: float) -> tuple[float, float]:
    """Return the best validation accuracy of a trial finished by a time, and its test accuracy."""
    done = [(val, test) for when, val, test in found.finished if when <= time]
    return max(done, default=(math.nan, math.nan), key=lambda pair: pair[0])


def area(found: Found, until: float, chance: float) -> float:
    """Return the mean over time of the best validation accuracy; `chance` before the first."""
    total, last, best = 0.0, 0.0, chance
    for when, val, _ in sorted(found.finished):
        if when > until:
            break
        if val > best:
            total += (when - last) * best
            last, best = when, val
    return (total + (until - last) * best) / until
