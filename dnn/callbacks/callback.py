"""What a callback is.

`fit` calls each callback in the order in which they are given::

    on_fit_begin(model, epochs)
    on_epoch_end(epoch)           after each epoch; a string returned is a reason to stop
    on_fit_end(model, history)    after the last epoch, and when training was stopped or failed

Nothing is called for a batch: on a small network that would cost more than the step itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Protocol

import numpy.typing as npt

from dnn.backend import Array
from dnn.errors import ConfigurationError
from dnn.training.history import History
from dnn.training.state import Snapshot

if TYPE_CHECKING:
    from dnn.tensor import Tensor

__all__ = ["Callback", "Epoch", "Model", "called"]


class Model(Protocol):
    """What a callback may rely on of the network that is trained: see `dnn.NeuralNetwork`."""

    @property
    def seed(self) -> int:
        """Of the order of samples."""

    @property
    def history(self) -> History:
        """Of all calls of `fit` so far."""

    @property
    def parameters(self) -> Mapping[str, Tensor]:
        """Every parameter by name, as a tensor of the network's own memory."""

    def snapshot(self, into: Snapshot | None = None) -> Snapshot:
        """Copy parameters and running statistics."""

    def restore(self, snapshot: Snapshot) -> None:
        """Take them back."""

    def predict(self, x: npt.ArrayLike) -> Array:
        """Return the class of each sample, or the outputs."""

    def predict_proba(self, x: npt.ArrayLike) -> Array:
        """Return the probability of each class."""

    def evaluate(self, x: npt.ArrayLike, y: npt.ArrayLike) -> dict[str, float]:
        """Return the loss, and of a classification accuracy and correlation."""

    def save(self, path: str | PathLike[str]) -> None:
        """Write a checkpoint."""

    def load(self, path: str | PathLike[str]) -> None:
        """Go on from a checkpoint."""


@dataclass(frozen=True)
class Epoch:
    """An epoch that has ended.

    Attributes
    ----------
    model : Model
    index : int
        From 0, over all calls of `fit`.
    loss : float
        Mean training loss.
    validation : dict of str to float
        `NeuralNetwork.evaluate` on the validation set; empty without one.
    history : History
        Of this call of `fit`, this epoch included.
    """

    model: Model
    index: int
    loss: float
    validation: dict[str, float]
    history: History

    @property
    def training(self) -> dict[str, float]:
        """What `History.training` says of this epoch; empty unless it is a classification."""
        return next(iter(History(tallies=self.history.tallies[-1:]).training), {})

    def value(self, monitor: str) -> float:
        """Return a value by the name under which callbacks watch it.

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
            hint = "" if self.validation else "; fit was given no validation set"
            known = ", ".join(values)
            raise ConfigurationError(f"no value {monitor!r} to watch (there are: {known}){hint}")
        return values[monitor]


class Callback:
    """Something to be done round epochs; a subclass overrides what it needs."""

    def on_fit_begin(self, model: Model, epochs: int) -> None:
        """Begin a call of `fit`; state of an earlier one is dropped.

        Parameters
        ----------
        model : NeuralNetwork
        epochs : int
            How many there will be at most.
        """

    def on_epoch_end(self, epoch: Epoch) -> str | None:
        """Look at an epoch that has ended.

        Parameters
        ----------
        epoch : Epoch

        Returns
        -------
        str or None
            A reason to stop, for `History.stopped`; None to go on.
        """
        return None

    def on_fit_end(self, model: Model, history: History) -> None:
        """End a call of `fit`.

        Parameters
        ----------
        model : NeuralNetwork
        history : History
            Of this call.
        """


@contextmanager
def called(
    callbacks: Sequence[Callback], model: Model, history: History, epochs: int
) -> Iterator[Callable[[], str | None]]:
    """Call callbacks at the beginning and the end of a call of `fit`.

    Parameters
    ----------
    callbacks : sequence of Callback
    model : NeuralNetwork
    history : History
        Of this call.
    epochs : int
        How many there will be at most.

    Yields
    ------
    callable () -> str or None
        To be called after each epoch. It calls every callback, though one has asked to stop, and
        returns the first reason to.
    """

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
