"""What a rank has sent and received, in numbers: how a deadlock is told from a slow message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Account:
    """What a rank's copy has to do with messages, for whoever looks for a deadlock.

    Attributes
    ----------
    sent : dict of (int, int) to int
        Messages that it has sent, by serial and world rank of their receivers.
    received : int
        Messages that have reached it, taken or not.
    left : dict of (int, int) to int
        Of those sent with a payload apart, how many are known to have been received.
    taken : dict of (int, int) to int
        Payloads that it has taken, by serial and world rank of their senders.
    waits_for : str
        ``message``, ``receipt`` (of a message of its own), or nothing of the kind.
    receivers : tuple of (int, int)
        Serials and world ranks of those whose receipt it waits for.
    """

    sent: dict[tuple[int, int], int] = field(default_factory=dict)
    received: int = 0
    left: dict[tuple[int, int], int] = field(default_factory=dict)
    taken: dict[tuple[int, int], int] = field(default_factory=dict)
    waits_for: Literal["message", "receipt", ""] = ""
    receivers: tuple[tuple[int, int], ...] = ()
