"""Random search that updates its distribution: the cross-entropy method."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from heapq import heappush, heapreplace
from statistics import NormalDist
from typing import Annotated

from pydantic import Field

from ..space import Finite, Parameters, Space
from .catalogue import strategy
from .strategy import Draws

_STANDARD = NormalDist()
_NARROWEST = 0.02


@strategy("cross_entropy")
class CrossEntropy:
    """Draws from a distribution that is fitted to the best trials so far.

    An ordered parameter is normally distributed over its share of the range, cut off at its ends;
    the choices of a list have probabilities of their own. Parameters are independent of each
    other. A part of the trials is drawn uniformly for ever, so no value is given up.

    Parameters
    ----------
    elite : int, at least 2
        How many trials the distribution is fitted to.
    startup : int, optional
        Trials with a score before the distribution is used; three times the elite without.
    explore : float, 0 to 1
        The part that is drawn uniformly.

    Notes
    -----
    The elite are the best trials of all that were told, of equals the earlier one: whatever the
    order of telling, the same trials give the same distribution, bit for bit. A trial depends on
    what was told before it was asked for.

    References
    ----------
    .. [1] Rubinstein, The cross-entropy method for combinatorial and continuous optimization,
       Methodology and Computing in Applied Probability 1, 1999.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        elite: Annotated[
            int, Field(ge=2, le=1000, description="trials to which it is fitted")
        ] = 24,
        startup: Annotated[
            int | None, Field(ge=1, description="trials before it is used; 3 * elite")
        ] = None,
        explore: Annotated[
            float, Field(ge=0, le=1, description="part of the trials drawn uniformly")
        ] = 0.1,
    ) -> None:
        self._space = space
        self._draws = Draws(seed, "cross_entropy")
        self._size = elite
        self._startup = 3 * elite if startup is None else startup
        self._explore = explore
        self._told = self._added = 0
        # A heap whose first entry is the worst; trials differ, so parameters are never compared.
        self._elite: list[tuple[float, int, Parameters]] = []
        self._fits: dict[str, Callable[[float], float]] = {}

    def ask(self, trial: int) -> Parameters:
        """Draw a point from the distribution as it is now."""
        return self._space.sample(self._shares(trial))

    def ask_alike(self, trial: int, like: Parameters, free: Collection[str]) -> Parameters:
        """Draw a point that agrees with `like` in all parameters but those in `free`."""
        dimensions, share = self._space.dimensions, self._shares(trial)
        return self._space.build(
            lambda name: (
                like[name]
                if name in like and name not in free
                else dimensions[name].at(share(name))
            )
        )

    def _shares(self, trial: int) -> Callable[[str], float]:
        """Return a function from a parameter to the share that is drawn of it for a trial."""
        fits = self._fits
        if self._told < self._startup or self._draws.share(trial, "explore?") < self._explore:
            fits = {}

        def draw(name: str) -> float:
            # "=" at the end keeps it apart from "explore?", whatever the parameter's name.
            share = self._draws.share(trial, f"{name}=")
            return fits[name](share) if name in fits else share

        return draw

    def tell(self, trial: int, parameters: Parameters, score: float | None) -> None:
        """Record a score; the distribution changes if it is among the best."""
        if score is None or score != score:
            return
        self._told += 1
        entry = (score, -trial, parameters)
        if len(self._elite) < self._size:
            heappush(self._elite, entry)
        elif entry[:2] > self._elite[0][:2]:
            heapreplace(self._elite, entry)
        else:
            return
        # Fitted only once it is used; sorted, so that sums do not depend on the order of scores.
        if self._told >= self._startup or len(self._elite) == self._size:
            self._fit(sorted(self._elite, key=lambda entry: entry[:2]))

    def add(self, parameters: Parameters, score: float) -> None:
        """Record the score of a point that the strategy has not chosen."""
        self._added += 1
        self.tell(-self._added, parameters, score)

    def _fit(self, elite: list[tuple[float, int, Parameters]]) -> None:
        self._fits = {}
        for name, dimension in self._space.dimensions.items():
            values = [entry[2][name] for entry in elite if name in entry[2]]
            if not values:
                continue
            if dimension.is_ordered:
                self._fits[name] = Normal.fit([dimension.share(value) for value in values])
            elif isinstance(dimension, Finite) and len(dimension) > 1:
                indices = [dimension.index_of(value) for value in values]
                self._fits[name] = Frequencies.fit(indices, len(dimension))


@dataclass(frozen=True)
class Normal:
    """A normal distribution of shares, cut off at 0 and 1, by inversion."""

    mean: float
    deviation: float
    below: float
    between: float
    """Probability that a share, were it not cut off, lies below 0, and between 0 and 1."""

    @classmethod
    def fit(cls, shares: list[float]) -> Normal:
        """Return the distribution with the mean and deviation of shares, never too narrow."""
        mean = math.fsum(shares) / len(shares)
        variance = math.fsum((share - mean) ** 2 for share in shares) / len(shares)
        deviation = max(math.sqrt(variance), _NARROWEST)
        below = _STANDARD.cdf(-mean / deviation)
        return cls(mean, deviation, below, _STANDARD.cdf((1 - mean) / deviation) - below)

    def __call__(self, share: float) -> float:
        """Turn a uniform share into one of this distribution."""
        probability = self.below + share * self.between
        # inv_cdf is defined strictly between 0 and 1.
        probability = min(max(probability, 1e-15), 1 - 1e-15)
        value = self.mean + self.deviation * _STANDARD.inv_cdf(probability)
        return min(max(value, 0.0), 1 - 2.0**-53)


@dataclass(frozen=True)
class Frequencies:
    """Probabilities of choices: their counts, each as if it had been seen once more."""

    counts: tuple[tuple[int, int], ...]
    """Index and count of each choice that was seen, by index."""
    choices: int
    seen: int

    @classmethod
    def fit(cls, indices: list[int], choices: int) -> Frequencies:
        """Count choices."""
        return cls(tuple(sorted(Counter(indices).items())), choices, len(indices))

    def __call__(self, share: float) -> float:
        """Turn a uniform share into one of this distribution."""
        total = self.seen + self.choices
        place = int(share * total)
        index = place - self.seen
        for seen, count in self.counts:
            if place < count:
                index = seen
                break
            place -= count
        return (index + 0.5) / self.choices
