"""One case for every operation of the table: for its gradient, its values, and K models at once.

Tests on a GPU walk through the same table.
"""

import math

import hypothesis.extra.numpy as hnp
import numpy as np
from hypothesis import strategies as st

from dnn import graph
from dnn.backend import Formula, empty
from dnn.graph.operation import OPERATIONS, apply
from dnn.graph.operations.elementwise import Elementwise

F8 = np.float64

FORMULAS: dict[str, Formula] = {
    name: operation.formula
    for name, operation in OPERATIONS.items()
    if isinstance(operation, Elementwise)
}


def formula_step(ops, name, inputs, out):
    """Return the call of an elementwise operation on arrays."""
    formula = FORMULAS[name]
    workspace = [empty(ops, out.shape, dtype) for dtype in formula.workspace(out.dtype)]
    return ops.elementwise(formula, inputs, out, workspace)


def compute(ops, name, *operands):
    """Compute an elementwise operation; the last operand is the result."""
    *inputs, out = operands
    function, arguments = formula_step(ops, name, inputs, out)
    function(*arguments)


def away_from_zero(x):
    """Functions with a kink at 0 have no derivative there."""
    return np.where(np.abs(x) < 0.2, x + np.where(x < 0, -0.2, 0.2), x)


def positive(x):
    return np.abs(x) + 0.3


def target_of(x):
    weights = positive(x)
    return weights / weights.sum(axis=-1, keepdims=True)


class Alone:
    """The only one of its ranks."""

    def sum(self, array):
        """Leave it as it is."""


class Twice:
    """One of two ranks, of which the other has the same arrays."""

    def sum(self, array):
        """Add the same."""
        array *= 2


@st.composite
def one_shape(draw):
    return [draw(hnp.array_shapes(max_dims=3, max_side=4))]


@st.composite
def two_shapes(draw):
    shapes = draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=4))
    return list(shapes.input_shapes)


@st.composite
def one_row_shapes(draw):
    shape = draw(hnp.array_shapes(max_dims=3, max_side=4))
    return [shape[-1:], shape]


@st.composite
def matrices(draw):
    n, k, m = (draw(st.integers(1, 5)) for _ in range(3))
    leading = draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=1, max_side=3))
    first, second = leading.input_shapes
    return [(*first, n, k), (*second, k, m)]


@st.composite
def rows_and_classes(draw):
    return [(draw(st.integers(1, 6)), draw(st.integers(1, 5)))]


# Of the convolution in this table; others stand in test_dnn_convolution.py.
CONVOLUTION = {
    "stride": (2, 1),
    "dilation": (1, 2),
    "padding": ((1, 0), (2, 1)),
    "groups": 2,
    "layout": "NHWC",
}


@st.composite
def images_and_filters(draw):
    """Shapes of x, w and y of a convolution, in the layout NHWC."""
    images, channels, filters = (draw(st.integers(1, 3)) for _ in range(3))
    height, width = draw(st.integers(1, 5)), draw(st.integers(2, 5))
    out = ((height - 1) // 2 + 1, width + 3 - 4)
    x, w = (images, height, width, 2 * channels), (2 * filters, channels, 2, 3)
    return [x, w, (images, *out, 2 * filters)]


def convolved(x, w, bias):
    return graph.conv2d(x, w, bias, **CONVOLUTION)


def convolved_numpy(x, w, bias):
    """Convolution by the definition, with the numbers of `CONVOLUTION`."""
    images, height, width, _ = x.shape
    filters, per_group = w.shape[:2]
    padded = np.pad(x, [(0, 0), (1, 0), (2, 1), (0, 0)])
    y = np.empty((images, (height - 1) // 2 + 1, width - 1, filters))
    for f in range(filters):
        first = f // (filters // 2) * per_group
        for i in range(y.shape[1]):
            for j in range(y.shape[2]):
                met = padded[:, 2 * i : 2 * i + 2, j : j + 5 : 2, first : first + per_group]
                y[:, i, j, f] = bias[f] + np.einsum("nrsc,crs->n", met, w[f])
    return y


POOLING = {"stride": (2, 1), "padding": ((1, 0), (0, 1)), "layout": "NHWC"}


@st.composite
def images_and_windows(draw):
    """Shapes of x and of what windows of 3 x 2 leave of it, in the layout NHWC."""
    images, channels = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    height, width = draw(st.integers(2, 6)), draw(st.integers(1, 5))
    return [(images, height, width, channels), (images, (height - 2) // 2 + 1, width, channels)]


def max_pooled(x):
    return graph.max_pool2d(x, (3, 2), **POOLING)


def average_pooled(x):
    return graph.average_pool2d(x, (3, 2), **POOLING)


def pooled_numpy(x, function):
    padded = np.pad(x, [(0, 0), (1, 0), (0, 1), (0, 0)], constant_values=np.nan)
    rows = range(0, padded.shape[1] - 2, 2)
    return np.stack(
        [
            np.stack([function(padded[:, i : i + 3, j : j + 2], (1, 2)) for j in range(x.shape[2])])
            for i in rows
        ]
    ).transpose(2, 0, 1, 3)


def of_max_pooling(kind, given, x):
    problem = max_pooled(x).attributes["problem"]._replace(kind=kind)
    return apply(f"max_pool2d_{kind.partition('_')[2]}", given, x, problem=problem)


def average_gradient(dy, x):
    (slope,) = graph.gradients(average_pooled(x), [x], dy)
    return slope * x


@st.composite
def sequences_and_weights(draw):
    """Shapes for `run_cells`: inputs, both weights, both biases, first state and first cell."""
    steps, batch, features, units = (draw(st.integers(1, 4)) for _ in range(4))
    wide = 4 * units
    weights = [(wide, features), (wide, units), (wide,), (wide,)]
    return [(steps, batch, features), *weights, (batch, units), (batch, units)]


def _lengths(steps, batch):
    return 1 + np.arange(batch) % steps


def run_cells(x, w, v, b, c, first, first_cell):
    """Cells of every kind, in both directions, of sequences of different lengths."""
    units = v.shape[-1]
    lengths = graph.constant(_lengths(*x.shape[:2]), np.intp)
    states = []
    for at, (cell, products) in enumerate({"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}.items()):
        of_cell = [each[: products * units] for each in (w, v, b, c)]
        cells = {"first_cell": first_cell} if cell == "lstm" else {}
        found = graph.recurrent(
            x, *of_cell, cell=cell, lengths=lengths, first=first, reverse=at % 2 == 1, **cells
        )
        states += [found.states, graph.expand_dims(found.last, 0)]
    return graph.concat(states, 0)


def last_cells(x, w, v, b, c, first, first_cell):
    found = graph.recurrent(
        x, w, v, b, c, cell="lstm", first=first, first_cell=first_cell, reverse=True
    )
    return found.last_cell + graph.recurrent(x, w, v, cell="lstm").last_cell


def run_cells_numpy(x, w, v, b, c, first, first_cell):
    """The same by the definitions, one sequence after the other."""
    (steps, batch, _), units = x.shape, v.shape[-1]

    def logistic(z):
        return 1 / (1 + np.exp(-z))

    states = []
    for at, cell in enumerate(("lstm", "gru", "tanh", "relu")):
        outputs = np.zeros((steps + 1, batch, units))
        for n, length in enumerate(_lengths(steps, batch)):
            h, cells = first[n], first_cell[n]
            for t in range(length)[:: -1 if at % 2 else 1]:
                y = (w @ x[t, n] + b).reshape(4, units)
                z = (v @ h + c).reshape(4, units)
                if cell == "lstm":
                    i, f, _, o = logistic(y + z)
                    cells = f * cells + i * np.tanh(y + z)[2]
                    h = o * np.tanh(cells)
                elif cell == "gru":
                    r, u = logistic(y + z)[:2]
                    h = (1 - u) * np.tanh(y[2] + r * z[2]) + u * h
                else:
                    h = np.tanh(y[0] + z[0]) if cell == "tanh" else np.maximum(y[0] + z[0], 0)
                outputs[t, n] = h
            outputs[steps, n] = h
        states.append(outputs)
    return np.concatenate(states)


def reshaped(x):
    return graph.reshape(x, (*x.shape[::-1], 1))


def reshaped_transpose(x):
    return graph.reshape(graph.transpose(x), (x.size,))


def repeated(x):
    return graph.broadcast_to(x, (3, *x.shape))


def summed(x):
    return graph.sum(x, -1)


def cross_entropy(x):
    target = graph.constant(target_of(np.arange(x.size, dtype=F8).reshape(x.shape)), F8)
    return graph.softmax_cross_entropy(x, target)


def apart(x):
    """Functions of the order of elements have no derivative where two are equal."""
    order = np.argsort(np.argsort(x, axis=None)).reshape(x.shape)
    return x + 0.1 * order


def chosen(a, b):
    return graph.where(graph.constant(np.arange(b.shape[-1]) % 2 == 0, bool), a, b)


def chosen_numpy(a, b):
    return np.where(np.arange(b.shape[-1]) % 2 == 0, a, b)


def some_rows(x):
    return graph.take_rows(x, graph.constant(np.arange(7).reshape(1, 7) % len(x), np.intp))


def added_rows(x):
    rows = graph.constant(np.arange(len(x)) // 2, np.intp)
    return apply("add_rows", x, rows, count=len(x))


def added_rows_numpy(x):
    out = np.zeros_like(x)
    np.add.at(out, np.arange(len(x)) // 2, x)
    return out


def inner(x):
    return apply(
        "unslice", x, index=((1, 2 * len(x) + 1, 2),), shape=(2 * len(x) + 3, *x.shape[1:])
    )


def inner_numpy(x):
    out = np.zeros((2 * len(x) + 3, *x.shape[1:]))
    out[1 : 2 * len(x) + 1 : 2] = x
    return out


def with_zeros(x):
    """A product's gradient where a factor is 0 is that of the others."""
    return np.where(np.abs(x) < 0.4, 0, x)


def normal_cdf(x):
    return np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in x.flat]).reshape(x.shape)


# Operation -> (shapes of the inputs, the expression, what makes values fit, the same in NumPy).
CASES = {
    "add": (two_shapes(), lambda a, b: a + b, None, np.add),
    "subtract": (two_shapes(), lambda a, b: a - b, None, np.subtract),
    "multiply": (two_shapes(), lambda a, b: a * b, None, np.multiply),
    "divide": (two_shapes(), lambda a, b: a / b, positive, np.divide),
    "negative": (one_shape(), lambda x: -x, None, np.negative),
    "exp": (one_shape(), graph.exp, None, np.exp),
    "expm1": (one_shape(), graph.expm1, None, np.expm1),
    "log": (one_shape(), graph.log, positive, np.log),
    "square": (one_shape(), graph.square, None, np.square),
    "sqrt": (one_shape(), graph.sqrt, positive, np.sqrt),
    "log1p": (one_shape(), graph.log1p, positive, np.log1p),
    "power": (two_shapes(), graph.power, positive, np.power),
    "normal_cdf": (one_shape(), graph.normal_cdf, away_from_zero, normal_cdf),
    "abs": (one_shape(), abs, away_from_zero, np.abs),
    "sign": (one_shape(), lambda x: apply("sign", x), away_from_zero, np.sign),
    "maximum": (
        two_shapes(),
        lambda a, b: graph.maximum(a, b + 1e-3),
        np.round,
        lambda a, b: np.maximum(a, b + 1e-3),
    ),
    "minimum": (
        two_shapes(),
        lambda a, b: graph.minimum(a, b + 1e-3),
        np.round,
        lambda a, b: np.minimum(a, b + 1e-3),
    ),
    "clip": (
        one_shape(),
        lambda x: graph.clip(x, -0.5, 0.7),
        None,
        lambda x: np.clip(x, -0.5, 0.7),
    ),
    "where_greater": (
        one_shape(),
        lambda x: apply("where_greater", x * x, x, graph.constant(0.1, x.dtype)),
        None,
        lambda x: np.where(x > 0.1, x * x, 0),
    ),
    "where_equal": (
        one_shape(),
        lambda x: apply("where_equal", x * x, graph.maximum(x, 0.1), x),
        None,
        lambda x: np.where(x >= 0.1, x * x, 0),
    ),
    "where": (one_row_shapes(), chosen, None, chosen_numpy),
    "cast": (
        one_shape(),
        lambda x: graph.cast(graph.cast(x * 3.0, np.float64), F8),
        None,
        lambda x: x * 3.0,
    ),
    "slice": (
        rows_and_classes(),
        lambda x: x[::-2, None, -1],
        None,
        lambda x: x[::-2, None, -1],
    ),
    "unslice": (one_shape(), inner, None, inner_numpy),
    "concat": (
        one_shape(),
        lambda x: graph.concat([x, x * 2.0, -x], -1),
        None,
        lambda x: np.concatenate([x, x * 2.0, -x], -1),
    ),
    "take_rows": (one_shape(), some_rows, None, lambda x: x[np.arange(7).reshape(1, 7) % len(x)]),
    "add_rows": (one_shape(), added_rows, None, added_rows_numpy),
    "max": (one_shape(), lambda x: graph.max(x, -1), apart, lambda x: x.max(-1)),
    "min": (one_shape(), lambda x: graph.min(x, 0), apart, lambda x: x.min(0)),
    "prod": (
        one_shape(),
        lambda x: graph.prod(x, (0, -1)),
        with_zeros,
        lambda x: x.prod(axis=tuple({0, x.ndim - 1})),
    ),
    "binary_cross_entropy": (
        two_shapes(),
        graph.binary_cross_entropy,
        None,
        lambda x, t: np.log(1 + np.exp(x)) - x * t,
    ),
    "copy": (one_shape(), lambda x: apply("copy", x), None, np.copy),
    "sum_over_ranks": (
        one_shape(),
        lambda x: graph.sum_over_ranks(x, Twice()),
        None,
        lambda x: 2 * x,
    ),
    "copy_to_ranks": (one_shape(), lambda x: graph.copy_to_ranks(x, Alone()), None, np.copy),
    "normalise": (
        one_shape(),
        lambda x: graph.normalise(x, 0, 1e-3).values,
        None,
        lambda x: (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-3),
    ),
    "batch_norm": (
        images_and_windows().map(lambda shapes: [shapes[0], shapes[0][-1:], shapes[0][-1:]]),
        lambda x, scale, shift: graph.batch_norm(x, scale, shift, 3, 1e-3).values,
        None,
        lambda x, scale, shift: (
            (x - x.mean((0, 1, 2))) / np.sqrt(x.var((0, 1, 2)) + 1e-3) * scale + shift
        ),
    ),
    "standardise": (
        two_shapes(),
        lambda x, y: apply("standardise", x, y, y * 0.5),
        None,
        lambda x, y: (x - y) * y * 0.5,
    ),
    "batch_norm_gradient": (
        two_shapes(),
        lambda x, y: apply("batch_norm_gradient", x, x * x, y, y * 2.0, y - 1.0, y + x, -y),
        None,
        lambda x, y: (x - (y + x) - (x * x - y) * (y * 2.0) * -y) * (y - 1.0),
    ),
    "relu": (one_shape(), graph.relu, away_from_zero, lambda x: np.maximum(x, 0)),
    "positive": (
        one_shape(),
        lambda x: apply("positive", x),
        away_from_zero,
        lambda x: (x > 0).astype(F8),
    ),
    "sigmoid": (one_shape(), graph.sigmoid, None, lambda x: 1 / (1 + np.exp(-x))),
    "tanh": (one_shape(), graph.tanh, None, np.tanh),
    "reshape": (one_shape(), reshaped, None, lambda x: x.reshape(*x.shape[::-1], 1)),
    "transpose": (rows_and_classes(), reshaped_transpose, None, lambda x: x.T.ravel()),
    "broadcast_to": (one_shape(), repeated, None, lambda x: np.stack([x, x, x])),
    "sum_to": (one_shape(), summed, None, lambda x: x.sum(axis=-1)),
    "matmul": (matrices(), lambda a, b: a @ b, None, np.matmul),
    "conv2d": (
        images_and_filters().map(lambda shapes: [*shapes[:2], shapes[1][:1]]),
        convolved,
        None,
        convolved_numpy,
    ),
    "conv2d_data_gradient": (
        images_and_filters().map(lambda shapes: [shapes[2], shapes[1], shapes[0]]),
        lambda dy, w, x: x * graph.conv2d_data_gradient(dy, w, size=x.shape[1:3], **CONVOLUTION),
        None,
        None,
    ),
    "conv2d_weight_gradient": (
        images_and_filters().map(lambda shapes: [shapes[0], shapes[2]]),
        lambda x, dy: graph.conv2d_weight_gradient(x, dy, window=(2, 3), **CONVOLUTION),
        None,
        None,
    ),
    "max_pool2d": (
        images_and_windows().map(lambda shapes: shapes[:1]),
        max_pooled,
        apart,
        lambda x: pooled_numpy(x, np.nanmax),
    ),
    "max_pool2d_gradient": (
        images_and_windows().map(lambda shapes: shapes[::-1]),
        lambda dy, x: of_max_pooling("max_gradient", dy, x),
        apart,
        None,
    ),
    "max_pool2d_taken": (
        images_and_windows().map(lambda shapes: [shapes[0], shapes[0]]),
        lambda v, x: of_max_pooling("max_taken", v, x),
        apart,
        None,
    ),
    "average_pool2d": (
        images_and_windows().map(lambda shapes: shapes[:1]),
        average_pooled,
        None,
        lambda x: pooled_numpy(x, np.nanmean),
    ),
    "average_pool2d_gradient": (
        images_and_windows().map(lambda shapes: shapes[::-1]),
        average_gradient,
        None,
        None,
    ),
    "hidden_states": (sequences_and_weights(), run_cells, None, run_cells_numpy),
    "cell_states": (sequences_and_weights(), last_cells, None, None),
    "log_softmax": (
        rows_and_classes(),
        graph.log_softmax,
        None,
        lambda x: x - np.log(np.exp(x).sum(axis=-1, keepdims=True)),
    ),
    "softmax_cross_entropy": (rows_and_classes(), cross_entropy, None, None),
}
NO_GRADIENT = {"argmax", "assign", "equal", "greater", "greater_equal", "one_hot", "uniform_noise"}
# Which the states of a recurrence and their gradients are computed with.
NO_GRADIENT |= {"add_to", "recurrence", "recurrence_gradient", "recurrence_weights"}


@st.composite
def drawn(draw, case):
    shapes, expression, fit, oracle = CASES[case]
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = [generator.normal(size=shape) for shape in draw(shapes)]
    return expression, [fit(x) if fit else x for x in values], oracle, generator
