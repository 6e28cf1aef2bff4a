"""`Loss`, the base class of losses: what a network and its training ask of one."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from dnn.arrays import array_of, checked_numbers, narrowed
from dnn.backend import Array
from dnn.errors import ConfigurationError, DataError, ShapeError
from dnn.graph import operations
from dnn.graph.node import Node, Shape, placeholder, variable

if TYPE_CHECKING:
    from dnn.penalties import Penalty

__all__ = ["ElementwiseLoss", "Loss", "Targets", "checked_positive", "checked_values"]

Targets = Literal["classes", "counts", "distributions", "labels", "values"]


class Loss:
    """Base class of losses: the mean over a batch of the loss of each sample.

    Attributes
    ----------
    name : str
        Its name in `LOSSES`, for messages.
    takes : str
        What the targets of a sample are: ``"classes"``, one integer; ``"labels"``, 0 or 1 for each
        output, any number of them 1; ``"values"``, any numbers, which may be scaled for training;
        ``"counts"``, numbers of 0 or more, which may not; ``"distributions"``, probabilities of all
        classes.
    classifies : bool
        The targets are labels, and the class of the largest output is the prediction; with a single
        output, class 1 if it is above 0.
    contains : frozenset of str
        Operations that are part of the loss, so that a network must not end in one of them.
    needs : frozenset of str
        Operations of which the network must end in one; any end will do if there are none.
    hyperparameters : mapping of str to (float or tuple of K float)
        Numbers of the loss, one for all networks or one for each of K; `scalar` makes nodes of
        them.
    penalties : tuple of Penalty
        See ``loss + penalty``.
    """

    name: ClassVar[str] = "loss"
    takes: ClassVar[Targets] = "values"
    classifies = False
    contains: frozenset[str] = frozenset()
    needs: frozenset[str] = frozenset()
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
        """Return a loss plus the penalties on parameters; errors as for `Penalty.value`.

        Parameters
        ----------
        value : Node, shape ()
        parameters : sequence of Node
            All of the network, unless `part` is set.
        part : bool
            Whether they are only some. Then a penalty that is on none of them is left out.

        Returns
        -------
        Node, shape ()
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

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the class that are not its defaults, as values of JSON."""
        found: dict[str, Any] = {}
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = self.hyperparameters.get(name, getattr(self, name, parameter.default))
            if value != parameter.default:
                found[name] = list(value) if isinstance(value, tuple) else value
        return found

    def output_count(self, targets: int) -> int:
        """Return how many outputs a network needs.

        Parameters
        ----------
        targets : int
            Number of classes where the loss takes classes or distributions, else of targets.

        Returns
        -------
        int
        """
        return targets

    def output_names(self, targets: Sequence[str]) -> list[str]:
        """Return the names of the outputs of a network, from those of its targets.

        Parameters
        ----------
        targets : sequence of str

        Returns
        -------
        list of str
        """
        return list(targets)

    def class_count(self, outputs: Shape) -> int:
        """Return the number of classes that of a network; `ConfigurationError` if it has none.

        Parameters
        ----------
        outputs : tuple of int
            Shape of the network's output for one sample.

        Returns
        -------
        int
        """
        raise ConfigurationError(f"{type(self).__name__} has no classes")

    def predicted(self, outputs: Array) -> Array:
        """Return the class of each sample, or what is predicted where there are no classes.

        Parameters
        ----------
        outputs : array, shape (..., n, *outputs)

        Returns
        -------
        array of intp, shape (..., n), or of the shape of `outputs`
        """
        return outputs

    def point(self, outputs: Array) -> Array:
        """Return one prediction of each target, to be compared with it by metrics.

        Parameters
        ----------
        outputs : array, shape (..., n, *outputs)

        Returns
        -------
        array, shape (..., n, targets)
            If not overridden, `predicted`.
        """
        return self.predicted(outputs)

    def check(self, y: npt.ArrayLike, samples: int, outputs: Shape, dtype: np.dtype[Any]) -> Array:
        """Return checked targets as an array whose rows fill the placeholder of `target`.

        Parameters
        ----------
        y : array_like
            As the user gave them: not for such a network, they are a `ShapeError` or `DataError`.
        samples : int
            Number of targets that there must be.
        outputs : tuple of int
            As for `class_count`.
        dtype : numpy.dtype
            Of the network.

        Returns
        -------
        array, length `samples`
        """
        raise NotImplementedError

    def target(self, outputs: Node) -> Node:
        """Return the placeholder for the targets of a batch, of the dtype that `check` returns.

        Parameters
        ----------
        outputs : Node, shape (batch, *outputs)
            Of the last layer.

        Returns
        -------
        Node, shape (batch, ...)
        """
        raise NotImplementedError

    def value(self, outputs: Node, target: Node) -> Node:
        """Return the mean loss of a batch.

        Parameters
        ----------
        outputs : Node, shape (batch, *outputs)
            Of the last layer.
        target : Node
            What `target` returned.

        Returns
        -------
        Node, shape ()
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

    def weight_shape(self, outputs: Shape) -> Shape:
        """Return the shape of the weights of a batch.

        Parameters
        ----------
        outputs : tuple of int
            Of a batch, (batch, *outputs).

        Returns
        -------
        tuple of int
            (batch,), or (batch, *outputs) where each output has its own.
        """
        return outputs[:1]

    def weighted_value(self, outputs: Node, target: Node, weight: Node) -> Node:
        """Return the mean over a batch of each sample's loss times its weight, a scalar.

        Parameters
        ----------
        outputs, target : Node
            As for `value`.
        weight : Node
            Of the shape that `weight_shape` says.

        Returns
        -------
        Node, shape ()
            A loss that takes no weights raises `ConfigurationError`.
        """
        raise ConfigurationError(f"{type(self).__name__} takes no weights of samples or classes")

    def probabilities(self, outputs: Node) -> Node:
        """Return the probability of each class; `ConfigurationError` if there are no classes.

        Parameters
        ----------
        outputs : Node, shape (batch, *outputs)

        Returns
        -------
        Node, shape (batch, classes)
        """
        raise ConfigurationError(f"{type(self).__name__} gives no probabilities")


class ElementwiseLoss(Loss):
    """Base class of losses that are a mean over samples and outputs of a function of each."""

    def each(self, outputs: Node, target: Node) -> Node:
        """Return the loss of each element, (batch, ...)."""
        raise NotImplementedError

    def value(self, outputs: Node, target: Node) -> Node:
        """Return the mean over all elements."""
        return operations.mean(self.each(outputs, target))

    def weighted_value(self, outputs: Node, target: Node, weight: Node) -> Node:
        """Return the mean over all elements, each times its sample's weight."""
        each = self.each(outputs, target)
        if missing := each.ndim - weight.ndim:
            weight = operations.reshape(weight, (*weight.shape, *(1,) * missing))
        return operations.mean(each * weight)

    def target(self, outputs: Node) -> Node:
        """Return the placeholder for targets."""
        return placeholder(outputs.shape, outputs.dtype, "targets")

    def check(self, y: npt.ArrayLike, samples: int, outputs: Shape, dtype: np.dtype[Any]) -> Array:
        """Return targets, checked for shape and finite numbers; (samples,) fits one output."""
        return checked_values(self.name, y, (samples, *outputs), dtype)


def checked_values(
    name: str, y: npt.ArrayLike, shape: Shape, dtype: np.dtype[Any], what: str = "outputs"
) -> Array:
    """Return targets of a loss, called `name`, as finite numbers of a type.

    They must have the `shape`, which messages say is that of `what`; (samples,) fits (samples, 1)
    too. A `ShapeError` or `DataError` if not, if they are no numbers, or one is not finite.
    """
    targets = array_of("targets", y)
    if targets.dtype.kind not in "fiub":
        raise DataError(f"targets must be numbers, not {targets.dtype}")
    targets = narrowed(targets, dtype, lambda *at: f"targets, row {at[0]}")
    if targets.shape == shape[:1] and shape[1:] == (1,):
        targets = targets.reshape(shape)
    if targets.shape != shape:
        message = f"targets have shape {targets.shape}, {what} {shape}"
        raise ShapeError(name, message, targets.shape, shape)
    if not np.isfinite(targets).all():
        row = int(np.argwhere(~np.isfinite(targets))[0][0])
        raise DataError(f"targets contain NaN or infinity, first in row {row}")
    return targets


def checked_positive(name: str, given: float | Sequence[float]) -> float | tuple[float, ...]:
    """Return a number checked to be above 0, or a tuple of K; `name` is for messages."""
    values = checked_numbers(name, given)
    if not np.all(values):
        raise ConfigurationError(f"{name} must be above 0, not {given!r}")
    return values
