"""Score the points of a sweep, and estimate how good the chosen point is on new rows.

::

    holdout     one split; the score of the best of K trials is optimistic
    k_fold      every row is scored once a repeat; the best of K is still optimistic
    nested      the choice is made inside each outer fold, and scored on rows that had no part in it

`folds` cuts rows at random and `by_column` by a column of their table; `splits` does it as a
workflow file says and lists what a trial has to train, and `bias` compares the score of the best
trial with an honest estimate.
"""

from .bias import BiasReport, SelectionBias, luck
from .by_column import SPLIT_COLUMNS
from .folds import (
    EvaluationError,
    Fold,
    NestedFold,
    RareClassError,
    holdout,
    k_fold,
    nested_folds,
)
from .oddities import oddities
from .splits import (
    TAKES,
    Evaluated,
    EvaluationOptions,
    PreparedSplits,
    SplitData,
    TrainingJob,
    check_counts,
    class_factors,
    collect,
    jobs_of,
    means,
    prepared,
    strata_of,
    training_weights,
)
from .standard_errors import errors_of_groups

__all__ = [
    "SPLIT_COLUMNS",
    "TAKES",
    "BiasReport",
    "Evaluated",
    "EvaluationError",
    "EvaluationOptions",
    "Fold",
    "NestedFold",
    "PreparedSplits",
    "RareClassError",
    "SelectionBias",
    "SplitData",
    "TrainingJob",
    "check_counts",
    "class_factors",
    "collect",
    "errors_of_groups",
    "holdout",
    "jobs_of",
    "k_fold",
    "luck",
    "means",
    "nested_folds",
    "oddities",
    "prepared",
    "strata_of",
    "training_weights",
]
