"""The parameter server: what it decides, and workers simulated on one rank."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dnn import SGD, Adam, BatchNorm, ConfigurationError, Ensemble, Input, NeuralNetwork, mlp
from dnn.distributed import SimulatedWorkers
from dnn.distributed.server import Answer, Apply, ServerCore
from dnn.distributed.shards import Shards
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


def test_gradients_of_a_step_wait_for_the_last_of_them_without_staleness() -> None:
    core = ServerCore([2, 1, 2], staleness=0)
    assert core.receive(2, 0, 0) == []
    assert core.receive(0, 0, 0) == []
    # Worker 1 has no second step: it is answered when all have ended.
    assert core.receive(1, 0, 0) == [Apply((0, 1, 2), 0, 0), Answer(0), Answer(2)]
    assert core.receive(0, 1, 1) == []
    assert not core.is_finished
    assert core.receive(2, 1, 1) == [Apply((0, 2), 1, 0), Answer(0), Answer(1), Answer(2)]
    assert core.is_finished
    assert (core.version, core.histogram) == (2, [5])


def test_gradients_are_applied_as_they_arrive_without_a_bound() -> None:
    core = ServerCore([3, 1])
    assert core.receive(0, 0, 0) == [Apply((0,), 0, 0), Answer(0)]
    assert core.receive(0, 1, 1) == [Apply((0,), 1, 0), Answer(0)]
    # Computed from version 0, and the parameters have moved twice.
    assert core.receive(1, 0, 0) == [Apply((1,), 0, 2)]
    assert core.receive(0, 2, 2) == [Apply((0,), 2, 1), Answer(0), Answer(1)]
    assert core.histogram == [2, 1, 1]


def test_a_worker_waits_that_is_too_far_ahead() -> None:
    core = ServerCore([4, 4, 4], staleness=1)
    assert core.receive(0, 0, 0) == [Apply((0,), 0, 0), Answer(0)]
    assert core.receive(0, 1, 1) == [Apply((0,), 1, 0)]  # two steps ahead: it waits
    assert not core.may_send(0)
    assert core.receive(1, 0, 0) == [Apply((1,), 0, 2), Answer(1)]
    assert core.receive(2, 0, 0) == [Apply((2,), 0, 3), Answer(0), Answer(2)]
    assert core.may_send(0)


def test_what_was_not_to_come_is_refused() -> None:
    core = ServerCore([2, 2])
    for worker, step, version in ((0, 1, 0), (0, 0, 1)):
        with pytest.raises(CommunicationError, match=f"its step {step}, computed from version"):
            core.receive(worker, step, version)
    core.receive(0, 0, 0)
    core.receive(0, 1, 1)
    with pytest.raises(CommunicationError, match="worker 0 sent gradients of its step 2"):
        core.receive(0, 2, 2)


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_arrival_ends_within_the_bounds(seed: int) -> None:
    draw = random.Random(seed)
    workers = draw.randint(1, 6)
    steps = [draw.randint(1, 6) for _ in range(workers)]
    steps[draw.randrange(workers)] = 7
    staleness = draw.choice([0, 1, 2, None])
    core = ServerCore(steps, staleness)
    version, done, answered = [0] * workers, [0] * workers, 0
    while not core.is_finished:
        ready = [worker for worker in range(workers) if core.may_send(worker)]
        assert ready, "nobody may go on"
        worker = draw.choice(ready)
        if staleness is not None:
            slowest = min(d for d, n in zip(done, steps, strict=True) if d < n)
            assert done[worker] - slowest <= staleness
        instructions = core.receive(worker, done[worker], version[worker])
        done[worker] += 1
        for each in instructions:
            if isinstance(each, Answer):
                version[each.worker] = core.version
                answered += 1
    assert answered == sum(steps) == sum(core.histogram)  # each was answered once
    assert core.version == (7 if staleness == 0 else sum(steps))
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
    assert [shards.steps(worker) for worker in range(5)] == [5, 5, 4, 4, 4]


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
    # One sample a batch, two batches each. Worker 1 needs 2.5 s and worker 0 one: the server
    # receives from 0 0 1 1, and the third gradients are of parameters that have moved twice.
    x, y = np.array([[1.0], [2.0], [3.0], [4.0]]), np.zeros((4, 1))
    scheme = SimulatedWorkers(2, slow={1: 2.5})
    model = NeuralNetwork(mlp(1, [], 1), "mean_squared_error", SGD(0.01), parallel=scheme)
    weight, bias = (float(each.numpy().item()) for each in model.parameters.values())
    history = model.fit(x, y, batch_size=2, epochs=1, progress=False)
    order = [int(i) for i in _order(4, 0)]
    sent = {0: (weight, bias), 1: (weight, bias)}
    arrivals = [(0, order[0]), (0, order[2]), (1, order[1]), (1, order[3])]
    for worker, sample in arrivals:
        w, b = sent[worker]
        error = 2 * (w * x[sample, 0] + b)
        weight -= 0.01 * error * x[sample, 0]
        bias -= 0.01 * error
        sent[worker] = weight, bias
    trained = [float(each.numpy().item()) for each in model.parameters.values()]
    assert trained == pytest.approx([weight, bias], rel=1e-5)
    assert history.staleness == [3, 0, 1]
    assert (history.largest_staleness, history.mean_staleness) == (2, 0.5)
    assert history.exchange[0]["simulated_s"] == 5.0


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
        ({"staleness": 0.5}, "staleness must be an integer of at least 0, or None, not 0.5"),
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
