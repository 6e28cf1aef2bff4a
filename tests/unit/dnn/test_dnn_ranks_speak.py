"""Every scheme needs its exchanges: without one of them, its results are others, or it says so.

This is what makes the comparisons with one process, in the tests of each scheme, worth something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dnn import SGD, Callback, Dropout, FullyConnected, Input, NeuralNetwork, PeerError, mlp
from dnn.distributed import (
    AsynchronousSGD,
    DataParallel,
    LocalSGD,
    Mesh,
    ParameterServer,
    run_on_threads,
)
from dnn.distributed.messages import MessageCommunicator

RANDOM = np.random.default_rng(5)
X = RANDOM.standard_normal((24, 6)).astype("f4")
Y = RANDOM.integers(0, 3, 24)

SCHEMES: dict[str, Callable[[Any], Any]] = {
    "data": lambda comm: DataParallel(comm),
    "mesh, data": lambda comm: Mesh(comm, data=2),
    "local SGD": lambda comm: LocalSGD(comm, steps=2),
    "parameter server": lambda comm: ParameterServer(comm),
    # One worker: with two the results depend on which is faster.
    "asynchronous SGD": lambda comm: AsynchronousSGD(comm, dedicated=True),
    "mesh, model": lambda comm: Mesh(comm, model=2),
    "mesh, pipeline": lambda comm: Mesh(comm, pipeline=2),
}
BY_SUMS = ["data", "mesh, data", "mesh, model", "local SGD"]
BY_MESSAGES = ["parameter server", "asynchronous SGD", "mesh, pipeline"]
WHOLE_NETWORKS = [name for name in SCHEMES if name not in ("mesh, model", "mesh, pipeline")]


def train(make: Callable[[Any], Any], comm: Any, moved: float = 0.0) -> dict[str, Any]:
    """Train on a rank; the first parameters of all but rank 0 are moved before."""
    network = NeuralNetwork(
        mlp(6, [4], 3, "tanh"),
        optimizer=SGD(0.5),
        seed=2,
        device="numpy",
        parallel=make(comm),
    )
    if comm.rank:
        for value in network.parameters.values():
            value[...] += moved
    history = network.fit(X, Y, epochs=2, batch_size=8, progress=False)
    found = {name: np.array(value) for name, value in network.parameters.items()}
    return {**found, "loss": np.array(history.loss)}


def differ(some: list[dict[str, Any]], others: list[dict[str, Any]]) -> bool:
    return not all(
        np.allclose(one[name], other[name], rtol=1e-4)
        for one, other in zip(some, others, strict=True)
        for name in one
    )


class Done:
    """A request of nothing."""

    def test(self) -> bool:
        return True

    def wait(self) -> None:
        pass


def on_two(scheme: str, moved: float = 0.0) -> list[dict[str, Any]]:
    return run_on_threads(2, lambda comm: train(SCHEMES[scheme], comm, moved), timeout_s=60)


def test_all_schemes_are_looked_at() -> None:
    assert {*BY_SUMS, *BY_MESSAGES} == set(SCHEMES)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scheme_repeats_itself(scheme: str) -> None:
    assert not differ(on_two(scheme), on_two(scheme))


@pytest.mark.parametrize("scheme", BY_SUMS)
def test_without_sums_the_results_are_others(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    speaking = on_two(scheme)
    monkeypatch.setattr(MessageCommunicator, "sum", lambda *_, **__: None)
    monkeypatch.setattr(MessageCommunicator, "start_sum", lambda *_, **__: Done())
    assert differ(speaking, on_two(scheme))


@pytest.mark.parametrize("scheme", BY_MESSAGES)
def test_with_messages_of_zeros_the_results_are_others(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    speaking = on_two(scheme)
    send = MessageCommunicator.send

    def send_zeros(self: MessageCommunicator, array: Any, rank: int, tag: int = 0) -> Any:
        zeros = np.array(array)
        if array.dtype.kind == "f":
            zeros[...] = 0
        elif array.dtype == np.uint8 and tag < 1 << 14:  # a header of what it is, and values
            zeros[64:] = 0
        return send(self, zeros, rank, tag)

    monkeypatch.setattr(MessageCommunicator, "send", send_zeros)
    assert differ(speaking, on_two(scheme))


@pytest.mark.parametrize("scheme", WHOLE_NETWORKS)
def test_ranks_begin_with_the_parameters_of_rank_0(scheme: str) -> None:
    assert all(len(rank) == 5 for rank in on_two(scheme))  # each has the whole network
    ends = on_two(scheme, 0.3)
    assert not differ(ends[:1], ends[1:])
    assert not differ(on_two(scheme), ends)


class Failing(Callback):
    """It fails after the first epoch."""

    def on_epoch_end(self, *_: Any) -> None:
        raise ZeroDivisionError("in the callback")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_rank_that_fails_is_named_on_the_other(scheme: str) -> None:
    def fit(comm: Any) -> str:
        network = NeuralNetwork(
            mlp(6, [4], 3, "tanh"), device="numpy", parallel=SCHEMES[scheme](comm)
        )
        callbacks = [Failing()] if comm.rank else []
        try:
            network.fit(X, Y, epochs=3, batch_size=8, callbacks=callbacks, progress=False)
        except (ZeroDivisionError, PeerError) as error:
            # Caught here: what leaves the function `run_on_threads` itself tells the others.
            return f"{type(error).__name__}: {error}"
        return "trained"

    first, second = run_on_threads(2, fit, timeout_s=60)
    assert second == "ZeroDivisionError: in the callback"
    assert first == f"PeerError: rank 1: {second}"


@pytest.mark.parametrize("scheme", ["data", "local SGD", "parameter server"])
def test_each_rank_draws_its_own_dropout(scheme: str) -> None:
    """All samples are alike, and so are the losses of ranks that drop the same units."""

    def loss(comm: Any) -> Any:
        layers = [Input(6), FullyConnected(8), Dropout(0.5), FullyConnected(3)]
        parallel = None if comm is None else SCHEMES[scheme](comm)
        network = NeuralNetwork(
            layers, optimizer=SGD(1e-9), seed=2, device="numpy", parallel=parallel
        )
        x, y = np.ones((16, 6), "f4"), np.zeros(16, int)
        # A whole batch of one process has as many rows as the part of a rank has.
        size = 8 if comm is None else 16
        return network.fit(x[:size], y[:size], batch_size=size, progress=False).loss[0]

    both = run_on_threads(2, loss, timeout_s=60)
    assert both[0] == both[1]
    assert both[0] != pytest.approx(loss(None), rel=1e-3)
