"""Layers: each declares its parameters in `build` and composes nodes in `forward`."""

from dnn.layers.activation import ACTIVATIONS, Activation
from dnn.layers.fully_connected import FullyConnected
from dnn.layers.input import Input
from dnn.layers.layer import Layer, Parameter

__all__ = ["ACTIVATIONS", "Activation", "FullyConnected", "Input", "Layer", "Parameter"]
