"""A trained network with all that its predictions need: preparation, names, where it comes from.

::

    model = dnn.load("best.safetensors")
    model.predict_class("new.csv")      # raw rows: they are prepared as the training rows were
    print(model.summary())

The file is a checkpoint, see `dnn.training.checkpoint`; nothing in it is ever executed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Final

import numpy as np

from dnn.arrays import array_of
from dnn.backend import Array
from dnn.data.columns import Columns, NewRows, read_rows
from dnn.data.dataset import Dataset
from dnn.data.image_folder import read_images
from dnn.data.image_reading import ImageReading
from dnn.data.preparation import Brightness, Step, prepared
from dnn.data.targets import TargetScale, checked_labels, checked_values
from dnn.errors import (
    DataError,
    LabelError,
    ShapeError,
    explains_arguments,
)
from dnn.model import NeuralNetwork
from dnn.training.data import DeviceData

__all__ = ["Prediction", "TrainedModel", "target_count"]

_log = logging.getLogger("dnn")


@dataclass(frozen=True, eq=False)
class Prediction:
    """The predictions of a model for the rows of a file.

    Attributes
    ----------
    values : array, shape (n,) or (n, outputs)
        The name of each row's class; if the network does not classify the outputs, in the units of
        the targets; or 0 or 1 for each label.
    probabilities : array of float, shape (n, classes) or (n, labels), optional
    metrics : dict of str to float
        As of `TrainedModel.evaluate`, if the file has the labels; else empty.
    rows : NewRows
    residuals : array of float, shape (n, targets), optional
        What the file has less what is predicted, of numbers, if the file has them; NaN where a cell
        is empty.
    scored : int
        How many rows have the labels or targets that `metrics` are about.
    """

    values: Array
    probabilities: Array | None
    metrics: dict[str, float]
    rows: NewRows
    residuals: Array | None = None
    scored: int = 0


class TrainedModel:
    """A trained network that takes raw samples; made by `dnn.load`.

    Raw samples are such as `load_dataset`, or whatever made the `Dataset` of the training,
    returned: an array of shape (n, features), or of images or sequences; the path of a CSV file, or
    of images; a mapping of columns or a data frame; or a `Dataset`. Columns with names are found by
    name, in any order. Methods that take them raise `ShapeError` if samples have another number of
    values, and `DataError` if a column is missing, or a cell is no finite number.

    Parameters
    ----------
    network : NeuralNetwork
        It takes prepared samples.
    preparation : sequence of Step
        What is done to raw samples, in this order.
    columns : Columns, optional
        Columns of the table that the network was trained on.
    features : int, optional
        Of a raw sample; those of a prepared one if left out.
    shape : sequence of int
        Shape of a raw sample that is an image or a sequence.
    class_names : sequence of str
    targets : sequence of str
        Names of the numbers that are predicted, or of the labels.
    scale : TargetScale, optional
        By what the targets of the training were scaled.
    provenance, about : mapping, optional
        Where the model comes from: run, trial, parameters, score; versions and date.
    reading : ImageReading, optional
        How files of images are read.

    Attributes
    ----------
    network, preparation, columns, scale, provenance, about, reading
        As they were given.
    targets : tuple of str
        As they were given; numbers from 1 where they have no names; empty if the network
        classifies.
    outputs : tuple of str
        Names of the columns of predictions: of the targets, or of each quantile of them.
    classes : tuple of str or int
        Names of the classes, or their numbers; empty if the network does not classify.
    """

    @explains_arguments
    def __init__(
        self,
        network: NeuralNetwork,
        preparation: Sequence[Step] = (),
        *,
        columns: Columns | None = None,
        features: int | None = None,
        shape: Sequence[int] = (),
        class_names: Sequence[str] = (),
        targets: Sequence[str] = (),
        scale: TargetScale | None = None,
        provenance: Mapping[str, Any] | None = None,
        about: Mapping[str, Any] | None = None,
        reading: ImageReading | None = None,
    ) -> None:
        self.network = network
        self.reading = reading
        self.preparation = tuple(preparation)
        self.columns = columns
        self.classes: tuple[str | int, ...] = ()
        if network._network.loss.classifies:
            count = network._network.loss.class_count(network._network.output_shape)
            self.classes = tuple(class_names) or tuple(range(count))
        self.scale = scale
        self.targets: tuple[str, ...] = ()
        if not self.classes:
            count = target_count(network)
            self.targets = tuple(targets) or tuple(map(str, range(1, count + 1)))
        self.outputs = tuple(network._network.loss.output_names(self.targets))
        self.provenance = dict(provenance or {})
        self.about = dict(about or {})
        self._input_shape = network._network.input_shape
        self._features = math.prod(self._input_shape) if features is None else features
        self._shape = tuple(shape)

    # -- samples ----------------------------------------------------------------------------------

    def prepare(self, rows: Any) -> Array:
        """Return raw samples as the network takes them, shape (n, ...)."""
        return self._prepared(self._read(rows))

    def _read(self, rows: Any, delimiter: str | None = None) -> NewRows | Dataset:
        if isinstance(rows, Dataset):
            return rows
        if self.reading is not None and isinstance(rows, (str, PathLike)):
            return read_images(rows, self.reading, self._shape, self.classes)
        if _is_table(rows):
            found = read_rows(rows, self.columns, self._features, delimiter)
            for note in found.notes:
                _log.warning("%s", note)
            return found
        return NewRows(array_of("rows", rows))

    def _prepared(self, rows: NewRows | Dataset) -> Array:
        steps = self.preparation
        x = self._flat(rows.x)
        if isinstance(rows, Dataset):
            done = rows.preparation
            if steps[: len(done)] != done:
                message = "it was prepared in another way than the rows of the training"
                raise DataError(f"{rows.name}: {message}: give the samples as they were read")
            steps = steps[len(done) :]
        with np.errstate(over="ignore"):  # what becomes infinite is named
            x = prepared(self._numbers(x, steps), steps)
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            row, column = (int(i) for i in np.argwhere(~np.isfinite(x))[0])
            if x.shape[1] != self._features:
                raise DataError(f"row {row} is missing a number, or has one that is too large")
            cell = rows.x[row].flat[column]
            what = "too large" if np.isfinite(cell) else "no number"
            raise DataError(f"row {row}, column {self._name(column)}: {cell} is {what}")
        return x.reshape(-1, *self._input_shape)

    def _flat(self, x: Array) -> Array:
        """Return samples as rows of numbers."""
        if x.dtype.kind not in "fiub":
            raise DataError(f"rows must be numbers, not {x.dtype}")
        shapes = {(self._features,), self._shape or self._input_shape, self._input_shape}
        if x.ndim and x.shape[1:] in shapes and math.prod(x.shape[1:]) == self._features:
            if not len(x):
                raise DataError("there are no rows")
            return x.reshape(len(x), -1)
        wanted = " or ".join(f"(n, {', '.join(map(str, shape))})" for shape in sorted(shapes))
        hint = ""
        if x.shape == (self._features,):
            hint = ": a single sample is a row, [sample]"
        elif x.ndim == 2 and x.shape[1] == self._features + 1:
            hint = ": leave out the column of the labels"
        message = f"rows are of the shape {x.shape}, and {wanted} is wanted{hint}"
        raise ShapeError("model", message, x.shape, (self._features,))

    def _numbers(self, x: Array, steps: Sequence[Step]) -> Array:
        """Return rows in the type of elements that they had when the network was trained."""
        if steps and isinstance(steps[0], Brightness):
            if x.dtype.kind in "iu":
                if x.min() < 0 or x.max() > 255:
                    raise DataError(f"bytes are in 0 .. 255, not {x.min()} .. {x.max()}")
                return x.astype(np.uint8)
        elif not steps and self.network._network.input_dtype == np.intp:
            return x
        single = np.ascontiguousarray(x, np.float32)
        wrong = np.isinf(single)
        if wrong.any():
            row, column = (int(i) for i in np.argwhere(wrong)[0])
            raise DataError(
                f"row {row}, column {self._name(column)}: {x[row, column]} is too large"
            )
        return single

    def _name(self, column: int) -> str:
        names = () if self.columns is None else self.columns.features
        return repr(names[column]) if names else str(column)

    # -- predictions ------------------------------------------------------------------------------

    def __call__(self, rows: Any) -> Array:
        """Return what the last layer puts out, (n, outputs): logits if the network classifies."""
        return self.network(self.prepare(rows))

    def predict(self, rows: Any) -> Array:
        """Return the number of each sample's class, or the outputs if there are no classes.

        They are in the units of the targets that the network was trained on, one column for each;
        of a network whose samples have several labels, 0 or 1 for each label.
        """
        return self._in_units(self.network.predict(self.prepare(rows)))

    def _in_units(self, values: Array) -> Array:
        return values if self.scale is None else self.scale.in_units(values)

    def predict_class(self, rows: Any) -> Array:
        """Return the name of each sample's class, of `classes`.

        It raises `ConfigurationError` if the network does not classify.
        """
        return self._named(self.network.predict_class(self.prepare(rows)))

    def predict_proba(self, rows: Any) -> Array:
        """Return the probability of each class, in the order of `classes`, shape (n, classes).

        Of a network whose samples have several labels, that of each of `targets`. It raises
        `ConfigurationError` if the network does not classify.
        """
        return self.network.predict_proba(self.prepare(rows))

    def _named(self, numbers: Array) -> Array:
        return np.array(self.classes)[numbers]

    def evaluate(self, rows: Any, y: Any = None) -> dict[str, float]:
        """Return loss and metrics on raw samples, as `NeuralNetwork.evaluate` does.

        `y` are numbers or names of classes, or values; it may be left out where `rows` has them: a
        data set, or a table with the column of the labels. If a label is none of the classes, or
        there are no labels, it is a `LabelError` or `DataError`.
        """
        read = self._read(rows)
        if y is not None:
            targets = self._numbered(y) if self.classes else array_of("y", y)
        elif isinstance(read, Dataset):
            targets = read.y
        elif read.labels is not None:
            targets = self._targets(read.labels, read)
        elif read.targets is not None:
            targets = read.targets
        else:
            raise DataError("there are no labels to compare with: give y")
        is_scaled = isinstance(read, Dataset) and y is None and read.scale is not None
        return self._evaluated(self._prepared(read), targets, is_scaled)

    def _evaluated(self, x: Array, y: Array, is_scaled: bool = False) -> dict[str, float]:
        """Return loss and metrics, in the units of the targets, on prepared samples."""
        if self.scale is None:
            return self.network.evaluate(x, y)
        if not is_scaled:
            y = self.scale.apply(checked_values("targets", y, self.targets))
        return self.network.evaluate(DeviceData(x, y, deviation=self.scale.deviation))

    def _numbered(self, y: Any) -> Array:
        """Return labels, numbers or names, as numbers of classes."""
        labels = array_of("y", y)
        if labels.dtype.kind not in "OUS":
            return labels
        return self._targets([str(label) for label in labels.tolist()])

    def _targets(self, labels: Sequence[str], rows: NewRows | None = None) -> Array:
        """Return the numbers of the classes that the cells of a table name."""
        numbers = {str(name): number for number, name in enumerate(self.classes)}
        found = np.empty(len(labels), np.intp)
        columns = self.columns if self.reading is None else self.reading.table
        for row, label in enumerate(labels):
            number = numbers.get(label)
            if columns is not None and (columns.labels or number is None):
                number = columns.class_of(label)
            if number is None or not 0 <= number < len(self.classes):
                known = ", ".join(map(str, self.classes[:8]))
                place = f"row {row}" if rows is None else rows.place(row)
                raise LabelError(f"label {label!r} in {place} is none of the classes {known}", row)
            found[row] = number
        return found

    def predict_file(
        self, path: str | PathLike[str], *, delimiter: str | None = None
    ) -> Prediction:
        """Return predictions for the rows of a CSV file, or images; metrics, if they have labels.

        The delimiter is that of the table of the training if it is left out.
        """
        if self.reading is not None:
            rows = read_images(path, self.reading, self._shape, self.classes)
        else:
            rows = read_rows(str(path), self.columns, self._features, delimiter)
        x = self._prepared(rows)
        network, loss = self.network, self.network._network.loss
        has_labels = loss.takes == "labels"
        metrics: dict[str, float] = {}
        notes = list(rows.notes)
        scored, known = self._with_answers(rows)
        try:  # if they are wrong, the rows can be predicted all the same
            if self.classes and known.labels is not None:
                metrics = network.evaluate(x[scored], self._targets(known.labels, known))
            elif not self.classes and known.targets is not None:
                check = checked_labels if has_labels else checked_values
                truth = check(str(path), known.targets, self.targets)
                metrics = self._evaluated(x[scored], truth)
        except DataError as error:
            notes.append(
                f"{path}: no accuracy: {error}" if self.classes else f"no metrics: {error}"
            )
        values, residuals = self._in_units(network.predict(x)), None
        if self.classes:
            values = self._named(values)
        elif rows.targets is not None and not has_labels:
            residuals = rows.targets - self._in_units(loss.point(network(x)))
        probabilities = network.predict_proba(x) if self.classes or has_labels else None
        shown = replace(rows, notes=notes)
        return Prediction(values, probabilities, metrics, shown, residuals, len(scored))

    def _with_answers(self, rows: NewRows) -> tuple[Array, NewRows]:
        """Return the numbers of the rows whose label or targets are there, and these rows.

        All rows where none has them: what is wrong with them is said then.
        """
        every = np.arange(len(rows.x))
        if rows.targets is not None:
            there = ~np.isnan(rows.targets).any(axis=1)
        else:
            marks = {"", *(self.columns.missing if self.columns is not None else ())}
            there = np.array([label.strip() not in marks for label in rows.labels or ()], bool)
        if there.all() or not there.any():
            return every, rows
        known = every[there]
        return known, replace(
            rows,
            labels=None if rows.labels is None else [rows.labels[at] for at in known],
            targets=None if rows.targets is None else rows.targets[known],
            lines=[rows.lines[at] for at in known] if rows.lines else (),
        )

    # -- files ------------------------------------------------------------------------------------

    def export_onnx(self, path: str | PathLike[str]) -> None:
        """Write the model as an ONNX model that takes raw samples: the preparation is inside.

        It takes ``x``, raw samples (n, features), and gives ``y``, what the last layer puts out, or
        numbers in the units of the targets, and ``probabilities`` if the network classifies.
        ``classes`` among its metadata is a JSON list of the names of the classes. Errors are those
        of `NeuralNetwork.export_onnx`.
        """
        from dnn.io.onnx_export import export_onnx

        export_onnx(
            self.network,
            path,
            preparation=self.preparation,
            features=self._features,
            scale=self.scale,
            metadata={
                "classes": list(self.classes),
                **({"outputs": list(self.outputs)} if self.about.get("task") else {}),
                "columns": list(self.columns.features) if self.columns else [],
                "categories": dict(self.columns.categories) if self.columns else {},
                "provenance": self.provenance,
            },
        )

    def summary(self) -> str:
        """Return what the model is: where it comes from, samples, preparation, classes, layers."""
        rows = [(name, _shown(value)) for name, value in self.provenance.items()]
        versions = self.about.get("versions", {})
        if versions:
            said = ", ".join(f"{name} {version}" for name, version in versions.items())
            rows.append(("written", f"{self.about.get('written', '')} by {said}"))
        name = self.about.get("data", "")
        if self.columns is not None and self.columns.features:
            what = f"{self._features} columns: {', '.join(self.columns.features)}"
        else:
            what = " x ".join(map(str, self._shape or (self._features,))) + " numbers"
        rows.append(("samples", f"{what} ({name})" if name else what))
        steps = [str(step) for step in self.preparation]
        rows.append(("preparation", steps[0] if steps else "none: samples are prepared already"))
        rows += [("", step) for step in steps[1:]]
        if self.classes:
            rows.append(("classes", ", ".join(map(str, self.classes))))
        elif self.about.get("task"):
            what = "labels" if self.about["task"] == "multilabel" else "targets"
            rows.append((what, ", ".join(self.targets)))
        if self.scale is not None:
            rows.append(("", f"scaled for training: {self.scale}"))
        width = max(len(name) for name, _ in rows) + 2
        lines = [f"{name:{width}s}{_shortened(value)}" for name, value in rows]
        return "\n".join([*lines, "", self.network.summary()])

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        steps = ", ".join(step.name for step in self.preparation) or "no preparation"
        return f"TrainedModel({steps}, {self.network!r})"


_LONGEST: Final = 100


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} = {_shown(each)}" for name, each in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def _is_table(rows: Any) -> bool:
    is_frame = hasattr(rows, "columns") and hasattr(rows, "__getitem__")
    return is_frame or isinstance(rows, (str, PathLike, Mapping))


def target_count(network: NeuralNetwork) -> int:
    """Return how many targets a network has: as many as outputs, but for quantiles of each."""
    outputs = math.prod(network._network.output_shape)
    return outputs // network._network.loss.output_count(1)
