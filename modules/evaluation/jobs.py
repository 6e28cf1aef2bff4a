"""The trainings that a trial consists of, and its metrics from all of them.

The trainings of a trial do not depend on each other, so a trainer may do them one after the other
or all at once; `collect` puts their metrics together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from .splits import Fold, NestedFold, Rows

if TYPE_CHECKING:
    from dnn import Augmentation, Dataset

Metrics = Mapping[str, float]

_SUMMED = "training_time_s"
_MOST_KEPT_BYTES = 2**28


@dataclass(frozen=True)
class TrainingJob:
    """One training of a trial: its rows, and the split that it belongs to."""

    train: Rows
    test: Rows
    """Numbers of the rows to train on, and of the rows to score."""
    outer: int
    """The number of the split to which the training belongs."""
    is_test: bool = False
    """Whether its score measures how good the choice was; otherwise it takes part in the choice."""


@dataclass(frozen=True)
class Evaluated:
    """The metrics of a trial: their means, and those of each split."""

    metrics: dict[str, float]
    """Means over the trainings on which a choice may be based; the training time is the sum over
    all trainings."""
    choice: tuple[dict[str, float], ...]
    """For each split, the metrics on which the choice in it is based."""
    test: tuple[dict[str, float], ...] = field(default=())
    """For each nested split, the metrics on rows that have no part in the choice; else empty."""
    rows: int = 0
    """How many rows are scored in a split, rounded down; 0 where that is unknown."""

    def splits(self) -> dict[str, Any]:
        """Return the metrics of each split as plain values, for a ledger."""
        if len(self.choice) == 1 and not self.test:
            return {"rows": self.rows}  # the metrics are those of the only split
        return {"rows": self.rows, "choice": list(self.choice), "test": list(self.test)}

    @classmethod
    def of(cls, metrics: Mapping[str, Any], splits: Mapping[str, Any]) -> Evaluated:
        """Return the evaluation whose metrics and `splits` these are."""
        own = dict(metrics)
        choice = tuple(splits.get("choice", (own,)))
        return cls(own, choice, tuple(splits.get("test", ())), splits["rows"])


def jobs_of(splits: Sequence[Fold]) -> list[TrainingJob]:
    """Return the trainings of a trial: for a nested split its inner folds, then the outer one."""
    jobs = []
    for outer, fold in enumerate(splits):
        if isinstance(fold, NestedFold):
            jobs += [TrainingJob(inner.train, inner.test, outer) for inner in fold.inner]
        jobs.append(TrainingJob(fold.train, fold.test, outer, is_test=isinstance(fold, NestedFold)))
    return jobs


def prepared(
    data: Dataset, job: TrainingJob | Fold, standardise_by: str | None = None
) -> tuple[Dataset, Dataset]:
    """Return the rows to train on and the rows to score, without gaps and standardised.

    Missing cells are filled and values scaled, as `dnn.standardise` does it, from the training rows
    alone: a preparation learned from all rows would tell the model about those that score it.
    """
    from dnn import impute, standardise

    parts = impute(data.take(job.train), data.take(job.test))
    train, test = standardise(*parts, by=standardise_by)
    return train, test


class SplitData:
    """The prepared rows of a split, which are checked, and sent to a device, once.

    Attributes
    ----------
    training, validation : DeviceData
        Rows to train on, rows to score.
    count, features, classes : int
        Rows to train on, columns, classes.
    shape : tuple of int, optional
        Channels, height and width, if each row is an image; time steps and features of sequences.
    in_rows : bool
        Whether images are flattened to rows of numbers; images to augment keep their shape.
    prepared : Dataset
        The rows to train on, with all that was done to raw rows before a network sees them.
    """

    def __init__(
        self, training: Dataset, validation: Dataset, augment: Sequence[Augmentation] = ()
    ) -> None:
        from dnn import DeviceData, Images

        x: Any = training.x
        held_out: Any = validation.x
        self.shape: tuple[int, ...] | None = training.image_shape or training.sequence_shape
        if augment:
            x = Images(training.images, augment)
            held_out = Images(validation.images, augment)[:]
            self.shape = x.shape[1:]
        elif training.sequence_shape is not None:
            steps, features = training.sequence_shape
            x, held_out = (rows.reshape(-1, steps + 1, features) for rows in (x, held_out))
        self.prepared = training
        if isinstance(x, Images):
            self.prepared = replace(training, preparation=(*training.preparation, *x.still()))
        self.training = DeviceData(x, training.y)
        self.validation = DeviceData(held_out, validation.y)
        self.count, self.features = len(x), math.prod(x.shape[1:])
        self.classes = training.classes
        self.in_rows = not augment

    @property
    def is_sequence(self) -> bool:
        """Whether samples are sequences, which only recurrent layers read."""
        return self.shape is not None and len(self.shape) == 2


class PreparedSplits:
    """The trainings of a trial with their rows prepared, the same for every trial.

    Parameters
    ----------
    standardise_by : {"columns", "one scale", "none"}, optional
        By default as the data set says, see `dnn.standardise`.
    augment : sequence of dnn.Augmentation
        How images are changed at random, once they are standardised.
    split : mapping, optional
        The options by which the rows were split, for people.

    Notes
    -----
    Prepared rows are kept for the next trial if those of all trainings take little memory.
    """

    def __init__(
        self,
        data: Dataset,
        jobs: Sequence[TrainingJob],
        standardise_by: str | None = None,
        augment: Sequence[Augmentation] = (),
        split: Mapping[str, Any] | None = None,
    ) -> None:
        self.augment = tuple(augment)
        self.split = dict(split or {})
        self.jobs = tuple(jobs)
        self._data = data
        self._standardise_by = standardise_by
        self._keeps = len(self.jobs) * data.x.nbytes <= _MOST_KEPT_BYTES or len(self.jobs) == 1
        self._kept: dict[int, SplitData] = {}

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, number: int) -> SplitData:
        data = self._kept.get(number)
        if data is None:
            parts = prepared(self._data, self.jobs[number], self._standardise_by)
            data = SplitData(*parts, self.augment)
            if self._keeps:
                self._kept[number] = data
        return data

    def whole(self) -> SplitData:
        """Return all rows as those to train on: for the model of a trial of several trainings."""
        import numpy as np

        rows = np.arange(len(self._data))
        everything = TrainingJob(rows, rows, outer=0)
        return SplitData(*prepared(self._data, everything, self._standardise_by), self.augment)

    def describe(self) -> dict[str, Any]:
        """Return which rows the model of a trial is trained on, and on which it is scored."""
        job, rows = self.jobs[0], len(self._data)
        about: dict[str, Any] = {"data": self._data.name, **self.split}
        if len(self.jobs) == 1:
            return {**about, "trained_on": f"{len(job.train)} of {rows} rows",
                    "scored_on": f"{len(job.test)} other rows"}  # fmt: skip
        how = f"the mean of {sum(not job.is_test for job in self.jobs)} trainings on parts of them"
        return {**about, "trained_on": f"all {rows} rows", "scored_on": how}

    def __iter__(self) -> Iterator[SplitData]:
        """Iterate over the prepared rows of each training."""
        return (self[number] for number in range(len(self)))


def collect(jobs: Sequence[TrainingJob], results: Sequence[Metrics]) -> Evaluated:
    """Combine the metrics of a trial's trainings; `jobs` are those of `jobs_of`, in its order."""
    pairs = list(zip(jobs, results, strict=True))
    outers = sorted({job.outer for job in jobs})
    choice = tuple(
        means([result for job, result in pairs if job.outer == outer and not job.is_test])
        for outer in outers
    )
    metrics = means([result for job, result in pairs if not job.is_test])
    if _SUMMED in metrics:
        metrics[_SUMMED] = math.fsum(result[_SUMMED] for result in results)
    test = tuple(dict(result) for job, result in pairs if job.is_test)
    scored = [len(job.test) for job in jobs if job.is_test] or [len(job.test) for job in jobs]
    return Evaluated(metrics, choice, test, sum(scored) // len(scored))


def means(results: Sequence[Metrics]) -> dict[str, float]:
    """Return the mean of each metric."""
    return {name: fmean(result[name] for result in results) for name in results[0]}
