"""The optimizers that come with dnn, each a formula, from simple to hard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dnn.backend import Array, Ops, Step
from dnn.errors import ConfigurationError
from dnn.graph.node import Node
from dnn.graph.operations.arithmetic import Multiply, Subtract, sqrt
from dnn.optimizers.optimizer import Hyperparameter
from dnn.optimizers.rule import Rule
from dnn.parameters import FlatBuffer, Segment

__all__ = ["SGD", "AdaGrad", "Adam", "AdamW", "GradientDescent", "RMSProp"]


class SGD(Rule):
    """Stochastic gradient descent with momentum and weight decay.

    ::

        d <- g + weight_decay w
        v <- momentum v + d
        w <- w - learning_rate v                        or, Nesterov's,
        w <- w - learning_rate (d + momentum v)

    Decoupled weight decay [2]_ passes by the velocity: then ``d`` is ``g``, and before the step::

        w <- (1 - learning_rate weight_decay) w

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
    .. [2] Loshchilov and Hutter, Decoupled weight decay regularization, 2019, algorithm 1, with
       the learning rate as a factor of the decay.
    """

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

    def prepare(
        self, ops: Ops, scalars: dict[str, Array], state: dict[str, FlatBuffer]
    ) -> list[Step]:
        """Compute ``1 - learning_rate weight_decay``, where weight decay is decoupled."""
        if not self.decoupled:
            return []
        rate, decay = scalars["learning_rate"], scalars["weight_decay"]
        one, keep = (ops.asarray(np.ones(x, rate.dtype)) for x in ((), rate.shape))
        scalars["keep"] = keep
        return [
            ops.elementwise(Multiply.formula, (rate, decay), keep),
            ops.elementwise(Subtract.formula, (one, keep), keep),
        ]

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
    """`SGD`, by the name that it has in MagmaDNN.

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

    decoupled = True

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
