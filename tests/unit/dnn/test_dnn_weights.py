"""Weights of classes and samples; labels as rows of 0 and 1; splits in three; prefetching."""

import threading
import time

import numpy as np
import pytest
from support import wait_until

import dnn
from dnn import SGD, FullyConnected, Input, NeuralNetwork, mlp
from dnn.data.labels import from_one_hot
from dnn.errors import ConfigurationError, DataError, LabelError, ShapeError


def samples(n=60, d=5, classes=3, seed=0):
    generator = np.random.default_rng(seed)
    y = generator.integers(0, classes, n)
    return (generator.normal(size=(n, d)) + 2 * np.eye(d)[y]).astype("f4"), y


def network(loss="softmax_cross_entropy", outputs=3, dtype="float64"):
    layers = mlp(5, [8], outputs, "tanh")
    return NeuralNetwork(layers, loss, SGD(0.1), seed=0, dtype=dtype)


def test_class_weights():
    labels = [0, 0, 0, 1, 1, 3]
    balanced = dnn.class_weights(labels, 4)
    np.testing.assert_allclose(balanced, [6 / 9, 6 / 6, 0, 6 / 3])
    assert balanced[labels].mean() == pytest.approx(1)
    np.testing.assert_array_equal(dnn.class_weights(labels, 4, {1: 2.5, 3: 0}), [1, 2.5, 1, 0])
    sklearn = pytest.importorskip("sklearn.utils.class_weight", reason="no scikit-learn")
    np.testing.assert_allclose(
        balanced[[0, 1, 3]],
        sklearn.compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=labels),
    )


@pytest.mark.parametrize(
    ("labels", "weights", "kind"),
    [
        ([], "balanced", DataError),
        ([0, 2], "balanced", LabelError),
        ([0.5], "balanced", LabelError),
        ([0, 1], "even", ConfigurationError),
        ([0, 1], {2: 1.0}, ConfigurationError),
        ([0, 1], {0: -1.0}, ConfigurationError),
        ([0, 1], {0: float("nan")}, ConfigurationError),
    ],
)
def test_class_weights_out_of_range(labels, weights, kind):
    with pytest.raises(kind):
        dnn.class_weights(labels, 2, weights)


@pytest.mark.parametrize(
    ("loss", "outputs"), [("softmax_cross_entropy", 3), ("mean_squared_error", 2)]
)
def test_a_sample_of_weight_2_counts_as_two_and_of_0_as_none(loss, outputs):
    x, y = samples(20)
    if outputs == 2:
        y = np.random.default_rng(1).normal(size=(20, 2))
    counts = np.arange(20) % 3
    repeated = np.repeat(np.arange(20), counts)
    weighted, explicit = network(loss, outputs), network(loss, outputs)
    # One batch; its mean is over 20 samples, or over as many as there are repeated.
    weights = counts * (20 / len(repeated))
    found = weighted.fit(x, y, epochs=5, batch_size=20, sample_weight=weights)
    expected = explicit.fit(x[repeated], y[repeated], epochs=5, batch_size=len(repeated))
    np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-12)
    for name, array in weighted.parameters.items():
        np.testing.assert_allclose(array, explicit.parameters[name], rtol=1e-9, atol=1e-14)


def test_weights_travel_with_their_samples_and_last_partial_batch():
    x, y = samples(50)
    weights = np.random.default_rng(2).uniform(0, 2, 50)
    model = NeuralNetwork(
        [Input(5), FullyConnected(3, initializer="zeros")], optimizer=SGD(0.1), seed=4
    )
    model.fit(x, y, epochs=2, batch_size=16, sample_weight=weights)
    w, b = np.zeros((5, 3)), np.zeros(3)
    for epoch in range(2):
        for rows in dnn.batches(50, 16, seed=4, epoch=epoch):
            scores = np.exp(x[rows] @ w + b)
            slope = scores / scores.sum(axis=1, keepdims=True) - np.eye(3)[y[rows]]
            slope *= weights[rows, None] / len(rows)
            w -= 0.1 * x[rows].T @ slope
            b -= 0.1 * slope.sum(axis=0)
    np.testing.assert_allclose(model.parameters["fully_connected_1.weight"], w, rtol=1e-4)


def test_weights_of_1_change_the_training_by_rounding_only():
    x, y = samples()
    plain, weighted, balanced = network(), network(), network()
    plain.fit(x, y, epochs=3)
    weighted.fit(x, y, epochs=3, sample_weight=np.ones(60))
    balanced.fit(x, y, epochs=3, class_weight={0: 1.0})
    np.testing.assert_allclose(plain.predict_proba(x), weighted.predict_proba(x), rtol=1e-9)
    assert weighted.predict_proba(x).tobytes() == balanced.predict_proba(x).tobytes()


def test_class_weights_help_the_rare_class():
    generator = np.random.default_rng(0)
    y = (generator.uniform(size=400) < 0.05).astype(int)
    x = (generator.normal(size=(400, 5)) + y[:, None]).astype("f4")
    recall = {}
    for class_weight in (None, "balanced"):
        model = network(outputs=2, dtype="float32")
        model.fit(x, y, epochs=20, class_weight=class_weight)
        recall[class_weight] = (model.predict(x)[y == 1] == 1).mean()
    assert recall["balanced"] > recall[None] + 0.2


def test_weights_that_do_not_fit():
    x, y = samples()
    for weights, kind, message in [
        (np.ones(59), ShapeError, r"\(59,\), but there are 60 samples"),
        (np.ones((60, 1)), ShapeError, "60 samples"),
        (np.r_[np.ones(59), -1], DataError, "-1.0 in row 59"),
        (np.r_[np.ones(59), np.nan], DataError, "nan in row 59"),
        (["a"] * 60, DataError, "numbers"),
    ]:
        with pytest.raises(kind, match=message):
            network().fit(x, y, sample_weight=weights)
    with pytest.raises(ConfigurationError, match="no class 3"):
        network().fit(x, y, class_weight={3: 1.0})
    with pytest.raises(ConfigurationError, match="classifications"):
        network("mean_squared_error").fit(x, np.eye(3)[y], class_weight="balanced")


def test_integer_and_one_hot_labels_train_alike():
    x, y = samples()
    integers, rows = network(), network()
    integers.fit(x, y, epochs=2)
    rows.fit(x, np.eye(3, dtype=np.float32)[y], epochs=2)
    assert integers.predict_proba(x).tobytes() == rows.predict_proba(x).tobytes()
    assert rows.evaluate(x, np.eye(3, dtype=bool)[y]) == integers.evaluate(x, y)
    soft = np.full((60, 3), 1 / 3)
    with pytest.raises(LabelError, match="row 0 of the labels is not one-hot"):
        network().fit(x, soft)


def test_one_hot_rows():
    assert from_one_hot([[0, 0, 1], [1, 0, 0]]).tolist() == [2, 0]
    for bad in ([[1, 0], [1, 1]], [[1, 0], [0, 0]], [[1, 0], [0, 2]], [[1, 0], [1, np.nan]]):
        with pytest.raises(LabelError, match="row 1") as caught:
            from_one_hot(bad)
        assert caught.value.row == 1
    with pytest.raises(LabelError, match="rows"):
        from_one_hot([1, 0])


def made(n=200):
    y = np.repeat([0, 1, 2], [n * 7 // 10, n // 5, n // 10])
    return dnn.Dataset(np.arange(float(n))[:, None], y, 3, "made")


def test_a_split_in_three_is_stratified_and_complete():
    train, validation, test = dnn.train_validation_test_split(made(), 0.2, 0.1, seed=3)
    assert [len(part) for part in (train, validation, test)] == [140, 40, 20]
    assert test.class_counts.tolist() == [14, 4, 2]
    assert validation.class_counts.tolist() == [28, 8, 4]
    assert train.features == 1
    rows = np.concatenate([part.x for part in (train, validation, test)]).ravel()
    assert sorted(rows) == list(range(200))
    held_out = dnn.train_validation_split(made(), 0.1, seed=3)[1]
    np.testing.assert_array_equal(test.x, held_out.x)
    np.testing.assert_array_equal(
        test.x, dnn.train_validation_test_split(made(), 0.4, 0.1, seed=3)[2].x
    )


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0, 0.1), (0.1, 1.0), (0.7, 0.4)])
def test_splits_in_three_that_cannot_be(shares):
    with pytest.raises(ConfigurationError):
        dnn.train_validation_test_split(made(), *shares)


def test_prefetching_keeps_the_order_and_runs_ahead():
    got = []

    def source():
        for number in range(20):
            got.append(number)
            yield np.full(3, number)

    items = dnn.prefetch(source(), depth=4)
    assert next(items)[0] == 0
    wait_until(lambda: len(got) >= 6)
    time.sleep(0.02)
    assert len(got) == 6  # the one taken, four that are ready, and one that waits for a place
    assert [int(item[0]) for item in items] == list(range(1, 20))
    assert not any(thread.name == "dnn-prefetch" for thread in threading.enumerate())


def test_an_error_of_the_source_comes_after_its_items():
    def source():
        yield 1
        raise DataError("the second file is damaged")

    items = dnn.prefetch(source())
    assert next(items) == 1
    with pytest.raises(DataError, match="second file"):
        next(items)


def test_leaving_does_not_wait_for_a_source_that_waits():
    goes_on = threading.Event()

    def source():
        yield 1
        goes_on.wait(60)

    items = dnn.prefetch(source())
    assert next(items) == 1
    (thread,) = (each for each in threading.enumerate() if each.name == "dnn-prefetch")
    items.close()
    assert thread.is_alive()
    goes_on.set()
    thread.join(60)
    assert not thread.is_alive()


def test_leaving_early_ends_the_thread():
    closed = []

    def source():
        try:
            yield from range(10**9)
        finally:
            closed.append(True)

    items = dnn.prefetch(source())
    assert next(items) == 0
    items.close()
    assert not any(thread.name == "dnn-prefetch" for thread in threading.enumerate())
    assert closed
    with pytest.raises(ConfigurationError, match="depth"):
        dnn.prefetch([], depth=0)
