"""Recurrent cells: formulas of a time step, arrays kept for the gradient, calls for any device.

A batch is computed one time step after the other; the products of the inputs with their weights are
computed before, for all steps at once. The arrays that a forward pass of T time steps keeps for its
gradient are packed into one array of rows of shape (batch, units)::

    packed:  | states: T + 1 | cells: T + 1, of an LSTM | gates: 4 T, of an LSTM or a GRU |

States and cells have a row for the initial values: the first, or the last if the recurrence runs in
reverse. Past the end of a sequence states and cells stay as they are, so a reverse recurrence
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
        Numbers that a product with the weights gives for each unit.
    gates : int
        Numbers that are kept for each unit and time step besides state and cell.
    has_cell : bool
        Whether each unit has a cell besides its state.
    """

    name: str
    products: int
    gates: int
    has_cell: bool = False

    def rows(self, steps: int) -> int:
        """Return how many rows of shape (batch, units) a forward pass of `steps` steps keeps."""
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
"""Kinds of cells by name. Gates are in PyTorch's order: input, forget, cell, output of an LSTM;
reset, update, new of a GRU, whose fourth is the product that the reset gate scales."""


class Time(NamedTuple):
    """A time step, and the rows in which the states before and after it are."""

    step: int
    before: int
    after: int


class Recurrence(NamedTuple):
    """The arrays of one recurrence; of K models each has a leading axis of K.

    Attributes
    ----------
    cell : Cell
    reverse : bool
        Whether it runs from the last time step to the first.
    weight : array, shape (products units, units)
    lengths : array, shape (batch,), of floats
        Time steps of each sequence.
    packed : array, shape (rows, batch, units)
    from_zeros : bool
        Whether the initial state is 0, so that its product need not be computed.
    """

    cell: Cell
    reverse: bool
    weight: Array
    lengths: Array
    packed: Array
    from_zeros: bool = False

    @property
    def units(self) -> int:
        """Number of units."""
        return int(self.packed.shape[-1])

    @property
    def steps(self) -> int:
        """Number of time steps."""
        rows = self.packed.shape[-3] - 1 - self.cell.has_cell
        return int(rows // (1 + self.cell.has_cell + self.cell.gates))

    @property
    def states(self) -> Array:
        """States, of shape (steps + 1, batch, units)."""
        return self.packed[..., : self.steps + 1, :, :]

    @property
    def cells(self) -> Array:
        """Cells of an LSTM, of the same shape as the states."""
        return self.packed[..., self.steps + 1 : 2 * (self.steps + 1), :, :]

    @property
    def gates(self) -> Array:
        """Gates, of shape (steps, batch, gates units), ordered as in a product."""
        first = (self.steps + 1) * (1 + self.cell.has_cell)
        *models, _, batch, units = self.packed.shape
        gates: Array = self.packed[..., first:, :, :]
        return gates.reshape(*models, self.steps, batch, self.cell.gates * units)

    @property
    def before(self) -> slice:
        """Rows of the states before each time step."""
        return slice(1, self.steps + 1) if self.reverse else slice(0, self.steps)

    def times(self) -> list[Time]:
        """Return the time steps in the order in which they are computed."""
        if self.reverse:
            return [Time(t, t + 1, t) for t in range(self.steps - 1, -1, -1)]
        return [Time(t, t, t + 1) for t in range(self.steps)]

    def each(self) -> Iterator[Recurrence]:
        """Yield the recurrence of each of K models."""
        for arrays in zip(self.weight, self.lengths, self.packed, strict=True):
            yield Recurrence(self.cell, self.reverse, *arrays, self.from_zeros)


class GradientArrays(NamedTuple):
    """Arrays of the gradient of a recurrence.

    `outputs` are given: the gradients of states or (`of_cells`) of cells, of shape (steps, batch,
    units). `products` are computed: the gradients of the inputs' products, of shape (steps, batch,
    products units), with one more time step where the gradients of the initial state and cell are
    wanted, which are written there, side by side. `workspace`: see `workspace_shapes`.
    """

    outputs: Array
    of_cells: bool
    products: Array
    workspace: Any

    def each(self) -> Iterator[GradientArrays]:
        """Yield the arrays of each of K models."""
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
"""Operands: the length of a sequence, past which nothing changes, and the number of a time step."""

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
"""Formulas of a time step by name of the cell, for gates (or y) that hold products of states."""


def _masked(name: str, gradient: str) -> tuple[str, str]:
    """Return the statement of the gradient of a gate: 0 past the end of a sequence."""
    return f"d_{name}", f"{gradient} if length > t else 0"


_D_LSTM = (
    ("s", "tanh(c)"),
    ("dc", "dc + dh * o * (1 - s * s) if length > t else dc"),
    _masked("i", "dc * g * (i * (1 - i))"),
    _masked("f", "dc * before * (f * (1 - f))"),
    _masked("g", "dc * i * (1 - g * g)"),
    _masked("o", "dh * s * (o * (1 - o))"),
    ("dc", "dc * f if length > t else dc"),
    ("dh", "0 if length > t else dh"),
)
_D_GRU = (
    _masked("n", "dh * (1 - u) * (1 - n * n)"),
    _masked("u", "dh * (h - n) * (u * (1 - u))"),
    _masked("r", "d_n * scaled * (r * (1 - r))"),
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
        ("tanh", "d_x dh", "y", (_masked("x", "dh * (1 - y * y)"), _D_LSTM[-1])),
        (
            "relu",
            "d_x dh",
            "y",
            (("d_x", "dh if length > t and y > 0 else 0"), _D_LSTM[-1]),
        ),
    )
}
"""Formulas of the gradient of a time step, by name of the cell and `GradientArrays.of_cells`.

`product` is the part of the gradient of the state that comes from the following time step.
"""


class _Writer:
    """Collects the calls of update formulas, which share workspace, and of products."""

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
    """Return the last axis cut into parts of equal length."""
    length = x.shape[-1] // parts
    return [x[..., k * length : (k + 1) * length] for k in range(parts)]


def _ends(ops: Ops, recurrence: Recurrence) -> tuple[Array, list[Array]]:
    """Return the lengths, one for each row, and the number of each time step, of shape ()."""
    numbers = ops.asarray(np.arange(recurrence.steps, dtype=recurrence.packed.dtype))
    return recurrence.lengths[..., None], [
        numbers[t : t + 1].reshape(()) for t in range(recurrence.steps)
    ]


def recurrence_steps(
    ops: Ops, recurrence: Recurrence, inputs: Array, bias: Array, hidden_bias: Array
) -> list[Step]:
    """Return the calls that compute a recurrence, one time step after the other.

    For each there is a product and one formula, of all models at once. `inputs`, of shape (steps,
    batch, products units), are the inputs' products with their weights; the biases are of shape
    (products units,). The initial state and cell are in their rows already.
    """
    write = _Writer(ops)
    lengths, numbers = _ends(ops, recurrence)
    cell, transposed = recurrence.cell, recurrence.weight.swapaxes(-1, -2)
    biases = [
        x for vector in (bias, hidden_bias) for x in _cut(vector[..., None, :], cell.products)
    ]
    for t, before, after in recurrence.times():
        h, y = recurrence.states[..., before, :, :], recurrence.states[..., after, :, :]
        given = [*_cut(inputs[..., t, :, :], cell.products), *biases]
        rows = [y]
        if cell.gates:
            gates = recurrence.gates[..., t, :, :]
            write.product(h, transposed, gates[..., : cell.products * recurrence.units])
            rows = [*_cut(gates, cell.gates), y]
        else:
            write.product(h, transposed, y)
        if cell.has_cell:
            rows.insert(-1, recurrence.cells[..., after, :, :])
            given.append(recurrence.cells[..., before, :, :])
        write(FORWARD[cell.name], rows, [*given, h, lengths, numbers[t]])
    return write.steps


def workspace_shapes(cell: Cell, batch: int, units: int) -> list[tuple[int, ...]]:
    """Return the shapes of the workspace for the gradient of a recurrence.

    Arrays for the gradients of state and cell, for two products, and for reordered weights.
    """
    wide = cell.products * units
    return [(batch, units), (batch, units), (batch, units), (batch, wide), (wide, units)]


WEIGHT_ROWS = 128
"""Number of rows whose parts of the gradient of the weights are added at once on a CPU."""


def weight_workspace_shapes(
    cell: Cell, steps: int, batch: int, units: int
) -> list[tuple[int, ...]]:
    """Return the shapes of the workspace for the gradient of the weights.

    One array for reordered rows of dy and for the reordered gradient; for a GRU one for a product.
    """
    wide = cell.products * units
    shapes: list[tuple[int, ...]] = [(wide * (WEIGHT_ROWS + units),)]
    return [*shapes, (steps, batch, units)] if cell.name == "gru" else shapes


def gradient_steps(ops: Ops, recurrence: Recurrence, gradients: GradientArrays) -> list[Step]:
    """Return the calls of the gradient, one time step after the other, the last computed first."""
    write = _Writer(ops)
    lengths, numbers = _ends(ops, recurrence)
    dh, dc, product, hidden, _ = gradients.workspace
    write.steps += [(ops.fill, (0.0, x)) for x in (dh, dc, product)]
    formula = BACKWARD[recurrence.cell.name, gradients.of_cells]
    for t, before, after in reversed(recurrence.times()):
        h, y = recurrence.states[..., before, :, :], recurrence.states[..., after, :, :]
        dx = through = gradients.products[..., t, :, :]
        rows, given = _cut(dx, recurrence.cell.products), [y]
        if recurrence.cell.gates:
            given = _cut(recurrence.gates[..., t, :, :], recurrence.cell.gates)
        if recurrence.cell.has_cell:
            rows.append(dc)
            given += [recurrence.cells[..., after, :, :], recurrence.cells[..., before, :, :]]
        elif recurrence.cell.gates:
            through = hidden
            rows += _cut(hidden, recurrence.cell.products)
            given.append(h)
        arrived = gradients.outputs[..., t, :, :]
        write(formula, [*rows, dh], [product, arrived, *given, lengths, numbers[t]])
        write.product(through, recurrence.weight, product)
    if gradients.products.shape[-3] > recurrence.steps:
        first, *second = _cut(
            gradients.products[..., recurrence.steps, :, :], recurrence.cell.products
        )
        write.steps.append(ops.elementwise(ADD, (dh, product), first))
        if recurrence.cell.has_cell:
            write.steps.append((ops.copy, (dc, second[0])))
    return write.steps
