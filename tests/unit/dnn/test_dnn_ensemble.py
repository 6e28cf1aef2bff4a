"""K networks trained at once equal K networks trained one by one, bit for bit."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import dnn
from dnn.errors import ConfigurationError, DataError, LabelError, ShapeError
from dnn.layers import (
    Activation,
    BatchNorm,
    Conv2D,
    Dropout,
    Flatten,
    FullyConnected,
    Input,
    LayerNorm,
    MaxPool2D,
    Output,
    Residual,
)

GENERATOR = np.random.default_rng(3)
X = GENERATOR.normal(size=(61, 6)).astype(np.float32)
LABELS = ((X[:, 0] * X[:, 1] > 0) + (X[:, 2] > 1)).astype(np.intp)
VALUES = X[:, :2] * 0.5
K = 4
LAYERS = {
    "heart": lambda: dnn.mlp(6, [16] * 5, 3),
    "relu": lambda: dnn.mlp(6, [8], 3, "relu"),
    "linear": lambda: [Input(6), FullyConnected(3, bias=False)],
    "normalised": lambda: [
        *(Input(6), FullyConnected(8), BatchNorm(), Activation("relu")),
        *(FullyConnected(5), LayerNorm(), Activation("tanh"), FullyConnected(3)),
    ],
    "dropout": lambda: [
        *(Input(6), Dropout(0.1), FullyConnected(9), Activation("sigmoid"), Dropout(0.5)),
        FullyConnected(3),
    ],
    "residual": lambda: [
        *(Input(2, 3), Flatten(), FullyConnected(7)),
        *(Residual([FullyConnected(7), Activation("relu")]), FullyConnected(3), Output(3)),
    ],
    "images": lambda: [
        *(Input(1, 2, 3), Conv2D(3, 2, padding="same"), Activation("relu"), MaxPool2D((1, 2))),
        *(Conv2D(4, (2, 1)), Activation("tanh"), Flatten(), FullyConnected(3)),
    ],
    "one unit": lambda: [Input(6), FullyConnected(1), Activation("tanh"), FullyConnected(3)],
}
OPTIMIZERS = {
    "sgd": lambda rate: dnn.SGD(rate, weight_decay=0.01, no_decay=["bias"]),
    "momentum": lambda rate: dnn.SGD(rate, momentum=0.9),
    "nesterov": lambda rate: dnn.SGD(rate, momentum=0.8, nesterov=True),
    "adagrad": lambda rate: dnn.AdaGrad(rate),
    "rmsprop": lambda rate: dnn.RMSProp(rate, momentum=0.5),
    "adam": lambda rate: dnn.Adam(rate, weight_decay=0.01),
    "adamw": lambda rate: dnn.AdamW(rate),
    "nadam": lambda rate: dnn.NAdam(rate),
}
RATES = [0.01, 0.1, 0.03, 0.2]
SEEDS = [0, 1, 1, 7]


@pytest.fixture(autouse=True)
def one_thread():
    with threadpool_limits(1):
        yield


def same(name, networks, k, model, history, alone):
    """Everything of network k equals the model."""
    for parameter, array in model.parameters.items():
        np.testing.assert_array_equal(
            networks.parameters[parameter][k], array, f"{name} {parameter}"
        )
    for state, array in networks.states.items():
        np.testing.assert_array_equal(array[k], model._network.states[state], f"{name} {state}")
    np.testing.assert_array_equal(history.loss, alone.loss)
    assert history.training == alone.training
    assert history.validation == alone.validation
    assert history.steps == alone.steps
    assert history.diverged == alone.diverged


def compare(layers, optimizer, rates, *, x=X, y=LABELS, epochs=3, **options):
    networks = dnn.Ensemble(layers(), optimizer=optimizer(rates), seeds=SEEDS, **options)
    histories = networks.fit(x, y, epochs=epochs, batch_size=16)
    for k, rate in enumerate(rates):
        model = dnn.NeuralNetwork(layers(), optimizer=optimizer(rate), seed=SEEDS[k], **options)
        each = epochs if isinstance(epochs, int) else epochs[k]
        alone = model.fit(x, y, epochs=each, batch_size=16)
        same(k, networks, k, model, histories[k], alone)
        np.testing.assert_array_equal(networks.predict(x)[k], model.predict(x))
        np.testing.assert_equal(networks.evaluate(x, y)[k], model.evaluate(x, y))
    return networks


# Compiled loops where there are any, and NumPy.
DEVICES = ["cpu", "numpy"]


@pytest.mark.sample(5)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", LAYERS)
def test_every_kind_of_layer(kind, device):
    layers = LAYERS[kind]
    x = X.reshape(-1, *layers()[0].shape)
    networks = compare(layers, OPTIMIZERS["momentum"], RATES, x=x, device=device)
    probabilities = networks.predict_proba(x)
    assert probabilities.shape == (K, len(x), 3)
    np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-5)


@pytest.mark.sample(5)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimizer(kind, device):
    compare(LAYERS["normalised"], OPTIMIZERS[kind], RATES, device=device)


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_networks_that_end_early_change_nothing_for_the_others(kind):
    compare(LAYERS["dropout"], OPTIMIZERS[kind], RATES, epochs=[2, 5, 1, 2])


def test_a_network_that_diverges_leaves_and_the_others_go_on():
    networks = compare(LAYERS["relu"], OPTIMIZERS["momentum"], [0.01, 1e30, 0.1, 0.02], epochs=4)
    assert [history.diverged for history in networks.histories] == [False, True, False, False]


def test_values_and_float64():
    compare(
        lambda: dnn.mlp(6, [5], 2), OPTIMIZERS["adam"], RATES, y=VALUES, loss="mean_squared_error"
    )
    compare(LAYERS["heart"], OPTIMIZERS["sgd"], RATES, dtype="float64")


def test_hyperparameters_of_each_network():
    options = {"momentum": [0.0, 0.5, 0.9, 0.9], "weight_decay": [0.1, 0.0, 0.0, 0.01]}
    dropped = [0.0, 0.2, 0.5, 0.7]
    networks = dnn.Ensemble(
        LAYERS["dropout"](),
        optimizer=dnn.SGD(RATES, **options),
        seeds=SEEDS,
        states={"dropout_2.rate": dropped, "dropout_1.rate": 0.25},
    )
    histories = networks.fit(X, LABELS, epochs=3, batch_size=20)
    for k in range(K):
        layers = LAYERS["dropout"]()
        layers[1].rate, layers[4].rate = 0.25, dropped[k]
        optimizer = dnn.SGD(RATES[k], **{name: value[k] for name, value in options.items()})
        model = dnn.NeuralNetwork(layers, optimizer=optimizer, seed=SEEDS[k])
        same(k, networks, k, model, histories[k], model.fit(X, LABELS, epochs=3, batch_size=20))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_further_fits_with_other_sizes_of_batch(kind, device):
    networks = dnn.Ensemble(
        LAYERS["dropout"](), optimizer=OPTIMIZERS[kind](RATES), seeds=SEEDS, device=device
    )
    models = [
        dnn.NeuralNetwork(
            LAYERS["dropout"](), optimizer=OPTIMIZERS[kind](rate), seed=seed, device=device
        )
        for rate, seed in zip(RATES, SEEDS, strict=True)
    ]
    # The same rest, another rest, none, one batch for all; the last time networks leave.
    for size, epochs in [(16, 2), (24, 2), (20, 1), (61, 2), (16, 1), (7, [2, 4, 1, 2])]:
        histories = networks.fit(X, LABELS, epochs=epochs, batch_size=size)
        for k, (model, each) in enumerate(zip(models, np.broadcast_to(epochs, K), strict=True)):
            alone = model.fit(X, LABELS, epochs=int(each), batch_size=size)
            same((size, k), networks, k, model, histories[k], alone)
            assert networks.histories[k].loss == model.history.loss


def test_the_accuracy_of_training_is_that_of_single_networks():
    """Also of networks that end early, by themselves or since they diverge."""
    stop = {1: [2], 2: [0]}
    networks = dnn.Ensemble(
        LAYERS["relu"](), optimizer=dnn.SGD([0.05, 1e30, 0.1, 0.2]), seeds=SEEDS
    )
    rows = folds()[0]
    histories = networks.fit(
        *(X, LABELS),
        **{"rows": rows, "epochs": [9, 9, 9, 5], "batch_size": 16},
        on_epoch=lambda epoch, active, histories: stop.get(epoch, []),
    )
    assert [len(history.accuracy) for history in histories] == [3, 1, 2, 5]
    for k, rate in enumerate([0.05, 1e30, 0.1, 0.2]):
        model = dnn.NeuralNetwork(LAYERS["relu"](), optimizer=dnn.SGD(rate), seed=SEEDS[k])
        inside = X[rows[k]], LABELS[rows[k]]
        alone = model.fit(*inside, epochs=len(histories[k]), batch_size=16)
        assert histories[k].training == alone.training
        assert histories[k].mcc == networks.histories[k].mcc == alone.mcc
        same(k, networks, k, model, histories[k], alone)
    assert 0 < histories[3].accuracy[0] < histories[3].accuracy[-1] < 1


def folds():
    order = np.random.default_rng(0).permutation(60)
    held_out = [np.sort(part) for part in np.split(order, K)]
    trained = [np.setdiff1d(np.arange(61), part) for part in held_out]
    return trained, held_out


def test_folds_each_standardised_with_its_own_rows():
    trained, held_out = folds()
    versions = np.stack([(X - X[rows].mean(0)) / X[rows].std(0) for rows in trained])
    networks = dnn.Ensemble(LAYERS["heart"](), optimizer=dnn.Adam(RATES), seeds=SEEDS)
    histories = networks.fit(
        *(versions, LABELS),
        **{"rows": trained, "versions": range(K), "validation_rows": held_out},
        **{"epochs": [3, 2, 3, 1], "batch_size": 16},
    )
    scores = networks.evaluate(versions, LABELS, rows=held_out, versions=range(K))
    for k in range(K):
        model = dnn.NeuralNetwork(LAYERS["heart"](), optimizer=dnn.Adam(RATES[k]), seed=SEEDS[k])
        inside, outside = trained[k], held_out[k]
        alone = model.fit(
            versions[k][inside],
            LABELS[inside],
            validation=(versions[k][outside], LABELS[outside]),
            epochs=[3, 2, 3, 1][k],
            batch_size=16,
        )
        same(k, networks, k, model, histories[k], alone)
        assert scores[k] == histories[k].validation[-1]


@pytest.mark.parametrize("split", [[0, 1, 2, 3], [2], [3, 0], [1, 2, 3]])
def test_it_does_not_matter_who_is_trained_with_whom(split):
    whole = dnn.Ensemble(LAYERS["dropout"](), optimizer=dnn.Adam(RATES), seeds=SEEDS)
    whole.fit(X, LABELS, epochs=2)
    part = dnn.Ensemble(
        LAYERS["dropout"](),
        optimizer=dnn.Adam([RATES[k] for k in split]),
        seeds=[SEEDS[k] for k in split],
    )
    part.fit(X, LABELS, epochs=2)
    for name, array in part.parameters.items():
        np.testing.assert_array_equal(array, whole.parameters[name].numpy()[split])


def test_a_caller_ends_networks_after_an_epoch():
    networks = dnn.Ensemble(LAYERS["relu"](), optimizer=dnn.SGD(RATES), seeds=SEEDS)
    seen = []

    def prune(epoch, active, histories):
        seen.append((epoch, active, [len(history) for history in histories]))
        return {0: [3], 1: [0, 3]}.get(epoch, [])

    histories = networks.fit(X, LABELS, epochs=[4, 4, 3, 4], on_epoch=prune)
    assert seen == [
        (0, (0, 1, 2, 3), [1, 1, 1, 1]),
        (1, (0, 1, 2), [2, 2, 2]),
        (2, (1, 2), [3, 3]),
        (3, (1,), [4]),
    ]
    assert [len(history) for history in histories] == [2, 4, 3, 1]
    assert [history.stopped for history in histories] == ["on_epoch", None, None, "on_epoch"]
    for k, epochs in enumerate([2, 4, 3, 1]):
        model = dnn.NeuralNetwork(LAYERS["relu"](), optimizer=dnn.SGD(RATES[k]), seed=SEEDS[k])
        model.fit(X, LABELS, epochs=epochs)
        for name, array in model.parameters.items():
            np.testing.assert_array_equal(networks.parameters[name][k], array)
    with pytest.raises(ConfigurationError, match="different numbers of epochs"):
        networks.fit(X, LABELS)


def test_training_in_two_calls_equals_one():
    def fresh():
        return dnn.Ensemble(LAYERS["dropout"](), optimizer=dnn.Adam(RATES), seeds=SEEDS)

    once, twice = fresh(), fresh()
    once.fit(X, LABELS, epochs=4)
    twice.fit(X, LABELS, epochs=1)
    twice.fit(X, LABELS, epochs=3)
    for name, array in once.parameters.items():
        np.testing.assert_array_equal(array, twice.parameters[name])
    assert [h.loss for h in once.histories] == [h.loss for h in twice.histories]


@pytest.mark.parametrize("epochs", [3, [2, 3, 1, 3]])
def test_a_network_is_taken_out_and_trained_further(epochs):
    networks = dnn.Ensemble(
        LAYERS["dropout"](),
        optimizer=dnn.Adam(RATES, weight_decay=[0.1, 0.2, 0.3, 0.4]),
        seeds=SEEDS,
    )
    networks.fit(X, LABELS, epochs=epochs)
    for k, decay in enumerate([0.1, 0.2, 0.3, 0.4]):
        optimizer = dnn.Adam(RATES[k], weight_decay=decay)
        out = dnn.NeuralNetwork(LAYERS["dropout"](), optimizer=optimizer, seed=99)
        networks.copy_to(k, out)
        np.testing.assert_array_equal(out.predict_proba(X), networks.predict_proba(X)[k])
        alone = dnn.NeuralNetwork(LAYERS["dropout"](), optimizer=optimizer, seed=SEEDS[k])
        alone.fit(X, LABELS, epochs=epochs if isinstance(epochs, int) else epochs[k])
        for model in (out, alone):
            model.fit(X, LABELS, epochs=2)
        assert out.history.loss == alone.history.loss
        for name, array in alone.parameters.items():
            np.testing.assert_array_equal(out.parameters[name], array)


def test_a_network_fits_into_a_model_of_the_same_kind_only():
    networks = dnn.Ensemble(LAYERS["relu"](), optimizer=dnn.Adam(), seeds=SEEDS)
    with pytest.raises(ConfigurationError, match="other layers"):
        networks.copy_to(0, dnn.NeuralNetwork(LAYERS["heart"](), optimizer=dnn.Adam()))
    with pytest.raises(ConfigurationError, match="another dtype"):
        networks.copy_to(0, dnn.NeuralNetwork(LAYERS["relu"](), dtype="float64"))
    with pytest.raises(ShapeError, match="another"):
        networks.copy_to(0, dnn.NeuralNetwork(LAYERS["relu"](), optimizer=dnn.RMSProp()))


def test_bad_input():
    def make(**options):
        return dnn.Ensemble(LAYERS["relu"](), **{"seeds": SEEDS, **options})

    with pytest.raises(ConfigurationError, match="at least one seed"):
        make(seeds=[])
    with pytest.raises(ConfigurationError, match="float16"):
        make(dtype="half")
    with pytest.raises(ConfigurationError, match="3 values for 4"):
        make(optimizer=dnn.SGD([0.1, 0.2, 0.3]))
    with pytest.raises(ConfigurationError, match="no layer has a state 'rate'"):
        make(states={"rate": 0.1})
    networks = make()
    with pytest.raises(ConfigurationError, match="epochs must be one value or 4"):
        networks.fit(X, LABELS, epochs=[1, 2])
    with pytest.raises(ConfigurationError, match="epochs must be an integer of at least 1"):
        networks.fit(X, LABELS, epochs=[1, 2, 0, 1])
    with pytest.raises(ShapeError, match="rows must be 4 vectors of one length"):
        networks.fit(X, LABELS, rows=[[0], [1], [2], [3, 4]])
    with pytest.raises(DataError, match=r"rows must be in 0 \.\. 60"):
        networks.fit(X, LABELS, rows=[[0], [1], [2], [61]])
    with pytest.raises(DataError, match="integers"):
        networks.fit(X, LABELS, rows=[[0.5]] * 4)
    with pytest.raises(ConfigurationError, match=r"versions must be in 0 \.\. 1"):
        networks.fit(np.stack([X, X]), LABELS, versions=[0, 1, 2, 0])
    with pytest.raises(LabelError, match="label 5"):
        networks.fit(X, LABELS + 5)
    with pytest.raises(ShapeError, match="input_1"):
        networks.predict(X[:, :3])


@pytest.mark.parametrize("second", ["same", "without decay", "adam", "fewer", "after some left"])
def test_restarted_networks_are_as_new_ones(second):
    x = np.ascontiguousarray(X)

    def layers():
        return [
            *(Input(6), FullyConnected(6), BatchNorm(), Activation("relu"), Dropout(0.3)),
            FullyConnected(3),
        ]

    networks = dnn.Ensemble(
        layers(),
        optimizer=dnn.SGD([0.1, 0.2, 0.3], 0.9, 1e-3),
        seeds=[1, 2, 3],
        states={"dropout_1.rate": [0.1, 0.2, 0.4]},
    )
    epochs = [3, 1, 2] if second == "after some left" else 2
    networks.fit(x, LABELS, epochs=epochs, batch_size=16)
    optimizer = {
        "without decay": dnn.SGD([0.3, 0.1, 0.2], 0.5),
        "adam": dnn.Adam([0.01, 0.02, 0.03]),
        "fewer": dnn.SGD([0.3, 0.1], 0.5, 1e-2),
    }.get(second, dnn.SGD([0.3, 0.1, 0.2], [0.5, 0.0, 0.1], 1e-2))
    seeds = [7, 8] if second == "fewer" else [7, 8, 9]
    states = {"dropout_1.rate": 0.2}
    networks.restart(seeds, optimizer, states)
    fresh = dnn.Ensemble(layers(), optimizer=optimizer, seeds=seeds, states=states)
    for batch_size in (16, 16, 20):
        each = [one.fit(x, LABELS, epochs=2, batch_size=batch_size) for one in (networks, fresh)]
        ours, theirs = ([history.loss for history in histories] for histories in each)
        assert ours == theirs
    for name, array in {**fresh.parameters, **fresh.states}.items():
        assert ({**networks.parameters, **networks.states}[name] == array).all(), name
    assert networks.evaluate(x, LABELS) == fresh.evaluate(x, LABELS)


def test_a_second_fit_sees_data_that_lie_elsewhere():
    settings = {"optimizer": dnn.SGD(0.2), "seeds": [1, 2]}
    networks, fresh = (dnn.Ensemble(dnn.mlp(6, [4], 3), **settings) for _ in range(2))
    networks.fit(X, LABELS)
    networks.restart([1, 2])
    changed = X * 2
    assert networks.fit(changed, LABELS)[0].loss == fresh.fit(changed, LABELS)[0].loss


@pytest.mark.parametrize("versions", [None, [0, 1]])
def test_data_that_are_checked_once_give_the_same(versions):
    x = X if versions is None else np.stack([X, X * 2])
    found = []
    data = dnn.DeviceData(x, LABELS)
    for given in ((x, LABELS), (data,), (data,)):
        networks = dnn.Ensemble(dnn.mlp(6, [5], 3), seeds=[1, 2])
        histories = networks.fit(*given, versions=versions, epochs=2, batch_size=16)
        scores = networks.evaluate(*given, versions=versions)
        found.append([[history.loss for history in histories], scores])
    assert found[0] == found[1] == found[2]


def test_a_network_alone_takes_data_that_are_checked_once():
    data = dnn.DeviceData(X, LABELS)
    found = []
    for given, validation in (((X, LABELS), (X, LABELS)), ((data,), data)):
        model = dnn.NeuralNetwork(dnn.mlp(6, [5], 3), seed=1)
        losses = [
            model.fit(*given, validation=share, class_weight="balanced", progress=False).loss
            for share in (validation, 0.2)
        ]
        found.append([losses, model.history.validation, model.evaluate(*given)])
    assert found[0] == found[1]
    with pytest.raises(ConfigurationError, match="leave y out"):
        model.fit(data, LABELS)
    with pytest.raises(ConfigurationError, match="y is missing"):
        model.evaluate(X)


def test_a_restart_needs_seeds():
    networks = dnn.Ensemble(dnn.mlp(6, [4], 3), seeds=[1])
    with pytest.raises(ConfigurationError, match="at least one seed"):
        networks.restart([])


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw", "rmsprop", "adagrad", "nadam"])
def test_one_without_decay_beside_one_that_decays(kind):
    def optimizer(rate, decay):
        return dnn.optimizers.optimizer_of(kind, learning_rate=rate, weight_decay=decay)

    def layers():
        return dnn.mlp(6, [7, 5], 3, "relu")

    together = dnn.Ensemble(layers(), optimizer=optimizer([0.01, 0.02], [0.1, 0.0]), seeds=[1, 2])
    losses = [history.loss for history in together.fit(X, LABELS, epochs=4, batch_size=16)]
    for k, (rate, decay) in enumerate([(0.01, 0.1), (0.02, 0.0)]):
        model = dnn.NeuralNetwork(layers(), optimizer=optimizer(rate, decay), seed=k + 1)
        history = model.fit(X, LABELS, epochs=4, batch_size=16, progress=False)
        assert history.loss == losses[k]


def test_validation_may_follow_some_epochs_alone() -> None:
    networks = dnn.Ensemble(dnn.mlp(6, [4], 3), optimizer=dnn.SGD(0.5), seeds=[1, 2])
    seen: list[tuple[int, int]] = []
    histories = networks.fit(
        X,
        LABELS,
        epochs=[5, 3],
        batch_size=8,
        validation_rows=[range(10)] * 2,
        validation_epochs={2, 3, 5},
        on_epoch=lambda epoch, ks, all_: (
            seen.extend((k, len(one.validation)) for k, one in zip(ks, all_, strict=True)) or ()
        ),
    )
    assert [len(history.validation) for history in histories] == [3, 2]
    assert seen == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 2), (0, 3)]
    assert histories[0].validation[-1] == networks.evaluate(X[:10], LABELS[:10])[0]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["normalised", "dropout"])
def test_each_network_ends_by_itself_and_keeps_its_best_epoch(kind, device):
    def rule(patience=2):
        return dnn.EarlyStopping("validation_loss", patience, min_delta=0.01)

    def adam(rate):
        return dnn.Adam(rate, average=0.9)

    rates, rules = [0.3, 0.01, 0.1, 0.03], [rule() for _ in RATES]
    held_out = np.arange(20)
    networks = dnn.Ensemble(LAYERS[kind](), optimizer=adam(rates), seeds=SEEDS, device=device)
    histories = networks.fit(
        *(X, LABELS),
        rows=[np.arange(20, 61)] * K,
        epochs=[30, 30, 30, 2],
        batch_size=16,
        validation_rows=[held_out] * K,
        early_stopping=rules,
    )
    for k, rate in enumerate(rates):
        model = dnn.NeuralNetwork(
            LAYERS[kind](), optimizer=adam(rate), seed=SEEDS[k], device=device
        )
        own = rule()
        alone = model.fit(
            *(X[20:], LABELS[20:]),
            validation=(X[:20], LABELS[:20]),
            epochs=2 if k == 3 else 30,
            batch_size=16,
            callbacks=[own],
        )
        same(kind, networks, k, model, histories[k], alone)
        assert (rules[k].best, rules[k].best_epoch) == (own.best, own.best_epoch)
        assert histories[k].stopped == alone.stopped
        assert networks.evaluate(X[:20], LABELS[:20])[k] == model.evaluate(X[:20], LABELS[:20])
        copied = dnn.NeuralNetwork(LAYERS[kind](), optimizer=adam(rate), device=device)
        networks.copy_to(k, copied)
        np.testing.assert_array_equal(copied(X), model(X))
    assert len({len(history) for history in histories}) > 2  # they ended one after another
    assert any(own.best_epoch + 1 < len(done) for own, done in zip(rules, histories, strict=True))
    with pytest.raises(ConfigurationError, match="early_stopping: 1 for 4 networks"):
        networks.fit(X, LABELS, early_stopping=[rule()])


def test_plans_outlast_a_fit_in_which_some_networks_end_early(monkeypatch):
    compiled = []

    class Counted(dnn.training.network.Plan):
        def __init__(self, *arguments):
            compiled.append(1)
            super().__init__(*arguments)

    monkeypatch.setattr(dnn.training.network, "Plan", Counted)
    networks = dnn.Ensemble(dnn.mlp(6, [4], 3), seeds=[1, 2, 3])
    counts = []
    for _ in range(3):
        networks.restart([4, 5, 6])
        networks.fit(X, LABELS, epochs=[3, 1, 2], batch_size=len(X))
        networks.evaluate(X, LABELS)
        counts.append(len(compiled))
    assert counts == [4, 6, 8]  # of three, two and one network and to evaluate; then of two and one
