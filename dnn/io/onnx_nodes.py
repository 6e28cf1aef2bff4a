"""Translation of single nodes of an ONNX graph into layers with their parameters.

The method ``read_NAME`` translates a node of the operator NAME. A node that layers cannot express
is refused by its name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from dnn.backend import Array
from dnn.errors import CheckpointError, ConfigurationError
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

__all__ = ["NodeReader"]


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

    def refuse(self, node: Any, message: str) -> NoReturn:
        """Raise `CheckpointError`, with the name of a node."""
        name = node.name or next(iter(node.output), "")
        raise CheckpointError(f"{self.path}: node {name!r} ({node.op_type}): {message}")

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
        if not name:
            return None
        if name not in self.constants:
            self.refuse(node, f"its input {name!r} must be a constant")
        return self.constants[name]

    def weight(self, node: Any, index: int, ndim: int) -> Array:
        """Return a constant input of a node, or refuse one without `ndim` axes."""
        array = self.tensor(node, index)
        if array is None or array.ndim != ndim or 0 in array.shape:
            found = "left out" if array is None else f"of shape {array.shape}"
            self.refuse(node, f"its input {index} must have {ndim} axes, and is {found}")
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
        """Refuse a node if an attribute has another value than `wanted`."""
        attributes = self.attributes(node)
        for name, value in wanted.items():
            given = attributes.get(name, value)
            if given != value and not (
                isinstance(value, float) and math.isclose(given, value, rel_tol=1e-6)
            ):
                self.refuse(node, f"{name} = {given!r}, and layers have {value!r}")

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
            self.refuse(node, "layers cannot express this operator")
        try:
            return [read(node)]
        except CheckpointError:
            raise
        except (ArithmeticError, ConfigurationError, LookupError, TypeError, ValueError) as error:
            self.refuse(node, f"its attributes cannot be read: {error}")  # such as a stride of 0

    # -- methods for single kinds of nodes ---------------------------------------------------------

    def read_Softmax(self, node: Any) -> Layer:
        """Return a softmax over the last axis."""
        self.check(node, axis=-1)
        return Activation("softmax")

    def check_flattens(self, node: Any) -> None:
        """Refuse a node that does not flatten each sample to a vector."""
        if node.op_type == "Flatten":
            self.check(node, axis=1)
        elif node.op_type == "Squeeze":
            if self.integers(node, 1, "axes") != [2, 3]:
                self.refuse(node, "layers drop the axes 2 and 3 of a pooled image alone")
        elif node.op_type == "Reshape":
            shape = self.integers(node, 1, "shape") or []
            if len(shape) != 2 or shape[0] not in (0, self.batch) or shape[1] != -1:
                self.refuse(node, f"to {shape}: layers make vectors of samples, (0, -1)")

    def read_Gemm(self, node: Any) -> Layer:
        """Return a fully connected layer; its weight may be transposed."""
        self.check(node, alpha=1.0, beta=1.0, transA=0)
        weight = self.weight(node, 1, 2)
        weight = weight if self.attributes(node).get("transB", 0) else weight.T
        return self.fully_connected(node, weight, self.tensor(node, 2))

    def matmul(self, node: Any, bias: Array | None) -> Layer:
        """Return a fully connected layer of a product, with the bias that the next node adds."""
        if node.input[0] in self.constants:
            self.refuse(node, "the constant must be the second factor")
        return self.fully_connected(node, self.weight(node, 1, 2).T, bias)

    def fully_connected(self, node: Any, weight: Array, bias: Array | None) -> Layer:
        """Return a layer with a weight of shape (units, inputs)."""
        units = len(weight)
        if bias is not None:
            if bias.size != units or bias.shape[-1:] != (units,):
                self.refuse(node, f"a bias of shape {bias.shape} for {units} units")
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
        if len(pads) != 4:
            self.refuse(node, f"pads = {pads}, and an image has 4 sides")
        top, left, bottom, right = pads
        padding = ((top, bottom), (left, right))
        return {"stride": tuple(attributes.get("strides", [1, 1])), "padding": padding}

    def check_image(self, node: Any, axes: int) -> None:
        """Refuse a node whose windows do not have two axes."""
        if axes != 2:
            self.refuse(node, f"windows of {axes} axes, and layers have those of 2")

    def read_Conv(self, node: Any) -> Layer:
        """Return a convolution of images or of signals."""
        attributes = self.attributes(node)
        weight, bias = self.tensor(node, 1), self.tensor(node, 2)
        if weight is not None and weight.ndim == 3:
            return self.conv1d(node, weight, bias)
        self.check_image(node, 0 if weight is None else weight.ndim - 2)
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
        """Return a maximum pooling; dilation is refused."""
        window = self.attributes(node)["kernel_shape"]
        self.check_image(node, len(window))
        self.check(node, dilations=[1, 1])
        return MaxPool2D(tuple(window), **self.windows(node))

    def read_AveragePool(self, node: Any) -> Layer:
        """Return an average pooling; dilation is refused."""
        attributes = self.attributes(node)
        self.check_image(node, len(attributes["kernel_shape"]))
        self.check(node, dilations=[1, 1])
        counts = bool(attributes.get("count_include_pad", 0))
        window = tuple(attributes["kernel_shape"])
        return AvgPool2D(window, counts_padding=counts, **self.windows(node))

    def read_GlobalAveragePool(self, node: Any) -> Layer:
        """Return the global average pooling."""
        return GlobalAvgPool2D()

    def read_ReduceMean(self, node: Any) -> Layer:
        """Return the global average pooling; means over other axes are refused."""
        axes = self.integers(node, 1, "axes")
        if axes not in ([2, 3], [-2, -1], [-1, -2]):
            self.refuse(node, f"over the axes {axes}: layers take means of channels, (2, 3)")
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
        scales = self.tensor(node, 2)
        if how != ("asymmetric", "floor") or scales is None or scales.shape != (4,):
            self.refuse(node, "layers repeat elements: scales, 'asymmetric' and 'floor'")
        ones, factor = scales[:2], tuple(int(scale) for scale in scales[2:])
        if (ones != 1).any() or (scales[2:] != factor).any():
            self.refuse(node, f"scales {scales.tolist()}, and layers have (1, 1, m, n)")
        return Upsample2D(factor)

    def read_BatchNormalization(self, node: Any) -> Layer:
        """Return a batch norm with its running statistics."""
        self.check(node, training_mode=0)
        if len(node.output) > 1:
            self.refuse(node, "more than one output is that of a training")
        attributes = self.attributes(node)
        momentum, epsilon = attributes.get("momentum", 0.9), attributes.get("epsilon", 1e-5)
        names = ("weight", "bias", "running_mean", "running_var")
        arrays = {name: self.weight(node, 1 + i, 1) for i, name in enumerate(names)}
        return self.keep(BatchNorm(_decimal(momentum), _decimal(epsilon)), **arrays)

    def read_LayerNormalization(self, node: Any) -> Layer:
        """Return a layer norm of the last axis."""
        if self.attributes(node).get("axis", -1) != -1:
            self.refuse(node, "layers normalise the last axis: axis = -1")
        epsilon = _decimal(self.attributes(node).get("epsilon", 1e-5))
        scale, shift = self.weight(node, 1, 1), self.tensor(node, 2)
        bias = np.zeros_like(scale) if shift is None else shift
        return self.keep(LayerNorm(epsilon), weight=scale, bias=bias)

    def read_Dropout(self, node: Any) -> Layer:
        """Return a dropout, which a prediction leaves out."""
        ratio, trains = self.tensor(node, 1), self.tensor(node, 2)
        if trains is not None and trains.any():
            self.refuse(node, "it is to drop elements in a prediction too")
        rate = self.attributes(node).get("ratio", 0.5) if ratio is None else ratio.item()
        if not 0 <= rate < 1:
            self.refuse(node, f"ratio = {rate}, and it must be in 0 .. 1 without 1")
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
            if array is not None and (index == 4 or array.any()):
                self.refuse(node, f"its input {index}: layers start from 0, and take no peepholes")
        inputs, states = self.weight(node, 1, 3), self.weight(node, 2, 3)
        biases = None if self.tensor(node, 3) is None else self.weight(node, 3, 2)
        units = states.shape[-1]
        self.check(node, hidden_size=units)
        order = np.argsort(GATES[kind])
        wide = len(order) * units
        shapes = [(1 + both, wide, inputs.shape[-1]), (1 + both, wide, units), (1 + both, 2 * wide)]
        given = [array for array in (inputs, states, biases) if array is not None]
        if [array.shape for array in given] != shapes[: len(given)]:
            self.refuse(node, f"its tensors must be of the shapes {shapes}")
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
        """Return the activation of a recurrent node, or refuse a cell that layers do not have."""
        kind, attributes = node.op_type, self.attributes(node)
        self.check(node, layout=0, input_forget=0)
        if kind == "GRU" and not attributes.get("linear_before_reset", 0):
            self.refuse(node, "linear_before_reset = 0, and layers have 1")
        is_known = attributes.get("direction", "forward") in ("forward", "bidirectional")
        if not is_known or "clip" in attributes:
            self.refuse(node, "layers run forward or in both directions, without a limit")
        usual = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
        functions = [
            each.decode(errors="replace") if isinstance(each, bytes) else each
            for each in attributes.get("activations", usual[kind] * directions)
        ]
        is_relu = kind == "RNN" and set(functions) == {"Relu"}
        if functions != usual[kind] * directions and not is_relu:
            self.refuse(node, f"activations {functions}, and layers have {usual[kind]}")
        return "relu" if is_relu else "tanh"

    def joined_directions(self, node: Any, whole: bool, following: Sequence[Any]) -> int:
        """Return how many of the following nodes join the states of both directions, or refuse."""
        axis, order, shape = (1, [0, 2, 1, 3], [0, 0, -1]) if whole else (0, [1, 0, 2], [0, -1])
        if following and following[0].op_type == "Squeeze":
            both = self.attributes(node).get("direction") == "bidirectional"
            if self.integers(following[0], 1, "axes") == [axis] and not both:
                return 1
        if [each.op_type for each in following] == ["Transpose", "Reshape"]:
            perm = self.attributes(following[0]).get("perm")
            if perm == order and self.integers(following[1], 1, "shape") == shape:
                return 2
        self.refuse(node, "its states must be put side by side, by Transpose and Reshape")


def _decimal(value: float) -> float:
    """Return a float32 as the float with its shortest decimal form, such as 0.1."""
    return float(str(np.float32(value)))
