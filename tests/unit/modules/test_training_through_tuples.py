"""Copies of a module that train one network through the tuple space."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from diel.testing import TupleSpace
from dnn import (
    SGD,
    AsynchronousSGD,
    CommunicationError,
    LocalSGD,
    NeuralNetwork,
    ParameterServer,
    PeerError,
    mlp,
)
from dnn.distributed import TupleCommunicator

GENERATOR = np.random.default_rng(3)
X = GENERATOR.normal(size=(48, 4)).astype("float32")
Y = (X[:, 0] + X[:, 1] > 0).astype(int)


def on_copies(
    copies: int, function: Callable[[TupleCommunicator], Any], timeout_s: float = 20
) -> tuple[list[Any], list[Any]]:
    """Return what a function returns for each copy, or raises, and the tuples that are left."""
    with TupleSpace() as space:

        def run(copy_index: int) -> Any:
            ctx = space.context(copies=copies, copy_index=copy_index)
            name = ("training", ctx.group)
            communicator = TupleCommunicator(ctx.tuples, copy_index, copies, name, timeout_s)
            try:
                return function(communicator)
            except Exception as error:
                communicator.report_failure(error)
                return error

        with ThreadPoolExecutor(copies) as pool:
            results = list(pool.map(run, range(copies)))
        return results, [tag for tag, _ in space.tuples()]


def trained(scheme: Any) -> tuple[list[float], list[float]]:
    model = NeuralNetwork(mlp(4, [6], 2, "tanh"), optimizer=SGD(0.2), seed=2, parallel=scheme)
    history = model.fit(X, Y, epochs=12, batch_size=16, progress=False)
    assert model.evaluate(X, Y)["accuracy"] > 0.85
    return history.loss, model._network.parameters.flat.tolist()


@pytest.mark.parametrize("make", [ParameterServer, AsynchronousSGD, LocalSGD])
def test_copies_train_one_network(make: Callable[[Any], Any]) -> None:
    results, left = on_copies(3, lambda communicator: trained(make(communicator)))
    assert results[0] == results[1] == results[2], results
    assert left == []
    if make is ParameterServer:
        loss, parameters = trained(None)
        assert results[0][0] == pytest.approx(loss, rel=1e-5)
        assert results[0][1] == pytest.approx(parameters, abs=1e-5)


def test_messages_are_for_who_has_asked_first() -> None:
    def run(communicator: TupleCommunicator) -> list[float]:
        if communicator.rank:
            for value in (1.0, 2.0):
                communicator.send(np.array([value]), 0, 5)
            return []
        first, second = np.zeros(1), np.zeros(1)
        requests = [communicator.receive(each, 1, 5) for each in (first, second)]
        requests[1].wait()
        requests[0].wait()
        return [*first, *second]

    assert on_copies(2, run) == ([[1.0, 2.0], []], [])


def test_parts_of_the_copies_speak_among_themselves() -> None:
    def run(communicator: TupleCommunicator) -> list[Any]:
        part = communicator.split(communicator.rank % 2)
        total = np.array([float(communicator.rank)])
        part.sum(total)
        return [part.rank, part.size, total[0], communicator.gather_values(communicator.rank)]

    results, left = on_copies(3, run)
    everyone = [0, 1, 2]
    assert results == [[0, 2, 2.0, everyone], [0, 1, 1.0, everyone], [1, 2, 2.0, everyone]]
    assert left == []


def test_a_copy_that_fails_ends_the_others() -> None:
    def run(communicator: TupleCommunicator) -> None:
        if communicator.rank == 1:
            raise ValueError("no data here")
        communicator.sum(np.zeros(3))

    results, _ = on_copies(3, run)
    assert isinstance(results[1], ValueError)
    for each in (results[0], results[2]):
        assert isinstance(each, PeerError)
        assert str(each) == "rank 1: ValueError: no data here"


def test_what_does_not_fit_or_come_is_an_error() -> None:
    def run(communicator: TupleCommunicator) -> None:
        if communicator.rank:
            communicator.send(np.zeros(2), 0)
            return
        communicator.receive(np.zeros(3), 1).wait()

    results, _ = on_copies(2, run)
    assert isinstance(results[0], CommunicationError)
    assert str(results[0]) == "rank 1 has sent 16 bytes (tag 0), and rank 0 expects 24"

    results, _ = on_copies(1, lambda communicator: communicator.receive(np.zeros(1), 0).wait(), 0.1)
    assert "rank 0 of 1 has waited 0.1 s for 8 bytes from rank 0 (tag 0)" in str(results[0])
