"""What happened in training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["History"]


@dataclass
class History:
    """What happened in a call of `fit`, or in all of them; one entry an epoch.

    Attributes
    ----------
    loss : list of float
        Mean training loss over the epoch, each batch before its step.
    validation : list of dict of str to float
        `NeuralNetwork.evaluate` on the validation set after the epoch; empty without one.
    epoch_times_s : list of float, seconds
        Spent in training steps, validation, callbacks and compilation not counted.
    steps : int
    diverged : bool
        The loss became NaN or infinite, and training stopped after that epoch.
    stopped : str, optional
        What a callback gave as its reason to stop before the last epoch.
    """

    loss: list[float] = field(default_factory=list)
    validation: list[dict[str, float]] = field(default_factory=list)
    epoch_times_s: list[float] = field(default_factory=list)
    steps: int = 0
    diverged: bool = False
    stopped: str | None = None

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def training_time_s(self) -> float:
        """Time spent in training steps, in seconds."""
        return sum(self.epoch_times_s)

    @property
    def accuracy(self) -> list[float]:
        """Accuracy on the validation set after each epoch; empty where there is none."""
        return [result["accuracy"] for result in self.validation if "accuracy" in result]

    def add(self, loss: float, took_s: float, steps: int) -> None:
        """Append an epoch without validation; the training goes on, or has diverged.

        Parameters
        ----------
        loss : float
            Mean over the epoch.
        took_s : float, seconds
        steps : int
        """
        self.loss.append(loss)
        self.epoch_times_s.append(took_s)
        self.steps += steps
        self.diverged = not math.isfinite(loss)
        self.stopped = None

    def extend(self, later: History) -> None:
        """Append what happened later.

        Parameters
        ----------
        later : History
            Its `diverged` and `stopped` replace those of this one.
        """
        self.loss += later.loss
        self.validation += later.validation
        self.epoch_times_s += later.epoch_times_s
        self.steps += later.steps
        self.diverged = later.diverged
        self.stopped = later.stopped
