"""Batch norm and layer norm: values, statistics, gradients and whole trainings against torch."""

import numpy as np
import pytest
from layer_cases import Alone

from dnn import (
    SGD,
    Activation,
    Adam,
    BatchNorm,
    FullyConnected,
    Input,
    LayerNorm,
    NeuralNetwork,
    Residual,
    batches,
    graph,
)
from dnn.backend import Ops
from dnn.errors import ConfigurationError

F8 = np.float64


def torch_or_skip():
    return pytest.importorskip("torch", reason="torch, the oracle, is not installed")


def samples(n=37, d=4, seed=0):
    generator = np.random.default_rng(seed)
    y = generator.integers(0, 3, n)
    return generator.normal(size=(n, d)) * [1, 5, 0.1, 2] + [0, 3, -1, 10] + y[:, None], y


def test_batch_norms_scale_and_shift_are_trained():
    x, y = samples()
    model = NeuralNetwork([Input(4), BatchNorm(), FullyConnected(3)], optimizer=SGD(0.1), seed=1)
    before = {name: array.copy() for name, array in model.parameters.items()}
    assert {"batch_norm_1.scale", "batch_norm_1.shift"} < set(before)
    model.fit(x, y, epochs=2, batch_size=8)
    for name, array in model.parameters.items():
        assert (array != before[name]).all(), name


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_batch_norm_in_training_against_torch(shape):
    torch = torch_or_skip()
    generator = np.random.default_rng(0)
    x = generator.normal(size=(8, *shape)) * 3 + 1
    layer = BatchNorm()
    alone = Alone(layer, x, training=True)
    alone.values[layer.scale] = scale = generator.normal(size=4)
    alone.values[layer.shift] = shift = generator.normal(size=4)
    v = generator.normal(size=x.shape)
    gradients = graph.gradients(alone.y, alone.trained, graph.constant(v, F8))
    found = alone(alone.y, *gradients, *layer.assignments)

    theirs = torch.nn.BatchNorm1d(4, dtype=torch.float64)
    with torch.no_grad():
        theirs.weight.copy_(torch.tensor(scale))
        theirs.bias.copy_(torch.tensor(shift))
    tensor = torch.tensor(x, requires_grad=True)
    moved = tensor if len(shape) == 1 else tensor.transpose(1, 2)  # torch has channels in front
    y = theirs(moved)
    y = y if len(shape) == 1 else y.transpose(1, 2)
    y.backward(torch.tensor(v))
    expected = [
        y.detach(),
        tensor.grad,
        theirs.weight.grad,
        theirs.bias.grad,
        theirs.running_mean,
        theirs.running_var,
    ]
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-9, atol=1e-10)


def test_running_statistics_and_predictions_of_batch_norm():
    x, y = samples()
    layer = BatchNorm(momentum=0.7)
    model = NeuralNetwork([Input(4), layer], optimizer=SGD(1e-9), dtype="float64", seed=3)
    with pytest.raises(Exception, match="label"):
        model.fit(x, y + 9, batch_size=8)
    y = y % 4
    model.fit(x, y, epochs=3, batch_size=10)
    mean, variance = np.zeros(4), np.ones(4)
    for epoch in range(3):
        for rows in batches(len(x), 10, 3, epoch):
            mean = 0.7 * mean + 0.3 * x[rows].mean(axis=0)
            variance = 0.7 * variance + 0.3 * x[rows].var(axis=0, ddof=1)
    states = model._network.states
    np.testing.assert_allclose(states["batch_norm_1.mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(states["batch_norm_1.variance"], variance, rtol=1e-12)
    # A prediction normalises by the running statistics, so a sample does not depend on others.
    scaled = (x - mean) / np.sqrt(variance + 1e-5)
    np.testing.assert_array_equal(model.predict(x), scaled.argmax(axis=1))
    whole = model.predict_proba(x)
    np.testing.assert_allclose(whole[5:6], model.predict_proba(x[5:6]), rtol=1e-12)


def test_predictions_and_evaluations_leave_the_running_statistics_alone():
    x, y = samples()
    model = NeuralNetwork([Input(4), BatchNorm(), FullyConnected(3)], seed=1)
    model.fit(x, y, batch_size=8)
    states = {name: array.copy() for name, array in model._network.states.items()}
    model.predict(x)
    model.predict_proba(x)
    model.evaluate(x, y)
    for name, array in model._network.states.items():
        np.testing.assert_array_equal(array, states[name])


def test_a_batch_of_one_says_nothing_about_the_variance():
    layer = BatchNorm()
    x = np.array([[1.0, 2, 3]])
    alone = Alone(layer, x, training=True)
    assert layer.assignments == []
    np.testing.assert_array_equal(alone()[0], np.zeros((1, 3)))
    # The last batch of 9 samples in batches of 4 has one.
    features, labels = samples(9)
    model = NeuralNetwork([Input(4), BatchNorm(), FullyConnected(3)], seed=1)
    history = model.fit(features, labels, epochs=3, batch_size=4)
    assert not history.diverged
    assert all(np.isfinite(array).all() for array in model._network.states.values())


def test_layer_norm_against_torch():
    torch = torch_or_skip()
    generator = np.random.default_rng(0)
    x = generator.normal(size=(6, 3, 5)) * 3 + 1
    layer = LayerNorm()
    for training in (True, False):
        alone = Alone(layer, x, training)
        alone.values[layer.scale] = scale = generator.normal(size=5)
        alone.values[layer.shift] = shift = generator.normal(size=5)
        v = generator.normal(size=x.shape)
        gradients = graph.gradients(alone.y, alone.trained, graph.constant(v, F8))
        found = alone(alone.y, *gradients)
        theirs = torch.nn.LayerNorm(5, dtype=torch.float64)
        with torch.no_grad():
            theirs.weight.copy_(torch.tensor(scale))
            theirs.bias.copy_(torch.tensor(shift))
        tensor = torch.tensor(x, requires_grad=True)
        y = theirs(tensor)
        y.backward(torch.tensor(v))
        expected = [y.detach(), tensor.grad, theirs.weight.grad, theirs.bias.grad]
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-9, atol=1e-10)


def test_a_whole_training_against_torch():
    """Fully connected, batch norm, a residual block with layer norm; Adam with weight decay."""
    torch = torch_or_skip()
    x, y = samples(30)
    layers = [
        Input(4),
        FullyConnected(6, bias=False),  # batch norm would take it away again
        BatchNorm(),
        Activation("gelu"),
        Residual([LayerNorm(), FullyConnected(6), Activation("tanh")]),
        FullyConnected(3),
    ]
    model = NeuralNetwork(layers, optimizer=Adam(0.01, weight_decay=0.1), dtype="float64", seed=5)

    class Block(torch.nn.Sequential):
        def forward(self, features):
            return features + super().forward(features)

    kinds = {"dtype": torch.float64}
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 6, bias=False, **kinds),
        torch.nn.BatchNorm1d(6, **kinds),
        torch.nn.GELU("tanh"),
        Block(torch.nn.LayerNorm(6, **kinds), torch.nn.Linear(6, 6, **kinds), torch.nn.Tanh()),
        torch.nn.Linear(6, 3, **kinds),
    )
    ours = list(model.parameters.values())
    with torch.no_grad():
        for mine, tensor in zip(ours, net.parameters(), strict=True):
            tensor.copy_(torch.tensor(mine.numpy().T.copy()))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=0.1)
    features, labels = torch.tensor(x), torch.tensor(y)
    for epoch in range(3):
        for rows in batches(30, 8, 5, epoch):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(features[rows]), labels[rows]).backward()
            optimizer.step()
    model.fit(x, y, epochs=3, batch_size=8)
    for mine, tensor in zip(ours, net.parameters(), strict=True):
        np.testing.assert_allclose(mine, tensor.detach().numpy().T, rtol=1e-6, atol=1e-8)
    net.eval()
    with torch.no_grad():
        expected = net(features).softmax(-1).numpy()
    np.testing.assert_allclose(model.predict_proba(x), expected, rtol=1e-6, atol=1e-9)


def test_normalised_values_share_the_memory_of_the_centred_ones():
    x = graph.placeholder((64, 32))
    y = graph.normalise(x, 0, 1e-5).values
    plan = graph.Plan([x, y], Ops())
    # x, and one array for centred and normalised; squares stand where nothing stood before.
    assert plan.size_bytes <= 3 * x.size * 4 + 4 * 64 * 32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BatchNorm(momentum=1), "momentum"),
        (lambda: BatchNorm(momentum=-0.1), "momentum"),
        (lambda: BatchNorm(epsilon=0), "epsilon"),
        (lambda: LayerNorm(epsilon=-1), "epsilon"),
    ],
)
def test_hyperparameters_out_of_range(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()
