"""Trained networks from files: a checkpoint is checked, and the network made that it describes.

Nothing in a file is executed, and what it says of itself may be wrong or forged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Final

from dnn.backend import Array
from dnn.data.columns import Columns
from dnn.data.image_reading import ImageReading
from dnn.data.preparation import step_of
from dnn.data.targets import TASKS, TargetScale
from dnn.errors import (
    CheckpointError,
    ConfigurationError,
    DnnError,
    ShapeError,
    explains_arguments,
)
from dnn.layer_tables import rebuilt_layers
from dnn.layers import Layer
from dnn.losses import Loss, loss_of
from dnn.model import NeuralNetwork
from dnn.summaries import layer_summaries
from dnn.trained import TrainedModel, target_count
from dnn.training.checkpoint import (
    CONTENT,
    MODEL_VERSION,
    VERSION_OF_TARGETS,
    load_parameters,
    read_checkpoint,
)

__all__ = ["load"]

_OF_FORGED: Final = (
    *(KeyError, TypeError, ValueError, AttributeError),
    *(RecursionError, ArithmeticError),
)
"""What a description that is wrong may raise."""


@explains_arguments
def load(path: str | PathLike[str], *, device: str = "cpu") -> TrainedModel:
    """Load a trained network, ready for raw samples, from a file that `NeuralNetwork.save` wrote.

    Parameters
    ----------
    path : path
        Such as the ``best.safetensors`` of a sweep.
    device : str
        As for `NeuralNetwork`.

    Returns
    -------
    TrainedModel

    Raises
    ------
    CheckpointError
        If the file cannot be read, is damaged or of a later version, or does not hold the network
        itself: of layers of your own, or weights alone.
    MissingDependencyError
        If safetensors is not installed.

    Examples
    --------
    >>> import dnn
    >>> model = dnn.load("best.safetensors")  # doctest: +SKIP
    >>> model.predict_class([[63, 1, 1, 145, 233, 1, 2, 150, 0, 2.3, 3, 0, 6]])  # doctest: +SKIP
    array([0])
    """
    about, arrays = read_checkpoint(path)
    model = about.get("model")
    remedy = "build it, and use load_checkpoint(model, path, parameters_only=True)"
    if not isinstance(model, dict):
        message = "a checkpoint of an earlier dnn, which does not hold the network itself"
        raise CheckpointError(f"{path}: {message}: {remedy}")
    if "problem" in model:
        message = f"does not hold the network itself: {model['problem']}"
        raise CheckpointError(f"{path}: {message}: {remedy}")
    version = model.get("version")
    versions = model.get("versions")
    data = model.get("data")
    has_targets = isinstance(data, dict) and "task" in data
    if version != (VERSION_OF_TARGETS if has_targets else MODEL_VERSION):
        writer = versions.get("dnn", "another") if isinstance(versions, dict) else "another"
        message = f"a model of version {version!r}, written by dnn {writer}, and this dnn reads"
        raise CheckpointError(f"{path}: {message} version {MODEL_VERSION}: use that dnn")
    try:
        found = _model_of(path, model, about, arrays, device)
        load_parameters(found.network, path, about, arrays, parameters_only=True)
    except CheckpointError:
        raise
    except (DnnError, *_OF_FORGED) as error:
        if isinstance(error, DnnError) and not isinstance(error, (ConfigurationError, ShapeError)):
            raise  # of the device
        what = repr(error.args[0]) if isinstance(error, KeyError) else str(error)
        raise CheckpointError(f"{path}: its description of the network is wrong: {what}") from error
    return found


def _model_of(
    path: str | PathLike[str],
    model: Mapping[str, Any],
    about: Mapping[str, Any],
    arrays: Mapping[str, Array],
    device: str,
) -> TrainedModel:
    _check_depths(model["layers"], len(arrays))
    numbers = itertools.count()

    def onnx_graph() -> Layer:
        from dnn.io.onnx_file import read_onnx
        from dnn.io.onnx_layer import OnnxGraph

        raw = arrays[f"{CONTENT}{next(numbers)}"].tobytes()
        return OnnxGraph(read_onnx(path, raw))

    layers = rebuilt_layers(model["layers"], {"onnx_graph": onnx_graph})
    _check_sizes(layers, arrays)
    network = NeuralNetwork(
        layers,
        _loss_of(model),
        dtype=about["architecture"]["precision"],
        seed=about["seed"],
        device=device,
    )
    known: dict[str, Any] = {}
    name = ""
    data = model["data"]
    if data is not None:
        name, features, shape = data["name"], data["features"], data["shape"]
        if type(features) is not int or not all(type(each) is int for each in shape):
            raise TypeError("features and shape are whole numbers")
        steps = [step_of(step) for step in data["preparation"]]
        for step in steps:
            features = step.outputs(features)
        class_names = data["class_names"]
        if not all(isinstance(each, str) for each in class_names):
            raise TypeError("class_names are texts")
        columns = data["columns"]
        known = {
            "preparation": steps,
            "features": data["features"],
            "shape": shape,
            "class_names": class_names,
            "columns": None if columns is None else Columns.from_json(columns),
        }
        if data.get("reading") is not None:
            known["reading"] = ImageReading.from_json(data["reading"])
        if (task := data.get("task")) is not None:
            known |= _targets_of(task, data["targets"], data["scale"], network)
    if not isinstance(model["versions"], dict) or not isinstance(model["provenance"], dict):
        raise TypeError("versions and provenance are tables")
    said = {"versions": model["versions"], "written": model["written"], "data": name}
    if data is not None and "task" in data:
        said["task"] = data["task"]
    found = TrainedModel(network, provenance=model["provenance"], about=said, **known)
    count = len(found.classes)
    outputs = network._network.output_shape
    if count and count != network._network.loss.class_count(outputs):
        raise ValueError(f"{count} names of classes for outputs {outputs}")
    if data is not None and features != math.prod(found._input_shape):
        raise ValueError(f"samples of {features} values for an input {found._input_shape}")
    return found


def _targets_of(task: Any, names: Any, scale: Any, network: NeuralNetwork) -> dict[str, Any]:
    """Return the targets and their scale that a file describes; errors as for any description."""
    outputs = target_count(network)
    if task not in TASKS or not isinstance(names, list):
        raise ValueError(f"there is no task {task!r:.40}, or no list of targets")
    if not all(isinstance(each, str) for each in names) or len(names) not in (0, outputs):
        raise ValueError(f"targets are {outputs} texts")
    return {
        "targets": names,
        "scale": None if scale is None else TargetScale.from_json(scale, outputs),
    }


def _loss_of(model: Mapping[str, Any]) -> Loss:
    options = {**model.get("loss_options", {}), "name": model["loss"]}
    if model["class_weight"] is not None:
        options["class_weight"] = model["class_weight"]
    return loss_of(options)


def _check_depths(tables: Any, most: int) -> None:
    """Raise a ValueError if a recurrent layer has more layers than there are arrays in the file."""
    for table in tables:
        for value in table.values():
            if isinstance(value, list) and value and isinstance(value[0], dict):
                _check_depths(value, most)
        if type(table.get("layers")) is int and table["layers"] > most:
            raise ValueError(f"{table['layers']} layers in a layer, and {most} arrays")


def _check_sizes(layers: Sequence[Layer], arrays: Mapping[str, Array]) -> None:
    """Raise a ValueError unless the file has as many parameters: before memory is allocated."""
    wanted = sum(row.parameters for row in layer_summaries(layers))
    there = sum(array.size for name, array in arrays.items() if name.startswith("parameter/"))
    if wanted != there:
        raise ValueError(f"its layers have {wanted:,} parameters, and there are {there:,}")
