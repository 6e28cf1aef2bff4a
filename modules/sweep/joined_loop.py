"""A worker: a run that takes part in a sweep of another, between its master and trainers here.

Its trainers do what they do in any sweep. What the master of the other run gives comes through
files (`joining`), and is put into the tuple space of this run; what trainers say goes back so.
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

from .joining import (
    FOLDER,
    FORMAT,
    LOOK_EVERY_S,
    LOOK_FOR_NEW_EVERY_S,
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
)
from .messages import IntermediateReport, Lease, Outcome, SweepOrder, Tags
from .results import choices_as_text, restore_choices

if TYPE_CHECKING:
    from diel import Context

    from ..space import Space

_LONGEST_WAIT_S: Final = 1e6
"""A wait with an end is no deadlock."""


class MasterLink:
    """A worker's connection to the master of a sweep.

    Parameters
    ----------
    ledger : Path
        Of the sweep.
    me : Identity
    trainers : int
        How many this worker has.
    silence_s : float, seconds
        For how long it may say nothing before its leases are given to others.
    clock : callable, optional
        Seconds from anywhere.

    Attributes
    ----------
    term : int
        Of the master whose orders are read; 0 as long as there is none.
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
        who = {"format": FORMAT, "worker": me.name, **asdict(me)}
        self._writer.write([{**who, "trainers": trainers, "silence_s": silence_s}])

    def look(self) -> bool:
        """Read what the master has said, if it is time; return whether there is something.

        Also writes beats.
        """
        now_s = self._clock()
        if now_s >= self._look_s:
            self._look_s = now_s + LOOK_EVERY_S
            # A master that has begun at the same time takes it in only once it is heard of again.
            self._writer.beat_if_due(math.inf if self.term else LOOK_FOR_NEW_EVERY_S)
            latest = max(terms_in(self._folder), default=0)
            if latest > self.term:
                self.term = latest
                path = orders_path(self._folder, latest)
                self._reader = MessageReader(path, self._clock)
                self._inbox.clear()  # of a master that is no more
            self._inbox += self._reader.new_messages()
        return bool(self._inbox)

    def next_message(self) -> Message | None:
        """Return what the master has said next; None if there is nothing."""
        return self._inbox.popleft() if self._inbox else None

    @property
    def silent_for_s(self) -> float:
        """For how long the master has said nothing."""
        return self._reader.silent_for_s

    def put_outcome(self, outcome: Outcome) -> None:
        """Tell the master what a lease gave; it knows the points."""
        self._say(outcome_message(outcome))

    def put_report(self, report: IntermediateReport) -> None:
        """Tell the master what a trial has reported; a verdict follows."""
        self._say(report_message(report))

    def give_back(self, leases: Iterable[int], *, is_leaving: bool = False) -> None:
        """Give leases back that nobody has begun; one that is leaving is given no others."""
        self._say({"back": sorted(leases), "leaving": is_leaving})

    def leave(self, why: str) -> None:
        """Say that this worker takes part no longer."""
        self._say({"left": why})

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    def _say(self, message: Message) -> None:
        self._writer.write([{**message, "term": self.term}])


class HowEnded(Enum):
    """Why a run takes part no longer."""

    FINISHED = "the sweep is over"
    SILENT = "its master says nothing any more"
    IN_TIME = "its time is over"
    STOPPED = "its run is stopped"


class JoinedLoop:
    """Takes part in the sweep of another run.

    Parameters
    ----------
    ctx : Context
    tags : Tags
        Of the trainers here.
    space : Space
        Of the sweep.
    link : MasterLink
    patience_s : callable
        For how many seconds the master may say nothing at the moment.
    leave_s : float, seconds, optional
        When to leave, on the clock: trials that have begun are brought to their end.
    is_over : callable, optional
        Says of what is outside of the link that it has ended: the master's term.

    Attributes
    ----------
    trials : int
        How many were run here.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ctx, self._tags, self._link, self._clock = ctx, tags, link, clock
        self._patience_s, self._leave_s, self._is_over = patience_s, leave_s, is_over
        self._choices = choices_as_text(space)
        self._order: SweepOrder | None = None
        self._begun: set[int] = set()
        self._asking: set[int] = set()
        self._is_leaving = False
        self.trials = 0

    def run(self) -> HowEnded:
        """Take part until the sweep is over, its master is silent, or it is time to leave."""
        for tag in (self._tags.lease, self._tags.outcome, self._tags.stops):
            self._ctx.tuples.collect(tag)  # of an earlier session
        how = HowEnded.STOPPED
        try:
            how = self._take_part()
            self._forget()
        finally:
            with suppress(OSError), closing(self._link):
                self._link.leave(how.value)
        return how

    def _take_part(self) -> HowEnded:
        while True:
            self._link.look()
            while (message := self._link.next_message()) is not None:
                if "end" in message:
                    return HowEnded.FINISHED
                self._follow(message)
            if self._is_silent():
                return HowEnded.SILENT
            if self._is_leaving and not self._begun:
                return HowEnded.IN_TIME
            if self._is_time_to_leave():
                self._is_leaving = True
                self._link.give_back(self._collect_leases(), is_leaving=True)
                continue
            self._pass_on(self._next_of_trainers())

    def _is_silent(self) -> bool:
        return self._link.silent_for_s > self._patience_s() or self._is_over()

    def _is_time_to_leave(self) -> bool:
        is_time = self._leave_s is not None and self._clock() >= self._leave_s
        return is_time and not self._is_leaving

    def _is_interrupted(self) -> bool:
        return self._link.look() or self._is_silent() or self._is_time_to_leave()

    def _next_of_trainers(self) -> Outcome | IntermediateReport | None:
        """Wait for what a trainer here says; None if something else is to be done before."""
        from diel.errors import TupleTimeout

        try:
            said: Outcome | IntermediateReport = self._ctx.tuples.tget_unless(
                self._tags.outcome, self._is_interrupted, timeout=_LONGEST_WAIT_S
            )
        except TupleTimeout:
            return None
        return said

    def _pass_on(self, said: Outcome | IntermediateReport | None) -> None:
        """Tell the master what a trainer has said."""
        if said is None:
            return
        is_now = self._order is not None and said.session == self._order.session
        if isinstance(said, IntermediateReport):
            if is_now:
                self._asking.add(said.trainer)
                self._link.put_report(said)
            else:  # nobody wants the trial any more
                self._ctx.tuples.tput(self._tags.verdict(said.trainer), False)
        elif is_now:
            self._begun.discard(said.lease)
            self._link.put_outcome(said)
            self.trials += len(said.metrics)
            self._ctx.progress(self.trials, None, "trials for the sweep of another run")

    def _follow(self, message: Message) -> None:
        """Do what the master wants."""
        tuples = self._ctx.tuples
        if "seed" in message:
            self._forget()
            self._order = order_of(message, uuid.uuid4().hex, self._ctx.session)
            tuples.tput(self._tags.sweep(self._order.session), self._order)
        elif self._order is None:
            pass  # of a version that says something before it says who it is
        elif "lease" in message:
            lease = lease_of(message, self._order.session)
            for point in lease.points or ():
                restore_choices(point, self._choices)
            self._begun.add(lease.number)
            tuples.tput(self._tags.lease, lease)
        elif "verdict" in message:
            self._asking.discard(message["trainer"])
            tuples.tput(self._tags.verdict(message["trainer"]), message["verdict"])
        elif "stops" in message:
            tuples.collect(self._tags.stops)
            if message["stops"]:
                stops = frozenset(message["stops"])
                tuples.tput(self._tags.stops, (self._order.session, stops))
        elif "recall" in message:
            self._link.give_back(self._collect_leases())

    def _collect_leases(self) -> list[int]:
        """Take the leases back that no trainer has begun; return their numbers."""
        found = self._ctx.tuples.collect(self._tags.lease)
        numbers = [lease.number for _, lease in found if isinstance(lease, Lease)]
        self._begun.difference_update(numbers)
        return numbers

    def _forget(self) -> None:
        """Have trials end that nobody waits for any more, and forget the master's orders."""
        from diel.errors import TupleTimeout

        self._collect_leases()
        self._begun.clear()
        for trainer in self._asking:
            self._ctx.tuples.tput(self._tags.verdict(trainer), False)
        self._asking.clear()
        self._ctx.tuples.collect(self._tags.stops)
        if self._order is not None:
            with suppress(TupleTimeout):
                self._ctx.tuples.tget_nowait(self._tags.sweep(self._order.session))
            self._order = None
