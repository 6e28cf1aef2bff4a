"""Which tasks of executables are done, for a run that goes on: files that ranks append to.

::

    tasks/<session>.<rank>.jsonl    a line for each share of tasks that this rank has done
    tasks/done.jsonl                what counts of all earlier sessions, in a run that goes on

A line is ``[group, iteration, module, tasks]``. It holds tasks that have ended well and have not
used the tuple space, which returns to the last checkpoint. A process may be killed at any moment:
half a line at the end of a file counts as none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from diel.run.directory import RunDirectory
from diel.run.files import JsonLinesFile, replacing, whole_lines
from diel.run.json_values import DamagedRecord, parse_json

_DONE: Final = "done.jsonl"
_NUMBERS_SHOWN: Final = 20

Place: TypeAlias = tuple[str, tuple[int, ...], str]
"""A group, its iteration, and a module in it."""


class ProgramEnd(NamedTuple):
    """How a copy of an executable has finished.

    Attributes
    ----------
    is_apart : bool
        Whether none of its programs has used the tuple space.
    failed_tasks : tuple of int
        Its tasks that have failed, where some may.
    """

    is_apart: bool
    failed_tasks: tuple[int, ...] = ()


class TaskRecords:
    """The tasks that a rank has done in this session, and those that all did in earlier ones."""

    def __init__(self, directory: RunDirectory, session: str) -> None:
        self._folder = directory.tasks
        self._session = session
        self._earlier: dict[Place, set[int]] | None = None
        self._file: JsonLinesFile | None = None

    def done_earlier(self, place: Place) -> Collection[int]:
        """Return the tasks of a module that earlier sessions have done: the same on all ranks."""
        if self._earlier is None:
            self._earlier = _merged([self._folder / _DONE])
        return self._earlier.get(place, ())

    def add(self, rank: int, place: Place, tasks: Sequence[int]) -> None:
        """Record that tasks are done; an OSError if that cannot be written."""
        if self._file is None:
            self._folder.mkdir(exist_ok=True)
            self._file = JsonLinesFile(self._folder / f"{self._session}.{rank}.jsonl")
        self._file.append(_line(place, tasks))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def forget_tasks(directory: RunDirectory, groups: Collection[str]) -> None:
    """Let the tasks of groups be done again, before a session begins."""
    if groups:
        _keep(directory, lambda place: place[0] not in groups)


def keep_done(directory: RunDirectory, going_on: Collection[tuple[str, tuple[int, ...]]]) -> None:
    """Let the tasks that are recorded count in a session that begins, before any rank works.

    `going_on` are the groups and iterations that the session begins with: all others come after
    what is repeated, so that their tasks are repeated too. An OSError if it cannot be written.
    """
    _keep(directory, lambda place: place[:2] in going_on)


def _keep(directory: RunDirectory, stays: Callable[[Place], bool]) -> None:
    """Put the tasks that stay into one file."""
    files = sorted(directory.tasks.glob("*.jsonl"))
    if not files:
        return
    merged = _merged(files)
    with replacing(directory.tasks / _DONE) as done:
        for place, tasks in merged.items():
            if stays(place):
                done.write(_line(place, sorted(tasks)))
    for file in files:
        if file.name != _DONE:
            file.unlink()


def recorded_tasks(directory: RunDirectory) -> int:
    """Return how many tasks are recorded, without those of iterations long finished."""
    return sum(map(len, _merged(directory.tasks.glob("*.jsonl")).values()))


def tasks_in_words(total: int, failed: Sequence[int]) -> str:
    """Describe the tasks of a module: ``998 of 1000 tasks, 2 failed: 17, 403``."""
    numbers = numbers_in_words(failed)
    return f"{total - len(failed)} of {total} tasks, {len(failed)} failed: {numbers}"


def numbers_in_words(tasks: Sequence[int]) -> str:
    """Return the numbers of tasks as a text, shortened."""
    shown = ", ".join(map(str, tasks[:_NUMBERS_SHOWN]))
    return f"{shown}, ..." if len(tasks) > _NUMBERS_SHOWN else shown


def _line(place: Place, tasks: Sequence[int]) -> bytes:
    return json.dumps([*place, tasks], separators=(",", ":")).encode() + b"\n"


def _merged(files: Iterable[Path]) -> dict[Place, set[int]]:
    merged: dict[Place, set[int]] = {}
    for file in files:
        for place, tasks in _entries(file):
            merged.setdefault(place, set()).update(tasks)
    return merged


def _entries(file: Path) -> Iterator[tuple[Place, list[int]]]:
    try:
        for line in whole_lines(file):
            try:
                group, iteration, module, tasks = parse_json(line)
                places = (group, tuple(iteration), module)
                is_whole = all(type(number) is int for number in (*places[1], *tasks))
            except (DamagedRecord, TypeError, ValueError):
                continue  # what it said is done is repeated
            if type(group) is str and type(module) is str and is_whole:
                yield places, tasks
    except FileNotFoundError:
        return
