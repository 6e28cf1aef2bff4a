"""How many ranks a trial has, as a function of its point: ``ranks`` of a trainer's options.

::

    [module.options]
    ranks = "4 if hidden >= 1024 else 1"        # or "./file.py:function", which takes the point
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from diel import describe_error

from .metrics import plain_number
from .objective import Evaluate, compile_expression, load_evaluation
from .problems import meant

RANKS: Final = "ranks"
"""The option, and the metric of a trial that says how many it had."""


class TrialRanksError(ValueError):
    """A number of ranks cannot be computed from a point; `remedy` says what to do."""

    def __init__(self, text: str, remedy: str = "") -> None:
        super().__init__(text)
        self.remedy = remedy


@dataclass(frozen=True)
class TrialRanks:
    """Computes how many of a copy's ranks a trial has, from the parameters of its point."""

    text: str
    """The option as it is written in the workflow file."""
    most: int
    """The number of ranks of a copy."""
    evaluate: Evaluate
    names: tuple[str, ...]
    """The parameters that it needs; empty for a function."""

    @classmethod
    def parse(cls, text: str, most: int, folder: Path = Path()) -> TrialRanks:
        """Parse the option; a function of the user's is looked for beside the file, in `folder`.

        An `ExpressionError` if it is no arithmetic, a `PluginError` if there is no such function.
        """
        if ":" in text:
            return cls(text, most, load_evaluation(text, folder, "parameters"), ())
        evaluate, names = compile_expression(text)
        return cls(text, most, evaluate, tuple(names))

    def check_names(self, known: Iterable[str]) -> None:
        """Raise a `TrialRanksError` if the expression names what is no parameter."""
        known = list(known)
        for name in self.names:
            if name not in known:
                raise TrialRanksError(f"there is no parameter {name!r}", meant(name, known))

    def __call__(self, parameters: Mapping[str, Any]) -> int:
        """Return the number of ranks: rounded up, at least 1, at most those of a copy.

        A `TrialRanksError` if it has no value, as where a parameter is text.
        """
        numbers = {name: self.number(name, parameters.get(name, 0)) for name in self.names}
        try:
            wanted = float(self.evaluate(numbers if self.names else parameters))
        except Exception as error:  # a function of the user's may raise any
            raise TrialRanksError(f"{RANKS} = {self.text!r}: {describe_error(error)}") from error
        if math.isnan(wanted):
            raise TrialRanksError(f"{RANKS} = {self.text!r} is NaN at {dict(parameters)}")
        return math.ceil(max(1, min(wanted, self.most)))

    @staticmethod
    def number(name: str, value: Any) -> float:
        """Return the value of a parameter as a number; a list, such as `hidden`, is its sum."""
        try:
            if isinstance(value, (list, tuple)):
                return float(sum(plain_number(each) for each in value))
            return float(plain_number(value))
        except TypeError as error:
            raise TrialRanksError(
                f"parameter {name} = {value!r:.100} is {error}",
                'name a function of yours, as in ranks = "./file.py:function"',
            ) from None
