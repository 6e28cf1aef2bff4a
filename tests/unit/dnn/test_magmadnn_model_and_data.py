"""What MagmaDNN's model and data have, and the defects there: one test for each, named after it.

::

    model                                test_model, test_model_summary,
                                         test_training_parameters_and_metrics
    data                                 test_data
    networks (MLP)                       test_networks
    CPU-only use                         test_cpu_only_use
    asked for by its users               test_saving_and_loading_models, test_preprocessing,
                                         test_a_python_interface

    no shuffling                         test_defect_no_shuffling
    the last partial batch dropped       test_defect_the_last_partial_batch_dropped
    no validation set                    test_defect_no_validation_set
    allocation in every step             test_defect_allocation_in_every_step
    dropout active in prediction         test_defect_dropout_active_in_prediction
"""

import gzip
import pickle
import struct
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import dnn
from dnn import SGD, FullyConnected, Input, NeuralNetwork, mlp


def samples(n=90, d=5, classes=3, seed=0):
    generator = np.random.default_rng(seed)
    y = generator.integers(0, classes, n)
    return (generator.normal(size=(n, d)) + 2 * np.eye(d)[y]).astype("f4"), y


def network(**options):
    options = {"optimizer": SGD(0.1, 0.9), "seed": 0, **options}
    return NeuralNetwork(mlp(5, [8], 3, "tanh"), **options)


def test_model():
    x, y = samples(200)
    model = network()
    history = model.fit(x[:150], y[:150], validation=(x[150:], y[150:]), epochs=15)
    assert history.loss[-1] < history.loss[0] / 2
    assert len(history.accuracy) == 15
    assert history.training_time_s > 0
    predicted = model.predict(x)
    assert predicted.tolist() == model.predict_class(x).tolist()
    np.testing.assert_array_equal(predicted, model.predict_proba(x).argmax(axis=1))
    assert (predicted == y).mean() > 0.8
    assert model.evaluate(x, y)["accuracy"] == pytest.approx((predicted == y).mean())
    regression = NeuralNetwork(mlp(5, [], 2), "mean_squared_error")
    assert regression.predict(x).shape == (200, 2)
    with pytest.raises(dnn.ConfigurationError, match="no classes"):
        regression.predict_class(x)


def test_training_parameters_and_metrics():
    """`NeuralNetwork(layers, loss, optimizer, params)`, and `fit` into a dict of metrics."""
    x, y = samples(100)
    params = dnn.TrainingParameters(learning_rate=0.05, batch_size=25, epochs=3, decay=0.001)
    models = [
        network(optimizer="sgd", params=params),
        network(optimizer=SGD(0.05, weight_decay=0.001)),
    ]
    metrics = {"of": 1.0}
    history = models[0].fit(x, y, metrics=metrics)
    assert history.loss == models[1].fit(x, y, epochs=3, batch_size=25).loss
    assert metrics == {
        **{"of": 1.0, "loss": history.loss[-1], "accuracy": history.accuracy[-1]},
        "training_time_s": history.training_time_s,
    }
    again = pickle.loads(pickle.dumps(models[0]))
    assert again.fit(x, y).loss == models[0].fit(x, y).loss
    assert len(models[0].fit(x, y, epochs=2)) == 2
    regression = NeuralNetwork(mlp(5, [], 5), "mean_squared_error")
    metrics = {}
    regression.fit(x, x, metrics=metrics)
    assert set(metrics) == {"loss", "training_time_s"}
    with pytest.raises(dnn.ConfigurationError, match=r"must be a dict, not \['accuracy'\]"):
        regression.fit(x, x, metrics=["accuracy"])
    with pytest.raises(dnn.ConfigurationError, match=r"params state learning_rate.*give its name"):
        network(optimizer=SGD(0.1), params=dnn.TrainingParameters(0.1))
    wrong = {"epochs": 0, "batch_size": 1.5, "learning_rate": -1.0, "decay": -0.1}
    for name, value in wrong.items():
        with pytest.raises(dnn.ConfigurationError, match=name):
            dnn.TrainingParameters(**{name: value})


def test_model_summary():
    lines = network().summary().splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == [
        *("input_1", "fully_connected_1", "activation_1", "fully_connected_2")
    ]
    assert lines[-1].split() == ["total", str(5 * 8 + 8 + 8 * 3 + 3), str(5 * 8 + 8 * 3)]


def test_data(tmp_path):
    table = "height,kind\n1.5,0\n2.5,1\n"
    (tmp_path / "table.csv").write_text(table)
    assert dnn.load_csv(tmp_path / "table.csv").x.tolist() == [[1.5], [2.5]]
    for part, labels in (("train", [3, 7]), ("t10k", [1])):
        pixels = np.full((len(labels), 28, 28), 255, np.uint8)
        head = struct.pack(">4B3I", 0, 0, 8, 3, *pixels.shape)
        path = tmp_path / f"{part}-images-idx3-ubyte.gz"
        path.write_bytes(gzip.compress(head + pixels.tobytes()))
        head = struct.pack(">4BI", 0, 0, 8, 1, len(labels))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(head + bytes(labels))
    train, test = dnn.load_mnist(tmp_path)
    assert (train.x.shape, train.y.tolist()) == ((2, 784), [3, 7])
    assert (test.x.max(), test.y.tolist()) == (1.0, [1])


def test_networks():
    """Two classes that no plane separates: only trained hidden layers tell them apart."""
    x = np.random.default_rng(0).uniform(-1, 1, size=(400, 2)).astype("f4")
    y = ((x[:, 0] > 0) != (x[:, 1] > 0)).astype(int)
    reached = []
    for hidden in ([], [8], [8] * 4):
        model = NeuralNetwork(mlp(2, hidden, 2, "tanh"), optimizer=dnn.Adam(0.02), seed=0)
        assert len(model.parameters) == 2 * (len(hidden) + 1)
        model.fit(x[:300], y[:300], epochs=60)
        reached.append(model.evaluate(x[300:], y[300:])["accuracy"])
    without, shallow, deep = reached
    assert without < 0.75
    assert min(shallow, deep) > 0.93


def test_cpu_only_use():
    """Everything is imported, trained and saved where CuPy cannot be."""
    code = (
        "import sys; sys.modules['cupy'] = None\n"
        "import numpy as np, dnn\n"
        "x = np.random.default_rng(0).normal(size=(50, 4)).astype('f4')\n"
        "model = dnn.NeuralNetwork(dnn.mlp(4, [8], 2))\n"
        "model.fit(x, (x[:, 0] > 0).astype(int), epochs=2)\n"
        "for name in dnn.__all__: getattr(dnn, name)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_saving_and_loading_models(tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    x, y = samples()
    model, other = network(), network(seed=1)
    model.fit(x, y, epochs=2)
    model.save(tmp_path / "model.safetensors")
    other.load(tmp_path / "model.safetensors")
    assert other.predict_proba(x).tobytes() == model.predict_proba(x).tobytes()


def test_preprocessing():
    x, y = samples(200)
    x = x * 100 + 5000
    x[3, 1] = np.nan
    data = dnn.Dataset(x, y, 3, "made")
    train, validation, test = dnn.train_validation_test_split(data, 0.2, 0.2)
    train, validation, test = dnn.standardise(*dnn.impute(train, validation, test))
    model = network()
    model.fit(train.x, train.y, validation=(validation.x, validation.y), epochs=10)
    assert model.evaluate(test.x, test.y)["accuracy"] > 0.7


def test_a_python_interface():
    """Lists and arrays go in, arrays and dicts come out; errors are Python's own kinds, too."""
    model = NeuralNetwork(mlp(2, [4], 2, "tanh"), optimizer=SGD(0.5), seed=0)
    model.fit([[0, 0], [0, 1], [1, 0], [1, 1]], [0, 0, 1, 1], epochs=50)
    assert model.predict([[0, 0.5], [1, 0.5]]).tolist() == [0, 1]
    assert sorted(model.evaluate([[0, 0]], [0])) == ["accuracy", "loss", "mcc"]
    with pytest.raises(ValueError, match=r"layer takes \(n, 2\)"):
        model.predict([[1, 2, 3]])


class Watching(dnn.Optimizer):
    """Moves nothing, and writes down for which weights there are gradients."""

    def __init__(self):
        super().__init__(1.0)
        self.seen = []

    def step(self, ops, block, scalars):
        return (lambda g: self.seen.append(np.flatnonzero(g).tolist())), (block.g,)


def batches_of(samples_, batch_size, epochs=1, seed=0):
    """Return which samples each batch held, by epoch: each sample has a weight of its own."""
    layers = [Input(samples_), FullyConnected(1, bias=False, initializer="zeros")]
    watching = Watching()
    model = NeuralNetwork(layers, "mean_squared_error", watching, seed=seed)
    x, y = np.eye(samples_), np.ones(samples_)
    steps = model.fit(x, y, epochs=epochs, batch_size=batch_size).steps // epochs
    return [watching.seen[epoch * steps : (epoch + 1) * steps] for epoch in range(epochs)]


def test_defect_no_shuffling():
    first, second = batches_of(20, 5, epochs=2, seed=3)
    (again,), (other,) = batches_of(20, 5, seed=3), batches_of(20, 5, seed=4)
    assert sorted(row for batch in first for row in batch) == list(range(20))
    assert sorted(first) != [list(range(start, start + 5)) for start in range(0, 20, 5)]
    assert first == again  # seeded
    assert first != second  # each epoch in an order of its own
    assert first != other


def test_defect_the_last_partial_batch_dropped():
    (epoch,) = batches_of(23, 5)
    assert [len(batch) for batch in epoch] == [5, 5, 5, 5, 3]
    assert sorted(row for batch in epoch for row in batch) == list(range(23))


def test_defect_no_validation_set():
    x, y = samples()
    history = network().fit(x, y, validation=0.2, epochs=3)
    assert [sorted(one) for one in history.validation] == [["accuracy", "loss", "mcc"]] * 3
    assert history.steps == 3 * -(-72 // 32)  # a fifth was taken out of training


class Meter(dnn.Callback):
    """Memory that the third epoch has allocated at its highest, in bytes."""

    def on_epoch_end(self, epoch):
        if epoch.index == 1:
            tracemalloc.start()
        elif epoch.index == 2:
            self.peak_bytes = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()


def test_defect_allocation_in_every_step():
    x, y = samples(1000)
    model, meter = NeuralNetwork(mlp(5, [64, 64], 3), optimizer=SGD(0.1, 0.9, 0.01)), Meter()
    model.fit(x, y, epochs=3, batch_size=500, callbacks=[meter])
    # The history grows by a few numbers; one array of a batch, (500, 64), would have 128,000.
    assert 0 < meter.peak_bytes < 64_000


def test_defect_dropout_active_in_prediction():
    x, y = samples()
    layers = [Input(5), FullyConnected(16), dnn.Dropout(0.5), FullyConnected(3)]
    model = NeuralNetwork(layers, optimizer=SGD(0.1))
    model.fit(x, y, epochs=2)
    assert model.predict_proba(x).tobytes() == model.predict_proba(x).tobytes()
    w = model.parameters
    by_hand = (x @ w["fully_connected_1.weight"] + w["fully_connected_1.bias"]) @ w[
        "fully_connected_2.weight"
    ] + w["fully_connected_2.bias"]
    assert model.predict(x).tolist() == by_hand.argmax(axis=1).tolist()
