"""Checkpoints: safetensors files from which training resumes bit for bit.

::

    tensors     parameter/<name>              each parameter
                state/<name>                  running statistics, seed and step of noise
                optimizer/<buffer>/<name>     state of the optimizer for each parameter
                layer/<number>                content of a layer, such as a graph of ONNX
    metadata    dnn                           JSON: version, architecture, optimizer, seed, history,
                                              progress in the epoch, if within one; and `model`:
                                              layers, loss, classes, preparation, provenance
                crc32                         of this JSON

Of random numbers the seed is enough: each is a function of it and of the epoch or the step that it
is drawn for. Nothing in such a file is ever executed, as it would be in a pickle.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import json
import os
import platform
import zlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dnn.backend import Array
from dnn.data.preparation import described_step
from dnn.errors import (
    CheckpointError,
    ConfigurationError,
    MissingDependencyError,
    ShapeError,
    explains_arguments,
)
from dnn.layer_tables import described_layers
from dnn.layers.nested import leaves_of
from dnn.losses import LOSSES
from dnn.training.epoch_parts import EpochProgress
from dnn.training.history import History

if TYPE_CHECKING:
    from dnn.data.dataset import Dataset
    from dnn.layers import Layer
    from dnn.model import NeuralNetwork

__all__ = [
    "load_checkpoint",
    "load_parameters",
    "read_arrays",
    "read_checkpoint",
    "require_safetensors",
    "save_checkpoint",
    "write_arrays",
    "write_whole",
]

VERSION = 1
CONTENT = "layer/"
"""Before the names of arrays that are the bytes of a layer's content."""
MODEL_VERSION = 1
"""Version of what a checkpoint says of its model, where its data are of classes or unknown."""
VERSION_OF_TARGETS = 2
"""Version where its data have other targets: an earlier dnn would not scale predictions back."""

# Attributes of layers that `layer_facts` leaves out, or describes in another form: initializers,
# declarations of parameters and states, and what changes in training.
_NOT_ARCHITECTURE = frozenset(
    {"assignments", "dtype", "initializer", "name", "parameters", "states", "training"}
)


@explains_arguments
def save_checkpoint(
    model: NeuralNetwork,
    path: str | PathLike[str],
    *,
    data: Dataset | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint, from which training can resume on any number of ranks.

    `dnn.load` makes a model of it, ready for raw samples.

    Parameters
    ----------
    model : NeuralNetwork
        All ranks that train it call this; rank 0 writes.
    path : path
        Written under another name and renamed, so that there is never half a checkpoint.
    data : Dataset, optional
        The prepared training samples: their preparation, columns and names of classes are written
        too. Without, the model takes samples that are prepared already.
    provenance : mapping, optional
        Where the model comes from, as values of JSON.

    Raises
    ------
    CheckpointError
        If the file cannot be written.
    ConfigurationError, ShapeError
        If `provenance` is nothing for JSON, or `data` are not such as the network takes.
    MissingDependencyError
        If safetensors is not installed.
    """
    require_safetensors()
    gathered = model._scheme.gathered(model._network, model._update)
    arrays = {name: np.asarray(array, order="C") for name, array in gathered.items()}
    for layer in leaves_of(model._network.whole_layers):
        if (kept := layer.kept_bytes) is not None:
            number = sum(name.startswith(CONTENT) for name in arrays)
            arrays[f"{CONTENT}{number}"] = np.frombuffer(kept, np.uint8)
    progress = model._progress
    described = _described(model, data, provenance)
    about = {
        "version": VERSION,
        "architecture": _architecture(model),
        "optimizer": type(model.optimizer).__name__,
        "seed": model.seed,
        "steps": model._update.steps_done,
        "history": dataclasses.asdict(model.history),
        "progress": progress and dataclasses.asdict(progress),
        "model": described,
    }
    communicator = model._scheme.communicator
    if communicator is None or communicator.rank == 0:
        write_arrays(path, arrays, about)


def write_arrays(
    path: str | PathLike[str], arrays: Mapping[str, Array], about: Mapping[str, Any]
) -> None:
    """Write arrays and values of JSON, with a ``version``, for `read_checkpoint`."""
    library = require_safetensors()
    text = json.dumps({**about, "checksum": _checksum(arrays)})
    metadata = {"dnn": text, _CRC: str(zlib.crc32(text.encode()))}
    write_whole(path, library.save(dict(arrays), metadata=metadata))


def write_whole(path: str | PathLike[str], raw: bytes) -> None:
    """Write a file under another name and rename it; raise `CheckpointError` on failure."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CheckpointError(f"{path}: cannot be written: {error}") from error


@explains_arguments
def load_checkpoint(
    model: NeuralNetwork, path: str | PathLike[str], *, parameters_only: bool = False
) -> None:
    """Load a checkpoint, so that training resumes where it was written.

    Parameters
    ----------
    model : NeuralNetwork
        Of the same layers, loss and type of elements. It takes the seed of the checkpoint, and
        keeps the hyperparameters of its own optimizer.
    path : path
    parameters_only : bool
        Take parameters and running statistics, and leave optimizer, seed and history as they are:
        to predict, or to train on in another way. Of a network that predicts with averages of
        its parameters, take those; averages of the model become the same.

    Raises
    ------
    CheckpointError
        If the file cannot be read, is truncated, damaged or no checkpoint, or is of another
        version, architecture or optimizer; it says what differs. The model is as it was.
    MissingDependencyError
        If safetensors is not installed.
    """
    load_parameters(model, path, *read_checkpoint(path), parameters_only=parameters_only)


def load_parameters(
    model: NeuralNetwork,
    path: str | PathLike[str],
    about: Mapping[str, Any],
    found: dict[str, Array],
    *,
    parameters_only: bool,
) -> None:
    """Load what `read_checkpoint` has returned of `path`, as `load_checkpoint` does."""
    difference = _difference(about["architecture"], _architecture(model))
    if difference is None and not parameters_only:
        difference = _difference_of_training(about, model)
    _refuse_difference(path, difference)
    wanted = model.trained_arrays()
    found = {name: array for name, array in found.items() if not name.startswith(CONTENT)}
    found = model._scheme.own_part(model._network, found)
    unknown = sorted(name for name in found if name not in wanted)
    if unknown and not parameters_only:
        _refuse_difference(path, f"{unknown[0]} is there and not here")
    if parameters_only:
        left = ("optimizer/", "state/noise.")
        if found.get("optimizer/averaging/steps_done"):  # before the first step averages are zeros
            found |= {
                name.replace("optimizer/average/", "parameter/"): array
                for name, array in found.items()
                if name.startswith("optimizer/average/")
            }
        wanted = {name: array for name, array in wanted.items() if not name.startswith(left)}
    _refuse_difference(path, _difference_of_arrays(found, wanted))
    for name, array in wanted.items():
        model._network.ops.load(found[name], array)
    if parameters_only:
        model._network.reset_averages()
    else:
        progress = about.get("progress")  # older checkpoints have none: end of an epoch
        within = None if progress is None else EpochProgress(**progress)
        model.resume(about["seed"], about["steps"], History(**about["history"]), within)


_NOT_KEPT: Final = ("class_weight", "label_smoothing")
"""Options of losses that have a key of their own, or are of training alone."""


def _described(
    model: NeuralNetwork, data: Dataset | None, provenance: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return what `dnn.load` needs to make the model, or the reason why it cannot be described."""
    from dnn import __version__

    network = model._network
    if data is not None:
        _check_data(model, data)
    try:
        json.dumps(provenance, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"provenance: values of JSON are wanted: {error}") from None
    loss = network.loss
    names = {kind: name for name, kind in LOSSES.items()}
    try:
        layers = described_layers(network.whole_layers)
        if type(loss) not in names:
            raise ConfigurationError(f"{type(loss).__name__} is a loss of your own")
    except ConfigurationError as error:
        return {"problem": str(error)}
    versions = {"dnn": __version__, "numpy": np.__version__, "python": platform.python_version()}
    weights = getattr(loss, "class_weight", None)
    about: dict[str, Any] = {
        "version": MODEL_VERSION,
        "layers": layers,
        "loss": names[type(loss)],
        "class_weight": None if weights is None else list(weights),
        "versions": versions,
        "written": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "provenance": dict(provenance or {}),
        "data": None,
    }
    options = {name: x for name, x in loss.options.items() if name not in _NOT_KEPT}
    if options:
        about["loss_options"] = options
    if data is not None:
        about["data"] = {
            "name": data.name,
            "features": data.raw_features,
            "shape": list(data.image_shape or data.sequence_shape or ()),
            "class_names": list(data.class_names),
            "columns": None if data.columns is None else data.columns.to_json(),
            "preparation": [described_step(step) for step in data.preparation],
        }
        if data.reading is not None:
            about["data"]["reading"] = data.reading.to_json()
        if data.task != "classification":
            about["version"] = VERSION_OF_TARGETS
            about["data"] |= {
                "task": data.task,
                "targets": list(data.targets),
                "scale": None if data.scale is None else data.scale.to_json(),
            }
    return about


def _check_data(model: NeuralNetwork, data: Dataset) -> None:
    from dnn.data.preparation import prepared

    wanted = model._network.input_shape
    given = prepared(np.zeros((1, data.raw_features), np.float32), data.preparation).size
    if given != int(np.prod(wanted)):
        message = f"a sample of {data.name} has {given} values, and the network takes {wanted}"
        raise ShapeError("save", message, (given,), wanted)
    if data.task != "classification":
        loss, puts_out = model._network.loss, model._network.output_shape
        if loss.classifies:
            message = f"{data.name} is for {data.task}, and the loss of the network for classes"
            raise ConfigurationError(f"save: {message}")
        if puts_out != (loss.output_count(data.outputs),):
            message = f"{data.name} has {data.outputs} targets, and the network puts out {puts_out}"
            raise ShapeError("save", message, puts_out, (data.outputs,))
    classes = data.classes if model._network.loss.classifies else None
    if classes is not None and classes > model._network.loss.class_count(
        model._network.output_shape
    ):
        raise ConfigurationError(f"save: {data.name} has {classes} classes, more than the network")


def _architecture(model: NeuralNetwork) -> dict[str, Any]:
    network = model._network
    return {
        "dtype": str(network.dtype),
        "precision": network.precision.name,
        "loss": type(network.loss).__name__,
        "layers": [layer_facts(layer) for layer in network.layers],
    }


def layer_facts(layer: Layer) -> dict[str, Any]:
    """Return by name, as values of JSON, a layer's plain attributes and shapes of parameters."""
    about: dict[str, Any] = {"name": layer.name}
    for name, value in sorted(vars(layer).items()):
        plain = _plain(value)
        if name not in _NOT_ARCHITECTURE and not name.startswith("_") and plain is not None:
            about[name] = plain
    for parameter in layer.parameters:
        name = parameter.node.name.rsplit(".", 1)[-1]
        about[f"shape of the {name}"] = list(layer.whole_shape(parameter))
    return about


def _plain(value: Any) -> Any:
    from dnn.layers import Layer

    if isinstance(value, Layer):
        return layer_facts(value)
    if isinstance(value, list | tuple):
        parts = [_plain(part) for part in value]
        return None if None in parts else parts
    return value if isinstance(value, str | int | float) else None


def _difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """Return a text on the first difference between two architectures, or None."""
    for name in ("dtype", "loss"):
        if there[name] != here[name]:
            return f"its {name} is {there[name]} there and {here[name]} here"
    if len(there["layers"]) != len(here["layers"]):
        return f"it has {len(there['layers'])} layers there and {len(here['layers'])} here"
    for theirs, ours in zip(there["layers"], here["layers"], strict=True):
        if theirs["name"] != ours["name"]:
            return f"a layer is {theirs['name']} there and {ours['name']} here"
        for name in {**theirs, **ours}:
            if theirs.get(name) != ours.get(name):
                where = f"{name} of {ours['name']}"
                return f"{where} is {theirs.get(name)!r} there and {ours.get(name)!r} here"
    return None


def _refuse_difference(path: str | PathLike[str], difference: str | None) -> None:
    if difference is not None:
        raise CheckpointError(f"{path}: a checkpoint of another model: {difference}")


def _difference_of_training(about: Mapping[str, Any], model: NeuralNetwork) -> str | None:
    """Return a text on another precision or optimizer, or None."""
    mine, precision = type(model.optimizer).__name__, model._network.precision.name
    trained_in = about["architecture"].get("precision", precision)  # older ones lack it
    if trained_in != precision:
        return (
            f"it was trained in {trained_in}, and this one is in {precision} "
            "(load_checkpoint(..., parameters_only=True) takes its parameters)"
        )
    if about["optimizer"] != mine:
        return f"the optimizer is {about['optimizer']} there and {mine} here"
    return None


def _difference_of_arrays(there: Mapping[str, Array], here: Mapping[str, Array]) -> str | None:
    """Return a text on the first array here that is missing there, or of another shape or type."""
    for name, array in here.items():
        found = there.get(name)
        if found is None or (found.shape, found.dtype) != (array.shape, array.dtype):
            got = "missing" if found is None else f"{found.dtype} {found.shape}"
            return f"{name} is {got} there and {array.dtype} {array.shape} here"
    return None


def read_arrays(path: str | PathLike[str]) -> tuple[bytes, dict[str, Array]]:
    """Return the bytes of a safetensors file, and the arrays in it by name.

    Raises
    ------
    CheckpointError
        If it cannot be read, or is truncated or no safetensors file.
    """
    library = require_safetensors()
    try:
        if Path(path).exists() and not Path(path).is_file():  # a pipe would be waited for
            raise CheckpointError(f"{path}: is no file")
        raw = Path(path).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    try:
        arrays = {name: _array_of(found) for name, found in library.deserialize(raw)}
    except Exception as error:  # the exceptions of safetensors have no documented base
        message = f"truncated, or no safetensors file: {error}"
        raise CheckpointError(f"{path}: {message}") from error
    return raw, arrays


def _array_of(found: Mapping[str, Any]) -> Array:
    """Return an array of a safetensors file; bfloat16, which NumPy lacks, becomes float32."""
    kind = found["dtype"]
    dtype = np.uint16 if kind == "BF16" else require_safetensors()._TYPES.get(kind)
    if dtype is None:
        raise ValueError(f"an array of {kind}, which NumPy does not have")
    array: Array = np.frombuffer(found["data"], dtype).reshape(found["shape"])
    return (array.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else array


_CRC = "crc32"


def read_checkpoint(path: str | PathLike[str]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return what a checkpoint says of itself, and its arrays by name.

    Raises
    ------
    CheckpointError
        If it cannot be read, is damaged, or is something else.
    """
    raw, arrays = read_arrays(path)
    header_bytes = int.from_bytes(raw[:8], "little")
    metadata = json.loads(raw[8 : 8 + header_bytes]).get("__metadata__", {})
    try:
        about: dict[str, Any] = json.loads(metadata["dnn"])
        version, checksum = about["version"], about["checksum"]
        text = metadata["dnn"].encode()
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        message = "a safetensors file, but no checkpoint of dnn: it holds weights alone, which"
        message += " load_safetensors of a network takes that you have built"
        raise CheckpointError(f"{path}: {message}") from error
    if version != VERSION:
        message = f"a checkpoint of version {version!r}, but this is dnn with version {VERSION}"
        raise CheckpointError(f"{path}: {message}")
    if checksum != _checksum(arrays) or metadata.get(_CRC, str(zlib.crc32(text))) != str(
        zlib.crc32(text)
    ):
        raise CheckpointError(f"{path}: damaged: its checksum is not that of its contents")
    return about, arrays


def _checksum(arrays: Mapping[str, Array]) -> int:
    checksum = 0
    for name in sorted(arrays):
        checksum = zlib.crc32(arrays[name].tobytes(), zlib.crc32(name.encode(), checksum))
    return checksum


def require_safetensors() -> Any:
    """Return the module `safetensors.numpy`, or raise `MissingDependencyError`."""
    try:
        return importlib.import_module("safetensors.numpy")
    except ImportError as error:
        raise MissingDependencyError(
            "checkpoints are safetensors files, and safetensors is not installed: "
            'pip install "diel[checkpoint]"'
        ) from error
