"""Files between the master of a sweep and workers of other runs: who writes them, what they say.

::

    sweeps/<group>.<master>/workers/<worker>/
        said.jsonl              worker ──> master: who it is; outcomes; reports; that it leaves
        orders-<term>.jsonl     worker <── master: the sweep; leases; verdicts; stops; the end

The master's end is in `joined_workers`, a worker's in `joined_loop`.

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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from diel import JsonLinesFile, whole_lines

from .ledger import as_numbers, encode
from .messages import IntermediateReport, Lease, Outcome, SweepOrder

FORMAT: Final = 1
SILENCE_S: Final = 30.0
"""A worker that has been silent for so long is lost, unless it asks for another limit."""
FOLDER: Final = "workers"
"""Beside the ledger; in it a folder for each worker."""
SAID: Final = "said.jsonl"
LOOK_EVERY_S: Final = 0.1
LOOK_FOR_NEW_EVERY_S: Final = 0.5
_ORDERS: Final = re.compile(r"orders-(\d+)\.jsonl")
_BEAT_S: Final = 2.0
_BEATS_IN_SILENCE: Final = 5
"""A silence that is taken for a loss has room for so many beats."""
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


class MessageWriter:
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


class MessageReader:
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


def names_in(folder: Path) -> list[str]:
    """Return what a folder holds; nothing if it is not there."""
    try:
        return [entry.name for entry in os.scandir(folder)]
    except OSError:  # nobody has ever joined
        return []


def terms_in(folder: Path) -> Iterator[int]:
    """Yield the terms of which a worker has orders."""
    return (int(found[1]) for name in names_in(folder) if (found := _ORDERS.fullmatch(name)))


def orders_path(folder: Path, term: int) -> Path:
    """Return the file of a master's orders in the folder of a worker."""
    return folder / f"orders-{term:06d}.jsonl"


# -- messages as JSON ------------------------------------------------------------------------------

_NOT_SAID: Final = ("session", "points", "worker")
"""Of an outcome or a report: what the master knows better."""


def order_message(order: SweepOrder, term: int) -> Message:
    """Say what a worker has to know of the sweep: the first message of a term."""
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


def lease_message(lease: Lease) -> Message:
    """Give a lease whose points are known."""
    said = {"number": lease.number, "start": lease.start, "points": lease.points}
    return {"lease": {**said, "attempt": lease.attempt}}


def lease_of(message: Message, session: str) -> Lease:
    """Return the lease in a message, its points as JSON has them."""
    given = message["lease"]
    start, points = given["start"], given["points"]
    return Lease(
        session, given["number"], start, start + len(points), points, attempt=given["attempt"]
    )


def outcome_message(outcome: Outcome) -> Message:
    """Say what a lease gave; the master knows its points."""
    said = {key: value for key, value in vars(outcome).items() if key not in _NOT_SAID}
    said |= {"done": len(outcome.metrics), "stopped": sorted(outcome.stopped)}
    return {"outcome": said}


def outcome_of(message: Message, lease: Lease, worker: str, first_trainer: int) -> Outcome:
    """Return what a lease gave; a ValueError if it is no outcome of this lease."""
    said = message["outcome"]
    done = len(said["metrics"])
    assert lease.points is not None
    columns = (said["metrics"], said["started_s"], said["seconds"])
    if not 0 <= done <= len(lease.points) or any(len(column) != done for column in columns):
        raise ValueError(f"an outcome of {done} trials")
    return Outcome(
        lease.session,
        lease.number,
        lease.start,
        first_trainer + int(said["trainer"]),
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
        worker=worker,
    )


def report_message(report: IntermediateReport) -> Message:
    """Say what a trial has reported."""
    said = {key: value for key, value in vars(report).items() if key not in _NOT_SAID}
    return {"report": said}


def report_of(message: Message, first_trainer: int) -> IntermediateReport:
    """Return what a trial has reported."""
    said = message["report"]
    trainer = first_trainer + int(said["trainer"])
    return IntermediateReport(
        "", int(said["trial"]), trainer, int(said["step"]), as_numbers(said["metrics"])
    )


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
    for name in names_in(ledger.with_name(FOLDER)):
        path = ledger.with_name(FOLDER) / name / SAID
        messages = MessageReader(path, time.monotonic).new_messages()
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
