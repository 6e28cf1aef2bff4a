"""Epochs in parts: what is called between two steps, and what goes on from the middle of an epoch.

The order of an epoch depends on the seed and its number alone, and batches are cut from it one
behind the other. So how many samples of it were visited is all that another start has to know, on
however many ranks it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnn.backend import Array
from dnn.errors import ConfigurationError
from dnn.training.data import Samples

if TYPE_CHECKING:
    from dnn.training.parallel import TrainerLike

__all__ = ["EpochInParts", "EpochProgress", "Pauses"]


@dataclass
class EpochProgress:
    """How far an epoch is that has not come to its end.

    Attributes
    ----------
    count : int
        Samples of the whole epoch.
    visited : int
        The first so many of its order have been visited.
    steps : int
        Done in it.
    losses : list of K float
        Sums over the samples visited, in each network.
    tallies : list of K lists of int, optional
        As `Trainer.tallies`.
    exchange : dict, optional
        As `Trainer.exchange`.
    """

    count: int
    visited: int = 0
    steps: int = 0
    losses: list[float] = field(default_factory=list)
    tallies: list[list[int]] | None = None
    exchange: dict[str, Any] | None = None

    def add(self, visited: int, trainer: TrainerLike, losses: Sequence[float]) -> None:
        """Note a part that has been trained, with the mean loss over its samples."""
        before = self.losses or [0.0] * len(losses)
        self.losses = [sum_ + visited * loss for sum_, loss in zip(before, losses, strict=True)]
        tallies = trainer.tallies()
        if tallies is not None and self.tallies is not None:
            tallies = np.add(self.tallies, tallies).tolist()
        self.tallies = tallies
        self.exchange = _added(self.exchange, self._of_epoch(trainer.exchange()))
        self.visited += visited
        self.steps += trainer.steps

    def _of_epoch(self, exchange: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return what a part has cost, its steps counted from the beginning of the epoch."""
        if exchange is None or "nan" not in exchange:
            return exchange
        found = exchange["nan"]
        return {**exchange, "nan": {**found, "step": self.steps + found["step"]}}


def _added(a: Any, b: Any, name: str = "") -> Any:
    """Add up what parts of an epoch have cost: numbers, lists of them, and tables of both.

    Of gradients that were not finite the first are kept.
    """
    if a is None or b is None or name == "nan":
        return b if a is None else a
    if isinstance(a, Mapping):
        return {name: _added(a.get(name), b.get(name), name) for name in {**a, **b}}
    if isinstance(a, list):
        return [x + y for x, y in zip_longest(a, b, fillvalue=0)]
    return a + b


class Pauses(NamedTuple):
    """What is done within epochs.

    Attributes
    ----------
    every : int, at least 1
        Steps from one pause to the next, counted from the beginning of each epoch.
    function : callable
        Called in each pause with the steps done in the epoch, but for its end.
    """

    every: int
    function: Callable[[int], None]


class EpochInParts:
    """Trains for an epoch as a `Trainer` does, in parts with pauses between them.

    Parameters
    ----------
    trainer_of : callable
        ``Samples -> TrainerLike``, for parts of an epoch, whose number of samples counts alone.
    samples : Samples
    batch_size : int
    pauses : Pauses, optional
    progress : EpochProgress, optional
        Where the epoch goes on; it is kept up to date.

    Raises
    ------
    ConfigurationError
        If the epoch had another number of samples before.
    """

    def __init__(
        self,
        trainer_of: Callable[[Samples], TrainerLike],
        samples: Samples,
        batch_size: int,
        pauses: Pauses | None,
        progress: EpochProgress,
    ) -> None:
        if progress.count != samples.count:
            raise ConfigurationError(
                f"the checkpoint is of the middle of an epoch of {progress.count:,} samples, and "
                f"there are {samples.count:,}: give the same ones, or "
                "load_checkpoint(..., parameters_only=True)"
            )
        self.samples = samples
        self.count = samples.count
        self.batch_size = min(batch_size, self.count)
        self.steps = progress.steps
        self._trainer_of = trainer_of
        self._pauses = pauses
        self._progress = progress
        self._networks = 1 if samples.rows is None else len(samples.rows)
        self._part(self._next())  # compiled before the epoch

    def _next(self) -> int:
        """Return how many samples the next part has."""
        progress = self._progress
        left = self.count - progress.visited
        if self._pauses is None:
            return left
        every = self._pauses.every
        return min(left, (every - progress.steps % every) * self.batch_size)

    def _part(self, count: int) -> TrainerLike:
        rows = np.zeros((self._networks, count), np.intp)
        return self._trainer_of(replace(self.samples, rows=rows))

    def epoch(self, order: Array, seeds: Sequence[int] = (), number: int = 0) -> list[float]:
        """Visit every sample that has not been visited; as `Trainer.epoch`."""
        progress = self._progress
        order = order.reshape(self._networks, self.count)
        while progress.visited < self.count:
            count = self._next()
            trainer = self._part(count)
            part = np.ascontiguousarray(order[:, progress.visited : progress.visited + count])
            progress.add(count, trainer, trainer.epoch(part, seeds, number))
            if self._pauses is not None and progress.visited < self.count:
                self._pauses.function(progress.steps)
        self.steps = progress.steps
        return [loss / self.count for loss in progress.losses]

    def tallies(self) -> list[list[int]] | None:
        """Return what was predicted in the whole epoch; as `Trainer.tallies`."""
        return self._progress.tallies

    def exchange(self) -> dict[str, Any] | None:
        """Return what the whole epoch cost; as `Trainer.exchange`."""
        return self._progress.exchange
