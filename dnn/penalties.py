"""Penalties: functions of the parameters, such as L1 and L2, that are added to a loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dnn.arrays import checked_numbers
from dnn.errors import ConfigurationError, explains_arguments
from dnn.graph import operations
from dnn.graph.node import Node

__all__ = ["L1", "L2", "Penalty"]


@explains_arguments
@dataclass(frozen=True)
class Penalty:
    """``strength * sum(function(w))`` over parameters w; a loss plus a penalty is a loss.

    Parameters
    ----------
    function : callable (w : Node) -> Node of shape ()
        Called with each parameter in turn.
    strength : float, or K of them, not negative
        The lambda of ``L(y, y') + lambda Omega(w)``; each of K networks may have its own.
    of : sequence of str, optional
        Parameters, by the last part of their name, such as ``["weight"]``; if left out, those of
        two or more axes: no biases, and no scales and shifts of normalisations.

    Raises
    ------
    ConfigurationError
        If `strength` is negative or no number; when a network is compiled, if `function` returns no
        scalar, or there is no such parameter.

    Examples
    --------
    >>> from dnn import NeuralNetwork, Penalty, SoftmaxCrossEntropy, graph, mlp
    >>> smooth_l1 = Penalty(lambda w: graph.sum(graph.sqrt(w * w + 1e-6)), 1e-3)
    >>> model = NeuralNetwork(mlp(4, [8], 3), SoftmaxCrossEntropy() + smooth_l1)
    """

    function: Callable[[Node], Node]
    strength: float | Sequence[float] = field(compare=False)
    of: Sequence[str] | None = None

    def __post_init__(self) -> None:
        strength = checked_numbers(f"{type(self).__name__}: strength", self.strength)
        object.__setattr__(self, "strength", strength)
        if self.of is not None:
            object.__setattr__(self, "of", tuple(self.of))

    def value(self, parameters: Sequence[Node]) -> Node:
        """Return the sum over parameters, without the strength.

        Parameters
        ----------
        parameters : sequence of Node
            All of a network, which are chosen by their names.

        Returns
        -------
        Node, shape ()

        Raises
        ------
        ConfigurationError
            If the function returns no scalar, or the penalty is on none of the parameters.
        """
        meant = [w for w in parameters if self.means(w)]
        if not meant:
            known = ", ".join(w.name for w in parameters)
            wanted = "two or more axes" if self.of is None else f"the names {', '.join(self.of)}"
            raise ConfigurationError(f"a penalty: no parameter has {wanted} (there are: {known})")
        total: Node | None = None
        for w in meant:
            cost: object = self.function(w)
            if not isinstance(cost, Node) or cost.shape:
                message = f"its function returned {cost!r} for {w.name}, and no scalar node"
                raise ConfigurationError(f"a penalty: {message}")
            total = cost if total is None else total + cost
        assert total is not None
        return total

    @property
    def is_separable(self) -> bool:
        """Whether the penalty on a parameter is known to be the sum of those on its slices."""
        return self.function in (_sum_of_sizes, _sum_of_squares)

    def means(self, w: Node) -> bool:
        """Say whether the penalty is on a parameter, by its name or number of axes."""
        return w.ndim >= 2 if self.of is None else w.name.rsplit(".", 1)[-1] in self.of


@explains_arguments
def L1(strength: float | Sequence[float], of: Sequence[str] | None = None) -> Penalty:
    """Return the penalty ``strength * sum(|w|)``, which makes many weights small.

    Parameters
    ----------
    strength, of
        As of `Penalty`.

    Returns
    -------
    Penalty

    Raises
    ------
    ConfigurationError
        As for `Penalty`.
    """
    return Penalty(_sum_of_sizes, strength, of)


@explains_arguments
def L2(strength: float | Sequence[float], of: Sequence[str] | None = None) -> Penalty:
    """Return the penalty ``strength * sum(w^2)``; of plain SGD it is a weight decay of twice that.

    Parameters
    ----------
    strength, of
        As of `Penalty`.

    Returns
    -------
    Penalty

    Raises
    ------
    ConfigurationError
        As for `Penalty`.
    """
    return Penalty(_sum_of_squares, strength, of)


def _sum_of_sizes(w: Node) -> Node:
    return operations.sum(operations.abs(w))


def _sum_of_squares(w: Node) -> Node:
    return operations.sum(operations.square(w))
