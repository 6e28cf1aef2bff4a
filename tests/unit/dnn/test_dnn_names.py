"""Names of other libraries, what prints, and networks that end in what their loss contains."""

import copy
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import diel
import dnn
from dnn.names import FOREIGN_NAMES

X = np.random.default_rng(0).normal(size=(60, 4)).astype("f4")
Y = np.arange(60) % 3


def model(**options):
    return dnn.NeuralNetwork(dnn.mlp(4, [8], 3), seed=1, **options)


def ensemble():
    return dnn.Ensemble(dnn.mlp(4, [8], 3), seeds=[1, 2])


WRONG = [
    (lambda: model().fit(X, Y, validation_data=(X, Y)), "fit has no .*; here that is 'validation'"),
    (lambda: model().fit(X, Y, validation_split=0.2), "; here that is 'validation'"),
    (lambda: model().fit(X, Y, epoch=3), "; here that is 'epochs'"),
    (lambda: model().fit(X, Y, batchsize=3), "; did you mean 'batch_size'"),
    (lambda: ensemble().fit(X, Y, num_epochs=3), "Ensemble.fit has no .*; here that is 'epochs'"),
    (lambda: model(random_state=1), "NeuralNetwork has no .*; here that is 'seed'"),
    (lambda: dnn.SGD(lr=0.1), "SGD has no argument 'lr'; here that is 'learning_rate'"),
    (lambda: dnn.Adam(betas=(0.9, 0.99)), "Adam has no .*; here that is beta1 and beta2"),
    (lambda: dnn.SGD(momentun=0.9), "; did you mean 'momentum'"),
    (lambda: dnn.Dropout(p=0.1), "; here that is 'rate'"),
    (lambda: dnn.FullyConnected(3, activation="relu"), "; here that is a layer of its own"),
    (lambda: dnn.FullyConnected(3, p=0.1), r"'p' \(known"),  # not the rate of another layer
    (lambda: dnn.mlp(4, [8], 3, kernel_initializer="he"), "mlp has no argument"),
    (lambda: model(loss="crossentropy"), "; here that is 'softmax_cross_entropy'"),
    (lambda: model(loss="l1_loss"), "; here that is 'mean_absolute_error'"),
    (lambda: model(loss="CrossEntropyLoss"), "; here that is 'softmax_cross_entropy'"),
    (lambda: model(loss="mse"), "; here that is 'mean_squared_error'"),
    (lambda: model(loss="MSE"), "; here that is 'mean_squared_error'"),
    (lambda: model(loss="BCE"), "; here that is 'binary_cross_entropy'"),
    (lambda: model(loss="hinge"), r"'hinge' \(known"),
    (lambda: model(optimizer="nesterov"), "nesterov=True"),
    (lambda: model(device="gpu"), "; here that is 'cuda'"),
    (lambda: dnn.Activation("linear"), "no Activation at all"),
    (lambda: dnn.EarlyStopping("val_loss"), "; here that is 'validation_loss'"),
    (lambda: dnn.EarlyStopping(restore_best_weights=True), "; here that is 'restore_best'"),
]


@pytest.mark.parametrize(("act", "message"), WRONG)
def test_names_of_other_libraries_lead_to_ours(act, message):
    with pytest.raises(dnn.ConfigurationError, match=message):
        act()


def test_attributes_of_other_libraries_lead_to_ours():
    with pytest.raises(AttributeError, match="'compile'; here that is loss and optimizer, given"):
        model().compile()
    with pytest.raises(AttributeError, match=r"'no_such_thing'$"):
        model().no_such_thing  # noqa: B018
    with pytest.raises(AttributeError, match="'Dense'; here that is 'FullyConnected'"):
        dnn.Dense  # noqa: B018
    with pytest.raises(AttributeError, match="did you mean 'Dropout'"):
        dnn.Droput  # noqa: B018
    assert not hasattr(model(), "score")


def test_what_the_table_leads_to_is_there():
    kinds = {
        "attribute of dnn": dnn.__all__,
        "attribute of a model": dir(dnn.NeuralNetwork),
        "loss": dnn.losses.LOSSES,
        "value to watch": dnn.metrics.MORE_IS_BETTER,
        "activation": dnn.layers.basic.ACTIVATIONS,
        "initializer": dnn.initializers.INITIALIZERS,
        "optimizer": dnn.optimizers.OPTIMIZERS,
    }
    for kind, names in kinds.items():
        for name, ours in FOREIGN_NAMES[kind].items():
            assert name not in names, name
            first = re.match(r"\w+", ours).group()
            assert first in names or not ours.isidentifier(), ours


def test_models_are_called_and_give_logits():
    one = model()
    one.fit(X, Y)
    logits = one(X)
    assert logits.shape == (60, 3)
    np.testing.assert_array_equal(logits.argmax(-1), one.predict(X))
    exponentials = np.exp(logits.astype("f8"))
    shares = exponentials / exponentials.sum(-1, keepdims=True)
    np.testing.assert_allclose(one.predict_proba(X), shares, rtol=1e-5)
    assert ensemble()(X).shape == (2, 60, 3)


def test_what_people_print():
    one = model(loss="softmax_cross_entropy", optimizer="adam")
    assert repr(one) == "NeuralNetwork(4 -> 8 -> 3, SoftmaxCrossEntropy, Adam, 67 parameters)"
    assert str(one) == one.summary()
    assert repr(pickle.loads(pickle.dumps(copy.deepcopy(one)))) == repr(one)
    data = dnn.Dataset(np.zeros((1200, 4)), np.zeros(1200, int), 3, "clouds")
    assert repr(data) == "Dataset('clouds': 1,200 samples of 4 features, 3 classes)"
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert dnn.__version__ == diel.__version__
    assert f'\nversion = "{dnn.__version__}"\n' in project


@pytest.mark.parametrize(
    ("end", "outputs", "loss"),
    [
        ("softmax", 3, "softmax_cross_entropy"),
        ("sigmoid", 3, "softmax_cross_entropy"),
        ("sigmoid", 1, "binary_cross_entropy"),
    ],
)
def test_a_second_softmax_is_found_by_fit(end, outputs, loss):
    def layers():
        return [*dnn.mlp(4, [8], outputs), dnn.Activation(end), dnn.Flatten(), dnn.Output(outputs)]

    labels = Y if outputs == 3 else Y % 2
    twice = dnn.NeuralNetwork(layers(), loss, seed=1)
    with pytest.raises(dnn.ConfigurationError, match=f"ends in {end}, but .* takes logits"):
        twice.fit(X, labels)
    assert twice.predict(X).shape == (60,)  # what is trained elsewhere may predict here
    with pytest.raises(dnn.ConfigurationError, match="Leave the last Activation out"):
        dnn.Ensemble(layers(), loss, seeds=[1, 2]).fit(X, labels)


@pytest.mark.parametrize(("end", "loss"), [("softmax", "mean_squared_error"), ("tanh", None)])
def test_other_ends_are_trained(end, loss):
    layers = [*dnn.mlp(4, [8], 3), dnn.Activation(end)]
    loss = loss or "softmax_cross_entropy"
    y = np.eye(3)[Y] if end == "softmax" else Y
    assert len(dnn.NeuralNetwork(layers, loss, seed=1).fit(X, y)) == 1


def test_networks_of_an_ensemble_with_one_output_tell_two_classes_apart():
    y = (X[:, 0] > 0).astype(int)
    networks = dnn.Ensemble(
        dnn.mlp(4, [8], 1), "binary_cross_entropy", dnn.Adam(0.05), seeds=[1, 2]
    )
    networks.fit(X, y, epochs=30)
    alone = dnn.NeuralNetwork(dnn.mlp(4, [8], 1), "binary_cross_entropy", dnn.Adam(0.05), seed=2)
    alone.fit(X, y, epochs=30)
    assert networks.evaluate(X, y)[1] == alone.evaluate(X, y)
    assert alone.evaluate(X, y)["accuracy"] > 0.9
    np.testing.assert_array_equal(networks.predict(X)[1], alone.predict(X))
