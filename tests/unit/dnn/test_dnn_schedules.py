"""Schedules, clipping of gradients, and optimizers of one's own."""

import textwrap
import tracemalloc

import numpy as np
import pytest

import dnn.optimizers.optimizer
import dnn.optimizers.rule
from dnn import SGD, Adam, NeuralNetwork, graph, mlp
from dnn.backend import Ops
from dnn.errors import ConfigurationError
from dnn.optimizers import LARS, Optimizer, Rule
from dnn.optimizers.optimizer import CLIPPED_COLUMNS as COLUMNS
from dnn.optimizers.schedules import (
    SCHEDULES,
    Constant,
    Cosine,
    GrowingBatch,
    OneCycle,
    StepDecay,
    WarmUp,
    schedule_of,
)
from dnn.parameters import FlatBuffer, segments_of


def buffers(shapes, dtype="f4", models=None):
    variables = [graph.variable(shape, dtype, name) for name, shape in shapes.items()]
    segments = segments_of(variables)
    parameters, gradients = (FlatBuffer(segments, dtype, Ops(), models) for _ in range(2))
    generator = np.random.default_rng(0)
    for name in shapes:
        parameters[name][...] = generator.normal(size=parameters[name].shape)
        gradients[name][...] = generator.normal(size=parameters[name].shape)
    return parameters, gradients


# -- schedules ------------------------------------------------------------------------------------


def test_values_of_schedules():
    assert [Constant()(step) for step in (0, 99)] == [1, 1]
    assert [StepDecay(10, 0.5)(step) for step in (0, 9, 10, 25)] == [1, 1, 0.5, 0.25]
    cosine = Cosine(100, 0.2)
    assert [cosine(step) for step in (0, 50, 100, 1000)] == pytest.approx([1, 0.6, 0.2, 0.2])
    warm = WarmUp(4, 0.2, then=StepDecay(10, 0.5))
    assert [warm(step) for step in (0, 1, 3, 4, 13, 14)] == pytest.approx([0.4, 0.6, 1, 1, 1, 0.5])


def test_schedules_by_name():
    assert schedule_of("constant") == Constant()
    assert schedule_of("cosine", steps=7) == Cosine(7)
    assert schedule_of("step", every=3) == StepDecay(3)
    assert schedule_of("warm_up", steps=3, then="constant") == WarmUp(3)
    assert schedule_of("one_cycle", steps=7, rise=0.5) == OneCycle(7, 0.5)
    assert set(SCHEDULES) == {"constant", "cosine", "one_cycle", "step", "warm_up"}
    own = schedule_of(lambda step: 1 / (1 + step))
    assert own(1) == 0.5


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize(("steps", "rise"), [(10, 0.3), (9, 0.25), (40, 0.0), (2, 0.3)])
def test_one_cycle_against_torch(steps, rise, linear):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 1.0, steps, pct_start=rise, anneal_strategy="linear" if linear else "cos"
    )
    ours = OneCycle(steps, rise, linear=linear)
    for step in range(steps):
        assert ours(step) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        if step + 1 < steps:
            theirs.step()
    assert ours(steps) == ours(10 * steps) == pytest.approx(4e-6)


def test_one_cycle_reaches_its_top_and_its_ends():
    cycle = OneCycle(100, rise=0.4, start=0.1, end=0.05, linear=True)
    values = [cycle(step) for step in range(100)]
    assert (values[0], values[39], values[-1]) == pytest.approx((0.1, 1, 0.05))
    assert values.index(max(values)) == 39
    assert OneCycle(1)(0) == pytest.approx(4e-6)


@pytest.mark.parametrize("kind", ["step", "cosine", "warm_up"])
def test_schedules_against_torch(kind):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    ours, name, settings = {
        "step": (StepDecay(3, 0.5), "StepLR", (3, 0.5)),
        "cosine": (Cosine(9), "CosineAnnealingLR", (9,)),
        "warm_up": (WarmUp(4), "LinearLR", (0.25, 1.0, 3)),
    }[kind]
    theirs = getattr(torch.optim.lr_scheduler, name)(optimizer, *settings)
    for step in range(9):
        assert ours(step) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_a_schedule_gives_every_step_its_rate(kind):
    parameters, gradients = buffers({"w": (3,)}, "f8")
    expected, slopes = buffers({"w": (3,)}, "f8")
    schedule = WarmUp(2, then=StepDecay(2, 0.5))
    update = kind(0.1, schedule=schedule).bind(Ops(), parameters, gradients)
    by_hand = kind(0.1).bind(Ops(), expected, slopes)
    for step in range(7):
        update.run()
        by_hand.scalars["learning_rate"][...] = 0.1 * schedule(step)
        by_hand.run()
        np.testing.assert_array_equal(parameters.flat, expected.flat)
    # The rate that it is a factor of can still be changed.
    update.scalars["learning_rate"][...] = 0.3
    by_hand.scalars["learning_rate"][...] = 0.3 * schedule(7)
    update.run()
    by_hand.run()
    np.testing.assert_allclose(parameters.flat, expected.flat, rtol=1e-14)
    assert update.state["schedule"]["steps_done"] == 8


def test_a_schedule_goes_on_from_the_state_of_an_update():
    parameters, gradients = buffers({"w": (3,)})
    again, slopes = buffers({"w": (3,)})
    first, second = (
        SGD(0.1, schedule=Cosine(5)).bind(Ops(), w, g)
        for w, g in [(parameters, gradients), (again, slopes)]
    )
    for _ in range(2):
        first.run()
    again.flat[...] = parameters.flat
    second.restore(first.snapshot())
    for update in (first, second):
        update.run()
    np.testing.assert_array_equal(parameters.flat, again.flat)


def test_rates_of_k_networks_follow_one_schedule():
    parameters, gradients = buffers({"w": (3,)}, models=2)
    before = parameters["w"].copy()
    gradients["w"][...] = 1
    SGD([0.1, 0.4], schedule=lambda step: 0.5).bind(Ops(), parameters, gradients).run()
    moved = before - parameters["w"]
    np.testing.assert_allclose(moved, [[0.05] * 3, [0.2] * 3], rtol=1e-5)


def test_a_network_trains_with_a_schedule_by_name():
    x = np.random.default_rng(0).normal(size=(20, 4)).astype("f4")
    model = NeuralNetwork(mlp(4, [5], 2), optimizer=SGD(0.1, schedule="constant"), seed=1)
    plain = NeuralNetwork(mlp(4, [5], 2), optimizer=SGD(0.1), seed=1)
    for each in (model, plain):
        each.fit(x, np.arange(20) % 2, epochs=2, batch_size=8)
    for name, array in plain.parameters.items():
        assert array.tobytes() == model.parameters[name].tobytes()


def test_a_checkpoint_goes_on_with_the_schedule_bit_for_bit(tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    x, y = np.random.default_rng(0).normal(size=(20, 4)).astype("f4"), np.arange(20) % 2

    def model():
        optimizer = Adam(0.05, schedule=WarmUp(2, then=Cosine(12)), clip_norm=0.1)
        return NeuralNetwork(mlp(4, [5], 2), optimizer=optimizer, seed=1)

    whole, half, rest = model(), model(), model()
    whole.fit(x, y, epochs=4, batch_size=8)
    half.fit(x, y, epochs=2, batch_size=8)
    half.save(tmp_path / "half.safetensors")
    rest.load(tmp_path / "half.safetensors")
    rest.fit(x, y, epochs=2, batch_size=8)
    for name, array in whole.parameters.items():
        assert array.tobytes() == rest.parameters[name].tobytes()


def test_k_networks_with_schedule_and_limits_equal_single_ones_bit_for_bit():
    x, y = np.random.default_rng(0).normal(size=(20, 4)).astype("f4"), np.arange(20) % 2
    rates, limits = [0.1, 0.5], [0.05, 10.0]

    def optimizer(rate, limit):
        return SGD(rate, 0.9, schedule=Cosine(6), clip_norm=limit, clip_value=0.5)

    together = dnn.Ensemble(mlp(4, [5], 2), optimizer=optimizer(rates, limits), seeds=[1, 2])
    together.fit(x, y, epochs=2, batch_size=8)
    for k in range(2):
        alone = NeuralNetwork(
            mlp(4, [5], 2), optimizer=optimizer(rates[k], limits[k]), seed=[1, 2][k]
        )
        alone.fit(x, y, epochs=2, batch_size=8)
        for name, array in alone.parameters.items():
            assert together.parameters[name][k].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedule_of("cosin"), "'cosine'"),
        (lambda: schedule_of("cosine"), "steps"),
        (lambda: schedule_of("step", every=3, ever=2), "ever"),
        (lambda: StepDecay(0), "every"),
        (lambda: StepDecay(2, 0), "factor"),
        (lambda: Cosine(1.5), "steps"),
        (lambda: Cosine(3, 2), "end"),
        (lambda: OneCycle(0), "steps"),
        (lambda: OneCycle(10, 1.0), "rise"),
        (lambda: OneCycle(10, start=-0.1), "start"),
        (lambda: OneCycle(10, end=2), "end"),
        (lambda: WarmUp(True), "steps"),
        (lambda: WarmUp(3, -1), "start"),
        (lambda: WarmUp(3, then="linear"), "linear"),
        (lambda: SGD(0.1, schedule="linear"), "linear"),
        (lambda: SGD(0.1, clip_norm=0), "clip_norm"),
        (lambda: SGD(0.1, clip_value=-1), "clip_value"),
    ],
)
def test_schedules_and_limits_out_of_range(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


# -- growing batches ------------------------------------------------------------------------------


def test_sizes_of_growing_batches():
    batch = GrowingBatch(32, every=2, factor=1.5, most=100)
    assert [batch(epochs) for epochs in range(8)] == [32, 32, 48, 48, 72, 72, 100, 100]
    assert GrowingBatch(1, every=1)(10**6) > 10**9


def test_an_epoch_has_as_many_steps_as_its_batches_and_trains_as_with_that_size():
    x, y = np.random.default_rng(0).normal(size=(50, 4)).astype("f4"), np.arange(50) % 2
    growing, fixed = (
        NeuralNetwork(mlp(4, [5], 2), optimizer=SGD(0.1, 0.9), seed=1) for _ in range(2)
    )
    seen = []
    own = lambda epochs: seen.append(epochs) or GrowingBatch(10, every=1)(epochs)  # noqa: E731
    # Two calls are one training: what counts is the number of epochs done.
    growing.fit(x, y, epochs=2, batch_size=own)
    growing.fit(x, y, epochs=2, batch_size=own)
    for size in (10, 20, 40, 50):
        fixed.fit(x, y, epochs=1, batch_size=size)
    assert growing.history.steps == fixed.history.steps == 5 + 3 + 2 + 1
    assert set(seen) == {0, 1, 2, 3}
    assert growing.history.loss == fixed.history.loss
    for name, array in growing.parameters.items():
        assert array.tobytes() == fixed.parameters[name].tobytes()


def test_the_batches_of_k_networks_grow_alike():
    x, y = np.random.default_rng(0).normal(size=(50, 4)).astype("f4"), np.arange(50) % 2
    batch = GrowingBatch(10, every=1)
    together = dnn.Ensemble(mlp(4, [5], 2), optimizer=SGD([0.1, 0.5]), seeds=[1, 2])
    together.fit(x, y, epochs=[2, 3], batch_size=batch)
    for k in range(2):
        alone = NeuralNetwork(mlp(4, [5], 2), optimizer=SGD([0.1, 0.5][k]), seed=k + 1)
        alone.fit(x, y, epochs=k + 2, batch_size=batch)
        assert alone.history.loss == together.histories[k].loss
        for name, array in alone.parameters.items():
            assert together.parameters[name][k].tobytes() == array.tobytes()


def test_rates_of_layers_train_with_large_batches_what_one_rate_does_not():
    # Of a layer that such large numbers go through, gradients are as large.
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, 512)
    x = ((generator.normal(size=(512, 6)) + 3 * np.eye(6)[y]) * 1000).astype("f4")
    reached = {}
    for name, optimizer in {
        "lars": LARS(1.0, 0.9, 1e-4, 0.02, schedule=WarmUp(8, then=Cosine(22))),
        "plain": SGD(1.0, 0.9, 1e-4, schedule=WarmUp(8, then=Cosine(22))),
    }.items():
        model = NeuralNetwork(mlp(6, [16], 3, "relu"), optimizer=optimizer, seed=1)
        model.fit(x, y, epochs=30, batch_size=512)
        reached[name] = model.evaluate(x, y)["accuracy"]
    assert reached["plain"] < 0.6 < 0.9 < reached["lars"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GrowingBatch(0, 2), "start must be an integer of at least 1, not 0"),
        (lambda: GrowingBatch(8, 0), "every must be an integer"),
        (lambda: GrowingBatch(8, 2, 0.5), "factor must be at least 1, not 0.5"),
        (lambda: GrowingBatch(8, 2, most=4), "most must be at least start, 8, not 4"),
    ],
)
def test_growing_batches_out_of_range(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize("size", [0, 2.5, "many"])
def test_a_function_that_returns_no_size_of_a_batch(size):
    model = NeuralNetwork(mlp(4, [5], 2), seed=1)
    with pytest.raises(ConfigurationError, match="batch_size must be"):
        model.fit(np.zeros((8, 4)), np.arange(8) % 2, batch_size=lambda epochs: size)


# -- clipping -------------------------------------------------------------------------------------

SHAPES = {"a.weight": (COLUMNS // 100, 170), "a.bias": (170,)}  # more than one part


def clipped(models=None, dtype="f4", **limits):
    parameters, gradients = buffers(SHAPES, dtype, models)
    SGD(1e-3, **limits).bind(Ops(), parameters, gradients).run()
    return gradients


def test_clipping_by_value():
    _, given = buffers(SHAPES)
    np.testing.assert_array_equal(clipped(clip_value=0.5).flat, np.clip(given.flat, -0.5, 0.5))


@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_clipping_by_norm_against_torch(limit):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    _, given = buffers(SHAPES, "f8")
    tensors = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES.values()]
    for tensor, name in zip(tensors, SHAPES, strict=True):
        tensor.grad = torch.tensor(given[name].astype("f4"))
    torch.nn.utils.clip_grad_norm_(tensors, limit)
    found = clipped(dtype="f8", clip_norm=limit)
    for tensor, name in zip(tensors, SHAPES, strict=True):
        np.testing.assert_allclose(found[name], tensor.grad.numpy(), rtol=1e-5)


def test_values_are_clipped_before_the_norm():
    found = clipped(clip_value=0.5, clip_norm=0.1, dtype="f8")
    _, given = buffers(SHAPES, "f8")
    values = np.clip(given.flat, -0.5, 0.5)
    np.testing.assert_allclose(found.flat, values * 0.1 / np.linalg.norm(values), rtol=1e-12)


def test_gradients_of_zero_stay_zero():
    parameters, gradients = buffers({"w": (3,)})
    gradients.flat[...] = 0
    SGD(1e-3, clip_norm=1).bind(Ops(), parameters, gradients).run()
    assert not gradients.flat.any()


def test_each_of_k_networks_is_clipped_by_its_own_norm_and_limit_bit_for_bit():
    limits = [0.5, 1e6, 3.0]
    parameters, gradients = buffers(SHAPES, models=3)
    given = {name: gradients[name].copy() for name in SHAPES}
    SGD(1e-3, clip_norm=limits).bind(Ops(), parameters, gradients).run()
    for k, limit in enumerate(limits):
        single, slopes = buffers(SHAPES)
        for name in SHAPES:
            slopes[name][...] = given[name][k]
        SGD(1e-3, clip_norm=limit).bind(Ops(), single, slopes).run()
        for name in SHAPES:
            assert gradients[name][k].tobytes() == slopes[name].tobytes()


def test_the_limit_can_change_and_nothing_is_allocated():
    parameters, gradients = buffers(SHAPES)
    update = SGD(1e-3, clip_norm=1.0, clip_value=1.0).bind(Ops(), parameters, gradients)
    update.scalars["clip_norm"][...] = 0.25
    update.run()
    assert np.linalg.norm(gradients.flat) == pytest.approx(0.25, rel=1e-5)
    tracemalloc.start()
    try:
        update.run()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        update.run()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 4096


# -- optimizers of one's own ----------------------------------------------------------------------


def snippet(module):
    """Return the code in the docstring of a module, which is all there is to such an optimizer."""
    lines = module.__doc__.partition("::\n\n")[2].splitlines()
    code = [line for line in lines if line.startswith("    ") or not line]
    end = next(i for i, line in enumerate(lines) if line and not line.startswith("    "))
    return textwrap.dedent("\n".join(code[:end]))


@pytest.mark.parametrize("module", [dnn.optimizers.optimizer, dnn.optimizers.rule])
@pytest.mark.parametrize("models", [None, 3])
def test_the_documented_optimizer_of_ones_own(module, models):
    code = snippet(module)
    assert len([line for line in code.splitlines() if line.strip()]) <= 21
    space = {"np": np, "graph": graph, "Optimizer": Optimizer, "Rule": Rule}
    exec(code, space)
    (name,) = [name for name in space if name.endswith("Descent")]
    parameters, gradients = buffers(SHAPES, models=models)
    expected = parameters.flat.astype("f8")
    v = np.zeros_like(expected)
    optimizer = space[name](0.01, weight_decay=0.5)
    assert repr(optimizer).startswith(f"{name}(learning_rate=0.01")
    update = optimizer.bind(Ops(), parameters, gradients)
    decays = module is dnn.optimizers.rule
    for _ in range(3):
        v = 0.9 * v + gradients.flat + (0.5 * expected if decays else 0)
        expected -= 0.01 * (np.sign(v) if name == "SignDescent" else v / (np.abs(v) + 1))
        update.run()
    np.testing.assert_allclose(parameters.flat, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(update.state["velocity"].flat, v, rtol=1e-4, atol=1e-4)


def test_a_rule_reads_old_values_alone():
    class Anchored(Rule):
        state_names = ("before",)

        def rule(self, w, g, state, scalars):
            return {"w": w - scalars["learning_rate"] * g, "before": w}

    parameters, gradients = buffers({"w": (3,)})
    first = parameters.flat.copy()
    update = Anchored(0.5).bind(Ops(), parameters, gradients)
    update.run()
    np.testing.assert_array_equal(update.state["before"].flat, first)
    np.testing.assert_allclose(parameters.flat, first - 0.5 * gradients.flat, rtol=1e-6)


def test_a_rule_that_returns_something_else():
    class Wrong(Rule):
        def rule(self, w, g, state, scalars):
            return {"weight": w}

    with pytest.raises(ConfigurationError, match=r"Wrong\.rule returned \['weight'\].*\['w'\]"):
        Wrong(0.1).bind(Ops(), *buffers({"w": (3,)}))
