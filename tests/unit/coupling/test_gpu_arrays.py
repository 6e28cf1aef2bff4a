"""Arrays on a GPU, played by arrays that only say that they are there."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from unit.coupling.meeting import pair

from diel.comm import device_arrays
from diel.errors import PayloadError


@pytest.fixture(autouse=True)
def without_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be in a process that has imported neither CuPy nor PyTorch."""
    for name in ("cupy", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)


class OnDevice:
    """What CuPy's array has of what is needed; its memory is that of the host."""

    def __init__(self, host: np.ndarray[Any, Any]) -> None:
        self.there = host

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        about = dict(self.there.__array_interface__)
        return about | {"version": 3, "strides": about["strides"]}

    def get(self) -> np.ndarray[Any, Any]:
        return self.there.copy()

    def set(self, host: np.ndarray[Any, Any]) -> None:
        assert host.dtype == self.there.dtype
        self.there[...] = host

    def copy(self) -> OnDevice:
        return OnDevice(self.there.copy())


class OnlyInterface:
    """An array of another library."""

    __cuda_array_interface__ = OnDevice(np.ones(3)).__cuda_array_interface__


@pytest.mark.parametrize("size", [3, 10_000])
@pytest.mark.parametrize("copy", [True, False])
def test_an_array_on_a_gpu_is_staged_through_the_host(size: int, copy: bool) -> None:
    _, a, b = pair()
    field = np.arange(2.0 * size).reshape(2, size)
    source = OnDevice(field.copy())
    a.send(source, "b", copy=copy)
    source.there[:] = 0
    received = b.recv("a")
    assert type(received) is np.ndarray
    np.testing.assert_array_equal(received, field)
    out = OnDevice(np.zeros((2, size)))
    a.send(field, "b")
    assert b.recv("a", out=out) is out
    np.testing.assert_array_equal(out.there, field)
    assert [span[:4:3] for span in a.meter.take_spans()] == [
        ("transfer", "from the GPU, through ordinary memory")
    ]
    assert ("transfer", "to the GPU, through ordinary memory") in [
        span[:4:3] for span in b.meter.take_spans()
    ]


def test_an_array_on_a_gpu_that_does_not_fit() -> None:
    _, a, b = pair()
    a.send(OnDevice(np.ones(4)), "b")
    with pytest.raises(PayloadError, match="float64"):
        b.recv("a", out=OnDevice(np.ones(4, "f4")))
    with pytest.raises(PayloadError, match="C-contiguous"):
        b.recv("a", out=OnDevice(np.ones(8)[::2]))
    a.send(OnDevice(np.arange(8.0)[::2]), "b")
    assert b.recv("a").sum() == 4
    assert b.recv("a").tolist() == [0, 2, 4, 6]


def test_what_is_on_a_gpu() -> None:
    assert device_arrays.is_on_device(OnDevice(np.ones(3)))
    assert device_arrays.is_on_device(OnlyInterface())
    for value in (np.ones(3), [1.0], b"", None):
        assert not device_arrays.is_on_device(value)
    assert device_arrays.is_contiguous(OnDevice(np.ones((2, 3))))
    assert not device_arrays.is_contiguous(OnDevice(np.ones((2, 3)).T))
    assert device_arrays.device_bytes(OnDevice(np.ones((2, 3), "f4"))) == 24


def test_without_cupy_another_librarys_array_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    _, a, _ = pair()
    with pytest.raises(PayloadError, match="OnlyInterface is in the memory of a GPU, and CuPy"):
        a.send(OnlyInterface(), "b")


def test_what_runs_on_the_gpu_is_finished_before_its_address_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finished = []

    class Library:
        ndarray = Tensor = ()  # the types of arrays of its own

        def __init__(self, name: str) -> None:
            self.cuda = self.runtime = self
            self.name = name

        def is_initialized(self) -> bool:
            return True

        def synchronize(self, device: object = None) -> None:
            finished.append(self.name)

        deviceSynchronize = synchronize

    for name in ("cupy", "torch"):
        monkeypatch.setitem(sys.modules, name, Library(name))  # type: ignore[arg-type]
    array = OnDevice(np.ones(5))
    memory = device_arrays.device_memory(array)
    assert bytes(memory) == array.there.tobytes()
    assert finished == ["cupy", "torch"]
