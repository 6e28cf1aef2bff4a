"""What holds on every device that is no CPU: run on a GPU, and on a stand-in for CuPy."""

from __future__ import annotations

import image_problems
import numpy as np
import pytest

import dnn
from dnn import graph, linalg
from dnn.backend.ops import Ops
from dnn.backend.rounding import narrow, widen
from dnn.losses import loss_of
from dnn.nets import basic_block
from dnn.optimizers.schedules import Cosine
from dnn.precision import PRECISIONS
from dnn.training.network import Network

OPTIMIZERS = [
    dnn.SGD(0.1),
    dnn.SGD(0.1, momentum=0.9, weight_decay=0.01),
    dnn.SGD(0.1, momentum=0.9, nesterov=True),
    dnn.AdaGrad(0.1),
    dnn.RMSProp(0.01, momentum=0.5),
    dnn.Adam(0.01, weight_decay=0.01),
    dnn.AdamW(0.01, weight_decay=0.1),
    dnn.NAdam(0.01),
]


MOST = float(np.finfo(np.float32).max)
INFINITY = np.inf
SUBNORMAL = "relu of numbers below the least normal one"


def _masked_loss(x):
    return graph.softmax_cross_entropy(x, graph.constant(np.eye(3)[[0, 1]]))


def _weighted_loss(x):
    labels = graph.constant([0, 1], np.intp)
    return dnn.SoftmaxCrossEntropy([1.0, 1.0, 1.0]).value(x, labels)


def _likely(x):
    return graph.binary_cross_entropy(x, graph.constant([1.0, 0.0, 1.0, 0.5]))


# What is at a kink, at 0, or at the end of what float32 holds: the expression, its operands, its
# values, and its gradient with respect to each operand.
EDGES = {
    "elu": (
        graph.elu,
        [[0.0, 1e-9, -1e-9, -20.0, 90.0, -MOST]],
        [0.0, 1e-9, -1e-9, -1.0, 90.0, -1.0],
        [[1.0, 1.0, 1.0, 2.0611537e-9, 1.0, 0.0]],
    ),
    "elu with another slope": (
        lambda x: graph.elu(x, 0.5),
        [[0.0, -1e-9]],
        [0.0, -5e-10],
        [[0.5] * 2],
    ),
    "clip": (
        lambda x: graph.clip(x, -1.0, 2.0),
        [[-1.0, 2.0, 0.0, -3.0, 3.0, INFINITY]],
        [-1.0, 2.0, 0.0, -1.0, 2.0, 2.0],
        [[1.0, 1.0, 1.0, 0.0, 0.0, 0.0]],
    ),
    "clip on one side": (
        lambda x: graph.clip(x, low=0.0),
        [[0.0, -1.0, INFINITY]],
        [0.0, 0.0, INFINITY],
        [[1.0, 0.0, 1.0]],
    ),
    "maximum": (
        graph.maximum,
        [[1.0, 2.0, INFINITY], [1.0, 3.0, INFINITY]],
        [1.0, 3.0, INFINITY],
        [[0.5, 0.0, 0.5], [0.5, 1.0, 0.5]],
    ),
    "minimum": (graph.minimum, [[1.0, 2.0], [1.0, 3.0]], [1.0, 2.0], [[0.5, 1.0], [0.5, 0.0]]),
    "relu": (graph.relu, [[0.0, -0.0, 2.0]], [0.0, 0.0, 2.0], [[0.0, 0.0, 1.0]]),
    SUBNORMAL: (graph.relu, [[1e-45, -1e-45]], [1e-45, 0.0], [[1.0, 0.0]]),
    "to the power of 0": (lambda x: x**0, [[0.0, 2.0]], [1.0, 1.0], [[0.0, 0.0]]),
    "to the power of 3": (lambda x: x**3, [[0.0, 2.0]], [0.0, 8.0], [[0.0, 12.0]]),
    "power": (
        graph.power,
        [[0.0, 0.0, 0.0, 2.0, 2.0], [2.0, 1.0, 0.0, 0.0, 3.0]],
        [0.0, 0.0, 1.0, 1.0, 8.0],
        [[0.0, 1.0, 0.0, 0.0, 12.0], [0.0, 0.0, 0.0, np.log(2.0), 8 * np.log(2.0)]],
    ),
    "power of 0 to less than 0": (
        graph.power,
        [[0.0], [-1.0]],
        [INFINITY],
        [[-INFINITY], [-INFINITY]],
    ),
    "a power over relu": (
        lambda x, b: graph.relu(x) ** b,
        [[-1.0, 0.0, 4.0, -2.0], [0.5, 0.7, 0.5, 2.0]],
        [0.0, 0.0, 2.0, 0.0],
        [[0.0, 0.0, 0.25, 0.0], [0.0, 0.0, 2 * np.log(4.0), 0.0]],
    ),
    "a root over maximum": (
        lambda x: graph.sqrt(graph.maximum(x, 0.0)),
        [[-1.0, 4.0]],
        [0.0, 2.0],
        [[0.0, 0.25]],
    ),
    "sigmoid": (
        graph.sigmoid,
        [[-20.0, -87.0, -100.0, -MOST, 20.0, MOST]],
        [2.0611537e-9, 1.6458115e-38, 3.783506e-44, 0.0, 1.0, 1.0],
        [[2.0611537e-9, 1.6458115e-38, 3.783506e-44, 0.0, None, 0.0]],
    ),
    "gelu": (
        graph.gelu,
        [[3.3e38, -3.3e38, 30.0, -30.0, 0.0, -5.0]],
        [3.3e38, 0.0, 30.0, 0.0, 0.0, -2.2918e-7],
        [[1.0, 0.0, 1.0, 0.0, 0.5, None]],
    ),
    "exact_gelu": (
        graph.exact_gelu,
        [[3.3e38, -3.3e38, 50.0, -50.0, 0.0, -5.0]],
        [3.3e38, 0.0, 50.0, 0.0, 0.0, -1.4332578e-6],
        [[1.0, 0.0, 1.0, 0.0, 0.5, None]],
    ),
    "softplus": (
        graph.softplus,
        [[0.0, -20.0, MOST, -MOST]],
        [np.log(2.0), 2.0611537e-9, MOST, 0.0],
        [[0.5, 2.0611537e-9, 1.0, 0.0]],
    ),
    "expm1": (graph.expm1, [[1e-20, -200.0]], [1e-20, -1.0], [[1.0, 0.0]]),
    "a class that is masked": (
        _masked_loss,
        [[[0.0, -INFINITY, 0.0], [-INFINITY, 5.0, -INFINITY]]],
        0.5 * np.log(2.0),
        [[[-0.25, 0.0, 0.25], [0.0, 0.0, 0.0]]],
    ),
    "a class that is masked, with weights": (
        _weighted_loss,
        [[[0.0, -INFINITY, 0.0], [-INFINITY, 5.0, -INFINITY]]],
        0.5 * np.log(2.0),
        [[[-0.25, 0.0, 0.25], [0.0, 0.0, 0.0]]],
    ),
    "huge logits": (
        _masked_loss,
        [[[3e38, -3e38, 0.0], [3e38, 0.0, 3e38]]],
        1.5e38,
        [[[0.0, 0.0, 0.0], [0.25, -0.5, 0.25]]],
    ),
    "losses whose sum overflows": (
        lambda x: graph.softmax_cross_entropy(x, graph.constant(np.eye(2)[[0, 0, 0]])),
        [[[0.0, 3e38]] * 3],
        3e38,
        [[[-1 / 3, 1 / 3]] * 3],
    ),
    "binary cross entropy": (
        _likely,
        [[20.0, -20.0, 3e38, 20.0]],
        [2.0611537e-9, 2.0611537e-9, 0.0, 10.0],
        [[None, 2.0611537e-9, 0.0, 0.5]],
    ),
}


def check_edges(ops, name, atol=1e-45):
    """Compare values and gradients at kinks and extremes with what they are; nothing warns."""
    expression, operands, values, gradients = EDGES[name]
    given = [np.array(x, np.float32) for x in operands]
    nodes = [graph.placeholder(x.shape) for x in given]
    y = expression(*nodes)
    outputs = [y, *graph.gradients(graph.sum(y), nodes)]
    found = graph.evaluate(outputs, dict(zip(nodes, given, strict=True)), ops)
    for mine, wanted in zip(found, [values, *gradients], strict=True):
        expected = np.array(wanted, np.float64)  # NaN: what rounds is not pinned down
        known = ~np.isnan(expected)
        np.testing.assert_allclose(mine[known], expected[known], rtol=3e-6, atol=atol)
        assert not np.isnan(mine).any()


def check_operation(ops, expression, values, generator):
    """Compare values and gradients of an expression with the oracle's, in float64."""
    nodes = [graph.placeholder(x.shape, np.float64) for x in values]
    y = expression(*nodes)
    v = graph.constant(generator.normal(size=y.shape), np.float64)
    gradients = graph.gradients(y, nodes, v)
    feeds = dict(zip(nodes, values, strict=True))
    found = graph.evaluate([y, *gradients], feeds, ops)
    expected = graph.evaluate([y, *gradients], feeds, Ops())
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


def plain_net(outputs=3):
    """No layer takes a mean away again.

    The gradient of a bias before such a layer is rounding errors alone, and Adam makes steps of
    full length from them.
    """
    layers = [dnn.Input(6), dnn.FullyConnected(8), dnn.Activation("tanh"), dnn.Dropout(0.2)]
    return [*layers, dnn.FullyConnected(8), dnn.Activation("sigmoid"), dnn.FullyConnected(outputs)]


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


NETS = {
    "LeNet-5": ((1, 12, 12), lambda: dnn.lenet5((1, 12, 12), 3)),
    "a residual block": (
        (3, 6, 6),
        lambda: [
            dnn.Input(3, 6, 6),
            *(
                dnn.Conv2D(4, 3, padding="same", bias=False),
                dnn.BatchNorm(),
                dnn.Activation("relu"),
            ),
            *basic_block(4, 8, 2),
            *(dnn.Conv2D(8, 3, padding=1, groups=8), dnn.AvgPool2D(2, stride=1)),
            *(dnn.GlobalAvgPool2D(), dnn.FullyConnected(3)),
        ],
    ),
    "recurrent cells": (
        (4, 3),
        lambda: [
            dnn.Input(4, 3),
            dnn.LSTM(4, bidirectional=True, return_sequences=True),
            *(dnn.GRU(3), dnn.FullyConnected(3)),
        ],
    ),
}
"""Networks of images and of sequences, by name: the shape of a sample, and the layers."""


def check_images_and_sequences(device, name):
    """Train a network, and two at once, on a device and in NumPy: the same to rounding."""
    shape, layers = NETS[name]
    generator = np.random.default_rng(2)
    y = generator.integers(0, 3, 10)
    x = (generator.normal(size=(3, *shape))[y] + 0.3 * generator.normal(size=(10, *shape))).astype(
        np.float32
    )
    found = []
    for where in (device, "numpy"):
        model = dnn.NeuralNetwork(layers(), optimizer=dnn.SGD(0.05, 0.9), seed=3, device=where)
        history = model.fit(x, y, epochs=2, batch_size=4, progress=False)
        networks = dnn.Ensemble(
            layers(), optimizer=dnn.SGD([0.05, 0.02]), seeds=[1, 2], device=where
        )
        of_several = [each.loss for each in networks.fit(x, y, epochs=2, batch_size=4)]
        found.append([history.loss, *of_several, model.predict_proba(x)])
    for mine, oracle in zip(*found, strict=True):
        np.testing.assert_allclose(mine, oracle, rtol=1e-3, atol=1e-4)


def check_precisions_of_images(device, precision):
    """Train two networks at once with products of a precision: as NumPy, which rounds there too."""
    shape, layers = NETS["a residual block"]
    generator = np.random.default_rng(2)
    x, y = generator.normal(size=(8, *shape)).astype(np.float32), np.arange(8) % 3
    found = []
    for where in (device, "numpy"):
        networks = dnn.Ensemble(
            layers(), optimizer=dnn.SGD(0.02), seeds=[1, 2], dtype=precision, device=where
        )
        found.append([each.loss for each in networks.fit(x, y, epochs=3, batch_size=4)])
    np.testing.assert_allclose(*found, rtol=2e-2)


def check_convolution(ops, seed, **given):
    """Compare each routine with NumPy in float64: random shapes, of one network or three.

    What of the problem is given is not drawn.
    """
    problem = image_problems.convolution_of(seed, dtype=("f4", "f8")[seed % 3 == 0])
    if problem.kind == "forward":
        problem = problem._replace(bias=seed % 2 == 0, relu=seed % 3 == 0)
    if seed % 4 > 1:
        stacked = ((True, True), (True, False), (False, True))[seed % 3]
        problem = problem._replace(models=3, stacked=stacked)
    if seed % 5 == 0:
        window, padding = (1, 1), ((0, 0), (0, 0))
        problem = problem._replace(window=window, padding=padding, layout="NHWC", stride=(1, 1))
    problem = problem._replace(**given)
    inputs = image_problems.convolution_inputs(problem, seed)
    expected = image_problems.exact(problem, inputs)
    offered = ops.convolutions(problem)
    assert {routine.name for routine in offered} == {"im2col", "tiles", "direct"}
    largest = np.finfo(problem.dtype).eps * max(np.abs(expected).max(), 1)
    for routine in offered:
        found = image_problems.run(ops, routine, problem, inputs)
        wrong = np.abs(found - expected).max() / largest
        assert wrong < 10, (routine.name, problem, wrong)


ROUNDED = {"f4": 2e-5, "f2": 2**-11 + 2e-5, "u2": 2**-8 + 2e-5}
"""Largest error of results of a type, in parts of the largest of them, or of 1 if that is more."""


def check_reduced_convolution(ops, seed, problem=None):
    """Compare each routine with NumPy, on rounded operands: of a problem, or one that is drawn."""
    problem = problem or _reduced_convolution(seed)
    inputs, values = image_problems.rounded_inputs(problem, seed)
    expected = image_problems.exact(problem._replace(precision="float32"), values)
    dtype = problem.dtypes[-1] if seed % 7 else np.dtype(np.float32)
    offered = ops.convolutions(problem)
    names = {"im2col", "tensor_cores", *["direct"] * (problem.precision != "tf32")}
    assert {routine.name for routine in offered} == names
    largest = max(np.abs(expected).max(), 1) * ROUNDED[dtype.str[1:]]
    for routine in offered:
        found = image_problems.run(ops, routine, problem, inputs, dtype)
        if dtype == np.uint16:
            narrow, found = found, np.empty(found.shape, np.float32)
            widen(narrow, found)
        wrong = np.abs(found - expected)
        if routine.name == "im2col" and problem.precision == "tf32":
            # How much of the fraction cuBLAS takes, and how it rounds, differs from shape to shape.
            sizes = image_problems.exact(
                problem._replace(precision="float32", relu=False), [np.abs(x) for x in values]
            )
            wrong = np.maximum(wrong - sizes * 2**-10, 0)
        assert wrong.max() <= largest, (routine.name, problem, wrong.max())


def _reduced_convolution(seed):
    """Draw a problem of less precision; of half of them, images can be read 16 bytes at a time."""
    draw = np.random.default_rng(seed)
    problem = image_problems.convolution_of(
        seed, precision=("float16", "bfloat16", "tf32")[seed % 3]
    )
    if seed % 4 > 1:
        channels, filters = (problem.groups * 8 * int(n) for n in draw.integers(1, 9, 2))
        problem = problem._replace(layout="NHWC", channels=channels, filters=filters)
    if problem.kind == "forward":
        problem = problem._replace(bias=bool(draw.integers(2)), relu=bool(draw.integers(2)))
    if seed % 5 > 2:
        stacked = ((True, True), (True, False), (False, True))[draw.integers(3)]
        problem = problem._replace(models=3, stacked=stacked)
    return problem


def check_pooling(ops, kind, layout, most):
    """Compare with NumPy: the same bits."""
    generator, oracle = np.random.default_rng(7), image_problems.ORACLE
    for _ in range(12):
        problem = image_problems.pooling_of(kind, layout, generator, most)
        inputs = image_problems.pooling_inputs(problem, generator)
        found = image_problems.run(ops, ops.pooling(problem), problem, inputs)
        expected = image_problems.run(oracle, oracle.pooling(problem), problem, inputs)
        np.testing.assert_array_equal(found, expected, err_msg=str(problem))


def check_narrow_pooling(ops, kind, layout, kept):
    """Compare with NumPy's of float32, rounded once, where some arrays are narrow."""
    generator, oracle = np.random.default_rng(7), image_problems.ORACLE
    for turn in range(8):
        problem = image_problems.pooling_of(kind, layout, generator, 5)._replace(dtype="f4")
        inputs = image_problems.pooling_inputs(problem, generator)  # whole numbers, or not finite
        expected = image_problems.run(oracle, oracle.pooling(problem), problem, inputs)
        *narrow_inputs, is_narrow = [True] * 3 if turn < 4 else generator.integers(0, 2, 3)
        for at, x in enumerate(inputs):
            if narrow_inputs[at]:
                inputs[at] = np.empty(x.shape, kept)
                narrow(x, inputs[at])
        dtype = kept if is_narrow else None
        found = image_problems.run(ops, ops.pooling(problem), problem, inputs, dtype)
        if is_narrow:
            rounded, wide = np.empty(found.shape, kept), np.empty(found.shape, "f4")
            narrow(expected, rounded)
            widen(rounded, expected)
            widen(found, wide)
            found = wide
        np.testing.assert_array_equal(found, expected, err_msg=str(problem))


def check_several_models(ops):
    """K networks in one plan: each as if it were alone, on the same device."""
    x, y = data(samples=16)
    losses = []
    for seed in ([3, 4], 3, 4):
        layers = [dnn.Input(6), dnn.FullyConnected(5), dnn.Activation("tanh")]
        layers += [dnn.Dropout(0.3), dnn.FullyConnected(3)]
        network = Network(layers, dnn.SoftmaxCrossEntropy(), seed, PRECISIONS["float32"], ops)
        update = dnn.SGD(0.1, momentum=0.9).bind(ops, network.parameters, network.gradients)
        step = network.plan("training", 16)
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


def check_memory(device):
    """Every kind of memory on a device, and copies between them."""
    kinds = ["host", "device", "managed", "cuda_managed"]
    values = np.arange(7, dtype=np.float32)
    host = dnn.MemoryManager(7, kind="host")
    host.write_host(whole=True)[...] = values
    for dtype in ("float16", "float64"):
        typed = dnn.MemoryManager(5, dtype, "managed", device)
        typed.write_host(whole=True)[...] = 2.5
        assert typed.read_device().dtype == dtype
    for source_kind in kinds:
        source = dnn.MemoryManager(7, kind=source_kind, device=device)
        source.copy_from(host)
        if source_kind == "managed":
            source.write_device()
        for kind in kinds:
            target = dnn.MemoryManager(9, kind=kind, device=device)
            back = dnn.MemoryManager(9, kind="host")
            back.write_host()[...] = -1
            target.copy_from(back)
            target.copy_from(source, begin=1, size=5)
            back.copy_from(target)
            expected = [1, 2, 3, 4, 5, -1, -1, -1, -1]
            np.testing.assert_array_equal(back.read_host(), expected, f"{source_kind} to {kind}")
    managed = dnn.MemoryManager(7, kind="managed", device=device)
    managed.copy_from(host)
    managed.prefetch("device")
    managed.write_device()[:2] = 9
    managed.prefetch("host")
    np.testing.assert_array_equal(managed.read_host(), [9, 9, 2, 3, 4, 5, 6])
    unified = dnn.MemoryManager(7, kind="cuda_managed", device=device)
    unified.copy_from(host)
    unified.prefetch("device")
    unified.read_device()[:2] = 9
    unified.prefetch("host")
    np.testing.assert_array_equal(unified.read_host(), [9, 9, 2, 3, 4, 5, 6])


def check_tensors(device, cupy):
    """Tensors on a device: creation, parts, shapes, and the ways in and out."""
    there = dnn.Tensor((3, 4), "uniform", device=device, seed=3)
    here = dnn.Tensor((3, 4), "uniform", seed=3)
    assert str(there.device) == f"{device}:0"
    assert there.memory.kind.value == "device"
    np.testing.assert_array_equal(there, here)
    np.testing.assert_array_equal(there[1:, ::-2], here.numpy()[1:, ::-2])
    assert there[-1, -1] == here[-1, -1]
    there[0, 1:3] = [5, 6]
    there[:, 0] = 7
    np.testing.assert_array_equal(there[0], [7, 5, 6, here[0, 3]])
    np.testing.assert_array_equal(there.reshape(2, 6)[1], there.numpy().reshape(2, 6)[1])
    assert there.unsqueeze(1).squeeze().shape == (3, 4)
    view = there[:, 1:].cupy()
    assert view.shape == (3, 3)
    np.testing.assert_array_equal(cupy.asnumpy(view), there.numpy()[:, 1:])
    back = there[:, 1:].to("cpu")
    np.testing.assert_array_equal(back, there.numpy()[:, 1:])
    for kind in ("managed", "cuda_managed"):
        moved = here.to(device, kind)
        np.testing.assert_array_equal(moved, here)
        np.testing.assert_array_equal(cupy.asnumpy(moved.cupy()), here)
        moved[1] = 3
        np.testing.assert_array_equal(cupy.asnumpy(moved.cupy())[1], [3, 3, 3, 3])
    given = cupy.asarray(np.arange(6.0, dtype=np.float32).reshape(2, 3))
    np.testing.assert_array_equal(dnn.Tensor.from_array(given), [[0, 1, 2], [3, 4, 5]])
    there[1:, 1:] = given
    np.testing.assert_array_equal(there[1:, 1:], [[0, 1, 2], [3, 4, 5]])
    shared = dnn.Tensor.from_dlpack(given)
    given[0, 0] = 8
    assert shared[0, 0] == 8
    assert cupy.from_dlpack(shared).shape == (2, 3)
    assert cupy.asarray(shared).shape == (2, 3)
    x = graph.placeholder((2, 3))
    (y,) = graph.evaluate([x + shared], {x: shared})
    assert y[0, 0] == 16


def check_arithmetic(device):
    """Operators and reductions of tensors on a device, and what meets there."""
    values = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    for kind in ("device", "managed", "cuda_managed"):
        there = dnn.Tensor.from_array(values, kind=kind, device=device)
        computed = {
            "sum": there + there,
            "product": there @ there.T,
            "mask": there > 2,
            "total": there.sum(),
            "row": there.max(0, keepdims=True),
            "power": 2 ** there[0],
        }
        expected = {
            "sum": values + values,
            "product": values @ values.T,
            "mask": values > 2,
            "total": values.sum(),
            "row": values.max(0, keepdims=True),
            "power": 2 ** values[0],
        }
        for name, result in computed.items():
            assert isinstance(result, dnn.Tensor)
            assert str(result.device) == f"{device}:0"
            assert result.memory.kind.value == ("device" if kind == "device" else "managed")
            np.testing.assert_array_equal(result, expected[name], err_msg=name)
        there += there
        np.testing.assert_array_equal(there, values * 2)
        masked = dnn.Tensor.from_array(values, kind=kind, device=device)
        np.add(masked, 1, out=masked, where=masked > 2)
        np.testing.assert_array_equal(masked, np.where(values > 2, values + 1, values))
        misfits = {
            "add": lambda a: a + a.T,
            "matmul": lambda a: a @ a,
            "subtract": lambda a: np.subtract(a, a, out=a[0]),
            "multiply": lambda a: a.__imul__(a[None, :, None]),
        }
        for name, call in misfits.items():
            with pytest.raises(dnn.ShapeError, match=rf"^{name}: \(2, 3\) and .* do not fit"):
                call(there)
        there.set(1, 1, 0.5)
        assert there.get(1, 1) == 0.5
        here = dnn.Tensor.from_array(values, device="cpu")
        if kind == "device":
            for other in (here, values):
                with pytest.raises(dnn.DeviceError, match=f"operands on cpu and {device}:0"):
                    _ = there + other
            continue
        both = there * values + here
        assert str(both.device) == f"{device}:0"
        expected = there.numpy() * values + values
        np.testing.assert_array_equal(both, expected)
        np.testing.assert_array_equal(both + both, expected * 2)  # now on the device


def check_linear_algebra(device):
    """Decompositions and transforms of tensors on a device, as NumPy has them."""
    generator = np.random.default_rng(0)
    values = generator.normal(size=(2, 4, 3)).astype(np.float32)
    there = dnn.Tensor.from_array(values, device=device)
    u, s, vh = linalg.svd(there, full_matrices=False)
    assert [x.shape for x in (u, s, vh)] == [(2, 4, 3), (2, 3), (2, 3, 3)]
    np.testing.assert_allclose(u @ (s.unsqueeze(-1) * vh), values, rtol=1e-4, atol=1e-5)
    square = dnn.bmatmul(there.T, there)
    np.testing.assert_allclose(square, values.swapaxes(1, 2) @ values, rtol=1e-4, atol=1e-5)
    eigenvalues, vectors = linalg.eigh(square)
    for tensor in (u, s, vh, square, eigenvalues, vectors):
        assert isinstance(tensor, dnn.Tensor)
        assert tensor.device == there.device
    scaled = vectors * eigenvalues.unsqueeze(1)
    np.testing.assert_allclose(square @ vectors, scaled, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(linalg.eigvalsh(square), eigenvalues, rtol=1e-4, atol=1e-5)
    right, more = values[:, :3, :1], generator.normal(size=(2, 3, 3)).astype(np.float32)
    system = square + dnn.Tensor.from_array(np.eye(3, dtype=np.float32), device=device)
    exact = np.asarray(system)
    solved = linalg.solve(system, dnn.Tensor.from_array(right, device=device))
    found = {
        "solve": (solved, np.linalg.solve(exact, right)),
        "inv": (linalg.inv(system), np.linalg.inv(exact)),
        "cholesky": (linalg.cholesky(system), np.linalg.cholesky(exact)),
    }
    q, r = linalg.qr(there)
    found["qr"] = (dnn.bmatmul(q, r), values)
    x, residuals, rank, s = linalg.lstsq(there[0], there[1])
    found["lstsq"] = (x, np.linalg.lstsq(values[0], values[1], rcond=None)[0])
    assert (rank, s.shape, residuals.shape) == (3, (3,), (3,))
    vector = linalg.solve(system, dnn.Tensor.from_array(more[0, 0], device=device))
    found["vector"] = (vector, np.linalg.solve(exact, more[0, 0][:, None])[..., 0])
    for name, (tensor, expected) in found.items():
        assert tensor.device == there.device, name
        np.testing.assert_allclose(tensor, expected, rtol=1e-3, atol=1e-4, err_msg=name)
    for there_and_back, axes in (
        (lambda x: linalg.ifftn(linalg.fftn(x)), None),
        (lambda x: linalg.ifft2(linalg.fft2(x)), (-2, -1)),
    ):
        back = dnn.Tensor.from_array(there_and_back(there).real)
        np.testing.assert_allclose(back, values, rtol=1e-4, atol=1e-5)
        spectrum = linalg.fftn(there, axes=axes)
        real = dnn.Tensor.from_array(spectrum.real)
        np.testing.assert_allclose(real, np.fft.fftn(values, axes=axes).real, atol=1e-4)
    transformed = linalg.fft(there, axis=1)
    assert transformed.dtype.kind == "c"
    back = dnn.Tensor.from_array(linalg.ifft(transformed, axis=1).real)
    assert back.device == there.device
    np.testing.assert_allclose(back, values, rtol=1e-4, atol=1e-5)


def check_options(device):
    """Clipping, schedules, weights, other losses, types and mixed precision, as on the CPU."""
    x, y = data()
    targets = {"softmax_cross_entropy": y, "mean_squared_error": x[:, :3]}
    targets["binary_cross_entropy"] = y == 1
    clipped = dnn.SGD(0.1, momentum=0.9, schedule=Cosine(12), clip_norm=0.5, clip_value=0.2)
    cases = [
        ("softmax_cross_entropy", clipped, "float32", {"class_weight": "balanced"}),
        ("mean_squared_error", dnn.SGD(0.1), "float64", {}),
        ("binary_cross_entropy", dnn.SGD(0.1), "float32", {}),
        ("softmax_cross_entropy", dnn.SGD(0.1), "float16", {"class_weight": "balanced"}),
        ("softmax_cross_entropy", dnn.Adam(0.01), "bfloat16", {}),
        ("mean_squared_error", dnn.SGD(0.1), "tf32", {}),
    ]
    for loss, optimizer, dtype, options in cases:
        losses = []
        for where in (device, "numpy"):
            net = plain_net(1 if loss == "binary_cross_entropy" else 3)
            model = dnn.NeuralNetwork(net, loss, optimizer, seed=2, dtype=dtype, device=where)
            done = model.fit(x, targets[loss], epochs=2, batch_size=16, progress=False, **options)
            losses.append(done.loss)
        # A GPU may round to TF32 by cutting off.
        tolerance = 1e-4 if dtype in ("float32", "float64") else 2e-2
        np.testing.assert_allclose(*losses, rtol=tolerance, err_msg=f"{loss} {dtype}")


def targets_of(loss, y, outputs):
    """Return targets of a kind that a loss takes, made from classes."""
    if loss.takes == "classes":
        return y % loss.class_count((outputs,))
    rows = np.eye(3)[y][:, : loss.target_count((outputs,)) if loss.name == "quantile" else outputs]
    return {"distributions": 0.7 * rows + 0.1, "counts": 3 * rows}.get(loss.takes, rows)


def check_loss(device, name):
    """A loss, with weights of samples, for networks with numbers of their own."""
    x, y = data(40)
    numbers = {"focal": {"gamma": [0.5, 2.0]}, "huber": {"delta": [0.2, 2.0]}}
    loss = loss_of({"name": name, **numbers.get(name, {})})
    outputs = loss.output_count(2 if name == "quantile" else 3)
    targets, found = targets_of(loss, y, outputs), []
    for where in (device, "numpy"):
        layers = [dnn.Input(6), dnn.FullyConnected(outputs), *map(dnn.Activation, loss.needs)]
        networks = dnn.Ensemble(layers, loss, seeds=[1, 2], device=where)
        networks.fit(x, targets, epochs=2, batch_size=16, sample_weight=0.5 + y)
        losses = [history.loss for history in networks.histories]
        measured = [result["loss"] for result in networks.evaluate(x, targets)]
        found.append(np.column_stack([losses, measured]))
    np.testing.assert_allclose(*found, rtol=1e-5)


def check_precisions(device):
    """Three networks at once in each precision, of which float16 is too short for the second."""
    x, y = data()
    optimizer = dnn.SGD([0.1, 3e6, 0.2], momentum=0.9)
    for dtype in ("tf32", "float16", "bfloat16"):
        found = []
        for where in (device, "numpy"):
            networks = dnn.Ensemble(
                plain_net(), optimizer=optimizer, seeds=[1, 2, 3], dtype=dtype, device=where
            )
            replays = []

            def look(epoch, active, histories, networks=networks, replays=replays):
                ops = networks._network.ops
                replays += [] if type(ops) is Ops else ops.replays()
                return ()

            histories = networks.fit(x, y, epochs=3, batch_size=16, on_epoch=look)
            found.append([histories[k].loss for k in (0, 2)])
            assert histories[1].diverged == (dtype == "float16")
            assert (histories[1].skipped_steps > histories[0].skipped_steps) == (dtype == "float16")
            if where == device:
                assert any(text.endswith("as one CUDA graph") for text in replays), replays
        np.testing.assert_allclose(*found, rtol=2e-2, err_msg=dtype)


def check_statistics_of_skipped_steps(device):
    """A step with infinite gradients leaves running statistics alone, in that network alone."""
    generator = np.random.default_rng(0)
    x, y = generator.uniform(0.5, 1.0, (64, 3)).astype("f"), np.arange(64) % 2
    layers = [dnn.Input(3), dnn.FullyConnected(4), dnn.BatchNorm(), dnn.FullyConnected(2)]
    networks = dnn.Ensemble(layers, seeds=[1, 2, 3], dtype="float16", device=device)
    weight = networks.parameters["fully_connected_1.weight"]
    weight[1] = 60000.0  # summed up over 3 features: infinite in float16, and so is the mean
    before = {name: np.array(state) for name, state in networks.states.items()}
    for _ in range(3):  # the second run on a GPU captures, the third replays
        histories = networks.fit(x, y, batch_size=64)
    assert [history.skipped_steps for history in histories] == [0, 1, 0]
    for name, state in networks.states.items():
        after = np.array(state)
        np.testing.assert_array_equal(after[1], before[name][1], err_msg=name)
        assert np.isfinite(after).all(), name
        assert (after[::2] != before[name][::2]).all(), name
    alone = dnn.NeuralNetwork(
        [dnn.Input(3), dnn.FullyConnected(4), dnn.BatchNorm(), dnn.FullyConnected(2)],
        dtype="float16",
        device=device,
    )
    alone.parameters["fully_connected_1.weight"][...] = 60000.0
    ops = alone._network.ops
    before = {name: ops.to_host(x).copy() for name, x in alone.trained_arrays().items()}
    with pytest.warns(dnn.MixedPrecisionWarning):
        alone.fit(x, y, batch_size=32, progress=False)
    for name, array in alone.trained_arrays().items():
        if not name.startswith("optimizer"):  # where the scale stands
            np.testing.assert_array_equal(ops.to_host(array), before[name], err_msg=name)


def check_not_finite(device):
    """The first node that is NaN is named."""
    x, y = data()
    model = dnn.NeuralNetwork(plain_net(), seed=2, device=device, check_finite=True)
    model.parameters["fully_connected_2.weight"][...] = np.inf
    with pytest.raises(dnn.NonFiniteError, match="fully_connected_2"):
        model.fit(x, y, epochs=1, batch_size=16, progress=False)


def check_minimize(device, ops):
    """A graph of one's own is minimised."""
    from dnn.optimizers.minimization import Minimization

    assert callable(dnn.minimize)  # a module of that name would hide the function

    x = graph.placeholder((4,))
    slope = graph.variable(value=np.zeros((), np.float32))
    loss = graph.mean(graph.square(x * slope - x * 3.0))
    search = Minimization(loss, dnn.SGD(0.1), ops=ops)
    for _ in range(50):
        last = search.step({x: [1, 2, 3, 0.5]})
    assert last < 1e-6
    assert abs(float(slope.attributes["value"]) - 3) < 1e-3
