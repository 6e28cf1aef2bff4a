"""What of CuPy dnn uses, on the CPU: arrays that NumPy cannot read, kernels that are run as C++.

Stands in for the module in tests of `dnn.backend.cuda`. It is stricter than CuPy: whatever mixes
arrays of host and device raises TypeError.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from types import SimpleNamespace
from typing import ClassVar

import cuda_emulator
import numpy as np
from cuda_catalogue import ELEMENTWISE, all_kernels, codes_of

from dnn.backend.cuda import memory
from dnn.backend.cuda.source import elementwise_kernel


class Pointer:
    def __init__(self, ptr, owner):
        self.ptr = ptr
        self.owner = owner

    def __add__(self, offset):
        return Pointer(self.ptr + offset, self.owner)


class ndarray:
    """An array of the device; `_host` is what tests may look at."""

    __array_ufunc__ = None
    device = SimpleNamespace(id=0)

    def __init__(self, shape, dtype=float, memptr=None, strides=None):
        size = np.dtype(dtype).itemsize
        if memptr is None:
            self._host = np.empty(shape, dtype)
            return
        if strides is None:
            strides = np.empty(shape, dtype).strides
        low = sum(min(0, (n - 1) * step) for n, step in zip(shape, strides, strict=True))
        high = sum(max(0, (n - 1) * step) for n, step in zip(shape, strides, strict=True))
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
        return _wrap(self._host.copy())

    def get(self, stream=None, order="C", out=None, blocking=True):
        if out is None:
            return self._host.copy()
        out[...] = self._host
        return out

    def set(self, host, stream=None):
        if not isinstance(host, np.ndarray) or host.dtype != self.dtype:
            raise TypeError("set takes an array of the host, of the same type")
        if host.shape != self.shape:
            raise ValueError(f"set takes the same shape, {self.shape} and not {host.shape}")
        self._host[...] = host


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
    compiled: ClassVar[dict[str, object]] = {}
    launches: ClassVar[list[str]] = []

    def __init__(self, code, options=()):
        self.code = code

    def get_function(self, name):
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
                launch(grid[0], block[0], pointers)

            Stream.now[-1].put(work)

        return function


def compile_all():
    """Compile what is commonly used in one go: the compiler takes 0.2 s to start."""
    if not RawModule.compiled:
        kernels = list(all_kernels())
        for name, axes in itertools.product(ELEMENTWISE, (2, 3)):
            for code in ("f4", "f8"):
                spec = ELEMENTWISE[name]
                if name not in ("adam_coefficients", "count"):
                    kernels.append(elementwise_kernel(spec, codes_of(spec, code), axes))
        kernels = list({kernel.name: kernel for kernel in kernels}.values())
        RawModule.compiled.update(
            cuda_emulator.build({kernel.name: kernel.source for kernel in kernels})
        )


C_NAMES = {
    "__half": "f2",
    "__nv_bfloat16": "u2",
    "float": "f4",
    "double": "f8",
    "int": "i4",
    "long long": "i8",
    "unsigned char": "u1",
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


def empty(shape, dtype=float):
    host = np.empty(shape, dtype)
    host.reshape(-1).view(np.uint8)[...] = 0xCB  # nobody may count on zeros
    return _wrap(host)


def asarray(x):
    if hasattr(x, "__cuda_array_interface__") and not isinstance(x, ndarray):
        keep = SimpleNamespace(__array_interface__=x.__cuda_array_interface__, x=x)
        return _wrap(np.asarray(keep))
    return x if isinstance(x, ndarray) else _wrap(np.array(x))


def ascontiguousarray(x):
    return x if x.flags.c_contiguous else x.copy()


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


class Graph:
    """What was put into a stream while it captured."""

    launched: ClassVar[int] = 0

    def __init__(self, work):
        self.work = work

    def launch(self, stream=None):
        Graph.launched += 1
        for function in self.work:
            function()


class Stream:
    """A queue: what is put into it is done at once, or kept while it captures."""

    now: ClassVar[list[Stream]] = []
    fails: ClassVar[str] = ""

    def __init__(self, non_blocking=False):
        self.ptr = id(self) if non_blocking else 0
        self.captured = None

    def __enter__(self):
        self.now.append(self)
        return self

    def __exit__(self, *error):
        self.now.pop()

    def begin_capture(self):
        if self.ptr == 0:
            raise RuntimeError("the null stream cannot capture")
        self.captured = []

    def end_capture(self):
        work, self.captured = self.captured, None
        if self.fails:
            raise RuntimeError(self.fails)
        return Graph(work)

    def put(self, function):
        if self.captured is None:
            function()
        else:
            self.captured.append(function)

    def synchronize(self):
        assert self.captured is None, "a capturing stream cannot be waited for"

    def record(self):
        return SimpleNamespace(synchronize=lambda: None, stream=self)

    def wait_event(self, event):
        assert isinstance(event.stream, Stream)


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
        pass


def malloc_managed(size):
    memory = np.full(size, 0xCB, np.uint8)
    return Pointer(memory.ctypes.data, memory)


def memPrefetchAsync(pointer, size, device, stream):
    assert device in (-1, 0)


Stream.now.append(Stream())
cuda = SimpleNamespace(
    get_current_stream=lambda: Stream.now[-1],
    Stream=Stream,
    Device=Device,
    malloc_managed=malloc_managed,
    runtime=SimpleNamespace(
        memPrefetchAsync=memPrefetchAsync,
        driverGetVersion=lambda: 13000,
        getDeviceCount=lambda: 1,
    ),
)


def install(monkeypatch):
    """Be the module cupy, with cuBLAS, for the length of a test."""
    monkeypatch.setitem(sys.modules, "cupy", sys.modules[__name__])
    pinned = SimpleNamespace(empty_pinned=lambda size, dtype: np.full(size, 77).astype(dtype))
    monkeypatch.setitem(sys.modules, "cupyx", pinned)
    monkeypatch.setattr("dnn.backend.cuda.ops.Cublas", lambda cupy, index: Blas())
    monkeypatch.setattr("dnn.backend.device.cuda_problem", lambda index=0: None)
    memory._copy_stream.cache_clear()
    monkeypatch.setattr(memory, "_copy_stream", lambda index: Stream(non_blocking=True))
    compile_all()


class Blas:
    """cuBLAS's product, column by column, from the addresses that it would get."""

    def use_current_stream(self):
        pass

    def multiply(self, *arguments):
        Stream.now[-1].put(lambda: self._multiply(*arguments))

    def _multiply(self, code, product, a, b, c, arrays):
        p = product
        for i in range(p.batch):
            left = _matrix(code, a, i * p.step_a, p.lead_a, p.transpose_a, p.rows, p.inner)
            right = _matrix(code, b, i * p.step_b, p.lead_b, p.transpose_b, p.inner, p.columns)
            out = _matrix(code, c, i * p.step_c, p.lead_c, False, p.rows, p.columns)
            wide = np.float64 if code == "f8" else np.float32
            out[...] = left.astype(wide) @ right.astype(wide)


def _matrix(code, address, offset, lead, transposed, rows, columns):
    """Return op(X), of which one column follows the other after `lead` elements."""
    shape = (columns, rows) if transposed else (rows, columns)
    assert lead >= shape[0], "cuBLAS refuses a leading dimension shorter than a column"
    size = np.dtype(code).itemsize
    extent = ((shape[1] - 1) * lead + shape[0]) * size
    raw = (ctypes.c_uint8 * extent).from_address(address + offset * size)
    matrix = np.ndarray(shape, code, raw, strides=(size, lead * size))
    return matrix.T if transposed else matrix
