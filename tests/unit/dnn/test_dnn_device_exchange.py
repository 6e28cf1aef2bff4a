"""Arrays of a GPU between ranks, with stand-ins for CuPy, MPI's query and NCCL."""

import ctypes
import logging
import sys
import threading
from types import SimpleNamespace

import fake_cupy
import numpy as np
import pytest

from dnn.distributed import device_arrays, nccl_communicator_of, run_on_threads
from dnn.distributed.messages import MessageCommunicator
from dnn.errors import ConfigurationError, DtypeError, MissingDependencyError


@pytest.fixture
def cupy(monkeypatch):
    fake_cupy.install(monkeypatch)
    return fake_cupy


def exchange(comm):
    """Exchange arrays of the device in every way."""
    own = fake_cupy.asarray(np.full((2, 3), comm.rank + 1.0, "f4"))
    comm.sum(own)
    assert (own.get() == comm.size * (comm.size + 1) / 2).all()
    half = fake_cupy.asarray(np.full(3, comm.rank + 0.5, "f4"))
    comm.sum(half, wire="bfloat16")
    assert (half.get() == sum(range(comm.size)) + comm.size / 2).all()
    into = fake_cupy.asarray(np.zeros(3, "f4"))
    sent = comm.send(half, (comm.rank + 1) % comm.size, 3)
    comm.receive(into, (comm.rank - 1) % comm.size, 3).wait()
    sent.wait()
    assert (into.get() == half.get()).all()
    root = fake_cupy.asarray(np.full(4, comm.rank))
    comm.broadcast(root, comm.size - 1)
    assert (root.get() == comm.size - 1).all()
    host = np.ones(3)
    comm.sum(host)
    assert (host == comm.size).all()
    return comm.device_transport


@pytest.mark.parametrize("size", [1, 2, 3])
def test_through_memory_of_the_host(cupy, size, caplog):
    with caplog.at_level(logging.INFO, "dnn"):
        assert run_on_threads(size, exchange) == [device_arrays.PINNED] * size
    said = [record.getMessage() for record in caplog.records if "GPUs" in record.getMessage()]
    assert said == [f"arrays of GPUs travel by {device_arrays.PINNED}"] * size


@pytest.mark.parametrize(("answer", "expected"), [(1, True), (0, False), (None, False)])
def test_whether_mpi_takes_addresses_on_a_gpu(monkeypatch, answer, expected):
    library = SimpleNamespace()
    if answer is not None:
        library.MPIX_Query_cuda_support = lambda: answer
    monkeypatch.delenv("DNN_GPU_AWARE_MPI", raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda name, mode=0: library)
    assert device_arrays.is_gpu_aware() is expected
    for value, overruled in (("0", False), ("1", True), ("perhaps", expected)):
        monkeypatch.setenv("DNN_GPU_AWARE_MPI", value)
        assert device_arrays.is_gpu_aware() is overruled


class Nccl:
    """NCCL for ranks that are threads: a call waits for the same call of all others."""

    def __init__(self, size):
        self.barrier = threading.Barrier(size, timeout=20)
        self.given = {}
        self.calls = []
        self.NCCL_FLOAT32, self.NCCL_INT64, self.NCCL_SUM = 7, 4, 0
        self.types = {7: ctypes.c_float, 4: ctypes.c_int64}
        self.NcclCommunicator = lambda size, number, rank: Rank(self, size, number, rank)

    def get_unique_id(self):
        return tuple(range(128))


class Rank:
    def __init__(self, nccl, size, number, rank):
        assert number == tuple(range(128))
        self.nccl, self.size, self.rank = nccl, size, rank

    def _together(self, address, count, kind, combine):
        array = np.ctypeslib.as_array((self.nccl.types[kind] * count).from_address(address))
        self.nccl.given[self.rank] = array.copy()
        self.nccl.barrier.wait()
        array[:] = combine([self.nccl.given[rank] for rank in range(self.size)])
        self.nccl.barrier.wait()

    def allReduce(self, source, target, count, kind, operation, stream):
        assert (source, operation) == (target, 0)
        self.nccl.calls.append("allReduce")
        self._together(target, count, kind, lambda given: np.sum(given, axis=0))

    def bcast(self, target, count, kind, root, stream):
        self.nccl.calls.append("bcast")
        self._together(target, count, kind, lambda given: given[root])

    def destroy(self):
        self.nccl.calls.append("destroy")


def test_nccl(cupy, monkeypatch):
    nccl = Nccl(2)
    monkeypatch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(nccl=nccl))

    def train(comm):
        own = nccl_communicator_of(comm)
        assert isinstance(own, MessageCommunicator)
        way = exchange(own)
        with pytest.raises(DtypeError, match=r"NCCL takes float16, .*, not int8"):
            own.sum(fake_cupy.asarray(np.zeros(2, "i1")))
        part = own.split(0)
        part.sum(fake_cupy.asarray(np.zeros(2, "f4")))
        with pytest.raises(ConfigurationError, match="one of mpi4py"):
            nccl_communicator_of(3)
        own.close()
        return way

    assert run_on_threads(2, train) == ["NCCL"] * 2
    expected = ["allReduce", "allReduce", "bcast", "destroy"]
    assert sorted(nccl.calls) == sorted(2 * expected)


@pytest.mark.parametrize(
    ("cuda", "words"),
    [
        (SimpleNamespace(), "part for NCCL cannot be imported"),
        # What CuPy has in place of it where the library is not installed.
        (SimpleNamespace(nccl=SimpleNamespace(available=False)), "cannot load the library of NCCL"),
    ],
)
def test_without_nccl(cupy, monkeypatch, cuda, words):
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    with pytest.raises(MissingDependencyError, match=rf"{words}.*nvidia-nccl-cu13"):
        run_on_threads(1, nccl_communicator_of)
