"""Sums of batch normalisation over images, one for each channel: what a device may compute at once.

With x of shape (rows, channels), a row being a pixel of an image, the mean and the variance of each
channel, and with the gradient dy of the normalised, scaled and shifted values::

    u = (x - mean) inverse      inverse = 1 / sqrt(variance + epsilon)
    dshift = sum(dy)            dscale = sum(dy u)
    dx = (dy - dshift / rows - (x - mean) inverse dscale / rows) inverse scale

A device computes all numbers of a channel in one call, `Ops.batch_norm`, if it names the pass
``batch_norm_sums``, which asks for it.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["GRADIENT_ROWS", "STATISTICS", "BatchNormSums"]

STATISTICS = ("mean", "variance", "inverse", "next_mean", "next_variance")
"""Rows of the result of ``"statistics"``; the last two are there with running statistics."""

GRADIENT_ROWS = ("dshift", "dscale", "mean_dy", "slope", "factor")
"""Rows of the result of ``"gradient"``, see `BatchNormSums`."""


class BatchNormSums(NamedTuple):
    """Numbers of each channel that are sums over all images of a batch.

    Attributes
    ----------
    kind : str
        ``"statistics"``: `STATISTICS` from x, or from (x, running mean, running variance).
        ``"gradient"``: `GRADIENT_ROWS` from (dy, x, mean, inverse, scale), or from (dy, y, x, mean,
        inverse, scale), where dy counts as 0 unless y > 0. There ``mean_dy = dshift / rows``,
        ``slope = inverse dscale / rows`` and ``factor = inverse scale``, so that ``dx = (dy -
        mean_dy - (x - mean) slope) factor``.
    dtype : str
        ``"f4"`` or ``"f8"``, of all but dy, y and x, which may be narrow.
    models : int
        Networks at once, each with images of its own.
    rows, channels : int
        Pixels of all images of a network, and numbers of each pixel.
    has_further : bool
        Whether running statistics are given, or y.
    epsilon : float
        Added to the variance.
    momentum : float
        Next running statistics are ``momentum running + (1 - momentum) of the batch``, the variance
        of the batch being divided by one row less.
    """

    kind: str
    dtype: str
    models: int
    rows: int
    channels: int
    has_further: bool
    epsilon: float = 0.0
    momentum: float = 0.0

    @property
    def images(self) -> int:
        """How many inputs, the first ones, are images: x, (dy, x), or (dy, y, x)."""
        if self.kind == "statistics":
            return 1
        return 3 if self.has_further else 2
