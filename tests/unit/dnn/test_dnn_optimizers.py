"""Optimizers against their formulas in float64, against torch, and K networks against one."""

import math
import re
import tracemalloc

import numpy as np
import pytest

from dnn import SGD, AdaGrad, Adam, AdamW, NAdam, RMSProp, graph
from dnn.backend import Ops
from dnn.errors import ConfigurationError, ShapeError
from dnn.optimizers import BLOCK
from dnn.parameters import FlatBuffer, Segment, segments_of

# Each optimizer with and without its options, and the same in torch where that has it.
SETTINGS = {
    "sgd": (SGD(0.1), "SGD", {"lr": 0.1}),
    "sgd_decay": (SGD(0.1, 0, 0.01), "SGD", {"lr": 0.1, "weight_decay": 0.01}),
    "momentum": (SGD(0.1, 0.9), "SGD", {"lr": 0.1, "momentum": 0.9}),
    "momentum_decay": (
        SGD(0.1, 0.9, 0.01),
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    ),
    "nesterov": (
        SGD(0.1, 0.9, 0.01, nesterov=True),
        "SGD",
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
    ),
    "sgd_decoupled": (SGD(0.1, 0, 0.2, decoupled=True), None, {}),
    "momentum_decoupled": (SGD(0.1, 0.9, 0.2, decoupled=True), None, {}),
    "nesterov_decoupled": (SGD(0.1, 0.9, 0.2, nesterov=True, decoupled=True), None, {}),
    "adagrad": (AdaGrad(0.1), "Adagrad", {"lr": 0.1}),
    "adagrad_decay": (
        AdaGrad(0.1, weight_decay=0.01),
        "Adagrad",
        {"lr": 0.1, "weight_decay": 0.01},
    ),
    "adagrad_decoupled": (AdaGrad(0.1, weight_decay=0.2, decoupled=True), None, {}),
    "rmsprop": (RMSProp(0.01), "RMSprop", {"lr": 0.01}),
    "rmsprop_momentum": (
        RMSProp(0.01, 0.9, momentum=0.5, weight_decay=0.01),
        "RMSprop",
        {"lr": 0.01, "alpha": 0.9, "momentum": 0.5, "weight_decay": 0.01},
    ),
    "rmsprop_decoupled": (
        RMSProp(0.01, momentum=0.5, weight_decay=0.2, decoupled=True),
        None,
        {},
    ),
    "adam": (Adam(), "Adam", {}),
    "adam_decay": (
        Adam(0.01, 0.8, 0.99, weight_decay=0.1),
        "Adam",
        {"lr": 0.01, "betas": (0.8, 0.99), "weight_decay": 0.1},
    ),
    "adamw": (AdamW(0.01, weight_decay=0.1), "AdamW", {"lr": 0.01, "weight_decay": 0.1}),
    "nadam": (NAdam(), "NAdam", {}),
    "nadam_decay": (
        NAdam(0.01, 0.8, 0.99, weight_decay=0.1, momentum_decay=0.01),
        "NAdam",
        {"lr": 0.01, "betas": (0.8, 0.99), "weight_decay": 0.1, "momentum_decay": 0.01},
    ),
    "nadam_decoupled": (
        NAdam(0.01, weight_decay=0.1, decoupled=True),
        "NAdam",
        {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True},
    ),
}


def buffers(shapes, dtype="f4", models=None):
    variables = [graph.variable(shape, dtype, name) for name, shape in shapes.items()]
    segments = segments_of(variables)
    parameters, gradients = (FlatBuffer(segments, dtype, Ops(), models) for _ in range(2))
    generator = np.random.default_rng(0)
    for name in shapes:
        parameters[name][...] = generator.normal(size=parameters[name].shape)
    return parameters, gradients


def train(update, gradients, steps, seed=1):
    generator = np.random.default_rng(seed)
    for _ in range(steps):
        for segment in gradients.segments:
            part = gradients[segment.name]
            part[...] = generator.normal(size=part.shape)
        update.run()


def test_segments_are_named_views_that_begin_at_cache_lines():
    parameters, _ = buffers({"a.weight": (3, 5), "a.bias": (5,), "b.weight": (2, 2)})
    assert [segment.name for segment in parameters.segments] == ["a.weight", "a.bias", "b.weight"]
    assert [segment.start for segment in parameters.segments] == [0, 16, 32]
    assert parameters.flat.ctypes.data % 64 == 0
    parameters["a.bias"][...] = 7
    assert parameters.flat[16:21].tolist() == [7] * 5
    assert np.shares_memory(parameters["b.weight"], parameters.flat)


def test_the_segments_of_k_networks_are_views_with_k_in_front():
    parameters, _ = buffers({"a.weight": (3, 5), "a.bias": (5,), "s": ()}, models=4)
    assert parameters.flat.shape == (4, 48)
    for name, shape in {"a.weight": (4, 3, 5), "a.bias": (4, 5), "s": (4,)}.items():
        assert parameters[name].shape == shape
        parameters[name][...] = 7
    assert all(row.ctypes.data % 64 == 0 for row in parameters.flat)
    assert (parameters.flat != 0).sum(axis=1).tolist() == [21] * 4


@pytest.mark.parametrize("setting", [name for name, given in SETTINGS.items() if given[1]])
def test_against_torch(setting):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    optimizer, name, options = SETTINGS[setting]
    parameters, gradients = buffers({"w": (5, 4)}, "f8")
    tensor = torch.nn.Parameter(torch.tensor(parameters["w"].copy()))
    theirs = getattr(torch.optim, name)([tensor], **options)
    update = optimizer.bind(Ops(), parameters, gradients)
    rtol = 1e-8 if name == "NAdam" else 1e-11  # whose product of momenta torch has in float32
    for seed in range(6):
        train(update, gradients, 1, seed)
        tensor.grad = torch.tensor(gradients["w"])
        theirs.step()
        np.testing.assert_allclose(parameters["w"], tensor.detach().numpy(), rtol=rtol)


def formula(setting):
    """Return a function (w, g) -> w of one step in float64, written down once more."""
    optimizer = SETTINGS[setting][0]
    h = dict(optimizer.hyperparameters)
    rate, decay = h["learning_rate"], h["weight_decay"]
    m = v = s = 0.0
    t, product = 0, 1.0

    def step(w, g):
        nonlocal m, v, s, t, product
        t += 1
        if optimizer.decoupled:
            w, d = w * (1 - rate * decay), g
        else:
            d = g + decay * w
        if setting.startswith(("sgd", "momentum", "nesterov")):
            v = h["momentum"] * v + d
            return w - rate * (d + h["momentum"] * v if optimizer.nesterov else v)
        if setting.startswith("adagrad"):
            s = s + d**2
            return w - rate * d / (np.sqrt(s) + h["epsilon"])
        if setting.startswith("rmsprop"):
            s = h["smoothing"] * s + (1 - h["smoothing"]) * d**2
            v = h["momentum"] * v + d / (np.sqrt(s) + h["epsilon"])
            return w - rate * v
        m = h["beta1"] * m + (1 - h["beta1"]) * d
        s = h["beta2"] * s + (1 - h["beta2"]) * d**2
        if setting.startswith("nadam"):
            of_now, after = (
                h["beta1"] * (1 - 0.5 * 0.96 ** (n * h["momentum_decay"])) for n in (t, t + 1)
            )
            product *= of_now
            moved = after * m / (1 - product * after) + (1 - of_now) * d / (1 - product)
            return w - rate * moved / (np.sqrt(s / (1 - h["beta2"] ** t)) + h["epsilon"])
        m_hat, s_hat = m / (1 - h["beta1"] ** t), s / (1 - h["beta2"] ** t)
        return w - rate * m_hat / (np.sqrt(s_hat) + h["epsilon"])

    return step


@pytest.mark.parametrize("setting", SETTINGS)
def test_follows_its_formula_over_several_blocks_in_float32(setting):
    shapes = {"a.weight": (300, BLOCK // 200), "a.bias": (7,)}
    parameters, gradients = buffers(shapes)
    expected = {name: parameters[name].astype("f8") for name in shapes}
    update = SETTINGS[setting][0].bind(Ops(), parameters, gradients)
    steps = {name: formula(setting) for name in shapes}
    for seed in range(3):
        train(update, gradients, 1, seed)
        for name in shapes:
            expected[name] = steps[name](expected[name], gradients[name].astype("f8"))
    assert parameters.flat.dtype == np.float32
    for name in shapes:
        np.testing.assert_allclose(parameters[name], expected[name], rtol=5e-6, atol=5e-6)


@pytest.mark.parametrize("setting", SETTINGS)
def test_k_networks_equal_single_ones_bit_for_bit(setting):
    shapes = {"a.weight": (13, 7), "a.bias": (7,)}
    rates = [0.1, 0.01, 0.3]
    options = dict(SETTINGS[setting][0].hyperparameters)
    kind = type(SETTINGS[setting][0])
    extra = {name: True for name in ("nesterov", "decoupled") if name in setting and kind is SGD}
    together, slopes = buffers(shapes, models=3)
    start = together.flat.copy()
    update = kind(**(options | extra | {"learning_rate": rates})).bind(Ops(), together, slopes)
    assert all(array.shape == (3,) for array in update.scalars.values())
    train(update, slopes, 4)
    for k, rate in enumerate(rates):
        single, slope = buffers(shapes)
        single.flat[...] = start[k, : single.flat.size]
        one = kind(**(options | extra | {"learning_rate": rate})).bind(Ops(), single, slope)
        generator = np.random.default_rng(1)
        for _ in range(4):
            for name, shape in shapes.items():
                slope[name][...] = generator.normal(size=(3, *shape))[k]
            one.run()
        for name in shapes:
            assert together[name][k].tobytes() == single[name].tobytes()


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_step_allocates_nothing_and_stays_in_float32(setting):
    parameters, gradients = buffers({"w": (300, BLOCK // 200)})
    update = SETTINGS[setting][0].bind(Ops(), parameters, gradients)
    train(update, gradients, 1)
    tracemalloc.start()
    try:
        update.run()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        for _ in range(3):
            update.run()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 4096
    states = [b.flat for name, b in update.state.items() if name != "count"]
    assert all(x.dtype == np.float32 for x in (*states, *update.scalars.values()))


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_snapshot_continues_bit_for_bit(setting):
    shapes = {"a.weight": (13, 7), "a.bias": (7,)}
    optimizer = SETTINGS[setting][0]
    parameters, gradients = buffers(shapes)
    update = optimizer.bind(Ops(), parameters, gradients)
    train(update, gradients, 3)
    update.scalars["learning_rate"][...] = 0.05
    saved, weights = update.snapshot(), parameters.flat.copy()
    train(update, gradients, 3, seed=2)
    again, slopes = buffers(shapes)
    again.flat[...] = weights
    other = optimizer.bind(Ops(), again, slopes)
    other.restore(saved)
    assert other.steps_done == 3
    train(other, slopes, 3, seed=2)
    assert again.flat.tobytes() == parameters.flat.tobytes()
    assert other.steps_done == update.steps_done == 6


def test_a_snapshot_of_another_optimizer_or_network_is_refused():
    update = Adam().bind(Ops(), *buffers({"w": (3,)}))
    before = update.snapshot()
    with pytest.raises(ShapeError, match=r"state\.velocity"):
        update.restore(SGD(0.1, 0.9).bind(Ops(), *buffers({"w": (3,)})).snapshot())
    with pytest.raises(ShapeError, match=r"state\.mean.*\(3,\).*\(4,\)"):
        update.restore(Adam().bind(Ops(), *buffers({"w": (4,)})).snapshot())
    for name, array in update.snapshot().items():
        assert array.tobytes() == before[name].tobytes()


@pytest.mark.parametrize("kind", [SGD, AdaGrad, RMSProp, Adam, AdamW, NAdam])
def test_decay_leaves_out_what_it_is_told_to(kind):
    shapes = {"a.weight": (2, 2), "a.bias": (2,)}
    weights, gradients = buffers(shapes)
    kind(0.001, weight_decay=0.5, no_decay=["bias"]).bind(Ops(), weights, gradients).run()
    before, _ = buffers(shapes)
    np.testing.assert_array_equal(weights["a.bias"], before["a.bias"])
    assert (np.abs(weights["a.weight"]) < np.abs(before["a.weight"])).all()


def test_decoupled_decay_passes_by_the_velocity_and_follows_the_rate():
    parameters, gradients = buffers({"w": (3,)}, "f8")
    before = parameters["w"].copy()
    optimizer = SGD(0.5, 0.9, 0.2, decoupled=True, schedule=lambda step: (1.0, 0.5)[step])
    update = optimizer.bind(Ops(), parameters, gradients)
    update.run()
    update.run()
    # No gradient: all that moves it is the decay, by the rate of each step.
    np.testing.assert_allclose(parameters["w"], before * 0.9 * 0.95, rtol=1e-14)
    assert not update.state["velocity"].flat.any()


def test_networks_with_and_without_decoupled_decay_equal_single_ones_bit_for_bit():
    decays = [0.0, 0.3]
    together, slopes = buffers({"w": (13, 7)}, models=2)
    start = together["w"].copy()
    update = SGD(0.1, 0.9, decays, decoupled=True).bind(Ops(), together, slopes)
    train(update, slopes, 3)
    for k, decay in enumerate(decays):
        single, slope = buffers({"w": (13, 7)})
        single["w"][...] = start[k]
        one = SGD(0.1, 0.9, decay, decoupled=True).bind(Ops(), single, slope)
        generator = np.random.default_rng(1)
        for _ in range(3):
            slope["w"][...] = generator.normal(size=(2, 13, 7))[k]
            one.run()
        assert together["w"][k].tobytes() == single["w"].tobytes()


@pytest.mark.parametrize("momentum", [0, 0.9])
def test_the_rate_can_change_between_steps(momentum):
    parameters, gradients = buffers({"w": (3,)})
    before = parameters["w"].copy()
    gradients["w"][...] = 1
    update = SGD(0.1, momentum).bind(Ops(), parameters, gradients)
    update.scalars["learning_rate"][...] = 0.5
    update.run()
    np.testing.assert_allclose(parameters["w"], before - 0.5, rtol=1e-6)


def test_the_first_step_of_adam_is_as_long_as_its_rate():
    # 1 - beta2 and 1 - beta2^t lose four digits when they are computed apart in float32.
    parameters, gradients = buffers({"w": (3,)})
    before = parameters["w"].astype("f8")
    gradients["w"][...] = [1, -2, 3]
    Adam(0.25).bind(Ops(), parameters, gradients).run()
    np.testing.assert_allclose(before - parameters["w"], [0.25, -0.25, 0.25], rtol=1e-6)


@pytest.mark.parametrize("rate", [0.1, np.float64(0.1), np.float32(0.1), np.array(0.1)])
def test_float32_stays_float32(rate):
    parameters, gradients = buffers({"w": (3,)})
    update = SGD(rate, 0.9, np.float64(0.01)).bind(Ops(), parameters, gradients)
    update.run()
    assert all(scalar.dtype == np.float32 for scalar in update.scalars.values())
    assert parameters.flat.dtype == update.state["velocity"].flat.dtype == np.float32


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (SGD, {"learning_rate": 0}),
        (SGD, {"learning_rate": -1}),
        (SGD, {"learning_rate": math.nan}),
        (SGD, {"learning_rate": "fast"}),
        (SGD, {"learning_rate": [0.1, -0.1]}),
        (SGD, {"learning_rate": []}),
        (SGD, {"momentum": 1}),
        (SGD, {"momentum": -0.1}),
        (SGD, {"nesterov": True}),
        (Adam, {"weight_decay": -1}),
        (AdamW, {"weight_decay": math.inf}),
        (Adam, {"beta1": 1}),
        (Adam, {"beta2": -1}),
        (Adam, {"epsilon": 0}),
        (AdaGrad, {"epsilon": 0}),
        (RMSProp, {"smoothing": 1}),
        (RMSProp, {"momentum": 1}),
    ],
)
def test_hyperparameters_out_of_range(kind, settings):
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        kind(**settings)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (SGD(1e39), "SGD: learning_rate must be above 0, but 1e+39 is inf in float32"),
        (SGD(1e-50), "learning_rate must be above 0, but 1e-50 is 0 in float32"),
        (SGD(0.1, 0.999999999), "momentum must be at least 0 and below 1, but 0.999999999 is 1 in"),
        (Adam(epsilon=1e-60), "epsilon must be above 0, but 1e-60 is 0 in float32"),
        (SGD([0.1, 1e39]), "but 1e+39 is inf in float32"),
    ],
    ids=repr,
)
def test_hyperparameters_that_the_type_of_elements_cannot_hold(optimizer, message):
    models = 2 if np.ndim(optimizer.hyperparameters["learning_rate"]) else None
    buffers = [FlatBuffer([Segment("w", (3,), 0)], np.float32, Ops(), models) for _ in range(2)]
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        optimizer.bind(Ops(), *buffers)
    if models is None:
        wide = [FlatBuffer([Segment("w", (3,), 0)], np.float64, Ops()) for _ in range(2)]
        optimizer.bind(Ops(), *wide)


def test_hyperparameters_for_another_number_of_networks():
    with pytest.raises(ConfigurationError, match="momentum has 2 values for 3 networks"):
        SGD(0.1, [0.5, 0.9]).bind(Ops(), *buffers({"w": (3,)}, models=3))
    with pytest.raises(ConfigurationError, match="learning_rate has 2 values for one network"):
        SGD([0.1, 0.2]).bind(Ops(), *buffers({"w": (3,)}))
