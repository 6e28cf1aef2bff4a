"""Each part of a process that modules may change (folder, signals, sys.path): read and set.

`diel.loading.process_state` restores it after each copy of a module.
"""

from __future__ import annotations

import _locale
import _signal  # type: ignore[import-not-found]  # its getsignal takes a fifth of the time
import builtins
import contextlib
import ctypes
import gc
import importlib
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, Final, NamedTuple

_SIGNALS: Final = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_SIGACTION_BYTES: Final = 256
"""More than any system's ``struct sigaction``."""
_READ: Final = object()


class Item(NamedTuple):
    """A part of the state: how to read it, and how to set it to a value that was read.

    Attributes
    ----------
    name : str
        As messages call it.
    get : callable
    set : callable
        Raises OSError or ValueError if the system does not allow it.
    library : str
        Only code that has imported this module can have changed it; empty if any can.
    initial : object
        Its base value if the library is not imported yet; by default it can be read then too.
    of_files : bool
        Whether a file that changes it while it is loaded has it changed for its functions.
    """

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], object]
    library: str = ""
    initial: Any = _READ
    of_files: bool = True

    @property
    def may_have_changed(self) -> bool:
        """Whether code that can change it has been imported."""
        return not self.library or self.library in sys.modules

    def base(self) -> Any:
        """Return its present value, as long as no module has run."""
        is_read = self.initial is _READ or self.may_have_changed
        return self.get() if is_read else self.initial


# -- the system -----------------------------------------------------------------------------------


def _get_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed
        return ""


_ENVIRON: Final = os.environ, os.environb


def get_environment() -> tuple[bool, dict[bytes, bytes]]:
    """Return the environment, and whether `os.environ` is the object that it was."""
    # What os.environ holds, without decoding all of it for every copy that runs.
    return os.environ is _ENVIRON[0], dict(_ENVIRON[0]._data)  # type: ignore[attr-defined]


def set_environment(value: tuple[bool, dict[bytes, bytes]]) -> None:
    """Set the environment to one that was read."""
    os.environ, os.environb = _ENVIRON  # a module may have put a dictionary in their place
    os.environb.clear()
    os.environb.update(value[1])


def _get_time_zone() -> object:
    return time.tzname, time.timezone, time.altzone


def _set_time_zone(_: object) -> None:
    time.tzset()  # by TZ, which is set already


def _get_umask() -> int:
    value = os.umask(0o077)  # what another thread creates in this moment is at least not open
    os.umask(value)
    return value


def _get_niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def _set_niceness(value: int) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, value)


def _get_affinity() -> set[int]:
    return os.sched_getaffinity(0)


def _set_affinity(value: set[int]) -> None:
    os.sched_setaffinity(0, value)


def _get_scheduling() -> int:
    return os.sched_getscheduler(0)


def _set_scheduling(value: int) -> None:
    os.sched_setscheduler(0, value, os.sched_param(0))


class _Limits:
    """Limits of resources: the soft ones, and hard ones where the system allows it."""

    def __init__(self) -> None:
        is_new = "resource" not in sys.modules
        self._resource: Any = importlib.import_module("resource")
        if is_new:  # it takes long to read them all: only where somebody else imports it
            del sys.modules["resource"]
        names = [name for name in dir(self._resource) if name.startswith("RLIMIT_")]
        self._limits = sorted({getattr(self._resource, name) for name in names})

    def get(self) -> list[tuple[int, int]]:
        return list(map(self._resource.getrlimit, self._limits))

    def set(self, values: list[tuple[int, int]]) -> None:
        refused = None
        for which, value in zip(self._limits, values, strict=True):
            soft, hard = self._resource.getrlimit(which)
            if (soft, hard) == value:
                continue
            try:
                self._resource.setrlimit(which, value)
            except (OSError, ValueError) as error:  # a hard limit that was lowered stays
                refused = error
                infinite = self._resource.RLIM_INFINITY
                fits = hard == infinite or (value[0] != infinite and value[0] <= hard)
                self._resource.setrlimit(which, (value[0] if fits else hard, hard))
        if refused is not None:
            raise refused


# -- signals --------------------------------------------------------------------------------------


class _SignalHandlers:
    """Handlers of Python, and what the system has been told, by Python or a C library."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._actions = {}
        for number in _SIGNALS:
            action = self._actions[number] = ctypes.create_string_buffer(_SIGACTION_BYTES)
            self._libc.sigaction(number, None, action)

    def set(self, value: list[Any]) -> None:
        for number, handler, present in zip(_SIGNALS, value, _get_handlers(), strict=True):
            if present is not handler and present != handler:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
                if not callable(handler):  # maybe that of a C library
                    self._libc.sigaction(number, self._actions[number], None)


def _get_handlers() -> list[Any]:
    return list(map(_signal.getsignal, _SIGNALS))


def _get_signal_mask() -> set[int]:
    mask: set[int] = _signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return mask


def _set_signal_mask(value: set[int]) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, value)


def end_timers() -> None:
    """End a module's timers, whose signals may come at any moment and meet no handler then."""
    for which in _TIMERS:
        _signal.setitimer(which, 0)


class _Wakeup:
    """The descriptor into which signals are written: set back as it is read.

    So there is no moment at which a signal would be missed.
    """

    def __init__(self) -> None:
        self._descriptor = signal.set_wakeup_fd(-1)
        self.set(self._descriptor)

    def get(self) -> int:
        return signal.set_wakeup_fd(self._descriptor, warn_on_full_buffer=False)

    def set(self, value: int) -> None:
        signal.set_wakeup_fd(value, warn_on_full_buffer=False)


# -- Python ---------------------------------------------------------------------------------------


def _get_lists() -> tuple[list[str], list[str]]:
    return sys.argv[:], sys.path[:]


_LISTS: Final = sys.argv, sys.path


def _set_lists(values: tuple[list[str], list[str]]) -> None:
    sys.argv, sys.path = _LISTS
    sys.argv[:], sys.path[:] = values


def _get_streams() -> tuple[object, ...]:
    return sys.stdin, sys.stdout, sys.stderr


def _set_streams(value: tuple[Any, ...]) -> None:
    sys.stdin, sys.stdout, sys.stderr = value


def _get_hooks() -> tuple[object, ...]:
    return (
        sys.excepthook,
        sys.displayhook,
        sys.unraisablehook,
        sys.breakpointhook,
        threading.excepthook,
        threading.gettrace(),
        threading.getprofile(),
        sys.gettrace(),
        sys.getprofile(),
        warnings.showwarning,
        warnings.formatwarning,
    )


def _set_hooks(value: tuple[Any, ...]) -> None:
    logging.captureWarnings(False)  # else a later True would have no effect
    (
        sys.excepthook,
        sys.displayhook,
        sys.unraisablehook,
        sys.breakpointhook,
        threading.excepthook,
        trace_of_threads,
        profile_of_threads,
        trace,
        profile,
        warnings.showwarning,
        warnings.formatwarning,
    ) = value
    threading.settrace(trace_of_threads)
    threading.setprofile(profile_of_threads)
    if sys.gettrace() is not trace:
        sys.settrace(trace)
    if sys.getprofile() is not profile:
        sys.setprofile(profile)


def _get_interpreter() -> tuple[Any, ...]:
    return (
        sys.getrecursionlimit(),
        sys.getswitchinterval(),
        threading.stack_size(),
        gc.isenabled(),
        gc.get_threshold(),
        gc.get_debug(),
        sys.getdlopenflags(),
        getattr(sys, "get_int_max_str_digits", int)(),  # not in the first releases of 3.10
        sys.dont_write_bytecode,
        sys.pycache_prefix,
        getattr(sys, "tracebacklimit", None),
    )


def _set_interpreter(value: tuple[Any, ...]) -> None:
    recursion_limit, interval_s, stack_bytes, collects, threshold, debug, *of_sys = value
    sys.setrecursionlimit(recursion_limit)
    sys.setswitchinterval(interval_s)
    threading.stack_size(stack_bytes)
    (gc.enable if collects else gc.disable)()
    gc.set_threshold(*threshold)
    gc.set_debug(debug)
    flags, digits, sys.dont_write_bytecode, sys.pycache_prefix, traceback_limit = of_sys
    sys.setdlopenflags(flags)
    getattr(sys, "set_int_max_str_digits", int)(digits)
    if traceback_limit is not None:
        sys.tracebacklimit = traceback_limit
    elif hasattr(sys, "tracebacklimit"):
        del sys.tracebacklimit


def _get_builtins() -> tuple[list[str], list[object]]:
    names = vars(builtins)
    return list(names), list(names.values())  # compared in less time than dictionaries


def _set_builtins(value: tuple[list[str], list[object]]) -> None:
    names = vars(builtins)
    for name in names.keys() - value[0]:
        del names[name]
    names.update(zip(*value, strict=True))


def _get_filters() -> list[Any]:
    return list(warnings.filters)


def _set_filters(value: list[Any]) -> None:
    warnings.filters = []
    warnings.resetwarnings()  # so that Python notices
    warnings.filters[:] = value


# -- libraries ------------------------------------------------------------------------------------

_Logger = tuple[Any, ...]
_NEW_LOGGER: Final[_Logger] = (logging.NOTSET, True, False, (), ())


def _get_logging() -> tuple[Any, ...]:
    root = logging.root
    loggers = {
        name: state
        for name, logger in root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger) and (state := _logger_state(logger)) != _NEW_LOGGER
    }
    whole = (
        root.manager.disable,
        logging.raiseExceptions,
        logging.lastResort,
        logging.getLoggerClass(),
        logging.getLogRecordFactory(),
    )
    return whole, _logger_state(root), loggers


def _logger_state(logger: logging.Logger) -> _Logger:
    return (
        logger.level,
        logger.propagate,
        logger.disabled,
        tuple(logger.handlers),
        tuple(logger.filters),
    )


def _set_logging(value: tuple[Any, ...]) -> None:
    whole, of_root, loggers = value
    disabled, logging.raiseExceptions, logging.lastResort, logger_class, factory = whole
    logging.disable(disabled)  # which also has all loggers ask again what they may log
    logging.setLoggerClass(logger_class)
    logging.setLogRecordFactory(factory)
    _set_logger(logging.root, of_root)
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            _set_logger(logger, loggers.get(name, _NEW_LOGGER))


def _set_logger(logger: logging.Logger, state: _Logger) -> None:
    with contextlib.suppress(Exception):  # a user's handler can raise anything, or be no handler
        if _logger_state(logger) == state:
            return
        for handler in logger.handlers:
            if handler not in state[3]:
                with contextlib.suppress(Exception):
                    handler.flush()
    logger.level, logger.propagate, logger.disabled = state[:3]
    logger.handlers, logger.filters = map(list, state[3:])


def _get_socket_timeout() -> float | None:
    timeout_s: float | None = sys.modules["socket"].getdefaulttimeout()
    return timeout_s


def _set_socket_timeout(value: float | None) -> None:
    sys.modules["socket"].setdefaulttimeout(value)


def _get_start_method() -> str | None:
    method: str | None = sys.modules["multiprocessing"].get_start_method(allow_none=True)
    return method


def _set_start_method(value: str | None) -> None:
    sys.modules["multiprocessing"].set_start_method(value, force=True)


def _get_event_loops() -> object:
    # The policy holds this thread's loop; asyncio's own functions would create one.
    return getattr(sys.modules["asyncio.events"], "_event_loop_policy", None)


def _set_event_loops(value: object) -> None:
    setattr(sys.modules["asyncio.events"], "_event_loop_policy", value)  # noqa: B010


def _get_temporary_folder() -> str | None:
    folder: str | None = sys.modules["tempfile"].tempdir  # as found by TMPDIR at its first use
    return folder


def _set_temporary_folder(value: str | None) -> None:
    setattr(sys.modules["tempfile"], "tempdir", value)  # noqa: B010


def _get_field_size() -> int:
    limit: int = sys.modules["_csv"].field_size_limit()
    return limit


def _set_field_size(value: int) -> None:
    sys.modules["_csv"].field_size_limit(value)


def _get_memory_tracing() -> bool:
    traces: bool = sys.modules["tracemalloc"].is_tracing()
    return traces


def _set_memory_tracing(value: bool) -> None:
    tracemalloc = sys.modules["tracemalloc"]
    (tracemalloc.start if value else tracemalloc.stop)()


def _get_locale() -> str:
    return _locale.setlocale(_locale.LC_ALL, None)


def _set_locale(value: str) -> None:
    _locale.setlocale(_locale.LC_ALL, value)


ITEMS_OF_CALLS: Final = (
    Item("working directory", _get_directory, os.chdir),
    Item("environment", get_environment, set_environment),
    Item("umask", _get_umask, os.umask),
    Item("sys.argv and sys.path", _get_lists, _set_lists),
    Item("standard streams", _get_streams, _set_streams),
    Item("hooks", _get_hooks, _set_hooks),
    Item("warning filters", _get_filters, _set_filters),
)
"""What takes well below a microsecond to read: it is restored after calls within a copy too."""


def table() -> tuple[Item, ...]:
    """Return the items, in the order in which they are set."""
    of_main_thread: tuple[Item, ...] = ()
    if threading.current_thread() is threading.main_thread():
        wakeup = _Wakeup()
        of_main_thread = (
            Item("signal handlers", _get_handlers, _SignalHandlers().set),
            Item("descriptor for signals", wakeup.get, wakeup.set, of_files=False),
        )
    limits = _Limits()
    return (
        *ITEMS_OF_CALLS,
        Item("time zone", _get_time_zone, _set_time_zone),
        Item("locale", _get_locale, _set_locale, "locale"),
        Item("niceness", _get_niceness, _set_niceness),
        Item("CPU affinity", _get_affinity, _set_affinity),
        Item("scheduling policy", _get_scheduling, _set_scheduling),
        Item("resource limits", limits.get, limits.set, "resource"),
        *of_main_thread,
        Item("signal mask", _get_signal_mask, _set_signal_mask),
        Item("interpreter", _get_interpreter, _set_interpreter),
        Item("builtins", _get_builtins, _set_builtins),
        Item("logging", _get_logging, _set_logging),
        Item("socket timeout", _get_socket_timeout, _set_socket_timeout, "socket", None),
        Item("start method", _get_start_method, _set_start_method, "multiprocessing", None),
        Item("event loops", _get_event_loops, _set_event_loops, "asyncio.events", None),
        Item("temporary folder", _get_temporary_folder, _set_temporary_folder, "tempfile", None),
        Item("field size of csv", _get_field_size, _set_field_size, "_csv", 2**17),
        Item("memory tracing", _get_memory_tracing, _set_memory_tracing, "tracemalloc", False),
    )
