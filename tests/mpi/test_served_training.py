"""Ranks of MPI that train one network with a parameter server, or by local steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from dnn import SGD, ConfigurationError, DnnError, NeuralNetwork, mlp
from dnn.distributed import AsynchronousSGD, LocalSGD, ParameterServer, communicator_of

COMM = MPI.COMM_WORLD
SIZE = COMM.Get_size()

GENERATOR = np.random.default_rng(3)
X = GENERATOR.normal(size=(96, 4)).astype("float32")
Y = (X[:, 0] + X[:, 1] > 0).astype(int)

SCHEMES: dict[str, Callable[[Any], Any]] = {
    "synchronous": ParameterServer,
    "bounded": lambda comm: ParameterServer(comm, 1),
    "asynchronous": lambda comm: AsynchronousSGD(comm, divide_by_staleness=True),
    "average": lambda comm: LocalSGD(comm, 1),
    "local": lambda comm: LocalSGD(comm, 3, outer_momentum=0.5, average_optimizer=True),
    "dedicated": lambda comm: ParameterServer(comm, dedicated=True),
    # Nothing is learned but from what other ranks send.
    "asynchronous, dedicated": lambda comm: AsynchronousSGD(comm, dedicated=True),
}
# What equals one process to rounding, whatever the number of ranks.
EXACT = ("synchronous", "average", "dedicated")


def trained(scheme: Any) -> NeuralNetwork:
    # With plain SGD, averages after each step are data parallelism.
    layers = mlp(4, [6], 2, "tanh")
    model = NeuralNetwork(layers, optimizer=SGD(0.2), seed=2, parallel=scheme, device="numpy")
    model.fit(X, Y, epochs=8, batch_size=16, validation=(X[:20], Y[:20]), progress=False)
    return model


@pytest.fixture(scope="module")
def alone() -> NeuralNetwork:
    return trained(None)


@pytest.mark.parametrize("name", SCHEMES)
def test_ranks_train_one_network(name: str, alone: NeuralNetwork) -> None:
    if name.endswith("dedicated") and SIZE == 1:
        with pytest.raises(ConfigurationError, match="there is one rank"):
            SCHEMES[name](COMM)
        return
    communicator = communicator_of(COMM, timeout_s=30)
    model = trained(SCHEMES[name](communicator))
    history = asdict(model.history) | {"epoch_times_s": None}
    arrays = {name: np.array(each).tolist() for name, each in model.trained_arrays().items()}
    facts = communicator.gather_values([history, arrays])
    assert all(each == facts[0] for each in facts)
    if name in EXACT:
        assert model.history.loss == pytest.approx(alone.history.loss, rel=1e-4)
        assert model.history.tallies == alone.history.tallies
    assert model.evaluate(X, Y)["accuracy"] > 0.85
    sent = [each["bytes_sent"] for each in model.history.exchange]
    parameters = model._network.parameters.flat.nbytes
    if name in ("average", "local"):
        ranks = SIZE if SIZE > 1 else 0
        assert sent == [ranks * parameters * (6 if name == "average" else 2)] * 8
    else:
        exchanged = 2 * (SIZE - 1) * (parameters + 64)  # gradients and parameters of each client
        if name.startswith("asynchronous"):  # each has parts, more the faster it is
            assert all(each >= exchanged for each in sent)
        else:
            assert sent == [6 * exchanged] * 8


def test_a_failing_rank_is_named_on_all() -> None:
    communicator = communicator_of(COMM, timeout_s=30)
    last = SIZE - 1

    x = X if COMM.Get_rank() != last else np.full_like(X, np.nan)
    model = NeuralNetwork(
        mlp(4, [6], 2),
        optimizer=SGD(0.2),
        device="numpy",
        parallel=AsynchronousSGD(communicator),
    )
    try:
        model.fit(x, Y, epochs=2, batch_size=16, progress=False)
        outcome = "trained"
    except DnnError as error:
        outcome = f"{type(error).__name__}: {error}"
    outcomes = COMM.allgather(outcome)
    assert outcomes[last].startswith("DataError: ")
    for each in outcomes[:last]:
        assert each.startswith(f"PeerError: rank {last}: DataError: ")
