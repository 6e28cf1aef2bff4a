"""The metrics of networks by name: of which task, whether more is better, bounds and units.

NumPy is not imported here: an objective of a workflow file is checked without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["METRICS", "MORE_IS_BETTER", "Metric"]


class Metric(NamedTuple):
    """A metric of networks.

    Attributes
    ----------
    task : str
        The task whose networks have it: ``"classification"``, ``"regression"`` or
        ``"multilabel"``; empty if all have it.
    more_is_better : bool
    lowest, highest : float
        Bounds of its values.
    in_units : bool
        It has the unit of the targets.
    """

    task: str
    more_is_better: bool
    lowest: float = 0.0
    highest: float = 1.0
    in_units: bool = False


METRICS: Final[Mapping[str, Metric]] = {
    "accuracy": Metric("classification", True),
    "rmse": Metric("regression", False, 0.0, math.inf, in_units=True),
    "mae": Metric("regression", False, 0.0, math.inf, in_units=True),
    "r2": Metric("regression", True, -math.inf, 1.0),
    "median_absolute_error": Metric("regression", False, 0.0, math.inf, in_units=True),
    "pinball": Metric("regression", False, 0.0, math.inf, in_units=True),
    "exact_match": Metric("multilabel", True),
    "hamming": Metric("multilabel", False),
    "macro_f1": Metric("multilabel", True),
    "micro_f1": Metric("multilabel", True),
    "loss": Metric("", False, 0.0, math.inf),
    "mcc": Metric("classification", True, -1.0),
}
"""Metrics of a network by name, the most telling one of each task first."""

MORE_IS_BETTER = {name: metric.more_is_better for name, metric in METRICS.items()}
"""Metrics of a network by name, and whether a larger value is better."""
MORE_IS_BETTER |= {f"validation_{name}": more for name, more in MORE_IS_BETTER.items()}
