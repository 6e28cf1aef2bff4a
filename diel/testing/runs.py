"""Runs of function modules in threads of this process, for tests."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias

from diel.comm.direct import LocalExchange
from diel.compiled.loaded import load_code
from diel.coupling.address import Address, CopyRanks, Peers
from diel.coupling.channel import Channel
from diel.errors import RunStopped
from diel.loading.context import Context, running
from diel.loading.functions import OPTIONS_CLASS, find_function, parse_options
from diel.run.fields import Record
from diel.run.json_values import plain
from diel.run.records import MessageLogged, ResultAdded
from diel.testing.space import TupleSpace
from diel.tuples.tags import Tag, format_tag
from diel.workflow.boundary import Boundary
from diel.workflow.functions import FunctionLocation, locate
from diel.workflow.libraries import LIBRARY, locate_library

Function: TypeAlias = "Callable[[Context], Any] | str"
"""A function, or its place as in a workflow file: ``./file.py:function``."""

_GRACE_S: Final = 5.0
"""How long modules have to end after they were stopped, as in a run."""
_TAGS_SHOWN: Final = 10
_DROP_EVERY_S: Final = 0.01


@dataclass
class Module:
    """A module for `run_modules` that has options or several copies.

    Attributes
    ----------
    function : callable or str
    options : dict or pydantic.BaseModel, optional
    copies : int
    """

    function: Function
    options: Any = None
    copies: int = 1


@dataclass
class ModuleRun:
    """The run of one copy of a module: what it returned, and recorded through its context.

    Attributes
    ----------
    module : str
    copy_index : int
    returned : object
        What its function returned, without conversion.
    records : list of dict
        What it recorded through its context, in the form of the journal: the events
        ``ProgressMade``, ``ResultsDeclared``, ``ResultAdded`` and ``MessageLogged``.
    tuples : list of (tag, value)
        What was in the space at the end, claimed tuples included.
    """

    module: str
    copy_index: int
    returned: Any = None
    records: list[dict[str, Any]] = field(default_factory=list)
    tuples: list[tuple[Tag, Any]] = field(default_factory=list)

    @property
    def results(self) -> list[dict[str, Any]]:
        """The rows that the copy added to its results."""
        return [record["row"] for record in self.records if record["event"] == ResultAdded.__name__]

    @property
    def warnings(self) -> list[str]:
        """The messages that the copy logged as warnings or errors."""
        return [
            record["text"] for record in self.records if record["event"] == MessageLogged.__name__
        ]

    def _record(self, kind: type[Record], **fields: Any) -> None:
        head = {"event": kind.__name__, "module": self.module, "copy": self.copy_index}
        self.records.append(head | plain(fields))


def run_module(
    function: Function,
    options: Any = None,
    *,
    space: TupleSpace | None = None,
    module: str | None = None,
    group: str = "group",
    copies: int = 1,
    copy_index: int = 0,
    copies_of: Mapping[str, int] | None = None,
    run_dir: Path | None = None,
    folder: Path | None = None,
    comm: Any = None,
    timeout: float | None = 60.0,
) -> ModuleRun:
    """Run one copy of a function module, in this thread.

    Parameters
    ----------
    function : callable or str
        The function; or its place as in a workflow file, relative to `folder`.
    options : dict or pydantic.BaseModel, optional
        A dictionary is checked by the file's ``Options``, if it defines them, as in a run.
    space : TupleSpace, optional
        The tuple space that it uses; default: an empty one with one server.
    module, group, copies, copy_index, copies_of, run_dir, folder, comm
        The values of its context. By default `module` is the function's name, `run_dir` a folder
        that is removed with the space, and `comm`, such as ``MPI.COMM_SELF``, is missing.
    timeout : float, seconds, optional
        How long its waits in the tuple space may take, all together; None for ever.

    Returns
    -------
    ModuleRun

    Raises
    ------
    TimeoutError
        If it still waits then; the message says for which tag, and which tags there are.
    Exception
        Whatever the function raises.
    """
    with TupleSpace() if space is None else nullcontext(space) as there:
        copy = _Copy(
            there,
            function,
            options,
            module=module,
            group=group,
            copies=copies,
            copy_index=copy_index,
            copies_of=copies_of,
            run_dir=run_dir,
            folder=folder,
            comm=comm,
        )
        late: list[str] = []

        def give_up() -> None:
            late.append(_stuck([copy], timeout or 0.0, there))
            copy.stop()

        timer = threading.Timer(threading.TIMEOUT_MAX if timeout is None else timeout, give_up)
        timer.daemon = True
        timer.start()
        try:
            copy.run()
        except RunStopped:
            if late:
                raise TimeoutError(late[0]) from None
            raise
        finally:
            timer.cancel()
        copy.result.tuples = there.tuples()
        return copy.result


def run_modules(
    modules: Mapping[str, Function | Module],
    *,
    space: TupleSpace | None = None,
    group: str = "group",
    run_dir: Path | None = None,
    folder: Path | None = None,
    boundaries: Sequence[Mapping[str, Any]] = (),
    timeout: float = 60.0,
) -> dict[str, list[ModuleRun]]:
    """Run several function modules at the same time, each copy in a thread of its own.

    Parameters
    ----------
    modules : mapping of str to callable, str or Module
        By name, as in a workflow file.
    space : TupleSpace, optional
        Default: an empty one with one server.
    group, run_dir, folder
        The values of their contexts.
    boundaries : sequence of mapping
        Shared boundaries, each as a [[boundary]] of a workflow file: ``{"name": "wall", ...}``.
    timeout : float, seconds, optional
        How long they may take.

    Returns
    -------
    dict of str to list of ModuleRun
        The runs of each module, a copy each.

    Raises
    ------
    TimeoutError
        If not all have returned in time; the message says which copy waits for what.
    Exception
        The exception of the first function that raised one; the others are stopped.
    """
    given = {
        name: module if isinstance(module, Module) else Module(module)
        for name, module in modules.items()
    }
    copies_of = {name: module.copies for name, module in given.items()}
    declared = tuple(Boundary.model_validate(boundary) for boundary in boundaries)
    with TupleSpace() if space is None else nullcontext(space) as there:
        exchange, peers = LocalExchange(), _peers(group, copies_of)
        copies = [
            _Copy(
                there,
                module.function,
                module.options,
                module=name,
                group=group,
                copies=module.copies,
                copy_index=index,
                copies_of=copies_of,
                run_dir=run_dir,
                folder=folder,
                exchange=exchange,
                peers=peers,
                boundaries=declared,
            )
            for name, module in given.items()
            for index in range(module.copies)
        ]
        _run_all(copies, timeout, there)
        left = there.tuples()
    runs: dict[str, list[ModuleRun]] = {name: [] for name in given}
    for copy in copies:
        copy.result.tuples = list(left)
        runs[copy.result.module].append(copy.result)
    return runs


class _Copy:
    """One copy of a module that is to run."""

    def __init__(
        self,
        space: TupleSpace,
        function: Function,
        options: Any,
        *,
        module: str | None,
        copy_index: int,
        folder: Path | None,
        exchange: LocalExchange | None = None,
        peers: Peers | None = None,
        **place: Any,
    ) -> None:
        home = Path.cwd() if folder is None else Path(folder).absolute()
        self._function, code, location = _find(function, home)
        if options is None or isinstance(options, dict):
            options = parse_options(code, location, options or {}, home)
        module = location.function if module is None else module
        self.name = f"{module}.{copy_index}"
        self._space = space
        self._is_stopped = False
        self._tuples = space.client(self._raise_if_stopped)
        self.result = ModuleRun(module, copy_index)
        self._channel = None
        if exchange is not None and peers is not None:
            address = Address(module, copy_index)
            port = exchange.port(peers.place(address)[1])
            self._channel = Channel(port, self._safe_point, self._warn)
            self._channel.open(address, peers)
        self._context = space.context(
            module=module,
            copy_index=copy_index,
            folder=home,
            options=options,
            tuples=self._tuples,
            record=self.result._record,
            channel=self._channel,
            **place,
        )

    def run(self) -> None:
        """Call the function in this thread."""
        try:
            with running(self._context):
                self.result.returned = self._function(self._context)
        except SystemExit as request:
            if request.code not in (None, 0):
                raise
        self._tuples.flush()
        if self._channel is not None:
            self._channel.close()

    def drop_messages(self) -> None:
        """Drop messages that are sent to this copy after its end, so that no sender waits."""
        if self._channel is not None:
            self._channel.abandon()
            self._channel.poll()

    def _safe_point(self) -> None:
        if self._channel is not None:
            self._channel.poll()
        self._raise_if_stopped()
        self._space.raise_if_closed()

    def _warn(self, module: str, copy_index: int, text: str) -> None:
        self.result._record(MessageLogged, level="WARNING", text=text)

    def stop(self) -> None:
        """End the waits of this copy with `RunStopped`; may be called from any thread."""
        self._is_stopped = True
        self._space.wake()

    def _raise_if_stopped(self) -> None:
        if self._is_stopped:
            raise RunStopped("the test has ended this run")

    def __str__(self) -> str:
        waits = self._tuples.waiting_for
        if self._channel is not None and self._channel.waiting_for is not None:
            operation, subject, _ = self._channel.waiting_for
            return f"{self.name} waits for {operation}({subject!r})"
        if waits is None:
            return f"{self.name} does not wait in the tuple space"
        return f"{self.name} waits for {waits[0]}({format_tag(waits[1])})"


def _run_all(copies: list[_Copy], timeout_s: float, space: TupleSpace) -> None:
    """Run each copy in a thread; raise the first error, or a TimeoutError."""
    ended: SimpleQueue[tuple[_Copy, BaseException | None]] = SimpleQueue()

    all_ended = threading.Event()

    def run(copy: _Copy) -> None:
        try:
            copy.run()
        except BaseException as error:  # a module may raise anything, SystemExit too
            ended.put((copy, error))
        else:
            ended.put((copy, None))
        copy.drop_messages()
        while not all_ended.wait(_DROP_EVERY_S):
            copy.drop_messages()
        copy.drop_messages()

    threads = [
        threading.Thread(target=run, args=(copy,), name=copy.name, daemon=True) for copy in copies
    ]
    for thread in threads:
        thread.start()
    under_way = list(copies)
    first: BaseException | None = None
    deadline_s = time.monotonic() + timeout_s
    try:
        while under_way and first is None:
            copy, first = ended.get(timeout=max(0.0, deadline_s - time.monotonic()))
            under_way.remove(copy)
    except Empty:
        first = TimeoutError(_stuck(under_way, timeout_s, space))
    finally:
        for copy in under_way:
            copy.stop()
        _let_end(under_way, ended)
        all_ended.set()
    for thread in threads:
        thread.join(_GRACE_S if first is None else 0)
    if first is not None:
        raise first


def _peers(group: str, copies_of: Mapping[str, int]) -> Peers:
    """Return the peers of a group whose copies have one rank each."""
    ranks = count()
    return Peers(
        group,
        {
            module: tuple(CopyRanks(rank + 1, (rank,)) for rank in islice(ranks, copies))
            for module, copies in copies_of.items()
        },
    )


def _let_end(
    under_way: list[_Copy], ended: SimpleQueue[tuple[_Copy, BaseException | None]]
) -> None:
    """Wait a few seconds for copies that were stopped; what they raise then is ignored."""
    deadline_s = time.monotonic() + _GRACE_S
    while under_way:
        try:
            copy, _ = ended.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except Empty:
            return  # threads cannot be ended; these go with the process
        under_way.remove(copy)


def _stuck(copies: list[_Copy], timeout_s: float, space: TupleSpace) -> str:
    there = [format_tag(tag) for tag in space.tags()]
    shown = ", ".join(there[:_TAGS_SHOWN]) or "nothing"
    more = f" and {len(there) - _TAGS_SHOWN} more" if len(there) > _TAGS_SHOWN else ""
    return f"after {timeout_s:g} s, {'; '.join(map(str, copies))}; in the space: {shown}{more}"


def _find(
    function: Function, folder: Path
) -> tuple[Callable[[Context], Any], Any, FunctionLocation]:
    """Return a function, the module or code that defines it, and its location."""
    if isinstance(function, str):
        find = locate_library if LIBRARY.search(function) else locate
        location = find(function, folder)
        code: Any = load_code(location, folder)
        return find_function(location, code), code, location
    module_name = getattr(function, "__module__", None) or ""
    code = sys.modules.get(module_name)
    options = getattr(code, OPTIONS_CLASS, None)
    name = getattr(function, "__name__", type(function).__name__)
    location = FunctionLocation(
        spec=f"{module_name}:{name}",
        function=name,
        file=None,
        module_name=module_name,
        root=None,
        # As in a file of a run, a class that was imported from elsewhere does not count.
        classes=frozenset({OPTIONS_CLASS} if _is_defined_in(options, module_name) else ()),
    )
    return function, code, location


def _is_defined_in(options: object, module_name: str) -> bool:
    return options is not None and getattr(options, "__module__", None) == module_name
