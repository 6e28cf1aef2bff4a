"""Graphs for K models at once equal K graphs, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operation_cases import CASES, drawn

from dnn import graph
from dnn.backend import Ops
from dnn.errors import ConfigurationError
from dnn.graph.operation import OPERATIONS, Operation, apply, with_models

F4 = np.float32


def alone_and_together(expression, values, per_model):
    """Evaluate an expression and its gradients for each model by itself and for all at once.

    `values` are arrays with a leading axis of models, those not in `per_model` without.
    """
    models = next(len(values[i]) for i in per_model)
    shapes = [x.shape[1:] if i in per_model else x.shape for i, x in enumerate(values)]
    nodes = [graph.placeholder(shape, x.dtype) for shape, x in zip(shapes, values, strict=True)]
    y = expression(*nodes)
    outputs = [y]
    if y.dtype.kind == "f":
        outputs += graph.gradients(graph.sum(y * y), [x for x in nodes if x.dtype.kind == "f"])
    alone = []
    for k in range(models):
        of_model = [x[k] if i in per_model else x for i, x in enumerate(values)]
        alone.append(graph.evaluate(outputs, dict(zip(nodes, of_model, strict=True))))
    now = with_models(outputs, models, {nodes[i] for i in per_model})
    feeds = {now.get(node, node): x for node, x in zip(nodes, values, strict=True)}
    together = graph.evaluate([now[node] for node in outputs], feeds)
    return [np.stack(parts) for parts in zip(*alone, strict=True)], together


@pytest.mark.sample(12)
@pytest.mark.parametrize("case", CASES)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_every_operation_and_its_gradient(case, data):
    expression, first, _, generator = data.draw(drawn(case))
    models = data.draw(st.integers(1, 4))
    count = data.draw(st.integers(1, len(first)))
    per_model = set(data.draw(st.permutations(range(len(first))))[:count])
    values = []
    for i, x in enumerate(first):
        others = [x * factor for factor in generator.uniform(0.3, 3.0, models - 1)]
        values.append((np.stack([x, *others]) if i in per_model else x).astype(x.dtype))
    alone, together = alone_and_together(expression, values, per_model)
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)


class Halves(Operation):
    """An operation of somebody's own, that says nothing of several models."""

    name = "halves"

    def infer(self, *inputs, **attributes):
        return inputs[0].shape, inputs[0].dtype

    def forward(self, ops, node, arrays):
        return [(np.multiply, (arrays.inputs[0], 0.5, arrays.out))]

    def gradient(self, node, dy):
        return (dy * 0.5,)


def test_an_operation_that_says_nothing_of_models_is_done_for_one_after_the_other(monkeypatch):
    monkeypatch.setitem(OPERATIONS, "halves", Halves())
    values = np.random.default_rng(0).normal(size=(3, 2, 4)).astype(F4)
    alone, together = alone_and_together(lambda x: apply("halves", x) @ x.T, [values], {0})
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_all_models_share_is_computed_once():
    x, w = graph.placeholder((4, 3), name="x"), graph.variable((3, 2), name="w")
    shared = graph.tanh(x)
    now = with_models([shared @ w, shared], 5, {w})
    assert now[x] is x
    assert now[w].shape == (5, 3, 2)
    assert now[shared].shape == (5, 4, 3)
    product = next(node for node in now.values() if node.kind == "matmul")
    assert product.inputs[0] is shared


def test_models_that_cannot_be():
    x = graph.placeholder((2,))
    with pytest.raises(ConfigurationError, match="at least 1, not 0"):
        with_models([x * 2.0], 0, {x})
    y = x * 2.0
    with pytest.raises(ConfigurationError, match="is computed"):
        with_models([y], 2, {y})


@pytest.mark.parametrize("per_model", [{0}, {1}, {0, 1}])
def test_noise_of_models_with_seeds_or_steps_of_their_own(per_model):
    values = [np.array([7, 8, 9], np.uint64), np.array([2, 1, 2], np.uint64)]
    given = [x if i in per_model else x[0] for i, x in enumerate(values)]
    alone, together = alone_and_together(
        lambda seed, step: graph.uniform_noise(seed, step, 3, (5,)), given, per_model
    )
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_array_equal(a, b)
    assert len({row.tobytes() for row in together[0]}) == (2 if per_model == {1} else 3)


def reshape_plan(array, new, expression=graph.reshape):
    """Return the plan of a reshape of a parameter, and its result."""
    w = graph.variable(array.shape, array.dtype)
    y = expression(w, new)
    plan = graph.Plan([y, y * 2.0], Ops(), {w: array}, passes=[])
    plan.run()
    return plan, plan[y]


@pytest.mark.parametrize("new", [(12,), (2, 6), (3, 4), (4, 1, 3), (1, 4, 3)])
def test_a_reshape_of_one_models_parameter_is_a_view(new):
    array = np.arange(12, dtype=F4).reshape(4, 3)
    plan, result = reshape_plan(array, new)
    assert len(plan) == 1  # the product alone
    assert np.shares_memory(result, array)
    np.testing.assert_array_equal(result, array.reshape(new))


@pytest.mark.parametrize(
    ("new", "steps"), [((3, 2, 4), 1), ((3, 1, 8), 1), ((3, 2, 1, 4), 1), ((24,), 2), ((6, 4), 2)]
)
def test_a_reshape_along_the_axis_of_models_is_a_view_within_each_model(new, steps):
    buffer = np.arange(3 * 20, dtype=F4).reshape(3, 20)  # a row for each model, and padding
    array = buffer[:, 4:12]
    plan, result = reshape_plan(array, new)
    assert len(plan) == steps  # a copy besides where rows of two models would be neighbours
    assert np.shares_memory(result, array) == (steps == 1)
    np.testing.assert_array_equal(result, array.reshape(new))
    twice, again = reshape_plan(array, new, lambda w, shape: graph.reshape(w[:, None], shape))
    assert len(twice) == steps  # a view of a view
    np.testing.assert_array_equal(again, array.reshape(new))


def test_a_reshape_of_a_transpose_is_a_view_where_only_axes_of_length_1_change():
    array = np.arange(12, dtype=F4).reshape(4, 3)
    for new, steps in (((3, 1, 4), 1), ((1, 3, 4), 1), ((12,), 2), ((4, 3), 2)):
        plan, result = reshape_plan(array, new, lambda w, shape: graph.reshape(w.T, shape))
        assert len(plan) == steps
        np.testing.assert_array_equal(result, array.T.reshape(new))
