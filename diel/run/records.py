"""What stands in the journal: every event, its fields, and what is allowed in them.

::

    {"time_s": 1700000000.25, "event": "GroupStarted", "group": "train", "iteration": [0], ...}

Whatever reads a run directory gets its records from here, checked one by one (`checked`) and
against those before them (`Consistency`), with the fields that older journals lack filled in. So
a damaged file is found in one place, and whoever uses a record can rely on its fields. Events that
are not in the table are of a later version: they are passed on as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from diel.run.results import TableName, is_score, table_name

Record: TypeAlias = "dict[str, Any]"

DEEPEST: Final = 100
"""How many lists and tables may lie in one another, in what is written and what is read."""
_LARGEST_INTEGER: Final = 2**63
_LARGEST_NUMBER: Final = 1e300
_LATEST_S: Final = 1e11  # what functions for dates still take
_MOST_RANKS: Final = 2**24


class DamagedRecord(ValueError):
    """Bytes are no record of a journal; the message says why."""


@dataclass(frozen=True)
class StoredValue:
    """A returned value that the journal only describes.

    Attributes
    ----------
    type : str
        As Python calls it; of an array its shape and the type of its elements too.
    size_bytes : int
        Of the file.
    file : str or None
        Its name in the folder ``returned``; None if it could not be written.
    problem : str
        Why not, or what the file lacks; empty if nothing is wrong.
    """

    type: str
    size_bytes: int
    file: str | None
    problem: str = ""

    def __str__(self) -> str:
        where = "kept nowhere" if self.file is None else f"returned/{self.file}"
        return f"{self.type} of {self.size_bytes:,} bytes: {where}"


def checked(line: bytes) -> Record:
    """Return the record that stands in a line of a journal.

    Raises
    ------
    DamagedRecord
        If it is none, or a field that its event needs is missing or of another type.
    """
    record = parsed(line)
    if not isinstance(record, dict):
        raise DamagedRecord("it is no table in braces")
    _fill(record, _ALWAYS, "it")
    fields = EVENTS.get(record["event"])
    if fields is not None:
        _fill(record, fields, record["event"])
    return record


def parsed(line: bytes) -> Any:
    """Return what a line says as JSON, nested 100 deep at most.

    Raises
    ------
    DamagedRecord
        If it is no JSON, or nested too deeply.
    """
    try:
        value = _DECODER.decode(line.decode())
    except RecursionError:
        raise DamagedRecord(f"it is nested more than {DEEPEST} deep") from None
    except ValueError:
        raise DamagedRecord("it is no JSON") from None
    if line.count(b"[") + line.count(b"{") > DEEPEST and _is_deep(value):
        raise DamagedRecord(f"it is nested more than {DEEPEST} deep")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [
            item
            for outer in level
            if isinstance(outer, (list, dict))
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


# -- kinds of values ------------------------------------------------------------------------------


class Kind(NamedTuple):
    """What a value must be: in words, and as a function that tells whether it is."""

    words: str
    fits: Callable[[Any], bool]


class Field(NamedTuple):
    """A field of an event; without a default every record has it."""

    kind: Kind
    default: Any = ...


Fields: TypeAlias = "Mapping[str, Field]"


def _fill(table: dict[str, Any], fields: Fields, name: str) -> None:
    """Check the fields of a table and add defaults, or raise DamagedRecord."""
    for field, (kind, default) in fields.items():
        if field not in table:
            if default is ...:
                raise DamagedRecord(f"{name} has no {field}")
            table[field] = copy(default)
        elif not kind.fits(table[field]):
            raise DamagedRecord(f"{name}: {field} is not {kind.words}")


def _or_none(kind: Kind) -> Kind:
    return Kind(f"{kind.words} or null", lambda value: value is None or kind.fits(value))


def _list_of(kind: Kind, words: str) -> Kind:
    fits = kind.fits
    return Kind(words, lambda value: type(value) is list and all(map(fits, value)))


def _table_of(kind: Kind, words: str) -> Kind:
    fits = kind.fits
    return Kind(words, lambda value: type(value) is dict and all(map(fits, value.values())))


def _structure(words: str, **kinds: Kind) -> Kind:
    def fits(value: Any) -> bool:
        return type(value) is dict and all(
            name in value and kind.fits(value[name]) for name, kind in kinds.items()
        )

    return Kind(words, fits)


ANY: Final = Kind("a value", lambda value: True)
TEXT: Final = Kind("text", lambda value: type(value) is str)
TRUTH: Final = Kind("true or false", lambda value: type(value) is bool)
COUNT: Final = Kind(
    "a whole number from 0", lambda value: type(value) is int and 0 <= value < _LARGEST_INTEGER
)
INTEGER: Final = Kind(
    "a whole number",
    lambda value: type(value) is int and -_LARGEST_INTEGER < value < _LARGEST_INTEGER,
)
NUMBER: Final = Kind(
    "a number",
    lambda value: type(value) in (int, float) and -_LARGEST_NUMBER <= value <= _LARGEST_NUMBER,
)
SECONDS: Final = Kind(
    "a number of seconds", lambda value: type(value) in (int, float) and 0 <= value <= _LATEST_S
)
FILE_NAME: Final = Kind(
    "the name of a file",
    lambda value: (
        type(value) is str and value not in ("", ".", "..") and not {"/", "\0"}.intersection(value)
    ),
)
ROW: Final = Kind("a table", lambda value: type(value) is dict)
TEXTS: Final = _list_of(TEXT, "a list of text")
COUNTS: Final = _list_of(COUNT, "a list of whole numbers")
ITERATION: Final = Kind(
    "a list of whole numbers", lambda value: COUNTS.fits(value) and len(value) > 0
)
_RANKS: Final = Kind(
    "a number of ranks", lambda value: type(value) is int and 1 <= value <= _MOST_RANKS
)
_FINISHED: Final = _table_of(
    Kind(
        "an iteration and whether it was the last",
        lambda value: (
            type(value) is list
            and len(value) == 2
            and ITERATION.fits(value[0])
            and TRUTH.fits(value[1])
        ),
    ),
    "a table of the last iteration of groups",
)
_NODES: Final = _list_of(
    _structure("a node", host=TEXT, ranks=COUNTS), "a list of nodes with their ranks"
)
_TIMES: Final = {"working_s": NUMBER, "waiting_s": NUMBER, "communicating_s": NUMBER}

_ALWAYS: Final[Fields] = {"time_s": Field(SECONDS), "event": Field(TEXT)}
_WHO: Final[Fields] = {"module": Field(TEXT), "copy": Field(COUNT)}
_WHICH: Final[Fields] = {"group": Field(TEXT), "iteration": Field(ITERATION, [0])}
_COPY: Final[Fields] = {**_WHICH, **_WHO, "attempt": Field(COUNT, 1)}

EVENTS: Final[Mapping[str, Fields]] = {
    "RunCreated": {"file": Field(TEXT)},
    "RunStarted": {
        "workflow": Field(TEXT),
        "ranks": Field(_RANKS),
        "groups": Field(TEXTS),
        "file": Field(TEXT, ""),
        "mpi": Field(TEXT, "MPI"),
        "iterations": Field(_table_of(_or_none(COUNT), "a table of whole numbers"), {}),
        "inside": Field(_table_of(TEXT, "a table of text"), {}),
        "until": Field(TEXTS, []),
        "finished": Field(_FINISHED, {}),
        "servers": Field(COUNTS, []),
        "nodes": Field(_NODES, []),
    },
    "RunResumed": {
        "checkpoint": Field(COUNT),
        "file": Field(_or_none(FILE_NAME)),
        "finished": Field(_FINISHED),
    },
    "RunRefused": {"error": Field(TEXT), "exit_code": Field(INTEGER)},
    "GroupStarted": {
        **_WHICH,
        "copies": Field(_table_of(COUNT, "a table of whole numbers"), {}),
        "placement": Field(_table_of(COUNTS, "a table of lists of ranks"), {}),
        "groups": Field(TEXTS, []),
    },
    "ModuleCommMade": {**_WHICH, "module": Field(TEXT)},
    "CopyFinished": {
        **_COPY,
        "returned": Field(ANY, None),
        # Of a value that is too large for a journal; without a file it could not be written.
        "returned_file": Field(_or_none(FILE_NAME), None),
        "returned_type": Field(TEXT, ""),
        "returned_bytes": Field(COUNT, 0),
    },
    "ModuleFailed": {
        **_COPY,
        "error": Field(TEXT),
        "group": Field(TEXT, ""),
        "rank": Field(_or_none(COUNT), None),
        "copy_rank": Field(_or_none(COUNT), None),
        "ranks": Field(COUNTS, []),
        "host": Field(TEXT, ""),
        "detail": Field(TEXT, ""),
        "policy": Field(TEXT, "stop"),
        "whole_module": Field(TRUTH, False),
    },
    "CopiesRestarted": {
        **_WHICH,
        "module": Field(TEXT),
        "copies": Field(COUNTS),
        "attempt": Field(COUNT),
    },
    "CopyGivenUp": {**_COPY, "error": Field(TEXT)},
    "GroupFinished": {**_WHICH, "ended_by": Field(_or_none(TEXT), "iterations")},
    "CheckpointSaved": {
        "number": Field(COUNT),
        "file": Field(_or_none(FILE_NAME)),
        # Written until 1.3; what is finished at this moment follows from the records before.
        "finished": Field(_or_none(_FINISHED), None),
    },
    "DeadlockFound": {"explanation": Field(TEXT)},
    "JournalLost": {"explanation": Field(TEXT)},
    "LeaveIgnored": {
        **_WHO,
        "group": Field(TEXT, ""),
        "ranks": Field(COUNTS, []),
        "explanation": Field(TEXT),
    },
    "StopOrdered": {"reason": Field(TEXT)},
    "RanksAborted": {"ranks": Field(COUNTS)},
    "ResultsDeclared": {
        "module": Field(TEXT),
        "columns": Field(TEXTS),
        "objective": Field(TEXT),
        "maximise": Field(TRUTH),
        "expected": Field(_or_none(COUNT)),
        "file": Field(Kind("the name of a file", lambda v: v == "" or FILE_NAME.fits(v)), ""),
        "parameters": Field(TEXTS, []),
    },
    "ResultAdded": {"module": Field(TEXT), "row": Field(ROW)},
    "ResultsShown": {
        "module": Field(TEXT),
        "file": Field(FILE_NAME),
        "count": Field(COUNT),
        "best": Field(_or_none(_list_of(ROW, "a list of tables")), None),
        "constants": Field(ROW, {}),
        "notes": Field(TEXTS, []),
        "unranked": Field(_table_of(COUNT, "a table of whole numbers"), {}),
    },
    "ProgressMade": {
        **_WHO,
        "done": Field(NUMBER),
        "total": Field(_or_none(NUMBER)),
        "text": Field(TEXT),
    },
    "MessageLogged": {**_WHO, "level": Field(TEXT), "text": Field(TEXT)},
    "TimeAccounted": {
        "ranks": Field(
            _list_of(
                _structure("an account", rank=COUNT, host=TEXT, copies=TEXTS, **_TIMES),
                "a list of the times of ranks",
            )
        ),
        "modules": Field(
            _list_of(
                _structure("an account", module=TEXT, ranks=COUNT, **_TIMES),
                "a list of the times of modules",
            )
        ),
    },
    "RunEnded": {"exit_code": Field(INTEGER)},
}

_NANOSECONDS: Final = Kind(
    "a number of nanoseconds",
    lambda value: type(value) in (int, float) and 0 <= value <= _LATEST_S * 1e9,
)
EVENT_OF_A_RANK: Final = _structure(
    "an event of a trace",
    ph=TEXT,
    name=TEXT,
    tid=COUNT,
    ts=_NANOSECONDS,
    dur=_NANOSECONDS,
    args=ROW,
)
"""An event in ``trace/rank-3.jsonl``: ranks write complete events only."""
WAIT: Final = _structure("a wait", rank=COUNT, copy=TEXT, what=TEXT, since_s=SECONDS)
"""A rank that waits, in ``status.json``."""
SERVER: Final = _structure(
    "a server", rank=COUNT, tuples=COUNT, size_bytes=COUNT, capacity_bytes=COUNT
)
"""A tuple server, in ``status.json``."""

PROGRESS: Final = _structure(
    "how far a copy is", copy=TEXT, done=NUMBER, total=_or_none(NUMBER), text=TEXT
)
"""How far a copy is, in ``status.json``."""


# -- records that fit each other ------------------------------------------------------------------


class Consistency:
    """Tells whether records fit those before them: their groups are known, and their tables."""

    def __init__(self) -> None:
        self._groups: frozenset[str] = frozenset()
        self._objectives: dict[TableName, str] = {}

    def add(self, record: Record) -> None:
        """Take in one more record.

        Raises
        ------
        DamagedRecord
            If it does not fit; then it was not taken in.
        """
        event = record["event"]
        if event not in EVENTS:
            return
        group = record.get("group", "")
        if group and group not in self._groups:
            raise DamagedRecord(f"{event}: the run has no group {group!r}")
        check = getattr(self, f"_add_{event}", None)
        if check is not None:
            check(record)

    # Each method below is named after the event of the journal that it checks.

    def _add_RunStarted(self, record: Record) -> None:
        groups, inside = frozenset(record["groups"]), record["inside"]
        named = {*inside, *inside.values(), *record["iterations"], *record["finished"]}
        if not named <= groups:
            raise DamagedRecord("RunStarted: it names groups that it does not list")
        for group in inside:
            for _ in range(DEEPEST):
                if group not in inside:
                    break
                group = inside[group]
            else:
                raise DamagedRecord("RunStarted: groups are inside of themselves")
        self._groups = groups

    def _add_RunResumed(self, record: Record) -> None:
        if self._groups and not record["finished"].keys() <= self._groups:
            raise DamagedRecord("RunResumed: the run has no such groups")

    def _add_ResultsDeclared(self, record: Record) -> None:
        columns, objective, file = record["columns"], record["objective"], record["file"]
        if objective not in columns or len({*columns}) < len(columns):
            raise DamagedRecord("ResultsDeclared: its columns contradict themselves")
        name = table_name(record["module"], [file] if file else columns)
        self._objectives[name] = objective

    def _add_ResultAdded(self, record: Record) -> None:
        row = record["row"]
        self._check_rows(record, row, [row])

    def _add_ResultsShown(self, record: Record) -> None:
        self._check_rows(record, [record["file"]], record["best"] or [])

    def _check_rows(self, record: Record, columns: Any, rows: list[dict[str, Any]]) -> None:
        event = record["event"]
        objective = self._objectives.get(table_name(record["module"], columns))
        if objective is None:
            raise DamagedRecord(f"{event}: nobody has declared such a table")
        if not all(is_score(row.get(objective)) for row in rows):
            raise DamagedRecord(f"{event}: {objective} is no number")
