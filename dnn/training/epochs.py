"""Epochs of training: the loop that everything else is kept out of.

A step of a small network takes tens of microseconds, and a line of Python here is felt in each.
So data are checked and plans compiled before the first epoch, and callbacks come after each.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dnn.backend import Array, Ops, empty
from dnn.graph.operation import Step
from dnn.optimizers import Update
from dnn.training.loss_scaling import LossScaling
from dnn.training.network import BatchPlan

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
    rows : int, optional
        How many samples an epoch visits; n if left out.
    classes : int, optional
        Count predictions of so many classes.

    Attributes
    ----------
    rows : int
    steps : int
        In an epoch.
    """

    def __init__(
        self,
        compiled: Callable[[int], BatchPlan],
        update: Update | LossScaling,
        ops: Ops,
        samples: Array,
        targets: Array,
        weights: Array | None,
        batch_size: int,
        rows: int | None = None,
        classes: int | None = None,
    ) -> None:
        self.rows = len(samples) if rows is None else rows
        self.batch_size = min(batch_size, self.rows)
        self._data: tuple[Array, Array, Array | None] = (samples, targets, weights)
        self._update = update
        self._ops = ops
        self._whole = compiled(self.batch_size)
        rest = self.rows % self.batch_size
        self._rest = compiled(rest) if rest else None
        self.steps = -(-self.rows // self.batch_size)
        sizes = np.full(self.steps, float(self.batch_size))
        if rest:
            sizes[-1] = rest
        self._shares = sizes / self.rows
        # On the device: to fetch a loss would wait for its step.
        models = self._whole.loss.shape
        shape = (self.steps, *models)
        self._losses = ops.memory(math.prod(shape) * 8).view(np.float64).reshape(shape)
        # Where the order of an epoch stands, and how far it has come: see `Ops.end_batch`.
        shape = (*models, self.rows)
        self._order = ops.memory(math.prod(shape) * 8).view(np.int64).reshape(shape)
        self._position = ops.asarray(np.array([0, 0, self.batch_size], np.int64))
        self._tallies: Array | None = None
        if classes is not None:
            shape = (*models, classes + 1)
            self._tallies = ops.memory(math.prod(shape) * 8).view(np.int64).reshape(shape)
            self._no_tallies = np.zeros(shape, np.int64)
        self._whole_step = self._linked(self._whole)
        self._rest_step = [] if self._rest is None else self._linked(self._rest)

    @property
    def targets(self) -> Array:
        """The targets that it was given."""
        return self._data[1]

    def suits(self, update: Update | LossScaling, samples: Array, targets: Array) -> bool:
        """Whether it moves the parameters by this update, on data that lie where its own do."""
        pairs = zip(self._data, (samples, targets), strict=False)
        return update is self._update and all(
            mine is not None and _is_view_of_same(mine, given) for mine, given in pairs
        )

    def _linked(self, plan: BatchPlan) -> list[Step]:
        """Return a whole step, from the gathering of its batch to its loss, in as few calls."""
        edges = (plan.x, plan.target, plan.weight)
        gather: list[Step] = [
            (self._ops.take_batch, (data, self._order, self._position, edge))
            for data, edge in zip(self._data, edges, strict=True)
            if data is not None and edge is not None
        ]
        end: Step = (self._ops.end_batch, (plan.loss, self._losses, self._position))
        steps = [*gather, *plan.plan.steps, *self._tally(plan), *self._update.steps, end]
        return self._ops.link(steps, scratch=self._update.gradients)

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
            batch before its step. A single network is K = 1.
        """
        if self._tallies is None:
            return None
        tallies: Array = self._ops.to_host(self._tallies)
        by_model: list[list[int]] = tallies.reshape(-1, tallies.shape[-1]).tolist()
        return by_model

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
        self._visit(order, inspect)
        return float((self._ops.to_host(self._losses) * self._shares).sum())

    def epoch_of_models(self, order: Array) -> list[float]:
        """Visit every sample once, in K networks at once.

        Parameters
        ----------
        order : array of intp, shape (K, n)

        Returns
        -------
        list of K float
            As `epoch` returns it.
        """
        self._visit(order, None)
        # Rows that are contiguous, so that they are summed up as a single network's losses are.
        by_model = self._ops.to_host(self._losses).T * self._shares
        means: list[float] = np.ascontiguousarray(by_model).sum(axis=1).tolist()
        return means

    def _visit(self, order: Array, inspect: Callable[[BatchPlan], None] | None) -> None:
        if self._tallies is not None:
            self._ops.load(self._no_tallies, self._tallies)
        if inspect is not None:
            self._visit_and_inspect(self._ops.asarray(order), inspect)
            return
        self._ops.load(order, self._order)
        self._position[:2] = 0
        for _ in range(self.rows // self.batch_size):
            for function, arguments in self._whole_step:
                function(*arguments)
        for function, arguments in self._rest_step:  # the last batch
            function(*arguments)
        self._update.steps_done += self.steps

    def _visit_and_inspect(self, order: Array, inspect: Callable[[BatchPlan], None]) -> None:
        samples, targets, weights = self._data
        size, losses, update = self.batch_size, self._losses, self._update.run
        plan, partial = self._whole, self.rows // size
        load, run, loss = plan.load, plan.plan.run, plan.loss
        tally = self._tally(plan)
        for step in range(self.steps):
            if step == partial:  # the last batch
                assert self._rest is not None
                plan = self._rest
                load, run, loss = plan.load, plan.plan.run, plan.loss
                tally = self._tally(plan)
            load(samples, targets, weights, order[..., step * size : (step + 1) * size])
            run()
            inspect(plan)
            for function, arguments in tally:
                function(*arguments)
            update()
            losses[step] = loss


def _is_view_of_same(a: Array, b: Array) -> bool:
    if type(a) is not type(b) or not isinstance(a, np.ndarray):
        return a is b
    return bool(
        a.ctypes.data == b.ctypes.data
        and (a.shape, a.strides, a.dtype) == (b.shape, b.strides, b.dtype)
    )
