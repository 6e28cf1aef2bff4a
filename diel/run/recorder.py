"""Writer of rank 0 for its records of a run: the journal and the tables of results."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

from diel.run.directory import RunDirectory, new_results_file
from diel.run.fields import Record
from diel.run.journal import JournalReader, JournalWriter
from diel.run.records import ResultAdded, ResultsDeclared, TableName
from diel.run.results import ResultsWriter
from diel.run.view import RunView

_TABLES: Final = 1000
"""More tables of results than any run has."""


class Recorder:
    """Appends records to the journal, and rows of results to ``results.csv`` too.

    Where a run is resumed, the tables of results are first brought back to its last checkpoint. A
    RunDirectoryError if another process writes there.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self._journal = JournalWriter(directory.journal)
        self._results: dict[TableName, ResultsWriter] = {}
        self._is_lost = False
        self._return_to_checkpoint()

    def _return_to_checkpoint(self) -> None:
        view = RunView()
        for record in JournalReader(self.directory.journal).new_records():
            view.apply(record)
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
        record = self._journal.write(record)
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
        damage = self._journal.damage()
        if not damage:
            return ""
        self._is_lost = True
        is_there = self.directory.path.is_dir()
        return f"{self.directory.journal if is_there else self.directory.path} {damage}"

    def batch(self) -> AbstractContextManager[None]:
        """Return a block whose records are written at once, at its end, and have one time."""
        return self._journal.batch()

    def sync(self) -> None:
        """Return when the journal has reached the disk."""
        self._journal.sync()

    def close(self) -> None:
        """Write everything to the disk and close the files."""
        for results in self._results.values():
            results.close()
        self._journal.close()
