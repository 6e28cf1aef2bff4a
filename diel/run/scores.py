"""The best scores of runs, from what their journals say of tables of results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from diel.errors import RunDirectoryError
from diel.frozen import Frozen
from diel.run.directory import RunDirectory
from diel.run.journal import JournalReader
from diel.run.records import (
    CheckpointSaved,
    ResultAdded,
    ResultsDeclared,
    ResultsShown,
    RunResumed,
)
from diel.run.results import best_row
from diel.run.view import ResultsView, RunView

# What says how tables of results stand, and what takes rows of them back.
_READ: Final = (ResultsDeclared, ResultsShown, ResultAdded, CheckpointSaved, RunResumed)


class Score(Frozen):
    """The objective of the best row of a table of results, and the module that filled the table."""

    module: str
    objective: str
    maximise: bool
    best: float


class ScoreReader:
    """Reads the best scores of runs: of a journal that has grown, only what was added.

    Of runs that do not go on it keeps the scores alone.
    """

    def __init__(self) -> None:
        self._scores: dict[Path, tuple[tuple[int, int], list[Score]]] = {}
        self._growing: dict[Path, tuple[JournalReader, RunView]] = {}

    def scores(self, run: Path, *, goes_on: bool) -> list[Score]:
        """Return the best of each table of results of a run, in the order of their declarations.

        Tables without a row that can be ranked are left out, and so are all where the journal
        cannot be read.
        """
        journal = RunDirectory(run).journal
        try:
            about = journal.stat()
            seen = about.st_ino, about.st_size
            before, known = self._scores.get(run, ((0, 0), []))
            if before == seen:
                return known
            if before[0] != seen[0]:  # another file
                self._growing.pop(run, None)
            if run in self._growing:
                reader, view = self._growing.pop(run)
            else:
                reader, view = JournalReader(journal, only=_READ), RunView()
            for record in reader.new_records():
                view.apply(record)
        except (OSError, RunDirectoryError):
            self._growing.pop(run, None)
            return []
        if goes_on:
            self._growing[run] = reader, view
        found = [score for table in view.results.values() if (score := _score(table)) is not None]
        self._scores[run] = seen, found
        return found


def _score(table: ResultsView) -> Score | None:
    if not table.rows:
        return None
    best = float(best_row(table.rows, table.objective, table.maximise)[table.objective])
    if not math.isfinite(best):
        return None
    return Score(table.module, table.objective, table.maximise, best)
