"""The interface of strategies; `grid` and `random`, whose points follow from a trial's number.

A strategy is asked for the parameters of a trial, and told how good they were. Trials are numbered
0, 1, 2, ... in the order in which they are first asked for. Scores are always such that larger is
better: the caller has negated them if the objective is minimised.

Strategies do no I/O, look at no clock and draw only numbers that follow from (seed, trial), so a
sweep is resumed by telling a new one everything that was recorded: built-in strategies come to the
same state in whatever order they are told, apart from those whose docstring says otherwise.

Random numbers follow from what they are for, never from what was drawn before. So the parameters
that ``grid`` and ``random`` give to a trial are the same whoever asks for them, in whatever order;
and what one parameter draws does not change when another is added to the space.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import Enum
from hashlib import blake2b
from typing import Any, Final, Literal, Protocol, runtime_checkable

from ..space import Parameters, Permutation, Space
from .catalogue import strategy

_SHARE = 2.0**-53
MOST_COUNTED: Final = 2**16
"""A space of more points is not small: which of them were tried is not kept."""
_ATTEMPTS: Final = 10
"""How often a point is drawn again, before the next one in a shuffled order is taken."""


class Wait(Enum):
    """The type of `WAIT`."""

    WAIT = "wait"

    def __repr__(self) -> str:
        return "WAIT"


WAIT = Wait.WAIT
"""The return value of `Strategy.ask` if it needs another `tell` first."""


@runtime_checkable
class Strategy(Protocol):
    """Chooses the parameters of trials. A user's own strategy is a class with these two methods.

    It is made by ``Class(space, seed, **options)``: the `Space`, the sweep's seed, and what else
    stands in the ``strategy`` table of the workflow file.

    Notes
    -----
    Some attributes are optional:

    ``is_stateless`` (bool, False without)
        `ask` follows from the trial's number alone and `tell` does nothing. So any rank with a copy
        may ask, in any order, more than once: only the numbers of trials are sent.
    ``size`` (int or None, None without)
        How many trials there are in all, if that is known.
    ``takes_all_objectives`` (bool, False without)
        `tell` and ``add`` are given a tuple, the scores of all objectives, in place of the first.
    ``report(trial, step, score) -> bool`` (method)
        Takes an intermediate score; True if the trial is to be stopped.
    ``add(parameters, score)`` (method)
        Records a point that it has not chosen: of an earlier sweep, or one that a user enqueued.
    ``tell_curve(trial, parameters, reports, score)`` (method)
        Is called in place of `tell`. `reports` are the (step, score) pairs that the trial has
        reported, steps rising. `score` is that of the end: None if the trial failed, and then there
        may be no reports, or was stopped early, after the last of them.
    ``ask_alike(trial, like, free) -> parameters or None`` (method)
        Chooses the parameters of a trial that agree with the point `like` in all but those in the
        set `free`, for trials that are trained as one plan; None if there are no such.
    ``parent(trial) -> trial or None`` (method)
        Returns, once a trial was asked for, the earlier one from whose end it goes on; None if it
        begins anew. A strategy that has it gets checkpoints of all trials.
    ``possible_parents() -> set of trials`` (method)
        Returns the trials from which others may still go on: checkpoints of others are removed.
    ``members`` (int)
        How many trials in a row depend on none of each other, but on all that are before them.
    ``is_reproducible`` (bool, False without)
        What is asked for does not depend on the order of results.
    ``finalize()`` (method)
        Is called when the master ends: the strategy ends what it has running.
    """

    def ask(self, trial: int) -> Parameters | Wait | None:
        """Choose the parameters of a trial.

        Parameters
        ----------
        trial : int
            One more than in the last call that gave parameters, unless ``is_stateless``.

        Returns
        -------
        dict, WAIT or None
            None when there are no more trials, `WAIT` if this one has to wait for another `tell`.
        """
        ...

    def tell(self, trial: int, parameters: Parameters, score: float | None) -> None:
        """Record the score of a trial; None if it failed or was stopped early."""
        ...


class Draws:
    """Counter-based random numbers from a seed, different for each `purpose`."""

    def __init__(self, seed: int, purpose: str) -> None:
        self._key = blake2b(f"{purpose}/{seed}".encode(), digest_size=32).digest()

    def share(self, trial: int, name: str) -> float:
        """Return a number from 0 to below 1, uniformly; `name`: what it is for in the trial."""
        data = f"{trial}/{name}".encode()
        digest = blake2b(data, key=self._key, digest_size=8).digest()
        return (int.from_bytes(digest, "little") >> 11) * _SHARE


@strategy("grid")
class Grid:
    """Goes through all points of a space: in their order, the last parameter fastest, or shuffled.

    A `SpaceError` if the points cannot be counted.
    """

    is_stateless = True
    is_exhaustive = True  # it ends with the last point, so these must be countable

    def __init__(
        self, space: Space, seed: int, order: Literal["natural", "shuffled"] = "natural"
    ) -> None:
        self.size = space.size
        self._space = space
        self._permutation = Permutation(self.size, seed) if order == "shuffled" else None

    def ask(self, trial: int) -> Parameters | None:
        """Return the point of a trial; None beyond the last."""
        if trial >= self.size:
            return None
        return self._space.point(self._permutation[trial] if self._permutation else trial)

    def tell(self, trial: int, parameters: Parameters, score: float | None) -> None:
        """Do nothing: the order is fixed."""


@strategy("random")
class Random:
    """Draws each parameter independently, uniformly over its values.

    A parameter that exists only beside some value of another is drawn when that value was: so
    ``optimizer = ["sgd", "adam"]`` gives each half the trials, however many points belong to it.

    No point of a small space is tried twice: a point that an earlier trial has is drawn again, and
    there are no more trials than points.

    Attributes
    ----------
    size : int or None
        How many points the space has, if it is small.

    References
    ----------
    .. [1] Bergstra, Bengio, Random search for hyper-parameter optimization, JMLR 13, 2012.
    """

    is_stateless = True
    is_without_repeats = True  # it ends with the last point of a small space

    def __init__(self, space: Space, seed: int) -> None:
        self._space, self._seed = space, seed
        self._draws, self._again = Draws(seed, "random"), Draws(seed, "random again")
        counted = space.counted()
        is_small = counted is not None and counted.size <= MOST_COUNTED
        self.size = counted.size if counted is not None and is_small else None
        self._counted = counted if is_small else None
        # Of a small space, the points of the first trials, as far as they were asked for.
        self._chosen: list[Parameters] = []
        self._known: set[tuple[int, ...]] = set()
        self._rest: Iterator[int] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what it was made of: all else follows from that."""
        return Random, (self._space, self._seed)

    def ask(self, trial: int) -> Parameters | None:
        """Return the point of a trial, which follows from the seed and the trial alone.

        None once each point of a small space has a trial.
        """
        if self._counted is None:
            return self._draw(self._draws, trial)
        if trial >= self._counted.size:
            return None
        while len(self._chosen) <= trial:
            self._chosen.append(self._next_new(self._counted))
        return dict(self._chosen[trial])

    def ask_alike(self, trial: int, like: Parameters, free: Collection[str]) -> Parameters:
        """Return a point that agrees with `like` in all parameters but those in `free`.

        It follows from the seed, the trial and `like`; it may be a point that was tried.
        """
        dimensions = self._space.dimensions
        return self._space.build(
            lambda name: (
                like[name]
                if name in like and name not in free
                else dimensions[name].at(self._draws.share(trial, name))
            )
        )

    def _draw(self, draws: Draws, number: int) -> Parameters:
        return self._space.sample(lambda name: draws.share(number, name))

    def _next_new(self, counted: Space) -> Parameters:
        """Return the point of the next trial, which no earlier trial has."""
        for point in self._candidates(len(self._chosen), counted):
            key = counted.indices(point)
            if key not in self._known:
                self._known.add(key)
                return point
        raise AssertionError("each point has a trial")

    def _candidates(self, trial: int, counted: Space) -> Iterator[Parameters]:
        yield self._draw(self._draws, trial)
        for attempt in range(_ATTEMPTS):
            yield self._draw(self._again, trial * _ATTEMPTS + attempt)
        # Few are left, or what is left is hardly ever drawn.
        if self._rest is None:
            order = Permutation(counted.size, self._seed)
            self._rest = (order[place] for place in range(counted.size))
        yield from (counted.point(index) for index in self._rest)

    def tell(self, trial: int, parameters: Parameters, score: float | None) -> None:
        """Do nothing: no trial depends on another."""
