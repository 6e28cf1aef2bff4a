"""Generators of the gest-api standard as strategies: those of Xopt, Optimas and libEnsemble.

::

    Axis           one parameter as a variable of a generator
    GestSearch     asks a generator for points, and has it take their scores

A generator knows its variables and objectives as a ``VOCS`` of the package gest-api.

References
----------
.. [1] https://generator-standard.readthedocs.io
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from diel.errors import PluginError

from ..space import Choices, Dimension, Finite, Parameters, Space, SpaceError
from .catalogue import strategy
from .strategy import WAIT, Draws, Wait

_LARGEST_SHARE: Final = 1 - 2**-53
_ROUNDING: Final = 1e-6
"""How far a generator may go beyond the range of a variable."""

Scores = tuple[float, ...]


class Axis:
    """One parameter as a variable of a generator.

    Numbers are the share of the way through their values, from 0 to 1, whatever their scale: so a
    logarithmic range is one, and integers are rounded. Choices are a discrete variable, of their
    own values if these are numbers, and of their places in the list otherwise.
    """

    def __init__(self, dimension: Dimension) -> None:
        self._dimension = dimension
        self.values: Sequence[float] | None = None
        """Of a discrete variable: its values, in the order of the choices."""
        if isinstance(dimension, Choices):
            are_numbers = all(type(value) in (int, float) for value in dimension)
            self.values = [*dimension] if are_numbers else range(len(dimension))

    def outer(self, value: Any) -> float:
        """Return what a generator has for a value; a ValueError if the parameter has no such."""
        dimension = self._dimension
        if self.values is not None and isinstance(dimension, Finite):
            return self.values[dimension.index_of(value)]
        return dimension.share(value)

    def inner(self, suggested: Any) -> Any:
        """Return the value that a generator means; a ValueError if there is none."""
        number = float(suggested)
        if self.values is not None and isinstance(self._dimension, Finite):
            return self._dimension[self.values.index(number)]
        if not -_ROUNDING <= number <= 1 + _ROUNDING:
            raise ValueError(f"{number} is not between 0 and 1")
        return self._dimension.at(min(max(number, 0.0), _LARGEST_SHARE))


@strategy("gest", needs="gest_api")
class GestSearch:
    """Asks a generator of the gest-api standard.

    Parameters
    ----------
    generator : str
        Its class, as ``package.module:Class`` or ``./file.py:Class``.
    options : dict
        Keyword arguments of the class, beside its VOCS, and the seed if it takes one.
    startup : int
        How many trials with a score there are before the generator is asked. Until then points are
        random: many generators have to be given results first.
    most_in_flight : int, optional
        How many of its points may be without a result; other trials wait. A simplex moves on only
        when it knows the value of its last point: 1.
    objectives : mapping of str to bool
        The name of each objective, and whether more of it is better.
    folder : Path
        That of the workflow file.

    Raises
    ------
    SpaceError
        If a parameter exists beside some values of others only, which a VOCS cannot say.
    PluginError
        If there is no such class, or it refuses the variables, the objectives or its options.

    Notes
    -----
    A failed trial is one of the worst score of each objective so far, since the standard has no
    other word for it; one that was stopped early has its last score. Points keep the ``_id`` that
    the generator gave to them, and results of an earlier session have none.

    A generator is made when it is first asked for a point, with a seed that follows from the trial:
    in a sweep that is resumed it does not draw the same points again.
    """

    takes_all_objectives = True

    def __init__(
        self,
        space: Space,
        seed: int,
        generator: Annotated[str, Field(description="its class, as package.module:Class")],
        options: Annotated[
            dict[str, Any] | None, Field(description="keyword arguments of the class")
        ] = None,
        startup: Annotated[
            int,
            Field(ge=0, le=100_000, description="trials with a score before it is asked"),
        ] = 0,
        most_in_flight: Annotated[
            int | None, Field(ge=1, description="of its points, how many may be without a result")
        ] = None,
        objectives: Mapping[str, bool] | None = None,
        folder: Path = Path(),
    ) -> None:
        self._space, self._name, self._folder = space, generator, folder
        self._draws = Draws(seed, "gest")
        self._options = options or {}
        self._startup, self._most_in_flight = startup, most_in_flight or math.inf
        self._objectives = dict(objectives or {"score": True})
        # A parameter of one value is no variable.
        self._axes = {
            name: Axis(each)
            for name, each in space.dimensions.items()
            if not isinstance(each, Finite) or len(each) > 1
        }
        self._first_trial = 0
        self._queue: list[dict[str, Any]] = []
        self._in_flight: dict[int, dict[str, Any]] = {}
        # Results that the generator has not been given yet; without scores, of failed trials.
        self._results: list[dict[str, Any]] = []
        self._failed: list[dict[str, Any]] = []
        self._worst: Scores | None = None
        self._scored = 0
        self._drawn: set[int] = set()
        # Points of an earlier session, by trial: a master asks for all trials in order.
        self._known: dict[int, Parameters] = {}

    @cached_property
    def generator(self) -> Any:
        """The generator, which is made when it is first asked for."""
        from diel import load_plugin

        dependent = next((name for name, wanted in self._space.conditions.items() if wanted), None)
        if dependent is not None:
            raise SpaceError(
                "exists beside some values of others only, which generators of gest-api do not "
                "know: leave out its if, or use tpe",
                dependent,
            )
        if not self._axes:
            raise PluginError("every parameter has one value: there is nothing to choose")
        made = load_plugin(self._name, self._folder)
        options = dict(self._options)
        try:
            if "seed" in signature(made).parameters and "seed" not in options:
                options["seed"] = int(self._draws.share(self._first_trial, "seed") * 2**31)
            generator = made(vocs=self._vocs(), **options)
        except Exception as error:  # a generator may refuse with any
            raise PluginError(f"{self._name} refuses: {type(error).__name__}: {error}") from error
        missing = [name for name in ("suggest", "ingest") if not hasattr(generator, name)]
        if missing:
            raise PluginError(f"{self._name} has no {' and no '.join(missing)}: a generator has")
        return generator

    def _vocs(self) -> Any:
        from gest_api.vocs import VOCS

        return VOCS(
            variables={
                name: [0.0, 1.0] if axis.values is None else {*axis.values}
                for name, axis in self._axes.items()
            },
            objectives={
                name: "MAXIMIZE" if is_more else "MINIMIZE"
                for name, is_more in self._objectives.items()
            },
        )

    def ask(self, trial: int) -> Parameters | Wait | None:
        """Return what the generator suggests, given the results so far; None if it has ended."""
        if trial in self._known:
            return self._known.pop(trial)
        if self._scored < self._startup:
            self._drawn.add(trial)
            return self._space.sample(lambda name: self._draws.share(trial, f"{name}="))
        if len(self._in_flight) >= self._most_in_flight:
            return WAIT
        if "generator" not in self.__dict__:
            self._first_trial = trial
        self._pass_on()
        if not self._queue:
            self._queue = self._suggested()
        if not self._queue:
            return WAIT if self._in_flight else None
        suggested = self._queue.pop(0)
        self._in_flight[trial] = suggested
        return self._space.build(lambda name: self._value(name, suggested))

    def tell(self, trial: int, parameters: Parameters, score: Scores | float | None) -> None:
        """Record the scores of a trial; None if it failed or was stopped early."""
        row = self._in_flight.pop(trial, None)
        if row is None:
            try:
                row = {name: axis.outer(parameters[name]) for name, axis in self._axes.items()}
            except (KeyError, ValueError):
                return  # of an earlier sweep, with another space
            if trial in self._drawn:
                self._drawn.remove(trial)
            elif trial >= 0:
                self._known[trial] = parameters
        if score is None:
            self._failed.append(row)
            return
        scores = score if isinstance(score, tuple) else (score,)
        self._results.append(self._result(row, scores))
        self._worst = scores if self._worst is None else (*map(min, self._worst, scores),)
        self._scored += 1

    def tell_curve(
        self,
        trial: int,
        parameters: Parameters,
        reports: Sequence[tuple[int, float]],
        score: Scores | float | None,
    ) -> None:
        """Record a trial by its score, or by its last report if it was stopped early."""
        if score is None and reports and len(self._objectives) == 1:
            score = reports[-1][1]
        self.tell(trial, parameters, score)

    def add(self, parameters: Parameters, score: Scores | float) -> None:
        """Record the scores of a point that the strategy has not chosen."""
        self.tell(-1, parameters, score)

    def finalize(self) -> None:
        """Have the generator end what it has running."""
        end = getattr(self.__dict__.get("generator"), "finalize", None)
        if end is not None:
            end()

    def _pass_on(self) -> None:
        """Give the generator all results that it does not know, in one list."""
        if self._worst is not None:
            self._results += [self._result(row, self._worst) for row in self._failed]
            self._failed.clear()
        if self._results:
            results, self._results = self._results, []
            self._call("ingest", results)

    def _result(self, row: Mapping[str, Any], scores: Scores) -> dict[str, Any]:
        signs = (1.0 if is_more else -1.0 for is_more in self._objectives.values())
        values = (sign * score for sign, score in zip(signs, scores, strict=True))
        return {**row, **dict(zip(self._objectives, values, strict=True))}

    def _suggested(self) -> list[dict[str, Any]]:
        """Return a point, or as many as the generator gives at once; none if it has none now."""
        generator = self.generator
        try:
            return [*(generator.suggest(1) or ())]
        except ValueError:  # the standard's word for "not so many"
            return [*(self._call("suggest", None) or ())]
        except Exception as error:
            raise self._failure("suggest", error) from error

    def _call(self, method: str, argument: Any) -> Any:
        call = getattr(self.generator, method)
        try:
            return call(argument)
        except Exception as error:  # a generator may fail with any
            raise self._failure(method, error) from error

    def _failure(self, method: str, error: Exception) -> PluginError:
        remedies = {
            "suggest": "if it has to be given results first, write startup = 10",
            "ingest": "if it takes one result after the other, write most_in_flight = 1",
        }
        return PluginError(
            f"{method} of {self._name}: {type(error).__name__}: {error}; {remedies[method]}"
        )

    def _value(self, name: str, suggested: Mapping[str, Any]) -> Any:
        """Return the value of a parameter in a point that the generator has suggested."""
        axis = self._axes.get(name)
        if axis is None:
            return self._space.dimensions[name].at(0.0)
        try:
            return axis.inner(suggested[name])
        except (KeyError, TypeError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
            raise PluginError(
                f"{self._name} suggests {dict(suggested)}, which is no point: {name}: {problem}"
            ) from None
