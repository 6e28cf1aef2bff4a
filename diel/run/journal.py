"""The journal: what happened in a run, one JSON record a line, only ever appended to.

Rank 0 writes it by a `Recorder`, which writes the tables of results too.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from diel.errors import RunDirectoryError
from diel.frozen import Frozen
from diel.run.directory import RunDirectory, new_results_file
from diel.run.fields import Record, encoded
from diel.run.files import JsonLinesFile, open_regular
from diel.run.json_values import DEEPEST, DamagedRecord, as_json, plain
from diel.run.records import (
    ResultAdded,
    ResultsDeclared,
    ResultsShown,
    RunCreated,
    RunResumed,
    RunStarted,
    TableName,
    decode,
)
from diel.run.results import ResultsWriter, is_score
from diel.run.view import RunView

_STRICT_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_LONGEST_LINE_BYTES: Final = 2**28
_EVENT: Final = re.compile(rb'\{"time_s": [0-9.e+-]+, "event": "(\w+)"')
_TABLES: Final = 1000
"""More tables of results than any run has."""


class JournalWriter:
    """Appends records to a journal, which it locks against other writers.

    The system releases the lock when this process ends, however it ends. A RunDirectoryError if
    another process writes this journal.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._lines = JsonLinesFile(path, locked=True)
        self._in_batch, self._batch_s = False, 0.0

    def write(self, record: Record) -> Record:
        """Append a record, and return it with its time; it is in the file, except within a `batch`.

        Values of its fields that JSON lacks are written as their ``repr``.
        """
        time_s = self._batch_s if self._in_batch else round(time.time(), 6)
        self._lines.append(_line_of(record, time_s), flush=not self._in_batch)
        return record.at(time_s)

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Write the records of a block at its end, all at once and with the same time."""
        self._in_batch, self._batch_s = True, round(time.time(), 6)
        try:
            yield
        finally:
            self._in_batch = False
            self._lines.flush()

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sync(self) -> None:
        """Return when everything written so far has reached the disk."""
        self._lines.sync()

    def damage(self) -> str:
        """Return how another process has damaged the file, in words; empty if it has not."""
        return self._lines.damage()

    def close(self) -> None:
        """Write everything to the disk and close the file."""
        self._lines.close()


class Damage(Frozen):
    """A line of a journal that is no record: its number, from 1, and what is wrong with it."""

    line: int
    problem: str


class JournalReader:
    """Reads the records of a journal that may still grow, and skips damaged lines.

    The file need not exist yet. A reader that has opened it can still read it when it is removed.

    Parameters
    ----------
    path : path
    only : sequence of classes of records, optional
        Lines of other events are passed over, which takes less time than reading them.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, only: Sequence[type[Record]] | None = None
    ) -> None:
        self._path = Path(path)
        self._only = None if only is None else {kind.__name__.encode() for kind in only}
        self._file: BinaryIO | None = None
        self._offset = 0
        self._line = 0
        self._is_in_long_line = False
        self._last_s = -math.inf
        self._again_up_to_s = -math.inf
        self._consistency = _Consistency()
        self._damaged = 0
        self._first: Damage | None = None
        self._happened = ""

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def complaint(self) -> str:
        """The damage found in the journal so far, in a line; empty if there was none."""
        if self._first is None:
            return f"{self._path} {self._happened}" if self._happened else ""
        many = f", and {self._damaged - 1:,} more lines" if self._damaged > 1 else ""
        return (
            f"{self._path}, line {self._first.line}{many}: no record, left out: "
            f"{self._first.problem}"
        )

    def new_records(self) -> list[Record]:
        """Return the records that were added since the last call.

        A last line that is not finished yet is left for the next call. A RunDirectoryError if the
        file cannot be read at all.
        """
        return [entry for entry in self.new_entries() if not isinstance(entry, Damage)]

    def new_entries(self) -> Iterator[Record | Damage]:
        """Yield the records that were added since the last call, and the damaged lines.

        A RunDirectoryError if the file cannot be read at all.
        """
        try:
            file = self._open()
            if file is None:
                return
            for line in self._new_lines(file):
                if self._only is not None and (
                    (named := _EVENT.match(line)) and named[1] not in self._only
                ):
                    continue
                try:
                    record = decode(line)
                    if record.time_s <= self._again_up_to_s:
                        continue
                    self._again_up_to_s = -math.inf
                    self._last_s = max(self._last_s, record.time_s)
                    self._consistency.add(record)
                except DamagedRecord as error:
                    if self._again_up_to_s > -math.inf:
                        continue
                    self._damaged += 1
                    damage = Damage(self._line, str(error))
                    self._first = self._first or damage
                    yield damage
                else:
                    yield record
        except OSError as error:
            raise RunDirectoryError(
                f"{self._path} cannot be read: {error.strerror or error}"
            ) from error

    def _open(self) -> BinaryIO | None:
        """Open the file again, since on other machines only that shows that it has grown."""
        try:
            file = open_regular(self._path)
        except OSError as error:
            if self._file is None:
                if isinstance(error, FileNotFoundError):
                    return None
                raise
            self._happened = "was removed while it was read"
            return self._file
        if self._file is not None:
            if not os.path.sameopenfile(file.fileno(), self._file.fileno()):
                file.close()
                self._happened = "was replaced while it was read"
                return self._file
            self._file.close()
        self._file = file
        return file

    def _new_lines(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield whole lines, and an empty one for a line that is too long."""
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes < self._offset:
            self._happened = "was cut short while it was read"
            self._offset = size_bytes  # its writer appends whole lines there
            if _ends_with_line(file, size_bytes):
                # It may have done so already: records not later than the last one are old.
                self._offset, self._line, self._again_up_to_s = 0, 0, self._last_s
        file.seek(self._offset)
        while line := file.readline(_LONGEST_LINE_BYTES):
            is_whole, was_long = line.endswith(b"\n"), self._is_in_long_line
            self._is_in_long_line = not is_whole and (was_long or len(line) == _LONGEST_LINE_BYTES)
            if not is_whole and not self._is_in_long_line:
                return
            self._offset += len(line)
            if is_whole:
                self._line += 1
                yield b"" if was_long else line


def read_view(directory: RunDirectory) -> tuple[RunView, str]:
    """Return the state of a run by all of its journal, and the damage found there, in a line."""
    view, reader = RunView(), JournalReader(directory.journal)
    for record in reader.new_records():
        view.apply(record)
    return view, reader.complaint


def is_run_of(directory: RunDirectory, file: Path) -> bool:
    """Whether a directory is that of a run of a workflow file, which has begun."""
    if not directory.journal.is_file():
        return False
    records = JournalReader(directory.journal).new_records()[:2]
    return any(isinstance(record, RunCreated) and record.file == str(file) for record in records)


class _Consistency:
    """Checks records against earlier ones: their groups and tables have to be known."""

    def __init__(self) -> None:
        self._groups: frozenset[str] = frozenset()
        self._objectives: dict[TableName, str] = {}

    def add(self, record: Record) -> None:
        """Check the next record, and remember the groups and tables that it names first.

        A DamagedRecord if it contradicts earlier records; then it is not remembered.
        """
        group = getattr(record, "group", "")
        if group and group not in self._groups:
            raise DamagedRecord(f"{type(record).__name__}: the run has no group {group!r}")
        if isinstance(record, RunStarted):
            self._groups = _checked_groups(record)
        elif isinstance(record, RunResumed):
            if self._groups and not record.finished.keys() <= self._groups:
                raise DamagedRecord("RunResumed: the run has no such groups")
        elif isinstance(record, ResultsDeclared):
            if record.objective not in record.columns or (
                len({*record.columns}) < len(record.columns)
            ):
                raise DamagedRecord("ResultsDeclared: its columns contradict themselves")
            self._objectives[record.table] = record.objective
        elif isinstance(record, ResultAdded):
            objective = self._objective_of(record)
            if not is_score(record.row.get(objective)):
                raise DamagedRecord(f"ResultAdded: {objective} is no number")
        elif isinstance(record, ResultsShown):
            objective = self._objective_of(record)
            # The other rows are still the best: a table is not lost for one of them.
            if isinstance(record.best, list):
                record.best[:] = [row for row in record.best if is_score(row.get(objective))]

    def _objective_of(self, record: ResultAdded | ResultsShown) -> str:
        objective = self._objectives.get(record.table)
        if objective is None:
            raise DamagedRecord(f"{type(record).__name__}: nobody has declared such a table")
        return objective


def _checked_groups(record: RunStarted) -> frozenset[str]:
    groups, inside = frozenset(record.groups), record.inside
    named = {*inside, *inside.values(), *record.iterations, *record.finished, *record.tags}
    named.update(record.depends, *record.depends.values())
    if not named <= groups:
        raise DamagedRecord("RunStarted: it names groups that it does not list")
    for group in inside:
        for _ in range(DEEPEST):
            if group not in inside:
                break
            group = inside[group]
        else:
            raise DamagedRecord("RunStarted: groups are inside of themselves")
    return groups


def _ends_with_line(file: BinaryIO, size_bytes: int) -> bool:
    return size_bytes > 0 and os.pread(file.fileno(), 1, size_bytes - 1) == b"\n"


def _line_of(record: Record, time_s: float) -> bytes:
    table = encoded(record, time_s)
    if getattr(record, "returned", None) is None:  # else all fields are of diel's types
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            return _STRICT_ENCODER.encode(table).encode("utf-8", "replace") + b"\n"
    return as_json(plain(table)) + b"\n"


# -- with the tables of results -------------------------------------------------------------------


class Recorder(JournalWriter):
    """Writer of rank 0: appends records to the journal, and rows of results to ``results.csv`` too.

    Where a run is resumed, the tables of results are first brought back to its last checkpoint. A
    RunDirectoryError if another process writes there.
    """

    def __init__(self, directory: RunDirectory) -> None:
        super().__init__(directory.journal)
        self.directory = directory
        self._results: dict[TableName, ResultsWriter] = {}
        self._is_lost = False
        self._return_to_checkpoint()

    def _return_to_checkpoint(self) -> None:
        view, _ = read_view(self.directory)
        if not view.resumed:
            return
        for number in range(1, _TABLES):
            file = self.directory.results_table(number)
            if not file.exists():
                break
            if file.name not in view.own_files:
                file.unlink()
        for name, table in view.results.items():
            if table.file:
                continue
            writer = self._add_table(name, table.columns)
            for row in table.rows:
                writer.write(row)

    def _add_table(self, name: TableName, columns: Sequence[str]) -> ResultsWriter:
        file = new_results_file(self.directory.path)
        self._results[name] = ResultsWriter(file, columns)
        return self._results[name]

    def record(self, record: Record) -> Record:
        """Write a record; it is in the file when this returns. Returns it with its time."""
        record = self.write(record)
        if self._is_lost:
            return record
        if isinstance(record, ResultsDeclared) and not record.file:
            if record.table not in self._results:
                self._add_table(record.table, record.columns)
        elif isinstance(record, ResultAdded):
            self._results[record.table].write(record.row)
        return record

    def loss(self) -> str:
        """Return how the journal or the run directory was damaged, in words; empty if it was not.

        After that only processes that have the journal open see new records: no table is begun.
        """
        damage = self.damage()
        if not damage:
            return ""
        self._is_lost = True
        is_there = self.directory.path.is_dir()
        return f"{self.directory.journal if is_there else self.directory.path} {damage}"

    def close(self) -> None:
        """Write everything to the disk and close the files."""
        for results in self._results.values():
            results.close()
        super().close()
