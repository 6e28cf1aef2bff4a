"""Minimising a graph: variables, a loss and an optimizer, without layers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from typing import TYPE_CHECKING

import numpy.typing as npt

from dnn.backend import Ops
from dnn.errors import ConfigurationError, DtypeError, explains_arguments
from dnn.graph.gradients import gradients
from dnn.graph.node import PLACEHOLDER, VARIABLE, Node, fed, topological_order
from dnn.graph.plan import Plan
from dnn.parameters import FlatBuffer, segments_of

if TYPE_CHECKING:
    from dnn.optimizers.optimizer import Optimizer

__all__ = ["Minimization", "minimize"]


class Minimization:
    """A loss, compiled together with the gradients and the update of its variables.

    `minimize` makes it and documents its arguments; `ops` are NumPy's if left out.

    The values of the variables move into one buffer, so that an update is one pass over it. Each
    variable's ``value`` is a view of it from then on: ``node.eval`` computes with present values.
    """

    def __init__(
        self,
        loss: Node,
        optimizer: Optimizer,
        variables: Collection[Node] | None = None,
        ops: Ops | None = None,
    ) -> None:
        self._ops = ops = ops or Ops()
        order = topological_order([loss])
        held = [node for node in order if node.kind == VARIABLE]
        if variables is None or isinstance(variables, Set):  # in the order of the graph
            unknown = [] if variables is None else [x for x in variables if x not in held]
            chosen = [x for x in held if variables is None or x in variables]
            variables = [*chosen, *unknown]
        self.variables = tuple(variables)
        self._check()
        by_variable = zip(self.variables, gradients(loss, self.variables), strict=True)
        segments = segments_of(self.variables)
        dtype = self.variables[0].dtype
        parameters, slots = FlatBuffer(segments, dtype, ops), FlatBuffer(segments, dtype, ops)
        for node in self.variables:
            ops.load(node.attributes["value"], parameters[node.name])
            node.attributes["value"] = parameters[node.name]
        self._feeds = [node for node in order if node.kind == PLACEHOLDER]
        self._loss = loss
        self._plan = Plan(
            [*self._feeds, loss],
            ops,
            {node: node.attributes["value"] for node in self.variables},
            [(gradient, slots[node.name]) for node, gradient in by_variable],
        )
        self.update = optimizer.bind(ops, parameters, slots)

    def _check(self) -> None:
        if not self.variables:
            raise ConfigurationError("minimize: the loss depends on no variable")
        names: set[str] = set()
        for i, node in enumerate(self.variables):
            if node.kind != VARIABLE or "value" not in node.attributes:
                message = f"minimize: {node!r} is no variable with a value to start from"
                raise ConfigurationError(f"{message}: variable(value=...)")
            node.name = node.name or f"variable_{i + 1}"
            if node.name in names:
                raise ConfigurationError(f"minimize: two variables are called {node.name!r}")
            if node.dtype != self.variables[0].dtype:
                raise DtypeError(f"minimize: {self.variables[0]!r} and {node!r} differ in type")
            names.add(node.name)

    def step(self, feeds: Mapping[Node, npt.ArrayLike] | None = None) -> float:
        """Move the variables by one step.

        Parameters
        ----------
        feeds : mapping of Node to array, optional
            New values of placeholders; those left out keep theirs.

        Returns
        -------
        float
            The loss before the step.

        Raises
        ------
        ConfigurationError
            If a node that is fed is no placeholder of the loss.
        ShapeError
            If a value has not its placeholder's shape.
        """
        for node, value in (feeds or {}).items():
            if node not in self._feeds:
                raise ConfigurationError(f"minimize: {node!r} is no placeholder of the loss")
            self._ops.load(fed("minimize", node, value), self._plan[node])
        self._plan.run()
        loss = float(self._plan[self._loss])
        self.update.run()
        return loss


@explains_arguments
def minimize(
    loss: Node, optimizer: Optimizer, variables: Collection[Node] | None = None
) -> Minimization:
    """Compile a loss, its gradients and an optimizer's update.

    Parameters
    ----------
    loss : Node
        A scalar.
    optimizer : Optimizer
    variables : collection of Node, optional
        The variables to be changed; all that `loss` depends on if left out.

    Returns
    -------
    Minimization
        Its method `step` moves the variables.

    Raises
    ------
    ConfigurationError
        If there is no variable, a variable has no value, or two have the same name.
    ShapeError
        If `loss` is no scalar.
    DtypeError
        If the variables have different types of elements.

    Examples
    --------
    >>> import numpy as np
    >>> from dnn import SGD, minimize
    >>> from dnn.graph import mean, placeholder, square, variable
    >>> x, y = placeholder((4,)), placeholder((4,))
    >>> slope = variable(value=np.zeros(()))
    >>> training = minimize(mean(square(x * slope - y)), SGD(0.1))
    >>> data = {x: [1, 2, 3, 4], y: [2, 4, 6, 8]}
    >>> for _ in range(20):
    ...     loss = training.step(data)
    >>> round(float(slope.eval()), 4)
    2.0
    """
    return Minimization(loss, optimizer, variables)
