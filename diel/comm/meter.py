"""`Meter`: measures a rank's waits and transfers; the rest of the time counts as work.

Work is not measured: it is the time that is left. Only waits that go on after a few quick polls are
measured, and transfers of payloads that travel in messages of their own. An operation that is
answered at once takes microseconds, of which two readings of the clock would be a part: it counts
as work.
"""

from __future__ import annotations

import contextlib
import operator
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple, TypeAlias

SpanKind: TypeAlias = Literal["module", "tuples", "wait", "transfer"]

SPANS_KEPT: Final = 100_000
"""Most spans that are kept of a rank, from its start to its end."""
NOTABLE_S: Final = 1e-3
"""Shorter waits are added up, but not kept as spans."""


class Times(NamedTuple):
    """Seconds that a rank has spent.

    Attributes
    ----------
    working_s, waiting_s, communicating_s : float
        Wall time.
    cpu_s : float
        CPU time of its process meanwhile, with all threads and in the system. Where cores are fewer
        than processes it tells work from a queue for a core.
    """

    working_s: float = 0.0
    waiting_s: float = 0.0
    communicating_s: float = 0.0
    cpu_s: float = 0.0

    def plus(self, other: Times) -> Times:
        """Return the sum of these times and others, field by field."""
        return Times(*map(operator.add, self, other))

    def minus(self, earlier: Times) -> Times:
        """Return the times spent since `earlier`, an earlier state of the same meter."""
        return Times(*map(operator.sub, self, earlier))


NO_TIMES: Final = Times()


class Span(NamedTuple):
    """A stretch of a rank's time: a wait, a transfer, an operation on tuples, a module's run.

    Attributes
    ----------
    kind : str
    start_s, end_s : float
        On the meter's clock.
    what : str
        Its description, in a few words.
    about : object
        A tag, an encoded tag, or None; a dictionary for a module's run.
    size_bytes : int or None
        How much was put, taken or transferred, where that is known.
    """

    kind: SpanKind
    start_s: float
    end_s: float
    what: str
    about: object = None
    size_bytes: int | None = None


class Meter:
    """Adds up the waits and transfers of one rank, and keeps spans until `take_spans` is called.

    Parameters
    ----------
    keeps_short_waits : bool, optional
        Whether short waits are kept as well.
    clock, cpu_clock : callable, optional
        Return seconds: of wall time, and of the process's CPU time.

    Attributes
    ----------
    clock : callable
    name_wait : callable
        Returns what the rank waits for at this moment in a tuple space, and its tag.
    after_wait : callable
        Called at the end of a wait that was not a short one.
    left_out : int
        Spans that were not kept, since there were too many.
    """

    def __init__(
        self,
        *,
        keeps_short_waits: bool = False,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self.clock = clock
        self._cpu_clock = cpu_clock
        self._started_cpu_s = cpu_clock()
        self.name_wait: Callable[[], tuple[str, object]] = lambda: ("a tuple server's answer", None)
        self.after_wait: Callable[[], None] = lambda: None
        self.left_out = 0
        self._keeps_short_waits = keeps_short_waits
        self._room = SPANS_KEPT
        self._spans: list[Span] = []
        self._started_s = clock()
        self._waiting_s = 0.0
        self._communicating_s = 0.0

    def waited(self, since_s: float, reason: str | None = None, *, counts: bool = True) -> None:
        """Count a wait that ends now; `name_wait` says what for, unless `reason` does.

        With ``counts=False`` its span is kept, but its time counts as work.
        """
        now_s = self.clock()
        if counts:
            self._waiting_s += now_s - since_s
        is_notable = now_s - since_s >= NOTABLE_S
        if is_notable or self._keeps_short_waits:
            name, tag = self.name_wait() if reason is None else (reason, None)
            self.keep(Span("wait", since_s, now_s, name, tag))
            if is_notable:
                self.after_wait()

    def communicated(
        self, since_s: float, transfer: str, about: object = None, size_bytes: int | None = None
    ) -> None:
        """Count a transfer that ends now."""
        now_s = self.clock()
        self._communicating_s += now_s - since_s
        self.keep(Span("transfer", since_s, now_s, transfer, about, size_bytes))

    @contextlib.contextmanager
    def waiting(self, reason: str, *, counts: bool = True) -> Iterator[None]:
        """Count the time of a ``with`` block as a wait, as `waited` does."""
        since_s = self.clock()
        try:
            yield
        finally:
            self.waited(since_s, reason, counts=counts)

    @contextlib.contextmanager
    def communicating(self, transfer: str) -> Iterator[None]:
        """Count the time of a ``with`` block as communication; keep a span only of a long one."""
        since_s = self.clock()
        try:
            yield
        finally:
            now_s = self.clock()
            self._communicating_s += now_s - since_s
            if self._keeps_short_waits or now_s - since_s >= NOTABLE_S:
                self.keep(Span("transfer", since_s, now_s, transfer))

    def keep(self, span: Span) -> None:
        """Keep a span if there is room, else count it as left out."""
        if self._room:
            self._room -= 1
            self._spans.append(span)
        else:
            self.left_out += 1

    def take_spans(self) -> list[Span]:
        """Return the spans that were kept since the last call, those that ended earlier first."""
        spans, self._spans = self._spans, []
        return spans

    def times(self) -> Times:
        """Return the times of the rank since the start of this meter."""
        total_s = self.clock() - self._started_s
        working_s = max(0.0, total_s - self._waiting_s - self._communicating_s)
        cpu_s = self._cpu_clock() - self._started_cpu_s
        return Times(working_s, self._waiting_s, self._communicating_s, cpu_s)


class ServerMeter(Meter):
    """The meter of a tuple server, which at any time is working, waiting or moving payloads.

    Its transfers overlap, so they have no spans of their own: a span is a time in which there were
    transfers and no requests. The parameters are those of `Meter`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._state: Literal["working", "waiting", "moving"] = "working"
        self._since_s = self._worked_s = self.clock()
        self._moved_bytes = 0

    def wait(self, since_s: float) -> None:
        """Begin to wait: there has been nothing to do since that time on the meter's clock."""
        if self._state != "waiting":
            self.work()
            self._state, self._since_s = "waiting", max(since_s, self._worked_s)

    def move(self) -> None:
        """Begin to move payloads: from now on they are under way, and there are no requests."""
        if self._state != "moving":
            self.work()
            self._state, self._since_s = "moving", self.clock()

    def work(self) -> None:
        """Begin to work: from now on there are requests to handle."""
        if self._state == "working":
            return
        state, self._state = self._state, "working"
        if state == "waiting":
            self.waited(self._since_s, "requests")
        else:
            self.communicated(self._since_s, "payloads", None, self._moved_bytes)
            self._moved_bytes = 0
        self._worked_s = self.clock()  # the next span begins where this one ends, or later

    def moved(self, size_bytes: int) -> None:
        """Count the bytes of a payload that was received or sent."""
        self._moved_bytes += size_bytes
