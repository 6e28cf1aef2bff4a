"""AdaGrad: a learning rate for each parameter, by all its gradients so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnn.graph.node import Node
from dnn.graph.operations.powers import sqrt
from dnn.optimizers.optimizer import Hyperparameter
from dnn.optimizers.rule import Rule

__all__ = ["AdaGrad"]


class AdaGrad(Rule):
    """AdaGrad with weight decay.

    ::

        d <- g + weight_decay w
        s <- s + d^2
        w <- w - learning_rate d / (sqrt(s) + epsilon)

    Parameters
    ----------
    learning_rate : float, positive
    epsilon : float, positive
    weight_decay : float, not negative
    **options
        As in `Optimizer`.

    References
    ----------
    .. [1] Duchi, Hazan and Singer, Adaptive subgradient methods for online learning and
       stochastic optimization, 2011, figure 1, diagonal.
    """

    state_names = ("squares",)

    def __init__(
        self,
        learning_rate: Hyperparameter = 0.01,
        epsilon: Hyperparameter = 1e-10,
        weight_decay: Hyperparameter = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, **options)
        self.hyperparameter("epsilon", epsilon, above=0.0)

    def rule(
        self, w: Node, g: Node, state: Mapping[str, Node], scalars: Mapping[str, Node]
    ) -> Mapping[str, Node]:
        """Return the formula."""
        s = state["squares"] + g * g
        moved = g / (sqrt(s) + scalars["epsilon"])
        return {"w": w - scalars["learning_rate"] * moved, "squares": s}
