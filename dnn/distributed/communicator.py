"""Communicators, by which the ranks of a scheme exchange arrays and values, and their requests.

A request is a message or sum that has been started, and is waited for with a time limit. A wait
polls for half a millisecond, then sleeps between polls; it ends after a time limit, and when
another rank has reported a failure. Every wait also advances all sums in flight.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from dnn.backend import Array
from dnn.distributed import allreduce
from dnn.errors import CommunicationError

if TYPE_CHECKING:
    from dnn.distributed.messages import MessageCommunicator

__all__ = ["Communicator", "Request", "Sum", "Transfer"]

DEFAULT_TIMEOUT_S: Final = 600.0

# A wait polls for so long, and sleeps afterwards: a tenth of the time that it has lasted, within
# bounds. Reports of failures are looked for every few milliseconds. Small messages arrive before a
# wait yields its core to other processes, which on a busy machine keep it a hundred times as long.
_SPIN_ALONE_S: Final = 20e-6
_SPIN_S: Final = 0.5e-3
_SLEEP_SHARE: Final = 0.1
_SLEEP_S: Final = (20e-6, 1e-3)
# After a tenth of a second some milliseconds more do not matter, and each wake-up costs.
_LONG_WAIT_S: Final = 0.1
_LONG_SLEEP_S: Final = 5e-3
_LOOK_FOR_FAILURES_EVERY_S: Final = 5e-3


class Request(Protocol):
    """Protocol of transfers and sums that have been started."""

    def test(self) -> bool:
        """Return whether the transfer is done, after advancing it as far as possible."""

    def wait(self) -> None:
        """Wait until the transfer is done: poll for half a millisecond, then sleep between polls.

        Raises
        ------
        CommunicationError
            After the communicator's ``timeout_s``; it says what was waited for.
        PeerError
            If another rank has failed meanwhile.
        """


class Communicator(Protocol):
    """Connects ranks that exchange arrays and small values.

    Attributes
    ----------
    rank, size : int
        Number of this rank, from 0, and number of ranks.
    nodes : sequence of int
        For each rank the number of its host, from 0.
    timeout_s : float, seconds
        Time limit of each wait.
    """

    rank: int
    size: int
    nodes: Sequence[int]
    timeout_s: float

    def sum(self, array: Array, wire: str | None = None, routine: str | None = None) -> None:
        """Replace an array by its sum over all ranks, in place; all get the same bits."""

    def start_sum(
        self, array: Array, wire: str | None = None, routine: str | None = None
    ) -> Request:
        """Begin `sum`; ranks start their sums in the same order, and may test them in any."""

    def shared_memory(self, size_bytes: int) -> Array:
        """Return memory whose arrays are summed without a copy, if ranks of a host share memory."""

    def common_memory(self, size_bytes: int) -> Array | None:
        """Return the same memory to all ranks; None unless all are on one host that allows it."""

    def start_reduce_scatter(
        self, array: Array, parts: Sequence[slice], not_finite: list[tuple[int, int]]
    ) -> Request:
        """Begin to sum an array so that each rank has the sum of its part."""

    def allgather(self, array: Array, parts: Sequence[slice]) -> None:
        """Give every rank all parts of an array, of which each rank has one."""

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Replace an array by the array of one rank."""

    def send(self, array: Array, rank: int, tag: int = 0) -> Request:
        """Begin to send an array, which is not to be changed until the request is done."""

    def receive(self, array: Array, rank: int, tag: int = 0) -> Request:
        """Begin to receive into an array of the size that is sent."""

    def gather_values(self, value: Any) -> list[Any]:
        """Return the values of all ranks, of types of JSON, on every rank."""

    def split(self, color: int) -> Communicator:
        """Return a communicator of all ranks that give the same color, in order of rank."""

    def report_failure(self, error: BaseException) -> None:
        """Report to all other ranks that this one has failed; their waits raise `PeerError`."""

    def close(self) -> None:
        """Release memory and communicators below; all ranks call it, with nothing in flight."""


class Transfer:
    """Request of a message, or of another operation whose end a function reports.

    Parameters
    ----------
    poll : callable
        Returns whether the transfer is done.
    description : str
        What a wait waits for, in its errors: ``"4,096 bytes from rank 1 (tag 3)"``.
    communicator : MessageCommunicator
    """

    __slots__ = ("_communicator", "_done", "_poll", "description")

    def __init__(
        self, poll: Callable[[], bool], description: str, communicator: MessageCommunicator
    ) -> None:
        self._poll = poll
        self._done = False
        self.description = description
        self._communicator = communicator

    def test(self) -> bool:
        """Return whether the request is done; raise if the communicator has failed."""
        if not self._done:
            self._communicator.check_usable()
            self._done = self._poll()
        return self._done

    def wait(self) -> None:
        """Wait until the request is done; see `Request.wait`."""
        communicator = self._communicator
        if self.test():
            return
        began_s = time.perf_counter()
        next_look_s = began_s + _LOOK_FOR_FAILURES_EVERY_S
        shortest_s, longest_s = _SLEEP_S
        while True:
            waited_s = time.perf_counter() - began_s
            if waited_s < _SPIN_S:
                if waited_s > _SPIN_ALONE_S:
                    os.sched_yield()  # the other rank may be on the same core
            else:
                if waited_s >= _LONG_WAIT_S:
                    longest_s = _LONG_SLEEP_S
                time.sleep(min(max(_SLEEP_SHARE * waited_s, shortest_s), longest_s))
            failure = None
            if began_s + waited_s >= next_look_s:
                failure = communicator.received_failure()
                next_look_s = began_s + waited_s + _LOOK_FOR_FAILURES_EVERY_S
            # After looking for failures, since results that came before a failure count.
            moved = communicator.advance_sums()
            if self.test():
                return
            if failure is not None:
                communicator.give_up(failure)
                raise failure
            if moved:  # the next message may come soon
                began_s, longest_s = time.perf_counter(), _SLEEP_S[1]
                continue
            if waited_s >= communicator.timeout_s:
                late = CommunicationError(
                    f"rank {communicator.rank} of {communicator.size} has waited "
                    f"{communicator.timeout_s:g} s for {self.description}; the other rank may "
                    "still compute, have left, or wait for something else: see what it has written"
                )
                communicator.give_up(late)
                raise late


class Sum(Transfer):
    """Request of a sum, which advances by the steps of a routine."""

    __slots__ = ("_error", "_steps", "_waiting")

    def __init__(
        self, steps: allreduce.Steps, description: str, communicator: MessageCommunicator
    ) -> None:
        super().__init__(self._advanced, description, communicator)
        self._steps = steps
        self._waiting: list[allreduce.Pending] = []
        self._error: BaseException | None = None

    def test(self) -> bool:
        """Return whether the request is done; raise if the communicator has failed."""
        if self._error is not None:  # raised while another sum was waited for
            raise self._error
        return super().test()

    def _advanced(self) -> bool:
        self._communicator.advance_sums()
        return self._done

    def move(self) -> bool:
        """Advance as far as possible without a wait; return whether the sum has advanced."""
        waiting, moved = self._waiting, False
        try:
            while True:
                while waiting:
                    if not waiting[-1].test():
                        return moved
                    waiting.pop()
                    moved = True
                waiting.extend(next(self._steps))
        except StopIteration:
            self._done = True
        except BaseException as error:
            self._error = error
            self._communicator.report_failure(error)  # all ranks wait for this sum
            raise
        self._communicator.remove_sum(self)
        return True
