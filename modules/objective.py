"""The objective of a sweep: a number to maximise or minimise, and constraints on metrics.

It is a metric, an expression of metrics (arithmetic only: no code of the file is executed), or a
user's function. A constraint compares two expressions.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from diel import expressions
from diel.errors import PluginError
from diel.expressions import (
    ARITHMETIC,
    MOST_CHARACTERS,
    ExpressionError,
    Language,
    UnknownName,
)

from .metrics import DIVERGED, METRICS, TEXT, plain_number
from .pareto import infeasible_score

Metrics = Mapping[str, Any]
Evaluate = Callable[[Metrics], float]


def _as_number(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError
    return float(value)


def _number(name: str, given: Any) -> float:
    """Return the value of a metric as a number."""
    if type(given) is float or type(given) is int:
        return float(given)
    try:
        return float(plain_number(given))
    except TypeError as error:
        raise ExpressionError(f"{name} = {given!r:.100} is {error}") from None


_NUMBERS = Language(allowed=ARITHMETIC, constant=_as_number, read=_number)


def compile_expression(text: str) -> tuple[Evaluate, list[str]]:
    """Return an expression as a function of a trial's metrics, and the metrics it names, sorted.

    An `ExpressionError` if it is something else than arithmetic.
    """
    found = expressions.compile_expression(text, _NUMBERS)
    return found.evaluate, found.names


def load_evaluation(text: str, folder: Path, argument: str) -> Evaluate:
    """Return a user's function of a dictionary, which a file in `folder` may define.

    A `PluginError` if there is none that takes one argument, which an error calls as given.
    """
    from diel import load_plugin

    function = load_plugin(text, folder)
    try:
        inspect.signature(function).bind({})
    except TypeError as error:
        raise PluginError(f"{text} is called as function({argument}): {error}") from None
    except ValueError:  # a function written in C may have no signature to read
        pass
    return _call_of(function)


def _call_of(function: Callable[[dict[str, Any]], Any]) -> Evaluate:
    def value(metrics: Metrics) -> float:
        returned = function(dict(metrics))
        try:
            return float(plain_number(returned))
        except TypeError as error:
            raise ExpressionError(f"it returned {returned!r:.100}, which is {error}") from None

    return value


class ObjectiveError(ValueError):
    """An objective cannot be computed from what a trainer reports."""

    remedy = ""


@dataclass(frozen=True)
class Objective:
    """A number to maximise or minimise, computed from the metrics of a trial."""

    text: str
    """The objective as it is written in the workflow file."""
    maximise: bool
    evaluate: Evaluate
    """Computes the number from the metrics of a trial."""
    names: tuple[str, ...]
    """The metrics that it needs, as far as the text shows them."""
    is_function: bool = False
    """Whether it is a user's function; which metrics that needs is not known."""

    @classmethod
    def parse(
        cls,
        text: str,
        maximise: bool | None = None,
        folder: Path = Path(),
        known: Iterable[str] | None = None,
    ) -> Objective:
        """Parse an objective of a workflow file.

        Parameters
        ----------
        text : str
            A metric, an expression of metrics, or ``package.module:function``, which takes the
            metrics as a dictionary and returns a number.
        maximise : bool, optional
            May be left out if the text is a metric whose better direction is known.
        folder : Path
            Folder of the workflow file.
        known : iterable of str, optional
            Metrics that the trainer reports, if they are known.

        Raises
        ------
        ExpressionError
            If the expression is not arithmetic.
        PluginError
            If there is no such function.
        ObjectiveError
            If a metric is unknown, or the direction is.
        """
        is_function = ":" in text
        if is_function:
            evaluate = load_evaluation(text, folder, "metrics")
            names: list[str] = []
        else:
            evaluate, names = compile_expression(text)
            if not names:
                raise ObjectiveError(f"{text!r} has no metric in it: every trial would be alike")
            _check_known(names, known, 'objective = "{}"')
        if maximise is None:
            if text not in METRICS:
                raise ObjectiveError(
                    f"say whether {text!r} is to be made large or small: maximise = true or false"
                )
            maximise = METRICS[text].maximise
        return cls(text, maximise, evaluate, tuple(names), is_function)

    def value(self, metrics: Mapping[str, Any]) -> float:
        """Return the objective of a trial; NaN where it is not defined, as 1 / 0.

        An `ObjectiveError` if a metric that it needs is not there or is no number, or the user's
        function raises.
        """
        what = f"objective {self.text!r}"
        return _value(self.evaluate, metrics, what, is_function=self.is_function)

    def curve(self, reports: Iterable[tuple[int, Mapping[str, Any]]]) -> list[tuple[int, float]]:
        """Return (step, value) pairs, for the steps whose metrics give the objective."""
        points = []
        for step, metrics in reports:
            with contextlib.suppress(ObjectiveError):
                points.append((step, self.value(metrics)))
        return points

    def text_among(self, metrics: Mapping[str, Any]) -> str:
        """Return which metric that the objective names is text, in words; empty if none is."""
        for name in self.names:
            if isinstance(metrics.get(name), str):
                return f"objective {self.text!r}: {name} = {metrics[name]!r:.100} is {TEXT}"
        return ""

    def score(self, value: float) -> float | None:
        """Return a value such that larger is better; None for NaN."""
        if value != value:
            return None
        return value if self.maximise else -value

    def reaches(self, threshold: float) -> bool:
        """Whether a metric of known bounds can ever be as good as a threshold."""
        metric = METRICS.get(self.text)
        if metric is None:
            return True
        return metric.highest >= threshold if self.maximise else metric.lowest <= threshold


@dataclass(frozen=True)
class Constraint:
    """A bound that the metrics of a trial have to keep: ``training_time_s <= 2``."""

    text: str
    """The constraint as it is written in the workflow file."""
    pairs: tuple[tuple[Evaluate, Evaluate], ...]
    """Sides that are compared: the first is to be at most the second."""
    names: tuple[str, ...]
    """The metrics that it needs."""

    @classmethod
    def parse(cls, text: str, known: Iterable[str] | None = None) -> Constraint:
        """Parse a constraint of a workflow file; `known` are as for `Objective.parse`.

        An `ExpressionError` if it does not compare expressions by ``<=`` or ``>=``, an
        `ObjectiveError` if it has no metric, or an unknown one.
        """
        sides, operators = _compared(text)
        built = [compile_expression(side) for side in sides]
        names = sorted({name for _, found in built for name in found})
        if not names:
            raise ObjectiveError(f"{text!r} has no metric in it: every trial would be alike")
        _check_known(names, known, 'constraints = ["{} <= 0.5"]')
        neighbours = zip(built, built[1:], operators, strict=False)
        pairs = tuple(
            (left, right) if isinstance(operator, ast.LtE) else (right, left)
            for (left, _), (right, _), operator in neighbours
        )
        return cls(text, pairs, tuple(names))

    def violation(self, metrics: Mapping[str, Any]) -> float:
        """Return by how much a trial breaks the constraint, 0 if it holds; NaN as for an objective.

        An `ObjectiveError` if a metric is missing, or is no number.
        """
        what, found = f"constraint {self.text!r}", 0.0
        for smaller, larger in self.pairs:
            beyond = _value(smaller, metrics, what) - _value(larger, metrics, what)
            if not math.isfinite(beyond):
                return math.nan
            found += max(beyond, 0.0)
        return found


def _compared(text: str) -> tuple[list[str], list[ast.cmpop]]:
    """Return the sides of a comparison, and the operators between them."""
    example = "write it with <= or >=, as in training_time_s <= 2"
    if len(text) > MOST_CHARACTERS:
        raise ExpressionError(f"a constraint of {len(text)} characters is too long")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise ExpressionError(f"{text!r} is no constraint: {error}") from None
    if not isinstance(tree, ast.Compare):
        raise ExpressionError(f"{text!r} compares nothing: {example}")
    if not all(isinstance(operator, ast.LtE | ast.GtE) for operator in tree.ops):
        raise ExpressionError(f"{text!r} compares by something else: {example}")
    sides = [ast.get_source_segment(text.strip(), side) for side in (tree.left, *tree.comparators)]
    return [side or "" for side in sides], tree.ops


def _check_known(names: Iterable[str], known: Iterable[str] | None, example: str) -> None:
    """Raise an `ObjectiveError` if a name is none of the metrics that are known."""
    for name in names:
        if known is not None and name not in set(known):
            wrong = ObjectiveError(f"the trainer reports no {name!r}{_meant(name, known)}")
            if (first := next(iter(known), None)) is not None:
                wrong.remedy = f"take one of these, as in {example.format(first)}"
            raise wrong


def _value(
    evaluate: Evaluate, metrics: Mapping[str, Any], what: str, *, is_function: bool = False
) -> float:
    """Return what an expression or a function makes of metrics; NaN where it is not defined."""
    try:
        return float(evaluate(metrics))
    except UnknownName as error:
        name = str(error)
        raise ObjectiveError(
            f"{what}: the trainer reported no {name!r}{_meant(name, metrics)}"
        ) from None
    except ExpressionError as error:
        raise ObjectiveError(f"{what}: {error}") from None
    except Exception as error:
        if not is_function:  # what is left is arithmetic: a division by 0, an overflow
            return math.nan
        raise ObjectiveError(f"{what} raised {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Aim:
    """What trainers know of a sweep's aim: its first objective, and whether time may end trials."""

    text: str
    maximise: bool
    has_time_limit: bool = False
    constraints: tuple[str, ...] = ()

    def score(self, metrics: Mapping[str, Any], folder: Path) -> float | None:
        """Return how good metrics are, larger being better; None if they cannot be ranked.

        A user's function is looked for in `folder`, that of the workflow file. Of constraints those
        count whose metrics are there, which an epoch in the middle of a trial may lack.
        """
        objective = _parsed(self.text, self.maximise, folder)
        if objective is None:
            return None
        there = [each for each in _constraints(self.constraints) if metrics.keys() >= {*each.names}]
        judgement = judge(metrics, [objective], there)
        if judgement.reason:
            return None
        if judgement.violation > 0:
            return infeasible_score(judgement.violation)
        return objective.score(objective.value(metrics))


@lru_cache(maxsize=1)
def _constraints(texts: tuple[str, ...]) -> list[Constraint]:
    return [Constraint.parse(text) for text in texts]


@lru_cache(maxsize=1)
def _parsed(text: str, maximise: bool, folder: Path) -> Objective | None:
    try:
        return Objective.parse(text, maximise, folder)
    except (ValueError, PluginError):  # a function that is not on this machine
        return None


@dataclass(frozen=True)
class Judgement:
    """Whether the metrics of a trial are a result that can be ranked."""

    reason: str = ""
    """Why the metrics are no result; empty if they are one."""
    is_diverged: bool = False
    """Whether the training diverged: numbers are NaN or infinite, and not missing."""
    violation: float = 0.0
    """By how much the metrics break constraints, all of these together."""
    broken: str = ""
    """Which constraints they break; empty if none."""


_SOUND = Judgement()


def judge(
    metrics: Mapping[str, Any],
    objectives: Iterable[Objective],
    constraints: Iterable[Constraint] = (),
) -> Judgement:
    """Judge whether the metrics at the end of a trial are a result that objectives can rank.

    They are not if a metric that an objective or a constraint needs is missing, if one of these is
    NaN or infinite, or if the trainer has reported ``diverged`` as true. Metrics that break
    constraints are a result, which ranks behind all that do not.
    """
    if metrics.get(DIVERGED) is True:
        return Judgement("the training diverged", is_diverged=True)
    broken: list[str] = []
    violation = 0.0
    try:
        for objective in objectives:
            value = objective.value(metrics)
            if not math.isfinite(value):
                return Judgement(f"{objective.text} is {value}", is_diverged=True)
        for constraint in constraints:
            beyond = constraint.violation(metrics)
            if not math.isfinite(beyond):
                text = f"a side of {constraint.text} is NaN or infinite"
                return Judgement(text, is_diverged=True)
            violation = min(violation + beyond, sys.float_info.max)
            broken += [constraint.text] if beyond > 0 else []
    except ObjectiveError as error:
        return Judgement(str(error))
    if not broken:
        return _SOUND
    return Judgement(violation=violation, broken=f"breaks {' and '.join(broken)}")


def _meant(name: str, known: Iterable[str]) -> str:
    by_lower = {str(name).lower(): str(name) for name in known}
    near = get_close_matches(name.lower(), by_lower, 1)
    listing = f"it reports {', '.join(by_lower.values())}" if by_lower else "it reports nothing"
    return f" (did you mean {by_lower[near[0]]!r}?); {listing}" if near else f"; {listing}"
