"""One call of `fit`: what it trains on, and its epochs with validation and callbacks."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.data.batches import epoch_order
from dnn.data.split import split_rows
from dnn.errors import ConfigurationError, MixedPrecisionWarning
from dnn.training.checks import check_half, check_samples, check_weights
from dnn.training.epochs import Trainer
from dnn.training.evaluation import evaluate
from dnn.training.history import History
from dnn.training.network import BatchPlan, Network

if TYPE_CHECKING:
    from dnn.callbacks import Callback
    from dnn.model import NeuralNetwork

__all__ = ["Fit", "FitData", "checked_pair", "checked_samples", "fit_data"]


def checked_samples(network: Network, name: str, x: npt.ArrayLike) -> Array:
    """Return samples as the network takes them; `name` is the argument's, for messages."""
    layer, expected = network.layers[0].name, network.input_shape
    samples = check_samples(name, x, layer, expected, network.dtype)
    if network.keeps_half:
        check_half(name, samples)
    return samples


def checked_pair(
    network: Network, name: str, x: npt.ArrayLike, y: npt.ArrayLike
) -> tuple[Array, Array]:
    """Return samples and targets as network and loss take them; `name` is that of the samples."""
    samples = checked_samples(network, name, x)
    targets = network.loss.check(y, len(samples), network.output_shape, network.dtype)
    if network.keeps_half:
        check_half("targets", targets)
    return samples, targets


class FitData(NamedTuple):
    """What a call of `fit` trains on and validates with, on the host."""

    samples: Array
    targets: Array
    weights: Array | None
    held_out: tuple[Array, Array] | None


def fit_data(
    network: Network,
    seed: int,
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    validation: tuple[npt.ArrayLike, npt.ArrayLike] | float | None,
    class_weight: Mapping[int, float] | Literal["balanced"] | None,
    sample_weight: npt.ArrayLike | None,
) -> FitData:
    """Check the data of a call of `fit`, and take the samples for validation out of them.

    Parameters
    ----------
    network : Network
    seed : int
        Of the rows that are taken out, where `validation` is a share.
    x, y, validation, class_weight, sample_weight
        As for `NeuralNetwork.fit`.

    Returns
    -------
    FitData

    Raises
    ------
    ShapeError, LabelError, DataError, ConfigurationError
        As for `NeuralNetwork.fit`.
    """
    samples, targets = checked_pair(network, "x", x, y)
    loss, outputs = network.loss, network.output_shape
    classes = loss.class_count(outputs) if loss.classifies else None
    weights = check_weights(sample_weight, class_weight, targets, classes, network.dtype)
    held_out = None
    if isinstance(validation, tuple | list):
        pair: Sequence[npt.ArrayLike] = validation
        if len(pair) != 2:
            message = f"validation must be (x, y) or a share, not {len(pair)} things"
            raise ConfigurationError(message)
        held_out = checked_pair(network, "validation x", *pair)
    elif validation is not None:
        labels = targets if loss.classifies else None
        kept, out = split_rows(len(samples), labels, validation, seed)
        held_out = samples[out], targets[out]
        samples, targets = samples[kept], targets[kept]
        weights = None if weights is None else weights[kept]
    return FitData(samples, targets, weights, held_out)


class Fit:
    """The epochs of a call of `fit`.

    Parameters
    ----------
    model : NeuralNetwork
        Whose seed orders the samples, and whose history goes on; callbacks are given it.
    network : Network
        The model's.
    trainer : Trainer
    held_out : (array, array), optional
        Samples and targets to evaluate on after each epoch.
    callbacks : sequence of Callback
    inspect : callable, optional
        Called with the plan of each step before the parameters move.
    """

    def __init__(
        self,
        model: NeuralNetwork,
        network: Network,
        trainer: Trainer,
        held_out: tuple[Array, Array] | None,
        callbacks: Sequence[Callback],
        inspect: Callable[[BatchPlan], None] | None,
    ) -> None:
        self._model = model
        self._network = network
        self._trainer = trainer
        self._held_out = held_out
        self._callbacks = callbacks
        self._inspect = inspect
        self._of_class: list[int] = []
        if network.classes_to_tally is not None:
            targets = network.ops.to_host(trainer.targets)
            self._of_class = np.bincount(targets, minlength=network.classes_to_tally).tolist()

    def run(self, epochs: int) -> History:
        """Train, until all epochs are done, the loss is no number, or a callback asks to stop.

        Parameters
        ----------
        epochs : int

        Returns
        -------
        History
            Of this call.
        """
        history = History()
        with ExitStack() as ends:
            for callback in self._callbacks:
                ends.callback(callback.on_fit_end, self._model, history)
                callback.on_fit_begin(self._model, epochs)
            for _ in range(epochs):
                self._epoch(history)
                stopped = self._after_epoch(history)
                history.stopped = self._model.history.stopped = stopped
                if history.diverged or stopped:
                    break
        if history.diverged and self._network.keeps_half:
            message = (
                f"the loss is {history.loss[-1]} in epoch {len(self._model.history)}: "
                "mixed_float16 keeps what layers compute in float16, which ends at 65504; "
                "standardise samples and targets, take a smaller learning rate, or dtype='float32'"
            )
            warnings.warn(message, MixedPrecisionWarning, stacklevel=3)
        return history

    def _epoch(self, history: History) -> None:
        model, trainer = self._model, self._trainer
        order = epoch_order(trainer.rows, model.seed, len(model.history))
        began = time.perf_counter()
        # A diverging network is reported in the history and not by warnings.
        with np.errstate(all="ignore"):
            loss = trainer.epoch(order, self._inspect)
        took_s = time.perf_counter() - began
        tallies = trainer.tallies()
        tally = None if tallies is None else [self._of_class, tallies[0]]
        validation = None
        if self._held_out is not None:
            validation = evaluate(self._network, *self._held_out)
        for each in (history, model.history):
            each.add(loss, took_s, trainer.steps, tally, validation)

    def _after_epoch(self, history: History) -> str | None:
        """Call every callback, though one has asked to stop; return the first reason to."""
        if not self._callbacks:
            return None
        from dnn.callbacks import Epoch

        validation = history.validation[-1] if history.validation else {}
        index = len(self._model.history) - 1
        epoch = Epoch(self._model, index, history.loss[-1], validation, history)
        reasons = [callback.on_epoch_end(epoch) for callback in self._callbacks]
        return next((reason for reason in reasons if reason), None)
