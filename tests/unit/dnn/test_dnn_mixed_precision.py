"""Mixed precision: float16 in memory, float32 in arithmetic, and the loss scaled."""

import numpy as np
import pytest

import dnn
from dnn import graph
from dnn.backend import Ops
from dnn.errors import ConfigurationError, DataError, MixedPrecisionWarning
from dnn.graph.passes import mixed_precision_passes, optimise
from dnn.optimizers import SGD
from dnn.parameters import FlatBuffer, Segment
from dnn.training.loss_scaling import LossScaling


def halves(array):
    return array.astype(np.float16).astype(np.float32)


def test_values_are_rounded_where_they_are_kept():
    generator = np.random.default_rng(0)
    x, w, b = (graph.placeholder(shape) for shape in [(5, 4), (4, 3), (3,)])
    values = [generator.normal(size=node.shape).astype("f") for node in (x, w, b)]
    y = x @ w + b
    found = graph.evaluate(
        [y], dict(zip((x, w, b), values, strict=True)), passes=mixed_precision_passes()
    )[0]
    product = halves(halves(values[0]) @ halves(values[1]))
    np.testing.assert_array_equal(found, halves(product + values[2]))
    assert found.dtype == np.float32


def test_what_is_delicate_stays_in_float32():
    x = graph.placeholder((5, 4))
    logits = x * 2.0
    loss = graph.softmax_cross_entropy(logits, graph.one_hot(graph.placeholder((5,), np.intp), 4))
    found = optimise([loss, graph.log_softmax(logits)], ["mixed_precision"])
    single = {node.kind for node in found.order if node.dtype == np.float32}
    assert {"log_softmax", "softmax_cross_entropy"} <= single
    halved = [node for node in found.order if node.kind == "cast" and node.dtype == np.float16]
    assert {node.inputs[0].kind for node in halved} == {"placeholder", "multiply", "one_hot"}


def test_it_takes_less_memory():
    x = graph.placeholder((64, 64))
    weights = [graph.variable((64, 64), name=f"w{i}") for i in range(12)]
    y = x
    for w in weights:
        y = graph.tanh(y @ w)
    slopes = graph.gradients(graph.sum(y), weights)
    arrays = {w: np.zeros((64, 64), "f") for w in weights}
    into = [(slope, np.zeros((64, 64), "f")) for slope in slopes]
    sizes = [
        graph.Plan([x], Ops(), arrays, into, passes=passes).size_bytes
        for passes in (None, mixed_precision_passes())
    ]
    assert sizes[1] < 0.75 * sizes[0]


def scaled(first, interval=2000):
    segments = [Segment("w", (4,), 0)]
    parameters, gradients = (FlatBuffer(segments, "f", Ops()) for _ in range(2))
    scale = np.ones((), "f")
    update = SGD(1.0).bind(Ops(), parameters, gradients)
    return parameters, gradients, scale, LossScaling(update, gradients.flat, scale, first, interval)


def test_a_step_that_overflows_is_left_out_and_the_scale_halved():
    parameters, gradients, scale, update = scaled(8.0)
    gradients["w"][...] = 16.0
    update.run()
    np.testing.assert_array_equal(parameters["w"], -2.0)
    for bad in (np.inf, np.nan):
        gradients["w"][...] = [1, bad, 1, 1]
        update.run()
    np.testing.assert_array_equal(parameters["w"], -2.0)
    assert (update.scale, scale, update.skipped, update.steps_done) == (2.0, 2.0, 2, 3)


def test_the_scale_grows_after_a_while_without_overflow():
    _, gradients, _, update = scaled(4.0, interval=3)
    for _ in range(7):
        gradients["w"][...] = 1.0
        update.run()
    assert update.scale == 16


def test_the_scale_stays_in_its_bounds_and_an_overflow_begins_the_count_anew():
    _, gradients, _, update = scaled(1.5, interval=3)
    scales = []
    for value in (np.inf, np.nan, 1.0, 1.0, np.inf, 1.0, 1.0, 1.0):
        gradients["w"][...] = value
        update.run()
        scales.append(update.scale)
    assert scales == [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0]  # never below 1; 3 good ones in a row
    assert update.skipped == 3
    _, gradients, _, update = scaled(LossScaling.LARGEST, interval=1)
    gradients["w"][...] = 1.0
    update.run()
    assert update.scale == LossScaling.LARGEST


def test_statistics_and_columns_stay_in_float32():
    x = graph.placeholder((5, 4))
    y = graph.sum(x, 1, keepdims=True) * 2.0
    found = optimise([y], ["mixed_precision"])
    halved = [node for node in found.order if node.dtype == np.float16]
    assert {node.shape for node in halved} == {(5, 4)}


def test_gradients_that_float16_would_lose_are_kept_by_the_scale():
    """A gradient of 1e-9 is 0 in float16, and 2^15 times that is not."""
    x = graph.placeholder((2, 2))
    scale = graph.variable((), name="scale")
    loss = graph.sum(x * 1e-9)
    (slope,) = graph.gradients(loss, [x], scale)
    for factor, expected in [(1.0, 0.0), (2.0**15, 1e-9)]:
        found = graph.evaluate(
            [slope * 1.0], {x: np.ones((2, 2)), scale: factor}, passes=mixed_precision_passes()
        )[0]
        np.testing.assert_allclose(found / factor, expected, rtol=1e-2)


def test_a_network_learns_in_mixed_precision_as_in_float32():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 8)).astype("f")
    y = (x[:, 0] * x[:, 1] > 0).astype(int)
    accuracy = {}
    for dtype in ("float32", "mixed_float16"):
        model = dnn.NeuralNetwork(
            dnn.mlp(8, [32], 2, "tanh"), optimizer=dnn.SGD(0.1, momentum=0.9), dtype=dtype, seed=1
        )
        history = model.fit(x, y, epochs=40)
        accuracy[dtype] = model.evaluate(x, y)["accuracy"]
        assert history.steps == 400
    assert accuracy["mixed_float16"] > 0.95
    assert accuracy["mixed_float16"] == pytest.approx(accuracy["float32"], abs=0.03)


def test_looking_for_nan_and_looking_away_exclude_each_other():
    with pytest.raises(ConfigurationError, match="on purpose"):
        dnn.NeuralNetwork(dnn.mlp(2, [], 2), dtype="mixed_float16", check_finite=True)


def test_samples_and_targets_that_float16_cannot_hold_are_refused():
    x, y = np.ones((8, 3)), np.zeros(8, int)
    x[5, 1] = -7e4
    model = dnn.NeuralNetwork(dnn.mlp(3, [4], 2), dtype="mixed_float16")
    for call in (lambda: model.fit(x, y), lambda: model.predict(x), lambda: model.evaluate(x, y)):
        with pytest.raises(DataError, match=r"x has -70000 in row 5, column 1: .*standardise"):
            call()
    line = dnn.NeuralNetwork(dnn.mlp(3, [4], 2), "mean_squared_error", dtype="mixed_float16")
    with pytest.raises(DataError, match="targets has -70000 in row 5, column 1"):
        line.fit(np.ones((8, 3)), x[:, :2])
    dnn.NeuralNetwork(dnn.mlp(3, [4], 2)).predict(x)  # float32 holds them
    x[5, 1] = 65504
    model.predict(x)
    # A single column stays in float32.
    dnn.NeuralNetwork(dnn.mlp(1, [4], 2), dtype="mixed_float16").predict([[7e4]])


def test_a_loss_that_is_no_number_in_mixed_precision_is_a_warning_that_says_why():
    x = np.full((64, 50), 60000.0)
    model = dnn.NeuralNetwork(dnn.mlp(50, [4], 2, "relu"), dtype="mixed_float16", seed=1)
    model.parameters["fully_connected_1.weight"][...] = 1.0
    with pytest.warns(MixedPrecisionWarning, match="epoch 1: mixed_float16.*65504.*float32"):
        history = model.fit(x, np.zeros(64, int))
    assert history.diverged
