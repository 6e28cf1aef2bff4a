"""Selection bias: how much of the best score of many trials is luck.

The score of the best of K trials was chosen for being high on certain rows. On other rows the same
model does worse, and the more so the more trials there were and the fewer rows. So the score of the
winner is reported beside an estimate on rows that had no part in the choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

from ..metrics import METRICS
from ..objective import Objective, ObjectiveError
from .splits import Evaluated


@dataclass(frozen=True)
class BiasReport:
    """The best score of a sweep, an estimate of it on new rows, and a warning."""

    objective: str
    maximise: bool
    naive: float
    """The score of the best trial on rows that chose it."""
    honest: float | None = None
    """An estimate for the chosen trial on new rows; None where there is none."""
    spread: float | None = None
    """Standard deviation of the honest score over the splits."""
    trials: int = 0
    """Number of trials that have a score, or were stopped early."""
    method: str = ""
    """How `honest` was estimated, in words."""
    warning: str = ""
    """Why the naive score must not be reported as it is; empty if nothing is wrong."""

    @property
    def bias(self) -> float | None:
        """By how much the naive score looks too good; negative if it looks too bad."""
        if self.honest is None:
            return None
        return self.naive - self.honest if self.maximise else self.honest - self.naive

    def lines(self) -> list[str]:
        """Return the report as lines of text, the honest figure first."""
        honest = []
        # Numbers in the units of targets may be of any size.
        metric = METRICS.get(self.objective)
        has_units = metric is not None and metric.task == "regression" and metric.highest > 1
        digits = ".4g" if has_units else ".3f"
        if self.honest is not None:
            spread = f" +- {self.spread:{digits}}" if self.spread is not None else ""
            honest = [f"{self.objective}, {self.method}: {self.honest:{digits}}{spread}"]
        best = f"{self.naive:{digits}}"
        naive = f"{self.objective}, best of {self.trials} on the rows that chose it: {best}"
        warning = [f"warning: {self.warning}"] if self.warning else []
        return [*honest, naive, *warning]


class SelectionBias:
    """Estimates how far the best score of a sweep is luck, in bounded memory.

    Notes
    -----
    With nested splits, the trial that is best by the inner folds of a split is scored on its outer
    rows. The honest figure is the mean of these scores over the splits; the naive one is that of
    the trial with the best mean over the outer rows themselves. With plain folds, the correction
    of [1]_ is the mean over folds of how much the best trial of that fold is better there than the
    trial that is best over all. A single split allows no honest estimate; `luck` gives the size of
    the error.

    References
    ----------
    .. [1] Tibshirani, Tibshirani, A bias correction for the minimum error rate in
       cross-validation, Annals of Applied Statistics 3, 2009.
    .. [2] Cawley, Talbot, On over-fitting in model selection and subsequent selection bias in
       performance evaluation, JMLR 11, 2010.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective, self._rows = objective, 0
        self.trials = 0
        # (score, -trial) of the best trial by the naive protocol, and its score in each split.
        self._naive: tuple[float, int] | None = None
        self._naive_splits: list[float] = []
        self._naive_errors: Mapping[str, float] = {}
        # For each split: (score of the chosen trial, -trial), and its score on the test rows.
        self._chosen: list[tuple[tuple[float, int], float]] = []
        self._is_nested = False

    def add(self, trial: int, evaluated: Evaluated) -> None:
        """Record a trial, unless it lacks a score in some split."""
        choice = [self._score(metrics) for metrics in evaluated.choice]
        test = [self._score(metrics) for metrics in evaluated.test]
        if any(score is None for score in [*choice, *test]):
            return
        if len(test or choice) != len(choice) or len(choice) != len(self._chosen or choice):
            return  # of a function of the user's own: other splits than those of other trials
        self.trials += 1
        self._is_nested, self._rows = bool(test), evaluated.rows
        scores = [score for score in (test or choice) if score is not None]
        naive = (fmean(scores), -trial)
        if self._naive is None or naive > self._naive:
            self._naive, self._naive_splits = naive, scores
            self._naive_errors = evaluated.errors
        chosen = [
            ((score, -trial), final)
            for score, final in zip(choice, scores, strict=True)
            if score is not None
        ]
        if not self._chosen:
            self._chosen = chosen
        self._chosen = [max(old, new) for old, new in zip(self._chosen, chosen, strict=True)]

    def add_stopped(self) -> None:
        """Count a trial that was stopped early: the best trial was chosen among those too."""
        self.trials += 1

    def _score(self, metrics: dict[str, float]) -> float | None:
        try:
            return self._objective.score(self._objective.value(metrics))
        except ObjectiveError:
            return None

    def report(self) -> BiasReport | None:
        """Return the report on the trials so far; None before the first trial."""
        if self._naive is None:
            return None
        naive, splits = self._naive[0], len(self._chosen)
        honest, spread, method = None, None, "one split"
        finals = [final for _, final in self._chosen]
        if self._is_nested:
            honest = fmean(finals)
            spread = stdev(finals) if splits > 1 else None
            method = f"nested cross-validation ({splits} folds)"
            if splits == 1:
                method = "rows that had no part in the choice"
        elif splits > 1:
            gains = [best - own for best, own in zip(finals, self._naive_splits, strict=True)]
            honest = naive - fmean(gains)
            method = f"{splits} folds, corrected for the choice"
        sign = 1 if self._objective.maximise else -1
        return BiasReport(
            self._objective.text,
            self._objective.maximise,
            sign * naive,
            None if honest is None else sign * honest,
            spread,
            self.trials,
            method,
            self._warning(naive),
        )

    def _warning(self, naive: float) -> str:
        if self._is_nested or self.trials < 2:
            return ""
        text = f"the rows that score the best of {self.trials} trials are those that chose it"
        if len(self._chosen) == 1 and self._rows:
            metric = self._objective.text
            gain = ""
            if metric in _SHARES_OF_ROWS:
                gain = f"{luck(self.trials, self._rows, naive):.2f}"
            elif metric in self._naive_errors:
                gain = f"{luck_of_means(self.trials, self._naive_errors[metric]):.3g}"
            if gain:
                text += f"; on {self._rows} rows, luck alone can give {gain} of its {metric}"
        return text + '; report evaluation.method = "nested"'


_SHARES_OF_ROWS: Final = ("accuracy", "exact_match")
"""Metrics that are the share of rows that are predicted rightly."""


def luck(trials: int, rows: int, accuracy: float) -> float:
    """Return how much the best of some equally good models may look better than they are.

    Parameters
    ----------
    trials : int, at least 1
        Number of models. Their errors are taken as independent, where luck can do most.
    rows : int, at least 1
        Number of rows that are scored.
    accuracy : float
        As it was observed for the best model.

    Returns
    -------
    float
        The observed accuracy less the smallest true one with which the best of the models is
        expected, to within half a row, to have as many rows right. Zero for one model.

    Notes
    -----
    A model of true accuracy p has k of n rows right with the binomial probability; the largest of
    K such numbers is below k with the K-th power of the probability that a single number is.
    """
    import numpy as np

    if trials < 2:
        return 0.0
    k = np.arange(rows + 1)
    # Logarithms of the numbers of ways to choose k of n rows.
    ways = np.concatenate([[0.0], np.cumsum(np.log((rows - k[:-1]) / (k[:-1] + 1)))])

    def expected_best(true: float) -> float:
        masses = np.exp(ways + k * math.log(true) + (rows - k) * math.log1p(-true))
        below = np.minimum(np.cumsum(masses), 1.0)[:-1]
        return float((1.0 - below**trials).sum()) / rows

    low, high = 1e-9, 1 - 1e-9
    for _ in range(40):
        middle = (low + high) / 2
        reached = expected_best(middle) >= accuracy - 0.5 / rows
        low, high = (low, middle) if reached else (middle, high)
    return max(accuracy - high, 0.0)


def luck_of_means(trials: int, standard_error: float) -> float:
    """Return how much the best of some equally good models may look better than they are.

    Parameters
    ----------
    trials : int, at least 1
        Number of models. Their errors are taken as independent, where luck can do most.
    standard_error : float
        Of the score of one model, over the rows that score it.

    Returns
    -------
    float
        The standard error times the expected largest of as many normal deviates. Zero for one
        model.

    References
    ----------
    .. [1] David, Nagaraja, Order Statistics, 3rd edition, 2003, section 3.1.
    """
    import numpy as np

    x = np.linspace(-9.0, 9.0, 3601)
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in x])
    # By parts: the mean is the upper end less the integral of the distribution of the largest.
    powers = below**trials
    area = float(((powers[1:] + powers[:-1]) / 2 * np.diff(x)).sum())
    return float(standard_error * max(x[-1] - area, 0.0))
