"""A checkpoint of the best epoch."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from dnn.callbacks.callback import Callback, Epoch, better, more_is_better
from dnn.training.checkpoint import require_safetensors, save_checkpoint

if TYPE_CHECKING:
    from dnn.model import NeuralNetwork

__all__ = ["BestCheckpoint"]


class BestCheckpoint(Callback):
    """Write a checkpoint after each epoch that is the best so far.

    Parameters
    ----------
    path : path
        Of the one file, replaced each time as a whole.
    monitor : str
        ``"validation_loss"``, ``"validation_accuracy"``, ``"validation_mcc"``, or ``"loss"``,
        ``"accuracy"``, ``"mcc"`` of the training.

    Attributes
    ----------
    best : float, optional
        The best value so far.
    best_epoch : int, optional
        Where it was reached, from 0 over the life of the model.

    Raises
    ------
    MissingDependencyError
        If safetensors is not installed.
    """

    def __init__(self, path: str | PathLike[str], monitor: str = "validation_loss") -> None:
        more_is_better(monitor)
        require_safetensors()  # now, and not after the first epoch
        self.path = Path(path)
        self.monitor = monitor
        self.best: float | None = None
        self.best_epoch: int | None = None

    def on_fit_begin(self, model: NeuralNetwork, epochs: int) -> None:
        """Forget an earlier training."""
        self.best = self.best_epoch = None

    def on_epoch_end(self, epoch: Epoch) -> str | None:
        """Write a checkpoint if this epoch is the best."""
        value = epoch.value(self.monitor)
        if better(self.monitor, value, self.best):
            self.best, self.best_epoch = value, epoch.index
            save_checkpoint(epoch.model, self.path)
        return None
