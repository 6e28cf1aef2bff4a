"""Every point once."""

from __future__ import annotations

from typing import Literal

from ..space import Parameters, Permutation, Space


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
