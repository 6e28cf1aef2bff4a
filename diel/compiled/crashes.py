"""The C stack of a rank that dies in a library: by a signal, or because the library calls exit.

A handler has to be C, and this package holds none: `diel.h` has one, which is compiled into the
library. It writes the C stack to the rank's crash file, puts back what handled the signal before,
which is `faulthandler`, and raises the signal again.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
import signal
from collections.abc import Iterator
from typing import Any, Final

_SIGNALS: Final = (
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGABRT,
)
_ACTION_BYTES: Final = 256  # more than any struct sigaction
_FLAGS_AT: Final = 8 + 128  # behind the handler and the mask
_FLAGS: Final = 0x08000000 | 0x40000000  # SA_ONSTACK, SA_NODEFER
_KNOWN_MACHINES: Final = ("x86_64", "aarch64", "ppc64le", "riscv64")
"""Those on which glibc lays out struct sigaction so."""


class _CrashStruct(ctypes.Structure):
    """``diel_crash``."""

    _fields_ = [
        ("descriptor", ctypes.c_int32),
        ("is_running", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("signals", ctypes.c_int32 * len(_SIGNALS)),
        ("before", ctypes.c_ubyte * _ACTION_BYTES * len(_SIGNALS)),
    ]


class CrashHandlers:
    """The handlers that a library has of `diel.h`, if it has them.

    Parameters
    ----------
    library : ctypes.CDLL
    descriptor : int
        The open crash file of the rank; -1 without one.
    """

    def __init__(self, library: ctypes.CDLL, descriptor: int) -> None:
        self._struct: Any = None
        if descriptor < 0 or platform.machine() not in _KNOWN_MACHINES:
            return
        try:
            self._struct = _CrashStruct.in_dll(library, "diel_crash_")
            self._handler = ctypes.cast(library.diel_crashed_, ctypes.c_void_p).value
            self._sigaction = ctypes.CDLL(None).sigaction
            ctypes.CDLL(None).on_exit(library.diel_exited_, None)
        except (ValueError, AttributeError):  # not glibc, or a library without these
            self._struct = None
            return
        self._struct.descriptor, self._struct.count = descriptor, len(_SIGNALS)
        self._struct.signals[:] = _SIGNALS

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Have the stack of a crash within a block written to the crash file."""
        if self._struct is None:
            yield
            return
        before = self._struct.before
        for number, action in zip(_SIGNALS, before, strict=True):
            self._sigaction(number, None, action)
            new = (ctypes.c_ubyte * _ACTION_BYTES).from_buffer_copy(action)
            ctypes.c_void_p.from_buffer(new).value = self._handler
            ctypes.c_uint32.from_buffer(new, _FLAGS_AT).value |= _FLAGS
            self._sigaction(number, new, None)
        self._struct.is_running = 1
        try:
            yield
        finally:
            self._struct.is_running = 0
            for number, action in zip(_SIGNALS, before, strict=True):
                self._sigaction(number, action, None)
