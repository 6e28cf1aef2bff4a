"""Epochs in parts: callbacks between steps, and resuming from the middle of an epoch.

The order of an epoch depends only on the seed and the number of the epoch, and batches are cut from
it in sequence. So the number of samples visited is all that a resumed training needs, on any number
of ranks.
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
    """Progress of an epoch that has not ended: samples visited, steps done, sums of results.

    Attributes
    ----------
    count : int
        Samples of the whole epoch.
    visited : int
        Samples that have been visited: the first ones in the order of the epoch.
    steps : int
        Steps done in the epoch.
    losses : list of K float
        Sum of the losses of the samples visited, for each network.
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
        """Add a part that a trainer has finished, with the mean loss over its samples."""
        before = self.losses or [0.0] * len(losses)
        self.losses = [sum_ + visited * loss for sum_, loss in zip(before, losses, strict=True)]
        tallies = trainer.tallies()
        if tallies is not None:
            self.tallies = (tallies + (self.tallies or 0)).tolist()
        self.exchange = _added(self.exchange, self._of_epoch(trainer.exchange()))
        self.visited += visited
        self.steps += trainer.steps

    def _of_epoch(self, exchange: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return exchange statistics of a part, with steps counted from the start of the epoch."""
        if exchange is None or "nan" not in exchange:
            return exchange
        found = exchange["nan"]
        return {**exchange, "nan": {**found, "step": self.steps + found["step"]}}


def _added(a: Any, b: Any, name: str = "") -> Any:
    """Return the sum of exchange statistics of two parts: numbers, lists of them, dicts of both.

    Of two entries ``"nan"`` the first is kept.
    """
    if a is None or b is None or name == "nan":
        return b if a is None else a
    if isinstance(a, Mapping):
        return {name: _added(a.get(name), b.get(name), name) for name in {**a, **b}}
    if isinstance(a, list):
        return [x + y for x, y in zip_longest(a, b, fillvalue=0)]
    return a + b


class Pauses(NamedTuple):
    """A callback that runs within epochs, and the number of steps from one call to the next.

    Attributes
    ----------
    every : int, at least 1
        Steps from one pause to the next, counted from the beginning of each epoch.
    function : callable
        Called in each pause, but not at the end of an epoch, with the steps done in the epoch.
    """

    every: int
    function: Callable[[int], None]


class EpochInParts:
    """Trains for an epoch as a `Trainer` does, in parts with pauses between them.

    Parameters
    ----------
    trainer_of : callable
        ``Samples -> TrainerLike`` for a part of an epoch; only the number of its samples matters.
    samples : Samples
    batch_size : int
    pauses : Pauses, optional
    progress : EpochProgress
        Where the epoch resumes; updated in place.

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
        """Visit every sample not yet visited; arguments and result as for `Trainer.epoch`."""
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

    def tallies(self) -> Array | None:
        """Return counts of predictions of the whole epoch, as `Trainer.tallies` does."""
        tallies = self._progress.tallies
        return None if tallies is None else np.array(tallies)

    def exchange(self) -> dict[str, Any] | None:
        """Return exchange statistics of the whole epoch, as `Trainer.exchange` does."""
        return self._progress.exchange
