"""A communicator whose messages are tuples: ranks are copies of a module that share a tuple space.

Copies of a module need no communicator of MPI in common to train one network, and may be on
different ranks in each run. Arrays go through the space as arrays of bytes, nothing is pickled::

    (*name, "message", from, to, tag)    an array of bytes, first in, first out
    (*name, "failure")                   rank and error of the first rank that failed
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from dnn.distributed.communicator import DEFAULT_TIMEOUT_S
from dnn.distributed.messages import MessageCommunicator, failure_message
from dnn.errors import CommunicationError, PeerError

__all__ = ["TupleCommunicator", "TupleSpace"]


class TupleSpace(Protocol):
    """What is needed of a tuple space; ``ctx.tuples`` of a module is one."""

    def tput(self, tag: Any, value: object) -> None:
        """Put a tuple, which may be changed here afterwards."""

    def tget_nowait(self, tag: Any) -> Any:
        """Take a tuple, or raise `TimeoutError` if there is none."""

    def tread_nowait(self, tag: Any) -> Any:
        """Copy a tuple, or raise `TimeoutError` if there is none."""

    def put_if_absent(self, tag: Any, value: object) -> bool:
        """Put a tuple unless there is one with its tag."""


class TupleCommunicator(MessageCommunicator):
    """A communicator through a tuple space.

    Parameters
    ----------
    tuples : TupleSpace
        ``ctx.tuples``.
    rank, size : int
        Such as ``ctx.copy_index`` and the number of copies.
    name : sequence of str or int
        What its tags begin with; no other tuples of the run begin so, and no other communicator
        of it: with ``ctx.group`` and the numbers of ``ctx.iteration``, say.
    timeout_s : float, seconds
        Of each wait.

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
        # Which of them are on one host a tuple space does not say.
        super().__init__(rank, size, range(size), timeout_s)
        self._tuples = tuples
        self._name = tuple(name)
        self._failure_tag = (*self._name, "failure")
        self._first_rank = rank
        self._splits = 0
        # Of each rank and tag, where messages to come are to be written.
        self._coming: defaultdict[tuple[int, int], deque[memoryview]] = defaultdict(deque)

    def _start_send(self, memory: memoryview, rank: int, tag: int) -> Callable[[], bool]:
        place = (*self._name, "message", self.rank, rank, tag)
        self._tuples.tput(place, np.frombuffer(memory, np.uint8))
        return lambda: True

    def _start_receive(self, memory: memoryview, rank: int, tag: int) -> Callable[[], bool]:
        queue = self._coming[rank, tag]
        queue.append(memory)

        def poll() -> bool:
            # What comes first is for who has asked first.
            while any(each is memory for each in queue):
                if not self._take(queue[0], rank, tag):
                    return False
                queue.popleft()
            return True

        return poll

    def _take(self, memory: memoryview, rank: int, tag: int) -> bool:
        """Take the next message, if it is there."""
        try:
            data = self._tuples.tget_nowait((*self._name, "message", rank, self.rank, tag))
        except TimeoutError:
            return False
        if data.nbytes != memory.nbytes:
            raise CommunicationError(
                f"rank {rank} has sent {data.nbytes:,} bytes (tag {tag}), and rank {self.rank} "
                f"expects {memory.nbytes:,}"
            )
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

    def _tell_failure(self, error: BaseException) -> None:
        message = failure_message(self._first_rank, error)
        if message is not None:
            self._tuples.put_if_absent(self._failure_tag, json.dumps(message).encode())

    def heard_failure(self) -> PeerError | None:
        """Return what another rank has reported, if one has failed."""
        try:
            failure = json.loads(self._tuples.tread_nowait(self._failure_tag))
        except TimeoutError:
            return None
        if failure["rank"] == self._first_rank:
            return None
        return PeerError(failure["rank"], failure["error"])
