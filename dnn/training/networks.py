"""`Networks`, the base of `NeuralNetwork` and `Ensemble`, and `Fit`, the loop over epochs.

Users hold a `NeuralNetwork` or an `Ensemble`. Both derive from `Networks`; a `NeuralNetwork` has
K = 1, and its arrays have no axis of models.

A step of a small network takes tens of microseconds, of which each line of Python in it is a
noticeable share. So data are checked and plans compiled before the first epoch, and callbacks run
after each epoch.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dnn.backend import Array, Ops
from dnn.backend.device import free_bytes
from dnn.errors import ConfigurationError, check_count
from dnn.layers import Layer
from dnn.losses import Loss, loss_of
from dnn.metrics import check_metrics
from dnn.optimizers import Optimizer, Update
from dnn.precision import Precision
from dnn.seeds import epoch_orders
from dnn.training.data import Rows, Samples, checked_samples
from dnn.training.epoch import EpochInterrupted, TrainingTask
from dnn.training.epoch_parts import EpochInParts, EpochProgress, Pauses
from dnn.training.evaluation import task_of
from dnn.training.history import INTERRUPTED, History, add_epoch
from dnn.training.loss_scaling import LossScaling
from dnn.training.network import BatchPlan, Network, NetworkArguments
from dnn.training.parallel import Scheme, TrainerLike
from dnn.training.state import State, load_states, states_of

if TYPE_CHECKING:
    from dnn.tensor import Tensor

__all__ = ["BatchSizes", "Fit", "Networks", "checked_batch_size"]

BatchSizes = Callable[[int], int]
"""From the number of epochs done to the batch size of the next epoch."""


def checked_batch_size(given: int | BatchSizes) -> int | BatchSizes:
    """Return a size of batches, at least 1, or a function that gives one for each epoch."""
    return given if callable(given) else check_count("batch_size", given)


class _Whole(NamedTuple):
    """Arrays and plans of all K networks, while some of them are trained in a smaller plan."""

    network: Network
    update: Update | LossScaling
    last: tuple[TrainingTask, TrainerLike] | None


class Networks:
    """K networks of the same layers, or a single one if `seeds` is an int, with its optimizer."""

    def __init__(
        self,
        layers: Sequence[Layer],
        loss: str | Mapping[str, Any] | Loss,
        optimizer: Optimizer,
        seeds: int | Sequence[int],
        precision: Precision,
        ops: Ops,
        passes: Sequence[str] | None = None,
        parallel: Scheme | None = None,
    ) -> None:
        self.optimizer = optimizer
        self._scheme = Scheme() if parallel is None else parallel
        self._seeds = [*seeds] if isinstance(seeds, Sequence) else [seeds]
        with self._scheme.preparing():
            checked = loss_of(loss)
        given = NetworkArguments(layers, checked, seeds, precision, ops, passes)
        self._network = self._scheme.network(given)
        with self._scheme.preparing():
            update = self._scheme.bind(self._network, optimizer)
        self._use(update)
        self._histories = [History() for _ in self._seeds]
        self._overflowed_in: dict[int, str] = {}
        # Progress of an epoch that has not ended.
        self._progress: EpochProgress | None = None
        # By its number, the state of each network when the plan was last made smaller.
        self._ended: dict[int, State] = {}
        # The networks of the present plan, in their order.
        self._active: tuple[int, ...] = tuple(range(len(self._seeds)))

    def _use(self, update: Update | LossScaling) -> None:
        """Use an update for the parameters from now on, and a new trainer."""
        self._update: Update | LossScaling = update
        self._last: tuple[TrainingTask, TrainerLike] | None = None
        self._network.average_by(update)

    def explain_divergence(self, k: int = 0) -> str:
        """Return the layer where infinity came first in a network that diverged in the last `fit`.

        Parameters
        ----------
        k : int
            Which of K networks.

        Returns
        -------
        str
            The layer's name, or "" where it is not known: one process looks for it in float16 only,
            whose largest number is small; several ranks name the layer of the first gradients that
            were not finite.
        """
        return self._overflowed_in.get(k, "")

    def freeze(self, *patterns: str) -> list[str]:
        """Let training leave some parameters as they are, until this is called again.

        Parameters
        ----------
        *patterns : str
            Of names of parameters, or of their beginnings up to a dot, in the order in which they
            count: ``"conv2d_*"`` and ``"residual_1"`` are all parameters of such layers, ``"*"``
            is all; one that begins with ``!`` is not frozen after all. None: nothing is frozen.

        Returns
        -------
        list of str
            Names of the parameters that are frozen now.

        Raises
        ------
        ConfigurationError
            If a pattern is of no parameter, or none is left to train.

        Notes
        -----
        A `BatchNorm` whose scale and shift are frozen normalises with its running statistics, and
        keeps them. The optimizer keeps its state, in which frozen parameters have a part too.

        Examples
        --------
        >>> from dnn import NeuralNetwork, mlp
        >>> model = NeuralNetwork(mlp(4, [8, 8], 3))
        >>> model.freeze("*", "!fully_connected_3")
        ['fully_connected_1.weight', 'fully_connected_1.bias', 'fully_connected_2.weight', \
'fully_connected_2.bias']
        """
        for pattern in patterns:
            given: object = pattern
            if not isinstance(given, str):
                message = f"freeze: patterns of names are texts, and {given!r:.80} is none"
                raise ConfigurationError(message)
        frozen = self.frozen
        names = self._network.freeze(patterns)
        if names == frozen:
            return names
        before = self._update.snapshot()
        update = self._scheme.bind(self._network, self.optimizer)
        update.restore(before)
        self._use(update)
        vars(self).pop("_weights", None)  # a model's, with averages of the update before
        return names

    @property
    def frozen(self) -> list[str]:
        """Names of the parameters that `freeze` has chosen."""
        return self._network.frozen

    def _trainer_of(
        self,
        samples: Samples,
        batch_size: int,
        inspect: Callable[[BatchPlan], None] | None,
        accumulate: int,
        interrupt: Callable[[], bool] | None = None,
    ) -> TrainerLike:
        """Return a trainer on samples: that of the last call if the task is like it."""
        task = TrainingTask(self._update, samples, batch_size, inspect, accumulate, interrupt)
        if self._last is None or not self._last[0].is_like(task):
            self._last = task, self._scheme.trainer(self._network, task)
        return self._last[1]

    def _regroup(self, states: Sequence[State], indices: Sequence[int]) -> None:
        """Compile plans for some of the networks only, and load their states.

        `states` are after the same number of steps; `indices`, the numbers of these networks, say
        which of the optimizer's values belong to each.
        """
        self._network.resize(len(states))
        optimizer = self.optimizer.for_networks(indices)
        self._use(self._scheme.bind(self._network, optimizer))
        load_states(self._network, self._update, states)

    def _whole(self) -> _Whole | None:
        """Return what `_return_to` needs; None where there may not be memory for it."""
        network, scheme = self._network, self._scheme
        if scheme.communicator is not None:  # whose ranks share the memory of the present plan
            return None
        size_bytes = network.size_bytes + sum(x.flat.nbytes for x in self._update.state.values())
        if network.ops.device != "cpu" and 2 * size_bytes > free_bytes(network.ops.device)[0]:
            return None
        return _Whole(copy.copy(network), self._update, self._last)

    def _return_to(self, whole: _Whole, states: Sequence[State]) -> None:
        """Go on with the plans of all networks, and load their states."""
        vars(self._network).update(vars(whole.network))
        self._update, self._last = whole.update, whole.last
        load_states(self._network, self._update, states)

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """Every parameter by name, as a tensor of the network's own memory.

        Writing into it changes the network. For K networks of shape (K, ...).
        """
        buffer = self._network.parameters
        return {segment.name: buffer.tensor(segment.name) for segment in buffer.segments}

    def __call__(self, x: npt.ArrayLike) -> Array:
        """Return the outputs of the last layer for each sample: logits if the loss classifies.

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
        return self._scheme.outputs(self._network, samples, "evaluation")

    def predict(self, x: npt.ArrayLike) -> Array:
        """Return the predicted class of each sample, or the outputs if the loss does not classify.

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
            If the loss does not classify.
        ShapeError, DataError
            As for `predict`.
        """
        samples = checked_samples(self._network, "x", x)
        return self._scheme.outputs(self._network, samples, "probability")

    def _check_whole(self, method: str) -> None:
        """Raise `ConfigurationError` if this rank has a part of the network, for `method`."""
        if self._network.is_part:
            message = "this rank has a part of the network alone"
            raise ConfigurationError(
                f"{method}: {message}: call gathered() on all ranks, which returns the whole"
            )


class Fit:
    """A call of `fit`: iterating over it trains, an epoch at a time.

    The seeds of `networks` order the samples, and their histories are continued. There is a number
    of `epochs` for each of K networks, and `batch_size` may be a function of the epochs done so
    far, in all calls. Samples `held_out` are evaluated on after `validation_epochs` of this call,
    counted from 1, or after all; `inspect` and `accumulate` are as for `TrainingTask`, `pauses` for
    callbacks within epochs. With `interrupt`, also as there, all networks end, and the epoch is in
    no history.

    Attributes
    ----------
    class_counts : array of int64, shape (K, classes), optional
        Samples of each class; None where training counts no predictions.
    histories : list of K History
        Histories of this call alone.
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
        accumulate: int = 1,
        pauses: Pauses | None = None,
        validation_metrics: Sequence[str] = (),
        interrupt: Callable[[], bool] | None = None,
    ) -> None:
        self.networks = networks
        self.training = training
        self.epochs = epochs
        self.batch_size = batch_size
        self.held_out = held_out
        self.validation_epochs = validation_epochs
        self._inspect = inspect
        self.accumulate = check_count("accumulate", accumulate)
        self.pauses = pauses
        if held_out is not None:
            check_metrics(validation_metrics, task_of(networks._network, held_out))
        self.validation_metrics = validation_metrics
        self.class_counts = training.class_counts(networks._network)
        self.histories = [History() for _ in epochs]
        self._scheme, self._interrupt = networks._scheme, interrupt
        if interrupt is not None and self._scheme.communicator is not None:
            raise ConfigurationError("interrupt: ranks would end at different steps: leave it out")
        if self.accumulate > 1 and not self._scheme.accumulates:
            scheme = type(self._scheme).__name__
            raise ConfigurationError(f"{scheme} computes no batch in pieces: leave out accumulate")
        self._scheme.begin(self)
        networks._network.begin_averages()
        self._trainer(training, range(len(epochs)))  # compiled before the first epoch

    def _trainer(self, samples: Samples, active: Sequence[int]) -> TrainerLike:
        """Return the trainer of the next epoch, in parts if there are pauses or a part is done."""
        networks, size = self.networks, self.batch_size
        if not isinstance(size, int):
            size = check_count("batch_size", size(len(networks._histories[active[0]])))

        def trainer_of(samples: Samples) -> TrainerLike:
            return networks._trainer_of(
                samples, size, self._inspect, self.accumulate, self._interrupt
            )

        if self.pauses is None and networks._progress is None:
            return trainer_of(samples)
        networks._progress = networks._progress or EpochProgress(samples.count)
        pauses = self.pauses and self.pauses._replace(function=self._pause)
        return EpochInParts(trainer_of, samples, size, pauses, networks._progress)

    def _pause(self, steps: int) -> None:
        assert self.pauses is not None
        self._scheme.end_epoch(self.networks._network, self.networks._update)
        self.pauses.function(steps)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Train until every network is done, has diverged or is stopped.

        When a network ends, the others are trained by a smaller plan.

        Yields
        ------
        tuple of int
            After each epoch, the networks that were trained in it.
        """
        networks, indices = self.networks, range(len(self.epochs))
        ended = networks._ended = {}
        networks._overflowed_in = {}
        active, whole = tuple(indices), None
        while active:
            networks._active = active
            samples = self.training.of_networks(active)
            orders = self._orders(samples, active)
            staying = active
            while len(staying) == len(active):
                trainer = self._trainer(samples, active)
                try:
                    self._epoch(trainer, active, next(orders))
                except EpochInterrupted:
                    for k in active:
                        self.stop(k, INTERRUPTED)
                else:
                    self._validate(active)
                    yield active
                self._agree(active)
                staying = self._staying(active)
            if len(staying) < len(indices) and (staying or ended):
                states = states_of(networks._network, networks._update)
                ended |= dict(zip(active, states, strict=True))
                if staying:
                    whole = networks._whole() if len(active) == len(indices) else whole
                    networks._regroup([ended[k] for k in staying], staying)
            active = staying
        if ended:
            states = [ended[k] for k in indices]
            if whole is None:
                networks._regroup(states, indices)
            else:
                networks._return_to(whole, states)
        networks._active = tuple(indices)

    def stop(self, k: int, reason: str) -> None:
        """Stop training a network; its histories keep the reason."""
        self.histories[k].stopped = self.networks._histories[k].stopped = reason

    def _agree(self, active: Sequence[int]) -> None:
        """Stop on all ranks the networks that were stopped on any rank."""
        given = [self.histories[k].stopped for k in active]
        for k, reason in zip(active, self._scheme.agreed(given), strict=True):
            if reason is not None:
                self.stop(k, reason)

    def _staying(self, active: Sequence[int]) -> tuple[int, ...]:
        """Return the networks that have not ended; all of them have done as many epochs."""
        done = len(self.histories[active[0]])
        each = ((k, self.histories[k]) for k in active)
        return tuple(
            k
            for k, history in each
            if done < self.epochs[k] and not history.diverged and history.stopped is None
        )

    def _orders(self, samples: Samples, active: Sequence[int]) -> Iterator[Rows]:
        """Yield, for each epoch to come, the rows that each network visits, in order."""
        networks, rows = self.networks, samples.rows
        first = samples.count * np.arange(len(active))[:, None]
        left = max(self.epochs[k] for k in active) - len(self.histories[active[0]])

        def past() -> tuple[list[int], int]:
            return [networks._seeds[k] for k in active], len(networks._histories[active[0]])

        while True:
            seeds, done = past()
            for order in epoch_orders(samples.count, seeds, done, done + left):
                yield order if rows is None else rows.reshape(-1).take(np.add(order, first, order))
                done += 1
                if past() != (seeds, done):  # a callback has loaded a checkpoint
                    break

    def _epoch(self, trainer: TrainerLike, active: Sequence[int], order: Rows) -> None:
        skipped = self._skipped_steps()
        began = time.perf_counter()
        # A diverging network is reported in its history and not by warnings.
        with np.errstate(all="ignore"):
            seeds = [self.networks._seeds[k] for k in active]
            number = len(self.networks._histories[active[0]])
            try:
                losses = trainer.epoch(order, seeds, number)
            finally:  # an epoch that failed cannot be resumed
                self.networks._progress = None
        self._scheme.end_epoch(self.networks._network, self.networks._update)
        took_s = (time.perf_counter() - began) / len(active)
        tallies, exchange = trainer.tallies(), trainer.exchange()
        counted = None
        if tallies is not None:
            assert self.class_counts is not None
            counted = [*np.concatenate((self.class_counts[[*active]], tallies), axis=1)]
        for histories in (self.histories, self.networks._histories):
            added = [histories[k] for k in active]
            add_epoch(added, losses, took_s, trainer.steps, counted, exchange)
        if skipped is not None:
            for k, count in zip(active, (self._skipped_steps() - skipped).tolist(), strict=True):
                for history in (self.histories[k], self.networks._histories[k]):
                    history.skipped_steps += count
        self._explain(trainer, active, order)
        if exchange is not None:
            self._explain_exchange(active, exchange)

    def _explain_exchange(self, active: Sequence[int], exchange: Mapping[str, Any]) -> None:
        """Note gradients that were not finite; stop training unless such steps were left out."""
        skipped = exchange.get("skipped_steps", 0)
        found = exchange.get("nan")
        for k in active:
            for history in (self.histories[k], self.networks._histories[k]):
                history.skipped_steps += skipped
            if found is not None:
                self.networks._overflowed_in[k] = found["layer"]
            if found is not None and not skipped:
                where = f"in {found['layer']} at step {found['step']}"
                if "wire" in found:
                    cause = f"the sum of gradients {where} is too large for {found['wire']}"
                    self.stop(k, f"{cause}: train without wire={found['wire']!r}")
                else:
                    self.stop(k, f"rank {found['rank']} has NaN or infinite gradients {where}")

    def _skipped_steps(self) -> Array | None:
        """Return how many steps were left out so far in each network; None without loss scaling."""
        update = self.networks._update
        if not isinstance(update, LossScaling):
            return None
        return np.array(update.skipped, np.int64).reshape(-1)

    def _explain(self, trainer: TrainerLike, active: Sequence[int], order: Rows) -> None:
        """Note the layer that overflows first in the last batch of networks that have diverged."""
        network = self.networks._network
        diverged = [k for k in active if self.histories[k].diverged]
        if not diverged or network.precision.largest is None:
            return
        step = network.checking_plan(trainer.batch_size)
        rows = order[:, -trainer.batch_size :].reshape(*network.leading, -1)
        step.load(trainer.samples.x, trainer.samples.y, rows)
        with np.errstate(all="ignore"):
            step.plan.run()
        for k in diverged:
            place = None if network.models is None else active.index(k)
            self.networks._overflowed_in[k] = step.first_overflow(place)

    def _validate(self, active: Sequence[int]) -> None:
        wanted, done = self.validation_epochs, len(self.histories[active[0]])
        if self.held_out is None or not (wanted is None or done in wanted):
            return
        held_out = self.held_out.of_networks(active)
        network = self.networks._network
        results = self._scheme.validate(network, held_out, self.validation_metrics)
        for k, result in zip(active, results, strict=True):
            for history in (self.histories[k], self.networks._histories[k]):
                history.validation.append(dict(result))
