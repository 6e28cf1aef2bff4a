"""Memory of the stand-in for CuPy: of each device, unified, and pinned memory of the host."""

from __future__ import annotations

import ctypes
import math
import os
import weakref
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from fake_streams import (
    CUDARuntimeError,
    Device,
    check_device,
    finish_all,
    getDeviceCount,
    here,
    stream_at,
    streams_of,
)


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
    def room(cls):
        return cls.rooms.setdefault(here.device, Room())

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


def _release(room, device, size, raw):
    """Give memory back when the work is done that was put into streams before."""
    room.used -= size
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
    weakref.finalize(owner, _release, MemoryPool.room(), here.device, size, raw).atexit = False
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
        size = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        raw = (ctypes.c_uint8 * (size + self.dtype.itemsize)).from_address(self.at)
        return np.ndarray(self.shape, self.dtype, raw, 0, self.strides)


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
