"""Adam, and AdamW with its decoupled weight decay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dnn.backend import Array, Ops, Step
from dnn.graph.node import Node
from dnn.graph.operations.powers import sqrt
from dnn.optimizers.optimizer import Hyperparameter
from dnn.optimizers.rule import Rule
from dnn.parameters import FlatBuffer, Segment

__all__ = ["Adam", "AdamW"]


class Adam(Rule):
    """Adam with weight decay.

    ::

        d <- g + weight_decay w
        m <- beta1 m + (1 - beta1) d
        s <- beta2 s + (1 - beta2) d^2
        w <- w - learning_rate m / (1 - beta1^t) / (sqrt(s / (1 - beta2^t)) + epsilon)

    in the t-th step.

    Parameters
    ----------
    learning_rate : float, positive
    beta1, beta2 : float, in 0 .. 1 without 1
    epsilon : float, positive
    weight_decay : float, not negative
    **options
        As in `Optimizer`.

    References
    ----------
    .. [1] Kingma and Ba, Adam: a method for stochastic optimization, 2015, algorithm 1.
    """

    state_names = ("mean", "squares")

    def __init__(
        self,
        learning_rate: Hyperparameter = 0.001,
        beta1: Hyperparameter = 0.9,
        beta2: Hyperparameter = 0.999,
        epsilon: Hyperparameter = 1e-8,
        weight_decay: Hyperparameter = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, **options)
        self.hyperparameter("beta1", beta1, 0.0, below=1.0)
        self.hyperparameter("beta2", beta2, 0.0, below=1.0)
        self.hyperparameter("epsilon", epsilon, above=0.0)

    def prepare(
        self, ops: Ops, scalars: dict[str, Array], state: dict[str, FlatBuffer]
    ) -> list[Step]:
        """Count the step, and compute what all blocks need from its number."""
        like = scalars["beta1"]
        made = {
            name: ops.asarray(np.ones(like.shape, like.dtype))
            for name in ("complement1", "complement2", "step_size", "correction", "keep")
        }
        # The powers in float64: 1 - 0.999^t has lost four of float32's seven digits.
        power = ops.asarray(np.ones(like.shape, np.float64))
        count = state["count"] = FlatBuffer([Segment("count", (), 0)], np.int64, ops)
        given = (scalars[name] for name in ("learning_rate", "beta1", "beta2", "weight_decay"))
        arguments = (count["count"], *given, power, *made.values())
        scalars.update(made)
        return [(ops.adam_coefficients, arguments)]

    def rule(
        self, w: Node, g: Node, state: Mapping[str, Node], scalars: Mapping[str, Node]
    ) -> Mapping[str, Node]:
        """Return the formula, with what `prepare` has computed from the number of the step."""
        s = scalars["beta2"] * state["squares"] + scalars["complement2"] * (g * g)
        m = scalars["beta1"] * state["mean"] + scalars["complement1"] * g
        root = sqrt(s) / scalars["correction"] + scalars["epsilon"]
        return {"squares": s, "mean": m, "w": w - scalars["step_size"] * (m / root)}


class AdamW(Adam):
    """Adam whose weight decay passes by its averages.

    ::

        w <- (1 - learning_rate weight_decay) w

    comes before the step of `Adam` without weight decay.

    Parameters
    ----------
    learning_rate, beta1, beta2, epsilon, weight_decay
        As in `Adam`.
    **options
        As in `Optimizer`.

    References
    ----------
    .. [1] Loshchilov and Hutter, Decoupled weight decay regularization, 2019, algorithm 2, with
       the learning rate as a factor of the decay.
    """

    def __init__(
        self,
        learning_rate: Hyperparameter = 0.001,
        beta1: Hyperparameter = 0.9,
        beta2: Hyperparameter = 0.999,
        epsilon: Hyperparameter = 1e-8,
        weight_decay: Hyperparameter = 0.01,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, weight_decay, **options)

    def decayed(self, w: Node, g: Node, scalars: Mapping[str, Node]) -> tuple[Node, Node]:
        """Return smaller parameters, and the gradients as they are."""
        return scalars["keep"] * w, g

    def _decays(self, segment: Segment) -> bool:
        # Even by 0, which other networks of an ensemble may not have: the compiled step contracts
        # a product and a sum in another way where nothing decays.
        return segment.name.rsplit(".", 1)[-1] not in self.no_decay
