"""``trials.jsonl``: what a sweep has tried, one JSON record a line, only ever appended to.

::

    {"format": 1, "sweep": {...}}              the options of the sweep
    {"trial": 17, "state": "finished", "parameters": {...}, "metrics": {...}, "seed": ..., ...}
    {"request": {...}, "accepted": true, "answer": "...", ...}     see `steering`
    ...

Lines are written many at a time and are in the file when `Ledger.write` returns: whatever kills
the job loses no trial that was counted. Now and then they are synced to the disk as well, which
bounds what is lost if the machine goes down.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from datetime import time as clock_time
from json.encoder import c_make_encoder, encode_basestring  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any, Final

from diel import JsonLinesFile, as_integer, parse_json, whole_lines
from diel.errors import ModuleFailed

FORMAT: Final = 1
FINISHED: Final = "finished"
FAILED: Final = "failed"
STOPPED: Final = "stopped"
DIVERGED: Final = "diverged"
"""State of a trial that came to its end, but whose training or objective is NaN or infinite."""
INFEASIBLE: Final = "infeasible"
"""State of a trial that came to its end, and breaks a constraint of the sweep."""
RESULTS: Final = (FINISHED, INFEASIBLE)
"""States of trials that the strategy learns from, with what they have reached at their end."""
VIOLATION: Final = "violation"
"""Key in the record of an infeasible trial: by how much it breaks constraints, all together."""
ENDED_BY_TIME: Final = "out_of_time"
"""Key in the record of a finished trial that the time of the sweep has ended: a table of the step
that it had reached, ``at_step``, and of that which its metrics are of, ``best_step``."""

_SYNC_EVERY_S: Final = 1.0
_SYNC_SHARE: Final = 0.05
"""Largest share of the time of a sweep that is spent on syncing lines to the disk."""
_TABLE: Final = re.compile(r"results(-[0-9]{1,9})?\.csv")
_OF_REQUEST: Final = b'{"request": '
_LIMITS: Final = "until"
"""The option that may differ when a sweep goes on: what was tried stays what it is."""
_NEEDED: Final = ("state", "parameters", "metrics")
MOST_TRIALS: Final = 2**32
"""More than any sweep has: a bit is kept for each up to the last one."""


class LedgerError(ModuleFailed, ValueError):
    """A ledger is damaged, or is of another sweep."""


def ledger_path(run_dir: Path, group: str, module: str, iteration: Sequence[int]) -> Path:
    """Return the path of a sweep's ledger; each iteration of its group has one."""
    again = f"-{'.'.join(str(number + 1) for number in iteration)}" if any(iteration) else ""
    return run_dir / "sweeps" / f"{group}.{module}{again}" / "trials.jsonl"


def ledgers_in(run_dir: Path) -> list[Path]:
    """Return the ledgers of a run's sweeps, in the order of their names."""
    return sorted(run_dir.glob("sweeps/*/trials.jsonl"))


class LedgerReplaced(LedgerError):
    """Another master has taken over the ledger that this master writes; nothing was written."""


class Ledger:
    """Appends to a ledger that this process alone writes; `about` is its first line.

    The file is made if need be. Half a line at its end, left by a process that was killed, is cut
    off. A `LedgerError` if the first line of the file is another one.

    If another master may take the ledger over, `is_led` returns whether this master still leads. It
    is called once the file is open: a master that takes over later replaces the file, which is seen
    before each write; a master that took over before may have found no file to replace.
    """

    def __init__(
        self, path: Path, about: dict[str, Any], *, is_led: Callable[[], bool] | None = None
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if has_begun(path):
            # An option that did not exist yet when the sweep began counts as one that is not used.
            there, here = about_of(path), as_written(about)
            keys = {*there, *here} - {_LIMITS}
            odd = sorted(key for key in keys if there.get(key) != here.get(key))
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
        """Wait until everything written so far has reached the disk."""
        started_s = time.monotonic()
        self._lines.sync()
        ended_s = time.monotonic()
        self._next_sync_s = ended_s + max(_SYNC_EVERY_S, (ended_s - started_s) / _SYNC_SHARE)

    def close(self) -> None:
        """Bring everything to the disk, and close the file."""
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
    """Return the options of a ledger's sweep; a `LedgerError` if the file is no ledger."""
    try:
        head = parse_json(next(whole_lines(path), b""))
        if head["format"] == FORMAT and isinstance(head["sweep"], dict):
            about: dict[str, Any] = head["sweep"]
            return about
    except (ValueError, TypeError, LookupError):
        pass
    raise LedgerError(f"{path} is no ledger of a sweep")


def table_of(about: Mapping[str, Any]) -> str:
    """Return the name of the file of a sweep's table, from the options in its ledger."""
    name = about.get("table")
    # Of no other form: a ledger may come from anywhere, and the file is written.
    return name if isinstance(name, str) and _TABLE.fullmatch(name) else "results.csv"


def records_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a ledger, in the order in which they were written.

    A last line that is not whole is ignored; any other line that is no record is a `LedgerError`.
    The file is never in memory as a whole.
    """
    for number, line in enumerate(whole_lines(path), start=1):
        if number == 1 or line.startswith(_OF_REQUEST):
            continue  # the options of the sweep, or a decision
        record = _record_in(line)
        if record is None:
            raise LedgerError(
                f"{path}, line {number}: no record of a trial. Remove the line: a run that is "
                "resumed tries that trial again"
            )
        yield record


def decisions_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the decisions on requests in a ledger, in order; a damaged line is ignored.

    Each has ``request``, a dictionary, ``accepted``, ``answer``, and ``trial`` where it is about a
    trial. An OSError if the file cannot be read.
    """
    for line in whole_lines(path):
        if (decision := decision_in(line)) is not None:
            yield decision


def decision_in(line: bytes) -> dict[str, Any] | None:
    """Return the decision in a line of a ledger, as `decisions_of`; None if it has none."""
    if not line.startswith(_OF_REQUEST):
        return None
    with contextlib.suppress(ValueError):
        record: dict[str, Any] = parse_json(line)
        as_integer(record.get("trial", 0), 0, MOST_TRIALS - 1)
        if (
            isinstance(record["request"], dict)
            and type(record.get("accepted")) is bool
            and type(record.get("answer")) is str
        ):
            return record
    return None


def trials_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a ledger as `records_of`, each with its state, parameters and metrics.

    A record that lacks any of these is that of a failed trial.
    """
    yield from map(_completed, records_of(path))


class LedgerReader:
    """Reads a ledger that may still grow, and skips damaged lines.

    Attributes
    ----------
    complaint : str
        What was wrong with the file so far, in a line; empty if nothing was.
    offset : int, bytes
        How much of the file has been read.
    decisions : list of dict
        Decisions on requests that have been read, as `decisions_of`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.complaint = ""
        self.offset = self._line = 0
        self.decisions: list[dict[str, Any]] = []

    def new_records(self, most: int | None = None) -> list[tuple[int, dict[str, Any]]]:
        """Return records that were added since the last call, at most so many, as `trials_of`.

        Each comes after its offset in the file, which `record_at` takes. An OSError if the file
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
                continue  # the options of the sweep
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
    """Return the record at an offset that `LedgerReader.new_records` returned, as `trials_of`.

    An OSError if the file cannot be read, a `LedgerError` if there is no record any more.
    """
    record = _record_in(next(whole_lines(path, place), b""))
    if record is None:
        raise LedgerError(f"{path} has changed: there is no record at byte {place} any more")
    return _completed(record)


def _record_in(line: bytes) -> dict[str, Any] | None:
    """Return the record that a line holds; None if it holds none."""
    try:
        record: dict[str, Any] = parse_json(line)
        return record if _is_sound(record) else None
    except (ValueError, TypeError, LookupError, AttributeError):
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
    """Whether the fields of a record are of the right type; only its trial is required."""
    as_integer(record["trial"], 0, MOST_TRIALS - 1)
    return (
        isinstance(record.get("parameters", {}), dict)
        and isinstance(record.get("metrics", {}), dict)
        and record.get("state", FINISHED) in (FINISHED, STOPPED, FAILED, DIVERGED, INFEASIBLE)
        and isinstance(record.get("reason", ""), str)
        and all(
            type(step) is int and isinstance(metrics, dict)
            for step, metrics in record.get("reports", ())
        )
    )


# -- JSON -----------------------------------------------------------------------------------------


def _plain(value: object) -> object:
    """Convert a value that the encoder does not know to JSON's types: of NumPy, or TOML's dates."""
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
    """Return metrics of a ledger with NaN and infinities, which are text there, as floats."""
    return {
        name: float(value) if value in ("nan", "inf", "-inf") else value
        for name, value in metrics.items()
    }


def plain(value: Any) -> Any:
    """Return a value as it is read back from a ledger."""
    return as_written({"value": value})["value"]


def as_written(record: dict[str, Any]) -> dict[str, Any]:
    """Return a table as it is read back from a ledger."""
    table: dict[str, Any] = json.loads(encode(record))
    return table


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
