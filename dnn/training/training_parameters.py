"""`TrainingParameters`: learning rate, batch size, epochs and weight decay in one object."""

from __future__ import annotations

from dataclasses import dataclass

from dnn.errors import ConfigurationError, check_count, explains_arguments
from dnn.optimizers import Optimizer, optimizer_of

__all__ = ["TrainingParameters"]


@explains_arguments
@dataclass(frozen=True)
class TrainingParameters:
    """Learning rate, batch size, epochs and weight decay in one object, as in MagmaDNN.

    Parameters
    ----------
    learning_rate : float, positive, optional
        The optimizer's own if left out.
    batch_size, epochs : int, at least 1
        Defaults of the arguments of `NeuralNetwork.fit`.
    decay : float, not negative
        The optimizer's ``weight_decay``.

    Raises
    ------
    ConfigurationError
        If a number is out of its range.
    """

    learning_rate: float | None = None
    batch_size: int = 32
    epochs: int = 1
    decay: float = 0.0

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        check_count("epochs", self.epochs)
        self.optimizer("sgd")  # it checks the rest

    def optimizer(self, given: str | Optimizer) -> Optimizer:
        """Return the optimizer of a name, with this learning rate and decay.

        It is a `ConfigurationError` if none has that name, or `given` is an object, which has a
        learning rate and a decay of its own, and they are stated here too.
        """
        stated = {"learning_rate": self.learning_rate, "weight_decay": self.decay or None}
        settings = {name: value for name, value in stated.items() if value is not None}
        if isinstance(given, Optimizer) and settings:
            message = f"params state {' and '.join(settings)}, and the optimizer is {given!r}"
            raise ConfigurationError(f"{message}: give its name, or leave them out of params")
        return optimizer_of(given, **settings)
