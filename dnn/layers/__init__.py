"""Layers: each declares its parameters in `build` and composes nodes in `forward`."""

from dnn.layers.basic import (
    ACTIVATIONS,
    Activation,
    Flatten,
    FullyConnected,
    Input,
    Output,
    Residual,
)
from dnn.layers.dropout import Dropout
from dnn.layers.layer import Layer, Parameter
from dnn.layers.normalisation import BatchNorm, LayerNorm

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
