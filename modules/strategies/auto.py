"""The strategy `auto`: what a sweep's file, or the time of its first trials, has it choose."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from ..space import Parameters, Space
from .catalogue import STRATEGIES, make_strategy, strategy
from .strategy import Grid, Strategy, Wait

_LEARNER: Final = {"name": "tpe"}
_MEASURED_S: Final = 1.0
"""Trials take so long together until they say how long the others will take."""
_SHARE_MEASURED: Final = 0.05
"""Or this part of all the time that there is."""
_SLACK: Final = 2.0
"""All fit if there is time for so many times as many: the first ones may be the quick ones."""


@strategy("auto")
class Auto:
    """Asks a strategy that was chosen; or begins as a grid, and goes on as one if that fits.

    A sweep that leaves ``strategy`` out has this one, unless it is a grid from the start.

    Parameters
    ----------
    chosen : mapping
        The table of a strategy that learns.
    may_be_grid : bool
        Whether to begin as a grid, until it is known how long trials take.
    room_s : float
        How long all trials may take, of all trainers together.
    spares : bool
        Whether no trial is stopped early as long as it is a grid.
    trials : int, optional
        How many trials there are at most: if they fit, none is stopped early either.

    Notes
    -----
    A sweep that is resumed decides by the same trials, in the order of the ledger. If there is less
    time by then, on fewer ranks, a grid may become a search, and trials may be stopped early; a
    search never becomes a grid again.
    """

    is_without_repeats = True

    def __init__(
        self,
        space: Space,
        seed: int,
        chosen: Mapping[str, Any] = _LEARNER,
        may_be_grid: bool = False,
        room_s: float = 0.0,
        spares: bool = False,
        trials: int | None = None,
    ) -> None:
        self._learner = make_strategy(chosen, space, seed)
        self._grid = Grid(space, seed) if may_be_grid else None
        self._room_s, self._spares = room_s, spares
        # How many trials are to fit into the time, as long as that may be.
        self._wanted: int | None = trials if self._grid is None else self._grid.size
        self.takes_all_objectives = getattr(
            STRATEGIES[chosen["name"]].kind, "takes_all_objectives", False
        )
        self.size: int | None = getattr(self._learner, "size", None)
        self.measured = ""
        """What the first trials have decided, in words; empty as long as they have not."""
        self._count, self._spent_s = 0, 0.0
        self._told: list[tuple[int, Parameters, Sequence[tuple[int, float]], Any]] = []
        self._out: dict[int, Parameters] = {}
        self._asked = 0
        # Points that were told before they were asked for: of a sweep that is resumed.
        self._recorded: dict[int, Parameters] = {}

    @property
    def is_grid(self) -> bool:
        """Whether its points are those of a grid, by now."""
        return self._grid is not None

    @property
    def lets_all_finish(self) -> bool:
        """Whether no trial is to be stopped early."""
        return self._wanted is not None and (self._spares or not self.is_grid)

    def ask(self, trial: int) -> Parameters | Wait | None:
        """Return the parameters of a trial; of one that is recorded, those that it had."""
        self._asked = max(self._asked, trial + 1)
        if (known := self._recorded.pop(trial, None)) is not None:
            return known
        if self._grid is None:
            return self._learner.ask(trial)
        point = self._grid.ask(trial)
        if point is not None:
            self._out[trial] = point
        return point

    def ask_alike(
        self, trial: int, like: Parameters, free: Collection[str]
    ) -> Parameters | Wait | None:
        """Return parameters that agree with `like` in all but those in `free`; None for none."""
        ask_alike = getattr(self._learner, "ask_alike", None)
        if self._grid is not None or ask_alike is None or trial in self._recorded:
            return None
        self._asked = max(self._asked, trial + 1)
        found: Parameters | Wait | None = ask_alike(trial, like, free)
        return found

    def took(self, seconds: float) -> None:
        """Record how long a trial took that has finished, before its score is told."""
        if self._wanted is None or self.measured:
            return
        self._count += 1
        self._spent_s += seconds
        enough_s = min(_MEASURED_S, _SHARE_MEASURED * self._room_s)
        if self._spent_s < enough_s and self._count < self._wanted:
            return
        self._decide(self._wanted, max(self._spent_s / self._count, 1e-6))

    def _decide(self, wanted: int, each_s: float) -> None:
        """Go on as it began if so many trials fit into the time, each taking so long."""
        room = int(self._room_s / each_s)
        takes = f"a trial takes {each_s:.2g} s, so there is time for {room:,}"
        fits = wanted * _SLACK <= room or self._count >= wanted
        if self._grid is None:
            how = "enough for" if fits else "too few to be sure of"
            self.measured = f"{takes}, {how} all {wanted:,} trials to be trained to the end"
            self._wanted = wanted if fits else None
        elif fits:
            self.measured = f"a grid of {wanted:,} points: {takes}"
        else:
            self.measured = f"{takes}, too few to be sure of the {wanted:,} points of a grid"
            self._search()

    def tell(self, trial: int, parameters: Parameters, score: Any) -> None:
        """Record the score of a trial; None if it failed or was stopped early."""
        self.tell_curve(trial, parameters, (), score)

    def tell_curve(
        self,
        trial: int,
        parameters: Parameters,
        reports: Sequence[tuple[int, float]],
        score: Any,
    ) -> None:
        """Record a trial by its reports and its score."""
        self._out.pop(trial, None)
        if trial >= self._asked:
            self._recorded[trial] = parameters
        if self._grid is not None and parameters != self._grid.ask(trial):
            self._search()  # an earlier session did
        if self._grid is None:
            _tell(self._learner, trial, parameters, reports, score)
        else:
            self._told.append((trial, parameters, reports, score))

    def add(self, parameters: Parameters, score: Any) -> None:
        """Take a score of a point that was not asked for."""
        if (add := getattr(self._learner, "add", None)) is not None:
            add(parameters, score)

    def _search(self) -> None:
        """Go on as the strategy that learns, from all that is known."""
        self._grid = self._wanted = None
        for told in self._told:
            _tell(self._learner, *told)
        self._told.clear()
        if (under_way := getattr(self._learner, "under_way", None)) is not None:
            for trial, parameters in self._out.items():
                under_way(trial, parameters)
        self._out.clear()


def _tell(
    learner: Strategy,
    trial: int,
    parameters: Parameters,
    reports: Sequence[tuple[int, float]],
    score: Any,
) -> None:
    if (tell_curve := getattr(learner, "tell_curve", None)) is None:
        learner.tell(trial, parameters, score)
    else:
        tell_curve(trial, parameters, reports, score)
