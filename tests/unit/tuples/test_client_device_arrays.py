"""Tuples of arrays on a GPU, which is the stand-in's, and by which way they travel."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import fake_cupy
import numpy as np
import pytest

from diel.comm import device_arrays
from diel.errors import PayloadError
from diel.tuples.client import TupleClient
from diel.tuples.transport import LocalTransport

FIELD = np.arange(6_000.0).reshape(20, 300)


@pytest.fixture(autouse=True)
def cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    cupyx = SimpleNamespace(empty_pinned=fake_cupy.empty_pinned)
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    monkeypatch.setitem(sys.modules, "cupyx", cupyx)  # type: ignore[arg-type]


def ways(transport: LocalTransport) -> list[tuple[str, object, int | None]]:
    return [
        (span.what, span.about, span.size_bytes)
        for span in transport.meter.take_spans()
        if span.kind == "transfer"
    ]


@pytest.mark.parametrize("put", ["tput", "dist_tput", "put_if_absent"])
@pytest.mark.parametrize("get", ["tget", "tread", "dist_tget", "tget_nowait"])
def test_an_array_goes_from_one_gpu_to_another(
    tuples: TupleClient, transport: LocalTransport, put: str, get: str
) -> None:
    source = fake_cupy.asarray(FIELD)
    getattr(tuples, put)(("field", 1), source)
    source.fill(0)
    out = fake_cupy.asarray(np.zeros_like(FIELD))
    assert getattr(tuples, get)(("field", 1), out=out) is out
    np.testing.assert_array_equal(out.get(), FIELD)
    assert ways(transport) == [
        ("from the GPU, through pinned memory", ("field", 1), FIELD.nbytes),
        ("to the GPU, through pinned memory", ("field", 1), FIELD.nbytes),
    ]


def test_what_comes_to_the_host_although_mpi_writes_to_the_gpu(
    tuples: TupleClient, transport: LocalTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply that is here before it is waited for is in memory of the host."""
    monkeypatch.setattr(LocalTransport, "gpu_aware", True)
    source, out = fake_cupy.asarray(FIELD), fake_cupy.asarray(np.zeros_like(FIELD))
    tuples.tput("field", source)
    assert tuples.tget("field", out=out) is out
    np.testing.assert_array_equal(out.get(), FIELD)
    assert [what for what, _, _ in ways(transport)] == [
        "from the GPU, GPU-aware MPI",
        "to the GPU, through pinned memory",
    ]


def test_without_out_it_is_an_array_of_numpy(tuples: TupleClient) -> None:
    tuples.tput("columns", fake_cupy.asarray(FIELD)[:, ::2])  # not contiguous
    tuples.tput("number", fake_cupy.asarray(np.array(3.5, "f4")))
    tuples.tput("nothing", fake_cupy.asarray(np.zeros((0, 3))))
    columns = tuples.tget("columns")
    assert type(columns) is np.ndarray
    np.testing.assert_array_equal(columns, FIELD[:, ::2])
    number = tuples.tget("number")
    assert (number.shape, number.dtype, float(number)) == ((), np.dtype("f4"), 3.5)
    assert tuples.tget("nothing").shape == (0, 3)


def test_claims_and_updates_take_such_arrays_too(tuples: TupleClient) -> None:
    tuples.tput("state", FIELD)
    tuples.update("state", lambda state: fake_cupy.asarray(state + 1))
    with tuples.claim("state") as claim:
        np.testing.assert_array_equal(claim.value, FIELD + 1)


def test_what_does_not_fit_is_left_there(tuples: TupleClient) -> None:
    tuples.tput("field", FIELD)
    with pytest.raises(PayloadError, match="it was left there"):
        tuples.tget("field", out=fake_cupy.asarray(np.zeros((20, 300), "f4")))
    with pytest.raises(PayloadError, match="C-contiguous"):
        tuples.tget("field", out=fake_cupy.asarray(np.zeros((20, 600)))[:, ::2])
    assert tuples.count("field") == 1


def test_very_large_arrays_go_through_ordinary_memory(
    tuples: TupleClient, transport: LocalTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_arrays, "LARGEST_PINNED_BYTES", FIELD.nbytes - 1)
    tuples.tput("field", fake_cupy.asarray(FIELD))
    out = fake_cupy.asarray(np.zeros_like(FIELD))
    tuples.tget("field", out=out)
    np.testing.assert_array_equal(out.get(), FIELD)
    assert [what for what, _, _ in ways(transport)] == [
        "from the GPU, through ordinary memory",
        "to the GPU, through ordinary memory",
    ]


def test_a_tensor_whose_interface_is_refused_is_pickled(tuples: TupleClient) -> None:
    tuples.tput("tensor", Refusing())
    assert type(tuples.tget("tensor")) is Refusing


class Refusing:
    """As a tensor of PyTorch that requires its gradient."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        raise RuntimeError("use detach()")
