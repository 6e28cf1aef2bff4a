"""Graphs in a user's hands: evaluate, differentiate, minimise, print, look for NaN."""

import numpy as np
import pytest

import dnn
from dnn import graph, initializers
from dnn.backend import Ops
from dnn.errors import ConfigurationError, DtypeError, NonFiniteError, ShapeError
from dnn.graph.passes import checking_passes, explain, graph_of

F8 = np.float64


def layer():
    x = graph.placeholder((4, 3), F8, "x")
    w = graph.variable(value=np.arange(6.0).reshape(3, 2) - 2, dtype=F8, name="w")
    b = graph.variable(value=[0.5, -0.5], dtype=F8, name="b")
    return x, w, b, graph.relu(x @ w + b)


@pytest.mark.parametrize("eager", [False, True])
def test_a_node_is_evaluated(eager):
    x, w, _, y = layer()
    values = np.linspace(-1, 1, 12).reshape(4, 3)
    expected = np.maximum(values @ (np.arange(6.0).reshape(3, 2) - 2) + [0.5, -0.5], 0)
    np.testing.assert_allclose(y.eval({x: values}, eager=eager), expected, rtol=1e-12)
    other = y.eval({x: values, w: np.zeros((3, 2))}, eager=eager)
    np.testing.assert_array_equal(other, [[0.5, 0]] * 4)
    with pytest.raises(ConfigurationError, match=r"no value was given for .*'x'"):
        y.eval(eager=eager)


def test_grad_of_one_node_and_of_several():
    x, w, b, y = layer()
    values = np.ones((4, 3))
    loss = graph.sum(y)
    slope = graph.grad(loss, b)
    assert isinstance(slope, graph.Node)
    np.testing.assert_array_equal(slope.eval({x: values}), [4, 4])
    both = graph.grad(loss, [w, b])
    assert [node.shape for node in both] == [w.shape, b.shape]


@pytest.mark.parametrize("optimizer", [dnn.SGD(0.1), dnn.Adam(0.1)], ids=["SGD", "Adam"])
def test_minimising_a_graph_of_ones_own(optimizer):
    generator = np.random.default_rng(0)
    data = generator.normal(size=(50, 3))
    x, y = graph.placeholder((50, 3), name="x"), graph.placeholder((50,), name="y")
    w, b = graph.variable(value=np.zeros(3), name="w"), graph.variable(value=0.0)
    loss = graph.mean(graph.square(graph.dot(x, w) + b - y))
    training = dnn.minimize(loss, optimizer)
    assert training.variables == (w, b)
    feeds = {x: data, y: data @ [1.0, -2.0, 3.0] + 0.5}
    first = training.step(feeds)
    losses = [training.step() for _ in range(300)]
    assert first > 1
    assert losses[-1] < 1e-6
    np.testing.assert_allclose(w.eval(), [1, -2, 3], atol=1e-2)
    assert b.eval() == pytest.approx(0.5, abs=1e-2)
    np.testing.assert_allclose(loss.eval(feeds), training.step(), rtol=1e-6)


def test_minimising_only_some_variables():
    w, b = graph.variable(value=3.0, name="w"), graph.variable(value=2.0, name="b")
    training = dnn.minimize(graph.square(w * b - 1.0), dnn.SGD(0.05), [b])
    for _ in range(50):
        training.step()
    assert w.eval() == 3
    assert b.eval() == pytest.approx(1 / 3, rel=1e-3)


def test_what_cannot_be_minimised():
    x, w = graph.placeholder((2,), name="x"), graph.variable((2,), name="w")
    value = graph.variable(value=[1.0, 2.0], name="v")
    with pytest.raises(ConfigurationError, match="no variable"):
        dnn.minimize(graph.sum(x), dnn.SGD())
    with pytest.raises(ConfigurationError, match=r"'w'.*no variable with a value"):
        dnn.minimize(graph.sum(w), dnn.SGD())
    with pytest.raises(ConfigurationError, match="two variables are called 'v'"):
        dnn.minimize(graph.sum(value * graph.variable(value=1.0, name="v")), dnn.SGD())
    with pytest.raises(ShapeError, match="scalar"):
        dnn.minimize(value * 2.0, dnn.SGD())
    other = graph.variable(value=1.0, dtype=F8)
    with pytest.raises(DtypeError, match="differ"):
        dnn.minimize(graph.sum(value) + graph.cast(other, np.float32), dnn.SGD())
    with pytest.raises(ConfigurationError, match="no placeholder"):
        dnn.minimize(graph.sum(value * value), dnn.SGD()).step({x: [1, 2]})
    with pytest.raises(ShapeError, match="shape or a value"):
        graph.variable()
    with pytest.raises(ShapeError, match=r"\(2,\).*\(3,\)"):
        graph.variable((3,), value=[1, 2])


def test_a_graph_is_printed_and_drawn_before_and_after_each_pass():
    y = layer()[-1]
    shown = graph_of([y * 1.0, graph.sum(y, 0)])
    lines = str(shown).splitlines()
    assert lines[0].split() == ["x", "=", "placeholder", "(4,", "3)", "float64"]
    assert lines[2].split()[:4] == ["%2", "=", "matmul(x,", "w)"]
    assert [line[0] for line in lines].count("*") == 2
    dot = shown.dot()
    assert dot.startswith("digraph {")
    assert dot.count("->") == sum(len(node.inputs) for node in shown.order)
    assert dot.count("peripheries=2") == 2
    seen = {}
    graph.optimise(
        shown.outputs,
        None,
        None,
        lambda done, before, after: seen.update({done.name: (before, after)}),
    )
    assert "multiply" in seen["constant_folding"][0].dot()
    assert "multiply" not in seen["dead_code"][1].dot()
    text = explain(shown.outputs)
    assert (
        text.index("# constant_folding") < text.index("# dead_code") < text.index("# buffer_reuse")
    )


def test_the_first_node_that_is_not_finite_is_found():
    x = graph.placeholder((3,), F8, "x")
    y = graph.exp(x) - 2.0
    z = graph.sum(graph.sqrt(y) * 2.0)
    plan = graph.Plan([x, z], Ops(), passes=checking_passes())
    plan[x][...] = [1, 2, 3]
    plan.run()
    assert plan.first_nonfinite() is None
    plan[x][...] = [1, 0, 3]
    with np.errstate(invalid="ignore"):
        plan.run()
    assert plan.first_nonfinite().kind == "sqrt"
    plan[x][...] = [1, np.inf, 3]
    plan.run()
    assert plan.first_nonfinite() is x
    reusing = graph.Plan([x, z], Ops())
    with pytest.raises(ConfigurationError, match="buffer_reuse"):
        reusing.first_nonfinite()


class Reciprocal(dnn.Layer):
    def forward(self, x):
        return 1.0 / graph.relu(x)


def test_training_names_the_first_node_that_is_not_finite():
    x = np.random.default_rng(0).normal(size=(20, 4)).astype("f")
    layers = [dnn.Input(4), dnn.FullyConnected(3), Reciprocal(), dnn.FullyConnected(2)]
    model = dnn.NeuralNetwork(layers, check_finite=True)
    with np.errstate(divide="ignore"), pytest.raises(NonFiniteError) as caught:
        model.fit(x, np.arange(20) % 2)
    assert str(caught.value) == (
        "the first node with NaN or infinity is reciprocal_1 (20, 3), "
        "divide of constant (), relu (20, 3)"
    )
    assert caught.value.node == "reciprocal_1"


def test_looking_for_nan_changes_no_bit():
    x = np.random.default_rng(0).normal(size=(50, 4)).astype("f")
    losses = []
    for check in (False, True):
        model = dnn.NeuralNetwork(dnn.mlp(4, [8], 2), check_finite=check, seed=3)
        losses.append(model.fit(x, np.arange(50) % 2, epochs=3).loss)
    assert losses[0] == losses[1]


def test_gradient_descent_minimises_a_set_of_variables():
    x, y = (graph.var(name, (), 3.0) for name in "xy")
    loss = x**2 + y**2 + 1.0
    training = dnn.GradientDescent(0.05).minimize(loss, {y, x})
    assert training.variables == (x, y)  # in the order of the graph, whatever that of the set
    losses = [training.step() for _ in range(150)]
    assert losses[0] == 19
    assert losses[-1] == pytest.approx(1)
    only = dnn.GradientDescent(0.05).minimize(x**2 + y**2, {x})
    assert only.variables == (x,)
    with pytest.raises(ConfigurationError, match="no variable with a value"):
        dnn.SGD().minimize(loss, {graph.placeholder(())})


def test_variables_made_by_an_initializer():
    ones = graph.var("w", (6, 5), initializers.ONE)
    assert (ones.name, ones.shape, ones.kind) == ("w", (6, 5), "variable")
    np.testing.assert_array_equal(ones.eval(), np.ones((6, 5)))
    made = {
        "zero": np.zeros((3, 3)),
        2.5: np.full((3, 3), 2.5),
        initializers.CONSTANT(4): np.full((3, 3), 4),
        initializers.DIAGONAL([1, 2, 3]): np.diag([1, 2, 3]),
        initializers.IDENTITY: np.eye(3),
        initializers.ZERO: np.zeros((3, 3)),
    }
    for initializer, expected in made.items():
        np.testing.assert_array_equal(graph.var("v", (3, 3), initializer).eval(), expected)
    np.testing.assert_array_equal(graph.var("v", (2,)).eval(), 0)
    for initializer in (initializers.UNIFORM, initializers.GLOROT, initializers.MASK, "he_normal"):
        by_itself = [graph.var("v", (9, 9), initializer).eval() for _ in range(2)]
        assert not np.array_equal(*by_itself)
        seeded = [graph.var("v", (9, 9), initializer, seed=seed).eval() for seed in (1, 1, 2)]
        np.testing.assert_array_equal(seeded[0], seeded[1])
        assert not np.array_equal(seeded[0], seeded[2])
        other = graph.var("w", (9, 9), initializer, seed=1).eval()
        assert not np.array_equal(seeded[0], other)
    assert graph.var("v", (2,), dtype=F8).dtype == F8
    with pytest.raises(ConfigurationError, match="'unifrom'; did you mean 'uniform'"):
        graph.var("v", (2,), "unifrom")
    with pytest.raises(ShapeError):
        graph.var("v", (-2,))
    with pytest.raises(ConfigurationError, match="seed"):
        graph.var("v", (2,), seed=-1)
