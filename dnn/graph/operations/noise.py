"""Random numbers as nodes: counter-based, so that a graph of them is a function like any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.arrays import dtype_of
from dnn.backend import Ops, philox
from dnn.errors import ConfigurationError, DtypeError, ShapeError
from dnn.graph.arguments import describe, shape_of
from dnn.graph.node import Node, Shape, check_nodes
from dnn.graph.operation import Arrays, Operation, Step, apply, register
from dnn.graph.operations.activations import positive
from dnn.graph.operations.reductions import broadcasts

__all__ = ["dropout", "uniform_noise"]


@register
class UniformNoise(Operation):
    """Floats from [0, 1), a function of seed, step, stream and element; no gradient.

    The result has the shape given as attribute, behind the shape of the seed: K seeds give the
    numbers of K networks.
    """

    name = "uniform_noise"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        seed, step = inputs
        if seed.dtype != np.uint64 or step.dtype != np.uint64:
            given = f"{describe(seed)} of {seed.dtype} and {describe(step)} of {step.dtype}"
            raise DtypeError(f"{self.name}: {given} must be uint64")
        if seed.ndim > 1 or step.shape != ():
            message = f"{describe(seed)} must have shape () or (K,) and {describe(step)} ()"
            raise ShapeError(self.name, message, seed.shape, step.shape)
        return (*seed.shape, *attributes["shape"]), np.dtype(attributes["dtype"])

    def workspace(self, node: Node, ops: Ops) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        seeds = node.inputs[0].shape
        return philox.workspaces(seeds, node.size // max(1, int(np.prod(seeds))))

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        seed, step = arrays.inputs
        stream = node.attributes["stream"]
        return [(ops.uniform_noise, (seed, step, stream, *arrays.workspace, arrays.out))]

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        seed, step = inputs
        if stacked[1]:
            return super().with_models(node, inputs, stacked, models)
        return apply(self.name, seed, step, **node.attributes)

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return None, None


def uniform_noise(
    seed: Node,
    step: Node,
    stream: int,
    shape: Sequence[int],
    dtype: npt.DTypeLike = np.float32,
) -> Node:
    """Return floats drawn uniformly from [0, 1).

    Parameters
    ----------
    seed : Node of uint64, shape () or (K,)
        Of the network, or of each of K networks.
    step : Node of uint64, shape ()
        Number of the training step.
    stream : int, in 0 .. 2^32 - 1
        Which of a step's random tensors this is: a number of its own for each layer.
    shape : sequence of int
    dtype : type of floats
        Each number has the upper 24 bits of a random word, in float16 11.

    Returns
    -------
    Node of `dtype`, of `shape` behind the shape of `seed`
        It has no gradient.

    Raises
    ------
    DtypeError
        If `seed` or `step` is not uint64, or `dtype` not of floats.
    ShapeError
        If they have other shapes, or `shape` is no valid shape.
    ConfigurationError
        If `stream` is no integer, or outside its range.

    Notes
    -----
    Philox-4x32-10, see `dnn.backend.philox`: integers alone, so equal bit for bit on every device.
    """
    wanted = dtype_of("uniform_noise", dtype)
    if wanted.kind != "f":
        raise DtypeError(f"uniform_noise: numbers from [0, 1) are floats, not {wanted}")
    if not isinstance(stream, int | np.integer) or not 0 <= stream < 2**32:
        message = f"stream must be an integer in 0 .. 2^32 - 1, not {stream!r}"
        raise ConfigurationError(f"uniform_noise: {message}")
    lengths = shape_of("uniform_noise", shape)
    return apply("uniform_noise", seed, step, stream=int(stream), shape=lengths, dtype=wanted)


def dropout(x: Node, noise: Node, rate: float | Node) -> Node:
    """Set each element to 0 with probability `rate`, and divide the others by ``1 - rate`` [1]_.

    Parameters
    ----------
    x : Node of floats
    noise : Node of the type of `x` that broadcasts to its shape
        From `uniform_noise`. Along an axis of length 1, elements are kept or set to 0 together.
    rate : float or Node, in 0 .. 1 without 1

    Returns
    -------
    Node, of the shape and type of `x`
        Its mean is expected to be that of `x`.

    Raises
    ------
    ConfigurationError
        If `rate` is neither a node nor a number in its range, in the type of `x` too.
    ShapeError
        If the noise does not broadcast to the shape of `x`.
    DtypeError
        If the types differ.

    References
    ----------
    .. [1] Srivastava et al., Dropout: a simple way to prevent neural networks from overfitting,
       2014, section 10, where kept elements are divided while training.
    """
    check_nodes("dropout", x, noise)
    if not isinstance(rate, Node) and not (
        isinstance(rate, int | float | np.floating) and 0 <= rate < 1
    ):
        raise ConfigurationError(f"dropout: the rate must be at least 0 and below 1, not {rate!r}")
    if not isinstance(rate, Node) and x.dtype.kind == "f" and x.dtype.type(rate) >= 1:
        raise ConfigurationError(f"dropout: a rate of {rate!r} is 1 in {x.dtype}: it must be below")
    if not broadcasts(noise.shape, x.shape):
        message = f"noise {describe(noise)} does not broadcast to {describe(x)}"
        raise ShapeError("dropout", message, noise.shape, x.shape)
    kept = 1.0 - rate
    return x * (positive(kept - noise) * (1.0 / kept))
