"""Import of ONNX models as layers, as far as layers can express them.

The graph is followed for two sizes of batch, so that each of its values is known or has a shape.
Then it is read as a chain of nodes from its input to its output. Two branches that are added become
a `Residual`. A branch that is concatenated to its own input becomes a `Concat`, and so do several
in sequence, each of which has the previous result as input. Elementwise nodes that together compute
an activation of dnn, on a grid of numbers, are that activation; what nodes that move elements do is
judged by where elements come from. `onnx_nodes` has the layer of each other kind of node. A graph
with any other node becomes one layer, `OnnxGraph`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from dnn.backend import Array
from dnn.errors import CheckpointError, DnnError
from dnn.graph.node import Node, placeholder
from dnn.graph.operations.activations import ACTIVATIONS
from dnn.graph.plan import run_eagerly
from dnn.io.onnx_elementwise import ELEMENTWISE
from dnn.io.onnx_export import GATES
from dnn.io.onnx_file import OnnxFile, read_onnx
from dnn.io.onnx_layer import OnnxGraph
from dnn.io.onnx_nodes import READ, NotLayers, fully_connected, need
from dnn.io.onnx_trace import WRONG, Call, FixedBatch, Leaves, Trace, UnknownValue
from dnn.io.weights import load_arrays, weights_of
from dnn.layers import (
    GRU,
    LSTM,
    RNN,
    Activation,
    Concat,
    Flatten,
    GlobalAvgPool2D,
    Input,
    Layer,
    Reshape,
    Residual,
)
from dnn.layers.layer import build_all
from dnn.layers.nested import leaves_of

if TYPE_CHECKING:
    from dnn.model import NeuralNetwork

__all__ = ["ImportedLayers", "import_onnx"]

DEEPEST = 20
"""Deepest nesting of branches that is read; most networks have 1 or 2."""
MOST_NODES = 32
"""Most nodes that may be one activation together; `exact_gelu` takes 5."""
MOST_MOVED = 2**25
"""Most elements of a value whose places are followed through nodes that move them."""
GRID = np.linspace(-12.0, 12.0, 97, dtype=np.float32)
"""Numbers on which functions are compared."""

_MOVES = ("Flatten", "Gather", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")


def import_onnx(path: str | PathLike[str]) -> ImportedLayers:
    """Read an ONNX model as layers, or as one layer, if layers of dnn cannot express its graph.

    Errors are those of `NeuralNetwork.from_onnx`.
    """
    file = read_onnx(path)
    given = _only_input(file)
    first = _input_layer(file, given)
    try:
        return _Reader(file, given, first).read()
    except (DnnError, FixedBatch, NotLayers, UnknownValue, *WRONG):
        return ImportedLayers(file.path, [first, OnnxGraph(file)], {})


def _only_input(file: OnnxFile) -> Any:
    """Return the only input, or refuse a graph with several, or several outputs."""
    counts = len(file.inputs), len(file.graph.output)
    if counts != (1, 1):
        message = f"a network has one input and one output, and there are {counts[0]} and"
        raise CheckpointError(f"{file.path}: {message} {counts[1]}; dnn.OnnxModel runs it")
    return file.inputs[0]


def _input_layer(file: OnnxFile, given: Any) -> Input:
    tensor = given.type.tensor_type
    shape = [each.dim_value for each in tensor.shape.dim]
    if len(shape) < 2 or min(shape[1:]) < 1:
        message = f"the shape of its input {given.name!r} must be (batch, ...) in numbers"
        raise CheckpointError(f"{file.path}: {message}")
    kinds = file.onnx.TensorProto
    if tensor.elem_type in (kinds.INT64, kinds.INT32):
        return Input(*shape[1:], dtype=int)
    if tensor.elem_type not in (kinds.FLOAT, kinds.DOUBLE, kinds.FLOAT16):
        message = f"its input {given.name!r} must be of floats or integers"
        raise CheckpointError(f"{file.path}: {message}")
    return Input(*shape[1:])


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


class _Reader:
    """Reader of one graph, with the state of reading.

    Attributes
    ----------
    values : list of dict of str to Value
        All values of the graph, for each size of batch.
    arrays : dict of int to dict of str to array
        Values of the parameters of each layer, by its ``id``.
    """

    def __init__(self, file: OnnxFile, given: Any, first: Input) -> None:
        self.file, self.first, self.start = file, first, str(given.name)
        self.trace = Trace(file, Leaves())
        dtype = file.dtype(given.type.tensor_type.elem_type)
        stated = given.type.tensor_type.shape.dim[0].dim_value
        self.values: list[dict[str, Any]] = []
        for count in [stated] if stated else [2, 3]:
            self.trace.graph(file.graph, {given.name: placeholder((count, *first.shape), dtype)})
            self.values.append(self.trace.values)
        self.calls = {name: call for call in self.trace.calls for name in call.results if name}
        self.arrays: dict[int, dict[str, Array]] = {}
        self.same: dict[str, str] = {}  # values that are others
        self.before: dict[str, str] = {}  # the value from which one comes, or where branches part
        self.activations: dict[str, str] = {}
        self.sources: dict[str, list[str]] = {}
        self.together: dict[tuple[Any, ...], str] = {}
        self.done: set[str] = set()
        self.depth = 0

    def read(self) -> ImportedLayers:
        """Return the layers of the graph."""
        for call in dict.fromkeys(self.calls.values()):  # in topological order, as ONNX requires
            if any(isinstance(self.values[0].get(name), Node) for name in call.results):
                self.link(call)
        path = self.path_to(self.alias(self.file.graph.output[0].name))
        need(path[-1] == self.start)
        layers = [self.first, *self.layers(path[::-1])]
        self.check_sizes(layers)
        return ImportedLayers(self.file.path, layers, self.arrays)

    def check_sizes(self, layers: Sequence[Layer]) -> None:
        """Check that the file has all parameters of the layers, before any is allocated."""
        built = copy.deepcopy(list(layers))
        assert isinstance(built[0], Input)
        build_all(built, built[0].shape, np.dtype(np.float32))
        for layer, as_built in zip(leaves_of(layers), leaves_of(built), strict=True):
            wanted = sum(each.node.size for each in as_built.parameters)
            given = sum(array.size for array in self.arrays.get(id(layer), {}).values())
            need(wanted <= given)

    # -- values ------------------------------------------------------------------------------------

    def alias(self, name: str) -> str:
        while name in self.same:
            name = self.same[name]
        return name

    def known(self, name: str) -> Array | None:
        """Return a value that is known and the same for all sizes of batch."""
        first, *others = (values.get(name) if name else None for values in self.values)
        if not isinstance(first, np.ndarray):
            return None
        is_same = all(isinstance(x, np.ndarray) and np.array_equal(first, x) for x in others)
        return first if is_same else None

    def shapes(self, name: str) -> list[tuple[int, ...]]:
        return [tuple(values[name].shape) for values in self.values]

    def weight(self, call: Call, index: int, ndim: int) -> Array:
        """Return a known input of a node, of `ndim` axes."""
        array = self.known(call.names[index])
        if array is None or array.ndim != ndim or 0 in array.shape:
            raise NotLayers
        return array

    def bias(self, call: Call, index: int, ndim: int = 1) -> Array | None:
        """Return a known input of a node that may be left out."""
        return self.weight(call, index, ndim) if call.has(index) else None

    def computed(
        self, values: Mapping[str, Any], name: str, given: str, array: Array, *, by_element: bool
    ) -> Array | None:
        """Return a value as it is computed from an array in place of another value.

        None if it takes too many nodes. With `by_element` all known values are numbers.
        """
        order: dict[Call, None] = {}
        stack, x = [name], placeholder(array.shape, array.dtype)
        found: dict[str, Any] = {given: x}
        while stack:
            each = stack.pop()
            if each == given or each not in self.calls or isinstance(values[each], np.ndarray):
                if isinstance(known := values.get(each), np.ndarray):
                    found[each] = known.reshape(()) if by_element else known
                continue
            call = self.calls[each]
            order.pop(call, None)  # it comes before all that reads it
            order[call] = None
            if len(order) > MOST_NODES:
                return None
            stack += [x for x in call.names if x]
        for call in reversed(order):
            self.trace.follow(call.onnx_node, found)
        with np.errstate(all="ignore"):  # outside of where a function is defined
            (result,) = run_eagerly([found[name]], {x: array})
        return result

    # -- from the output back to the input ---------------------------------------------------------

    def link(self, call: Call) -> None:
        """Note the value from which a node's outputs come; of two branches, where they part."""
        out = call.results[0]
        names = [self.alias(name) for name in self.operands(call)]
        for name in names:
            if call.kind != "Dropout" and all(
                name in values and values[name] is values.get(out) for values in self.values
            ):
                self.same[out] = name
                return
        data = [name for name in names if name and self.known(name) is None]
        if source := self.activation_of(call, out):
            data = [source]
        if len(data) == 2 and call.kind in ("Add", "Concat"):
            first, second = self.path_to(data[0]), set(self.path_to(data[1]))
            data = [value for value in first if value in second][:1]
        if call.kind in GATES:  # other inputs are looked at when its layer is made
            data = names[:1]
        if len(data) != 1 or (data[0] != self.start and data[0] not in self.before):
            return  # no layers, if the output depends on it
        read = 2 if call.kind in GATES else 1  # recurrent: all states, and the last state
        self.before |= {name: data[0] for name in call.results[:read] if name}

    def operands(self, call: Call) -> list[str]:
        """Return a node's inputs; of a Concat of several values, all but the last may be one value.

        That is the output of an earlier node that has concatenated them, as in a DenseNet.
        """
        names = list(call.names)
        if call.kind != "Concat":
            return names
        axis = call.get("axis")
        self.together.setdefault((axis, *names), call.results[0])
        first = self.together.get((axis, *names[:-1]))
        return names if first is None or len(names) < 3 else [first, names[-1]]

    def path_to(self, value: str) -> list[str]:
        """Return a value followed by all from which it comes, up to the input if layers can."""
        path = [value]
        while path[-1] in self.before:
            path.append(self.before[path[-1]])
        return path

    def activation_of(self, call: Call, name: str) -> str:
        """Return the value of which a value is an activation, of the furthest; "" if it is none."""
        self.sources[name] = [name, *self.common_sources(call, name)][:MOST_NODES]
        if any(values[name].dtype.kind != "f" for values in self.values):
            return ""
        for source in self.sources[name][:0:-1]:
            try:
                found = self.computed(self.values[0], name, source, GRID, by_element=True)
            except (DnnError, FixedBatch, UnknownValue, ValueError):
                continue
            for function, expected in _on_grid().items():
                if found is not None and np.allclose(found, expected, rtol=3e-6, atol=3e-6):
                    self.activations[name] = function
                    return source
        return ""

    def common_sources(self, call: Call, name: str) -> list[str]:
        """Return the values of which a node's result is a function, element by element."""
        if call.kind not in ELEMENTWISE or len(call.results) != 1:
            return []
        common: list[str] | None = None
        for each in map(self.alias, call.names):
            value = self.known(each)
            if not each or (value is not None and value.size == 1):
                continue
            if value is not None or self.shapes(each) != self.shapes(name):
                return []
            own = self.sources.get(each, [each])
            common = own if common is None else [x for x in common if x in own]
        return common or []

    # -- and forward, layer by layer ---------------------------------------------------------------

    def layers(self, path: Sequence[str]) -> list[Layer]:
        """Return the layers that compute the last value of a path from its first."""
        found: list[Layer] = []
        source, at, i = path[0], path[0], 1  # what the last layer returns, and what is read of it
        while i < len(path):
            value, call = path[i], self.calls[path[i]]
            i += 1
            need(value not in self.done)  # else it goes into several branches
            self.done |= set(call.results)
            moves = call.kind in _MOVES and isinstance(call.inputs[0], Node)
            if not moves:
                self.settle(found, source, at, call.kind in GATES)
                source = value
            at = value
            if moves:
                continue
            operands = self.operands(call)
            if value in self.activations:
                found.append(Activation(self.activations[value]))
            elif call.kind in ("Add", "Concat") and len(operands) > 1:
                found.append(self.join(call, value, [self.alias(each) for each in operands]))
            elif call.kind == "MatMul":
                following = self.calls[path[i]] if i < len(path) else None
                bias = self.bias_of(following)
                layer, arrays = fully_connected(self.weight(call, 1, 2).T, bias)
                found.append(self.keep(layer, **arrays))
                if bias is not None:
                    source = at = path[i]
                    i += 1
            elif call.kind not in GATES:  # whose layer is made when it is known what is read of it
                need(call.kind in READ)
                layer, arrays = READ[call.kind](self, call)
                found.append(self.keep(layer, **arrays))
        self.settle(found, source, at, False)
        return found

    def settle(self, found: list[Layer], source: str, at: str, before_recurrent: bool) -> None:
        """Add the layers of what is read of the last layer's output, `source`, as a value `at`.

        Before a recurrent node the axis of time comes first.
        """
        cells = self.calls.get(source)
        if cells is not None and cells.kind not in GATES:
            cells = None
        is_mean = bool(found) and isinstance(found[-1], GlobalAvgPool2D)
        if source == at and not (cells or is_mean or before_recurrent):
            return
        fits = []
        for values in self.values:
            shape = values[source].shape
            need(math.prod(shape) <= MOST_MOVED)
            places = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
            read = self.computed(values, at, source, places, by_element=False)
            assert read is not None
            if before_recurrent:
                need(read.ndim == 3)
                read = read.transpose(1, 0, 2)
            have = {0: places.reshape(shape[:2]) if is_mean else places}
            if cells and source == cells.results[0]:
                length, directions, samples, _ = shape
                have = {1: places.transpose(2, 0, 1, 3).reshape(samples, length, -1)}
                if directions == 1 and cells.get("direction", "forward") == "forward":
                    have[0] = places[-1, 0]
            elif cells:
                have = {0: places.transpose(1, 0, 2).reshape(shape[1], -1)}
            fits.append(
                [
                    (read.shape[1:] != array.shape[1:], whole, read.shape[1:])
                    for whole, array in have.items()
                    if read.shape[:1] == array.shape[:1]
                    and np.array_equal(read.ravel(), array.ravel())
                ]
            )
        need(all(fits) and all(each == fits[0] for each in fits))
        is_reshaped, whole, sample = min(fits[0])
        if cells:
            found.append(self.recurrent(cells, bool(whole)))
        if is_reshaped:
            need(source != at)
            found.append(Flatten() if len(sample) == 1 else Reshape(*sample))

    def join(self, call: Call, value: str, data: Sequence[str]) -> Layer:
        """Return the `Residual` or `Concat` layer of a node that joins two branches."""
        need(len(data) == 2 and self.depth < DEEPEST)
        need(all(self.known(name) is None for name in data))
        start = self.before[value]
        branches = []
        self.depth += 1
        for name in data:
            path = self.path_to(name)
            branches.append(self.layers(path[: path.index(start) + 1][::-1]))
        self.depth -= 1
        if call.kind == "Concat":
            need(call.get("axis") == 1 and not branches[0] and bool(branches[1]))
            return Concat(branches[1])
        shortcut, layers = sorted(branches, key=len)
        return Residual(layers, shortcut or None)

    def bias_of(self, call: Call | None) -> Array | None:
        """Return the known value that a node adds to a product; None if it does something else."""
        if call is None or call.kind != "Add":
            return None
        for index, name in enumerate(call.names):
            if self.known(name) is not None:
                return self.weight(call, index, 1)
        return None

    def keep(self, layer: Layer, **arrays: Array | None) -> Layer:
        """Keep the values of a layer's parameters; return the layer."""
        self.arrays[id(layer)] = {name: x for name, x in arrays.items() if x is not None}
        return layer

    def recurrent(self, call: Call, whole: bool) -> Layer:
        """Return a recurrent layer; with `whole` it returns all states, else the last."""
        direction = call.get("direction", "forward")
        need(direction in ("forward", "bidirectional"))
        both = direction == "bidirectional"
        cell = _usual_cell(call, 1 + both)
        steps = call.shape()[0]
        for index, name in enumerate(call.names[4:], start=4):
            for values in self.values if name else ():  # from 0, of all steps, without peepholes
                known = values[name]
                need(isinstance(known, np.ndarray))
                need((known == steps).all() if index == 4 else not known.any())
        inputs, states, biases = (
            *(self.weight(call, 1, 3), self.weight(call, 2, 3)),
            self.bias(call, 3, 2),
        )
        order, units = np.argsort(GATES[call.kind]), states.shape[-1]
        need(call.get("hidden_size", units) == units)
        wide = len(order) * units
        need(inputs.shape[:2] == states.shape[:2] == (1 + both, wide))
        need(biases is None or biases.shape == (1 + both, 2 * wide))
        arrays = {}
        for i, end in enumerate(["_l0", "_l0_reverse"][: 1 + both]):
            of_end = {"weight_ih": inputs[i], "weight_hh": states[i]}
            if biases is not None:
                of_end |= {"bias_ih": biases[i, :wide], "bias_hh": biases[i, wide:]}
            for name, array in of_end.items():
                parts = array.reshape(len(order), units, -1)[order]
                arrays[name + end] = parts.reshape(array.shape)
        how: dict[str, Any] = {"bidirectional": both, "return_sequences": whole}
        how["bias"] = biases is not None
        if call.kind == "RNN":
            return self.keep(RNN(units, cell, **how), **arrays)
        return self.keep((LSTM if call.kind == "LSTM" else GRU)(units, **how), **arrays)


def _usual_cell(call: Call, directions: int) -> str:
    """Return the activation of a recurrent node whose cell layers have."""
    need(not call.get("layout", 0) and not call.get("input_forget", 0))
    need(call.kind != "GRU" or bool(call.get("linear_before_reset", 0)))
    need("clip" not in call.attributes)
    usual = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
    functions = call.get("activations", usual[call.kind] * directions)
    is_relu = call.kind == "RNN" and set(functions) == {"Relu"}
    need(functions == usual[call.kind] * directions or is_relu)
    return "relu" if is_relu else "tanh"


_EXPECTED: dict[str, Array] = {}


def _on_grid() -> dict[str, Array]:
    """Return the values on the grid of each activation of single elements."""
    if not _EXPECTED:
        x = placeholder(GRID.shape, GRID.dtype)
        names = [name for name in ACTIVATIONS if name != "softmax"]
        found = run_eagerly([ACTIVATIONS[name](x) for name in names], {x: GRID})
        _EXPECTED.update(zip(names, found, strict=True))
    return _EXPECTED
