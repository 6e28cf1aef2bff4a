"""The stand-in for CuPy and cuBLAS refuses what a GPU would get wrong without a word."""

from __future__ import annotations

import ctypes

import fake_cublas
import fake_cupy
import numpy as np
import pytest

from dnn.backend.rounding import BFLOAT16, narrow, round_tf32, widen


def on_device(x):
    return fake_cupy.asarray(np.asarray(x))


def gemm(library, handle, left, right, out, **changed):
    """Call ``out = left @ right`` of matrices 2 x 2, row by row; some arguments may be wrong."""
    one, zero = ctypes.c_float(1), ctypes.c_float(0)
    given = {
        **{"handle": handle, "transpose_a": 0, "transpose_b": 0, "m": 2, "n": 2, "k": 2},
        **{"alpha": ctypes.byref(one), "b": ctypes.c_void_p(right.data.ptr), "type_b": 0, "ldb": 2},
        **{"step_b": ctypes.c_longlong(4), "a": ctypes.c_void_p(left.data.ptr), "type_a": 0},
        **{"lda": 2, "step_a": ctypes.c_longlong(4), "beta": ctypes.byref(zero)},
        **{"c": ctypes.c_void_p(out.data.ptr), "type_c": 0, "ldc": 2},
        **{"step_c": ctypes.c_longlong(4), "batch": 1, "compute": 68, "algorithm": -1},
        **changed,
    }
    return library.cublasGemmStridedBatchedEx(*given.values())


@pytest.fixture
def cublas():
    library, handle = fake_cublas.load_library("cublas"), ctypes.c_void_p()
    library.cublasCreate_v2(ctypes.byref(handle))
    return library, handle


@pytest.fixture
def matrices():
    a, b = np.array([[1, 2], [3, 4]], "f4"), np.array([[5, 6], [7, 8]], "f4")
    return on_device(a), on_device(b), fake_cupy.empty((2, 2), "f4"), a @ b


def test_a_product_by_addresses(cublas, matrices):
    *operands, expected = matrices
    assert gemm(*cublas, *operands) == 0
    np.testing.assert_array_equal(operands[2].get(), expected)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"a": 140_000_000_000_000}, "for a parameter of 8 bytes"),
        ({"step_a": 4}, "for a parameter of 8 bytes"),
        ({"m": ctypes.c_longlong(2)}, "for a parameter of 4 bytes"),
        ({"type_a": 2}, "no GPU multiplies"),
        ({"compute": 64}, "no GPU multiplies"),
        ({"lda": 1}, "leading dimension"),
    ],
)
def test_arguments_that_c_would_take_for_others(cublas, matrices, changed, message):
    *operands, _ = matrices
    with pytest.raises((TypeError, AssertionError), match=message):
        gemm(*cublas, *operands, **changed)


def test_a_capture_needs_a_workspace_after_each_change_of_the_stream(cublas, matrices):
    library, handle = cublas
    *operands, expected = matrices
    workspace, stream = fake_cupy.empty(1024, "u1"), fake_cupy.Stream(non_blocking=True)
    for with_workspace in (False, True):
        library.cublasSetStream_v2(handle, ctypes.c_void_p(stream.ptr))
        if with_workspace:
            at, size = ctypes.c_void_p(workspace.data.ptr), ctypes.c_size_t(1024)
            library.cublasSetWorkspace_v2(handle, at, size)
        with stream:
            stream.begin_capture()
            if with_workspace:
                gemm(library, handle, *operands)
            else:
                with pytest.raises(RuntimeError, match="without a workspace"):
                    gemm(library, handle, *operands)
            graph = stream.end_capture()
    assert not np.array_equal(operands[2].get(), expected)
    graph.launch()
    np.testing.assert_array_equal(operands[2].get(), expected)


def test_a_copy_on_a_stream_of_its_own_is_there_when_it_was_waited_for():
    copies, there = fake_cupy.Stream(non_blocking=True), fake_cupy.empty(3, "f4")
    host = fake_cupy.empty_pinned(3, "f4")
    host[:] = np.arange(3)
    there.set(host, copies)
    event = copies.record()
    assert not np.array_equal(there.get(), host)
    host[0] = 7  # what is copied is what the host has when the copy is made
    fake_cupy.get_current_stream().wait_event(event)
    np.testing.assert_array_equal(there.get(), [7, 1, 2])


def test_memory_ends_and_comes_back(monkeypatch):
    pool = fake_cupy.get_default_memory_pool()
    pool.free_all_blocks()
    monkeypatch.setattr(fake_cupy.MemoryPool, "capacity", pool.used_bytes() + 1000)
    kept = fake_cupy.empty(600, "u1")
    with pytest.raises(fake_cupy.OutOfMemoryError, match="allocating 600 bytes"):
        fake_cupy.empty(600, "u1")
    view = kept[:1]
    del kept
    with pytest.raises(fake_cupy.OutOfMemoryError):
        fake_cupy.empty(600, "u1")
    del view
    assert pool.free_bytes() == 600  # CuPy keeps it
    fake_cupy.empty(600, "u1")


def test_it_rounds_as_dnn_does():
    values = np.random.default_rng(0).integers(0, 1 << 32, 100_000, np.uint32).view("f4")
    bits, rounded = np.empty(values.shape, BFLOAT16), np.empty_like(values)
    narrow(values, bits)
    np.testing.assert_array_equal(fake_cublas.narrowed(values, "u2"), bits)
    widen(bits, rounded)
    np.testing.assert_array_equal(fake_cublas.widened(bits), rounded)
    round_tf32(values, rounded)
    np.testing.assert_array_equal(fake_cublas.tf32(values), rounded)
