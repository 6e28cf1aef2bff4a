"""A communicator whose messages are tuples: ranks are copies of a module that share a tuple space.

Copies of a module need no communicator of MPI in common to train one network, and may be on
different ranks in each run. Arrays go through the space as arrays of bytes, nothing is pickled::

    (*name, "message", from, to, tag)    an array of bytes, first in, first out
    (*name, "failure")                   rank and error of the first failed rank
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from dnn.distributed.communicator import DEFAULT_TIMEOUT_S
from dnn.distributed.messages import MessageCommunicator, failure_message
from dnn.errors import PeerError

__all__ = ["TupleCommunicator", "TupleSpace"]


class TupleSpace(Protocol):
    """Protocol of the tuple spaces that a communicator uses, such as ``ctx.tuples`` of a module."""

    def tput(self, tag: Any, value: object) -> None:
        """Put a tuple; the caller may change the value afterwards."""

    def tget_nowait(self, tag: Any) -> Any:
        """Take a tuple, or raise `TimeoutError` if there is none."""

    def tread_nowait(self, tag: Any) -> Any:
        """Copy a tuple, or raise `TimeoutError` if there is none."""

    def put_if_absent(self, tag: Any, value: object) -> bool:
        """Put a tuple unless there is one with its tag; return whether it was put."""


class TupleCommunicator(MessageCommunicator):
    """Communicator of ranks that exchange messages through a tuple space.

    Parameters
    ----------
    tuples : TupleSpace
        ``ctx.tuples``.
    rank, size : int
        Such as ``ctx.copy_index`` and the number of copies.
    name : sequence of str or int
        Beginning of all its tags. No other tags of the run may begin so, those of other
        communicators included: ``ctx.group`` and the numbers of ``ctx.iteration`` make it unique.
    timeout_s : float, seconds
        Time limit of each wait.

    Examples
    --------
    In a module with ``copies = 4``::

        def run(ctx):
            place = ("training", ctx.group, *ctx.iteration)
            communicator = TupleCommunicator(ctx.tuples, ctx.copy_index, ctx.copies, place)
            scheme = dnn.AsynchronousSGD(communicator)
            model = dnn.NeuralNetwork(layers, parallel=scheme)
    """

    def __init__(
        self,
        tuples: TupleSpace,
        rank: int,
        size: int,
        name: Sequence[str | int],
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        # A tuple space does not say which ranks are on one host.
        super().__init__(rank, size, range(size), timeout_s)
        self._tuples = tuples
        self._name = tuple(name)
        self._failure_tag = (*self._name, "failure")
        self._first_rank = rank
        self._splits = 0
        # By rank and tag, the memory of open receives.
        self._coming: defaultdict[tuple[int, int], deque[memoryview]] = defaultdict(deque)

    def _start_send(self, memory: memoryview, rank: int, tag: int) -> Callable[[], bool]:
        place = (*self._name, "message", self.rank, rank, tag)
        self._tuples.tput(place, np.frombuffer(memory, np.uint8))
        return lambda: True

    def _start_receive(self, memory: memoryview, rank: int, tag: int) -> Callable[[], bool]:
        queue = self._coming[rank, tag]
        queue.append(memory)

        def poll() -> bool:
            # The first message is for the receive that was started first.
            while any(each is memory for each in queue):
                if not self._take(queue[0], rank, tag):
                    return False
                queue.popleft()
            return True

        return poll

    def _take(self, memory: memoryview, rank: int, tag: int) -> bool:
        """Take the next message into memory, if it has come; return whether it has."""
        try:
            data = self._tuples.tget_nowait((*self._name, "message", rank, self.rank, tag))
        except TimeoutError:
            return False
        self.check_size(data.nbytes, memory.nbytes, rank, tag)
        memory[:] = data
        return True

    def _part(self, ranks: Sequence[int], color: int) -> TupleCommunicator:
        self._splits += 1
        name = (*self._name, "split", self._splits, color)
        part = TupleCommunicator(
            self._tuples, ranks.index(self.rank), len(ranks), name, self.timeout_s
        )
        part._failure_tag, part._first_rank = self._failure_tag, self._first_rank
        return part

    def _allocate(self, size_bytes: int, common: bool = False) -> None:
        return None  # each rank is taken to be on a host of its own

    def _send_failure(self, error: BaseException) -> None:
        message = failure_message(self._first_rank, error)
        if message is not None:
            self._tuples.put_if_absent(self._failure_tag, json.dumps(message).encode())

    def received_failure(self) -> PeerError | None:
        """Return the failure that another rank has reported, or None."""
        try:
            failure = json.loads(self._tuples.tread_nowait(self._failure_tag))
        except TimeoutError:
            return None
        if failure["rank"] == self._first_rank:
            return None
        return PeerError(failure["rank"], failure["error"])
