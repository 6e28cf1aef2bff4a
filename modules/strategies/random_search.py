"""Points at random, without end."""

from __future__ import annotations

from ..space import Parameters, Space
from .draws import Draws


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
