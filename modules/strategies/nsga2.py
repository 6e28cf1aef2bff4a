"""A genetic search for all objectives of a sweep at once: NSGA-II, one trial at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field

from ..pareto import ranked
from ..space import Parameters, Space
from .catalogue import strategy
from .strategy import Draws

_SPREAD: Final = 20
"""Of crossover and mutation: the larger, the nearer is a child to its parents."""
_ATTEMPTS: Final = 20
"""How often a child is made again whose point is a known one."""
_LARGEST_SHARE: Final = 1 - 2**-53

Shares = dict[str, float]
"""A point: of each of its parameters the share of the way through its values."""


@strategy("nsga2")
class Nsga2:
    """Crosses and mutates the points of the trials that no others beat in all objectives.

    The first trials are random. A later one has two parents, each the better of two drawn from the
    population: that of the better front, or of the emptier part of the same one. Each parameter is
    crossed over and mutated on the scale of its dimension, a choice is taken from a parent or drawn
    anew, and one that neither parent has is drawn. The population are the best trials until now; it
    is chosen anew whenever as many have been told as it holds, so no trial waits for another.

    Parameters
    ----------
    population : int, at least 4
    crossover : float, 0 to 1
        The part of trials whose parents are crossed over; others have one parent.
    mutation : float, 0 to 1, optional
        The chance of each parameter to be mutated; one over their number without.

    Notes
    -----
    With one objective it is a genetic algorithm. Results in another order change what it suggests
    next, since they make another population.

    References
    ----------
    .. [1] Deb et al., A fast and elitist multiobjective genetic algorithm: NSGA-II, IEEE
       Transactions on Evolutionary Computation 6, 2002.
    .. [2] Deb, Agrawal, Simulated binary crossover for continuous search space, Complex Systems 9,
       1995; the polynomial mutation is that of Deb, Goyal, Computer Science and Informatics 26,
       1996.
    """

    takes_all_objectives = True

    def __init__(
        self,
        space: Space,
        seed: int,
        population: Annotated[
            int, Field(ge=4, le=1000, description="trials from which parents are drawn")
        ] = 50,
        crossover: Annotated[
            float, Field(ge=0, le=1, description="part of the trials that have two parents")
        ] = 0.9,
        mutation: Annotated[
            float | None,
            Field(ge=0, le=1, description="chance of each parameter; one over their number"),
        ] = None,
    ) -> None:
        self._space, self._draws = space, Draws(seed, "nsga2")
        self._size, self._crossover = population, crossover
        self._mutation = 1 / max(1, len(space.dimensions)) if mutation is None else mutation
        self._population: list[tuple[tuple[float, ...], Parameters]] = []
        """The best first."""
        self._new: list[tuple[tuple[float, ...], Parameters]] = []
        self._tried: set[tuple[tuple[str, float], ...]] = set()
        """The points of the population, and those that were asked for since it was chosen."""

    def ask(self, trial: int) -> Parameters:
        """Return the point of a child of two trials; of a random one as long as there are few."""
        for attempt in range(_ATTEMPTS):
            point = self._space.sample(_Child(self, f"{trial}/{attempt}"))
            if (key := self._key(point)) not in self._tried:
                break
        self._tried.add(key)
        return point

    def tell(
        self, trial: int, parameters: Parameters, score: Sequence[float] | float | None
    ) -> None:
        """Record the scores of a trial; those of a trial without scores are not in the way."""
        if score is None:
            return
        scores = (score,) if isinstance(score, float | int) else tuple(score)
        if any(each != each for each in scores):
            return
        self._new.append((scores, parameters))
        if len(self._new) >= self._size:
            self._select()

    def add(self, parameters: Parameters, score: Sequence[float] | float) -> None:
        """Record the scores of a point that the strategy has not chosen."""
        self.tell(-1, parameters, score)

    def _select(self) -> None:
        import numpy as np

        both = self._population + self._new
        best = ranked(np.array([scores for scores, _ in both]))[: self._size]
        self._population, self._new = [both[place] for place in best], []
        self._tried = {self._key(point) for _, point in self._population}

    def _key(self, point: Parameters) -> tuple[tuple[str, float], ...]:
        return tuple(self._shares(point).items())

    def _shares(self, point: Parameters) -> Shares:
        dimensions = self._space.dimensions
        return {name: dimensions[name].share(value) for name, value in point.items()}

    def drawn_parent(self, draw: str) -> Shares:
        """Return the better of two trials that are drawn from the population."""
        drawn = [int(self._draws.share(0, f"{draw}/{k}") * len(self._population)) for k in (0, 1)]
        return self._shares(self._population[min(drawn)][1])


class _Child:
    """Draws the shares of a child, one parameter after the other."""

    def __init__(self, search: Nsga2, purpose: str) -> None:
        self._search, self._purpose = search, purpose
        self._parents: list[Shares] = []
        if search._population:
            self._parents.append(search.drawn_parent(f"{purpose}/first"))
            if self._share("crossed?") < search._crossover:
                self._parents.append(search.drawn_parent(f"{purpose}/second"))

    def _share(self, what: str) -> float:
        return self._search._draws.share(0, f"{self._purpose}/{what}")

    def __call__(self, name: str) -> float:
        """Return the share of a parameter, from 0 to below 1."""
        having = [parent[name] for parent in self._parents if name in parent]
        fresh = self._share(f"{name}=")
        if not having:
            return fresh
        is_ordered = self._search._space.dimensions[name].is_ordered
        which, how = self._share(f"{name} of which"), self._share(f"{name} how")
        first, second = (having * 2)[:2] if which < 0.5 else (having[::-1] * 2)[:2]
        # Half of the parameters are crossed over where points are, the others stay as they are.
        share = first
        if is_ordered and first != second and self._share(f"{name} crossed?") < 0.5:
            share = _crossed(first, second, how)
        if self._share(f"{name} mutated?") < self._search._mutation:
            share = _mutated(share, fresh) if is_ordered else fresh
        return min(max(share, 0.0), _LARGEST_SHARE)


def _crossed(first: float, second: float, chance: float) -> float:
    """Return a share as far from the middle of two as simulated binary crossover has it."""
    power = 1 / (_SPREAD + 1)
    width = math.pow(2 * chance, power) if chance <= 0.5 else math.pow(2 * (1 - chance), -power)
    return ((1 + width) * first + (1 - width) * second) / 2


def _mutated(share: float, chance: float) -> float:
    """Return a share near another one, with the bounded polynomial mutation."""
    power = 1 / (_SPREAD + 1)
    if chance < 0.5:
        inside = 2 * chance + (1 - 2 * chance) * (1 - share) ** (_SPREAD + 1)
        return share + math.pow(inside, power) - 1
    inside = 2 * (1 - chance) + (2 * chance - 1) * share ** (_SPREAD + 1)
    return share + 1 - math.pow(inside, power)
