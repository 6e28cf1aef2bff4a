"""What of CuPy dnn uses, on the CPU: arrays that NumPy cannot read, kernels that are run as C++.

Stands in for the module: in tests of `dnn.backend.cuda` by `install`, and for a whole program by
``PYTHONPATH=tests/standin``. It is stricter than CuPy: whatever mixes arrays of host and device
raises TypeError, and a copy on a stream of its own is done when somebody waits for it and not
before. Variables of the environment, read when this is imported:

==================== ==============================================================
DIEL_STANDIN_BYTES   memory of the GPU; more is `OutOfMemoryError`
DIEL_STANDIN_FAIL    ``capture``: no CUDA graph can be made
DIEL_STANDIN_NAME    name of the GPU, which is otherwise ``stand-in GPU``
==================== ==============================================================
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import functools
import os
import sys
import weakref
from types import SimpleNamespace
from typing import ClassVar

import cuda_emulator
import numpy as np
from fake_streams import Event, Graph, Stream, copy_in_stream, deviceSynchronize  # noqa: F401

__version__ = "14.2.0+standin"


class Pointer:
    def __init__(self, ptr, owner):
        self.ptr = ptr
        self.owner = owner

    def __add__(self, offset):
        return Pointer(self.ptr + offset, self.owner)


class ndarray:
    """An array of the device; `_host` is what tests may look at."""

    device = SimpleNamespace(id=0)

    def __init__(self, shape, dtype=float, memptr=None, strides=None):
        size = np.dtype(dtype).itemsize
        if memptr is None:
            self._host = _allocated(np.empty(shape, dtype))
            return
        if strides is None:
            strides = np.empty(shape, dtype).strides
        low = builtins.sum(min(0, (n - 1) * step) for n, step in zip(shape, strides, strict=True))
        high = builtins.sum(max(0, (n - 1) * step) for n, step in zip(shape, strides, strict=True))
        raw = (ctypes.c_uint8 * (high - low + size)).from_address(memptr.ptr + low)
        raw.owner = memptr.owner
        self._host = np.ndarray(shape, dtype, raw, -low, strides)

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    strides = property(lambda self: self._host.strides)
    size = property(lambda self: self._host.size)
    ndim = property(lambda self: self._host.ndim)
    nbytes = property(lambda self: self._host.nbytes)
    flags = property(lambda self: self._host.flags)
    real = property(lambda self: _wrap(self._host.real))
    data = property(lambda self: Pointer(self._host.ctypes.data, self._host))

    @property
    def __cuda_array_interface__(self):
        return {**self._host.__array_interface__, "version": 3, "stream": None}

    def __dlpack__(self, **arguments):
        return self._host.__dlpack__()

    def __dlpack_device__(self):
        return 2, 0

    def __len__(self):
        return len(self._host)

    def __imul__(self, number):
        Stream.now[-1].put(lambda: np.multiply(self._host, number, self._host))
        return self

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __float__(self):
        return float(self._host)

    def __getitem__(self, index):
        return _wrap(self._host[_plain(index)])

    def __setitem__(self, index, value):
        if not isinstance(value, ndarray) and np.ndim(value):
            raise TypeError("an array of the host is written into one of the device")
        self._host[_plain(index)] = value._host if isinstance(value, ndarray) else value

    def reshape(self, *shape):
        return _wrap(self._host.reshape(*shape))

    def view(self, dtype):
        return _wrap(self._host.view(dtype))

    def swapaxes(self, a, b):
        return _wrap(self._host.swapaxes(a, b))

    def transpose(self, *axes):
        return _wrap(self._host.transpose(*axes))

    def fill(self, value):
        self._host.fill(value)

    def copy(self):
        return _wrap(_allocated(self._host.copy()))

    def get(self, stream=None, order="C", out=None, blocking=True):
        if out is None:
            out = np.empty(self.shape, self.dtype)
        if out.shape != self.shape or out.dtype != self.dtype:
            raise ValueError(f"get writes {self.shape} of {self.dtype}")
        copy_in_stream("copy to host", stream, out, self._host)
        if blocking:
            (stream or Stream.now[-1]).synchronize()
        return out

    def set(self, host, stream=None):
        if not isinstance(host, np.ndarray) or host.dtype != self.dtype:
            raise TypeError("set takes an array of the host, of the same type")
        if host.shape != self.shape:
            raise ValueError(f"set takes the same shape, {self.shape} and not {host.shape}")
        copy_in_stream("copy to device", stream, self._host, host)

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        if any(isinstance(x, np.ndarray) and x.ndim for x in (*inputs, *out)):
            raise TypeError("arrays of host and device meet")
        if out:
            options["out"] = tuple(x._host for x in out)
        hosts = [x._host if isinstance(x, ndarray) else x for x in inputs]
        result = getattr(ufunc, method)(*hosts, **options)
        return out[0] if out else _wrap(np.asarray(result))


def _reduction(name):
    def method(self, axis=None, **options):
        return _wrap(np.asarray(getattr(self._host, name)(axis=axis, **options)))

    return method


for _name in ("all", "any", "argmax", "max", "mean", "min", "prod", "sum"):
    setattr(ndarray, _name, _reduction(_name))


def _wrap(host):
    array = ndarray.__new__(ndarray)
    array._host = host
    return array


def _plain(index):
    parts = index if isinstance(index, tuple) else (index,)
    for part in parts:
        if isinstance(part, np.ndarray) and part.ndim:
            raise TypeError("an array of the host is an index of one of the device")
    # All integers would give NumPy's scalar, and CuPy gives an array.
    return parts if Ellipsis in parts else (*parts, ...)


class RawModule:
    codes: ClassVar[dict[str, str]] = {}
    compiled: ClassVar[dict[str, object]] = {}
    launches: ClassVar[list[str]] = []

    def __init__(self, code, options=()):
        self.code = code

    def get_function(self, name):
        other = self.codes.setdefault(name, self.code)
        assert other == self.code, f"two kernels are named {name}:\n{other}\n{self.code}"
        if name not in self.compiled:
            self.compiled.update(cuda_emulator.build({name: self.code}))
        launch = self.compiled[name]
        types = cuda_emulator.parameter_types(self.code, name)

        def function(grid, block, arguments):
            if len(arguments) != len(types):
                raise TypeError(f"{name}: {len(arguments)} arguments for {len(types)} parameters")
            boxes = [_box(argument, kind) for argument, kind in zip(arguments, types, strict=True)]
            pointers = (ctypes.c_void_p * len(boxes))(*(ctypes.addressof(box) for box in boxes))
            RawModule.launches.append(name)

            def work(boxes=boxes):  # pointers look into them
                Stream.log.append(name)
                launch(grid[0], block[0], pointers)

            Stream.now[-1].put(work)

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


class OutOfMemoryError(MemoryError):
    """As CuPy's, with its text."""


class MemoryPool:
    """Memory of the device: what is in use, and what freed arrays have left with CuPy."""

    capacity: ClassVar[int] = int(os.environ.get("DIEL_STANDIN_BYTES", 1 << 40))
    used: ClassVar[int] = 0
    held: ClassVar[int] = 0
    limit: ClassVar[int] = 0

    def used_bytes(self):
        return self.used

    def total_bytes(self):
        return max(self.used, self.held)

    def free_bytes(self):
        return self.total_bytes() - self.used

    def free_all_blocks(self):
        MemoryPool.held = self.used

    def set_limit(self, size=None, fraction=None):
        MemoryPool.limit = int(size if fraction is None else fraction * self.capacity)

    def get_limit(self):
        return self.limit

    def malloc(self, size):
        raise AssertionError("what the stand-in captures allocates nothing")

    @classmethod
    def take(cls, size):
        if cls.used + size > min(cls.capacity, cls.limit or cls.capacity):
            message = f"Out of memory allocating {size:,} bytes (allocated so far: {cls.used:,}"
            raise OutOfMemoryError(f"{message} bytes, limit set to: {cls.limit:,} bytes).")
        cls.used += size
        cls.held = max(cls.held, cls.used)

    @classmethod
    def give_back(cls, size):
        cls.used -= size


def get_default_memory_pool():
    return MemoryPool()


def _allocated(host, size=None):
    """Count memory of the device as long as an array, or a view of it, is there."""
    size = host.nbytes if size is None else size
    MemoryPool.take(size)
    weakref.finalize(host, MemoryPool.give_back, size)
    return host


def empty(shape, dtype=float):
    size = np.prod(shape, dtype=int) * np.dtype(dtype).itemsize
    raw = _allocated(np.full(size + 512, 0xCB, np.uint8), size)  # nobody may count on zeros
    start = -raw.ctypes.data % 512  # as CuPy aligns it
    return _wrap(raw[start : start + size].view(dtype).reshape(shape))


def asarray(x):
    if hasattr(x, "__cuda_array_interface__") and not isinstance(x, ndarray):
        keep = SimpleNamespace(__array_interface__=x.__cuda_array_interface__, x=x)
        return _wrap(np.asarray(keep))
    return x if isinstance(x, ndarray) else _wrap(_allocated(np.array(x)))


def ascontiguousarray(x):
    x = x if x.flags.c_contiguous else x.copy()
    return x.reshape(1) if x.ndim == 0 else x  # as NumPy's


def copyto(out, x):
    if not isinstance(out, ndarray) or not isinstance(x, ndarray):
        raise TypeError("copyto takes arrays of the device")
    out._host[...] = x._host


def from_dlpack(x):
    class OnTheHost:
        def __dlpack__(self, **arguments):
            return x.__dlpack__()

        def __dlpack_device__(self):
            return 1, 0

    return _wrap(np.from_dlpack(OnTheHost()))


def asnumpy(x):
    return x._host.copy()


def sum(x, axis=None, dtype=None, out=None, keepdims=False):
    if out is None:
        return _wrap(_allocated(np.asarray(np.sum(x._host, axis, dtype, keepdims=keepdims))))

    def work():
        Stream.log.append("cupy.sum")
        np.sum(x._host, axis, dtype, out._host, keepdims)

    Stream.now[-1].put(work)
    return out


class Device:
    def __init__(self, index):
        self.id = index

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def use(self):
        pass

    def synchronize(self):
        deviceSynchronize()


class CUDARuntimeError(RuntimeError):
    pass


def malloc_managed(size):
    memory = np.full(size, 0xCB, np.uint8)
    return Pointer(memory.ctypes.data, memory)


def memPrefetchAsync(pointer, size, device, stream):
    if device != 0:  # of CUDA 13: a device, whatever the number
        raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")


def memGetInfo():
    pool = get_default_memory_pool()
    return pool.capacity - pool.total_bytes(), pool.capacity


def getDeviceCount():
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    if not visible:
        raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
    return len(visible.split(","))


def getDeviceProperties(device):
    name = os.environ.get("DIEL_STANDIN_NAME", "stand-in GPU").encode()
    total = MemoryPool.capacity
    return {"name": name, "totalGlobalMem": total, "major": 9, "minor": 0}


def deviceGetAttribute(attribute, device):
    return {20: 0, 75: 9, 76: 0}[attribute]  # compute mode, and capability


cuda = SimpleNamespace(
    get_current_stream=lambda: Stream.now[-1],
    Stream=Stream,
    Event=Event,
    Device=Device,
    malloc_managed=malloc_managed,
    MemoryPool=MemoryPool,
    using_allocator=lambda allocator: contextlib.nullcontext(),
    memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    runtime=SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        memPrefetchAsync=memPrefetchAsync,
        memGetInfo=memGetInfo,
        driverGetVersion=lambda: 13000,
        runtimeGetVersion=lambda: 13000,
        getDeviceCount=getDeviceCount,
        getDeviceProperties=getDeviceProperties,
        deviceGetAttribute=deviceGetAttribute,
        deviceSynchronize=deviceSynchronize,
    ),
)


def _computed_on_the_host(function):
    """Return a function of NumPy for arrays of the device."""

    def on_device(x, *arguments, **options):
        found = function(x._host, *arguments, **options)
        parts = [_wrap(_allocated(np.array(part))) for part in _as_tuple(found)]
        return tuple(parts) if isinstance(found, tuple) else parts[0]

    return on_device


def _as_tuple(found):
    return found if isinstance(found, tuple) else (found,)


linalg = SimpleNamespace(
    svd=_computed_on_the_host(np.linalg.svd),
    eigh=_computed_on_the_host(np.linalg.eigh),
    eigvalsh=_computed_on_the_host(np.linalg.eigvalsh),
)
fft = SimpleNamespace(
    fft=_computed_on_the_host(np.fft.fft),
    ifft=_computed_on_the_host(np.fft.ifft),
)


def empty_pinned(shape, dtype=float):
    """Return what cupyx does."""
    return np.full(shape, 77).astype(dtype)


def install(monkeypatch):
    """Be the module cupy, with cuBLAS, for the length of a test."""
    from fake_cublas import load_library

    from dnn.backend import device

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
