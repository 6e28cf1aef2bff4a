"""Who watches a training."""

from __future__ import annotations

from collections.abc import Sequence

from dnn.callbacks.callback import Callback
from dnn.callbacks.progress import ProgressBar, at_a_terminal
from dnn.errors import ConfigurationError

__all__ = ["watching"]


def watching(callbacks: Sequence[Callback], progress: bool | None) -> list[Callback]:
    """Return the callbacks of a training, a progress bar being the last.

    Parameters
    ----------
    callbacks : sequence of Callback
    progress : bool, optional
        Whether there is a progress bar; None: at a terminal.

    Raises
    ------
    ConfigurationError
        If one is no callback.
    """
    if isinstance(callbacks, Callback):
        raise ConfigurationError(f"callbacks are a sequence: [{type(callbacks).__name__}(...)]")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigurationError(f"callbacks: {callback!r} is no Callback")
    if progress or (progress is None and at_a_terminal()):
        return [*callbacks, ProgressBar()]
    return [*callbacks]
