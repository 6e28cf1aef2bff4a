"""An epoch of training: batches gathered, steps replayed, losses collected.

A step of a small network takes tens of microseconds, and a line of Python in it is felt: what can
be done before the first batch is done here before the first batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dnn.backend import Array, empty
from dnn.data.augmentation import Images
from dnn.graph.operation import Step
from dnn.memory import MemoryManager
from dnn.optimizers import Update
from dnn.training.data import Samples, lies_on_host
from dnn.training.loss_scaling import LossScaling
from dnn.training.network import BatchPlan, Network, PlanKind

__all__ = ["Stage", "Trainer", "is_view_of_same"]


class Stage:
    """A batch on its way from the host to a GPU.

    Parameters
    ----------
    network : Network
        That is trained on the GPU.
    samples : Samples
        On the host.
    rows : int
        Of the largest batch.
    """

    def __init__(self, network: Network, samples: Samples, rows: int) -> None:
        device, leading = network.ops.device, network.leading
        self._sources: list[Array | Images] = [samples.x, samples.targets(network)]
        if samples.weights is not None:
            self._sources.append(samples.weights)
        sizes = [math.prod((*leading, rows, *array.shape[1:])) for array in self._sources]
        self._memory = [
            MemoryManager(size, array.dtype, "managed", device)
            for size, array in zip(sizes, self._sources, strict=True)
        ]

    def fill(self, order: Array, ahead: bool, images: Array | None = None) -> None:
        """Gather a batch on the host, and begin to send it if it is needed later only.

        `order` says which rows, of shape (batch,), for K networks (K, batch); `images` are the
        samples where these were prepared.
        """
        for array, memory in zip(self._sources, self._memory, strict=True):
            shape = (*order.shape, *array.shape[1:])
            # Waits until the copy of the batch before has left this memory.
            host = memory.write_host(whole=True)[: math.prod(shape)].reshape(shape)
            if isinstance(array, Images):
                assert images is not None
                host[...] = images
            else:
                np.take(array, order, 0, host, "clip")
            if ahead:
                memory.prefetch("device")

    def arrive(self) -> None:
        """Let the GPU's later work see the batch; what was not sent ahead is sent now."""
        for memory in self._memory:
            memory.read_device()

    def steps_to(self, plan: BatchPlan) -> list[Step]:
        """Return what copies the batch, on the GPU, to the inputs of a plan."""
        edges = [plan.x, plan.target]
        if plan.weight is not None:
            edges.append(plan.weight)
        return [
            (plan.ops.copy, (memory.read_device()[: edge.size].reshape(edge.shape), edge))
            for memory, edge in zip(self._memory, edges, strict=True)
        ]


class Trainer:
    """A training set, and plans for the batches that it is cut into.

    `update` moves the network's parameters by its gradients. The last batch of an epoch holds what
    remains, on a plan of its own. `inspect` is called with the plan of each batch before the
    parameters move.

    A training set that lies on the host is sent to a GPU batch by batch: the next one travels,
    in a stream of its own, while this one is computed. Batches of `Images` are prepared in threads
    beside it.

    Attributes
    ----------
    samples : Samples
    count : int
        Samples in an epoch: as many as each network is given.
    steps : int
        In an epoch.
    ahead : int
        Batches that are sent before they are needed: 1, or 0 to send each when it is.
    """

    ahead = 1

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
        self.samples = samples
        self._update = update
        self._inspect = inspect
        self._ops = ops = network.ops
        weighted = samples.weights is not None
        kind: PlanKind = "weighted training" if weighted else "training"
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
        self._shape = shape = (*network.leading, self.count)
        self._stages: list[Stage] = []
        if ops.device != "cpu" and lies_on_host(samples.x):
            self._stages = [Stage(network, samples, self.batch_size) for _ in range(2)]
        else:
            self._order = ops.memory(math.prod(shape) * 8).view(np.int64).reshape(shape)
        self._position = ops.asarray(np.array([0, 0, self.batch_size], np.int64))
        self._tallies: Array | None = None
        if network.classes_to_tally is not None:
            shape = (*network.leading, network.classes_to_tally + 1)
            self._tallies = ops.memory(math.prod(shape) * 8).view(np.int64).reshape(shape)
            self._no_tallies = np.zeros(shape, np.int64)
        # Both are compiled before either is linked.
        plans = [network.plan(kind, batch) for batch in (self.batch_size, rest) if batch]
        self._inputs = [plan.x for plan in plans]
        ways: Sequence[Stage | None] = self._stages or (None,)
        self._whole_steps = [self._linked(plans[0], stage) for stage in ways]
        last = ways[(self.steps - 1) % len(ways)]
        self._last_step = self._linked(plans[1], last) if rest else []

    def suits(self, update: Update | LossScaling, samples: Samples, batch_size: int) -> bool:
        """Whether it moves the parameters by this update, on data that lie where its own do."""
        mine = self.samples
        return (
            update is self._update
            and (self.count, self.batch_size) == (samples.count, min(batch_size, samples.count))
            and is_view_of_same(mine.x, samples.x)
            and is_view_of_same(mine.y, samples.y)
        )

    def _linked(self, plan: BatchPlan, stage: Stage | None) -> list[Step]:
        """Return a whole step, from the gathering of its batch to its loss, in as few calls."""
        gather = self._gather(plan) if stage is None else stage.steps_to(plan)
        look: list[Step] = [] if self._inspect is None else [(self._inspect, (plan,))]
        end: Step = (self._ops.end_batch, (plan.loss, self._losses, self._position))
        compute, tally, update = plan.plan.steps, self._tally(plan), self._update
        assign: list[Step] = []
        if isinstance(update, LossScaling):
            # Assigned is when it is known whether the step counts.
            compute, assign = plan.plan.steps_apart()
            assign = update.gated(assign)
        steps = [*gather, *compute, *look, *tally, *update.steps, *assign, end]
        # Linked, an update may come before the end of a plan, and gradients be nowhere.
        return steps if look else self._ops.link(steps, scratch=self._update.gradients)

    def _gather(self, plan: BatchPlan) -> list[Step]:
        data = self.samples
        x = None if isinstance(data.x, Images) else data.x  # those are loaded in each step
        edges = ((x, plan.x), (data.y, plan.target), (data.weights, plan.weight))
        return [
            (self._ops.take_batch, (array, self._order, self._position, edge))
            for array, edge in edges
            if array is not None and edge is not None
        ]

    def _tally(self, plan: BatchPlan) -> list[Step]:
        """Return what counts the predictions of a batch, if they are to be counted."""
        if self._tallies is None or plan.outputs is None:
            return []
        guesses = empty(self._ops, plan.target.shape, np.int64)
        return [(self._ops.tally_classes, (plan.outputs, plan.target, guesses, self._tallies))]

    def tallies(self) -> list[list[int]] | None:
        """Return what each network predicted in the last epoch, None where it is not counted.

        A list for each: the predictions of each class, and behind them the number of right
        predictions; each batch before its step.
        """
        if self._tallies is None:
            return None
        tallies: Array = self._ops.to_host(self._tallies)
        by_model: list[list[int]] = tallies.reshape(-1, tallies.shape[-1]).tolist()
        return by_model

    def exchange(self) -> dict[str, Any] | None:
        """Return what the last epoch cost several ranks, as `History.exchange` has it."""
        return None

    def epoch(self, order: Array, seeds: Sequence[int] = (), number: int = 0) -> list[float]:
        """Visit every sample once, in each of K networks.

        Parameters
        ----------
        order : array of intp, shape (K, count)
            Which samples each network visits, one after the other.
        seeds : sequence of K int
            What `Images` draw from for each network.
        number : int, from 0
            Of the epoch, for the same.

        Returns
        -------
        list of K float
            The mean over samples of the loss, each batch before its step.
        """
        if self._tallies is not None:
            self._ops.load(self._no_tallies, self._tallies)
        self._position[:2] = 0
        order = order.reshape(self._shape)
        x = self.samples.x
        images = None
        if isinstance(x, Images):
            images = x.batches(order, self.batch_size, seeds, number)
        if self._stages:
            self._streamed_epoch(order, images)
        elif images is not None:
            self._ops.load(order, self._order)
            for step, batch in enumerate(images):
                is_whole = (step + 1) * self.batch_size <= self.count
                self._ops.load(batch, self._inputs[0 if is_whole else -1])
                for function, arguments in self._whole_steps[0] if is_whole else self._last_step:
                    function(*arguments)
        else:
            self._ops.load(order, self._order)
            (whole_step,) = self._whole_steps
            for _ in range(self.count // self.batch_size):
                for function, arguments in whole_step:
                    function(*arguments)
            for function, arguments in self._last_step:
                function(*arguments)
        self._update.steps_done += self.steps
        # Contiguous rows, so that the losses of K networks are summed up as those of one are.
        losses = np.ascontiguousarray(self._ops.to_host(self._losses).T * self._shares)
        means: list[float] = np.add.reduce(losses, axis=-1).reshape(-1).tolist()
        return means

    def _streamed_epoch(self, order: Array, images: Iterator[Array] | None) -> None:
        """Send and compute batch after batch, the next one being sent first."""
        size, filled = self.batch_size, 0
        for step in range(self.steps):
            while filled < min(step + 1 + self.ahead, self.steps):
                rows = order[..., filled * size : (filled + 1) * size]
                prepared = None if images is None else next(images)
                self._stages[filled % 2].fill(rows, self.ahead > 0, prepared)
                filled += 1
            self._stages[step % 2].arrive()
            is_whole = (step + 1) * size <= self.count
            steps = self._whole_steps[step % 2] if is_whole else self._last_step
            for function, arguments in steps:
                function(*arguments)


def is_view_of_same(a: Array | Images, b: Array | Images) -> bool:
    """Whether two arrays are the same memory in the same shape, or two sets of images one."""
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return a is b
    return bool(
        a.ctypes.data == b.ctypes.data
        and (a.shape, a.strides, a.dtype) == (b.shape, b.strides, b.dtype)
    )
