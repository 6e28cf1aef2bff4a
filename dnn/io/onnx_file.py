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
        made = onnx.load_model_from_string(file.read_bytes() if raw is None else raw)
        _check_names(made.graph)
        beside = _take_out(onnx, made)
        onnx.checker.check_model(made)
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
    made = _converted(path, onnx, made)
    if beside:
        _put_in(file, onnx, made, beside)
    return OnnxFile(str(path), made)


def _converted(path: str | PathLike[str], onnx: Any, made: Any) -> Any:
    """Return a model of older operators as one of newer ones."""
    version = min((each.version for each in made.opset_import if each.domain in DOMAINS), default=7)
    if version >= OLDEST_OPSET:
        return made
    try:
        converter = importlib.import_module("onnx.version_converter")
        return converter.convert_version(made, 13)
    except Exception as error:  # the library raises errors of its own
        message = f"operators of opset {version}, and onnx.version_converter fails: {error}"
        raise CheckpointError(f"{path}: {message}") from error


def _check_names(graph: Any) -> None:
    """Read all names of a graph: those that are no text are an error now, and not later."""
    for each in (*graph.input, *graph.output):
        _ = each.name, [length.dim_param for length in each.type.tensor_type.shape.dim]
    _ = [each.name for each in graph.initializer]
    for node in graph.node:
        _ = node.name, node.op_type, node.domain, list(node.input), list(node.output)
        for attribute in node.attribute:
            _ = attribute.name
            for inner in (attribute.g, *attribute.graphs):
                _check_names(inner)


def _tensors(onnx: Any, graph: Any) -> Iterator[Any]:
    """Yield all tensors of a graph and of the graphs in it."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("g"):
                yield from _tensors(onnx, attribute.g)
            for each in attribute.graphs:
                yield from _tensors(onnx, each)


def _take_out(onnx: Any, made: Any) -> dict[int, tuple[list[int], dict[str, str]]]:
    """Make tensors of other files empty, and return shape and place of each by its number.

    The checker would look for these files in the working directory.
    """
    beside = {}
    for number, tensor in enumerate(_tensors(onnx, made.graph)):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            place = {each.key: each.value for each in tensor.external_data}
            beside[number] = list(tensor.dims), place
            tensor.ClearField("external_data")
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.dims[:] = [0]
            tensor.raw_data = b""
    return beside


def _put_in(
    file: Path, onnx: Any, made: Any, beside: Mapping[int, tuple[list[int], dict[str, str]]]
) -> None:
    """Read the tensors of other files."""
    for number, tensor in enumerate(_tensors(onnx, made.graph)):
        if number in beside:
            dims, place = beside[number]
            tensor.raw_data = _bytes_beside(file, tensor.name, place)
            tensor.dims[:] = dims


def _bytes_beside(file: Path, name: str, place: Mapping[str, str]) -> bytes:
    """Return the bytes of a tensor that lies in another file of the same folder."""
    location = place.get("location", "")
    folder = file.resolve().parent
    there = (folder / location).resolve()
    if not location or Path(location).is_absolute() or not there.is_relative_to(folder):
        message = f"its tensor {name!r} lies in {location!r}, outside of the folder of the model"
        raise CheckpointError(f"{file}: {message}: it is not read")
    try:
        offset, length = int(place.get("offset", "0")), int(place.get("length", "-1"))
        size = there.stat().st_size
        if offset < 0 or not 0 <= (length if "length" in place else 0) <= size - offset:
            raise ValueError(f"{length} bytes from {offset} on, and there are {size}")
        with there.open("rb") as stream:
            stream.seek(offset)
            return stream.read(length)
    except (OSError, ValueError) as error:
        message = f"its tensor {name!r} in {location!r} cannot be read: {error}"
        raise CheckpointError(f"{file}: {message}") from error
