"""Bases of schemes of several ranks, and of their trainers, which compute parts of each batch.

Ranks start from the same state, end and fail together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dnn.backend import Array, Ops
from dnn.distributed.agreement import agreement_facts, check_agreement
from dnn.distributed.communicator import Communicator
from dnn.distributed.mpi import communicator_of
from dnn.errors import ConfigurationError, DisagreementError
from dnn.layers.nested import leaves_of
from dnn.optimizers import Update
from dnn.training.epoch import Trainer, TrainingTask
from dnn.training.loss_scaling import LossScaling
from dnn.training.network import Network, NetworkArguments
from dnn.training.networks import Fit
from dnn.training.parallel import Scheme

__all__ = [
    "BatchRunner",
    "EpochTotals",
    "RanksScheme",
    "ShardedTrainer",
    "Shards",
    "average",
    "clip_by_norm_of_all",
    "leaving_frozen",
    "on_host",
    "own_noise",
    "share_gradients",
]


class RanksScheme(Scheme):
    """Base of schemes by which several ranks train one network.

    Parameters
    ----------
    communicator : Communicator or mpi4py.MPI.Intracomm
        Connects the ranks that train together; all make the scheme, with the same options.

    Attributes
    ----------
    replicas : Communicator
        Connects ranks with the same parameters: all ranks, except where ranks have parts.
    """

    accumulates = False
    same_rows = True

    def __init__(self, communicator: Any) -> None:
        self.communicator: Communicator = communicator_of(communicator)
        self.replicas = self.communicator

    def network(self, given: NetworkArguments) -> Network:
        """Build this rank's network, if all ranks can; errors as for `Network`."""
        with self.agreeing():
            return super().network(given)

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Context that sends an error to other ranks in the exchange that they do next."""
        try:
            yield
        except Exception as error:
            self.communicator.gather_values({"error": f"{type(error).__name__}: {error}"})
            raise

    @contextmanager
    def agreeing(self) -> Iterator[None]:
        """Context at whose end the schemes of all ranks are compared.

        Options are set in it, since what ranks exchange later depends on them; and networks are
        made in it, since they may share memory with networks of other ranks.

        Raises
        ------
        DisagreementError
            On every rank, if schemes differ; ``repr(self)`` is compared.
        PeerError
            If another rank raises in the context, for wrong options for instance.
        """
        with self.preparing():
            yield
        check_agreement(self.communicator.gather_values({"scheme": repr(self)}))

    def check(self, fit: Fit) -> None:
        """Check at the beginning of a fit that layers, options and data agree on all ranks.

        Raises
        ------
        DisagreementError, PeerError
            See `check_agreement`; on every rank.
        """
        check_agreement(self.communicator.gather_values(agreement_facts(fit, self.same_rows)))

    def begin(self, fit: Fit) -> None:
        """Check that ranks agree, and copy the state of the first replica to the others."""
        self.check(fit)
        network = fit.networks._network
        for array in self.common_arrays(network, fit.networks._update):
            with on_host(network.ops, array) as host:
                self.replicas.broadcast(host)

    def common_arrays(self, network: Network, update: Update | LossScaling) -> list[Array]:
        """Return the arrays that all replicas take from the first when a fit begins."""
        arrays = [network.parameters.flat, network.state_buffer.flat]
        arrays += [network.states["noise.seed"], network.states[network.step_name]]
        arrays += [buffer.flat for buffer in update.state.values()]
        if isinstance(update, LossScaling):
            arrays += update.arrays.values()
        return arrays

    @contextmanager
    def training(self) -> Iterator[None]:
        """Context of the loop over epochs: reports an error in it, so that other ranks end too."""
        try:
            yield
        except DisagreementError:  # which all ranks raise
            raise
        except BaseException as error:
            self.communicator.report_failure(error)
            raise

    def average_states(self, network: Network) -> None:
        """Average running statistics over all replicas."""
        flat = network.state_buffer.flat
        if not flat.size:
            return
        # In float64, so that values that no rank has changed stay the same.
        sums = network.ops.to_host(flat).astype(np.float64)
        self.replicas.sum(sums)
        network.ops.load((sums / self.replicas.size).astype(flat.dtype), flat)

    def agreed(self, reasons: Sequence[str | None]) -> list[str | None]:
        """Return for each network the first rank's reason to stop now, None if no rank has one."""
        said = zip(*self.communicator.gather_values(list(reasons)), strict=True)
        return [next((each for each in of_rank if each is not None), None) for of_rank in said]


@dataclass(frozen=True)
class Shards:
    """Partition of the rows of each batch of an epoch over workers.

    Parameters
    ----------
    count : int
        Samples in an epoch.
    batch_size : int
        Rows of all workers together; the last batch of an epoch has the remaining rows, of which a
        worker may have none.
    workers : int

    Raises
    ------
    ConfigurationError
        If `batch_size` is below the number of workers.
    """

    count: int
    batch_size: int
    workers: int

    def __post_init__(self) -> None:
        if self.batch_size < self.workers:
            raise ConfigurationError(
                f"a batch of {self.batch_size} samples cannot be shared by {self.workers} workers: "
                "batch_size is that of all workers together, so take a larger one"
            )

    @property
    def batches(self) -> int:
        """Number of batches of an epoch."""
        return -(-self.count // self.batch_size)

    def size(self, batch: int) -> int:
        """Return the number of rows of a batch."""
        return min(self.batch_size, self.count - batch * self.batch_size)

    def rows(self, worker: int, batch: int) -> range:
        """Return the places in the order of an epoch of the rows of a batch that a worker computes.

        Where rows cannot be cut evenly, the first workers have one more.
        """
        each, more = divmod(self.size(batch), self.workers)
        first = batch * self.batch_size + worker * each + min(worker, more)
        return range(first, first + each + (worker < more))

    def share(self, worker: int, batch: int) -> float:
        """Return a worker's share of the rows of a batch, from 0 to 1."""
        return len(self.rows(worker, batch)) / self.size(batch)


class BatchRunner:
    """Runs batches of any size on a network, and adds up losses and predictions.

    Parameters
    ----------
    network : Network
    task : TrainingTask
        Its update ends each batch; its batch size is not used.

    Attributes
    ----------
    losses : array of float, shape (K,)
        Loss of each network, summed over all rows since `begin`.
    rows : int
        Number of rows since `begin`.
    """

    def __init__(self, network: Network, task: TrainingTask) -> None:
        self._network = network
        self._task = task
        self._trainers: dict[tuple[int, int], Trainer] = {}
        self.begin()

    def begin(self) -> None:
        """Reset the sums to zero."""
        networks = self._network.models or 1
        self.losses = np.zeros(networks)
        self.rows = 0
        classes = self._network.classes_to_tally
        # Counts of predictions, as `Trainer.tallies` returns them.
        self.tallies = None if classes is None else np.zeros((networks, classes + 1), np.int64)

    def run(self, rows: Array, batch_size: int, seeds: Sequence[int], number: int) -> None:
        """Run some rows in batches.

        Parameters
        ----------
        rows : array of intp, shape (K, m)
            For each network, m at least 1.
        batch_size : int
        seeds, number
            As for `Trainer.epoch`.
        """
        key = rows.shape[1], batch_size
        if key not in self._trainers:
            chosen = np.broadcast_to(np.intp(0), rows.shape)  # only the number of them matters
            samples = replace(self._task.samples, rows=chosen)
            task = self._task._replace(samples=samples, batch_size=batch_size)
            self._trainers[key] = Trainer(self._network, task)
        trainer = self._trainers[key]
        means = trainer.epoch(np.ascontiguousarray(rows), seeds, number)
        self.losses += np.multiply(means, rows.shape[1])
        self.rows += rows.shape[1]
        counted = trainer.tallies()
        if self.tallies is not None and counted is not None:
            self.tallies += counted


class ShardedTrainer:
    """Base of trainers whose workers share each batch; subclasses train an epoch.

    Parameters
    ----------
    network : Network
    task : TrainingTask
        Its batch size is that of all workers together.
    workers : int
    ends_with : Update
        Update by which each worker ends a batch.

    Attributes
    ----------
    samples, batch_size
        As they were given.
    count : int
        Samples in an epoch.
    steps : int
        Number of times that the parameters are moved in an epoch.
    """

    def __init__(
        self, network: Network, task: TrainingTask, workers: int, ends_with: Update
    ) -> None:
        assert isinstance(task.update, Update)
        self.samples = task.samples
        self.count = self.samples.count
        self.batch_size = min(task.batch_size, self.count)
        self._network = network
        self._update = task.update
        # An epoch, or a part of one, may have fewer samples than a batch, or than workers.
        self._shards = Shards(self.count, task.batch_size, workers)
        self.steps = self._shards.batches
        self._runner = BatchRunner(network, task._replace(update=ends_with))
        self._totals: EpochTotals | None = None

    def tallies(self) -> Array | None:
        """Return counts of predictions of all ranks, as `Trainer.tallies` does."""
        return None if self._totals is None else self._totals.tallies


@dataclass(frozen=True)
class EpochTotals:
    """Results of an epoch over all ranks: losses, counts of predictions, facts of each rank.

    Attributes
    ----------
    losses : list of K float
        Mean loss of each network over all samples.
    tallies : array of int64, shape (K, classes + 1), optional
        As `Trainer.tallies` gives them.
    facts : list
        The fact that each rank has given.
    """

    losses: list[float]
    tallies: Array | None
    facts: list[Any]

    @classmethod
    def of(
        cls, communicator: Communicator, runner: BatchRunner, count: int, fact: Any
    ) -> EpochTotals:
        """Gather results of all ranks on every rank; `count` is the number of all samples."""
        counts = runner.tallies
        own = [runner.losses.tolist(), None if counts is None else counts.tolist(), fact]
        losses, tallies, facts = zip(*communicator.gather_values(own), strict=True)
        means = (np.add.reduce(np.array(losses)) / count).tolist()
        counted = None if counts is None else np.add.reduce(np.array(tallies))
        return cls(means, counted, list(facts))


def share_gradients(communicator: Communicator, network: Network) -> None:
    """Move gradients of the host to memory in which ranks of a host sum without a copy.

    All ranks call it for the same networks in the same order, before an update is bound to them.
    """
    flat = network.gradients.flat
    if communicator.size > 1 and isinstance(flat, np.ndarray):
        network.gradients.move_to(communicator.shared_memory(flat.nbytes).view(flat.dtype))


def clip_by_norm_of_all(
    update: Update | LossScaling,
    ops: Ops,
    communicator: Communicator,
    dtype: np.dtype[Any] | None = None,
) -> None:
    """Let an update that clips by a norm take that of the gradients of all ranks.

    Squares are summed over this rank's gradients in `dtype`, by default in their own type.
    """

    def sum_squares(sums: Array) -> None:
        total = sums.sum(dtype=dtype, keepdims=True)
        communicator.sum(total)
        sums[...] = 0
        sums[..., :1] = total

    places = [i for i, (call, _) in enumerate(update.steps) if call == ops.clip_factor]
    for place in places:
        update.steps.insert(place, (sum_squares, update.steps[place][1][:1]))


@contextmanager
def on_host(ops: Ops, array: Array) -> Iterator[Array]:
    """Context with a copy on the host of a device's array; changes are copied back at the end."""
    host = ops.to_host(array)
    yield host
    if host is not array:
        ops.load(host, array)


def average(communicator: Communicator, array: Array, weight: float) -> int:
    """Replace an array of the host by its mean over all ranks, whose weights add up to 1.

    Returns
    -------
    int
        Bytes that all ranks together send for it.
    """
    array *= array.dtype.type(weight)
    communicator.sum(array)
    return communicator.size * int(array.nbytes) if communicator.size > 1 else 0


@contextmanager
def leaving_frozen(network: Network, update: Update | LossScaling) -> Iterator[None]:
    """Context of an average over ranks that leaves alone what is frozen, which it would round.

    That is frozen parameters, the optimizer's state of these, and the states of frozen layers.
    """
    ops, frozen = network.ops, network.frozen
    layers = [layer for layer in leaves_of(network.own_layers) if layer.is_frozen]
    parts = [network.state_buffer[each.node.name] for layer in layers for each in layer.states]
    for buffer in (network.parameters, *update.state.values()):
        parts += [buffer[name] for name in frozen if name in buffer]
    before = [ops.to_host(part).copy() for part in parts]
    yield
    for part, values in zip(parts, before, strict=True):
        ops.load(values, part)


@contextmanager
def own_noise(communicator: Communicator, network: Network, batches: int) -> Iterator[None]:
    """Context of an epoch in which dropout draws other numbers than on other ranks."""
    ops, number = network.ops, network.states[network.step_name]
    first = int(ops.to_host(number))
    own = first + (communicator.rank << 40)  # no training has so many batches
    ops.load(np.array(own, np.uint64), number)
    try:
        yield
    except BaseException:
        ops.load(np.array(first, np.uint64), number)
        raise
    draws = np.array([int(ops.to_host(number)) != own], np.float64)
    communicator.sum(draws)  # a server alone, or a rank without a row, has drawn nothing
    ops.load(np.array(first + batches * bool(draws[0]), np.uint64), number)
