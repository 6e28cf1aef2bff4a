"""Layers to be tested in one table, and how to compute one by itself."""

import numpy as np

from dnn import graph
from dnn.layers import (
    ACTIVATIONS,
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
    Flatten,
    FullyConnected,
    Gate,
    GlobalAvgPool2D,
    Input,
    LayerNorm,
    LayerNorm2D,
    LayerScale,
    MaxPool2D,
    Output,
    RadialBasis,
    Reshape,
    Residual,
    SpatialDropout,
    StochasticDepth,
    Upsample2D,
)
from dnn.layers.layer import NoiseSource, build_all
from dnn.seeds import stream

F8 = np.dtype(np.float64)

# What makes a layer for samples of a shape, `IMAGES` for samples of three axes. Normalisations with
# a large epsilon, since differences say nothing about a function whose slope changes within a step.
LAYERS = {
    **{f"Activation {name}": lambda shape, name=name: Activation(name) for name in ACTIVATIONS},
    "BatchNorm": lambda shape: BatchNorm(epsilon=0.1),
    "Concat": lambda shape: Concat([LayerNorm(epsilon=0.1), Activation("tanh")]),
    "Dropout": lambda shape: Dropout(0.4),
    "Flatten": lambda shape: Flatten(),
    "FullyConnected": lambda shape: FullyConnected(3),
    "FullyConnected without bias": lambda shape: FullyConnected(3, bias=False),
    "Gate": lambda shape: Gate([LayerNorm(epsilon=0.1), Activation("sigmoid")]),
    "Input": lambda shape: Input(*shape),
    "LayerNorm": lambda shape: LayerNorm(epsilon=0.1),
    "LayerScale": lambda shape: LayerScale(0.5),
    "StochasticDepth": lambda shape: StochasticDepth(0.4),
    "Output": lambda shape: Output(*shape),
    "Conv1D": lambda shape: Conv1D(4, 2, dilation=2, padding="causal"),
    "Conv1D without bias": lambda shape: Conv1D(2, 3, stride=2, padding="same", bias=False),
    "GRU": lambda shape: GRU(2, layers=2, bidirectional=True, initial="trained"),
    "LSTM": lambda shape: LSTM(2, layers=2, dropout=0.3, return_sequences=True),
    "LSTM in both directions": lambda shape: LSTM(2, bidirectional=True, initial="trained"),
    "LSTM normalised": lambda shape: LSTM(3, bidirectional=True, layer_norm=True),
    "GRU normalised": lambda shape: GRU(3, layer_norm=True, return_sequences=True),
    "RadialBasis": lambda shape: RadialBasis(0.7),
    "RadialBasis of a fixed width": lambda shape: RadialBasis(0.7, trained=False),
    "RNN": lambda shape: RNN(3, bias=False, return_sequences=True),
    "Reshape": lambda shape: Reshape(*reversed(shape)),
    "Residual": lambda shape: Residual(
        [BatchNorm(epsilon=0.1), Activation("tanh"), LayerNorm(epsilon=0.1), Dropout(0.2)]
    ),
}
IMAGES = {
    "AvgPool2D": lambda shape: AvgPool2D(2, stride=1, padding="same"),
    "BatchNorm of images": lambda shape: BatchNorm(epsilon=0.1),
    "ChannelShuffle": lambda shape: ChannelShuffle(shape[0]),
    "ChannelSlice": lambda shape: ChannelSlice(1, shape[0] - 1),
    "Concat with a shortcut": lambda shape: Concat(
        [Conv2D(2, 3, stride=2, padding=1), Activation("tanh")], [AvgPool2D(1, stride=2)]
    ),
    "Conv2D": lambda shape: Conv2D(4, (2, 3), stride=2, padding="same"),
    "Conv2D without bias": lambda shape: Conv2D(2, 1, bias=False),
    "Gate of images": lambda shape: Gate(
        [GlobalAvgPool2D(), Reshape(shape[0], 1, 1), Conv2D(shape[0], 1), Activation("sigmoid")]
    ),
    "LayerNorm2D": lambda shape: LayerNorm2D(epsilon=0.1),
    "LayerScale of images": lambda shape: LayerScale(0.5),
    "GlobalAvgPool2D": lambda shape: GlobalAvgPool2D(),
    "MaxPool2D": lambda shape: MaxPool2D(2, padding="same"),
    "Residual of images": lambda shape: Residual(
        [Conv2D(3, 3, padding="same"), BatchNorm(epsilon=0.1), Activation("tanh")], [Conv2D(3, 1)]
    ),
    "SpatialDropout": lambda shape: SpatialDropout(0.4),
    "Upsample2D": lambda shape: Upsample2D((2, 1)),
}
LAYERS |= IMAGES
VECTORS_ONLY = {"FullyConnected", "FullyConnected without bias"}
SEQUENCES_ONLY = {
    *("Conv1D", "Conv1D without bias", "GRU", "GRU normalised", "LSTM", "LSTM in both directions"),
    *("LSTM normalised", "RNN"),
}


class Alone:
    """A layer without a network: its nodes, and a value for each of them."""

    def __init__(self, layer, x, training, *, seed=0, dtype=F8, step=0):
        self.layer = layer
        if not layer.name:
            build_all([layer], x.shape[1:], dtype)
        noise = NoiseSource(graph.variable((), np.uint64), graph.variable((), np.uint64))
        layer.begin(noise if training else None)
        self.x = graph.placeholder(x.shape, dtype, "x")
        self.y = layer.forward(self.x)
        self.values = {self.x: x, noise.seed: seed, noise.step: step}
        for declared in (*layer.parameters, *layer.states):
            node = declared.node
            start = declared.initializer(stream(0, node.name), node.shape, dtype)
            self.values[node] = np.array(start)

    @property
    def trained(self):
        """What has a gradient."""
        return [self.x, *(parameter.node for parameter in self.layer.parameters)]

    def __call__(self, *nodes, **changed):
        feeds = self.values | changed.get("values", {})
        return graph.evaluate(nodes or [self.y], feeds)
