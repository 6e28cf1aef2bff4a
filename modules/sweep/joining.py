"""Workers of other runs that take part in a sweep, through files in the sweep's folder.

::

    sweeps/<group>.<master>/workers/<worker>/
        said.jsonl              worker ──> master: who it is; outcomes; reports; that it leaves
        orders-<term>.jsonl     worker <── master: the sweep; leases; verdicts; stops; the end

A worker is a run with trainers of its own. Each file has one writer and one reader and only grows,
which any shared file system can do: nothing is locked, replaced or removed. Whoever has nothing to
say writes a beat now and then; a worker that is silent for longer than it has announced is lost,
and its leases are given to others. Silence is measured by who listens, on a clock of its own, so
that clocks of machines need not agree.

The master alone writes the ledger, and knows which leases are out: an outcome of one that has been
given to another meanwhile is passed over, so each trial is recorded once.

A term is a session of a master: what a worker says of an earlier one is passed over.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from diel import JsonLinesFile, whole_lines

from .leases import TARGET_S
from .ledger import as_numbers, encode
from .messages import IntermediateReport, Lease, Outcome, SweepOrder

FORMAT: Final = 1
SILENCE_S: Final = 30.0
"""A worker that has been silent for so long is lost, unless it asks for another limit."""
_FOLDER: Final = "workers"
_SAID: Final = "said.jsonl"
_ORDERS: Final = re.compile(r"orders-(\d+)\.jsonl")
_BEAT_S: Final = 2.0
_BEATS_IN_SILENCE: Final = 5
"""A silence that is taken for a loss has room for so many beats."""
_LOOK_EVERY_S: Final = 0.1
_LOOK_FOR_NEW_EVERY_S: Final = 0.5
_LONG_TRIAL_S: Final = 10.0
"""Of trials that take so long, no trainer has one that waits for its turn."""
_MOST_AHEAD: Final = 9
_MOST_TRAINERS: Final = 2**20
_OF_JOB: Final = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID")

Message: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True)
class Identity:
    """Who takes part in a sweep."""

    name: str
    """Different for each worker; a folder's name."""
    host: str
    pid: int
    job: str
    """Of the batch system; empty outside of one."""
    run_dir: str
    joined_s: float
    """When: seconds since 1970."""

    @classmethod
    def of_this_process(cls, run_dir: Path) -> Identity:
        """Return that of the run that this process belongs to."""
        host, pid = os.uname().nodename, os.getpid()
        safe = re.sub(r"[^A-Za-z0-9-]+", "-", host).strip("-") or "host"
        job = next((os.environ[name] for name in _OF_JOB if os.environ.get(name)), "")
        name = f"{safe}-{pid}-{uuid.uuid4().hex[:6]}"
        return cls(name, host, pid, job, str(run_dir), time.time())


class _MessageWriter:
    """Appends messages to a file of which this is the only writer, and beats between them."""

    def __init__(self, path: Path, silence_s: float, clock: Callable[[], float]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = JsonLinesFile(path)
        self.is_new = not self._file.size_bytes
        self._clock = clock
        self._every_s = min(_BEAT_S, silence_s / _BEATS_IN_SILENCE)
        self._wrote_s = self._due_s = clock()

    def write(self, messages: Iterable[Message]) -> None:
        """Append messages; other machines see them when this returns."""
        self._file.append("".join(encode(one) + "\n" for one in messages).encode())
        self._file.sync()  # what a file system of the network shows to others
        self._wrote_s = self._clock()
        self._due_s = self._wrote_s + self._every_s

    def beat_if_due(self, every_s: float = math.inf) -> None:
        """Write that this end is there, if it has said nothing for a while."""
        if self._clock() >= min(self._due_s, self._wrote_s + every_s):
            self.write([{"beat": True}])

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # of a disk that is full, or a server that is away
            self._file.close()


class _MessageReader:
    """Reads the messages of a file that grows, and knows since when it has not grown."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self.path = path
        self._clock = clock
        self.offset = 0
        self.heard_s = clock()

    def new_messages(self) -> list[Message]:
        """Return what was added since the last call; a damaged line is passed over."""
        found: list[Message] = []
        try:
            for line in whole_lines(self.path, self.offset):
                self.offset += len(line)
                self.heard_s = self._clock()
                try:
                    message = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(message, dict) and "beat" not in message:
                    found.append(message)
        except OSError:  # not there yet, or a file system that does not answer for a while
            pass
        return found

    @property
    def silent_for_s(self) -> float:
        """For how long nothing has been added."""
        return self._clock() - self.heard_s


# -- the master's end ------------------------------------------------------------------------------


@dataclass
class _Worker:
    """A worker as the master knows it."""

    name: str
    reader: _MessageReader
    is_old: bool
    """Whether it was there before this session: then it has to be heard of again first."""
    trainers: int = 0
    """0 as long as it has not said who it is, and once it has left."""
    first_trainer: int = 0
    """The number of its first trainer among all of the sweep."""
    silence_s: float = SILENCE_S
    writer: _MessageWriter | None = None
    """None while it does not take part."""
    is_leaving: bool = False
    leases: dict[int, Lease] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkerChange:
    """What has become of a worker, and the leases that come back from it untried."""

    text: str
    """For the log; empty if nobody needs to know."""
    leases: tuple[int, ...] = ()
    is_loss: bool = False


class JoinedWorkers:
    """The workers of other runs that take part in a sweep, for its master.

    Parameters
    ----------
    ledger : Path
        Of the sweep; their files lie beside it.
    order : callable
        Returns what a worker has to know of the sweep; called when one arrives.
    trainers : int
        How many the master's own run has; those of workers are numbered behind them.
    term : int, optional
        Of the master's session; left out, the next one for which no worker has orders.
    clock : callable, optional
        Seconds from anywhere.
    """

    def __init__(
        self,
        ledger: Path,
        order: Callable[[], SweepOrder],
        trainers: int,
        term: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = ledger.with_name(_FOLDER)
        self._order, self._clock, self._term = order, clock, term
        self._next_trainer = trainers
        self._workers: dict[str, _Worker] = {}
        self._inbox: deque[Outcome | IntermediateReport | WorkerChange] = deque()
        self._look_s = self._look_for_new_s = -math.inf
        self._has_looked = self._is_over = False
        self._stops: list[int] = []

    # -- what they say ----------------------------------------------------------------------------

    def look(self) -> bool:
        """Read what workers have said, if it is time for that; return whether there is something.

        Also writes the master's beats, and finds out who is silent.
        """
        now_s = self._clock()
        if now_s >= self._look_s and not self._is_over:
            self._look_s = now_s + (_LOOK_EVERY_S if self._workers else _LOOK_FOR_NEW_EVERY_S)
            self._find_new(now_s)
            for worker in self._workers.values():
                self._hear(worker)
        return bool(self._inbox)

    def next_message(self) -> Outcome | IntermediateReport | WorkerChange | None:
        """Return what was heard next; None if there is nothing."""
        return self._inbox.popleft() if self._inbox else None

    def _find_new(self, now_s: float) -> None:
        if now_s < self._look_for_new_s:
            return
        self._look_for_new_s = now_s + _LOOK_FOR_NEW_EVERY_S
        for name in set(_names_in(self._folder)) - self._workers.keys():
            reader = _MessageReader(self._folder / name / _SAID, self._clock)
            self._workers[name] = _Worker(name, reader, is_old=not self._has_looked)
        self._has_looked = True

    def _hear(self, worker: _Worker) -> None:
        offset = worker.reader.offset
        messages = worker.reader.new_messages()
        is_heard = worker.reader.offset > offset
        for message in messages:
            try:
                self._take_in(worker, message)
            except (KeyError, TypeError, ValueError, AttributeError):
                continue  # of another version, or somebody else's
        try:
            if worker.writer is not None:
                if worker.reader.silent_for_s > worker.silence_s:
                    text = f"worker {worker.name} has said nothing for {worker.silence_s:g} s"
                    self._end(worker, text, is_loss=True)
                else:
                    worker.writer.beat_if_due()
            elif is_heard and worker.trainers and not worker.is_old:
                self._begin(worker)
            worker.is_old = worker.is_old and not is_heard
        except OSError as error:
            self._end(worker, f"worker {worker.name} cannot be written to: {error}", is_loss=True)

    def _take_in(self, worker: _Worker, message: Message) -> None:
        """Record what a worker has said."""
        if "worker" in message:
            trainers, silence_s = message["trainers"], float(message["silence_s"])
            if message["format"] == FORMAT and 1 <= trainers <= _MOST_TRAINERS and silence_s > 0:
                worker.trainers, worker.silence_s = trainers, silence_s
        elif "left" in message:
            self._end(worker, f"worker {worker.name} has left: {message['left']}")
            worker.trainers = 0
        elif worker.writer is None or message["term"] != self._term:
            pass
        elif "back" in message:
            worker.is_leaving = worker.is_leaving or bool(message.get("leaving"))
            back = [number for number in message["back"] if worker.leases.pop(number, None)]
            self._inbox.append(WorkerChange("", tuple(back)))
        elif "report" in message:
            self._inbox.append(_report_of(message["report"], worker.first_trainer))
        elif "outcome" in message:
            lease = worker.leases.get(message["outcome"]["lease"])
            if lease is not None:  # else it was given to another meanwhile
                self._inbox.append(_outcome_of(message["outcome"], lease, worker))
                del worker.leases[lease.number]

    def _begin(self, worker: _Worker) -> None:
        """Let a worker take part."""
        if self._term is None:
            self._term = 1 + max(
                (term for name in _names_in(self._folder) for term in _terms(self._folder / name)),
                default=0,
            )
        path = self._folder / worker.name / f"orders-{self._term:06d}.jsonl"
        worker.writer = _MessageWriter(path, worker.silence_s, self._clock)
        if worker.writer.is_new:
            worker.writer.write([_message_of(self._order(), self._term), {"stops": self._stops}])
            worker.first_trainer = self._next_trainer
            self._next_trainer += worker.trainers
        worker.is_leaving = False
        count = f"{worker.trainers} trainer{'s' if worker.trainers > 1 else ''}"
        self._inbox.append(WorkerChange(f"worker {worker.name} takes part, with {count}"))

    def _end(self, worker: _Worker, text: str, *, is_loss: bool = False) -> None:
        """Take a worker's leases back; it takes part again as soon as it is heard of."""
        leases, worker.leases = tuple(worker.leases), {}
        if worker.writer is not None:
            worker.writer.close()
            worker.writer = None
            self._inbox.append(WorkerChange(text, leases, is_loss))

    # -- what is said to them ---------------------------------------------------------------------

    @property
    def here(self) -> dict[str, int]:
        """Those that take part, and how many trainers each has."""
        return {worker.name: worker.trainers for worker in self._here()}

    def _here(self) -> Iterator[_Worker]:
        return (worker for worker in self._workers.values() if worker.writer is not None)

    @property
    def leases_out(self) -> int:
        """How many leases they have."""
        return sum(len(worker.leases) for worker in self._workers.values())

    def least_busy(self, trial_s: float | None) -> tuple[float, str]:
        """Return the worker that needs a lease most, after how busy it is: 1 if it has enough.

        `trial_s` is what a trial takes, None if that is not known yet. Without one, (1, "").
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
        wanted = {"number": lease.number, "start": lease.start, "points": lease.points}
        self._tell([worker], {"lease": {**wanted, "attempt": lease.attempt}})

    def answer(self, trainer: int, *, goes_on: bool) -> None:
        """Tell a trainer whether the trial shall go on that it has reported on."""
        for worker in self._here():
            copy = trainer - worker.first_trainer
            if 0 <= copy < worker.trainers:
                self._tell([worker], {"verdict": goes_on, "trainer": copy})

    def stop(self, trials: Iterable[int]) -> None:
        """Have trials end."""
        self._stops = sorted(trials)
        self._tell(self._here(), {"stops": self._stops})

    def recall(self) -> None:
        """Have leases come back that no trainer has begun."""
        self._tell(self._here(), {"recall": True})

    def dismiss(self) -> None:
        """Tell all that the sweep is over; nobody is heard any more."""
        self._tell(self._here(), {"end": True})
        self.close()

    def close(self) -> None:
        """Hear and tell nobody any more."""
        self._is_over = True
        for worker in list(self._here()):
            assert worker.writer is not None
            worker.writer.close()
            worker.writer = None

    def _tell(self, workers: Iterable[_Worker], message: Message) -> None:
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


# -- a worker's end --------------------------------------------------------------------------------


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
        self._folder = ledger.with_name(_FOLDER) / me.name
        self._clock = clock
        self.term = 0
        self._reader = _MessageReader(self._folder / "none", clock)
        self._inbox: deque[Message] = deque()
        self._look_s = -math.inf
        self._writer = _MessageWriter(self._folder / _SAID, silence_s, clock)
        who = {"format": FORMAT, "worker": me.name, **asdict(me)}
        self._writer.write([{**who, "trainers": trainers, "silence_s": silence_s}])

    def look(self) -> bool:
        """Read what the master has said, if it is time; return whether there is something.

        Also writes beats.
        """
        now_s = self._clock()
        if now_s >= self._look_s:
            self._look_s = now_s + _LOOK_EVERY_S
            # A master that has begun at the same time takes it in only once it is heard of again.
            self._writer.beat_if_due(math.inf if self.term else _LOOK_FOR_NEW_EVERY_S)
            latest = max(_terms(self._folder), default=0)
            if latest > self.term:
                self.term = latest
                path = self._folder / f"orders-{latest:06d}.jsonl"
                self._reader = _MessageReader(path, self._clock)
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
        said = {key: value for key, value in vars(outcome).items() if key not in _NOT_SAID}
        said |= {"done": len(outcome.metrics), "stopped": sorted(outcome.stopped)}
        self._say({"outcome": said})

    def put_report(self, report: IntermediateReport) -> None:
        """Tell the master what a trial has reported; a verdict follows."""
        said = {key: value for key, value in vars(report).items() if key not in _NOT_SAID}
        self._say({"report": said})

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


_NOT_SAID: Final = ("session", "points", "worker")


# -- messages as JSON ------------------------------------------------------------------------------


def _message_of(order: SweepOrder, term: int) -> Message:
    return {
        "format": FORMAT,
        "term": term,
        "seed": order.seed,
        "wants_reports": order.wants_reports,
        "quarantined": sorted(order.quarantined),
        "not_to_try": sorted(order.not_to_try),
    }


def order_of(message: Message, session: str, run_session: str) -> SweepOrder:
    """Return what the first message of a master says; a ValueError if it is of another version.

    The sessions are those of the worker's own run.
    """
    if message["format"] != FORMAT:
        raise ValueError(f"its master speaks version {message['format']}, this one {FORMAT}")
    return SweepOrder(
        session,
        message["seed"],
        None,
        wants_reports=message["wants_reports"],
        quarantined=frozenset(message["quarantined"]),
        not_to_try=frozenset(message["not_to_try"]),
        run_session=run_session,
    )


def lease_of(message: Message, session: str) -> Lease:
    """Return the lease in a message, its points as JSON has them."""
    given = message["lease"]
    start, points = given["start"], given["points"]
    return Lease(
        session, given["number"], start, start + len(points), points, attempt=given["attempt"]
    )


def _outcome_of(said: Message, lease: Lease, worker: _Worker) -> Outcome:
    done = len(said["metrics"])
    assert lease.points is not None
    columns = (said["metrics"], said["started_s"], said["seconds"])
    if not 0 <= done <= len(lease.points) or any(len(column) != done for column in columns):
        raise ValueError(f"an outcome of {done} trials")
    return Outcome(
        lease.session,
        lease.number,
        lease.start,
        worker.first_trainer + int(said["trainer"]),
        lease.points[:done],
        [as_numbers(metrics) for metrics in said["metrics"]],
        [float(at) for at in said["started_s"]],
        [float(seconds) for seconds in said["seconds"]],
        {int(trial): str(reason) for trial, reason in said["reasons"].items()},
        {int(trial) for trial in said["stopped"]},
        facts={str(name): str(fact) for name, fact in said["facts"].items()},
        at_once=int(said["at_once"]),
        reports={
            int(trial): [(int(step), as_numbers(metrics)) for step, metrics in reports]
            for trial, reports in said["reports"].items()
        },
        worker=worker.name,
    )


def _report_of(said: Message, first_trainer: int) -> IntermediateReport:
    trainer = first_trainer + int(said["trainer"])
    return IntermediateReport(
        "", int(said["trial"]), trainer, int(said["step"]), as_numbers(said["metrics"])
    )


def _names_in(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder)]
    except OSError:  # nobody has ever joined
        return []


def _terms(folder: Path) -> Iterator[int]:
    """Yield the terms of which a worker has orders."""
    return (int(found[1]) for name in _names_in(folder) if (found := _ORDERS.fullmatch(name)))


# -- for those who look ----------------------------------------------------------------------------


def list_workers(ledger: Path, now_s: float) -> list[dict[str, Any]]:
    """Return who takes part in a sweep, or did, in the order in which they came.

    Parameters
    ----------
    ledger : Path
    now_s : float
        Seconds since 1970, by the clock of the file system.

    Returns
    -------
    list of dict
        ``worker``, ``host``, ``pid``, ``job``, ``run_dir``, ``trainers``; ``trials``: how many it
        has run; ``state``: ``here``, ``silent``, or how it left; ``heard_s``: seconds since it was
        heard of last.
    """
    found = []
    for name in _names_in(ledger.with_name(_FOLDER)):
        path = ledger.with_name(_FOLDER) / name / _SAID
        messages = _MessageReader(path, time.monotonic).new_messages()
        try:
            who, status = messages[0], path.stat()
            heard_s = max(0.0, now_s - status.st_mtime)
            state = "here" if heard_s <= float(who["silence_s"]) else "silent"
            state = next((f"left: {one['left']}" for one in messages[1:] if "left" in one), state)
            keys = ("worker", "host", "pid", "job", "run_dir", "trainers")
            trials = sum(map(_trials_in, messages))
            row = {**{key: who[key] for key in keys}, "trials": trials, "state": state}
        except (OSError, LookupError, TypeError, ValueError):
            continue  # it is just being made, or is nothing of ours
        found.append((who.get("joined_s", 0.0), {**row, "heard_s": heard_s}))
    return [row for _, row in sorted(found, key=lambda entry: entry[0])]


def _trials_in(message: Message) -> int:
    try:
        return int(message["outcome"]["done"])
    except (LookupError, TypeError, ValueError):
        return 0
