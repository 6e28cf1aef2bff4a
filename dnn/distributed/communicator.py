"""Protocol of communicators, by which the ranks of a scheme exchange arrays and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from dnn.backend import Array
from dnn.distributed.transfers import Request

__all__ = ["Communicator"]

DEFAULT_TIMEOUT_S: Final = 600.0


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
