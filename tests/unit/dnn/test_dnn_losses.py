"""Losses: values and gradients against torch, extremes, targets that do not fit."""

import numpy as np
import pytest

from dnn import (
    SGD,
    Adam,
    BinaryCrossEntropy,
    Ensemble,
    NeuralNetwork,
    SoftmaxCrossEntropy,
    graph,
    mlp,
)
from dnn.errors import ConfigurationError, LabelError, ShapeError
from dnn.losses import LOSSES, MeanSquaredError, loss_of

F8 = np.float64


def value_and_slope(loss, outputs, target):
    x = graph.placeholder(outputs.shape, outputs.dtype)
    t = loss.target(x)
    y = loss.value(x, t)
    found = graph.evaluate([y, *graph.gradients(y, [x])], {x: outputs, t: target})
    return float(found[0]), found[1]


def test_losses_by_name():
    assert {name: type(loss_of(name)) for name in LOSSES} == {
        "binary_cross_entropy": BinaryCrossEntropy,
        "mean_squared_error": MeanSquaredError,
        "softmax_cross_entropy": SoftmaxCrossEntropy,
    }


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
