"""Weights with names and axes of PyTorch, as a state dict or in a file.

A network corresponds to ``torch.nn.Sequential`` of the same layers without the `Input`::

    dnn                                             torch, within Sequential
    fully_connected_1.weight    (inputs, units)     0.weight                (units, inputs)
    batch_norm_1.scale, shift                       1.weight, 1.bias
    batch_norm_1.mean, variance                     1.running_mean, 1.running_var
    conv2d_1.weight                                 2.weight                as here
    lstm_1.weight_ih_l0                             3.weight_ih_l0          as here
    residual_1.conv2d_1.weight                      4.layers.0.weight
    residual_1.shortcut.conv2d_1.weight             4.shortcut.0.weight

or, by `dnn.io.torchvision_names`, to a network of torchvision.

No pickle is read, such as ``torch.save`` writes, since that would run code.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dnn.backend import Array
from dnn.errors import CheckpointError, ConfigurationError, unknown_name
from dnn.graph.node import Shape
from dnn.io.torchvision_names import TORCHVISION, Linear, names_of
from dnn.layers import BatchNorm, FullyConnected, Input, Layer, LayerNorm, LayerScale
from dnn.layers.nested import Nested
from dnn.parameters import matches
from dnn.training.checkpoint import read_arrays, require_safetensors, write_whole
from dnn.training.state import trained_arrays

if TYPE_CHECKING:
    from dnn.training.networks import Networks

__all__ = [
    "LoadedWeights",
    "load_arrays",
    "load_weights",
    "read_weights",
    "save_weights",
    "state_dict",
]

_OF_NORM = {"scale": "weight", "shift": "bias", "mean": "running_mean", "variance": "running_var"}
_TORCH: dict[type[Layer], dict[str, str]] = {
    BatchNorm: _OF_NORM,
    LayerNorm: _OF_NORM,
    LayerScale: {"factor": "layer_scale"},
}
_COUNTER = "num_batches_tracked"  # in PyTorch's batch norm, for cumulative averages
OWN: Final = "dnn"
"""Names and axes as in a checkpoint of dnn, without what they begin with."""
_WRAPPERS: Final = ("_orig_mod", "model", "module")
"""What `torch.compile`, Lightning and `DataParallel` put before the names of a network."""
_LISTED: Final = 12
"""How many rows of a kind a table of `LoadedWeights` has."""


@dataclass(frozen=True)
class Weight:
    """A parameter or running statistic: its names here and in a file, and the network's arrays.

    `of_prediction` differs from `array` where predictions use averages of the parameters.
    `shape` is that of the array in a file.
    """

    name: str
    torch_name: str
    array: Array
    of_prediction: Array
    is_transposed: bool
    layer: Layer
    shape: Shape


@dataclass
class LoadedWeights:
    """What has been loaded, and what does not fit: printed, a table.

    Attributes
    ----------
    fitted : list of (str, str)
        Names in the file and here of the arrays that were loaded.
    missing : list of (str, str)
        Names that the network has and the file has not: in the file, and here.
    unexpected : list of str
        Names in the file that the network has not.
    differing : list of (str, shape, str, shape)
        Arrays of another shape: name and shape in the file, and here.
    skipped : list of str
        Names here of the arrays that were to be left as they are.
    beginning : str
        What names in the file begin with and others do not, such as ``"module."``.
    """

    fitted: list[tuple[str, str]] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    differing: list[tuple[str, Shape, str, Shape]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    beginning: str = ""

    def __str__(self) -> str:
        wanted = len(self.fitted) + len(self.missing) + len(self.differing)
        begins = f', without "{self.beginning}" before their names' if self.beginning else ""
        lines = [f"{len(self.fitted)} of {wanted} arrays fit{begins}"]
        rows = {
            "missing": [(name, f"for {ours}") for name, ours in self.missing],
            "unexpected": [(name, "") for name in self.unexpected],
            "other shape": [
                (name, f"{there}, and {ours} takes {here}{_if_transposed(there, here)}")
                for name, there, ours, here in self.differing
            ],
            "left alone": [(name, "") for name in self.skipped],
        }
        shown = [(kind, *row) for kind, found in rows.items() for row in found[:_LISTED]]
        width = max((len(name) for _, name, _ in shown), default=0)
        for kind, found in rows.items():
            for name, text in found[:_LISTED]:
                lines.append(f"  {kind:<12}{name:<{width}}  {text}".rstrip())
            if len(found) > _LISTED:
                lines.append(f"  {kind:<12}and {len(found) - _LISTED} more")
        return "\n".join(lines)

    @property
    def count_of_problems(self) -> int:
        """How many arrays are missing, unexpected or of another shape."""
        return len(self.missing) + len(self.unexpected) + len(self.differing)


def _with_weights(layers: Sequence[Layer], prefix: str = "") -> Iterator[tuple[str, Layer]]:
    """Yield each layer that has weights, and its name within ``torch.nn.Sequential``."""
    for i, layer in enumerate(layers):
        if isinstance(layer, Nested):
            yield from _with_weights(layer.layers, f"{prefix}{i}.layers.")
            yield from _with_weights(layer.shortcut, f"{prefix}{i}.shortcut.")
        elif layer.parameters:
            yield f"{prefix}{i}", layer


def weights_of(model: Networks, naming: str | None = None) -> list[Weight]:
    """Return all parameters and running statistics, in the order in which PyTorch lists them.

    `naming` is a network of `TORCHVISION`, or `OWN`; the names of ``Sequential`` if left out.
    """
    network = model._network
    arrays, of_prediction = trained_arrays(network, model._update), network.prediction_arrays
    first, *layers = network.layers
    assert isinstance(first, Input)
    theirs = names_of(naming) if naming in TORCHVISION else iter(())
    found = []
    for path, layer in _with_weights(layers):
        module = next(theirs, path)
        names = next((_TORCH[kind] for kind in _TORCH if isinstance(layer, kind)), {})
        declared = [("parameter", each) for each in layer.parameters]
        if names:  # states of other layers, such as the rate of a dropout, are settings
            declared += [("state", each) for each in layer.states]
        for kind, each in declared:
            name = each.node.name
            own = name.rpartition(".")[2]
            array, predicts = arrays[f"{kind}/{name}"], of_prediction[name]
            turned = isinstance(layer, FullyConnected) and own == "weight" and naming != OWN
            shape = array.shape[len(network.leading) :]
            shape = shape[::-1] if turned else shape
            if isinstance(module, Linear) and own == "weight":
                shape = shape[:2]
            torch_name = name if naming == OWN else f"{module}.{names.get(own, own)}"
            found.append(Weight(name, torch_name, array, predicts, turned, layer, shape))
    return found


def _checked_naming(names: str) -> str:
    if names not in TORCHVISION:
        raise unknown_name("network of torchvision", names, TORCHVISION)
    return names


def _if_transposed(there: Shape, here: Shape) -> str:
    """Return a remark on a matrix whose axes are in the other order, as Keras and JAX have them."""
    is_turned = len(here) == 2 and there == here[::-1] != here
    return ": transposed, so load its transpose" if is_turned else ""


def _naming_of(
    model: Networks, given: Mapping[str, Any], names: str | None
) -> tuple[str | None, str]:
    """Return whose names arrays have, and what they begin with before: those that fit most.

    Others than those of `_WRAPPERS` have to be named.
    """
    beginnings = sorted({_of_wrappers(name) for name in given} | {""})
    best: tuple[str | None, str] = (names, "")
    most = 0
    for naming in (None, OWN, *TORCHVISION) if names is None else (_checked_naming(names),):
        named = {each.torch_name for each in weights_of(model, naming)}
        for beginning in beginnings:
            count = len(named.intersection(_without(beginning, given)))
            if count > most:
                best, most = (naming, beginning), count
        if most == len(named):
            break
    return best


def _of_wrappers(name: str) -> str:
    """Return the beginning of a name that modules around a network have put there."""
    parts = takewhile(lambda part: part in _WRAPPERS, name.split("."))
    return "".join(f"{part}." for part in parts)


def _without(beginning: str, given: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of arrays by their names without a beginning, of those that have it."""
    found = {name.removeprefix(beginning): name for name in given}
    return found if len(found) == len(given) else {name: name for name in given}


def state_dict(model: Networks, names: str | None = None) -> dict[str, Array]:
    """Return parameters and running statistics; `NeuralNetwork.state_dict` documents it."""
    found = {}
    for each in weights_of(model, None if names is None else _checked_naming(names)):
        array = model._network.ops.to_host(each.of_prediction)
        turned = array.T if each.is_transposed else array
        found[each.torch_name] = np.array(turned.reshape(each.shape), order="C")
    return found


def load_arrays(
    model: Networks,
    source: str,
    state: Mapping[str, Any],
    in_order: bool = False,
    *,
    names: str | None = None,
    strict: bool = True,
    skip: Sequence[str] = (),
    otherwise: str = "in_order=True takes arrays whatever they are called",
) -> LoadedWeights:
    """Load arrays with names and axes of PyTorch, as `NeuralNetwork.load_state_dict` does.

    `source` is for messages: a `CheckpointError` says which array is missing, left over, of another
    shape, of no floats, or has NaN or infinity, and what to do `otherwise` if no name is known.
    Averages of the parameters are set to the same values.
    """
    given = {name: value for name, value in state.items() if not name.endswith(_COUNTER)}
    naming, beginning = (None, "") if in_order else _naming_of(model, given, names)
    wanted = weights_of(model, naming)
    if in_order:
        if len(given) != len(wanted):
            message = f"{len(given)} arrays are there, and {len(wanted)} are wanted"
            raise CheckpointError(f"{source}: {message}")
        found = dict(zip((each.torch_name for each in wanted), given.items(), strict=True))
    else:
        found = {
            name: (theirs, given[theirs]) for name, theirs in _without(beginning, given).items()
        }
    result = LoadedWeights(beginning=beginning)
    left = _left_alone(wanted, skip)
    values, problems = [], []
    names_here = {each.torch_name for each in wanted}
    hint = "" if names_here & set(found) else f"; {otherwise}"
    for each in wanted:
        if each.name in left:
            result.skipped.append(each.name)
        elif each.torch_name not in found:
            result.missing.append((each.torch_name, each.name))
            if strict:
                problems.append(f"{each.torch_name} is missing, for {each.name}{hint}")
    result.unexpected += [theirs for name, (theirs, _) in found.items() if name not in names_here]
    if strict:
        problems += [f"{x} is there, and no layer here has it{hint}" for x in result.unexpected]
    for each in wanted:
        if each.name in left or each.torch_name not in found:
            continue
        name, value = found[each.torch_name]
        array = _on_host(source, name, value)
        if array.shape != each.shape:
            result.differing.append((name, array.shape, each.name, each.shape))
            message = f"{name} has the shape {array.shape}, and {each.name} takes {each.shape}"
            problems.append(message + _if_transposed(array.shape, each.shape))
        else:
            result.fitted.append((name, each.name))
            values.append((each, name, array))
    if problems:
        table = f"\n{result}" if result.count_of_problems > 1 else ""
        raise CheckpointError(f"{source}: {problems[0]}{table}")
    if wanted and not values:
        raise CheckpointError(f"{source}: no array there is one of this network{hint}\n{result}")
    lead = len(model._network.leading)  # K networks take the same
    checked = [
        (_checked(source, each, name, array, each.array.shape[lead:]), each.array)
        for each, name, array in values
    ]
    for value, place in checked:
        model._network.ops.load(value, place)
    model._network.reset_averages()
    return result


def _left_alone(wanted: Sequence[Weight], skip: Sequence[str]) -> set[str]:
    """Return the names of the arrays that patterns choose; an error if one chooses none."""
    found: set[str] = set()
    for pattern in skip:
        chosen = {
            each.name
            for each in wanted
            if matches(each.name, pattern) or matches(each.torch_name, pattern)
        }
        if not chosen:
            names = ", ".join(each.name for each in wanted[-4:])
            message = f"no array is called so (the last ones: {names})"
            raise ConfigurationError(f"skip: {pattern!r}: {message}")
        found |= chosen
    return found


def _on_host(source: str, name: str, value: Any) -> Array:
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":
        value = value.float()  # NumPy has no such type
    try:
        array = np.asarray(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{source}: {name} is no array of the host: {error}") from error
    if array.dtype.kind != "f":
        raise CheckpointError(f"{source}: {name} must be of floats, not {array.dtype}")
    return array


def _checked(source: str, wanted: Weight, name: str, given: Array, shape: Shape) -> Array:
    """Return an array with the axes and type of the network's, or raise `CheckpointError`."""
    with np.errstate(over="ignore"):  # what becomes infinite is refused below
        turned = given.T if wanted.is_transposed else given
        array = np.asarray(turned, wanted.array.dtype, order="C").reshape(shape)
    if not np.isfinite(array).all():
        message = f"{name} has NaN or infinity in {array.dtype}"
        raise CheckpointError(f"{source}: {message}")
    if wanted.name.endswith(".variance") and (array < 0).any():
        raise CheckpointError(f"{source}: {name} has a variance below 0")
    return array


def save_weights(model: Networks, path: str | PathLike[str], names: str | None = None) -> None:
    """Write a file for PyTorch; `NeuralNetwork.save_weights` documents it."""
    arrays = state_dict(model, names)
    if Path(path).suffix == ".npz":
        raw = io.BytesIO()
        np.savez(raw, **arrays)  # type: ignore[arg-type]
        write_whole(path, raw.getvalue())
        return
    write_whole(path, require_safetensors().save(arrays, metadata={"format": "pt"}))


def load_weights(
    model: Networks,
    path: str | PathLike[str],
    *,
    names: str | Mapping[str, str] | None = None,
    strict: bool = True,
    skip: Sequence[str] = (),
) -> LoadedWeights:
    """Load a file of PyTorch; `NeuralNetwork.load_weights` documents it.

    A file does not keep the order of its arrays, so that they are found by their names.
    """
    renamed: dict[str, Array] = {}
    for name, array in read_weights(path).items():
        ours = _renamed(name, {} if names is None or isinstance(names, str) else names)
        if ours in renamed:
            raise CheckpointError(f"{path}: two arrays are to be {ours}, one of them {name}")
        renamed[ours] = array
    naming = names if isinstance(names, str) else None
    how = 'names={"theirs": "ours"} renames what names begin with'
    return load_arrays(
        model, str(path), renamed, names=naming, strict=strict, skip=skip, otherwise=how
    )


def read_weights(path: str | PathLike[str]) -> dict[str, Array]:
    """Return the arrays of a file by name: safetensors, a checkpoint of dnn, or .npz.

    Parameters
    ----------
    path : path

    Returns
    -------
    dict of str to array
        Of a checkpoint those that its network predicts with.

    Raises
    ------
    CheckpointError
        If it cannot be read, or is something else; of a pickle the message says how to convert it.
    MissingDependencyError
        If safetensors is not installed.
    """
    file = Path(path)
    beginning = b""
    try:
        if file.is_file():
            with file.open("rb") as opened:
                beginning = opened.read(4)
            if beginning.startswith(b"PK"):
                return _arrays_of_zip(file)
    except (OSError, ValueError, zipfile.BadZipFile, KeyError, EOFError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if beginning.startswith(b"\x80"):
        raise _pickle(file)
    _, arrays = read_arrays(path)
    return _of_checkpoint(arrays)


def _arrays_of_zip(file: Path) -> dict[str, Array]:
    with zipfile.ZipFile(file) as archive:
        if any(name.endswith(".pkl") for name in archive.namelist()):
            raise _pickle(file)
    with np.load(file, allow_pickle=False) as opened:
        return {name: opened[name] for name in opened.files}


def _pickle(file: Path) -> CheckpointError:
    new = file.with_suffix(".safetensors").name
    script = (
        "import torch; from safetensors.torch import save_file; "
        f"s = torch.load('{file.name}', map_location='cpu', weights_only=True); "
        "s = s.get('state_dict', s); "
        f"save_file({{k: v.clone() for k, v in s.items()}}, '{new}')"
    )
    message = "a pickle, and no safetensors file: reading it would run code; convert it"
    return CheckpointError(f'{file}: {message}: python -c "{script}"')


def _of_checkpoint(arrays: dict[str, Array]) -> dict[str, Array]:
    """Return the weights among the arrays of a checkpoint of dnn; those of other files as given."""
    kept = {
        name.partition("/")[2]: array
        for name, array in arrays.items()
        if name.startswith("parameter/") or name.endswith((".mean", ".variance"))
    }
    if not any(name.startswith("parameter/") for name in arrays):
        return arrays
    if arrays.get("optimizer/averaging/steps_done"):  # before the first step averages are zeros
        average = "optimizer/average/"
        kept |= {x.removeprefix(average): y for x, y in arrays.items() if x.startswith(average)}
    return kept


def _renamed(name: str, names: Mapping[str, str]) -> str:
    """Return a name with its longest beginning that `names` has replaced."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        if (ours := names.get(".".join(parts[:end]))) is not None:
            return ".".join([ours, *parts[end:]])
    return name
