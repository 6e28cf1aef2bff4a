"""MagmaDNN's rows for layers, losses, optimizers and fillers, and the defects that were theirs."""

import numpy as np
import pytest

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
from dnn.losses import LOSSES
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
def test_row_layers(activation):
    x, y = samples()
    model = NeuralNetwork(every_layer(activation, 2), optimizer=SGD(0.1, 0.9), seed=2)
    history = model.fit(x, y, epochs=20, batch_size=16)
    assert history.loss[-1] < history.loss[0] / 2
    assert model.evaluate(x, y)["accuracy"] > 0.9


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_row_losses_and_optimizers(loss, optimizer):
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


# -- row: fillers ---------------------------------------------------------------------------------

FILLERS = {
    "uniform": fill.uniform(-2, 3),
    "normal": fill.normal(1, 0.5),
    "glorot_uniform": fill.glorot_uniform,
    "glorot_normal": fill.glorot_normal,
    "he_uniform": fill.he_uniform,
    "he_normal": fill.he_normal,
    "mask": fill.mask(0.25),
}


@pytest.mark.parametrize("name", FILLERS)
def test_defect_every_tensor_filled_from_the_same_seed(name):
    layers = [Input(30), *(FullyConnected(30, start=FILLERS[name]) for _ in range(3))]
    weights = [
        array
        for name, array in NeuralNetwork(layers, seed=4).parameters.items()
        if "weight" in name
    ]
    for i, one in enumerate(weights):
        for other in weights[:i]:
            assert (one != other).mean() > 0.3
            assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.12


def test_row_fillers():
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


def test_defect_dropout_active_in_prediction():
    model = NeuralNetwork([Input(50), Dropout(0.9)], "mean_squared_error")
    x = np.random.default_rng(0).normal(size=(20, 50)).astype("f4")
    np.testing.assert_array_equal(model.predict(x), x)


def test_defect_a_fast_sigmoid_with_the_logistic_derivative():
    values = np.linspace(-6, 6, 41)
    x = graph.placeholder(values.shape, np.float64)
    y = graph.sigmoid(x)
    found, slope = graph.evaluate([y, *graph.gradients(graph.sum(y), [x])], {x: values})
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-values)), rtol=1e-12)
    np.testing.assert_allclose(slope, found * (1 - found), rtol=1e-12)
    step = 1e-6
    sides = [graph.evaluate([y], {x: values + h})[0] for h in (step, -step)]
    np.testing.assert_allclose(slope, (sides[0] - sides[1]) / (2 * step), rtol=1e-6)
