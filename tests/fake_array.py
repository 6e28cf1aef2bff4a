"""Arrays of the stand-in for CuPy: they refuse what CuPy's refuse, and NumPy cannot read them."""

from __future__ import annotations

import ctypes
import itertools
import math
import operator
import warnings

import numpy as np
from fake_memory import PinnedPart, Pointer, _is_pinned, _new_memory
from fake_streams import Stream, finish_all, get_current_stream, here


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
        low = sum(min(0, span) for span in spans)
        high = sum(max(0, span) for span in spans)
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

    def _refuse(self, host, verb, shapes):
        """Raise unless an array of the host is one, of the type and shape of this one."""
        if not isinstance(host, np.ndarray):
            raise TypeError(f"Only numpy.ndarray can be {verb} cupy.ndarray")
        if host.dtype != self.dtype:
            raise TypeError(f"{host.dtype} array cannot be {verb} {self.dtype} array")
        if host.shape != self.shape:
            raise ValueError(f"Shape mismatch. {shapes.format(self.shape, host.shape)}")

    def get(self, stream=None, order="C", out=None, blocking=True):
        if out is None:
            out = np.empty(self.shape, self.dtype, order)
        self._refuse(out, "obtained from", "Expected shape: {}, actual shape: {}")
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
        self._refuse(arr, "set to", "Old shape: {}, new shape: {}")
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
