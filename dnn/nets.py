"""Networks by name: functions that return a list of layers."""

from __future__ import annotations

from collections.abc import Sequence

from dnn.errors import explains_arguments
from dnn.graph.operations.activations import RECTIFIERS
from dnn.layers import Activation, FullyConnected, Input, Layer

__all__ = ["mlp"]


@explains_arguments
def mlp(
    inputs: int, hidden: Sequence[int], outputs: int, activation: str = "sigmoid"
) -> list[Layer]:
    """Return the layers of a multilayer perceptron.

    Parameters
    ----------
    inputs : int
        Attributes of a sample.
    hidden : sequence of int
        Units of each hidden layer; empty for a linear model.
    outputs : int
        Classes, or values to predict.
    activation : str
        After each hidden layer.

    Returns
    -------
    list of Layer

    Raises
    ------
    ConfigurationError
        If the activation is unknown or a number of units is less than 1.
    """
    initializer = "he_uniform" if activation in RECTIFIERS else "glorot_uniform"
    layers: list[Layer] = [Input(inputs)]
    for units in hidden:
        layers += [FullyConnected(units, initializer=initializer), Activation(activation)]
    return [*layers, FullyConnected(outputs)]
