"""What is to be made large or small: a number from what a trainer reports of a trial."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from diel.errors import PluginError

from .expression import Evaluate, ExpressionError, UnknownName, compile_expression
from .plugins import load_own
from .trial import METRICS


class ObjectiveError(ValueError):
    """An objective cannot be computed from what a trainer reports."""


@dataclass(frozen=True)
class Objective:
    """A number that is to be made large or small.

    Attributes
    ----------
    text : str
        As the workflow file says it.
    maximise : bool
    evaluate : function
        From the metrics of a trial to the number.
    names : tuple of str
        The metrics that it needs, as far as that can be seen from the text.
    is_function : bool
        Whether it is a user's function, whose needs cannot be seen.
    """

    text: str
    maximise: bool
    evaluate: Evaluate
    names: tuple[str, ...]
    is_function: bool = False

    @classmethod
    def parse(
        cls,
        text: str,
        maximise: bool | None = None,
        folder: Path = Path(),
        known: Iterable[str] | None = None,
    ) -> Objective:
        """Read an objective.

        Parameters
        ----------
        text : str
            A metric, an expression of metrics, or ``package.module:function``, which takes the
            metrics as a dictionary and returns a number.
        maximise : bool, optional
            May be left out if the text is a metric whose better direction is known.
        folder : Path
            Of the workflow file.
        known : iterable of str, optional
            What the trainer reports, if that is known.

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
            function = load_own(text, folder)
            try:
                inspect.signature(function).bind({})
            except TypeError as error:
                raise PluginError(f"{text} is called as function(metrics): {error}") from None
            except ValueError:  # one of C may have no signature that could be read
                pass
            evaluate: Evaluate = lambda metrics: float(function(dict(metrics)))  # noqa: E731
            names: list[str] = []
        else:
            evaluate, names = compile_expression(text)
            if not names:
                raise ObjectiveError(f"{text!r} has no metric in it: every trial would be alike")
            for name in names:
                if known is not None and name not in set(known):
                    raise ObjectiveError(f"the trainer reports no {name!r}{_meant(name, known)}")
        if maximise is None:
            if text not in METRICS:
                raise ObjectiveError(
                    f"say whether {text!r} is to be made large or small: maximise = true or false"
                )
            maximise = METRICS[text].maximise
        return cls(text, maximise, evaluate, tuple(names), is_function)

    def value(self, metrics: Mapping[str, Any]) -> float:
        """Return the objective of a trial; NaN where arithmetic gives none, as 1 / 0.

        Raises
        ------
        ObjectiveError
            If a metric that it needs is not there or is no number, or the user's function raises.
        """
        try:
            return float(self.evaluate(metrics))
        except UnknownName as error:
            name = str(error)
            raise ObjectiveError(
                f"objective {self.text!r}: the trainer reported no {name!r}{_meant(name, metrics)}"
            ) from None
        except ExpressionError as error:
            raise ObjectiveError(f"objective {self.text!r}: {error}") from None
        except Exception as error:
            if not self.is_function:  # what is left is arithmetic: a division by 0, an overflow
                return math.nan
            raise ObjectiveError(
                f"objective {self.text!r} raised {type(error).__name__}: {error}"
            ) from error

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


def _meant(name: str, known: Iterable[str]) -> str:
    by_lower = {str(one).lower(): str(one) for one in known}
    near = get_close_matches(name.lower(), by_lower, 1)
    listing = f"it reports {', '.join(by_lower.values())}" if by_lower else "it reports nothing"
    return f" (did you mean {by_lower[near[0]]!r}?); {listing}" if near else f"; {listing}"
