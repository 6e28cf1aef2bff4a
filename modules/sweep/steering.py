"""Requests to a sweep while it runs: made by any process, decided on and answered by its master.

::

    client ── sweeps/<group>.<master>/requests.jsonl ──>  master      a line for each request
           <── trials.jsonl, the ledger ────────────────              each request with its answer

Any number of processes append to the file of requests, each line in one write. The master alone
writes the ledger: a request counts when it stands there, so a sweep that is resumed has all
requests and their answers. Requests that were not answered yet wait for the next session.

A decision is a record of the ledger. It is made by `Steering.decide`, written, and then takes
effect by `Steering.apply`; a session that resumes the sweep applies the ledger's decisions again.
"""

from __future__ import annotations

import os
import stat
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast, get_args

from diel import duration_s, format_duration, parse_json, whole_lines

from ..problems import meant
from ..space import Space, SpaceError
from .leases import TrialQueue
from .ledger import about_of, decision_in, decisions_of, encode

if TYPE_CHECKING:
    from ..search import Search

FORMAT: Final = 1
Kind: TypeAlias = Literal["enqueue", "pause", "resume", "stop", "time", "trials"]
KINDS: Final = get_args(Kind)
_FILE: Final = "requests.jsonl"
_LONGEST_LINE: Final = 2**20
_MOST_TRIALS: Final = 2**31
_LOOK_EVERY_S: Final = 0.1


class SteeringError(ValueError):
    """A request to a sweep is malformed, or cannot be fulfilled."""


@dataclass(frozen=True)
class Request:
    """A request to a sweep.

    ``enqueue`` has `parameters`; ``stop`` has `number`, that of the trial; ``trials`` has `number`,
    how many trials the strategy is to have; ``time`` has `time_s`; ``pause`` and ``resume`` have
    none of them.
    """

    id: str
    """Different for each request."""
    kind: Kind
    parameters: Mapping[str, Any] | None = None
    number: int | None = None
    time_s: float | None = None
    """Seconds from the answer on, and from the start of each later session, until trials end."""

    def as_dict(self) -> dict[str, Any]:
        """Return the request in JSON's types."""
        fields: dict[str, Any] = {"version": FORMAT, "id": self.id, "kind": self.kind}
        if self.parameters is not None:
            fields["parameters"] = dict(self.parameters)
        if self.number is not None:
            fields["number"] = self.number
        if self.time_s is not None:
            fields["time_s"] = self.time_s
        return fields

    @classmethod
    def parse(cls, fields: Any) -> Request:
        """Return the request that `as_dict` has written; a `SteeringError` if it is none."""
        if not isinstance(fields, dict) or fields.get("version") != FORMAT:
            raise SteeringError("it is no request of this version")
        kind, id_ = fields.get("kind"), fields.get("id")
        parameters, number = fields.get("parameters"), fields.get("number")
        id_ = id_ if isinstance(id_, str) and id_.isascii() else ""
        if kind not in KINDS or not 1 <= len(id_) <= 100:
            raise SteeringError("it is no request")
        if (kind == "enqueue") != isinstance(parameters, dict):
            raise SteeringError("a trial to enqueue is a table of parameters")
        if kind in ("stop", "trials"):
            least = 1 if kind == "trials" else 0
            if type(number) is not int or not least <= number < _MOST_TRIALS:
                expected = "a number of trials" if kind == "trials" else "the number of a trial"
                raise SteeringError(f"{number!r} is not {expected}")
        elif number is not None:
            raise SteeringError(f"{kind} has no number")
        return cls(
            id_, cast("Kind", kind), parameters, number, _time_of(kind, fields.get("time_s"))
        )


def _time_of(kind: object, time_s: Any) -> float | None:
    """Return the time of a request, in seconds; None for one of another kind."""
    if kind != "time" and time_s is None:
        return None
    try:
        if kind == "time" and type(time_s) in (int, float):
            return duration_s(time_s)
    except ValueError as error:
        raise SteeringError(str(error)) from None
    raise SteeringError(f"{time_s!r:.40} is no time in seconds, for a request of the kind {kind}")


@dataclass(frozen=True)
class Answer:
    """The master's answer to a request."""

    request: Request
    accepted: bool | None
    """None as long as the request has not been answered."""
    text: str
    trial: int | None = None
    """The number that an enqueued trial has got."""


# -- for clients ----------------------------------------------------------------------------------


def requests_for(ledger: Path, asked: Iterable[Mapping[str, Any]]) -> list[Request]:
    """Return requests from tables of ``kind`` and its argument.

    A `SteeringError` if one can never be fulfilled, such as a point outside of the space.
    """
    space, requests = _space_of(ledger), []
    for fields in asked:
        request = Request.parse({**fields, "version": FORMAT, "id": uuid.uuid4().hex})
        problem = ""
        if request.parameters is not None and space is not None:
            problem = point_problem(space, request.parameters)
        if problem:
            raise SteeringError(problem)
        requests.append(request)
    return requests


def point_problems(space: Space, parameters: Mapping[str, Any]) -> dict[str, str]:
    """Return why parameters are wrong, by name; empty if they are a point of the space."""
    found = {}
    for error in space.problems(parameters):
        name = str(error.parameter)
        is_known = name in space.dimensions
        found[name] = error.reason if is_known else f"{error.reason}, {meant(name, space.names)}"
    return found


def point_problem(space: Space, parameters: Mapping[str, Any]) -> str:
    """Return all reasons why parameters are no point of a space; empty if they are a point."""
    found = point_problems(space, parameters)
    text = "; ".join(f"{name}: {reason}" for name, reason in found.items())
    return f"this is no point of the space: {text}" if text else ""


def ask(ledger: Path, requests: Sequence[Request]) -> None:
    """Append requests for the master; an OSError if that fails."""
    lines = [encode(request.as_dict()).encode("utf-8", "replace") for request in requests]
    if any(len(line) >= _LONGEST_LINE for line in lines):
        raise SteeringError("a request is longer than a megabyte")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(ledger.with_name(_FILE), flags, 0o666)
    try:
        for line in lines:
            # A line break before it too: a process killed while writing leaves half a line.
            os.write(descriptor, b"\n" + line + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def answers_to(ledger: Path, requests: Sequence[Request], wait_s: float) -> list[Answer]:
    """Return the master's answers, after `wait_s` at most; an OSError if a file cannot be read.

    While it waits, only new lines of the ledger are read.
    """
    deadline_s = time.monotonic() + wait_s
    found: dict[str, Answer] = {}
    offset = 0
    while True:
        for line in whole_lines(ledger, offset):
            offset += len(line)
            if (answer := _answer_in(decision_in(line))) is not None:
                found[answer.request.id] = answer
        if all(request.id in found for request in requests) or time.monotonic() >= deadline_s:
            return [
                found.get(request.id) or Answer(request, None, "not answered yet")
                for request in requests
            ]
        time.sleep(_LOOK_EVERY_S)


def answers_in(ledger: Path) -> Iterator[Answer]:
    """Yield the answers in the ledger of a sweep, in order; an OSError if it cannot be read."""
    for record in decisions_of(ledger):
        if (answer := _answer_in(record)) is not None:
            yield answer


def _answer_in(record: dict[str, Any] | None) -> Answer | None:
    if record is None:
        return None
    try:
        request = Request.parse(record["request"])
    except SteeringError:
        return None
    return Answer(request, record["accepted"], record["answer"], record.get("trial"))


def is_paused(ledger: Path) -> bool:
    """Whether the last accepted request of a sweep to pause or to resume is to pause."""
    paused = False
    for answer in answers_in(ledger):
        if answer.accepted and answer.request.kind in ("pause", "resume"):
            paused = answer.request.kind == "pause"
    return paused


def _space_of(ledger: Path) -> Space | None:
    """Return the space of a sweep; None if it cannot be read back from JSON: the master checks."""
    space = about_of(ledger).get("space")
    try:
        return Space.parse(space) if isinstance(space, dict) else None
    except SpaceError:
        return None


# -- for the master -------------------------------------------------------------------------------


class RequestReader:
    """Reads the requests for a sweep, each once; damaged lines are skipped."""

    def __init__(self, ledger: Path) -> None:
        self._path = ledger.with_name(_FILE)
        self._offset = self._size_read = 0

    def has_more(self) -> bool:
        """Whether the file has grown; takes a single system call."""
        return self._size() > self._size_read

    def _size(self) -> int:
        try:
            status = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return 0
        return status.st_size if stat.S_ISREG(status.st_mode) else 0  # links are not followed

    def new_requests(self) -> list[Request]:
        """Return requests that were added since the last call."""
        found: list[Request] = []
        size = self._size()
        if size <= self._size_read:
            return found
        self._size_read = size  # half a line is read with what follows it
        try:
            for line in whole_lines(self._path, self._offset):
                self._offset += len(line)
                if 1 < len(line) <= _LONGEST_LINE:
                    found += _request_in(line)
        except OSError:  # the file was removed meanwhile
            pass
        return found


def _request_in(line: bytes) -> list[Request]:
    try:
        return [Request.parse(parse_json(line))]
    except ValueError:
        return []


class Steering:
    """Decides on requests, and holds what they have changed; pure, the same after every restart.

    Attributes
    ----------
    is_paused : bool
        Whether no trial is to be given out.
    stopped : set of int
        Trials that are to end; some have ended since.
    points : dict of int to dict
        The parameters of trials that were enqueued.
    takes_time : bool
        Whether trials can be ended by time: trainers are told as a session begins.
    """

    def __init__(self, search: Search, queue: TrialQueue) -> None:
        self._search, self._queue = search, queue
        self.is_paused = False
        self.stopped: set[int] = set()
        self.points: dict[int, dict[str, Any]] = {}
        self.takes_time = True
        self._known: set[str] = set()

    def is_known(self, request: Request) -> bool:
        """Whether a request has been decided on."""
        return request.id in self._known

    def decide(self, request: Request, reason_to_end: str = "") -> dict[str, Any]:
        """Return the decision on a request, as a record; nothing has changed yet.

        `reason_to_end` says why no further trial begins, if that is so.
        """
        decision: dict[str, Any] = {"request": request.as_dict(), "accepted": True}
        try:
            decision |= getattr(self, f"_{request.kind}")(request, reason_to_end)
        except SteeringError as error:
            decision |= {"accepted": False, "answer": str(error)}
        return decision

    def apply(self, decision: Mapping[str, Any]) -> None:
        """Let a decision take effect; one that no master has made, in a damaged ledger, has none.

        A decision that `decide` has just made always has.
        """
        try:
            request = Request.parse(decision["request"])
        except SteeringError:
            return
        self._known.add(request.id)
        if not decision["accepted"]:
            return
        if request.kind == "enqueue":
            trial, parameters = decision.get("trial"), dict(request.parameters or {})
            if trial is None or point_problem(self._search.space, parameters):
                return
            self.points[trial] = parameters
            self._queue.enqueue(trial)
            self._search.enqueue(trial)
        elif request.kind == "trials":
            self._search.limit(request.number)
            self._queue.total = self._search.size
        elif request.kind == "time":
            self._search.limit_time(request.time_s)
        elif request.kind == "stop":
            assert request.number is not None
            self.stopped.add(request.number)
        else:
            self.is_paused = request.kind == "pause"

    # -- one function for each kind of request: what stands in the record -------------------------

    def _enqueue(self, request: Request, reason_to_end: str) -> dict[str, Any]:
        if reason_to_end:
            raise SteeringError(f"no further trial begins: {reason_to_end}")
        assert request.parameters is not None
        if problem := point_problem(self._search.space, request.parameters):
            raise SteeringError(problem)
        trial = self._queue.next_enqueued()
        return {"answer": f"it is trial {trial}", "trial": trial}

    def _pause(self, request: Request, reason_to_end: str) -> dict[str, Any]:
        if reason_to_end:
            raise SteeringError(f"no further trial begins: {reason_to_end}")
        was = "was paused already" if self.is_paused else "is paused: trials under way go on"
        return {"answer": f"the sweep {was}"}

    def _resume(self, request: Request, reason_to_end: str) -> dict[str, Any]:
        return {"answer": f"the sweep {'goes on' if self.is_paused else 'was not paused'}"}

    def _stop(self, request: Request, reason_to_end: str) -> dict[str, Any]:
        trial = request.number
        assert trial is not None
        if trial in self._queue.recorded:
            raise SteeringError(f"trial {trial} has ended")
        if trial in self.stopped:
            raise SteeringError(f"trial {trial} is to stop already")
        if self._queue.is_trial_out(trial):
            return {"answer": f"trial {trial} ends when it reports next"}
        if not self._queue.has(trial):
            raise SteeringError(f"there is no trial {trial}")
        if not (
            trial in self.points or self._search.is_stateless or self._queue.waits_for_lease(trial)
        ):
            raise SteeringError(f"trial {trial} has not been chosen yet: the strategy learns first")
        return {"answer": f"trial {trial} is not run"}

    def _trials(self, request: Request, reason_to_end: str) -> dict[str, Any]:
        if reason_to_end:
            raise SteeringError(f"no further trial begins: {reason_to_end}")
        most, wanted = self._search.most, request.number
        assert wanted is not None
        if most is not None and wanted > most:
            raise SteeringError(f"the strategy has {most} trials, and no more")
        return {
            "answer": f"the strategy tries {wanted} points; there were {self._limit_text} to be"
        }

    def _time(self, request: Request, reason_to_end: str) -> dict[str, Any]:
        if reason_to_end:
            raise SteeringError(f"no further trial begins: {reason_to_end}")
        start, stop = self._queue.upcoming(1)
        if start >= stop and not self._queue.leases_out:
            raise SteeringError("no trial is left that time could be given to: ask for more trials")
        if not self.takes_time:
            raise SteeringError(
                "this session began without a limit of time, so that its trials keep no best "
                "epochs: end the run, ask again, and resume it"
            )
        assert request.time_s is not None
        return {"answer": f"the sweep ends in {format_duration(request.time_s)}"}

    @property
    def _limit_text(self) -> str:
        return "any number" if self._search.size is None else str(self._search.size)
