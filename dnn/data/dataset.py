"""Labelled samples: a data set, its parts for training and validation, preparation, and batches.

Statistics of data, such as a mean, are computed from training samples only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dnn.arrays import check_labels, narrowed
from dnn.backend import Array
from dnn.data.columns import Columns
from dnn.data.image_reading import ImageReading
from dnn.data.preparation import CODE, FLAG, Brightness, Codes, Standardise, Step, prepared
from dnn.data.targets import TASKS, TargetScale, checked_labels, checked_values, checked_weights
from dnn.errors import (
    ConfigurationError,
    DataError,
    LabelError,
    ShapeError,
    check_count,
    explains_arguments,
    unknown_name,
)
from dnn.seeds import epoch_order, stream

__all__ = [
    "Dataset",
    "batches",
    "split_rows",
    "standardise",
    "train_validation_split",
    "train_validation_test_split",
]


@explains_arguments
@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples and their labels, or the numbers that are to be predicted.

    Attributes
    ----------
    x : array of float32, shape (n, d)
        NaN where a cell is missing. Images may be of uint8, brightness in 0 .. 255, and stay so
        until they are standardised or cut into batches.
    y : array
        Of a classification intp of shape (n,), in ``0 .. classes - 1``. Of a regression float32 of
        shape (n, targets), in the units of the file, or as `scale` has scaled them. Of a data set
        whose samples may have several labels uint8 of shape (n, labels), 0 or 1.
    classes : int
        0 unless the task is classification.
    name : str
    standardise_by : {"columns", "one scale", "none"}
        Default of `dnn.standardise`: columns of a table measure different quantities, those of an
        image the same quantity.
    image_shape : (int, int, int), optional
        Channels, rows and columns, if each sample is an image; their product is d.
    sequence_shape : (int, int), optional
        Time steps and features, if each sample is a sequence, padded by
        `dnn.pad_sequences`, which appends its length: d is ``(steps + 1) features``.
    class_names : tuple of str
        Empty where they are not known.
    columns : Columns, optional
        The columns of the table that the samples were read from.
    preparation : tuple of Step
        What has been done to the samples since they were read, by `impute` and `standardise`.
    task : {"classification", "regression", "multilabel"}
    targets : tuple of str
        Names of the columns of `y`: of targets or of labels; empty where they are not known.
    weights : array of float32, shape (n,), optional
        Factor of the loss of each sample in training.
    beside : mapping of str to array, length n
        Columns beside the features, such as groups or times, by which rows can be split.
    scale : TargetScale, optional
        By what `standardise` has scaled `y`.
    reading : ImageReading, optional
        How files of images were read.

    Raises
    ------
    ShapeError, LabelError, DataError
        If fields do not fit together, or there is no sample.
    """

    x: Array
    y: Array
    classes: int
    name: str
    standardise_by: str = "columns"
    image_shape: tuple[int, int, int] | None = None
    class_names: tuple[str, ...] = ()
    sequence_shape: tuple[int, int] | None = None
    columns: Columns | None = None
    preparation: tuple[Step, ...] = ()
    task: str = "classification"
    targets: tuple[str, ...] = ()
    weights: Array | None = None
    beside: Mapping[str, Array] = field(default_factory=dict)
    scale: TargetScale | None = None
    reading: ImageReading | None = None

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise unknown_name("task", self.task, TASKS)
        is_classes = self.task == "classification"
        if self.x.ndim != 2 or self.y.shape[: None if is_classes else 1] != self.x.shape[:1]:
            message = f"x {self.x.shape} and y {self.y.shape} do not fit"
            raise ShapeError(self.name, message, self.x.shape, self.y.shape)
        if not len(self.y):
            raise DataError(f"{self.name}: no samples")
        # The class is frozen; only here may its fields still be cast.
        object.__setattr__(self, "y", self._checked_y())
        if self.weights is not None:
            weights = checked_weights(self.name, self.weights, len(self.y))
            object.__setattr__(self, "weights", weights)
        for name, column in self.beside.items():
            if column.shape[:1] != self.y.shape[:1]:
                message = f"column {name!r} has {len(column)} rows"
                raise ShapeError(self.name, message, column.shape, self.y.shape[:1])
        if self.image_shape is not None and math.prod(self.image_shape) != self.features:
            message = f"images {self.image_shape} have not {self.features} values"
            raise ShapeError(self.name, message, self.x.shape, self.image_shape)
        if self.sequence_shape is not None:
            steps, features = self.sequence_shape
            if (steps + 1) * features != self.features:
                message = f"sequences {self.sequence_shape} have not {self.features} values"
                raise ShapeError(self.name, message, self.x.shape, self.sequence_shape)
        if self.image_shape is None or self.x.dtype != np.uint8:
            place = "{}: row {}, attribute {}".format
            try:
                x = narrowed(self.x, np.float32, lambda *at: place(self.name, *at))
            except (TypeError, ValueError, OverflowError) as error:
                if isinstance(error, DataError):
                    raise
                raise DataError(f"{self.name}: x must be numbers: {error}") from error
            object.__setattr__(self, "x", x)

    def _checked_y(self) -> Array:
        if self.task != "classification":
            if self.classes:
                raise ConfigurationError(f"{self.name}: a {self.task} has no classes")
            checked = checked_values if self.task == "regression" else checked_labels
            return checked(self.name, self.y, self.targets)
        if self.y.dtype.kind not in "iu":
            raise LabelError(f"{self.name}: labels must be integers, not {self.y.dtype}")
        check_labels(self.y, self.classes, f"{self.name}: ")
        return np.ascontiguousarray(self.y, np.intp)

    @property
    def outputs(self) -> int:
        """How many numbers a network puts out: one for each class, target or label."""
        return self.classes if self.task == "classification" else int(self.y.shape[1])

    @property
    def strata(self) -> Array | None:
        """The classes of which each part of a split gets its share; None if there are none."""
        return self.y if self.task == "classification" else None

    @property
    def features(self) -> int:
        """Number of attributes of a sample."""
        return int(self.x.shape[1])

    @property
    def raw_features(self) -> int:
        """Number of attributes of a sample before its preparation."""
        return next((step.inputs for step in self.preparation if step.inputs), self.features)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kind of each attribute, as of `Columns.kinds`; of those that steps made, theirs."""
        raw = self.columns.kinds if self.columns is not None else ()
        kinds = raw or ("number",) * self.raw_features
        for step in self.preparation:
            kinds = step.kinds(kinds)
        return kinds

    @property
    def embeds(self) -> tuple[int, ...]:
        """The `count` of a `dnn.EmbedColumns` for the samples; empty if none is wanted."""
        return next((step.counts for step in self.preparation if isinstance(step, Codes)), ())

    @property
    def images(self) -> Array:
        """The samples as images, shape (n, channels, rows, columns); a view of `x`.

        It raises `DataError` if the samples are no images.
        """
        if self.image_shape is None:
            raise DataError(f"{self.name}: the samples are rows of {self.features} numbers")
        return self.x.reshape(-1, *self.image_shape)

    @property
    def class_counts(self) -> Array:
        """Number of samples of each class, or with each label, shape (classes,) or (labels,).

        It raises `DataError` for a regression.
        """
        if self.task == "regression":
            raise DataError(f"{self.name}: a regression has no classes")
        if self.task == "multilabel":
            with_label: Array = self.y.sum(axis=0, dtype=np.intp)
            return with_label
        return np.bincount(self.y, minlength=self.classes)

    def __repr__(self) -> str:
        samples = f"{len(self):,d} samples of {self.features} features"
        if self.image_shape is not None:
            samples = f"{len(self):,d} images of {' x '.join(map(str, self.image_shape))}"
        elif self.sequence_shape is not None:
            samples = f"{len(self):,d} sequences of {' x '.join(map(str, self.sequence_shape))}"
        count, task = self.outputs, self.task
        kind = {"regression": "target", "multilabel": "label"}.get(task, "class")
        several = "es" if kind == "class" else "s" * (count != 1)
        return f"Dataset({self.name!r}: {samples}, {count} {kind}{several})"

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Array) -> Dataset:
        """Return a new data set with some of the samples.

        Parameters
        ----------
        rows : array of int or bool, or slice
            As NumPy takes them.

        Returns
        -------
        Dataset, of the same classes and name
        """
        return replace(
            self,
            x=self.x[rows],
            y=self.y[rows],
            weights=None if self.weights is None else self.weights[rows],
            beside={name: column[rows] for name, column in self.beside.items()},
        )


@explains_arguments
def train_validation_split(
    data: Dataset, fraction: float = 0.2, seed: int = 0
) -> tuple[Dataset, Dataset]:
    """Split a data set so that each class, if it has classes, has its share in both parts.

    Parameters
    ----------
    data : Dataset
    fraction : float, between 0 and 1
        Share of validation samples.
    seed : int, not negative

    Returns
    -------
    (Dataset, Dataset)
        Training and validation samples, each in random order.

    Raises
    ------
    ConfigurationError
        If the fraction is out of its range.
    DataError
        If either part would be empty.
    """
    kept, held_out = split_rows(len(data), data.strata, fraction, seed, data.name)
    return data.take(kept), data.take(held_out)


@explains_arguments
def train_validation_test_split(
    data: Dataset, validation: float = 0.15, test: float = 0.15, seed: int = 0
) -> tuple[Dataset, Dataset, Dataset]:
    """Split a data set into three parts, each class with its share in each.

    Parameters
    ----------
    data : Dataset
    validation, test : float, between 0 and 1
        Shares of all samples; what remains is for training.
    seed : int, not negative

    Returns
    -------
    (Dataset, Dataset, Dataset)
        Training, validation and test samples, each in random order. The test samples are those
        that `train_validation_split` would hold out: they do not depend on `validation`.

    Raises
    ------
    ConfigurationError
        If a share is out of its range, or nothing remains for training.
    DataError
        If a part would be empty.
    """
    for name, share in (("validation", validation), ("test", test)):
        if not 0 < share < 1:
            raise ConfigurationError(f"{name} must be between 0 and 1, not {share!r}")
    if validation + test >= 1:
        message = f"validation {validation!r} and test {test!r} leave nothing for training"
        raise ConfigurationError(message)
    rest, held_out = train_validation_split(data, test, seed)
    # The share of the rest that is the wanted share of all samples.
    train, middle = train_validation_split(rest, validation * len(data) / len(rest), seed)
    return train, middle, held_out


@explains_arguments
def split_rows(
    samples: int, labels: Array | None, fraction: float, seed: int, name: str = "split"
) -> tuple[Array, Array]:
    """Choose rows to hold out, with the same share of each class.

    Parameters
    ----------
    samples : int
    labels : array of int, shape (samples,), optional
        Each class gives its share; without labels all rows are one class.
    fraction : float, between 0 and 1
    seed : int, not negative
    name : str
        Of the data, for messages.

    Returns
    -------
    (array of intp, array of intp)
        Rows to keep and rows held out, each in random order.

    Raises
    ------
    ConfigurationError
        If the fraction is out of its range.
    DataError
        If either part would be empty.

    Notes
    -----
    Each class gives its share rounded down; the samples still missing come from the classes with
    the largest remainders, so that the total is exact.
    """
    if not 0 < fraction < 1:
        raise ConfigurationError(f"fraction must be between 0 and 1, not {fraction!r}")
    wanted = round(samples * fraction)
    if not 0 < wanted < samples:
        raise DataError(f"{name}: {samples} samples cannot be split at {fraction}")
    y = np.zeros(samples, np.intp) if labels is None else labels
    generator = stream(seed, "split")
    shares = np.bincount(y) * fraction
    counts = np.floor(shares).astype(int)
    largest = np.argsort(-(shares - counts), kind="stable")
    counts[largest[: wanted - counts.sum()]] += 1
    held_out = np.zeros(samples, bool)
    for label, count in enumerate(counts):
        rows = generator.permutation(np.flatnonzero(y == label))
        held_out[rows[:count]] = True
    kept = generator.permutation(np.flatnonzero(~held_out))
    return kept, generator.permutation(np.flatnonzero(held_out))


STANDARDISATIONS = ("columns", "one scale", "none")


@explains_arguments
def standardise(train: Dataset, *others: Dataset, by: str | None = None) -> tuple[Dataset, ...]:
    """Shift and scale samples, and targets of a regression, to mean 0 and variance 1 over `train`.

    Parameters
    ----------
    train : Dataset
        The training samples.
    *others : Dataset
        Samples prepared in the same way, such as validation samples.
    by : {"columns", "one scale", "none"}, optional
        ``"columns"``: each attribute by its own mean and deviation, for tables. ``"one scale"``:
        all values by one mean and one deviation, for images: a pixel at the border that hardly
        varies would be scaled up by its own deviation. ``"none"``: unchanged, but bytes become
        brightness in 0 .. 1. By default `train.standardise_by`. Targets of a regression are
        scaled in any case, each by its own mean and deviation: `Dataset.scale` has them.

    Returns
    -------
    tuple of Dataset
        `train` and the others. An attribute that is constant in `train` is only shifted.

    Raises
    ------
    ConfigurationError
        If `by` is unknown, or is not ``"none"`` for sequences, which contain lengths.
    DataError
        If a cell of `train` is missing, `impute` comes first; or is infinite.
    ShapeError
        If the data sets differ in their number of attributes.
    """
    by = train.standardise_by if by is None else by
    if by not in STANDARDISATIONS:
        raise unknown_name("standardisation", by, STANDARDISATIONS)
    if by != "none" and train.sequence_shape is not None:
        message = f"sequences are not scaled by {by!r}: their lengths are among the numbers"
        raise ConfigurationError(f"{train.name}: {message}")
    if "category" in train.kinds:
        message = "categories are codes yet, which are no quantities: dnn.encode comes first"
        raise DataError(f"{train.name}: {message}")
    train, *rest = _with_scaled_targets(train, others)
    others = (*rest,)
    if train.x.dtype == np.uint8:
        return _standardise_bytes(train, others, by)
    if by == "none":
        return (train, *others)
    if not np.isfinite(train.x).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(train.x))[0])
        found = train.x[row, column]
        what = "is missing (dnn.impute fills such cells)" if np.isnan(found) else f"is {found}"
        raise DataError(f"{train.name}: row {row}, attribute {column} {what}")
    axis = 0 if by == "columns" else None
    # As arrays, shape (1, d) or (1, 1), they keep float64 whatever NumPy does with scalars.
    centre = train.x.mean(axis=axis, dtype=np.float64, keepdims=True)
    spread = train.x.std(axis=axis, dtype=np.float64, keepdims=True)
    # Rounding leaves a constant column with a spread of about its size times 1e-16.
    spread[spread <= 1e-12 * np.abs(centre)] = 1.0
    if by == "columns":  # 0 and 1 stay what they are, and codes have no mean
        unscaled = np.isin(train.kinds, ("boolean", FLAG, CODE))
        centre[:, unscaled], spread[:, unscaled] = 0.0, 1.0
    step = Standardise(centre, spread)
    return with_steps(lambda x: step.apply(_brightness(x)), [step], train, others)


def _with_scaled_targets(train: Dataset, others: tuple[Dataset, ...]) -> list[Dataset]:
    """Return data sets with targets that are scaled as those of `train` want it, if any are."""
    if train.task != "regression" or train.scale is not None:
        return [train, *others]
    scale = TargetScale.learned(train.y)
    return [replace(data, y=scale.apply(data.y), scale=scale) for data in (train, *others)]


_ROWS = 1024
"""Number of images that are converted at a time."""


def _brightness(x: Array) -> Array:
    """Return bytes as float64 in 0 .. 1, and numbers as they are."""
    return Brightness().apply(x) if x.dtype == np.uint8 else x


def _standardise_bytes(train: Dataset, others: tuple[Dataset, ...], by: str) -> tuple[Dataset, ...]:
    """Do what `standardise` does for images of uint8, without an array of float64."""
    sums = np.zeros((2, train.features))
    for start in range(0, len(train), _ROWS):
        part = _brightness(train.x[start : start + _ROWS])
        sums += part.sum(axis=0), np.square(part).sum(axis=0)
    if by == "one scale":
        sums = sums.mean(axis=1, keepdims=True)
    centre, squares = sums / len(train)
    spread = np.sqrt(np.maximum(squares - centre**2, 0))
    spread[spread <= 1e-7] = 1.0
    steps: list[Step] = [Brightness()]
    if by != "none":
        steps.append(Standardise(centre, spread))

    def scaled(x: Array) -> Array:
        out = np.empty(x.shape, np.float32)
        for start in range(0, len(x), _ROWS):
            out[start : start + _ROWS] = prepared(x[start : start + _ROWS], steps)
        return out

    return with_steps(scaled, steps, train, others)


def with_steps(
    function: Callable[[Array], Array],
    steps: Sequence[Step],
    train: Dataset,
    others: tuple[Dataset, ...],
) -> tuple[Dataset, ...]:
    """Return data sets with the samples that a function makes, and with its steps."""
    for data in others:
        if data.x.shape[1] != train.x.shape[1]:
            message = f"{data.x.shape[1]} attributes, but the training samples have"
            message = f"{message} {train.x.shape[1]}"
            raise ShapeError(data.name, message, data.x.shape, train.x.shape)
    return tuple(
        replace(data, x=function(data.x), preparation=(*data.preparation, *steps))
        for data in (train, *others)
    )


@explains_arguments
def batches(samples: int, batch_size: int, seed: int, epoch: int) -> Iterator[Array]:
    """Return the rows of each batch of an epoch, which has every sample once in random order.

    Parameters
    ----------
    samples : int
    batch_size : int
    seed : int, not negative
    epoch : int, from 0
        Each epoch has an order of its own.

    Returns
    -------
    iterator of array of intp, shape (batch_size,)
        Rows of a batch; the last one may be shorter.

    Raises
    ------
    ConfigurationError
        If a number is none of those above.
    """
    check_count("samples", samples)
    check_count("batch_size", batch_size)
    check_count("epoch", epoch, 0)
    order = epoch_order(samples, seed, epoch)
    return (order[start : start + batch_size] for start in range(0, samples, batch_size))
