"""Recurrent cells: what they compute, where it is kept, and both as calls of any device.

One time step after the other, of a batch; products of the inputs with their weights are done before
for all steps at once. What a forward pass keeps for its gradient is packed into one array of rows
of shape (batch, units), T time steps long::

    packed:  | states: T + 1 | cells: T + 1, of an LSTM | gates: 4 T, of an LSTM or a GRU |

States and cells have a row for what the recurrence starts from: in front, or behind for one that
runs from the end. Past the end of a sequence states and cells stay as they are, so one from the end
starts at each sequence's own end.

References
----------
.. [1] Hochreiter and Schmidhuber, Long short-term memory, 1997; with forget gates by Gers et al.,
   Learning to forget, 2000.
.. [2] Cho et al., Learning phrase representations using RNN encoder-decoder, 2014. As in cuDNN and
   PyTorch the reset gate is applied after the product with the weights.
.. [3] Werbos, Backpropagation through time, 1990.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnn.backend.formula import ADD, MULTIPLY, SIGMOID, TANH, Formula, Step

if TYPE_CHECKING:
    from dnn.backend.ops import Array, Ops

__all__ = [
    "CELLS",
    "Cell",
    "GradientArrays",
    "Recurrence",
    "Time",
    "gradient_steps",
    "recurrence_steps",
]


@dataclass(frozen=True)
class Cell:
    """A kind of recurrent cell.

    Attributes
    ----------
    name : str
    products : int
        How many numbers for each unit a product with the weights gives.
    gates : int
        How many are kept besides states and cells.
    has_cell : bool
        Whether there is a cell beside the state.
    """

    name: str
    products: int
    gates: int
    has_cell: bool = False

    def rows(self, steps: int) -> int:
        """Return how many rows of shape (batch, units) a forward pass keeps."""
        return (steps + 1) * (1 + self.has_cell) + steps * self.gates


CELLS = {
    cell.name: cell
    for cell in (
        Cell("tanh", 1, 0),
        Cell("relu", 1, 0),
        Cell("lstm", 4, 4, True),
        Cell("gru", 3, 4),
    )
}
"""By name. Gates are in PyTorch's order: input, forget, cell, output of an LSTM; reset, update,
new of a GRU, whose fourth is the product that the reset gate scales."""


class Time(NamedTuple):
    """A time step, and the rows of the states before and after it."""

    step: int
    before: int
    after: int


@dataclass(frozen=True)
class Recurrence:
    """The arrays of one recurrence, of one model.

    Attributes
    ----------
    cell : Cell
    reverse : bool
        It runs from the last time step to the first.
    weight : array, shape (products units, units)
    lengths : array, shape (batch,), of floats
        Time steps of each sequence.
    packed : array, shape (rows, batch, units)
    """

    cell: Cell
    reverse: bool
    weight: Array
    lengths: Array
    packed: Array

    @property
    def units(self) -> int:
        """How many there are."""
        return int(self.packed.shape[-1])

    @property
    def steps(self) -> int:
        """How many time steps there are."""
        rows = len(self.packed) - 1 - self.cell.has_cell
        return int(rows // (1 + self.cell.has_cell + self.cell.gates))

    @property
    def states(self) -> Array:
        """Shape (steps + 1, batch, units)."""
        return self.packed[: self.steps + 1]

    @property
    def cells(self) -> Array:
        """Those of an LSTM, as the states."""
        return self.packed[self.steps + 1 : 2 * (self.steps + 1)]

    @property
    def gates(self) -> Array:
        """Shape (steps, batch, gates units); of a product's order, one step behind the other."""
        first = (self.steps + 1) * (1 + self.cell.has_cell)
        batch, units = self.packed.shape[1:]
        return self.packed[first:].reshape(self.steps, batch, self.cell.gates * units)

    @property
    def before(self) -> slice:
        """The rows of what each time step starts from."""
        return slice(1, self.steps + 1) if self.reverse else slice(0, self.steps)

    def times(self) -> list[Time]:
        """Return the time steps in the order in which they are computed."""
        if self.reverse:
            return [Time(t, t + 1, t) for t in range(self.steps - 1, -1, -1)]
        return [Time(t, t, t + 1) for t in range(self.steps)]


class GradientArrays(NamedTuple):
    """The arrays of a gradient.

    `outputs` is what arrives, of states or (`of_cells`) of cells: shape (steps, batch, units);
    `products` what is computed, of the inputs' products: (steps, batch, products units), with one
    more time step where the gradients of the first state and cell are wanted: they stand there, one
    beside the other. `workspace`: see `workspace_shapes`.
    """

    outputs: Array
    of_cells: bool
    products: Array
    workspace: Any


_SUM = Formula("sum_of_products", "y x b c", "(x + b) + (y + c)")
_NEW = Formula("gru_new", "x b reset y", "tanh((x + b) + reset * y)")
_CELL = Formula("lstm_cell", "i f g c length t", "f * c + i * g if length > t else c")
_OUTPUT = Formula("lstm_output", "o c h length t", "o * tanh(c) if length > t else h")
_BLEND = Formula("gru_state", "u n h length t", "(1 - u) * n + u * h if length > t else h")
_IF = {
    "tanh": Formula("tanh_state", "y h length t", "tanh(y) if length > t else h"),
    "relu": Formula("relu_state", "y h length t", "max(y, 0) if length > t else h"),
}

_D_CELL = Formula(
    "lstm_d_cell", "d dh o s length t", "d + dh * o * (1 - s * s) if length > t else d"
)
_D_SIGMOID = Formula("d_sigmoid", "d x y length t", "d * x * (y * (1 - y)) if length > t else 0")
_D_TANH = Formula("d_tanh", "d x y length t", "d * x * (1 - y * y) if length > t else 0")
_D_UPDATE = Formula(
    "gru_d_update", "d h n u length t", "d * (h - n) * (u * (1 - u)) if length > t else 0"
)
_D_NEW = Formula("gru_d_new", "d u n length t", "d * (1 - u) * (1 - n * n) if length > t else 0")
_SCALED = Formula("scaled_in_length", "d x length t", "d * x if length > t else d")
_PAST_END = Formula("past_end", "d length t", "0 if length > t else d")
_D_IF = {
    "tanh": Formula("d_tanh_state", "d y length t", "d * (1 - y * y) if length > t else 0"),
    "relu": Formula("d_relu_state", "d y length t", "d if length > t and y > 0 else 0"),
}


class _Writer:
    """Makes the calls of formulas, with workspace that they share."""

    def __init__(self, ops: Ops, like: Array) -> None:
        self._ops = ops
        self._like = like
        self._spaces: dict[tuple[int, ...], dict[Any, list[Array]]] = {}
        self.steps: list[Step] = []

    def __call__(self, formula: Formula, *inputs: Any, out: Array) -> None:
        spaces = self._spaces.setdefault(out.shape, {})
        taken: list[Array] = []
        for dtype in formula.workspace(out.dtype):
            of_type = spaces.setdefault(dtype, [])
            used = sum(x.dtype == dtype for x in taken)
            if used == len(of_type):
                size = dtype.itemsize * int(out.size)
                of_type.append(self._ops.memory(size).view(dtype).reshape(out.shape))
            taken.append(of_type[used])
        self.steps.append(self._ops.elementwise(formula, inputs, out, taken))

    def product(self, a: Array, b: Array, out: Array) -> None:
        self.steps.append((self._ops.gemm, (a, b, out)))


def _cut(x: Array, parts: int) -> Iterator[Array]:
    """Cut the last axis into parts of one length."""
    length = x.shape[-1] // parts
    return (x[..., k * length : (k + 1) * length] for k in range(parts))


def _numbers(ops: Ops, of: Recurrence) -> list[Array]:
    """Return the number of each time step as an array of shape (), of the type of all others."""
    return [ops.asarray(np.array(t, of.packed.dtype)) for t in range(of.steps)]


def recurrence_steps(
    ops: Ops, of: Recurrence, inputs: Array, bias: Array, hidden_bias: Array
) -> list[Step]:
    """Return the calls that compute a recurrence, one time step after the other.

    `inputs`, of shape (steps, batch, products units), are the inputs' products with their weights;
    the biases are of shape (products units,). What it starts from stands in its row already.
    """
    write = _Writer(ops, of.packed)
    lengths, numbers = of.lengths.reshape(-1, 1), _numbers(ops, of)
    units = of.units
    for t, before, after in of.times():
        h, y, x = of.states[before], of.states[after], inputs[t]
        alive = (lengths, numbers[t])
        if of.cell.name == "lstm":
            gates = of.gates[t]
            write.product(h, of.weight.swapaxes(0, 1), gates)
            write(_SUM, gates, x, bias, hidden_bias, out=gates)
            i, f, g, o = _cut(gates, 4)
            for gate in (i, f, o):
                write(SIGMOID, gate, out=gate)
            write(TANH, g, out=g)
            c = of.cells[before]
            write(_CELL, i, f, g, c, *alive, out=of.cells[after])
            write(_OUTPUT, o, of.cells[after], h, *alive, out=y)
        elif of.cell.name == "gru":
            reset, _, new, scaled = _cut(of.gates[t], 4)
            both, product = of.gates[t][:, : 2 * units], of.gates[t][:, : 3 * units]
            write.product(h, of.weight.swapaxes(0, 1), product)
            write(ADD, new, hidden_bias[2 * units :], out=scaled)
            write(
                _SUM, both, x[:, : 2 * units], bias[: 2 * units], hidden_bias[: 2 * units], out=both
            )
            write(SIGMOID, both, out=both)
            write(_NEW, x[:, 2 * units :], bias[2 * units :], reset, scaled, out=new)
            write(_BLEND, both[:, units:], new, h, *alive, out=y)
        else:
            write.product(h, of.weight.swapaxes(0, 1), y)
            write(_SUM, y, x, bias, hidden_bias, out=y)
            write(_IF[of.cell.name], y, h, *alive, out=y)
    return write.steps


def workspace_shapes(cell: Cell, batch: int, units: int) -> list[tuple[int, ...]]:
    """Return the shapes of what a gradient needs besides.

    For state and cell, for two products, and for the weights in another order.
    """
    wide = cell.products * units
    return [(batch, units), (batch, units), (batch, units), (batch, wide), (wide, units)]


def gradient_steps(ops: Ops, of: Recurrence, gradients: GradientArrays) -> list[Step]:
    """Return the calls of the gradient, one time step after the other from the end."""
    write = _Writer(ops, of.packed)
    lengths, numbers = of.lengths.reshape(-1, 1), _numbers(ops, of)
    dh, dc, product, hidden, _ = gradients.workspace
    write.steps += [(ops.fill, (0.0, dh)), (ops.fill, (0.0, dc))]
    for t, before, after in reversed(of.times()):
        h, y, dx = of.states[before], of.states[after], gradients.products[t]
        arriving = dc if gradients.of_cells else dh
        write(ADD, arriving, gradients.outputs[t], out=arriving)
        alive = (lengths, numbers[t])
        through = dx
        if of.cell.name == "lstm":
            i, f, g, o = _cut(of.gates[t], 4)
            di, df, dg, do = _cut(dx, 4)
            write(TANH, of.cells[after], out=product)
            write(_D_CELL, dc, dh, o, product, *alive, out=dc)
            write(_D_SIGMOID, dc, g, i, *alive, out=di)
            write(_D_SIGMOID, dc, of.cells[before], f, *alive, out=df)
            write(_D_TANH, dc, i, g, *alive, out=dg)
            write(_D_SIGMOID, dh, product, o, *alive, out=do)
            write(_SCALED, dc, f, *alive, out=dc)
            write(_PAST_END, dh, *alive, out=dh)
        elif of.cell.name == "gru":
            reset, update, new, scaled = _cut(of.gates[t], 4)
            dr, du, dn = _cut(dx, 3)
            through = hidden
            write(_D_NEW, dh, update, new, *alive, out=dn)
            write(_D_UPDATE, dh, h, new, update, *alive, out=du)
            write(_D_SIGMOID, dn, scaled, reset, *alive, out=dr)
            write(_SCALED, dh, update, *alive, out=dh)
            units = of.units
            write.steps.append((ops.copy, (dx[:, : 2 * units], hidden[:, : 2 * units])))
            write(MULTIPLY, dn, reset, out=hidden[:, 2 * units :])
        else:
            write(_D_IF[of.cell.name], dh, y, *alive, out=dx)
            write(_PAST_END, dh, *alive, out=dh)
        write.product(through, of.weight, product)
        write(ADD, dh, product, out=dh)
    if len(gradients.products) > of.steps:
        first, *second = _cut(gradients.products[of.steps], of.cell.products)
        write.steps.append((ops.copy, (dh, first)))
        if of.cell.has_cell:
            write.steps.append((ops.copy, (dc, second[0])))
    return write.steps
