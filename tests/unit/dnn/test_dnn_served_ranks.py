"""Ranks that train with a parameter server or by local steps: as threads of one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from dnn import SGD, Adam, BatchNorm, ConfigurationError, Dropout, NeuralNetwork, PeerError, mlp
from dnn.callbacks import Callback, EarlyStopping, Epoch
from dnn.distributed import (
    AsynchronousSGD,
    Communicator,
    LocalSGD,
    ParameterServer,
    run_on_threads,
)
from dnn.distributed.scheme import BatchRunner

GENERATOR = np.random.default_rng(3)
X = GENERATOR.normal(size=(50, 4)).astype("float32")
Y = (X[:, 0] * X[:, 1] > 0).astype(int)

SCHEMES: dict[str, Callable[[Communicator], Any]] = {
    "synchronous": ParameterServer,
    "bounded": lambda comm: ParameterServer(comm, 2, divide_by_staleness=True),
    "asynchronous": AsynchronousSGD,
    "dedicated": lambda comm: AsynchronousSGD(comm, dedicated=True),
    "local": lambda comm: LocalSGD(comm, 3),
    "outer": lambda comm: LocalSGD(
        comm, 2, outer_learning_rate=0.7, outer_momentum=0.9, average_optimizer=True
    ),
}


def network(scheme: Any = None, *, plain: bool = True, **options: Any) -> NeuralNetwork:
    options = {"optimizer": SGD(0.1), "seed": 1, **options}
    layers = mlp(4, [8], 2, "tanh")
    if not plain:
        layers[2:2] = [BatchNorm(), Dropout(0.1)]
    return NeuralNetwork(layers, parallel=scheme, **options)


def trained(model: NeuralNetwork, epochs: int = 3, **options: Any) -> dict[str, Any]:
    """Return all that a training leaves behind."""
    options = {"batch_size": 12, "progress": False, "validation": (X[:20], Y[:20]), **options}
    history = model.fit(X, Y, epochs=epochs, **options)
    arrays = {name: np.array(each) for name, each in model.trained_arrays().items()}
    return {"facts": asdict(history) | {"epoch_times_s": None}, "arrays": arrays, "model": model}


def assert_equal(results: list[dict[str, Any]], kinds: tuple[str, ...] = ("",)) -> None:
    for each in results[1:]:
        assert each["facts"] == results[0]["facts"]
        for name, array in results[0]["arrays"].items():
            if name.startswith(kinds):
                assert np.array_equal(each["arrays"][name], array), name


def assert_close(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a["facts"]["loss"] == pytest.approx(b["facts"]["loss"], rel=1e-5)
    assert a["facts"]["tallies"] == b["facts"]["tallies"]
    assert a["facts"]["steps"] == b["facts"]["steps"]
    for name, array in a["arrays"].items():
        assert np.allclose(array, b["arrays"][name], rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_synchronous_server_gives_what_one_process_does(size: int) -> None:
    def run(communicator: Communicator) -> dict[str, Any]:
        dedicated = size == 4
        scheme = ParameterServer(communicator, dedicated=dedicated)
        return trained(network(scheme, optimizer=Adam(0.01)))

    results = run_on_threads(size, run)
    assert_equal([*results, *run_on_threads(size, run)])
    assert_close(results[0], trained(network(optimizer=Adam(0.01))))
    model = results[-1]["model"]
    assert (model.history.largest_staleness, model.history.mean_staleness) == (0, 0.0)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_averages_after_each_step_are_data_parallelism(size: int) -> None:
    def run(communicator: Communicator) -> dict[str, Any]:
        return trained(network(LocalSGD(communicator, 1)))

    results = run_on_threads(size, run)
    assert_equal([*results, *run_on_threads(size, run)])
    assert_close(results[0], trained(network()))


@pytest.mark.parametrize("name", SCHEMES)
def test_ranks_end_alike(name: str) -> None:
    def run(communicator: Communicator) -> dict[str, Any]:
        model = network(SCHEMES[name](communicator), plain=False, optimizer=SGD(0.2, 0.5))
        return trained(model)

    results = run_on_threads(3, run)
    # What momentum remembers is of each rank, where it is not averaged.
    assert_equal(results, ("parameter/", "state/") if name == "local" else ("",))
    assert int(results[0]["arrays"]["state/noise.step"]) == 3 * 5


def test_an_epoch_may_have_any_number_of_batches() -> None:
    def run(communicator: Communicator) -> int:
        model = network(LocalSGD(communicator, 100), plain=False)
        x = np.zeros((600, 4))
        return model.fit(x, np.zeros(600, int), batch_size=2, progress=False).steps

    assert run_on_threads(2, run) == [300, 300]


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", SCHEMES)
def test_ranks_learn_together(name: str) -> None:
    def run(communicator: Communicator) -> NeuralNetwork:
        # With fewer gradients in a step, more steps are taken.
        rate = 0.3 if name in ("synchronous", "local", "outer") else 0.1
        model = network(SCHEMES[name](communicator), optimizer=SGD(rate, 0.5))
        trained(model, 60)
        return model

    model = run_on_threads(3, run)[2]
    history = model.history
    assert model.evaluate(X, Y)["accuracy"] > 0.8
    assert network().evaluate(X, Y)["accuracy"] < 0.7
    assert len(history.exchange) == 60
    assert all(each["bytes_sent"] > 0 for each in history.exchange)
    if "staleness" in history.exchange[0]:
        gradients = 5 * (2 if name == "dedicated" else 3) - (name != "dedicated")
        assert sum(history.staleness) == 60 * gradients
        bounds = {"synchronous": 0, "bounded": 2 * 5}
        assert history.largest_staleness <= bounds.get(name, gradients)


def test_an_outer_step_by_hand() -> None:
    # Two ranks, one step each between averages: the outer gradient is the learning rate times the
    # mean gradient, and the momentum Nesterov's.
    x, y = np.array([[1.0], [3.0]]), np.zeros((2, 1))

    def run(communicator: Communicator) -> list[float]:
        scheme = LocalSGD(communicator, 1, outer_learning_rate=0.5, outer_momentum=0.9)
        model = NeuralNetwork(mlp(1, [], 1), "mean_squared_error", SGD(0.01), parallel=scheme)
        weights = []
        for _ in range(3):
            weights.append([float(each.numpy().item()) for each in model.parameters.values()])
            model.fit(x, y, batch_size=2, progress=False)
        return weights

    first, *others = run_on_threads(2, run)[1]
    present, velocity = np.array(first), np.zeros(2)
    for weights in others:
        errors = 2 * (present[0] * x[:, 0] + present[1])
        gradient = 0.01 * np.array([np.mean(errors * x[:, 0]), np.mean(errors)])
        velocity = 0.9 * velocity + gradient
        present = present - 0.5 * (gradient + 0.9 * velocity)
        assert weights == pytest.approx(present.tolist(), rel=1e-5)


def test_local_steps_send_less() -> None:
    def run(steps: int) -> int:
        results = run_on_threads(2, lambda comm: trained(network(LocalSGD(comm, steps)), 1))
        return int(results[0]["facts"]["exchange"][0]["bytes_sent"])

    # An epoch has five batches; each average is one of the buffer of parameters.
    parameters = network()._network.parameters.flat.nbytes
    assert [run(1), run(2), run(5)] == [2 * 5 * parameters, 2 * 3 * parameters, 2 * parameters]


def test_optimizers_of_ranks_are_averaged_if_wanted() -> None:
    def momenta(average: bool) -> list[np.ndarray]:
        def run(communicator: Communicator) -> np.ndarray:
            scheme = LocalSGD(communicator, 5, average_optimizer=average)
            result = trained(network(scheme, optimizer=SGD(0.1, momentum=0.9)), 1)
            return np.array(result["arrays"]["optimizer/velocity/fully_connected_1.weight"])

        return run_on_threads(2, run)

    own, shared = momenta(False), momenta(True)
    assert not np.allclose(own[0], own[1])
    assert np.array_equal(shared[0], shared[1])
    # Both ranks have as many rows of an epoch of 50 samples.
    assert np.allclose(shared[0], (own[0] + own[1]) / 2, atol=1e-6)


@pytest.mark.parametrize("name", ["synchronous", "local", "outer"])
def test_two_fits_are_one(name: str) -> None:
    def run(epochs: list[int]) -> list[dict[str, Any]]:
        def on_rank(communicator: Communicator) -> dict[str, Any]:
            model = network(SCHEMES[name](communicator), optimizer=Adam(0.01))
            return [trained(model, count) for count in epochs][-1]

        return run_on_threads(2, on_rank)

    for once, twice in zip(run([3]), run([1, 2]), strict=True):
        for key, array in once["arrays"].items():
            assert np.array_equal(twice["arrays"][key], array), key


@pytest.mark.parametrize("name", ["asynchronous", "local"])
def test_averages_over_time_are_the_same_on_all_ranks(name: str) -> None:
    def run(communicator: Communicator) -> dict[str, Any]:
        optimizer = SGD(0.1, average=0.9)
        return trained(network(SCHEMES[name](communicator), optimizer=optimizer))

    assert_equal(run_on_threads(2, run))


def test_one_rank_stops_all() -> None:
    def run(communicator: Communicator) -> tuple[int, str | None]:
        class Stop(Callback):
            def on_epoch_end(self, epoch: Epoch) -> str | None:
                return "enough" if communicator.rank == 1 and epoch.index == 2 else None

        model = network(AsynchronousSGD(communicator))
        trained(model, 10, callbacks=[Stop()])
        return len(model.history), model.history.stopped

    assert run_on_threads(3, run) == [(3, "enough")] * 3


def test_early_stopping_is_decided_once() -> None:
    def run(communicator: Communicator) -> list[float]:
        model = network(LocalSGD(communicator, 2), optimizer=SGD(2.0))
        trained(model, 50, callbacks=[EarlyStopping("validation_loss", patience=1)])
        return model.history.loss

    first, second = run_on_threads(2, run)
    assert first == second
    assert len(first) < 50


@pytest.mark.parametrize("failing", [0, 2])
@pytest.mark.parametrize("name", ["synchronous", "asynchronous", "local"])
def test_a_rank_that_fails_ends_all(name: str, failing: int) -> None:
    seen: dict[int, BaseException] = {}

    def run(communicator: Communicator) -> None:
        class Fail(Callback):
            def on_epoch_end(self, epoch: Epoch) -> str | None:
                if communicator.rank == failing:
                    raise RuntimeError("no more")
                return None

        try:
            trained(network(SCHEMES[name](communicator)), callbacks=[Fail()])
        except BaseException as error:
            seen[communicator.rank] = error
            raise

    with pytest.raises(RuntimeError, match="no more"):
        run_on_threads(3, run)
    others = [error for rank, error in seen.items() if rank != failing]
    assert [type(error) for error in others] == [PeerError] * 2
    assert str(others[0]) == f"rank {failing}: RuntimeError: no more"


def test_the_server_hears_of_a_failure_while_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []

    def compute(*_: object) -> None:
        if threading.current_thread().name == "failing":
            raise RuntimeError("no more")
        computed.append(time.sleep(0.01))

    monkeypatch.setattr(BatchRunner, "run", compute)

    def run(communicator: Communicator) -> None:
        if communicator.rank == 1:
            threading.current_thread().name = "failing"
        model = network(AsynchronousSGD(communicator))
        model.fit(X, Y, batch_size=2, epochs=10, progress=False)

    with pytest.raises(RuntimeError, match="no more"):
        run_on_threads(2, run)
    assert len(computed) < 45  # of the 49 that the server had left to compute alone


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda comm: LocalSGD(comm, 0), "steps must be an integer of at least 1, not 0"),
        (lambda comm: LocalSGD(comm, outer_momentum=1), "outer_momentum must be at least 0 and"),
        (lambda comm: LocalSGD(comm, outer_learning_rate=0), "outer_learning_rate must be above"),
        (lambda comm: ParameterServer(comm, -1), "staleness must be an integer of at least 0"),
        (lambda comm: ParameterServer(comm, dedicated=True), "dedicated: there is one rank"),
        (lambda comm: network(LocalSGD(comm), dtype="float16"), "take dtype='bfloat16'"),
        (lambda _: ParameterServer(3), "a communicator must be one of mpi4py"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[Communicator], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run_on_threads(1, make)
