"""Losses: functions of a network's outputs and targets, to be minimised by training."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dnn.arrays import array_of, check_labels, checked_numbers, narrowed
from dnn.backend import Array
from dnn.data.labels import from_one_hot
from dnn.errors import (
    ConfigurationError,
    DataError,
    LabelError,
    ShapeError,
    explains_arguments,
    unknown_name,
)
from dnn.graph import operations
from dnn.graph.node import Node, Shape, constant, placeholder, variable

if TYPE_CHECKING:
    from dnn.penalties import Penalty

__all__ = [
    "LOSSES",
    "BinaryCrossEntropy",
    "Loss",
    "MeanSquaredError",
    "SoftmaxCrossEntropy",
    "loss_of",
]


class Loss:
    """Base class of losses: the mean over a batch of the loss of each sample.

    Attributes
    ----------
    task : str
        What networks with this loss are scored on: ``"classification"``, ``"regression"`` (targets
        have the shape of the outputs), ``"multilabel"``, or, if empty, on the loss alone.
    classifies : bool
        The targets are labels, and the class of the largest output is the prediction; with a single
        output, class 1 if it is above 0.
    contains : frozenset of str
        Operations that are part of the loss, so that a network must not end in one of them.
    hyperparameters : mapping of str to (float or tuple of K float)
        Numbers of the loss, one for all networks or one for each of K; `scalar` makes nodes of
        them.
    penalties : tuple of Penalty
        See ``loss + penalty``.
    """

    task = ""
    classifies = False
    contains: frozenset[str] = frozenset()
    hyperparameters: Mapping[str, float | tuple[float, ...]] = MappingProxyType({})
    penalties: tuple[Penalty, ...] = ()

    def __add__(self, penalty: Penalty) -> Loss:
        """Return a loss with one penalty more, ``L(y, y') + lambda Omega(w)``.

        Training minimises the penalty too, and `History.loss` includes it. `evaluate` and the
        validation report the loss without it.
        """
        from dnn.penalties import Penalty

        if not isinstance(penalty, Penalty):
            return NotImplemented
        both = copy.copy(self)
        both.penalties = (*self.penalties, penalty)
        name = f"penalty_{len(both.penalties)}"
        strength = checked_numbers(name, penalty.strength)
        both.hyperparameters = {**self.hyperparameters, name: strength}
        return both

    def penalised(self, value: Node, parameters: Sequence[Node], part: bool = False) -> Node:
        """Return a loss plus the penalties on parameters.

        Parameters
        ----------
        value : Node, shape ()
        parameters : sequence of Node
            All of the network, unless `part` is set.
        part : bool
            Whether `parameters` are only some of the network's. Then a penalty that is on none of
            them is left out.

        Returns
        -------
        Node, shape ()

        Raises
        ------
        ConfigurationError
            As for `Penalty.value`.
        """
        for number, penalty in enumerate(self.penalties, 1):
            if part and not any(map(penalty.means, parameters)):
                continue
            strength = self.scalar(f"penalty_{number}", value.dtype)
            value = value + strength * penalty.value(parameters)
        return value

    def scalar(self, name: str, dtype: np.dtype[Any]) -> Node:
        """Return a hyperparameter as a node, for use in `value`.

        Parameters
        ----------
        name : str
        dtype : numpy.dtype

        Returns
        -------
        Node, shape ()
            A variable called ``loss.NAME``, of which each of K networks has its own.
        """
        value = self.hyperparameters[name]
        alone = None if isinstance(value, tuple) else value
        return variable((), dtype, f"loss.{name}", value=alone)

    def is_like(self, other: Loss) -> bool:
        """Say whether another loss is the same but for the values of hyperparameters.

        Parameters
        ----------
        other : Loss

        Returns
        -------
        bool
        """
        mine, theirs = (
            {**vars(loss), "hyperparameters": [*loss.hyperparameters]} for loss in (self, other)
        )
        return type(self) is type(other) and mine == theirs

    def class_count(self, outputs: Shape) -> int:
        """Return the number of classes that a network predicts.

        Parameters
        ----------
        outputs : tuple of int
            Shape of the network's output for one sample.

        Returns
        -------
        int

        Raises
        ------
        ConfigurationError
            If the loss is not one of classification.
        """
        raise ConfigurationError(f"{type(self).__name__} has no classes")

    def predicted(self, outputs: Array) -> Array:
        """Return the class of each sample, or the outputs where there are no classes.

        Parameters
        ----------
        outputs : array, shape (..., n, *outputs)

        Returns
        -------
        array of intp, shape (..., n), or `outputs`
        """
        return outputs

    def check(self, y: npt.ArrayLike, samples: int, outputs: Shape, dtype: np.dtype[Any]) -> Array:
        """Return checked targets as an array whose rows fill the placeholder of `target`.

        Parameters
        ----------
        y : array_like
            As the user gave them.
        samples : int
            Number of targets that there must be.
        outputs : tuple of int
            Shape of the network's output for one sample.
        dtype : numpy.dtype
            Of the network.

        Returns
        -------
        array, length `samples`

        Raises
        ------
        ShapeError, DataError
            If `y` is not of targets for such a network.
        """
        raise NotImplementedError

    def target(self, outputs: Node) -> Node:
        """Return the placeholder for the targets of a batch.

        Parameters
        ----------
        outputs : Node, shape (batch, *outputs)
            Of the last layer.

        Returns
        -------
        Node
            Of as many rows as the batch, and of the dtype of the array that `check` returns.
        """
        raise NotImplementedError

    def value(self, outputs: Node, target: Node) -> Node:
        """Return the loss of a batch.

        Parameters
        ----------
        outputs : Node, shape (batch, *outputs)
            Of the last layer.
        target : Node
            What `target` returned.

        Returns
        -------
        Node, shape ()
            The mean over the batch.
        """
        raise NotImplementedError

    def measured(self, outputs: Node, target: Node) -> Node:
        """Return the loss of a batch as `evaluate` and the validation report it.

        It leaves out what serves training alone, such as smoothed labels, so that networks trained
        in different ways can be compared. If not overridden, it is `value`.

        Parameters
        ----------
        outputs, target : Node
            As for `value`.

        Returns
        -------
        Node, shape ()
        """
        return self.value(outputs, target)

    def weighted_value(self, outputs: Node, target: Node, weight: Node) -> Node:
        """Return the mean over a batch of each sample's loss times its weight, a scalar.

        Parameters
        ----------
        outputs, target : Node
            As for `value`.
        weight : Node, shape (batch,)

        Returns
        -------
        Node, shape ()

        Raises
        ------
        ConfigurationError
            If the loss takes no weights.
        """
        raise ConfigurationError(f"{type(self).__name__} takes no weights of samples or classes")

    def probabilities(self, outputs: Node) -> Node:
        """Return the probability of each class.

        Parameters
        ----------
        outputs : Node, shape (batch, *outputs)

        Returns
        -------
        Node, shape (batch, classes)

        Raises
        ------
        ConfigurationError
            If the loss is not one of classification.
        """
        raise ConfigurationError(f"{type(self).__name__} gives no probabilities")


class SoftmaxCrossEntropy(Loss):
    """``-log softmax(outputs)[label]``; outputs (batch, classes), labels (batch,) of integers.

    Parameters
    ----------
    class_weight : sequence of float, optional
        Factor of the losses of samples of each class; 1 for all if left out. The mean divides by
        the number of samples, so weights should have mean 1 over them.
    label_smoothing : float, or K of them, in 0 .. 1
        The label stands for ``1 - label_smoothing`` of its class, and all classes share the rest
        [1]_: the loss of a sample is ``-sum(t log softmax(outputs))`` with ``t = label_smoothing /
        classes``, and ``1 - label_smoothing`` more for its class. In training only: `evaluate` and
        the validation measure without it. Class weights count for each class of the sum.

    Raises
    ------
    ConfigurationError
        If a weight is negative or no finite number, or `label_smoothing` is not in 0 .. 1; when the
        network is compiled, if there are more or fewer weights than classes.

    References
    ----------
    .. [1] Szegedy et al., Rethinking the inception architecture for computer vision, 2016,
       section 7.
    """

    task = "classification"
    classifies = True
    contains = frozenset({"softmax", "sigmoid"})

    @explains_arguments
    def __init__(
        self,
        class_weight: Sequence[float] | None = None,
        label_smoothing: float | Sequence[float] = 0.0,
    ) -> None:
        self.hyperparameters = _smoothing(type(self).__name__, label_smoothing)
        self.class_weight = None
        if class_weight is not None:
            self.class_weight = tuple(float(weight) for weight in class_weight)
            for label, weight in enumerate(self.class_weight):
                if not 0 <= weight < math.inf:
                    message = f"class_weight is {weight!r} for class {label}: not 0 or more"
                    raise ConfigurationError(f"SoftmaxCrossEntropy: {message}")

    def class_count(self, outputs: Shape) -> int:
        """Return the number of outputs: each stands for a class."""
        return outputs[0]

    def predicted(self, outputs: Array) -> Array:
        """Return the index of the largest output of each sample."""
        labels: Array = outputs.argmax(axis=-1)
        return labels

    def check(self, y: npt.ArrayLike, samples: int, outputs: Shape, dtype: np.dtype[Any]) -> Array:
        """Return labels, each checked to be in ``0 .. classes - 1``; one-hot rows become labels."""
        if len(outputs) != 1:
            message = f"the output of a sample must be a vector, but its shape is {outputs}"
            raise ShapeError("softmax_cross_entropy", message, outputs)
        labels = array_of("labels", y)
        if labels.shape == (samples, *outputs):
            labels = from_one_hot(labels)
        return _checked_labels("softmax_cross_entropy", labels, samples, outputs[0])

    def target(self, outputs: Node) -> Node:
        """Return the placeholder for labels."""
        return placeholder(outputs.shape[:1], np.intp, "labels")

    def value(self, outputs: Node, target: Node) -> Node:
        """Return the mean cross entropy."""
        if self.class_weight is not None:
            return self._weighted(outputs, target)
        one_hot = operations.one_hot(target, outputs.shape[-1], outputs.dtype)
        if "label_smoothing" in self.hyperparameters:
            share = self.scalar("label_smoothing", outputs.dtype)
            one_hot = one_hot * (1.0 - share) + share * (1.0 / outputs.shape[-1])
        return operations.softmax_cross_entropy(outputs, one_hot)

    def measured(self, outputs: Node, target: Node) -> Node:
        """Return the mean cross entropy without label smoothing."""
        plain = (
            SoftmaxCrossEntropy(self.class_weight)
            if "label_smoothing" in self.hyperparameters
            else self
        )
        return plain.value(outputs, target)

    def weighted_value(self, outputs: Node, target: Node, weight: Node) -> Node:
        """Return the weighted mean cross entropy."""
        return self._weighted(outputs, target, weight)

    def _weighted(self, outputs: Node, target: Node, weight: Node | None = None) -> Node:
        # Not `operations.softmax_cross_entropy`, whose rows of targets have to sum to 1.
        one_hot = operations.one_hot(target, outputs.shape[-1], outputs.dtype)
        logarithms = operations.log_softmax(outputs)
        # Selected and not multiplied: another class's logarithm may be -inf, times 0 that is NaN.
        chosen = operations.where(operations.greater(one_hot, 0.0), logarithms, 0.0)
        each = operations.sum(chosen, -1)
        of_class = None if self.class_weight is None else self._of_class(outputs, target)
        if "label_smoothing" in self.hyperparameters:
            if of_class is not None:
                each = each * of_class
                logarithms = logarithms * np.array(self.class_weight)
                of_class = None
            share = self.scalar("label_smoothing", outputs.dtype)
            each = each * (1.0 - share) + operations.mean(logarithms, -1) * share
        if weight is None or of_class is None:
            factor = of_class if weight is None else weight
        else:
            factor = weight * of_class
        return -operations.mean(each if factor is None else each * factor)

    def _of_class(self, outputs: Node, target: Node) -> Node:
        """Return the weight of each sample's class."""
        weights = self.class_weight or ()
        if len(weights) != outputs.shape[-1]:
            message = f"class_weight has {len(weights)} numbers for {outputs.shape[-1]} classes"
            raise ConfigurationError(f"SoftmaxCrossEntropy: {message}")
        return operations.take_rows(constant(np.array(weights), outputs.dtype), target)

    def probabilities(self, outputs: Node) -> Node:
        """Return the softmax of the outputs."""
        return operations.softmax(outputs)


class BinaryCrossEntropy(Loss):
    """Cross entropy of two classes; outputs (batch, 1) are logits, labels (batch,) are 0 or 1.

    ``log(1 + exp(output)) - label output``: the probability of class 1 is the logistic function of
    the output, which therefore has no activation.

    Parameters
    ----------
    label_smoothing : float, or K of them, in 0 .. 1
        ``label (1 - label_smoothing) + label_smoothing / 2`` takes the place of the label, in
        training only, as in `SoftmaxCrossEntropy`.

    Raises
    ------
    ConfigurationError
        If `label_smoothing` is not in 0 .. 1.
    """

    task = "classification"
    classifies = True
    contains = frozenset({"softmax", "sigmoid"})

    @explains_arguments
    def __init__(self, label_smoothing: float | Sequence[float] = 0.0) -> None:
        self.hyperparameters = _smoothing(type(self).__name__, label_smoothing)

    def class_count(self, outputs: Shape) -> int:
        """Return 2: the single output tells class 1 from class 0."""
        return 2

    def predicted(self, outputs: Array) -> Array:
        """Return 1 where the output is above 0, else 0."""
        return (outputs[..., 0] > 0).astype(np.intp)

    def check(self, y: npt.ArrayLike, samples: int, outputs: Shape, dtype: np.dtype[Any]) -> Array:
        """Return labels, each checked to be 0 or 1; (samples, 1) becomes (samples,)."""
        if outputs != (1,):
            message = f"a sample must have one output, but its shape is {outputs}"
            raise ShapeError("binary_cross_entropy", message, outputs)
        labels = array_of("labels", y)
        if labels.shape == (samples, 1):
            labels = labels.reshape(samples)
        return _checked_labels("binary_cross_entropy", labels, samples, 2)

    def target(self, outputs: Node) -> Node:
        """Return the placeholder for labels."""
        return placeholder(outputs.shape[:1], np.intp, "labels")

    def value(self, outputs: Node, target: Node) -> Node:
        """Return the mean cross entropy."""
        return operations.mean(self._each(outputs, target))

    def measured(self, outputs: Node, target: Node) -> Node:
        """Return the mean cross entropy without label smoothing."""
        plain = BinaryCrossEntropy() if "label_smoothing" in self.hyperparameters else self
        return plain.value(outputs, target)

    def weighted_value(self, outputs: Node, target: Node, weight: Node) -> Node:
        """Return the weighted mean cross entropy."""
        return operations.mean(self._each(outputs, target) * weight)

    def probabilities(self, outputs: Node) -> Node:
        """Return the probabilities of both classes."""
        return operations.concat([operations.sigmoid(-outputs), operations.sigmoid(outputs)], -1)

    def _each(self, outputs: Node, target: Node) -> Node:
        logits = operations.reshape(outputs, target.shape)
        labels = operations.cast(target, outputs.dtype)
        if "label_smoothing" in self.hyperparameters:
            share = self.scalar("label_smoothing", outputs.dtype)
            labels = labels * (1.0 - share) + share * 0.5
        return operations.binary_cross_entropy(logits, labels)


class MeanSquaredError(Loss):
    """``mean((outputs - targets)^2)``, over samples and outputs."""

    task = "regression"

    def check(self, y: npt.ArrayLike, samples: int, outputs: Shape, dtype: np.dtype[Any]) -> Array:
        """Return targets, checked for shape and finite numbers; (samples,) fits one output."""
        targets = array_of("targets", y)
        if targets.dtype.kind not in "fiub":
            raise DataError(f"targets must be numbers, not {targets.dtype}")
        targets = narrowed(targets, dtype, lambda *at: f"targets, row {at[0]}")
        if targets.shape == (samples,) and outputs == (1,):
            targets = targets.reshape(samples, 1)
        if targets.shape != (samples, *outputs):
            message = f"targets have shape {targets.shape}, outputs {(samples, *outputs)}"
            raise ShapeError("mean_squared_error", message, targets.shape, (samples, *outputs))
        if not np.isfinite(targets).all():
            row = int(np.argwhere(~np.isfinite(targets))[0][0])
            raise DataError(f"targets contain NaN or infinity, first in row {row}")
        return targets

    def target(self, outputs: Node) -> Node:
        """Return the placeholder for targets."""
        return placeholder(outputs.shape, outputs.dtype, "targets")

    def value(self, outputs: Node, target: Node) -> Node:
        """Return the mean squared error."""
        return operations.mean(operations.square(outputs - target))

    def weighted_value(self, outputs: Node, target: Node, weight: Node) -> Node:
        """Return the weighted mean squared error."""
        column = operations.reshape(weight, (weight.shape[0], *(1 for _ in outputs.shape[1:])))
        return operations.mean(operations.square(outputs - target) * column)


def _smoothing(kind: str, given: float | Sequence[float]) -> dict[str, float | tuple[float, ...]]:
    """Return the hyperparameter ``label_smoothing``, or no hyperparameter if it is 0."""
    value = checked_numbers(f"{kind}: label_smoothing", given, 1.0)
    return {"label_smoothing": value} if np.any(value) else {}


def _checked_labels(loss: str, labels: Array, samples: int, classes: int) -> Array:
    if labels.shape != (samples,):
        message = f"labels have shape {labels.shape}, but {samples} samples need ({samples},)"
        raise ShapeError(loss, message, labels.shape, (samples,))
    if labels.dtype.kind not in "iub":
        raise LabelError(f"labels must be integers, not {labels.dtype}")
    labels = labels.astype(np.intp, copy=False)
    check_labels(labels, classes)
    return labels


LOSSES: dict[str, type[Loss]] = {
    "binary_cross_entropy": BinaryCrossEntropy,
    "mean_squared_error": MeanSquaredError,
    "softmax_cross_entropy": SoftmaxCrossEntropy,
}


def loss_of(given: str | Loss) -> Loss:
    """Return a loss by name.

    Parameters
    ----------
    given : str or Loss
        A `Loss` is returned as it is.

    Returns
    -------
    Loss

    Raises
    ------
    ConfigurationError
        If no loss has that name; the message suggests the name probably meant.
    """
    if isinstance(given, Loss):
        return given
    if given not in LOSSES:
        raise unknown_name("loss", given, LOSSES)
    return LOSSES[given]()
