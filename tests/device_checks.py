"""What holds on every device that is no CPU: run on a GPU, and on a stand-in for CuPy."""

from __future__ import annotations

import numpy as np

import dnn
from dnn import graph
from dnn.backend.ops import Ops
from dnn.network import Network

OPTIMIZERS = [
    dnn.SGD(0.1),
    dnn.SGD(0.1, momentum=0.9, weight_decay=0.01),
    dnn.SGD(0.1, momentum=0.9, nesterov=True),
    dnn.AdaGrad(0.1),
    dnn.RMSProp(0.01, momentum=0.5),
    dnn.Adam(0.01, weight_decay=0.01),
    dnn.AdamW(0.01, weight_decay=0.1),
]


def check_operation(ops, expression, values, generator):
    """Compare values and gradients of an expression with the oracle's, in float64."""
    nodes = [graph.placeholder(x.shape, np.float64) for x in values]
    y = expression(*nodes)
    v = graph.constant(generator.normal(size=y.shape), np.float64)
    slopes = graph.gradients(y, nodes, v)
    feeds = dict(zip(nodes, values, strict=True))
    found = graph.evaluate([y, *slopes], feeds, ops)
    expected = graph.evaluate([y, *slopes], feeds, Ops())
    for mine, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-10, atol=1e-12)


def data(samples=50, features=6, classes=3):
    """Samples whose classes can be told apart."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, classes, samples)
    centres = generator.normal(size=(classes, features))
    x = centres[y] + 0.3 * generator.normal(size=(samples, features))
    return x.astype(np.float32), y


def small_net():
    """Every kind of layer that there is a kernel for."""
    return [
        dnn.Input(6),
        dnn.FullyConnected(8),
        dnn.BatchNorm(),
        dnn.Activation("relu"),
        dnn.Dropout(0.2),
        dnn.FullyConnected(8),
        dnn.LayerNorm(),
        dnn.Activation("tanh"),
        dnn.FullyConnected(3),
    ]


def plain_net():
    """No layer takes a mean away again.

    The gradient of a bias before such a layer is rounding errors alone, and Adam makes steps of
    full length from them.
    """
    layers = [dnn.Input(6), dnn.FullyConnected(8), dnn.Activation("tanh"), dnn.Dropout(0.2)]
    return [*layers, dnn.FullyConnected(8), dnn.Activation("sigmoid"), dnn.FullyConnected(3)]


def trained(device, optimizer, layers=None, epochs=3, seed=4):
    """Train a small network with a partial last batch."""
    x, y = data()
    model = dnn.NeuralNetwork(layers or small_net(), optimizer=optimizer, seed=seed, device=device)
    history = model.fit(x, y, epochs=epochs, batch_size=16, progress=False)
    return model, history


def check_training(device, optimizer):
    """Train on a device and in NumPy: the same losses, predictions and noise, to rounding."""
    net = small_net if isinstance(optimizer, dnn.SGD) else plain_net
    mine, history = trained(device, optimizer, net())
    oracle, expected = trained("numpy", optimizer, net())
    np.testing.assert_allclose(history.loss, expected.loss, rtol=2e-3)
    x, y = data()
    probabilities = mine.predict_proba(x)
    np.testing.assert_allclose(probabilities, oracle.predict_proba(x), rtol=2e-2, atol=2e-3)
    assert history.loss[-1] < history.loss[0]
    assert mine.evaluate(x, y)["loss"] > 0
    return mine


def check_several_models(ops):
    """K networks in one plan: each as if it were alone, on the same device."""
    x, y = data(samples=16)
    losses = []
    for seed in ([3, 4], 3, 4):
        layers = [dnn.Input(6), dnn.FullyConnected(5), dnn.Activation("tanh")]
        layers += [dnn.Dropout(0.3), dnn.FullyConnected(3)]
        network = Network(layers, dnn.SoftmaxCrossEntropy(), seed, np.dtype("f4"), ops)
        update = dnn.SGD(0.1, momentum=0.9).bind(ops, network.parameters, network.gradients)
        step = network.training_plan(16)
        found = []
        for _ in range(3):
            ops.load(x, step.x)
            ops.load(y, step.target)
            step.plan.run()
            update.run()
            found.append(np.array(ops.to_host(step.loss)))
        losses.append(np.array(found))
    together, first, second = losses
    assert together.shape == (3, 2)
    np.testing.assert_allclose(together[:, 0], first, rtol=1e-5)
    np.testing.assert_allclose(together[:, 1], second, rtol=1e-5)
