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

import builtins
import contextlib
import ctypes
import functools
import itertools
import math
import operator
import os
import sys
import warnings
import weakref
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import cuda_emulator
import numpy as np
from fake_streams import (
    CUDARuntimeError,
    Device,
    Event,
    Graph,  # noqa: F401 - for whoever imports this in place of CuPy
    Stream,
    check_device,
    deviceSynchronize,
    finish_all,
    forget,
    get_current_stream,
    getDevice,
    getDeviceCount,
    here,
    setDevice,
    stream_at,
    streams_of,
)

__version__ = "14.2.0+standin"


class OutOfMemoryError(MemoryError):
    """As CuPy's, with its text."""

    def __init__(self, size, total, limit=0):
        message = f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes"
        super().__init__(message + (f", limit set to: {limit:,} bytes)." if limit else ")."))


@dataclass
class Room:
    """Memory of a device: what is in use, what CuPy holds, and what it may take."""

    used: int = 0
    held: int = 0
    limit: int = 0


class MemoryPool:
    """Memory of the current device: what is in use, and what freed arrays have left with CuPy."""

    capacity: ClassVar[int] = int(os.environ.get("DIEL_STANDIN_BYTES", 1 << 40))
    rooms: ClassVar[dict[int, Room]] = {}

    @classmethod
    def room(cls, device=None):
        return cls.rooms.setdefault(here.device if device is None else device, Room())

    def used_bytes(self):
        # Arrays that were deleted are in use as long as work is to be done with them.
        finish_all()
        return self.room().used

    def total_bytes(self):
        return max(self.used_bytes(), self.room().held)

    def free_bytes(self):
        return self.total_bytes() - self.room().used

    def free_all_blocks(self, stream=None):
        self.room().held = self.used_bytes()

    def set_limit(self, size=None, fraction=None):
        if (size is None) == (fraction is None):
            raise ValueError("size and fraction cannot be specified at one time")
        self.room().limit = int(size if fraction is None else fraction * self.capacity)

    def get_limit(self):
        return self.room().limit

    def malloc(self, size):
        raise AssertionError("what the stand-in captures allocates nothing")

    @classmethod
    def take(cls, size):
        room = cls.room()
        most = min(cls.capacity, room.limit or cls.capacity)
        if room.used + size > most:
            finish_all()
        if room.used + size > most:
            raise OutOfMemoryError(size, room.used, room.limit)
        room.used += size
        room.held = max(room.held, room.used)


def get_default_memory_pool():
    return MemoryPool()


# Memory of the device, and pinned memory of the host.

ALIGNMENT = 512


def _release(device, size, raw):
    """Give memory back when the work is done that was put into streams before."""
    MemoryPool.room(device).used -= size
    for stream in streams_of(device):
        if stream.begun:
            stream.begun.append(lambda raw=raw: None)


class Pointer:
    """An address in memory of a device, and what keeps that memory."""

    def __init__(self, ptr, owner, device_id=0, managed=False):
        self.ptr = ptr
        self.owner = owner
        self.device_id = device_id
        self.managed = managed

    device = property(lambda self: Device(self.device_id))

    def __add__(self, offset):
        return Pointer(self.ptr + offset, self.owner, self.device_id, self.managed)


def _new_memory(size, managed=False):
    """Return memory of the current device, whose bytes nobody may count on, as CuPy aligns it."""
    check_device(here.device)
    MemoryPool.take(size)
    raw = np.full(size + ALIGNMENT, 0xCB, np.uint8)
    owner = (ctypes.c_uint8 * size).from_address(raw.ctypes.data + -raw.ctypes.data % ALIGNMENT)
    weakref.finalize(owner, _release, here.device, size, raw).atexit = False
    return Pointer(ctypes.addressof(owner), owner, here.device, managed)


_pinned: dict[int, int] = {}
"""Pinned memory of the host that is still there: its begin, and its end."""


def empty_pinned(shape, dtype=float, order="C"):
    """Return what cupyx does."""
    host = np.full(shape, 77).astype(dtype, order=order)
    begin = host.ctypes.data
    if host.nbytes:
        _pinned[begin] = begin + host.nbytes
        weakref.finalize(host, _pinned.pop, begin, None).atexit = False
    return host


def _is_pinned(address):
    return any(begin <= address < end for begin, end in list(_pinned.items()))


class PinnedPart:
    """Pinned memory as the GPU knows it: nothing keeps it until the GPU has copied it."""

    def __init__(self, host):
        self.at, self.shape = host.ctypes.data, host.shape
        self.dtype, self.strides = host.dtype, host.strides

    def array(self):
        """Return its values; other ones, where CuPy has given the memory to somebody else."""
        if not _is_pinned(self.at):
            return (
                np.full(math.prod(self.shape) * self.dtype.itemsize, 0xCB, "u1")
                .view(self.dtype)
                .reshape(self.shape)
            )
        size = builtins.sum(
            (n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)
        )
        raw = (ctypes.c_uint8 * (size + self.dtype.itemsize)).from_address(self.at)
        return np.ndarray(self.shape, self.dtype, raw, 0, self.strides)


class Flags:
    """What CuPy tells of the layout; nothing of it can be set."""

    def __init__(self, flags, owndata):
        self._flags = {
            "C_CONTIGUOUS": flags.c_contiguous,
            "F_CONTIGUOUS": flags.f_contiguous,
            "OWNDATA": owndata,
        }

    c_contiguous = property(lambda self: self._flags["C_CONTIGUOUS"])
    f_contiguous = property(lambda self: self._flags["F_CONTIGUOUS"])
    owndata = property(lambda self: self._flags["OWNDATA"])
    fnc = property(lambda self: self.f_contiguous and not self.c_contiguous)
    forc = property(lambda self: self.f_contiguous or self.c_contiguous)

    def __getitem__(self, name):
        if name not in self._flags:
            raise KeyError(f"{name} is not defined for cupy.ndarray.flags")
        return self._flags[name]


ABSENT = frozenset({"isnat", "matvec", "spacing", "vecdot", "vecmat"})
"""Functions of NumPy that CuPy has not."""

METHODS = frozenset(
    itertools.product(("reduce", "accumulate"), ("add", "multiply")),
) | {("reduceat", "add"), *(("outer", name) for name in ("add", "subtract", "multiply"))}
"""Methods of functions that CuPy has."""


class ndarray:
    """An array of the device; `_memory` is for work in a stream, `_host` for tests to look at."""

    def __init__(self, shape, dtype=float, memptr=None, strides=None, order="C"):
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        size = np.dtype(dtype).itemsize
        if memptr is None:
            memptr = _new_memory(math.prod(shape) * size)
        if strides is None:
            lengths = shape[::-1] if order == "C" else shape
            steps = itertools.accumulate(
                (max(1, n) for n in lengths[:-1]), operator.mul, initial=size
            )
            strides = tuple(steps)[: len(shape)]
            strides = strides[::-1] if order == "C" else strides
        spans = [(max(0, n - 1)) * step for n, step in zip(shape, strides, strict=True)]
        low = builtins.sum(min(0, span) for span in spans)
        high = builtins.sum(max(0, span) for span in spans)
        raw = (ctypes.c_uint8 * (high - low + size)).from_address(memptr.ptr + low)
        raw.owner = memptr.owner
        self._memory = np.ndarray(shape, dtype, raw, -low, strides)
        self._pointer = memptr
        self.base = None

    shape = property(lambda self: self._memory.shape)
    dtype = property(lambda self: self._memory.dtype)
    strides = property(lambda self: self._memory.strides)
    size = property(lambda self: self._memory.size)
    ndim = property(lambda self: self._memory.ndim)
    itemsize = property(lambda self: self._memory.itemsize)
    nbytes = property(lambda self: self._memory.nbytes)
    flags = property(lambda self: Flags(self._memory.flags, self.base is None))
    real = property(lambda self: self._view(self._memory.real))
    device = property(lambda self: self._pointer.device)

    @property
    def data(self):
        of = self._pointer
        return Pointer(self._memory.ctypes.data, of.owner, of.device_id, of.managed)

    @property
    def _host(self):
        finish_all()
        return self._memory

    def _view(self, memory):
        array = ndarray.__new__(ndarray)
        array._memory, array._pointer = memory, self._pointer
        array.base = self if self.base is None else self.base
        return array

    @property
    def __cuda_array_interface__(self):
        interface = self._memory.__array_interface__
        found = {name: interface[name] for name in ("shape", "typestr", "descr")}
        found |= {"stream": get_current_stream().ptr or 1, "version": 3}
        found["strides"] = None if self._memory.flags.c_contiguous else self.strides
        found["data"] = (self._memory.ctypes.data if self.size else 0, False)
        return found

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("unsupported device requested.")
        if copy is True:
            raise BufferError("copy=True only supported for copy to CPU.")
        # The stream that takes it would wait for the current one.
        get_current_stream().synchronize()
        return self._memory.__dlpack__()

    def __dlpack_device__(self):
        return 13 if self._pointer.managed else 2, self._pointer.device_id

    # Python's protocols.

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other):
        return self._compared(np.equal, other)

    def __ne__(self, other):
        return self._compared(np.not_equal, other)

    def __lt__(self, other):
        return self._compared(np.less, other)

    def __le__(self, other):
        return self._compared(np.less_equal, other)

    def __gt__(self, other):
        return self._compared(np.greater, other)

    def __ge__(self, other):
        return self._compared(np.greater_equal, other)

    def _compared(self, ufunc, other):
        if other is None or (
            type(other).__eq__ is object.__eq__ and ufunc in (np.equal, np.not_equal)
        ):
            return _result(np.full(self.shape, ufunc is np.not_equal))
        if not isinstance(other, (ndarray, np.ndarray, np.generic, bool, int, float, complex)):
            return NotImplemented
        return self.__array_ufunc__(ufunc, "__call__", self, other)

    def __bool__(self):
        if self.size == 0:
            message = "The truth value of an empty array is ambiguous. Returning False"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return False
        if self.size > 1:
            raise ValueError(
                "The truth value of an array with more than one element is ambiguous. Use a.any() "
                "or a.all()"
            )
        return bool(self.get())

    def __int__(self):
        return int(self.get())

    def __float__(self):
        return float(self.get())

    def __len__(self):
        if not self.ndim:
            raise TypeError("len() of unsized object")
        return len(self._memory)

    def __iter__(self):
        if not self.ndim:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(len(self)))

    def __array__(self, dtype=None):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct "
            "a NumPy array explicitly."
        )

    def __imul__(self, number):
        return np.multiply(self, number, out=self)

    def __getitem__(self, index):
        return self._view(self._memory[_plain(index)])

    def __setitem__(self, index, value):
        part = self._view(self._memory[_plain(index)])
        if isinstance(value, ndarray):
            _refuse_other_devices(part, value)
            np.broadcast_shapes(part.shape, value.shape)
            get_current_stream().put(lambda: np.copyto(part._memory, value._memory, "unsafe"))
        else:
            part.fill(value)

    def reshape(self, *shape, order="C", copy=None):
        if order != "C":
            raise NotImplementedError("the stand-in reshapes in the order C")
        found = self._memory.reshape(*shape)
        if not self.size or np.may_share_memory(found, self._memory):
            return self._view(found)
        return self.copy().reshape(*shape)

    def view(self, dtype=None, type=None):
        return self._view(self._memory if dtype is None else self._memory.view(dtype))

    def swapaxes(self, axis1, axis2):
        return self._view(self._memory.swapaxes(axis1, axis2))

    def transpose(self, *axes):
        return self._view(self._memory.transpose(*axes))

    def fill(self, value):
        _refuse_other_devices(self)
        if isinstance(value, ndarray):
            if value.shape != ():
                raise ValueError("non-scalar cupy.ndarray cannot be used for fill")
            get_current_stream().put(lambda: np.copyto(self._memory, value._memory, "unsafe"))
            return
        number = np.asarray(value, dtype=self.dtype)
        if number.shape != ():
            raise ValueError("non-scalar numpy.ndarray cannot be used for fill")
        number = number[()]
        get_current_stream().put(lambda: self._memory.fill(number))

    def copy(self, order="C"):
        """Return a copy on the current device, as CuPy does."""
        if self.device.id != here.device and not (self.flags.forc or not self.size):
            raise NotImplementedError("CuPy cannot copy non-contiguous array between devices.")
        found = ndarray(self.shape, self.dtype)
        with self.device:
            waits = get_current_stream().record()
        get_current_stream().wait_event(waits)
        get_current_stream().put(lambda: np.copyto(found._memory, self._memory))
        return found

    def get(self, stream=None, order="C", out=None, blocking=True):
        if out is None:
            out = np.empty(self.shape, self.dtype, order)
        elif not isinstance(out, np.ndarray):
            raise TypeError("Only numpy.ndarray can be obtained from cupy.ndarray")
        if out.dtype != self.dtype:
            raise TypeError(f"{out.dtype} array cannot be obtained from {self.dtype} array")
        if out.shape != self.shape:
            message = f"Expected shape: {self.shape}, actual shape: {out.shape}"
            raise ValueError(f"Shape mismatch. {message}")
        if not out.flags.forc:
            raise RuntimeError("`out` cannot be specified when copying to non-contiguous ndarray")
        if not self.size:
            return out
        waits = blocking or not _is_pinned(
            out.ctypes.data
        )  # a copy to other memory returns when it is done
        with self.device:
            stream = get_current_stream() if stream is None else stream
            if waits:
                stream.refuse_in_capture()
            target = out if waits else PinnedPart(out)
            _copy(stream, "copy to host", target, self._memory)
            if waits:
                stream.synchronize()
        return out

    def set(self, arr, stream=None):
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if arr.dtype != self.dtype:
            raise TypeError(f"{arr.dtype} array cannot be set to {self.dtype} array")
        if arr.shape != self.shape:
            message = f"Old shape: {self.shape}, new shape: {arr.shape}"
            raise ValueError(f"Shape mismatch. {message}")
        if not self.flags.forc:
            raise RuntimeError("Cannot set to non-contiguous array")
        like = "C" if self.flags.c_contiguous else "F"
        given = np.asarray(arr, order=like)
        with self.device:
            stream = get_current_stream() if stream is None else stream
            if _is_pinned(given.ctypes.data):
                source = PinnedPart(given)
            else:
                # Other memory is read at once, and a graph that is replayed would read it again.
                stream.refuse_in_capture()
                source = given.copy(order=like)
            _copy(stream, "copy to device", self._memory, source)

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        if ufunc.__name__ in ABSENT:
            return NotImplemented
        if len(out) > 1:
            raise ValueError("The 'out' parameter must have exactly one array value")
        if method != "__call__" and (method, ufunc.__name__) not in METHODS:
            raise NotImplementedError(f"`{ufunc.__name__}.{method}` is not supported yet")
        if wrong := options.keys() - {"dtype", "casting", "axis", "keepdims"}:
            raise TypeError(f"Wrong arguments {wrong}")
        arrays = [x for x in (*inputs, *out) if isinstance(x, ndarray)]
        _refuse_host_arrays(*inputs, *out)
        _refuse_other_devices(*arrays)
        hosts = [x._memory if isinstance(x, ndarray) else x for x in inputs]
        function = getattr(ufunc, method)
        if not out:
            return _result(np.asarray(_computed(lambda: function(*hosts, **options))))
        (target,) = out
        # What does not fit is refused now; what is computed is not there yet.
        with np.errstate(all="ignore"):
            like = [np.ones_like(x) if isinstance(x, np.ndarray) else x for x in hosts]
            function(*like, **options, out=np.empty_like(target._memory))
        options["out"] = target._memory
        get_current_stream().put(lambda: function(*hosts, **options))
        return target


def _copy(stream, what, out, x):
    """Put a copy into a stream; the log has when it begins, if that is not the current stream."""

    def work():
        Stream.log.append(what)
        target, source = (
            each.array() if isinstance(each, PinnedPart) else each for each in (out, x)
        )
        target[...] = source

    if stream != get_current_stream():
        Stream.log.append(f"{what} begins")
    stream.put(work)


def _refuse_host_arrays(*operands):
    for x in operands:
        if isinstance(x, (np.ndarray, list, tuple)) and np.ndim(x):
            raise TypeError(f"Unsupported type {type(x)}")


def _refuse_other_devices(*arrays):
    for array in arrays:
        if array.device.id != here.device:
            raise ValueError(
                "Array device must be same as the current device: array device = "
                f"{array.device.id} while current = {here.device}"
            )


def _computed(function):
    """Return what a function of NumPy gives, after all earlier work of the current stream.

    A capture would keep the memory that CuPy allocates for the result, which the stand-in does not.
    """
    stream = get_current_stream()
    if stream.captured is not None:
        raise NotImplementedError("the stand-in captures no function that allocates its result")
    stream.synchronize()
    return function()


def _result(host):
    """Return an array of the device with these values."""
    array = ndarray(host.shape, host.dtype)
    array._memory[...] = host
    return array


def _reduction(name, *accepted):
    def method(self, axis=None, **options):
        if wrong := options.keys() - accepted:
            raise TypeError(f"{name}() got an unexpected keyword argument {wrong}")
        _refuse_other_devices(self)
        function = getattr(self._memory, name)
        return _result(np.asarray(_computed(lambda: function(axis=axis, **options))))

    return method


for _name in ("all", "any", "argmax", "max", "min"):
    setattr(ndarray, _name, _reduction(_name, "keepdims"))
for _name in ("mean", "prod", "sum"):
    setattr(ndarray, _name, _reduction(_name, "dtype", "keepdims"))


def _wrap(host):
    """Return memory that a test has made as an array of the device."""
    array = ndarray.__new__(ndarray)
    array._memory, array.base = host, None
    array._pointer = Pointer(host.ctypes.data, host, here.device)
    return array


def _plain(index):
    parts = index if isinstance(index, tuple) else (index,)
    for part in parts:
        if isinstance(part, np.ndarray) and part.ndim:
            raise TypeError("an array of the host is an index of one of the device")
        if isinstance(part, (list, ndarray)):
            raise NotImplementedError("the stand-in takes integers, slices, None and ... as index")
    # All integers would give NumPy's scalar, and CuPy gives an array.
    return parts if any(part is Ellipsis for part in parts) else (*parts, ...)


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


_managed: weakref.WeakValueDictionary[int, ctypes.Array] = weakref.WeakValueDictionary()


def malloc_managed(size):
    pointer = _new_memory(size, managed=True)
    _managed[pointer.ptr] = pointer.owner
    return pointer


def memPrefetchAsync(devPtr, count, dstDevice, stream):
    # For CUDA 13 CuPy takes each number for a device, -1 (cudaCpuDeviceId) too.
    if not 0 <= dstDevice < getDeviceCount():
        raise CUDARuntimeError(101)
    inside = (
        at <= devPtr and devPtr + count <= at + max(1, len(owner))
        for at, owner in list(_managed.items())
    )
    if not count or not any(inside):
        raise CUDARuntimeError(1)
    stream_at(stream).put(lambda: None)


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
    _refuse_other_devices(a)
    get_current_stream().refuse_in_capture()
    found = _computed(lambda: function(a._memory, *arguments))
    if isinstance(found, tuple):
        return tuple(_result(np.asarray(part)) for part in found)
    return _result(np.asarray(found))


linalg = SimpleNamespace(
    svd=lambda a, full_matrices=True, compute_uv=True: _by_a_library(
        np.linalg.svd, a, full_matrices, compute_uv
    ),
    eigh=lambda a, UPLO="L": _by_a_library(np.linalg.eigh, a, UPLO),
    eigvalsh=lambda a, UPLO="L": _by_a_library(np.linalg.eigvalsh, a, UPLO),
)
fft = SimpleNamespace(
    fft=lambda a, n=None, axis=-1, norm=None: _by_a_library(np.fft.fft, a, n, axis, norm),
    ifft=lambda a, n=None, axis=-1, norm=None: _by_a_library(np.fft.ifft, a, n, axis, norm),
)


def install(monkeypatch):
    """Be the module cupy, with cuBLAS, for the length of a test."""
    from fake_cublas import load_library

    from dnn.backend import device

    forget()
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
