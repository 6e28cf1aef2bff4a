"""A strategy whose trials are stopped early by a rule, as reports come."""

from __future__ import annotations

from ..space import Parameters
from .protocol import Strategy, Wait
from .rules import Rule


class EarlyStopping:
    """Asks a strategy, and stops trials by a rule.

    Parameters
    ----------
    strategy : Strategy
    rule : Rule

    Notes
    -----
    Which trials are stopped depends on the order in which reports come; `Lagged` has a remedy.
    """

    def __init__(self, strategy: Strategy, rule: Rule) -> None:
        self.strategy, self.rule = strategy, rule
        self.size = getattr(strategy, "size", None)
        self.is_stateless = bool(getattr(strategy, "is_stateless", False))
        # Of trials under way: their reports, and the last step that the rule has taken.
        self._histories: dict[int, list[tuple[int, float]]] = {}
        self._taken: dict[int, int] = {}

    def ask(self, trial: int) -> Parameters | Wait | None:
        """Return what the strategy chooses."""
        return self.strategy.ask(trial)

    def report(self, trial: int, step: int, score: float) -> bool:
        """Take an intermediate score; True if the trial is to be stopped.

        A trial that starts again reports the same steps again; they count once.
        """
        history = extended(self._histories.setdefault(trial, []), step, score)
        stops = self.rule.stops(history, self.rule.cutoff)
        if step > self._taken.get(trial, -1):
            self._taken[trial] = step
            self.rule.reported(history)
        return stops

    def tell(self, trial: int, parameters: Parameters, score: float | None) -> None:
        """Take the score of a trial; None if it failed or was stopped."""
        history = self._histories.pop(trial, [])
        self._taken.pop(trial, None)
        if score is not None:
            self.rule.completed(history)
        self.strategy.tell(trial, parameters, score)


def extended(history: list[tuple[int, float]], step: int, score: float) -> list[tuple[int, float]]:
    """Add a report in place; what a trial that starts again had reported from there on goes."""
    while history and history[-1][0] >= step:
        history.pop()
    history.append((step, score))
    return history
