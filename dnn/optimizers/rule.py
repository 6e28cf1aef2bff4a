"""An optimizer from a formula, written as nodes.

::

    class SoftSignDescent(Rule):
        state_names = ("velocity",)

        def __init__(self, learning_rate=0.01, momentum=0.9, **options):
            super().__init__(learning_rate, **options)
            self.hyperparameter("momentum", momentum, 0, below=1)

        def rule(self, w, g, state, scalars):
            v = scalars["momentum"] * state["velocity"] + g
            step = v / (graph.abs(v) + 1.0)
            return {"w": w - scalars["learning_rate"] * step, "velocity": v}

What the graph can do elementwise it can do here, and its passes fuse the formula.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from dnn.backend import Array, Ops
from dnn.errors import ConfigurationError
from dnn.graph.node import Node, variable
from dnn.graph.operation import Step
from dnn.graph.operations.states import assign
from dnn.graph.plan import Arena, Plan
from dnn.optimizers.optimizer import Block, Optimizer
from dnn.optimizers.update import Update
from dnn.parameters import FlatBuffer

__all__ = ["Rule"]


class Rule(Optimizer):
    """An optimizer whose step is an elementwise formula.

    Parameters
    ----------
    learning_rate, weight_decay, **options
        As in `Optimizer`; weight decay is added to the gradients.
    """

    _arena: Arena

    def rule(
        self, w: Node, g: Node, state: Mapping[str, Node], scalars: Mapping[str, Node]
    ) -> Mapping[str, Node]:
        """Return what parameters and state become; all of it is computed from the old values.

        Parameters
        ----------
        w, g : Node
            Parameters and gradients of a block.
        state : mapping of str to Node
            What `state_names` names.
        scalars : mapping of str to Node
            The hyperparameters, to be broadcast against `w`.

        Returns
        -------
        mapping of str to Node
            The new ``"w"``, and the new value of each state that changes.
        """
        raise NotImplementedError

    def bind(self, ops: Ops, parameters: FlatBuffer, gradients: FlatBuffer) -> Update:
        """Compile the update; the plans of all blocks share one arena."""
        bound = copy.copy(self)
        bound._arena = Arena(ops)
        return Optimizer.bind(bound, ops, parameters, gradients)

    def step(self, ops: Ops, block: Block, scalars: Mapping[str, Array]) -> Step:
        """Return the plan of the rule on one block."""
        arrays: dict[Node, Array] = {}

        def bound(name: str, array: Array) -> Node:
            node = variable(array.shape, array.dtype, name)
            arrays[node] = array
            return node

        w, g = bound("w", block.w), bound("g", block.g)
        hyperparameters = {name: bound(name, array) for name, array in scalars.items()}
        state = {
            name: bound(name, array)
            for name, array in zip(self.state_names, block.state, strict=True)
        }
        if block.weight_decay is not None:
            g = g + hyperparameters["weight_decay"] * w
        targets = {"w": w, **state}
        new = self.rule(w, g, state, hyperparameters)
        unknown = sorted(set(new) - set(targets))
        if unknown or "w" not in new:
            message = f"returned {sorted(new)}, but there are {sorted(targets)}"
            raise ConfigurationError(f"{type(self).__name__}.rule {message}")
        assignments = [assign(targets[name], node) for name, node in new.items()]
        plan = Plan(assignments, ops, arrays, arena=self._arena)
        return plan.run, ()
