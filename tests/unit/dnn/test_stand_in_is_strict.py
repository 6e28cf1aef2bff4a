"""The stand-in for CuPy refuses what CuPy 14 refuses, and has the names and signatures of CuPy."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import cuda_emulator
import fake_cupy
import fake_streams
import numpy as np
import pytest

from dnn import Tensor
from dnn.backend.device import COMPUTE_MODE, OUT_OF_MEMORY

needs_compiler = pytest.mark.skipif(cuda_emulator.COMPILER is None, reason="no C++ compiler")

COPY = """extern "C" __global__ void copied(const float* p_x, float* p_out, const long long n_) {
    for (long long i = threadIdx.x; i < n_; i += blockDim.x) p_out[i] = p_x[i];
}
"""


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    fake_cupy.forget()
    yield
    fake_cupy.forget()


def array(code="f4"):
    return fake_cupy.asarray(np.arange(6).reshape(2, 3).astype(code))


def captured(function):
    """Call a function while a stream captures."""
    x, stream = array(), fake_cupy.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            function(x)
        finally:
            stream.captured = None


def capture_after_an_error(x):
    stream = fake_cupy.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(fake_cupy.CUDARuntimeError):
            stream.synchronize()
        stream.end_capture()


def kernel():
    return fake_cupy.RawModule(code=COPY).get_function("copied")


def stream_of_another_gpu(x):
    stream = fake_cupy.Stream(non_blocking=True)
    with fake_cupy.Device(1), stream:
        pass


def set_in_stream_of_another_gpu(x):
    with fake_cupy.Device(1):
        stream = fake_cupy.Stream(non_blocking=True)
    x.set(x.get(), stream)


def computed_on_another_gpu(x):
    with fake_cupy.Device(1):
        np.add(x, 1)


def copied_from_another_gpu(x):
    with fake_cupy.Device(1):
        x[:, ::2].copy()


REFUSED = {
    "truth of several elements": (bool, ValueError, "ambiguous"),
    "an array in a list": (lambda x: x in [array()], ValueError, "ambiguous"),
    "hash": (hash, TypeError, "unhashable"),
    "comparison with an array of the host": (
        lambda x: x == np.ones((2, 3)),
        TypeError,
        "Unsupported type",
    ),
    "less than an array of the host": (lambda x: x < np.ones((2, 3)), TypeError, "Unsupported"),
    "length without axes": (lambda x: len(x[0, 0]), TypeError, "unsized"),
    "iteration without axes": (lambda x: list(x[0, 0]), TypeError, "0-d"),
    "flags are not to be set": (
        lambda x: setattr(x.flags, "c_contiguous", True),
        AttributeError,
        "c_contiguous",
    ),
    "a flag that CuPy has not": (lambda x: x.flags.writeable, AttributeError, "writeable"),
    "a flag by a name that CuPy has not": (lambda x: x.flags["WRITEABLE"], KeyError, "WRITEABLE"),
    "set of an array that is not contiguous": (
        lambda x: x[:, ::2].set(np.ones((2, 2), "f4")),
        RuntimeError,
        "non-contiguous",
    ),
    "get into another type": (lambda x: x.get(out=np.empty((2, 3))), TypeError, "float64"),
    "get into a list": (lambda x: x.get(out=[0] * 6), TypeError, "numpy.ndarray"),
    "get into memory with gaps": (
        lambda x: x.get(out=np.empty((2, 6), "f4")[:, ::2]),
        RuntimeError,
        "non-contiguous",
    ),
    "an item that is an array of the host": (
        lambda x: x.__setitem__(0, np.ones(3)),
        ValueError,
        "non-scalar numpy.ndarray cannot be used for fill",
    ),
    "an item that is a list": (lambda x: x.__setitem__(0, [1, 2, 3]), ValueError, "non-scalar"),
    "fill with an array": (lambda x: x.fill(np.ones(3)), ValueError, "non-scalar"),
    "ascontiguousarray of the host": (
        lambda x: fake_cupy.ascontiguousarray(np.ones(3)),
        TypeError,
        "incorrect type",
    ),
    "copyto of a wider kind": (lambda x: fake_cupy.copyto(array("i4"), x), TypeError, "same_kind"),
    "a mask of a function": (
        lambda x: np.add(x, 1, out=x, where=True),
        TypeError,
        "Wrong arguments",
    ),
    "a function that CuPy has not": (np.spacing, TypeError, "NotImplemented"),
    "a reduction that CuPy has not": (np.maximum.reduce, NotImplementedError, "not supported"),
    "from_dlpack of the host": (
        lambda x: fake_cupy.from_dlpack(np.ones(3)),
        TypeError,
        "CPU arrays",
    ),
    "options that are a list": (
        lambda x: fake_cupy.RawModule(code=COPY, options=["--std=c++17"]),
        TypeError,
        "tuple",
    ),
    "prefetch to the host": (
        lambda x: fake_cupy.memPrefetchAsync(fake_cupy.malloc_managed(8).ptr, 8, -1, 0),
        RuntimeError,
        "cudaErrorInvalidDevice",
    ),
    "prefetch of other memory": (
        lambda x: fake_cupy.memPrefetchAsync(x.data.ptr, x.nbytes, 0, 0),
        RuntimeError,
        "cudaErrorInvalidValue",
    ),
    "a GPU that is not there": (
        lambda x: fake_cupy.Device(2).use(),
        RuntimeError,
        "cudaErrorInvalidDevice",
    ),
    "NCCL": (lambda x: fake_cupy.cuda.nccl, AttributeError, "nccl"),
    "get in a capture": (lambda x: captured(lambda y: y.get()), RuntimeError, "is capturing"),
    "set in a capture": (
        lambda x: captured(lambda y: y.set(np.ones((2, 3), "f4"))),
        RuntimeError,
        "is capturing",
    ),
    "truth in a capture": (
        lambda x: captured(lambda y: bool(y[0, 0])),
        RuntimeError,
        "is capturing",
    ),
    "an array sent in a capture": (
        lambda x: captured(lambda y: fake_cupy.asarray(np.ones(3))),
        RuntimeError,
        "is capturing",
    ),
    "waiting for the device in a capture": (
        lambda x: captured(lambda y: fake_cupy.deviceSynchronize()),
        RuntimeError,
        "is capturing",
    ),
    "waiting for what is captured": (
        lambda x: captured(lambda y: fake_cupy.get_current_stream().record().synchronize()),
        RuntimeError,
        "cudaErrorCapturedEvent",
    ),
    "a capture that waits for what it has not captured": (
        lambda x: captured(
            lambda y: fake_cupy.get_current_stream().wait_event(
                fake_cupy.Stream(non_blocking=True).record()
            )
        ),
        RuntimeError,
        "cudaErrorStreamCaptureIsolation",
    ),
    "a capture in which something was refused": (
        capture_after_an_error,
        RuntimeError,
        "cudaErrorStreamCaptureInvalidated",
    ),
    "a stream of another GPU": (stream_of_another_gpu, RuntimeError, "does not match"),
    "work in a stream of another GPU": (
        lambda x: [set_in_stream_of_another_gpu(x), fake_cupy.deviceSynchronize()],
        RuntimeError,
        "cudaErrorInvalidResourceHandle",
    ),
    "an operand of another GPU": (computed_on_another_gpu, ValueError, "must be same"),
    "a copy with gaps from another GPU": (
        copied_from_another_gpu,
        NotImplementedError,
        "non-contiguous",
    ),
}
"""What CuPy refuses, with the type and a part of the text of its error."""


@pytest.mark.parametrize("name", REFUSED)
def test_what_cupy_refuses(name):
    fault, error, text = REFUSED[name]
    with pytest.raises(error, match=text):
        fault(array())


@needs_compiler
@pytest.mark.parametrize(
    ("grid", "block", "error"),
    [
        ((1,), (2048,), fake_cupy.CUDARuntimeError),
        (1, (32,), TypeError),
        ([1], (32,), TypeError),
    ],
)
def test_launches_that_cupy_refuses(grid, block, error):
    with pytest.raises(error):
        kernel()(grid, block, (array(), array(), np.int64(6)))


@needs_compiler
def test_a_kernels_handle_is_of_one_gpu():
    asked = fake_cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor
    function = kernel().kernel.ptr
    assert asked(function, 256, 0) == 8
    with fake_cupy.Device(1):
        with pytest.raises(fake_cupy.CUDARuntimeError, match="invalid resource handle"):
            asked(function, 256, 0)
        assert asked(kernel().kernel.ptr, 256, 0) == 8


# -- what is done later ---------------------------------------------------------------------------


@needs_compiler
def test_an_error_of_a_kernel_comes_when_it_is_waited_for_and_stays():
    x = array()
    with fake_cupy.Device(1):
        out = array()
    kernel()((1,), (32,), (x, out, np.int64(6)))  # CUDA notices it on the GPU
    for call in (fake_cupy.deviceSynchronize, x.get, lambda: x.fill(0), array):
        with pytest.raises(fake_cupy.CUDARuntimeError, match="illegal memory access"):
            call()
    with fake_cupy.Device(1):
        assert array().get().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_nothing_is_done_before_it_is_waited_for():
    x = array()
    x.fill(7)
    assert not (x._memory == 7).any()
    fake_cupy.deviceSynchronize()
    assert (x._memory == 7).all()


def test_pinned_memory_is_read_when_the_copy_is_made():
    x, host = array(), fake_cupy.empty_pinned((2, 3), "f4")
    host[...] = 1
    x.set(host)
    host[...] = 2
    assert (x.get() == 2).all()
    x.set(np.full((2, 3), 3, "f4"))  # other memory is read at once
    assert (x.get() == 3).all()


def test_pinned_memory_that_is_freed_too_early_is_somebody_elses():
    x, host = array(), fake_cupy.empty_pinned((2, 3), "f4")
    host[...] = 1
    x.set(host)
    del host
    assert not (x.get() == 1).any()


def test_a_copy_to_pinned_memory_is_there_when_it_was_waited_for():
    x, host = array(), fake_cupy.empty_pinned((2, 3), "f4")
    host[...] = -1
    x.get(out=host, blocking=False)
    assert (host == -1).all()
    fake_cupy.get_current_stream().synchronize()
    np.testing.assert_array_equal(host, x.get())


def test_fill_in_a_capture_is_done_by_the_graph():
    x, stream = array(), fake_cupy.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        x.fill(9)
        graph = stream.end_capture()
    assert not (x.get() == 9).any()
    graph.launch()
    assert (x.get() == 9).all()


# -- devices --------------------------------------------------------------------------------------


def test_each_thread_has_a_current_device():
    seen = []
    fake_cupy.Device(1).use()
    thread = threading.Thread(target=lambda: seen.append(array().device.id))
    thread.start()
    thread.join()
    assert seen == [0]
    assert array().device.id == 1


def test_each_device_has_memory_of_its_own(monkeypatch):
    pool = fake_cupy.get_default_memory_pool()
    kept = array()
    with fake_cupy.Device(1):
        before = pool.used_bytes()
        other = array()
        assert pool.used_bytes() - before == other.nbytes
        assert other.copy().device.id == kept.copy().device.id == 1
    assert kept.copy().device.id == 0


def test_unified_memory_says_that_it_is():
    unified = fake_cupy.ndarray((2,), "f4", fake_cupy.malloc_managed(8))
    assert (unified.__dlpack_device__(), array().__dlpack_device__()) == ((13, 0), (2, 0))


# -- shapes ---------------------------------------------------------------------------------------


@needs_compiler
def test_arrays_without_axes(monkeypatch):
    fake_cupy.install(monkeypatch)
    x = fake_cupy.asarray(np.float32(3))
    assert x.shape == fake_cupy.asarray(3.0).shape == fake_cupy.from_dlpack(x).shape == ()
    assert fake_cupy.ascontiguousarray(x).shape == (1,)
    assert Tensor.from_dlpack(x).shape == ()
    assert bool(x)
    assert (float(x), int(x)) == (3.0, 3)


def test_comparison_gives_an_array():
    x = array()
    assert isinstance(x == 1, fake_cupy.ndarray)
    assert (x == x.copy()).get().all()
    assert not (x == None).get().any()  # noqa: E711
    assert (x != None).get().all()  # noqa: E711
    with pytest.warns(DeprecationWarning, match="empty array"):
        assert not bool(fake_cupy.empty((0,)))


# -- one rounding ---------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("fused", ["0", "1"])
def test_products_and_sums_are_rounded_once_or_twice(fused):
    program = """
import numpy as np, fake_cupy
code = '''extern "C" __global__ void fused(const float* p_x, float* p_out) {
    p_out[0] = p_x[0] * p_x[0] + p_x[1];
}
'''
x, out = fake_cupy.asarray(np.array([1 + 2**-12, -1 - 2**-11], "f4")), fake_cupy.empty(1, "f4")
fake_cupy.RawModule(code=code).get_function("fused")((1,), (1,), (x, out))
print(float(out.get()[0]) * 2**24)
"""
    tests = Path(fake_cupy.__file__).parent
    environment = {"PYTHONPATH": str(tests), "DIEL_STANDIN_FMA": fused}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) == float(fused)


# -- beside CuPy itself ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cupy():
    return pytest.importorskip("cupy", reason="cupy (the extra nvrtc) is not installed")


OURS = {
    *("Blas", "Pointer", "Room", "empty_pinned", "install"),
    *("check_device", "finish_all", "forget", "here", "stream_at", "streams_of"),
}
BOOKKEEPING = {
    *(
        "alive",
        "begun",
        "captured",
        "codes",
        "compiled",
        "done_count",
        "fails",
        "finish",
        "handles",
        "launched",
    ),
    *("launches", "log", "place", "put", "refuse_in_capture", "stream"),
    *("capacity", "room", "rooms", "take"),
}


def pairs(cupy):
    """Return what the stand-in has beside what CuPy has under the same name."""
    places = [(fake_cupy.ndarray, cupy.ndarray), (fake_cupy.Stream, cupy.cuda.Stream)]
    places += [(fake_cupy.Device, cupy.cuda.Device), (fake_cupy.Graph, cupy.cuda.Graph)]
    places += [(fake_cupy.cuda, cupy.cuda), (fake_cupy.cuda.runtime, cupy.cuda.runtime)]
    places += [(fake_cupy.cuda.driver, cupy.cuda.driver)]
    places += [(fake_cupy.RawModule, cupy.RawModule), (fake_cupy.Event, cupy.cuda.Event)]
    places += [(fake_cupy.RawKernel, cupy.RawKernel)]
    places += [(fake_cupy.MemoryPool, cupy.cuda.MemoryPool)]
    places += [(fake_cupy.linalg, cupy.linalg), (fake_cupy.fft, cupy.fft)]
    for mine, theirs in places:
        for name, value in vars(mine).items():
            if not name.startswith("_") and name not in BOOKKEEPING:
                yield f"{theirs.__name__}.{name}", value, getattr(theirs, name, None)
    homes = (cupy, cupy.cuda, cupy.cuda.runtime, cupy.cuda.driver, cupy.cuda.memory)
    for name, value in vars(fake_cupy).items():
        made_here = str(getattr(value, "__module__", None)).startswith("fake_")
        if made_here and not name.startswith("_") and name not in OURS:
            found = (getattr(home, name, None) for home in homes)
            yield f"cupy.{name}", value, next((x for x in found if x is not None), None)


def test_it_has_nothing_that_cupy_lacks(cupy):
    assert [name for name, _, theirs in pairs(cupy) if theirs is None] == []


def parameters(function):
    """Return names and defaults of parameters, by the first line of a docstring if need be."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        line = (function.__doc__ or "").partition("\n")[0]
        if "(" not in line:
            return None
        inside = re.sub(r"\bself\b,? ?|\*, ", "", line[line.index("(") + 1 : line.rindex(")")])
        parts = [part.partition("=") for part in inside.split(", ") if part]
        return {name.split()[-1].strip("*"): default or None for name, _, default in parts}
    empty = inspect.Parameter.empty
    return {
        x.name: None if x.default is empty else repr(x.default) for x in found if x.name != "self"
    }


def test_its_functions_take_the_arguments_that_cupys_take(cupy):
    compared, wrong = 0, []
    for name, mine, theirs in pairs(cupy):
        if isinstance(mine, type):
            mine = mine.__init__
            documented = theirs.__doc__ and theirs.__doc__.lstrip().startswith(theirs.__name__)
            theirs = theirs if documented else theirs.__init__
        if not callable(mine) or theirs is None:
            continue
        own, real = parameters(mine), parameters(theirs)
        if not real or {"args", "kwargs", "options"} & {*own, *real}:
            continue
        compared += 1
        if list(own) != list(real)[: len(own)]:
            positions = {key: list(real).index(key) for key in own if key in real}
            by_name = sorted(positions.values()) == list(positions.values())
            if len(positions) < len(own) or not by_name or [*own][:1] != [*real][:1]:
                wrong.append(f"{name}{tuple(own)} and not {tuple(real)}")
        for key in own.keys() & real.keys():
            if own[key] and real[key] and own[key].lower() != real[key].lower().replace('"', "'"):
                wrong.append(f"{name}: {key} is {real[key]} by default, not {own[key]}")
    assert wrong == []
    assert compared > 40


def test_its_errors_have_cupys_texts(cupy):
    for status in fake_streams.ERRORS:
        theirs = cupy.cuda.runtime.CUDARuntimeError(status)
        assert str(fake_cupy.CUDARuntimeError(status)) == str(theirs)
        assert theirs.status == status


def test_numbers_that_are_written_here_are_cudas(cupy):
    runtime = cupy.cuda.runtime
    assert runtime.cudaDevAttrComputeMode == COMPUTE_MODE
    assert "cudaErrorMemoryAllocation" in str(runtime.CUDARuntimeError(OUT_OF_MEMORY))
    assert runtime.streamLegacy == 1  # as asarray and from_dlpack have it


def test_a_kernel_has_the_handle_that_the_driver_takes(cupy):
    assert hasattr(cupy.RawKernel, "kernel")
    assert hasattr(cupy.cuda.function.Function, "ptr")
    line = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor.__doc__
    assert line.startswith("occupancyMaxActiveBlocksPerMultiprocessor(intptr_t func, int blockSize")


def test_flags_of_an_array_are_cupys(cupy):
    flags = cupy._core.flags.Flags(True, False, True)
    mine = array().flags
    for name in ("c_contiguous", "f_contiguous", "owndata", "fnc", "forc"):
        assert getattr(mine, name) == getattr(flags, name)
        with pytest.raises(AttributeError):
            setattr(flags, name, False)
        with pytest.raises(AttributeError):
            setattr(mine, name, False)


def test_an_array_of_cupy_is_as_strict(cupy):
    """What CuPy refuses before it asks a GPU, on an array of CuPy itself."""
    memory = cupy.cuda.UnownedMemory(4096, 24, None, 0)
    x = cupy.ndarray((2, 3), "f4", cupy.cuda.MemoryPointer(memory, 0))
    for name in (
        "truth of several elements",
        "hash",
        "length without axes",
        "iteration without axes",
        "flags are not to be set",
        "a flag that CuPy has not",
        "a flag by a name that CuPy has not",
        "set of an array that is not contiguous",
        "an item that is an array of the host",
        "an item that is a list",
        "fill with an array",
        "a reduction that CuPy has not",
        "a mask of a function",
    ):
        fault, error, text = REFUSED[name]
        with pytest.raises(error, match=text):
            fault(x)
