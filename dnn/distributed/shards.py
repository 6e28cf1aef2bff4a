"""The rows of each batch that a rank or worker computes, and a trainer on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dnn.backend import Array
from dnn.errors import ConfigurationError
from dnn.optimizers import Update
from dnn.training.epoch import Trainer, TrainingTask
from dnn.training.network import Network

__all__ = ["BatchRunner", "ShardedTrainer", "Shards"]


@dataclass(frozen=True)
class Shards:
    """The rows of each batch of an epoch, cut for some workers.

    Parameters
    ----------
    count : int
        Samples in an epoch.
    batch_size : int
        Of all workers together; the last batch of an epoch holds what remains, of which a worker
        may have no row.
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
        """How many batches an epoch has."""
        return -(-self.count // self.batch_size)

    def size(self, batch: int) -> int:
        """Return how many samples a batch has."""
        return min(self.batch_size, self.count - batch * self.batch_size)

    def rows(self, worker: int, batch: int) -> range:
        """Return which places in an epoch's order a worker computes of a batch.

        Where workers cannot have as many rows, the first of them have one more.
        """
        each, more = divmod(self.size(batch), self.workers)
        first = batch * self.batch_size + worker * each + min(worker, more)
        return range(first, first + each + (worker < more))

    def share(self, worker: int, batch: int) -> float:
        """Return which part of a batch is a worker's: a number from 0 to 1."""
        return len(self.rows(worker, batch)) / self.size(batch)


class BatchRunner:
    """Runs batches of any size on a network, and adds up losses and predictions.

    Parameters
    ----------
    network : Network
    task : TrainingTask
        Whose update is what each batch ends with; the size of batches is said later.

    Attributes
    ----------
    losses : array of float, shape (K,)
        Of each network, summed up over all rows since `begin`.
    rows : int
        As many there were.
    """

    def __init__(
        self,
        network: Network,
        task: TrainingTask,
    ) -> None:
        self._network = network
        self._task = task
        self._trainers: dict[tuple[int, int], Trainer] = {}
        self.begin()

    def begin(self) -> None:
        """Let the sums be zero."""
        networks = self._network.models or 1
        self.losses = np.zeros(networks)
        self.rows = 0
        classes = self._network.classes_to_tally
        self._tallies = None if classes is None else np.zeros((networks, classes + 1), np.int64)

    @property
    def tallies(self) -> list[list[int]] | None:
        """What was predicted since `begin`, as `Trainer.tallies` gives it."""
        return None if self._tallies is None else self._tallies.tolist()

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
        if self._tallies is not None:
            self._tallies += np.array(trainer.tallies())


class ShardedTrainer:
    """Trains a network by workers that share each batch; a subclass says how.

    Parameters
    ----------
    network : Network
    task : TrainingTask
        Batches are of all workers together.
    workers : int
    ends_with : Update
        What a worker ends a batch with.

    Attributes
    ----------
    samples, batch_size
        As they were given.
    count : int
        Samples in an epoch.
    steps : int
        How often the parameters are moved in an epoch.
    """

    def __init__(
        self,
        network: Network,
        task: TrainingTask,
        workers: int,
        ends_with: Update,
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
