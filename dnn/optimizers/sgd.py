"""Stochastic gradient descent: plain, with momentum, with Nesterov's momentum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnn.errors import ConfigurationError
from dnn.graph.node import Node
from dnn.optimizers.optimizer import Hyperparameter
from dnn.optimizers.rule import Rule

__all__ = ["SGD"]


class SGD(Rule):
    """Stochastic gradient descent with momentum and weight decay.

    ::

        d <- g + weight_decay w
        v <- momentum v + d
        w <- w - learning_rate v                        or, Nesterov's,
        w <- w - learning_rate (d + momentum v)

    Parameters
    ----------
    learning_rate : float, positive
    momentum : float, in 0 .. 1 without 1
    weight_decay : float, not negative
    nesterov : bool
    **options
        As in `Optimizer`.

    Raises
    ------
    ConfigurationError
        If a hyperparameter is out of its range, or Nesterov's momentum is 0.

    References
    ----------
    .. [1] Sutskever et al., On the importance of initialization and momentum in deep learning,
       2013, equations 1 to 4, with the learning rate outside the velocity and Nesterov's
       parameters counted from where the gradient is taken.
    """

    def __init__(
        self,
        learning_rate: Hyperparameter = 0.01,
        momentum: Hyperparameter = 0.0,
        weight_decay: Hyperparameter = 0.0,
        nesterov: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, **options)
        self.hyperparameter("momentum", momentum, 0.0, below=1.0)
        self.nesterov = bool(nesterov)
        if self.nesterov and not self.is_on("momentum"):
            raise ConfigurationError("SGD: nesterov needs a momentum above 0")
        self.state_names = ("velocity",) if self.is_on("momentum") else ()

    def rule(
        self, w: Node, g: Node, state: Mapping[str, Node], scalars: Mapping[str, Node]
    ) -> Mapping[str, Node]:
        """Return the formula."""
        rate, momentum = scalars["learning_rate"], scalars["momentum"]
        if not state:
            return {"w": w - rate * g}
        v = momentum * state["velocity"] + g
        return {"w": w - rate * (g + momentum * v if self.nesterov else v), "velocity": v}
