"""Layers of images: shapes, values against torch, gradients, networks that learn, errors."""

import pickle

import numpy as np
import pytest

import dnn
from dnn import (
    Activation,
    AvgPool2D,
    BatchNorm,
    Conv2D,
    Flatten,
    FullyConnected,
    GlobalAvgPool2D,
    Input,
    MaxPool2D,
    NeuralNetwork,
    Residual,
    SpatialDropout,
    Upsample2D,
    graph,
)
from dnn.errors import ConfigurationError, NonFiniteError, ShapeError
from dnn.nets import basic_block, bottleneck_block


def images(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("f4")


def model_of(*layers, **how):
    """A network that puts out what the layers do, flattened."""
    return NeuralNetwork([*layers, Flatten()], "mean_squared_error", dtype="float64", **how)


def out_of(model, x):
    return model.predict(x).reshape(len(x), -1)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [7, 8, 9])
@pytest.mark.parametrize("window", [1, 2, 3, 5])
@pytest.mark.parametrize("dilation", [1, 2])
def test_same_padding_makes_as_many_rows_as_steps_in_the_image(stride, size, window, dilation):
    layer = Conv2D(4, window, stride=stride, dilation=dilation, padding="same")
    NeuralNetwork([Input(3, size, size), layer, Flatten(), FullyConnected(2)])
    y = layer.forward(graph.placeholder((2, 3, size, size)))
    rows = -(-size // stride)
    assert y.shape == (2, 4, rows, rows)
    (top, bottom), _ = layer.zeros_around
    assert top <= bottom <= top + 1  # the odd one below
    reach = (window - 1) * dilation + 1
    assert top + bottom == max(0, (rows - 1) * stride + reach - size)


def test_filters_start_by_how_many_elements_a_window_meets():
    filters = Conv2D(32, 3, initializer="he_normal")
    model = NeuralNetwork([Input(16, 6, 6), filters, Flatten(), FullyConnected(2)], seed=0)
    found = np.std(np.asarray(model.parameters["conv2d_1.weight"]))
    assert found == pytest.approx(np.sqrt(2 / (16 * 3 * 3)), rel=0.05)


def test_layers_against_torch():
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    x = images(5, 4, 9, 8).astype("f8")
    nn = torch.nn
    pairs = [
        (
            Conv2D(6, (3, 2), stride=2, padding=(1, 0), groups=2),
            nn.Conv2d(4, 6, (3, 2), 2, (1, 0), groups=2),
        ),
        (Conv2D(3, 3, dilation=2, bias=False), nn.Conv2d(4, 3, 3, dilation=2, bias=False)),
        (MaxPool2D(3, stride=2, padding=1), nn.MaxPool2d(3, 2, 1)),
        (AvgPool2D(3, stride=2, padding=1, counts_padding=True), nn.AvgPool2d(3, 2, 1)),
        (GlobalAvgPool2D(), nn.AdaptiveAvgPool2d(1)),
        (Upsample2D((2, 3)), nn.Upsample(scale_factor=(2, 3))),
        (BatchNorm(), nn.BatchNorm2d(4)),
    ]
    for ours, theirs in pairs:
        theirs = theirs.double().eval()
        model = model_of(Input(4, 9, 8), ours)
        for parameter, value in zip(model.parameters.values(), theirs.parameters(), strict=True):
            parameter[...] = value.detach().numpy()
        expected = theirs(torch.tensor(x)).detach().numpy()
        np.testing.assert_allclose(out_of(model, x), expected.reshape(5, -1), rtol=1e-9, atol=1e-12)


def test_same_pooling_and_means_without_padding():
    x = np.ones((1, 1, 5, 5), "f4")
    model = model_of(Input(1, 5, 5), AvgPool2D(3, stride=2, padding="same"))
    np.testing.assert_array_equal(out_of(model, x), np.ones((1, 9)))


def test_batch_norm_of_images_in_training_is_that_of_torch():
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    x = images(6, 3, 4, 5).astype("f8")
    layer = BatchNorm()
    model = model_of(Input(3, 4, 5), layer, optimizer=dnn.SGD(0.5))
    theirs = torch.nn.BatchNorm2d(3).double()
    optimizer = torch.optim.SGD(theirs.parameters(), 0.5)
    target = np.random.default_rng(1).normal(size=(6, 60))
    for _ in range(3):
        model.fit(x, target, epochs=1, batch_size=6)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(
            theirs(torch.tensor(x)).flatten(1), torch.tensor(target)
        ).backward()
        optimizer.step()
    for name, value in [("scale", theirs.weight), ("shift", theirs.bias)]:
        found = model.parameters[f"batch_norm_1.{name}"]
        np.testing.assert_allclose(found, value.detach().numpy(), rtol=1e-9)
    states = model._network.states
    np.testing.assert_allclose(states["batch_norm_1.mean"], theirs.running_mean.numpy(), rtol=1e-9)
    variance = states["batch_norm_1.variance"]
    np.testing.assert_allclose(variance, theirs.running_var.numpy(), rtol=1e-9)


def test_spatial_dropout_drops_whole_channels():
    layer = SpatialDropout(0.5)
    NeuralNetwork([Input(8, 4, 4), layer, Flatten(), FullyConnected(2)], seed=3)
    noise = layer.noise_shape(graph.placeholder((16, 8, 4, 4)))
    assert noise == (16, 8, 1, 1)
    x = graph.placeholder((16, 8, 4, 4))
    uniform = graph.placeholder(noise)
    y = graph.dropout(x, uniform, 0.5)
    draws = np.random.default_rng(0).uniform(size=noise)
    (found,) = graph.evaluate([y], {x: np.ones((16, 8, 4, 4)), uniform: draws})
    kept = found.reshape(128, 16)
    assert set(np.unique(found)) == {0.0, 2.0}
    assert (kept == kept[:, :1]).all()


def test_flatten_sees_channels_first():
    x = images(2, 3, 4, 5)
    model = model_of(Input(3, 4, 5), Conv2D(3, 1, bias=False))
    model.parameters["conv2d_1.weight"][...] = np.eye(3)[:, :, None, None]
    np.testing.assert_allclose(out_of(model, x), x.reshape(2, 60), rtol=1e-6)


@pytest.mark.parametrize("block", [basic_block, bottleneck_block])
@pytest.mark.parametrize(("filters", "stride"), [(4, 1), (2, 1), (4, 2)])
def test_blocks_have_a_trained_shortcut_where_the_shape_changes(block, filters, stride):
    model = NeuralNetwork(
        [Input(8, 6, 6), *block(8, filters, stride), GlobalAvgPool2D(), FullyConnected(3)],
        optimizer=dnn.SGD(0.1),
        seed=0,
    )
    out = filters * (4 if block is bottleneck_block else 1)
    names = [name for name in model.parameters if ".shortcut." in name]
    assert bool(names) == (out != 8 or stride != 1)
    before = {name: model.parameters[name].copy() for name in names}
    model.fit(images(8, 8, 6, 6), np.arange(8) % 3, epochs=1, batch_size=8)
    for name in names:
        assert not np.array_equal(before[name], model.parameters[name]), name


def digits():
    data = dnn.load_digits()
    return np.asarray(data.x, "f4").reshape(-1, 1, 8, 8) / 16, np.asarray(data.y)


def small_net():
    return [
        *(Input(1, 8, 8), Conv2D(8, 3, padding="same"), Activation("relu"), MaxPool2D(2)),
        *(Conv2D(16, 3, bias=False), BatchNorm(), Activation("relu"), Flatten()),
        FullyConnected(10),
    ]


def test_a_network_of_two_convolutions_learns_digits():
    x, y = digits()
    model = NeuralNetwork(small_net(), optimizer=dnn.Adam(0.01), seed=0)
    assert model.evaluate(x[1200:], y[1200:])["accuracy"] < 0.4
    model.fit(x[:1200], y[:1200], epochs=5, batch_size=50)
    assert model.evaluate(x[1200:], y[1200:])["accuracy"] > 0.8


def test_an_ensemble_of_convolutional_networks_is_each_alone():
    x, y = digits()
    x, y = x[:64], y[:64]
    together = dnn.Ensemble(small_net(), optimizer=dnn.SGD(0.1), seeds=[1, 2])
    together.fit(x, y, epochs=2, batch_size=16)
    for k, seed in enumerate((1, 2)):
        alone = NeuralNetwork(small_net(), optimizer=dnn.SGD(0.1), seed=seed)
        alone.fit(x, y, epochs=2, batch_size=16)
        for name, value in alone.parameters.items():
            np.testing.assert_array_equal(together.parameters[name][k], value)


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "tf32"])
def test_a_precision_leaves_convolutions_in_float32(precision):
    x, y = digits()
    model = NeuralNetwork(small_net(), optimizer=dnn.Adam(0.01), seed=0, dtype=precision)
    model.fit(x[:600], y[:600], epochs=3, batch_size=50)
    assert model.evaluate(x[1200:], y[1200:])["accuracy"] > 0.5


def test_a_copy_of_a_model_and_its_checkpoint(tmp_path):
    pytest.importorskip("safetensors", reason="safetensors, the file format, is not installed")
    x, y = digits()
    model = NeuralNetwork(small_net(), optimizer=dnn.SGD(0.1), seed=0, recompute=True)
    model.fit(x[:100], y[:100], batch_size=50)
    copied = pickle.loads(pickle.dumps(model))
    dnn.save_checkpoint(model, tmp_path / "model.safetensors")
    loaded = NeuralNetwork(small_net(), optimizer=dnn.SGD(0.1), seed=5)
    dnn.load_checkpoint(loaded, tmp_path / "model.safetensors")
    for other in (copied, loaded):
        other.fit(x[:100], y[:100], batch_size=50)
    model.fit(x[:100], y[:100], batch_size=50)
    for name, value in model.parameters.items():
        for other in (copied, loaded):
            np.testing.assert_array_equal(other.parameters[name], value)


def test_an_image_that_overflows_is_named():
    x, y = digits()
    model = NeuralNetwork(small_net(), optimizer=dnn.SGD(1e30), seed=0, check_finite=True)
    with np.errstate(all="ignore"), pytest.raises(NonFiniteError, match=r"conv2d|batch_norm"):
        model.fit(x[:200], y[:200], batch_size=50)


@pytest.mark.parametrize(
    ("layers", "error", "says"),
    [
        (lambda: [Input(9), Conv2D(2, 3)], ShapeError, r"conv2d_1: .*height, width.*\(9,\)"),
        (
            lambda: [Input(1, 4, 4), Conv2D(2, 5)],
            ShapeError,
            "conv2d_1: a window of 5 x 5 is larger than an image of 4 x 4",
        ),
        (lambda: [Input(3, 4, 4), Conv2D(4, 1, groups=2)], ConfigurationError, "groups = 2 does"),
        (lambda: [Input(1, 4, 4), MaxPool2D(5)], ShapeError, "max_pool2d_1: a window of 5 x 5"),
        (lambda: [Input(4), GlobalAvgPool2D()], ShapeError, "global_avg_pool2d_1: a sample must"),
        (lambda: [Input(4), Upsample2D()], ShapeError, "upsample2d_1: a sample must be"),
        (lambda: [Input(4), SpatialDropout()], ShapeError, "spatial_dropout_1: a sample must be"),
        (
            lambda: [Input(2, 4, 4), Residual([Conv2D(3, 1)], [Conv2D(4, 1)])],
            ShapeError,
            r"residual_1: .*\(2, 4, 4\) into \(3, 4, 4\); the shortcut into \(4, 4, 4\)",
        ),
        (lambda: [Conv2D(2, 3, stride=0)], ConfigurationError, "Conv2D: stride must be an integer"),
        (lambda: [Conv2D(3, 3, groups=2)], ConfigurationError, "groups = 2 does not divide 3 filt"),
        (lambda: [Conv2D(2, 3, padding="full")], ConfigurationError, "'same', 'valid' or numbers"),
        (lambda: [Conv2D(2, 3, padding=-1)], ConfigurationError, "Conv2D: padding must be"),
        (lambda: [Conv2D(0, 3)], ConfigurationError, "filters must be an integer of at least 1"),
        (lambda: [Conv2D(2, kernel_size=3)], ConfigurationError, "here that is 'window'"),
        (
            lambda: [Input(1, 4, 4), AvgPool2D(2, padding=2)],
            ConfigurationError,
            "avg_pool2d_1: padding 2 must be less than the window 2 x 2",
        ),
        (lambda: [MaxPool2D(0)], ConfigurationError, "MaxPool2D: window must be"),
    ],
)
def test_what_does_not_fit_is_named(layers, error, says):
    with pytest.raises(error, match=says):
        NeuralNetwork(layers())
