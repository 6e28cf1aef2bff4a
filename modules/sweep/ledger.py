"""``trials.jsonl``: what a sweep has tried, one JSON record a line, only ever appended to.

::

    {"format": 1, "sweep": {...}}              what was asked for
    {"trial": 17, "state": "finished", "parameters": {...}, "metrics": {...}, "seed": ..., ...}
    {"request": {...}, "accepted": true, "answer": "...", ...}     see `steering`
    ...

Lines are written many at a time and are in the file when `Ledger.write` returns: whatever kills
the job loses no trial that was counted. Now and then they are brought to the disk as well, which
bounds what is lost if the machine goes down.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from datetime import time as clock_time
from json.encoder import c_make_encoder, encode_basestring  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any, Final

from diel import JsonLinesFile, whole_lines
from diel.errors import ModuleFailed

FORMAT: Final = 1
FINISHED: Final = "finished"
FAILED: Final = "failed"
STOPPED: Final = "stopped"
DIVERGED: Final = "diverged"
"""It came to its end, and its training or its objective did not: NaN or infinity."""

_SYNC_EVERY_S: Final = 1.0
_SYNC_SHARE: Final = 0.05
"""Of the time of a sweep, at most so much is spent on bringing lines to the disk."""
_OF_REQUEST: Final = b'{"request": '
_NEEDED: Final = ("state", "parameters", "metrics")
_MOST_TRIALS: Final = 2**32
"""More than any sweep has: a bit is kept for each up to the last one."""


class LedgerError(ModuleFailed, ValueError):
    """A ledger is damaged, or is of another sweep."""


def ledger_path(run_dir: Path, group: str, module: str, iteration: Sequence[int]) -> Path:
    """Return where the ledger of a sweep lies; each iteration of its group has one."""
    again = f"-{'.'.join(str(number + 1) for number in iteration)}" if any(iteration) else ""
    return run_dir / "sweeps" / f"{group}.{module}{again}" / "trials.jsonl"


class LedgerReplaced(LedgerError):
    """Another master has taken a ledger over that this one was writing; nothing was written."""


class Ledger:
    """Appends to a ledger that this process alone writes; `about` is its first line.

    The file is made if need be. Half a line at its end, left by a process that was killed, is cut
    off. A `LedgerError` if the file says something else about itself.

    Of one that another master may take over, `is_led` says whether this master leads yet. It is
    asked once the file is open: a master that takes over later replaces the file, which is seen
    before each write; one that has taken over before may have found no file to replace.
    """

    def __init__(
        self, path: Path, about: dict[str, Any], *, is_led: Callable[[], bool] | None = None
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if has_begun(path):
            # An option that was not there yet when the sweep began is as one that is not used.
            there, here = about_of(path), json.loads(encode(about))
            odd = sorted(key for key in {*there, *here} if there.get(key) != here.get(key))
            if odd:
                raise LedgerError(f"{path} is of another sweep: see {', '.join(odd)}")
        self._path, self._may_be_replaced = path, is_led is not None
        self._lines = JsonLinesFile(path)
        if is_led is not None and not is_led():
            self.close()
            raise LedgerReplaced(f"{path} is led by another master now")
        self._next_sync_s = time.monotonic() + _SYNC_EVERY_S
        if not self._lines.size_bytes:
            self._append(encode({"format": FORMAT, "sweep": about}) + "\n")

    def write(self, records: Iterable[dict[str, Any]]) -> None:
        """Append records; they are in the file when this returns."""
        if self._may_be_replaced and self._lines.damage():
            raise LedgerReplaced(f"{self._path} is led by another master now")
        self._append("".join([encode(record) + "\n" for record in records]))
        if time.monotonic() >= self._next_sync_s:
            self.sync()

    def sync(self) -> None:
        """Return when everything written so far has reached the disk."""
        started_s = time.monotonic()
        self._lines.sync()
        ended_s = time.monotonic()
        self._next_sync_s = ended_s + max(_SYNC_EVERY_S, (ended_s - started_s) / _SYNC_SHARE)

    def close(self) -> None:
        """Bring everything to the disk."""
        with contextlib.suppress(*((OSError,) if self._may_be_replaced else ())):
            self._lines.close()

    def _append(self, text: str) -> None:
        self._lines.append(text.encode("utf-8", "replace"))


def has_begun(path: Path) -> bool:
    """Whether there is a ledger with a whole line; half of one says nothing of its sweep."""
    try:
        return next(whole_lines(path), None) is not None
    except FileNotFoundError:
        return False


def about_of(path: Path) -> dict[str, Any]:
    """Return what a ledger says of its sweep; a `LedgerError` if it is none."""
    try:
        head = json.loads(next(whole_lines(path), b""))
        if head["format"] == FORMAT and isinstance(head["sweep"], dict):
            about: dict[str, Any] = head["sweep"]
            return about
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise LedgerError(f"{path} is no ledger of a sweep")


def records_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a ledger, in the order in which they were written.

    A last line that is not whole is passed over; another that is no record is a `LedgerError`. The
    file is never in memory as a whole.
    """
    for number, line in enumerate(whole_lines(path), start=1):
        if number == 1 or line.startswith(_OF_REQUEST):
            continue  # what was asked for
        record = _record_in(line)
        if record is None:
            raise LedgerError(
                f"{path}, line {number}: no record of a trial. Remove the line: a run that is "
                "resumed tries that trial again"
            )
        yield record


def decisions_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what a ledger says of requests to the sweep, in order; a damaged line is passed over.

    Each has ``request``, a dictionary, ``accepted``, ``answer``, and ``trial`` where it is about
    one. An OSError if the file cannot be read.
    """
    for line in whole_lines(path):
        if (decision := decision_in(line)) is not None:
            yield decision


def decision_in(line: bytes) -> dict[str, Any] | None:
    """Return what a line of a ledger says of a request, as `decisions_of`; None if nothing."""
    if not line.startswith(_OF_REQUEST):
        return None
    with contextlib.suppress(ValueError, RecursionError):
        record: dict[str, Any] = json.loads(line)
        if (
            isinstance(record["request"], dict)
            and type(record.get("accepted")) is bool
            and type(record.get("answer")) is str
            and type(record.get("trial", 0)) is int
            and 0 <= record.get("trial", 0) < _MOST_TRIALS
        ):
            return record
    return None


def trials_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a ledger as `records_of`, each with its state, parameters and metrics.

    One that lacks any of these is of a trial that failed: nothing else can be said of it.
    """
    yield from map(_completed, records_of(path))


class LedgerReader:
    """Reads a ledger that may still grow, and passes over what is damaged.

    Attributes
    ----------
    complaint : str
        What was wrong with it so far, in a line; empty if nothing was.
    offset : int, bytes
        How much of the file has been read.
    decisions : list of dict
        On requests to the sweep, those that have been read: as `decisions_of`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.complaint = ""
        self.offset = self._line = 0
        self.decisions: list[dict[str, Any]] = []

    def new_records(self, most: int | None = None) -> list[tuple[int, dict[str, Any]]]:
        """Return records that were added since the last call, at most so many, as `trials_of`.

        Before each stands its place in the file, which `record_at` takes. An OSError if the file
        cannot be read.
        """
        found: list[tuple[int, dict[str, Any]]] = []
        if self.path.stat().st_size < self.offset:
            self.complaint = f"{self.path} was cut short"
            return found
        for line in whole_lines(self.path, self.offset):
            if most is not None and len(found) >= most:
                break
            place, self.offset = self.offset, self.offset + len(line)
            self._line += 1
            if self._line == 1:
                continue  # what was asked for
            if line.startswith(_OF_REQUEST):
                if (decision := decision_in(line)) is not None:
                    self.decisions.append(decision)
                continue
            record = _record_in(line)
            if record is None:
                text = f"{self.path}, line {self._line}: no record of a trial, left out"
                self.complaint = self.complaint or text
            else:
                found.append((place, _completed(record)))
        return found


def record_at(path: Path, place: int) -> dict[str, Any]:
    """Return the record at a place that a `LedgerReader` has told, as `trials_of`.

    An OSError if the file cannot be read, a `LedgerError` if there is no record any more.
    """
    record = _record_in(next(whole_lines(path, place), b""))
    if record is None:
        raise LedgerError(f"{path} has changed: there is no record at byte {place} any more")
    return _completed(record)


def _record_in(line: bytes) -> dict[str, Any] | None:
    """Return the record that a line holds; None if it is none."""
    try:
        record: dict[str, Any] = json.loads(line)
        return record if _is_sound(record) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _completed(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with state, parameters and metrics, and with a reason if it failed."""
    missing = [name for name in _NEEDED if name not in record]
    if missing:
        record |= {"state": FAILED, "reason": f"its record has no {' and no '.join(missing)}"}
        record.setdefault("parameters", {})
        record.setdefault("metrics", {})
    elif record["state"] == FAILED:
        record.setdefault("reason", "its record does not say why")
    return record


def _is_sound(record: dict[str, Any]) -> bool:
    """Whether what a record has is of the right kind; it need not have more than its trial."""
    trial = record["trial"]
    return (
        type(trial) is int
        and 0 <= trial < _MOST_TRIALS
        and isinstance(record.get("parameters", {}), dict)
        and isinstance(record.get("metrics", {}), dict)
        and record.get("state", FINISHED) in (FINISHED, STOPPED, FAILED, DIVERGED)
        and isinstance(record.get("reason", ""), str)
        and all(
            type(step) is int and isinstance(metrics, dict)
            for step, metrics in record.get("reports", ())
        )
    )


# -- JSON -----------------------------------------------------------------------------------------


def _plain(value: object) -> object:
    """Return in JSON's own types what the encoder does not know: NumPy's numbers, TOML's dates."""
    if hasattr(value, "tolist") and not isinstance(value, type):
        return value.tolist()
    if isinstance(value, (date, clock_time)):  # a datetime is a date
        return value.isoformat()
    return repr(value)


# json.dumps makes an encoder at each call, which takes longer than a record.
_encode: Final = c_make_encoder(
    None, _plain, encode_basestring, None, ": ", ", ", False, False, False
)


def encode(record: dict[str, Any]) -> str:
    """Write a record as JSON on one line; NaN and infinities as text, since JSON has neither."""
    try:
        return "".join(_encode(record, 0))
    except ValueError:
        return "".join(_encode(_finite(record), 0))


def as_numbers(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return metrics of a ledger as they were: NaN and infinities are text there."""
    return {
        name: float(value) if value in ("nan", "inf", "-inf") else value
        for name, value in metrics.items()
    }


def plain(value: Any) -> Any:
    """Return a value as a reader of the ledger finds it."""
    return json.loads(encode({"value": value}))["value"]


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if not isinstance(value, (float, int, str, type(None))):
        value = _plain(value)
        if isinstance(value, list):
            return _finite(value)
    if isinstance(value, float) and not math.isfinite(value):
        return repr(float(value))
    return value
