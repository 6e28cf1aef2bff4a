"""Optuna's samplers, on a history that is bounded.

An ask of Optuna grows with the number of trials in its study: its TPE takes tens of milliseconds
after a few thousand. So a study is thrown away when it has grown beyond the history, and a new one
is made of the best trials and the last ones.

Of a parameter with few values Optuna computes the probability of each, one trial of the history
after another; that of one with many is the density of a real number, which is four times as fast.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections import deque
from collections.abc import Callable
from heapq import heappush, heappushpop
from typing import Annotated, Any, Final, TypeGuard

from pydantic import Field

from ..space import Choices, Dimension, Finite, LogIntegers, Parameters, Range, Space
from .catalogue import strategy
from .strategy import Draws

SAMPLERS: dict[str, tuple[str, dict[str, Any]]] = {
    "tpe": ("TPESampler", {"constant_liar": True}),
    "gp": ("GPSampler", {}),
    "cmaes": ("CmaEsSampler", {}),
    "nsgaii": ("NSGAIISampler", {}),
    "random": ("RandomSampler", {}),
}
"""By the name behind ``optuna:``: the class of Optuna, and its arguments."""
_MODELLING_SCORES: Final = ("gp",)
"""The samplers that do not go by ranks alone."""
_SEARCH_SPACE: Final = "_search_space"
"""Where a sampler caches the search space of its study; without it every trial is read again."""
_FEW: Final = 16
"""For a parameter with more values, Optuna is asked for a real number, which is rounded."""
_HISTORY: Final = {"tpe": (50, 200, 0.2)}
"""By sampler: best trials, last trials, and the share by which a study grows before a new one."""
_DEFAULT_HISTORY: Final = (100, 400, 1.0)
"""For other samplers: those that go by generations begin them anew with each study."""


def _told_again(which: str) -> Any:
    return Field(ge=1, le=1000, description=f"{which} trials that Optuna is told of again")


class OptunaSearch:
    """A strategy that asks a sampler of Optuna.

    Parameters
    ----------
    sampler : str
        A key of `SAMPLERS`.
    best, last : int, optional
        How many of the best and of the last trials a new study is made of.

    Raises
    ------
    ImportError
        If Optuna, or what the sampler needs, is not installed.

    Notes
    -----
    Stopped and failed trials count as failed in Optuna, without a score. Results in another order
    change what it suggests next.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        sampler: str = "tpe",
        best: Annotated[int | None, _told_again("best")] = None,
        last: Annotated[int | None, _told_again("last")] = None,
    ) -> None:
        self._optuna = _imported("optuna")
        if sampler == "gp":
            _imported("torch")
        if sampler == "cmaes":
            _imported("cmaes")
        self._space = space
        self._draws = Draws(seed, "optuna")
        self._sampler = sampler
        usual_best, usual_last, growth = _HISTORY.get(sampler, _DEFAULT_HISTORY)
        best = usual_best if best is None else best
        last = usual_last if last is None else last
        self._best_size, self._limit = best, best + last + math.ceil(growth * (best + last))
        self._best: list[tuple[float, int, Parameters]] = []
        self._last: deque[tuple[float, int, Parameters]] = deque(maxlen=last)
        self._in_flight: dict[int, int] = {}
        self.trials_in_study = self._added = 0
        self._study = self._new_study()

    def ask(self, trial: int) -> Parameters:
        """Return what the sampler suggests, given the results so far and the trials in flight."""
        if self.trials_in_study >= self._limit:
            self._rebuild()
        # A new sampler for each trial, so that its random numbers follow from the trial.
        sampler = self._make_sampler(int(self._draws.share(trial, "") * 2**32))
        earlier = self._study.sampler
        if type(earlier) is type(sampler) and hasattr(earlier, _SEARCH_SPACE):
            setattr(sampler, _SEARCH_SPACE, getattr(earlier, _SEARCH_SPACE))
        self._study.sampler = sampler
        asked = self._study.ask()
        self.trials_in_study += 1
        self._in_flight[trial] = asked.number
        return self._space.build(lambda name: self._suggest(asked, name))

    def tell(self, trial: int, parameters: Parameters, score: float | None) -> None:
        """Record a score, in Optuna's study and in the history."""
        number = self._in_flight.pop(trial, None)
        if score is None or score != score:
            if number is not None:
                self._study.tell(number, state=self._optuna.trial.TrialState.FAIL)
            return
        entry = (score, -trial, parameters)
        self._last.append(entry)
        if len(self._best) < self._best_size:
            heappush(self._best, entry)
        elif self._best_size and entry[:2] > self._best[0][:2]:
            heappushpop(self._best, entry)
        if number is not None:
            self._study.tell(number, score)
        else:
            self._add(entry)

    def add(self, parameters: Parameters, score: float) -> None:
        """Record the score of a point that the strategy has not chosen."""
        self._added += 1
        self.tell(-self._added, parameters, score)

    def _rebuild(self) -> None:
        self._study = self._new_study()
        self.trials_in_study = 0
        self._in_flight.clear()
        kept = {-trial: (score, trial, parameters) for score, trial, parameters in self._best}
        kept |= {-trial: (score, trial, parameters) for score, trial, parameters in self._last}
        for _, entry in sorted(kept.items()):
            self._add(entry)

    def _new_study(self) -> Any:
        verbosity = self._optuna.logging.get_verbosity()
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        try:
            return self._optuna.create_study(direction="maximize")
        finally:
            self._optuna.logging.set_verbosity(verbosity)

    def _make_sampler(self, seed: int) -> Any:
        name, arguments = SAMPLERS[self._sampler]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
            return getattr(self._optuna.samplers, name)(seed=seed, **arguments)

    def _add(self, entry: tuple[float, int, Parameters]) -> None:
        """Add a trial that this study has not asked for."""
        score, _, parameters = entry
        self._study.add_trial(
            self._optuna.trial.create_trial(
                params={name: self._inner(name, value) for name, value in parameters.items()},
                distributions={name: self._distribution(name) for name in parameters},
                value=score,
            )
        )
        self.trials_in_study += 1

    def _distribution(self, name: str) -> Any:
        dimension, known = self._space.dimensions[name], self._optuna.distributions
        if isinstance(dimension, Choices):
            return known.CategoricalDistribution(range(len(dimension)))
        if _is_fine(dimension):
            return known.FloatDistribution(-0.5, len(dimension) - 0.5)
        if isinstance(dimension, Finite):
            return known.IntDistribution(0, len(dimension) - 1)
        assert isinstance(dimension, (Range, LogIntegers))
        low, high = sorted((dimension.start, dimension.stop))
        if isinstance(dimension, LogIntegers):
            return known.IntDistribution(low, high, log=True)
        return known.FloatDistribution(low, high, log=dimension.is_log)

    def _inner(self, name: str, value: Any) -> Any:
        """Return the value that Optuna has for a value: its index, if the dimension is finite."""
        dimension = self._space.dimensions[name]
        if not isinstance(dimension, Finite):
            return value
        return (
            float(dimension.index_of(value)) if _is_fine(dimension) else dimension.index_of(value)
        )

    def _suggest(self, asked: Any, name: str) -> Any:
        dimension, wanted = self._space.dimensions[name], self._distribution(name)
        if isinstance(dimension, Choices):
            return dimension[asked.suggest_categorical(name, wanted.choices)]
        if _is_fine(dimension):
            index = round(asked.suggest_float(name, wanted.low, wanted.high))
            return dimension[min(max(index, 0), len(dimension) - 1)]
        if isinstance(dimension, Finite):
            return dimension[asked.suggest_int(name, wanted.low, wanted.high)]
        suggest: Callable[..., Any] = (
            asked.suggest_int if isinstance(dimension, LogIntegers) else asked.suggest_float
        )
        return suggest(name, wanted.low, wanted.high, log=wanted.log)


for _sampler in SAMPLERS:
    _reads = _sampler in _MODELLING_SCORES
    strategy(f"optuna:{_sampler}", needs="Optuna", reads_scores=_reads, sampler=_sampler)(
        OptunaSearch
    )


def _is_fine(dimension: Dimension) -> TypeGuard[Finite]:
    """Whether a stepped range has so many values that it is sampled like a real one."""
    if isinstance(dimension, Choices) or not isinstance(dimension, Finite):
        return False
    return len(dimension) > _FEW


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"this strategy needs {name}, which is not installed: pip install {name}"
        ) from error
