"""Epochs of training: the loop that everything else is kept out of.

A step of a small network takes tens of microseconds, and a line of Python here is felt in each.
So data are checked and plans compiled before the first epoch, and callbacks come after each.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dnn.backend import Array, empty
from dnn.graph.operation import Step
from dnn.optimizers import Update
from dnn.training.data import Samples
from dnn.training.loss_scaling import LossScaling
from dnn.training.network import BatchPlan, Network

__all__ = ["Trainer"]


class Trainer:
    """A training set, and plans for the batches that it is cut into.

    Parameters
    ----------
    network : Network
    update : Update
        Of the network's parameters, from its gradients.
    samples : Samples
        On the network's device. Each epoch visits as many as each network is given.
    batch_size : int
        The last batch of an epoch holds what remains, on a plan of its own.
    inspect : callable, optional
        Called with the plan of each batch before the parameters move.

    Attributes
    ----------
    count : int
        Samples in an epoch.
    steps : int
        In an epoch.
    """

    def __init__(
        self,
        network: Network,
        update: Update | LossScaling,
        samples: Samples,
        batch_size: int,
        inspect: Callable[[BatchPlan], None] | None = None,
    ) -> None:
        self.count = samples.count
        self.batch_size = min(batch_size, self.count)
        self._samples = samples
        self._update = update
        self._inspect = inspect
        self._ops = ops = network.ops
        weighted = samples.weights is not None
        compiled = network.weighted_training_plan if weighted else network.training_plan
        rest = self.count % self.batch_size
        self.steps = -(-self.count // self.batch_size)
        sizes = np.full(self.steps, float(self.batch_size))
        if rest:
            sizes[-1] = rest
        self._shares = sizes / self.count
        # On the device: to fetch a loss would wait for its step.
        shape: tuple[int, ...] = (self.steps, *network.leading)
        self._losses = ops.memory(math.prod(shape) * 8).view(np.float64).reshape(shape)
        # Where the order of an epoch stands, and how far it has come: see `Ops.end_batch`.
        shape = (*network.leading, self.count)
        self._order = ops.memory(math.prod(shape) * 8).view(np.int64).reshape(shape)
        self._position = ops.asarray(np.array([0, 0, self.batch_size], np.int64))
        self._tallies: Array | None = None
        if network.classes_to_tally is not None:
            shape = (*network.leading, network.classes_to_tally + 1)
            self._tallies = ops.memory(math.prod(shape) * 8).view(np.int64).reshape(shape)
            self._no_tallies = np.zeros(shape, np.int64)
        whole, last = compiled(self.batch_size), compiled(rest) if rest else None
        self._whole_step = self._linked(whole)
        self._last_step = [] if last is None else self._linked(last)

    def suits(self, update: Update | LossScaling, samples: Samples, batch_size: int) -> bool:
        """Whether it moves the parameters by this update, on data that lie where its own do."""
        mine = self._samples
        return (
            update is self._update
            and (self.count, self.batch_size) == (samples.count, min(batch_size, samples.count))
            and _is_view_of_same(mine.x, samples.x)
            and _is_view_of_same(mine.y, samples.y)
        )

    def _linked(self, plan: BatchPlan) -> list[Step]:
        """Return a whole step, from the gathering of its batch to its loss, in as few calls."""
        data = self._samples
        edges = ((data.x, plan.x), (data.y, plan.target), (data.weights, plan.weight))
        gather: list[Step] = [
            (self._ops.take_batch, (array, self._order, self._position, edge))
            for array, edge in edges
            if array is not None and edge is not None
        ]
        look: list[Step] = [] if self._inspect is None else [(self._inspect, (plan,))]
        end: Step = (self._ops.end_batch, (plan.loss, self._losses, self._position))
        steps = [*gather, *plan.plan.steps, *look, *self._tally(plan), *self._update.steps, end]
        # Linked, an update may come before the end of a plan, and gradients be nowhere.
        return steps if look else self._ops.link(steps, scratch=self._update.gradients)

    def _tally(self, plan: BatchPlan) -> list[Step]:
        """Return what counts the predictions of a batch, if they are to be counted."""
        if self._tallies is None or plan.outputs is None:
            return []
        guesses = empty(self._ops, plan.target.shape, np.int64)
        return [(self._ops.tally_classes, (plan.outputs, plan.target, guesses, self._tallies))]

    def tallies(self) -> list[list[int]] | None:
        """Return what was predicted in the last epoch, None where it is not counted.

        Returns
        -------
        list of K list of classes + 1 int, or None
            For each network the predictions of each class, and behind them the right ones; each
            batch before its step.
        """
        if self._tallies is None:
            return None
        tallies: Array = self._ops.to_host(self._tallies)
        by_model: list[list[int]] = tallies.reshape(-1, tallies.shape[-1]).tolist()
        return by_model

    def epoch(self, order: Array) -> list[float]:
        """Visit every sample once, in each of K networks.

        Parameters
        ----------
        order : array of intp, shape (K, count)
            Which samples each network visits, one after the other.

        Returns
        -------
        list of K float
            The mean over samples of the loss, each batch before its step.
        """
        if self._tallies is not None:
            self._ops.load(self._no_tallies, self._tallies)
        self._ops.load(order.reshape(self._order.shape), self._order)
        self._position[:2] = 0
        for _ in range(self.count // self.batch_size):
            for function, arguments in self._whole_step:
                function(*arguments)
        for function, arguments in self._last_step:
            function(*arguments)
        self._update.steps_done += self.steps
        # Contiguous rows, so that the losses of K networks are summed up as those of one are.
        losses = np.ascontiguousarray(self._ops.to_host(self._losses).T * self._shares)
        means: list[float] = np.add.reduce(losses, axis=-1).reshape(-1).tolist()
        return means


def _is_view_of_same(a: Array, b: Array) -> bool:
    if type(a) is not type(b) or not isinstance(a, np.ndarray):
        return a is b
    return bool(
        a.ctypes.data == b.ctypes.data
        and (a.shape, a.strides, a.dtype) == (b.shape, b.strides, b.dtype)
    )
