"""Strategies of a sweep: which points to try, and which trials to stop early.

::

    grid                 every point once, in order or shuffled
    random               each trial follows from (seed, trial); no point of a small space twice
    cross_entropy        random, from a distribution that is fitted to the best trials
    halving              random, and one trial in `reduction` goes on at each rung
    optuna:<sampler>     tpe, gp, cmaes, nsgaii, random
    package.module:Class a user's own: a class with the two methods of `Strategy`
    another name         such a class of an installed package: entry points "diel.strategies"

Rules that stop trials early (``halving``, ``median``) go with any of them; `Lagged` makes adaptive
strategies reproducible. Every ask and tell costs the same after any number of trials.
"""

from .catalogue import (
    RULES,
    STRATEGIES,
    check_strategy,
    is_known,
    make_rule,
    make_strategy,
    with_rule,
)
from .cross_entropy import CrossEntropy
from .optuna_search import OptunaSearch
from .stopping import Halving, Lagged, Median, StoppingRule, StrategyWithRule
from .strategy import MOST_COUNTED, WAIT, Grid, Random, Strategy, Wait

__all__ = [
    "MOST_COUNTED",
    "RULES",
    "STRATEGIES",
    "WAIT",
    "CrossEntropy",
    "Grid",
    "Halving",
    "Lagged",
    "Median",
    "OptunaSearch",
    "Random",
    "StoppingRule",
    "Strategy",
    "StrategyWithRule",
    "Wait",
    "check_strategy",
    "is_known",
    "make_rule",
    "make_strategy",
    "with_rule",
]
