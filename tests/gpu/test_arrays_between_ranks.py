"""Arrays on a GPU over tuples, direct messages and shared boundaries, within this process."""

from __future__ import annotations

import numpy as np
import pytest
from unit.coupling.meeting import pair
from unit.coupling.test_shared_boundary import one_way

from diel.comm import device_arrays
from diel.tuples.client import TupleClient
from diel.tuples.store import TupleStore
from diel.tuples.transport import LocalTransport

SHAPES = [(), (0, 3), (7,), (300, 5_000)]


@pytest.fixture
def cupy(ops):
    import cupy

    return cupy


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "?"])
@pytest.mark.parametrize("shape", SHAPES)
def test_tuples(cupy, shape, dtype):
    transport = LocalTransport([TupleStore() for _ in range(3)])
    tuples = TupleClient(transport)
    values = np.random.default_rng(0).integers(0, 9, shape).astype(dtype)
    source = cupy.asarray(values)
    for put, get in ((tuples.tput, tuples.tget), (tuples.dist_tput, tuples.dist_tget)):
        put("field", source)
        np.testing.assert_array_equal(tuples.tread("field"), values)
        out = cupy.asarray(np.zeros(shape, dtype))
        assert get("field", out=out) is out
        np.testing.assert_array_equal(out.get(), values)
    whats = {span.what for span in transport.meter.take_spans()}
    memory = "pinned" if values.nbytes else "ordinary"
    assert whats == {f"{way} the GPU, through {memory} memory" for way in ("from", "to")}


def test_what_is_put_is_what_the_gpu_had_computed_by_then(cupy):
    tuples = TupleClient(LocalTransport())
    out = cupy.asarray(np.zeros(2_000_000, "f4"))
    for step in range(20):
        with cupy.cuda.Stream(non_blocking=True):
            source = cupy.full(2_000_000, step, "f4")
            for _ in range(10):
                source = source + 1
        tuples.tput("field", source)
        source.fill(-1)
        tuples.tget("field", out=out)
        assert (out.min(), out.max()) == (step + 10, step + 10)


def test_columns_and_larger_than_what_is_pinned(cupy, monkeypatch):
    monkeypatch.setattr(device_arrays, "LARGEST_PINNED_BYTES", 2**10)
    tuples = TupleClient(LocalTransport())
    values = np.arange(40_000.0).reshape(200, 200)
    for array in (cupy.asarray(values)[:, ::2], cupy.asarray(values).transpose()):
        tuples.tput("columns", array)
        np.testing.assert_array_equal(tuples.tget("columns"), array.get())


def test_messages_and_boundaries(cupy):
    _, a, b = pair()
    values = np.arange(30_000.0)
    out = cupy.asarray(np.zeros(30_000))
    a.send(cupy.asarray(values), "b")
    assert b.recv("a", out=out) is out
    np.testing.assert_array_equal(out.get(), values)
    _, fluid, solid = one_way(30_000)
    fluid.push(cupy.asarray(values + 1))
    solid.pull(timeout=5, out=[out])
    np.testing.assert_array_equal(out.get(), values + 1)
