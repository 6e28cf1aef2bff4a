"""The protocol of communicators: what schemes of several ranks ask of the ranks that they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from dnn.backend import Array
from dnn.distributed.transfers import Request

__all__ = ["Communicator"]

DEFAULT_TIMEOUT_S: Final = 600.0


class Communicator(Protocol):
    """Ranks that exchange arrays.

    Attributes
    ----------
    rank, size : int
        Which of how many ranks this is.
    nodes : sequence of int
        On which host, 0 or 1 and so on, each rank is.
    timeout_s : float, seconds
        The longest that any wait takes.
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
        """Return bytes in which sums are made without a copy, if ranks of a host share memory."""

    def common_memory(self, size_bytes: int) -> Array | None:
        """Return bytes that are the same for all ranks, if all are on one host that has such."""

    def start_reduce_scatter(
        self, array: Array, parts: Sequence[slice], not_finite: list[tuple[int, int]]
    ) -> Request:
        """Begin to sum an array so that each rank has the sum of its part."""

    def allgather(self, array: Array, parts: Sequence[slice]) -> None:
        """Give to all ranks the part of an array that each of them has."""

    def broadcast(self, array: Array, root: int = 0) -> None:
        """Replace an array by that of one rank."""

    def send(self, array: Array, rank: int, tag: int = 0) -> Request:
        """Begin to send an array, which stays as it is until the request is done."""

    def receive(self, array: Array, rank: int, tag: int = 0) -> Request:
        """Begin to receive into an array of the size that is sent."""

    def gather_values(self, value: Any) -> list[Any]:
        """Return a value of JSON from each rank, on every rank: where networks begin and end."""

    def split(self, color: int) -> Communicator:
        """Return the communicator of all ranks that name the same color, in order of rank."""

    def report_failure(self, error: BaseException) -> None:
        """Tell all other ranks that this one has failed; their waits raise `PeerError`."""

    def close(self) -> None:
        """Give back what it holds; all ranks call it, when nothing is under way."""
