"""The loop of a worker: a run whose trainers take part in the sweep of another run.

Its trainers do what they do in any sweep. Messages of the master of the other run come through
files (`joining`), and are put into the tuple space of this run; messages of trainers go back so.
"""

from __future__ import annotations

import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from diel import as_integer
from diel.errors import ModuleFailed, TupleTimeout

from .joining import (
    FOLDER,
    FORMAT,
    LOOK_EVERY_S,
    LOOK_FOR_NEW_EVERY_S,
    MOST_TRAINERS,
    SAID,
    SILENCE_S,
    Identity,
    Message,
    MessageReader,
    MessageWriter,
    lease_of,
    order_of,
    orders_path,
    outcome_message,
    report_message,
    terms_in,
    trials_in,
)
from .messages import IntermediateReport, Lease, Outcome, SweepOrder, Tags
from .results import choices_as_text, restore_choices

if TYPE_CHECKING:
    from diel import Context

    from ..space import Space

_LONGEST_WAIT_S: Final = 1e6
"""Timeout of a wait for trainers: a wait that has one is not taken for a deadlock."""


class MasterLink:
    """A worker's connection to the master of a sweep.

    `trainers` is the number of this worker's trainers. It may be silent for `silence_s` before its
    leases are given to others. `clock` returns seconds since any fixed moment.

    Attributes
    ----------
    term : int
        Term of the master whose orders are read; 0 as long as there is none.
    """

    def __init__(
        self,
        ledger: Path,
        me: Identity,
        trainers: int,
        silence_s: float = SILENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = ledger.with_name(FOLDER) / me.name
        self._clock = clock
        self.term = 0
        self._reader = MessageReader(self._folder / "none", clock)
        self._inbox: deque[Message] = deque()
        self._look_s = -math.inf
        self._writer = MessageWriter(self._folder / SAID, silence_s, clock)
        identity = {"format": FORMAT, "worker": me.name, **asdict(me)}
        self._writer.write([{**identity, "trainers": trainers, "silence_s": silence_s}])

    def look(self) -> bool:
        """Read messages of the master, if it is time; return whether there are any.

        Also writes heartbeats.
        """
        now_s = self._clock()
        if now_s >= self._look_s:
            self._look_s = now_s + LOOK_EVERY_S
            # A master that has begun at the same time lets it take part only once it writes again.
            self._writer.beat_if_due(math.inf if self.term else LOOK_FOR_NEW_EVERY_S)
            latest = max(terms_in(self._folder), default=0)
            if latest > self.term:
                self.term = latest
                path = orders_path(self._folder, latest)
                self._reader = MessageReader(path, self._clock)
                self._inbox.clear()  # messages of an earlier master
            self._inbox += self._reader.new_messages()
            if self._reader.damaged:
                raise ModuleFailed(f"{self.orders} has a damaged line: join anew")
        return bool(self._inbox)

    @property
    def orders(self) -> Path:
        """The file of the master's orders."""
        return self._reader.path

    def next_message(self) -> Message | None:
        """Return the master's next message; None if there is none."""
        return self._inbox.popleft() if self._inbox else None

    @property
    def silent_for_s(self) -> float:
        """Seconds since the master wrote anything, heartbeats included."""
        return self._reader.silent_for_s

    def put_outcome(self, outcome: Outcome) -> None:
        """Send the outcome of a lease to the master, without points, which it has."""
        self._send(outcome_message(outcome))

    def put_report(self, report: IntermediateReport) -> None:
        """Send the report of a trial to the master, which answers with a verdict."""
        self._send(report_message(report))

    def give_back(self, leases: Iterable[int], *, is_leaving: bool = False) -> None:
        """Give back leases that no trainer has begun; a worker that is leaving gets no others."""
        self._send({"back": sorted(leases), "leaving": is_leaving})

    def leave(self, why: str) -> None:
        """Tell the master that this worker takes part no longer, and why."""
        self._send({"left": why})

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    def _send(self, message: Message) -> None:
        self._writer.write([{**message, "term": self.term}])


class WorkerEnd(Enum):
    """Why a worker no longer takes part in the sweep of another run."""

    FINISHED = "the sweep is over"
    SILENT = "its master says nothing any more"
    IN_TIME = "its time is over"
    STOPPED = "its run is stopped"


class JoinedLoop:
    """Passes messages between the master of another run and the trainers of this run.

    Parameters
    ----------
    tags : Tags
        Tags of messages with the trainers here.
    patience_s : callable
        Returns for how many seconds the master may be silent at the moment.
    leave_s : float, seconds, optional
        When to leave, on the clock: trials that have begun are brought to their end.
    is_over : callable, optional
        Returns whether the master's term has ended, by signs other than its messages.
    is_finished : callable, optional
        Returns whether the sweep is over, by such signs: a worker that was suspended for longer
        than its silence is told of nothing any more.

    Attributes
    ----------
    trials : int
        Number of trials that were run here.
    """

    def __init__(
        self,
        ctx: Context,
        tags: Tags,
        space: Space,
        link: MasterLink,
        *,
        patience_s: Callable[[], float],
        leave_s: float | None = None,
        is_over: Callable[[], bool] = lambda: False,
        is_finished: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ctx, self._tags, self._link, self._clock = ctx, tags, link, clock
        self._patience_s, self._leave_s, self._is_over = patience_s, leave_s, is_over
        self._is_finished = is_finished
        self._choices = choices_as_text(space)
        self._order: SweepOrder | None = None
        self._begun: set[int] = set()
        self._awaiting_verdict: set[int] = set()
        self._is_leaving = False
        self.trials = 0

    def run(self) -> WorkerEnd:
        """Take part until the sweep is over, its master is silent, or it is time to leave."""
        for tag in (self._tags.lease, self._tags.outcome, self._tags.stops):
            self._ctx.tuples.collect(tag)  # messages of an earlier session
        how = WorkerEnd.STOPPED
        try:
            how = self._take_part()
            self._forget()
        finally:
            with suppress(OSError), closing(self._link):
                self._link.leave(how.value)
        return how

    def _take_part(self) -> WorkerEnd:
        while True:
            self._link.look()
            while (message := self._link.next_message()) is not None:
                if "end" in message:
                    return WorkerEnd.FINISHED
                self._follow(message)
            if self._is_finished():
                return WorkerEnd.FINISHED
            if self._is_silent():
                return WorkerEnd.SILENT
            if self._is_leaving and not self._begun:
                return WorkerEnd.IN_TIME
            if self._is_time_to_leave():
                self._is_leaving = True
                self._link.give_back(self._collect_leases(), is_leaving=True)
                continue
            self._pass_on(self._next_from_trainers())

    def _is_silent(self) -> bool:
        return self._link.silent_for_s > self._patience_s() or self._is_over()

    def _is_time_to_leave(self) -> bool:
        is_time = self._leave_s is not None and self._clock() >= self._leave_s
        return is_time and not self._is_leaving

    def _is_interrupted(self) -> bool:
        return (
            self._link.look()
            or self._is_finished()
            or self._is_silent()
            or self._is_time_to_leave()
        )

    def _next_from_trainers(self) -> Outcome | IntermediateReport | None:
        """Wait for a message of a trainer here; None if something else is to be done before."""
        try:
            message: Outcome | IntermediateReport = self._ctx.tuples.tget_unless(
                self._tags.outcome, self._is_interrupted, timeout=_LONGEST_WAIT_S
            )
        except TupleTimeout:
            return None
        return message

    def _pass_on(self, message: Outcome | IntermediateReport | None) -> None:
        """Pass a message of a trainer here on to the master."""
        if message is None:
            return
        is_current = self._order is not None and message.session == self._order.session
        if isinstance(message, IntermediateReport):
            if is_current:
                self._awaiting_verdict.add(message.trainer)
                self._link.put_report(message)
            else:  # no master waits for the trial any more
                self._ctx.tuples.tput(self._tags.verdict(message.trainer), False)
        elif is_current:
            self._begun.discard(message.lease)
            self._link.put_outcome(message)
            self.trials += len(message.metrics)
            self._ctx.progress(self.trials, None, "trials for the sweep of another run")

    def _follow(self, message: Message) -> None:
        """Carry out a message of the master."""
        try:
            self._obey(message)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            # What it had to say is lost, so the master may wait for this worker for good.
            raise ModuleFailed(f"{self._link.orders} is damaged: {error}. Join anew") from error

    def _obey(self, message: Message) -> None:
        tuples = self._ctx.tuples
        if "seed" in message:
            self._forget()
            self._order = order_of(message, uuid.uuid4().hex, self._ctx.session)
            tuples.tput(self._tags.sweep(self._order.session), self._order)
        elif self._order is None:
            pass  # from a version whose first message is no order
        elif "lease" in message:
            lease = lease_of(message, self._order.session)
            for point in lease.points or ():
                restore_choices(point, self._choices)
            self._begun.add(lease.number)
            tuples.tput(self._tags.lease, lease)
        elif "verdict" in message:
            trainer = as_integer(message["trainer"], 0, MOST_TRAINERS)
            self._awaiting_verdict.discard(trainer)
            tuples.tput(self._tags.verdict(trainer), message["verdict"] is True)
        elif "stops" in message:
            tuples.collect(self._tags.stops)
            if stops := trials_in(message["stops"]):
                tuples.tput(self._tags.stops, (self._order.session, stops))
        elif "recall" in message:
            self._link.give_back(self._collect_leases())

    def _collect_leases(self) -> list[int]:
        """Take back the leases that no trainer has begun; return their numbers."""
        found = self._ctx.tuples.collect(self._tags.lease)
        numbers = [lease.number for _, lease in found if isinstance(lease, Lease)]
        self._begun.difference_update(numbers)
        return numbers

    def _forget(self) -> None:
        """End the trials that no master waits for any more, and forget the master's orders."""
        self._collect_leases()
        self._begun.clear()
        for trainer in self._awaiting_verdict:
            self._ctx.tuples.tput(self._tags.verdict(trainer), False)
        self._awaiting_verdict.clear()
        self._ctx.tuples.collect(self._tags.stops)
        if self._order is not None:
            with suppress(TupleTimeout):
                self._ctx.tuples.tget_nowait(self._tags.sweep(self._order.session))
            self._order = None
