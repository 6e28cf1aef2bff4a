"""Several GPUs in one process, on the stand-in for CuPy: each call is done on the GPU it is for."""

import threading

import cuda_emulator
import device_checks
import fake_cupy
import numpy as np
import pytest

import dnn

if cuda_emulator.COMPILER is None:
    pytest.skip("there is no C++ compiler to run CUDA kernels with", allow_module_level=True)

GPUS = ("cuda:0", "cuda:1")


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    fake_cupy.install(monkeypatch)
    yield
    fake_cupy.forget()


@pytest.fixture
def data():
    return device_checks.data()


def network(device):
    return dnn.NeuralNetwork(dnn.mlp(6, [5], 3), device=device, seed=1)


def in_thread(function):
    """Return what a function gives in a new thread, whose current GPU is the first one."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    (result,) = found
    return result


@pytest.mark.parametrize("resident", [True, False])
def test_networks_are_trained_in_turn(data, resident):
    x, y = data
    options = {"epochs": 1, "batch_size": 16, "progress": False, "resident": resident}
    alone = network("cuda:0")
    expected = [alone.fit(x, y, **options).loss[-1] for _ in range(3)]
    both = [network(device) for device in GPUS]
    for loss in expected:
        assert [each.fit(x, y, **options).loss[-1] for each in both] == [loss, loss]
    for each in both:
        np.testing.assert_array_equal(each.predict_proba(x), alone.predict_proba(x))
        assert each.evaluate(x, y) == alone.evaluate(x, y)


def test_a_network_is_used_in_another_thread(data):
    x, y = data
    here, there = network("cuda:1"), network("cuda:1")
    for each in (here, there):
        each.fit(x, y, epochs=1, progress=False)
    fake_cupy.setDevice(0)
    expected = here.fit(x, y, epochs=2, progress=False).loss
    assert in_thread(lambda: there.fit(x, y, epochs=2, progress=False).loss) == expected
    found = in_thread(lambda: there.predict_proba(x))
    np.testing.assert_array_equal(found, here.predict_proba(x))


@pytest.mark.parametrize("kind", ["device", "managed", "cuda_managed"])
def test_tensors_compute_where_they_are(kind):
    values = np.arange(1, 13, dtype="f4").reshape(3, 4)
    for device in GPUS:
        tensor = dnn.Tensor.from_array(values, kind=kind, device=device)
        tensor[0, 0] = 5
        expected = np.where(values == 1, 5, values)
        columns = tensor[:, ::2]
        for found, wanted in (
            (tensor + tensor, expected * 2),
            (tensor @ tensor.T, expected @ expected.T),
            (tensor.max(0), expected.max(0)),
            (columns.copy(), expected[:, ::2]),
            (columns.reshape(-1), expected[:, ::2].reshape(-1)),
            (tensor.astype("f8"), expected),
            (dnn.linalg.eigvalsh(tensor @ tensor.T), np.linalg.eigvalsh(expected @ expected.T)),
        ):
            assert str(found.device) == device
            np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-4, atol=1e-3)
        for other in GPUS:
            moved = columns.to(other)
            assert str(moved.device) == other
            np.testing.assert_array_equal(np.asarray(moved), expected[:, ::2])
        shared = dnn.Tensor.from_dlpack(tensor.cupy()[:, ::2])
        assert str(shared.device) == device


def test_memory_is_copied_from_one_gpu_to_another():
    values = np.arange(5, dtype="f4")
    for kind in ("device", "managed", "cuda_managed"):
        source, target = (dnn.MemoryManager(5, "f4", kind, device) for device in GPUS)
        source.copy_from(dnn.MemoryManager.wrap(values))
        target.copy_from(source)
        host = dnn.MemoryManager(5, "f4", "host")
        host.copy_from(target)
        np.testing.assert_array_equal(host.read_host(), values)


def test_an_array_of_another_gpu_is_refused():
    ops = dnn.ops_for("cuda:0")
    with fake_cupy.Device(1):
        x = fake_cupy.asarray(np.ones(3, "f4"))
    with pytest.raises(dnn.DeviceError, match="copy: an array of cuda:1 where one of cuda:0"):
        ops.fill(1.0, x)


def test_a_function_from_outside_is_called_on_the_gpu_of_its_plan():
    ops, seen = dnn.ops_for("cuda:1"), []
    linked = ops.link([(lambda: seen.append(fake_cupy.getDevice()), ())])
    fake_cupy.setDevice(0)
    for function, arguments in linked:
        function(*arguments)
    assert seen == [1]
    assert fake_cupy.getDevice() == 0
