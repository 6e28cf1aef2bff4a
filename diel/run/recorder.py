"""Writes everything that rank 0 has to say about a run."""

from __future__ import annotations

from typing import Any

from diel.run.directory import RunDirectory
from diel.run.journal import JournalWriter, Record
from diel.run.results import ResultsWriter, TableName, table_name


class Recorder:
    """Appends to the journal and, for results, to ``results.csv``.

    Parameters
    ----------
    directory : RunDirectory
    """

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self._journal = JournalWriter(directory.journal)
        self._results: dict[TableName, ResultsWriter] = {}

    def record(self, event: str, **fields: Any) -> Record:
        """Write one record; it is in the file when this returns."""
        record = self._journal.write(event, **fields)
        if event == "ResultsDeclared":
            table = table_name(fields["module"], fields["columns"])
            if table not in self._results:
                file = self.directory.results_table(len(self._results) + 1)
                self._results[table] = ResultsWriter(file, fields["columns"])
        elif event == "ResultAdded":
            self._results[table_name(fields["module"], fields["row"])].write(fields["row"])
        return record

    def sync(self) -> None:
        """Return when the journal has reached the disk."""
        self._journal.sync()

    def close(self) -> None:
        """Bring everything to the disk."""
        for results in self._results.values():
            results.close()
        self._journal.close()
