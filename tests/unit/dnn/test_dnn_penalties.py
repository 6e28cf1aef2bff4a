"""Penalties: their part of the loss and of the gradients, alone and for K networks."""

import numpy as np
import pytest

from dnn import (
    L1,
    L2,
    SGD,
    Activation,
    Adam,
    Ensemble,
    FullyConnected,
    Input,
    NeuralNetwork,
    Penalty,
    SoftmaxCrossEntropy,
    graph,
    load_checkpoint,
    mlp,
    save_checkpoint,
)
from dnn.errors import ConfigurationError


def cube(w):
    return graph.sum(graph.abs(w) ** 3.0)


def data(n=60):
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, n)
    return (generator.normal(size=(n, 4)) + 2 * np.eye(4)[y]).astype("f4"), y


@pytest.mark.parametrize(
    ("penalty", "omega"),
    [
        (L1(0.02), lambda w: abs(w).sum()),
        (L2(0.02), lambda w: (w**2).sum()),
        (Penalty(cube, 0.02), lambda w: (abs(w) ** 3).sum()),
    ],
    ids=["l1", "l2", "own"],
)
def test_the_loss_and_a_step_are_those_of_loss_plus_lambda_omega(penalty, omega):
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    x, y = data()
    model = NeuralNetwork(
        mlp(4, [], 3), SoftmaxCrossEntropy() + penalty, SGD(0.5), seed=1, dtype="float64"
    )
    before = {name: array.numpy().copy() for name, array in model.parameters.items()}
    w, b = (torch.tensor(array, requires_grad=True) for array in before.values())
    fit = torch.nn.functional.cross_entropy(torch.tensor(x, dtype=torch.float64) @ w + b,
                                            torch.tensor(y))  # fmt: skip
    (fit + 0.02 * omega(w)).backward()
    # What evaluate reports is without the penalty, what training reports is with it.
    assert model.evaluate(x, y)["loss"] == pytest.approx(fit.item(), rel=1e-9)
    history = model.fit(x, y, epochs=1, batch_size=len(x))
    assert history.loss[0] == pytest.approx((fit + 0.02 * omega(w)).item(), rel=1e-9)
    for (name, array), tensor in zip(model.parameters.items(), (w, b), strict=True):
        np.testing.assert_allclose(array.numpy(), before[name] - 0.5 * tensor.grad.numpy(), 1e-8)


def test_it_is_of_weights_unless_it_says_of_what():
    x, y = data()
    sizes = {}
    for of in (None, ["bias"]):
        loss = SoftmaxCrossEntropy() + L2(1.0, of)
        model = NeuralNetwork(mlp(4, [8], 3), loss, SGD(0.2), seed=1)
        model.fit(x, y, epochs=20, batch_size=20)
        sizes[of is None] = [
            sum(abs(array.numpy()).sum() for name, array in model.parameters.items() if end in name)
            for end in ("weight", "bias")
        ]
    assert sizes[True][0] < 0.1 < 1 < sizes[False][0]
    assert sizes[False][1] < 0.3


def test_each_of_k_networks_has_strengths_of_its_own_bit_for_bit():
    x, y = data()
    first, second = [0.0, 0.01, 0.1], [0.1, 0.0, 0.02]
    loss = SoftmaxCrossEntropy(label_smoothing=0.1) + L2(first) + L1(second)
    together = Ensemble(mlp(4, [8], 3), loss, Adam(0.01), seeds=[1, 2, 3])
    together.fit(x, y, epochs=[3, 1, 3], batch_size=16)
    for k in range(3):
        loss = SoftmaxCrossEntropy(label_smoothing=0.1) + L2(first[k]) + L1(second[k])
        alone = NeuralNetwork(mlp(4, [8], 3), loss, Adam(0.01), seed=k + 1)
        assert (
            alone.fit(x, y, epochs=[3, 1, 3][k], batch_size=16).loss == together.histories[k].loss
        )
        for name, array in alone.parameters.items():
            assert together.parameters[name][k].tobytes() == array.tobytes()


def test_weights_of_samples_leave_the_penalty_alone():
    x, y = data()
    model = NeuralNetwork(mlp(4, [], 3), SoftmaxCrossEntropy() + L2(0.5), SGD(0.1), seed=1)
    w = model.parameters["fully_connected_1.weight"].numpy().astype("f8")
    history = model.fit(x, y, epochs=1, batch_size=len(x), sample_weight=np.zeros(len(x)))
    assert history.loss[0] == pytest.approx(0.5 * (w**2).sum(), rel=1e-5)


def test_a_loss_without_the_penalty_stays_as_it_was():
    plain = SoftmaxCrossEntropy()
    both = plain + L2(0.1) + L1(0.2)
    assert not plain.penalties
    assert not plain.hyperparameters
    assert both.hyperparameters == {"penalty_1": 0.1, "penalty_2": 0.2}
    assert both.is_like(plain + L2(0.3) + L1([1, 2]))
    assert not both.is_like(plain + L1(0.1) + L2(0.2))
    with pytest.raises(TypeError):
        plain + 1.0


@pytest.mark.parametrize(
    ("penalty", "message"),
    [
        (lambda: L2(-0.1), "strength must be"),
        (lambda: L1(float("inf")), "strength must be"),
        (lambda: L2("much"), "strength must be"),
        (lambda: L2([0.1, 0.2]), "penalty_1 has 2 values for one network"),
        (lambda: Penalty(lambda w: w * w, 0.1), r"for fully_connected_1.weight, and no scalar"),
        (lambda: Penalty(lambda w: 0.5, 0.1), r"returned 0\.5 for fully_connected_1.weight"),
        (lambda: L2(0.1, ["gamma"]), r"no parameter has the names gamma \(there are: fully"),
    ],
)
def test_penalties_that_are_none(penalty, message):
    x, y = data()
    with pytest.raises(ConfigurationError, match=message):
        NeuralNetwork(mlp(4, [], 3), SoftmaxCrossEntropy() + penalty()).fit(x, y)


# -- activations of one's own ---------------------------------------------------------------------


def swish(x):
    return x * graph.sigmoid(x)


def test_an_activation_of_ones_own(tmp_path):
    x, y = data()
    layers = [Input(4), FullyConnected(8), Activation(swish), FullyConnected(3)]
    model = NeuralNetwork(layers, optimizer=Adam(0.05), seed=1)
    hidden = x @ model.parameters["fully_connected_1.weight"].numpy()
    hidden = hidden / (1 + np.exp(-hidden))
    expected = hidden @ model.parameters["fully_connected_2.weight"].numpy()
    np.testing.assert_allclose(model(x), expected, rtol=1e-4, atol=1e-5)
    model.fit(x, y, epochs=30, batch_size=16)
    assert model.evaluate(x, y)["accuracy"] > 0.8
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    save_checkpoint(model, tmp_path / "own")
    other = NeuralNetwork(
        [Input(4), FullyConnected(8), Activation(swish), FullyConnected(3)], optimizer=Adam(0.05)
    )
    load_checkpoint(other, tmp_path / "own")
    np.testing.assert_array_equal(other(x), model(x))


def test_an_activation_that_returns_no_node():
    with pytest.raises(ConfigurationError, match=r"activation_1: forward\(x\) returned None"):
        NeuralNetwork([Input(4), Activation(lambda x: None), FullyConnected(3)])
    with pytest.raises(ConfigurationError, match="'sigmoid'"):
        Activation("sigmoide")


def test_networks_of_radial_basis_functions_learn_what_a_line_cannot():
    x = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], "f4")
    model = NeuralNetwork(mlp(2, [6], 2, "rbf"), optimizer=Adam(0.05), seed=1)
    model.fit(x, [0, 1, 1, 0], epochs=150, batch_size=4)
    assert model.predict(x).tolist() == [0, 1, 1, 0]
