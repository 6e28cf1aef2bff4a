"""Ranks that are threads of one process: for tests, and for experiments without MPI."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from dnn.backend import Array
from dnn.distributed.communicator import DEFAULT_TIMEOUT_S, Communicator
from dnn.distributed.messages import MessageCommunicator, failure_message
from dnn.errors import PeerError

__all__ = ["ThreadCommunicator", "run_on_threads"]

Result = TypeVar("Result")


class _Exchange:
    """Messages between threads, arrays that they share, and the first failure of a thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.messages: dict[tuple[Any, ...], deque[bytes]] = {}
        self.pieces: dict[tuple[Any, ...], Array] = {}  # of shared memory
        self.failure: dict[str, Any] | None = None


class ThreadCommunicator(MessageCommunicator):
    """Communicator of a thread, whose peers are other threads; `run_on_threads` makes it.

    All threads share `exchange`. The name is the same in all threads; `split` makes new ones, and
    `first_rank` is the rank in the communicator that was split first.
    """

    def __init__(
        self,
        exchange: _Exchange,
        name: tuple[Any, ...],
        rank: int,
        size: int,
        nodes: Sequence[int],
        timeout_s: float,
        first_rank: int | None = None,
    ) -> None:
        super().__init__(rank, size, nodes, timeout_s)
        self._exchange = exchange
        self._name = name
        self._splits = 0
        self._first_rank = rank if first_rank is None else first_rank

    def _start_send(self, memory: memoryview, rank: int, tag: int) -> Callable[[], bool]:
        with self._exchange.lock:
            key = (self._name, self.rank, rank, tag)
            self._exchange.messages.setdefault(key, deque()).append(memory.tobytes())
        return lambda: True

    def _start_receive(self, memory: memoryview, rank: int, tag: int) -> Callable[[], bool]:
        key = (self._name, rank, self.rank, tag)

        def poll() -> bool:
            with self._exchange.lock:
                queue = self._exchange.messages.get(key)
                if not queue:
                    return False
                data = queue.popleft()
                if not queue:
                    del self._exchange.messages[key]
            self.check_size(len(data), memory.nbytes, rank, tag)
            memory[:] = data
            return True

        return poll

    def _part(self, ranks: Sequence[int], color: int) -> ThreadCommunicator:
        self._splits += 1
        return ThreadCommunicator(
            self._exchange,
            (*self._name, self._splits, color),
            ranks.index(self.rank),
            len(ranks),
            [self.nodes[rank] for rank in ranks],
            self.timeout_s,
            self._first_rank,
        )

    def _allocate(self, size_bytes: int, common: bool = False) -> Sequence[Array] | None:
        self._splits += 1
        pieces = self._exchange.pieces
        names = [(*self._name, self._splits, rank) for rank in range(self.size)]
        with self._exchange.lock:
            pieces[names[self.rank]] = np.zeros(size_bytes, np.uint8)
        self.gather_values(None)  # all pieces are there
        host = self.nodes[self.rank]
        with self._exchange.lock:
            found = [pieces[name] for name in names if self.nodes[name[-1]] == host]
        if common:
            found = found[:1] * len(found)
        self.gather_values(None)  # all ranks have found them
        with self._exchange.lock:
            del pieces[names[self.rank]]
        return found

    def _send_failure(self, error: BaseException) -> None:
        message = failure_message(self._first_rank, error)
        with self._exchange.lock:
            self._exchange.failure = self._exchange.failure or message

    def received_failure(self) -> PeerError | None:
        """Return the failure that another thread has reported first, or None."""
        failure = self._exchange.failure
        if failure is None or failure["rank"] == self._first_rank:
            return None
        return PeerError(failure["rank"], failure["error"])


def run_on_threads(
    size: int,
    function: Callable[[Communicator], Result],
    *,
    nodes: Sequence[int] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> list[Result]:
    """Call a function on each of `size` ranks, which are threads of this process.

    Parameters
    ----------
    size : int
        Number of ranks.
    function : callable
        ``function(communicator)``. What it raises is reported to the other ranks.
    nodes : sequence of int, optional
        Host that each rank states; all are on host 0 if left out.
    timeout_s : float, seconds
        Time limit of each wait.

    Returns
    -------
    list
        Result of `function` on each rank.

    Raises
    ------
    Exception
        That of the rank that failed first, when all threads have ended.
    """
    exchange = _Exchange()
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        where = [0] * size if nodes is None else nodes
        communicator = ThreadCommunicator(exchange, (), rank, size, where, timeout_s)
        try:
            results[rank] = function(communicator)
        except BaseException as error:
            communicator.report_failure(error)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((each for each in errors if not isinstance(each, PeerError)), errors[0])
    return results
