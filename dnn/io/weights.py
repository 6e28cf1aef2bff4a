"""Weights with names and axes of PyTorch, as a state dict or as a safetensors file.

A network corresponds to ``torch.nn.Sequential`` of the same layers without the `Input`::

    dnn                                             torch, within Sequential
    fully_connected_1.weight    (inputs, units)     0.weight                (units, inputs)
    batch_norm_1.scale, shift                       1.weight, 1.bias
    batch_norm_1.mean, variance                     1.running_mean, 1.running_var
    conv2d_1.weight                                 2.weight                as here
    lstm_1.weight_ih_l0                             3.weight_ih_l0          as here
    residual_1.conv2d_1.weight                      4.layers.0.weight
    residual_1.shortcut.conv2d_1.weight             4.shortcut.0.weight

Only safetensors files are read: what ``torch.save`` writes is a pickle, which runs code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from dnn.backend import Array
from dnn.errors import CheckpointError
from dnn.layers import BatchNorm, FullyConnected, Input, Layer, LayerNorm
from dnn.layers.basic import Nested
from dnn.training.checkpoint import read_arrays, require_safetensors, write_whole

if TYPE_CHECKING:
    from dnn.model import NeuralNetwork

__all__ = ["load_arrays", "load_safetensors", "save_safetensors", "state_dict"]

_OF_NORM = {"scale": "weight", "shift": "bias", "mean": "running_mean", "variance": "running_var"}
_TORCH: dict[type[Layer], dict[str, str]] = {BatchNorm: _OF_NORM, LayerNorm: _OF_NORM}
_COUNTER = "num_batches_tracked"  # in PyTorch's batch norm, for cumulative averages


@dataclass(frozen=True)
class Weight:
    """A parameter or running statistic: its names here and in PyTorch, and the network's arrays.

    `of_prediction` differs from `array` where predictions use averages of the parameters.
    """

    name: str
    torch_name: str
    array: Array
    of_prediction: Array
    is_transposed: bool
    layer: Layer


def weights_of(model: NeuralNetwork) -> list[Weight]:
    """Return all parameters and running statistics, in the order in which PyTorch lists them."""
    network = model._network
    arrays, of_prediction = model.trained_arrays(), network.prediction_arrays

    def of_layers(layers: Sequence[Layer], prefix: str) -> Iterator[Weight]:
        for i, layer in enumerate(layers):
            if isinstance(layer, Nested):
                yield from of_layers(layer.layers, f"{prefix}{i}.layers.")
                yield from of_layers(layer.shortcut, f"{prefix}{i}.shortcut.")
                continue
            names = next((_TORCH[kind] for kind in _TORCH if isinstance(layer, kind)), {})
            declared = [("parameter", each) for each in layer.parameters]
            if names:  # states of other layers, such as the rate of a dropout, are settings
                declared += [("state", each) for each in layer.states]
            for kind, each in declared:
                own = each.node.name.rpartition(".")[2]
                turned = isinstance(layer, FullyConnected) and own == "weight"
                torch_name = f"{prefix}{i}.{names.get(own, own)}"
                name = each.node.name
                array, predicts = arrays[f"{kind}/{name}"], of_prediction[name]
                yield Weight(name, torch_name, array, predicts, turned, layer)

    first, *layers = network.layers
    assert isinstance(first, Input)
    return list(of_layers(layers, ""))


def state_dict(model: NeuralNetwork) -> dict[str, Array]:
    """Return parameters and running statistics; `NeuralNetwork.state_dict` documents it."""
    found = {}
    for each in weights_of(model):
        array = model._network.ops.to_host(each.of_prediction)
        found[each.torch_name] = np.array(array.T if each.is_transposed else array, order="C")
    return found


def load_arrays(
    model: NeuralNetwork, source: str, state: Mapping[str, Any], in_order: bool
) -> None:
    """Load arrays with names and axes of PyTorch, as `NeuralNetwork.load_state_dict` does.

    `source` is for messages: a `CheckpointError` says which array is missing, left over, of another
    shape, of no floats, or has NaN or infinity. Averages of the parameters are set to the same
    values.
    """
    wanted = weights_of(model)
    given = {name: value for name, value in state.items() if not name.endswith(_COUNTER)}
    if in_order:
        if len(given) != len(wanted):
            message = f"{len(given)} arrays are there, and {len(wanted)} are wanted"
            raise CheckpointError(f"{source}: {message}")
        found = dict(zip((each.torch_name for each in wanted), given.items(), strict=True))
    else:
        found = {name: (name, value) for name, value in given.items()}
        names = {each.torch_name for each in wanted}
        for each in wanted:
            if each.torch_name not in found:
                message = f"{each.torch_name} is missing, for {each.name}"
                raise CheckpointError(f"{source}: {message}{_hint(names, given)}")
        if left := [name for name in given if name not in names]:
            message = f"{left[0]} is there, and no layer here has it"
            raise CheckpointError(f"{source}: {message}{_hint(names, given)}")
    values = [_checked(source, each, *found[each.torch_name]) for each in wanted]
    for each, value in zip(wanted, values, strict=True):
        model._network.ops.load(value, each.array)
    model._network.reset_averages()


def _hint(wanted: set[str], given: Mapping[str, Any]) -> str:
    """Return a hint for messages if no name is known, as in another module, else ""."""
    return "" if wanted & set(given) else "; in_order=True takes arrays whatever they are called"


def _checked(source: str, wanted: Weight, name: str, value: Any) -> Array:
    """Return an array with the axes and type of the network's, or raise `CheckpointError`."""
    try:
        array = np.asarray(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{source}: {name} is no array of the host: {error}") from error
    shape = wanted.array.shape[::-1] if wanted.is_transposed else wanted.array.shape
    if array.dtype.kind != "f":
        raise CheckpointError(f"{source}: {name} must be of floats, not {array.dtype}")
    if array.shape != shape:
        message = f"{name} has the shape {array.shape}, and {wanted.name} takes {shape}"
        raise CheckpointError(f"{source}: {message}")
    with np.errstate(over="ignore"):  # what becomes infinite is refused below
        turned = array.T if wanted.is_transposed else array
        array = np.asarray(turned, wanted.array.dtype, order="C")
    if not np.isfinite(array).all():
        message = f"{name} has NaN or infinity in {array.dtype}"
        raise CheckpointError(f"{source}: {message}")
    if wanted.name.endswith(".variance") and (array < 0).any():
        raise CheckpointError(f"{source}: {name} has a variance below 0")
    return array


def save_safetensors(model: NeuralNetwork, path: str | PathLike[str]) -> None:
    """Write a file for PyTorch; `NeuralNetwork.save_safetensors` documents it."""
    write_whole(path, require_safetensors().save(state_dict(model), metadata={"format": "pt"}))


def load_safetensors(
    model: NeuralNetwork, path: str | PathLike[str], *, names: Mapping[str, str] | None = None
) -> None:
    """Load a file of PyTorch; `NeuralNetwork.load_safetensors` documents it.

    A file does not keep the order of its arrays, so that they are found by their names.
    """
    _, arrays = read_arrays(path)
    renamed: dict[str, Array] = {}
    for name, array in arrays.items():
        ours = _renamed(name, names or {})
        if ours in renamed:
            raise CheckpointError(f"{path}: two arrays are to be {ours}, one of them {name}")
        renamed[ours] = array
    load_arrays(model, str(path), renamed, False)


def _renamed(name: str, names: Mapping[str, str]) -> str:
    """Return a name with its longest beginning that `names` has replaced."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        if (ours := names.get(".".join(parts[:end]))) is not None:
            return ".".join([ours, *parts[end:]])
    return name
