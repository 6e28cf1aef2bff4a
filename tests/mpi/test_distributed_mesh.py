"""A network on a mesh of MPI's ranks equals that of one process."""

from __future__ import annotations

import fake_cupy
import numpy as np
import pytest

from dnn import SGD, NeuralNetwork, mlp
from dnn.distributed import Mesh, communicator_of

pytestmark = pytest.mark.mpi

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((40, 12)).astype(np.float32)
Y = RANDOM.integers(0, 3, 40)
MESHES = {
    1: [{}],
    2: [{"pipeline": 2}, {"data": 2}, {"model": 2}],
    4: [
        {"data": 2, "pipeline": 2, "schedule": "gpipe"},
        {"pipeline": 2, "model": 2},
        {"data": 2, "model": 2},
    ],
}


@pytest.fixture
def comm():
    from mpi4py import MPI

    yield communicator_of(MPI.COMM_WORLD, timeout_s=30)
    MPI.COMM_WORLD.Barrier()


def trained(parallel=None, device="numpy"):
    optimizer = SGD(0.3, momentum=0.9)
    layers = mlp(12, [9, 8, 6], 3, "tanh")
    network = NeuralNetwork(layers, optimizer=optimizer, seed=3, device=device, parallel=parallel)
    history = network.fit(X, Y, epochs=2, batch_size=16, validation=(X, Y), progress=False)
    return network, history


def test_a_mesh_trains_as_one_process_does(comm, monkeypatch):
    monkeypatch.delenv("DNN_ROUTINES")  # stages are cut by measured times, on all ranks alike
    one, expected = trained()
    for mesh in MESHES.get(comm.size, ()):
        network, history = trained(Mesh(comm, **mesh))
        np.testing.assert_allclose(history.loss, expected.loss, 1e-4)
        np.testing.assert_allclose(network(X), one(X), 1e-3, 1e-5)
        assert history.validation[-1]["loss"] == pytest.approx(network.evaluate(X, Y)["loss"])
        every = comm.gather_values([history.loss, network._network.bounds])
        assert every == [every[0]] * comm.size
        whole = network.gathered()
        for name, value in one.parameters.items():
            found = np.array(whole.parameters[name])
            np.testing.assert_allclose(found, np.array(value), 1e-3, 1e-5, err_msg=name)
        assert len(network.parameters) < len(one.parameters) or "pipeline" not in mesh


@pytest.mark.mpi(min_size=2)
def test_stages_on_gpus_exchange_by_memory_of_the_host(comm, monkeypatch):
    if comm.size > 2:
        return
    one, expected = trained()
    fake_cupy.install(monkeypatch)
    network, history = trained(Mesh(comm, pipeline=2), "cuda")
    np.testing.assert_allclose(history.loss, expected.loss, 1e-4)
    np.testing.assert_allclose(network(X), one(X), 1e-3, 1e-4)
