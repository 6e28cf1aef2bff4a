"""Recorded calls change places only where no memory is used by both, and kernels share launches."""

from __future__ import annotations

import cuda_emulator
import fake_cupy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dnn.backend.cuda import formulas
from dnn.backend.cuda.joining import (
    MOST_PARAMETER_BYTES,
    SMALL,
    Call,
    Launch,
    Region,
    Uses,
    dependencies,
    joint_launches,
)
from dnn.backend.cuda.ops import CudaOps
from dnn.backend.cuda.source import THREADS
from dnn.backend.device import Device
from dnn.backend.formula import ADD
from dnn.errors import DeviceError

if cuda_emulator.COMPILER is None:
    pytest.skip("there is no C++ compiler to run CUDA kernels with", allow_module_level=True)

MANY = SMALL * THREADS + 1
"""Elements for which a kernel needs more blocks than one block may stand for."""


@pytest.fixture
def ops() -> CudaOps:
    return CudaOps(Device("cuda"), fake_cupy, fake_cupy.Blas())


def linked(ops, steps):
    """Return how often kernels are launched by one run of steps, and run them twice."""
    ((run, _),) = ops.link([(ops.run_kernels, (function, *given)) for function, *given in steps])
    run()
    fake_cupy.RawModule.launches.clear()
    run.__self__._call_all()
    return list(fake_cupy.RawModule.launches)


def add(launcher, x, y, out):
    launcher.elementwise(formulas.chain(((ADD, 0, 1),), 2), (x, y, out))


def rows(*shape):
    return fake_cupy.asarray(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


# -- memory ---------------------------------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_regions_overlap_wherever_two_views_share_an_element(data) -> None:
    base = np.arange(60, dtype=np.float32).reshape(5, 12)
    whole = fake_cupy.asarray(base)
    indices = st.tuples(st.slices(5), st.slices(12))
    first, second = (data.draw(indices) for _ in range(2))
    shared = np.intersect1d(base[first], base[second])
    if shared.size:
        assert Region.of(whole[first]).overlaps(Region.of(whole[second]))
        assert Region.of(whole[second]).overlaps(Region.of(whole[first]))


def test_segments_of_a_buffer_with_a_row_for_each_network_lie_apart() -> None:
    whole = rows(4, 16)
    first, second = Region.of(whole[:, :8]), Region.of(whole[:, 8:])
    assert not first.overlaps(second)
    assert not second.overlaps(first)
    assert first.overlaps(Region.of(whole[:, 7:9]))
    assert first.overlaps(Region.of(whole))
    assert Region.of(whole).covers(first)
    assert not first.covers(second)
    assert not first.covers(Region.of(whole[1]))


def test_what_has_to_be_done_before_a_call() -> None:
    x, y, z = rows(4), rows(4), rows(4)
    calls = [Uses.of((x,), (y,)), Uses.of((y,), (z,)), Uses.of((), (x,)), Uses.of((x,), (z,))]
    assert dependencies(calls) == [set(), {0}, {0}, {1, 2}]
    assert dependencies([*calls[:2], None, Uses.of((), ())]) == [set(), {0}, {0, 1}, {2}]


# -- launches -------------------------------------------------------------------------------------


def test_kernels_that_do_not_depend_on_each_other_share_a_launch(ops) -> None:
    x, y = rows(MANY), rows(MANY)
    outs = [fake_cupy.empty(MANY, np.float32) for _ in range(3)]
    launches = linked(ops, [(add, x, y, outs[0]), (add, y, y, outs[1]), (add, x, x, outs[2])])
    assert len(launches) == 1
    for out in outs:
        np.testing.assert_array_equal(fake_cupy.asnumpy(out), 2 * np.arange(MANY, dtype="f4"))


@pytest.mark.parametrize(("size", "expected"), [(SMALL * THREADS, 1), (MANY, 2)])
def test_a_block_runs_small_kernels_one_after_another(ops, size, expected) -> None:
    x, y, z = rows(size), rows(size), rows(size)
    launches = linked(ops, [(add, x, x, y), (add, y[::-1], x, z)])
    assert len(launches) == expected
    wanted = np.arange(size, dtype=np.float32)
    np.testing.assert_array_equal(fake_cupy.asnumpy(z), 2 * wanted[::-1] + wanted)


@pytest.mark.parametrize("shape", [(MANY,), (3, MANY)])
def test_kernels_that_go_through_the_same_elements_share_a_launch(ops, shape) -> None:
    x, y, z = rows(*shape), rows(*shape), rows(*shape)
    factor = rows(*shape[:-1], 1)
    wanted = fake_cupy.asnumpy(x).copy()
    launches = linked(ops, [(add, x, factor, y), (add, y, y, y), (add, y, x, z), (add, z, y, y)])
    assert len(launches) == 1
    once = 2 * (wanted + fake_cupy.asnumpy(factor))
    np.testing.assert_array_equal(fake_cupy.asnumpy(y), once + wanted + once)


def test_kernels_share_no_launch_where_threads_have_other_elements(ops) -> None:
    # The second one loads an element at a time, as `rest` is not aligned.
    size = 1 << 21
    x, y, z, rest = rows(size), rows(size), rows(size), rows(size + 1)[1:]
    launches = linked(ops, [(add, x, x, y), (add, y, rest, z)])
    assert len(launches) == 2
    assert "_by_" in launches[0]
    assert "_by_" not in launches[1]


def test_kernels_share_no_launch_where_threads_need_what_others_wrote(ops) -> None:
    x, y, z = rows(MANY), rows(MANY), rows(MANY)
    assert len(linked(ops, [(add, x, x, y), (add, y[:1], x, z)])) == 2
    assert len(linked(ops, [(add, x, x, y), (add, y[1:], x[1:], z[1:])])) == 2
    assert len(linked(ops, [(add, x, y[:1], z), (add, x, x, y)])) == 2
    tall = rows(MANY, 2)
    assert len(linked(ops, [(add, tall, tall, tall), (add, tall[:, 0], x, z)])) == 2


def test_a_kernel_waits_for_memory_that_is_read_before_it_is_written(ops) -> None:
    x, y, z = rows(MANY), rows(MANY), rows(MANY)
    assert len(linked(ops, [(add, x[::-1], x, y), (add, z, z, x)])) == 2
    assert len(linked(ops, [(add, x[::-1], x, y), (add, z, z, x), (add, x[::-1], z, z)])) == 3


def test_a_launch_has_no_more_parameters_than_a_gpu_takes(ops) -> None:
    x, outs = rows(MANY), [fake_cupy.empty(MANY, np.float32) for _ in range(40)]
    before = dependencies([Uses.of((x,), (out,)) for out in outs])
    ops.launcher.begin_recording()
    for out in outs:
        add(ops.launcher, x, x, out)
    recorded = [launch for launch, _ in ops.launcher._recording]
    ops.launcher.end_recording()
    ordered = joint_launches(recorded, before)
    assert len(ordered) == 3
    for launch in ordered:
        assert isinstance(launch, Launch)
        assert 8 * len(launch.arguments) <= MOST_PARAMETER_BYTES


def test_a_call_of_unknown_memory_keeps_its_place(ops) -> None:
    x, y, seen = rows(MANY), rows(MANY), []
    ops.launcher.begin_recording()
    add(ops.launcher, x, x, y)
    ops.launcher.call(Call(lambda: seen.append(float(fake_cupy.asnumpy(y)[1])), ()))
    add(ops.launcher, y, y, x)
    with pytest.raises(DeviceError, match="recorded already"):
        ops.launcher.begin_recording()
    calls = ops.launcher.end_recording()
    assert len(calls) == 3
    for call in calls:
        call.run()
    assert seen == [2]
    assert float(fake_cupy.asnumpy(x)[1]) == 4
