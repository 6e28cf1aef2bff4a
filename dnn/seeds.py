"""Random streams: one for each purpose, all derived from one seed.

A stream depends on the seed and on what it is for, never on how much was drawn before it. So
every tensor starts differently, and the order of the third epoch is the same whether the first
two were run in this process or in an earlier one.
"""

from __future__ import annotations

import hashlib

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
    # hash() of a string differs between processes; a digest does not.
    digest = hashlib.sha256(repr(purpose).encode()).digest()
    # The words of the seed, as SeedSequence itself would cut it, and four of the digest: given as
    # one array they are taken as they are, in half the time that a list of numbers takes.
    size = max(1, (int(seed).bit_length() + 31) // 32)
    entropy = np.frombuffer(int(seed).to_bytes(4 * size, "little") + digest[:16], dtype="<u4")
    sequence = np.random.SeedSequence(entropy.astype(np.uint32))
    return np.random.Generator(np.random.PCG64(sequence))
