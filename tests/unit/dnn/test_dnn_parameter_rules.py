"""LARS and Muon: rules that see a whole parameter, by formula, in torch, for K networks."""

import numpy as np
import pytest

from dnn import LARS, SGD, AdamW, Ensemble, Muon, NeuralNetwork, graph, ops_for
from dnn.backend import Ops
from dnn.errors import ConfigurationError
from dnn.layers import Activation, Conv2D, Flatten, FullyConnected, Input
from dnn.optimizers import ParameterRule
from dnn.optimizers.schedules import Cosine, OneCycle
from dnn.parameters import FlatBuffer, segments_of

SHAPES = {"a.weight": (6, 4), "a.bias": (4,), "b.weight": (5, 3, 2, 2), "b.bias": (5,)}


def buffers(dtype="f8", models=None, ops=None):
    variables = [graph.variable(shape, dtype, name) for name, shape in SHAPES.items()]
    segments = segments_of(variables)
    parameters, gradients = (FlatBuffer(segments, dtype, ops or Ops(), models) for _ in range(2))
    generator = np.random.default_rng(0)
    for name in SHAPES:
        parameters[name][...] = generator.normal(size=parameters[name].shape)
    return parameters, gradients


def steps(update, gradients, count, seed=1):
    generator = np.random.default_rng(seed)
    for _ in range(count):
        given = {name: generator.normal(size=gradients[name].shape) for name in SHAPES}
        for name, value in given.items():
            gradients[name][...] = value
        update.run()
        yield given


def by_lars(w, g, v, rate, momentum, decay, trust):
    local = 1.0
    if w.ndim >= 2:
        local = trust * np.linalg.norm(w) / (np.linalg.norm(g) + decay * np.linalg.norm(w))
    v = momentum * v + rate * local * (g + decay * w)
    return w - v, v


def test_lars_follows_its_formula():
    parameters, gradients = buffers()
    expected = {name: (parameters[name].copy(), 0.0) for name in SHAPES}
    update = LARS(2.0, 0.8, 0.1, 0.02, no_decay=["bias"]).bind(Ops(), parameters, gradients)
    for given in steps(update, gradients, 4):
        for name, (w, v) in expected.items():
            decay = 0.0 if name.endswith("bias") else 0.1
            expected[name] = by_lars(w, given[name], v, 2.0, 0.8, decay, 0.02)
            np.testing.assert_allclose(parameters[name], expected[name][0], rtol=1e-12)


def test_the_step_of_a_layer_is_as_long_as_its_weights_and_not_as_its_gradient():
    lengths = []
    for size in (1e-3, 1e3):
        parameters, gradients = buffers()
        before = {name: parameters[name].copy() for name in SHAPES}
        for name in SHAPES:
            gradients[name][...] = size * before[name][::-1]
        LARS(1.0, 0.0, trust=0.01).bind(Ops(), parameters, gradients).run()
        lengths.append([np.linalg.norm(before[name] - parameters[name]) for name in SHAPES])
        for name in ("a.weight", "b.weight"):
            moved = np.linalg.norm(before[name] - parameters[name])
            assert moved == pytest.approx(0.01 * np.linalg.norm(before[name]), rel=1e-9)
    assert lengths[1][1] == pytest.approx(1e6 * lengths[0][1])  # a bias has no rate of its own


def test_a_layer_of_zeros_moves_by_the_plain_rate():
    parameters, gradients = buffers()
    parameters.flat[...] = 0
    gradients.flat[...] = 1
    LARS(0.5, 0.9, 0.1).bind(Ops(), parameters, gradients).run()
    for name in SHAPES:
        np.testing.assert_array_equal(parameters[name], -0.5)


def orthogonal(d):
    x = d.reshape(len(d), -1)
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.T if is_tall else x).reshape(d.shape)


@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_follows_its_formula_and_adamw_has_the_rest(nesterov):
    parameters, gradients = buffers()
    others, slopes = buffers()
    muon = Muon(0.1, 0.9, 0.2, nesterov, others=AdamW(0.01, weight_decay=0.3))
    update = muon.bind(Ops(), parameters, gradients)
    beside = AdamW(0.01, weight_decay=0.3).bind(Ops(), others, slopes)
    w = {name: parameters[name].copy() for name in ("a.weight", "b.weight")}
    v = dict.fromkeys(w, 0.0)
    alike = steps(beside, slopes, 3)
    for given in steps(update, gradients, 3):
        next(alike)
        for name in w:
            v[name] = 0.9 * v[name] + 0.1 * given[name]
            d = 0.9 * v[name] + 0.1 * given[name] if nesterov else v[name]
            scale = np.sqrt(max(1, 4 / 6 if name == "a.weight" else 5 / 12))
            w[name] = 0.98 * w[name] - 0.1 * scale * orthogonal(d)
            np.testing.assert_allclose(parameters[name], w[name], rtol=1e-10)
        for name in ("a.bias", "b.bias"):
            assert parameters[name].tobytes() == others[name].tobytes()


def test_steps_of_muon_are_about_orthogonal():
    parameters, gradients = buffers()
    before = parameters["b.weight"].copy()
    for _ in steps(Muon(1.0).bind(Ops(), parameters, gradients), gradients, 1):
        values = np.linalg.svd((before - parameters["b.weight"]).reshape(5, 12), compute_uv=False)
        assert 0.6 < values.min() <= values.max() < 1.25


def test_muon_against_torch():
    torch = pytest.importorskip("torch", reason="torch, the oracle, is not installed")
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    parameters, gradients = buffers()
    # A weight of torch is (outputs, inputs).
    tensor = torch.nn.Parameter(torch.tensor(parameters["a.weight"].T.copy()))
    theirs = torch.optim.Muon([tensor], lr=0.1, momentum=0.9, weight_decay=0.2)
    update = Muon(0.1, 0.9, 0.2).bind(Ops(), parameters, gradients)
    for given in steps(update, gradients, 3):
        tensor.grad = torch.tensor(given["a.weight"].T.copy())
        theirs.step()
        # There it is computed in bfloat16, of which a number has three digits.
        found = tensor.detach().numpy().T
        np.testing.assert_allclose(parameters["a.weight"], found, atol=0.01)


def layers():
    hidden = [Conv2D(4, 3), Activation("relu"), Flatten(), FullyConnected(6), Activation("tanh")]
    return [Input(1, 6, 6), *hidden, FullyConnected(3)]


def images(n=48):
    generator = np.random.default_rng(0)
    y = np.arange(n) % 3
    x = generator.normal(size=(n, 1, 6, 6))
    x[np.arange(n), 0, y] += 2
    return x.astype("f4"), y


OPTIMIZERS = {
    "lars": lambda rate, decay: LARS(np.multiply(rate, 20), 0.9, decay, 0.01, schedule=Cosine(30)),
    "muon": lambda rate, decay: Muon(
        rate, 0.9, decay, others=AdamW(rate, weight_decay=decay), leave_out=["fully_connected_2"]
    ),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_k_networks_equal_single_ones_bit_for_bit(kind):
    x, y = images()
    rates, decays, epochs = [0.02, 0.1, 0.05], [0.01, 0.1, 0.02], [3, 1, 3]
    together = Ensemble(layers(), optimizer=OPTIMIZERS[kind](rates, decays), seeds=[1, 2, 3])
    together.fit(x, y, epochs=epochs, batch_size=16)
    for k, (rate, decay) in enumerate(zip(rates, decays, strict=True)):
        alone = NeuralNetwork(layers(), optimizer=OPTIMIZERS[kind](rate, decay), seed=k + 1)
        assert alone.fit(x, y, epochs=epochs[k], batch_size=16).loss == together.histories[k].loss
        for name, array in alone.parameters.items():
            assert together.parameters[name][k].tobytes() == array.tobytes()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_checkpoint_goes_on_bit_for_bit(kind, tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    x, y = images()

    def model():
        return NeuralNetwork(layers(), optimizer=OPTIMIZERS[kind](0.05, 0.01), seed=1)

    whole, half, rest = model(), model(), model()
    whole.fit(x, y, epochs=4, batch_size=20)
    half.fit(x, y, epochs=2, batch_size=20)
    half.save(tmp_path / "half")
    rest.load(tmp_path / "half")
    rest.fit(x, y, epochs=2, batch_size=20)
    assert whole.evaluate(x, y)["accuracy"] > 0.8  # and not a third
    for name, array in whole.parameters.items():
        assert array.tobytes() == rest.parameters[name].tobytes()


def test_the_compiled_steps_of_a_cpu_give_what_numpy_gives():
    for kind in (LARS(1.0, 0.9, 0.1, 0.01), Muon(0.1, 0.9, 0.1)):
        found = []
        for ops in (Ops(), ops_for("cpu")):
            parameters, gradients = buffers("f4", 2, ops)
            for _ in steps(kind.bind(ops, parameters, gradients), gradients, 3):
                pass
            found.append(parameters.flat.copy())
        np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_others_follow_the_schedule():
    parameters, gradients = buffers()
    before = {name: parameters[name].copy() for name in SHAPES}
    muon = Muon(0.1, others=SGD(0.1), schedule=OneCycle(1, end=0.0))
    for _ in steps(muon.bind(Ops(), parameters, gradients), gradients, 1):
        for name in SHAPES:
            np.testing.assert_array_equal(parameters[name], before[name])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LARS(trust=0), "trust must be above 0"),
        (lambda: LARS(momentum=1), "momentum must be at least 0 and below 1"),
        (lambda: Muon(-1), "learning_rate must be above 0"),
        (lambda: Muon(others="adam"), "others must be an Optimizer"),
        (
            lambda: Muon(others=AdamW(clip_norm=1.0)),
            "clip_norm is of all gradients: say it to Muon",
        ),
        (lambda: Muon(leave_out=["c"]), r"no parameter begins with 'c' \(there are: a.weight"),
    ],
)
def test_what_is_out_of_range(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make().bind(Ops(), *buffers())


def test_a_rule_that_returns_something_else():
    class Wrong(ParameterRule):
        def rule(self, w, g, state, scalars):
            return {"weight": w}

    with pytest.raises(ConfigurationError, match=r"Wrong\.rule returned \['weight'\].*\['w'\]"):
        Wrong(0.1).bind(Ops(), *buffers())
