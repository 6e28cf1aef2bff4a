"""A built network: layers named and built, parameters in a flat buffer, plans on demand.

`NeuralNetwork` is what users hold; this is what it trains with. One training step is

1. `BatchPlan.load` gathers the rows of a batch into the plan's inputs,
2. `Plan.run` computes the loss and writes all gradients into the flat gradient buffer,
3. `Update.run` moves the flat parameter buffer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnn.backend import Array, Ops
from dnn.errors import ConfigurationError
from dnn.graph.gradients import gradients
from dnn.graph.node import Node, Shape, placeholder, variable
from dnn.graph.plan import Arena, Plan
from dnn.layers import Input, Layer
from dnn.losses import Loss
from dnn.parameters import FlatBuffer, segments_of
from dnn.seeds import stream

__all__ = ["BatchPlan", "LayerSummary", "Network"]


@dataclass(frozen=True)
class LayerSummary:
    """A row of `NeuralNetwork.summary`: name, output shape of a sample, parameters."""

    name: str
    shape: Shape
    parameters: int


@dataclass(frozen=True)
class BatchPlan:
    """A plan for one size of batch, with the arrays at its edges.

    Attributes
    ----------
    plan : Plan
    x, target : array, shape (batch, ...)
        To be filled before each replay.
    loss : array, shape ()
    outputs : array, shape (batch, ...)
        None in a plan for training, where later nodes take its memory.
    """

    plan: Plan
    ops: Ops
    x: Array
    target: Array
    loss: Array
    outputs: Array | None

    def load(self, x: Array, target: Array, rows: Array) -> None:
        """Gather the rows of a batch, rows being of shape (batch,)."""
        self.ops.take_rows(x, rows, self.x)
        self.ops.take_rows(target, rows, self.target)


class Network:
    """Layers, built.

    Parameters
    ----------
    layers : sequence of Layer
        The first is an `Input`.
    loss : Loss
    seed : int
        Of the parameters' first values.
    dtype : numpy.dtype
    ops : Ops
    passes : sequence of str, optional
        Passes over its graphs, see `dnn.graph.passes`; if left out, those that pay with `ops`.

    Raises
    ------
    ConfigurationError
        If the first layer is no `Input`, or a layer is already part of a network.
    ShapeError
        If a layer does not take the output of the one before it.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        loss: Loss,
        seed: int,
        dtype: np.dtype[Any],
        ops: Ops,
        passes: Sequence[str] | None = None,
    ) -> None:
        if not layers or not isinstance(layers[0], Input):
            raise ConfigurationError("the first layer of a network must be an Input")
        self.layers = tuple(layers)
        self.loss = loss
        self.ops = ops
        self.passes = passes
        self.dtype = dtype
        self.input_shape = layers[0].shape
        self.summaries = self._build()
        self.output_shape = self.summaries[-1].shape
        declared = [parameter for layer in self.layers for parameter in layer.parameters]
        self._variables = [parameter.node for parameter in declared]
        segments = segments_of(self._variables)
        self.parameters = FlatBuffer(segments, dtype, ops)
        self.gradients = FlatBuffer(segments, dtype, ops)
        for node, parameter in zip(self._variables, declared, strict=True):
            generator = stream(seed, "initialise", node.name)
            self.parameters[node.name][...] = parameter.initializer(generator, node.shape, dtype)
        # What gradients are multiplied by as they are computed, an array of shape ().
        self.gradient_scale = ops.asarray(np.ones((), dtype))
        self._arena = Arena(ops)
        self._plans: dict[tuple[str, int], BatchPlan] = {}

    def _build(self) -> list[LayerSummary]:
        """Name and build each layer, with the shape that the layer before it puts out."""
        summaries = []
        counts: Counter[str] = Counter()
        x = placeholder((1, *self.input_shape), self.dtype, "x")
        for layer in self.layers:
            if layer.parameters:
                raise ConfigurationError(f"{layer.name} is already part of a network")
            counts[layer.kind()] += 1
            layer.name = f"{layer.kind()}_{counts[layer.kind()]}"
            layer.dtype = self.dtype
            layer.build(x.shape[1:])
            x = layer.forward(x)
            size = sum(parameter.node.size for parameter in layer.parameters)
            summaries.append(LayerSummary(layer.name, x.shape[1:], size))
        return summaries

    def outputs(self, x: Node) -> Node:
        """Compose all layers."""
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def training_plan(self, batch: int) -> BatchPlan:
        """Return the plan that computes loss and gradients of a batch."""
        return self._plan("training", batch)

    def evaluation_plan(self, batch: int) -> BatchPlan:
        """Return the plan that computes outputs and loss of a batch."""
        return self._plan("evaluation", batch)

    def probability_plan(self, batch: int) -> BatchPlan:
        """Return the plan whose outputs are probabilities."""
        return self._plan("probability", batch)

    def _plan(self, kind: str, batch: int) -> BatchPlan:
        if (kind, batch) not in self._plans:
            self._plans[kind, batch] = self._compile(kind, batch)
        return self._plans[kind, batch]

    def _compile(self, kind: str, batch: int) -> BatchPlan:
        x = placeholder((batch, *self.input_shape), self.dtype, "x")
        outputs = self.outputs(x)
        target = self.loss.target(outputs)
        loss = self.loss.value(outputs, target)
        if kind == "probability":
            outputs = self.loss.probabilities(outputs)
        wanted = [x, target, loss]
        into = []
        arrays = {node: self.parameters[node.name] for node in self._variables}
        if kind == "training":
            scale = variable((), self.dtype, "gradient_scale")
            arrays[scale] = self.gradient_scale
            slopes = gradients(loss, self._variables, scale)
            # From the last layer to the first, as they arise: each is computed while what it
            # comes from is still in the cache.
            into = [
                (slope, self.gradients[node.name])
                for node, slope in reversed(list(zip(self._variables, slopes, strict=True)))
            ]
        else:
            wanted.append(outputs)
        plan = Plan(wanted, self.ops, arrays, into, self._arena, self.passes)
        shown = None if kind == "training" else plan[outputs]
        return BatchPlan(plan, self.ops, plan[x], plan[target], plan[loss], shown)
