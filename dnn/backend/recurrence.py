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

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnn.backend.formula import ADD, SIGMOID_OF, Step, UpdateFormula

if TYPE_CHECKING:
    from dnn.backend.ops import Array, Ops

__all__ = [
    "BACKWARD",
    "CELLS",
    "FORWARD",
    "Cell",
    "GradientArrays",
    "Recurrence",
    "Time",
    "gradient_steps",
    "recurrence_steps",
]


class Cell(NamedTuple):
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


class Recurrence(NamedTuple):
    """The arrays of one recurrence; of K models each has a leading axis of K.

    Attributes
    ----------
    cell : Cell
    reverse : bool
        It runs from the last time step to the first.
    weight : array, shape (products units, units)
    lengths : array, shape (batch,), of floats
        Time steps of each sequence.
    packed : array, shape (rows, batch, units)
    from_zeros : bool
        The state that it starts from is 0, so that its product need not be computed.
    """

    cell: Cell
    reverse: bool
    weight: Array
    lengths: Array
    packed: Array
    from_zeros: bool = False

    @property
    def units(self) -> int:
        """How many there are."""
        return int(self.packed.shape[-1])

    @property
    def steps(self) -> int:
        """How many time steps there are."""
        rows = self.packed.shape[-3] - 1 - self.cell.has_cell
        return int(rows // (1 + self.cell.has_cell + self.cell.gates))

    @property
    def states(self) -> Array:
        """Shape (steps + 1, batch, units)."""
        return self.packed[..., : self.steps + 1, :, :]

    @property
    def cells(self) -> Array:
        """Those of an LSTM, as the states."""
        return self.packed[..., self.steps + 1 : 2 * (self.steps + 1), :, :]

    @property
    def gates(self) -> Array:
        """Shape (steps, batch, gates units); of a product's order, one step behind the other."""
        first = (self.steps + 1) * (1 + self.cell.has_cell)
        *models, _, batch, units = self.packed.shape
        gates: Array = self.packed[..., first:, :, :]
        return gates.reshape(*models, self.steps, batch, self.cell.gates * units)

    @property
    def before(self) -> slice:
        """The rows of what each time step starts from."""
        return slice(1, self.steps + 1) if self.reverse else slice(0, self.steps)

    def times(self) -> list[Time]:
        """Return the time steps in the order in which they are computed."""
        if self.reverse:
            return [Time(t, t + 1, t) for t in range(self.steps - 1, -1, -1)]
        return [Time(t, t, t + 1) for t in range(self.steps)]

    def each(self) -> Iterator[Recurrence]:
        """Return the recurrence of each model alone."""
        for arrays in zip(self.weight, self.lengths, self.packed, strict=True):
            yield Recurrence(self.cell, self.reverse, *arrays, self.from_zeros)


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

    def each(self) -> Iterator[GradientArrays]:
        """Return the arrays of each model alone."""
        for outputs, products, *workspace in zip(
            self.outputs, self.products, *self.workspace, strict=True
        ):
            yield GradientArrays(outputs, self.of_cells, products, workspace)


def _update(name: str, rows: str, scalars: str, *statements: tuple[str, str]) -> UpdateFormula:
    return UpdateFormula(name, tuple(rows.split()), tuple(scalars.split()), statements)


def _sum(gate: str, product: str) -> tuple[str, str]:
    """Return the statement that adds up both products and both biases of a gate."""
    return gate, f"(x_{gate} + b_{gate}) + ({product} + c_{gate})"


def _named(letters: str, *gates: str) -> str:
    return " ".join(f"{letter}_{gate}" for letter in letters for gate in gates)


_ENDS = "length t"
"""Time steps of a sequence, and the number of this one: past its end nothing changes."""

FORWARD = {
    "lstm": _update(
        "lstm_step",
        "i f g o c y",
        f"{_named('xbc', 'i', 'f', 'g', 'o')} before h {_ENDS}",
        *(_sum(gate, gate) for gate in "ifgo"),
        *((gate, SIGMOID_OF.format(z=gate)) for gate in "ifo"),
        ("g", "tanh(g)"),
        ("c", "f * before + i * g if length > t else before"),
        ("y", "o * tanh(c) if length > t else h"),
    ),
    "gru": _update(
        "gru_step",
        "r u n scaled y",
        f"{_named('xbc', 'r', 'u', 'n')} h {_ENDS}",
        ("scaled", "n + c_n"),
        *(_sum(gate, gate) for gate in "ru"),
        *((gate, SIGMOID_OF.format(z=gate)) for gate in "ru"),
        ("n", "tanh((x_n + b_n) + r * scaled)"),
        ("y", "(1 - u) * n + u * h if length > t else h"),
    ),
} | {
    name: _update(
        f"{name}_step",
        "y",
        f"{_named('xbc', 'y')} h {_ENDS}",
        _sum("y", "y"),
        ("y", f"{function} if length > t else h"),
    )
    for name, function in (("tanh", "tanh(y)"), ("relu", "max(y, 0)"))
}
"""What a time step computes, element by element, once the gates hold the product of the states."""


def _slope(of: str, slope: str) -> tuple[str, str]:
    return f"d_{of}", f"{slope} if length > t else 0"


_D_LSTM = (
    ("s", "tanh(c)"),
    ("dc", "dc + dh * o * (1 - s * s) if length > t else dc"),
    _slope("i", "dc * g * (i * (1 - i))"),
    _slope("f", "dc * before * (f * (1 - f))"),
    _slope("g", "dc * i * (1 - g * g)"),
    _slope("o", "dh * s * (o * (1 - o))"),
    ("dc", "dc * f if length > t else dc"),
    ("dh", "0 if length > t else dh"),
)
_D_GRU = (
    _slope("n", "dh * (1 - u) * (1 - n * n)"),
    _slope("u", "dh * (h - n) * (u * (1 - u))"),
    _slope("r", "d_n * scaled * (r * (1 - r))"),
    ("dh", "dh * u if length > t else dh"),
    ("hr", "d_r"),
    ("hu", "d_u"),
    ("hn", "d_n * r"),
)
BACKWARD = {
    ("lstm", arriving == "dc"): _update(
        f"lstm_gradient_{arriving}",
        "d_i d_f d_g d_o dc dh",
        f"product dy i f g o c before {_ENDS}",
        ("dh", "dh + product"),
        (arriving, f"{arriving} + dy"),
        *_D_LSTM,
    )
    for arriving in ("dh", "dc")
} | {
    (name, False): _update(
        f"{name}_gradient",
        rows,
        f"product dy {scalars} {_ENDS}",
        ("dh", "dh + product"),
        ("dh", "dh + dy"),
        *statements,
    )
    for name, rows, scalars, statements in (
        ("gru", "d_r d_u d_n hr hu hn dh", "r u n scaled h", _D_GRU),
        ("tanh", "d_x dh", "y", (_slope("x", "dh * (1 - y * y)"), _D_LSTM[-1])),
        (
            "relu",
            "d_x dh",
            "y",
            (("d_x", "dh if length > t and y > 0 else 0"), _D_LSTM[-1]),
        ),
    )
}
"""By cell, and whether what arrives does so at its cells: the gradient of a time step.

`product` is what the time step after has left to add to the gradient of the state.
"""


class _Writer:
    """Makes the calls of formulas, with workspace that they share."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self._spaces: dict[tuple[Any, ...], list[Array]] = {}
        self.steps: list[Step] = []

    def __call__(
        self, formula: UpdateFormula, rows: Sequence[Array], scalars: Sequence[Array]
    ) -> None:
        shape = rows[0].shape

        def workspace(types: Sequence[np.dtype[Any]]) -> list[Array]:
            taken: list[Array] = []
            for dtype in types:
                of_type = self._spaces.setdefault((shape, dtype), [])
                used = sum(x.dtype == dtype for x in taken)
                if used == len(of_type):
                    size = dtype.itemsize * int(rows[0].size)
                    of_type.append(self._ops.memory(size).view(dtype).reshape(shape))
                taken.append(of_type[used])
            return taken

        self.steps.append(self._ops.update(formula, rows, scalars, workspace))

    def product(self, a: Array, b: Array, out: Array) -> None:
        self.steps.append((self._ops.gemm, (a, b, out)))


def _cut(x: Array, parts: int) -> list[Array]:
    """Cut the last axis into parts of one length."""
    length = x.shape[-1] // parts
    return [x[..., k * length : (k + 1) * length] for k in range(parts)]


def _ends(ops: Ops, of: Recurrence) -> tuple[Array, list[Array]]:
    """Return the lengths, one for each row, and the number of each time step, of shape ()."""
    numbers = ops.asarray(np.arange(of.steps, dtype=of.packed.dtype))
    return of.lengths[..., None], [numbers[t : t + 1].reshape(()) for t in range(of.steps)]


def recurrence_steps(
    ops: Ops, of: Recurrence, inputs: Array, bias: Array, hidden_bias: Array
) -> list[Step]:
    """Return the calls that compute a recurrence, one time step after the other.

    For each there is a product and one formula, of all models at once. `inputs`, of shape (steps,
    batch, products units), are the inputs' products with their weights; the biases are of shape
    (products units,). What it starts from stands in its row already.
    """
    write = _Writer(ops)
    lengths, numbers = _ends(ops, of)
    cell, transposed = of.cell, of.weight.swapaxes(-1, -2)
    biases = [
        x for vector in (bias, hidden_bias) for x in _cut(vector[..., None, :], cell.products)
    ]
    for t, before, after in of.times():
        h, y = of.states[..., before, :, :], of.states[..., after, :, :]
        given = [*_cut(inputs[..., t, :, :], cell.products), *biases]
        rows = [y]
        if cell.gates:
            gates = of.gates[..., t, :, :]
            write.product(h, transposed, gates[..., : cell.products * of.units])
            rows = [*_cut(gates, cell.gates), y]
        else:
            write.product(h, transposed, y)
        if cell.has_cell:
            rows.insert(-1, of.cells[..., after, :, :])
            given.append(of.cells[..., before, :, :])
        write(FORWARD[cell.name], rows, [*given, h, lengths, numbers[t]])
    return write.steps


def workspace_shapes(cell: Cell, batch: int, units: int) -> list[tuple[int, ...]]:
    """Return the shapes of what a gradient needs besides.

    For state and cell, for two products, and for the weights in another order.
    """
    wide = cell.products * units
    return [(batch, units), (batch, units), (batch, units), (batch, wide), (wide, units)]


WEIGHT_ROWS = 128
"""Rows whose part of the gradient of weights is added at once on a CPU."""


def weight_workspace_shapes(
    cell: Cell, steps: int, batch: int, units: int
) -> list[tuple[int, ...]]:
    """Return the shapes of what the gradient of the weights needs besides.

    For what arrives in another order and the gradient in that order; of a GRU for a product too.
    """
    wide = cell.products * units
    shapes: list[tuple[int, ...]] = [(wide * (WEIGHT_ROWS + units),)]
    return [*shapes, (steps, batch, units)] if cell.name == "gru" else shapes


def gradient_steps(ops: Ops, of: Recurrence, gradients: GradientArrays) -> list[Step]:
    """Return the calls of the gradient, one time step after the other from the end."""
    write = _Writer(ops)
    lengths, numbers = _ends(ops, of)
    dh, dc, product, hidden, _ = gradients.workspace
    write.steps += [(ops.fill, (0.0, x)) for x in (dh, dc, product)]
    formula = BACKWARD[of.cell.name, gradients.of_cells]
    for t, before, after in reversed(of.times()):
        h, y = of.states[..., before, :, :], of.states[..., after, :, :]
        dx = through = gradients.products[..., t, :, :]
        rows, given = _cut(dx, of.cell.products), [y]
        if of.cell.gates:
            given = _cut(of.gates[..., t, :, :], of.cell.gates)
        if of.cell.has_cell:
            rows.append(dc)
            given += [of.cells[..., after, :, :], of.cells[..., before, :, :]]
        elif of.cell.gates:
            through = hidden
            rows += _cut(hidden, of.cell.products)
            given.append(h)
        arrived = gradients.outputs[..., t, :, :]
        write(formula, [*rows, dh], [product, arrived, *given, lengths, numbers[t]])
        write.product(through, of.weight, product)
    if gradients.products.shape[-3] > of.steps:
        first, *second = _cut(gradients.products[..., of.steps, :, :], of.cell.products)
        write.steps.append(ops.elementwise(ADD, (dh, product), first))
        if of.cell.has_cell:
            write.steps.append((ops.copy, (dc, second[0])))
    return write.steps
