"""What is said of a device and of its memory, with a module in place of CuPy; no GPU is needed."""

from __future__ import annotations

import contextlib
import re
from types import SimpleNamespace

import numpy as np
import pytest

import dnn
from dnn import backend
from dnn.backend import device, device_facts
from dnn.backend.device import allocating, free_bytes, free_memory
from dnn.errors import OutOfDeviceMemory


class Library:
    """cuBLAS, as far as its version."""

    @staticmethod
    def cublasGetProperty(part, number):
        number._obj.value = (13, 0, 2)[part]
        return 0


def machine(free=1 << 30, kept=0, limit=0):
    """Return what a machine with one GPU shows of CuPy."""
    pool = SimpleNamespace(given=0, free_bytes=lambda: kept)
    pool.get_limit, pool.used_bytes = lambda: limit, lambda: 3 << 30
    pool.free_all_blocks = lambda: setattr(pool, "given", pool.given + 1)
    runtime = SimpleNamespace(
        driverGetVersion=lambda: 13020,
        runtimeGetVersion=lambda: 13000,
        getDeviceCount=lambda: 1,
        deviceGetAttribute=lambda attribute, index: 0,
        deviceSynchronize=lambda: None,
        getDeviceProperties=lambda index: {"name": b"A GPU of a test"},
        memGetInfo=lambda: (free, 140 << 30),
    )
    cuda = SimpleNamespace(runtime=runtime, Device=lambda index: contextlib.nullcontext())
    return SimpleNamespace(__version__="14.2.0", cuda=cuda, get_default_memory_pool=lambda: pool)


@pytest.fixture
def cupy(monkeypatch):
    module = machine(kept=512)
    for importing in (backend, device):
        monkeypatch.setattr(importing, "import_cupy", lambda: module)
    monkeypatch.setattr("dnn.backend.cuda.cublas.load_library", lambda name: Library)
    device.cuda_problem.cache_clear()
    yield module
    device.cuda_problem.cache_clear()


def test_facts_of_a_gpu(cupy):
    assert device_facts("cuda") == {
        "device": "cuda",
        "device_name": "A GPU of a test",
        "dnn": dnn.__version__,
        "numpy": np.__version__,
        "cupy": "14.2.0",
        "cuda": "13.0",
        "cublas": "13.0.2",
        "driver": "13.2",
    }


def test_an_unknown_gpu_is_told_which_there_are(cupy):
    message = r"unknown device 'cuda:x': this process sees cuda:0$"
    for call in (dnn.ops_for, device.Device.of, device_facts):
        with pytest.raises(dnn.ConfigurationError, match=message):
            call("cuda:x")
    cupy.cuda.runtime.driverGetVersion = lambda: 0
    device.cuda_problem.cache_clear()
    with pytest.raises(dnn.ConfigurationError, match="none can be used here: there is no NVIDIA"):
        dnn.NeuralNetwork(dnn.mlp(2, [], 2), device="cuda:")


def test_facts_of_the_cpu():
    facts = device_facts("cpu")
    assert facts["device"] == "cpu"
    assert facts["device_name"]
    assert facts["kernels"] == dnn.ops_for("cpu").description


def test_memory_that_cupy_keeps_is_free(cupy):
    assert free_bytes("cuda:0") == ((1 << 30) + 512, 140 << 30)
    free_memory("cuda")
    assert cupy.get_default_memory_pool().given == 1


def test_a_gpu_without_room_is_an_error_with_numbers():
    def refused(*base, **fields):
        error = type("Refused", base, {})("no")
        vars(error).update(fields)
        return error

    for error in (refused(MemoryError), refused(RuntimeError, status=2)):
        with pytest.raises(OutOfDeviceMemory) as caught, allocating(machine(), 3 << 29, 1):
            raise error
        assert str(caught.value) == "cuda:1 has no room: 1.5 GiB wanted, 1.0 GiB of 140.0 free"
        assert caught.value.device == "cuda:1"
        assert (caught.value.wanted_bytes, caught.value.free_bytes) == (3 << 29, 1 << 30)
    for limit, text in ((7 << 29, "0.5 GiB of 3.5"), (70 << 30, "1.0 GiB of 70.0")):
        with (
            pytest.raises(OutOfDeviceMemory, match=f"{text} free"),
            allocating(machine(1 << 30, 0, limit), 1),
        ):
            raise refused(MemoryError)
    for other in (refused(RuntimeError, status=700), ValueError("no")):
        with pytest.raises(type(other)), allocating(machine(), 1):
            raise other
    message = str(OutOfDeviceMemory("cuda:0", 700, 100, 65536))
    assert message == "cuda:0 has no room: 700.0 bytes wanted, 0.1 KiB of 64.0 free"


# -- what keeps a GPU from being used ------------------------------------------------------------


def refuse(*_):
    raise RuntimeError("cudaErrorDevicesUnavailable: all CUDA-capable devices are busy")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"driverGetVersion": lambda: 0}, "there is no NVIDIA driver"),
        (
            {"driverGetVersion": lambda: 12040},
            "the driver supports CUDA 12.4 and CuPy needs 13: update the driver, or pip install "
            "cupy-cuda12x",
        ),
        ({"getDeviceCount": lambda: 0}, "is CUDA_VISIBLE_DEVICES empty?"),
        ({"getDeviceCount": refuse}, "CUDA finds no usable GPU: .*busy"),
        (
            {"deviceGetAttribute": lambda *_: 2},
            "the GPU is set to run nothing (nvidia-smi -c DEFAULT)",
        ),
        ({"deviceGetAttribute": lambda *_: 3}, None),
        (
            {"deviceGetAttribute": lambda *_: 3, "deviceSynchronize": refuse},
            "the GPU is in exclusive mode and another process has it: one copy a GPU, or "
            "nvidia-smi -c DEFAULT",
        ),
    ],
)
def test_what_keeps_a_gpu_from_being_used(cupy, change, problem):
    vars(cupy.cuda.runtime).update(change)
    found = device.cuda_problem()
    if problem is None:
        assert found is None
    else:
        assert problem in found or re.search(problem, found)


def test_two_packages_of_cupy(cupy, monkeypatch):
    names = ["numpy 2.1", "cupy-cuda13x 14.2.0", "cupy-cuda12x 13.6.0"]
    pairs = [dict(zip(("name", "version"), each.split(), strict=True)) for each in names]
    packages = [SimpleNamespace(**pair) for pair in pairs]
    monkeypatch.setattr("importlib.metadata.distributions", lambda: packages)
    expected = (
        "two CuPy packages are installed, cupy-cuda12x 13.6.0 and cupy-cuda13x 14.2.0: uninstall "
        "both and install one"
    )
    assert device.cuda_problem() == expected
    del packages[1]
    device.cuda_problem.cache_clear()
    assert device.cuda_problem() is None
