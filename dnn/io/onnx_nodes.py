"""Translation of single nodes of an ONNX graph into layers with their parameters.

The method ``read_NAME`` translates a node of the operator NAME, or raises `NotLayers`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.backend import Array
from dnn.io.onnx_export import GATES
from dnn.io.onnx_simplify import ACTIVATION
from dnn.layers import (
    GRU,
    LSTM,
    RNN,
    Activation,
    AvgPool2D,
    BatchNorm,
    Conv1D,
    Conv2D,
    Dropout,
    Embedding,
    Flatten,
    FullyConnected,
    GlobalAvgPool2D,
    Layer,
    LayerNorm,
    MaxPool2D,
    Reshape,
    Upsample2D,
)

__all__ = ["NodeReader", "NotLayers", "need"]


class NotLayers(Exception):
    """Layers cannot express a graph."""


def need(is_so: bool) -> None:
    """Raise `NotLayers` unless a node is as layers compute it."""
    if not is_so:
        raise NotLayers


class NodeReader:
    """Base of the reader of ONNX graphs: translates one node into its layer.

    Attributes
    ----------
    constants : dict of str to array
        The graph's values that do not depend on its input.
    arrays : dict of int to dict of str to array
        Values of the parameters of each layer, by its ``id``.
    batch : int
        Number of samples in a batch that the graph states, 0 for any number.
    """

    batch: int

    def __init__(self, onnx: Any, path: str) -> None:
        self.onnx = onnx
        self.path = path
        self.constants: dict[str, Array] = {}
        self.arrays: dict[int, dict[str, Array]] = {}

    def attributes(self, node: Any) -> dict[str, Any]:
        """Return a node's attributes by name, with bytes decoded to str."""
        found = {}
        for each in node.attribute:
            value = self.onnx.helper.get_attribute_value(each)
            found[each.name] = value.decode(errors="replace") if isinstance(value, bytes) else value
        return found

    def tensor(self, node: Any, index: int) -> Array | None:
        """Return a constant input of a node; None if the node lacks this input."""
        name = node.input[index] if index < len(node.input) else ""
        need(not name or name in self.constants)
        return self.constants[name] if name else None

    def weight(self, node: Any, index: int, ndim: int) -> Array:
        """Return a constant input of a node, of `ndim` axes."""
        array = self.tensor(node, index)
        if array is None or array.ndim != ndim or 0 in array.shape:
            raise NotLayers
        return array

    def integers(self, node: Any, index: int, name: str) -> list[int] | None:
        """Return integers that are an attribute in older opsets and an input in newer ones."""
        if name in (attributes := self.attributes(node)):
            return [int(n) for n in attributes[name]]
        array = self.tensor(node, index)
        return None if array is None else [int(n) for n in array.ravel()]

    def keep(self, layer: Layer, **arrays: Array | None) -> Layer:
        """Keep the values of a layer's parameters; return the layer."""
        self.arrays[id(layer)] = {name: x for name, x in arrays.items() if x is not None}
        return layer

    def check(self, node: Any, **wanted: Any) -> None:
        """Raise `NotLayers` if an attribute has another value than `wanted`."""
        attributes = self.attributes(node)
        for name, value in wanted.items():
            given = attributes.get(name, value)
            is_near = isinstance(value, float) and math.isclose(given, value, rel_tol=1e-6)
            need(given == value or is_near)

    def layers_of(self, node: Any, found: Sequence[Layer]) -> list[Layer]:
        """Return the layers of a single node, which follow the layers already found."""
        kind = node.op_type
        if kind == ACTIVATION:
            return [Activation(self.attributes(node)["function"])]
        if kind == "Reshape":
            self.check(node, allowzero=0)
            first, *lengths = self.integers(node, 1, "shape") or [1]
            if lengths and first in (0, -1, self.batch) and min(lengths) > 0:
                return [Reshape(*lengths)]
        if kind in ("Identity", "Concat"):  # a Concat of one value
            return []
        if kind in ("Flatten", "Reshape", "Squeeze"):
            self.check_flattens(node)
            is_flat = bool(found) and isinstance(found[-1], GlobalAvgPool2D)
            return [] if is_flat else [Flatten()]
        read = getattr(self, f"read_{kind}", None)
        if read is None:
            raise NotLayers
        return [read(node)]

    # -- methods for single kinds of nodes ---------------------------------------------------------

    def read_Softmax(self, node: Any) -> Layer:
        """Return a softmax over the last axis."""
        self.check(node, axis=-1)
        return Activation("softmax")

    def check_flattens(self, node: Any) -> None:
        """Raise `NotLayers` unless a node flattens each sample to a vector."""
        if node.op_type == "Flatten":
            self.check(node, axis=1)
        elif node.op_type == "Squeeze":
            need(self.integers(node, 1, "axes") == [2, 3])
        else:
            need(self.integers(node, 1, "shape") in ([0, -1], [self.batch, -1]))

    def read_Gemm(self, node: Any) -> Layer:
        """Return a fully connected layer; its weight may be transposed."""
        self.check(node, alpha=1.0, beta=1.0, transA=0)
        weight = self.weight(node, 1, 2)
        weight = weight if self.attributes(node).get("transB", 0) else weight.T
        return self.fully_connected(node, weight, self.tensor(node, 2))

    def matmul(self, node: Any, bias: Array | None) -> Layer:
        """Return a fully connected layer of a product, with the bias that the next node adds."""
        need(node.input[0] not in self.constants)
        return self.fully_connected(node, self.weight(node, 1, 2).T, bias)

    def fully_connected(self, node: Any, weight: Array, bias: Array | None) -> Layer:
        """Return a layer with a weight of shape (units, inputs)."""
        units = len(weight)
        if bias is not None:
            need(bias.size == units == bias.shape[-1])
            bias = bias.reshape(units)
        layer = FullyConnected(units, bias=bias is not None, initializer="zeros")
        return self.keep(layer, weight=weight, bias=bias)

    def bias_after(self, following: Sequence[Any]) -> Array | None:
        """Return the constant that the node after a product adds to it, None if it adds none."""
        if not following or following[0].op_type != "Add":
            return None
        for index, name in enumerate(following[0].input):
            if name in self.constants:
                return self.weight(following[0], index, 1)
        return None

    def windows(self, node: Any) -> dict[str, Any]:
        """Return stride and padding of a convolution or pooling, as arguments of its layer."""
        attributes = self.attributes(node)
        self.check(node, auto_pad="NOTSET", ceil_mode=0, storage_order=0)
        pads = attributes.get("pads", [0, 0, 0, 0])
        top, left, bottom, right = pads
        padding = ((top, bottom), (left, right))
        return {"stride": tuple(attributes.get("strides", [1, 1])), "padding": padding}

    def read_Conv(self, node: Any) -> Layer:
        """Return a convolution of images or of signals."""
        attributes = self.attributes(node)
        weight, bias = self.tensor(node, 1), self.tensor(node, 2)
        if weight is not None and weight.ndim == 3:
            return self.conv1d(node, weight, bias)
        weight = self.weight(node, 1, 4)
        filters, _, rows, columns = weight.shape
        self.check(node, kernel_shape=[rows, columns])
        layer = Conv2D(
            filters,
            (rows, columns),
            dilation=tuple(attributes.get("dilations", [1, 1])),
            groups=attributes.get("group", 1),
            bias=bias is not None,
            initializer="zeros",
            **self.windows(node),
        )
        return self.keep(layer, weight=weight, bias=bias)

    def conv1d(self, node: Any, weight: Array, bias: Array | None) -> Layer:
        """Return a convolution of signals, with a weight of three axes."""
        attributes = self.attributes(node)
        self.check(node, auto_pad="NOTSET", kernel_shape=[weight.shape[2]])
        layer = Conv1D(
            weight.shape[0],
            weight.shape[2],
            stride=attributes.get("strides", [1])[0],
            dilation=attributes.get("dilations", [1])[0],
            padding=tuple(attributes.get("pads", [0, 0])),
            groups=attributes.get("group", 1),
            bias=bias is not None,
            initializer="zeros",
        )
        return self.keep(layer, weight=weight, bias=bias)

    def read_MaxPool(self, node: Any) -> Layer:
        """Return a maximum pooling without dilation."""
        return MaxPool2D(self.pooled(node), **self.windows(node))

    def read_AveragePool(self, node: Any) -> Layer:
        """Return an average pooling without dilation."""
        counts = bool(self.attributes(node).get("count_include_pad", 0))
        return AvgPool2D(self.pooled(node), counts_padding=counts, **self.windows(node))

    def pooled(self, node: Any) -> tuple[int, int]:
        """Return rows and columns of the windows of a pooling."""
        self.check(node, dilations=[1, 1])
        rows, columns = self.attributes(node)["kernel_shape"]
        return rows, columns

    def read_GlobalAveragePool(self, node: Any) -> Layer:
        """Return the global average pooling."""
        return GlobalAvgPool2D()

    def read_ReduceMean(self, node: Any) -> Layer:
        """Return the global average pooling, if the mean is over rows and columns."""
        need(self.integers(node, 1, "axes") in ([2, 3], [-2, -1], [-1, -2]))
        return GlobalAvgPool2D()

    def keeps_axes(self, node: Any) -> bool:
        """Whether a node keeps rows and columns of an image as axes of length 1."""
        kind = node.op_type
        keeps = kind == "ReduceMean" and self.attributes(node).get("keepdims", 1)
        return bool(kind == "GlobalAveragePool" or keeps)

    def read_Resize(self, node: Any) -> Layer:
        """Return an upsampling that repeats rows and columns."""
        self.check(node, mode="nearest", antialias=0, axes=[0, 1, 2, 3])
        attributes = self.attributes(node)
        how = attributes.get("coordinate_transformation_mode"), attributes.get("nearest_mode")
        scales = self.weight(node, 2, 1)
        rows, columns = (int(scale) for scale in scales[2:])
        need(how == ("asymmetric", "floor") and scales.tolist() == [1, 1, rows, columns])
        return Upsample2D((rows, columns))

    def read_BatchNormalization(self, node: Any) -> Layer:
        """Return a batch norm with its running statistics."""
        self.check(node, training_mode=0)
        need(len(node.output) == 1)  # more are those of a training
        attributes = self.attributes(node)
        momentum, epsilon = attributes.get("momentum", 0.9), attributes.get("epsilon", 1e-5)
        names = ("weight", "bias", "running_mean", "running_var")
        arrays = {name: self.weight(node, 1 + i, 1) for i, name in enumerate(names)}
        return self.keep(BatchNorm(_decimal(momentum), _decimal(epsilon)), **arrays)

    def read_LayerNormalization(self, node: Any) -> Layer:
        """Return a layer norm of the last axis."""
        self.check(node, axis=-1)
        epsilon = _decimal(self.attributes(node).get("epsilon", 1e-5))
        scale, shift = self.weight(node, 1, 1), self.tensor(node, 2)
        bias = np.zeros_like(scale) if shift is None else shift
        return self.keep(LayerNorm(epsilon), weight=scale, bias=bias)

    def read_Dropout(self, node: Any) -> Layer:
        """Return a dropout, which a prediction leaves out."""
        ratio, trains = self.tensor(node, 1), self.tensor(node, 2)
        need(trains is None or not trains.any())
        rate = self.attributes(node).get("ratio", 0.5) if ratio is None else ratio.item()
        return Dropout(_decimal(rate))

    def read_Gather(self, node: Any) -> Layer:
        """Return an embedding: the node takes rows of a constant."""
        self.check(node, axis=0)
        weight = self.weight(node, 0, 2)
        return self.keep(Embedding(*weight.shape, initializer="zeros"), weight=weight)

    def recurrent(self, node: Any, whole: bool) -> Layer:
        """Return a recurrent layer; with `whole` it returns all states, else the last."""
        kind = node.op_type
        both = self.attributes(node).get("direction") == "bidirectional"
        cell = self.recurrent_cell(node, 1 + both)
        for index in range(4, len(node.input)):
            array = self.tensor(node, index)
            need(array is None or (index != 4 and not array.any()))  # from 0, without peepholes
        inputs, states = self.weight(node, 1, 3), self.weight(node, 2, 3)
        biases = None if self.tensor(node, 3) is None else self.weight(node, 3, 2)
        units = states.shape[-1]
        self.check(node, hidden_size=units)
        order = np.argsort(GATES[kind])
        wide = len(order) * units
        shapes = [(1 + both, wide, inputs.shape[-1]), (1 + both, wide, units), (1 + both, 2 * wide)]
        given = [array for array in (inputs, states, biases) if array is not None]
        need([array.shape for array in given] == shapes[: len(given)])
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
        if kind == "RNN":
            return self.keep(RNN(units, cell, **how), **arrays)
        return self.keep((LSTM if kind == "LSTM" else GRU)(units, **how), **arrays)

    def recurrent_cell(self, node: Any, directions: int) -> str:
        """Return the activation of a recurrent node whose cell layers have."""
        kind, attributes = node.op_type, self.attributes(node)
        self.check(node, layout=0, input_forget=0)
        need(kind != "GRU" or bool(attributes.get("linear_before_reset", 0)))
        is_known = attributes.get("direction", "forward") in ("forward", "bidirectional")
        need(is_known and "clip" not in attributes)
        usual = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
        functions = [
            each.decode(errors="replace") if isinstance(each, bytes) else each
            for each in attributes.get("activations", usual[kind] * directions)
        ]
        is_relu = kind == "RNN" and set(functions) == {"Relu"}
        need(functions == usual[kind] * directions or is_relu)
        return "relu" if is_relu else "tanh"

    def joined_directions(self, node: Any, whole: bool, following: Sequence[Any]) -> int:
        """Return how many of the following nodes join the states of both directions."""
        axis, order, shape = (1, [0, 2, 1, 3], [0, 0, -1]) if whole else (0, [1, 0, 2], [0, -1])
        if following and following[0].op_type == "Squeeze":
            both = self.attributes(node).get("direction") == "bidirectional"
            if self.integers(following[0], 1, "axes") == [axis] and not both:
                return 1
        if [each.op_type for each in following] == ["Transpose", "Reshape"]:
            perm = self.attributes(following[0]).get("perm")
            if perm == order and self.integers(following[1], 1, "shape") == shape:
                return 2
        raise NotLayers


def _decimal(value: float) -> float:
    """Return a float32 as the float with its shortest decimal form, such as 0.1."""
    return float(str(np.float32(value)))
