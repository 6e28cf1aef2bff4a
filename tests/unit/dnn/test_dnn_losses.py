"""Losses: values and gradients against torch, extremes, targets that do not fit."""

import numpy as np
import pytest

from dnn import (
    SGD,
    Activation,
    Adam,
    BinaryCrossEntropy,
    Ensemble,
    HuberLoss,
    KullbackLeibler,
    NeuralNetwork,
    QuantileLoss,
    SoftmaxCrossEntropy,
    graph,
    load,
    mlp,
)
from dnn.errors import ConfigurationError, DataError, LabelError, ShapeError
from dnn.losses import LOSSES, MeanSquaredError, loss_of
from dnn.training.data import fit_data

F8 = np.float64


def value_and_slope(loss, outputs, target):
    x = graph.placeholder(outputs.shape, outputs.dtype)
    t = loss.target(x)
    y = loss.value(x, t)
    found = graph.evaluate([y, *graph.gradients(y, [x])], {x: outputs, t: target})
    return float(found[0]), found[1]


def test_losses_by_name():
    assert all(type(loss_of(name)) is kind for name, kind in LOSSES.items())
    assert [*LOSSES] == sorted(LOSSES)


def test_losses_by_a_table_of_options():
    loss = loss_of({"name": "huber", "delta": 0.5})
    assert (type(loss), loss.hyperparameters) == (HuberLoss, {"delta": 0.5})
    assert loss_of({"name": "quantile", "quantiles": [0.2, 0.5]}).quantiles == (0.2, 0.5)
    table = {"name": "softmax_cross_entropy", "class_weight": [1, 2], "label_smoothing": 0.1}
    assert loss_of(table).options == {"class_weight": [1, 2], "label_smoothing": 0.1}
    assert HuberLoss().options == MeanSquaredError().options == {}
    for table, text in (
        ({"delta": 1}, "unknown loss None"),
        ({"name": "hubert"}, "did you mean 'huber'"),
        ({"name": "huber", "detla": 1}, "'huber' has no option 'detla'; did you mean 'delta'"),
        ({"name": "poisson", "log": 1}, r"no option 'log' \(it has none\)"),
        ({"name": "huber", "delta": 0}, "HuberLoss: delta must be above 0"),
        ({"name": "quantile", "quantiles": [0.5, 0.1]}, "in ascending order, not"),
        ({"name": "quantile", "quantiles": [1]}, "below 1"),
        ({"name": "quantile", "quantiles": "all"}, "quantiles must be"),
        ({"name": "focal", "gamma": -1}, "gamma must be 0 or more"),
        ({"name": "cross_entropy", "epsilon": 0}, "epsilon must be above 0"),
        ({"name": "focal", "class_weight": [-1]}, "class_weight is -1"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            loss_of(table)


def torch_loss(name, options):
    """Return the loss of PyTorch, a function of outputs and targets."""
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    of = torch.nn.functional
    if name == "quantile":
        shares = torch.tensor(options.get("quantiles", (0.1, 0.5, 0.9)), dtype=torch.float64)

        def quantile(outputs, target):
            d = target[..., None] - outputs.reshape(*target.shape, len(shares))
            return torch.maximum(d * shares, d * (shares - 1)).mean()

        return quantile
    if name == "focal":
        weights = torch.tensor(options.get("class_weight", [1.0] * 4), dtype=torch.float64)

        def focal(outputs, target):
            log = of.log_softmax(outputs, -1)[torch.arange(len(target)), target]
            each = -((1 - log.exp()) ** options.get("gamma", 2.0)) * log
            return (each * weights[target]).mean()

        return focal
    if name == "cross_entropy":
        small = options.get("epsilon", 1e-7)
        return lambda outputs, target: of.nll_loss((outputs + small).log(), target)
    return {
        "huber": lambda outputs, target: of.huber_loss(outputs, target, **options),
        "kullback_leibler": lambda outputs, target: of.kl_div(
            of.log_softmax(outputs, -1), target, reduction="batchmean"
        ),
        "mean_absolute_error": of.l1_loss,
        "multi_label_cross_entropy": of.binary_cross_entropy_with_logits,
        "poisson": of.poisson_nll_loss,
    }[name]


def targets_for(loss, rows, outputs, generator):
    """Return targets that a loss takes."""
    if loss.takes == "classes":
        return generator.integers(0, outputs, rows)
    count = outputs // len(loss.quantiles) if loss.name == "quantile" else outputs
    drawn = {
        "values": lambda: generator.normal(size=(rows, count)) * 2,
        "counts": lambda: generator.poisson(3.0, (rows, count)).astype(F8),
        "labels": lambda: generator.integers(0, 2, (rows, count)).astype(F8),
        "distributions": lambda: generator.dirichlet([0.3] * count, rows).round(2),
    }[loss.takes]()
    if loss.takes == "distributions":
        drawn[:, 0] += 1 - drawn.sum(-1)
    return drawn


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("cross_entropy", {}),
        ("cross_entropy", {"epsilon": 0.01}),
        ("focal", {}),
        ("focal", {"gamma": 0.5, "class_weight": [1.0, 2.0, 0.5, 0.0]}),
        ("huber", {}),
        ("huber", {"delta": 0.3}),
        ("kullback_leibler", {}),
        ("mean_absolute_error", {}),
        ("multi_label_cross_entropy", {}),
        ("poisson", {}),
        ("quantile", {"quantiles": [0.25, 0.9]}),
        ("quantile", {"quantiles": [0.5]}),
    ],
)
def test_further_losses_against_torch(name, options):
    theirs = torch_loss(name, options)
    import torch

    generator = np.random.default_rng(0)
    loss = loss_of({"name": name, **options})
    outputs = generator.normal(size=(9, 4))
    if name == "cross_entropy":
        outputs = np.exp(outputs) / np.exp(outputs).sum(-1, keepdims=True)
    target = loss.check(targets_for(loss, 9, 4, generator), 9, (4,), np.dtype(F8))
    if loss.takes == "values":
        outputs[0, 0] = target[0, 0] if target.shape[1] == 4 else outputs[0, 0]
    value, slope = value_and_slope(loss, outputs, target)
    tensor = torch.tensor(outputs, requires_grad=True)
    expected = theirs(tensor, torch.tensor(target))
    expected.backward()
    assert value == pytest.approx(expected.item(), rel=1e-12)
    np.testing.assert_allclose(slope, tensor.grad.numpy(), rtol=1e-9, atol=1e-14)


EXTREMES = {
    "focal": lambda: loss_of({"name": "focal", "gamma": 0.5}),
    "huber": HuberLoss,
    "kullback_leibler": KullbackLeibler,
    "mean_absolute_error": lambda: loss_of("mean_absolute_error"),
    "multi_label_cross_entropy": lambda: loss_of("multi_label_cross_entropy"),
    "quantile": lambda: QuantileLoss([0.5]),
}


@pytest.mark.parametrize("dtype", [np.float32, F8])
@pytest.mark.parametrize("name", EXTREMES)
def test_further_losses_of_huge_outputs_are_finite(name, dtype):
    loss = EXTREMES[name]()
    outputs = np.array([[1e4, -1e4], [-1e4, 1e4], [0, 0]], dtype)
    given = [0, 0, 1] if loss.takes == "classes" else [[0, 1], [1, 0], [0, 1]]
    target = loss.check(given, 3, (2,), np.dtype(dtype))
    value, slope = value_and_slope(loss, outputs, target)
    assert np.isfinite(value)
    assert np.isfinite(slope).all()
    assert value > 1000


def further_networks(name):
    """Return the layers for a loss, two of its kind that differ in numbers, and targets."""
    generator = np.random.default_rng(3)
    numbers = {"huber": ("delta", (0.2, 1.5)), "focal": ("gamma", (0.5, 2.0))}
    numbers["cross_entropy"] = ("epsilon", (1e-6, 1e-2))
    option, values = numbers.get(name, (None, (0, 0)))
    losses = [loss_of({"name": name, **({option: x} if option else {})}) for x in values]
    both = loss_of({"name": name, **({option: values} if option else {})})
    outputs = {"binary_cross_entropy": 1, "quantile": 6}.get(name, 3)
    layers = mlp(3, [5], outputs, "tanh")
    if name == "cross_entropy":
        layers.append(Activation("softmax"))
    x = generator.normal(size=(40, 3)).astype("f4")
    y = targets_for(both, 40, 2 if name == "binary_cross_entropy" else outputs, generator)
    return layers, losses, both, x, y


@pytest.mark.parametrize("name", LOSSES)
def test_one_plan_trains_networks_with_any_loss_bit_for_bit(name):
    layers, losses, both, x, y = further_networks(name)
    weights = np.arange(40) % 3 + 0.5
    together = Ensemble(layers, both, SGD(0.05), seeds=[1, 2])
    histories = together.fit(x, y, epochs=2, batch_size=16, sample_weight=weights)
    predicted, measured = together.predict(x), together.evaluate(x, y)
    for k, loss in enumerate(losses):
        alone = NeuralNetwork(further_networks(name)[0], loss, SGD(0.05), seed=k + 1)
        history = alone.fit(x, y, epochs=2, batch_size=16, sample_weight=weights)
        assert history.loss == histories[k].loss
        assert all(map(np.isfinite, history.loss))
        for key, array in alone.parameters.items():
            assert together.parameters[key][k].tobytes() == array.tobytes()
        np.testing.assert_array_equal(alone.predict(x), predicted[k])
        assert alone.evaluate(x, y) == measured[k]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_with_narrow_operands(name, dtype):
    found = []
    for precision in ("float32", dtype):
        layers, (loss, _), _, x, y = further_networks(name)
        model = NeuralNetwork(layers, loss, SGD(0.02), seed=1, dtype=precision)
        found.append(model.fit(x, y, epochs=3, batch_size=16).loss)
    np.testing.assert_allclose(*found, rtol=0.03)


@pytest.mark.parametrize(
    ("loss", "function", "labels"),
    [
        (SoftmaxCrossEntropy(), "cross_entropy", True),
        (BinaryCrossEntropy(), "binary_cross_entropy_with_logits", True),
        (MeanSquaredError(), "mse_loss", False),
    ],
)
def test_values_and_gradients_against_torch(loss, function, labels):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    generator = np.random.default_rng(0)
    binary = isinstance(loss, BinaryCrossEntropy)
    outputs = generator.normal(size=(9, 1 if binary else 4)) * 5
    target = (
        generator.integers(0, 2 if binary else 4, 9)
        if labels
        else generator.normal(size=outputs.shape)
    )
    value, slope = value_and_slope(loss, outputs, target)
    tensor = torch.tensor(outputs, requires_grad=True)
    theirs = torch.tensor(target[:, None].astype(F8) if binary else target)
    expected = getattr(torch.nn.functional, function)(tensor, theirs)
    expected.backward()
    assert value == pytest.approx(expected.item(), rel=1e-12)
    np.testing.assert_allclose(slope, tensor.grad.numpy(), rtol=1e-9, atol=1e-14)


def test_class_weights_against_torch():
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    generator = np.random.default_rng(1)
    outputs, labels = generator.normal(size=(8, 3)), generator.integers(0, 3, 8)
    weights = [0.2, 1.0, 3.0]
    value, slope = value_and_slope(SoftmaxCrossEntropy(weights), outputs, labels)
    tensor = torch.tensor(outputs, requires_grad=True)
    # torch's own mean would divide by the sum of the weights.
    expected = torch.nn.functional.cross_entropy(
        tensor, torch.tensor(labels), torch.tensor(weights, dtype=torch.float64), reduction="none"
    ).mean()
    expected.backward()
    assert value == pytest.approx(expected.item(), rel=1e-12)
    np.testing.assert_allclose(slope, tensor.grad.numpy(), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("weights", [None, [0.2, 1.0, 3.0]])
def test_smoothed_labels_against_torch(weights):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    generator = np.random.default_rng(1)
    outputs, labels = generator.normal(size=(8, 3)), generator.integers(0, 3, 8)
    loss = SoftmaxCrossEntropy(weights, label_smoothing=0.2)
    tensor = torch.tensor(outputs, requires_grad=True)
    theirs = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    each = torch.nn.functional.cross_entropy(
        tensor, torch.tensor(labels), theirs, reduction="none", label_smoothing=0.2
    )
    each.mean().backward()
    value, slope = value_and_slope(loss, outputs, labels)
    assert value == pytest.approx(each.mean().item(), rel=1e-12)
    np.testing.assert_allclose(slope, tensor.grad.numpy(), rtol=1e-10, atol=1e-14)
    x, of_sample = graph.placeholder((8, 3), F8), graph.placeholder((8,), F8)
    t = loss.target(x)
    feeds = {x: outputs, t: labels, of_sample: np.arange(8.0)}
    (weighted,) = graph.evaluate([loss.weighted_value(x, t, of_sample)], feeds)
    expected = (each.detach().numpy() * np.arange(8)).mean()
    assert weighted == pytest.approx(expected, rel=1e-12)


def test_smoothed_labels_of_two_classes_against_torch():
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    generator = np.random.default_rng(1)
    outputs, labels = generator.normal(size=(8, 1)), generator.integers(0, 2, 8)
    value, slope = value_and_slope(BinaryCrossEntropy(label_smoothing=0.2), outputs, labels)
    tensor = torch.tensor(outputs, requires_grad=True)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        tensor, torch.tensor(labels[:, None] * 0.8 + 0.1)
    )
    expected.backward()
    assert value == pytest.approx(expected.item(), rel=1e-12)
    np.testing.assert_allclose(slope, tensor.grad.numpy(), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("kind", "outputs"), [(SoftmaxCrossEntropy, 2), (BinaryCrossEntropy, 1)])
def test_smoothed_labels_are_of_training_alone(kind, outputs):
    x, y = two_classes()
    plain, smooth = (
        NeuralNetwork(mlp(3, [8], outputs, "tanh"), kind(label_smoothing=e), Adam(0.02), seed=1)
        for e in (0.0, 0.4)
    )
    assert plain.evaluate(x, y) == smooth.evaluate(x, y)
    first = [model.fit(x, y, epochs=15, batch_size=16).loss[-1] for model in (plain, smooth)]
    assert first[0] < 0.3 < -(0.8 * np.log(0.8) + 0.2 * np.log(0.2)) < first[1]
    # Nobody is to be more certain than 0.8.
    assert smooth.predict_proba(x).max() < 0.9 < plain.predict_proba(x).max()
    assert smooth.evaluate(x, y)["accuracy"] > 0.95


def test_each_of_k_networks_has_a_smoothing_of_its_own_bit_for_bit():
    x, y = two_classes(40)
    shares = [0.0, 0.1, 0.3]
    loss = SoftmaxCrossEntropy(label_smoothing=shares)
    together = Ensemble(mlp(3, [8], 2, "tanh"), loss, SGD(0.1), seeds=[1, 2, 3])
    together.fit(x, y, epochs=[1, 3, 3], batch_size=16)  # the first one leaves the plan
    for smoothing in (shares, [0.3, 0.1, 0.2]):
        if smoothing is not shares:
            together.restart([1, 2, 3], loss=SoftmaxCrossEntropy(label_smoothing=smoothing))
            together.fit(x, y, epochs=[1, 3, 3], batch_size=16)
        for k, share in enumerate(smoothing):
            loss = SoftmaxCrossEntropy(label_smoothing=share)
            alone = NeuralNetwork(mlp(3, [8], 2, "tanh"), loss, SGD(0.1), seed=k + 1)
            history = alone.fit(x, y, epochs=3 if k else 1, batch_size=16)
            assert history.loss == together.histories[k].loss
            for name, array in alone.parameters.items():
                assert together.parameters[name][k].tobytes() == array.tobytes()


def test_a_smoothing_that_is_none():
    for kind in (SoftmaxCrossEntropy, BinaryCrossEntropy):
        for wrong in (-0.1, 1.5, float("nan"), "much", [[0.1]], []):
            with pytest.raises(ConfigurationError, match="label_smoothing must be"):
                kind(label_smoothing=wrong)
    loss = SoftmaxCrossEntropy(label_smoothing=[0.1, 0.2])
    with pytest.raises(ConfigurationError, match="label_smoothing has 2 values for one network"):
        NeuralNetwork(mlp(3, [], 2), loss)
    with pytest.raises(ConfigurationError, match="label_smoothing has 2 values for 3 networks"):
        Ensemble(mlp(3, [], 2), loss, seeds=[1, 2, 3])
    networks = Ensemble(mlp(3, [], 2), loss, seeds=[1, 2])
    with pytest.raises(ConfigurationError, match="no other loss"):
        networks.restart([1, 2], loss=SoftmaxCrossEntropy())


@pytest.mark.parametrize("dtype", [np.float32, F8])
def test_huge_outputs_give_finite_losses_and_gradients(dtype):
    value, slope = value_and_slope(
        BinaryCrossEntropy(), np.array([[1e4], [-1e4], [0], [1e4]], dtype), np.array([0, 1, 1, 1])
    )
    assert value == pytest.approx((2e4 + np.log(2)) / 4, rel=1e-6)
    np.testing.assert_allclose(slope, [[0.25], [-0.25], [-0.125], [0]])
    value, slope = value_and_slope(
        SoftmaxCrossEntropy([1, 3]), np.array([[1e4, -1e4], [1e4, -1e4]], dtype), np.array([0, 1])
    )
    assert value == 3e4
    np.testing.assert_array_equal(slope, [[0, 0], [1.5, -1.5]])


def two_classes(n=120):
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, n)
    return (generator.normal(size=(n, 3)) + 3 * y[:, None]).astype("f4"), y


def test_a_network_with_one_output_tells_two_classes_apart():
    x, y = two_classes()
    model = NeuralNetwork(mlp(3, [8], 1, "tanh"), "binary_cross_entropy", Adam(0.02), seed=1)
    model.fit(x, y, epochs=15, batch_size=16)
    measured = model.evaluate(x, y)
    assert measured["accuracy"] > 0.95
    assert measured["mcc"] > 0.9
    predicted, probabilities = model.predict(x), model.predict_proba(x)
    assert predicted.shape == (120,)
    assert set(predicted.tolist()) == {0, 1}
    assert probabilities.shape == (120, 2)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(probabilities.argmax(axis=1), predicted)
    expected = -np.log(probabilities[np.arange(120), y]).mean()
    assert measured["loss"] == pytest.approx(expected, rel=1e-4)
    balanced = NeuralNetwork(mlp(3, [8], 1, "tanh"), "binary_cross_entropy", Adam(0.02), seed=1)
    balanced.fit(x, y, epochs=15, batch_size=16, class_weight="balanced")
    assert balanced.evaluate(x, y)["accuracy"] > 0.95


def test_class_weights_move_the_boundary():
    x, y = two_classes()
    shares = []
    for weights in (None, [1, 30]):
        model = NeuralNetwork(mlp(3, [], 2), SoftmaxCrossEntropy(weights), SGD(0.05), seed=1)
        model.fit(x, y, epochs=10, batch_size=16)
        shares.append(model.predict(x).mean())
    assert shares[0] + 0.05 < shares[1]
    # The weights of the loss and those of `fit` are the same thing.
    model = NeuralNetwork(mlp(3, [], 2), optimizer=SGD(0.05), seed=1)
    model.fit(x, y, epochs=10, batch_size=16, class_weight={1: 30})
    assert model.predict(x).mean() == shares[1]


def test_targets_and_weights_that_do_not_fit():
    binary = BinaryCrossEntropy()
    with pytest.raises(ShapeError, match=r"one output.*\(2,\)"):
        binary.check([0, 1], 2, (2,), np.dtype("f4"))
    with pytest.raises(LabelError, match=r"label 2 in row 1 is not in 0 \.\. 1"):
        binary.check([0, 2], 2, (1,), np.dtype("f4"))
    with pytest.raises(LabelError, match="integers"):
        binary.check([0.5, 0.5], 2, (1,), np.dtype("f4"))
    with pytest.raises(ShapeError, match=r"\(3,\), but 2 samples"):
        binary.check([0, 1, 1], 2, (1,), np.dtype("f4"))
    assert binary.check([[0], [1]], 2, (1,), np.dtype("f4")).tolist() == [0, 1]
    with pytest.raises(ConfigurationError, match=r"class_weight is -1\.0 for class 1"):
        SoftmaxCrossEntropy([1, -1])
    model = NeuralNetwork(mlp(3, [], 2), SoftmaxCrossEntropy([1, 2, 3]))
    with pytest.raises(ConfigurationError, match="3 numbers for 2 classes"):
        model.fit(*two_classes())
    with pytest.raises(ConfigurationError, match="no classes"):
        MeanSquaredError().class_count((3,))


def test_cross_entropy_takes_probabilities():
    x, y = two_classes(40)
    ends = [*mlp(3, [], 2), Activation("softmax")]
    model = NeuralNetwork(ends, "cross_entropy", Adam(0.05), seed=1)
    model.fit(x, y, epochs=20)
    np.testing.assert_array_equal(model.predict_proba(x), model(x))
    chosen = model(x)[np.arange(40), y]
    assert model.evaluate(x, y)["loss"] == pytest.approx(-np.log(chosen + 1e-7).mean(), rel=1e-5)
    assert model.evaluate(x, y)["accuracy"] > 0.9
    with pytest.raises(ConfigurationError, match=r'takes probabilities.*Activation."softmax"'):
        NeuralNetwork(mlp(3, [], 2), "cross_entropy").fit(x, y)
    with pytest.raises(ConfigurationError, match="ends in a softmax of a softmax"):
        NeuralNetwork(
            [*mlp(3, [], 2), Activation("softmax"), Activation("softmax")], "cross_entropy"
        ).fit(x, y)


def test_several_labels_at_once():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 4)).astype("f4")
    y = (x[:, :3] + x[:, 1:] > 1.5).astype(int)  # rare, and any number of them true
    shares = []
    for weight in (None, {1: 20.0}, "balanced"):
        model = NeuralNetwork(mlp(4, [], 3), "multi_label_cross_entropy", SGD(0.2), seed=1)
        model.fit(x, y, epochs=15, class_weight=weight)
        assert model.predict(x).shape == model.predict_proba(x).shape == (200, 3)
        shares.append(model.predict(x).mean(axis=0))
    assert shares[1][1] > shares[0][1] + 0.05
    assert np.allclose(shares[1][[0, 2]], shares[0][[0, 2]])
    assert (shares[2] > shares[0] + 0.02).all()
    with pytest.raises(ConfigurationError, match="there is no class 3 of 3"):
        model.fit(x, y, class_weight={3: 1.0})


def test_each_label_of_a_sample_may_have_a_weight():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(2, 30, 4)).astype("f4")
    y = generator.integers(0, 2, (30, 3))
    weights = generator.uniform(0, 2, (2, 30, 3))
    loss = "multi_label_cross_entropy"
    for given in (weights, weights[..., 0], weights[0], weights[0, :, 0]):
        together = Ensemble(mlp(4, [5], 3, "tanh"), loss, SGD(0.1), seeds=[1, 2])
        found = together.fit(x, y, versions=[0, 1], epochs=2, sample_weight=given)
        for k in range(2):
            alone = NeuralNetwork(mlp(4, [5], 3, "tanh"), loss, SGD(0.1), seed=k + 1)
            own = given[k] if len(given) == 2 else given
            assert alone.fit(x[k], y, epochs=2, sample_weight=own).loss == found[k].loss
    weights[1, 3, 2] = -1
    with pytest.raises(DataError, match=r"sample_weight is -1\.0 in row 3: not 0 or more"):
        alone.fit(x[1], y, sample_weight=weights[1])
    with pytest.raises(ShapeError, match="sample_weight has shape"):
        alone.fit(x[1], y, sample_weight=weights[1, :, :2])


def test_classes_are_balanced_by_the_rows_of_the_training_alone():
    x, y = two_classes(60)
    y = np.where(np.arange(60) % 5, 0, y)
    model = NeuralNetwork(mlp(3, [4], 2), seed=3)
    samples, held_out = fit_data(model._network, 3, x, y, 0.5, "balanced", None)
    assert held_out.weights is None
    sums = np.bincount(samples.y, samples.weights)
    np.testing.assert_allclose(sums, len(samples.y) / 2, rtol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_a_weight_of_0_leaves_a_sample_out(name):
    _, (loss, _), _, x, y = further_networks(name)
    slopes = []
    for rows, weights in ((np.arange(40), np.arange(40) < 20), (np.arange(20), np.full(20, 0.5))):
        model = NeuralNetwork(further_networks(name)[0], loss, SGD(0.1), seed=1)
        model.fit(x[rows], y[rows], batch_size=len(rows), sample_weight=weights.astype("f4"))
        slopes.append([array.numpy() for array in model.parameters.values()])
    for one, other in zip(*slopes, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-6)


def test_targets_that_further_losses_refuse():
    f4 = np.dtype("f4")
    for loss, y, outputs, error, text in (
        ("poisson", [[1.0], [-2.0]], (1,), DataError, "0 or more, not -2 in row 1"),
        ("kullback_leibler", [[0.5, 0.5], [0.5, 0.6]], (2,), DataError, "sum to 1 are wanted.*1$"),
        ("multi_label_cross_entropy", [[0, 1], [0, 2]], (2,), LabelError, "not 2 in row 1"),
        ("huber", [["a"], ["b"]], (1,), DataError, "must be numbers"),
        ("quantile", [1.0, 2.0], (6,), ShapeError, "and 3 quantiles of 6 outputs need"),
        ("quantile", [1.0, 2.0], (4,), ConfigurationError, "need 3 outputs for each target"),
        ("focal", [0, 3], (3,), LabelError, "label 3 in row 1"),
    ):
        with pytest.raises(error, match=text):
            loss_of(loss).check(y, 2, outputs, f4)
    assert loss_of("quantile").check([1.0, 2.0], 2, (3,), f4).shape == (2, 1)
    with pytest.raises(ConfigurationError, match="class_weight is for classifications only"):
        NeuralNetwork(mlp(3, [], 1), "huber").fit(*two_classes(), class_weight="balanced")


def test_predictions_of_distributions():
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(60, 3)).astype("f4"), generator.dirichlet([0.5] * 4, 60)
    model = NeuralNetwork(mlp(3, [5], 4, "tanh"), "kullback_leibler", Adam(0.02), seed=1)
    history = model.fit(x, y, epochs=10)
    assert history.loss[-1] < history.loss[0]
    np.testing.assert_allclose(model.predict(x), model.predict_proba(x), rtol=1e-5)
    found = model.predict(x)
    divergence = np.sum(y * (np.log(np.maximum(y, 1e-30)) - np.log(found)), axis=1).mean()
    assert model.evaluate(x, y) == {"loss": pytest.approx(divergence, rel=1e-4)}


def test_predictions_of_counts_and_quantiles():
    generator = np.random.default_rng(0)
    x = generator.uniform(0, 2, (400, 1)).astype("f4")
    counts = generator.poisson(np.exp(x))
    model = NeuralNetwork(mlp(1, [], 1), "poisson", Adam(0.05), seed=1)
    model.fit(x, counts, epochs=40)
    np.testing.assert_allclose(model.predict(x), np.exp(model(x)))
    assert abs(model.predict([[1.0]])[0, 0] - np.e) < 0.4
    spread = x[:, 0] * generator.normal(size=400)
    model = NeuralNetwork(mlp(1, [16], 3), QuantileLoss([0.1, 0.5, 0.9]), Adam(0.01), seed=1)
    model.fit(x, spread, epochs=60)
    below = (spread[:, None] < model.predict(x)).mean(axis=0)
    np.testing.assert_allclose(below, [0.1, 0.5, 0.9], atol=0.06)


@pytest.mark.parametrize("name", LOSSES)
def test_a_model_of_a_file_has_its_loss(name, tmp_path):
    pytest.importorskip("safetensors")
    layers, (_, loss), _, x, y = further_networks(name)
    model = NeuralNetwork(layers, loss, seed=1)
    model.save(tmp_path / "model.safetensors")
    found = load(tmp_path / "model.safetensors")
    again = found.network._network.loss
    assert (type(again), again.options) == (type(loss), loss.options)
    np.testing.assert_array_equal(found.predict(x), model.predict(x))
    assert found.evaluate(x, y) == model.evaluate(x, y)
