"""Score the points of a sweep, and estimate how good the chosen point is on new rows.

::

    holdout     one split; the score of the best of K trials is optimistic
    k_fold      every row is scored once a repeat; the best of K is still optimistic
    nested      the choice is made inside each outer fold, and scored on rows that had no part in it

`splits` cuts rows as a workflow file says, by `cutting`, and lists what a trial has to train;
`bias` compares the score of the best trial with an honest estimate.
"""

from .bias import BiasReport, SelectionBias, luck
from .data_warnings import data_warnings
from .folds import EvaluationError, Fold, NestedFold, RareClassError
from .splits import (
    SPLIT_COLUMNS,
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
    "data_warnings",
    "errors_of_groups",
    "jobs_of",
    "luck",
    "means",
    "prepared",
    "strata_of",
    "training_weights",
]
