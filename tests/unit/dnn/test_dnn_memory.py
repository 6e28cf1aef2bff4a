"""Memory managers: every kind, every copy, dirty flags; the device is a stand-in of NumPy."""

import gc
import itertools

import numpy as np
import pytest
from fake_device import FakeDevice

from dnn.backend.device import cuda_problem
from dnn.errors import ConfigurationError, DeviceError, DtypeError, ShapeError
from dnn.memory import MemoryKind, MemoryManager, allocation_statistics

KINDS = ["host", "device", "managed", "cuda_managed"]
PAIRS = list(itertools.product(KINDS, KINDS))
no_gpu = pytest.mark.skipif(cuda_problem() is None, reason="this machine has a GPU")


def filled(values, kind, device):
    """A manager of a kind with values, written where that kind is written."""
    values = np.asarray(values, np.float32)
    memory = MemoryManager(values.size, np.float32, kind, device)
    if kind == "device":
        memory.write_device(whole=True).values[...] = values
    else:
        memory.write_host(whole=True)[...] = values
    return memory


def host_values(memory):
    if memory.kind is MemoryKind.DEVICE:
        return memory.read_device().values
    return memory.read_host()


@pytest.mark.parametrize(("source_kind", "kind"), PAIRS)
@pytest.mark.parametrize("side", ["host", "device"])
def test_copy_from_every_kind_to_every_kind(source_kind, kind, side):
    device = FakeDevice()
    source = filled(np.arange(5), source_kind, device)
    if side == "device" and source_kind != "host":  # what counts now stands on the device
        source.write_device().values[...] += 10
    expected = np.arange(5) + (10 if side == "device" and source_kind != "host" else 0)
    target = filled(np.zeros(5), kind, device)
    target.copy_from(source)
    np.testing.assert_array_equal(host_values(target), expected)
    if kind in ("managed", "cuda_managed"):
        np.testing.assert_array_equal(target.read_device().values, expected)
    np.testing.assert_array_equal(host_values(source), expected)


@pytest.mark.parametrize(("source_kind", "kind"), PAIRS)
def test_copy_from_a_part_leaves_the_rest(source_kind, kind):
    device = FakeDevice()
    target = filled(np.full(5, -1), kind, device)
    target.copy_from(filled(np.arange(6), source_kind, device), begin=2, size=3)
    np.testing.assert_array_equal(host_values(target), [2, 3, 4, -1, -1])


def test_between_two_managers_on_the_device_nothing_passes_through_the_host():
    device = FakeDevice()
    source = filled(np.arange(5), "managed", device)
    source.write_device()
    target = MemoryManager(5, np.float32, "managed", device)
    device.take_log()
    target.copy_from(source)
    assert device.take_log() == ["copy"]
    target.read_device()
    assert device.take_log() == []


def test_managed_memory_is_synchronised_only_when_the_other_side_is_read():
    device = FakeDevice()
    memory = filled([1, 2, 3], "managed", device)
    memory.write_host()[1] = 5
    memory.read_host()
    assert device.take_log() == []
    np.testing.assert_array_equal(memory.read_device().values, [1, 5, 3])
    assert device.take_log() == ["to_device"]
    memory.read_device()
    memory.read_host()
    assert device.take_log() == []
    memory.write_device().values[0] = 7
    memory.write_device().values[2] = 8
    assert device.take_log() == []
    np.testing.assert_array_equal(memory.read_host(), [7, 5, 8])
    assert device.take_log() == ["to_host"]
    memory.write_host()[0] = 9  # a part: what the device wrote before must survive
    np.testing.assert_array_equal(memory.read_device().values, [9, 5, 8])


def test_a_side_that_is_written_whole_is_not_fetched_first():
    device = FakeDevice()
    memory = filled([1, 2, 3], "managed", device)
    memory.write_device(whole=True).values[...] = 4
    memory.write_host(whole=True)[...] = 6
    assert device.take_log() == []
    np.testing.assert_array_equal(memory.read_device().values, [6, 6, 6])


def test_the_view_for_reading_cannot_be_written():
    with pytest.raises(ValueError, match="read-only"):
        filled([1, 2], "host", None).read_host()[0] = 3


@pytest.mark.parametrize("first", ["device", "host"])
def test_a_prefetch_is_waited_for_when_its_side_is_read_and_before_anything_is_written(first):
    device = FakeDevice()
    memory = filled([1, 2], "managed", device)
    memory.prefetch("device")
    assert device.take_log() == ["start_to_device"]
    if first == "device":
        np.testing.assert_array_equal(memory.read_device().values, [1, 2])
    memory.write_host()[...] = 8  # the copy must have read its source by now
    np.testing.assert_array_equal(memory.read_device().values, [8, 8])
    memory.write_device().values[...] = 9
    device.take_log()
    memory.prefetch("host")
    memory.prefetch("host")  # already under way
    assert device.take_log() == ["start_to_host"]
    np.testing.assert_array_equal(memory.read_host(), [9, 9])
    assert device.take_log() == []


def test_a_prefetched_copy_reads_before_the_device_writes_again():
    device = FakeDevice()
    memory = filled([1, 2], "managed", device)
    memory.write_device().values[...] = 3
    memory.prefetch("host")
    memory.write_device().values[...] += 1  # waits for the prefetch, and makes it stale
    np.testing.assert_array_equal(memory.read_host(), [4, 4])


def test_prefetching_what_is_current_or_one_sided_does_nothing():
    device = FakeDevice()
    memory = filled([1, 2], "managed", device)
    memory.prefetch("host")
    filled([1], "device", device).prefetch("device")
    assert device.take_log() == []
    filled([1], "host", None).prefetch("device")
    filled([1], "managed", "cpu").prefetch("device")
    with pytest.raises(ConfigurationError, match="side 'gpu'"):
        memory.prefetch("gpu")


def test_unified_memory_is_one_piece_and_the_host_waits_for_the_device():
    device = FakeDevice()
    memory = filled([1, 2], "cuda_managed", device)
    device.take_log()
    memory.read_device().values[...] = 5
    memory.prefetch("host")
    np.testing.assert_array_equal(memory.read_host(), [5, 5])
    memory.prefetch("device")
    assert device.take_log() == ["prefetch_to_host", "synchronize", "prefetch_to_device"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "bool"])
def test_types_of_elements(dtype):
    memory = MemoryManager(3, dtype, "host")
    memory.write_host()[...] = 1
    assert memory.read_host().dtype == dtype
    assert memory.size_bytes == 3 * np.dtype(dtype).itemsize
    assert memory.read_host().ctypes.data % 64 == 0


@pytest.mark.parametrize("dtype", ["complex64", "U3", object, np.longdouble])
def test_types_that_memory_does_not_hold(dtype):
    with pytest.raises(DtypeError, match="real numbers"):
        MemoryManager(3, dtype)


@no_gpu
@pytest.mark.parametrize("kind", ["device", "cuda_managed"])
def test_without_a_gpu_the_error_says_what_is_missing(kind):
    with pytest.raises(DeviceError, match=f"{kind.upper()} memory needs a GPU: .*(CuPy|CUDA|GPU)"):
        MemoryManager(3, np.float32, kind)


@no_gpu
def test_without_a_gpu_managed_memory_is_host_memory():
    memory = filled([1, 2], "managed", None)
    assert memory.device is None
    np.testing.assert_array_equal(memory.read_host(), [1, 2])
    with pytest.raises(DeviceError, match="cannot be read on a device"):
        memory.read_device()


def test_the_wrong_side_is_an_error():
    with pytest.raises(DeviceError, match="cannot be read on a device"):
        filled([1], "host", None).write_device()
    with pytest.raises(DeviceError, match="copy it to HOST"):
        filled([1], "device", FakeDevice()).read_host()
    with pytest.raises(DeviceError, match="the device is cpu"):
        MemoryManager(1, kind="device", device="cpu")


def test_bad_arguments():
    with pytest.raises(ConfigurationError, match=r"kind of memory 'hots'; did you mean 'host'"):
        MemoryManager(1, kind="hots")
    with pytest.raises(ConfigurationError, match="size"):
        MemoryManager(-1)
    with pytest.raises(ConfigurationError, match="device 'gpu'"):
        MemoryManager(1, device="gpu")
    small, large = filled([1], "host", None), filled([1, 2, 3], "host", None)
    with pytest.raises(ShapeError, match="elements 0 to 3 of 3 into 1"):
        small.copy_from(large)
    with pytest.raises(ShapeError, match="elements 2 to 4 of 3 into 3"):
        large.copy_from(large, begin=2, size=2)
    with pytest.raises(DtypeError, match="float32 elements into float64"):
        MemoryManager(1, np.float64).copy_from(small)


def test_allocation_statistics():
    gc.collect()
    before = allocation_statistics()
    device = FakeDevice()
    memory = filled(np.zeros(100), "managed", device)
    memory.read_device()
    memory.write_device()
    memory.read_host()
    now = allocation_statistics()
    assert now.host.size_bytes - before.host.size_bytes == 400
    assert now.device.size_bytes - before.device.size_bytes == 400
    assert now.device.peak_bytes >= now.device.size_bytes
    assert (now.to_device - before.to_device, now.to_host - before.to_host) == (1, 1)
    assert now.to_host_bytes - before.to_host_bytes == 400
    unified = filled([1, 2], "cuda_managed", device)
    assert allocation_statistics().unified.size_bytes - before.unified.size_bytes == 8
    del memory, unified
    gc.collect()
    after = allocation_statistics()
    assert after.host.size_bytes == before.host.size_bytes
    assert after.device.size_bytes == before.device.size_bytes
    assert after.unified.size_bytes == before.unified.size_bytes
    assert now.device.size_bytes > after.device.size_bytes  # a copy does not change


def test_repr_tells_which_side_is_current():
    memory = filled([1, 2], "managed", FakeDevice())
    memory.write_device()
    assert repr(memory) == "<MemoryManager 2 float32 managed: host stale, device current>"
    assert "not allocated" in repr(MemoryManager(2))
