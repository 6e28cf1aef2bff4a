"""The state of a rank's process that modules may change, restored after each copy of a module.

::

    before a copy:   base state ── what its file set when it was loaded ──> in force
    after it:        whatever differs from the base state is set back

What a file sets when it is loaded (``logging.basicConfig``, ``np.seterr``, ``random.seed``) holds
whenever one of its functions runs here, and for nobody else. What a function sets holds until it
returns. So it makes no difference which modules have run on a rank before, and how often.

The rank reports a copy's end before it restores all this: it does not matter to other ranks, and so
none of them waits for it. Timers alone end with the copy.

`diel.loading.process_items` has a table of all of it but three things. Context variables, in which
NumPy keeps its error handling and print options and `decimal` its context, are those of a
`contextvars.Context` in which the module is called. Random numbers are new ones for each copy,
unless the file has set a seed. Where descriptors 1 and 2 lead is the subject of
`diel.loading.output`.
"""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import functools
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeVar

from diel.loading.forks import ending_forks
from diel.loading.process_items import (
    ITEMS_OF_CALLS,
    Item,
    get_environment,
    set_environment,
    table,
)

_T = TypeVar("_T")

_WORDS_OF_MT19937: Final = 624
_BLOCKS_AT_LOADING: Final = 64
"""A file that draws more blocks of 624 words while it is loaded counts as one that sets a seed."""


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
        self._base = {item.name: item.base() for item in self._all_items}
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
        self._items = [item for item in self._all_items if item.may_have_changed]
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
            if item.of_files and item.may_have_changed:
                value = item.get()
                if value != self._base[item.name]:
                    changes.append((item, value))
                    if item.name == "logging":
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
            if item.of_files and item.may_have_changed:
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
    gets = [item.get for item in ITEMS_OF_CALLS]
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
                for item, value in zip(ITEMS_OF_CALLS, base, strict=True):
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
    environment, python_state = get_environment(), random.getstate()
    numpy_random = sys.modules.get("numpy.random")
    numpy_state = None if numpy_random is None else numpy_random.get_state()
    try:
        yield
    finally:
        set_environment(environment)
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
