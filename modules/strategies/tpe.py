"""A tree-structured Parzen estimator: it looks where good trials are dense and bad ones are not.

::

    Ranking     trials from the worst to the best, also those that were stopped early
    TPE         splits them into good and bad ones, and asks by the ratio of their densities

The densities are those of `modules/space/density.py`.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field

from ..pareto import Fronts, is_infeasible
from ..space import Parameters, Permutation, Space
from .catalogue import strategy
from .strategy import MOST_COUNTED, Draws

if TYPE_CHECKING:
    import numpy as np

    from ..space.density import Floats, Mixture

Report = tuple[int, float]

_GOOD: Final = 0.15
_GOOD_OF_FRONTS: Final = 0.1
"""The part of trials that counts as good: of one objective, and of several."""
_COMPARED: Final = 0.2
"""The part of trials that have to have come to a step where all are compared by it."""
_MOST_GOOD: Final = 25
_LEAST_COMPARED: Final = 10
_MOST_BAD: Final = 256
"""Kernels of bad trials. Half of them are the best of the bad ones, which lie where points are
asked for; the other half are evenly spaced in rank, and each stands for as many as lie between."""
_MOST_IN_FLIGHT: Final = 256
_PRIOR: Final = 1.0
"""The weight of the uniform kernel beside that of a trial."""
_ROUNDS: Final = 4
"""How often candidates are drawn, if all that were drawn have been tried."""


class Ranking:
    """Trials from the worst to the best, also those that were stopped early.

    Trials are compared by their score at one step, the furthest that enough of them have reached
    [1]_: the end where most come to their end, a rung where most are stopped. Those that were
    stopped before it rank behind, by how far they came, and failed trials behind these.

    With several objectives those that came to their end rank by fronts, and where a front has more
    trials than count as good, by the hypervolume that they add [2]_. Of these trials the first few
    hundred are ranked, the others lie behind in no order; all that were stopped rank behind them.

    References
    ----------
    .. [1] Falkner, Klein, Hutter, BOHB: robust and efficient hyperparameter optimization at scale,
       ICML 2018.
    .. [2] Ozaki et al., Multiobjective tree-structured Parzen estimator for computationally
       expensive optimization problems, GECCO 2020.
    """

    def __init__(self) -> None:
        self.level = math.inf
        self._told: list[tuple[int, Sequence[Report], float | None]] = []
        self._fronts: Fronts | None = None
        # How far each trial with a score came: the last step of one that was stopped, or the end.
        self._ends: list[float] = []
        self._ranked: list[tuple[float, float, int, int]] = []

    @property
    def has_fronts(self) -> bool:
        """Whether trials have several scores, so that many are as good as each other."""
        return self._fronts is not None

    @property
    def scored(self) -> int:
        """How many trials have a score, of whatever step."""
        return len(self._ends)

    def good_count(self) -> int:
        """Return how many trials count as good."""
        part = _GOOD_OF_FRONTS if self.has_fronts else _GOOD
        return min(math.ceil(part * self.scored), _MOST_GOOD)

    def add(
        self, trial: int, reports: Sequence[Report], score: Sequence[float] | float | None
    ) -> None:
        """Record a trial, whose place among those told is its index."""
        if isinstance(score, Sequence):
            if any(each != each for each in score):
                reports, score = (), None
            elif len(score) > 1:
                self._add_to_fronts(trial, score)
                return
            else:
                score = score[0]
        if score is not None and score != score:
            reports, score = (), None
        if score is not None and is_infeasible(score):
            reports = ()  # what it reached on the way is no rank
        self._told.append((trial, reports, score))
        if score is not None or reports:
            insort(self._ends, math.inf if score is not None else float(reports[-1][0]))
            enough = max(math.ceil(_COMPARED * self.scored), _LEAST_COMPARED)
            level = self._ends[-min(enough, self.scored)]
            level = level if self._fronts is None else math.inf
            if level != self.level:
                self.level = level
                self._ranked = sorted(map(self._key, range(len(self._told))))
                return
        insort(self._ranked, self._key(len(self._told) - 1))

    def _add_to_fronts(self, trial: int, scores: Sequence[float]) -> None:
        if self._fronts is None:
            self._fronts, self.level = Fronts(_MOST_GOOD + _MOST_BAD // 2), math.inf
            self._ranked = sorted(map(self._key, range(len(self._told))))
        insort(self._ends, math.inf)
        self._told.append((trial, (), None))
        for index in self._fronts.add(len(self._told) - 1, scores):
            insort(self._ranked, (math.inf, 0.0, -self._told[index][0], index))

    def _key(self, index: int) -> tuple[float, float, int, int]:
        trial, reports, score = self._told[index]
        if score is None and not reports:
            return -math.inf, -math.inf, -trial, index
        reached = math.inf if score is not None else float(reports[-1][0])
        if score is None or (reports and self.level < math.inf):
            place = bisect_right(reports, (self.level, math.inf))
            score = reports[max(place - 1, 0)][1]
        return min(reached, self.level), score if score == score else -math.inf, -trial, index

    def split(self) -> tuple[list[int], list[int], list[float]]:
        """Return the indices of good trials, best last, and of bad ones, with their weights."""
        count, behind = self.good_count(), self._ranked
        ahead = [] if self._fronts is None else self._fronts.from_best(count)[::-1]
        cut = len(behind) + len(ahead) - count
        start = max(cut - _MOST_BAD // 2, 0)
        indices = [entry[3] for entry in behind[start:]] + ahead[max(start - len(behind), 0) :]
        near = len(indices) - count
        good, bad = indices[near:], indices[:near]
        if self._fronts is not None:  # as good as each other: in no order of telling
            good.sort(key=lambda index: self._told[index][0])
        rest = cut - near
        taken = min(rest, _MOST_BAD // 2)
        places = [(2 * place + 1) * rest // (2 * taken) for place in range(taken)]
        far = [
            behind[place][3] if place < len(behind) else ahead[place - len(behind)]
            for place in places
        ]
        bad = far + bad
        weights = [rest / taken] * taken if taken else []
        return good, bad, weights + [1.0] * near


@strategy("tpe")
class TPE:
    """Asks for the points that are likely among good trials and unlikely among bad ones.

    Of some candidates, drawn from a density of the good trials, it takes the one with the largest
    ratio of this density to that of all others. The better a good trial, the more it weighs, by the
    square of its rank, unless there are several objectives. Near the end many trials are nearly as
    good as the best, and few of them are next to it.
    Parameters are modelled together, and parameters
    that exist in some points only are no exception. Trials in flight count as bad, so that trials
    asked for at the same time differ; so do trials that failed, and those that were stopped early
    by how far they came.

    Parameters
    ----------
    startup : int
        Trials with a score before the densities are used. Until then points are drawn from the
        whole space, each part of a range as often.
    candidates : int
        Points drawn for each trial.

    Attributes
    ----------
    size : int or None
        How many points the space has, if it is small: each is tried once.

    Notes
    -----
    Whatever the order of telling, the same trials give the same state. A trial depends on what was
    told before it was asked for, and on the trials in flight.

    All trials are kept. An ask costs the same after any number of them, since of the bad ones those
    that rank highest have kernels of their own, and the others are represented by some of them.

    Of several objectives it looks for the whole front.

    References
    ----------
    .. [1] Bergstra et al., Algorithms for hyper-parameter optimization, NIPS 2011.
    """

    is_without_repeats = True
    takes_all_objectives = True

    def __init__(
        self,
        space: Space,
        seed: int,
        startup: Annotated[
            int, Field(ge=2, le=1000, description="trials with a score before it learns")
        ] = 10,
        candidates: Annotated[
            int, Field(ge=1, le=1000, description="points drawn for each trial")
        ] = 24,
    ) -> None:
        import numpy as np

        from ..space.density import Coordinates

        self._of = Coordinates(space)
        self._seed, self._draws = seed, Draws(seed, "tpe")
        self._startup, self._candidates = startup, candidates
        self._ranking = Ranking()
        self._rows = np.empty((64, len(self._of.names)))
        self._told = self._added = 0
        self._in_flight: dict[int, Floats] = {}
        self._counted = space.counted()
        is_small = self._counted is not None and self._counted.size <= MOST_COUNTED
        self.size = self._counted.size if self._counted is not None and is_small else None
        self._tried: set[bytes] = set()
        self._rest: Iterator[int] | None = None

    def ask(self, trial: int) -> Parameters | None:
        """Return the point of a trial; None once each point of a small space has been tried."""
        return self._choose(trial, None)

    def ask_alike(
        self, trial: int, like: Mapping[str, Any], free: Collection[str]
    ) -> Parameters | None:
        """Return the point of a trial that agrees with another one in all but some parameters.

        Parameters
        ----------
        trial : int
        like : mapping of str to value
            A point of the space.
        free : collection of str
            The parameters that may differ. They are drawn as they go together with the others; so
            is one that exists in the new point and not in `like`.

        Returns
        -------
        dict or None
            None if no such point was found that has not been tried.
        """
        fixed = {name: value for name, value in like.items() if name not in free}
        return self._choose(trial, self._of.row(fixed))

    def tell(
        self, trial: int, parameters: Parameters, score: Sequence[float] | float | None
    ) -> None:
        """Record the scores of a trial; None if it failed."""
        self.tell_curve(trial, parameters, (), score)

    def tell_curve(
        self,
        trial: int,
        parameters: Parameters,
        reports: Sequence[Report],
        score: Sequence[float] | float | None,
    ) -> None:
        """Record a trial by its reports and its scores; None if it failed or was stopped early."""
        self._in_flight.pop(trial, None)
        try:
            row = self._of.row(parameters)
        except ValueError:
            return  # of an earlier sweep, with another space
        if self._told == len(self._rows):
            import numpy as np

            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._rows[self._told] = row
        self._told += 1
        self._ranking.add(trial, reports, score)
        if self._counted is not None:
            self._tried.add(row.tobytes())

    def under_way(self, trial: int, parameters: Parameters) -> None:
        """Record a trial that has begun, and that the strategy has not chosen."""
        row = self._in_flight[trial] = self._of.row(parameters)
        if self._counted is not None:
            self._tried.add(row.tobytes())

    def add(self, parameters: Parameters, score: Sequence[float] | float) -> None:
        """Record the scores of a point that the strategy has not chosen."""
        self._added += 1
        self.tell(-self._added, parameters, score)

    def _choose(self, trial: int, like: Floats | None) -> Parameters | None:
        for row in self._proposals(trial, like):
            point = self._of.point(row)
            key = self._of.row(point).tobytes() if self._counted is not None else b""
            if key not in self._tried:
                if key:
                    self._tried.add(key)
                self._in_flight[trial] = row
                if len(self._in_flight) > _MOST_IN_FLIGHT:
                    del self._in_flight[next(iter(self._in_flight))]
                return point
        return None

    def _proposals(self, trial: int, like: Floats | None) -> Iterator[Floats]:
        """Yield rows, the one to be tried first: until one is taken that has not been tried."""
        import numpy as np

        generator = np.random.default_rng(int(self._draws.share(trial, "") * 2**53))
        if self._ranking.scored < self._startup:
            yield from self._of.uniform(self._strata(trial, generator), like)
        else:
            good, bad = self._densities()
            for _ in range(_ROUNDS):
                rows = good.sample(generator, self._candidates, like)
                features = self._of.features(rows)
                ratios = good.log_density(features) - bad.log_density(features)
                yield from rows[np.argsort(-ratios, kind="stable")]
        for _ in range(_ROUNDS):
            shares = generator.random((self._candidates, len(self._of.names)))
            yield from self._of.uniform(shares, like)
        if self.size is not None and like is None:
            yield from self._all_points()

    def _strata(self, trial: int, generator: np.random.Generator) -> Floats:
        """Return a row of shares; of each block of trials every part of a range has one."""
        import numpy as np

        count = self._startup
        block = np.random.default_rng(int(self._draws.share(trial // count, "block") * 2**53))
        parts = block.permuted(np.tile(np.arange(count), (len(self._of.names), 1)), axis=1)
        shares = generator.random((1, len(parts)))
        return (parts[:, trial % count] + shares) / count

    def _all_points(self) -> Iterator[Floats]:
        counted = self._counted
        assert counted is not None
        if self._rest is None:
            order = Permutation(counted.size, self._seed)
            self._rest = (order[place] for place in range(counted.size))
        for index in self._rest:
            yield self._of.row(counted.point(index))

    def _densities(self) -> tuple[Mixture, Mixture]:
        """Return the densities of good and of bad trials."""
        import numpy as np

        from ..space.density import Mixture

        good, bad, weights = self._ranking.split()
        weights += [1.0] * len(self._in_flight)
        ranks = range(1, len(good) + 1)
        marks = [1.0 if self._ranking.has_fronts else float(rank * rank) for rank in ranks]
        share = len(good) / sum(marks)
        rows = np.vstack([self._rows[bad], *self._in_flight.values()])
        return (
            Mixture(self._of, self._rows[good], [share * each for each in marks], _PRIOR),
            Mixture(self._of, rows, weights, _PRIOR),
        )
