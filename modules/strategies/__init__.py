"""Strategies of a sweep: which points to try, and which trials to stop early.

`STRATEGIES` and `RULES` have those that come with diel, each from the file that defines it: a new
one is a file in this folder. A user's own is a class with the two methods of `Strategy`, named as
``package.module:Class``, or by the entry point "diel.strategies" of an installed package.

Rules that stop trials early go with any strategy; `Lagged` makes adaptive strategies reproducible.
Every ask costs the same after any number of trials, and so does every tell, nearly.
"""

# ruff: noqa: I001 (strategies are listed in this order)

import importlib
import pkgutil

from .strategy import MOST_COUNTED, WAIT, Grid, Random, Strategy, Wait
from .cross_entropy import CrossEntropy
from .tpe import TPE
from .nsga2 import Nsga2
from .population import Population
from .stopping import (
    Cohort,
    Cutoffs,
    Halving,
    Hyperband,
    Lagged,
    Median,
    StoppingRule,
    StrategyWithRule,
    with_rule,
)
from .auto import Auto
from .optuna_search import OptunaSearch
from .gest import GestSearch
from .catalogue import RULES, STRATEGIES, check_strategy, is_known, make_rule, make_strategy

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f".{_file.name}", __name__)

__all__ = [
    "MOST_COUNTED",
    "RULES",
    "STRATEGIES",
    "TPE",
    "WAIT",
    "Auto",
    "Cohort",
    "CrossEntropy",
    "Cutoffs",
    "GestSearch",
    "Grid",
    "Halving",
    "Hyperband",
    "Lagged",
    "Median",
    "Nsga2",
    "OptunaSearch",
    "Population",
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
