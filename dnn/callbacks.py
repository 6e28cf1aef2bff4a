"""Callbacks: objects whose methods `fit` calls before, during and after training.

`fit` calls them in the order in which they are given::

    on_fit_begin(model, epochs)
    on_steps(model)               after every `every_steps` steps of an epoch, but for its end
    on_epoch_end(epoch)           after each epoch; a string returned is a reason to stop
    on_fit_end(model, history)    after the last epoch, and when training was stopped or failed

No method is called for each batch unless a callback asks for it: on a small network that would cost
more than the step itself.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnn.errors import (
    ConfigurationError,
    MissingDependencyError,
    check_count,
    explains_arguments,
)
from dnn.metrics import METRICS, is_better, more_is_better
from dnn.training.checkpoint import require_safetensors
from dnn.training.epoch_parts import Pauses
from dnn.training.history import History
from dnn.training.state import Snapshot

if TYPE_CHECKING:
    from dnn.model import NeuralNetwork

__all__ = [
    "BestCheckpoint",
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "Epoch",
    "ProgressBar",
    "Pruning",
]


@dataclass(frozen=True)
class Epoch:
    """An epoch that has ended: its network, number, loss and metrics.

    Attributes
    ----------
    model : NeuralNetwork
    index : int
        From 0, over all calls of `fit`.
    loss : float
        Mean training loss.
    validation : dict of str to float
        `NeuralNetwork.evaluate` on the validation set; empty without one.
    history : History
        Of this call of `fit`, this epoch included.
    """

    model: NeuralNetwork
    index: int
    loss: float
    validation: dict[str, float]
    history: History

    @property
    def training(self) -> dict[str, float]:
        """Training metrics of this epoch, as in `History.training`; empty without classes."""
        return next(iter(History(tallies=self.history.tallies[-1:]).training), {})

    def value(self, monitor: str) -> float:
        """Return the loss or a metric of this epoch by its name.

        Parameters
        ----------
        monitor : str
            ``"loss"``, ``"accuracy"`` or ``"mcc"`` of the training, or ``"validation_"`` and a
            metric.

        Returns
        -------
        float

        Raises
        ------
        ConfigurationError
            If the epoch has no such value.
        """
        values = {"loss": self.loss, **self.training}
        values.update({f"validation_{name}": value for name, value in self.validation.items()})
        if monitor not in values:
            name, known = monitor.removeprefix("validation_"), ", ".join(values)
            hint = "" if self.validation else "; fit was given no validation set"
            if self.validation and name != monitor and name in METRICS:
                hint = f"; fit(..., validation_metrics=[{name!r}]) measures it"
            raise ConfigurationError(f"no value {monitor!r} to watch (there are: {known}){hint}")
        return values[monitor]


class Callback:
    """Base class of callbacks; a subclass overrides the methods that it needs.

    Attributes
    ----------
    every_steps : int, optional
        After how many steps of an epoch `on_steps` is called, the same on all ranks; None, as here,
        for never.
    """

    every_steps: int | None = None

    def on_fit_begin(self, model: NeuralNetwork, epochs: int) -> None:
        """Prepare for a call of `fit` of at most `epochs` epochs; drop state of an earlier call."""

    def on_steps(self, model: NeuralNetwork) -> None:
        """Look at a network within an epoch; a checkpoint saved here resumes at this step."""

    def on_epoch_end(self, epoch: Epoch) -> str | None:
        """Look at an epoch; return a reason to stop, for `History.stopped`, or None to go on."""
        return None

    def on_fit_end(self, model: NeuralNetwork, history: History) -> None:
        """Finish after a call of `fit`, of that history, even if it was stopped or has failed."""


class EarlyStopping(Callback):
    """Stop training when a watched value has not become better for some epochs.

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
    waited : int
        Epochs since then.
    snapshot : dict of str to array, optional
        Parameters and running statistics of that epoch, until they are restored.

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
        if not min_delta >= 0:
            raise ConfigurationError(
                f"EarlyStopping: min_delta must be 0 or more, not {min_delta!r}"
            )
        self.monitor = monitor
        self.patience = check_count("EarlyStopping: patience", patience)
        self.min_delta = float(min_delta)
        self.restore_best = restore_best
        self._given: tuple[float | None, int | None, int, Snapshot | None] = (None, None, 0, None)
        self._reset()

    def _reset(self) -> None:
        self.best: float | None
        self.best_epoch: int | None
        self.best, self.best_epoch, self.waited, self.snapshot = self._given

    def on_fit_begin(self, model: NeuralNetwork, epochs: int) -> None:
        """Reset the best value and the count of epochs without a better one."""
        self._reset()

    def go_on(
        self,
        best: float | None,
        best_epoch: int | None,
        waited: int,
        snapshot: Snapshot | None,
    ) -> None:
        """Begin the next call of `fit` with the attributes at the end of an earlier one."""
        self._given = best, best_epoch, waited, snapshot
        self._reset()

    def on_epoch_end(self, epoch: Epoch) -> str | None:
        """Return a reason to stop after `patience` epochs without a better value."""
        return self.observe(epoch.index, epoch.value(self.monitor), epoch.model.snapshot)

    def observe(
        self, index: int, value: float, snapshot: Callable[[Snapshot | None], Snapshot]
    ) -> str | None:
        """Record the watched value of epoch `index`, and keep the parameters if it is the best.

        `snapshot` is as `NeuralNetwork.snapshot`; a reason to stop is returned, None to go on.
        """
        if is_better(self.monitor, value, self.best, self.min_delta):
            self.best, self.best_epoch, self.waited = value, index, 0
            if self.restore_best:
                self.snapshot = snapshot(self.snapshot)
            return None
        self.waited += 1
        if self.waited < self.patience:
            return None
        return f"{self.monitor} has not become better for {self.waited} epochs"

    def take_snapshot(self) -> Snapshot | None:
        """Return what was kept of the best epoch, and keep it no longer."""
        snapshot, self.snapshot = self.snapshot, None
        return snapshot

    def on_fit_end(self, model: NeuralNetwork, history: History) -> None:
        """Restore the parameters of the best epoch, if `restore_best` is set."""
        if (snapshot := self.take_snapshot()) is not None:
            model.restore(snapshot)


class Pruning(Callback):
    """Report a value after each epoch to a function that may end the trial.

    A sweep that compares trials while they run stops those that fall behind.

    Parameters
    ----------
    report : callable (epoch: int, value: float) -> bool
        True ends the training; epochs are counted from 1, within this call of `fit`.
    monitor : str
        Name of the value to report, as in `EarlyStopping`.
    every : int, at least 1
        Epochs from one report to the next.

    Attributes
    ----------
    pruned : bool
        `report` has ended the last training.
    """

    @explains_arguments
    def __init__(
        self,
        report: Callable[[int, float], bool],
        monitor: str = "validation_loss",
        every: int = 1,
    ) -> None:
        more_is_better(monitor)
        self.report = report
        self.monitor = monitor
        self.every = check_count("Pruning: every", every)
        self.pruned = False

    def on_fit_begin(self, model: NeuralNetwork, epochs: int) -> None:
        """Reset `pruned`."""
        self.pruned = False

    def on_epoch_end(self, epoch: Epoch) -> str | None:
        """Report the value every `every` epochs; stop if `report` returns True."""
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
        As of `EarlyStopping`.

    Attributes
    ----------
    best, best_epoch
        As of `EarlyStopping`.

    Raises
    ------
    MissingDependencyError
        If safetensors is not installed.
    """

    @explains_arguments
    def __init__(self, path: str | PathLike[str], monitor: str = "validation_loss") -> None:
        more_is_better(monitor)
        require_safetensors()  # now, and not after the first epoch
        self.path = Path(path)
        self.monitor = monitor
        self.best: float | None = None
        self.best_epoch: int | None = None

    def on_fit_begin(self, model: NeuralNetwork, epochs: int) -> None:
        """Reset the best value and its epoch."""
        self.best = self.best_epoch = None

    def on_epoch_end(self, epoch: Epoch) -> str | None:
        """Write a checkpoint if this epoch is the best."""
        value = epoch.value(self.monitor)
        if is_better(self.monitor, value, self.best):
            self.best, self.best_epoch = value, epoch.index
            epoch.model.save(self.path)
        return None


class Checkpoint(Callback):
    """Write a checkpoint after each epoch, and within epochs if asked to, to resume training.

    Parameters
    ----------
    path : path
        Of the one file, replaced each time as a whole.
    every_steps : int, at least 1, optional
        Steps of an epoch from one checkpoint to the next; only after epochs if left out.

    Raises
    ------
    MissingDependencyError
        If safetensors is not installed.

    Notes
    -----
    A training goes on in another process, on any number of ranks, by ``model.load(path)`` and a
    `fit` of as many epochs as are left, the one that was begun included: each of its samples is
    visited once. `History` has such an epoch as a whole. Where several ranks train the network, all
    of them are given this callback, and rank 0 writes.
    """

    @explains_arguments
    def __init__(self, path: str | PathLike[str], every_steps: int | None = None) -> None:
        require_safetensors()  # now, and not after the first epoch
        self.path = Path(path)
        if every_steps is not None:
            every_steps = check_count("Checkpoint: every_steps", every_steps)
        self.every_steps = every_steps

    def on_steps(self, model: NeuralNetwork) -> None:
        """Write a checkpoint of this step."""
        model.save(self.path)

    def on_epoch_end(self, epoch: Epoch) -> str | None:
        """Write a checkpoint of this epoch."""
        epoch.model.save(self.path)
        return None


def at_a_terminal() -> bool:
    """Return whether standard error is a terminal."""
    return bool(sys.stderr is not None and sys.stderr.isatty())


class ProgressBar(Callback):
    """Show epochs and the last values on standard error; a file or a pipe gets nothing.

    Raises
    ------
    MissingDependencyError
        If Rich is not installed.
    """

    def __init__(self) -> None:
        _rich("rich.progress")
        self._progress: Any = None
        self._task: Any = None

    def on_fit_begin(self, model: NeuralNetwork, epochs: int) -> None:
        """Draw an empty bar."""
        progress = _rich("rich.progress")
        console = _rich("rich.console").Console(stderr=True)
        self._progress = progress.Progress(
            progress.TextColumn("epoch"),
            progress.MofNCompleteColumn(),
            progress.BarColumn(bar_width=None),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[values]}"),
            console=console,
            expand=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("epoch", total=epochs, values="")
        try:
            self._progress.start()
        except _rich("rich.errors").LiveError:  # another bar is drawn at this terminal
            self._progress.disable = True

    def on_epoch_end(self, epoch: Epoch) -> str | None:
        """Advance the bar by one epoch, and show the values of that epoch."""
        # Short names: a terminal of 80 columns shows the bar too.
        shown = {"loss": epoch.loss}
        if not epoch.validation and "accuracy" in epoch.training:
            shown["accuracy"] = epoch.training["accuracy"]
        if epoch.validation:
            shown["validation"] = epoch.validation["loss"]
        if "accuracy" in epoch.validation:
            shown["accuracy"] = epoch.validation["accuracy"]
        values = "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
        self._progress.update(self._task, advance=1, values=values)
        return None

    def on_fit_end(self, model: NeuralNetwork, history: History) -> None:
        """Stop drawing; the last values stay."""
        self._progress.stop()


def pauses_of(model: NeuralNetwork, callbacks: Sequence[Callback]) -> Pauses | None:
    """Return the calls of `Callback.on_steps` within epochs; None if no callback asks for them.

    It raises `ConfigurationError` unless `callbacks` is a sequence of `Callback`.
    """
    if isinstance(callbacks, Callback):
        raise ConfigurationError(f"callbacks are a sequence: [{type(callbacks).__name__}(...)]")
    if not isinstance(callbacks, Iterable):
        raise ConfigurationError(f"callbacks must be a list of Callback, not {callbacks!r:.100}")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigurationError(f"callbacks: {callback!r} is no Callback")
    every_steps = [(callback.every_steps, callback) for callback in callbacks]
    asking = [(every, callback) for every, callback in every_steps if every is not None]
    if not asking:
        return None

    def call(steps: int) -> None:
        for every, callback in asking:
            if steps % every == 0:
                callback.on_steps(model)

    return Pauses(math.gcd(*(every for every, _ in asking)), call)


@contextmanager
def watching(
    model: NeuralNetwork,
    history: History,
    epochs: int,
    callbacks: Sequence[Callback],
    progress: bool | None,
) -> Iterator[Callable[[], str | None]]:
    """Call callbacks when `fit` begins and ends; yield the function to call after each epoch.

    It calls every callback, even after one has returned a reason to stop, and returns the first
    reason. `history` is of this call of `fit`, and `progress` says whether a progress bar is added
    behind the callbacks; None: at a terminal.
    """
    if progress or (progress is None and at_a_terminal()):
        callbacks = [*callbacks, ProgressBar()]

    def after_epoch() -> str | None:
        validation = history.validation[-1] if history.validation else {}
        index = len(model.history) - 1
        epoch = Epoch(model, index, history.loss[-1], validation, history)
        reasons = [callback.on_epoch_end(epoch) for callback in callbacks]
        return next((reason for reason in reasons if reason), None)

    with ExitStack() as ends:
        for callback in callbacks:
            ends.callback(callback.on_fit_end, model, history)
            callback.on_fit_begin(model, epochs)
        yield after_epoch


def _rich(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            "a progress bar needs Rich, which is not installed: pip install rich"
        ) from error
