"""Memory and tensors of a GPU, and the device as users name it, on the stand-in for CuPy."""

from __future__ import annotations

import cuda_emulator
import device_checks
import fake_cupy
import numpy as np
import pytest

import dnn
from dnn.backend import ops_for
from dnn.backend.device import Device

if cuda_emulator.COMPILER is None:
    pytest.skip("there is no C++ compiler to run CUDA kernels with", allow_module_level=True)


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    fake_cupy.install(monkeypatch)


def test_memory_of_every_kind():
    device_checks.check_memory("cuda")


def test_tensors():
    device_checks.check_tensors("cuda", fake_cupy)


def test_managed_memory_takes_the_gpu_without_being_told():
    assert dnn.MemoryManager(3, kind="managed").device is not None
    assert dnn.MemoryManager(3, kind="managed", device="cpu").device is None


def test_a_network_is_trained_on_the_device_of_that_name():
    assert ops_for("cuda").device == "cuda:0"
    x, y = device_checks.data()
    model = dnn.NeuralNetwork(dnn.mlp(6, [5], 3), device="cuda", seed=1)
    model.fit(dnn.Tensor.from_array(x), y, epochs=2, batch_size=16, progress=False)
    assert isinstance(model.parameters["fully_connected_1.weight"], fake_cupy.ndarray)
    assert model.predict(dnn.Tensor.from_array(x, device="cuda")).shape == (50,)


def test_options_of_training():
    device_checks.check_options("cuda")


def test_the_first_node_that_is_not_finite_is_named():
    device_checks.check_not_finite("cuda")


def test_a_graph_is_minimised():
    device_checks.check_minimize("cuda", ops_for("cuda"))


def test_devices_by_name():
    assert Device.of("cuda") == Device("cuda", 0)
    assert str(Device.of("cuda:2")) == "cuda:2"
    for name in ("gpu", "cuda:", "cuda:x", "cpu:0", "CPU", 3):
        with pytest.raises(dnn.ConfigurationError, match="unknown device"):
            Device.of(name)


def test_ensembles_train_on_a_gpu():
    x, y = device_checks.data()
    losses = []
    for device in ("cuda", "numpy"):
        layers = dnn.mlp(6, [5], 3, "tanh")
        optimizer = dnn.SGD([0.1, 0.2])
        ensemble = dnn.Ensemble(layers, optimizer=optimizer, seeds=[1, 2], device=device)
        histories = ensemble.fit(x, y, epochs=2, batch_size=16)
        losses.append([history.loss for history in histories])
        assert len(ensemble.evaluate(x, y)) == 2
    np.testing.assert_allclose(*losses, rtol=1e-4)
