"""Random numbers that follow from what they are for, never from what was drawn before.

So a trial's parameters are the same whoever asks for them, in whatever order; and what one
parameter draws does not change when another is added to the space.
"""

from __future__ import annotations

from hashlib import blake2b

_SHARE = 2.0**-53


class Draws:
    """Counter-based random numbers of a seed.

    Parameters
    ----------
    seed : int
    purpose : str
        Keeps the numbers of one strategy apart from those of another.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        self._key = blake2b(f"{purpose}/{seed}".encode(), digest_size=32).digest()

    def share(self, trial: int, name: str) -> float:
        """Return a number from 0 to below 1, uniformly distributed.

        Parameters
        ----------
        trial : int
        name : str
            What it is for in this trial.
        """
        data = f"{trial}/{name}".encode()
        digest = blake2b(data, key=self._key, digest_size=8).digest()
        return (int.from_bytes(digest, "little") >> 11) * _SHARE
