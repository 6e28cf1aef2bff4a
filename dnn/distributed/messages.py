"""Communicators made of messages: arrays sent, received, summed and broadcast between ranks.

A communicator is made of messages between two ranks, which may be MPI's (`dnn.distributed.mpi`) or
those of threads of one process (`dnn.distributed.threads`). Everything else is built on them here:
broadcasts, sums, gathering of small values, waits with a time limit, and reports that a rank has
failed::

    tags   0 ... 16,383        messages of the caller
           16,384 ... 32,766   sums, broadcasts and values in flight, in turn
           32,767              a rank has failed: every wait looks for this tag

MPI guarantees tags up to 32,767, and none above.
"""

from __future__ import annotations

import contextlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from dnn.backend import Array
from dnn.backend.rounding import BFLOAT16, HALF, SINGLE
from dnn.distributed import allreduce, device_arrays
from dnn.distributed.allreduce import Routine, SumChoices, named_routine
from dnn.distributed.communicator import Communicator, Request, Sum, Transfer
from dnn.distributed.shared_memory import HostMemory
from dnn.errors import (
    CommunicationError,
    DtypeError,
    PeerError,
    ShapeError,
    unknown_name,
)

__all__ = ["MessageCommunicator"]

_FIRST_OWN_TAG: Final = 1 << 14
FAILURE_TAG: Final = (1 << 15) - 1
_OWN_TAGS: Final = FAILURE_TAG - _FIRST_OWN_TAG

# Letters of a reported error: MPI sends so few at once, before the receiver asks for them.
_LONGEST_MESSAGE: Final = 900

_WIRE_TYPES: Final = {"float16": HALF, "bfloat16": BFLOAT16}


class _Ending:
    """Failure that ended the use of a communicator and of all that were split from it."""

    error: BaseException | None = None


class MessageCommunicator(ABC):
    """Base of communicators made of messages between two ranks; it implements `Communicator`.

    Parameters
    ----------
    rank, size : int
    nodes : sequence of int
    timeout_s : float, seconds

    Attributes
    ----------
    choices : SumChoices
        Which routine sums arrays of which size.
    device_transport : str
        How arrays of GPUs are sent, in words.
    """

    def __init__(self, rank: int, size: int, nodes: Sequence[int], timeout_s: float) -> None:
        self.rank = rank
        self.size = size
        self.nodes: Sequence[int] = tuple(nodes)
        self.timeout_s = timeout_s
        self._started = 0  # collective calls, which all ranks start in the same order
        self._sums: list[Sum] = []
        self._offered: Mapping[str, Routine] | None = None  # made by the first sum
        self._host_memory: HostMemory | None = None
        self._sums_in_place = True  # arrays in host memory
        self._ending = _Ending()
        self.choices = SumChoices(self)
        self.device_transport = device_arrays.PINNED
        self._has_logged_way = False

    # What subclasses implement.

    @abstractmethod
    def _start_send(self, memory: memoryview, rank: int, tag: int) -> Callable[[], bool]:
        """Begin to send; return a function that says whether that is done."""

    @abstractmethod
    def _start_receive(self, memory: memoryview, rank: int, tag: int) -> Callable[[], bool]:
        """Begin to receive; return a function that says whether that is done.

        It calls `check_size` when a message arrives.
        """

    def check_size(self, sent_bytes: int, expected_bytes: int, rank: int, tag: int) -> None:
        """Raise `CommunicationError` if a rank has sent another size than this one expects."""
        if sent_bytes != expected_bytes:
            raise CommunicationError(
                f"rank {rank} has sent {sent_bytes:,} bytes (tag {tag}), and rank {self.rank} "
                f"expects {expected_bytes:,}"
            )

    @abstractmethod
    def _part(self, ranks: Sequence[int], color: int) -> MessageCommunicator:
        """Return the communicator of some ranks, this one among them; all of them call it."""

    @abstractmethod
    def _allocate(self, size_bytes: int, common: bool = False) -> Sequence[Array] | None:
        """Return zeros that all ranks of this host see, a piece for each; None without such memory.

        With `common` there is one piece, the same for all ranks.

        All ranks call it, and all get memory or None.
        """

    @abstractmethod
    def _send_failure(self, error: BaseException) -> None:
        """Report an error to all other ranks, unless it came from one of them."""

    @abstractmethod
    def received_failure(self) -> PeerError | None:
        """Return the failure that another rank has reported, or None."""

    def _cancel_receives(self) -> None:  # noqa: B027 - most subclasses write in a poll only
        """Cancel open receives, so that nothing is written to their arrays any more."""

    def close(self) -> None:
        """Release shared memory and MPI's communicator; all ranks call it, with nothing in flight.

        Memory that ranks share stays as long as arrays in it. An MPI library has some thousand
        communicators at most. After a failure its communicator is kept: messages may be left.
        """
        self._host_memory = self._offered = None

    # Failures. Messages that were in flight may still arrive and be taken for others, so nothing is
    # exchanged any more, by this communicator and all that are related to it by `split`.

    def report_failure(self, error: BaseException) -> None:
        """Report to all other ranks that this one has failed, and give up what is in flight.

        An error that came from another rank is not reported again.
        """
        try:
            self._send_failure(error)
        finally:
            self.give_up(error)

    def raise_failure(self) -> None:
        """Raise `PeerError` if another rank has reported that it failed."""
        error = self.received_failure()
        if error is not None:
            self.give_up(error)
            raise error

    def give_up(self, error: BaseException) -> None:
        """Give up everything in flight; all calls that begin an exchange raise from now on."""
        self._ending.error = self._ending.error or error
        self._sums.clear()
        self._cancel_receives()

    def check_usable(self) -> None:
        """Raise `PeerError` or `CommunicationError` if this or another rank has failed."""
        error = self._ending.error
        if error is None or self.size == 1:
            return
        advice = "this communicator has failed; make another to go on"
        if isinstance(error, PeerError):
            raise PeerError(error.rank, f"{error.message}; {advice}")
        raise CommunicationError(f"rank {self.rank}: {type(error).__name__}: {error}; {advice}")

    # Messages.

    def send(self, array: Array, rank: int, tag: int = 0) -> Request:
        """Begin to send an array.

        Parameters
        ----------
        array : array, C-contiguous
            Not to be changed until the request is done.
        rank : int
        tag : int, 0 to 16,383
            Messages between the same ranks with the same tag arrive in their order.

        Returns
        -------
        Request
        """
        if device_arrays.on_device(array):
            self._log_device_way()
            array = device_arrays.from_device(array)
        memory = self._memory(array, rank)
        self.check_usable()
        description = f"rank {rank} to take {memory.nbytes:,} bytes (tag {tag})"
        return Transfer(self._start_send(memory, rank, tag), description, self)

    def receive(self, array: Array, rank: int, tag: int = 0) -> Request:
        """Begin to receive into an array; it is written when the request is done.

        Parameters
        ----------
        array : array, C-contiguous
            Of as many bytes as are sent.
        rank : int
        tag : int, 0 to 16,383

        Returns
        -------
        Request
            `CommunicationError` if a message of another size arrives.
        """
        host = array
        if device_arrays.on_device(array):
            self._log_device_way()
            host = device_arrays.memory_for(array)
        memory = self._memory(host, rank)
        self.check_usable()
        description = f"{memory.nbytes:,} bytes from rank {rank} (tag {tag})"
        poll = self._start_receive(memory, rank, tag)
        if host is array:
            return Transfer(poll, description, self)

        def landed() -> bool:
            if not poll():
                return False
            device_arrays.to_device(host, array)
            return True

        return Transfer(landed, description, self)

    def _log_device_way(self) -> None:
        if not self._has_logged_way:
            self._has_logged_way = True
            logging.getLogger("dnn").info("arrays of GPUs travel by %s", self.device_transport)

    def _memory(self, array: Array, rank: int) -> memoryview:
        if not array.flags.c_contiguous:
            raise ShapeError("exchange", f"an array {array.shape} is not contiguous", array.shape)
        if not 0 <= rank < self.size:
            raise CommunicationError(f"there is no rank {rank}: ranks are 0 to {self.size - 1}")
        return array.reshape(-1).view(np.uint8).data

    # Sums.

    def sum(self, array: Array, wire: str | None = None, routine: str | None = None) -> None:
        """Replace an array by its sum over all ranks, in place.

        Parameters
        ----------
        array : array of floating-point numbers or integers, C-contiguous
            Of the same size and type on all ranks.
        wire : "float16" or "bfloat16", optional
            Type to which elements of float32 are rounded when sent. They are added as float32,
            and the sum is rounded once more.
        routine : str, optional
            Name of the routine; by default the one that `SumChoices` has found fastest.

        Notes
        -----
        All ranks get the same bits: the order of summing follows from ranks, size and routine.
        """
        self.start_sum(array, wire, routine).wait()

    def start_sum(
        self, array: Array, wire: str | None = None, routine: str | None = None
    ) -> Request:
        """Begin `sum`. Ranks start their sums in the same order, and may test them in any.

        Parameters
        ----------
        array : array
            Neither read nor written by the caller until the request is done.
        wire : str, optional
        routine : str, optional

        Returns
        -------
        Request
            A test of one request advances all sums.
        """
        if not array.flags.c_contiguous:
            raise ShapeError("sum", f"an array {array.shape} is not contiguous", array.shape)
        if array.dtype.kind not in "fiu":
            raise DtypeError(f"sum: elements must be numbers, not {array.dtype}")
        self.check_usable()
        if device_arrays.on_device(array):
            self._log_device_way()
            steps = self._device_steps(array, wire, routine)
        else:
            steps = self._steps_of(array.reshape(-1), wire, routine)
        return self._start(steps, f"the sum of {array.nbytes:,} bytes")

    def _start(self, steps: allreduce.Steps, description: str) -> Sum:
        """Return the request of a routine, which advances with all other sums."""
        self.check_usable()
        summing = Sum(steps, f"{description} over {self.size} ranks", self)
        self._sums.append(summing)
        summing.move()
        return summing

    def _device_steps(self, array: Any, wire: str | None, routine: str | None) -> allreduce.Steps:
        """Return the steps of a sum of a GPU's array through memory of the host."""
        host = device_arrays.from_device(array)
        steps = self._steps_of(host.reshape(-1), wire, routine)

        def all_steps() -> allreduce.Steps:
            yield from steps
            device_arrays.to_device(host, array)

        return all_steps()

    def _steps_of(self, array: Array, wire: str | None, routine: str | None) -> allreduce.Steps:
        """Return the steps of a sum of an array of the host; all ranks call it in one order."""
        narrow = None if wire is None else _wire_type(wire, array)
        offered = self._routines(array.dtype)
        if routine is not None and routine not in offered:
            raise unknown_name("routine of a sum", routine, offered)
        if self.size == 1:
            return iter(())
        if narrow is not None:
            return allreduce.direct(self, array, self._next_tag(), narrow)
        return offered[self._name_of(array, routine)](array, self._next_tag())

    def _name_of(self, array: Array, routine: str | None) -> str:
        """Return the name of the routine for an array: the given one, or the best one here."""
        if routine is not None:
            return routine
        offered, memory = self._routines(array.dtype), self._host_memory
        if memory is not None and self._sums_in_place and memory.holds(array):
            return "shared"
        return self.choices.name_for(array.nbytes, offered)

    def _routines(self, dtype: np.dtype[Any]) -> Mapping[str, Routine]:
        """Return the routines for a type of elements on these ranks, by name."""
        if self._offered is None:
            offered: dict[str, Routine] = {
                name: partial(routine, self) for name, routine in allreduce.ROUTINES.items()
            }
            hosts = self._hosts()
            if 1 < len(hosts) < self.size:
                offered["two_level"] = partial(allreduce.two_level, self, hosts=hosts)
            if len(hosts) < self.size:
                self._host_memory = HostMemory.of(self, hosts, self._allocate)
                self._sums_in_place = not self.gather_values(named_routine())[0]
            if self._host_memory is not None:
                offered["shared"] = self._host_memory.sum
            self._offered = offered
        return self._offered

    @property
    def routine_names(self) -> list[str]:
        """Names of the routines of sums on these ranks; empty before the first sum."""
        return list(self._offered or ())

    def _hosts(self) -> list[list[int]]:
        """Return the ranks of each host."""
        hosts: dict[int, list[int]] = {}
        for rank, host in enumerate(self.nodes):
            hosts.setdefault(host, []).append(rank)
        return list(hosts.values())

    def _next_tag(self) -> int:
        self._started += 1
        return _FIRST_OWN_TAG + self._started % _OWN_TAGS

    def advance_sums(self) -> bool:
        """Advance all sums that were started, the oldest first; return whether any has advanced."""
        moved = [each.move() for each in tuple(self._sums)]
        return any(moved)

    def remove_sum(self, done: Sum) -> None:
        """Remove a sum that is done from those that `advance_sums` advances."""
        if done in self._sums:  # a failure removes all
            self._sums.remove(done)

    def shared_memory(self, size_bytes: int) -> Array:
        """Return memory for arrays that are to be summed, without a copy where that is possible.

        Parameters
        ----------
        size_bytes : int
            Of several sizes the largest counts; whether arrays agree is checked elsewhere.

        Returns
        -------
        array of uint8, shape (size_bytes,)
            Zeros, beginning at a page. Arrays in it are summed in place where ranks of a host share
            memory; they have to lie at the same place on all ranks.
        """
        most = max(self.gather_values(size_bytes))
        if self.size > 1:
            self._routines(SINGLE)
        memory = None if self._host_memory is None else self._host_memory.memory(most)
        return np.zeros(size_bytes, np.uint8) if memory is None else memory[:size_bytes]

    def common_memory(self, size_bytes: int) -> Array | None:
        """Return the same memory to all ranks of a host: what one of them writes, the others read.

        Parameters
        ----------
        size_bytes : int
            The same on all ranks.

        Returns
        -------
        array of uint8, shape (size_bytes,), or None
            Zeros; None where ranks are on several hosts, or share no memory.
        """
        if self.size > 1:
            self._routines(SINGLE)
        if self._host_memory is None or len(self._hosts()) > 1:
            return None
        return self._host_memory.memory(size_bytes, common=True)

    def start_reduce_scatter(
        self, array: Array, parts: Sequence[slice], not_finite: list[tuple[int, int]]
    ) -> Request:
        """Begin to sum an array over all ranks, each of which gets one part of the sum.

        Parameters
        ----------
        array : array of floating-point numbers, one axis, contiguous
            On the host. Elements outside of the rank's part stay as they are; they are not to be
            written before all ranks have ended this, which the `allgather` that follows sees to.
        parts : sequence of slice
            One for each rank, the same on all ranks.
        not_finite : list of (int, int)
            Pairs are appended: each rank that has NaN or infinity within this rank's part, and its
            first such element.

        Returns
        -------
        Request
            As of `start_sum`.
        """
        memory, description = self._host_memory, f"the sum of parts of {array.nbytes:,} bytes"
        if memory is not None and len(self._hosts()) == 1 and memory.holds(array):
            steps = memory.reduce_scatter(array, parts, not_finite)
        else:
            tag = self._next_tag()
            steps = allreduce.direct_scatter(self, array, parts, tag, not_finite=not_finite)
        return self._start(steps, description)

    def allgather(self, array: Array, parts: Sequence[slice]) -> None:
        """Give every rank all parts of an array, of which each rank has one.

        Parameters
        ----------
        array : array, one axis, contiguous
            On the host. In `common_memory` nothing is copied, and it ends when all ranks have come.
        parts : sequence of slice
            One for each rank, the same on all ranks.
        """
        if self.size == 1:
            return
        memory = self._host_memory
        if memory is not None and memory.is_common(array):
            steps = memory.wait_for_all(array)
        else:
            steps = allreduce.direct_gather(self, array, parts, self._next_tag())
        self._start(steps, f"the parts of {array.nbytes:,} bytes").wait()

    # Small values: at the beginning and end of a training.

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Replace an array, contiguous, by the array of one rank."""
        tag = self._next_tag()
        above, below = allreduce.tree_of(self.rank, self.size, root)
        if above is not None:
            self.receive(array, above, tag).wait()
        for request in [self.send(array, rank, tag) for rank in below]:
            request.wait()

    def gather_values(self, value: Any) -> list[Any]:
        """Return the values of all ranks, of types of JSON, on every rank, in order of rank."""
        tag = self._next_tag()
        above, below = allreduce.tree_of(self.rank, self.size, 0)
        known = {str(self.rank): value}
        for rank in below:
            known |= json.loads(self._receive_bytes(rank, tag))
        if above is not None:
            self._send_bytes(json.dumps(known).encode(), above, tag)
            known = json.loads(self._receive_bytes(above, tag))
        # Every rank, this one too, reads the values from JSON, so that all get the same types.
        text = json.dumps(known).encode()
        for rank in below:
            self._send_bytes(text, rank, tag)
        known = json.loads(text)
        return [known[str(rank)] for rank in range(self.size)]

    def _send_bytes(self, data: bytes, rank: int, tag: int) -> None:
        started = [self.send(np.array([len(data)]), rank, tag)]
        started.append(self.send(np.frombuffer(data, np.uint8), rank, tag))
        for request in started:
            request.wait()

    def _receive_bytes(self, rank: int, tag: int) -> bytes:
        size = np.empty(1, np.int64)
        self.receive(size, rank, tag).wait()
        data = np.empty(int(size[0]), np.uint8)
        self.receive(data, rank, tag).wait()
        return data.tobytes()

    def split(self, color: int) -> Communicator:
        """Return a communicator of all ranks that give the same color, in order of rank.

        A failure that is reported to it reaches all ranks of the communicator that was split.
        """
        colors = self.gather_values(color)
        part = self._part([rank for rank, each in enumerate(colors) if each == color], color)
        part._ending = self._ending
        return part


def _wire_type(wire: str, array: Array) -> np.dtype[np.generic]:
    """Return the type to which elements are rounded when they are sent."""
    if wire not in _WIRE_TYPES:
        raise unknown_name("type of elements on the wire", wire, _WIRE_TYPES)
    if array.dtype != SINGLE:
        raise DtypeError(f"sum: {wire} is sent in place of float32, not of {array.dtype}")
    return _WIRE_TYPES[wire]


def failure_message(rank: int, error: BaseException) -> dict[str, Any] | None:
    """Return the report of an error for other ranks; None if it came from another rank."""
    if isinstance(error, PeerError):
        return None
    text = type(error).__name__
    with contextlib.suppress(BaseException):  # str() may raise anything: other ranks wait for this
        text = f"{text}: {error}"[:_LONGEST_MESSAGE]
    return {"rank": rank, "error": text}
