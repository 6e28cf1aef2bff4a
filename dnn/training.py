"""Epochs of training: the loop that everything else is kept out of.

A step of a small network takes tens of microseconds, and a line of Python here is felt in each.
So data are checked and plans compiled before the first epoch, and callbacks come after each.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dnn.backend import Array, Ops
from dnn.network import BatchPlan
from dnn.optimizers import Update

__all__ = ["Trainer"]


class Trainer:
    """A training set, and plans for the batches that it is cut into.

    Parameters
    ----------
    compiled : callable (batch: int) -> BatchPlan
        The training plan for a size of batch.
    update : Update
        Of the network's parameters, from its gradients.
    ops : Ops
        Of the device where the plans lie.
    samples, targets : array, length n
        On that device.
    weights : array, shape (n,), or None
    batch_size : int
        The last batch of an epoch holds what remains, on a plan of its own.

    Attributes
    ----------
    samples : int
    steps : int
        In an epoch.
    """

    def __init__(
        self,
        compiled: Callable[[int], BatchPlan],
        update: Update,
        ops: Ops,
        samples: Array,
        targets: Array,
        weights: Array | None,
        batch_size: int,
    ) -> None:
        self.samples = len(samples)
        self.batch_size = min(batch_size, self.samples)
        self._data = (samples, targets, weights)
        self._update = update
        self._ops = ops
        self._whole = compiled(self.batch_size)
        rest = self.samples % self.batch_size
        self._rest = compiled(rest) if rest else None
        self.steps = -(-self.samples // self.batch_size)
        sizes = np.full(self.steps, float(self.batch_size))
        if rest:
            sizes[-1] = rest
        self._shares = ops.asarray(sizes / self.samples)
        # On the device: to fetch a loss would wait for its step.
        self._losses = ops.memory(self.steps * 8).view(np.float64)

    def epoch(self, order: Array, inspect: Callable[[BatchPlan], None] | None = None) -> float:
        """Visit every sample once.

        Parameters
        ----------
        order : array of intp, shape (n,)
            A permutation of the samples.
        inspect : callable, optional
            Called with the plan of each step before the parameters move.

        Returns
        -------
        float
            The mean over samples of the loss, each batch before its step.
        """
        order = self._ops.asarray(order)
        samples, targets, weights = self._data
        size, losses, update = self.batch_size, self._losses, self._update.run
        plan, partial = self._whole, self.samples // size
        load, run, loss = plan.load, plan.plan.run, plan.loss
        for step in range(self.steps):
            if step == partial:  # the last batch
                assert self._rest is not None
                plan = self._rest
                load, run, loss = plan.load, plan.plan.run, plan.loss
            load(samples, targets, weights, order[step * size : (step + 1) * size])
            run()
            if inspect is not None:
                inspect(plan)
            update()
            losses[step] = loss
        return float(losses @ self._shares)
