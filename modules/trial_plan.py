"""How a trial trains its point: how long at most, with how many seeds, and its score of these.

With ``patience`` a training ends when a metric of the rows that score it has not become better for
some epochs, and the network of its best epoch is the result. Where rows test a choice (nested
splits), they choose no epoch: the network is trained for the mean of the best epochs on the rows
that make the choice. With ``seeds`` a point is trained several times, and its metrics are the means
over these, or quantiles at the worse end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Final, Literal

from .evaluation import Evaluated, TrainingJob, collect
from .metrics import METRICS
from .trial import trial_seed

if TYPE_CHECKING:
    from dnn import EarlyStopping

BEST_EPOCH: Final = "best_epoch"
"""Metric of a training with patience: the epoch, from 1, that the other metrics are of."""
SEEDS: Final = "seeds"
"""Key among the metrics of splits: the metrics of each seed."""
DEVIATION: Final = "_deviation"
"""Behind the name of a metric: its standard deviation over the seeds."""
WATCHED: Final = tuple(name for name in METRICS if name != "training_time_s")

Metrics = Mapping[str, float]


def more_metrics(known: Iterable[str]) -> list[str]:
    """Return the metrics that a trial has beside `known` ones with patience, or several seeds."""
    return [BEST_EPOCH, *(name + DEVIATION for name in known if name in WATCHED)]


@dataclass(frozen=True)
class TrialPlan:
    """How the network of a point is trained; by default once, for all of its epochs."""

    patience: int | None = None
    """Epochs to wait for a better value; None to train all epochs."""
    min_delta: float = 0.0
    watch: str = "loss"
    """The metric that patience watches, of the rows that score the training."""
    seeds: int = 1
    score: float | Literal["mean"] = "mean"
    """The mean over seeds, or which quantile at the worse end: 0 is the worst seed."""
    metrics: tuple[str, ...] = ()
    """Metrics that are asked for, `watch` among them; some are measured on request alone."""

    def on_request(self, task: str) -> list[str]:
        """Return the metrics that are asked for and that networks of a task have on request."""
        return [name for name in self.metrics if task in METRICS[name].on_request]

    def of(self, job: TrainingJob) -> TrialPlan:
        """Return the plan of a training: rows that test the choice choose no epoch."""
        return replace(self, patience=None) if job.is_test else self

    def rule(self) -> EarlyStopping | None:
        """Return a new rule that ends one training; None without patience."""
        if self.patience is None:
            return None
        from dnn import EarlyStopping

        return EarlyStopping(f"validation_{self.watch}", self.patience, self.min_delta)

    def seeds_of(self, seed: int, splits: int) -> list[list[int]]:
        """Return the seed of each split, for each of the seeds of a point; the first is `seed`."""
        first = [seed, *(trial_seed(seed, -number) for number in range(1, self.seeds))]
        if splits == 1:
            return [[own] for own in first]
        return [[trial_seed(own, number) for number in range(splits)] for own in first]

    def epochs_to_test(
        self, jobs: Sequence[TrainingJob], results: Sequence[Metrics], outer: int | None = None
    ) -> int | None:
        """Return for how many epochs to train where the score has no part in the choice.

        It is the mean of the best epochs of the trainings that make the choice, all or those of one
        outer split; None without patience. `results` are those of the first jobs.
        """
        if self.patience is None:
            return None
        best = [
            result[BEST_EPOCH]
            for job, result in zip(jobs, results, strict=False)
            if not job.is_test and outer in (None, job.outer) and BEST_EPOCH in result
        ]
        return max(1, round(fmean(best))) if best else None

    def combined(self, of_seeds: Sequence[Metrics], *, spread: bool = False) -> dict[str, Any]:
        """Return the metrics of a point from those of its seeds, with deviations if asked for."""
        if len(of_seeds) == 1:
            return dict(of_seeds[0])
        found: dict[str, Any] = {}
        for name in of_seeds[0]:
            values = [float(metrics[name]) for metrics in of_seeds]
            found[name] = self._score(name, values)
        if spread:
            for name in (name for name in WATCHED if name in found):
                values = [float(metrics[name]) for metrics in of_seeds]
                is_finite = all(map(math.isfinite, values))
                found[name + DEVIATION] = stdev(values) if is_finite else math.nan
        return found

    def _score(self, name: str, values: list[float]) -> float:
        metric = METRICS.get(name)
        if self.score == "mean" or metric is None:
            return fmean(values)
        if any(value != value for value in values):
            return math.nan
        values.sort(reverse=not metric.maximise)  # the worst first
        position = self.score * (len(values) - 1)
        below = math.floor(position)
        worse, better = values[below], values[min(below + 1, len(values) - 1)]
        return worse if worse == better else worse + (position - below) * (better - worse)

    def evaluated(
        self, jobs: Sequence[TrainingJob], of_seeds: Sequence[Sequence[Metrics]]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the metrics of a point, and those of its splits and seeds, for a ledger.

        `of_seeds` has for each seed the metrics of each of the `jobs`.
        """
        each = [collect(jobs, results) for results in of_seeds]
        metrics = self.combined([found.metrics for found in each], spread=True)
        if float(metrics.get(BEST_EPOCH, 0.5)).is_integer():
            metrics[BEST_EPOCH] = int(metrics[BEST_EPOCH])
        whole = Evaluated(
            metrics,
            tuple(map(self.combined, zip(*(found.choice for found in each), strict=True))),
            tuple(map(self.combined, zip(*(found.test for found in each), strict=True))),
            each[0].rows,
        )
        splits = whole.splits()
        if len(each) > 1:
            splits[SEEDS] = [found.metrics for found in each]
        return metrics, splits
