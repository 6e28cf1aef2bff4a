"""Export of a network's prediction as an ONNX model: one node or a few for each layer.

The model is of opset 20. Its input ``x`` is any number of samples, its output ``y`` that of the
last layer; running statistics and dropout are those of a prediction. With the steps of a
preparation in front, the samples are raw ones.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from dnn.backend import Array
from dnn.data.preparation import Brightness, Step
from dnn.data.targets import TargetScale
from dnn.errors import CheckpointError, ConfigurationError, MissingDependencyError
from dnn.layers import (
    GRU,
    LSTM,
    RNN,
    Activation,
    AvgPool2D,
    BatchNorm,
    ChannelShuffle,
    ChannelSlice,
    Concat,
    Conv1D,
    Conv2D,
    Dropout,
    EmbedColumns,
    Embedding,
    Flatten,
    FullyConnected,
    Gate,
    GlobalAvgPool2D,
    Input,
    Layer,
    LayerNorm,
    LayerNorm2D,
    LayerScale,
    MaxPool2D,
    Output,
    Reshape,
    Residual,
    SpatialDropout,
    StochasticDepth,
    Upsample2D,
)
from dnn.losses import BinaryCrossEntropy
from dnn.training.checkpoint import write_whole

if TYPE_CHECKING:
    from dnn.model import NeuralNetwork

__all__ = ["ACTIVATIONS", "GATES", "OPSET", "export_onnx", "require_onnx"]

OPSET = 20
IR_VERSION = 9  # that of opset 20

ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "elu": ("Elu", {"alpha": 1.0}),
    "exact_gelu": ("Gelu", {"approximate": "none"}),
    "gelu": ("Gelu", {"approximate": "tanh"}),
    "hard_sigmoid": ("HardSigmoid", {"alpha": 1.0 / 6.0, "beta": 0.5}),
    "hard_swish": ("HardSwish", {}),
    "leaky_relu": ("LeakyRelu", {"alpha": 0.01}),
    "relu": ("Relu", {}),
    "sigmoid": ("Sigmoid", {}),
    "softmax": ("Softmax", {"axis": -1}),
    "softplus": ("Softplus", {}),
    "tanh": ("Tanh", {}),
}
"""For each function of `Activation`, the operator of ONNX and its attributes."""

GATES = {"RNN": [0], "LSTM": [0, 3, 1, 2], "GRU": [1, 0, 2]}
"""Numbers of the gates in the order of PyTorch and our layers, listed in the order of ONNX."""


def require_onnx() -> Any:
    """Return the module `onnx`, or raise `MissingDependencyError`."""
    try:
        importlib.import_module("onnx.checker")
        importlib.import_module("onnx.numpy_helper")
        return importlib.import_module("onnx")
    except ImportError as error:
        message = 'onnx is not installed: pip install "diel[onnx]"'
        raise MissingDependencyError(message) from error


def export_onnx(
    model: NeuralNetwork,
    path: str | PathLike[str],
    *,
    preparation: Sequence[Step] = (),
    features: int | None = None,
    scale: TargetScale | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write the prediction of a network as an ONNX model.

    Parameters
    ----------
    model : NeuralNetwork
    path : path
        Written under another name and renamed.
    preparation : sequence of Step
        What is done to samples before the network takes them.
    features : int, optional
        Of a raw sample, where there is a preparation; the model then has a second output,
        ``probabilities``, if the network classifies.
    scale : TargetScale, optional
        Of the targets, in whose units the model predicts then.
    metadata : mapping, optional
        Texts, or values of JSON, for the properties of the model.

    Raises
    ------
    ConfigurationError, CheckpointError, MissingDependencyError
        As `NeuralNetwork.export_onnx`; the format allows no more than 2 GiB.
    """
    onnx = require_onnx()
    network = model._network
    writer = _Writer(onnx, model)
    first, *layers = network.layers
    if type(first) is not Input:
        raise ConfigurationError(f"{first.name}: a {type(first).__name__} has no equal in ONNX")
    kind = onnx.helper.np_dtype_to_tensor_dtype(network.dtype)
    of_input = onnx.TensorProto.INT64 if first.integers else kind
    x, shape = "x", list(first.shape)
    if features is not None:
        shape = [features]
        if not first.integers:
            of_input = onnx.TensorProto.FLOAT
        if preparation and isinstance(preparation[0], Brightness):
            of_input = onnx.TensorProto.UINT8
        x = writer.prepared(x, preparation, first)
    out = writer.chain(layers, x)
    if features is not None and network.loss.takes == "counts":
        out = writer.node("Exp", [out], "expected")
    if scale is not None:
        mean, deviation = (
            writer.tensor(f"targets.{name}", values.astype(network.dtype))
            for name, values in zip(
                ("mean", "deviation"), scale.of_outputs(network.output_shape[-1]), strict=True
            )
        )
        out = writer.node("Mul", [out, deviation], "targets.scaled")
        out = writer.node("Add", [out, mean], "targets.shifted")
    writer.node("Identity", [out], "y")
    outputs = [onnx.helper.make_tensor_value_info("y", kind, ["batch", *network.output_shape])]
    if features is not None and network.loss.classifies:
        if network.loss.needs:  # of a softmax, say: the outputs are probabilities
            writer.node("Identity", ["y"], "probabilities")
        else:
            writer.probabilities(isinstance(network.loss, BinaryCrossEntropy))
        classes = network.loss.class_count(network.output_shape)
        outputs.append(
            onnx.helper.make_tensor_value_info("probabilities", kind, ["batch", classes])
        )
    if features is not None and network.loss.takes == "labels":
        writer.node("Sigmoid", ["y"], "probabilities")
        shape_of_y = ["batch", *network.output_shape]
        outputs.append(onnx.helper.make_tensor_value_info("probabilities", kind, shape_of_y))
    graph = onnx.helper.make_graph(
        writer.nodes,
        "dnn",
        [onnx.helper.make_tensor_value_info("x", of_input, ["batch", *shape])],
        outputs,
        writer.tensors,
    )
    made = onnx.helper.make_model(
        graph,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="dnn",
    )
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in (metadata or {}).items()
    }
    onnx.helper.set_model_props(made, texts)
    try:
        onnx.checker.check_model(made)
        raw = made.SerializeToString()
    except ValueError as error:  # of protobuf, whose limit is 2 GiB
        raise CheckpointError(f"{path}: cannot be written: {error}") from error
    write_whole(path, raw)


class _Writer:
    """Collects the nodes and tensors of a model."""

    def __init__(self, onnx: Any, model: NeuralNetwork) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []
        to_host = model._network.ops.to_host
        self.arrays: dict[str, Array] = {
            name: np.asarray(to_host(array))
            for name, array in model._network.prediction_arrays.items()
        }

    def node(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a node with the name of its output; return that name."""
        made = self.onnx.helper.make_node(kind, list(inputs), [output], name=output, **attributes)
        self.nodes.append(made)
        return output

    def tensor(self, name: str, value: Array | None = None) -> str:
        """Add a tensor, by default the network's array of that name; return the name."""
        array = np.asarray(self.arrays[name] if value is None else value, order="C")
        self.tensors.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def cast(self, x: str, dtype: Any, output: str) -> str:
        """Add a conversion to another type of elements; return the name of its output."""
        to = self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.node("Cast", [x], output, to=to)

    def prepared(self, x: str, steps: Sequence[Step], first: Input) -> str:
        """Add the nodes of a preparation; return the name of what the network takes."""
        for number, step in enumerate(steps, start=1):
            x = step.write_onnx(self, x, f"{step.name}_{number}")
        if steps:  # rounded as samples are, whatever the network's type is
            x = self.cast(x, np.float32, "prepared.single")
        if not first.integers:
            x = self.cast(x, first.dtype, "prepared.cast")
        if len(first.shape) > 1:
            shape = self.tensor("prepared.shape", np.array([-1, *first.shape]))
            x = self.node("Reshape", [x, shape], "prepared")
        return x

    def probabilities(self, of_two: bool) -> None:
        """Add the probabilities of classes, of the outputs ``y``."""
        if not of_two:
            self.node("Softmax", ["y"], "probabilities", axis=-1)
            return
        negative = self.node("Neg", ["y"], "probabilities.negative")
        parts = [
            self.node("Sigmoid", [each], f"probabilities.{n}")
            for n, each in enumerate((negative, "y"))
        ]
        self.node("Concat", parts, "probabilities", axis=-1)

    def chain(self, layers: Sequence[Layer], x: str) -> str:
        """Add the nodes of successive layers; return the name of the last output."""
        for layer in layers:
            write = _WRITE.get(type(layer))
            if write is None:
                message = f"a {type(layer).__name__} has no equal in ONNX"
                raise ConfigurationError(f"{layer.name}: {message}")
            x = write(self, layer, x)
        return x

    def weights(self, layer: Layer, *names: str) -> list[str]:
        """Add those of the named parameters that a layer has; return the names of their tensors."""
        own = [f"{layer.name}.{name}" for name in names]
        return [self.tensor(name) for name in own if name in self.arrays]

    def value(self, layer: Layer, name: str, value: Any, dtype: Any = None) -> str:
        """Add a constant of a layer; return its name."""
        return self.tensor(f"{layer.name}.{name}", np.array(value, dtype or layer.dtype))


def _windows(layer: Conv2D | MaxPool2D | AvgPool2D, padding: Any) -> dict[str, Any]:
    (top, bottom), (left, right) = padding
    pads = [top, left, bottom, right]
    return {"kernel_shape": layer.window, "strides": layer.stride, "pads": pads}


_Attributes = Callable[[Any], dict[str, Any]]
_NODES: dict[type[Layer], tuple[str, tuple[str, ...], _Attributes]] = {
    AvgPool2D: (
        "AveragePool",
        (),
        lambda x: {**_windows(x, x.around), "count_include_pad": int(x.counts_padding)},
    ),
    BatchNorm: (
        "BatchNormalization",
        ("scale", "shift", "mean", "variance"),
        lambda x: {"epsilon": x.epsilon, "momentum": x.momentum},
    ),
    Conv1D: (
        "Conv",
        ("weight", "bias"),
        lambda x: {
            "kernel_shape": [x.window],
            "strides": [x.stride],
            "pads": x.zeros_around,
            "dilations": [x.dilation],
            "group": x.groups,
        },
    ),
    Conv2D: (
        "Conv",
        ("weight", "bias"),
        lambda x: {**_windows(x, x.zeros_around), "dilations": x.dilation, "group": x.groups},
    ),
    Flatten: ("Flatten", (), lambda x: {}),
    FullyConnected: ("Gemm", ("weight", "bias"), lambda x: {}),
    LayerNorm: (
        "LayerNormalization",
        ("scale", "shift"),
        lambda x: {"axis": -1, "epsilon": x.epsilon},
    ),
    LayerScale: ("Mul", ("factor",), lambda x: {}),
    MaxPool2D: ("MaxPool", (), lambda x: _windows(x, x.around)),
}
"""For each layer that is one node: its operator, parameters and attributes."""


def _one_node(writer: _Writer, layer: Layer, x: str) -> str:
    kind, names, attributes = _NODES[type(layer)]
    return writer.node(kind, [x, *writer.weights(layer, *names)], layer.name, **attributes(layer))


def _global_avg_pool2d(writer: _Writer, layer: GlobalAvgPool2D, x: str) -> str:
    means = writer.node("GlobalAveragePool", [x], f"{layer.name}.means")
    return writer.node("Flatten", [means], layer.name)


def _upsample2d(writer: _Writer, layer: Upsample2D, x: str) -> str:
    scales = writer.value(layer, "scales", (1, 1, *layer.factor), np.float32)
    how = {"mode": "nearest", "nearest_mode": "floor"}
    how["coordinate_transformation_mode"] = "asymmetric"
    return writer.node("Resize", [x, "", scales], layer.name, **how)


def _batch_norm(writer: _Writer, layer: BatchNorm, x: str) -> str:
    if layer.axis != 1:
        message = "ONNX has channels along the first axis of a sample, and this layer along another"
        raise ConfigurationError(f"{layer.name}: {message}")
    return _one_node(writer, layer, x)


def _activation(writer: _Writer, layer: Activation, x: str) -> str:
    if layer.function == "silu" and not layer.is_of_own_function:
        gate = writer.node("Sigmoid", [x], f"{layer.name}.gate")
        return writer.node("Mul", [x, gate], layer.name)
    if layer.function == "relu6" and not layer.is_of_own_function:
        limits = [writer.value(layer, name, n) for name, n in (("least", 0.0), ("most", 6.0))]
        return writer.node("Clip", [x, *limits], layer.name)
    if layer.function not in ACTIVATIONS or layer.is_of_own_function:
        message = f"the activation {layer.function!r} has no equal in ONNX"
        raise ConfigurationError(f"{layer.name}: {message}")
    kind, attributes = ACTIVATIONS[layer.function]
    return writer.node(kind, [x], layer.name, **attributes)


def _dropout(writer: _Writer, layer: Dropout, x: str) -> str:
    ratio = writer.value(layer, "ratio", layer.rate)
    return writer.node("Dropout", [x, ratio], layer.name)


def _embedding(writer: _Writer, layer: Embedding, x: str) -> str:
    vectors = writer.arrays[f"{layer.name}.weight"]
    if layer.padding is not None:
        vectors = vectors.copy()
        vectors[layer.padding] = 0.0
    weight = writer.tensor(f"{layer.name}.weight", vectors)
    return writer.node("Gather", [weight, x], layer.name, axis=0)


def _embed_columns(writer: _Writer, layer: EmbedColumns, x: str) -> str:
    name = layer.name
    first = layer.first
    parts = []
    if first:
        others = writer.tensor(f"{name}.others", np.arange(first))
        parts.append(writer.node("Gather", [x, others], f"{name}.rest", axis=1))
    for at in range(len(layer.count)):
        vectors = writer.arrays[f"{name}.weight_{at + 1}"].copy()
        vectors[0] = 0.0
        place = writer.tensor(f"{name}.at_{at + 1}", np.array(first + at))
        column = writer.node("Gather", [x, place], f"{name}.column_{at + 1}", axis=1)
        codes = writer.cast(column, np.int64, f"{name}.codes_{at + 1}")
        weight = writer.tensor(f"{name}.weight_{at + 1}", vectors)
        parts.append(writer.node("Gather", [weight, codes], f"{name}.vectors_{at + 1}", axis=0))
    return writer.node("Concat", parts, name, axis=1)


def _recurrent(writer: _Writer, layer: RNN | LSTM | GRU, x: str) -> str:
    if layer.lengths is not None or layer.initial != "zeros":
        message = "lengths of sequences and trained starts are not written in ONNX"
        raise ConfigurationError(f"{layer.name}: {message}")
    kind, name = type(layer).__name__, layer.name
    both = layer.bidirectional
    how: dict[str, Any] = {"hidden_size": layer.units}
    how["direction"] = "bidirectional" if both else "forward"
    if kind == "GRU":
        how["linear_before_reset"] = 1
    if isinstance(layer, RNN):
        how["activations"] = [layer.cell.capitalize()] * (1 + both)
    y = writer.node("Transpose", [x], f"{name}.time_first", perm=[1, 0, 2])
    for i in range(layer.layers):
        is_last = i == layer.layers - 1
        ends = [f"_l{i}", f"_l{i}_reverse"][: 1 + both]

        def of_ends(*parts: str, ends: Sequence[str] = ends) -> Array:
            """Return the arrays of all directions, stacked, with gates in the order of ONNX."""
            found = []
            for end in ends:
                for part in parts:
                    array = writer.arrays[f"{name}.{part}{end}"]
                    gates = array.reshape(layer.products, layer.units, -1)[GATES[kind]]
                    found.append(gates.reshape(array.shape))
            return np.stack(found).reshape(len(ends), -1, *found[0].shape[1:])

        inputs = [y]
        for short, parts in (("w", ["weight_ih"]), ("r", ["weight_hh"])):
            inputs.append(writer.tensor(f"{name}.{short}{i}", of_ends(*parts)))
        if layer.with_bias:
            bias = of_ends("bias_ih", "bias_hh")
            inputs.append(writer.tensor(f"{name}.b{i}", bias))
        whole = layer.return_sequences or not is_last
        states = f"{name}.states{i}"
        outputs = [states] if whole else ["", states]
        writer.nodes.append(writer.onnx.helper.make_node(kind, inputs, outputs, name=states, **how))
        order, shape = ([0, 2, 1, 3], (0, 0, -1)) if whole else ([1, 0, 2], (0, -1))
        y = writer.node("Transpose", [states], f"{states}.directions", perm=order)
        shape_name = writer.tensor(f"{states}.shape", np.array(shape, np.int64))
        y = writer.node("Reshape", [y, shape_name], f"{states}.joined")
    if layer.return_sequences:
        y = writer.node("Transpose", [y], name, perm=[1, 0, 2])
    return y


def _reshape(writer: _Writer, layer: Reshape, x: str) -> str:
    shape = writer.value(layer, "shape", (0, *layer.shape), np.int64)  # 0: the length of the input
    return writer.node("Reshape", [x, shape], layer.name)


def _nothing(writer: _Writer, layer: Layer, x: str) -> str:
    return x


def _residual(writer: _Writer, layer: Residual, x: str) -> str:
    ends = [writer.chain(layer.shortcut, x), writer.chain(layer.layers, x)]
    return writer.node("Add", ends, layer.name)


def _concat(writer: _Writer, layer: Concat, x: str) -> str:
    return writer.node(
        "Concat",
        [writer.chain(layer.shortcut, x), writer.chain(layer.layers, x)],
        layer.name,
        axis=layer.axis + 1,
    )


def _gate(writer: _Writer, layer: Gate, x: str) -> str:
    return writer.node("Mul", [x, writer.chain(layer.layers, x)], layer.name)


def _layer_norm2d(writer: _Writer, layer: LayerNorm2D, x: str) -> str:
    last = writer.node("Transpose", [x], f"{layer.name}.channels_last", perm=[0, 2, 3, 1])
    weights, how = writer.weights(layer, "scale", "shift"), {"axis": -1, "epsilon": layer.epsilon}
    y = writer.node("LayerNormalization", [last, *weights], f"{layer.name}.normalised", **how)
    return writer.node("Transpose", [y], layer.name, perm=[0, 3, 1, 2])


def _channel_slice(writer: _Writer, layer: ChannelSlice, x: str) -> str:
    ends = {"start": layer.start, "stop": layer.start + layer.channels, "axis": 1}
    names = [writer.value(layer, name, [value], np.int64) for name, value in ends.items()]
    return writer.node("Slice", [x, *names], layer.name)


def _channel_shuffle(writer: _Writer, layer: ChannelShuffle, x: str) -> str:
    channels, *size = layer.sample_shape
    shapes = (0, layer.groups, channels // layer.groups, *size), (0, channels, *size)
    apart, whole = (
        writer.value(layer, name, shape, np.int64)
        for name, shape in zip(("groups", "shape"), shapes, strict=True)
    )
    y = writer.node("Reshape", [x, apart], f"{layer.name}.apart")
    y = writer.node("Transpose", [y], f"{layer.name}.turned", perm=[0, 2, 1, 3, 4])
    return writer.node("Reshape", [y, whole], layer.name)


_WRITE: dict[type[Layer], Callable[[_Writer, Any, str], str]] = {
    **dict.fromkeys(_NODES, _one_node),
    Activation: _activation,
    BatchNorm: _batch_norm,
    ChannelShuffle: _channel_shuffle,
    ChannelSlice: _channel_slice,
    Concat: _concat,
    Dropout: _dropout,
    EmbedColumns: _embed_columns,
    Embedding: _embedding,
    GRU: _recurrent,
    Gate: _gate,
    GlobalAvgPool2D: _global_avg_pool2d,
    LSTM: _recurrent,
    LayerNorm2D: _layer_norm2d,
    Output: _nothing,
    RNN: _recurrent,
    Reshape: _reshape,
    Residual: _residual,
    SpatialDropout: _nothing,
    StochasticDepth: _nothing,
    Upsample2D: _upsample2d,
}
