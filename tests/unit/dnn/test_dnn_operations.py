"""Every operation of the table: gradients against differences, values against NumPy and torch."""

import inspect
import tracemalloc

import device_checks
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operation_cases import CASES, F8, NO_GRADIENT, away_from_zero, drawn
from support import case_count

from dnn import graph
from dnn.backend import Ops
from dnn.errors import DataError
from dnn.graph.operation import OPERATIONS


def test_every_operation_of_the_table_is_checked():
    assert set(CASES) | NO_GRADIENT == set(OPERATIONS)


@pytest.mark.parametrize("case", CASES)
@given(data=st.data())
@settings(max_examples=case_count(15), deadline=None)
def test_vector_jacobian_product_against_central_differences(case, data):
    expression, values, _, generator = data.draw(drawn(case))
    nodes = [graph.placeholder(x.shape, F8) for x in values]
    y = expression(*nodes)
    v = generator.normal(size=y.shape)
    gradients = graph.gradients(y, nodes, graph.constant(v, F8))
    found = graph.evaluate(gradients, dict(zip(nodes, values, strict=True)))
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
@settings(max_examples=case_count(10), deadline=None)
def test_values_against_numpy(case, data):
    expression, values, oracle, _ = data.draw(drawn(case))
    nodes = [graph.placeholder(x.shape, F8) for x in values]
    (found,) = graph.evaluate([expression(*nodes)], dict(zip(nodes, values, strict=True)))
    np.testing.assert_allclose(found, oracle(*values), rtol=1e-12, atol=1e-14)


SEQUENCES = [(8, 32, 60), (256, 60), (256, 64), (256,), (256,), (32, 64), (32, 64)]
LARGE = {
    "hidden_states": SEQUENCES,
    "cell_states": SEQUENCES,
    "matmul": [(128, 150), (150, 256)],
    # Libraries of linear algebra make results of their own: here small ones.
    "solve": [(50, 50), (50, 4)],
    "cholesky": [(50, 50)],
    "fourier": [(16, 32), (16, 32)],
    "where": [(256,), (128, 256)],
    "conv2d": [(4, 32, 33, 8), (16, 4, 2, 3), (16,)],
    "conv2d_data_gradient": [(4, 16, 32, 16), (16, 4, 2, 3), (4, 32, 33, 8)],
    "conv2d_weight_gradient": [(4, 32, 33, 8), (4, 16, 32, 16)],
    "batch_norm": [(4, 32, 32, 8), (8,), (8,)],
    "max_pool2d": [(4, 32, 32, 8)],
    "max_pool2d_gradient": [(4, 16, 32, 8), (4, 32, 32, 8)],
    "max_pool2d_taken": [(4, 32, 32, 8), (4, 32, 32, 8)],
    "average_pool2d": [(4, 32, 32, 8)],
    "average_pool2d_gradient": [(4, 16, 32, 8), (4, 32, 32, 8)],
}


@pytest.mark.parametrize("case", CASES)
def test_a_replayed_operation_and_its_gradient_allocate_no_array(case):
    expression = CASES[case][1]
    parameters = inspect.signature(expression).parameters.values()
    needed = sum(parameter.default is parameter.empty for parameter in parameters)
    nodes = [graph.placeholder(shape, F8) for shape in LARGE.get(case, [(128, 256)] * needed)]
    y = expression(*nodes)
    gradients = graph.gradients(y, nodes, graph.constant(np.ones(y.shape), F8))
    plan = graph.Plan([*nodes, y, *gradients], Ops())
    generator = np.random.default_rng(0)
    for node in nodes:
        plan[node][...] = generator.uniform(0.3, 0.9, node.shape)
    plan.run()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        plan.run()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The arrays take 262,144 bytes. A ufunc that broadcasts or casts takes buffers of 8,192
    # elements at most for the length of the call, which are no arrays: one for each operand.
    assert peak - before < 3 * 8192 * 8 + 10_000


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


def test_systems_and_transforms_against_torch():
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(2, 4, 4)), generator.normal(size=(4,))
    x, y = graph.placeholder(a.shape, F8), graph.placeholder(b.shape, F8)
    spd = x @ graph.transpose(x) + graph.constant(np.eye(4), F8)
    real, imaginary = graph.fft(x, axes=(0, -1))
    parts = [graph.solve(spd, y), graph.inv(spd), graph.cholesky(spd), real * imaginary]
    loss = graph.sum(graph.tanh(parts[0]))
    for part in parts[1:]:
        loss = loss + graph.sum(graph.tanh(part))
    found = graph.evaluate([loss, *graph.gradients(loss, [x, y])], {x: a, y: b})
    ta, tb = (torch.tensor(each, requires_grad=True) for each in (a, b))
    theirs = ta @ ta.mT + torch.eye(4)
    spectrum = torch.fft.fftn(ta + 0j, dim=(0, -1))
    total = torch.linalg.solve(theirs, tb.expand(2, 4)).tanh().sum()
    for function in (torch.linalg.inv, torch.linalg.cholesky):
        total = total + function(theirs).tanh().sum()
    total = total + (spectrum.real * spectrum.imag).tanh().sum()
    total.backward()
    np.testing.assert_allclose(found[0], total.item(), rtol=1e-10)
    np.testing.assert_allclose(found[1], ta.grad.numpy(), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found[2], tb.grad.numpy(), rtol=1e-8, atol=1e-10)


def test_systems_that_have_no_solution():
    for function, text in ((graph.inv, "solve: Singular matrix"), (graph.cholesky, "not positive")):
        with pytest.raises(DataError, match=text):
            function(graph.constant(np.zeros((2, 2)))).eval()


def test_comparisons_and_their_operators():
    a, b = np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 2.0])
    x, y = graph.placeholder((3,), F8), graph.placeholder((3,), F8)
    nodes = [x > y, x >= y, x < y, x <= y, graph.equal(x, y), x > 2.0]
    for got, expected in zip(
        graph.evaluate(nodes, {x: a, y: b}),
        [a > b, a >= b, a < b, a <= b, a == b, a > 2],
        strict=True,
    ):
        assert got.dtype == bool
        np.testing.assert_array_equal(got, expected)


def test_argmax():
    values = np.random.default_rng(0).normal(size=(3, 4, 5))
    x = graph.placeholder(values.shape, F8)
    for axis in (0, 1, -1):
        (got,) = graph.evaluate([graph.argmax(x, axis)], {x: values})
        np.testing.assert_array_equal(got, values.argmax(axis))


@pytest.mark.parametrize(
    "key",
    [
        *(0, -1, (1, 2), slice(None), slice(1, 3), slice(None, None, -1), slice(-2, None)),
        *((..., 0), (slice(None), 1), (0, ..., -1), None, (slice(None), None, 2)),
        *((slice(3, 1), 0), (slice(9),), (slice(None, None, 2), slice(None, 0, -1))),
    ],
)
def test_slices_as_numpy_has_them(key):
    values = np.arange(60.0).reshape(4, 5, 3)
    x = graph.placeholder(values.shape, F8)
    (got,) = graph.evaluate([x[key] * 1.0], {x: values})
    np.testing.assert_array_equal(got, values[key])


def test_a_node_is_a_sequence_of_its_rows():
    x = graph.placeholder((3, 2), F8)
    values = np.arange(6.0).reshape(3, 2)
    assert len(x) == 3
    first, second, third = x
    got = graph.evaluate([first, second, third, graph.stack([third, first], -1)], {x: values})
    np.testing.assert_array_equal(np.stack(got[:3]), values)
    np.testing.assert_array_equal(got[3], values[[2, 0]].T)


# Functions that only compose operations: the expression and the same in NumPy.
COMPOSED = {
    "leaky_relu": (lambda x: graph.leaky_relu(x, 0.1), lambda x: np.where(x > 0, x, 0.1 * x)),
    "elu": (graph.elu, lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
    "softplus": (graph.softplus, lambda x: np.logaddexp(x, 0)),
    "gelu": (
        graph.gelu,
        lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    ),
    "clip": (lambda x: graph.clip(x, -0.5, 0.7), lambda x: np.clip(x, -0.5, 0.7)),
    "softmax": (graph.softmax, lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
    "flatten": (graph.flatten, lambda x: x.reshape(len(x), -1)),
    "squeeze": (lambda x: graph.squeeze(x[:, None], 1), lambda x: x),
    "expand_dims": (lambda x: graph.expand_dims(x, -1), lambda x: x[..., None]),
    "tile": (lambda x: graph.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3))),
    "transpose": (lambda x: graph.transpose(x, (1, 0)), np.transpose),
    "three axes": (
        lambda x: graph.transpose(x[:, None], (2, 0, -2)),
        lambda x: x[:, None].transpose(2, 0, 1),
    ),
    "dot": (lambda x: graph.dot(x, x[0]), lambda x: x @ x[0]),
    "dot of vectors": (lambda x: graph.dot(x[1], x[0]), lambda x: x[1] @ x[0]),
    "dot of a vector and a matrix": (lambda x: graph.dot(x[0], x.T), lambda x: x[0] @ x.T),
    "bmatmul": (
        lambda x: graph.bmatmul(graph.stack([x, -x]), graph.stack([x.T, x.T])),
        lambda x: np.stack([x, -x]) @ np.stack([x.T, x.T]),
    ),
    "gemm": (
        lambda x: graph.gemm(x, x, x.T @ x, alpha=2.0, beta=0.5, transpose_a=True),
        lambda x: 2.5 * x.T @ x,
    ),
    "gemm transposed": (lambda x: graph.gemm(x, x, transpose_b=True), lambda x: x @ x.T),
    "gemv": (
        lambda x: graph.gemv(x, x[0], x[:, 0], alpha=2.0, beta=3.0),
        lambda x: 2 * x @ x[0] + 3 * x[:, 0],
    ),
    "gemv without a sum": (lambda x: graph.gemv(x, x[0], alpha=2.0), lambda x: 2 * x @ x[0]),
    "axpy": (lambda x: graph.axpy(3.0, x, x * x), lambda x: 3 * x + x * x),
    "scal": (lambda x: graph.scal(3.0, x), lambda x: 3 * x),
    "bias_add": (lambda x: graph.bias_add(x, x[0]), lambda x: x + x[0]),
    "linear": (lambda x: graph.linear(x, x.T, x[:, 0]), lambda x: x @ x.T + x[:, 0]),
    "power": (
        lambda x: (x * x + 1.0) ** 1.5 + 2.0**x + x**2,
        lambda x: (x * x + 1) ** 1.5 + 2**x + x**2,
    ),
    "arithmetic": (
        lambda x: graph.add(graph.subtract(x, graph.negative(x)), graph.multiply(2.0, x)),
        lambda x: 4 * x,
    ),
    "take": (
        lambda x: graph.max(x) - graph.min(x) + graph.prod(x[0]),
        lambda x: x.max() - x.min() + x[0].prod(),
    ),
    "cast": (lambda x: graph.cast(graph.cast(x, np.float32), F8), lambda x: x.astype("f")),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_composed_functions_and_their_gradients(name):
    expression, oracle = COMPOSED[name]
    generator = np.random.default_rng(1)
    values = away_from_zero(generator.normal(size=(4, 3)))
    x = graph.placeholder(values.shape, F8)
    y = expression(x)
    v = generator.normal(size=y.shape)
    u = generator.normal(size=x.shape)
    (slope,) = graph.gradients(y, [x], graph.constant(v, F8))
    got, slope = graph.evaluate([y, slope], {x: values})
    np.testing.assert_allclose(got, oracle(values), rtol=1e-12, atol=1e-12)
    if name != "cast":  # a step that float32 does not see
        sides = [oracle(values + sign * 1e-6 * u) for sign in (1, -1)]
        difference = np.sum(v * (sides[0] - sides[1])) / 2e-6
        assert np.sum(slope * u) == pytest.approx(difference, rel=1e-6, abs=1e-7)


def test_those_that_are_equally_large_share_the_gradient():
    x, y = graph.placeholder((4,), F8), graph.placeholder((4,), F8)
    values = np.array([1.0, 3.0, 3.0, 0.0])
    gradients = [
        *graph.gradients(graph.max(x), [x]),
        *graph.gradients(graph.sum(graph.maximum(x, y)), [x, y]),
    ]
    found = graph.evaluate(gradients, {x: values, y: [1.0, 0.0, 4.0, 1.0]})
    np.testing.assert_array_equal(found[0], [0, 0.5, 0.5, 0])
    np.testing.assert_array_equal(found[1], [0.5, 1, 0, 0])
    np.testing.assert_array_equal(found[2], [0.5, 0, 1, 1])


def test_activations_of_large_arguments_do_not_overflow():
    x = graph.placeholder((2,), np.float32)
    functions = [graph.softplus, graph.elu, graph.leaky_relu, graph.gelu, graph.rbf, graph.silu]
    for function in (*functions, graph.exact_gelu, graph.hard_swish):
        y = function(x)
        found = graph.evaluate([y, *graph.gradients(graph.sum(y), [x])], {x: [-1e4, 1e4]})
        assert np.isfinite(found).all(), function


def test_values_and_gradients_of_further_operations_against_torch():
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    values = away_from_zero(np.random.default_rng(0).normal(size=(5, 4)))
    f = torch.nn.functional
    pairs = [
        (graph.leaky_relu, f.leaky_relu),
        (graph.elu, f.elu),
        (graph.softplus, f.softplus),
        (graph.gelu, lambda t: f.gelu(t, approximate="tanh")),
        (graph.exact_gelu, f.gelu),
        (graph.normal_cdf, torch.special.ndtr),
        (graph.silu, f.silu),
        (lambda x: graph.relu6(x * 5.0), lambda t: f.relu6(t * 5)),
        (lambda x: graph.hard_sigmoid(x * 3.0), lambda t: f.relu6(t * 3 + 3) / 6),
        (lambda x: graph.hard_swish(x * 3.0), lambda t: f.hardswish(t * 3)),
        (graph.rbf, lambda t: torch.exp(-(t**2))),
        (lambda x: graph.max(x, 1), lambda t: t.amax(1)),
        (lambda x: graph.prod(x, 0), lambda t: t.prod(0)),
        (abs, abs),
        (graph.softmax, lambda t: torch.softmax(t, -1)),
        (lambda x: graph.sqrt(x * x + 1.0), lambda t: torch.sqrt(t * t + 1)),
        (lambda x: graph.log1p(x * x), lambda t: torch.log1p(t * t)),
        (lambda x: (x * x + 1.0) ** 0.3, lambda t: (t * t + 1) ** 0.3),
        (lambda x: x[1::2, ::-1], lambda t: torch.flip(t[1::2], [1])),
        (lambda x: graph.clip(x, -0.3, 1.0), lambda t: torch.clip(t, -0.3, 1.0)),
        (lambda x: graph.tile(x, (2, 3)), lambda t: torch.tile(t, (2, 3))),
    ]
    for ours, theirs in pairs:
        x = graph.placeholder(values.shape, F8)
        y = ours(x)
        loss = graph.sum(y * y * y)
        got, slope = graph.evaluate([y, *graph.gradients(loss, [x])], {x: values})
        t = torch.tensor(values, requires_grad=True)
        expected = theirs(t)
        (expected**3).sum().backward()
        np.testing.assert_allclose(got, expected.detach().numpy(), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(slope, t.grad.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", device_checks.EDGES)
def test_kinks_and_extremes(name):
    # Compiled loops do not warn of overflow; NumPy's functions do, unless they are told not to.
    with np.errstate(over="ignore", divide="ignore", under="ignore"):
        device_checks.check_edges(Ops(), name)


def test_derivatives_at_kinks_are_those_of_torch():
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    f = torch.nn.functional
    pairs = [
        (graph.relu, f.relu),
        (graph.relu6, f.relu6),
        (graph.elu, f.elu),
        (lambda x: graph.elu(x, 0.3), lambda t: f.elu(t, 0.3)),
        (lambda x: graph.leaky_relu(x, 0.1), lambda t: f.leaky_relu(t, 0.1)),
        (graph.gelu, lambda t: f.gelu(t, approximate="tanh")),
        (graph.softplus, f.softplus),
        (abs, abs),
        (lambda x: graph.clip(x, -1.0, 2.0), lambda t: torch.clip(t, -1.0, 2.0)),
        (lambda x: graph.clip(x, high=2.0), lambda t: torch.clip(t, max=2.0)),
        (lambda x: graph.maximum(x, 0.0), lambda t: torch.maximum(t, torch.zeros_like(t))),
        (lambda x: graph.minimum(x, 2.0), lambda t: torch.minimum(t, torch.full_like(t, 2.0))),
        (lambda x: graph.max(x), torch.amax),
        (lambda x: x**0, lambda t: t**0),
        (lambda x: x**3, lambda t: t**3),
        (lambda x: graph.relu(x) ** 0.7, lambda t: torch.relu(t) ** 0.7),
    ]
    values = np.array([-1.0, 0.0, 2.0, -2.0, 2.0, 0.5])
    for ours, theirs in pairs:
        x = graph.placeholder(values.shape, F8)
        with np.errstate(divide="ignore"):
            y, slope = graph.evaluate(
                [ours(x), *graph.gradients(graph.sum(ours(x)), [x])], {x: values}
            )
        t = torch.tensor(values, requires_grad=True)
        expected = theirs(t)
        expected.sum().backward()
        np.testing.assert_allclose(y, expected.detach().numpy(), rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(slope, t.grad.numpy(), rtol=1e-12, atol=1e-15)


def test_limits_that_are_nodes_have_gradients():
    x, high = graph.placeholder((3,), F8), graph.placeholder((3,), F8)
    y = graph.clip(x, 0.0, high)
    gradients = graph.gradients(graph.sum(y), [x, high])
    feeds = {x: [-1.0, 1.0, 5.0], high: [2.0, 2.0, 2.0]}
    found = graph.evaluate([y, *gradients], feeds)
    np.testing.assert_array_equal(found, [[0, 1, 2], [0, 1, 0], [0, 0, 1]])


def test_a_mean_of_float16_is_added_up_in_float32():
    x = graph.placeholder((1000,), np.float16)
    y = graph.mean(x)
    value, slope = graph.evaluate([y, *graph.gradients(y, [x])], {x: np.full(1000, 100.0)})
    assert (value.dtype, slope.dtype) == (np.float16, np.float16)
    assert value == 100
    np.testing.assert_array_equal(slope, np.float16(0.001))


def test_floats_become_integers_without_what_is_behind_the_point():
    x = graph.placeholder((4,), np.float32)
    (found,) = graph.evaluate([graph.cast(x, np.int64)], {x: [1.7, -1.7, 0.0, 9.0]})
    assert found.tolist() == [1, -1, 0, 9]


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
