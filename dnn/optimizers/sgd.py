"""Stochastic gradient descent: plain, with momentum, with Nesterov's momentum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnn.backend import Array, Ops
from dnn.errors import ConfigurationError
from dnn.graph.operation import Step
from dnn.optimizers.optimizer import Block, Hyperparameter, Optimizer

__all__ = ["SGD"]


class SGD(Optimizer):
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
        self.workspaces = 1

    def step(self, ops: Ops, block: Block, scalars: Mapping[str, Array]) -> Step:
        """Return `Ops.sgd_step`, or `Ops.momentum_step` where there is momentum."""
        w, g, state, decay, (moved,) = block
        rate = scalars["learning_rate"]
        if not state:
            return ops.sgd_step, (w, g, rate, decay, moved)
        (v,) = state
        return ops.momentum_step, (w, g, v, rate, scalars["momentum"], decay, self.nesterov, moved)
