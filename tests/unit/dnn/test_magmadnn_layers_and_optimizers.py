"""MagmaDNN's layers, losses, optimizers and initializers, and the defects there: a test for each.

::

    layers                               test_layers, test_custom_layers
    losses, optimizers                   test_losses_and_optimizers, test_optimizers_by_name,
                                         test_custom_losses_and_optimizers
    Tensor: initializers                      test_initializers

    every tensor from the same seed      test_defect_every_tensor_filled_from_the_same_seed
    a bias per sample                    test_defect_a_bias_for_each_sample_instead_of_each_unit
    batch norm's scale and shift         test_defect_batch_norms_scale_and_shift_never_trained
    no inference mode of batch norm      test_defect_batch_norm_without_an_inference_mode
"""

import numpy as np
import pytest

import dnn
from dnn import (
    SGD,
    Activation,
    BatchNorm,
    Dropout,
    Flatten,
    FullyConnected,
    Input,
    LayerNorm,
    NeuralNetwork,
    Output,
    Residual,
    graph,
)
from dnn import initializers as fill
from dnn.errors import ConfigurationError, ShapeError
from dnn.optimizers import OPTIMIZERS, optimizer_of
from dnn.seeds import stream


def samples(n=60):
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, n)
    return (generator.normal(size=(n, 2, 3)) + 2 * y[:, None, None]).astype("f4"), y


def every_layer(activation, outputs):
    return [
        Input(2, 3),
        Flatten(),
        FullyConnected(8),
        BatchNorm(),
        Activation(activation),
        Dropout(0.1),
        Residual([LayerNorm(), FullyConnected(8), Activation(activation)]),
        FullyConnected(outputs),
        Output(outputs),
    ]


# -- row: layers; losses, optimizers --------------------------------------------------------------


@pytest.mark.parametrize("activation", ["sigmoid", "relu", "tanh", "softmax"])
def test_layers(activation):
    x, y = samples()
    model = NeuralNetwork(every_layer(activation, 2), optimizer=SGD(0.1, 0.9), seed=2)
    history = model.fit(x, y, epochs=20, batch_size=16)
    assert history.loss[-1] < history.loss[0] / 2
    assert model.evaluate(x, y)["accuracy"] > 0.9


@pytest.mark.parametrize(
    "loss", ["binary_cross_entropy", "mean_squared_error", "softmax_cross_entropy"]
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_losses_and_optimizers(loss, optimizer):
    x, y = samples()
    outputs = 2 if loss == "softmax_cross_entropy" else 1
    chosen = optimizer_of(optimizer, learning_rate=0.01, weight_decay=0.001)
    model = NeuralNetwork(every_layer("tanh", outputs), loss, chosen, seed=2)
    history = model.fit(x, y, epochs=20, batch_size=16)
    assert history.loss[-1] < history.loss[0] * 0.7


def test_optimizers_by_name():
    assert NeuralNetwork(every_layer("tanh", 2), optimizer="adam").optimizer.hyperparameters == {
        "learning_rate": 0.001,
        "weight_decay": 0.0,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-8,
    }
    with pytest.raises(ConfigurationError, match=r"unknown optimizer 'rmsprob'.*'rmsprop'"):
        NeuralNetwork(every_layer("tanh", 2), optimizer="rmsprob")
    with pytest.raises(ConfigurationError, match="momentun"):
        optimizer_of("sgd", momentun=0.9)


class Scale(dnn.Layer):
    """Each attribute times a factor that is learned."""

    def build(self, shape):
        self.factor = self.parameter("factor", shape, "ones")

    def forward(self, x):
        return x * self.factor


class MeanAbsoluteError(dnn.Loss):
    """``mean(|outputs - targets|)``."""

    def check(self, y, samples, outputs, dtype):
        return np.asarray(y, dtype).reshape(samples, *outputs)

    def target(self, outputs):
        return graph.placeholder(outputs.shape, outputs.dtype, "targets")

    def value(self, outputs, target):
        return graph.mean(graph.abs(outputs - target))


class SignDescent(dnn.Optimizer):
    """``w -= learning_rate sign(g)``."""

    def step(self, ops, block, scalars):
        def move(w, g, rate):
            w -= rate * np.sign(g)

        return move, (block.w, block.g, scalars["learning_rate"])


def test_custom_layers():
    x, y = samples()
    layers = [Input(2, 3), Flatten(), Scale(), FullyConnected(2)]
    model = NeuralNetwork(layers, optimizer=SGD(0.1))
    assert model.fit(x, y, epochs=5).loss[-1] < model.history.loss[0]
    assert (model.parameters["scale_1.factor"] != 1).all()


def test_custom_losses_and_optimizers():
    """Two steps by hand: the gradient's sign is that of the error."""
    layers = [Input(1), FullyConnected(1, bias=False, initializer="zeros")]
    model = NeuralNetwork(layers, MeanAbsoluteError(), SignDescent(0.25), device="numpy")
    history = model.fit(np.ones((4, 1)), np.ones(4), epochs=2, batch_size=4)
    assert history.loss == [1.0, 0.75]
    assert model.parameters["fully_connected_1.weight"].tolist() == [[0.5]]


# -- row: initializers ---------------------------------------------------------------------------

INITIALIZERS = {
    "uniform": fill.uniform(-2, 3),
    "normal": fill.normal(1, 0.5),
    "glorot_uniform": fill.glorot_uniform,
    "glorot_normal": fill.glorot_normal,
    "he_uniform": fill.he_uniform,
    "he_normal": fill.he_normal,
    "mask": fill.mask(0.25),
}


@pytest.mark.parametrize("name", INITIALIZERS)
def test_defect_every_tensor_filled_from_the_same_seed(name):
    layers = [Input(30), *(FullyConnected(30, initializer=INITIALIZERS[name]) for _ in range(3))]
    weights = [
        tensor.numpy()
        for name, tensor in NeuralNetwork(layers, seed=4).parameters.items()
        if "weight" in name
    ]
    for i, one in enumerate(weights):
        for other in weights[:i]:
            assert (one != other).mean() > 0.3
            assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.12


def test_initializers():
    def filled(initializer, shape=(400, 300), dtype=np.float32):
        array = initializer(stream(0, "x"), shape, dtype)
        assert array.dtype == dtype
        assert array.shape == shape
        return array

    uniform = filled(fill.uniform(-2, 3))
    assert uniform.min() >= -2
    assert uniform.max() <= 3
    assert uniform.mean() == pytest.approx(0.5, abs=0.02)
    normal = filled(fill.normal(1, 0.5))
    assert normal.mean() == pytest.approx(1, abs=0.01)
    assert normal.std() == pytest.approx(0.5, rel=0.01)
    mask = filled(fill.mask(0.25))
    assert set(np.unique(mask)) == {0, 1}
    assert mask.mean() == pytest.approx(0.25, abs=0.01)
    assert (filled(fill.constant(-1.5)) == -1.5).all()
    assert not filled(fill.zeros).any()
    assert (filled(fill.ones, ()) == 1).all()
    np.testing.assert_array_equal(filled(fill.identity, (3, 4)), np.eye(3, 4))
    np.testing.assert_array_equal(filled(fill.diagonal([1, 2]), (2, 2)), np.diag([1, 2]))
    np.testing.assert_array_equal(filled(fill.diagonal(3), (2, 3, 3))[1], 3 * np.eye(3))
    with pytest.raises(ShapeError, match=r"diagonal: .*\(2,\).*\(3, 3\)"):
        filled(fill.diagonal([1, 2]), (3, 3))
    with pytest.raises(ShapeError, match="diagonal"):
        filled(fill.identity, (3,))


# -- defects --------------------------------------------------------------------------------------


def test_defect_a_bias_for_each_sample_instead_of_each_unit():
    model = NeuralNetwork([Input(3), FullyConnected(2)], "mean_squared_error", SGD(0.1))
    bias = model.parameters["fully_connected_1.bias"]
    assert bias.shape == (2,)
    # All samples alike: every row of the prediction is, whatever the batch it was trained with.
    x, y = np.ones((7, 3)), np.tile([1.0, -1.0], (7, 1))
    model.fit(x, y, epochs=200, batch_size=4)
    np.testing.assert_allclose(model.predict(np.ones((9, 3))), np.tile([1.0, -1.0], (9, 1)), 1e-4)


def test_defect_batch_norms_scale_and_shift_never_trained():
    x, y = samples()
    model = NeuralNetwork(every_layer("tanh", 2), optimizer=SGD(0.1))
    model.fit(x, y)
    assert (model.parameters["batch_norm_1.scale"] != 1).all()
    assert (model.parameters["batch_norm_1.shift"] != 0).all()


def test_defect_batch_norm_without_an_inference_mode():
    x, y = samples()
    model = NeuralNetwork(every_layer("tanh", 2))
    model.fit(x, y)
    # A sample's prediction does not depend on who stands beside it.
    alone = np.concatenate([model.predict_proba(x[i : i + 1]) for i in range(5)])
    np.testing.assert_allclose(model.predict_proba(x)[:5], alone, rtol=1e-5)
