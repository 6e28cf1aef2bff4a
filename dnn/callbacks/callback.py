"""What a callback is.

`fit` calls each callback in the order in which they are given::

    on_fit_begin(model, epochs)
    on_epoch_end(epoch)           after each epoch; a string returned is a reason to stop
    on_fit_end(model, history)    after the last epoch, and when training was stopped or failed

Nothing is called for a batch: on a small network that would cost more than the step itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dnn.errors import ConfigurationError, unknown_name

if TYPE_CHECKING:
    from dnn.model import NeuralNetwork
    from dnn.training.history import History

__all__ = ["Callback", "Epoch", "better"]

# What may be watched, and whether more of it is better.
MORE_IS_BETTER = {
    "loss": False,
    "accuracy": True,
    "mcc": True,
    "validation_loss": False,
    "validation_accuracy": True,
    "validation_mcc": True,
}


@dataclass(frozen=True)
class Epoch:
    """An epoch that has ended.

    Attributes
    ----------
    model : NeuralNetwork
    index : int
        From 0, over the whole life of the model.
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
        """What `History.training` says of this epoch; empty unless it is a classification."""
        from dnn.training.history import History

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

    def on_fit_begin(self, model: NeuralNetwork, epochs: int) -> None:
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

    def on_fit_end(self, model: NeuralNetwork, history: History) -> None:
        """End a call of `fit`.

        Parameters
        ----------
        model : NeuralNetwork
        history : History
            Of this call.
        """


def better(monitor: str, value: float, than: float | None, by: float = 0.0) -> bool:
    """Return whether a watched value is better than another.

    Parameters
    ----------
    monitor : str
    value : float
    than : float, optional
        None: any number is better.
    by : float
        How much better it must be.

    Raises
    ------
    ConfigurationError
        If it is not known whether more or less of it is better.
    """
    if value != value:  # NaN is better than nothing
        return False
    if than is None:
        return True
    return value > than + by if more_is_better(monitor) else value < than - by


def more_is_better(monitor: str) -> bool:
    """Return whether more of a watched value is better."""
    if monitor not in MORE_IS_BETTER:
        raise unknown_name("value to watch", monitor, MORE_IS_BETTER)
    return MORE_IS_BETTER[monitor]
