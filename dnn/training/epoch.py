"""An epoch of training: batches gathered, steps replayed, losses collected.

A step of a small network takes tens of microseconds, of which each line of Python in it is a
noticeable share. So whatever can be done before the first batch is done before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dnn.backend import Array, empty
from dnn.data.augmentation import Images
from dnn.errors import ConfigurationError
from dnn.graph.operation import Step
from dnn.graph.operations.arithmetic import Add, Multiply
from dnn.memory import MemoryManager
from dnn.optimizers import Update
from dnn.training.data import Samples, is_on_host
from dnn.training.loss_scaling import LossScaling
from dnn.training.network import BatchPlan, Network, PlanKind

__all__ = ["EpochInterrupted", "Stage", "StepPiece", "StepRun", "Trainer", "TrainingTask"]


class EpochInterrupted(Exception):
    """An epoch has ended between two steps, since `TrainingTask.interrupt` has returned true."""


class Stage:
    """Memory through which batches go from the host to a GPU, one at a time.

    Parameters
    ----------
    network : Network
        Trained on the GPU.
    samples : Samples
        Lie on the host.
    rows : int
        Rows of the largest batch.
    """

    def __init__(self, network: Network, samples: Samples, rows: int) -> None:
        device, leading = network.ops.device, network.leading
        self._leading = leading
        self._sources: list[Array | Images] = [samples.x, samples.targets(network)]
        if samples.weights is not None:
            self._sources.append(samples.weights)
        sizes = [math.prod((*leading, rows, *array.shape[1:])) for array in self._sources]
        self._memory = [
            MemoryManager(size, array.dtype, "managed", device)
            for size, array in zip(sizes, self._sources, strict=True)
        ]

    def fill(self, order: Array, ahead: bool, images: Array | None = None) -> None:
        """Gather a batch on the host, and with `ahead` begin to send it.

        `order` has the rows of the batch, of shape (batch,), for K networks (K, batch); `images`
        are the prepared samples where these are `Images`.
        """
        for array, memory in zip(self._sources, self._memory, strict=True):
            shape = (*order.shape, *array.shape[1:])
            # Waits until the batch before has been copied from this memory.
            host = memory.write_host(whole=True)[: math.prod(shape)].reshape(shape)
            if isinstance(array, Images):
                assert images is not None
                host[...] = images
            else:
                np.take(array, order, 0, host, "clip")
            if ahead:
                memory.prefetch("device")

    def arrive(self) -> None:
        """Make the batch visible to later work of the GPU, sending it now if that is not done."""
        for memory in self._memory:
            memory.read_device()

    def steps_to(self, plan: BatchPlan, rows: int, part: slice) -> list[Step]:
        """Return steps that copy some rows of a batch, on the GPU, to the inputs of a plan."""
        edges = [plan.x, plan.target]
        if plan.weight is not None:
            edges.append(plan.weight)
        steps: list[Step] = []
        for memory, source, edge in zip(self._memory, self._sources, edges, strict=True):
            shape = (*self._leading, rows, *source.shape[1:])
            batch = memory.read_device()[: math.prod(shape)].reshape(shape)
            chosen = batch[:, part] if self._leading else batch[part]
            steps.append((plan.ops.copy, (chosen, edge)))
        return steps


class StepRun(NamedTuple):
    """Successive steps of an epoch with batches of one size.

    Attributes
    ----------
    rows : int
        Rows of each batch in this process.
    total : int
        Rows of each batch in all processes that train the network together.
    repeats : int
        Number of steps.
    """

    rows: int
    total: int
    repeats: int


class StepPiece(NamedTuple):
    """Calls of a step for some rows of its batch; those of the last piece include the update.

    Attributes
    ----------
    part : slice
        Rows of the batch.
    x : array, shape (rows, ...), optional
        Input of the plan, into which prepared `Images` are loaded; None for other samples, and
        where there are no rows.
    calls : list of (function, arguments)
    """

    part: slice
    x: Array | None
    calls: list[Step]


class TrainingTask(NamedTuple):
    """What a trainer needs besides the network: update, samples and batch size.

    Attributes
    ----------
    update : Update or LossScaling
        Moves the parameters by the gradients.
    samples : Samples
    batch_size : int
        Batch size of all ranks together.
    inspect : callable, optional
        Called with the plan of each batch before the parameters move.
    accumulate : int
        Number of pieces of nearly equal size in which each batch, or a rank's part of it, is
        computed. Their gradients are added up before the parameters move, so that it takes the
        memory of a piece only.
    interrupt : callable, optional
        Called after each step; once it returns true the epoch ends there, see `EpochInterrupted`.
    """

    update: Update | LossScaling
    samples: Samples
    batch_size: int
    inspect: Callable[[BatchPlan], None] | None = None
    accumulate: int = 1
    interrupt: Callable[[], bool] | None = None

    def is_like(self, other: TrainingTask) -> bool:
        """Whether one trainer suits both tasks: same update, sizes and memory of the data."""
        mine, theirs = self.samples, other.samples
        return (
            self.update is other.update
            and self.interrupt == other.interrupt
            and mine.count == theirs.count
            and (self.batch_size, self.accumulate) == (other.batch_size, other.accumulate)
            and _is_view_of_same(mine.x, theirs.x)
            and _is_view_of_same(mine.y, theirs.y)
            and _is_view_of_same(mine.weights, theirs.weights)
        )


class Trainer:
    """Trains a network for epochs on a training set, with compiled plans for its batches.

    The last batch of an epoch has the remaining samples, and a plan of its own. A training set that
    lies on the host is sent to a GPU batch by batch: the next batch is copied, in a stream of its
    own, while one is computed. Batches of `Images` are prepared in threads meanwhile.

    Raises
    ------
    ConfigurationError
        If running statistics are to wait for the end of a step, as in float16, and the step has
        several pieces.

    Attributes
    ----------
    samples : Samples
    count : int
        Samples in an epoch: as many as each network is given.
    steps : int
        Steps in an epoch.
    ahead : int
        Batches that are sent before they are needed: 1, or 0 to send each when it is needed.
    """

    ahead = 1

    def __init__(self, network: Network, task: TrainingTask) -> None:
        self.samples, self.accumulate = task.samples, task.accumulate
        self.count = self.samples.count
        self.batch_size = min(task.batch_size, self.count)
        self._network = network
        self._update = task.update
        self._inspect = task.inspect
        # Not linked with a step, whose calls stay what they are without it.
        self._after_step: list[Step] = []
        if task.interrupt is not None:
            self._after_step = [(_raise_if, (task.interrupt,))]
        self._ops = ops = network.ops
        self._runs = [run for run in self._cut() if run.repeats]
        self.steps = sum(run.repeats for run in self._runs)
        # Share of each batch of this process in the samples of all processes.
        every = sum(run.total * run.repeats for run in self._runs)
        sizes = [size for run in self._runs for size in [run.rows] * run.repeats]
        self._shares = np.array(sizes, np.float64) / every
        # Losses stay on the device: to fetch one would wait for its step.
        shape: tuple[int, ...] = (self.steps, *network.leading)
        self._losses = ops.memory(math.prod(shape) * 8).view(np.float64).reshape(shape)
        # The order of an epoch, and the position in it: see `Ops.end_batch`.
        self._shape = shape = (*network.leading, sum(sizes))
        largest = max(sizes)
        self._stages: list[Stage] = []
        if ops.device != "cpu" and is_on_host(self.samples.x):
            self._stages = [Stage(network, self.samples, largest) for _ in range(2)]
        else:
            self._order = ops.memory(math.prod(shape) * 8).view(np.int64).reshape(shape)
        self._position = ops.asarray(np.zeros(3, np.int64))
        self._begins = self._begins_of_runs()
        self._tallies: Array | None = None
        if network.classes_to_tally is not None:
            shape = (*network.leading, network.classes_to_tally + 1)
            self._tallies = ops.memory(math.prod(shape) * 8).view(np.int64).reshape(shape)
            self._no_tallies = np.zeros(shape, np.int64)
        self._sums: Array | None = None
        if self.accumulate > 1 and largest > 1:
            self._sums = empty(ops, network.gradients.flat.shape, network.dtype)
        # All plans are compiled before any of them is linked.
        for run in self._runs:
            for part in self._parts(run):
                self._plan(part)
        stages: Sequence[Stage | None] = self._stages or (None,)
        self._pieces = [[self._linked(run, stage) for stage in stages] for run in self._runs]

    def _cut(self) -> list[StepRun]:
        """Return how an epoch is cut into steps."""
        size = self.batch_size
        rest = self.count % size
        return [StepRun(size, size, self.count // size), StepRun(rest, rest, 1 if rest else 0)]

    def _begins_of_runs(self) -> list[Array]:
        """Return, for each run, the samples and steps before it, and the rows of its batches."""
        begins: list[Array] = []
        samples = steps = 0
        for run in self._runs:
            begins.append(np.array([samples, steps, run.rows], np.int64))
            samples += run.rows * run.repeats
            steps += run.repeats
        return begins

    def _own_order(self, order: Array) -> Array:
        """Return this process's part of the order of an epoch: all of it."""
        return order

    def _parts(self, run: StepRun) -> list[slice]:
        """Return the rows of each piece of a batch."""
        pieces = min(self.accumulate, run.rows)
        bounds = [run.rows * piece // pieces for piece in range(pieces + 1)] if pieces else []
        return [slice(*pair) for pair in pairwise(bounds)]

    def _plan(self, part: slice) -> BatchPlan:
        kind: PlanKind = "training" if self.samples.weights is None else "weighted training"
        return self._network.plan(kind, part.stop - part.start)

    def _linked(self, run: StepRun, stage: Stage | None) -> list[StepPiece]:
        """Return a whole step, from gathering its batch to its update, linked into few calls."""
        parts, update, network = self._parts(run), self._update, self._network
        plans = [self._plan(part) for part in parts]
        pieces: list[StepPiece] = []
        late: list[Step] = []
        for part, plan in zip(parts, plans, strict=True):
            gather = (
                self._gather(plan, part) if stage is None else stage.steps_to(plan, run.rows, part)
            )
            inspect: list[Step] = [] if self._inspect is None else [(self._inspect, (plan,))]
            compute = plan.plan.steps
            if self._assigns_late():
                # Running statistics are assigned when it is known whether the step is left out.
                compute, assign = plan.plan.split_assignments()
                late = self._late_assignments(assign, len(parts))
                # The step number, on which noise depends, is counted up in any case.
                compute += [step for step in assign if step[1][-1].dtype != network.dtype]
            calls = [
                *self._with_sums(self._scaled((part.stop - part.start) / run.total, compute)),
                *inspect,
                *self._tally(plan),
                *self._accumulated(len(pieces), len(parts)),
            ]
            pieces.append(StepPiece(part, plan.x, [*gather, *calls]))
        if isinstance(update, LossScaling):
            late = update.gated(late)
        loss, of_pieces = self._loss(run, parts, plans)
        for piece, calls in zip(pieces, of_pieces, strict=True):
            piece.calls.extend(calls)
        end: Step = (self._ops.end_batch, (loss, self._losses, self._position))
        last = self._update_steps(run, late, end)
        if not pieces:
            return [StepPiece(slice(0, 0), None, self._ops.link(last))]
        pieces[-1].calls.extend(last)
        if not isinstance(self.samples.x, Images):
            # Nothing is loaded between the pieces, so that they are joined into one.
            calls = [call for each in pieces for call in each.calls]
            pieces = [StepPiece(slice(0, run.rows), None, calls)]
        # Linking may move the update before the end of a plan, and write no gradients to memory.
        updates_early = self._updates_at_once(run) and self._inspect is None
        scratch = update.gradients if updates_early else None
        return [
            piece._replace(calls=self._ops.link(piece.calls, scratch=scratch)) for piece in pieces
        ]

    def _updates_at_once(self, run: StepRun) -> bool:
        """Whether the update follows the gradients of a batch directly."""
        return len(self._parts(run)) == 1

    def _update_steps(self, run: StepRun, late: Sequence[Step], end: Step) -> list[Step]:
        """Return the last steps, once all gradients are computed: update, assignments and `end`."""
        return [*self._update.steps, *late, end]

    def _assigns_late(self) -> bool:
        """Whether steps may be left out, so that their assignments to running statistics wait."""
        return isinstance(self._update, LossScaling)

    def _late_assignments(self, assign: Sequence[Step], pieces: int) -> list[Step]:
        """Return the assignments that are not made in a step that is left out."""
        late = [step for step in assign if step[1][-1].dtype == self._network.dtype]
        if late and pieces > 1:
            message = "running statistics whose steps may be left out take each batch as a whole"
            raise ConfigurationError(f"accumulate={self.accumulate}: {message}")
        return late

    def _scaled(self, weight: float, compute: Sequence[Step]) -> list[Step]:
        """Return the steps of a computation with its gradients multiplied by a weight."""
        if weight == 1.0 and not self._scales_gradients():
            return list(compute)  # no batch of the epoch is shared or in pieces
        network, ops = self._network, self._ops
        factor = ops.asarray(np.full(network.leading, weight, network.dtype))
        if isinstance(self._update, LossScaling):  # which itself sets the gradient scale
            flat = network.gradients.flat
            column = factor.reshape(factor.shape if flat.ndim == 1 else (-1, 1))
            return [*compute, ops.elementwise(Multiply.formula, (flat, column), flat)]
        return [(ops.copy, (factor, network.gradient_scale)), *compute]

    def _with_sums(self, compute: list[Step]) -> list[Step]:
        """Return the steps of a computation, with sums of ready gradients over ranks in between."""
        return compute

    def _accumulated(self, piece: int, pieces: int) -> list[Step]:
        """Return steps that add up gradients of pieces; the last piece leaves the sum in place."""
        flat, sums, ops = self._network.gradients.flat, self._sums, self._ops
        if sums is None or pieces == 1:
            return []
        if piece == 0:
            return [(ops.copy, (flat, sums))]
        into = flat if piece == pieces - 1 else sums
        return [ops.elementwise(Add.formula, (flat, sums), into)]

    def _loss(
        self, run: StepRun, parts: Sequence[slice], plans: Sequence[BatchPlan]
    ) -> tuple[Array, list[list[Step]]]:
        """Return the array of the loss of a batch, and for each piece the steps that add to it."""
        ops, network = self._ops, self._network
        if len(plans) == 1:
            return plans[0].loss, [[]]
        loss, weighed = (ops.asarray(np.zeros(network.leading, network.dtype)) for _ in range(2))
        steps: list[list[Step]] = []
        for part, plan in zip(parts, plans, strict=True):
            share = np.array((part.stop - part.start) / run.rows, network.dtype)
            into = weighed if steps else loss
            steps.append([ops.elementwise(Multiply.formula, (plan.loss, ops.asarray(share)), into)])
            if into is weighed:
                steps[-1].append(ops.elementwise(Add.formula, (loss, weighed), loss))
        return loss, steps

    def _gather(self, plan: BatchPlan, part: slice) -> list[Step]:
        data = self.samples
        x = None if isinstance(data.x, Images) else data.x  # images are loaded in each step
        order = self._order[..., part.start :]
        edges = ((x, plan.x), (data.y, plan.target), (data.weights, plan.weight))
        return [
            (self._ops.take_batch, (array, order, self._position, edge))
            for array, edge in edges
            if array is not None and edge is not None
        ]

    def _tally(self, plan: BatchPlan) -> list[Step]:
        """Return the step that counts the predictions of a batch; none if they are not counted."""
        if self._tallies is None or plan.outputs is None:
            return []
        guesses = empty(self._ops, plan.target.shape, np.int64)
        return [(self._ops.tally_classes, (plan.outputs, plan.target, guesses, self._tallies))]

    def tallies(self) -> Array | None:
        """Return counts of predictions of each network in the last epoch, None without counts.

        They are of shape (K, classes + 1): the predictions of each class, then the number of right
        predictions. Each batch is predicted before its step. The next epoch overwrites them.
        """
        if self._tallies is None:
            return None
        tallies: Array = self._ops.to_host(self._tallies)
        return tallies.reshape(-1, tallies.shape[-1])

    def exchange(self) -> dict[str, Any] | None:
        """Return exchange statistics of the last epoch, as in `History.exchange`: None here."""
        return None

    def epoch(self, order: Array, seeds: Sequence[int] = (), number: int = 0) -> list[float]:
        """Visit every sample once, in each of K networks.

        Parameters
        ----------
        order : array of intp, shape (K, count)
            Which samples each network visits, one after the other.
        seeds : sequence of K int
            Seed of each network for random changes of `Images`.
        number : int, from 0
            Number of the epoch, for the same.

        Returns
        -------
        list of K float
            The mean over samples of the loss, each batch before its step.
        """
        ops, x = self._ops, self.samples.x
        if self._tallies is not None:
            ops.load(self._no_tallies, self._tallies)
        order = self._own_order(order).reshape(self._shape)
        images = None
        if isinstance(x, Images):
            images = self._prepared(x, order, seeds, number)
        if self._stages:
            self._streamed_epoch(order, images)
        else:
            ops.load(order, self._order)
            for run, begin, (pieces,) in zip(self._runs, self._begins, self._pieces, strict=True):
                ops.load(begin, self._position)
                if images is None:
                    (piece,) = pieces
                    calls = [*piece.calls, *self._after_step]
                    for _ in range(run.repeats):
                        for function, arguments in calls:
                            function(*arguments)
                else:
                    self._repeat(run, pieces, images)
        self._update.steps_done += self.steps
        if self._scales_gradients():
            ops.load(
                np.ones(self._network.leading, self._network.dtype), self._network.gradient_scale
            )
        # Contiguous rows, so that losses of K networks are added in the order of a single one.
        losses = np.ascontiguousarray(ops.to_host(self._losses).T * self._shares)
        return self._means(np.add.reduce(losses, axis=-1).reshape(-1))

    def _scales_gradients(self) -> bool:
        """Whether steps change the scale of gradients."""
        if isinstance(self._update, LossScaling):
            return False
        return any(run.rows != run.total or len(self._parts(run)) > 1 for run in self._runs)

    def _means(self, losses: Array) -> list[float]:
        """Return the mean loss of each network, given this process's part of it."""
        means: list[float] = losses.tolist()
        return means

    def _prepared(
        self, x: Images, order: Array, seeds: Sequence[int], number: int
    ) -> Iterator[Array]:
        start = 0
        for run in self._runs:
            stop = start + run.rows * run.repeats
            if run.rows:
                yield from x.batches(order[..., start:stop], run.rows, seeds, number)
            start = stop

    def _repeat(self, run: StepRun, pieces: Sequence[StepPiece], images: Iterator[Array]) -> None:
        """Compute the steps of a run, whose images are prepared in threads."""
        leading = self._network.leading
        for _ in range(run.repeats):
            batch = next(images) if run.rows else None
            for piece in pieces:
                if batch is not None:
                    assert piece.x is not None
                    chosen = batch[:, piece.part] if leading else batch[piece.part]
                    self._ops.load(chosen, piece.x)
                for function, arguments in piece.calls:
                    function(*arguments)
            for function, arguments in self._after_step:
                function(*arguments)

    def _streamed_epoch(self, order: Array, images: Iterator[Array] | None) -> None:
        """Send and compute batch after batch; with `ahead`, the next one is sent first."""
        runs = [each for each, run in enumerate(self._runs) for _ in range(run.repeats)]
        starts = np.cumsum([0, *(self._runs[each].rows for each in runs)])
        self._ops.load(self._begins[0], self._position)
        filled = 0
        for step, each in enumerate(runs):
            while filled < min(step + 1 + self.ahead, self.steps):
                rows = order[..., starts[filled] : starts[filled + 1]]
                if rows.size:
                    prepared = None if images is None else next(images)
                    self._stages[filled % 2].fill(rows, self.ahead > 0, prepared)
                filled += 1
            if self._runs[each].rows:
                self._stages[step % 2].arrive()
            for piece in self._pieces[each][step % 2]:
                for function, arguments in piece.calls:
                    function(*arguments)
            for function, arguments in self._after_step:
                function(*arguments)


def _raise_if(interrupt: Callable[[], bool]) -> None:
    if interrupt():
        raise EpochInterrupted


def _is_view_of_same(a: Array | Images | None, b: Array | Images | None) -> bool:
    """Whether two arrays view the same memory in the same way, or are the same `Images`."""
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return a is b
    return bool(
        a.ctypes.data == b.ctypes.data
        and (a.shape, a.strides, a.dtype) == (b.shape, b.strides, b.dtype)
    )
