"""Gradients through several consumers, layouts in memory, plans that allocate nothing."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import case_count

from dnn import SGD, graph, minimize
from dnn.backend import Ops
from dnn.errors import ConfigurationError, ShapeError
from dnn.graph.layout import lay_out, node_bytes
from dnn.graph.node import topological_order

F8 = np.float64


@pytest.mark.parametrize("consumers", [1, 2, 3, 5])
def test_gradients_of_all_consumers_are_summed(consumers):
    x = graph.placeholder((3,), F8)
    shared = x * 2.0
    total = graph.sum(shared)
    for power in range(2, consumers + 1):
        total = total + graph.sum(shared * float(power))
    (slope,) = graph.evaluate(graph.gradients(total, [x]), {x: np.ones(3)})
    np.testing.assert_array_equal(slope, np.full(3, 2.0 * sum(range(1, consumers + 1))))


def test_a_node_that_is_both_operands():
    x = graph.placeholder((3,), F8)
    values = np.array([1.0, -2.0, 3.0])
    (slope,) = graph.evaluate(graph.gradients(graph.sum(x * x), [x]), {x: values})
    np.testing.assert_array_equal(slope, 2 * values)


def test_a_bias_gets_one_gradient_for_each_unit():
    x, w, b = (graph.placeholder(shape, F8) for shape in [(5, 3), (3, 2), (2,)])
    y = x @ w + b
    (slope,) = graph.gradients(graph.sum(y), [b])
    (found,) = graph.evaluate([slope], {x: np.ones((5, 3)), w: np.ones((3, 2)), b: [0, 0]})
    np.testing.assert_array_equal(found, [5, 5])


def test_second_derivatives():
    x = graph.placeholder((4,), F8)
    values = np.linspace(-1, 1, 4)
    (first,) = graph.gradients(graph.sum(graph.tanh(x)), [x])
    (second,) = graph.gradients(graph.sum(first), [x])
    (found,) = graph.evaluate([second], {x: values})
    t = np.tanh(values)
    np.testing.assert_allclose(found, -2 * t * (1 - t**2), rtol=1e-12)


def test_a_node_that_the_result_does_not_depend_on_has_gradient_zero():
    x, other = graph.placeholder((3,), F8), graph.variable((2, 2), F8)
    _, slope = graph.gradients(graph.sum(x), [x, other])
    np.testing.assert_array_equal(graph.evaluate([slope], {})[0], np.zeros((2, 2)))


def test_nothing_is_computed_for_the_gradient_of_the_data():
    x = graph.placeholder((8, 4), name="x")
    w1, w2 = graph.variable((4, 3), name="w1"), graph.variable((3, 2), name="w2")
    loss = graph.sum(graph.tanh(x @ w1) @ w2)
    order = topological_order(graph.gradients(loss, [w1, w2]))
    # Forward: x w1. Gradients of w1, w2, and of the input of the second layer alone.
    products = [node.shape for node in order if node.kind == "matmul"]
    assert sorted(products) == [(3, 2), (4, 3), (8, 3), (8, 3)]


def test_a_deep_graph_needs_no_recursion():
    x = graph.placeholder((2,), F8)
    y = x
    for _ in range(3000):
        y = y + 1.0
    value, slope = graph.evaluate([y, *graph.gradients(graph.sum(y), [x])], {x: np.zeros(2)})
    np.testing.assert_array_equal(value, [3000, 3000])
    np.testing.assert_array_equal(slope, [1, 1])


def mlp_graph(batch, inputs=64, hidden=48, classes=10):
    x = graph.placeholder((batch, inputs), name="x")
    labels = graph.placeholder((batch,), np.intp, "labels")
    shapes = [(inputs, hidden), (hidden,), (hidden, hidden), (hidden,), (hidden, classes)]
    weights = [graph.variable(shape, name=f"w{i}") for i, shape in enumerate(shapes)]
    w1, b1, w2, b2, w3 = weights
    logits = graph.relu(graph.sigmoid(x @ w1 + b1) @ w2 + b2) @ w3
    loss = graph.softmax_cross_entropy(logits, graph.one_hot(labels, classes))
    return x, labels, weights, loss


def test_product_bias_and_activation_share_one_buffer():
    x, w, b = graph.placeholder((8, 4)), graph.variable((4, 3)), graph.variable((3,))
    y = graph.tanh(x @ w + b)
    layout = lay_out([y], external=[w, b])
    assert layout.size_bytes == node_bytes(x) + node_bytes(y)


def test_memory_is_used_again():
    x = graph.placeholder((1000,))
    y = x
    for _ in range(10):
        y = graph.sum(graph.broadcast_to(y, (2, 1000)), 0)
    layout = lay_out([y], external=[])
    assert layout.size_bytes <= 2 * node_bytes(x) + 2 * 8064 + node_bytes(x)


def test_what_is_read_later_is_not_overwritten():
    x = graph.placeholder((3,), F8)
    a = x * 2.0
    outputs = [graph.exp(a), a, -a, a + 1.0]
    found = graph.evaluate(outputs, {x: np.arange(3.0)})
    doubled = np.arange(3.0) * 2
    for got, expected in zip(found, [np.exp(doubled), doubled, -doubled, doubled + 1], strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_view_keeps_its_base_alive():
    x = graph.placeholder((3, 3), F8)
    values = np.arange(9.0).reshape(3, 3)
    a = x * 2.0
    y = a + graph.transpose(a)
    z = graph.transpose(x + 0.0)
    found = graph.evaluate([y, z, graph.exp(y)], {x: values})
    np.testing.assert_array_equal(found[0], 2 * (values + values.T))
    np.testing.assert_array_equal(found[1], values.T)


@st.composite
def expressions(draw):
    """A random graph over (3, 3) matrices and the same computed eagerly."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = [generator.uniform(-1, 1, (3, 3)) for _ in range(2)]
    inputs = [graph.placeholder((3, 3), F8) for _ in values]
    nodes, results = list(inputs), list(values)
    unary = [
        (graph.tanh, np.tanh),
        (graph.transpose, np.transpose),
        (lambda x: -x, np.negative),
        (
            lambda x: graph.broadcast_to(graph.sum(x, 0), (3, 3)),
            lambda x: np.broadcast_to(x.sum(0), (3, 3)),
        ),
        (lambda x: graph.reshape(graph.reshape(x, (9,)), (3, 3)), lambda x: x),
    ]
    binary = [
        (lambda a, b: a + b, np.add),
        (lambda a, b: a * b, np.multiply),
        (lambda a, b: a - b, np.subtract),
        (lambda a, b: a @ b, np.matmul),
    ]
    for _ in range(draw(st.integers(1, 25))):
        if draw(st.booleans()):
            lazy, eager = draw(st.sampled_from(unary))
            i = draw(st.integers(0, len(nodes) - 1))
            nodes.append(lazy(nodes[i]))
            results.append(eager(results[i]))
        else:
            lazy, eager = draw(st.sampled_from(binary))
            i, j = (draw(st.integers(0, len(nodes) - 1)) for _ in range(2))
            nodes.append(lazy(nodes[i], nodes[j]))
            results.append(eager(results[i], results[j]))
    wanted = draw(st.sets(st.integers(0, len(nodes) - 1), min_size=1, max_size=3))
    wanted.add(len(nodes) - 1)
    return (
        dict(zip(inputs, values, strict=True)),
        [nodes[i] for i in wanted],
        [results[i] for i in wanted],
    )


@given(drawn=expressions())
@settings(max_examples=case_count(80), deadline=None)
def test_a_compiled_graph_equals_eager_numpy_however_memory_is_shared(drawn):
    feeds, outputs, expected = drawn
    with np.errstate(over="ignore", invalid="ignore"):
        found = graph.evaluate(outputs, feeds)
    for got, value in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-9, atol=1e-9)


def training_plan(batch, arena=None, ops=None, **sizes):
    x, labels, weights, loss = mlp_graph(batch, **sizes)
    generator = np.random.default_rng(1)
    variables = {node: generator.normal(size=node.shape).astype("f") for node in weights}
    into = [
        (slope, np.zeros(node.shape, "f"))
        for node, slope in zip(weights, graph.gradients(loss, weights), strict=True)
    ]
    plan = graph.Plan([x, labels, loss], ops or Ops(), variables, into, arena)
    plan[x][...] = generator.normal(size=x.shape)
    plan[labels][...] = np.arange(batch) % 10
    return plan, loss, [array for _, array in into]


def test_a_replayed_step_allocates_no_array():
    plan, _, _ = training_plan(256, inputs=256, hidden=256, classes=256)
    for _ in range(3):
        plan.run()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for _ in range(3):
            plan.run()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Every matrix here takes 262,144 bytes. A ufunc that broadcasts takes a buffer of at most
    # 8,192 elements for the length of the call, which is no array.
    assert peak - before < 8192 * 4 + 2000


def test_replaying_repeats_itself():
    plan, loss, gradients = training_plan(100)
    plan.run()
    first = [plan[loss].copy(), *(slope.copy() for slope in gradients)]
    plan.run()
    for now, then in zip([plan[loss], *gradients], first, strict=True):
        np.testing.assert_array_equal(now, then)


def test_a_partial_batch_stands_on_a_prefix_of_the_same_arena():
    arena = graph.Arena(Ops())
    whole, _, _ = training_plan(100, arena)
    size_bytes = arena.size_bytes
    part, loss, gradients = training_plan(37, arena)
    assert part.size_bytes < whole.size_bytes == arena.size_bytes == size_bytes
    part.run()
    alone, loss_alone, slopes_alone = training_plan(37)
    alone.run()
    assert part[loss] == alone[loss_alone]
    for mine, other in zip(gradients, slopes_alone, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_one_gradient_wanted_in_two_places_and_a_constant_one():
    x = graph.placeholder((3,))
    (slope, zero) = graph.gradients(graph.sum(x * 2.0), [x, graph.variable((2,))])
    first, second, third = np.empty(3, "f"), np.empty(3, "f"), np.empty(2, "f")
    plan = graph.Plan([x], Ops(), {}, [(slope, first), (slope, second), (zero, third)])
    plan.run()
    assert first.tolist() == second.tolist() == [2, 2, 2]
    assert third.tolist() == [0, 0]


def test_a_view_is_written_where_it_is_wanted():
    x = graph.placeholder((2, 3))
    target = np.empty((3, 2), "f")
    plan = graph.Plan([x], Ops(), {}, [(graph.transpose(x * 2.0), target)])
    plan[x][...] = np.arange(6).reshape(2, 3)
    plan.run()
    np.testing.assert_array_equal(target, 2 * np.arange(6).reshape(2, 3).T)


def test_ops_is_asked_when_compiling_and_not_when_replaying():
    class Counting(Ops):
        asked = 0

        def __getattribute__(self, name):
            Counting.asked += 1
            return super().__getattribute__(name)

    plan, _, _ = training_plan(10, ops=Counting())
    plan.run()  # the first run links the calls
    asked = Counting.asked
    assert asked
    plan.run()
    assert Counting.asked == asked


def test_wrong_or_missing_arrays():
    w = graph.variable((2, 3), name="w")
    with pytest.raises(ShapeError, match=r"\(3, 2\).*'w' \(2, 3\)"):
        graph.Plan([w + 1.0], Ops(), {w: np.zeros((3, 2), "f")})
    with pytest.raises(ShapeError, match="float64"):
        graph.Plan([w + 1.0], Ops(), {w: np.zeros((2, 3))})
    with pytest.raises(ConfigurationError, match="'w'"):
        graph.Plan([w + 1.0], Ops())


def test_a_plan_prints_its_steps():
    plan, _, _ = training_plan(10)
    *lines, peak = str(plan).splitlines()
    assert len(lines) == len(plan)
    assert f"{plan.size_bytes:,} bytes" in peak
    assert lines[0].split() == ["matmul", "(10,", "64)", "(64,", "48)", "->", "(10,", "48)"]


def test_a_value_of_another_shape_names_the_node_and_is_not_broadcast():
    x = graph.placeholder((2, 3), name="x")
    w = graph.variable(value=np.zeros(()), name="w")
    message = r"<placeholder 'x' \(2, 3\) float32> was given a value of shape "
    for value, shape in [(1.0, r"\(\)"), ([1, 2, 3], r"\(3,\)"), (np.ones((3, 2)), r"\(3, 2\)")]:
        for eager in (False, True):
            with pytest.raises(ShapeError, match=message + shape):
                graph.relu(x).eval({x: value}, eager=eager)
        with pytest.raises(ShapeError, match=message + shape):
            minimize(graph.sum(x * w), SGD(0.1)).step({x: value})
