"""Processes that a module forks from its rank, by ``os.fork``: they are no ranks of the run.

Such a process has all of the rank's memory. Where it would leave the module's code it ends, since
what follows there is the rank's: the report of the copy's outcome, the next copy, MPI's end. Until
then, whatever would speak to another rank raises `NotARank`: MPI allows one process a rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

_before: Final[list[Callable[[], object]]] = []
_in_child: Final[list[Callable[[], object]]] = []
_registered: Final[list[bool]] = []
_forking: Final = threading.local()


class NotARank(RuntimeError):
    """A process that a module has forked from its rank uses what only the rank may use."""

    def __init__(self) -> None:
        super().__init__(
            "this process was forked from a rank and is no rank itself: it reaches neither the "
            "tuple space nor other ranks, nor the run's results. Have it tell its parent, by a "
            "pipe or a multiprocessing.Queue, say"
        )


def refuse(*parts: object) -> None:
    """Make any use of these objects raise `NotARank`, whoever holds them."""

    def raise_error(part: object, name: str) -> NoReturn:
        raise NotARank

    for part in parts:
        of_rank = type("OfRank", (type(part),), {"__slots__": (), "__getattribute__": raise_error})
        object.__setattr__(part, "__class__", of_rank)


def _begin_fork() -> None:
    # A signal that comes to the child before it has let go of what it shares with the rank, such as
    # the pipe of its signals, would reach the rank.
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    for call in _before:
        call()


def _end_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _end_fork_in_child() -> None:
    try:
        for call in _in_child:
            call()
    finally:
        _end_fork()


@contextlib.contextmanager
def handling_forks(before: Callable[[], object], in_child: Callable[[], object]) -> Iterator[None]:
    """Call functions whenever this process forks within a block: just before, and in the child."""
    if not _registered:  # for good: Python cannot take it back
        os.register_at_fork(
            before=_begin_fork, after_in_parent=_end_fork, after_in_child=_end_fork_in_child
        )
        _registered.append(True)
    _before.append(before)
    _in_child.append(in_child)
    try:
        yield
    finally:
        _before.remove(before)
        _in_child.remove(in_child)


class ending_forks:
    """End a process that was forked within a block where it would leave the block."""

    def __enter__(self) -> None:
        self._pid = os.getpid()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if os.getpid() != self._pid:
            _end(error)


def _end(error: BaseException | None) -> NoReturn:
    """End this process as Python would: by the code of a SystemExit, or 1 after a traceback."""
    status = 0
    try:
        if isinstance(error, NotARank) and isinstance(error.__context__, SystemExit):
            error = error.__context__  # on its way out it would have given back a claim, say
        if isinstance(error, SystemExit):
            if isinstance(error.code, int):
                status = error.code & 0xFF
            elif error.code is not None:
                status = 1
                print(error.code, file=sys.stderr)
        elif error is not None:
            status = 1
            traceback.print_exception(error)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        ctypes.CDLL(None).fflush(None)
    finally:
        os._exit(status)  # without Python's exit handlers, which are the rank's
