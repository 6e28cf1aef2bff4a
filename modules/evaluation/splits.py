"""Which rows each training of a trial trains on and is scored on, and its metrics from all.

Rows are cut as a workflow file says, from a seed. The trainings of a trial do not depend on each
other, so a trainer may do them one after the other or all at once; `collect` puts their metrics
together.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..problems import problem
from .folds import EvaluationError, Fold, NestedFold, Rows
from .standard_errors import standard_errors

if TYPE_CHECKING:
    import numpy.typing as npt

    from dnn import Augmentation, Dataset

ClassWeight: TypeAlias = "Literal['balanced'] | Mapping[str, float]"
TAKES: Final[Mapping[str, str]] = {
    "classification": "classes",
    "regression": "values",
    "multilabel": "labels",
}
"""What the targets of a task are, as `dnn.Loss.takes` has it."""
_SHOWN: Final = 8
"""Most labels that a remark names."""

SPLIT_COLUMNS: Final[Mapping[str, str]] = {
    "groups": "a column of the table: rows in which it is equal, as of one patient, stay together",
    "time": "a column of the table, numbers or dates: rows are trained on that are earlier than "
    "those that are scored",
    "split": "a column of the table that says train, validation or test; test rows score what was "
    "chosen by validation rows",
}
"""Options that name a column by which rows are split, and what each means."""


_ONLY = {
    "fraction": ("holdout",),
    "folds": ("k_fold", "nested"),
    "inner_folds": ("nested",),
    "repeats": ("k_fold", "nested"),
}


class EvaluationOptions(BaseModel):
    """Which rows a trial trains on, and which it is scored on."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    method: Literal["holdout", "k_fold", "nested"] = "holdout"
    fraction: float = Field(0.2, gt=0, lt=1, description="rows to score; holdout only")
    folds: int = Field(5, ge=2, description="for nested: the outer ones, which score the choice")
    inner_folds: int = Field(4, ge=2, description="in which nested makes its choice")
    repeats: int = Field(1, ge=1, description="of all folds, with another shuffle")
    stratified: bool = Field(True, description="whether each class has its share in every fold")
    seed: int = Field(0, ge=0, description="of the splits; the same for every trial")
    groups: str | None = Field(None, description=SPLIT_COLUMNS["groups"])
    time: str | None = Field(None, description=SPLIT_COLUMNS["time"])
    split: str | None = Field(None, description=SPLIT_COLUMNS["split"])

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, table: Any) -> Any:
        if isinstance(table, dict):
            method = table.get("method", "holdout")
            for key, methods in _ONLY.items():
                if key in table and isinstance(method, str) and method not in methods:
                    raise problem(
                        f'{key} belongs to {" and ".join(methods)}, not to method = "{method}"',
                        f'remove it, or write method = "{methods[0]}"',
                    )
        return table

    @model_validator(mode="after")
    def _check_columns(self) -> EvaluationOptions:
        given = self.columns
        if len(given) > 1:
            raise problem(
                f"{' and '.join(given)}: rows are split by one column", "keep one of them"
            )
        of_random = {"repeats", "seed", "stratified"} & self.model_fields_set
        if self.time is not None and of_random:
            raise problem(
                f"time orders the rows, and {min(of_random)} is of random splits", "remove it"
            )
        if self.split is not None and self.model_fields_set - {"split"}:
            other = min(self.model_fields_set - {"split"})
            raise problem(f"split says which rows are scored, and {other} too", f"remove {other}")
        return self

    @property
    def columns(self) -> dict[str, str]:
        """The column by which rows are split, by its option; empty if they are split at random."""
        return {name: column for name in SPLIT_COLUMNS if (column := getattr(self, name))}

    def cut(self, y: npt.ArrayLike, beside: Mapping[str, Any] | None = None) -> list[Fold]:
        """Return the splits of rows with these classes, `NestedFold` for nested ones.

        `beside` are columns of the table by their names. An `EvaluationError` if there are too few
        rows, or no such column.
        """
        import numpy as np

        from .cutting import at_random, by_group, by_time, by_word, holdout

        if len(self.columns) > 1:
            raise EvaluationError(f"{' and '.join(self.columns)}: rows are split by one column")
        option, name = next(iter(self.columns.items()), ("", ""))
        if option and name not in (beside or {}):
            raise EvaluationError(
                f"{option} = {name!r}: there is no such column beside the samples"
            )
        column: Any = (beside or {}).get(name)
        labels = np.asarray(y)
        strata = labels if self.stratified else np.zeros(len(labels), np.intp)
        every = np.arange(len(labels))

        def several(rows: Rows, count: int, *seed: int) -> list[Fold]:
            if option == "time":
                return by_time(column, name, rows, np.full(count + 1, 1 / (count + 1)))
            if option == "groups":
                return by_group(strata, column, name, rows, np.full(count, 1 / count), seed)
            return at_random(labels, rows, count, seed, self.stratified)

        if option == "split":
            return [by_word(column, name)]
        if self.method == "holdout":
            shares = np.array([self.fraction, 1 - self.fraction])
            if option == "time":
                return by_time(column, name, every, shares[::-1])
            if option == "groups":
                return by_group(strata, column, name, every, shares, (self.seed, 0, 0))[:1]
            return [holdout(labels, self.fraction, self.seed, self.stratified)]
        repeats = range(1 if option == "time" else self.repeats)
        outer = [
            fold for each in repeats for fold in several(every, self.folds, self.seed, 0, each)
        ]
        if self.method == "k_fold":
            return outer
        inner = (
            several(fold.train, self.inner_folds, self.seed, number, 0)
            for number, fold in enumerate(outer, start=1)
        )
        return [
            NestedFold(fold.train, fold.test, tuple(each))
            for fold, each in zip(outer, inner, strict=True)
        ]


def strata_of(data: Dataset) -> npt.NDArray[Any]:
    """Return the classes of the rows, of which each part of a split gets its share.

    Where there are no classes, all rows are of one.
    """
    import numpy as np

    return np.zeros(len(data), np.intp) if data.strata is None else data.strata


# -- the trainings of a trial ---------------------------------------------------------------------

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
    errors: Mapping[str, float] = field(default_factory=dict)
    """Standard errors of metrics over the rows of the only split, where they are known."""

    def splits(self) -> dict[str, Any]:
        """Return the metrics of each split as plain values, for a ledger."""
        if len(self.choice) == 1 and not self.test:
            errors = {"errors": dict(self.errors)} if self.errors else {}
            return {"rows": self.rows, **errors}  # the metrics are those of the only split
        return {"rows": self.rows, "choice": list(self.choice), "test": list(self.test)}

    @classmethod
    def of(cls, metrics: Mapping[str, Any], splits: Mapping[str, Any]) -> Evaluated:
        """Return the evaluation whose metrics and `splits` these are."""
        own = dict(metrics)
        choice = tuple(splits.get("choice", (own,)))
        test = tuple(splits.get("test", ()))
        return cls(own, choice, test, splits["rows"], splits.get("errors", {}))


def jobs_of(splits: Sequence[Fold]) -> list[TrainingJob]:
    """Return the trainings of a trial: for a nested split its inner folds, then the outer one."""
    jobs = []
    for outer, fold in enumerate(splits):
        if isinstance(fold, NestedFold):
            jobs += [TrainingJob(inner.train, inner.test, outer) for inner in fold.inner]
        jobs.append(TrainingJob(fold.train, fold.test, outer, is_test=isinstance(fold, NestedFold)))
    return jobs


def prepared(
    data: Dataset,
    job: TrainingJob | Fold,
    standardise_by: str | None = None,
    impute_by: Any = None,
    encode_by: Any = None,
) -> tuple[Dataset, Dataset]:
    """Return the rows to train on and the rows to score, without gaps, encoded and standardised.

    Missing cells are filled, categories encoded and values scaled, as `dnn.impute`, `dnn.encode`
    and `dnn.standardise` do it, from the training rows alone: a preparation learned from all rows
    would tell the model about those that score it.
    """
    from dnn import encode, impute, standardise

    parts = encode(*impute(data.take(job.train), data.take(job.test), by=impute_by), by=encode_by)
    train, test = standardise(*parts, by=standardise_by)
    return train, test


def training_weights(
    training: Dataset, class_weight: ClassWeight | None
) -> npt.NDArray[Any] | None:
    """Return the weights of training rows, with mean 1; None if all weigh the same.

    They are the product of a row's own weight and of that of its class: ``"balanced"``, or by name
    or number. An `EvaluationError` if there is no such class.
    """
    import numpy as np

    from dnn import class_weights

    weights = training.weights
    if class_weight is not None:
        if training.task != "classification":
            raise EvaluationError(
                f"class_weight is of classes, and {training.name} is for {training.task}"
            )
        factors: Any = class_factors(class_weight, training)
        of_rows = class_weights(training.y, training.classes, factors)[training.y]
        weights = of_rows if weights is None else weights * of_rows
    if weights is None:
        return None
    mean = float(np.mean(weights, dtype=np.float64))
    if not mean > 0:
        raise EvaluationError(f"{training.name}: all rows to train on have the weight 0")
    return weights / mean


def class_factors(
    given: ClassWeight | Literal["none"] | Sequence[float], data: Dataset
) -> Literal["balanced"] | dict[int, float] | None:
    """Return weights of classes, or of labels, as `dnn.NeuralNetwork.fit` takes them.

    They are given for all of them in order, or by name. An `EvaluationError` if there is no such
    class.
    """
    if isinstance(given, str):
        return "balanced" if given == "balanced" else None
    if not isinstance(given, Mapping):
        return dict(enumerate(given))
    is_classes = data.task == "classification"
    names = data.class_names or range(data.classes) if is_classes else data.targets
    number_of = {str(name): number for number, name in enumerate(names or range(data.outputs))}
    for name in given:
        if name not in number_of:
            there = ", ".join(map(repr, [*number_of][:_SHOWN]))
            raise EvaluationError(
                f"class_weight: {data.name} has no class {name!r} (it has {there})"
            )
    return {number_of[name]: factor for name, factor in given.items()}


class SplitData:
    """The prepared rows of a split, which are checked, and sent to a device, once.

    Attributes
    ----------
    training, validation : DeviceData
        Rows to train on, rows to score.
    count, features, outputs : int
        Rows to train on, columns, and how many numbers a network puts out.
    takes : str
        What the targets are, as `dnn.Loss.takes` has it.
    shape : tuple of int, optional
        Channels, height and width, if each row is an image; time steps and features of sequences.
    embeds : tuple of int
        How many categories each of the last columns has, where they are to be embedded.
    in_rows : bool
        Whether images are flattened to rows of numbers; images to augment keep their shape.
    prepared : Dataset
        The rows to train on, with all that was done to raw rows before a network sees them.
    """

    def __init__(
        self,
        training: Dataset,
        validation: Dataset,
        augment: Sequence[Augmentation] = (),
        class_weight: ClassWeight | None = None,
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
        deviation = None if training.scale is None else training.scale.deviation
        weights = training_weights(training, class_weight)
        self.training = DeviceData(x, training.y, weights=weights, deviation=deviation)
        self.validation = DeviceData(held_out, validation.y, deviation=deviation)
        self.count, self.features = len(x), math.prod(x.shape[1:])
        self.outputs, self.takes = training.outputs, TAKES[training.task]
        self.embeds = training.embeds
        self.in_rows = not augment

    def in_units(self, predicted: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return predictions in the units of the file, if targets were scaled."""
        scale = self.prepared.scale
        return predicted if scale is None else scale.in_units(predicted)

    def standard_errors(self, predicted: npt.NDArray[Any]) -> dict[str, float]:
        """Return the standard errors of metrics of predictions for the rows to score.

        Empty unless the targets are numbers.
        """
        if self.takes != "values":
            return {}
        deviation = self.validation.deviation
        y: Any = self.validation.y
        return standard_errors(y, predicted, 1.0 if deviation is None else deviation)

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
    impute_by, encode_by : optional
        How missing cells are filled and categories encoded, see `dnn.impute` and `dnn.encode`.
    class_weight : "balanced" or mapping of name to float, optional
        Weights of classes in training.

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
        impute_by: Any = None,
        encode_by: Any = None,
        class_weight: ClassWeight | None = None,
    ) -> None:
        self.augment = tuple(augment)
        self._class_weight = class_weight
        self.split = dict(split or {})
        self.jobs = tuple(jobs)
        self._data = data
        self._ways = (standardise_by, impute_by, encode_by)
        self._kept: dict[int, SplitData] = {}
        self._are_counts = False

    @property
    def data(self) -> Dataset:
        """All rows, as they were read."""
        return self._data

    @cached_property
    def of_counts(self) -> PreparedSplits:
        """The same trainings for losses of counts, whose targets are scaled and not shifted."""
        found = copy.copy(self)
        found._are_counts, found._kept = True, {}
        return found

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, number: int) -> SplitData:
        data = self._kept.get(number)
        if data is None:
            data = self._split(self.jobs[number])
            # Columns of 0 and 1 may take many times what the codes of categories take.
            wider = data.features / self._data.features
            all_bytes = len(self.jobs) * self._data.x.nbytes * wider
            if all_bytes <= _MOST_KEPT_BYTES or len(self.jobs) == 1:
                self._kept[number] = data
        return data

    def whole(self) -> SplitData:
        """Return all rows as those to train on: for the model of a trial of several trainings."""
        import numpy as np

        rows = np.arange(len(self._data))
        everything = TrainingJob(rows, rows, outer=0)
        return self._split(everything)

    def _split(self, job: TrainingJob) -> SplitData:
        parts = prepared(self._data, job, *self._ways)
        if self._are_counts:
            check_counts(self._data)
            by = parts[0].scale
            assert by is not None  # targets of a regression always have one
            scale = by.of_counts(self._data.y[job.train])
            given = zip(parts, (job.train, job.test), strict=True)
            train, test = (
                replace(part, y=scale.apply(self._data.y[rows]), scale=scale)
                for part, rows in given
            )
            parts = train, test
        return SplitData(*parts, self.augment, self._class_weight)

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


def check_counts(data: Dataset) -> None:
    """Raise an `EvaluationError` if a target is negative, in its units."""
    import numpy as np

    if (data.y < 0).any():
        row, at = (int(i) for i in np.argwhere(data.y < 0)[0])
        raise EvaluationError(
            f"{data.name}: {data.targets[at]!r} is {data.y[row, at]:g} in row {row + 1}, and loss "
            "poisson takes counts, which are 0 or more: take another loss"
        )


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
