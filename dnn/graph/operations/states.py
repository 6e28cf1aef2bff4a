"""Operations that write into variables: states that a training step changes without gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnn.backend import Ops
from dnn.backend.formula import ADD
from dnn.errors import ConfigurationError, ShapeError
from dnn.graph.arguments import check_same_type, describe
from dnn.graph.node import VARIABLE, Node, Shape, check_nodes
from dnn.graph.operation import Arrays, Operation, Step, aligned, apply, register

__all__ = ["assign"]


@register
class Copy(Operation):
    """``y = x``, in memory of its own."""

    name = "copy"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        return inputs[0].shape, inputs[0].dtype

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        return apply(self.name, *inputs)

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(ops.copy, (arrays.inputs[0], arrays.out))]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return (dy,)


@register
class Assign(Operation):
    """The variable `state` becomes `value`, after everything else in the plan.

    The result is the value, in the array of the variable. It has no gradient: a loss does not
    depend on the state after the step.
    """

    name = "assign"
    assigns = True
    pure = False

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        state, value = inputs
        if state.kind != VARIABLE:
            raise ConfigurationError(f"assign: {state!r} is no variable")
        check_same_type(self.name, inputs)
        try:
            fits = np.broadcast_shapes(state.shape, value.shape) == state.shape
        except ValueError:
            fits = False
        if not fits:
            message = f"{describe(value)} does not fit into {describe(state)}"
            raise ShapeError("assign", message, state.shape, value.shape)
        return state.shape, state.dtype

    def with_models(
        self, node: Node, inputs: Sequence[Node], stacked: Sequence[bool], models: int
    ) -> Node:
        state, value = inputs
        if not stacked[0]:
            message = f"assign: {state!r} is shared by all models, and {value!r} is of each its own"
            raise ConfigurationError(message)
        return apply(self.name, state, aligned(value, stacked[1], node.ndim))

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(ops.copy, (arrays.inputs[1], arrays.out))]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return None, None


@register
class AddTo(Operation):
    """The variable `total` plus `value`, written into the array of the variable.

    Unlike an assignment, it is written at once, not after everything else. It has no gradient.
    """

    name = "add_to"
    pure = False

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        total, value = inputs
        if total.kind != VARIABLE:
            raise ConfigurationError(f"add_to: {total!r} is no variable")
        check_same_type(self.name, inputs)
        if total.shape != value.shape:
            message = f"{describe(value)} is added to {describe(total)}"
            raise ShapeError("add_to", message, total.shape, value.shape)
        return total.shape, total.dtype

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        total, value = arrays.inputs
        return [ops.elementwise(ADD, (total, value), arrays.out)]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        return None, None


def assign(state: Node, value: Node) -> Node:
    """Return a node that writes a value into a variable.

    Parameters
    ----------
    state : Node
        A variable.
    value : Node
        Broadcast to the shape of `state`. It may depend on `state`, and on other variables that
        are assigned to: all are read first, then all are written.

    Returns
    -------
    Node, of the shape and type of `state`
        To be one of a plan's outputs; no other node may read it.

    Raises
    ------
    ConfigurationError
        If `state` is no variable.
    ShapeError
        If the value does not broadcast to the shape of `state`.
    DtypeError
        If the types differ, or the value is no node.
    """
    check_nodes("assign", state, value)
    if value.operation is None or value.operation.view:
        # It may stand in the memory of a variable that another assignment writes first.
        value = apply("copy", value)
    return apply("assign", state, value)
