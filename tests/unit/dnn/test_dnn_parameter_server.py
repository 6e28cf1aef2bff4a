"""The parameter server: what it decides, and workers simulated on one rank."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dnn import SGD, Adam, BatchNorm, ConfigurationError, Ensemble, Input, NeuralNetwork, mlp
from dnn.distributed import SimulatedWorkers
from dnn.distributed.scheme import Shards
from dnn.distributed.server import Answer, Apply, Piece, ServerCore
from dnn.errors import CommunicationError

GENERATOR = np.random.default_rng(3)
X = GENERATOR.normal(size=(50, 4)).astype("float32")
Y = (X[:, 0] * X[:, 1] > 0).astype(int)


def network(scheme: SimulatedWorkers | None = None, **options: object) -> NeuralNetwork:
    options = {"optimizer": SGD(0.1), "seed": 1, **options}
    return NeuralNetwork(mlp(4, [8], 2, "tanh"), parallel=scheme, **options)


def fit(model: NeuralNetwork, epochs: int = 2, **options: object) -> list[float]:
    options = {"batch_size": 12, "progress": False, **options}
    return model.fit(X, Y, epochs=epochs, **options).loss


# -- what the server decides ----------------------------------------------------------------------


def test_gradients_of_a_batch_wait_for_the_last_of_them_without_staleness() -> None:
    core = ServerCore([3, 2], workers=3, staleness=0)
    assert core.receive(1, 0, 0) == []
    assert core.receive(0, 0, 0) == []
    # Worker 2 has no part of the second batch: it is answered when all have ended.
    gradients = tuple((worker, Piece(0, worker)) for worker in range(3))
    assert core.receive(2, 0, 0) == [Apply(gradients, 0), Answer(0), Answer(1)]
    assert core.pieces == [Piece(1, 0), Piece(1, 1), None]
    assert core.receive(1, 1, 1) == []
    assert not core.is_finished
    last = ((0, Piece(1, 0)), (1, Piece(1, 1)))
    assert core.receive(0, 1, 1) == [Apply(last, 0), Answer(0), Answer(1), Answer(2)]
    assert core.is_finished
    assert (core.version, core.histogram) == (2, [5])


def test_who_is_ready_computes_what_is_next_without_a_bound() -> None:
    core = ServerCore([2, 2], workers=2)
    assert core.pieces == [Piece(0, 0), Piece(0, 1)]
    assert core.receive(0, 0, 0) == [Apply(((0, Piece(0, 0)),), 0), Answer(0)]
    assert core.receive(0, 1, 1) == [Apply(((0, Piece(1, 0)),), 0), Answer(0)]
    assert core.pieces == [Piece(1, 1), Piece(0, 1)]
    # Computed from version 0, and the parameters have moved twice. Nothing is left for it.
    assert core.receive(1, 0, 0) == [Apply(((1, Piece(0, 1)),), 2)]
    last = Apply(((0, Piece(1, 1)),), 1)
    assert core.receive(0, 1, 2) == [last, Answer(0), Answer(1)]
    assert core.pieces == [None, None]
    assert core.histogram == [2, 1, 1]


def test_a_worker_waits_that_is_too_far_ahead() -> None:
    core = ServerCore([3] * 4, workers=3, staleness=1)
    assert core.receive(0, 0, 0) == [Apply(((0, Piece(0, 0)),), 0), Answer(0)]
    assert core.receive(0, 1, 1) == [Apply(((0, Piece(1, 0)),), 0)]  # the next is two ahead
    assert core.pieces[0] is None
    assert core.receive(1, 0, 0) == [Apply(((1, Piece(0, 1)),), 2), Answer(1)]
    assert core.receive(2, 0, 0) == [Apply(((2, Piece(0, 2)),), 3), Answer(0), Answer(2)]
    assert core.pieces == [Piece(2, 0), Piece(1, 1), Piece(1, 2)]


def test_what_was_not_to_come_is_refused() -> None:
    core = ServerCore([2, 2], workers=2)
    for batch, version in ((1, 0), (0, 1)):
        with pytest.raises(CommunicationError, match=f"batch {batch}, computed from version"):
            core.receive(0, batch, version)
    core = ServerCore([1], workers=2)
    with pytest.raises(CommunicationError, match=r"of batch 0, .* where batch None"):
        core.receive(1, 0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_arrival_ends_within_the_bounds(seed: int) -> None:
    draw = random.Random(seed)
    workers, batches = draw.randint(1, 6), draw.randint(1, 7)
    parts = [workers] * batches + [draw.randint(1, workers)]
    staleness = draw.choice([0, 1, 2, None])
    core = ServerCore(parts, workers, staleness)
    version, computed, answered = [0] * workers, set(), 0
    while not core.is_finished:
        ready = [worker for worker, piece in enumerate(core.pieces) if piece is not None]
        assert ready, "nobody may go on"
        worker = draw.choice(ready)
        piece = core.pieces[worker]
        assert piece not in computed
        computed.add(piece)
        if staleness is not None:
            assert piece.part == worker
            slowest = min(x.batch for x in core.pieces if x is not None)
            assert piece.batch - slowest <= staleness
        for each in core.receive(worker, piece.batch, version[worker]):
            if isinstance(each, Answer):
                version[each.worker] = core.version
                answered += 1
    assert len(computed) == sum(parts) == sum(core.histogram)
    # Each gradient is answered, and who has had nothing to compute at the end.
    assert sum(parts) <= answered <= sum(parts) + workers
    assert core.version == (len(parts) if staleness == 0 else sum(parts))
    if staleness is not None:
        assert len(core.histogram) - 1 <= (workers - 1) * (2 * staleness + 1)


def test_shards_cover_each_batch_once() -> None:
    shards = Shards(50, 12, 5)
    for batch in range(shards.batches):
        rows = [shards.rows(worker, batch) for worker in range(5)]
        places = [place for each in rows for place in each]
        assert places == list(range(12 * batch, min(50, 12 * batch + 12)))
        assert sum(shards.share(worker, batch) for worker in range(5)) == pytest.approx(1)
    # The last batch has two samples.
    assert [len(shards.rows(worker, 4)) for worker in range(5)] == [1, 1, 0, 0, 0]


# -- simulated workers ----------------------------------------------------------------------------


def test_without_staleness_workers_train_as_one_process_does() -> None:
    alone, simulated = network(), network(SimulatedWorkers(5, staleness=0, slow={4: 9.0}))
    assert fit(simulated, 4) == pytest.approx(fit(alone, 4), rel=1e-5)
    for name, values in alone.parameters.items():
        assert np.allclose(values, simulated.parameters[name], rtol=1e-4, atol=1e-6)
    assert simulated.history.staleness == [4 * (5 * 4 + 2)]
    assert simulated.history.steps == alone.history.steps
    assert simulated.history.accuracy == alone.history.accuracy
    # The slow worker has four batches in an epoch.
    assert [each["simulated_s"] for each in simulated.history.exchange] == [4 * 9.0 + 1.0] * 4


def test_a_seed_gives_the_same_losses_every_time() -> None:
    def losses(seed: int) -> tuple[list[float], list[int]]:
        model = network(SimulatedWorkers(4, spread=0.5, slow={3: 4.0}, seed=seed))
        return fit(model, 3), model.history.staleness

    assert losses(0) == losses(0)
    assert losses(0) != losses(1)


def test_two_workers_by_hand() -> None:
    # One sample a piece. Worker 1 needs 2.5 s and worker 0 one: the server receives from 0 0 1 0,
    # and the third gradients are of parameters that have moved twice.
    x, y = np.array([[1.0], [2.0], [3.0], [4.0]]), np.zeros((4, 1))
    scheme = SimulatedWorkers(2, slow={1: 2.5})
    model = NeuralNetwork(mlp(1, [], 1), "mean_squared_error", SGD(0.01), parallel=scheme)
    weight, bias = (float(each.numpy().item()) for each in model.parameters.values())
    history = model.fit(x, y, batch_size=2, epochs=1, progress=False)
    order = [int(i) for i in _order(4, 0)]
    sent = {0: (weight, bias), 1: (weight, bias)}
    arrivals = [(0, order[0]), (0, order[2]), (1, order[1]), (0, order[3])]
    for worker, sample in arrivals:
        w, b = sent[worker]
        error = 2 * (w * x[sample, 0] + b)
        weight -= 0.01 * error * x[sample, 0]
        bias -= 0.01 * error
        sent[worker] = weight, bias
    trained = [float(each.numpy().item()) for each in model.parameters.values()]
    assert trained == pytest.approx([weight, bias], rel=1e-5)
    assert history.staleness == [2, 1, 1]
    assert (history.largest_staleness, history.mean_staleness) == (2, 0.75)
    assert history.exchange[0]["simulated_s"] == 3.0


def test_a_slow_worker_holds_up_those_who_wait_for_it() -> None:
    def seconds(staleness: int | None) -> float:
        model = network(SimulatedWorkers(4, staleness, slow={0: 10.0}))
        model.fit(X[:48], Y[:48], batch_size=4, progress=False)
        return model.history.exchange[0]["simulated_s"]

    # 48 pieces; in 15 s three workers compute 45 of them, and the slow one its second until 20 s.
    assert [seconds(0), seconds(2), seconds(None)] == [120.0, 120.0, 20.0]


def _order(count: int, seed: int) -> np.ndarray:
    from dnn.seeds import epoch_order

    return epoch_order(count, seed, 0)


def test_the_learning_rate_may_be_divided_by_staleness() -> None:
    # One step each: the second worker's gradients are 1 version old, the third's 2.
    def moved(divides: bool) -> list[float]:
        scheme = SimulatedWorkers(3, divide_by_staleness=divides)
        model = network(scheme, optimizer=SGD(1e-3))
        before = {name: each.numpy().copy() for name, each in model.parameters.items()}
        model.fit(X[:3], Y[:3], batch_size=3, progress=False)
        weight = "fully_connected_1.weight"
        assert float(model._update.scalars["learning_rate"]) == np.float32(1e-3)
        return (model.parameters[weight].numpy() - before[weight]).reshape(-1).tolist()

    full, divided = moved(False), moved(True)
    gradients = [network_gradient(row) for row in _order(3, 1)]
    assert full == pytest.approx([-1e-3 * sum(g) for g in zip(*gradients, strict=True)], abs=1e-7)
    expected = [-1e-3 * (a + b + c / 2) for a, b, c in zip(*gradients, strict=True)]
    assert divided == pytest.approx(expected, abs=1e-7)
    assert max(abs(a - b) for a, b in zip(full, divided, strict=True)) > 1e-5


def network_gradient(row: int) -> list[float]:
    model = network(optimizer=SGD(1.0))
    weight = "fully_connected_1.weight"
    before = model.parameters[weight].numpy().copy()
    model.fit(X[[row]], Y[[row]], batch_size=1, progress=False)
    return (before - model.parameters[weight].numpy()).reshape(-1).tolist()


def test_stale_workers_learn() -> None:
    scheme = SimulatedWorkers(8, staleness=4, spread=0.5, divide_by_staleness=True)
    model = network(scheme, optimizer=SGD(0.2, momentum=0.5))
    untrained = model.evaluate(X, Y)["accuracy"]
    fit(model, 100)
    assert untrained < 0.7
    assert model.evaluate(X, Y)["accuracy"] > 0.95
    assert 1 < model.history.largest_staleness <= 7 * 9


def test_running_statistics_are_the_mean_of_the_workers() -> None:
    layers = [Input(4), BatchNorm(), *mlp(4, [], 2)[1:]]
    model = NeuralNetwork(layers, optimizer=SGD(0.1), parallel=SimulatedWorkers(2), seed=1)
    model.fit(X[:48], Y[:48], batch_size=48, progress=False)
    rows = _order(48, 1)
    halves = [X[rows[:24]].mean(0), X[rows[24:]].mean(0)]
    statistics = model.trained_arrays()["state/batch_norm_1.mean"]
    assert np.allclose(statistics, 0.1 * np.mean(halves, 0), atol=1e-6)


def test_an_ensemble_equals_its_networks() -> None:
    scheme = SimulatedWorkers(3, spread=1.0)
    ensemble = Ensemble(mlp(4, [8], 2, "tanh"), seeds=[4, 7], optimizer=Adam(0.01), parallel=scheme)
    histories = ensemble.fit(X, Y, epochs=2, batch_size=12)
    for seed, history in zip([4, 7], histories, strict=True):
        model = network(scheme, optimizer=Adam(0.01), seed=seed)
        assert fit(model) == history.loss
        assert model.history.staleness == history.staleness


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers must be an integer of at least 1, not 0"),
        ({"staleness": -1}, "staleness must be an integer of at least 0, or None, not -1"),
        ({"staleness": 0.5}, "staleness must be an integer, or None, not 0.5"),
        ({"spread": -1.0}, "spread must be a number of at least 0, not -1.0"),
        ({"batch_s": 0.0}, "batch_s must be above 0, not 0.0"),
        ({"slow": {2: 1.0}}, "slow: there is no worker 2, they are 0 to 1"),
        ({"slow": {1: 0.0}}, "slow must be above 0, not 0.0"),
        ({"seed": -1}, "seed must be an integer of at least 0, not -1"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SimulatedWorkers(**{"workers": 2, **options})


def test_what_cannot_be_trained_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="take dtype='bfloat16' or 'float32'"):
        network(SimulatedWorkers(2), dtype="float16")
    with pytest.raises(ConfigurationError, match="12 samples cannot be shared by 13 workers"):
        fit(network(SimulatedWorkers(13)))
