"""SGD against its formula in float64, and against torch."""

import itertools

import numpy as np
import pytest

from dnn import SGD, graph
from dnn.backend import Ops
from dnn.errors import ConfigurationError
from dnn.optimizers import BLOCK
from dnn.parameters import FlatBuffer, segments_of

SETTINGS = list(itertools.product([0.1], [0.0, 0.9], [0.0, 0.01]))


def buffers(shapes, dtype="f4"):
    variables = [graph.variable(shape, dtype, name) for name, shape in shapes.items()]
    segments = segments_of(variables)
    parameters, gradients = (FlatBuffer(segments, dtype, Ops()) for _ in range(2))
    generator = np.random.default_rng(0)
    for name, shape in shapes.items():
        parameters[name][...] = generator.normal(size=shape)
    return parameters, gradients


def test_segments_are_named_views_that_begin_at_cache_lines():
    parameters, _ = buffers({"a.weight": (3, 5), "a.bias": (5,), "b.weight": (2, 2)})
    assert [segment.name for segment in parameters.segments] == ["a.weight", "a.bias", "b.weight"]
    assert [segment.start for segment in parameters.segments] == [0, 16, 32]
    assert parameters.flat.ctypes.data % 64 == 0
    parameters["a.bias"][...] = 7
    assert parameters.flat[16:21].tolist() == [7] * 5
    assert np.shares_memory(parameters["b.weight"], parameters.flat)


@pytest.mark.parametrize(("rate", "momentum", "decay"), SETTINGS)
def test_sgd_follows_its_formula(rate, momentum, decay):
    shapes = {"a.weight": (300, BLOCK // 200), "a.bias": (7,)}  # more than one block
    parameters, gradients = buffers(shapes)
    update = SGD(rate, momentum, decay).bind(Ops(), parameters, gradients)
    generator = np.random.default_rng(1)
    expected = {name: parameters[name].astype("f8") for name in shapes}
    velocity = {name: np.zeros(shape) for name, shape in shapes.items()}
    for _ in range(4):
        for name, shape in shapes.items():
            slope = generator.normal(size=shape)
            gradients[name][...] = update.gradient_scale * slope
            slope = slope + decay * expected[name]
            velocity[name] = momentum * velocity[name] + slope
            expected[name] -= rate * velocity[name]
        update.run()
    for name in shapes:
        np.testing.assert_allclose(parameters[name], expected[name], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("rate", "momentum", "decay"), SETTINGS)
def test_sgd_against_torch(rate, momentum, decay):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    parameters, gradients = buffers({"w": (5, 4)}, "f8")
    tensor = torch.nn.Parameter(torch.tensor(parameters["w"].copy()))
    theirs = torch.optim.SGD([tensor], lr=rate, momentum=momentum, weight_decay=decay)
    update = SGD(rate, momentum, decay).bind(Ops(), parameters, gradients)
    for seed in range(5):
        slope = np.random.default_rng(seed).normal(size=(5, 4))
        gradients["w"][...] = update.gradient_scale * slope
        tensor.grad = torch.tensor(slope)
        update.run()
        theirs.step()
        np.testing.assert_allclose(parameters["w"], tensor.detach().numpy(), rtol=1e-12)


def test_decay_leaves_out_what_it_is_told_to():
    parameters, gradients = buffers({"a.weight": (2, 2), "a.bias": (2,)})
    before = parameters.flat.copy()
    SGD(0.1, weight_decay=0.5, no_decay=["bias"]).bind(Ops(), parameters, gradients).run()
    np.testing.assert_allclose(parameters["a.weight"].ravel(), before[:4] * 0.95, rtol=1e-6)
    np.testing.assert_array_equal(parameters["a.bias"], before[16:18])


def test_the_rate_can_change_between_steps():
    parameters, gradients = buffers({"w": (3,)})
    before = parameters["w"].copy()
    gradients["w"][...] = 1
    update = SGD(0.1, 0.9).bind(Ops(), parameters, gradients)
    update.scalars["minus_rate"][...] = -0.5
    update.run()
    np.testing.assert_allclose(parameters["w"], before - 0.5, rtol=1e-6)


@pytest.mark.parametrize("rate", [0.1, np.float64(0.1), np.float32(0.1)])
def test_float32_stays_float32(rate):
    parameters, gradients = buffers({"w": (3,)})
    update = SGD(rate, 0.9, np.float64(0.01)).bind(Ops(), parameters, gradients)
    update.run()
    assert all(scalar.dtype == np.float32 for scalar in update.scalars.values())
    assert parameters.flat.dtype == update.state["velocity"].flat.dtype == np.float32


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate": 0},
        {"learning_rate": -1},
        {"learning_rate": float("nan")},
        {"momentum": 1},
        {"momentum": -0.1},
        {"weight_decay": -1},
        {"weight_decay": float("inf")},
    ],
)
def test_hyperparameters_out_of_range(settings):
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        SGD(**settings)
