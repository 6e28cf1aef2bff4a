"""Pushes with time stamps, and how a rank reads them at times of its own."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from diel.coupling.address import Address
from diel.coupling.channel import Channel, Subject
from diel.coupling.messages import END, STAMPED, Head
from diel.coupling.stamps import Array, Stamps
from diel.errors import BoundaryError, OwnerEnded
from diel.tuples import codec

if TYPE_CHECKING:
    from diel.coupling.messages import ArrivedMessage

_STAMP: Final = struct.Struct("<dQ")


def stamp(time: float, repetition: int) -> bytes:
    """Return the stamp of a push: its time, and how often its owner has gone back before it."""
    return _STAMP.pack(time, repetition)


def time_of(head: Head) -> float | None:
    """Return the time of a push, None if it has none."""
    return _STAMP.unpack(head.meta)[0] if head.kind == STAMPED else None


class Stream:
    """The pushes of one piece of a boundary, as its reader receives them by time.

    Parameters
    ----------
    boundary : str
        Its name.
    owner : Address
    key : bytes
        Of the messages.
    like : ndarray
        With dtype and shape of the piece.
    """

    def __init__(self, boundary: str, owner: Address, key: bytes, like: np.ndarray[Any, Any]):
        self.stamps = Stamps(f'{owner} of boundary "{boundary}"')
        self._owner = owner
        self._key = key
        self._like = like

    def receive_until(
        self, time: float, channel: Channel, timeout: float | None, *, hold: bool
    ) -> None:
        """Receive pushes until one is at or after a time, or, with `hold`, the owner has ended."""
        subject = Subject(lambda: f"time {time!r} of {self.stamps.source}, {self._progress}")
        while not self.stamps.reaches(time):
            arrival = channel.await_arrival(self._key, self._owner, subject, timeout, "pull_at")
            if arrival.head.kind != END:
                self._receive(arrival, channel)
                continue
            if hold and self.stamps.times:
                return
            remedy = "; hold=True takes its last push" if self.stamps.times else ""
            raise OwnerEnded(f"pull_at({subject!r}): it has returned{remedy}")

    @property
    def _progress(self) -> str:
        times = self.stamps.times
        return f"which has pushed until {times[-1]!r}" if times else "which has not pushed"

    def _receive(self, arrival: ArrivedMessage, channel: Channel) -> None:
        stamps = self.stamps
        if arrival.head.kind != STAMPED:
            raise BoundaryError(f"{stamps.source} has pushed without a time: push(time=...)")
        time, repetition = _STAMP.unpack(arrival.head.meta)
        is_taken = stamps.takes(time, repetition)
        values: Array = stamps.free.pop() if stamps.free else np.empty_like(self._like)
        channel.receive([(arrival, codec.memory_of(values))])
        if is_taken:
            stamps.add(time, values)
        else:
            stamps.free.append(values)


def common_time(heads: Iterable[Head], push: str) -> float | None:
    """Return the time that all pieces of a push have, None without one.

    Raises
    ------
    BoundaryError
        If its owners have pushed at different times.
    """
    times = {time_of(head) for head in heads}
    if len(times) > 1:
        raise BoundaryError(
            f"{push} has the times {', '.join(sorted(map(str, times)))}: with pull_at all sections "
            "are of one time"
        )
    return next(iter(times), None)
