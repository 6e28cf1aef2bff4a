"""Layers: each declares its parameters in `build` and composes nodes in `forward`."""

from dnn.layers.activation import ACTIVATIONS, Activation
from dnn.layers.batch_norm import BatchNorm
from dnn.layers.dropout import Dropout
from dnn.layers.flatten import Flatten
from dnn.layers.fully_connected import FullyConnected
from dnn.layers.input import Input
from dnn.layers.layer import Layer, Parameter
from dnn.layers.layer_norm import LayerNorm
from dnn.layers.output import Output
from dnn.layers.residual import Residual

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "BatchNorm",
    "Dropout",
    "Flatten",
    "FullyConnected",
    "Input",
    "Layer",
    "LayerNorm",
    "Output",
    "Parameter",
    "Residual",
]
