"""A progress bar, and who watches a training."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from dnn.callbacks.callback import Callback, Epoch, Model, called
from dnn.errors import ConfigurationError, MissingDependencyError
from dnn.training.history import History

__all__ = ["ProgressBar", "at_a_terminal", "watching"]


def at_a_terminal() -> bool:
    """Return whether somebody sees standard error at a terminal."""
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

    def on_fit_begin(self, model: Model, epochs: int) -> None:
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
        except _rich("rich.errors").LiveError:  # somebody else draws at this terminal already
            self._progress.disable = True

    def on_epoch_end(self, epoch: Epoch) -> str | None:
        """Move on by one epoch."""
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

    def on_fit_end(self, model: Model, history: History) -> None:
        """Stop drawing; the last values stay."""
        self._progress.stop()


def watching(
    model: Model,
    history: History,
    epochs: int,
    callbacks: Sequence[Callback],
    progress: bool | None,
) -> AbstractContextManager[Callable[[], str | None]]:
    """Call the callbacks of a training, a progress bar being the last.

    Parameters
    ----------
    model, history, epochs
        As for `called`.
    callbacks : sequence of Callback
    progress : bool, optional
        Whether there is a progress bar; None: at a terminal.

    Returns
    -------
    context manager
        What `called` returns.

    Raises
    ------
    ConfigurationError
        If something else is among the callbacks.
    """
    if isinstance(callbacks, Callback):
        raise ConfigurationError(f"callbacks are a sequence: [{type(callbacks).__name__}(...)]")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigurationError(f"callbacks: {callback!r} is no Callback")
    if progress or (progress is None and at_a_terminal()):
        callbacks = [*callbacks, ProgressBar()]
    return called(callbacks, model, history, epochs)


def _rich(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            "a progress bar needs Rich, which is not installed: pip install rich"
        ) from error
