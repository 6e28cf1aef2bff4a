"""Frozen parameters: no bit of them changes, whatever the optimizer, alone and many at once."""

import copy

import numpy as np
import pytest
from data_parallel_cases import make_buckets_small

import dnn
from dnn import Ensemble, NeuralNetwork
from dnn.distributed import DataParallel, LocalSGD, Mesh, ParameterServer, run_on_threads
from dnn.errors import ConfigurationError
from dnn.graph.node import topological_order

SHAPE = (2, 6, 6)


def layers():
    inside = [dnn.Conv2D(4, 3, padding=1, bias=False), dnn.BatchNorm()]
    return [
        *(dnn.Input(*SHAPE), dnn.Conv2D(4, 3, padding=1), dnn.BatchNorm(), dnn.Activation("relu")),
        *(dnn.Residual(inside), dnn.Activation("relu"), dnn.GlobalAvgPool2D(), dnn.Dropout(0.1)),
        *(dnn.FullyConnected(5), dnn.Activation("tanh"), dnn.FullyConnected(3)),
    ]


def data(n=20):
    generator = np.random.default_rng(0)
    return generator.normal(size=(n, *SHAPE)).astype("f4"), np.arange(n) % 3


def raw(model):
    return {name: np.array(array) for name, array in model.parameters.items()}


OPTIMIZERS = {
    "sgd": lambda: dnn.SGD(0.1, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda: dnn.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": lambda: dnn.Adam(0.01, weight_decay=0.1, clip_norm=1.0),
    "adamw": lambda: dnn.AdamW(0.01, weight_decay=0.1, average=0.9),
    "rmsprop": lambda: dnn.RMSProp(0.01, weight_decay=0.1, clip_value=0.1),
    "lars": lambda: dnn.LARS(0.1, weight_decay=0.1),
    "muon": lambda: dnn.Muon(0.01, weight_decay=0.1, average=0.9),
}
BODY = ("*", "!fully_connected_2")


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_no_bit_of_a_frozen_parameter_changes(name, accumulate):
    x, y = data()
    model = NeuralNetwork(layers(), optimizer=OPTIMIZERS[name](), seed=1)
    frozen = model.freeze(*BODY)
    assert set(raw(model)) - set(frozen) == {"fully_connected_2.weight", "fully_connected_2.bias"}
    before, predicted = raw(model), model.state_dict()
    states = {name: np.array(x) for name, x in model._network.states.items()}
    model.fit(x, y, epochs=3, batch_size=8, progress=False, accumulate=accumulate)
    for each, array in raw(model).items():
        same = array.tobytes() == before[each].tobytes()
        assert same == (each in frozen), each
    for each, array in model.state_dict().items():
        assert (array.tobytes() == predicted[each].tobytes()) == (not each.startswith("9.")), each
    for each, array in model._network.states.items():
        if not each.startswith("noise"):
            np.testing.assert_array_equal(array, states[each])


@pytest.mark.parametrize("patterns", [(), BODY, ("residual_1",), ("*conv2d_1", "!*.bias")])
def test_what_would_be_frozen_is_known_before_a_network_is_built(patterns):
    model = NeuralNetwork(layers())
    assert dnn.frozen_parameters(layers(), patterns) == model.freeze(*patterns)
    *body, _, _ = model.parameters
    assert dnn.frozen_parameters(layers(), ["*"], trains_last=True) == body
    for wrong, text in (("*", "nothing is left to train"), ("lstm_1", "no parameter is called")):
        with pytest.raises(ConfigurationError, match=text):
            dnn.frozen_parameters(layers(), [wrong])


def test_the_rest_is_trained_as_if_the_frozen_part_were_data():
    """The head alone, trained on what the body puts out, comes to the same."""
    x, y = data()
    made = [dnn.Input(4), dnn.FullyConnected(6), dnn.BatchNorm(), dnn.Activation("tanh"),
            dnn.FullyConnected(3)]  # fmt: skip
    x = x.reshape(len(x), -1)[:, :4]
    warm = NeuralNetwork(made, optimizer=dnn.SGD(0.1), seed=1)
    warm.fit(x, y, epochs=2, progress=False)  # so that statistics are not 0 and 1
    warm.freeze("fully_connected_1", "batch_norm_1")
    body = NeuralNetwork(copy.deepcopy(made[:4]), "mean_squared_error", seed=1)
    own = {n: a for n, a in warm.state_dict().items() if not n.startswith("3.")}
    body.load_state_dict(own)
    head = NeuralNetwork([dnn.Input(6), dnn.FullyConnected(3)], optimizer=dnn.SGD(0.1), seed=1)
    last = warm.state_dict()
    head.load_state_dict({"0.weight": last["3.weight"], "0.bias": last["3.bias"]})
    head.resume(1, 0, copy.deepcopy(warm.history))
    warm.fit(x, y, epochs=3, batch_size=8, progress=False)
    head.fit(body(x), y, epochs=3, batch_size=8, progress=False)
    np.testing.assert_allclose(head(body(x)), warm(x), rtol=1e-4, atol=1e-5)


def test_nothing_is_computed_behind_the_last_trained_layer():
    model = NeuralNetwork(layers(), seed=1)
    nodes = {}
    for patterns in ((), BODY):
        model.freeze(*patterns)
        plan = model._network.plan("training", 8)
        order = topological_order([*plan.plan.graph.order])
        nodes[patterns] = sum("gradient" in node.kind for node in order)
    assert nodes[()] >= 3
    assert nodes[BODY] == 0


def test_freezing_ends_and_the_state_of_the_optimizer_stays():
    x, y = data()
    models = []
    for freezes in (False, True):
        model = NeuralNetwork(layers(), optimizer=dnn.Adam(0.01, average=0.5), seed=1)
        model.fit(x, y, epochs=2, progress=False)
        if freezes:
            model.freeze("conv2d_1")
            model.freeze()
            assert model.frozen == []
        snapshot = model.snapshot()
        model.fit(x, y, epochs=2, progress=False)
        models.append((model.state_dict(), snapshot))
    for (one, first), (other, second) in [models]:
        for name, array in one.items():
            np.testing.assert_array_equal(array, other[name])
        assert first.keys() == second.keys()


def test_many_networks_have_the_bits_of_single_ones():
    x, y = data()
    rates, decays = [0.1, 0.02, 0.3], [0.0, 0.1, 0.01]
    together = Ensemble(
        layers(), optimizer=dnn.SGD(rates, momentum=0.9, weight_decay=decays), seeds=[1, 2, 3]
    )
    together.freeze(*BODY)
    together.fit(x, y, epochs=[3, 2, 3], batch_size=8)
    assert len(together.frozen) == 9
    for k, (rate, decay) in enumerate(zip(rates, decays, strict=True)):
        optimizer = dnn.SGD(rate, momentum=0.9, weight_decay=decay)
        alone = NeuralNetwork(layers(), optimizer=optimizer, seed=k + 1)
        start = raw(alone)
        alone.freeze(*BODY)
        alone.fit(x, y, epochs=[3, 2, 3][k], batch_size=8, progress=False)
        for name, array in raw(together).items():
            np.testing.assert_array_equal(array[k], np.array(alone.parameters[name]), err_msg=name)
            if name in together.frozen:
                np.testing.assert_array_equal(array[k], start[name])
    together.restart([4, 5, 6])
    assert len(together.frozen) == 9


def test_copies_checkpoints_and_saved_models(tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    x, y = data()
    model = NeuralNetwork(layers(), optimizer=dnn.Adam(0.01), seed=1)
    model.freeze(*BODY)
    model.fit(x, y, epochs=2, progress=False)
    model.save(tmp_path / "model.safetensors")
    twin = copy.deepcopy(model)
    assert twin.frozen == model.frozen
    again = NeuralNetwork(layers(), optimizer=dnn.Adam(0.01), seed=7)
    again.freeze(*BODY)
    again.load(tmp_path / "model.safetensors")
    for each in (model, twin, again):
        each.fit(x, y, epochs=2, progress=False)
    for name, array in raw(model).items():
        np.testing.assert_array_equal(array, raw(twin)[name])
        np.testing.assert_array_equal(array, raw(again)[name])
    model.save(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(dnn.load(tmp_path / "model.safetensors")(x), model(x))


def test_a_half_of_a_batch_norm_is_no_frozen_layer():
    x, y = data()
    model = NeuralNetwork(layers(), optimizer=dnn.SGD(0.1), seed=1)
    assert model.freeze("batch_norm_1.scale") == ["batch_norm_1.scale"]
    model.fit(x, y, epochs=1, progress=False)
    assert np.array(model._network.states["batch_norm_1.mean"]).any()
    assert np.array(model.parameters["batch_norm_1.scale"]).tolist() == [1.0] * 4
    assert np.array(model.parameters["batch_norm_1.shift"]).any()


def test_penalties_count_and_move_nothing_frozen():
    x, y = data()
    model = NeuralNetwork(layers(), dnn.SoftmaxCrossEntropy() + dnn.L2(0.1), seed=1)
    frozen, before = model.freeze(*BODY), raw(model)
    model.fit(x, y, epochs=2, progress=False)
    for name in frozen:
        np.testing.assert_array_equal(raw(model)[name], before[name])


@pytest.mark.parametrize(
    ("patterns", "says"),
    [
        (
            ["dense_*"],
            r"no parameter is called 'dense_\*'; layers with parameters: conv2d_1, batch_n",
        ),
        ([["conv2d_1"]], r"patterns of names are texts, and \['conv2d_1'\] is none"),
        (["*", "!head"], "no parameter is called '!head'"),
        (["*"], r"\*: nothing is left to train"),
    ],
)
def test_patterns_that_mean_nothing(patterns, says):
    model = NeuralNetwork(layers(), seed=1)
    with pytest.raises(ConfigurationError, match=says):
        model.freeze(*patterns)
    assert model.frozen == []


def test_in_float16_too():
    x, y = data()
    model = NeuralNetwork(layers(), optimizer=dnn.Adam(0.01, average=0.5), seed=1, dtype="float16")
    frozen, before = model.freeze(*BODY), model.state_dict()
    model.fit(x, y, epochs=2, progress=False)
    assert len(frozen) == 9
    for name, array in model.state_dict().items():
        assert (array.tobytes() == before[name].tobytes()) == (not name.startswith("9.")), name


@pytest.mark.parametrize("options", [{}, {"wire": "float16"}])
def test_ranks_that_train_together(options, monkeypatch):
    make_buckets_small(monkeypatch)
    x, y = data()
    alone = NeuralNetwork(layers()[:-3], optimizer=dnn.SGD(0.1, momentum=0.9), seed=1)
    alone.freeze("conv2d_1", "batch_norm_1", "residual_1.batch_norm_1")
    before = raw(alone)
    alone.fit(x, y, epochs=2, batch_size=10, progress=False)

    def rank(comm):
        scheme = DataParallel(comm, **options)
        made = layers()[:-3]
        model = NeuralNetwork(made, optimizer=dnn.SGD(0.1, momentum=0.9), seed=1, parallel=scheme)
        frozen = model.freeze("conv2d_1", "batch_norm_1", "residual_1.batch_norm_1")
        model.fit(x, y, epochs=2, batch_size=10, progress=False)
        for name, array in raw(model).items():
            assert (array.tobytes() == before[name].tobytes()) == (name in frozen), name
        return raw(model)

    for found in run_on_threads(2, rank, timeout_s=60):
        for name, array in found.items():
            np.testing.assert_allclose(array, raw(alone)[name], atol=2e-2, err_msg=name)


def test_ranks_that_freeze_differently():
    x, y = data()

    def rank(comm):
        model = NeuralNetwork(layers(), seed=1, parallel=DataParallel(comm))
        model.freeze("conv2d_1" if comm.rank else "fully_connected_1")
        with pytest.raises(dnn.DisagreementError, match="frozen parameters: rank 1 has"):
            model.fit(x, y, progress=False)

    run_on_threads(2, rank, timeout_s=60)


TOGETHER = {
    "sharded": (2, lambda comm: DataParallel(comm, sharded=True)),
    "local": (2, lambda comm: LocalSGD(comm, 2, outer_learning_rate=0.7, outer_momentum=0.9)),
    "local_state": (3, lambda comm: LocalSGD(comm, 2, average_optimizer=True)),
    "server": (3, ParameterServer),
    "dedicated": (3, lambda comm: ParameterServer(comm, 2, dedicated=True)),
    "simulated": (1, lambda comm: dnn.SimulatedWorkers(3)),
    "pipeline": (2, lambda comm: Mesh(comm, pipeline=2, micro_batches=1)),
    "three_stages": (3, lambda comm: Mesh(comm, pipeline=3, micro_batches=4)),
    "shards": (2, lambda comm: Mesh(comm, model=2)),
    "mesh": (4, lambda comm: Mesh(comm, pipeline=2, data=2, micro_batches=2)),
}
OF_WHICH = {
    "body": ("*", "!fully_connected_2"),
    "head": ("fully_connected_*", "batch_norm_1"),
    "some": ("conv2d_1.weight", "residual_1"),
}


@pytest.mark.sample(12)
@pytest.mark.parametrize("which", OF_WHICH)
@pytest.mark.parametrize("name", TOGETHER)
def test_every_scheme_leaves_frozen_parameters_as_they_are(name, which):
    ranks, scheme = TOGETHER[name]
    x, y = data()
    loss = dnn.SoftmaxCrossEntropy() + dnn.L2(0.01)

    def made(parallel=None):
        given = layers()
        del given[7]  # dropout draws other numbers on each rank
        optimizer = dnn.Adam(0.01, weight_decay=0.1, average=0.5)
        model = NeuralNetwork(given, loss, optimizer, seed=1, parallel=parallel)
        model.fit(x, y, epochs=1, batch_size=7, progress=False)  # state of the optimizer
        return model, model.freeze(*OF_WHICH[which])

    def rank(comm):
        model, frozen = made(scheme(comm))
        states = model.gathered()._network.states
        kept = {n: np.array(v) for n, v in states.items() if "batch_norm" in n}
        before = raw(model.gathered())
        model.fit(x, y, epochs=2, batch_size=7, progress=False)
        whole = model.gathered()
        assert whole.frozen == frozen == model.frozen
        for each, array in raw(whole).items():
            assert (array.tobytes() == before[each].tobytes()) == (each in frozen), each
        for each, array in kept.items():
            now = np.array(whole._network.states[each])
            is_kept = f"{each.rpartition('.')[0]}.scale" in frozen
            assert (now.tobytes() == array.tobytes()) == is_kept, each
        model.freeze()
        model.fit(x, y, epochs=1, batch_size=7, progress=False)
        assert all((array != before[each]).any() for each, array in raw(model.gathered()).items())
        return np.isfinite(model.gathered()(x)).all()

    assert all(run_on_threads(ranks, rank, timeout_s=120))


@pytest.mark.parametrize("patterns", [["fully_connected_1"], ["*", "!*_3"], ["*_3", "*_2.bias"]])
def test_a_pipeline_with_frozen_parameters_has_the_bits_of_one_process(patterns):
    x, y = np.random.default_rng(0).normal(size=(20, 4)).astype("f4"), np.arange(20) % 3

    def train(comm=None):
        parallel = None if comm is None else Mesh(comm, pipeline=3, micro_batches=1)
        made = dnn.mlp(4, [8, 8], 3)
        model = NeuralNetwork(made, optimizer=dnn.Adam(0.01), seed=1, parallel=parallel)
        model.freeze(*patterns)
        model.fit(x, y, epochs=2, batch_size=7, progress=False)
        return raw(model.gathered())

    alone = train()
    for found in run_on_threads(3, train, timeout_s=60):
        for each, array in alone.items():
            np.testing.assert_array_equal(found[each], array, err_msg=each)
