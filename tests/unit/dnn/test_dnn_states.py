"""Assignments: all variables are read before any is written."""

import numpy as np
import pytest

from dnn import graph
from dnn.backend import Ops
from dnn.errors import ConfigurationError, DtypeError, ShapeError

F8 = np.float64


def replay(assignments, arrays, outputs=(), steps=1):
    plan = graph.Plan([*assignments, *outputs], Ops(), arrays)
    for _ in range(steps):
        plan.run()
    return plan


def test_a_running_mean():
    x, mean = graph.placeholder((4, 3), F8), graph.variable((3,), F8)
    array = np.zeros(3)
    moved = graph.assign(mean, mean * 0.9 + graph.mean(x, 0) * 0.1)
    plan = graph.Plan([x, moved], Ops(), {mean: array})
    expected = np.zeros(3)
    for seed in range(5):
        plan[x][...] = np.random.default_rng(seed).normal(size=(4, 3))
        expected = 0.9 * expected + 0.1 * plan[x].mean(axis=0)
        plan.run()
        np.testing.assert_allclose(array, expected, rtol=1e-12)
    assert plan[moved] is array


def test_everything_is_read_before_anything_is_written():
    a, b = graph.variable((3,), F8, "a"), graph.variable((3,), F8, "b")
    arrays = {a: np.array([1.0, 2, 3]), b: np.array([10.0, 20, 30])}
    # The assignments come first in the list of outputs, the other readers afterwards.
    swap = [graph.assign(a, b), graph.assign(b, a)]
    total = graph.sum(a * b)
    plan = replay(swap, arrays, [total])
    assert plan[total] == 10 + 40 + 90
    assert arrays[a].tolist() == [10, 20, 30]
    assert arrays[b].tolist() == [1, 2, 3]


def test_views_of_a_variable_are_read_before_it_is_written():
    a = graph.variable((2, 3), F8)
    b = graph.variable((3, 2), F8)
    arrays = {a: np.arange(6.0).reshape(2, 3), b: np.zeros((3, 2))}
    replay([graph.assign(a, a * 2.0), graph.assign(b, graph.transpose(a))], arrays)
    assert arrays[a].tolist() == [[0, 2, 4], [6, 8, 10]]
    assert arrays[b].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_value_is_kept_until_it_is_written():
    # Its memory must not go to the nodes that are computed in between.
    x, state = graph.placeholder((50,), F8), graph.variable((50,), F8)
    moved = graph.assign(state, graph.exp(x))
    y = x
    for _ in range(6):
        y = graph.tanh(y + 1.0)
    array = np.zeros(50)
    plan = graph.Plan([moved, x, y], Ops(), {state: array})
    plan[x][...] = np.linspace(-1, 1, 50)
    plan.run()
    np.testing.assert_array_equal(array, np.exp(np.linspace(-1, 1, 50)))


def test_a_value_is_broadcast():
    state = graph.variable((2, 3), F8)
    array = np.zeros((2, 3))
    row = graph.constant(np.array([1.0, 2, 3]), F8) + 0.5
    replay([graph.assign(state, row)], {state: array})
    assert array.tolist() == [[1.5, 2.5, 3.5]] * 2


def test_a_counter_counts_replays():
    step = graph.variable((), np.uint64)
    array = np.zeros((), np.uint64)
    replay([graph.assign(step, step + np.array(1, np.uint64))], {step: array}, steps=5)
    assert array == 5


def test_assignments_that_make_no_sense():
    state = graph.variable((3,), np.float32, "state")
    with pytest.raises(ConfigurationError, match="no variable"):
        graph.assign(state + 1.0, state)
    with pytest.raises(DtypeError, match=r"assign: state .*float32.*float64"):
        graph.assign(state, graph.variable((3,), F8))
    with pytest.raises(ShapeError, match=r"assign: .*\(4,\) does not fit into state \(3,\)"):
        graph.assign(state, graph.placeholder((4,)))
    moved = graph.assign(state, state + 1.0)
    with pytest.raises(ConfigurationError, match="reads <assign"):
        graph.Plan([moved + 1.0], Ops(), {state: np.zeros(3, np.float32)})
    with pytest.raises(ConfigurationError, match="no array was given"):
        graph.Plan([moved], Ops())
