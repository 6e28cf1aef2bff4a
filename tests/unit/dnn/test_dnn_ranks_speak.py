"""Every scheme needs its exchanges: without one of them, its results are others, or it says so.

This is what makes the comparisons with one process, in the tests of each scheme, worth something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dnn import SGD, NeuralNetwork, mlp
from dnn.distributed import Mesh, run_on_threads
from dnn.distributed.communicator import MessageCommunicator

RANDOM = np.random.default_rng(5)
X = RANDOM.standard_normal((24, 6)).astype("f4")
Y = RANDOM.integers(0, 3, 24)

SCHEMES: dict[str, Callable[[Any], Any]] = {
    "mesh, data": lambda comm: Mesh(comm, data=2),
    "mesh, model": lambda comm: Mesh(comm, model=2),
}


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


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scheme_needs_its_sums(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    speaking = run_on_threads(2, lambda comm: train(SCHEMES[scheme], comm))
    again = run_on_threads(2, lambda comm: train(SCHEMES[scheme], comm))
    assert not differ(speaking, again)
    monkeypatch.setattr(MessageCommunicator, "sum", lambda *_: None)
    monkeypatch.setattr(MessageCommunicator, "start_sum", lambda *_: Done())
    silent = run_on_threads(2, lambda comm: train(SCHEMES[scheme], comm))
    assert differ(speaking, silent)


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if "model" not in name])
def test_ranks_begin_with_the_parameters_of_rank_0(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alike = run_on_threads(2, lambda comm: train(SCHEMES[scheme], comm))
    moved = run_on_threads(2, lambda comm: train(SCHEMES[scheme], comm, 0.3))
    assert not differ(alike, moved)
    monkeypatch.setattr(MessageCommunicator, "broadcast", lambda *_: None)
    alone = run_on_threads(2, lambda comm: train(SCHEMES[scheme], comm, 0.3))
    assert differ(alike, alone)
