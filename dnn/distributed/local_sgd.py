"""Local SGD: ranks take some steps by themselves, then all continue from their average."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnn.backend import Array
from dnn.distributed.scheme import (
    EpochTotals,
    RanksScheme,
    ShardedTrainer,
    average,
    leaving_frozen,
    on_host,
    own_noise,
)
from dnn.errors import ConfigurationError, check_count, explains_arguments
from dnn.optimizers import Optimizer, Update
from dnn.parameters import FlatBuffer
from dnn.training.epoch import TrainingTask
from dnn.training.loss_scaling import LossScaling
from dnn.training.network import Network
from dnn.training.parallel import TrainerLike

__all__ = ["LocalSGD"]

_VELOCITY = "outer_velocity"


class LocalSGD(RanksScheme):
    """Ranks train on their parts of each batch, and average all parameters every few batches.

    Parameters
    ----------
    communicator : Communicator or mpi4py.MPI.Intracomm
    steps : int, at least 1
        Batches between two averages; the last batch of an epoch is always followed by one. With 1
        and plain SGD it is data parallelism; with K it sends a K-th as many bytes.
    outer_learning_rate : float, positive
        Rate of an outer step, which moves the parameters of all ranks; its gradient is where they
        began minus their average [2]_. With 1 and no momentum they continue from the average [1]_.
    outer_momentum : float, at least 0 and below 1
        Nesterov momentum of that step. [2]_ takes 0.9, with an outer learning rate of 0.7 and Adam
        for the steps of each rank.
    average_optimizer : bool
        Average the state of the optimizer for each parameter too. If not, each rank has its own.

    Raises
    ------
    ConfigurationError
        If a number is out of its range.
    DisagreementError
        On every rank, if they give other options.

    Notes
    -----
    An average weighs each rank by the rows that it has trained on. Averages of parameters over time
    (``average`` of an optimizer) and running statistics are averaged over ranks after each epoch.
    A checkpoint has the state of the optimizer of rank 0.

    References
    ----------
    .. [1] Stich, Local SGD converges fast and communicates little, 2019.
    .. [2] Douillard et al., DiLoCo: Distributed low-communication training of language models,
           2023, arXiv 2311.08105, algorithm 1.
    """

    @explains_arguments
    def __init__(
        self,
        communicator: Any,
        steps: int = 8,
        *,
        outer_learning_rate: float = 1.0,
        outer_momentum: float = 0.0,
        average_optimizer: bool = False,
    ) -> None:
        super().__init__(communicator)
        with self.agreeing():
            self.steps = check_count("steps", steps)
            if not 0 < outer_learning_rate < float("inf"):
                message = f"outer_learning_rate must be above 0, not {outer_learning_rate!r}"
                raise ConfigurationError(message)
            if not 0 <= outer_momentum < 1:
                message = f"outer_momentum must be at least 0 and below 1, not {outer_momentum!r}"
                raise ConfigurationError(message)
            self.outer_learning_rate = float(outer_learning_rate)
            self.outer_momentum = float(outer_momentum)
            self.average_optimizer = bool(average_optimizer)

    def __repr__(self) -> str:
        outer = f"outer_learning_rate={self.outer_learning_rate}"
        outer += f", outer_momentum={self.outer_momentum}"
        return f"LocalSGD(steps={self.steps}, {outer}, average_optimizer={self.average_optimizer})"

    def bind(self, network: Network, optimizer: Optimizer) -> Update | LossScaling:
        """Return the update of this rank's parameters, with a velocity of outer steps if any."""
        if network.precision.scales_loss:
            raise ConfigurationError(
                "local steps of float16 would be left out on one rank and not on another: take "
                "dtype='bfloat16' or 'float32'"
            )
        update = super().bind(network, optimizer)
        if self.outer_momentum:
            held = network.parameters
            dtype, models = held.flat.dtype, held.models
            update.state[_VELOCITY] = FlatBuffer(held.segments, dtype, network.ops, models)
        return update

    def common_arrays(self, network: Network, update: Update | LossScaling) -> list[Array]:
        """Return arrays to copy from rank 0 as a fit begins; optimizer state if it is averaged."""
        own = [] if self.average_optimizer else remembered(network, update)
        every = super().common_arrays(network, update)
        return [array for array in every if not any(array is each for each in own)]

    def trainer(self, network: Network, task: TrainingTask) -> TrainerLike:
        """Return a trainer of a network on this rank."""
        return _LocalTrainer(self, network, task)


class _LocalTrainer(ShardedTrainer):
    """Trainer of one rank: local steps, then an average over all ranks."""

    def __init__(self, scheme: LocalSGD, network: Network, task: TrainingTask) -> None:
        self._communicator = communicator = scheme.communicator
        assert isinstance(task.update, Update)
        super().__init__(network, task, communicator.size, task.update)
        self._scheme = scheme
        self._start: Array = network.ops.to_host(network.parameters.flat).copy()

    def epoch(self, order: Array, seeds: Sequence[int] = (), number: int = 0) -> list[float]:
        """Visit every sample once; arguments and result as for `Trainer.epoch`."""
        self._runner.begin()
        batches = self._shards.batches
        order = order.reshape(-1, self.count)
        steps_done = self._update.steps_done
        sent = 0
        with own_noise(self._communicator, self._network, batches):
            for first in range(0, batches, self._scheme.steps):
                local = range(first, min(first + self._scheme.steps, batches))
                self._start[...] = self._network.ops.to_host(self._network.parameters.flat)
                self._run(local, order, seeds, number)
                with leaving_frozen(self._network, self._update):
                    sent += self._outer_step(self._weight(local))
        self._update.steps_done = steps_done + self.steps
        with leaving_frozen(self._network, self._update):
            sent += self._end()
        self._totals = EpochTotals.of(self._communicator, self._runner, self.count, sent)
        return self._totals.losses

    def exchange(self) -> dict[str, Any] | None:
        """Return exchange statistics of the last epoch, as in `History.exchange`."""
        # Each rank has counted the bytes that all send together.
        return None if self._totals is None else {"bytes_sent": self._totals.facts[0]}

    def _run(self, batches: range, order: Array, seeds: Sequence[int], number: int) -> None:
        """Take this rank's steps of some batches."""
        places = [self._shards.rows(self._communicator.rank, batch) for batch in batches]
        whole = [each for each in places if len(each) == len(places[0])]
        for chosen in (whole, places[len(whole) :]):
            rows = [place for each in chosen for place in each]
            if rows:
                self._runner.run(order[:, rows], len(chosen[0]), seeds, number)

    def _weight(self, batches: range) -> float:
        """Return this rank's share of the rows of some batches, from 0 to 1."""
        shards, rank = self._shards, self._communicator.rank
        mine = sum(len(shards.rows(rank, batch)) for batch in batches)
        return mine / sum(shards.size(batch) for batch in batches)

    def _outer_step(self, weight: float) -> int:
        """Move all ranks from where they began to, or past, their average; return bytes sent."""
        scheme, update = self._scheme, self._update
        ops, sent = self._network.ops, 0
        if scheme.average_optimizer:
            sent = sum(self._average(each, weight) for each in remembered(self._network, update))
        rate, momentum = scheme.outer_learning_rate, scheme.outer_momentum
        if rate == 1 and not momentum:
            return sent + self._average(self._network.parameters.flat, weight)
        with on_host(ops, self._network.parameters.flat) as flat:
            sent += average(self._communicator, flat, weight)
            kind = flat.dtype.type
            step = gradient = self._start - flat
            if momentum:
                with on_host(ops, update.state[_VELOCITY].flat) as velocity:
                    velocity *= kind(momentum)
                    velocity += gradient
                    step = gradient + kind(momentum) * velocity
            flat[...] = self._start - kind(rate) * step
        return sent

    def _average(self, array: Array, weight: float) -> int:
        """Average an array of the device; return the bytes sent."""
        with on_host(self._network.ops, array) as host:
            return average(self._communicator, host, weight)

    def _end(self) -> int:
        """Average running statistics and averaged parameters over ranks; return the bytes sent."""
        communicator, state = self._communicator, self._update.state
        share, sent = self._runner.rows / self.count, 0
        for values in (self._network.state_buffer, state.get("average")):
            if values is not None and values.flat.size:
                sent += self._average(values.flat, share)
        # Step counters are taken from rank 0, which has rows in every batch.
        segments = self._network.parameters.segments
        for buffer in state.values():
            if buffer.segments != segments:
                with on_host(self._network.ops, buffer.flat) as host:
                    communicator.broadcast(host)
                sent += (communicator.size - 1) * int(buffer.flat.nbytes)
        return sent


def remembered(network: Network, update: Update | LossScaling) -> list[Array]:
    """Return the buffers of optimizer state for each parameter, which differ between ranks."""
    segments = network.parameters.segments
    return [
        buffer.flat
        for name, buffer in update.state.items()
        if buffer.segments == segments and name not in (_VELOCITY, "average")
    ]
