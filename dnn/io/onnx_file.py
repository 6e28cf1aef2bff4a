"""Files of ONNX models: read, checked, and with the tensors that lie beside them.

Nothing in a file is executed. Tensors are read from the file itself and from files in its folder.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from dnn.backend import Array
from dnn.errors import CheckpointError
from dnn.io.onnx_export import require_onnx

__all__ = ["DOMAINS", "OnnxFile", "node_name", "read_onnx"]

LARGEST_BYTES = 2**31
"""Size at which a file is refused: the format allows less than 2 GiB."""
MOST_NODES = 10_000
"""Most nodes of a model that is read; ResNet-152 has some 500."""
OLDEST_OPSET = 7  # since then operators broadcast as NumPy does

DOMAINS = ("", "ai.onnx")  # two names of ONNX's own operators


class OnnxFile:
    """An ONNX model in memory.

    Attributes
    ----------
    path : str
    graph : GraphProto
        The main graph.
    opsets : dict of str to int
        The version of the operators of each domain.
    """

    def __init__(self, path: str, made: Any) -> None:
        self.path = path
        self.made = made
        self.graph = made.graph
        self.opsets = {each.domain: each.version for each in made.opset_import}
        self._arrays: dict[int, tuple[Any, Mapping[str, Array]]] = {}
        self._values: dict[int, tuple[Any, Array]] = {}

    def __deepcopy__(self, memo: object) -> OnnxFile:
        return self  # nothing changes it

    def __reduce__(self) -> tuple[Any, ...]:
        return OnnxFile, (self.path, self.made)

    @cached_property
    def onnx(self) -> Any:
        """The module `onnx`."""
        return require_onnx()

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return next((self.opsets[each] for each in DOMAINS if each in self.opsets), 1)

    @property
    def inputs(self) -> list[Any]:
        """The inputs of the main graph that are no tensors of the file, each a ValueInfoProto."""
        known = self.arrays(self.graph)
        return [each for each in self.graph.input if each.name not in known]

    def dtype(self, elements: int) -> np.dtype[Any]:
        """Return the type of elements that ONNX has a number for."""
        found: np.dtype[Any] = self.onnx.helper.tensor_dtype_to_np_dtype(elements)
        return found

    def refuse(self, node: Any, message: str) -> NoReturn:
        """Raise `CheckpointError`, with operator and name of a node."""
        raise CheckpointError(f"{self.path}: {node_name(node)}: {message}")

    def arrays(self, graph: Any) -> Mapping[str, Array]:
        """Return the tensors that a graph brings, by name; each call returns the same arrays."""
        if id(graph) not in self._arrays:
            if graph.sparse_initializer:
                raise CheckpointError(f"{self.path}: sparse tensors are not read")
            found = {each.name: self._array(each) for each in graph.initializer}
            self._arrays[id(graph)] = graph, found  # the graph is kept, or its id would be reused
        return self._arrays[id(graph)][1]

    def value(self, tensor: Any) -> Array:
        """Return the value of a tensor among the attributes of a node, always the same array."""
        if id(tensor) not in self._values:
            self._values[id(tensor)] = tensor, self._array(tensor)
        return self._values[id(tensor)][1]

    def _array(self, tensor: Any) -> Array:
        try:
            array: Array = self.onnx.numpy_helper.to_array(tensor)
        except Exception as error:  # the library may raise anything for a damaged tensor
            message = f"its tensor {tensor.name!r} cannot be read: {error}"
            raise CheckpointError(f"{self.path}: {message}") from error
        array.flags.writeable = False
        return array


def node_name(node: Any) -> str:
    """Return name and operator of a node for a message; the name of its output if it has none."""
    kind = node.op_type if node.domain in DOMAINS else f"{node.domain}.{node.op_type}"
    return f"node {node.name or next(iter(node.output), '')!r} ({kind})"


def read_onnx(path: str | PathLike[str], raw: bytes | None = None) -> OnnxFile:
    """Read an ONNX model, with tensors that lie in other files of the folder of its file.

    `raw` are its bytes, where they are part of another file.

    A `CheckpointError` if a file cannot be read or is no valid model, or a tensor lies outside of
    its folder; a `MissingDependencyError` if onnx is not installed.
    """
    onnx = require_onnx()
    file = Path(path)
    try:
        if file.stat().st_size >= LARGEST_BYTES and raw is None:
            raise CheckpointError(f"{path}: larger than the 2 GiB that the format allows")
        raw = file.read_bytes() if raw is None else raw
        if raw.startswith((b"PK", b"\x80")):
            message = "no ONNX model, but one that PyTorch or Python wrote"
            raise CheckpointError(f"{path}: {message}: torch.onnx.export writes an ONNX model")
        made = onnx.load_model_from_string(raw)
        beside = 0
        for graph in _graphs(made.graph):
            _check_names(graph)
            for tensor in _tensors(graph):
                if tensor.data_location == onnx.TensorProto.EXTERNAL:
                    beside += _checked_size(file, tensor)
        if beside:
            helper = importlib.import_module("onnx.external_data_helper")
            helper.load_external_data_for_model(made, str(file.resolve().parent))
        _check(onnx, file, made, len(raw) + beside)
        if made.functions:
            made = importlib.import_module("onnx.inliner").inline_local_functions(made)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    except Exception as error:  # protobuf and onnx raise exceptions of their own
        raise CheckpointError(f"{path}: no valid ONNX model: {error}") from error
    if len(made.graph.node) > MOST_NODES:
        message = f"{len(made.graph.node)} nodes, and no more than {MOST_NODES} are read"
        raise CheckpointError(f"{path}: {message}")
    return OnnxFile(str(path), _converted(path, onnx, made))


def _check(onnx: Any, file: Path, made: Any, size_bytes: int) -> None:
    """Check a model by onnx, which wants a shape for each input and output, unlike the format."""
    if size_bytes >= LARGEST_BYTES:
        onnx.checker.check_model(str(file))  # in memory it may not be so large
        return
    types = [each.type.tensor_type for each in (*made.graph.input, *made.graph.output)]
    without = [each for each in types if each.elem_type and not each.HasField("shape")]
    for each in without:
        each.shape.SetInParent()
    onnx.checker.check_model(made)
    for each in without:
        each.ClearField("shape")


def _converted(path: str | PathLike[str], onnx: Any, made: Any) -> Any:
    """Return a model of older operators as one of newer ones."""
    version = min((each.version for each in made.opset_import if each.domain in DOMAINS), default=7)
    newest = onnx.defs.onnx_opset_version()
    if version > newest:
        message = f"operators of opset {version}, and onnx {onnx.__version__} knows {newest}"
        raise CheckpointError(f"{path}: {message} at most: a newer onnx may read it")
    if version >= OLDEST_OPSET:
        return made
    try:
        converter = importlib.import_module("onnx.version_converter")
        return converter.convert_version(made, 13)
    except Exception as error:  # the library raises errors of its own
        message = f"operators of opset {version}, and onnx.version_converter fails: {error}"
        raise CheckpointError(f"{path}: {message}") from error


def _graphs(graph: Any) -> Iterator[Any]:
    """Yield a graph and all graphs in its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _graphs(inner)


def _check_names(graph: Any) -> None:
    """Read all names of a graph: those that are no text are an error now, and not later."""
    for each in (*graph.input, *graph.output):
        _ = each.name, [length.dim_param for length in each.type.tensor_type.shape.dim]
    _ = [each.name for each in graph.initializer]
    for node in graph.node:
        _ = node.name, node.op_type, node.domain, list(node.input), list(node.output)
        _ = [attribute.name for attribute in node.attribute]


def _tensors(graph: Any) -> Iterator[Any]:
    """Yield all tensors of a graph."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from attribute.tensors
            if attribute.HasField("t"):
                yield attribute.t


def _checked_size(file: Path, tensor: Any) -> int:
    """Return the bytes of a tensor that lies whole in another file of the model's folder."""
    place = {each.key: each.value for each in tensor.external_data}
    location, folder = place.get("location", ""), file.resolve().parent
    there = (folder / location).resolve()
    if not location or Path(location).is_absolute() or not there.is_relative_to(folder):
        message = f"its tensor {tensor.name!r} lies in {location!r}, outside of the folder of the"
        raise CheckpointError(f"{file}: {message} model: it is not read")
    try:
        size = there.stat().st_size
        offset = int(place.get("offset", "0"))
        length = int(place.get("length", str(max(0, size - offset))))
        if offset < 0 or not 0 <= length <= size - offset:
            raise ValueError(f"{length} bytes from {offset} on, and there are {size}")
        return length
    except (OSError, ValueError) as error:
        message = f"its tensor {tensor.name!r} in {location!r} cannot be read: {error}"
        raise CheckpointError(f"{file}: {message}") from error
