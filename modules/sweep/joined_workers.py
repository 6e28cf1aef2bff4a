"""Workers of other runs that take part in a sweep: the master's end, and their own.

The master's end is `JoinedWorkers`: a worker takes part as soon as it has identified itself, and
until it leaves or is silent for too long; then its leases come back.

A worker's end is `JoinedLoop`: its trainers do what they do in any sweep. Messages of the master
of the other run come through files (`joining`), and are put into the tuple space of this run;
messages of trainers go back so.
"""

from __future__ import annotations

import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from diel import as_integer
from diel.errors import ModuleFailed, TupleTimeout

from ..trial import StopCause
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
    forget_finished,
    lease_message,
    lease_of,
    names_in,
    note_finished,
    order_message,
    order_of,
    orders_path,
    outcome_message,
    outcome_of,
    report_message,
    report_of,
    silence_of,
    terms_in,
    trials_in,
)
from .leases import TARGET_S
from .lineage import FOLDER as CHECKPOINTS
from .messages import IntermediateReport, Lease, Outcome, Stops, SweepOrder, Tags
from .results import choices_as_text, restore_choices

if TYPE_CHECKING:
    from diel import Context

    from ..space import Space

_LONG_TRIAL_S: Final = 10.0
"""If trials take so long, a trainer has one lease at a time, and none ahead."""
_MOST_AHEAD: Final = 9
_LONGEST_WAIT_S: Final = 1e6
"""Timeout of a wait for trainers: a wait that has one is not taken for a deadlock."""


@dataclass
class _Worker:
    """What the master of a sweep knows about one worker."""

    name: str
    reader: MessageReader
    is_old: bool
    """Whether it was there before this session: then it has to write again before it takes part."""
    trainers: int = 0
    """Number of its trainers; 0 until it has identified itself, and once it has left."""
    first_trainer: int = 0
    """The number of its first trainer among all of the sweep."""
    silence_s: float = SILENCE_S
    writer: MessageWriter | None = None
    """None while it does not take part."""
    is_leaving: bool = False
    leases: dict[int, Lease] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerChange:
    """A change in a worker's part in the sweep, and the leases that come back from it untried."""

    text: str
    """Text for the log; empty if there is nothing to log."""
    leases: tuple[int, ...] = ()
    is_loss: bool = False


class JoinedWorkers:
    """The workers of other runs that take part in a sweep, for its master.

    Their files lie beside the ledger. `order` is called when a worker joins, and returns what it
    has to know of the sweep. `trainers` is the number of trainers in the master's own run: those of
    workers are numbered behind them. `term` is that of the master's session; left out, the next one
    for which no worker has orders. `clock` returns seconds since any fixed moment.
    """

    def __init__(
        self,
        ledger: Path,
        order: Callable[[], SweepOrder],
        trainers: int,
        term: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger, self._folder = ledger, ledger.with_name(FOLDER)
        forget_finished(ledger)
        self._order, self._clock, self._term = order, clock, term
        self._next_trainer = trainers
        self._workers: dict[str, _Worker] = {}
        self._inbox: deque[Outcome | IntermediateReport | WorkerChange] = deque()
        self._look_s = self._look_for_new_s = -math.inf
        self._has_looked = self._is_over = False
        self._stops: Message = {"stops": [], "time": StopCause.NO}

    # -- messages from workers --------------------------------------------------------------------

    def look(self) -> bool:
        """Read messages of workers, if it is time for that; return whether there are any.

        Also writes the master's heartbeats, and finds out which workers are silent.
        """
        now_s = self._clock()
        if now_s >= self._look_s and not self._is_over:
            self._look_s = now_s + (LOOK_EVERY_S if self._workers else LOOK_FOR_NEW_EVERY_S)
            self._find_new(now_s)
            for worker in self._workers.values():
                self._read_messages(worker)
        return bool(self._inbox)

    def next_message(self) -> Outcome | IntermediateReport | WorkerChange | None:
        """Return the next message, or change of a worker; None if there is none."""
        return self._inbox.popleft() if self._inbox else None

    def _find_new(self, now_s: float) -> None:
        if now_s < self._look_for_new_s:
            return
        self._look_for_new_s = now_s + LOOK_FOR_NEW_EVERY_S
        for name in set(names_in(self._folder)) - self._workers.keys():
            reader = MessageReader(self._folder / name / SAID, self._clock)
            self._workers[name] = _Worker(name, reader, is_old=not self._has_looked)
        self._has_looked = True

    def _read_messages(self, worker: _Worker) -> None:
        offset, damaged = worker.reader.offset, worker.reader.damaged
        messages = worker.reader.new_messages()
        has_written = worker.reader.offset > offset
        for message in messages:
            try:
                self._handle(worker, message)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                # It may have been the outcome of a lease, which would never come back.
                self._end(
                    worker, f"worker {worker.name} has sent no message: {error}", is_loss=True
                )
        if worker.reader.damaged > damaged:
            self._end(worker, f"{worker.reader.path} has a damaged line", is_loss=True)
        try:
            if worker.writer is not None:
                if worker.reader.silent_for_s > worker.silence_s:
                    text = f"worker {worker.name} has said nothing for {worker.silence_s:g} s"
                    self._end(worker, text, is_loss=True)
                else:
                    worker.writer.beat_if_due()
            elif has_written and worker.trainers and not worker.is_old:
                self._begin(worker)
            worker.is_old = worker.is_old and not has_written
        except OSError as error:
            self._end(worker, f"worker {worker.name} cannot be written to: {error}", is_loss=True)

    def _handle(self, worker: _Worker, message: Message) -> None:
        """Handle a message of a worker."""
        if "worker" in message:
            trainers = as_integer(message["trainers"], 1, MOST_TRAINERS)
            if message["format"] == FORMAT:
                worker.silence_s, worker.trainers = silence_of(message), trainers
        elif "left" in message:
            self._end(worker, f"worker {worker.name} has left: {message['left']}")
            worker.trainers = 0
        elif worker.writer is None or message["term"] != self._term:
            pass
        elif "back" in message:
            worker.is_leaving = worker.is_leaving or bool(message.get("leaving"))
            numbers = [as_integer(number) for number in message["back"]]
            back = [number for number in numbers if worker.leases.pop(number, None)]
            self._inbox.append(WorkerChange("", tuple(back)))
        elif "report" in message:
            report = report_of(message, worker.first_trainer, worker.trainers)
            if any(lease.start <= report.trial < lease.stop for lease in worker.leases.values()):
                self._inbox.append(report)
            else:  # it was given to another worker meanwhile
                self.answer(report.trainer, goes_on=False)
        elif "outcome" in message:
            lease = worker.leases.get(as_integer(message["outcome"]["lease"]))
            if lease is not None:  # else it was given to another worker meanwhile
                outcome = outcome_of(message, lease, worker.name, worker.first_trainer)
                self._inbox.append(outcome)
                del worker.leases[lease.number]

    def _begin(self, worker: _Worker) -> None:
        """Let a worker take part."""
        if self._term is None:
            self._term = 1 + max(
                (term for name in names_in(self._folder) for term in terms_in(self._folder / name)),
                default=0,
            )
        path = orders_path(self._folder / worker.name, self._term)
        worker.writer = MessageWriter(path, worker.silence_s, self._clock)
        if worker.writer.is_new:
            worker.writer.write([order_message(self._order(), self._term), self._stops])
            worker.first_trainer = self._next_trainer
            self._next_trainer += worker.trainers
        worker.is_leaving = False
        count = f"{worker.trainers} trainer{'s' if worker.trainers > 1 else ''}"
        self._inbox.append(WorkerChange(f"worker {worker.name} takes part, with {count}"))

    def _end(self, worker: _Worker, text: str, *, is_loss: bool = False) -> None:
        """Take a worker's leases back; it takes part again as soon as it writes again."""
        leases, worker.leases = tuple(worker.leases), {}
        if worker.writer is not None:
            worker.writer.close()
            worker.writer = None
            self._inbox.append(WorkerChange(text, leases, is_loss))

    # -- messages to workers ----------------------------------------------------------------------

    @property
    def here(self) -> dict[str, int]:
        """The names of the workers that take part, and how many trainers each has."""
        return {worker.name: worker.trainers for worker in self._here()}

    def _here(self) -> Iterator[_Worker]:
        return (worker for worker in self._workers.values() if worker.writer is not None)

    @property
    def leases_out(self) -> int:
        """How many leases all workers have."""
        return sum(len(worker.leases) for worker in self._workers.values())

    def least_busy(self, trial_s: float | None) -> tuple[float, str]:
        """Return how busy the least busy worker is, 1 or more with enough leases, and its name.

        `trial_s` is how long a trial takes, None if that is not known yet. Returns (1, "") if there
        is no worker.
        """
        enough = leases_ahead(trial_s)
        return min(
            (
                (len(worker.leases) / (enough * worker.trainers), worker.name)
                for worker in self._here()
                if not worker.is_leaving
            ),
            default=(1.0, ""),
        )

    def give(self, name: str, lease: Lease) -> None:
        """Give a lease, whose points are known, to a worker."""
        worker = self._workers[name]
        worker.leases[lease.number] = lease
        self._send([worker], lease_message(lease))

    def answer(self, trainer: int, *, goes_on: bool) -> None:
        """Send a trainer the verdict whether the trial that it has reported on goes on."""
        for worker in self._here():
            copy = trainer - worker.first_trainer
            if 0 <= copy < worker.trainers:
                self._send([worker], {"verdict": goes_on, "trainer": copy})

    def stop(self, stops: Stops) -> None:
        """Tell all workers which trials are to stop."""
        self._stops = {"stops": sorted(stops.trials), "time": stops.time}
        self._send(self._here(), self._stops)

    def recall(self) -> None:
        """Ask all workers for the leases that no trainer has begun."""
        self._send(self._here(), {"recall": True})

    def dismiss(self) -> None:
        """Tell all workers that the sweep is over, and read no more of their messages."""
        note_finished(self._ledger)
        self._send(self._here(), {"end": True})
        self.close()

    def close(self) -> None:
        """Close all files: no message is read or written any more."""
        self._is_over = True
        for worker in list(self._here()):
            assert worker.writer is not None
            worker.writer.close()
            worker.writer = None

    def _send(self, workers: Iterable[_Worker], message: Message) -> None:
        for worker in list(workers):
            try:
                if worker.writer is not None:
                    worker.writer.write([message])
            except OSError as error:
                text = f"worker {worker.name} cannot be written to: {error}"
                self._end(worker, text, is_loss=True)


def leases_ahead(trial_s: float | None) -> int:
    """Return how many leases a trainer of a worker needs, so that it waits for none."""
    if trial_s is None or trial_s >= _LONG_TRIAL_S:
        return 1
    return min(_MOST_AHEAD, 1 + math.ceil(1.0 / max(trial_s, TARGET_S)))


# -- a worker's end -------------------------------------------------------------------------------


class MasterLink:
    """A worker's connection to the master of a sweep.

    `trainers` is the number of this worker's trainers. It may be silent for `silence_s` before its
    leases are given to others. `clock` returns seconds since any fixed moment.

    Attributes
    ----------
    term : int
        Term of the master whose orders are read; 0 as long as there is none.
    ledger : Path
        Of the sweep.
    """

    def __init__(
        self,
        ledger: Path,
        me: Identity,
        trainers: int,
        silence_s: float = SILENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ledger, self._folder = ledger, ledger.with_name(FOLDER) / me.name
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
            checkpoints = self._link.ledger.with_name(CHECKPOINTS)
            self._order = order_of(message, uuid.uuid4().hex, self._ctx.session, checkpoints)
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
            cause = StopCause(message.get("time", StopCause.NO))
            stops = Stops(self._order.session, trials_in(message["stops"]), cause)
            if stops.trials or stops.time:
                tuples.tput(self._tags.stops, stops)
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
