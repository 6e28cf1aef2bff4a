"""Reports to rank 0 what this rank waits for, once a wait has lasted a second.

Rank 0 finds deadlocks from these reports, see `deadlock`.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from diel.executive.messages import Report, Waiting, WaitOver
from diel.tuples.tags import format_tag

if TYPE_CHECKING:
    from diel.comm.meter import Meter
    from diel.coupling.channel import Channel
    from diel.tuples.client import TupleClient
    from diel.tuples.transport import Transport

_TELL_AFTER_S: Final = 1.0

Wait: TypeAlias = "tuple[str, object, float]"
"""The call, the tag in it, and its timeout in seconds."""


class WaitReporter:
    """Knows what a rank waits for, and reports waits that last.

    Parameters
    ----------
    tuples : TupleClient
    transport : Transport
        Of the client.
    channel : Channel
    meter : Meter
        Asks it what a wait is called, and says when one is over.
    report : callable
        Sends a report to rank 0.
    """

    def __init__(
        self,
        tuples: TupleClient,
        transport: Transport,
        channel: Channel,
        meter: Meter,
        report: Callable[[Report], None],
    ) -> None:
        self._tuples = tuples
        self._transport = transport
        self._channel = channel
        self._meter = meter
        self._report = report
        self._serial = 0
        self._for_others: Wait | None = None
        self._noticed: Wait | None = None
        self._noticed_s = 0.0
        self._told_of: Wait | None = None
        meter.name_wait = self._name_wait
        meter.after_wait = self._after_wait

    def begin(self, serial: int) -> None:
        """Record that a copy begins."""
        self._serial = serial
        self._for_others = self._told_of = None

    @property
    def current(self) -> Wait | None:
        """What the rank waits for at this moment."""
        return self._tuples.waiting_for or self._channel.waiting_for or self._for_others

    @contextlib.contextmanager
    def waiting(self, what: str, *, counts: bool = True) -> Iterator[None]:
        """Be in a wait for other ranks, neither at a server nor for a message of theirs.

        Parameters
        ----------
        what : str
        counts : bool, optional
            Whether the meter calls it waiting; a rank that lends its core to a program works.
        """
        self._for_others = (what, "", math.inf)
        try:
            with self._meter.waiting(what, counts=counts):
                yield
        finally:
            self._for_others = None

    def tell_if_long(self, waiting: Wait) -> None:
        """Tell rank 0 of a wait that has lasted a while, once."""
        if waiting is self._told_of:
            return
        now_s = time.monotonic()
        if waiting is not self._noticed:
            self._noticed, self._noticed_s = waiting, now_s
        elif now_s - self._noticed_s >= _TELL_AFTER_S:
            self._told_of = waiting
            operation, tag, timeout_s = waiting
            self._report(
                Waiting(
                    serial=self._serial,
                    what=f"{operation}({format_tag(tag)})" if tag else operation,
                    tag=format_tag(tag),
                    has_timeout=timeout_s < math.inf,
                    at_server=waiting is self._tuples.waiting_for,
                    puts=tuple(self._tuples.puts),
                    waited_s=now_s - self._noticed_s,
                    request=self._transport.latest_request_id,
                    counts=self._channel.counts(),
                )
            )

    def _name_wait(self) -> tuple[str, object]:
        waiting = self._tuples.waiting_for or self._channel.waiting_for
        return ("a tuple server's answer", None) if waiting is None else waiting[:2]

    def _after_wait(self) -> None:
        """Take back what rank 0 was told of a wait that is over; the next may be for the same."""
        if self._told_of is not None:
            self._told_of = self._noticed = None
            self._report(WaitOver(self._serial))
