"""Messages that kernels are being compiled, where that keeps a user waiting.

A kernel is compiled when it is used for the first time on a machine, and kept: a network of many
kinds of layers, such as a ResNet-50, waits for most of a minute, once. Nothing else is to be seen
meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

__all__ = ["compiling", "watched_compilation"]

_SHORT_S: Final = 1.0
"""Compiling that takes no longer in all is not worth a word."""
_lock = threading.Lock()
_watchers: list[Callable[[str], None]] = []


class _Account:
    """What was compiled in this process, and for how long it was waited."""

    kernels = 0
    waited_s = 0.0
    is_told = False


@contextlib.contextmanager
def compiling(kept_in: str) -> Iterator[None]:
    """Count a kernel that is compiled in the block, and how long that takes.

    Once that has taken a second in all, each further kernel is told to those who watch. If nobody
    does, it is told once: to the logger ``dnn``, as information, and at a terminal. `kept_in` is
    where kernels are kept for other processes.
    """
    if _Account.waited_s > _SHORT_S:
        _tell(
            f"compiling kernels for their first use on this machine ({_Account.kernels} so far; "
            f"they are kept in {kept_in})"
        )
    began_s = time.monotonic()
    try:
        yield
    finally:
        with _lock:
            _Account.waited_s += time.monotonic() - began_s
            _Account.kernels += 1


@contextlib.contextmanager
def watched_compilation(tell: Callable[[str], None]) -> Iterator[None]:
    """Call a function with a line of text when compiling keeps this process waiting.

    Parameters
    ----------
    tell : function (str)
        Called before each kernel that is compiled in the block, by the thread that waits, once
        compiling has taken a second in all.

    Yields
    ------
    None
    """
    with _lock:
        _watchers.append(tell)
    try:
        yield
    finally:
        with _lock:
            _watchers.remove(tell)


def _tell(text: str) -> None:
    with _lock:
        watchers, is_first = tuple(_watchers), not _Account.is_told
        _Account.is_told = True
    for tell in watchers:
        tell(text)
    if is_first and not watchers:
        logging.getLogger("dnn").info("%s", text)
        if sys.stderr is not None and sys.stderr.isatty():
            print(f"dnn: {text}", file=sys.stderr, flush=True)
