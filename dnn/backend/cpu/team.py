"""Several threads for the kernels of a program, as many as NumPy's BLAS has.

A large kernel is cut into parts, once, when the program is made. The thread that runs the program
offers all parts but the first to helpers, does the first, and then each part that no helper has
begun: so nothing depends on whether a helper is there, least of all a bit, and nobody waits for one
that the system has put aside. During a program BLAS has one thread: two halves of a product, each
by one thread, take three quarters of the time that OpenBLAS takes for the whole with two.

    slot:  | state | job |     state: empty -> filling -> offered -> taken -> done -> empty

A helper looks into its slot for some hundred microseconds, longer than from one step of training to
the next, and then sleeps until a program wakes it.
"""

# Numba infers the types of what it compiles.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import threading
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types
from numba.extending import intrinsic

from dnn.backend.cpu.blas import numpy_blas
from dnn.backend.cpu.cache import compiled_here
from dnn.backend.cpu.native import KERNEL_TYPE, address_of_words, call_kernel

__all__ = ["LIMIT_OF_HELPERS", "Team", "blas_threads", "team"]

LIMIT_OF_HELPERS = 63
EMPTY, FILLING, OFFERED, TAKEN, DONE = range(5)
SLOT_BYTES = 128  # two cache lines: processors fetch them in pairs
IDLE_LOOKS = 10000
LOOKS_WITHOUT_YIELD = 100

_WORD = ir.IntType(64)


@intrinsic
def _load(context, address):
    """Read a word that another thread writes."""

    def generate(context, builder, signature, arguments):
        place = builder.inttoptr(arguments[0], _WORD.as_pointer())
        return builder.load_atomic(place, "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def _store(context, address, value):
    """Write a word that another thread reads, after all that was written before."""

    def generate(context, builder, signature, arguments):
        place = builder.inttoptr(arguments[0], _WORD.as_pointer())
        builder.store_atomic(arguments[1], place, "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _exchange(context, address, expected, value):
    """Write a value if the word is as expected, and say whether it was."""

    def generate(context, builder, signature, arguments):
        place = builder.inttoptr(arguments[0], _WORD.as_pointer())
        found = builder.cmpxchg(place, arguments[1], arguments[2], "acq_rel", "acquire")
        return builder.extract_value(found, 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


@intrinsic
def _add(context, address, value):
    """Add to a word and return what it was before."""

    def generate(context, builder, signature, arguments):
        place = builder.inttoptr(arguments[0], _WORD.as_pointer())
        return builder.atomic_rmw("add", place, arguments[1], "acq_rel")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _pause(context):
    """Tell the processor that this is a loop that waits."""
    x86 = platform.machine() in ("x86_64", "AMD64")

    def generate(context, builder, signature, arguments):
        if x86:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), kind), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _call_yield(context, function):
    """Call sched_yield."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.IntType(32), []).as_pointer()
        builder.call(builder.inttoptr(arguments[0], kind), [])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@njit
def _relax(looks, give_way):
    """Wait for a moment; now and then let another thread have this core: the awaited one, maybe."""
    if give_way != 0 and looks % LOOKS_WITHOUT_YIELD == LOOKS_WITHOUT_YIELD - 1:
        _call_yield(give_way)
    else:
        _pause()


@intrinsic
def _set_threads(context, function, threads):
    """Call the function of BLAS that sets its number of threads."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(32)]).as_pointer()
        number = builder.trunc(arguments[1], ir.IntType(32))
        builder.call(builder.inttoptr(arguments[0], kind), [number])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _get_threads(context, function):
    """Call the function of BLAS that returns its number of threads."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.IntType(32), []).as_pointer()
        number = builder.call(builder.inttoptr(arguments[0], kind), [])
        return builder.sext(number, _WORD)

    return types.int64(types.int64), generate


@njit
def _run_job(job):
    """Run the kernel at the head of a record."""
    call_kernel(_load(job), job + 16)


def _share(words):
    """Do a kernel in parts; fields: the first slot, sched_yield, number of parts, the parts."""
    slots, give_way, parts = words[0], words[1], words[2]
    first = address_of_words(words) + 24
    job = first + 8 * _load(first + 8)
    for helper in range(parts - 1):
        slot = slots + SLOT_BYTES * helper
        if _exchange(slot, EMPTY, FILLING):
            _store(slot + 8, job)
            _store(slot, OFFERED)
        job += 8 * _load(job + 8)
    _run_job(first)
    job = first + 8 * _load(first + 8)
    for helper in range(parts - 1):
        slot = slots + SLOT_BYTES * helper
        # Another program may have the slot: then it holds another job.
        if _load(slot + 8) == job:
            if _exchange(slot, OFFERED, FILLING):
                _store(slot + 8, 0)
                _store(slot, EMPTY)
                _run_job(job)
            else:
                looks = 0
                while _load(slot) != DONE:
                    _relax(looks, give_way)
                    looks += 1
                _store(slot + 8, 0)
                _store(slot, EMPTY)
        else:
            _run_job(job)
        job += 8 * _load(job + 8)


def _help(words):
    """Do jobs from a slot, until there has been none for a while; fields: slot, sched_yield."""
    slot, give_way = words[0], words[1]
    idle = 0
    while idle < IDLE_LOOKS:
        if _load(slot) == OFFERED and _exchange(slot, OFFERED, TAKEN):
            _run_job(_load(slot + 8))
            _store(slot, DONE)
            idle = 0
        else:
            _relax(idle, give_way)
            idle += 1


def _begin(words):
    """Give BLAS one thread; fields: programs that run, threads it had, its two functions."""
    if _add(words[0], 1) == 0:
        _store(words[1], _get_threads(words[2]))
    _set_threads(words[3], 1)


def _end(words):
    """Give BLAS its threads back, with the last program that ends."""
    if _add(words[0], -1) == 1:
        _set_threads(words[3], _load(words[1]))


class _Threads(NamedTuple):
    """Where BLAS' functions that return and set its number of threads are."""

    get: int
    set: int


@cache
def _blas_functions() -> _Threads | None:
    library = numpy_blas()
    if library is None:
        return None
    for name in ("scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_",
                 "scipy_openblas_{}_num_threads", "openblas_{}_num_threads"):  # fmt: skip
        found = [
            function
            for verb in ("get", "set")
            if (function := getattr(library, name.format(verb), None)) is not None
        ]
        if len(found) == 2:
            places = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in found]
            return _Threads(*places)
    return None


@cache
def _yield_address() -> int:
    """Return where sched_yield is, 0 where there is none."""
    try:
        found = ctypes.CDLL(None).sched_yield
    except (OSError, TypeError, AttributeError):
        return 0
    return ctypes.cast(found, ctypes.c_void_p).value or 0


def blas_threads() -> int:
    """Return how many threads a program is to have: BLAS' number, or 1 where it cannot be set."""
    functions = _blas_functions()
    if functions is None:
        return 1
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(functions.get)())


def _compiled(body, cache):
    return cfunc(KERNEL_TYPE, cache=cache)(body)


class Team:
    """The helpers of this process; made when the first program wants some."""

    def __init__(self) -> None:
        functions = _blas_functions()
        assert functions is not None
        words = SLOT_BYTES // 8
        raw = np.zeros((LIMIT_OF_HELPERS + 2) * words, np.int64)
        skip = (-raw.ctypes.data % SLOT_BYTES) // 8
        self._memory = raw[skip:]
        base = int(self._memory.ctypes.data)
        self.slots = base + SLOT_BYTES
        self.share_fields = [self.slots, _yield_address()]
        compiled = [
            compiled_here(partial(_compiled, body)) for body in (_share, _help, _begin, _end)
        ]
        self._keep = compiled
        self.share, help_, self.begin, self.end = (int(one.address) for one in compiled)
        self.blas_fields = [base, base + 8, functions.get, functions.set]
        self._help = ctypes.CFUNCTYPE(None, ctypes.c_int64)(help_)
        self._helpers: list[_Helper] = []

    def wake(self, helpers: int) -> None:
        """See that so many helpers look into their slots."""
        while len(self._helpers) < helpers:
            slot = self.slots + SLOT_BYTES * len(self._helpers)
            self._helpers.append(_Helper(self._help, slot))
        for helper in self._helpers[:helpers]:
            if helper.asleep:
                helper.wake()

    def dismiss(self) -> None:
        """End all helpers."""
        for helper in self._helpers:
            helper.dismiss()
        self._helpers.clear()


class _Helper:
    """A thread that does jobs, and sleeps where there are none."""

    def __init__(self, serve: ctypes._FuncPointer, slot: int) -> None:
        self._serve = serve
        self._record = np.array([slot, _yield_address()], np.int64)
        self._signal = threading.Semaphore(0)
        self._ends = False
        self.asleep = True
        self._thread = threading.Thread(target=self._run, name="dnn helper", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self.asleep = False
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
            self.asleep = True


_team: Team | None = None


def team() -> Team:
    """Return this process' team."""
    global _team
    if _team is None:
        _team = Team()
    return _team


def _dismiss() -> None:
    """End the helpers before the interpreter takes the compiled code away."""
    if _team is not None:
        _team.dismiss()


def _forget() -> None:
    """Begin anew in a child of fork: it has no thread but its own, and slots in any state."""
    if _team is not None:
        _team._helpers.clear()
        _team._memory[:] = 0


atexit.register(_dismiss)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
