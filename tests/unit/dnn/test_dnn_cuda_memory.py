"""Memory and tensors of a GPU, and the device as users name it, on the stand-in for CuPy."""

from __future__ import annotations

import gc

import cuda_emulator
import device_checks
import fake_cupy
import numpy as np
import pytest

import dnn
from dnn.backend import ops_for
from dnn.backend.device import Device
from dnn.losses import LOSSES
from dnn.memory import allocation_statistics
from dnn.training.data import checked_samples

if cuda_emulator.COMPILER is None:
    pytest.skip("there is no C++ compiler to run CUDA kernels with", allow_module_level=True)


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    fake_cupy.install(monkeypatch)


def test_memory_of_every_kind():
    device_checks.check_memory("cuda")


def test_tensors():
    device_checks.check_tensors("cuda", fake_cupy)


def test_an_array_without_axes_keeps_its_shape():
    for given in (3.0, [3.0], [[1.0, 2.0], [3.0, 4.0]]):
        source = fake_cupy.asarray(np.array(given, "f4"))
        tensor = dnn.Tensor.from_dlpack(source)
        assert tensor.shape == np.shape(given)
        assert fake_cupy.from_dlpack(tensor).shape == np.shape(given)


@pytest.mark.parametrize("version", [12090, 13000])
def test_unified_memory_is_prefetched_where_cupy_can(version, monkeypatch):
    asked = []
    runtime = fake_cupy.cuda.runtime
    monkeypatch.setattr(runtime, "runtimeGetVersion", lambda: version)
    monkeypatch.setattr(runtime, "memPrefetchAsync", lambda *given: asked.append(given[2]))
    memory = dnn.MemoryManager(3, kind="cuda_managed")
    memory.prefetch("device")
    memory.prefetch("host")
    # CuPy for CUDA 13 takes every number for a device.
    assert asked == ([0, -1] if version < 13000 else [0])


def test_arithmetic_of_tensors():
    device_checks.check_arithmetic("cuda")
    assert str(dnn.Tensor((2, 2)).device) == "cuda:0"
    assert str((dnn.Tensor((2, 2)) + 1).device) == "cuda:0"


def test_linear_algebra_of_tensors():
    device_checks.check_linear_algebra("cuda")
    there = dnn.Tensor((2, 2), "one", device="cuda")
    with pytest.raises(dnn.DeviceError, match="this CuPy has none"):
        dnn.linalg.eigvals(there)


def test_managed_memory_takes_the_gpu_without_being_told():
    assert dnn.MemoryManager(3, kind="managed").device is not None
    assert dnn.MemoryManager(3, kind="managed", device="cpu").device is None


def test_a_network_is_trained_on_the_device_of_that_name():
    assert ops_for("cuda").device == "cuda:0"
    x, y = device_checks.data()
    model = dnn.NeuralNetwork(dnn.mlp(6, [5], 3), device="cuda", seed=1)
    model.fit(dnn.Tensor.from_array(x), y, epochs=2, batch_size=16, progress=False)
    weight = model.parameters["fully_connected_1.weight"]
    assert (str(weight.device), weight.memory.kind.value) == ("cuda:0", "device")
    assert isinstance(weight.cupy(), fake_cupy.ndarray)
    assert model.predict(dnn.Tensor.from_array(x, device="cuda")).shape == (50,)


def test_a_network_trains_on_a_tensor_of_its_gpu_without_a_copy():
    x, y = device_checks.data()
    there = dnn.Tensor.from_array(x, device="cuda")
    models = [dnn.NeuralNetwork(dnn.mlp(6, [5], 3), device="cuda", seed=1) for _ in range(2)]
    given = checked_samples(models[0]._network, "x", there)
    assert given.data.ptr == there.cupy().data.ptr
    before = allocation_statistics()
    models[0].fit(there, y, validation=(there, y), epochs=2, batch_size=16, progress=False)
    after = allocation_statistics()
    assert after.to_host == before.to_host
    assert after.to_device_bytes - before.to_device_bytes < x.nbytes  # labels alone
    models[1].fit(x, y, validation=(x, y), epochs=2, batch_size=16, progress=False)
    assert models[0].history.loss == models[1].history.loss
    assert models[0].history.validation == models[1].history.validation
    np.testing.assert_array_equal(models[0].predict_proba(there), models[1].predict_proba(x))
    assert models[0].evaluate(there, y) == models[1].evaluate(x, y)
    there[3, 2] = np.nan
    with pytest.raises(dnn.DataError, match="nan in row 3, column 2"):
        models[0].predict(there)


def test_targets_on_the_gpu_are_not_sent_again():
    x, y = device_checks.data()
    weights = {0: 2.0, 1: 1.0}
    for loss, targets in (("softmax_cross_entropy", y), ("mean_squared_error", x[:, :3] * 2)):
        there = [dnn.Tensor.from_array(each, device="cuda") for each in (x, targets)]
        models = [dnn.NeuralNetwork(dnn.mlp(6, [5], 3), loss, device="cuda", seed=1) for _ in "ab"]
        options = {"class_weight": weights} if targets is y else {}
        options |= {"epochs": 2, "batch_size": 16, "progress": False}
        before = allocation_statistics()
        models[0].fit(*there, validation=tuple(there), **options)
        sent = allocation_statistics().to_device_bytes - before.to_device_bytes
        assert sent == (len(y) * 4 if options.get("class_weight") else 0)  # weights of samples
        models[1].fit(x, targets, validation=(x, targets), **options)
        assert models[0].history.loss == models[1].history.loss
        assert models[0].history.validation == models[1].history.validation
        assert models[0].evaluate(*there) == models[1].evaluate(x, targets)
        models[0].fit(*there, validation=0.2, progress=False)
    there[1][4, 1] = np.inf
    with pytest.raises(dnn.DataError, match="infinity, first in row 4"):
        models[0].fit(*there)


def test_an_ensemble_trains_on_tensors_of_its_gpu_without_a_copy():
    x, y = device_checks.data()
    there = [dnn.Tensor.from_array(each, device="cuda") for each in (x, y)]
    versions = np.stack([x, x * 2])
    losses = []
    for given, labels, both in (
        (*there, dnn.Tensor.from_array(versions, device="cuda")),
        (x, y, versions),
    ):
        ensemble = dnn.Ensemble(dnn.mlp(6, [5], 3), seeds=[1, 2], device="cuda")
        before = allocation_statistics().to_device_bytes
        histories = ensemble.fit(given, labels, epochs=2, batch_size=16)
        sent = allocation_statistics().to_device_bytes - before
        assert sent == (0 if labels is there[1] else x.nbytes + y.astype(np.intp).nbytes)
        scores = ensemble.evaluate(given, labels)
        histories += ensemble.fit(both, labels, versions=[0, 1], batch_size=16)
        losses.append([[history.loss for history in histories], scores])
    assert losses[0] == losses[1]


def test_data_are_sent_once_for_all_trainings():
    x, y = device_checks.data()
    data = dnn.DeviceData(x, y)
    rows = [np.arange(30), np.arange(10, 40)]
    options = {"rows": rows, "validation_rows": rows[::-1], "epochs": 2, "batch_size": 16}
    alone = {"epochs": 2, "batch_size": 16, "progress": False}
    found = {}
    for given in ((x, y), (data,)):
        before = allocation_statistics().to_device_bytes
        ensemble = dnn.Ensemble(dnn.mlp(6, [5], 3), seeds=[1, 2], device="cuda")
        for seeds in ([1, 2], [3, 4], [5, 6]):
            ensemble.restart(seeds)
            histories = ensemble.fit(*given, **options)
        scores = ensemble.evaluate(*given, rows=rows)
        model = dnn.NeuralNetwork(dnn.mlp(6, [5], 3), device="cuda", seed=7)
        model.fit(*given, validation=given if len(given) == 2 else data, **alone)
        sent = allocation_statistics().to_device_bytes - before
        losses = [(history.loss, history.validation) for history in (*histories, model.history)]
        found[len(given)] = losses, scores, model.evaluate(*given)
        copies = 5 if len(given) == 2 else 1  # three fits and an evaluation of K, one fit alone
        assert sent == copies * (x.nbytes + y.astype(np.intp).nbytes)
    assert found[1] == found[2]


def test_a_network_that_overflows_on_streamed_samples_names_its_layer():
    x, y = device_checks.data()
    for resident in (True, False):
        model = dnn.NeuralNetwork(dnn.mlp(6, [5], 3), seed=1, dtype="float16", device="cuda")
        model.parameters["fully_connected_1.weight"][...] = 1e6
        with pytest.warns(dnn.MixedPrecisionWarning, match="fully_connected_1 is the first layer"):
            model.fit(x, y, batch_size=16, progress=False, resident=resident)


def test_networks_of_several_losses_share_samples():
    x, y = device_checks.data()
    targets = np.eye(3, dtype=np.float32)[y]
    data = dnn.DeviceData(x, targets)
    before = allocation_statistics().to_device_bytes
    for loss in ("softmax_cross_entropy", "mean_squared_error") * 2:
        model = dnn.NeuralNetwork(dnn.mlp(6, [5], 3), loss, device="cuda")
        model.fit(data, progress=False)
    sent = allocation_statistics().to_device_bytes - before
    assert sent == x.nbytes + y.astype(np.intp).nbytes + targets.nbytes


def test_what_a_network_has_on_the_gpu_is_counted():
    x, y = device_checks.data()
    before = allocation_statistics().device.size_bytes
    model = dnn.NeuralNetwork(dnn.mlp(6, [5], 3), optimizer="adam", device="cuda", seed=1)
    size = sum(tensor.size * 4 for tensor in model.parameters.values())
    held = allocation_statistics().device.size_bytes - before
    assert held > 4 * size  # parameters, gradients, and two buffers of Adam
    model.fit(x, y, progress=False)
    gc.collect()
    assert allocation_statistics().device.size_bytes - before == held  # the data are gone


def test_options_of_training():
    device_checks.check_options("cuda")


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_on_the_device(name):
    device_checks.check_loss("cuda", name)


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
