"""A device for tests of memory: arrays of NumPy that only the device's own functions may touch."""

from __future__ import annotations

import numpy as np


class FakeArray:
    """Flat memory of the fake device; NumPy cannot read it by accident."""

    def __init__(self, values):
        self.values = values

    size = property(lambda self: self.values.size)
    dtype = property(lambda self: self.values.dtype)

    def __getitem__(self, part):
        return FakeArray(self.values[part])

    def reshape(self, *shape):
        return FakeArray(self.values.reshape(*shape))

    def __array__(self, dtype=None, copy=None):
        raise TypeError("implicit copy to the host")


class FakeDevice:
    """Copies at once, except what is prefetched: that is copied when somebody waits for it."""

    def __init__(self):
        self.log = []

    def empty(self, size, dtype):
        self.log.append("empty")
        return FakeArray(np.full(size, 99).astype(dtype))

    def empty_unified(self, size, dtype):
        self.log.append("empty_unified")
        values = np.full(size, 99).astype(dtype)
        return FakeArray(values), values

    def empty_pinned(self, size, dtype):
        self.log.append("empty_pinned")
        return np.full(size, 77).astype(dtype)

    def to_device(self, host, out):
        self.log.append("to_device")
        out.values[...] = host

    def to_host(self, device, out):
        self.log.append("to_host")
        out[...] = device.values

    def copy(self, device, out):
        self.log.append("copy")
        out.values[...] = device.values

    def start_to_device(self, host, out):
        self.log.append("start_to_device")
        return Ticket(lambda: out.values.__setitem__(..., host))

    def start_to_host(self, device, out):
        self.log.append("start_to_host")
        return Ticket(lambda: out.__setitem__(..., device.values))

    def finish_on_device(self, ticket):
        ticket.finish()

    def finish_on_host(self, ticket):
        ticket.finish()

    def prefetch_unified(self, device, to_device):
        self.log.append("prefetch_to_device" if to_device else "prefetch_to_host")

    def synchronize(self):
        self.log.append("synchronize")

    def take_log(self):
        log, self.log = self.log, []
        return [entry for entry in log if not entry.startswith("empty")]


class Ticket:
    def __init__(self, work):
        self.work = work

    def finish(self):
        if self.work:
            self.work()
        self.work = None
