"""Matrix products of float16 and bfloat16, summed up in float32; and the loss scaled."""

import device_checks
import numpy as np
import pytest

import dnn
from dnn import graph
from dnn.backend import Ops, has_numba, ops_for
from dnn.backend.rounding import BFLOAT16, HALF, narrow, round_tf32, widen
from dnn.errors import ConfigurationError, DataError, MixedPrecisionWarning
from dnn.graph.passes import optimise, precision_passes
from dnn.optimizers import SGD, Adam
from dnn.parameters import FlatBuffer, Segment
from dnn.precision import PRECISIONS
from dnn.training.loss_scaling import LossScaling

KEPT = {"float16": HALF, "bfloat16": BFLOAT16}
DEVICES = ["numpy", "cpu"] if has_numba() else ["numpy"]
EACH = pytest.mark.parametrize("precision", KEPT)


def passes_of(precision):
    return precision_passes(PRECISIONS[precision], Ops())


def rounded(array, precision):
    kept, wide = np.empty(array.shape, KEPT[precision]), np.empty(array.shape, "f")
    narrow(array, kept)
    widen(kept, wide)
    return wide


def test_narrowing_rounds_to_the_nearest_number():
    """All float16 and bfloat16 come back as they are, and between them NumPy and PyTorch agree."""
    patterns = np.arange(2**16, dtype=np.uint16)
    middle = (patterns.astype(np.uint32) << 16) | np.uint32(0x8000)
    wide = np.concatenate([middle, middle + np.uint32(1), middle - np.uint32(1)]).view("f")
    for kept in (patterns.view(HALF), patterns):
        single, again = np.empty(2**16, "f"), np.empty_like(kept)
        widen(kept, single)
        narrow(single, again)
        finite = np.isfinite(single)
        np.testing.assert_array_equal(again[finite], kept[finite])
        infinite = np.isinf(single)
        np.testing.assert_array_equal(again[infinite], kept[infinite])
        back = np.empty(2**16, "f")
        widen(again, back)
        assert np.isnan(back[np.isnan(single)]).all()
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    found = np.empty(wide.shape, BFLOAT16)
    narrow(wide, found)
    expected = torch.from_numpy(wide).to(torch.bfloat16).view(torch.int16).numpy()
    finite = ~np.isnan(wide)
    np.testing.assert_array_equal(found[finite], expected.view(np.uint16)[finite])


def test_tf32_keeps_10_bits_of_the_fraction():
    given = np.array([1 + 2**-10, 1 + 2**-11, 1 + 2**-12, -(1 + 2**-11), np.inf, -np.inf, 0.0], "f")
    found = np.empty_like(given)
    round_tf32(given, found)
    expected = [1 + 2**-10, 1 + 2**-10, 1.0, -(1 + 2**-10), np.inf, -np.inf, 0.0]
    np.testing.assert_array_equal(found, np.array(expected, "f"))
    round_tf32(np.full(7, np.nan, "f"), found)
    assert np.isnan(found).all()


@EACH
def test_a_product_takes_narrow_operands_and_an_output_is_not_rounded(precision):
    generator = np.random.default_rng(0)
    x, w, b = (graph.placeholder(shape) for shape in [(5, 4), (4, 3), (3,)])
    values = [generator.normal(size=node.shape).astype("f") for node in (x, w, b)]
    y = x @ w + b
    feeds = dict(zip((x, w, b), values, strict=True))
    (found,) = graph.evaluate([y], feeds, passes=passes_of(precision))
    kept = [rounded(value, precision) for value in values]
    np.testing.assert_array_equal(found, kept[0] @ kept[1] + kept[2])
    assert found.dtype == np.float32
    assert np.abs(found - (values[0] @ values[1] + values[2])).max() > 0
    (found,) = graph.evaluate([graph.tanh(y) * 1.5], feeds, passes=passes_of(precision))
    between = rounded(kept[0] @ kept[1] + kept[2], precision)
    np.testing.assert_array_equal(found, np.tanh(between) * np.float32(1.5))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["tf32", *KEPT])
def test_a_convolution_and_its_gradients_take_operands_that_are_rounded(precision, device):
    generator = np.random.default_rng(0)
    x, w, b = (graph.placeholder(shape) for shape in [(2, 3, 6, 5), (4, 3, 3, 3), (4,)])
    factors = generator.normal(size=(2, 4, 4, 3)).astype("f")
    values = [generator.normal(size=node.shape).astype("f") for node in (x, w, b)]

    def outputs(factors):
        y = graph.conv2d(x, w, b)
        return [y, *graph.gradients(y, [x, w], graph.constant(factors))]

    def kept(value, is_operand=True):
        if precision != "tf32":
            return rounded(value, precision)
        out = value.copy()
        if is_operand:
            round_tf32(value, out)
        return out

    feeds = dict(zip((x, w, b), values, strict=True))
    found = graph.evaluate(outputs(factors), feeds, ops_for(device), passes=passes_of(precision))
    feeds = {x: kept(values[0]), w: kept(values[1]), b: kept(values[2], False)}
    expected = graph.evaluate(outputs(kept(factors)), feeds, Ops())
    plain = graph.evaluate(outputs(factors), dict(zip((x, w, b), values, strict=True)), Ops())
    for mine, wanted, unrounded in zip(found, expected, plain, strict=True):
        assert mine.dtype == np.float32
        np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-5)
        assert np.abs(mine - unrounded).max() > 1e-4


@EACH
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("pool", [graph.max_pool2d, graph.average_pool2d])
def test_a_pooling_between_convolutions_is_rounded_once(pool, device, precision):
    """So is its gradient; one whose result is no operand of a product is not rounded."""
    generator = np.random.default_rng(0)
    x, first, second = (
        graph.placeholder(shape) for shape in [(2, 3, 9, 9), (4, 3, 3, 3), (2, 4, 2, 2)]
    )
    values = [generator.normal(size=node.shape).astype("f") for node in (x, first, second)]
    feeds = dict(zip((x, first, second), values, strict=True))
    pooled = pool(graph.conv2d(x, first), 3, stride=2)
    last = pool(graph.conv2d(pooled, second), 2)
    wanted = [last, *graph.gradients(graph.sum(last), [first, second])]
    ops = ops_for(device)
    found = optimise(wanted, passes_of(precision))
    poolings = [node for node in found.order if node.kind == "rounded_pooling"]
    kinds = [(node.attributes["problem"].kind, node.dtype) for node in poolings]
    kind = pool.__name__.partition("_pool2d")[0]
    assert (kind, KEPT[precision]) in kinds
    assert (kind, np.float32) in kinds
    assert (f"{kind}_gradient", KEPT[precision]) in kinds

    def kept(value):
        return graph.constant(rounded(value, precision))

    (inside,) = graph.evaluate([graph.conv2d(*map(kept, values[:2]))], {}, ops)
    (between,) = graph.evaluate([pool(kept(inside), 3, stride=2)], {}, ops)
    (inside,) = graph.evaluate([graph.conv2d(kept(between), kept(values[2]))], {}, ops)
    (expected,) = graph.evaluate([pool(kept(inside), 2)], {}, ops)
    y, *slopes = graph.evaluate(wanted, feeds, ops, passes=passes_of(precision))
    np.testing.assert_array_equal(y, expected)
    plain = graph.evaluate(wanted, feeds, ops)
    for mine, wide in zip(slopes, plain[1:], strict=True):
        np.testing.assert_allclose(mine, wide, rtol=0.1, atol=0.02 * np.abs(wide).max())


@EACH
def test_what_is_delicate_stays_in_float32(precision):
    x, w = graph.placeholder((5, 4)), graph.placeholder((4, 4))
    logits = graph.relu(x @ w + 1.0) @ w
    target = graph.one_hot(graph.placeholder((5,), np.intp), 4)
    loss = graph.softmax_cross_entropy(logits, target)
    slopes = graph.gradients(loss, [w])
    found = optimise([loss, graph.log_softmax(logits), *slopes], passes_of(precision))
    single = {node.kind for node in found.order if node.dtype == np.float32}
    assert {"log_softmax", "softmax_cross_entropy"} <= single
    kinds = {node.kind for node in found.order if node.dtype == KEPT[precision]}
    assert kinds == {"convert", "reduced_matmul", "rounded_chain", "transpose"}
    products = [node for node in found.order if node.kind == "reduced_matmul"]
    assert {x.dtype for node in products for x in node.inputs} == {KEPT[precision]}
    assert not any(node.kind == "matmul" for node in found.order)


def test_float64_is_left_alone():
    x = graph.placeholder((3, 3), "f8")
    for precision in (*KEPT, "mixed_float16"):
        found = optimise([x @ x], passes_of(precision))
        assert [node.kind for node in found.order] == ["placeholder", "matmul"]


@EACH
def test_what_a_plan_takes_is_all_in_its_arena(precision, monkeypatch):
    """What narrow operands need in float32 on the CPU among it, also for K networks."""
    pytest.importorskip("numba", reason="without Numba chains are computed one by one")
    layers = [*dnn.mlp(8, [16], 2, "relu")[:-1], dnn.BatchNorm(), dnn.FullyConnected(2)]
    networks = dnn.Ensemble(layers, seeds=[1, 2], dtype=precision)
    sizes = []
    memory = Ops.memory
    monkeypatch.setattr(
        Ops, "memory", staticmethod(lambda size: sizes.append(size) or memory(size))
    )
    plan = networks._network.plan("training", 32).plan
    assert sum(sizes) == plan.size_bytes > 0
    kinds = {node.kind for node in plan.graph.order}
    assert {"reduced_matmul", "rounded_chain"} <= kinds
    assert any(
        node.kind == "sum_to" and node.inputs[0].dtype == KEPT[precision]
        for node in plan.graph.order
    )


def test_it_takes_less_memory():
    x = graph.placeholder((64, 64))
    weights = [graph.variable((64, 64), name=f"w{i}") for i in range(24)]
    y = x
    for w in weights:
        y = graph.tanh(y @ w)
    slopes = graph.gradients(graph.sum(y), weights)
    arrays = {w: np.zeros((64, 64), "f") for w in weights}
    into = [(slope, np.zeros((64, 64), "f")) for slope in slopes]
    sizes = [
        graph.Plan([x], Ops(), arrays, into, passes=passes).size_bytes
        for passes in (None, passes_of("float16"))
    ]
    assert sizes[1] < 0.75 * sizes[0]


def scaled(first, interval=2000, models=None, optimizer=None):
    segments = [Segment("w", (4,), 0)]
    parameters, gradients, states = (FlatBuffer(segments, "f", Ops(), models) for _ in range(3))
    scale = np.ones(() if models is None else models, "f")
    update = (optimizer or SGD(1.0)).bind(Ops(), parameters, gradients)
    scaling = LossScaling(update, parameters, gradients, states, scale, first, interval)
    return parameters, gradients, scale, scaling


def test_a_step_that_overflows_is_left_out_and_the_scale_halved():
    parameters, gradients, scale, update = scaled(8.0)
    gradients["w"][...] = 16.0
    update.run()
    np.testing.assert_array_equal(parameters["w"], -2.0)
    for bad in (np.inf, np.nan):
        gradients["w"][...] = [1, bad, 1, 1]
        update.run()
    np.testing.assert_array_equal(parameters["w"], -2.0)
    assert (update.scale, scale, update.skipped, update.steps_done) == (2.0, 2.0, 2, 3)


def test_the_scale_grows_after_a_while_without_overflow():
    _, gradients, _, update = scaled(4.0, interval=3)
    for _ in range(7):
        gradients["w"][...] = 1.0
        update.run()
    assert update.scale == 16


def test_the_scale_stays_in_its_bounds_and_an_overflow_begins_the_count_anew():
    _, gradients, _, update = scaled(1.5, interval=3)
    scales = []
    for value in (np.inf, np.nan, 1.0, 1.0, np.inf, 1.0, 1.0, 1.0):
        gradients["w"][...] = value
        update.run()
        scales.append(float(update.scale))
    assert scales == [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0]  # never below 1; 3 good ones in a row
    assert update.skipped == 3
    _, gradients, _, update = scaled(LossScaling.LARGEST, interval=1)
    gradients["w"][...] = 1.0
    update.run()
    assert update.scale == LossScaling.LARGEST


def test_an_overflow_in_one_of_k_networks_leaves_the_others_alone():
    """Each equals one that is alone: parameters, what the optimizer remembers, and the scale."""
    generator = np.random.default_rng(0)
    slopes = generator.normal(size=(6, 3, 4)).astype("f")
    slopes[2, 1, 3], slopes[3, 1, 0], slopes[5, 2, 2] = np.inf, np.nan, -np.inf
    together = scaled(8.0, 2, 3, Adam(0.1))
    for given in slopes:
        together[1]["w"][...] = given
        together[3].run()
    for k in range(3):
        alone = scaled(8.0, 2, None, Adam(0.1))
        for given in slopes[:, k]:
            alone[1]["w"][...] = given
            alone[3].run()
        assert together[0]["w"][k].tobytes() == alone[0]["w"].tobytes()
        for name, buffer in alone[3].state.items():
            if "w" in buffer:
                assert together[3].state[name]["w"][k].tobytes() == buffer["w"].tobytes()
        assert together[3].scale[k] == alone[3].scale
    np.testing.assert_array_equal(together[3].skipped, [0, 2, 1])
    np.testing.assert_array_equal(together[3].scale, [64, 8, 16])


def test_gradients_that_float16_would_lose_are_kept_by_the_scale():
    """A gradient of 1e-9 is 0 in float16, and 2^15 times that is not."""
    x, w = graph.placeholder((2, 2)), graph.placeholder((2, 2))
    scale = graph.variable((), name="scale")
    loss = graph.sum((x @ w) * 1e-9)
    (slope,) = graph.gradients(loss, [x], scale)
    for factor, expected in [(1.0, 0.0), (2.0**15, 2e-9)]:
        feeds = {x: np.ones((2, 2)), w: np.ones((2, 2)), scale: factor}
        (found,) = graph.evaluate([slope], feeds, passes=passes_of("float16"))
        np.testing.assert_allclose(found / factor, expected, rtol=1e-2)


def task():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 8)).astype("f")
    return x, (x[:, 0] * x[:, 1] > 0).astype(int)


def test_a_network_learns_in_narrow_products_as_in_float32():
    x, y = task()
    accuracy = {}
    for dtype in ("float32", "tf32", *KEPT):
        model = dnn.NeuralNetwork(
            dnn.mlp(8, [32], 2, "tanh"), optimizer=dnn.SGD(0.1, momentum=0.9), dtype=dtype, seed=1
        )
        history = model.fit(x, y, epochs=40)
        accuracy[dtype] = model.evaluate(x, y)["accuracy"]
        assert history.steps == 400
        kinds = [node.kind for node in model._network.plan("training", 32).plan.graph.order]
        assert kinds.count("reduced_matmul") == (0 if dtype == "float32" else 5)
        assert ("matmul" in kinds or "product_chain" in kinds) == (dtype == "float32")
    for dtype in KEPT:
        assert accuracy[dtype] > 0.95
        assert accuracy[dtype] == pytest.approx(accuracy["float32"], abs=0.03)


@EACH
@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_k_networks_equal_each_alone_bit_for_bit(precision, device):
    x, y = task()
    rates, seeds = [0.1, 3e4, 0.02], [1, 2, 3]  # the second one overflows
    options = {"device": device, "dtype": precision}

    def layers():
        return [*dnn.mlp(8, [16], 2, "relu")[:-1], dnn.Dropout(0.2), dnn.FullyConnected(2)]

    together = dnn.Ensemble(
        layers(), optimizer=dnn.SGD(rates, momentum=0.9), seeds=seeds, **options
    )
    histories = together.fit(x, y, epochs=[3, 4, 5])
    for k, seed in enumerate(seeds):
        alone = dnn.NeuralNetwork(
            layers(), optimizer=dnn.SGD(rates[k], momentum=0.9), seed=seed, **options
        )
        if k == 1 and precision == "float16":
            with pytest.warns(MixedPrecisionWarning):
                expected = alone.fit(x, y, epochs=4)
        else:
            expected = alone.fit(x, y, epochs=[3, 4, 5][k])
        np.testing.assert_array_equal(histories[k].loss, expected.loss)
        copied = dnn.NeuralNetwork(
            layers(), optimizer=dnn.SGD(rates[k], momentum=0.9), seed=seed, **options
        )
        together.copy_to(k, copied)
        for name, array in alone.trained_arrays().items():
            assert copied.trained_arrays()[name].tobytes() == array.tobytes(), name


def test_a_variance_is_of_squares_that_are_not_rounded():
    """Squares of 300 are beyond float16, and those of bfloat16 would be good for 2 digits."""
    x, y = task()
    losses = {}
    for dtype in ("float32", *KEPT):
        layers = [dnn.Input(8), dnn.FullyConnected(16), dnn.BatchNorm(), dnn.Activation("relu")]
        model = dnn.NeuralNetwork([*layers, dnn.FullyConnected(2)], dtype=dtype, seed=1)
        losses[dtype] = model.fit(x * 300, y, epochs=3).loss
        order = model._network.plan("training", 32).plan.graph.order
        (square,) = [node for node in order if node.kind == "square"]
        assert square.dtype == np.float32
    for dtype in KEPT:
        np.testing.assert_allclose(losses[dtype], losses["float32"], rtol=2e-2)


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_a_step_that_is_left_out_changes_no_running_statistics(device):
    device_checks.check_statistics_of_skipped_steps(device)


def test_an_ensemble_that_begins_again_has_the_first_scale():
    x, y = task()
    x *= 1e3
    found = dnn.Ensemble(dnn.mlp(8, [4], 2), seeds=[1, 2], dtype="float16")
    first = [history.loss for history in found.fit(x, y)]
    trainer = found._last[1]
    found.restart([1, 2])
    assert [history.loss for history in found.fit(x, y)] == first
    assert found._last[1] is trainer  # with the steps that are compiled


def test_looking_for_nan_and_looking_away_exclude_each_other():
    with pytest.raises(ConfigurationError, match="on purpose"):
        dnn.NeuralNetwork(dnn.mlp(2, [], 2), dtype="mixed_float16", check_finite=True)


def test_an_unknown_precision_is_refused():
    message = "dtype must be float32, float64, tf32, float16 or bfloat16, not 'half'"
    for make in (dnn.NeuralNetwork, lambda *x, **y: dnn.Ensemble(*x, seeds=[1], **y)):
        with pytest.raises(ConfigurationError, match=message):
            make(dnn.mlp(2, [], 2), dtype="half")


def test_samples_that_float16_cannot_hold_are_refused():
    x, y = np.ones((8, 3)), np.zeros(8, int)
    x[5, 1] = -7e4
    model = dnn.NeuralNetwork(dnn.mlp(3, [4], 2), dtype="float16")
    for call in (lambda: model.fit(x, y), lambda: model.predict(x), lambda: model.evaluate(x, y)):
        with pytest.raises(DataError, match=r"x has -70000 in row 5, column 1: .*standardise"):
            call()
    for dtype in ("float32", "bfloat16"):
        dnn.NeuralNetwork(dnn.mlp(3, [4], 2), dtype=dtype).predict(x)  # which hold them
    x[5, 1] = 65504
    model.predict(x)
    with pytest.raises(DataError, match="x has 70000 in row 0, column 0"):
        dnn.NeuralNetwork(dnn.mlp(1, [4], 2), dtype="float16").predict([[7e4]])


def test_targets_and_the_loss_are_of_float32():
    line = dnn.NeuralNetwork(
        dnn.mlp(3, [4], 2), "mean_squared_error", dnn.SGD(1e-9), dtype="float16"
    )
    history = line.fit(np.ones((8, 3)), np.full((8, 2), 7e4))
    assert history.loss[0] == pytest.approx(4.9e9, rel=1e-3)


def test_a_loss_that_is_no_number_in_float16_is_a_warning_that_says_why():
    x = np.full((64, 50), 60000.0)
    model = dnn.NeuralNetwork(dnn.mlp(50, [4, 4], 2, "relu"), dtype="float16", seed=1)
    for name in (1, 2):
        model.parameters[f"fully_connected_{name}.weight"][...] = 1.0
    message = (
        "epoch 1: fully_connected_1 is the first layer with infinity: .*float16.*65504.*float32"
    )
    with pytest.warns(MixedPrecisionWarning, match=message):
        history = model.fit(x, np.zeros(64, int))
    assert history.diverged
    assert history.skipped_steps == history.steps == 2
    assert model.explain_divergence() == "fully_connected_1"


def test_of_k_networks_each_is_explained_and_its_skipped_steps_counted():
    x, y = task()
    networks = dnn.Ensemble(dnn.mlp(8, [4, 4], 2, "relu"), seeds=[1, 2, 3, 4], dtype="float16")
    networks.parameters["fully_connected_2.weight"][1] = 60000.0
    networks.parameters["fully_connected_1.weight"][3] = 60000.0
    histories = networks.fit(x * 10, y, epochs=2)
    assert [history.diverged for history in histories] == [False, True, False, True]
    found = [networks.explain_divergence(k) for k in range(4)]
    assert found == ["", "fully_connected_2", "", "fully_connected_1"]
    assert [len(history) for history in histories] == [2, 1, 2, 1]
    assert histories[1].skipped_steps == histories[1].steps == 10
    assert [history.skipped_steps for history in networks.histories] == [
        history.skipped_steps for history in histories
    ]
    assert histories[0].skipped_steps < 10


def test_check_finite_sees_bfloat16():
    model = dnn.NeuralNetwork(
        dnn.mlp(3, [4], 2, "relu"), dtype="bfloat16", check_finite=True, device="numpy"
    )
    model.parameters["fully_connected_1.weight"][...] = 3e38
    with pytest.raises(dnn.NonFiniteError, match="fully_connected_1"):
        model.fit(np.ones((8, 3)), np.zeros(8, int))
