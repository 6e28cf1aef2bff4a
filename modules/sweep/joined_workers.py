"""Workers of other runs that take part in a sweep, as its master sees them.

A worker takes part as soon as it has identified itself, and until it leaves or is silent for too
long; then its leases come back. The messages between both are in `joining`.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from diel import as_integer

from .joining import (
    FOLDER,
    FORMAT,
    LOOK_EVERY_S,
    LOOK_FOR_NEW_EVERY_S,
    MOST_TRAINERS,
    SAID,
    SILENCE_S,
    Message,
    MessageReader,
    MessageWriter,
    forget_finished,
    lease_message,
    names_in,
    note_finished,
    order_message,
    orders_path,
    outcome_of,
    report_of,
    silence_of,
    terms_in,
)
from .leases import TARGET_S
from .messages import IntermediateReport, Lease, Outcome, SweepOrder

_LONG_TRIAL_S: Final = 10.0
"""If trials take so long, a trainer has one lease at a time, and none ahead."""
_MOST_AHEAD: Final = 9


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
        self._stops: list[int] = []

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
            worker.writer.write([order_message(self._order(), self._term), {"stops": self._stops}])
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

    def stop(self, trials: Iterable[int]) -> None:
        """Tell all workers which trials are to stop."""
        self._stops = sorted(trials)
        self._send(self._here(), {"stops": self._stops})

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
