"""The files by which a sweep's master and joined runs talk: leases, outcomes, reports, heartbeats.

::

    sweeps/<group>.<master>/workers/<worker>/
        said.jsonl              worker ──> master: its identity; outcomes; reports; that it leaves
        orders-<term>.jsonl     worker <── master: the sweep; leases; verdicts; stops; the end
    sweeps/<group>.<master>/finished    no trial is left: for workers that the master has lost

Both ends, the master's and a worker's, are in `joined_workers`.

A worker is a run with trainers of its own. Each file has one writer and one reader and only grows,
which any shared file system can do: nothing is locked, replaced or removed. A writer without
messages writes a heartbeat now and then; a worker that is silent for longer than it has announced
is lost, and its leases are given to others. The reader measures silence on its own clock, so that
clocks of machines need not agree.

The master alone writes the ledger, and knows which leases are out: an outcome of a lease that has
been given to another worker meanwhile is ignored, so each trial is recorded once.

A term is a session of a master: messages of a worker about an earlier term are ignored.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from diel import (
    JsonLinesFile,
    as_integer,
    as_number,
    batch_job,
    parse_json,
    replace_file,
    whole_lines,
)
from diel.errors import ModuleFailed

from ..metrics import check_metrics, sound_metrics
from ..objective import Aim
from ..strategies import Cutoffs
from .ledger import MOST_TRIALS, as_numbers, encode
from .messages import IntermediateReport, Lease, Outcome, SweepOrder

FORMAT: Final = 1
_WITH_PARENTS: Final = 2
"""Of a master whose trials go on from others: earlier versions would begin them anew."""
SILENCE_S: Final = 30.0
"""A worker that has been silent for so long is lost, unless it asks for another limit."""
FOLDER: Final = "workers"
"""Name of the folder beside the ledger that has a folder for each worker."""
SAID: Final = "said.jsonl"
_FINISHED: Final = "finished"
LOOK_EVERY_S: Final = 0.1
LOOK_FOR_NEW_EVERY_S: Final = 0.5
_ORDERS: Final = re.compile(r"orders-([0-9]{1,9})\.jsonl")
_BEAT_S: Final = 2.0
_BEATS_IN_SILENCE: Final = 5
"""A worker writes at least so many heartbeats in the silence after which it counts as lost."""
MOST_TRAINERS: Final = 2**20
_LATEST_S: Final = 1e11

Message: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True)
class Identity:
    """A run that takes part in a sweep: its name, process and directory."""

    name: str
    """Different for each worker, and the name of its folder."""
    host: str
    pid: int
    job: str
    """Job number of the batch system; empty outside of one."""
    run_dir: str
    joined_s: float
    """When it joined, in seconds since 1970."""

    @classmethod
    def of_this_process(cls, run_dir: Path) -> Identity:
        """Return the identity of the run that this process belongs to."""
        host, pid = os.uname().nodename, os.getpid()
        safe = re.sub(r"[^A-Za-z0-9-]+", "-", host).strip("-") or "host"
        name = f"{safe}-{pid}-{uuid.uuid4().hex[:6]}"
        return cls(name, host, pid, batch_job(), str(run_dir), time.time())


class MessageWriter:
    """Appends messages to a file of which this is the only writer, and heartbeats between them."""

    def __init__(self, path: Path, silence_s: float, clock: Callable[[], float]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = JsonLinesFile(path)
        self.is_new = not self._file.size_bytes
        self._clock = clock
        self._every_s = min(_BEAT_S, silence_s / _BEATS_IN_SILENCE)
        self._wrote_s = self._due_s = clock()

    def write(self, messages: Iterable[Message]) -> None:
        """Append messages; other machines see them when this returns."""
        self._file.append("".join(encode(message) + "\n" for message in messages).encode())
        self._file.sync()  # a network file system shows to others what is synced
        self._wrote_s = self._clock()
        self._due_s = self._wrote_s + self._every_s

    def beat_if_due(self, every_s: float = math.inf) -> None:
        """Write a heartbeat, if nothing has been written for a while."""
        if self._clock() >= min(self._due_s, self._wrote_s + every_s):
            self.write([{"beat": True}])

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # raised if the disk is full, or a server is away
            self._file.close()


class MessageReader:
    """Reads the messages of a file that grows, and measures for how long it has not grown.

    Attributes
    ----------
    damaged : int
        How many lines so far were no message: what they said is lost.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self.path = path
        self._clock = clock
        self.offset = self.damaged = 0
        self.heard_s = clock()

    def new_messages(self) -> list[Message]:
        """Return the messages that were added since the last call; damaged lines are counted."""
        found: list[Message] = []
        try:
            for line in whole_lines(self.path, self.offset):
                self.offset += len(line)
                self.heard_s = self._clock()
                try:
                    message = parse_json(line)
                except ValueError:
                    message = None
                if not isinstance(message, dict):
                    self.damaged += 1
                elif "beat" not in message:
                    found.append(message)
        except OSError:  # not there yet, or a file system that does not answer for a while
            pass
        return found

    @property
    def silent_for_s(self) -> float:
        """Seconds since anything has been added."""
        return self._clock() - self.heard_s


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder; none if it is not there."""
    try:
        return [entry.name for entry in os.scandir(folder)]
    except OSError:  # no worker has ever joined
        return []


def terms_in(folder: Path) -> Iterator[int]:
    """Yield the terms of which a worker has orders."""
    return (int(found[1]) for name in names_in(folder) if (found := _ORDERS.fullmatch(name)))


def orders_path(folder: Path, term: int) -> Path:
    """Return the file of a master's orders in the folder of a worker."""
    return folder / f"orders-{term:06d}.jsonl"


def note_finished(ledger: Path) -> None:
    """Record beside a ledger that no trial of its sweep is left."""
    with contextlib.suppress(OSError):  # then only the workers that are here are told
        replace_file(ledger.with_name(_FINISHED), "")


def forget_finished(ledger: Path) -> None:
    """Remove what `note_finished` has recorded, since a master goes on with the sweep."""
    ledger.with_name(_FINISHED).unlink(missing_ok=True)


def is_finished(ledger: Path) -> bool:
    """Whether no trial of a sweep is left, as far as its master has recorded that."""
    try:
        os.lstat(ledger.with_name(_FINISHED))
    except OSError:  # it is not there, or a file system does not answer for a while
        return False
    return True


# -- messages as JSON ------------------------------------------------------------------------------

_NOT_SENT: Final = ("session", "points", "worker")
"""Fields of an outcome or a report that are not sent, since the master knows them better."""
_TRIALS: Final = ("stopped", "out_of_time", "untried")
"""Fields of an outcome that are sets of trials."""


def order_message(order: SweepOrder, term: int) -> Message:
    """Return the first message of a term: what a worker has to know of the sweep."""
    return {
        "format": FORMAT if order.checkpoints is None else _WITH_PARENTS,
        "term": term,
        "seed": order.seed,
        "wants_reports": order.wants_reports,
        "quarantined": sorted(order.quarantined),
        "not_to_try": sorted(order.not_to_try),
        "aim": None if order.aim is None else vars(order.aim),
    }


def order_of(
    message: Message, session: str, run_session: str, checkpoints: Path | None = None
) -> SweepOrder:
    """Return the order in the first message of a master; a ModuleFailed if its version differs.

    The sessions are those of the worker's own run; `checkpoints` is the folder of the sweep's.
    """
    if message["format"] not in (FORMAT, _WITH_PARENTS):
        raise ModuleFailed(f"its master speaks version {message['format']}, this one {FORMAT}")
    return SweepOrder(
        session,
        as_integer(message["seed"], -math.inf, math.inf),
        None,
        wants_reports=message["wants_reports"] is True,
        quarantined=trials_in(message["quarantined"]),
        not_to_try=trials_in(message["not_to_try"]),
        run_session=run_session,
        aim=_aim_in(message.get("aim")),
        checkpoints=checkpoints if message["format"] == _WITH_PARENTS else None,
    )


def _aim_in(fields: Any) -> Aim | None:
    """Return the aim in a message; None if there is none."""
    if not isinstance(fields, dict):
        return None
    text, maximise = str(fields["text"]), fields["maximise"] is True
    constraints = tuple(map(str, fields.get("constraints", ())))
    return Aim(text, maximise, fields["has_time_limit"] is True, constraints)


def trials_in(numbers: Any) -> frozenset[int]:
    """Return the numbers of trials in a message; a ValueError or TypeError if they are none."""
    return frozenset(as_integer(number, 0, MOST_TRIALS) for number in numbers)


def lease_message(lease: Lease) -> Message:
    """Return the message that gives a lease, whose points are known."""
    fields = {"number": lease.number, "start": lease.start, "points": lease.points}
    judged: Message = {} if lease.parents is None else {"parents": lease.parents}
    if lease.cutoffs is not None:
        cutoffs = [vars(each) for each in lease.cutoffs]
        judged |= {"cutoffs": cutoffs, "cohorts": lease.cohorts}
    return {"lease": {**fields, "attempt": lease.attempt, **judged}}


def lease_of(message: Message, session: str) -> Lease:
    """Return the lease in a message, its points as JSON has them."""
    given = message["lease"]
    start, points = as_integer(given["start"], 0, MOST_TRIALS), given["points"]
    if not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
        raise ValueError("points of a lease are tables")
    number, attempt = as_integer(given["number"], 0), as_integer(given["attempt"], 1)
    lease = Lease(session, number, start, start + len(points), points, attempt=attempt)
    if (parents := given.get("parents")) is not None:
        known = [None if each is None else as_integer(each, 0, start) for each in parents]
        if len(known) != len(points):
            raise ValueError("each trial of a lease has its parent")
        lease = replace(lease, parents=known)
    if not given.get("cutoffs"):
        return lease
    cutoffs = [
        Cutoffs(
            each["rule"],
            {int(step): [*map(float, found)] for step, found in each["numbers"].items()},
        )
        for each in given["cutoffs"]
    ]
    cohorts = [as_integer(which, 0, len(cutoffs) - 1) for which in given["cohorts"]]
    if len(cohorts) != len(points):
        raise ValueError("each trial of a lease has its cutoffs")
    return replace(lease, cutoffs=cutoffs, cohorts=cohorts)


def outcome_message(outcome: Outcome) -> Message:
    """Return the message with the outcome of a lease, without points, which the master has."""
    fields = {key: value for key, value in vars(outcome).items() if key not in _NOT_SENT}
    fields |= {name: sorted(fields[name]) for name in _TRIALS}
    fields["done"] = len(outcome.metrics)
    return {"outcome": fields}


def outcome_of(message: Message, lease: Lease, worker: str, first_trainer: int) -> Outcome:
    """Return the outcome in a message, which a worker of any origin has written.

    A ValueError, TypeError, LookupError or AttributeError if it is no outcome of this lease.
    """
    fields = message["outcome"]
    done = len(fields["metrics"])
    assert lease.points is not None
    columns = (fields["metrics"], fields["started_s"], fields["seconds"])
    if not 0 <= done <= len(lease.points) or any(len(column) != done for column in columns):
        raise ValueError(f"an outcome of {done} trials")

    def trial_of(number: object) -> int:
        # The keys of tables are text in JSON.
        found = int(number) if isinstance(number, str) and number.isdecimal() else number
        return as_integer(found, lease.start, lease.stop - 1)

    def trials(name: str) -> set[int]:
        return {trial_of(trial) for trial in fields.get(name, ())}

    reasons = {trial_of(trial): str(why) for trial, why in fields["reasons"].items()}
    metrics = []
    for trial, given in enumerate(fields["metrics"], start=lease.start):
        try:
            metrics.append(check_metrics(given if type(given) is not dict else as_numbers(given)))
        except TypeError as error:
            metrics.append(sound_metrics(given) if type(given) is dict else {})
            reasons.setdefault(trial, str(error))
    return Outcome(
        lease.session,
        lease.number,
        lease.start,
        first_trainer + as_integer(fields["trainer"], 0, MOST_TRAINERS),
        lease.points[:done],
        metrics,
        [as_number(at, 0, _LATEST_S) for at in fields["started_s"]],
        [as_number(seconds, 0) for seconds in fields["seconds"]],
        reasons,
        facts={str(name): str(fact) for name, fact in fields["facts"].items()},
        at_once=as_integer(fields["at_once"], 1, MOST_TRIALS),
        reports={
            trial_of(trial): [
                (as_integer(step), sound_metrics(as_numbers(given))) for step, given in reports
            ]
            for trial, reports in fields["reports"].items()
        },
        worker=worker,
        stopped=trials("stopped"),
        out_of_time=trials("out_of_time"),
        untried=trials("untried"),
    )


def report_message(report: IntermediateReport) -> Message:
    """Return the message with the report of a trial."""
    fields = {key: value for key, value in vars(report).items() if key not in _NOT_SENT}
    return {"report": fields}


def report_of(message: Message, first_trainer: int, trainers: int) -> IntermediateReport:
    """Return the report of a trial in a message of a worker with so many trainers.

    Errors as `outcome_of`.
    """
    fields = message["report"]
    return IntermediateReport(
        "",
        as_integer(fields["trial"], 0, MOST_TRIALS),
        first_trainer + as_integer(fields["trainer"], 0, trainers - 1),
        as_integer(fields["step"]),
        sound_metrics(as_numbers(fields["metrics"])),
    )


# -- for displays ----------------------------------------------------------------------------------


def list_workers(ledger: Path, now_s: float) -> list[dict[str, Any]]:
    """Return the workers that take part in a sweep, or did, in the order in which they joined.

    Each has ``worker``, ``host``, ``pid``, ``job``, ``run_dir``, ``trainers``; ``trials``: how many
    it has run; ``state``: ``here``, ``silent``, or how it left; ``heard_s``: seconds since it was
    heard of last. `now_s` is the time since 1970 by the clock of the file system.
    """
    found = []
    for name in names_in(ledger.with_name(FOLDER)):
        path = ledger.with_name(FOLDER) / name / SAID
        messages = MessageReader(path, time.monotonic).new_messages()
        try:
            identity, status = messages[0], path.stat()
            heard_s = max(0.0, now_s - status.st_mtime)
            state = "here" if heard_s <= silence_of(identity) else "silent"
            state = next(
                (f"left: {message['left']}" for message in messages[1:] if "left" in message), state
            )
            row: dict[str, Any] = {
                key: str(identity[key]) for key in ("worker", "host", "job", "run_dir")
            }
            row |= {key: as_integer(identity[key], 0) for key in ("pid", "trainers")}
            row |= {"trials": sum(map(_trials_in, messages)), "state": state, "heard_s": heard_s}
            joined_s = as_number(identity.get("joined_s", 0.0), 0, _LATEST_S)
        except (OSError, LookupError, TypeError, ValueError):
            continue  # it is just being made, or is no folder of a worker
        found.append((joined_s, row))
    return [row for _, row in sorted(found, key=lambda entry: entry[0])]


def silence_of(identity: Message) -> float:
    """Return how long a worker says that it may be silent; a ValueError if that is no duration."""
    return as_number(identity["silence_s"], 1e-3, _LATEST_S)


def _trials_in(message: Message) -> int:
    try:
        return as_integer(message["outcome"]["done"], 0, MOST_TRIALS)
    except (LookupError, TypeError, ValueError):
        return 0
