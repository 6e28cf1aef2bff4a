"""Layers of single nodes of an ONNX graph, with the values of their parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from dnn.backend import Array
from dnn.io.onnx_trace import Call
from dnn.io.onnx_windows import Windows, pool_windows, windows_of
from dnn.layers import (
    Activation,
    AvgPool2D,
    BatchNorm,
    Conv1D,
    Conv2D,
    Dropout,
    Embedding,
    FullyConnected,
    GlobalAvgPool2D,
    Layer,
    LayerNorm,
    MaxPool2D,
    Upsample2D,
)

__all__ = ["READ", "NotLayers", "Read", "Reader", "fully_connected", "need"]


class NotLayers(Exception):
    """Layers cannot express a graph."""


def need(is_so: bool) -> None:
    """Raise `NotLayers` unless a node is as layers compute it."""
    if not is_so:
        raise NotLayers


class Reader(Protocol):
    """What knows the values of a graph."""

    def known(self, name: str) -> Array | None:
        """Return a value that is known and the same for all sizes of batch."""

    def weight(self, call: Call, index: int, ndim: int) -> Array:
        """Return a known input of a node, of `ndim` axes."""

    def bias(self, call: Call, index: int, ndim: int = 1) -> Array | None:
        """Return a known input of a node that may be left out."""


Read = tuple[Layer, dict[str, Array | None]]
"""A layer, and the values of its parameters by their names in PyTorch."""


def _decimal(value: float) -> float:
    """Return a float32 as the float with its shortest decimal form, such as 0.1."""
    return float(str(np.float32(value)))


def fully_connected(weight: Array, bias: Array | None) -> Read:
    """Return a layer with a weight of shape (units, inputs)."""
    units = len(weight)
    if bias is not None:
        need(bias.size == units == bias.shape[-1])
        bias = bias.reshape(units)
    layer = FullyConnected(units, bias=bias is not None, initializer="zeros")
    return layer, {"weight": weight, "bias": bias}


def _conv(reader: Reader, call: Call) -> Read:
    weight = reader.known(call.names[1])
    need(weight is not None and weight.ndim in (3, 4) and 0 not in weight.shape)
    assert weight is not None
    bias = reader.bias(call, 2)
    windows = windows_of(call, weight.shape[2:], call.shape()[2:])
    need(list(call.get("kernel_shape", windows.size)) == list(windows.size))
    how: dict[str, Any] = {"groups": call.get("group", 1), "bias": bias is not None}
    layer: Layer
    if weight.ndim == 3:
        ((window,), (stride,), (dilation,), (padding,)) = windows
        how |= {"stride": stride, "dilation": dilation, "padding": padding}
        layer = Conv1D(len(weight), window, initializer="zeros", **how)
    else:
        how |= {"stride": windows.stride, "dilation": windows.dilation, "padding": windows.pads}
        layer = Conv2D(len(weight), windows.size, initializer="zeros", **how)
    return layer, {"weight": weight, "bias": bias}


def _images(windows: Windows) -> dict[str, Any]:
    """Return the windows of a pooling of images, without dilation, as arguments of its layer."""
    need(len(windows.size) == 2 and set(windows.dilation) == {1})
    return {"window": windows.size, "stride": windows.stride, "padding": windows.pads}


def _max_pool(reader: Reader, call: Call) -> Read:
    need(len(call.results) == 1 and not call.get("storage_order", 0))
    return MaxPool2D(**_images(pool_windows(call, call.shape()[2:])[0])), {}


def _average_pool(reader: Reader, call: Call) -> Read:
    windows, reaches_beyond = pool_windows(call, call.shape()[2:])
    counts = bool(call.get("count_include_pad", 0))
    need(not (counts and reaches_beyond))
    return AvgPool2D(counts_padding=counts, **_images(windows)), {}


def _global_average(reader: Reader, call: Call) -> Read:
    axes = [2, 3] if call.kind == "GlobalAveragePool" else call.integers("axes", 1) or []
    need(len(call.shape()) == 4 and sorted(n % 4 for n in axes) == [2, 3])
    return GlobalAvgPool2D(), {}


def _softmax(reader: Reader, call: Call) -> Read:
    last = len(call.shape()) - 1
    need(call.get("axis", -1 if call.opset >= 13 else 1) in (-1, last))
    return Activation("softmax"), {}


def _gemm(reader: Reader, call: Call) -> Read:
    need((call.get("alpha", 1.0), call.get("beta", 1.0), call.get("transA", 0)) == (1.0, 1.0, 0))
    weight = reader.weight(call, 1, 2)
    bias = reader.known(call.names[2]) if call.has(2) else None
    need(bias is not None or not call.has(2))
    return fully_connected(weight if call.get("transB", 0) else weight.T, bias)


def _resize(reader: Reader, call: Call) -> Read:
    """Return an upsampling that repeats rows and columns."""
    how = call.get("coordinate_transformation_mode"), call.get("nearest_mode")
    need(how == ("asymmetric", "floor") and call.get("mode", "nearest") == "nearest")
    need(not call.get("antialias", 0) and call.get("axes", [0, 1, 2, 3]) == [0, 1, 2, 3])
    scales = reader.weight(call, 2, 1)
    rows, columns = (int(scale) for scale in scales[2:])
    need(scales.tolist() == [1, 1, rows, columns])
    return Upsample2D((rows, columns)), {}


def _batch_norm(reader: Reader, call: Call) -> Read:
    need(not call.get("training_mode", 0) and len(call.results) == 1)  # more: of a training
    momentum, epsilon = call.get("momentum", 0.9), call.get("epsilon", 1e-5)
    names = ("weight", "bias", "running_mean", "running_var")
    arrays = {name: reader.weight(call, 1 + i, 1) for i, name in enumerate(names)}
    return BatchNorm(_decimal(momentum), _decimal(epsilon)), {**arrays}


def _layer_norm(reader: Reader, call: Call) -> Read:
    need(call.get("axis", -1) in (-1, len(call.shape()) - 1))
    scale, shift = reader.weight(call, 1, 1), reader.bias(call, 2)
    bias = np.zeros_like(scale) if shift is None else shift
    return LayerNorm(_decimal(call.get("epsilon", 1e-5))), {"weight": scale, "bias": bias}


def _dropout(reader: Reader, call: Call) -> Read:
    need(not (call.has(2) and call.known(2).any()))
    rate = call.known(1).item() if call.has(1) else call.get("ratio", 0.5)
    return Dropout(_decimal(rate)), {}


def _embedding(reader: Reader, call: Call) -> Read:
    need(call.get("axis", 0) == 0)
    weight = reader.weight(call, 0, 2)
    return Embedding(*weight.shape, initializer="zeros"), {"weight": weight}


READ: dict[str, Callable[[Reader, Call], Read]] = {
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Conv": _conv,
    "Dropout": _dropout,
    "Gather": _embedding,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average,
    "LayerNormalization": _layer_norm,
    "MaxPool": _max_pool,
    "ReduceMean": _global_average,
    "Resize": _resize,
    "Softmax": _softmax,
}
"""For each operator its layer, or `NotLayers` where layers compute something else."""
