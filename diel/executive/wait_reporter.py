"""Reports of this rank's waits to rank 0, once a wait has lasted a second.

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
    """Tracks what a rank waits for, and reports waits that last a second to rank 0.

    The transport is that of the client. The meter's `name_wait` and `after_wait` hooks are set
    here.
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
        self._wait_for_peers: Wait | None = None
        self._candidate: Wait | None = None
        self._candidate_since_s = 0.0
        self._reported: Wait | None = None
        self._changes = self._told_changes = 0  # of the channel
        self._unchanged_since_s = 0.0
        meter.name_wait = self._name_wait
        meter.after_wait = self._after_wait

    def begin(self, serial: int) -> None:
        """Record that a copy begins."""
        self._serial = serial
        self._wait_for_peers = self._reported = None

    @property
    def current(self) -> Wait | None:
        """The wait that the rank is in: at a tuple server, for a message, or for its peers."""
        return self._tuples.waiting_for or self._channel.waiting_for or self._wait_for_peers

    @contextlib.contextmanager
    def waiting(self, call: str, *, counts: bool = True) -> Iterator[None]:
        """Mark this rank as waiting for other ranks, though not for their messages.

        `call` is the name of the wait, as it is reported. A rank that lends its core to a program
        works: then `counts` is false, and the meter does not count it as waiting.
        """
        self._wait_for_peers = (call, "", math.inf)
        try:
            with self._meter.waiting(call, counts=counts):
                yield
        finally:
            self._wait_for_peers = None

    def report_if_long(self, waiting: Wait) -> None:
        """Report a wait to rank 0 once it has lasted a second, and again if messages came since."""
        changes = self._channel.changes
        if waiting is self._reported and changes == self._told_changes:
            return
        now_s = time.monotonic()
        if waiting is not self._candidate:
            self._candidate, self._candidate_since_s = waiting, now_s
        if changes != self._changes:
            self._changes, self._unchanged_since_s = changes, now_s
        elif now_s - max(self._candidate_since_s, self._unchanged_since_s) >= _TELL_AFTER_S:
            self._reported, self._told_changes = waiting, changes
            operation, tag, timeout_s = waiting
            self._report(
                Waiting(
                    serial=self._serial,
                    what=f"{operation}({format_tag(tag)})" if tag else operation,
                    tag=format_tag(tag),
                    has_timeout=timeout_s < math.inf,
                    at_server=waiting is self._tuples.waiting_for,
                    puts=tuple(self._tuples.puts),
                    waited_s=now_s - self._candidate_since_s,
                    request=self._transport.latest_request_id,
                    counts=self._channel.counts(),
                )
            )

    def _name_wait(self) -> tuple[str, object]:
        waiting = self._tuples.waiting_for or self._channel.waiting_for
        return ("a tuple server's answer", None) if waiting is None else waiting[:2]

    def _after_wait(self) -> None:
        """Report the end of a wait that was reported; the next wait may be for the same tuple."""
        if self._reported is not None:
            self._reported = self._candidate = None
            self._report(WaitOver(self._serial))
