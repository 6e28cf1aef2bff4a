"""Adam, with decoupled weight decay or Nesterov's momentum, each a formula."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dnn.backend import Array, Ops, Step
from dnn.errors import explains_arguments
from dnn.graph.node import Node, variable
from dnn.graph.operations.arithmetic import exp, sqrt
from dnn.optimizers.optimizer import Hyperparameter
from dnn.optimizers.rule import Rule, update_formula
from dnn.parameters import FlatBuffer, Segment

__all__ = ["Adam", "AdamW", "NAdam"]


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

    @explains_arguments
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
        """Return the call that counts the step and computes coefficients from its number."""
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
        s, m, root = _moments(g, state, scalars)
        return {"squares": s, "mean": m, "w": w - scalars["step_size"] * (m / root)}


def _moments(
    g: Node, state: Mapping[str, Node], scalars: Mapping[str, Node]
) -> tuple[Node, Node, Node]:
    """Return Adam's new mean of squares, its new mean, and the divisor of the step."""
    s = scalars["beta2"] * state["squares"] + scalars["complement2"] * (g * g)
    m = scalars["beta1"] * state["mean"] + scalars["complement1"] * g
    return s, m, sqrt(s) / scalars["correction"] + scalars["epsilon"]


class AdamW(Adam):
    """Adam with decoupled weight decay, which is not part of Adam's averages.

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

    @explains_arguments
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


class NAdam(Adam):
    """Adam with Nesterov's momentum, whose factor grows from half of `beta1` on.

    ::

        d <- g + weight_decay w
        m <- beta1 m + (1 - beta1) d
        s <- beta2 s + (1 - beta2) d^2
        mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2)
        p_t = mu_1 ... mu_t
        u = mu_(t+1) m / (1 - p_(t+1)) + (1 - mu_t) d / (1 - p_t)
        w <- w - learning_rate u / (sqrt(s / (1 - beta2^t)) + epsilon)

    in the t-th step.

    Parameters
    ----------
    learning_rate : float, positive
    beta1, beta2 : float, in 0 .. 1 without 1
    epsilon : float, positive
    weight_decay : float, not negative
    momentum_decay : float, not negative
    decoupled : bool
        Whether weight decay is decoupled, as in `Rule`: then ``d`` is ``g``.
    **options
        As in `Optimizer`.

    References
    ----------
    .. [1] Dozat, Incorporating Nesterov momentum into Adam, 2016, algorithm 2, with the factors
       of Sutskever et al., On the importance of initialization and momentum in deep learning,
       2013.
    """

    @explains_arguments
    def __init__(
        self,
        learning_rate: Hyperparameter = 0.002,
        beta1: Hyperparameter = 0.9,
        beta2: Hyperparameter = 0.999,
        epsilon: Hyperparameter = 1e-8,
        weight_decay: Hyperparameter = 0.0,
        momentum_decay: Hyperparameter = 0.004,
        decoupled: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, beta1, beta2, epsilon, weight_decay, **options)
        self.decoupled = bool(decoupled)
        self.hyperparameter("momentum_decay", momentum_decay, 0.0)

    def prepare(
        self, ops: Ops, scalars: dict[str, Array], state: dict[str, FlatBuffer]
    ) -> list[Step]:
        """Return the calls that count the step and compute factors of the mean and gradient."""
        steps = super().prepare(ops, scalars, state)
        like = scalars["beta1"]
        models = len(like) if like.ndim else None
        # State begins as zeros, so 1 minus the product of all factors is kept, not the product.
        segments = [Segment("steps", (1,), 0), Segment("lacking", (1,), 1)]
        momentum = state["momentum"] = FlatBuffer(segments, like.dtype, ops, models)
        shape = (*like.shape[:1], 1)
        rows = {
            "steps": momentum["steps"],
            "lacking": momentum["lacking"],
            "of_mean": ops.asarray(np.ones(shape, like.dtype)),
            "of_gradient": ops.asarray(np.ones(shape, like.dtype)),
        }
        names = ("learning_rate", "beta1", "momentum_decay")
        given = {**rows, **{name: scalars[name] for name in names}}
        nodes = {name: variable(x.shape, x.dtype, name) for name, x in given.items()}
        rate, beta1, decay = (nodes[name] for name in names)

        def factor(t: Node) -> Node:
            return beta1 * (1.0 - 0.5 * exp(t * (decay * math.log(0.96))))

        t = nodes["steps"] + 1.0
        now, after = factor(t), factor(t + 1.0)
        product = (1.0 - nodes["lacking"]) * now
        new = {
            "steps": t,
            "lacking": 1.0 - product,
            "of_mean": rate * after / (1.0 - product * after),
            "of_gradient": rate * (1.0 - now) / (1.0 - product),
        }
        formula = update_formula(
            "NAdam", new, list(rows), {node: name for name, node in nodes.items()}
        )

        def workspace(types: Sequence[np.dtype[Any]]) -> list[Array]:
            return [ops.asarray(np.ones(shape, x)) for x in types]

        arrays = [scalars[name] for name in formula.scalars]
        steps.append(ops.update(formula, list(rows.values()), arrays, workspace))
        for name in ("of_mean", "of_gradient"):
            scalars[name] = rows[name].reshape(like.shape)
        return steps

    def rule(
        self, w: Node, g: Node, state: Mapping[str, Node], scalars: Mapping[str, Node]
    ) -> Mapping[str, Node]:
        """Return the formula, with what `prepare` has computed from the number of the step."""
        s, m, root = _moments(g, state, scalars)
        moved = scalars["of_mean"] * m + scalars["of_gradient"] * g
        return {"squares": s, "mean": m, "w": w - moved / root}
