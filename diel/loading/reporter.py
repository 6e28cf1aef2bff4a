"""The interface of reporters: what installed packages know of results, and of sweeps and models.

An entry point of the group ``diel.reporters`` names a class derived from `Reporter`. It is imported
when there is something to report on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from diel.errors import PluginError
from diel.plugins import REPORTERS, installed_plugins, load_installed
from diel.run.results import read_rows

_T = TypeVar("_T")


@dataclass(frozen=True)
class ResultsTable:
    """A table of results, and the facts about its run that a report shows.

    Attributes
    ----------
    run_dir : Path
    file : Path
        The table, CSV.
    report : Path
        ``report.html`` beside it; a reporter that writes another kind changes the suffix.
    run : str
        The name of the run.
    module : str
        The module that declared the table.
    columns, parameters, metrics : sequence of str
        All columns; those whose values were chosen; those whose values were computed.
    objective : str
        The column that ranks the rows.
    maximise : bool
        Whether a larger value of it is better.
    expected : int or None
        How many rows there will be, where that is known.
    workflow : str
        The text of the workflow file.
    facts : mapping of str to str
        Versions, host and ranks of the run, and the module's own ``declare(facts=...)``.
    state : str
        ``running``, ``finished``, ``failed`` or ``stopped``.
    elapsed_s : float
        From the declaration of the table to the end of the run.
    accounts : sequence of mapping
        The times of each rank, as in the journal; empty until the run has ended.
    """

    run_dir: Path
    file: Path
    report: Path
    run: str
    module: str
    columns: Sequence[str]
    parameters: Sequence[str]
    metrics: Sequence[str]
    objective: str
    maximise: bool
    expected: int | None
    workflow: str
    facts: Mapping[str, str]
    state: str
    elapsed_s: float
    accounts: Sequence[Mapping[str, Any]]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of the table: a dictionary by column each."""
        yield from read_rows(self.file)


class DrawnFigure(Protocol):
    """A figure that its reporter draws; a reporter may give dictionaries of Plotly instead."""

    @property
    def title(self) -> str:
        """Its title."""

    @property
    def note(self) -> str:
        """What it shows, in a line."""

    @property
    def is_wide(self) -> bool:
        """Whether it has a row of a page for itself."""

    @property
    def style(self) -> str:
        """A style sheet, the same for all of them."""

    @property
    def script(self) -> str:
        """A script, the same for all of them, that defines ``DielFigures``, a class in JavaScript.

        ``new DielFigures(element, {onOpen, onChoose})`` shows figures in an element: its method
        ``show`` is called with what `draw` has returned. It calls ``onOpen`` with the number of a
        trial that is clicked, and ``onChoose`` with a ``Map`` of ranges, as `WatchedSweep.within`
        takes them.
        """

    def draw(self, width: float) -> str:
        """Return the figure as HTML for a place so many pixels wide; all text in it is escaped."""

    def plotly(self, theme: str = "light") -> dict[str, Any]:
        """Return the figure as a dictionary of Plotly; ``theme`` is ``light`` or ``dark``."""


Figure: TypeAlias = "DrawnFigure | dict[str, Any]"
"""A figure as a reporter gives it: drawn by itself, or for Plotly."""


class WatchedSweep(Protocol):
    """A sweep, as far as its files have been read; OSError or ValueError if they cannot be read.

    Attributes
    ----------
    name : str
        Group and module, which tell it from other sweeps of the run.
    space : mapping
        What each parameter may be, as in a workflow file.
    complaint : str
        The damage found in its files so far, in a line; empty if there was none.
    """

    name: str
    space: Mapping[str, Any]
    complaint: str

    def refresh(self) -> bool:
        """Read new lines of its files; return whether there were any: then there may be more."""

    def catch_up(self) -> None:
        """Read its files to their present ends; lines that are written meanwhile may be left."""

    def summary(self) -> dict[str, Any]:
        """Return the state of the sweep as a table, with counts of trials and the best of them.

        ``objective``, ``maximise``, ``parameters``; ``trials``, ``expected`` (or None), ``failed``,
        ``diverged``, ``stopped`` and, where there are constraints, ``infeasible``; ``best``: a row,
        or None; ``running``: numbers of trials under way that have reported something; ``table``:
        the file of its table of results; ``model``: how to use the model of the best trial,
        ``file``, ``command``, ``python``, or empty.
        """

    def columns(self) -> list[str]:
        """Return the columns of the table of trials; more may come with new rows."""

    def rows(self, start: int = 0) -> list[dict[str, Any]]:
        """Return the rows of the table from a number on: numbers, words, or None, by column."""

    def trials(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each trial that has ended, however many there are.

        ``curve``: its learning curve, a list of ``[step, objective]``, perhaps empty.
        """

    def new_trials(self) -> list[dict[str, Any]]:
        """Return trials that have ended since the last call, in their order; many at a time.

        Each as `trial` has it, without ``figure`` and ``command``, and with ``reports``: what it
        has reported on its way, a list of ``(step, metrics)``, perhaps empty.
        """

    def figures(self, theme: str = "light") -> Mapping[str, Figure]:
        """Return the figures that have something to show, by name, in their order.

        ``theme`` is ``light`` or ``dark``.
        """

    def within(self, ranges: Mapping[str, tuple[float, float]]) -> list[int]:
        """Return the trials of the table within ranges of the axes of the figure ``parallel``.

        By an axis' label: its lowest and highest place, 0 to 1; unknown axes are left out.
        """

    def point_of(self, chosen: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return a point with the values that were chosen, and what is wrong, by parameter.

        Values of parameters that a condition switches off are left out.
        """

    def trial(self, number: int, theme: str = "light") -> dict[str, Any] | None:
        """Return the data of a trial; None if its files do not name it yet.

        ``trial``, ``state``, ``reason``, ``parameters``, ``metrics``, ``seed``, ``trainer``,
        ``started_s``, ``seconds``, ``attempt``; ``figure``: of its learning curve, or None;
        ``command``: repeats it, empty as long as it runs; ``files``: of the run's directory, the
        logs of its trainer and what was kept of it, as relative paths.
        """


class Reporter:
    """Base class of reporters, which override the methods that they need: these do nothing.

    Of a method that returns one answer, the first reporter with another answer than None counts. A
    method raises OSError or ValueError if something cannot be read, written or done.

    Attributes
    ----------
    on_request : bool
        Whether `log_trial` is called only for sweeps that ask for it, by its name among entry
        points. It is then called for the earlier trials of a resumed run too, and leaves out those
        that it has.
    """

    on_request: ClassVar[bool] = False

    # -- reports on results -----------------------------------------------------------------------

    def write_report(self, table: ResultsTable) -> Path | None:
        """Write a report on a table of results, for ``diel report``; return its file."""
        return None

    def conclude_report(
        self, report: Path, state: str, accounts: Sequence[Mapping[str, Any]]
    ) -> None:
        """Add to a ``report.html`` that a module wrote how its run has ended.

        Parameters
        ----------
        report : Path
        state : str
            ``finished``, ``failed`` or ``stopped``.
        accounts : sequence of mapping
            The times of each rank.
        """

    def explain_lost_ranks(self, run_dir: Path, copies: Collection[str]) -> Iterable[str]:
        """Return lines on a run that the death of ranks has ended.

        Parameters
        ----------
        run_dir : Path
        copies : collection of str
            The copies whose ranks have died, as ``trainer.0``; empty if that is not known.
        """
        return ()

    # -- sweeps -----------------------------------------------------------------------------------

    def log_trial(self, run_dir: Path, sweep: WatchedSweep, trial: Mapping[str, Any]) -> None:
        """Take a trial that has just ended to where results are collected, such as a tracker.

        It is called for each trial of a sweep, in the order in which they end, in a process beside
        the sweep's master: it may take its time. That process ends after the last trial, so that
        functions of `atexit` are called. If it raises anything, it is not called again.

        Parameters
        ----------
        run_dir : Path
        sweep : WatchedSweep
            Its ``name``, ``space``, and of its `summary` ``objective`` and ``maximise``: what else
            it has is not read here.
        trial : mapping
            As `WatchedSweep.new_trials` has it.
        """

    @classmethod
    def missing_here(cls) -> tuple[str, str] | None:
        """Return what this machine lacks for `log_trial` and what to do; None if nothing."""
        return None

    def watch_sweeps(self, run_dir: Path) -> Iterable[WatchedSweep]:
        """Return the sweeps of a run that have begun, for pages and notebooks."""
        return ()

    def compare_sweeps(
        self, sweeps: Mapping[str, WatchedSweep], theme: str = "light"
    ) -> dict[str, Any] | None:
        """Compare sweeps of `watch_sweeps`, given by unique names.

        Returns
        -------
        dict
            ``objective``, ``maximise``; ``rows``: of each sweep ``run``, its name; ``trials``; the
            objective of its best trial; ``trial``, its number; and its parameters; ``figures``:
            each a `Figure`, by name.
        """
        return None

    def write_comparison(self, sweeps: Mapping[str, WatchedSweep], path: Path) -> Path | None:
        """Write one report over several sweeps, given as to `compare_sweeps`; return its file."""
        return None

    def steer_sweep(
        self, run_dir: Path, asked: Sequence[Mapping[str, Any]], sweep: str
    ) -> tuple[str, Callable[[float], list[dict[str, Any]]]] | None:
        """Check requests to a sweep of a run, an empty name for its only one; send none yet.

        Parameters
        ----------
        run_dir : Path
        asked : sequence of mapping
            As `diel.loading.sweeps.steer_sweep` takes them.
        sweep : str

        Returns
        -------
        str
            The name of the sweep.
        callable
            Takes how many seconds to wait, sends the requests, and returns the answers, as
            `diel.loading.sweeps.steer_sweep` does.
        """
        return None

    def joinable_sweeps(self, run_dir: Path) -> Iterable[dict[str, Any]]:
        """Return the sweeps of a run: see `diel.loading.sweeps.find_joinable`."""
        return ()

    def record_participation(self, run_dir: Path, said: Mapping[str, Any]) -> None:
        """Write for a run that has not begun which sweep it takes part in.

        Parameters
        ----------
        run_dir : Path
        said : mapping
            ``share``: a folder that runs share; or ``join``: the ``ledger`` of a joinable sweep;
            ``silence_s``; ``leave_after_s``, or None.
        """

    def list_workers(self, run_dir: Path) -> Iterable[dict[str, Any]]:
        """Return workers of other runs in these sweeps, for ``diel workers``.

        Each has ``sweep``, ``worker``, ``host``, ``pid``, ``job``, ``run_dir``, ``trainers``,
        ``trials``, ``state`` and ``heard_s``.
        """
        return ()

    def describe_sweep(
        self, name: str, train: str, asked: Mapping[str, Any], options: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Return the tables, by title, of a workflow file that tries a function, for `diel.sweep`.

        Parameters
        ----------
        name : str
            Of the workflow.
        train : str
            The place of the function; empty for diel's own training.
        asked : mapping
            What is asked of the sweep.
        options : mapping
            Of the function.
        """
        return None

    def new_sweep(self) -> dict[str, Any] | None:
        """Return the tables of a workflow file with a sweep that is still to be filled in."""
        return None

    def export_formats(self) -> Iterable[str]:
        """Return the formats in which it can export a sweep, for ``diel completion``."""
        return ()

    # -- models -----------------------------------------------------------------------------------

    def find_model(self, run_dir: Path, sweep: str, trial: int | None) -> Mapping[str, Any] | None:
        """Return where the model of a trial is, by default of the best one.

        ``sweep``, ``trial``, and ``file``; an empty name means the only sweep. Where the trial has
        to be trained again, ``file`` is None, and there are ``parameters``, ``seed``,
        ``provenance`` and ``path``, as ``save_model`` of the trainer's file takes them; and
        ``ancestors``, if it went on from other trials.
        """
        return None

    def find_candidates(self, run_dir: Path, sweep: str, count: int) -> Mapping[str, Any] | None:
        """Return of which trials an average of so many models is chosen.

        ``sweep``, and what else ``choose_average`` of the trainer's file takes.
        """
        return None

    def average_models(self, models: Sequence[Any], chosen: Mapping[str, Any]) -> Any:
        """Return the average of trained models, `chosen` as ``choose_average`` has returned it."""
        return None

    def load_model(self, file: Path) -> Any:
        """Load a trained model, `diel.loading.models.TrainedModel`; perhaps an ImportError."""
        return None

    # -- the machine ------------------------------------------------------------------------------

    def describe_machine(self) -> Iterable[tuple[str, str]]:
        """Return facts about this machine for `diel doctor`: a name and a text each.

        It must not take long, and raises nothing.
        """
        return ()


def reporters() -> Iterator[Reporter]:
    """Yield the reporters of installed packages, each made anew.

    Raises
    ------
    PluginError
        If one of them is broken, or no reporter.
    """
    for name in installed_plugins(REPORTERS):
        yield reporter_named(name)


def reporter_named(name: str) -> Reporter:
    """Return a reporter by its name among entry points, made anew; errors as `reporters`."""
    return _reporter_of(name, load_installed(REPORTERS, name))


def loggers_of_trials(asked: Collection[str]) -> Iterator[Reporter]:
    """Yield the reporters that log trials, those on request if they are `asked` for.

    Raises
    ------
    PluginError
        If any reporter is broken, or no reporter.
    """
    for name in installed_plugins(REPORTERS):
        reporter = reporter_named(name)
        is_logging = getattr(reporter.log_trial, "__func__", None) is not Reporter.log_trial
        if is_logging and (name in asked or not reporter.on_request):
            yield reporter


def first_answer(ask: Callable[[Reporter], _T | None]) -> _T | None:
    """Ask reporters one after another; return the first answer that is not None, if there is one.

    Raises
    ------
    PluginError
        If a reporter is broken.
    """
    return next((found for each in reporters() if (found := ask(each)) is not None), None)


def _reporter_of(name: str, found: Any) -> Reporter:
    """Return what an entry point names as a reporter.

    An object that is none, such as a Python module, is one by its functions of these names.
    """
    if isinstance(found, Reporter):
        return found
    plugin = installed_plugins(REPORTERS)[name]
    entry = f"diel.reporters: {name!r} of {plugin.distribution}"
    if isinstance(found, type):
        if not issubclass(found, Reporter):
            raise PluginError(f"{entry}: class {plugin.value} is not derived from diel.Reporter")
        try:
            return found()
        except Exception as error:  # the code of a plugin can raise anything
            raise PluginError(f"{entry}: {type(error).__name__}: {error}") from error
    methods = [method for method in vars(Reporter) if not method.startswith("_")]
    functions = {method: getattr(found, method) for method in methods if hasattr(found, method)}
    if not functions:
        raise PluginError(
            f"{entry}: {plugin.value} has no method of a reporter: name a class derived from "
            f"diel.Reporter there, and install {plugin.distribution} again"
        )
    reporter = Reporter()
    vars(reporter).update(functions)
    return reporter
