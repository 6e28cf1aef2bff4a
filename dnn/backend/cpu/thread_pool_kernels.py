"""Compiled functions of the thread pool: how threads take and finish the parts of a kernel.

Imported when something is compiled, and only then: see `cache`.
"""

# Numba infers the types of what it compiles.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

import platform

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from dnn.backend.cpu.intrinsics import address_of_words, call_kernel
from dnn.backend.cpu.thread_pool import (
    ASLEEP,
    CALLS,
    DONE,
    EMPTY,
    FILLING,
    JOB,
    OFFERED,
    SLOT_BYTES,
    TAKEN,
)

__all__ = ["begin", "end", "serve", "share"]

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
    """Write a value if the word is as expected, and return whether it was."""

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


def _called(result, *arguments):
    """Return the function of kernels that calls a C function of 32-bit integers at an address."""

    def of_c(kind):
        return ir.IntType(32) if kind is types.int64 else ir.VoidType()

    def generate(context, builder, signature, values):
        kind = ir.FunctionType(of_c(result), [of_c(types.int64) for _ in arguments])
        given = [builder.trunc(value, ir.IntType(32)) for value in values[1:]]
        found = builder.call(builder.inttoptr(values[0], kind.as_pointer()), given)
        return context.get_dummy_value() if result is types.void else builder.sext(found, _WORD)

    return result(types.int64, *arguments), generate


@intrinsic
def _call(context, function):
    """Call a C function; return its number."""
    return _called(types.int64)


@intrinsic
def _set(context, function, number):
    """Call a C function that takes a number and returns nothing."""
    return _called(types.void, types.int64)


@njit
def _relax(looks, give_way):
    """Pause briefly; now and then yield this core to another thread, maybe the awaited one."""
    if give_way != 0 and looks % LOOKS_WITHOUT_YIELD == LOOKS_WITHOUT_YIELD - 1:
        _call(give_way)
    else:
        _pause()


@njit
def _run_job(job):
    """Run the kernel at the head of a record."""
    call_kernel(_load(job), job + 16)


@njit
def share(words):
    """Run a kernel in parts; fields: the first slot, sched_yield, number of parts, the parts."""
    slots, give_way, parts = words[0], words[1], words[2]
    first = address_of_words(words) + 24
    job = first + 8 * _load(first + 8)
    for helper in range(parts - 1):
        slot = slots + SLOT_BYTES * helper
        if _exchange(slot, EMPTY, FILLING):
            _store(slot + JOB, job)
            _store(slot, OFFERED)
        job += 8 * _load(job + 8)
    _run_job(first)
    job = first + 8 * _load(first + 8)
    for helper in range(parts - 1):
        slot = slots + SLOT_BYTES * helper
        # Another program may have the slot: then it holds another job.
        if _load(slot + JOB) == job:
            if _exchange(slot, OFFERED, FILLING):
                _store(slot + JOB, 0)
                _store(slot, EMPTY)
                _run_job(job)
            else:
                looks = 0
                while _load(slot) != DONE:
                    _relax(looks, give_way)
                    looks += 1
                _store(slot + JOB, 0)
                _store(slot, EMPTY)
        else:
            _run_job(job)
        job += 8 * _load(job + 8)


@njit
def serve(words):
    """Run jobs from a slot until there has been none for a while and no program runs.

    Fields: slot, sched_yield, address of the number of programs that run.
    """
    slot, give_way, programs = words[0], words[1], words[2]
    calls = _load(slot + CALLS)
    idle = 0
    while True:
        if _load(slot) == OFFERED and _exchange(slot, OFFERED, TAKEN):
            _run_job(_load(slot + JOB))
            _store(slot, DONE)
            idle = 0
        elif idle < IDLE_LOOKS or _load(programs) > 0:
            _relax(idle, give_way)
            idle += 1
        elif _exchange(slot + ASLEEP, 0, 1):  # before the check for calls
            if _load(slot + CALLS) == calls or not _exchange(slot + ASLEEP, 1, 0):
                return
            calls = _load(slot + CALLS)
            idle = 0
        else:
            return


@njit
def begin(words):
    """Set BLAS to one thread; fields: programs that run, threads it had, its two functions."""
    if _add(words[0], 1) == 0:
        _store(words[1], _call(words[2]))
    _set(words[3], 1)


@njit
def end(words):
    """Restore BLAS' number of threads when the last program ends; fields as in `begin`."""
    if _add(words[0], -1) == 1:
        _set(words[3], _load(words[1]))
