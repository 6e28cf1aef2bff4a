"""The loop of a run that takes part in a sweep of another: between its master and trainers here.

Its trainers do what they do in any sweep. What the master of the other run gives comes through
files (`joining`), and is put into the tuple space of this run; what trainers say goes back so.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from enum import Enum
from typing import TYPE_CHECKING, Final

from .joining import MasterLink, Message, lease_of, order_of
from .messages import IntermediateReport, Lease, Outcome, SweepOrder, Tags
from .results import choices_as_text, restore_choices

if TYPE_CHECKING:
    from diel import Context

    from ..space import Space

_LONGEST_WAIT_S: Final = 1e6
"""A wait with an end is no deadlock."""


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
