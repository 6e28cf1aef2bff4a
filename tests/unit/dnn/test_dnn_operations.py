"""Every operation of the table: gradients against differences, values against NumPy and torch."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnn import graph
from dnn.errors import DtypeError, ShapeError
from dnn.graph.operation import OPERATIONS, apply

F8 = np.float64


def away_from_zero(x):
    """Functions with a kink at 0 have no derivative there."""
    return np.where(np.abs(x) < 0.2, x + np.where(x < 0, -0.2, 0.2), x)


def positive(x):
    return np.abs(x) + 0.3


def target_of(x):
    weights = positive(x)
    return weights / weights.sum(axis=-1, keepdims=True)


@st.composite
def one_shape(draw):
    return [draw(hnp.array_shapes(max_dims=3, max_side=4))]


@st.composite
def two_shapes(draw):
    shapes = draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=4))
    return list(shapes.input_shapes)


@st.composite
def matrices(draw):
    n, k, m = (draw(st.integers(1, 5)) for _ in range(3))
    leading = draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=1, max_side=3))
    first, second = leading.input_shapes
    return [(*first, n, k), (*second, k, m)]


@st.composite
def rows_and_classes(draw):
    return [(draw(st.integers(1, 6)), draw(st.integers(1, 5)))]


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


# Operation -> (shapes of the inputs, the expression, what makes values fit, the same in NumPy).
CASES = {
    "add": (two_shapes(), lambda a, b: a + b, None, np.add),
    "subtract": (two_shapes(), lambda a, b: a - b, None, np.subtract),
    "multiply": (two_shapes(), lambda a, b: a * b, None, np.multiply),
    "divide": (two_shapes(), lambda a, b: a / b, positive, np.divide),
    "negative": (one_shape(), lambda x: -x, None, np.negative),
    "exp": (one_shape(), graph.exp, None, np.exp),
    "log": (one_shape(), graph.log, positive, np.log),
    "square": (one_shape(), graph.square, None, np.square),
    "copy": (one_shape(), lambda x: apply("copy", x), None, np.copy),
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
    "log_softmax": (
        rows_and_classes(),
        graph.log_softmax,
        None,
        lambda x: x - np.log(np.exp(x).sum(axis=-1, keepdims=True)),
    ),
    "softmax_cross_entropy": (rows_and_classes(), cross_entropy, None, None),
}
NO_GRADIENT = {"assign", "one_hot", "uniform_noise"}


def test_every_operation_of_the_table_is_checked():
    assert set(CASES) | NO_GRADIENT == set(OPERATIONS)


@st.composite
def drawn(draw, case):
    shapes, expression, fit, oracle = CASES[case]
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = [generator.normal(size=shape) for shape in draw(shapes)]
    return expression, [fit(x) if fit else x for x in values], oracle, generator


@pytest.mark.parametrize("case", CASES)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_vector_jacobian_product_against_central_differences(case, data):
    expression, values, _, generator = data.draw(drawn(case))
    nodes = [graph.placeholder(x.shape, F8) for x in values]
    y = expression(*nodes)
    v = generator.normal(size=y.shape)
    slopes = graph.gradients(y, nodes, graph.constant(v, F8))
    found = graph.evaluate(slopes, dict(zip(nodes, values, strict=True)))
    step = 1e-6
    for i, (x, slope) in enumerate(zip(values, found, strict=True)):
        assert slope.shape == x.shape
        u = generator.normal(size=x.shape)
        sides = []
        for sign in (1, -1):
            moved = [*values[:i], x + sign * step * u, *values[i + 1 :]]
            sides.append(graph.evaluate([y], dict(zip(nodes, moved, strict=True)))[0])
        difference = np.sum(v * (sides[0] - sides[1])) / (2 * step)
        assert np.sum(slope * u) == pytest.approx(difference, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("case", [case for case in CASES if CASES[case][3]])
@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_values_against_numpy(case, data):
    expression, values, oracle, _ = data.draw(drawn(case))
    nodes = [graph.placeholder(x.shape, F8) for x in values]
    (found,) = graph.evaluate([expression(*nodes)], dict(zip(nodes, values, strict=True)))
    np.testing.assert_allclose(found, oracle(*values), rtol=1e-12, atol=1e-14)


def test_values_and_gradients_against_torch():
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    logits = np.random.default_rng(0).normal(size=(7, 5))
    labels = np.array([0, 1, 2, 3, 4, 0, 2])
    x = graph.placeholder(logits.shape, F8)
    hidden = graph.sigmoid(graph.tanh(x) * 3.0) - graph.relu(x)
    loss = graph.softmax_cross_entropy(
        hidden, graph.one_hot(graph.constant(labels, np.intp), 5, F8)
    )
    found = graph.evaluate([loss, *graph.gradients(loss, [x])], {x: logits})
    tensor = torch.tensor(logits, requires_grad=True)
    theirs = torch.sigmoid(torch.tanh(tensor) * 3.0) - torch.relu(tensor)
    value = torch.nn.functional.cross_entropy(theirs, torch.tensor(labels))
    value.backward()
    np.testing.assert_allclose(found[0], value.item(), rtol=1e-12)
    np.testing.assert_allclose(found[1], tensor.grad.numpy(), rtol=1e-10, atol=1e-12)


def test_one_hot():
    labels = graph.placeholder((4,), np.intp)
    (rows,) = graph.evaluate([graph.one_hot(labels, 3)], {labels: [2, 0, 1, 2]})
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, np.eye(3)[[2, 0, 1, 2]])


def test_softmax_cross_entropy_of_huge_logits_is_finite():
    x = graph.placeholder((2, 3), np.float32)
    target = graph.constant(np.eye(3)[[0, 1]])
    loss = graph.softmax_cross_entropy(x, target)
    value, slope = graph.evaluate(
        [loss, *graph.gradients(loss, [x])], {x: [[1e4, -1e4, 0], [1e4, -1e4, 0]]}
    )
    assert value == 1e4  # the mean of 0 and 2e4
    np.testing.assert_array_equal(slope, [[0, 0, 0], [0.5, -0.5, 0]])


def test_sigmoid_of_large_arguments_does_not_overflow():
    x = graph.placeholder((4,), np.float32)
    (y,) = graph.evaluate([graph.sigmoid(x)], {x: [-1e4, -1, 1, 1e4]})
    np.testing.assert_allclose(y, [0, 0.26894143, 0.7310586, 1], rtol=1e-6)


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (1,)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_sum_and_mean_over_axes(axis, keepdims):
    values = np.random.default_rng(0).normal(size=(3, 4, 5))
    x = graph.placeholder(values.shape, F8)
    found = graph.evaluate(
        [graph.sum(x, axis, keepdims=keepdims), graph.mean(x, axis, keepdims=keepdims)],
        {x: values},
    )
    for got, expected in zip(
        found,
        [values.sum(axis, keepdims=keepdims), values.mean(axis, keepdims=keepdims)],
        strict=True,
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_operators_take_numbers_and_arrays_on_either_side():
    values = np.array([[1.0, 2.0], [4.0, 8.0]], np.float32)
    x = graph.placeholder((2, 2))
    row = np.array([1.0, 3.0])
    nodes = [1 + x, x - 1, 1 - x, 2 * x, x / 2, 2 / x, row * x, x + row, graph.divide(1, x)]
    found = graph.evaluate(nodes, {x: values})
    expected = [
        1 + values,
        values - 1,
        1 - values,
        2 * values,
        values / 2,
        2 / values,
        row * values,
        values + row,
        1 / values,
    ]
    for got, value in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, value)


@pytest.mark.parametrize("scalar", [0.1, np.float64(0.1), np.float32(0.1), np.array(0.1), 1])
def test_a_scalar_of_any_type_leaves_float32_alone(scalar):
    x = graph.placeholder((2, 3), np.float32)
    y = scalar * x + scalar
    assert y.dtype == np.float32
    assert graph.gradients(graph.sum(y), [x])[0].dtype == np.float32
    assert graph.evaluate([y], {x: np.ones((2, 3))})[0].dtype == np.float32


def test_shapes_that_do_not_fit_name_operation_and_both_shapes():
    x, w = graph.placeholder((4, 3), name="x"), graph.variable((5, 2), name="w")
    with pytest.raises(ShapeError, match=r"matmul: x \(4, 3\) and w \(5, 2\) do not fit") as caught:
        x @ w
    assert caught.value.shapes == ((4, 3), (5, 2))
    with pytest.raises(ShapeError, match=r"add: x \(4, 3\) and w \(5, 2\) do not broadcast"):
        x + w
    with pytest.raises(ShapeError, match="matmul"):
        x @ graph.placeholder((3,))
    with pytest.raises(ShapeError, match=r"reshape.*\(5,\)"):
        graph.reshape(x, (5,))
    with pytest.raises(ShapeError, match="transpose"):
        graph.transpose(graph.placeholder((3,)))
    with pytest.raises(ShapeError, match="broadcast_to"):
        graph.broadcast_to(x, (4, 4))
    with pytest.raises(ShapeError, match="sum_to"):
        apply("sum_to", x, shape=(5,))
    with pytest.raises(ShapeError, match="no axis 2"):
        graph.sum(x, 2)
    with pytest.raises(ShapeError, match="log_softmax"):
        graph.log_softmax(graph.placeholder(()))
    with pytest.raises(ShapeError, match="softmax_cross_entropy"):
        graph.softmax_cross_entropy(x, graph.constant(np.ones((4, 2))))
    with pytest.raises(ShapeError, match="scalar"):
        graph.gradients(x, [x])
    with pytest.raises(ShapeError, match="dy"):
        graph.gradients(x, [x], graph.constant(1.0))


def test_types_that_do_not_fit():
    x, y = graph.placeholder((2, 2), np.float32), graph.placeholder((2, 2), np.float64)
    with pytest.raises(DtypeError, match="add"):
        x + y
    with pytest.raises(DtypeError, match="matmul"):
        x @ y
    with pytest.raises(DtypeError, match="labels"):
        graph.one_hot(x, 3)
    with pytest.raises(DtypeError, match="real"):
        x * np.array(["a"])
