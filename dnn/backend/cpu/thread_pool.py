"""Several threads for the kernels of a program, as many as NumPy's BLAS has.

A large kernel is cut into parts, once, when the program is made. The thread that runs the program
offers all parts but the first to helpers, does the first, and then each part that no helper has
begun: so no result depends on whether a helper is there, and no thread waits for a helper that the
system does not run. During a program BLAS has one thread: two halves of a product, each by one
thread, take three quarters of the time that OpenBLAS takes for the whole with two.

    slot:  | state | job | asleep | calls |
    state: empty -> filling -> offered -> taken -> done -> empty

A helper polls its slot while a program runs, which may do much by one thread in between, and for
some hundred microseconds more, longer than from one step of training to the next. Then it sleeps
until a program calls it. It sets `asleep` first and then checks whether it was called meanwhile; a
caller counts its call first and then checks `asleep`. The helper does both without Python's lock,
for which it might wait while the program begins.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from functools import cache

import numpy as np

from dnn.backend.cpu.blas import thread_functions
from dnn.backend.cpu.cache import HEADER, entry_of

__all__ = ["LIMIT_OF_HELPERS", "ThreadPool", "thread_pool"]

LIMIT_OF_HELPERS = 63
EMPTY, FILLING, OFFERED, TAKEN, DONE = range(5)
JOB, ASLEEP, CALLS = 8, 16, 24  # bytes from the beginning of a slot
SLOT_BYTES = 128  # two cache lines: processors fetch them in pairs


@cache
def _yield_address() -> int:
    """Return the address of sched_yield, 0 on systems without it."""
    try:
        found = ctypes.CDLL(None).sched_yield
    except (OSError, TypeError, AttributeError):
        return 0
    return ctypes.cast(found, ctypes.c_void_p).value or 0


class ThreadPool:
    """Helper threads, which are started when a program first needs them."""

    def __init__(self) -> None:
        functions = thread_functions()
        assert functions is not None
        words = SLOT_BYTES // 8
        raw = np.zeros((LIMIT_OF_HELPERS + 2) * words, np.int64)
        skip = (-raw.ctypes.data % SLOT_BYTES) // 8
        self._memory = raw[skip:]
        base = int(self._memory.ctypes.data)
        self.slots = base + SLOT_BYTES
        self.share_fields = [self.slots, _yield_address()]
        header = f"from dnn.backend.cpu import thread_pool_kernels\n{HEADER}"
        self.share, serve, self.begin, self.end = (
            entry_of(f"{header}    thread_pool_kernels.{body}(r)\n")
            for body in ("share", "serve", "begin", "end")
        )
        self.blas_fields = [base, base + 8, functions.get, functions.set]
        self._help = ctypes.CFUNCTYPE(None, ctypes.c_int64)(serve)
        self._helpers: list[_Helper] = []

    def wake(self, helpers: int) -> None:
        """Start or wake helpers, so that so many poll their slots."""
        while len(self._helpers) < helpers:
            slot = self.slots + SLOT_BYTES * len(self._helpers)
            self._helpers.append(_Helper(self._help, slot, self.blas_fields[0]))
        for helper in self._helpers[:helpers]:
            helper.wake()

    def dismiss(self) -> None:
        """End all helpers."""
        for helper in self._helpers:
            helper.dismiss()
        self._helpers.clear()


class _Helper:
    """A thread that runs the jobs in its slot, and sleeps when there is none for a while."""

    def __init__(self, serve: ctypes._FuncPointer, slot: int, programs: int) -> None:
        self._serve = serve
        self._record = np.array([slot, _yield_address(), programs], np.int64)
        self._asleep = ctypes.c_int64.from_address(slot + ASLEEP)
        self._calls = ctypes.c_int64.from_address(slot + CALLS)
        self._asleep.value = 1
        self._signal = threading.Semaphore(0)
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="dnn helper", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._calls.value += 1
        if self._asleep.value:
            self._asleep.value = 0
            self._signal.release()

    def dismiss(self) -> None:
        self._ends = True
        self._signal.release()
        self._thread.join()

    def _run(self) -> None:
        address = int(self._record.ctypes.data)
        while True:
            self._signal.acquire()
            if self._ends:
                return
            self._serve(address)


_thread_pool: ThreadPool | None = None


def thread_pool() -> ThreadPool:
    """Return the thread pool of this process, which the first call makes."""
    global _thread_pool
    if _thread_pool is None:
        _thread_pool = ThreadPool()
    return _thread_pool


def _dismiss() -> None:
    """End the helpers before the interpreter frees the compiled code."""
    if _thread_pool is not None:
        _thread_pool.dismiss()


def _forget() -> None:
    """Reset the pool in a child of fork, which has no helpers, and slots in any state."""
    if _thread_pool is not None:
        _thread_pool._helpers.clear()
        _thread_pool._memory[:] = 0


atexit.register(_dismiss)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
