"""Ranks that are threads of one process: for tests, and for trying things out without MPI."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from dnn.backend import Array
from dnn.distributed.communicator import DEFAULT_TIMEOUT_S, Communicator
from dnn.distributed.messages import MessageCommunicator, failure_message
from dnn.errors import CommunicationError, PeerError

__all__ = ["ThreadCommunicator", "run_on_threads"]

Result = TypeVar("Result")


class _Post:
    """Messages between the threads, and which of them have failed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.messages: dict[tuple[Any, ...], deque[bytes]] = {}
        self.pieces: dict[tuple[Any, ...], Array] = {}  # of memory that they share
        self.failure: dict[str, Any] | None = None


class ThreadCommunicator(MessageCommunicator):
    """The communicator of one thread among some of a process; `run_on_threads` makes it.

    Parameters
    ----------
    post : object
        What all threads share.
    name : tuple
        Of the communicator: the same in all its threads, and another for each that was split.
    rank, size : int
    nodes : sequence of int
    timeout_s : float, seconds
    first_rank : int, optional
        This rank where the threads began, if this one has been split.
    """

    def __init__(
        self,
        post: _Post,
        name: tuple[Any, ...],
        rank: int,
        size: int,
        nodes: Sequence[int],
        timeout_s: float,
        first_rank: int | None = None,
    ) -> None:
        super().__init__(rank, size, nodes, timeout_s)
        self._post = post
        self._name = name
        self._splits = 0
        self._first_rank = rank if first_rank is None else first_rank

    def _start_send(self, memory: memoryview, rank: int, tag: int) -> Callable[[], bool]:
        with self._post.lock:
            key = (self._name, self.rank, rank, tag)
            self._post.messages.setdefault(key, deque()).append(memory.tobytes())
        return lambda: True

    def _start_receive(self, memory: memoryview, rank: int, tag: int) -> Callable[[], bool]:
        key = (self._name, rank, self.rank, tag)

        def poll() -> bool:
            with self._post.lock:
                queue = self._post.messages.get(key)
                if not queue:
                    return False
                data = queue.popleft()
                if not queue:
                    del self._post.messages[key]
            if len(data) != memory.nbytes:
                raise CommunicationError(
                    f"rank {rank} has sent {len(data):,} bytes (tag {tag}), and rank {self.rank} "
                    f"expects {memory.nbytes:,}"
                )
            memory[:] = data
            return True

        return poll

    def _part(self, ranks: Sequence[int], color: int) -> ThreadCommunicator:
        self._splits += 1
        return ThreadCommunicator(
            self._post,
            (*self._name, self._splits, color),
            ranks.index(self.rank),
            len(ranks),
            [self.nodes[rank] for rank in ranks],
            self.timeout_s,
            self._first_rank,
        )

    def _allocate(self, size_bytes: int, common: bool = False) -> Sequence[Array] | None:
        self._splits += 1
        pieces = self._post.pieces
        names = [(*self._name, self._splits, rank) for rank in range(self.size)]
        with self._post.lock:
            pieces[names[self.rank]] = np.zeros(size_bytes, np.uint8)
        self.gather_values(None)  # all are there
        host = self.nodes[self.rank]
        with self._post.lock:
            found = [pieces[name] for name in names if self.nodes[name[-1]] == host]
        if common:
            found = found[:1] * len(found)
        self.gather_values(None)  # all have been found
        with self._post.lock:
            del pieces[names[self.rank]]
        return found

    def _tell_failure(self, error: BaseException) -> None:
        message = failure_message(self._first_rank, error)
        with self._post.lock:
            self._post.failure = self._post.failure or message

    def heard_failure(self) -> PeerError | None:
        """Return what another thread has reported, if one has failed."""
        failure = self._post.failure
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
    """Call a function on so many ranks, each in a thread of this process.

    Parameters
    ----------
    size : int
        How many ranks.
    function : callable
        ``function(communicator)``. What it raises is reported to the other ranks.
    nodes : sequence of int, optional
        On which host each rank is to seem; all on host 0 if left out.
    timeout_s : float, seconds
        Of each wait.

    Returns
    -------
    list
        What it has returned on each rank.

    Raises
    ------
    Exception
        Of the rank that failed first, when all have ended.
    """
    post = _Post()
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        where = [0] * size if nodes is None else nodes
        communicator = ThreadCommunicator(post, (), rank, size, where, timeout_s)
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
