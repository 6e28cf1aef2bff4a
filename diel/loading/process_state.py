"""The state of a rank's process that modules may change, restored after each copy of a module.

::

    before a copy:   base state ── what its file set when it was loaded ──> in force
    after it:        whatever differs from the base state is set back

What a file sets when it is loaded (``logging.basicConfig``, ``np.seterr``, ``random.seed``) holds
whenever one of its functions runs here, and for nobody else. What a function sets holds until it
returns. So it makes no difference which modules have run on a rank before, and how often.

The rank reports a copy's end before it restores all this: it does not matter to other ranks, and so
none of them waits for it. Timers alone end with the copy.

`table` has the rest of it but three things. Context variables, in which NumPy keeps its error handling
and print options and `decimal` its context, are those of a `contextvars.Context` in which the
module is called. Random numbers are new ones for each copy, unless the file has set a seed. Where
descriptors 1 and 2 lead is the subject of `diel.loading.output`.
"""

from __future__ import annotations

import _locale
import _signal  # type: ignore[import-not-found]  # its getsignal takes a fifth of the time
import builtins
import contextlib
import contextvars
import ctypes
import functools
import gc
import importlib
import logging
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeVar

from diel.loading.forks import ending_forks

_T = TypeVar("_T")

_SIGNALS: Final = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_SIGACTION_BYTES: Final = 256
"""More than any system's ``struct sigaction``."""
_WORDS_OF_MT19937: Final = 624
_BLOCKS_AT_LOADING: Final = 64
"""A file that draws more blocks of 624 words while it is loaded counts as one that sets a seed."""

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


# -- the system -----------------------------------------------------------------------------------


def _get_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed
        return ""


_ENVIRON: Final = os.environ, os.environb


def _get_environment() -> tuple[bool, dict[bytes, bytes]]:
    # What os.environ holds, without decoding all of it for every copy that runs.
    return os.environ is _ENVIRON[0], dict(_ENVIRON[0]._data)  # type: ignore[attr-defined]


def _set_environment(value: tuple[bool, dict[bytes, bytes]]) -> None:
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


_OF_CALLS: Final = (
    Item("working directory", _get_directory, os.chdir),
    Item("environment", _get_environment, _set_environment),
    Item("umask", _get_umask, os.umask),
    Item("sys.argv and sys.path", _get_lists, _set_lists),
    Item("standard streams", _get_streams, _set_streams),
    Item("hooks", _get_hooks, _set_hooks),
    Item("warning filters", _get_filters, _set_filters),
)
"""What takes well below a microsecond to read: `restoring` restores it too."""


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
        *_OF_CALLS,
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


# -- all of it ------------------------------------------------------------------------------------


class _Settings(NamedTuple):
    """What a file has set when it was loaded."""

    changes: list[tuple[Item, Any]]
    context: contextvars.Context
    random_state: tuple[Any, ...] | None  # of a seed
    numpy_state: Any


class _Helper(NamedTuple):
    """What a file has set when it was imported by another one."""

    changes: list[tuple[Item, Any]]
    variables: list[tuple[contextvars.ContextVar[Any], Any]]

    def set(self) -> None:
        for item, value in self.changes:
            if item.get() != value:
                item.set(value)
        for variable, value in self.variables:
            variable.set(value)


class ProcessState:
    """The state of this process that modules may change; the present one is the base state.

    Parameters
    ----------
    renew : callable, optional
        Called after each copy, for what cannot be read.
    """

    def __init__(self, renew: Callable[[], object] = lambda: None) -> None:
        self._all_items = table()
        self._base = {
            item.name: item.get()
            if item.initial is _READ or _may_have_changed(item)
            else item.initial
            for item in self._all_items
        }
        self._renew = renew
        self._context = contextvars.copy_context()
        self._settings: dict[str, _Settings] = {}
        self._helpers: dict[str, _Helper] = {}
        self._modules_seen = -1
        self._items: list[Item] = []
        self._gets: list[Callable[[], Any]] = []
        self._values: list[Any] = []
        _draw_new_seeds()

    def restore(self, warn: Callable[[str], object]) -> None:
        """Set back what differs from the base state; `warn` is told what the system forbids.

        Random numbers are new ones afterwards, as at the start of a process of one's own.
        """
        if len(sys.modules) != self._modules_seen:
            self._select_items()
        # All at once, since it is read after each copy and hardly ever is any of it different.
        try:
            is_changed = [get() for get in self._gets] != self._values
        except Exception:  # as after `del sys.argv`
            is_changed = True
        if is_changed:
            self._set_back(warn)
        self._renew()
        _draw_new_seeds()

    def _select_items(self) -> None:
        self._modules_seen = len(sys.modules)
        self._items = [item for item in self._all_items if _may_have_changed(item)]
        self._gets = [item.get for item in self._items]
        self._values = [self._base[item.name] for item in self._items]

    def _set_back(self, warn: Callable[[str], object]) -> None:
        for index, item in enumerate(self._items):
            base = self._values[index]
            with contextlib.suppress(Exception):  # what cannot be read or compared is set
                if item.get() == base:
                    continue
            try:
                item.set(base)
            except (OSError, ValueError) as error:
                self._values[index] = self._base[item.name] = item.get()
                warn(
                    f"it has changed the {item.name} of its rank, which cannot be restored "
                    f"({error}): all that runs there later has it too"
                )

    def load(self, load: Callable[[], ModuleType]) -> ModuleType:
        """Load the code of a module, and note what it sets, if it is not loaded already.

        Code that was loaded with it, as by an import in it, shares what they have set.
        """
        names, before = set(sys.modules), self._changeable()
        words = _random_words()
        context = _copied(self._context)
        with self._noting_imports():
            code = context.run(load)
        loaded = sys.modules.keys() - names
        if code.__name__ in self._settings and code.__name__ not in loaded:
            return code  # another module has its function in the same file
        changes = []
        for item in self._all_items:
            if item.of_files and _may_have_changed(item):
                value = item.get()
                if value != self._base[item.name]:
                    changes.append((item, value))
                    if item.get is _get_logging:
                        self._adopt_loggers(item.name, value)
        self._helpers[code.__name__] = self._helper(before, self._context, context)
        settings = _Settings(changes, context, *_seeded_states(words))
        self._settings.update(dict.fromkeys([*loaded, code.__name__], settings))
        return code

    @contextlib.contextmanager
    def _noting_imports(self) -> Iterator[None]:
        """Note what files set that are imported in a block, and set it if they were loaded before.

        So who imports a helper has what it sets, whoever was the first to import it here.
        """
        import_name = builtins.__import__
        met: set[str] = set()

        @functools.wraps(import_name)
        def noting(
            name: str,
            globals: Mapping[str, Any] | None = None,
            locals: Mapping[str, Any] | None = None,
            fromlist: Sequence[str] | None = (),
            level: int = 0,
        ) -> ModuleType:
            arguments = (name, globals, locals, fromlist, level)
            if not _is_of_user((globals or {}).get("__name__")):
                return import_name(*arguments)
            loaded, before = set(sys.modules), self._changeable()
            variables = contextvars.copy_context()
            found = import_name(*arguments)
            new = {each for each in sys.modules.keys() - loaded if _is_of_user(each)}
            if new:
                helper = self._helper(before, variables, contextvars.copy_context())
                self._helpers.update(dict.fromkeys(new - self._helpers.keys(), helper))
                met.update(new)
            for each in _names_of(found, name, fromlist) - met:
                if each in self._helpers:
                    met.add(each)
                    self._helpers[each].set()
            return found

        builtins.__import__ = noting
        try:
            yield
        finally:
            if builtins.__import__ is noting:
                builtins.__import__ = import_name

    def _changeable(self) -> dict[str, tuple[Item, Any]]:
        """Return what files may change, and its present values."""
        found = {}
        for item in self._all_items:
            if item.of_files and _may_have_changed(item):
                with contextlib.suppress(Exception):  # as after `del sys.argv`
                    found[item.name] = item, item.get()
        return found

    def _helper(
        self,
        before: Mapping[str, tuple[Item, Any]],
        variables: contextvars.Context,
        variables_now: contextvars.Context,
    ) -> _Helper:
        """Return what differs from values of before."""
        return _Helper(
            [
                (item, value)
                for name, (item, value) in self._changeable().items()
                if value != before.get(name, (item, self._base[name]))[1]
            ],
            [
                (variable, value)
                for variable, value in variables_now.items()
                if variables.get(variable) is not value and type(value).__module__ != "decimal"
            ],
        )

    def begin(self, name: str) -> contextvars.Context:
        """Put in force what code with this name in `sys.modules` has set; return its context."""
        settings = self._settings.get(name)
        if settings is not None:
            for item, value in settings.changes:
                if item.get() != value:
                    item.set(value)
            if settings.random_state is not None:
                random.setstate(settings.random_state)
            if settings.numpy_state is not None:
                sys.modules["numpy.random"].set_state(settings.numpy_state)
        return _copied(self._context if settings is None else settings.context)

    def _adopt_loggers(self, item: str, value: tuple[Any, ...]) -> None:
        """Let loggers that libraries have set up at their import be so for whoever uses them."""
        loggers = self._base[item][2]
        for name, state in value[2].items():
            if name not in loggers and _is_of_library(name.partition(".")[0]):
                loggers[name] = state


def _may_have_changed(item: Item) -> bool:
    return not item.library or item.library in sys.modules


def _names_of(found: ModuleType, name: str, fromlist: Sequence[str] | None) -> set[str]:
    """Return the names that modules may have which an import has given."""
    base = getattr(found, "__name__", name)
    if fromlist:
        return {base, *(f"{base}.{each}" for each in fromlist)}
    _, dot, rest = name.partition(".")
    return {base, base + dot + rest}


def _copied(context: contextvars.Context) -> contextvars.Context:
    copy = context.copy()
    if "decimal" in sys.modules:
        copy.run(_copy_decimal_context)  # its context is changed in place
    return copy


def _copy_decimal_context() -> None:
    decimal = sys.modules["decimal"]
    decimal.setcontext(decimal.getcontext().copy())


def _is_of_user(name: object) -> bool:
    """Whether a module is a file of a user's, and of no library."""
    if not isinstance(name, str) or name.partition(".")[0] in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return bool(file) and "-packages" + os.sep not in file


def _is_of_library(name: str) -> bool:
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return name in sys.stdlib_module_names or "-packages" + os.sep in file


# -- calls within a copy --------------------------------------------------------------------------


def restoring(function: Callable[..., _T]) -> Callable[..., _T]:
    """Return a function that calls a user's, as that of a trial, and undoes what it has set.

    Set back after each call, to what holds now, are the working directory, environment, umask,
    ``sys.argv``, ``sys.path``, standard streams, hooks and warning filters, and all context
    variables, as NumPy's error handling; the rest is restored when the module's copy ends. A
    process that is forked in a call ends where it would leave it.
    """
    gets = [item.get for item in _OF_CALLS]
    base = [get() for get in gets]

    def call(*arguments: Any) -> _T:
        try:
            with ending_forks():
                return _copied(contextvars.copy_context()).run(function, *arguments)
        finally:
            try:
                is_changed = [get() for get in gets] != base
            except Exception:  # as after `del sys.argv`
                is_changed = True
            if is_changed:
                for item, value in zip(_OF_CALLS, base, strict=True):
                    with contextlib.suppress(OSError):  # told when the copy ends
                        item.set(value)

    return call


# -- random numbers -------------------------------------------------------------------------------


def _draw_new_seeds() -> None:
    """Seed the generators of Python and NumPy, as at the start of a process of one's own."""
    random.seed(int.from_bytes(os.urandom(16), "little"))
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        words = memoryview(os.urandom(16)).cast("I").tolist()
        try:
            numpy_random.seed(words)
        except TypeError:  # a module has put another kind of generator in the place of this one
            numpy_random.set_bit_generator(numpy_random.MT19937(words))


@contextlib.contextmanager
def given_back() -> Iterator[None]:
    """Give a program its environment and random numbers back after a block: it ran a workflow."""
    environment, python_state = _get_environment(), random.getstate()
    numpy_random = sys.modules.get("numpy.random")
    numpy_state = None if numpy_random is None else numpy_random.get_state()
    try:
        yield
    finally:
        _set_environment(environment)
        random.setstate(python_state)
        if numpy_random is not None:
            numpy_random.set_state(numpy_state)


def _random_words() -> tuple[Any, Any]:
    """Return the words of the two generators, both the Mersenne Twister; None without NumPy."""
    numpy_random = sys.modules.get("numpy.random")
    words = None
    if numpy_random is not None:
        words = numpy_random.get_state(legacy=False)["state"].get("key")
    return list(random.getstate()[1][:-1]), None if words is None else words.tolist()


def _seeded_states(before: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return the present states of the generators that were given a seed since, else None."""
    after = _random_words()
    states: list[Any] = [None, None]
    if not _was_drawn(before[0], after[0]):
        states[0] = random.getstate()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        if before[1] is None:  # it was imported since; a plain number as a seed leaves no sequence
            is_seeded = numpy_random.get_bit_generator().seed_seq is None
        else:
            is_seeded = after[1] is None or not _was_drawn(before[1], after[1])
        if is_seeded:
            states[1] = numpy_random.get_state()
    return states[0], states[1]


def _was_drawn(before: list[int], after: list[int]) -> bool:
    """Whether a generator comes from one state to the other by numbers being drawn from it."""
    generator = random.Random()
    generator.setstate((3, (*before, _WORDS_OF_MT19937), None))
    for _ in range(_BLOCKS_AT_LOADING):
        if list(generator.getstate()[1][:-1]) == after:
            return True
        generator.getrandbits(32 * _WORDS_OF_MT19937)
    return False
