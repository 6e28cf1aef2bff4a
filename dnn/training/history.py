"""History of a training: losses, metrics, times and exchange statistics of each epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final

import numpy as np

from dnn.backend import Array
from dnn.metrics import metrics_of_counts

__all__ = ["History", "add_epoch"]


INTERRUPTED: Final = "interrupted within an epoch"


class _Tallies:
    """The field `History.tallies`, whose counts become lists when somebody reads them.

    Until then they are rows of arrays: two lists for each epoch of each of K networks would have
    Python's garbage collector look at all objects again and again.
    """

    def __get__(self, history: History | None, owner: type | None = None) -> Any:
        if history is None:  # asked for by `dataclass`: the default
            return ()
        found: list[Any] = vars(history)["tallies"]
        rows: list[Array] = vars(history)["_counted"]
        for counted in [row.tolist() for row in rows]:
            classes = len(counted) // 2
            found.append([counted[:classes], counted[classes:]])
        rows.clear()
        return found

    def __set__(self, history: History, tallies: Sequence[Sequence[Sequence[int]]]) -> None:
        vars(history).update(tallies=[*tallies], _counted=[])


@dataclass(repr=False)
class History:
    """Losses, metrics and times of each epoch, of one call of `fit` or of all calls.

    Callbacks watch attributes by these names; those without ``validation_`` are of the training.

    Attributes
    ----------
    loss : list of float
        Mean training loss over the epoch, each batch before its step.
    validation : list of dict of str to float
        `NeuralNetwork.evaluate` on the validation set after the epoch; empty without one.
    epoch_times_s : list of float, seconds
        Time of the training steps; validation, callbacks and compilation are not counted.
    steps : int
    diverged : bool
        The loss became NaN or infinite, and training stopped after that epoch.
    stopped : str, optional
        Why training ended before the last epoch: the reason of a callback, or gradients of a rank
        that were not finite.
    tallies : list of (list of int, list of int)
        For each epoch the samples of each class, and the predictions of each class followed by the
        number of right ones; empty unless the loss classifies. `training` is computed from them
        when it is read, since that takes as long as two or three steps of a small network.
    skipped_steps : int
        Of `steps`, those left out: since the scaled loss overflowed in float16, or since gradients
        were not finite and `DataParallel` has ``on_nan="skip"``.
    exchange : list of dict
        Statistics of each epoch where several workers train the network, the same on all ranks;
        empty in one process. ``"bytes_sent"`` is of all ranks together: an array that is summed
        counts once for each rank. With a parameter server ``"staleness"`` has at place k how many
        gradients were applied to parameters that had moved k times meanwhile; simulated workers
        have ``"simulated_s"``. Where gradients were not finite, ``"nan"`` has the ``"rank"``,
        ``"layer"`` and ``"step"`` in the epoch of the first ones, or ``"wire"`` in place of the
        rank where their sum was too large for the type that they were sent in; and
        ``"skipped_steps"`` how many steps were left out for it.
    """

    loss: list[float] = field(default_factory=list)
    validation: list[dict[str, float]] = field(default_factory=list)
    epoch_times_s: list[float] = field(default_factory=list)
    steps: int = 0
    diverged: bool = False
    stopped: str | None = None
    tallies: _Tallies = _Tallies()
    skipped_steps: int = 0
    exchange: list[dict[str, Any]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def is_interrupted(self) -> bool:
        """Training ended within an epoch, as `interrupt` of `fit` had it."""
        return self.stopped == INTERRUPTED

    @property
    def training_time_s(self) -> float:
        """Time spent in training steps, in seconds."""
        return sum(self.epoch_times_s)

    @property
    def training(self) -> list[dict[str, float]]:
        """Training ``"accuracy"`` and ``"mcc"`` over each epoch; empty unless the loss classifies.

        They are of the predictions made in training, of each batch before its step, as the loss is
        (and as Keras does it). The network of that moment predicts, with dropout, so they may lie
        below `NeuralNetwork.evaluate` on the same samples. Samples count alike, whatever their
        weight.
        """
        if not self.tallies:
            return []
        of_class, counted = (np.array(part) for part in zip(*self.tallies, strict=True))
        return metrics_of_counts(counted[:, -1], of_class, counted[:, :-1])

    @property
    def accuracy(self) -> list[float]:
        """Training accuracy over each epoch; empty unless the loss classifies."""
        return [result["accuracy"] for result in self.training]

    @property
    def mcc(self) -> list[float]:
        """Matthews correlation in training over each epoch; empty unless the loss classifies."""
        return [result["mcc"] for result in self.training]

    @property
    def staleness(self) -> list[int]:
        """Number of gradients that were k versions old, at place k, over all epochs.

        Empty without a parameter server.
        """
        counts = [each["staleness"] for each in self.exchange if "staleness" in each]
        return [sum(column) for column in zip_longest(*counts, fillvalue=0)]

    @property
    def mean_staleness(self) -> float:
        """Mean staleness of all gradients; 0 without a parameter server."""
        counts = self.staleness
        return sum(k * count for k, count in enumerate(counts)) / max(1, sum(counts))

    @property
    def largest_staleness(self) -> int:
        """Largest staleness of any gradients; 0 without a parameter server."""
        return max((k for k, count in enumerate(self.staleness) if count), default=0)

    def last(self) -> dict[str, float]:
        """Return training loss and accuracy of the last epoch, and the training time of all epochs.

        Returns
        -------
        dict of str to float
            ``"loss"`` and, of a classification, ``"accuracy"``; ``"training_time_s"``.
        """
        accuracy = {"accuracy": self.accuracy[-1]} if self.tallies else {}
        return {"loss": self.loss[-1], **accuracy, "training_time_s": self.training_time_s}

    @property
    def validation_loss(self) -> list[float]:
        """Loss on the validation set after each epoch; empty where there is none."""
        return [result["loss"] for result in self.validation]

    @property
    def validation_accuracy(self) -> list[float]:
        """Accuracy on the validation set after each epoch; empty where there is none."""
        return [result["accuracy"] for result in self.validation if "accuracy" in result]

    def __repr__(self) -> str:
        if not len(self):
            return "History(no epochs)"
        epochs = f"{len(self):,d} epoch{'s' if len(self) > 1 else ''}"
        first = f"{self.loss[0]:.4g} -> " if len(self) > 1 else ""
        parts = [f"loss {first}{self.loss[-1]:.4g}"]
        if self.training:
            parts.append(f"accuracy {self.accuracy[-1]:.4g}")
        if self.validation:
            last = self.validation[-1]
            parts += [f"validation {name} {value:.4g}" for name, value in last.items()]
        parts.append(f"{self.training_time_s:.3g} s")
        if self.diverged:
            parts.append("diverged")
        if self.stopped is not None:
            parts.append(f"stopped: {self.stopped}")
        return f"History({epochs}: {', '.join(parts)})"

    def add(
        self,
        loss: float,
        took_s: float,
        steps: int,
        tally: Sequence[Sequence[int]] | None = None,
        validation: Mapping[str, float] | None = None,
        exchange: Mapping[str, Any] | None = None,
    ) -> None:
        """Append an epoch; the history has diverged if the loss is not finite.

        Parameters
        ----------
        loss : float
            Mean over the epoch.
        took_s : float, seconds
        steps : int
        tally : (list of int, list of int), optional
            As in `tallies`.
        validation : mapping of str to float, optional
        exchange : mapping of str to value, optional
            As in `exchange`.
        """
        row = None if tally is None else np.array([*tally[0], *tally[1]], np.int64)
        add_epoch([self], [loss], took_s, steps, None if row is None else [row], exchange)
        if validation is not None:
            self.validation.append(dict(validation))


def add_epoch(
    histories: Sequence[History],
    losses: Sequence[float],
    took_s: float,
    steps: int,
    counted: Sequence[Array] | None = None,
    exchange: Mapping[str, Any] | None = None,
) -> None:
    """Append an epoch to the histories of K networks, as `History.add` does to one.

    `counted` are the two lists of each network's tally, as one array.
    """
    for history, loss in zip(histories, losses, strict=True):
        history.loss.append(loss)
        history.epoch_times_s.append(took_s)
        history.steps += steps
        history.diverged = not math.isfinite(loss)
        history.stopped = None
    if counted is not None:
        for history, row in zip(histories, counted, strict=True):
            vars(history)["_counted"].append(row)
    if exchange is not None:
        for history in histories:
            history.exchange.append(dict(exchange))
