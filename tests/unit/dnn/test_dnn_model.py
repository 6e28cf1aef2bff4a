"""Networks: learning, determinism, partial batches, shuffling, bad input, public names."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import dnn
from dnn import SGD, FullyConnected, Input, NeuralNetwork, mlp
from dnn.errors import ConfigurationError, DataError, LabelError, ShapeError


def samples(n=90, d=5, classes=3, seed=0):
    generator = np.random.default_rng(seed)
    y = generator.integers(0, classes, n)
    return (generator.normal(size=(n, d)) + 2 * np.eye(d)[y]).astype("f4"), y


def network(seed=0, **options):
    options.setdefault("optimizer", SGD(0.1, 0.9))
    return NeuralNetwork(mlp(5, [8], 3, "tanh"), seed=seed, **options)


def test_digits_reach_95_percent():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    train, validation = dnn.train_validation_split(dnn.load_digits(), 0.2, seed=0)
    train, validation = dnn.standardise(train, validation)
    model = NeuralNetwork(mlp(64, [64], 10, "tanh"), optimizer=SGD(0.1, 0.9), seed=0)
    history = model.fit(
        train.x, train.y, validation=(validation.x, validation.y), epochs=15, batch_size=32
    )
    assert history.validation[-1]["accuracy"] >= 0.95
    assert history.validation[-1] == model.evaluate(validation.x, validation.y)
    assert history.loss[-1] < history.loss[0] / 10
    assert len(history.loss) == len(history.validation) == 15
    assert history.steps == 15 * 45
    assert history.training_time_s > 0
    assert not history.diverged


@pytest.mark.parametrize("activation", ["relu", "sigmoid", "tanh"])
def test_exclusive_or(activation):
    x = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], "f4")
    model = NeuralNetwork(mlp(2, [16], 2, activation), optimizer=SGD(0.5, 0.9), seed=3)
    model.fit(x, [0, 1, 1, 0], epochs=400, batch_size=4)
    assert model.predict(x).tolist() == [0, 1, 1, 0]


def test_the_same_seed_gives_the_same_bits_and_another_does_not():
    x, y = samples()
    first, again, other = network(7), network(7), network(8)
    results = [model.fit(x, y, epochs=5, batch_size=16) for model in (first, again, other)]
    assert results[0].loss == results[1].loss != results[2].loss
    for name, array in first.parameters.items():
        assert array.tobytes() == again.parameters[name].tobytes()
        assert array.tobytes() != other.parameters[name].tobytes()


def test_two_calls_of_fit_equal_one():
    x, y = samples()
    once, twice = network(), network()
    once.fit(x, y, epochs=6, batch_size=16)
    twice.fit(x, y, epochs=2, batch_size=16)
    twice.fit(x, y, epochs=4, batch_size=16)
    for name, array in once.parameters.items():
        assert array.tobytes() == twice.parameters[name].tobytes()


def test_validation_does_not_change_training():
    x, y = samples()
    alone, watched = network(), network()
    alone.fit(x, y, epochs=3, batch_size=16)
    watched.fit(x, y, validation=(x[:7], y[:7]), epochs=3, batch_size=16)
    for name, array in alone.parameters.items():
        assert array.tobytes() == watched.parameters[name].tobytes()


def linear_in_float64(seed=0, rate=0.1):
    layers = [Input(5), FullyConnected(1, initializer="zeros", bias=False)]
    return NeuralNetwork(layers, "mean_squared_error", SGD(rate), seed=seed, dtype="float64")


def test_steps_are_those_of_the_formula_on_shuffled_batches_with_the_last_partial_one():
    x, _ = samples(10)
    y = x.sum(axis=1)
    model = linear_in_float64(seed=4)
    model.fit(x, y, epochs=2, batch_size=4)
    w = np.zeros((5, 1))
    sizes = []
    for epoch in range(2):
        for rows in dnn.batches(10, 4, seed=4, epoch=epoch):
            sizes.append(len(rows))
            a, b = x[rows].astype("f8"), y[rows, None].astype("f8")
            w -= 0.1 * 2 * a.T @ (a @ w - b) / len(rows)
    assert sizes == [4, 4, 2, 4, 4, 2]
    (found,) = model.parameters.values()
    np.testing.assert_allclose(found, w, rtol=1e-12)


def test_every_sample_of_the_last_partial_batch_counts():
    x, y = samples(10)
    whole, without = network(), network()
    whole.fit(x, y, batch_size=8)
    changed = x.copy()
    last = list(dnn.batches(10, 8, seed=0, epoch=0))[-1]
    assert len(last) == 2
    changed[last[-1]] += 1
    without.fit(changed, y, batch_size=8)
    weight = "fully_connected_1.weight"
    assert not np.array_equal(whole.parameters[weight], without.parameters[weight])


def test_a_batch_larger_than_the_data_is_the_data():
    x, y = samples(10)
    small, large = network(), network()
    small.fit(x, y, epochs=3, batch_size=10)
    large.fit(x, y, epochs=3, batch_size=1000)
    assert small.predict_proba(x).tobytes() == large.predict_proba(x).tobytes()


def test_predictions_fit_together():
    x, y = samples(2500)
    model = network()
    model.fit(x, y, epochs=2)
    probabilities = model.predict_proba(x)
    assert probabilities.shape == (2500, 3)
    assert probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    predicted = model.predict(x)
    np.testing.assert_array_equal(predicted, probabilities.argmax(axis=1))
    result = model.evaluate(x, y)
    assert result["accuracy"] == pytest.approx((predicted == y).mean())
    assert result["loss"] == pytest.approx(
        -np.log(probabilities[np.arange(2500), y]).mean(), rel=1e-5
    )
    assert 0 < result["mcc"] <= 1


def test_evaluation_leaves_the_network_alone():
    x, y = samples()
    model = network()
    model.fit(x, y)
    before = {name: array.copy() for name, array in model.parameters.items()}
    model.evaluate(x, y)
    first = model.predict_proba(x)
    np.testing.assert_array_equal(model.predict_proba(x), first)
    for name, array in model.parameters.items():
        np.testing.assert_array_equal(array, before[name])


def test_regression():
    x, _ = samples(200)
    y = x @ np.arange(5.0) + 1
    model = NeuralNetwork(mlp(5, [], 1), "mean_squared_error", SGD(0.05))
    model.fit(x, y, epochs=50)
    found = model.evaluate(x, y)
    assert found["loss"] == pytest.approx(0, abs=1e-6)
    assert found["r2"] == pytest.approx(1)
    assert found.keys() == {"loss", "rmse", "mae", "r2", "median_absolute_error"}
    np.testing.assert_allclose(model.predict(x)[:, 0], y, atol=1e-2)
    with pytest.raises(ConfigurationError, match="probabilities"):
        model.predict_proba(x)


def test_one_optimizer_can_train_several_networks():
    x, y = samples()
    shared = SGD(0.1, 0.9)
    first, second = network(optimizer=shared), network(optimizer=shared)
    for _ in range(3):
        first.fit(x, y)
        second.fit(x, y)
    assert first.predict_proba(x).tobytes() == second.predict_proba(x).tobytes()


def test_training_against_torch():
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    x, y = samples(50)
    model = network(optimizer=SGD(0.1, 0.9, 0.01), dtype="float64")
    linear = [
        torch.nn.Linear(5, 8, dtype=torch.float64),
        torch.nn.Linear(8, 3, dtype=torch.float64),
    ]
    with torch.no_grad():
        for i, layer in enumerate(linear, start=1):
            weight = model.parameters[f"fully_connected_{i}.weight"]
            layer.weight.copy_(torch.tensor(weight.numpy().T.copy()))
            layer.bias.zero_()
    net = torch.nn.Sequential(linear[0], torch.nn.Tanh(), linear[1])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    model.fit(x, y, epochs=3, batch_size=16)
    for epoch in range(3):
        for rows in dnn.batches(50, 16, seed=0, epoch=epoch):
            optimizer.zero_grad()
            outputs = net(torch.tensor(x[rows].astype("f8")))
            torch.nn.functional.cross_entropy(outputs, torch.tensor(y[rows])).backward()
            optimizer.step()
    np.testing.assert_allclose(
        model.parameters["fully_connected_1.weight"], linear[0].weight.detach().numpy().T, rtol=1e-9
    )


def test_training_steps_allocate_no_array():
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(1000, 64)), generator.integers(0, 10, 1000)
    model = NeuralNetwork(mlp(64, [64, 64], 10), optimizer=SGD(0.1, 0.9, 0.01))
    x = x.astype("f4")
    model.fit(x, y, epochs=2, batch_size=100)
    tracemalloc.start()
    try:
        model.fit(x, y, epochs=1, batch_size=100)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Once a fit: a check for NaN, labels as integers, the order; a (100, 64) batch is 25,600 bytes.
    assert peak < 64_000 + 3 * 8_000 + 20_000


def test_divergence_is_reported_and_stops_training():
    x, y = samples()
    model = network(optimizer=SGD(1e30))
    history = model.fit(x * 1e3, y, validation=(x, y), epochs=50)
    assert history.diverged
    assert len(history.loss) < 50
    assert len(history.validation) == len(history.loss)


def test_shapes_that_do_not_fit():
    x, y = samples()
    with pytest.raises(ShapeError, match=r"input_1: x has shape \(90, 4\).*\(n, 5\)"):
        network().fit(x[:, :4], y)
    with pytest.raises(ShapeError, match="input_1"):
        network().predict(x[0])
    with pytest.raises(ShapeError, match=r"labels have shape \(89,\), but 90 samples"):
        network().fit(x, y[:-1])
    with pytest.raises(ShapeError, match="validation x"):
        network().fit(x, y, validation=(x[:, :3], y))
    with pytest.raises(ShapeError, match="targets"):
        NeuralNetwork(mlp(5, [], 2), "mean_squared_error").fit(x, y)


@pytest.mark.parametrize(("label", "row"), [(3, 4), (-1, 0)])
def test_labels_out_of_range(label, row):
    x, y = samples()
    y[row] = label
    with pytest.raises(LabelError, match=rf"label {label} in row {row} is not in 0 .. 2") as caught:
        network().fit(x, y)
    assert caught.value.row == row


def test_labels_that_are_no_integers():
    x, y = samples()
    with pytest.raises(LabelError, match="integers"):
        network().fit(x, y + 0.5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_that_are_no_numbers(value):
    x, y = samples()
    x[3, 2] = value
    for call in (network().predict, lambda x: network().fit(x, y)):
        with pytest.raises(DataError, match=r"row 3, column 2"):
            call(x)
    with pytest.raises(DataError, match="numbers"):
        network().predict(np.full((2, 5), "a"))
    with pytest.raises(DataError, match="no rows"):
        network().predict(x[:0])
    with pytest.raises(DataError, match="targets"):
        NeuralNetwork(mlp(5, [], 1), "mean_squared_error").fit(x[:3], [1, 2, value])


@pytest.mark.parametrize("option", [{"epochs": 0}, {"batch_size": 0}, {"batch_size": 2.5}])
def test_counts_out_of_range(option):
    with pytest.raises(ConfigurationError, match=next(iter(option))):
        network().fit(*samples(), **option)


@pytest.mark.parametrize("seed", [-1, 1.5, "a", True])
def test_seeds_out_of_range(seed):
    with pytest.raises(ConfigurationError, match="seed"):
        network(seed)


def test_public_names():
    assert sorted(dnn.__all__) == sorted(set(dnn.__all__))
    for name in dnn.__all__:
        assert getattr(dnn, name).__name__ == name
        assert name in dir(dnn)
    with pytest.raises(AttributeError, match="NeuralNet"):
        _ = dnn.NeuralNet


def test_importing_dnn_imports_no_numpy():
    code = (
        "import sys, dnn; assert 'numpy' not in sys.modules; dnn.SGD; assert 'numpy' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
