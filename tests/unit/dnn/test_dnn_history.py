"""What a history says of training: accuracy without a validation set, and how it prints."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest

import dnn
from dnn.training.history import History

GENERATOR = np.random.default_rng(3)
X = GENERATOR.normal(size=(90, 4)).astype("f4")
Y = GENERATOR.integers(0, 3, 90)
STILL = dnn.SGD(1e-30)
"""Moves nothing, so that every batch of an epoch sees the same network."""


def network(outputs=3, loss="softmax_cross_entropy", optimizer=STILL, **options):
    return dnn.NeuralNetwork(dnn.mlp(4, [8], outputs), loss, optimizer, seed=1, **options)


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("check_finite", [False, True])
@pytest.mark.parametrize("batch_size", [1, 32, 90])
def test_accuracy_and_mcc_of_the_training(device, check_finite, batch_size):
    model = network(device=device, check_finite=check_finite)
    history = model.fit(X, Y, epochs=2, batch_size=batch_size)
    exact = model.evaluate(X, Y)
    assert history.training == [{"accuracy": exact["accuracy"], "mcc": exact["mcc"]}] * 2
    assert history.accuracy == [exact["accuracy"]] * 2
    assert 0 < exact["accuracy"] < 1
    assert history.mcc == [exact["mcc"]] * 2
    assert model.history.training == history.training


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_of_two_classes_with_one_output(device):
    y = (X[:, 0] + 0.5 * X[:, 1] > 0).astype(int)
    model = network(1, "binary_cross_entropy", dnn.Adam(0.01), device=device)
    model.fit(X, y, epochs=10)
    still = network(1, "binary_cross_entropy", device=device)
    still.restore(model.snapshot())
    history = still.fit(X, y, sample_weight=np.linspace(0, 2, 90))  # weights are not counted
    assert history.accuracy == [model.evaluate(X, y)["accuracy"]]
    assert history.accuracy[0] > 0.6


def test_it_is_of_the_network_before_each_step():
    model = network(optimizer=dnn.SGD(0.5))
    before = model.evaluate(X, Y)
    assert model.fit(X, Y, batch_size=90).accuracy == [before["accuracy"]]
    assert model.evaluate(X, Y)["accuracy"] != before["accuracy"]


def test_a_regression_and_a_loss_without_labels_have_none():
    model = network(1, "mean_squared_error")
    assert model.fit(X, X[:, 0]).training == model.history.accuracy == []

    class OneHot(dnn.SoftmaxCrossEntropy):
        def check(self, y, samples, outputs, dtype):
            return np.eye(outputs[0], dtype=dtype)[np.asarray(y)]

        def target(self, outputs):
            return dnn.graph.placeholder(outputs.shape, outputs.dtype, "targets")

        def value(self, outputs, target):
            return -dnn.graph.mean(dnn.graph.sum(dnn.graph.log_softmax(outputs) * target, -1))

    assert network(loss=OneHot()).fit(X, Y).accuracy == []


def test_callbacks_watch_it():
    stopping = dnn.EarlyStopping("accuracy", patience=2, restore_best=False)
    history = network().fit(X, Y, epochs=9, callbacks=[stopping])
    assert len(history) == 3  # it never becomes better
    assert stopping.best == history.accuracy[0]
    with pytest.raises(dnn.ConfigurationError, match="no value 'mcc' to watch"):
        network(1, "mean_squared_error").fit(
            X, X[:, 0], callbacks=[dnn.EarlyStopping("mcc", patience=2)]
        )


def test_counts_are_lists_whenever_they_are_read():
    model = network()
    seen, epochs = [], []

    class Reader(dnn.Callback):
        def on_epoch_end(self, epoch):
            seen.append(epoch.history.tallies if len(epoch.history) > 1 else None)
            epochs.append(len(model.history.tallies))

    history = model.fit(X, Y, epochs=3, callbacks=[Reader()])
    kept = copy.deepcopy(history), pickle.loads(pickle.dumps(history))  # before they are read
    assert epochs == [1, 2, 3]
    assert seen == [None, history.tallies, history.tallies]
    assert kept == (history, history)
    of_class = np.bincount(Y).tolist()
    assert [[of_class, tally[1]] for tally in history.tallies] == history.tallies
    assert all(type(n) is int for tally in history.tallies for part in tally for n in part)
    assert History(**dataclasses.asdict(model.history)) == model.history == history
    model.fit(X, Y)
    assert (len(history.tallies), len(model.history.tallies)) == (3, 4)


def test_histories_print_in_a_line():
    assert repr(History()) == "History(no epochs)"
    history = History()
    history.add(1.25, 0.5, 3, [[4, 4], [4, 4, 4]])
    assert repr(history) == "History(1 epoch: loss 1.25, accuracy 0.5, 0.5 s)"
    history.add(0.75, 0.25, 3, [[4, 4], [5, 3, 5]], {"loss": 0.8, "accuracy": 0.5})
    history.stopped = "enough"
    assert repr(history) == (
        "History(2 epochs: loss 1.25 -> 0.75, accuracy 0.625, validation loss 0.8, "
        "validation accuracy 0.5, 0.75 s, stopped: enough)"
    )
