"""A run as a Python object, for scripts and notebooks, while it goes on or afterwards.

::

    import diel

    run = diel.open_run("runs/study-20260101-120000")
    run.state                           # "running", "finished", ...
    run.results()                       # its table of results as a pandas frame
    run.figure("history")               # of its sweep, by Plotly

A `Run` reads the run's directory and nothing else, so the run may be on another machine. Each
property is read anew at every access.
"""

from __future__ import annotations

import html
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from diel.errors import MissingPackage, RunDirectoryError
from diel.loading.reporter import WatchedSweep
from diel.loading.sweeps import watch_sweeps
from diel.run.directory import RunDirectory
from diel.run.fields import Record
from diel.run.files import open_regular
from diel.run.history import State, is_run, summarize
from diel.run.journal import JournalReader
from diel.run.records import CheckpointSaved
from diel.run.results import best_row, rank_rows, read_rows
from diel.run.view import GroupView, ResultsView, RunView
from diel.run_tuples import RunTuples, SavedTuples
from diel.text import format_duration, format_value

if TYPE_CHECKING:
    import plotly.graph_objects

Form: TypeAlias = Literal["pandas", "polars", "rows"]

_TABLE_ROWS: Final = 5
_LOOK_EVERY_S: Final = 0.2
_LONGEST_LOG_BYTES: Final = 2**26


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open the directory of a run that goes on, has ended or was killed.

    Parameters
    ----------
    path : path
        The run's directory, such as ``runs/study-20260101-120000``.

    Returns
    -------
    Run

    Raises
    ------
    RunDirectoryError
        If the path is not a run's directory, or cannot be read.
    """
    folder = Path(path)
    if not is_run(folder):
        raise RunDirectoryError(
            f"{folder} is no run's directory: it holds no journal. diel runs DIR lists the runs "
            "of a folder"
        )
    return Run(folder)


class Run:
    """A run, read from its directory; made by `open_run`.

    Attributes
    ----------
    path : Path
        Its directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._directory = RunDirectory(path)
        self.path = self._directory.path
        self._reader = JournalReader(self._directory.journal)
        self._view = RunView()
        self._sweeps: dict[str, WatchedSweep] = {}

    # -- state ------------------------------------------------------------------------------------

    @property
    def view(self) -> RunView:
        """State of the run from its journal so far: groups, results, failures, times."""
        for record in self._reader.new_records():
            self._view.apply(record)
        return self._view

    @property
    def state(self) -> State:
        """State of the run: running, finished, failed, stopped, killed, never started, damaged."""
        return summarize(self.path, time.time()).state

    @property
    def name(self) -> str:
        """The name of the workflow."""
        return self.view.name or self.path.name

    @property
    def groups(self) -> dict[str, GroupView]:
        """Groups of the run by name, each with its state and iteration."""
        return self.view.groups

    @property
    def complaint(self) -> str:
        """What was damaged in the journal, in a line; empty if nothing was."""
        return self._reader.complaint

    def journal(self) -> Iterator[Record]:
        """Yield all records of the journal, as instances of the classes of `diel.run.records`."""
        yield from JournalReader(self._directory.journal).new_records()

    def wait(self, timeout_s: float | None = None) -> State:
        """Wait until the run has ended; return its state, or "running" after the timeout."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while (state := self.state) == "running":
            if deadline_s is not None and time.monotonic() >= deadline_s:
                break
            time.sleep(_LOOK_EVERY_S)
        return state

    def stop(self) -> None:
        """Ask the run to stop, as Ctrl-C does; it can be resumed."""
        self._directory.request_stop()

    @property
    def tuples(self) -> RunTuples | SavedTuples:
        """Tuples of the run, to read, put and take; after its end those of the last checkpoint.

        Raises
        ------
        CheckpointError
            If the checkpoint is damaged.
        """
        if self.state == "running":
            return RunTuples(self._directory)
        file = None
        for record in self.journal():
            if isinstance(record, CheckpointSaved):
                file = record.file
        return SavedTuples(None if file is None else self._directory.checkpoints / file)

    # -- logs -------------------------------------------------------------------------------------

    @property
    def logs(self) -> list[str]:
        """Names of the run's log files, such as ``trainer.0.0.log``."""
        return sorted(file.name for file in self._directory.logs.glob("*") if file.is_file())

    def log(self, name: str) -> str:
        """Return the text of a log file, at most its last 64 MiB.

        Raises
        ------
        RunDirectoryError
            If there is no log file of that name.
        """
        there = self.logs
        known = [log for log in there if log in (name, f"{name}.log")]
        if not known:
            raise RunDirectoryError(
                f"{self.path} has no log {name!r}; there are {', '.join(there) or 'none'}"
            )
        with open_regular(self._directory.logs / known[0]) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LONGEST_LOG_BYTES))
            return file.read().decode(errors="replace")

    # -- results ----------------------------------------------------------------------------------

    @property
    def tables(self) -> list[str]:
        """Names of the run's tables of results, such as ``results.csv``."""
        found = (file.name for file in self.path.glob("results*.csv") if file.is_file())
        return sorted(found, key=lambda name: (len(name), name))

    def results(self, table: str | None = None, as_: Form = "pandas") -> Any:
        """Return a table of results.

        Parameters
        ----------
        table : str, optional
            One of `tables`; may be left out where there is only one.
        as_ : {"pandas", "polars", "rows"}
            A pandas or polars frame, or a list of dictionaries by column.

        Raises
        ------
        RunDirectoryError
            If there is no such table, or it cannot be read.
        MissingPackage
            If pandas, or polars, is not installed.
        """
        return _as_frame(list(read_rows(self.path / self._table(table))), as_)

    def _table(self, table: str | None) -> str:
        there = self.tables
        if not there:
            raise RunDirectoryError(f"{self.path} holds no results (yet)")
        file = None if table is None else f"{table.removesuffix('.csv')}.csv"
        return self._chosen("table", table, file, there)

    def _chosen(self, kind: str, given: str | None, name: str | None, there: list[str]) -> str:
        """Return the name that was `given`, or the only name that there is."""
        if name in there or (name is None and len(there) == 1):
            return name or there[0]
        problem = f"has several {kind}s" if given is None else f"has no {kind} {given!r}"
        raise RunDirectoryError(f"{self.path} {problem}: name one of {', '.join(there)}")

    @property
    def best(self) -> dict[str, Any] | None:
        """The best row of the first table that ranks its rows; None if there is none yet."""
        for table in self.view.results.values():
            if table.rows and table.objective:
                found = best_row(table.rows, table.objective, table.maximise)
                return {**found, **table.constants}
        return None

    # -- sweeps -----------------------------------------------------------------------------------

    @property
    def sweeps(self) -> list[str]:
        """Names of the run's sweeps that have begun: group and module of each master."""
        return [sweep.name for sweep in self._read_sweeps()]

    def trials(self, sweep: str | None = None, as_: Form = "pandas") -> Any:
        """Return the trials of a sweep, in the order in which they ended.

        Parameters
        ----------
        sweep : str, optional
            One of `sweeps`; may be left out where there is only one.
        as_ : {"pandas", "polars", "rows"}

        Returns
        -------
        frame or list of dict
            A column, or key, for each parameter and metric, and ``curve``: the learning curve, a
            list of ``[step, objective]``, empty where there is none.

        Raises
        ------
        RunDirectoryError
            If there is no such sweep.
        MissingPackage
            If pandas, or polars, is not installed.
        """
        return _as_frame(list(self._sweep(sweep).trials()), as_)

    def trial(self, number: int, sweep: str | None = None) -> dict[str, Any]:
        """Return the data of a trial: parameters, metrics, seed, the command to repeat it.

        Raises
        ------
        RunDirectoryError
            If there is no such trial.
        """
        found = self._sweep(sweep).trial(number)
        if found is None:
            raise RunDirectoryError(f"{self.path} has no trial {number} (yet)")
        return found

    def best_model(self, sweep: str | None = None, *, trial: int | None = None) -> Any:
        """Load the trained model of the best trial of a sweep, ready for raw samples.

        Parameters
        ----------
        sweep : str, optional
            One of `sweeps`; may be left out where there is only one.
        trial : int, optional
            Another trial. Unless its model was kept, it is trained again, in this process, and its
            model is kept beside that of the best trial.

        Returns
        -------
        dnn.TrainedModel
            ``predict_class``, ``predict_proba``, ``evaluate`` and ``export_onnx`` take raw samples:
            arrays, data frames, or the path of a CSV file.

        Raises
        ------
        RunDirectoryError
            If there is no such sweep or trial, or the sweep has kept no model.
        MissingPackage
            If safetensors is not installed.
        """
        from diel.loading.models import model_of_run

        return model_of_run(self._directory, sweep or "", trial)

    def best_models(self, count: int, sweep: str | None = None) -> Any:
        """Choose trials of a sweep whose average predicts well; return it, for raw samples.

        The best trials are trained again, in this process, and `count` of them are chosen, one as
        often as it helps, by the rows that they were not trained on.

        Parameters
        ----------
        count : int
        sweep : str, optional
            One of `sweeps`; may be left out where there is only one.

        Returns
        -------
        dnn.AveragedModel
            ``predict_class``, ``predict_proba`` and ``predict_file`` take raw samples, see
            `best_model`; ``provenance["score"]`` says how good it is, and on which rows.

        Raises
        ------
        RunDirectoryError
            If there is no such sweep, or fewer than `count` of its trials have a result.
        MissingPackage
            If safetensors is not installed.
        """
        from diel.loading.models import average_of_run

        return average_of_run(self._directory, sweep or "", count)

    def figure(
        self, name: str, *, sweep: str | None = None, theme: str = "light"
    ) -> plotly.graph_objects.Figure:
        """Return a figure of a sweep: history, parallel, importance, contour, curves, ...

        Parameters
        ----------
        name : str
            One of `figures`.
        sweep : str, optional
            One of `sweeps`; may be left out where there is only one.
        theme : {"light", "dark"}

        Raises
        ------
        RunDirectoryError
            If there is no such sweep, or nothing to show by that name.
        MissingPackage
            If Plotly is not installed.
        """
        try:
            import plotly.graph_objects as graph
        except ImportError:
            raise MissingPackage('figures need Plotly: pip install "diel[gui]"') from None
        figures = self._sweep(sweep).figures(theme)
        if name not in figures:
            raise RunDirectoryError(
                f"{self.path}: no figure {name!r}; with these trials there are "
                f"{', '.join(figures) or 'none'}"
            )
        figure = figures[name]
        return graph.Figure(figure if isinstance(figure, dict) else figure.plotly(theme))

    def figures(self, sweep: str | None = None) -> list[str]:
        """Return the names of the figures that have something to show."""
        return list(self._sweep(sweep).figures())

    def _read_sweeps(self) -> list[WatchedSweep]:
        for found in watch_sweeps(self._directory):
            self._sweeps.setdefault(found.name, found)
        for sweep in self._sweeps.values():
            sweep.catch_up()
        return list(self._sweeps.values())

    def _sweep(self, name: str | None) -> WatchedSweep:
        there = {sweep.name: sweep for sweep in self._read_sweeps()}
        if not there:
            raise RunDirectoryError(f"{self.path} has no sweep (that has begun)")
        return there[self._chosen("sweep", name, name, list(there))]

    # -- display ----------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"<run {self.name}: {self.state}, {self.path}>"

    def _repr_html_(self) -> str:
        """Return the state of the run as HTML, for a notebook."""
        view, summary = self.view, summarize(self.path, time.time())
        lasted = "" if summary.duration_s is None else format_duration(summary.duration_s)
        ranks = f"{view.ranks} ranks" if view.ranks else ""
        facts = " · ".join(filter(None, (lasted, ranks, self.path.name)))
        parts = [
            f"<div><b>{html.escape(self.name)}</b> {_badge(summary.state)} "
            f"<span style='opacity:.65'>{html.escape(facts)}</span></div>"
        ]
        if summary.reason:
            parts.append(f"<div>{html.escape(summary.reason)}</div>")
        parts += [_group_line(view, group) for group in view.groups.values()]
        parts += [_table_of(table) for table in view.results.values() if table.count]
        style = "font-family:system-ui,sans-serif;font-size:13px;line-height:1.6"
        return f"<div style='{style}'>{''.join(parts)}</div>"


_COLOURS: Final = {
    "running": "#0072b2",
    "finished": "#007a5a",
    "failed": "#b3261e",
    "killed": "#b3261e",
    "damaged": "#b3261e",
}


def _badge(state: str) -> str:
    colour = _COLOURS.get(state, "#5c6876")
    style = f"background:{colour};color:#fff;border-radius:9px;padding:1px 8px;font-size:12px"
    return f"<span style='{style}'>{html.escape(state)}</span>"


def _group_line(view: RunView, group: GroupView) -> str:
    text = group.state
    if group.state == "running" and group.copies:
        text = f"running, {group.copies_finished} of {group.copies} copies finished"
    if group.state == "skipped" and group.why_skipped:
        text = f"skipped: {group.why_skipped}"
    elif group.iteration and view.is_repeated(group.name):
        text += f", {group.describe_iteration(group.iteration)}"
    said = [
        f"{name}: {words or ''} {format_value(done)}"
        + (f" of {format_value(total)}" if total else "")
        for name, (done, total, words) in view.progress.items()
        if name in view.running and view.running[name].group == group.name
    ]
    lines = "".join(f"<br>&emsp;{html.escape(line)}" for line in said[:_TABLE_ROWS])
    return f"<div>group {html.escape(group.name)}: {html.escape(text)}{lines}</div>"


def _table_of(table: ResultsView) -> str:
    """Return a table's best rows as HTML; its first rows where no objective ranks them."""
    rows: Sequence[Any] = table.rows
    head = f"{table.count:,} results of {table.module}"
    if table.objective and rows:
        rows = rank_rows([row for row in rows if row.get(table.objective) is not None],
                         table.objective, table.maximise)  # fmt: skip
        head += f", best by {'highest' if table.maximise else 'lowest'} {table.objective}"
    columns = [name for name in table.columns if name not in table.constants]
    cell = "padding:2px 10px;text-align:right"
    titles = "".join(f"<th style='{cell}'>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(
            f"<td style='{cell}'>{html.escape(_shown(row.get(name)))}</td>" for name in columns
        ) + "</tr>"
        for row in rows[:_TABLE_ROWS]
    )  # fmt: skip
    return (
        f"<div style='margin-top:6px'>{html.escape(head)}</div>"
        f"<table style='border-collapse:collapse'><tr>{titles}</tr>{body}</table>"
    )


def _shown(value: Any) -> str:
    return "" if value is None else format_value(value, digits=4)


def _as_frame(rows: list[dict[str, Any]], as_: str) -> Any:
    """Return rows as the list that they are, or as a pandas or polars frame."""
    if as_ == "rows":
        return rows
    if as_ not in ("pandas", "polars"):
        raise ValueError(f"as_ is pandas, polars or rows, not {as_!r}")
    try:
        if as_ == "pandas":
            import pandas

            return pandas.DataFrame(rows)
        import polars

        return polars.DataFrame(rows, infer_schema_length=None, strict=False)
    except ImportError:
        raise MissingPackage(
            f'{as_} is not installed: pip install "diel[frames]"; as_="rows" gives dictionaries'
        ) from None
