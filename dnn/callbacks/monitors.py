"""Callbacks that monitor a value: to stop early, to be pruned, to save the best epoch."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from dnn.callbacks.callback import Callback, Epoch, Model
from dnn.errors import ConfigurationError, explains_arguments
from dnn.metrics import is_better, more_is_better
from dnn.training.checkpoint import require_safetensors
from dnn.training.history import History
from dnn.training.state import Snapshot

__all__ = ["BestCheckpoint", "EarlyStopping", "Pruning"]


class EarlyStopping(Callback):
    """Stop when a value has not become better for some epochs.

    Parameters
    ----------
    monitor : str
        ``"validation_loss"``, ``"validation_accuracy"``, ``"validation_mcc"``, or ``"loss"``,
        ``"accuracy"``, ``"mcc"`` of the training.
    patience : int, at least 1
        Epochs to wait for a better value.
    min_delta : float, not negative
        How much better a value must be to count.
    restore_best : bool
        At the end, give the model back the parameters and running statistics of its best epoch.
        The optimizer keeps what it has learned since.

    Attributes
    ----------
    best : float, optional
        The best value so far.
    best_epoch : int, optional
        Where it was reached, from 0 over all calls of `fit`.

    References
    ----------
    .. [1] Prechelt, Early Stopping - But When?, 1998: the criterion UP with strips of one epoch.
    """

    @explains_arguments
    def __init__(
        self,
        monitor: str = "validation_loss",
        patience: int = 5,
        min_delta: float = 0.0,
        restore_best: bool = True,
    ) -> None:
        more_is_better(monitor)
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise ConfigurationError(
                f"EarlyStopping: patience must be an integer of at least 1, not {patience!r}"
            )
        if not min_delta >= 0:
            raise ConfigurationError(
                f"EarlyStopping: min_delta must be 0 or more, not {min_delta!r}"
            )
        self.monitor = monitor
        self.patience = patience
        self.min_delta = float(min_delta)
        self.restore_best = restore_best
        self._forget()

    def _forget(self) -> None:
        self.best: float | None = None
        self.best_epoch: int | None = None
        self._waited = 0
        self._snapshot: Snapshot | None = None

    def on_fit_begin(self, model: Model, epochs: int) -> None:
        """Forget an earlier training."""
        self._forget()

    def on_epoch_end(self, epoch: Epoch) -> str | None:
        """Stop after `patience` epochs without a better value."""
        value = epoch.value(self.monitor)
        if is_better(self.monitor, value, self.best, self.min_delta):
            self.best, self.best_epoch, self._waited = value, epoch.index, 0
            if self.restore_best:
                self._snapshot = epoch.model.snapshot(self._snapshot)
            return None
        self._waited += 1
        if self._waited < self.patience:
            return None
        return f"{self.monitor} has not become better for {self._waited} epochs"

    def on_fit_end(self, model: Model, history: History) -> None:
        """Restore the best epoch."""
        if self._snapshot is not None:
            model.restore(self._snapshot)
            self._snapshot = None


class Pruning(Callback):
    """Report a value after each epoch to somebody who may end the trial.

    A sweep that compares trials while they run stops those that fall behind.

    Parameters
    ----------
    report : callable (epoch: int, value: float) -> bool
        True ends the training; epochs are counted from 1, within this call of `fit`.
    monitor : str
        What is reported; as in `EarlyStopping`.
    every : int, at least 1
        Epochs from one report to the next.

    Attributes
    ----------
    pruned : bool
        `report` has ended the last training.
    """

    def __init__(
        self,
        report: Callable[[int, float], bool],
        monitor: str = "validation_loss",
        every: int = 1,
    ) -> None:
        more_is_better(monitor)
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ConfigurationError(
                f"Pruning: every must be an integer of at least 1, not {every!r}"
            )
        self.report = report
        self.monitor = monitor
        self.every = every
        self.pruned = False

    def on_fit_begin(self, model: Model, epochs: int) -> None:
        """Forget an earlier training."""
        self.pruned = False

    def on_epoch_end(self, epoch: Epoch) -> str | None:
        """Report, and stop when told to."""
        done = len(epoch.history)
        if done % self.every == 0:
            self.pruned = bool(self.report(done, epoch.value(self.monitor)))
        return "pruned" if self.pruned else None


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
        Where it was reached, from 0 over all calls of `fit`.

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

    def on_fit_begin(self, model: Model, epochs: int) -> None:
        """Forget an earlier training."""
        self.best = self.best_epoch = None

    def on_epoch_end(self, epoch: Epoch) -> str | None:
        """Write a checkpoint if this epoch is the best."""
        value = epoch.value(self.monitor)
        if is_better(self.monitor, value, self.best):
            self.best, self.best_epoch = value, epoch.index
            epoch.model.save(self.path)
        return None
