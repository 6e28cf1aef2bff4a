"""Losses: what a network's outputs are compared with, and how."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.backend import Array
from dnn.data.labels import from_one_hot
from dnn.errors import ConfigurationError, DataError, LabelError, ShapeError, unknown_name
from dnn.graph import operations
from dnn.graph.node import Node, Shape, placeholder

__all__ = ["LOSSES", "Loss", "MeanSquaredError", "SoftmaxCrossEntropy", "loss_of"]


class Loss:
    """The mean over a batch of what each sample costs.

    Attributes
    ----------
    classifies : bool
        The targets are labels, and the class of the largest output is the prediction.
    """

    classifies = False

    def check(self, y: npt.ArrayLike, samples: int, outputs: Shape, dtype: np.dtype[Any]) -> Array:
        """Return targets as the array that `target` takes its rows from.

        Parameters
        ----------
        y : array_like
            As the user gave them.
        samples : int
            How many there must be.
        outputs : tuple of int
            Shape of the network's output for one sample.
        dtype : numpy.dtype
            Of the network.

        Raises
        ------
        ShapeError, DataError
            If they are not targets of such a network.
        """
        raise NotImplementedError

    def target(self, outputs: Node) -> Node:
        """Return the placeholder for the targets of a batch."""
        raise NotImplementedError

    def value(self, outputs: Node, target: Node) -> Node:
        """Return the loss of a batch, a scalar."""
        raise NotImplementedError

    def weighted_value(self, outputs: Node, target: Node, weight: Node) -> Node:
        """Return the mean over a batch of each sample's loss times its weight, a scalar.

        Parameters
        ----------
        outputs, target : Node
        weight : Node, shape (batch,)

        Raises
        ------
        ConfigurationError
            If the loss takes no weights.
        """
        raise ConfigurationError(f"{type(self).__name__} takes no weights of samples or classes")

    def probabilities(self, outputs: Node) -> Node:
        """Return what the outputs say about each class.

        Raises
        ------
        ConfigurationError
            If the loss is not one of classification.
        """
        raise ConfigurationError(f"{type(self).__name__} gives no probabilities")


class SoftmaxCrossEntropy(Loss):
    """``-log softmax(outputs)[label]``; outputs (batch, classes), labels (batch,) of integers."""

    classifies = True

    def check(self, y: npt.ArrayLike, samples: int, outputs: Shape, dtype: np.dtype[Any]) -> Array:
        """Return labels, each checked to be in ``0 .. classes - 1``; one-hot rows become labels."""
        if len(outputs) != 1:
            message = f"the output of a sample must be a vector, but its shape is {outputs}"
            raise ShapeError("softmax_cross_entropy", message, outputs)
        labels = np.asarray(y)
        if labels.shape == (samples, *outputs):
            labels = from_one_hot(labels)
        if labels.shape != (samples,):
            message = f"labels have shape {labels.shape}, but {samples} samples need ({samples},)"
            raise ShapeError("softmax_cross_entropy", message, labels.shape, (samples,))
        if labels.dtype.kind not in "iub":
            raise LabelError(f"labels must be integers, not {labels.dtype}")
        classes = outputs[0]
        labels = labels.astype(np.intp)
        wrong = np.flatnonzero((labels < 0) | (labels >= classes))
        if wrong.size:
            row = int(wrong[0])
            message = f"label {labels[row]} in row {row} is not in 0 .. {classes - 1}"
            raise LabelError(f"{message} ({classes} outputs; {wrong.size} such rows)", row)
        return labels

    def target(self, outputs: Node) -> Node:
        """Return the placeholder for labels."""
        return placeholder(outputs.shape[:1], np.intp, "labels")

    def value(self, outputs: Node, target: Node) -> Node:
        """Return the mean cross entropy."""
        one_hot = operations.one_hot(target, outputs.shape[-1], outputs.dtype)
        return operations.softmax_cross_entropy(outputs, one_hot)

    def weighted_value(self, outputs: Node, target: Node, weight: Node) -> Node:
        """Return the weighted mean cross entropy; the operation's rows would have to sum to 1."""
        one_hot = operations.one_hot(target, outputs.shape[-1], outputs.dtype)
        each = operations.sum(operations.log_softmax(outputs) * one_hot, -1)
        return -operations.mean(each * weight)

    def probabilities(self, outputs: Node) -> Node:
        """Return the softmax."""
        return operations.softmax(outputs)


class MeanSquaredError(Loss):
    """``mean((outputs - targets)^2)``, over samples and outputs."""

    def check(self, y: npt.ArrayLike, samples: int, outputs: Shape, dtype: np.dtype[Any]) -> Array:
        """Return targets, checked for shape and for numbers; (samples,) fits one output."""
        targets = np.asarray(y)
        if targets.dtype.kind not in "fiub":
            raise DataError(f"targets must be numbers, not {targets.dtype}")
        targets = targets.astype(dtype)
        if targets.shape == (samples,) and outputs == (1,):
            targets = targets.reshape(samples, 1)
        if targets.shape != (samples, *outputs):
            message = f"targets have shape {targets.shape}, outputs {(samples, *outputs)}"
            raise ShapeError("mean_squared_error", message, targets.shape, (samples, *outputs))
        if not np.isfinite(targets).all():
            raise DataError("targets contain NaN or infinity")
        return targets

    def target(self, outputs: Node) -> Node:
        """Return the placeholder for targets."""
        return placeholder(outputs.shape, outputs.dtype, "targets")

    def value(self, outputs: Node, target: Node) -> Node:
        """Return the mean square."""
        return operations.mean(operations.square(outputs - target))

    def weighted_value(self, outputs: Node, target: Node, weight: Node) -> Node:
        """Return the weighted mean square."""
        column = operations.reshape(weight, (weight.shape[0], *(1 for _ in outputs.shape[1:])))
        return operations.mean(operations.square(outputs - target) * column)


LOSSES: dict[str, type[Loss]] = {
    "mean_squared_error": MeanSquaredError,
    "softmax_cross_entropy": SoftmaxCrossEntropy,
}


def loss_of(given: str | Loss) -> Loss:
    """Return a loss by name; a `Loss` is returned as it is.

    Raises
    ------
    ConfigurationError
        If there is none of that name; it names the one probably meant.
    """
    if isinstance(given, Loss):
        return given
    if given not in LOSSES:
        raise unknown_name("loss", given, LOSSES)
    return LOSSES[given]()
