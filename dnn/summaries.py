"""Summaries of networks: output shape, parameters and multiply-adds of each layer."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dnn.errors import ConfigurationError, explains_arguments
from dnn.graph.node import Node, Shape, topological_order
from dnn.layers import Input, Layer
from dnn.layers.layer import build_all

__all__ = ["LayerSummary", "built_copies", "layer_summaries", "summary"]


class LayerSummary(NamedTuple):
    """A layer's row of `NeuralNetwork.summary`: output shape, parameters and multiply-adds.

    Attributes
    ----------
    name : str
        Of the layer.
    shape : tuple of int
        Of one sample of its output.
    parameters : int
        Number of trained elements.
    multiply_adds : int
        Products of two numbers, each added to a sum, for the prediction of one sample: those of
        matrix products, convolutions and recurrent cells. Each is two floating-point operations.
    """

    name: str
    shape: Shape
    parameters: int
    multiply_adds: int


@explains_arguments
def summary(layers: Sequence[Layer]) -> str:
    """Return the table of `NeuralNetwork.summary` without allocating any parameter.

    Parameters
    ----------
    layers : sequence of Layer
        The first is an `Input`. They are left as they are.

    Returns
    -------
    str

    Raises
    ------
    ConfigurationError
        If the layers do not begin with an `Input`.
    ShapeError
        If a layer does not take the output of the one before it.

    Examples
    --------
    >>> import dnn
    >>> print(dnn.summary(dnn.mlp(2, [8], 2)))
    layer                   output            parameters   multiply-adds
    input_1                 (2,)                       0               0
    fully_connected_1       (8,)                      24              16
    activation_1            (8,)                       0               0
    fully_connected_2       (2,)                      18              16
    total                                             42              32
    """
    return table_of(layer_summaries(layers))


@explains_arguments
def layer_summaries(layers: Sequence[Layer]) -> list[LayerSummary]:
    """Return the rows of `summary`, one for each layer, without allocating any parameter.

    Parameters
    ----------
    layers : sequence of Layer
        The first is an `Input`. They are left as they are.

    Returns
    -------
    list of LayerSummary

    Raises
    ------
    ConfigurationError
        If the layers do not begin with an `Input`.
    ShapeError
        If a layer does not take the output of the one before it.
    """
    return summaries_of(*built_copies(layers))


def built_copies(layers: Sequence[Layer]) -> tuple[list[Layer], list[Node]]:
    """Return built copies of layers, without arrays, and their nodes for a batch of one."""
    first = layers[0] if layers else None
    if not isinstance(first, Input):
        raise ConfigurationError("the first layer of a network must be an Input")
    built = copy.deepcopy(list(layers))  # a copy of a layer is not built
    return built, build_all(built, first.shape, np.dtype(np.float32))


def summaries_of(layers: Sequence[Layer], outputs: Sequence[Node]) -> list[LayerSummary]:
    """Return a row for each built layer; `outputs` are the layers' nodes for a batch of one."""
    return [
        LayerSummary(
            layer.name,
            y.shape[1:],
            sum(parameter.node.size for parameter in layer.parameters),
            sum(
                node.operation.multiply_adds(node)
                for node in topological_order([y])
                if node.operation is not None
            ),
        )
        for layer, y in zip(layers, outputs, strict=True)
    ]


def table_of(rows: Sequence[LayerSummary]) -> str:
    """Return rows as lines of a table, between a heading and the total."""
    lines = [f"{'layer':24s}{'output':16s}{'parameters':>12s}{'multiply-adds':>16s}"]
    for row in rows:
        lines.append(
            f"{row.name:24s}{row.shape!s:16s}{row.parameters:12,d}{row.multiply_adds:16,d}"
        )
    parameters = sum(row.parameters for row in rows)
    multiply_adds = sum(row.multiply_adds for row in rows)
    lines.append(f"{'total':40s}{parameters:12,d}{multiply_adds:16,d}")
    return "\n".join(lines)
