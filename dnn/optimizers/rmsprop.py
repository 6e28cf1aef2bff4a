"""RMSProp: a learning rate for each parameter, by its recent gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dnn.backend import Array, Ops, Step
from dnn.graph.node import Node
from dnn.graph.operations.arithmetic import Subtract
from dnn.graph.operations.powers import sqrt
from dnn.optimizers.optimizer import Hyperparameter
from dnn.optimizers.rule import Rule
from dnn.parameters import FlatBuffer

__all__ = ["RMSProp"]


class RMSProp(Rule):
    """RMSProp with momentum and weight decay.

    ::

        d <- g + weight_decay w
        s <- smoothing s + (1 - smoothing) d^2
        v <- momentum v + d / (sqrt(s) + epsilon)
        w <- w - learning_rate v

    Parameters
    ----------
    learning_rate : float, positive
    smoothing : float, in 0 .. 1 without 1
    epsilon : float, positive
    momentum : float, in 0 .. 1 without 1
    weight_decay : float, not negative
    **options
        As in `Optimizer`.

    References
    ----------
    .. [1] Tieleman and Hinton, Neural networks for machine learning, lecture 6.5, 2012.
    """

    def __init__(
        self,
        learning_rate: Hyperparameter = 0.01,
        smoothing: Hyperparameter = 0.99,
        epsilon: Hyperparameter = 1e-8,
        momentum: Hyperparameter = 0.0,
        weight_decay: Hyperparameter = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, **options)
        self.hyperparameter("smoothing", smoothing, 0.0, below=1.0)
        self.hyperparameter("epsilon", epsilon, above=0.0)
        self.hyperparameter("momentum", momentum, 0.0, below=1.0)
        self.state_names = ("squares", "velocity") if self.is_on("momentum") else ("squares",)

    def prepare(
        self, ops: Ops, scalars: dict[str, Array], state: dict[str, FlatBuffer]
    ) -> list[Step]:
        """Compute ``1 - smoothing``."""
        smoothing = scalars["smoothing"]
        one = ops.asarray(np.ones((), smoothing.dtype))
        scalars["complement"] = ops.asarray(np.ones(smoothing.shape, smoothing.dtype))
        return [ops.elementwise(Subtract.formula, (one, smoothing), scalars["complement"])]

    def rule(
        self, w: Node, g: Node, state: Mapping[str, Node], scalars: Mapping[str, Node]
    ) -> Mapping[str, Node]:
        """Return the formula."""
        s = scalars["smoothing"] * state["squares"] + scalars["complement"] * (g * g)
        moved = g / (sqrt(s) + scalars["epsilon"])
        if "velocity" not in state:
            return {"w": w - scalars["learning_rate"] * moved, "squares": s}
        v = scalars["momentum"] * state["velocity"] + moved
        return {"w": w - scalars["learning_rate"] * v, "squares": s, "velocity": v}
