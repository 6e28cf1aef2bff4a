"""The metrics of networks by name: of which task, whether more is better, bounds and units.

NumPy is not imported here: an objective of a workflow file is checked without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["METRICS", "MORE_IS_BETTER", "Metric"]

ON_REQUEST: Final = "on request"
"""In the place of the task of a metric that is measured only if it is asked for."""


class Metric(NamedTuple):
    """A metric of networks.

    Attributes
    ----------
    task : str
        The task whose networks have it: ``"classification"``, ``"regression"`` or
        ``"multilabel"``; empty if all have it, ``"on request"`` if none has it without being asked.
    more_is_better : bool
    lowest, highest : float
        Bounds of its values.
    in_units : bool
        It has the unit of the targets.
    on_request : tuple of str
        Tasks whose networks have it if it is asked for.
    """

    task: str
    more_is_better: bool
    lowest: float = 0.0
    highest: float = 1.0
    in_units: bool = False
    on_request: tuple[str, ...] = ()


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
    "loss": Metric("", False, -math.inf, math.inf),
    "mcc": Metric("classification", True, -1.0),
    "balanced_accuracy": Metric(ON_REQUEST, True, on_request=("classification",)),
    "f1": Metric(ON_REQUEST, True, on_request=("classification",)),
    "auc": Metric(ON_REQUEST, True, on_request=("classification", "multilabel")),
    "log_loss": Metric(ON_REQUEST, False, 0.0, math.inf, on_request=("classification",)),
}
"""Metrics of a network by name, the most telling one of each task first."""

MORE_IS_BETTER = {name: metric.more_is_better for name, metric in METRICS.items()}
"""Metrics of a network by name, and whether a larger value is better."""
MORE_IS_BETTER |= {f"validation_{name}": more for name, more in MORE_IS_BETTER.items()}
