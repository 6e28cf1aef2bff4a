"""Cutting an epoch into batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dnn.backend import Array
from dnn.seeds import stream

__all__ = ["batches", "epoch_order"]


def epoch_order(samples: int, seed: int, epoch: int) -> Array:
    """Return the random order in which an epoch visits the samples.

    Parameters
    ----------
    samples : int
    seed : int, not negative
    epoch : int, from 0
        Each epoch has an order of its own.

    Returns
    -------
    array of intp, shape (samples,)
        A permutation; the same for the same arguments, whatever was drawn before.
    """
    order = stream(seed, "order", epoch).permutation(samples)
    return order.astype(np.intp, copy=False)


def batches(samples: int, batch_size: int, seed: int, epoch: int) -> Iterator[Array]:
    """Visit every sample once, in the random order of an epoch.

    Parameters
    ----------
    samples : int
    batch_size : int
    seed : int, not negative
    epoch : int, from 0
        Each epoch has an order of its own.

    Yields
    ------
    array of intp, shape (batch_size,)
        Rows of a batch; the last one may be shorter.
    """
    order = epoch_order(samples, seed, epoch)
    for start in range(0, samples, batch_size):
        yield order[start : start + batch_size]
