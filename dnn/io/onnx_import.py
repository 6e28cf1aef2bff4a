"""Import of ONNX models as layers, as far as layers can express them.

The graph, in the simple forms of `onnx_simplify`, is read as a chain of nodes from its input to its
output. Two branches that are added become a `Residual`. A branch that is concatenated to its own
input becomes a `Concat`, and so do several in sequence, each of which has the previous result as
input. `onnx_nodes` has the layer of each kind of node. A graph with any other node becomes one
layer, `OnnxGraph`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from dnn.backend import Array
from dnn.errors import CheckpointError, DnnError
from dnn.io.onnx_export import GATES
from dnn.io.onnx_file import OnnxFile, read_onnx
from dnn.io.onnx_layer import OnnxGraph
from dnn.io.onnx_nodes import NodeReader, NotLayers, need
from dnn.io.onnx_simplify import simplified
from dnn.io.onnx_trace import WRONG, FixedBatch, UnknownValue
from dnn.io.weights import load_arrays, weights_of
from dnn.layers import Concat, Input, Layer, Residual
from dnn.layers.layer import build_all
from dnn.layers.nested import leaves_of

if TYPE_CHECKING:
    from dnn.model import NeuralNetwork

__all__ = ["ImportedLayers", "import_onnx"]

DEEPEST = 20
"""Deepest nesting of branches that is read; most networks have 1 or 2."""


def import_onnx(path: str | PathLike[str]) -> ImportedLayers:
    """Read an ONNX model as layers, or as one layer, if layers of dnn cannot express its graph.

    Errors are those of `NeuralNetwork.from_onnx`.
    """
    file = read_onnx(path)
    reader = _Reader(file)
    given = reader.only_input()
    first = reader.input(given)
    try:
        return reader.read(given, first)
    except (DnnError, FixedBatch, NotLayers, UnknownValue, *WRONG):
        return ImportedLayers(file.path, [first, OnnxGraph(file)], {})


class ImportedLayers:
    """Layers of an ONNX model, with the values of their parameters.

    Attributes
    ----------
    layers : list of Layer
        The first is an `Input`. They are not part of a network yet.
    """

    def __init__(self, path: str, layers: list[Layer], arrays: dict[int, dict[str, Array]]) -> None:
        self.path = path
        self.layers = layers
        self._arrays = arrays

    def load_into(self, model: NeuralNetwork) -> None:
        """Write the parameters into a network of `layers`, or raise `CheckpointError`."""
        state = {}
        for weight in weights_of(model):
            own = weight.torch_name.rpartition(".")[2]
            if not isinstance(weight.layer, OnnxGraph):  # which begins with its values
                state[weight.torch_name] = self._arrays[id(weight.layer)][own]
        if self._arrays:
            load_arrays(model, self.path, state, False)


class _Reader(NodeReader):
    """Reader of one graph, with the state of reading."""

    def __init__(self, file: OnnxFile) -> None:
        super().__init__(file.onnx, file.path)
        self.file = file
        self.depth = 0
        self.done: set[str] = set()
        self.together: dict[tuple[Any, ...], str] = {}
        self.before: dict[str, str] = {}

    def only_input(self) -> Any:
        """Return the only input, or refuse a graph with several, or several outputs."""
        graph, inputs = self.file.graph, self.file.inputs
        if len(inputs) != 1 or len(graph.output) != 1:
            counts = f"{len(inputs)} and {len(graph.output)}"
            message = f"a network has one input and one output, and there are {counts}"
            raise CheckpointError(f"{self.path}: {message}; dnn.OnnxModel runs it")
        return inputs[0]

    def read(self, given: Any, first: Input) -> ImportedLayers:
        """Return the layers of the graph."""
        graph, self.constants = simplified(self.file, given, first.shape, self.batch)
        self.graph = graph
        self.producer = {name: node for node in graph.node for name in node.output if name}
        for node in self.graph.node:  # in topological order, as ONNX requires
            self.link(node, given.name)
        path = self.path_to(self.graph.output[0].name)
        need(path[-1] == given.name)
        layers = [first, *self.layers(path[::-1])]
        self.check_sizes(layers)
        return ImportedLayers(self.path, layers, self.arrays)

    def check_sizes(self, layers: Sequence[Layer]) -> None:
        """Check that the file has all parameters of the layers, before any is allocated."""
        built = copy.deepcopy(list(layers))
        assert isinstance(built[0], Input)
        build_all(built, built[0].shape, np.dtype(np.float32))
        for layer, as_built in zip(leaves_of(layers), leaves_of(built), strict=True):
            wanted = sum(each.node.size for each in as_built.parameters)
            given = sum(array.size for array in self.arrays.get(id(layer), {}).values())
            need(wanted <= given)

    def input(self, given: Any) -> Input:
        kinds = self.onnx.TensorProto
        tensor = given.type.tensor_type
        shape = [each.dim_value for each in tensor.shape.dim]
        self.batch = next(iter(shape), 0)  # 0 where it may be any
        if len(shape) < 2 or min(shape[1:]) < 1:
            message = f"the shape of its input {given.name!r} must be (batch, ...) in numbers"
            raise CheckpointError(f"{self.path}: {message}")
        if tensor.elem_type in (kinds.INT64, kinds.INT32):
            return Input(*shape[1:], dtype=int)
        if tensor.elem_type not in (kinds.FLOAT, kinds.DOUBLE, kinds.FLOAT16):
            message = f"its input {given.name!r} must be of floats or integers"
            raise CheckpointError(f"{self.path}: {message}")
        return Input(*shape[1:])

    # -- from the output back to the input -------------------------------------------------------

    def link(self, node: Any, start: str) -> None:
        """Note the value from which a node's outputs come; of two branches, where they part."""
        data = [name for name in self.operands(node) if name and name not in self.constants]
        if len(data) == 2 and node.op_type in ("Add", "Concat"):
            first, second = self.path_to(data[0]), set(self.path_to(data[1]))
            data = [value for value in first if value in second][:1]
        if len(data) != 1 or (data[0] != start and data[0] not in self.before):
            return  # no layers, if the output depends on it
        read = 2 if node.op_type in GATES else 1  # recurrent: all states, and the last state
        self.before |= {name: data[0] for name in node.output[:read] if name}

    def operands(self, node: Any) -> list[str]:
        """Return a node's inputs; of a Concat of several values, all but the last may be one value.

        That is the output of an earlier node that has concatenated them, as in a DenseNet.
        """
        names = list(node.input)
        if node.op_type != "Concat":
            return names
        axis = self.attributes(node).get("axis")
        self.together.setdefault((axis, *names), node.output[0])
        first = self.together.get((axis, *names[:-1]))
        return names if first is None or len(names) < 3 else [first, names[-1]]

    def path_to(self, value: str) -> list[str]:
        """Return a value followed by all values from which it comes, up to the input."""
        path = [value]
        while path[-1] in self.before:
            path.append(self.before[path[-1]])
        need(path[-1] not in self.producer)
        return path

    # -- and forward, layer by layer ---------------------------------------------------------------

    def layers(self, path: Sequence[str]) -> list[Layer]:
        """Return the layers that compute successive values of a path, each from the one before."""
        found: list[Layer] = []
        time_first = False
        i = 1
        while i < len(path):
            value, node = path[i], self.producer[path[i]]
            following = [self.producer[each] for each in path[i + 1 : i + 3]]
            i += 1
            kind = node.op_type
            if kind == "Transpose" and self.attributes(node).get("perm") == [1, 0, 2]:
                time_first = not time_first
                continue
            need(value not in self.done)  # else it goes into several branches
            self.done |= set(node.output)
            if kind in GATES:
                need(time_first)
                whole = value == node.output[0]
                found.append(self.recurrent(node, whole))
                i += self.joined_directions(node, whole, following)
                time_first = whole
                continue
            need(not time_first)
            if kind == "MatMul":
                bias = self.bias_after(following)
                found.append(self.matmul(node, bias))
                i += bias is not None
                continue
            operands = self.operands(node)
            if kind in ("Add", "Concat") and len(operands) > 1:
                found.append(self.join(node, value, operands))
            else:
                found += self.layers_of(node, found)
            if self.keeps_axes(node):  # which layers drop
                need(bool(following) and following[0].op_type in ("Flatten", "Reshape", "Squeeze"))
        need(not time_first)
        return found

    def join(self, node: Any, value: str, data: Sequence[str]) -> Layer:
        """Return the `Residual` or `Concat` layer of a node that joins two branches."""
        need(len(data) == 2 and not self.constants.keys() & set(data) and self.depth < DEEPEST)
        start = self.before[value]
        branches = []
        self.depth += 1
        for name in data:
            path = self.path_to(name)
            branches.append(self.layers(path[: path.index(start) + 1][::-1]))
        self.depth -= 1
        if node.op_type == "Concat":
            need(self.attributes(node).get("axis") == 1 and not branches[0] and bool(branches[1]))
            return Concat(branches[1])
        shortcut, layers = sorted(branches, key=len)
        return Residual(layers, shortcut or None)
