"""States of trainings at the ends of trials, from which other trials go on, otherwise set.

A trainer writes the state of each trial to a file, so that any trainer may have another trial go on
from it, after a restart too. It keeps the last ones in memory: of networks that are trained in one
plan, rows of arrays are then copied from one network to another, and no file is read. The bits are
the same. What goes on has the parameters of its parent, the state of its optimizer and its epochs;
the seed, learning rates, dropout and so on are those of its own trial, so two copies of one network
with the same point do not stay the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .hyperparameters import Hyperparameters
from .networks import dropout_rates

if TYPE_CHECKING:
    from dnn import Ensemble, NeuralNetwork, Progress

_MOST_BYTES: Final = 2**28
"""Most bytes of states that stay in memory."""
ONE_TRAINING: Final = (
    "trials that go on from each other train one network each, on one split, with one seed and "
    "without patience"
)
NO_CHECKPOINTS: Final = "trials that go on from each other have checkpoints of their own"
"""What is wrong with options of a trainer whose trials go on from each other."""


class TrialStates:
    """States of trainings by their files; the last ones stay in memory."""

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes, self._sum_bytes = most_bytes, 0
        self._kept: OrderedDict[Path, Progress] = OrderedDict()

    def load(self, path: Path) -> Progress:
        """Return the state that a trial has left; a `CheckpointError` if it is not there."""
        from dnn import CheckpointError, load_progress

        kept = self._kept.get(path)
        if kept is not None:
            return kept
        if not path.is_file():
            raise CheckpointError(
                f"{path} is not there, from which this trial goes on: states are kept as long as "
                "their sweep needs them"
            )
        return load_progress(path)[0]

    def begin(self, model: NeuralNetwork, parent: Path | None, wanted: Hyperparameters) -> int:
        """Have a network go on from the end of a trial, if there is one; return its epochs."""
        if parent is None:
            return 0
        progress = self.load(parent)
        go_on(model, [progress], [wanted])
        return progress.epochs

    def save(self, path: Path, progress: Progress, rank: int = 0) -> None:
        """Keep the state of a trial, and write it; of several ranks the first one writes."""
        if rank == 0:
            progress.save(path)
        if path in self._kept:
            self._sum_bytes -= self._kept.pop(path).nbytes
        self._kept[path] = progress
        self._sum_bytes += progress.nbytes
        while self._sum_bytes > self._most_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._sum_bytes -= oldest.nbytes


def go_on(
    networks: NeuralNetwork | Ensemble,
    parents: Sequence[Progress],
    wanted: Sequence[Hyperparameters],
) -> None:
    """Have networks go on from copies of others, each with what its own trial sets.

    A `ShapeError` if they are of other layers, or of another kind of optimizer.
    """
    from dnn import copy_training

    copy_training(networks, parents, [*dropout_rates(wanted)])
