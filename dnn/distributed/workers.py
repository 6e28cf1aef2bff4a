"""Workers of a parameter server: options and trainer common to ranks and simulated workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dnn.backend import Array
from dnn.distributed.server import Message, Piece, Server, ServerCore
from dnn.distributed.shards import ShardedTrainer
from dnn.errors import ConfigurationError
from dnn.optimizers import Optimizer, Update
from dnn.training.epoch import TrainingTask
from dnn.training.network import Network

__all__ = ["EpochArguments", "ServedTrainer", "ServerOptions"]

EpochArguments = tuple[Array, Sequence[int], int]
"""Order of the samples, of shape (K, count), seeds and number, as in `Trainer.epoch`."""


@dataclass(frozen=True)
class ServerOptions:
    """Options by which a server applies gradients.

    Parameters
    ----------
    staleness : int, not negative, optional
        As for `ServerCore`.
    divide_by_staleness : bool
        As for `Server`.

    Raises
    ------
    ConfigurationError
        If the staleness is neither None nor an integer of at least 0.
    """

    staleness: int | None
    divide_by_staleness: bool

    def __post_init__(self) -> None:
        given = self.staleness
        if given is not None and (type(given) is not int or given < 0):
            message = f"staleness must be an integer of at least 0, or None, not {given!r}"
            raise ConfigurationError(message)

    def check(self, network: Network, optimizer: Optimizer) -> None:
        """Raise `ConfigurationError` if a server cannot train a network with an optimizer."""
        if network.precision.scales_loss:
            raise ConfigurationError(
                "a parameter server takes gradients as they are, and those of float16 are scaled "
                "by each worker on its own: take dtype='bfloat16' or 'float32'"
            )
        if self.divide_by_staleness and "learning_rate" not in optimizer.hyperparameters:
            kind = type(optimizer).__name__
            raise ConfigurationError(f"divide_by_staleness: {kind} has no learning_rate")


class ServedTrainer(ShardedTrainer):
    """Trainer by workers that send gradients to a server; subclasses decide where workers run.

    Parameters as for `ShardedTrainer`, and `options`.
    """

    def __init__(
        self,
        options: ServerOptions,
        workers: int,
        network: Network,
        task: TrainingTask,
    ) -> None:
        gradients = network.gradients.flat
        self._computed: Array = gradients.copy()
        copying = [(network.ops.copy, (gradients, self._computed))]
        ends_with = Update(copying, {}, {}, network.ops, gradients)
        super().__init__(network, task, workers, ends_with)
        self._options = options
        shards = self._shards
        self._parts = [
            sum(bool(shards.rows(worker, batch)) for worker in range(workers))
            for batch in range(shards.batches)
        ]
        if options.staleness != 0:
            self.steps = sum(self._parts)
        self._begin()

    def _begin(self) -> None:
        """Make a new server, and reset sums, for an epoch."""
        self._runner.begin()
        shards, options = self._shards, self._options
        self._core = ServerCore(self._parts, shards.workers, options.staleness)
        self._server = Server(
            self._network,
            self._update,
            self._core,
            lambda piece: shards.share(piece.part, piece.batch),
            options.divide_by_staleness,
        )

    def _new_message(self) -> Message:
        return Message(self._computed)

    def _compute(self, piece: Piece, epoch: EpochArguments, message: Message) -> None:
        """Compute gradients of a piece with the network's parameters; write them to `message`."""
        order, seeds, number = epoch
        places = self._shards.rows(piece.part, piece.batch)
        rows = order[:, places.start : places.stop]
        self._runner.run(rows, rows.shape[1], seeds, number)
        message.values[...] = self._network.ops.to_host(self._computed)
