"""AdaGrad: a learning rate for each parameter, by all its gradients so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dnn.backend import Array, Ops
from dnn.graph.operation import Step
from dnn.optimizers.optimizer import Block, Hyperparameter, Optimizer

__all__ = ["AdaGrad"]


class AdaGrad(Optimizer):
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
    workspaces = 2

    def __init__(
        self,
        learning_rate: Hyperparameter = 0.01,
        epsilon: Hyperparameter = 1e-10,
        weight_decay: Hyperparameter = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, **options)
        self.hyperparameter("epsilon", epsilon, above=0.0)

    def step(self, ops: Ops, block: Block, scalars: Mapping[str, Array]) -> Step:
        """Return `Ops.adagrad_step`."""
        w, g, (s,), decay, workspace = block
        return ops.adagrad_step, (
            *(w, g, s),
            *(scalars["learning_rate"], scalars["epsilon"], decay),
            *workspace,
        )
