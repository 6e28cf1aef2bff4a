"""`prefetch`: an iterator that runs in a thread of its own, some items ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from queue import Empty, Full, Queue
from typing import TypeVar

from dnn.errors import check_count, explains_arguments

__all__ = ["prefetch"]

T = TypeVar("T")

# Seconds after which a thread that waits to put an item checks whether it is still wanted.
_LOOK_S = 0.05
# Seconds to wait, at the end, for the item that the source is preparing.
_LEAVE_S = 1.0


@explains_arguments
def prefetch(source: Iterable[T], depth: int = 2) -> Iterator[T]:
    """Run an iterator in a thread of its own, some items ahead.

    Parameters
    ----------
    source : iterable
        Its items should take their time outside the interpreter's lock: reading files,
        decompressing, NumPy on large arrays. Each item must be new, not an array that is reused.
    depth : int, at least 1
        Number of items that may be ready and waiting.

    Yields
    ------
    item
        The items of `source`, in order; an exception of `source` is raised after the items before.

    Notes
    -----
    A caller that stops early waits at most a second for the item that `source` is preparing. A
    source that takes longer is left to its thread, which ends after that item and does not keep
    the process from ending.

    It pays where an item takes much longer than passing it on. `fit` gathers its batches in the
    step instead: 100 rows of 784 numbers take 0.06 ms. On two cores, which the matrix products keep
    busy, a step of 784-64-10 took 0.24 ms that way and 0.25 ms with a thread, and a step of
    784-528x4-10 took 4.3 ms either way.
    """
    return _prefetched(source, check_count("depth", depth))


def _prefetched(source: Iterable[T], depth: int) -> Iterator[T]:
    ready: Queue[tuple[str, T | BaseException | None]] = Queue(depth)
    unwanted = threading.Event()

    def put(kind: str, item: T | BaseException | None) -> bool:
        while not unwanted.is_set():
            try:
                ready.put((kind, item), timeout=_LOOK_S)
            except Full:
                continue
            return True
        return False

    def produce() -> None:
        try:
            for item in source:
                if not put("item", item):
                    return
        except BaseException as error:
            put("error", error)
        else:
            put("end", None)

    thread = threading.Thread(target=produce, name="dnn-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            kind, item = ready.get()
            if kind == "end":
                return
            if kind == "error":
                assert isinstance(item, BaseException)
                raise item
            yield item  # type: ignore[misc]
    finally:
        unwanted.set()
        while not ready.empty():  # so that the thread can put its item, and end
            try:
                ready.get_nowait()
            except Empty:
                break
        thread.join(_LEAVE_S)
