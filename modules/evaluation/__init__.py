"""Score the points of a sweep, and estimate how good the chosen point is on new rows.

::

    holdout     one split; the score of the best of K trials is optimistic
    k_fold      every row is scored once a repeat; the best of K is still optimistic
    nested      the choice is made inside each outer fold, and scored on rows that had no part in it

`splits` cuts rows as a workflow file says and lists what a trial has to train, and `bias`
compares the score of the best trial with an honest estimate.
"""

from .bias import BiasReport, SelectionBias, luck
from .splits import (
    Evaluated,
    EvaluationError,
    EvaluationOptions,
    Fold,
    NestedFold,
    PreparedSplits,
    SplitData,
    TrainingJob,
    collect,
    holdout,
    jobs_of,
    k_fold,
    means,
    nested_folds,
    oddities,
    prepared,
    strata_of,
)

__all__ = [
    "BiasReport",
    "Evaluated",
    "EvaluationError",
    "EvaluationOptions",
    "Fold",
    "NestedFold",
    "PreparedSplits",
    "SelectionBias",
    "SplitData",
    "TrainingJob",
    "collect",
    "holdout",
    "jobs_of",
    "k_fold",
    "luck",
    "means",
    "nested_folds",
    "oddities",
    "prepared",
    "strata_of",
]
