"""Losses of classes, of labels that several may be true of, and of distributions over classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dnn.arrays import array_of, check_labels, checked_numbers
from dnn.backend import Array
from dnn.data.labels import from_one_hot
from dnn.errors import ConfigurationError, DataError, LabelError, ShapeError, explains_arguments
from dnn.graph import operations
from dnn.graph.node import Node, Shape, constant, placeholder
from dnn.losses.loss import ElementwiseLoss, checked_positive, checked_values

__all__ = [
    "BinaryCrossEntropy",
    "CrossEntropy",
    "FocalLoss",
    "KullbackLeibler",
    "MultiLabelCrossEntropy",
    "SoftmaxCrossEntropy",
]


class ClassLoss(ElementwiseLoss):
    """Base class of losses of labels, an integer for each sample; mostly an output for each class.

    Attributes
    ----------
    class_weight : tuple of float, optional
        Factor of the losses of samples of each class.
    """

    takes = "classes"
    classifies = True
    contains = frozenset({"softmax", "sigmoid"})
    class_weight: tuple[float, ...] | None = None

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
            raise ShapeError(self.name, message, outputs)
        labels = array_of("labels", y)
        if labels.shape == (samples, *outputs):
            labels = from_one_hot(labels)
        return _checked_labels(self.name, labels, samples, outputs[0])

    def target(self, outputs: Node) -> Node:
        """Return the placeholder for labels."""
        return placeholder(outputs.shape[:1], np.intp, "labels")

    def probabilities(self, outputs: Node) -> Node:
        """Return the softmax of the outputs."""
        return operations.softmax(outputs)

    def _weighed(self, each: Node, outputs: Node, target: Node) -> Node:
        """Return the loss of each sample times the weight of its class."""
        return each if self.class_weight is None else each * self._of_class(outputs, target)

    def _of_class(self, outputs: Node, target: Node) -> Node:
        """Return the weight of each sample's class."""
        weights, classes = self.class_weight or (), outputs.shape[-1]
        if len(weights) != classes:
            message = f"class_weight has {len(weights)} numbers for {classes} classes"
            raise ConfigurationError(f"{type(self).__name__}: {message}")
        return operations.take_rows(constant(np.array(weights), outputs.dtype), target)


def _chosen(one_hot: Node, values: Node) -> Node:
    """Return the value of each sample's class."""
    # Selected and not multiplied: another class's logarithm may be -inf, times 0 that is NaN.
    return operations.sum(operations.where(operations.greater(one_hot, 0.0), values, 0.0), -1)


class SoftmaxCrossEntropy(ClassLoss):
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

    name = "softmax_cross_entropy"

    @explains_arguments
    def __init__(
        self,
        class_weight: Sequence[float] | None = None,
        label_smoothing: float | Sequence[float] = 0.0,
    ) -> None:
        self.hyperparameters = _smoothing(type(self).__name__, label_smoothing)
        self.class_weight = _weights(type(self).__name__, class_weight)

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
        is_plain = "label_smoothing" not in self.hyperparameters
        plain = self if is_plain else SoftmaxCrossEntropy(self.class_weight)
        return plain.value(outputs, target)

    def weighted_value(self, outputs: Node, target: Node, weight: Node) -> Node:
        """Return the weighted mean cross entropy."""
        return self._weighted(outputs, target, weight)

    def _weighted(self, outputs: Node, target: Node, weight: Node | None = None) -> Node:
        # Not `operations.softmax_cross_entropy`, whose rows of targets have to sum to 1.
        one_hot = operations.one_hot(target, outputs.shape[-1], outputs.dtype)
        logarithms = operations.log_softmax(outputs)
        each = _chosen(one_hot, logarithms)
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


class BinaryCrossEntropy(ClassLoss):
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

    name = "binary_cross_entropy"

    @explains_arguments
    def __init__(self, label_smoothing: float | Sequence[float] = 0.0) -> None:
        self.hyperparameters = _smoothing(type(self).__name__, label_smoothing)

    def output_count(self, targets: int) -> int:
        """Return 1, the output that tells two classes apart."""
        return 1

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
            raise ShapeError(self.name, message, outputs)
        labels = array_of("labels", y)
        if labels.shape == (samples, 1):
            labels = labels.reshape(samples)
        return _checked_labels(self.name, labels, samples, 2)

    def measured(self, outputs: Node, target: Node) -> Node:
        """Return the mean cross entropy without label smoothing."""
        plain = BinaryCrossEntropy() if "label_smoothing" in self.hyperparameters else self
        return plain.value(outputs, target)

    def probabilities(self, outputs: Node) -> Node:
        """Return the probabilities of both classes."""
        return operations.concat([operations.sigmoid(-outputs), operations.sigmoid(outputs)], -1)

    def each(self, outputs: Node, target: Node) -> Node:
        """Return the cross entropy of each sample."""
        logits = operations.reshape(outputs, target.shape)
        labels = operations.cast(target, outputs.dtype)
        if "label_smoothing" in self.hyperparameters:
            share = self.scalar("label_smoothing", outputs.dtype)
            labels = labels * (1.0 - share) + share * 0.5
        return operations.binary_cross_entropy(logits, labels)


class FocalLoss(ClassLoss):
    """``-(1 - p)^gamma log p`` with p, by softmax, the probability of a sample's class [1]_.

    What the network is already sure of counts less, so that rare and difficult samples count more.

    Parameters
    ----------
    gamma : float, or K of them, 0 or more
        With 0 it is the cross entropy.
    class_weight : sequence of float, optional
        As of `SoftmaxCrossEntropy`; alpha of the source.

    Raises
    ------
    ConfigurationError
        If `gamma` or a weight is negative or no finite number.

    References
    ----------
    .. [1] Lin et al., Focal loss for dense object detection, 2017, section 3.
    """

    name = "focal"

    @explains_arguments
    def __init__(
        self, gamma: float | Sequence[float] = 2.0, class_weight: Sequence[float] | None = None
    ) -> None:
        self.hyperparameters = {"gamma": checked_numbers(f"{type(self).__name__}: gamma", gamma)}
        self.class_weight = _weights(type(self).__name__, class_weight)

    def each(self, outputs: Node, target: Node) -> Node:
        """Return the loss of each sample."""
        one_hot = operations.one_hot(target, outputs.shape[-1], outputs.dtype)
        logarithm = _chosen(one_hot, operations.log_softmax(outputs))
        # Where p is 1, a gamma below 1 has an infinite derivative, times log p = 0.
        tiny = float(np.finfo(outputs.dtype).tiny)
        rest = operations.clip(-operations.expm1(logarithm), low=tiny)
        each = -operations.power(rest, self.scalar("gamma", outputs.dtype)) * logarithm
        return self._weighed(each, outputs, target)


class CrossEntropy(ClassLoss):
    """``-log(output[label] + epsilon)`` of outputs that are probabilities [1]_.

    The network has to end in a softmax of its own. Where it has none, `SoftmaxCrossEntropy` is
    meant, which takes what comes before it: it is exact however small a probability is, while this
    one is never above ``-log(epsilon)``, and its gradient fades where a probability is below
    `epsilon`.

    Parameters
    ----------
    epsilon : float, or K of them, above 0
    class_weight : sequence of float, optional
        As of `SoftmaxCrossEntropy`.

    Raises
    ------
    ConfigurationError
        If `epsilon` is not above 0 or a weight is negative or no finite number; when the network
        is trained, if it does not end in a softmax, or ends in two.

    References
    ----------
    .. [1] Nichols et al., MagmaDNN: accelerated deep learning using MAGMA, 2019, equation 10 of
       the report of that year.
    """

    name = "cross_entropy"
    contains = frozenset()
    needs = frozenset({"softmax"})

    @explains_arguments
    def __init__(
        self,
        epsilon: float | Sequence[float] = 1e-7,
        class_weight: Sequence[float] | None = None,
    ) -> None:
        checked = checked_positive(f"{type(self).__name__}: epsilon", epsilon)
        self.hyperparameters = {"epsilon": checked}
        self.class_weight = _weights(type(self).__name__, class_weight)

    def each(self, outputs: Node, target: Node) -> Node:
        """Return the cross entropy of each sample."""
        one_hot = operations.one_hot(target, outputs.shape[-1], outputs.dtype)
        chosen = _chosen(one_hot, outputs) + self.scalar("epsilon", outputs.dtype)
        return self._weighed(-operations.log(chosen), outputs, target)

    def probabilities(self, outputs: Node) -> Node:
        """Return the outputs, which are probabilities."""
        return outputs


class MultiLabelCrossEntropy(ElementwiseLoss):
    """Binary cross entropies of several labels, of which any number may be true of a sample.

    Each output is the logit of a label of its own; targets are 0 or 1, (batch, labels). The mean is
    over samples and labels. The `class_weight` of `fit` is for labels that are rarely true.
    """

    name = "multi_label_cross_entropy"
    takes = "labels"
    contains = frozenset({"softmax", "sigmoid"})

    def weight_shape(self, outputs: Shape) -> Shape:
        """Return the shape of `outputs`: each label of a sample has a weight."""
        return outputs

    def check(self, y: npt.ArrayLike, samples: int, outputs: Shape, dtype: np.dtype[Any]) -> Array:
        """Return targets, each checked to be 0 or 1."""
        labels = checked_values(self.name, y, (samples, *outputs), dtype)
        wrong = (labels != 0) & (labels != 1)
        if wrong.any():
            row = int(np.argwhere(wrong)[0][0])
            message = f"labels are 0 or 1, not {labels[row][wrong[row]][0]:g} in row {row}"
            raise LabelError(f"{self.name}: {message}", row)
        return labels

    def each(self, outputs: Node, target: Node) -> Node:
        """Return the cross entropy of each label of each sample."""
        return operations.binary_cross_entropy(outputs, target)

    def predicted(self, outputs: Array) -> Array:
        """Return 1 for each label whose output is above 0, else 0."""
        return (outputs > 0).astype(np.intp)

    def probabilities(self, outputs: Node) -> Node:
        """Return the probability of each label."""
        return operations.sigmoid(outputs)


class KullbackLeibler(ElementwiseLoss):
    """``sum(t (log t - log softmax(outputs)))`` of distributions t over classes, for each sample.

    The divergence of what the network predicts from what is given, 0 where they are equal: targets
    are rows of probabilities, (batch, classes).
    """

    name = "kullback_leibler"
    takes = "distributions"
    contains = frozenset({"softmax", "sigmoid"})

    def check(self, y: npt.ArrayLike, samples: int, outputs: Shape, dtype: np.dtype[Any]) -> Array:
        """Return targets, each row checked to be 0 or more and to sum to 1."""
        rows = checked_values(self.name, y, (samples, *outputs), dtype)
        wrong = (rows < 0).any(-1) | (np.abs(rows.sum(-1, dtype=np.float64) - 1) > 1e-3)
        if wrong.any():
            row = int(np.argwhere(wrong)[0][0])
            message = "probabilities of 0 or more that sum to 1 are wanted, not"
            message = f"{message} {rows[row].tolist()!r:.100}"
            raise DataError(f"{self.name}: {message} in row {row}")
        return rows

    def each(self, outputs: Node, target: Node) -> Node:
        """Return the divergence of each sample."""
        is_any = operations.greater(target, 0.0)
        safe = operations.where(is_any, target, 1.0)
        gaps = operations.log(safe) - operations.log_softmax(outputs)
        return operations.sum(operations.where(is_any, target * gaps, 0.0), -1)

    def predicted(self, outputs: Array) -> Array:
        """Return the predicted distribution of each sample."""
        powers = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
        distributions: Array = powers / powers.sum(axis=-1, keepdims=True)
        return distributions

    def probabilities(self, outputs: Node) -> Node:
        """Return the softmax of the outputs."""
        return operations.softmax(outputs)


def _weights(kind: str, given: Sequence[float] | None) -> tuple[float, ...] | None:
    """Return weights of classes, each checked to be 0 or more and finite."""
    if given is None:
        return None
    weights = tuple(float(weight) for weight in given)
    for label, weight in enumerate(weights):
        if not 0 <= weight < math.inf:
            message = f"class_weight is {weight!r} for class {label}: not 0 or more"
            raise ConfigurationError(f"{kind}: {message}")
    return weights


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
