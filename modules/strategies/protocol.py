"""What a strategy is: it is asked for the parameters of a trial, and told how good they were.

Trials are numbered 0, 1, 2, ... in the order in which they are first asked for. Scores are always
such that larger is better: who asks has turned them round if the objective is minimised.

Strategies do no I/O, look at no clock and draw only numbers that follow from (seed, trial), so a
sweep is resumed by telling a new one everything that was recorded: built-in strategies come to the
same state in whatever order they are told, apart from those whose page says otherwise.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol, runtime_checkable

from ..space import Parameters


class Wait(Enum):
    """The type of `WAIT`."""

    WAIT = "wait"

    def __repr__(self) -> str:
        return "WAIT"


WAIT = Wait.WAIT
"""What `Strategy.ask` returns if it has to be told something first."""


@runtime_checkable
class Strategy(Protocol):
    """Chooses parameters. A user's own strategy is a class with these two methods.

    It is made by ``Class(space, seed, **options)``: the `Space`, the sweep's seed, and what else
    stands in the ``strategy`` table of the workflow file.

    Notes
    -----
    Three attributes are optional:

    ``is_stateless`` (bool, False without)
        `ask` follows from the trial's number alone and `tell` does nothing. So whoever has a copy
        may ask, in any order, more than once: trials travel as numbers.
    ``size`` (int or None, None without)
        How many trials there are in all, if that is known.
    ``report(trial, step, score) -> bool`` (method)
        Takes an intermediate score; True if the trial is to be stopped.
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
        """Take the score of a trial; None if it failed or was stopped early."""
        ...
