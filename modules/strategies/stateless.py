"""Strategies in which a trial's parameters follow from its number: ``grid`` and ``random``.

Random numbers follow from what they are for, never from what was drawn before. So a trial's
parameters are the same whoever asks for them, in whatever order; and what one parameter draws does
not change when another is added to the space.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal

from ..space import Parameters, Permutation, Space

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


class Grid:
    """Goes through all points of a space, in their order or shuffled.

    Parameters
    ----------
    space : Space
    seed : int
        Of the shuffled order.
    order : {"natural", "shuffled"}
        Natural: the last parameter varies fastest.

    Raises
    ------
    SpaceError
        If the points cannot be counted.
    """

    is_stateless = True

    def __init__(
        self, space: Space, seed: int, order: Literal["natural", "shuffled"] = "natural"
    ) -> None:
        self.size = space.size
        self._space = space
        self._permutation = Permutation(self.size, seed) if order == "shuffled" else None

    def ask(self, trial: int) -> Parameters | None:
        """Return a point; None beyond the last."""
        if trial >= self.size:
            return None
        return self._space.point(self._permutation[trial] if self._permutation else trial)

    def tell(self, trial: int, parameters: Parameters, score: float | None) -> None:
        """Do nothing: the order is fixed."""


class Random:
    """Draws each parameter independently, uniformly over its values.

    A parameter that exists only beside some value of another is drawn when that value was: so
    ``optimizer = ["sgd", "adam"]`` gives each half the trials, however many points belong to it.

    Parameters
    ----------
    space : Space
    seed : int

    References
    ----------
    .. [1] Bergstra, Bengio, Random search for hyper-parameter optimization, JMLR 13, 2012.
    """

    is_stateless = True
    size = None

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._draws = Draws(seed, "random")

    def ask(self, trial: int) -> Parameters:
        """Return the point of a trial: a function of the seed and the trial alone."""
        return self._space.sample(lambda name: self._draws.share(trial, name))

    def tell(self, trial: int, parameters: Parameters, score: float | None) -> None:
        """Do nothing: no trial depends on another."""
