"""Rows of each batch for each rank or worker, and the trainer that computes batches of them."""

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
        """Reset the sums to zero."""
        networks = self._network.models or 1
        self.losses = np.zeros(networks)
        self.rows = 0
        classes = self._network.classes_to_tally
        self._tallies = None if classes is None else np.zeros((networks, classes + 1), np.int64)

    @property
    def tallies(self) -> list[list[int]] | None:
        """Counts of predictions since `begin`, as `Trainer.tallies` returns them."""
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
