"""What a trial has to train, and what comes of it.

The trainings of a trial do not depend on each other, so a trainer may do them one after the other
or all at once; `collect` puts their metrics together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .splits import Fold, NestedFold, Rows

if TYPE_CHECKING:
    from dnn import Dataset

Metrics = Mapping[str, float]

_SUMMED = "training_time_s"


@dataclass(frozen=True)
class Job:
    """One training.

    Attributes
    ----------
    train, test : array of intp
        Rows to train on, rows to score.
    outer : int
        The number of the split to which it belongs.
    is_test : bool
        Whether its score tells how good a choice was; otherwise it takes part in the choice.
    """

    train: Rows
    test: Rows
    outer: int
    is_test: bool = False


@dataclass(frozen=True)
class Evaluated:
    """What the trainings of a trial gave.

    Attributes
    ----------
    metrics : dict
        Means over the trainings on which a choice may be based; the training time is the sum over
        all trainings.
    choice : tuple of dict
        Of each split: the metrics on which the choice in it is based.
    test : tuple of dict
        Of each split: the metrics on rows that have no part in the choice. Only of nested splits.
    """

    metrics: dict[str, float]
    choice: tuple[dict[str, float], ...]
    test: tuple[dict[str, float], ...] = field(default=())


def jobs_of(splits: Sequence[Fold]) -> list[Job]:
    """Return the trainings of a trial: of a nested split the inner ones, then the outer one."""
    jobs = []
    for outer, fold in enumerate(splits):
        if isinstance(fold, NestedFold):
            jobs += [Job(inner.train, inner.test, outer) for inner in fold.inner]
        jobs.append(Job(fold.train, fold.test, outer, is_test=isinstance(fold, NestedFold)))
    return jobs


def prepared(data: Dataset, job: Job | Fold) -> tuple[Dataset, Dataset]:
    """Return training rows and rows to score, ready for training.

    Missing cells are filled and attributes scaled by what the training rows say, and only they: a
    preparation learned from all rows would tell the model about those that score it.
    """
    from dnn import impute, standardise

    train, test = standardise(*impute(data.take(job.train), data.take(job.test)))
    return train, test


def collect(jobs: Sequence[Job], results: Sequence[Metrics]) -> Evaluated:
    """Put the metrics of the trainings of a trial together.

    Parameters
    ----------
    jobs : sequence of Job
        As `jobs_of` gave them.
    results : sequence of mapping
        The metrics of each.
    """
    pairs = list(zip(jobs, results, strict=True))
    outers = sorted({job.outer for job in jobs})
    choice = tuple(
        _means([result for job, result in pairs if job.outer == outer and not job.is_test])
        for outer in outers
    )
    metrics = _means([result for job, result in pairs if not job.is_test])
    if _SUMMED in metrics:
        metrics[_SUMMED] = math.fsum(result[_SUMMED] for result in results)
    return Evaluated(metrics, choice, tuple(dict(result) for job, result in pairs if job.is_test))


def _means(results: Sequence[Metrics]) -> dict[str, float]:
    return {
        name: math.fsum(result[name] for result in results) / len(results) for name in results[0]
    }
