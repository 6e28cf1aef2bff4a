"""What every trial of a sweep has: a seed of its own, metrics, and a mark if it diverged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final


@dataclass(frozen=True)
class Metric:
    """What is known of a metric.

    Attributes
    ----------
    maximise : bool
        Whether a larger value is better.
    lowest, highest : float
        Between which bounds it lies.
    """

    maximise: bool
    lowest: float
    highest: float


METRICS: Final[Mapping[str, Metric]] = {
    "accuracy": Metric(True, 0.0, 1.0),
    "loss": Metric(False, 0.0, math.inf),
    "mcc": Metric(True, -1.0, 1.0),
    "training_time_s": Metric(False, 0.0, math.inf),
}
"""What our trainers report, in this order."""

DIVERGED: Final = "diverged"
"""The metric by which a trainer says that a training has come to NaN or infinity."""


def trial_seed(sweep_seed: int, index: int) -> int:
    """Return the seed of a trial: the same whoever trains it, in whatever order.

    Parameters
    ----------
    sweep_seed, index : int

    Returns
    -------
    int
        From 0 to 2**32 - 1, all equally likely.
    """
    digest = blake2b(f"{sweep_seed}/{index}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def marked(metrics: Mapping[str, Any], *, is_diverged: bool = False) -> dict[str, Any]:
    """Return metrics that say so if the training diverged, or one of them is NaN or infinite."""
    numbers = (value for value in metrics.values() if isinstance(value, float))
    if is_diverged or not all(map(math.isfinite, numbers)):
        return {**metrics, DIVERGED: True}
    return dict(metrics)
