"""Layers, initializers, names, and a layer of one's own."""

import textwrap

import numpy as np
import pytest

import dnn.layers.layer
from dnn import SGD, Activation, FullyConnected, Input, Layer, NeuralNetwork, graph, mlp
from dnn.errors import ConfigurationError, ShapeError
from dnn.initializers import INITIALIZERS, fans
from dnn.seeds import stream


def test_layers_are_named_and_summed_up():
    model = NeuralNetwork(mlp(6, [5, 4], 3, "tanh"))
    assert {name: array.shape for name, array in model.parameters.items()} == {
        "fully_connected_1.weight": (6, 5),
        "fully_connected_1.bias": (5,),
        "fully_connected_2.weight": (5, 4),
        "fully_connected_2.bias": (4,),
        "fully_connected_3.weight": (4, 3),
        "fully_connected_3.bias": (3,),
    }
    last = model.summary().splitlines()[-1].split()
    assert last == ["total", str(6 * 5 + 5 + 5 * 4 + 4 + 4 * 3 + 3), str(6 * 5 + 5 * 4 + 4 * 3)]


def test_a_bias_belongs_to_a_unit_and_not_to_a_sample():
    model = NeuralNetwork([Input(3), FullyConnected(2)], "mean_squared_error")
    model.parameters["fully_connected_1.weight"][...] = 0
    model.parameters["fully_connected_1.bias"][...] = [1, 2]
    for samples in (1, 3, 5):
        np.testing.assert_array_equal(model.predict(np.ones((samples, 3))), [[1, 2]] * samples)


def test_without_bias():
    model = NeuralNetwork([Input(3), FullyConnected(2, bias=False)])
    assert list(model.parameters) == ["fully_connected_1.weight"]


def test_every_tensor_starts_differently_and_every_seed_too():
    layers = [Input(8), FullyConnected(8), FullyConnected(8), FullyConnected(8)]
    first = NeuralNetwork(layers, seed=1).parameters
    weights = [array for name, array in first.items() if name.endswith("weight")]
    for i, one in enumerate(weights):
        assert np.unique(one).size == one.size
        assert all(not np.array_equal(one, other) for other in weights[:i])
    again = NeuralNetwork([Input(8), *(FullyConnected(8) for _ in range(3))], seed=1).parameters
    other = NeuralNetwork([Input(8), *(FullyConnected(8) for _ in range(3))], seed=2).parameters
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
        if name.endswith("weight"):
            assert not np.array_equal(array, other[name])


@pytest.mark.parametrize(
    ("name", "variance"),
    [
        ("glorot_uniform", 2 / 500),
        ("glorot_normal", 2 / 500),
        ("he_uniform", 2 / 200),
        ("he_normal", 2 / 200),
        ("zeros", 0),
        ("ones", 0),
    ],
)
def test_variances_of_initializers(name, variance):
    drawn = INITIALIZERS[name](stream(0, name), (200, 300), np.float32)
    assert drawn.dtype == np.float32
    assert drawn.var() == pytest.approx(variance, rel=0.02)
    assert drawn.mean() == pytest.approx(float(name == "ones"), abs=1e-3)


def test_fans_count_the_window_of_a_convolution():
    assert fans((3, 3, 16, 32)) == (144, 288)
    assert fans((7,)) == (7, 7)


def test_a_layer_of_ones_own_is_trained():
    """The one in the documentation: a trained factor for each attribute."""
    code = dnn.layers.layer.__doc__.partition("::\n\n")[2].partition("\n\nGradients")[0]
    space = {"Layer": Layer}
    exec(textwrap.dedent(code), space)
    Scale = space["Scale"]
    model = NeuralNetwork([Input(3), Scale()], "mean_squared_error", SGD(0.3), dtype="float64")
    x = np.random.default_rng(0).normal(size=(50, 3))
    model.fit(x, x * [2.0, -1.0, 0.5], epochs=60, batch_size=10)
    np.testing.assert_allclose(model.parameters["scale_1.factor"], [2, -1, 0.5], atol=1e-3)


def test_a_layer_that_reads_its_parameter_twice_gets_the_whole_gradient():
    class Twice(Layer):
        def build(self, shape):
            self.weight = self.parameter("weight", shape, "ones")

        def forward(self, x):
            return graph.tanh(x * self.weight) + x * self.weight

    x = np.array([[0.3, -0.7]])
    model = NeuralNetwork([Input(2), Twice()], "mean_squared_error", SGD(1.0), dtype="float64")
    model.fit(x, np.zeros((1, 2)), batch_size=1)
    slope = 2 * (np.tanh(x) + x) / 2 * (x * (1 - np.tanh(x) ** 2) + x)
    np.testing.assert_allclose(model.parameters["twice_1.weight"], 1 - slope[0], rtol=1e-12)


def test_names_that_are_unknown_name_the_one_probably_meant():
    with pytest.raises(ConfigurationError, match=r"unknown activation 'sigmod'.*'sigmoid'"):
        Activation("sigmod")
    with pytest.raises(ConfigurationError, match="'relu'"):
        mlp(3, [3], 2, "relo")
    with pytest.raises(ConfigurationError, match="'glorot_uniform'"):
        NeuralNetwork([Input(2), FullyConnected(2, initializer="glorot_unifrom")])
    with pytest.raises(ConfigurationError, match="'softmax_cross_entropy'"):
        NeuralNetwork(mlp(2, [], 2), "softmax_crossentropy")
    with pytest.raises(ConfigurationError, match="unknown device"):
        NeuralNetwork(mlp(2, [], 2), device="gpu7")
    with pytest.raises(ConfigurationError, match="dtype"):
        NeuralNetwork(mlp(2, [], 2), dtype="half")


@pytest.mark.parametrize("units", [0, -1, 2.5, True])
def test_units_must_be_a_count(units):
    with pytest.raises(ConfigurationError, match="units"):
        FullyConnected(units)


def test_networks_that_cannot_be_built():
    with pytest.raises(ConfigurationError, match=r"Input\(\(12,\)\): no shape of a sample"):
        Input((12,))
    with pytest.raises(ConfigurationError, match="Input"):
        NeuralNetwork([FullyConnected(2)])
    with pytest.raises(ConfigurationError, match="Input"):
        NeuralNetwork([])
    with pytest.raises(ConfigurationError, match="shape"):
        Input(0)
    with pytest.raises(ShapeError, match=r"fully_connected_1.*\(8, 8\)"):
        NeuralNetwork([Input(8, 8), FullyConnected(2)])
    layers = mlp(2, [], 2)
    NeuralNetwork(layers)
    with pytest.raises(ConfigurationError, match="already part of a network"):
        NeuralNetwork(layers)

    class Forgetful(Layer):
        def forward(self, x):
            graph.relu(x)

    with pytest.raises(ConfigurationError, match=r"forgetful_1: forward\(x\) returned None"):
        NeuralNetwork([Input(2), Forgetful()])
    for other in (3, FullyConnected):
        with pytest.raises(ConfigurationError, match="is no Layer"):
            NeuralNetwork([Input(2), other])
