"""The table of results that a module fills: ``ctx.results``."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from diel.run.directory import new_results_file


def as_number(value: Any) -> int | float:
    """Return a real number as Python's int or float, for the journal, or raise ValueError.

    An array of one element is a number too; an integer beyond all floats is none.
    """
    if hasattr(value, "item") and getattr(value, "size", 1) == 1:
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise ValueError(f"{value!r} is no number")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError("it is larger than any float") from None
    return int(value) if isinstance(value, numbers.Integral) else number


class Results:
    """A table of results: ``results.csv``, and the ranked table at the end.

    Copies of a module that declare the same columns share a table; another module, or other
    columns, make another one.
    """

    def __init__(self, record: Callable[..., None], run_dir: Path | None = None) -> None:
        self._record = record
        self._run_dir = run_dir
        self._columns: frozenset[str] | None = None
        self._objective = ""
        self._file = ""

    def declare(
        self,
        columns: Sequence[str],
        *,
        objective: str,
        maximise: bool = True,
        expected: int | None = None,
        file: Path | None = None,
        parameters: Sequence[str] = (),
        facts: Mapping[str, str] | None = None,
    ) -> None:
        """Declare the columns of the table, before the first row.

        Parameters
        ----------
        columns : sequence of str
        objective : str
            The column that ranks the rows.
        maximise : bool, optional
            Whether a larger value is better.
        expected : int, optional
            How many rows there will be, for the progress display.
        file : Path, optional
            Of `new_file`, for a table that would be too long for the journal: the module writes
            it itself, and calls `show` now and then in place of `add`.
        parameters : sequence of str, optional
            Columns whose values were chosen, not computed: `diel report` tells them apart.
        facts : mapping of str to str, optional
            What the rows are computed on and with, by name, for a report.

        Raises
        ------
        ValueError
            If the objective is not among the columns, or they are not distinct names.
        """
        if objective not in columns:
            raise ValueError(f"the objective {objective!r} is not among {', '.join(columns)}")
        if len({*columns}) < len(columns) or not all(isinstance(name, str) for name in columns):
            raise ValueError(f"columns are names, each once: not {', '.join(map(repr, columns))}")
        if expected is not None and int(expected) < 0:
            raise ValueError(f"there cannot be {expected} rows")
        self._columns = frozenset(columns)
        self._objective = objective
        self._file = "" if file is None else file.name
        from diel.run.records import ResultsDeclared  # here: few ranks need it

        self._record(
            ResultsDeclared,
            columns=list(columns),
            objective=objective,
            maximise=bool(maximise),
            expected=None if expected is None else int(expected),
            **({} if file is None else {"file": file.name}),
            **({"parameters": list(parameters)} if parameters else {}),
            **({"facts": {str(name): str(fact) for name, fact in facts.items()}} if facts else {}),
        )

    def new_file(self) -> Path:
        """Make an empty ``results.csv`` or ``results-N.csv``, whichever is free."""
        if self._run_dir is None:
            raise RuntimeError("this context was made without a run directory")
        return new_results_file(self._run_dir)

    def show(
        self,
        count: int,
        *,
        best: Sequence[Mapping[str, Any]] | None = None,
        constants: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
        unranked: Mapping[str, int] | None = None,
    ) -> None:
        """Report the rows so far of a table that the module writes itself.

        Parameters
        ----------
        count : int
            Rows so far.
        best : sequence of mapping, optional
            The best rows, best first, where they have changed since the last call.
        constants : mapping, optional
            Columns that are the same in all rows, not only in the best.
        notes : sequence of str, optional
            Lines to print below the table at the end; the last ones given count.
        unranked : mapping of str to int, optional
            Numbers of rows that are not ranked, by reason: ``{"diverged": 2}``.

        Raises
        ------
        ValueError
            If the table was not declared with a `file`, or the objective of a row is no number.
        """
        if not self._file:
            raise ValueError("ctx.results.declare(..., file=...) comes before ctx.results.show")
        fields: dict[str, Any] = {"file": self._file, "count": count}
        if best is not None:
            fields |= {"best": [*map(self._checked, best)], "constants": dict(constants or {})}
        if notes:
            fields["notes"] = list(notes)
        if unranked:
            fields["unranked"] = dict(unranked)
        from diel.run.records import ResultsShown

        self._record(ResultsShown, **fields)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add one row.

        Parameters
        ----------
        row : mapping
            A value for each declared column.

        Raises
        ------
        ValueError
            If its keys are not the columns, no columns were declared, or the objective is no
            number.
        """
        if self._columns is None:
            raise ValueError("ctx.results.declare(...) comes before ctx.results.add(...)")
        if self._file:
            raise ValueError("this table is the module's own: ctx.results.show says how it stands")
        if self._columns != set(row):
            odd = ", ".join(sorted(map(str, self._columns.symmetric_difference(row))))
            raise ValueError(f"a row has a value for each declared column and no other: see {odd}")
        from diel.run.records import ResultAdded

        self._record(ResultAdded, row=self._checked(row))

    def _checked(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row whose objective is a number of Python's; ValueError if it is none."""
        try:
            value = as_number(row.get(self._objective))
        except ValueError as error:
            raise ValueError(f"the objective {self._objective!r} is a number: {error}") from None
        return {**row, self._objective: value}
