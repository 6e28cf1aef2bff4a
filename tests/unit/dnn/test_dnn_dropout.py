"""Dropout, states and noise of layers: active in training alone, keyed by seed, step and layer."""

import numpy as np
import pytest
from layer_cases import Alone

from dnn import (
    SGD,
    Activation,
    Dropout,
    Ensemble,
    Flatten,
    FullyConnected,
    Input,
    Layer,
    NeuralNetwork,
    Output,
    Residual,
    graph,
)
from dnn.errors import ConfigurationError, ShapeError

F8 = np.float64


def samples(n=40, d=5):
    generator = np.random.default_rng(0)
    return generator.normal(size=(n, d)).astype("f4"), generator.integers(0, 3, n)


def network(rate=0.5, seed=1, **options):
    layers = [Input(5), FullyConnected(8), Activation("tanh"), Dropout(rate), FullyConnected(3)]
    return NeuralNetwork(layers, optimizer=SGD(0.1), seed=seed, **options)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_training_drops_a_share_and_keeps_the_mean(rate):
    x = np.ones((300, 200))
    y = Alone(Dropout(rate), x, training=True, seed=7)()[0]
    assert set(np.unique(y)) <= {0, 1 / (1 - rate)}
    assert (y == 0).mean() == pytest.approx(rate, abs=0.01)
    assert y.mean() == pytest.approx(1, abs=0.03)


def test_dropout_is_inactive_in_prediction():
    x, y = samples()
    alone = Alone(Dropout(0.5), x, training=False)
    assert alone.y is alone.x
    model = network(0.9)
    model.fit(x, y, batch_size=8)
    without = NeuralNetwork([Input(5), FullyConnected(8), Activation("tanh"), FullyConnected(3)])
    for name, array in without.parameters.items():
        array[...] = model.parameters[name]
    assert model.predict_proba(x).tobytes() == without.predict_proba(x).tobytes()
    assert model.evaluate(x, y) == without.evaluate(x, y)


def test_what_is_dropped_changes_with_seed_step_and_layer_and_repeats_itself():
    x = np.ones((20, 30))

    def dropped(seed=1, step=0, name="dropout_1"):
        layer = Dropout(0.5)
        layer.name = name
        layer.dtype = np.dtype(F8)
        layer.build(x.shape[1:])
        alone = Alone(layer, x, training=True, seed=seed)
        (step_node,) = [
            n
            for n in alone.values
            if n.kind == "variable" and alone.values[n] == 0 and n.dtype == np.uint64
        ]
        alone.values[step_node] = step
        return alone()[0] == 0

    base = dropped()
    np.testing.assert_array_equal(dropped(), base)
    for other in (dropped(seed=2), dropped(step=1), dropped(name="dropout_2")):
        assert 0.4 < (other != base).mean() < 0.6


def test_steps_of_a_training_drop_different_elements_and_two_trainings_the_same():
    x, y = samples()
    first, again, other = network(), network(), network(seed=2)
    for model in (first, again, other):
        model.fit(x, y, epochs=3, batch_size=16)
    assert first._network.states["noise.step"] == 9
    for name, array in first.parameters.items():
        assert array.tobytes() == again.parameters[name].tobytes()
        assert array.tobytes() != other.parameters[name].tobytes()


def test_two_calls_of_fit_drop_like_one():
    x, y = samples()
    once, twice = network(), network()
    once.fit(x, y, epochs=4, batch_size=16)
    for _ in range(2):
        twice.fit(x, y, epochs=2, batch_size=16)
    for name, array in once.parameters.items():
        assert array.tobytes() == twice.parameters[name].tobytes()


def test_the_rate_is_a_state_that_can_be_changed():
    x, y = samples()
    model, other = network(0.5), network(0.2)
    model._network.states["dropout_1.rate"][...] = 0.2
    for each in (model, other):
        each.fit(x, y, epochs=2, batch_size=16)
    for name, array in model.parameters.items():
        assert array.tobytes() == other.parameters[name].tobytes()


def test_eager_and_compiled_training_steps_are_the_same_bits():
    x, _ = samples()
    alone = Alone(Dropout(0.3), x, training=True, seed=3, dtype=np.dtype("f4"))
    gradients = graph.gradients(graph.sum(graph.tanh(alone.y)), [alone.x])
    nodes = [alone.y, *gradients]
    compiled = graph.evaluate(nodes, alone.values)
    for one, two in zip(compiled, graph.run_eagerly(nodes, alone.values), strict=True):
        assert one.tobytes() == two.tobytes()


class Centre(Layer):
    """A layer of one's own with a state: it subtracts what the batches before had as their mean."""

    def build(self, shape):
        self.mean = self.state("mean", shape)

    def forward(self, x):
        if self.training:
            self.assign(self.mean, self.mean * 0.5 + graph.mean(x, 0) * 0.5)
        return x - self.mean


def test_a_layer_of_ones_own_remembers_and_a_step_reads_the_old_value():
    x = np.arange(12.0).reshape(4, 3)
    model = NeuralNetwork(
        [Input(3), Residual([Centre()]), FullyConnected(1)], "mean_squared_error", dtype="float64"
    )
    mean = model._network.states["residual_1.centre_1.mean"]
    model.fit(x, np.zeros(4), batch_size=4)
    np.testing.assert_allclose(mean, x.mean(axis=0) * 0.5)
    model.fit(x, np.zeros(4), batch_size=4)
    np.testing.assert_allclose(mean, x.mean(axis=0) * 0.75)


def test_a_prediction_neither_assigns_nor_draws():
    class Assigns(Centre):
        def forward(self, x):
            self.assign(self.mean, graph.mean(x, 0))
            return x

    class Draws(Layer):
        def forward(self, x):
            return x + self.uniform_noise(x.shape)

    with pytest.raises(ConfigurationError, match=r"assigns_1 assigns to .* in a prediction"):
        NeuralNetwork([Input(3), Assigns()])
    with pytest.raises(ConfigurationError, match="draws_1 draws random numbers in a prediction"):
        NeuralNetwork([Input(3), Draws()])


def test_a_layer_that_draws_twice_draws_different_numbers():
    class Twice(Layer):
        def forward(self, x):
            if not self.training:
                return x
            return self.uniform_noise(x.shape) - self.uniform_noise(x.shape)

    found = Alone(Twice(), np.zeros((10, 10)), training=True)()[0]
    assert (found != 0).all()


@pytest.mark.parametrize("rate", [1, -0.1, 2, "half", True, float("nan")])
def test_rates_out_of_range(rate):
    with pytest.raises(ConfigurationError, match="rate"):
        Dropout(rate)


# -- flatten, output, residual --------------------------------------------------------------------


def test_a_rate_that_is_1_in_the_type_of_elements():
    almost = float(np.nextafter(1, 0))
    layers = [Input(3), Dropout(almost), FullyConnected(2)]
    with pytest.raises(ConfigurationError, match=r"dropout_1: a rate of 0\.99.* is 1 in float32"):
        NeuralNetwork(layers)
    NeuralNetwork([Input(3), Dropout(almost), FullyConnected(2)], dtype="float64")
    x = graph.placeholder((4, 3))
    with pytest.raises(ConfigurationError, match="is 1 in float32"):
        graph.dropout(x, x, almost)
    layers = [Input(3), Dropout(0.1), FullyConnected(2)]
    with pytest.raises(ConfigurationError, match=r"dropout_1: rate must be .* not 1 in float32"):
        Ensemble(layers, seeds=[1, 2], states={"dropout_1.rate": [0.5, almost]})


def test_flatten():
    x = np.random.default_rng(0).normal(size=(6, 2, 3)).astype("f4")
    model = NeuralNetwork([Input(2, 3), Flatten(), FullyConnected(2)], "mean_squared_error")
    found = model.predict(x)
    weight = model.parameters["fully_connected_1.weight"]
    np.testing.assert_allclose(found, x.reshape(6, 6) @ weight, rtol=1e-5, atol=1e-6)


def test_output_states_the_shape():
    model = NeuralNetwork([Input(3), FullyConnected(2), Output(2)])
    assert model.predict_proba(np.zeros((4, 3))).shape == (4, 2)
    assert "output_1" in model.summary()
    with pytest.raises(ShapeError, match=r"output_1.*\(2,\).*\(3,\)"):
        NeuralNetwork([Input(3), FullyConnected(2), Output(3)])
    with pytest.raises(ConfigurationError, match="Output"):
        Output(0)


def test_residual_adds_what_its_layers_make():
    x, _ = samples()
    model = NeuralNetwork(
        [Input(5), Residual([FullyConnected(4), Activation("relu"), FullyConnected(5)])],
        "mean_squared_error",
    )
    names = [
        f"residual_1.fully_connected_{i}.{kind}" for i in (1, 2) for kind in ("weight", "bias")
    ]
    assert list(model.parameters) == names
    w1, b1, w2, b2 = model.parameters.values()
    b1[...], b2[...] = 0.5, -0.25
    expected = x + np.maximum(x @ w1 + b1, 0) @ w2 + b2
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-5, atol=1e-5)


def test_dropout_inside_a_residual_is_active_in_training_alone():
    x, y = samples()
    model = NeuralNetwork([Input(5), Residual([Dropout(0.5)]), FullyConnected(3)], seed=1)
    model.fit(x, y, batch_size=8)
    assert model._network.states["noise.step"] == 5
    assert model.predict_proba(x).tobytes() == model.predict_proba(x).tobytes()


def test_residuals_that_cannot_be():
    with pytest.raises(ConfigurationError, match="no layer"):
        Residual([])
    with pytest.raises(ShapeError, match=r"residual_1.*\(5,\) into \(4,\)"):
        NeuralNetwork([Input(5), Residual([FullyConnected(4)])])
    layer = FullyConnected(5)
    with pytest.raises(ConfigurationError, match="already part"):
        NeuralNetwork([Input(5), Residual([layer, layer])])
