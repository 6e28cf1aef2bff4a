"""Random streams: one for each purpose, all derived from one seed.

A stream depends on the seed and on what it is for, never on how much was drawn before it. So
every tensor starts differently, and the order of the third epoch is the same whether the first
two were run in this process or in an earlier one.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

from dnn.errors import ConfigurationError

__all__ = ["stream"]


def stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return the random stream of a purpose.

    Parameters
    ----------
    seed : int, not negative
        The seed of the whole experiment.
    *purpose : str or int
        What the numbers are for, such as ``("initialise", "output.weight")``.

    Returns
    -------
    numpy.random.Generator
        A PCG64 stream of its own.

    Raises
    ------
    ConfigurationError
        If the seed is not an integer, or negative.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigurationError(f"seed must be an integer of at least 0, not {seed!r}")
    words = _words(*purpose)
    if seed >> 32:
        sequence = np.random.SeedSequence([int(seed), *(int(word) for word in words)])
    else:  # the same in half the time, which K small networks feel at each epoch
        sequence = np.random.SeedSequence(np.array([seed, *words], np.uint32))
    return np.random.Generator(np.random.PCG64(sequence))


# Typed: 1 and True are equal, and their texts are not.
@lru_cache(maxsize=4096, typed=True)
def _words(*purpose: str | int) -> tuple[int, ...]:
    # hash() of a string differs between processes; a digest does not.
    digest = hashlib.sha256(repr(purpose).encode()).digest()
    return tuple(np.frombuffer(digest[:16], dtype="<u4").tolist())
