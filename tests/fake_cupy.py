"""What of CuPy dnn uses, on the CPU: arrays that NumPy cannot read, kernels that are run as C++.

Stands in for the module: in tests of `dnn.backend.cuda` by `install`, and for a whole program by
``PYTHONPATH=tests/standin``. It refuses what CuPy 14 refuses, and more: whatever mixes arrays of
host and device raises TypeError, and what was put into a stream is done when somebody waits for it
and not before (`fake_streams`). Variables of the environment, read when this is imported:

==================== ==============================================================
DIEL_STANDIN_BYTES   memory of each GPU; more is `OutOfMemoryError`
DIEL_STANDIN_FAIL    ``capture``: no CUDA graph can be made
DIEL_STANDIN_FMA     ``1``: kernels multiply and add in one rounding, as NVRTC does
DIEL_STANDIN_NAME    name of the GPUs, which is otherwise ``stand-in GPU``
==================== ==============================================================

There are as many GPUs as ``CUDA_VISIBLE_DEVICES`` names, one without it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import sys
from types import SimpleNamespace
from typing import ClassVar

import cuda_emulator
import numpy as np
from fake_array import (
    _computed,
    _refuse_other_devices,
    _result,
    _wrap,
    ndarray,
)
from fake_memory import (
    MemoryPool,
    OutOfMemoryError,
    Pointer,
    Room,  # noqa: F401 - tests
    empty_pinned,
    get_default_memory_pool,
    malloc_managed,
    memPrefetchAsync,
)
from fake_streams import (
    CUDARuntimeError,
    Device,
    Event,
    Graph,  # noqa: F401 - for whoever imports this in place of CuPy
    Stream,
    deviceSynchronize,
    forget,
    get_current_stream,
    getDevice,
    getDeviceCount,
    here,
    setDevice,
    stream_at,
)

__version__ = "14.2.0+standin"


class RawModule:
    codes: ClassVar[dict[str, str]] = {}
    compiled: ClassVar[dict[str, object]] = {}
    launches: ClassVar[list[str]] = []

    def __init__(self, code=None, *, options=()):
        if not isinstance(options, tuple):
            raise TypeError("compiler options must be tuple")
        self.code = code

    def get_function(self, name):
        other = self.codes.setdefault(name, self.code)
        assert other == self.code, f"two kernels are named {name}:\n{other}\n{self.code}"
        if name not in self.compiled:
            self.compiled.update(cuda_emulator.build({name: self.code}))
        launch = self.compiled[name]
        types = cuda_emulator.parameter_types(self.code, name)

        def function(grid, block, args):
            if len(args) != len(types):
                raise TypeError(f"{name}: {len(args)} arguments for {len(types)} parameters")
            for each in (grid, block):
                if not isinstance(each, tuple) or not 0 < len(each) <= 3:
                    raise TypeError(f"{name}: a grid or block is a tuple of 1 to 3, not {each!r}")
            if math.prod(block) > 1024 or math.prod(grid) >= 1 << 31:
                raise CUDARuntimeError(1)
            boxes = [_box(argument, kind) for argument, kind in zip(args, types, strict=True)]
            pointers = (ctypes.c_void_p * len(boxes))(*(ctypes.addressof(box) for box in boxes))
            elsewhere = any(isinstance(x, ndarray) and x.device.id != here.device for x in args)
            RawModule.launches.append(name)

            def work(kept=(boxes, args)):  # pointers look into them
                if elsewhere:
                    raise CUDARuntimeError(700)
                Stream.log.append(name)
                launch(grid[0], block[0], pointers)

            get_current_stream().put(work)

        return function


C_NAMES = {
    "__half": "f2",
    "__nv_bfloat16": "u2",
    "float": "f4",
    "double": "f8",
    "int": "i4",
    "long long": "i8",
    "unsigned char": "u1",
    "unsigned short": "u2",
    "unsigned int": "u4",
    "unsigned long long": "u8",
    "bool": "b1",
}


def _box(argument, kind):
    """Check an argument against its parameter's C type, as no compiler does for a launch."""
    wanted = kind.removeprefix("const ")
    if wanted.endswith("*"):
        if argument.dtype != np.dtype(C_NAMES[wanted[:-1]]):
            raise TypeError(f"{argument.dtype} for a {kind}")
        return ctypes.c_void_p(argument.data.ptr)
    if wanted == "long long" and type(argument) is np.int64:
        return ctypes.c_longlong(int(argument))
    if wanted == "double" and type(argument) is np.float64:
        return ctypes.c_double(float(argument))
    raise TypeError(f"{type(argument)} for a {kind}")


def empty(shape, dtype=float, order="C"):
    return ndarray(shape, dtype, order=order)


def asarray(a, dtype=None, order=None, *, copy=None, blocking=False):
    if isinstance(a, ndarray):
        return a
    if hasattr(a, "__cuda_array_interface__"):
        interface = a.__cuda_array_interface__
        if (stream := interface.get("stream")) is not None:
            stream_at(0 if stream == 1 else stream).synchronize()
        dtype, shape = np.dtype(interface["typestr"]), interface["shape"]
        size = math.prod(shape) * dtype.itemsize
        memory = ctypes.c_uint8 * size
        at = interface["data"][0] if size else ctypes.addressof(memory())
        return ndarray(shape, dtype, Pointer(at, a, here.device), interface.get("strides"))
    get_current_stream().refuse_in_capture()
    host = np.array(a, dtype)
    array = ndarray(host.shape, host.dtype)
    if host.size:
        array.set(host)
    return array


def ascontiguousarray(a, dtype=None):
    if not isinstance(a, ndarray):
        raise TypeError(f"Argument 'a' has incorrect type (expected ndarray, got {type(a)})")
    a = a if a.flags.c_contiguous else a.copy()
    return a.reshape(1) if a.ndim == 0 else a  # as NumPy's


def copyto(dst, src, casting="same_kind", where=None):
    if not isinstance(dst, ndarray) or not isinstance(src, ndarray):
        raise TypeError("copyto takes arrays of the device")
    if not np.can_cast(src.dtype, dst.dtype, casting):
        raise TypeError(f"Cannot cast {src.dtype} to {dst.dtype} in {casting} casting mode")
    mask = True if where is None else where._memory if isinstance(where, ndarray) else bool(where)
    if src.shape != dst.shape and np.broadcast_shapes(src.shape, dst.shape) != dst.shape:
        raise ValueError(f"could not broadcast from shape {src.shape} into shape {dst.shape}")
    get_current_stream().put(lambda: np.copyto(dst._memory, src._memory, "unsafe", mask))


def from_dlpack(array, *, device=None, copy=None):
    kind, index = array.__dlpack_device__()
    if kind not in (2, 13):
        raise TypeError("CPU arrays cannot be directly imported to CuPy.")
    with Device(index):
        stream = get_current_stream().ptr or 1
        capsule = array.__dlpack__(stream=stream, max_version=(1, 0), copy=copy)

        class OnTheHost:
            def __dlpack__(self, **arguments):
                return capsule

            def __dlpack_device__(self):
                return 1, 0

        memory = np.from_dlpack(OnTheHost())
    array = _wrap(memory)
    array._pointer = Pointer(memory.ctypes.data, memory, index, kind == 13)
    return array


def asnumpy(a, stream=None, order="C", out=None, *, blocking=True):
    return a.get(stream, order, out, blocking)


def sum(a, axis=None, dtype=None, out=None, keepdims=False):
    _refuse_other_devices(a)
    if out is None:
        return a.sum(axis, dtype=dtype, keepdims=keepdims)

    def work():
        Stream.log.append("cupy.sum")
        np.sum(a._memory, axis, dtype, out._memory, keepdims)

    get_current_stream().put(work)
    return out


def memGetInfo():
    pool = get_default_memory_pool()
    return pool.capacity - pool.total_bytes(), pool.capacity


def getDeviceProperties(device):
    name = os.environ.get("DIEL_STANDIN_NAME", "stand-in GPU").encode()
    total = MemoryPool.capacity
    return {"name": name, "totalGlobalMem": total, "major": 9, "minor": 0}


def deviceGetAttribute(attrib, device):
    # Processors, compute mode, and capability.
    return {16: 132, 20: 0, 75: 9, 76: 0}[attrib]


cuda = SimpleNamespace(
    get_current_stream=get_current_stream,
    Stream=Stream,
    Event=Event,
    Device=Device,
    malloc_managed=malloc_managed,
    MemoryPool=MemoryPool,
    using_allocator=lambda allocator=None: contextlib.nullcontext(),
    memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    runtime=SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        memPrefetchAsync=memPrefetchAsync,
        memGetInfo=memGetInfo,
        getDevice=getDevice,
        setDevice=setDevice,
        driverGetVersion=lambda: 13000,
        runtimeGetVersion=lambda: 13000,
        getDeviceCount=getDeviceCount,
        getDeviceProperties=getDeviceProperties,
        deviceGetAttribute=deviceGetAttribute,
        deviceSynchronize=deviceSynchronize,
    ),
)


def _by_a_library(function, a, *arguments):
    """Return what a function of NumPy gives of an array of the device; no capture takes it."""
    arrays = [x for x in (a, *arguments) if isinstance(x, ndarray)]
    _refuse_other_devices(*arrays)
    get_current_stream().refuse_in_capture()
    given = [x._memory if isinstance(x, ndarray) else x for x in (a, *arguments)]
    found = _computed(lambda: function(*given))
    if isinstance(found, tuple):
        return tuple(_result(np.asarray(part)) for part in found)
    return _result(np.asarray(found))


def _solve(a, b):
    if b.ndim == 1 or a.shape[:-1] != b.shape[:-1]:
        raise ValueError("a must have (..., M, M) shape and b must have (..., M, K)")
    return _by_a_library(np.linalg.solve, a, b)


def broadcast_to(array, shape):
    return _by_a_library(lambda x: np.broadcast_to(x, shape).copy(), array)


linalg = SimpleNamespace(
    svd=lambda a, full_matrices=True, compute_uv=True: _by_a_library(
        np.linalg.svd, a, full_matrices, compute_uv
    ),
    eigh=lambda a, UPLO="L": _by_a_library(np.linalg.eigh, a, UPLO),
    eigvalsh=lambda a, UPLO="L": _by_a_library(np.linalg.eigvalsh, a, UPLO),
    solve=_solve,
    inv=lambda a: _by_a_library(np.linalg.inv, a),
    qr=lambda a, mode="reduced": _by_a_library(np.linalg.qr, a, mode),
    cholesky=lambda a: _by_a_library(np.linalg.cholesky, a),
    lstsq=lambda a, b, rcond=None: _by_a_library(np.linalg.lstsq, a, b, rcond),
)
fft = SimpleNamespace(
    fft=lambda a, n=None, axis=-1, norm=None: _by_a_library(np.fft.fft, a, n, axis, norm),
    ifft=lambda a, n=None, axis=-1, norm=None: _by_a_library(np.fft.ifft, a, n, axis, norm),
    fftn=lambda a, s=None, axes=None, norm=None: _by_a_library(np.fft.fftn, a, s, axes, norm),
    ifftn=lambda a, s=None, axes=None, norm=None: _by_a_library(np.fft.ifftn, a, s, axes, norm),
)


def install(monkeypatch):
    """Be the module cupy, with cuBLAS, for the length of a test."""
    from fake_cublas import load_library

    from dnn.backend import device

    forget()
    MemoryPool.rooms.clear()
    monkeypatch.setitem(sys.modules, "cupy", sys.modules[__name__])
    monkeypatch.setitem(sys.modules, "cupyx", SimpleNamespace(empty_pinned=empty_pinned))
    monkeypatch.setattr("dnn.backend.cuda.products.load_library", load_library)
    # The second is where the first comes from when it is asked for first: it would stay replaced.
    for place in ("dnn.cuda_problem", "dnn.backend.device.cuda_problem"):
        monkeypatch.setattr(place, lambda index=0: None)
    # A stream of this module, kept for the test.
    copy_stream = functools.cache(device._copy_stream.__wrapped__)
    monkeypatch.setattr(device, "_copy_stream", copy_stream)


def Blas():
    """Return dnn's handle of the stand-in for cuBLAS."""
    from unittest import mock

    from fake_cublas import load_library

    from dnn.backend.cuda.products import Cublas

    with mock.patch("dnn.backend.cuda.products.load_library", load_library):
        return Cublas(sys.modules[__name__], 0)
