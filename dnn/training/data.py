"""Samples, targets and weights of networks: checked once a call, never in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dnn.arrays import array_of, narrowed
from dnn.backend import Array, empty
from dnn.backend.device import free_bytes
from dnn.data.augmentation import Images
from dnn.data.labels import class_weights, label_weights
from dnn.errors import ConfigurationError, DataError, ShapeError, is_number
from dnn.layers import Layer
from dnn.memory import MemoryManager
from dnn.precision import Precision
from dnn.training.network import Network

__all__ = [
    "DeviceData",
    "Rows",
    "Samples",
    "Versions",
    "checked_pair",
    "checked_samples",
    "fit_data",
    "for_each",
    "is_on_host",
]

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Samples:
    """Checked samples, and which of them each of K networks is given.

    Attributes
    ----------
    x, y : array, length n
        Samples and targets; `x` may be `Images` in the place of an array.
    weights : array, shape (n,), optional
        Factor of the loss of each sample.
    rows : array of intp, shape (K, m), optional
        Rows that each network is given; all rows if left out.
    memory : tuple of MemoryManager
        Device memory of the arrays that `on_device` has copied.
    host_y : array, optional
        A copy of `y` on the host, where `y` is on a device and was copied from there.
    deviation : array of float64, shape (outputs,) or (n, outputs), optional
        What a difference of 1 between targets is in the units of metrics.
    """

    x: Array | Images
    y: Array
    weights: Array | None = None
    rows: Rows | None = None
    memory: tuple[MemoryManager, ...] = ()
    host_y: Array | None = None
    deviation: Array | None = None

    @property
    def count(self) -> int:
        """Number of samples that each network is given."""
        return len(self.x) if self.rows is None else self.rows.shape[1]

    def of_networks(self, indices: Sequence[int]) -> Samples:
        """Return the samples of some of the networks."""
        return self if self.rows is None else replace(self, rows=self.rows[list(indices)])

    def only(self, part: slice) -> Samples:
        """Return a contiguous part of the samples of each network."""
        if self.rows is not None:
            return replace(self, rows=self.rows[:, part])
        weights = None if self.weights is None else self.weights[part]
        host_y = None if self.host_y is None else self.host_y[part]
        x = self.x.take(np.arange(self.count)[part]) if isinstance(self.x, Images) else self.x[part]
        deviation = self.deviation
        if deviation is not None and deviation.ndim == 2:
            deviation = deviation[part]
        return Samples(x, self.y[part], weights, None, self.memory, host_y, deviation)

    def on_device(self, network: Network, resident: bool | None = None) -> Samples:
        """Return the samples on the device of a network; arrays that are there are not copied.

        They stay on the host if `resident` is False, or if it is None and they would take more
        than half of the free memory of the GPU.
        """
        device = network.ops.device
        if device == "cpu" or isinstance(self.x, Images):
            return self
        if is_on_host(self.x):
            if resident is None:
                wanted = sum(x.nbytes for x in (self.x, self.y) if is_on_host(x))
                resident = 2 * wanted <= free_bytes(device)[0]
            if not resident:
                return self
        memory = list(self.memory)

        def there(array: Any) -> Array:
            if not is_on_host(array):
                on_gpu: Array = array
                return on_gpu
            memory.append(MemoryManager.on(device, array.size, array.dtype))
            memory[-1].copy_from(MemoryManager.wrap(np.ascontiguousarray(array)))
            sent: Array = memory[-1].write().reshape(array.shape)
            return sent

        x, y = there(self.x), there(self.y)
        weights = None if self.weights is None else there(self.weights)
        host_y = self.y if is_on_host(self.y) else self.host_y
        return Samples(x, y, weights, self.rows, tuple(memory), host_y, self.deviation)

    def targets(self, network: Network) -> Array:
        """Return all targets on the host."""
        return on_host(network, self.y if self.host_y is None else self.host_y)

    def class_counts(self, network: Network) -> Array | None:
        """Return how many samples of each class each network has, (K, classes), if it counts them.

        The networks count them if they count the predictions of their training.
        """
        classes = network.classes_to_tally
        if classes is None:
            return None
        labels = self.targets(network)
        labels = labels[None] if self.rows is None else labels[self.rows]
        shifted = labels + classes * np.arange(len(labels))[:, None]
        counts = np.bincount(shifted.ravel(), minlength=classes * len(labels))
        return counts.reshape(-1, classes)


class DeviceData:
    """Samples and targets that are checked, and copied to a device, once for many trainings.

    `fit` and `evaluate` of `NeuralNetwork` and `Ensemble` take it in the place of `x` and `y`. Any
    number of networks share one copy on each device; it lasts as long as this object.

    Parameters
    ----------
    x, y : array_like
        As for `fit`; not to be changed afterwards.
    weights : array_like, shape (n,), optional
        Factor of the loss of each sample in training, as ``sample_weight`` of `fit`.
    deviation : array_like, shape (outputs,) or (n, outputs), optional
        What a difference of 1 between targets is in the units of metrics, where targets are scaled.

    Examples
    --------
    >>> import numpy as np
    >>> from dnn import DeviceData, NeuralNetwork, mlp
    >>> data = DeviceData(np.eye(2), [0, 1])
    >>> for seed in range(3):
    ...     _ = NeuralNetwork(mlp(2, [4], 2), seed=seed).fit(data, progress=False)
    """

    def __init__(
        self,
        x: npt.ArrayLike,
        y: npt.ArrayLike,
        *,
        weights: npt.ArrayLike | None = None,
        deviation: npt.ArrayLike | None = None,
    ) -> None:
        self.x = x
        self.y = y
        self.weights = weights
        self.deviation = None if deviation is None else np.asarray(deviation, np.float64)
        self._sent: dict[tuple[Any, ...], tuple[Samples, int]] = {}

    def samples(
        self, network: Network, versions: bool = False, resident: bool | None = None
    ) -> tuple[Samples, int]:
        """Return samples on a network's device, version after version, and how many versions.

        With `versions`, `x` may have an axis of versions, as in `Ensemble.fit`; `resident` is as
        for `Samples.on_device`. Data that do not fit the network are a `ShapeError`, `LabelError`
        or `DataError`.
        """
        loss, ops = network.loss, network.ops
        of_x: tuple[Any, ...] = (ops.device, network.input_dtype, network.precision.largest)
        # Each Embedding accepts indices below its own number of vectors.
        of_x += (network.input_shape, *(getattr(layer, "count", 0) for layer in network.layers[:2]))
        of_x += (versions,)
        if resident is False:  # on the host for all networks
            of_x = ("cpu", *of_x[1:])
        key = (*of_x, network.output_shape, type(loss), repr(vars(loss)))
        if key not in self._sent:
            samples, copies = _checked_versions(network, "x", self.x, self.y, versions)
            samples = replace(samples, deviation=self.deviation)
            for known, (sent, _) in self._sent.items():
                if known[: len(of_x)] == of_x:  # other targets of the same samples
                    samples = replace(samples, x=sent.x, memory=sent.memory)
            self._sent[key] = samples.on_device(network, resident), copies
        return self._sent[key]


def _checked_versions(
    network: Network, name: str, x: npt.ArrayLike, y: npt.ArrayLike, versions: bool
) -> tuple[Samples, int]:
    """Return checked samples, version after version, and the number of versions."""
    given: Any = x if _lies_with(network, x) or isinstance(x, Images) else array_of(name, x)
    copies = 1
    if versions and given.ndim == len(network.input_shape) + 2:
        copies = len(given)
        given = given.reshape(-1, *given.shape[2:])
    samples = checked_samples(network, name, given)
    targets = checked_targets(network, y, len(samples) // copies)
    if copies > 1:
        targets = np.concatenate([on_host(network, targets)] * copies)
    return Samples(samples, targets), copies


def given_data(
    network: Network,
    name: str,
    x: npt.ArrayLike | DeviceData,
    y: npt.ArrayLike | None,
    versions: bool = False,
    resident: bool | None = None,
) -> tuple[Samples, int]:
    """Return checked samples and the number of versions; `name` is that of `x` in messages."""
    if isinstance(x, DeviceData):
        if y is not None:
            raise ConfigurationError("a DeviceData has its targets: leave y out")
        return x.samples(network, versions, resident)
    if y is None:
        raise ConfigurationError("y is missing; only a DeviceData comes without")
    return _checked_versions(network, name, x, y, versions)


def checked_samples(network: Network, name: str, x: npt.ArrayLike | Images) -> Array | Images:
    """Return samples as the network takes them: a contiguous array of finite numbers, or images.

    `name` is that of the argument, for messages.

    Raises
    ------
    ShapeError, DataError
        If they have another shape, are no numbers, are none, or contain NaN or infinity; the
        message names the first such cell.
    """
    if (array := _on_same_gpu(network, x)) is not None:
        return array
    samples = x if isinstance(x, Images) else array_of(name, x)
    expected = network.input_shape
    if samples.dtype.kind not in "fiub":
        raise DataError(f"{name} must be numbers, not {samples.dtype}")
    if samples.shape[1:] != expected or not samples.ndim:
        message = f"{name} has shape {samples.shape}, but the layer takes (n, "
        message += f"{', '.join(map(str, expected))})"
        raise ShapeError(network.layers[0].name, message, samples.shape, expected)
    if not len(samples):
        raise DataError(f"{name} has no rows")
    if isinstance(samples, Images):  # which are finite
        return samples
    if network.input_dtype == np.intp and samples.dtype.kind not in "iu":
        message = f"{name} of shape {samples.shape} must be integers, not {samples.dtype}"
        raise DataError(f"{network.layers[0].name}: {message}")
    if network.input_dtype.kind == "f":
        samples = narrowed(samples, network.input_dtype, lambda *at: _cell_of(name, at))
    samples = np.ascontiguousarray(samples, network.input_dtype)
    if not np.isfinite(samples).all():
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(samples))[0])
        raise DataError(f"{name} contains {samples[at]} in {_cell_of('', at)}")
    if network.precision.largest is not None and samples.dtype.kind == "f":
        check_range(name, samples, network.precision)
    read = samples
    for layer in network.layers[:2]:
        read = layer.check_samples(name, read)
    return samples


def _cell_of(name: str, at: tuple[int, ...]) -> str:
    column = f", column {', '.join(map(str, at[1:]))}" if at[1:] else ""
    return f"{name} row {at[0]}{column}".lstrip()


def _on_same_gpu(network: Network, x: Any) -> Array | None:
    """Return a tensor's own array if a network on its GPU can use it as it is, else None."""
    looks_into = (type(layer).check_samples != Layer.check_samples for layer in network.layers[:2])
    if not _lies_with(network, x) or any(looks_into):
        return None
    fits = x.ndim > 0 and x.shape[1:] == network.input_shape and x.dtype == network.input_dtype
    if not (fits and len(x)):
        return None
    ops, array = network.ops, x.cupy()
    # If a cell is not finite, the check on the host finds out which.
    return array if ops.all_finite(array, empty(ops, array.shape, bool)) else None


def on_host(network: Network, array: Array) -> Array:
    """Return a NumPy array as it is, and an array of the network's GPU as a copy on the host."""
    return array if is_on_host(array) else network.ops.to_host(array)


def is_on_host(array: Any) -> bool:
    """Whether an array is in memory of the host, a NumPy array or `Images`, and not on a GPU."""
    return isinstance(array, np.ndarray | Images)


def _lies_with(network: Network, values: Any) -> bool:
    """Whether values are a contiguous tensor of the network's GPU that may stay there."""
    checks_range = network.precision.largest is not None  # which is done on the host
    if network.ops.device == "cpu" or checks_range or not hasattr(values, "cupy"):
        return False
    return bool(str(values.device) == network.ops.device and values.is_contiguous)


def checked_targets(network: Network, y: npt.ArrayLike, count: int) -> Array:
    """Return `count` targets in the form that the loss takes; a tensor stays on its GPU.

    A copy of such a tensor is checked on the host; its own array is returned if the loss takes the
    copy as it is.
    """
    on_gpu: Any = y if _lies_with(network, y) else None
    host = y if on_gpu is None else on_gpu.numpy()
    targets = network.loss.check(host, count, network.output_shape, network.dtype)
    if on_gpu is not None and targets.dtype == on_gpu.dtype and targets.shape == on_gpu.shape:
        taken: Array = on_gpu.cupy() if np.may_share_memory(targets, host) else targets
        return taken
    return targets


def checked_pair(
    network: Network,
    name: str,
    x: npt.ArrayLike | DeviceData,
    y: npt.ArrayLike | None,
    resident: bool | None = None,
) -> Samples:
    """Return samples and targets as network and loss take them; `name` is that of the samples."""
    return given_data(network, name, x, y, resident=resident)[0]


def fit_data(
    network: Network,
    seed: int,
    x: npt.ArrayLike | DeviceData,
    y: npt.ArrayLike | None,
    validation: tuple[npt.ArrayLike, npt.ArrayLike] | DeviceData | float | None,
    class_weight: Mapping[int, float] | Literal["balanced"] | None,
    sample_weight: npt.ArrayLike | None,
    resident: bool | None = None,
) -> tuple[Samples, Samples | None]:
    """Check the data of `NeuralNetwork.fit`; return training samples and validation samples.

    Where `validation` is a share, `seed` determines the rows that are held out. Training samples
    are on the device as `Samples.on_device` decides.
    """
    is_share = validation is not None and not isinstance(validation, tuple | list | DeviceData)
    deviation = None
    if isinstance(x, DeviceData) and y is None:
        sample_weight = x.weights if sample_weight is None else sample_weight
        deviation = x.deviation
    if is_share:  # rows are taken out on the host
        if isinstance(x, DeviceData) and y is None:
            y, x = x.y, x.x
        if not isinstance(x, DeviceData) and y is not None:
            x, y = x if isinstance(x, Images) else array_of("x", x), array_of("y", y)
    training = checked_pair(network, "x", x, y, resident)
    targets = training.targets(network)
    if not is_share:
        weights = check_weights(network, sample_weight, class_weight, targets)
        training = replace(training, weights=weights).on_device(network, resident)
    if validation is None:
        return training, None
    if isinstance(validation, DeviceData):
        return training, validation.samples(network)[0]
    if isinstance(validation, tuple | list):
        pair: Sequence[npt.ArrayLike] = validation
        if len(pair) != 2:
            message = f"validation must be (x, y) or a share, not {len(pair)} things"
            raise ConfigurationError(message)
        return training, checked_pair(network, "validation x", pair[0], pair[1])
    if not is_number(validation) or not 0 < validation < 1:
        message = "validation must be (x, y), a DeviceData, or a share between 0 and 1"
        raise ConfigurationError(f"{message}, not {validation!r:.100}")
    from dnn.data.dataset import split_rows

    labels = training.y if network.loss.classifies else None
    kept, out = split_rows(training.count, labels, validation, seed)
    deviation = deviation[out] if deviation is not None and deviation.ndim == 2 else deviation
    held_out = Samples(training.x.take(out, 0), training.y[out], deviation=deviation)
    # Classes are balanced by the rows of the training alone.
    weights = check_weights(network, sample_weight, class_weight, targets, kept)
    kept_samples = Samples(training.x.take(kept, 0), training.y[kept], weights)
    return kept_samples.on_device(network, resident), held_out


def for_each(name: str, values: Any, models: int) -> npt.NDArray[Any]:
    """Return one value for each of K networks; a single value is repeated for all."""
    array = np.asarray(values)
    if array.ndim > 1 or array.shape not in ((), (models,)):
        message = f"{name} must be one value or {models}, one for each network"
        raise ConfigurationError(f"{message}, not {array.size}")
    return np.broadcast_to(array, (models,))


@dataclass(frozen=True)
class Versions:
    """Samples and targets of several versions, version after version.

    Attributes
    ----------
    samples : Samples, length (versions * count)
        As `Samples.on_device` returns them.
    count : int
        Rows of one version.
    offsets : array of intp, shape (K,)
        First row of each network's version.
    """

    samples: Samples
    count: int
    offsets: Rows

    @classmethod
    def of(
        cls,
        network: Network,
        models: int,
        x: npt.ArrayLike | DeviceData,
        y: npt.ArrayLike | None,
        versions: Sequence[int] | None,
        resident: bool | None = None,
    ) -> Versions:
        """Check the data of `Ensemble.fit`; parameters and errors as there."""
        samples, copies = given_data(network, "x", x, y, versions is not None, resident)
        count = samples.count // copies
        offsets = np.zeros(models, np.intp)
        if versions is not None:
            each = for_each("versions", versions, models)
            if each.dtype.kind not in "iu":
                raise ConfigurationError(f"versions must be integers, not {versions!r:.100}")
            wrong = [version for version in each if not 0 <= version < copies]
            if wrong:
                message = f"versions must be in 0 .. {copies - 1}, not {wrong[0]}"
                raise ConfigurationError(message)
            offsets = each.astype(np.intp) * count
        return cls(samples.on_device(network, resident), count, offsets)

    def weighted(self, network: Network, sample_weight: npt.ArrayLike | None) -> Versions:
        """Return the versions with weights of their samples, as `Ensemble.fit` takes them."""
        if sample_weight is None:
            return self
        total, given = self.samples.count, array_of("sample_weight", sample_weight)
        if given.shape[:2] == (total // self.count, self.count):
            given = given.reshape(total, *given.shape[2:])
        elif given.shape[:1] == (self.count,):
            given = np.concatenate([given] * (total // self.count))
        targets = self.samples.targets(network)
        weights = check_weights(network, given, None, targets)
        samples = replace(self.samples, weights=weights).on_device(network)
        return replace(self, samples=samples)

    def given(self, name: str, rows: Sequence[npt.ArrayLike] | None) -> Samples:
        """Return samples with the rows that each network is given, all rows if left out.

        Raises
        ------
        ShapeError, DataError
            If `rows` are not K vectors of one length, of integers from 0 to `count` - 1.
        """
        models = len(self.offsets)
        if rows is None:
            return replace(self.samples, rows=self.offsets[:, None] + np.arange(self.count))
        shapes = [np.shape(each) for each in rows]
        if len(shapes) != models or len(set(shapes)) != 1 or len(shapes[0]) != 1:
            message = f"{name} must be {models} vectors of one length, not {shapes}"
            raise ShapeError("ensemble", message, *shapes)
        array = np.asarray(rows)
        if array.dtype.kind not in "iu" or not array.size:
            raise DataError(f"{name} must be integers, at least one for each network")
        if array.min() < 0 or array.max() >= self.count:
            raise DataError(f"{name} must be in 0 .. {self.count - 1}")
        return replace(self.samples, rows=self.offsets[:, None] + array.astype(np.intp))


HALF_OVERFLOWS = 65520.0
"""Smaller numbers are rounded to at most 65504, the largest number of float16."""


def check_range(name: str, x: Array, precision: Precision) -> None:
    """Raise `DataError` if samples are too large for float16, in which products take them."""
    wrong = np.abs(x) >= HALF_OVERFLOWS
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        message = f"{name} has {x[at]:g} in row {at[0]}, column {', '.join(map(str, at[1:]))}"
        message += f": products take {precision.name}, which ends at {precision.largest:g}"
        raise DataError(f"{message}; scale them, such as by dnn.standardise, or take float32")


def check_weights(
    network: Network,
    sample_weight: npt.ArrayLike | None,
    class_weight: Mapping[int, float] | Literal["balanced"] | None,
    targets: Array,
    rows: Rows | None = None,
) -> Array | None:
    """Return the factor of the loss of each sample, or None if no weights are given.

    `targets` are as the loss of the network has checked them, and `sample_weight` goes with them;
    weights are those of `rows`, all if left out. Where both are given, the weight of a sample is
    multiplied by that of its class, which is 1 if it is left out; where a loss takes labels, each
    label of a sample has a weight of its own. Weights that do not fit the samples, are negative or
    no numbers, or are of classes that there are not, are a `ShapeError`, `DataError` or
    `ConfigurationError`.
    """
    loss, outputs = network.loss, network.output_shape
    weights: Array | None = None
    if sample_weight is not None:
        weights = array_of("sample_weight", sample_weight)
        if weights.dtype.kind not in "fiub":
            raise DataError(f"sample_weight must be numbers, not {weights.dtype}")
        if weights.shape not in (targets.shape[:1], loss.weight_shape(targets.shape)):
            message = f"sample_weight has shape {weights.shape}, but there are {len(targets)}"
            raise ShapeError("fit", f"{message} samples", weights.shape, targets.shape[:1])
        is_wrong = ~(np.isfinite(weights) & (weights >= 0))
        if is_wrong.any():
            row = int(np.argwhere(is_wrong)[0][0])
            value = weights[row][is_wrong[row]].flat[0]
            raise DataError(f"sample_weight is {value} in row {row}: not 0 or more")
    if weights is None and class_weight is None:
        return None
    if rows is not None:
        targets, weights = targets[rows], None if weights is None else weights[rows]
    missing = len(loss.weight_shape((1, *outputs))) - 1
    if weights is not None and missing and weights.ndim == 1:
        column = weights.reshape(len(weights), *(1,) * missing)
        weights = np.broadcast_to(column, loss.weight_shape((len(weights), *outputs)))
    if class_weight is not None:
        if loss.classifies:
            of_class = class_weights(targets, loss.class_count(outputs), class_weight)[targets]
        elif loss.takes == "labels":
            of_class = label_weights(targets, class_weight)
        else:
            raise ConfigurationError("class_weight is for classifications only")
        weights = of_class if weights is None else weights * of_class
    assert weights is not None
    checked = narrowed(weights, network.dtype, lambda row, *_: f"the weight of row {row}")
    return np.ascontiguousarray(checked)
