"""Sums of an array over all ranks, made of messages between two of them.

Each routine is a generator: it starts messages, yields their requests, and goes on when all of them
are done, so that a sum moves on whenever it is tested, beside whatever the rank computes meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dnn.backend import Array

if TYPE_CHECKING:
    from dnn.distributed.communicator import Communicator, Request

__all__ = ["ring"]


def parts_of(size: int, count: int) -> list[slice]:
    """Cut so many elements into parts that differ by one element at most."""
    bounds = [size * part // count for part in range(count + 1)]
    return [slice(*pair) for pair in pairwise(bounds)]


def ring(communicator: Communicator, array: Array, tag: int) -> Iterator[Sequence[Request]]:
    """Sum on a ring: each rank sends to the next one, and every part goes round twice.

    Each rank sends 2 (N - 1) / N of the array, the least there is, in 2 (N - 1) messages.

    Parameters
    ----------
    communicator : Communicator
    array : array, one axis
        Replaced by the sum.
    tag : int

    Yields
    ------
    sequence of Request
        What has to be done before it goes on.

    References
    ----------
    .. [1] Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of
           workstations, 2009.
    """
    rank, size = communicator.rank, communicator.size
    if size == 1:
        return
    parts = parts_of(array.size, size)
    received = np.empty(-(-array.size // size), array.dtype)
    following, preceding = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        out, into = parts[(rank - step) % size], parts[(rank - step - 1) % size]
        arrived = received[: into.stop - into.start]
        yield [
            communicator.receive(arrived, preceding, tag),
            communicator.send(array[out], following, tag),
        ]
        array[into] += arrived
    for step in range(size - 1):
        out, into = parts[(rank - step + 1) % size], parts[(rank - step) % size]
        yield [
            communicator.receive(array[into], preceding, tag),
            communicator.send(array[out], following, tag),
        ]
