"""What every trial of a sweep has: a seed of its own."""

from __future__ import annotations

from hashlib import blake2b


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
