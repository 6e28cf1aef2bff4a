"""Lists of runs: which parameters get columns, and which runs a condition chooses.

::

    dt < 0.1 and state == "finished"        the condition of diel runs --where, and of the page

A condition names parameters, objectives, and what the list says of every run (`OF_EVERY_RUN`). In a
name that is not Python's, such as ``module.solver.options.cells``, each odd character is ``_``.
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from diel.errors import ConditionError
from diel.expressions import (
    ARITHMETIC,
    Evaluate,
    ExpressionError,
    Language,
    Logic,
    UnknownName,
    compile_expression,
)
from diel.frozen import Frozen
from diel.run.history import RunSummary
from diel.run.scores import Score, ScoreReader
from diel.text import as_toml, did_you_mean, format_value, show, some_of

OF_EVERY_RUN: Final = ("workflow", "state", "started", "seconds", "ranks", "run", "best", "why")
"""What a condition may name of any run; parameters of these names are ``parameters_...``."""
MOST_COLUMNS: Final = 5
"""The most parameters with a column of their own."""


class ListedRun(Frozen):
    """A run in a list, with the best of each of its tables of results."""

    summary: RunSummary
    scores: Sequence[Score] = ()

    @property
    def started(self) -> str:
        """When it began, as text that sorts by time."""
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.summary.started_s))

    @property
    def best(self) -> Score | None:
        """The best of its first table of results; None if it has none."""
        return self.scores[0] if self.scores else None

    def parameters_but(self, columns: Sequence[str]) -> str:
        """Return the values of the parameters that have no columns, in one line."""
        rest = {k: value for k, value in self.summary.parameters.items() if k not in columns}
        return " ".join(f"{name}={format_value(value)}" for name, value in rest.items())

    def values(self) -> dict[str, Any]:
        """Return what a condition may name, with its values."""
        summary, best = self.summary, self.best
        named = {score.objective: score.best for score in reversed(self.scores)}
        named |= summary.parameters
        named |= {f"parameters.{name}": value for name, value in summary.parameters.items()}
        found = {re.sub(r"\W", "_", name): value for name, value in named.items()}
        found |= {"true": True, "false": False}  # as TOML writes them
        own = (summary.workflow, summary.state, self.started, summary.duration_s, summary.ranks)
        score = None if best is None else best.best
        of_run: tuple[Any, ...] = (*own, summary.path.name, score, summary.reason)
        found |= dict(zip(OF_EVERY_RUN, of_run, strict=True))
        return {name: value for name, value in found.items() if value is not None}


def listed(summaries: Iterable[RunSummary], reader: ScoreReader) -> list[ListedRun]:
    """Return runs with their scores, in the same order."""
    return [
        ListedRun(run, reader.scores(run.path, goes_on=run.state == "running")) for run in summaries
    ]


def parameter_columns(runs: Sequence[ListedRun]) -> list[str]:
    """Return the parameters that get columns: of those that differ, the ones that most runs have.

    A parameter differs if two runs have it with different values.
    """
    values: dict[str, list[str]] = {}
    for run in reversed(runs):  # the order of the oldest file
        for name, value in run.summary.parameters.items():
            values.setdefault(name, []).append(as_toml(value))
    differing = [name for name, found in values.items() if len({*found}) > 1]
    chosen = sorted(differing, key=lambda name: -len(values[name]))[:MOST_COLUMNS]
    return [name for name in values if name in chosen]


def common_objective(runs: Sequence[ListedRun]) -> str:
    """Return the objective by which all runs that have a score are ranked; empty if they differ."""
    names = {run.best.objective for run in runs if run.best is not None}
    return names.pop() if len(names) == 1 else ""


def shown_best(run: ListedRun, common: str) -> str:
    """Return the best score as text, with the name of its objective unless that is the common."""
    if run.best is None:
        return ""
    value = format_value(run.best.best)
    return value if run.best.objective == common else f"{run.best.objective} {value}"


# -- conditions -----------------------------------------------------------------------------------


def _constant(value: Any) -> Any:
    if type(value) not in (str, int, float, bool):
        raise TypeError
    return value


def _lifted(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Return a function that refuses texts where it computes: a number times a text is long."""

    def of_numbers(*values: Any) -> Any:
        for value in values:
            if not isinstance(value, (int, float)):
                raise TypeError(f"{show(value)} is no number")
        return function(*values)

    def of_alike(left: Any, right: Any) -> Any:
        if isinstance(left, str) != isinstance(right, str):
            raise TypeError(f"{show(left)} and {show(right)} have no order")
        return function(left, right)

    return {"arithmetic": of_numbers, "order": of_alike}.get(what, function)


def _decided_by(decisive: bool) -> Callable[[Sequence[Evaluate]], Evaluate]:
    """Return ``and`` (of which a false part decides) or ``or`` (a true one).

    What decides counts even if other parts name what a run lacks.
    """

    def combine(parts: Sequence[Evaluate]) -> Evaluate:
        def value(values: Mapping[Any, Any]) -> bool:
            missing = None
            for part in parts:
                try:
                    if bool(part(values)) is decisive:
                        return decisive
                except UnknownName as error:
                    missing = error
            if missing is not None:
                raise missing
            return not decisive

        return value

    return combine


_LANGUAGE: Final = Language(
    allowed=f"texts in quotes, and, or, not, comparisons, {ARITHMETIC}",
    constant=_constant,
    read=lambda name, value: value,
    lifted=_lifted,
    logic=Logic(
        every=_decided_by(False),
        some=_decided_by(True),
        negated=operator.not_,
        chosen=lambda test, then, otherwise: (
            lambda values: then(values) if test(values) else otherwise(values)
        ),
    ),
)


def choose(runs: Sequence[ListedRun], condition: str) -> list[ListedRun]:
    """Return the runs for which a condition is true.

    A run that lacks what decides, such as a parameter, is not chosen.

    Raises
    ------
    ConditionError
        If it is no condition, names what no run has, or has a value for no run.
    """
    try:
        compiled = compile_expression(condition, _LANGUAGE)
    except ExpressionError as error:
        raise ConditionError(f'{error}, as in dt < 0.1 and state == "finished"') from None
    values = [run.values() for run in runs]
    known = dict.fromkeys([*OF_EVERY_RUN, *(name for each in values for name in each)])
    for name in compiled.names:
        if name not in known and runs:
            near = did_you_mean(name, known)
            named = [each for each in known if not each.startswith("parameters_")]
            hint = f'did you mean "{near}"?' if near else f"there are {some_of(named)}"
            raise ConditionError(f"no run has {name} ({hint}; a text stands in quotes)")
    chosen, is_judged, wrong = [], False, ""
    for run, of_run in zip(runs, values, strict=True):
        try:
            value = compiled.evaluate(of_run)
            if isinstance(value, str):
                raise TypeError(f"{show(value)} is a text, neither true nor false")
            is_judged = True
            if value:
                chosen.append(run)
        except UnknownName:
            continue
        except (ArithmeticError, TypeError, ValueError) as error:
            wrong = wrong or f"{condition}: {error}, in {run.summary.path.name}"
    if wrong and not is_judged:
        raise ConditionError(wrong)
    return chosen
