"""Population based training: the worst members go on from copies of the best, otherwise set."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field

from ..space import Dimension, Finite, Parameters, Range, Space
from .catalogue import strategy
from .strategy import WAIT, Draws, Wait

_FACTORS: Final = (0.8, 1.2)
"""What a value is multiplied by where it is perturbed, as in [1]."""


class _Member(NamedTuple):
    """What a member of the population does in a generation."""

    point: Parameters
    parent: int | None
    """The trial that it goes on from; None to begin anew."""


@strategy("population")
class Population:
    """Trains `members` networks side by side, each for as long as a trial takes, and again.

    Trial t is of member ``t % members`` in generation ``t // members``. The points of the first
    generation are drawn. When all trials of a generation are known, the `share` of the members with
    the worst scores goes on from the end of others, drawn from the `share` with the best ones, with
    their points perturbed; all other members go on from their own end, with their points as they
    are. A member whose trial has no score, as it failed, goes on from another one too.

    Parameters
    ----------
    free : collection of str
        The parameters that are perturbed where `perturb` names none.
    members : int, at least 2
    share : float, above 0, at most 0.5
        Of the members: truncation selection in [1].
    resample : float, 0 to 1
        The chance of each parameter to be drawn anew, in place of perturbed.
    perturb : list of str, optional

    Notes
    -----
    Generations follow each other, as in the synchronous form of [1] and of [2]: what is asked for
    does not depend on the order of results. A number is multiplied by 0.8 or 1.2, within its range,
    and a value of a list or of steps replaced by a neighbour. None becomes 0, or ceases to be 0:
    networks of which one has dropout, say, and another has none, do not go on from each other.

    References
    ----------
    .. [1] Jaderberg et al., Population Based Training of Neural Networks, 2017.
    .. [2] Liaw et al., Tune, 2018: ``PopulationBasedTraining(synch=True)``.
    """

    is_reproducible = True

    def __init__(
        self,
        space: Space,
        seed: int,
        free: Collection[str] = (),
        members: Annotated[
            int, Field(ge=2, le=4096, description="networks that are trained side by side")
        ] = 16,
        share: Annotated[
            float, Field(gt=0, le=0.5, description="part of the members that copies the best")
        ] = 0.25,
        resample: Annotated[
            float, Field(ge=0, le=1, description="chance that a parameter is drawn anew")
        ] = 0.25,
        perturb: Annotated[
            list[str] | None,
            Field(description="parameters that change; those that may differ within a plan"),
        ] = None,
    ) -> None:
        self._space, self._draws = space, Draws(seed, "population")
        self.members, self._resample = members, resample
        self._copied = max(1, int(share * members))
        self._perturbed = frozenset(free if perturb is None else perturb)
        self._generation = 0
        self._now = [_Member(self._drawn(trial), None) for trial in range(members)]
        # Of generations that are not complete, by member: what a trial had, and its score.
        self._told: dict[int, dict[int, tuple[Parameters, float | None]]] = {}

    def ask(self, trial: int) -> Parameters | Wait:
        """Return the point of a trial; `WAIT` until all of the generation before are known."""
        generation, member = divmod(trial, self.members)
        if generation > self._generation:
            return WAIT
        # One of an earlier generation is known by its record: nobody tries this point.
        return dict(self._now[member].point)

    def parent(self, trial: int) -> int | None:
        """Return the trial from whose end a trial goes on, which was asked for; None for none."""
        generation, member = divmod(trial, self.members)
        return self._now[member].parent if generation == self._generation else None

    def possible_parents(self) -> set[int]:
        """Return the trials from which others go on that are not told of yet."""
        parents = {member.parent for member in self._now if member.parent is not None}
        first = self._generation * self.members
        return parents.union(range(first, first + self.members))

    def tell(self, trial: int, parameters: Parameters, score: float | None) -> None:
        """Record the score of a trial; None if it failed or was stopped early."""
        generation, member = divmod(trial, self.members)
        sound = None if score is None or score != score else score
        self._told.setdefault(generation, {})[member] = (parameters, sound)
        while len(self._told.get(self._generation, ())) == self.members:
            self._go_on(self._told.pop(self._generation))

    def _go_on(self, told: Mapping[int, tuple[Parameters, float | None]]) -> None:
        """Choose what each member does in the next generation."""
        first = self._generation * self.members
        scores = {member: score for member, (_, score) in told.items() if score is not None}
        best = sorted(scores, key=lambda member: (-scores[member], member))
        copied = best[: self._copied]
        copying = {*best[max(len(copied), self.members - self._copied) :]}
        self._generation += 1
        chosen = []
        for member in range(self.members):
            trial = first + self.members + member
            point, _ = told[member]
            if not best:
                chosen.append(_Member(self._drawn(trial), None))
            elif member in scores and member not in copying:
                chosen.append(_Member(point, first + member))
            else:
                other = copied[int(self._draws.share(trial, "copied") * len(copied))]
                chosen.append(_Member(self._explored(told[other][0], trial), first + other))
        self._now = chosen

    def _drawn(self, trial: int) -> Parameters:
        return self._space.sample(lambda name: self._draws.share(trial, name))

    def _explored(self, point: Parameters, trial: int) -> Parameters:
        """Return the point of a copy: perturbed, and drawn where its parameters are not there."""

        def choose(name: str) -> Any:
            dimension = self._space.dimensions[name]
            if name not in point:
                return dimension.at(self._draws.share(trial, name))
            if name not in self._perturbed:
                return point[name]
            found = self._neighbour(dimension, name, point[name], trial)
            return point[name] if _is_zero(found) != _is_zero(point[name]) else found

        return self._space.build(choose)

    def _neighbour(self, dimension: Dimension, name: str, value: Any, trial: int) -> Any:
        if self._draws.share(trial, f"{name} anew?") < self._resample:
            return dimension.at(self._draws.share(trial, name))
        is_up = self._draws.share(trial, f"{name} up?") < 0.5
        if isinstance(dimension, Finite):
            index = dimension.index_of(value) + (1 if is_up else -1)
            return dimension[min(max(index, 0), len(dimension) - 1)]
        low, high = sorted((dimension.at(0.0), dimension.at(1 - 2**-53)))
        near = value * _FACTORS[is_up]
        if not isinstance(dimension, Range):  # integers: a small one would never change
            near = round(near) if round(near) != value else value + (1 if is_up else -1)
        return min(max(near, low), high)


def _is_zero(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == 0
