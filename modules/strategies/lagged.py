"""The same trials whoever is faster: results are told in the order of trials, with a lag."""

from __future__ import annotations

from ..space import Parameters
from .early_stopping import extended
from .protocol import WAIT, Strategy, Wait
from .rules import Cutoffs, Rule


class Lagged:
    """Makes an adaptive strategy repeat itself: trial t knows of trials before ``t - lag`` alone.

    Parameters
    ----------
    strategy : Strategy
    lag : int, at least 1
        At most ``lag + 1`` trials can be under way: so many that no trainer waits, and as few as
        that allows, since a strategy learns later by as much.
    rule : Rule, optional
        Stops trials early, by the reports of the same trials.

    Notes
    -----
    After a crash, tell it everything that was recorded, in any order, and `ask` for every trial
    again in order, also for those that were recorded: what it returns for them is known already.
    """

    is_stateless = False

    def __init__(self, strategy: Strategy, lag: int, rule: Rule | None = None) -> None:
        self.strategy, self.rule, self._lag = strategy, rule, lag
        self.size = getattr(strategy, "size", None)
        self._told = 0
        self._early: dict[int, tuple[Parameters, float | None]] = {}
        self._histories: dict[int, list[tuple[int, float]]] = {}
        self._cutoffs: dict[int, Cutoffs] = {}

    def ask(self, trial: int) -> Parameters | Wait | None:
        """Return what the strategy chooses; `WAIT` until every trial before the lag is told."""
        while self._told < trial - self._lag:
            if self._told not in self._early:
                return WAIT
            self._apply(self._told, *self._early.pop(self._told))
            self._told += 1
        asked = self.strategy.ask(trial)
        if self.rule is not None and isinstance(asked, dict) and trial not in self._early:
            self._cutoffs[trial] = self.rule.frozen()
        return asked

    def report(self, trial: int, step: int, score: float) -> bool:
        """Take an intermediate score; True if the trial is to be stopped."""
        if self.rule is None:
            return False
        history = extended(self._histories.setdefault(trial, []), step, score)
        # Without an entry the trial is told from a record: its verdict is known.
        cutoffs = self._cutoffs.get(trial)
        return cutoffs is not None and self.rule.stops(history, cutoffs)

    def tell(self, trial: int, parameters: Parameters, score: float | None) -> None:
        """Keep a score until its turn comes."""
        self._early[trial] = (parameters, score)
        self._cutoffs.pop(trial, None)

    def _apply(self, trial: int, parameters: Parameters, score: float | None) -> None:
        history = self._histories.pop(trial, [])
        if self.rule is not None:
            for length in range(1, len(history) + 1):
                self.rule.reported(history[:length])
            if score is not None:
                self.rule.completed(history)
        self.strategy.tell(trial, parameters, score)
