"""Recurrent cells over all time steps, each with its own backpropagation through time.

::

    inputs' products --> recurrence --> hidden_states        (cell_states of an LSTM)
                             |               |
                             v               v
                        recurrence_weights <-- recurrence_gradient

`recurrence` computes states and all that gradients need, packed in one array
(`dnn.backend.recurrence`). States are views of it, and gradients are written for them alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dnn.backend import Array, Ops
from dnn.backend.formula import MULTIPLY
from dnn.backend.recurrence import (
    CELLS,
    Cell,
    GradientArrays,
    Recurrence,
    weight_workspace_shapes,
    workspace_shapes,
)
from dnn.errors import ConfigurationError, ShapeError, unknown_name
from dnn.graph.arguments import check_kind, check_same_type, describe
from dnn.graph.node import CONSTANT, Node, Shape, check_nodes, constant
from dnn.graph.operation import Arrays, StackedOperation, Step, apply, register, reshaped
from dnn.graph.operations.comparisons import cast, greater
from dnn.graph.operations.reductions import sum as sum_over
from dnn.graph.operations.shapes import expand_dims

__all__ = ["Recurrent", "recurrent"]


def _cell(node: Node) -> Cell:
    return CELLS[node.attributes["cell"]]


@register
class RecurrenceOperation(StackedOperation):
    """States, cells and gates of a recurrence, all that its gradient needs, in one array.

    Its inputs are the inputs' products (steps, batch, products units), the weights of the states
    (products units, units), both biases (products units,), the lengths (batch,), the first state
    and, of an LSTM, the first cell (batch, units).
    """

    name = "recurrence"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        products, weight = inputs[:2]
        steps, batch = products.shape[-3:-1]
        rows = CELLS[attributes["cell"]].rows(steps)
        return (*products.shape[:-3], rows, batch, weight.shape[-1]), products.dtype

    def multiply_adds(self, node: Node) -> int:
        return node.inputs[0].size * node.inputs[1].shape[-1]  # products of states and weights

    def workspace(self, node: Node, ops: Ops) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        weight = node.inputs[1]
        *models, wide, units = weight.shape
        return [((*models, units, wide), node.dtype)]

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        products, weight, bias, hidden_bias, lengths, *first = arrays.inputs
        reverse, from_zeros = (node.attributes[name] for name in ("reverse", "from_zeros"))
        recurrence = Recurrence(_cell(node), reverse, weight, lengths, arrays.out, from_zeros)
        at = recurrence.times()[0].before
        rows = (recurrence.states, recurrence.cells)[: len(first)]
        calls: list[Step] = [
            (ops.copy, (x, row[..., at, :, :])) for x, row in zip(first, rows, strict=True)
        ]
        return calls + ops.recurrence(recurrence, products, bias, hidden_bias, arrays.workspace[0])

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        raise ConfigurationError("recurrence: its states have a gradient, and not what it keeps")


class _States(StackedOperation):
    """Base class of views of a `recurrence`, with the gradients of the recurrence's inputs."""

    view = True
    view_of_any = True

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        packed, products = inputs[:2]
        return (*packed.shape[:-3], products.shape[-3], *packed.shape[-2:]), packed.dtype

    def as_view(self, node: Node, array: Array) -> Array:
        first = 0 if node.attributes["reverse"] else 1
        steps = node.shape[-3]
        if self.name == "cell_states":
            first += steps + 1
        return array[..., first : first + steps, :, :]

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        return [(ops.copy, (self.as_view(node, arrays.inputs[0]), arrays.out))]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        packed, products, weight, _, _, lengths, *first = node.inputs
        cell, attributes = _cell(node), node.attributes
        steps, _, width = products.shape
        units = weight.shape[-1]
        starts = any(x.kind != CONSTANT for x in first)
        dx = gradients = apply(
            "recurrence_gradient",
            packed, weight, lengths, dy,
            **attributes, width=width, of_cells=self.name == "cell_states", starts=starts,
        )  # fmt: skip
        of_first: list[Node | None] = [None] * len(first)
        if starts:
            dx = gradients[:steps]
            of_first = [gradients[steps, :, k * units : (k + 1) * units] for k in range(len(first))]
        of_states = apply("recurrence_weights", packed, dx, **attributes)
        d_weight = reshaped(of_states[: width * units], (width, units))
        d_hidden = of_states[width * units :]
        d_bias = d_hidden
        if cell.name == "gru":
            d_bias = sum_over(reshaped(dx, (dx.size // width, width)), 0)
        return None, dx, d_weight, d_bias, d_hidden, None, *of_first


@register
class HiddenStates(_States):
    """States after each time step, (steps, batch, units): a view of the packed array."""

    name = "hidden_states"


@register
class CellStates(_States):
    """Cells of an LSTM after each time step, (steps, batch, units): a view of the packed array."""

    name = "cell_states"


@register
class RecurrenceGradient(StackedOperation):
    """Gradient of the inputs' products, from the gradient that arrives at states or cells.

    Where `starts` holds there is one more time step, with the gradients of the first state and
    cell.
    """

    name = "recurrence_gradient"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        dy = inputs[3]
        steps = dy.shape[-3] + attributes["starts"]
        return (*dy.shape[:-3], steps, dy.shape[-2], attributes["width"]), dy.dtype

    def multiply_adds(self, node: Node) -> int:
        return node.inputs[3].size * node.inputs[1].shape[-2]

    def workspace(self, node: Node, ops: Ops) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        *models, _, batch, units = node.inputs[3].shape
        shapes = workspace_shapes(_cell(node), batch, units)
        return [((*models, *shape), node.dtype) for shape in shapes]

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        packed, weight, lengths, dy = arrays.inputs
        recurrence = Recurrence(_cell(node), node.attributes["reverse"], weight, lengths, packed)
        of_cells = node.attributes["of_cells"]
        gradients = GradientArrays(dy, of_cells, arrays.out, arrays.workspace)
        return ops.recurrence_gradient(recurrence, gradients)

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        raise ConfigurationError("recurrence: there are no second derivatives of it")


@register
class RecurrenceWeights(StackedOperation):
    """Gradient of the weights of the states and, behind it, of their bias, over all time steps.

    The inputs are the packed array, and the gradient of the inputs' products (steps, batch,
    products units). For a GRU's third product that is the gradient before the reset gate, which
    scales it.
    """

    name = "recurrence_weights"

    def infer(self, *inputs: Node, **attributes: Any) -> tuple[Shape, np.dtype[Any]]:
        packed, dx = inputs
        return (*packed.shape[:-3], dx.shape[-1] * (packed.shape[-1] + 1)), dx.dtype

    def multiply_adds(self, node: Node) -> int:
        return node.inputs[1].size * node.inputs[0].shape[-1]

    def workspace(self, node: Node, ops: Ops) -> Sequence[tuple[Shape, np.dtype[Any]]]:
        packed, dx = node.inputs
        *models, steps, batch, _ = dx.shape
        shapes = weight_workspace_shapes(_cell(node), steps, batch, packed.shape[-1])
        return [((*models, *shape), node.dtype) for shape in shapes]

    def forward(self, ops: Ops, node: Node, arrays: Arrays) -> list[Step]:
        (packed, dx), out = arrays.inputs, arrays.out
        cell, (*models, steps, batch, wide) = _cell(node), dx.shape
        units = packed.shape[-1]
        reverse, from_zeros = (node.attributes[name] for name in ("reverse", "from_zeros"))
        recurrence = Recurrence(cell, reverse, out, out, packed)
        weights = out[..., : wide * units].reshape(*models, wide, units)
        bias = out[..., None, wide * units :]
        number = steps * batch
        dy = dx.reshape(*models, number, wide)
        h = recurrence.states[..., recurrence.before, :, :].reshape(*models, number, units)
        # The first time step may start from states that are 0.
        first = batch if from_zeros and steps > 1 else 0
        rows = slice(0, number - first) if reverse else slice(first, number)
        space, *gru_spaces = arrays.workspace
        if cell.name != "gru":
            return ops.weights_and_bias(dy, h, weights, bias, space, rows)
        cut = 2 * units
        scaled = gru_spaces[0].reshape(*models, number, units)
        reset = recurrence.gates.reshape(*models, number, -1)[..., :units]
        return [
            ops.elementwise(MULTIPLY, (dy[..., cut:], reset), scaled),
            *ops.weights_and_bias(
                dy[..., :cut], h, weights[..., :cut, :], bias[..., :cut], space, rows
            ),
            *ops.weights_and_bias(scaled, h, weights[..., cut:, :], bias[..., cut:], space, rows),
        ]

    def gradient(self, node: Node, dy: Node) -> Sequence[Node | None]:
        raise ConfigurationError("recurrence: there are no second derivatives of it")


class Recurrent(NamedTuple):
    """Results of `recurrent`: states after each time step, the last state and the last cell.

    Attributes
    ----------
    states : Node, shape (steps, batch, units)
        After each time step; 0 past the end of a sequence.
    last : Node, shape (batch, units)
        The state after the last time step that was computed; past the end of a sequence it stays.
    last_cell : Node, shape (batch, units)
        The same of an LSTM's cell; None for other cells.
    """

    states: Node
    last: Node
    last_cell: Node | None


def recurrent(
    x: Node,
    weight: Node,
    hidden_weight: Node,
    bias: Node | None = None,
    hidden_bias: Node | None = None,
    *,
    cell: str = "tanh",
    lengths: Node | None = None,
    first: Node | None = None,
    first_cell: Node | None = None,
    reverse: bool = False,
) -> Recurrent:
    """Run a recurrent cell over time steps.

    Parameters
    ----------
    x : Node of floats, shape (steps, batch, features)
    weight : Node, shape (products units, features)
        Of the inputs. A simple cell has one product, a GRU three (reset, update, new), an LSTM four
        (input, forget, cell, output), as PyTorch orders them.
    hidden_weight : Node, shape (products units, units)
        Of the states.
    bias, hidden_bias : Node, shape (products units,), optional
        Added to the products of the inputs and of the states; 0 if left out.
    cell : str
        ``"tanh"`` or ``"relu"``, a simple cell; ``"lstm"`` or ``"gru"``.
    lengths : Node of integers, shape (batch,), optional
        Time steps of each sequence, in ``1 .. steps``; the caller that feeds them checks that. All
        time steps if left out.
    first, first_cell : Node, shape (batch, units), optional
        First state, and first cell of an LSTM; 0 if left out.
    reverse : bool
        Run from each sequence's end to its beginning.

    Returns
    -------
    Recurrent

    Raises
    ------
    ShapeError
        If shapes do not fit, or there are no time steps.
    DtypeError
        If types of elements differ or are not of floats.
    ConfigurationError
        If there is no such cell, or `first_cell` is given for a cell that has none.

    Notes
    -----
    There are first derivatives alone. Products of the inputs are one product for all time steps,
    and so are gradients of the weights.
    """
    if cell not in CELLS:
        raise unknown_name("cell", cell, sorted(CELLS))
    kind = CELLS[cell]
    check_nodes("recurrent", x, weight, hidden_weight)
    check_kind("recurrent", (x,), "f")
    if x.ndim != 3:
        message = f"{describe(x)} has not the shape (steps, batch, features)"
        raise ShapeError("recurrent", message, x.shape)
    steps, batch, features = x.shape
    if not steps:
        raise ShapeError("recurrent", f"{describe(x)} has no time steps", x.shape)
    units = hidden_weight.shape[-1] if hidden_weight.ndim else 0
    if first_cell is not None and not kind.has_cell:
        raise ConfigurationError(f"recurrent: first_cell is for an LSTM, not for cell {cell!r}")
    width = kind.products * units

    def given(node: Node | None, *shape: int) -> tuple[Node, Shape]:
        return constant(np.zeros(shape), x.dtype) if node is None else node, shape

    wanted = [given(weight, width, features), given(hidden_weight, width, units)]
    wanted += [given(each, width) for each in (bias, hidden_bias)]
    wanted += [given(first, batch, units)]
    wanted += [given(first_cell, batch, units)] if kind.has_cell else []
    for node, shape in wanted:
        check_same_type("recurrent", (x, node))
        if node.shape != shape:
            message = f"{describe(node)} has not the shape {shape} that a cell {cell!r} takes"
            raise ShapeError("recurrent", f"{message} beside {describe(x)}", node.shape, shape)
    if lengths is None:
        ends = constant(np.full(batch, steps), x.dtype)
    elif lengths.shape != (batch,):
        message = f"lengths {describe(lengths)} are not of shape {(batch,)}"
        raise ShapeError("recurrent", message, lengths.shape, x.shape)
    else:
        ends = lengths if lengths.dtype == x.dtype else cast(lengths, x.dtype)
    products = reshaped(reshaped(x, (steps * batch, features)) @ weight.T, (steps, batch, width))
    _, *weights = (node for node, _ in wanted)
    inputs = (products, *weights[:3], ends, *weights[3:])
    attributes = {"cell": cell, "reverse": bool(reverse), "from_zeros": first is None}
    packed = apply("recurrence", *inputs, **attributes)
    states = apply("hidden_states", packed, *inputs, **attributes)
    at = 0 if reverse else steps - 1
    last, last_cell = states[at], None
    if kind.has_cell:
        last_cell = apply("cell_states", packed, *inputs, **attributes)[at]
    if lengths is not None:
        times = constant(np.arange(steps).reshape(steps, 1), x.dtype)
        states = states * cast(expand_dims(greater(ends, times), -1), x.dtype)
    return Recurrent(states, last, last_cell)
