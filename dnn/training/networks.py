"""The engine of training: K networks of the same layers, and one loop over epochs.

`NeuralNetwork` and `Ensemble` are what users hold; both are `Networks`, a `NeuralNetwork` being
K = 1 and its arrays without an axis of models.

A step of a small network takes tens of microseconds, and a line of Python in it is felt. So data
are checked and plans compiled before the first epoch, and callbacks come after each.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dnn.backend import Array, Ops, empty
from dnn.data.augmentation import Images
from dnn.errors import check_count
from dnn.graph.operation import Step
from dnn.layers import Layer
from dnn.losses import Loss, loss_of
from dnn.memory import MemoryManager
from dnn.optimizers import Optimizer, Update
from dnn.precision import Precision
from dnn.seeds import epoch_orders
from dnn.training.data import Rows, Samples, checked_samples, lies_on_host
from dnn.training.evaluation import evaluate, outputs_of
from dnn.training.history import History
from dnn.training.loss_scaling import LossScaling
from dnn.training.network import BatchPlan, Network, PlanKind
from dnn.training.state import State, load_states, states_of

if TYPE_CHECKING:
    from dnn.tensor import Tensor

__all__ = ["BatchSizes", "Fit", "Networks", "Trainer", "checked_batch_size"]

BatchSizes = Callable[[int], int]
"""``epochs done -> size of a batch``."""


def checked_batch_size(given: int | BatchSizes) -> int | BatchSizes:
    """Return a size of batches, at least 1, or a function that gives one for each epoch."""
    return given if callable(given) else check_count("batch_size", given)


class Networks:
    """K networks of the same layers, with what trains them; a single network has an int as seed."""

    def __init__(
        self,
        layers: Sequence[Layer],
        loss: str | Loss,
        optimizer: Optimizer,
        seeds: int | Sequence[int],
        precision: Precision,
        ops: Ops,
        passes: Sequence[str] | None = None,
    ) -> None:
        self.optimizer = optimizer
        self._seeds = [*seeds] if isinstance(seeds, Sequence) else [seeds]
        self._network = Network(layers, loss_of(loss), seeds, precision, ops, passes)
        self._use(self._bound(optimizer))
        self._histories = [History() for _ in self._seeds]
        self._overflowed_in: dict[int, str] = {}
        # Networks that have left a plan, or all as they were when the last of them did.
        self._ended: dict[int, State] = {}

    def _bound(self, optimizer: Optimizer) -> Update | LossScaling:
        network = self._network
        update = optimizer.bind(network.ops, network.parameters, network.gradients)
        if not network.precision.scales_loss:
            return update
        buffers = network.parameters, network.gradients, network.state_buffer
        return LossScaling(update, *buffers, network.gradient_scale)

    def _use(self, update: Update | LossScaling) -> None:
        """Let this be what moves the parameters from now on."""
        self._update: Update | LossScaling = update
        self._trainer: Trainer | None = None
        self._network.average_by(update)

    def explain_divergence(self, k: int = 0) -> str:
        """Return the layer where a network met infinity first that diverged in the last `fit`.

        Parameters
        ----------
        k : int

        Returns
        -------
        str
            The layer's name; empty unless it was trained in float16, whose products end early.
        """
        return self._overflowed_in.get(k, "")

    def _trainer_of(
        self, samples: Samples, batch_size: int, inspect: Callable[[BatchPlan], None] | None
    ) -> Trainer:
        """Return what trains on samples: the one of the last call, if it suits."""
        trainer = self._trainer
        if trainer is None or not trainer.suits(self._update, samples, batch_size):
            trainer = Trainer(self._network, self._update, samples, batch_size, inspect)
        self._trainer = trainer
        return trainer

    def _regroup(self, states: Sequence[State], indices: Sequence[int]) -> None:
        """Let the plans be of these networks alone.

        `states` are after the same number of steps, and `indices` say which of the optimizer's
        values belong to each of them.
        """
        self._network.resize(len(states))
        optimizer = self.optimizer.for_networks(indices)
        self._use(self._bound(optimizer))
        load_states(self._network, self._update, states)

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """Every parameter by name, as a tensor of the network's own memory.

        Writing into it changes the network. For K networks of shape (K, ...).
        """
        buffer = self._network.parameters
        return {segment.name: buffer.tensor(segment.name) for segment in buffer.segments}

    def __call__(self, x: npt.ArrayLike) -> Array:
        """Return what the last layer puts out for each sample; of a classification, logits.

        Parameters
        ----------
        x : array_like, shape (n, ...)

        Returns
        -------
        array of float, shape (n, outputs)
            Of K networks (K, n, outputs), for the same samples.

        Raises
        ------
        ShapeError, DataError
            As for `predict`.
        """
        samples = checked_samples(self._network, "x", x)
        return outputs_of(self._network, samples, "evaluation")

    def predict(self, x: npt.ArrayLike) -> Array:
        """Return the class of each sample, or the outputs where the loss is no classification's.

        Parameters
        ----------
        x : array_like, shape (n, ...)

        Returns
        -------
        array of intp, shape (n,), or array of float, shape (n, outputs)
            Of K networks (K, n) or (K, n, outputs), for the same samples.

        Raises
        ------
        ShapeError, DataError
            If the samples do not fit the network, or contain NaN or infinity.
        """
        return self._network.loss.predicted(self(x))

    def predict_proba(self, x: npt.ArrayLike) -> Array:
        """Return the probability of each class.

        Parameters
        ----------
        x : array_like, shape (n, ...)

        Returns
        -------
        array of float, shape (n, classes)
            Of K networks (K, n, classes), for the same samples.

        Raises
        ------
        ConfigurationError
            If the loss is no classification's.
        ShapeError, DataError
            As for `predict`.
        """
        samples = checked_samples(self._network, "x", x)
        return outputs_of(self._network, samples, "probability")


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
        self._samples = samples
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
        mine = self._samples
        return (
            update is self._update
            and (self.count, self.batch_size) == (samples.count, min(batch_size, samples.count))
            and _is_view_of_same(mine.x, samples.x)
            and _is_view_of_same(mine.y, samples.y)
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
        data = self._samples
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
        x = self._samples.x
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


def _is_view_of_same(a: Array | Images, b: Array | Images) -> bool:
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return a is b
    return bool(
        a.ctypes.data == b.ctypes.data
        and (a.shape, a.strides, a.dtype) == (b.shape, b.strides, b.dtype)
    )


class Fit:
    """A call of `fit`: iterating over it trains, an epoch at a time.

    Parameters
    ----------
    networks : Networks
        Whose seeds order the samples, and whose histories go on.
    training : Samples
        Where `Samples.on_device` puts them.
    epochs : sequence of K int, at least 1
    batch_size : int or function of int -> int
        From the number of epochs done, in all calls, to the size of the next one's batches.
    held_out : Samples, optional
        To evaluate on after an epoch.
    validation_epochs : collection of int, optional
        After which epochs of this call, counted from 1; after all if left out.
    inspect : callable, optional
        As for `Trainer`.

    Attributes
    ----------
    histories : list of K History
        Of this call.
    """

    def __init__(
        self,
        networks: Networks,
        training: Samples,
        epochs: Sequence[int],
        batch_size: int | BatchSizes,
        held_out: Samples | None = None,
        validation_epochs: Collection[int] | None = None,
        inspect: Callable[[BatchPlan], None] | None = None,
    ) -> None:
        self._networks = networks
        self._training = training
        self._epochs = epochs
        self._batch_size = batch_size
        self._held_out = held_out
        self._validation_epochs = validation_epochs
        self._inspect = inspect
        self._class_counts = training.class_counts(networks._network)
        self.histories = [History() for _ in epochs]
        networks._network.begin_averages()
        self._trainer(training, range(len(epochs)))  # compiled before the first epoch

    def _trainer(self, samples: Samples, active: Sequence[int]) -> Trainer:
        """Return what trains in the next epoch."""
        networks, size = self._networks, self._batch_size
        if not isinstance(size, int):
            size = check_count("batch_size", size(len(networks._histories[active[0]])))
        return networks._trainer_of(samples, size, self._inspect)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Train until every network is done, has diverged or is stopped.

        A network that ends leaves the plan, and the rest go on in a smaller one.

        Yields
        ------
        tuple of int
            After each epoch, the networks that were trained in it.
        """
        networks, everyone = self._networks, range(len(self._epochs))
        ended = networks._ended = {}
        networks._overflowed_in = {}
        active = tuple(everyone)
        while active:
            samples = self._training.of_networks(active)
            orders = self._orders(samples, active)
            staying = active
            while len(staying) == len(active):
                trainer = self._trainer(samples, active)
                self._epoch(trainer, active, next(orders))
                self._validate(active)
                yield active
                staying = tuple(k for k in active if self._goes_on(k))
            if len(staying) < len(everyone) and (staying or ended):
                states = states_of(networks._network, networks._update)
                ended |= dict(zip(active, states, strict=True))
                if staying:
                    networks._regroup([ended[k] for k in staying], staying)
            active = staying
        if ended:
            networks._regroup([ended[k] for k in everyone], everyone)

    def stop(self, k: int, reason: str) -> None:
        """Let the last epoch of a network have been its last."""
        self.histories[k].stopped = self._networks._histories[k].stopped = reason

    def _goes_on(self, k: int) -> bool:
        history = self.histories[k]
        done = len(history) >= self._epochs[k]
        return not done and not history.diverged and history.stopped is None

    def _orders(self, samples: Samples, active: Sequence[int]) -> Iterator[Rows]:
        """Yield which rows each network visits in the epochs to come, in order."""
        networks, rows = self._networks, samples.rows
        first = samples.count * np.arange(len(active))[:, None]
        left = max(self._epochs[k] for k in active) - len(self.histories[active[0]])

        def past() -> tuple[list[int], int]:
            return [networks._seeds[k] for k in active], len(networks._histories[active[0]])

        while True:
            seeds, done = past()
            for order in epoch_orders(samples.count, seeds, done, done + left):
                yield order if rows is None else rows.reshape(-1).take(order + first)
                done += 1
                if past() != (seeds, done):  # a callback has loaded a checkpoint
                    break

    def _epoch(self, trainer: Trainer, active: Sequence[int], order: Rows) -> None:
        skipped = self._skipped_steps()
        began = time.perf_counter()
        # A diverging network is reported in its history and not by warnings.
        with np.errstate(all="ignore"):
            seeds = [self._networks._seeds[k] for k in active]
            number = len(self._networks._histories[active[0]])
            losses = trainer.epoch(order, seeds, number)
        took_s = (time.perf_counter() - began) / len(active)
        tallies = trainer.tallies()
        for place, (k, loss) in enumerate(zip(active, losses, strict=True)):
            tally = None if tallies is None else [self._class_counts[k], tallies[place]]
            for history in (self.histories[k], self._networks._histories[k]):
                history.add(loss, took_s, trainer.steps, tally)
        if skipped is not None:
            for k, count in zip(active, (self._skipped_steps() - skipped).tolist(), strict=True):
                for history in (self.histories[k], self._networks._histories[k]):
                    history.skipped_steps += count
        self._explain(trainer, active, order)

    def _skipped_steps(self) -> Array | None:
        """Return how many steps of each network were left out so far; None where none can be."""
        update = self._networks._update
        if not isinstance(update, LossScaling):
            return None
        return np.array(update.skipped, np.int64).reshape(-1)

    def _explain(self, trainer: Trainer, active: Sequence[int], order: Rows) -> None:
        """Find the layer that overflows in the last batch of networks that have diverged."""
        network = self._networks._network
        diverged = [k for k in active if self.histories[k].diverged]
        if not diverged or network.precision.largest is None:
            return
        step = network.checking_plan(trainer.batch_size)
        rows = order[:, -trainer.batch_size :].reshape(*network.leading, -1)
        step.load(trainer._samples.x, trainer._samples.y, rows)
        with np.errstate(all="ignore"):
            step.plan.run()
        for k in diverged:
            place = None if network.models is None else active.index(k)
            self._networks._overflowed_in[k] = step.first_overflow(place)

    def _validate(self, active: Sequence[int]) -> None:
        wanted, done = self._validation_epochs, len(self.histories[active[0]])
        if self._held_out is None or not (wanted is None or done in wanted):
            return
        results = evaluate(self._networks._network, self._held_out.of_networks(active))
        for k, result in zip(active, results, strict=True):
            for history in (self.histories[k], self._networks._histories[k]):
                history.validation.append(dict(result))
