"""SGD, AdaGrad and RMSProp, each a formula, from simple to hard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dnn.backend import Array, Ops, Step
from dnn.errors import ConfigurationError, explains_arguments
from dnn.graph.node import Node
from dnn.graph.operations.arithmetic import Subtract, sqrt
from dnn.optimizers.optimizer import Hyperparameter
from dnn.optimizers.rule import Rule
from dnn.parameters import FlatBuffer

__all__ = ["SGD", "AdaGrad", "GradientDescent", "RMSProp"]


class SGD(Rule):
    """Stochastic gradient descent with momentum and weight decay.

    ::

        d <- g + weight_decay w
        v <- momentum v + d
        w <- w - learning_rate v                        or, Nesterov's,
        w <- w - learning_rate (d + momentum v)

    Decoupled weight decay [2]_ is not part of the velocity: then ``d`` is ``g``, and ``w`` becomes
    smaller before the step, as in `Rule`.

    Parameters
    ----------
    learning_rate : float, positive
    momentum : float, in 0 .. 1 without 1
    weight_decay : float, not negative
    nesterov : bool
    decoupled : bool
        Whether weight decay is decoupled.
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
    .. [2] Loshchilov and Hutter, Decoupled weight decay regularization, 2019, algorithm 1.
    """

    @explains_arguments
    def __init__(
        self,
        learning_rate: Hyperparameter = 0.01,
        momentum: Hyperparameter = 0.0,
        weight_decay: Hyperparameter = 0.0,
        nesterov: bool = False,
        decoupled: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, **options)
        self.decoupled = bool(decoupled)
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


class GradientDescent(SGD):
    """`SGD` under its name in MagmaDNN.

    Parameters
    ----------
    learning_rate, momentum, weight_decay : float
    nesterov, decoupled : bool
    **options
        All as in `SGD`.

    Examples
    --------
    >>> from dnn import GradientDescent
    >>> from dnn.graph import var
    >>> x = var("x", (), 3.0)
    >>> training = GradientDescent(0.05).minimize(x**2 + 1.0, {x})
    >>> for _ in range(100):
    ...     loss = training.step()
    >>> round(loss, 4)
    1.0
    """


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
    decoupled : bool
        Whether weight decay is decoupled, as in `Rule`: then ``d`` is ``g``.
    **options
        As in `Optimizer`.

    References
    ----------
    .. [1] Duchi, Hazan and Singer, Adaptive subgradient methods for online learning and
       stochastic optimization, 2011, figure 1, diagonal.
    """

    state_names = ("squares",)

    @explains_arguments
    def __init__(
        self,
        learning_rate: Hyperparameter = 0.01,
        epsilon: Hyperparameter = 1e-10,
        weight_decay: Hyperparameter = 0.0,
        decoupled: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, **options)
        self.decoupled = bool(decoupled)
        self.hyperparameter("epsilon", epsilon, above=0.0)

    def rule(
        self, w: Node, g: Node, state: Mapping[str, Node], scalars: Mapping[str, Node]
    ) -> Mapping[str, Node]:
        """Return the formula."""
        s = state["squares"] + g * g
        moved = g / (sqrt(s) + scalars["epsilon"])
        return {"w": w - scalars["learning_rate"] * moved, "squares": s}


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
    decoupled : bool
        Whether weight decay is decoupled, as in `Rule`: then ``d`` is ``g``.
    **options
        As in `Optimizer`.

    References
    ----------
    .. [1] Tieleman and Hinton, Neural networks for machine learning, lecture 6.5, 2012.
    """

    @explains_arguments
    def __init__(
        self,
        learning_rate: Hyperparameter = 0.01,
        smoothing: Hyperparameter = 0.99,
        epsilon: Hyperparameter = 1e-8,
        momentum: Hyperparameter = 0.0,
        weight_decay: Hyperparameter = 0.0,
        decoupled: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, **options)
        self.decoupled = bool(decoupled)
        self.hyperparameter("smoothing", smoothing, 0.0, below=1.0)
        self.hyperparameter("epsilon", epsilon, above=0.0)
        self.hyperparameter("momentum", momentum, 0.0, below=1.0)
        self.state_names = ("squares", "velocity") if self.is_on("momentum") else ("squares",)

    def prepare(
        self, ops: Ops, scalars: dict[str, Array], state: dict[str, FlatBuffer]
    ) -> list[Step]:
        """Return the call that computes ``1 - smoothing``, with those of `Rule`."""
        smoothing = scalars["smoothing"]
        one = ops.asarray(np.ones((), smoothing.dtype))
        complement = ops.asarray(np.ones(smoothing.shape, smoothing.dtype))
        scalars["complement"] = complement
        steps = super().prepare(ops, scalars, state)
        return [*steps, ops.elementwise(Subtract.formula, (one, smoothing), complement)]

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
