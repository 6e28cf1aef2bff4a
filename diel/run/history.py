"""Summaries of the runs in a folder, each from the beginning and the end of its journal.

A journal may hold a million records; how a run began and ended stands in its first and last lines.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TypeAlias

from diel.errors import RunDirectoryError
from diel.exit_codes import FAILED, FINE, NOT_FINISHED, STOPPED
from diel.frozen import Frozen
from diel.run.directory import RunDirectory
from diel.run.fields import Record
from diel.run.files import is_locked, open_regular
from diel.run.json_values import DamagedRecord, plain
from diel.run.records import (
    DEADLOCK,
    DeadlockFound,
    JournalLost,
    ModuleFailed,
    RanksLost,
    RunCreated,
    RunEnded,
    RunLost,
    RunRefused,
    RunResumed,
    RunStarted,
    StopOrdered,
    decode,
)
from diel.text import format_times, from_toml

State: TypeAlias = Literal[
    "running", "finished", "failed", "stopped", "killed", "never started", "damaged"
]

ENDS: Final[dict[int, State]] = {
    FINE: "finished",
    FAILED: "failed",
    NOT_FINISHED: "stopped",
    STOPPED: "stopped",
}
"""The state of a run that has ended, by its exit code."""
_FIRST_LINES: Final = 100
"""The record of a run's start is among the first lines, fewer than this, or missing."""
_BEFORE_START: Final = (RunCreated, RunLost, RunResumed)
_TAIL_BYTES: Final = 256 * 1024
_LONGEST_TAIL_BYTES: Final = 2**26
_RULE: Final = r"[-=]{20,}"  # around the messages of launchers
_STAMP: Final = re.compile(r"-(\d{8}-\d{6})(-\d+)?$")


class RunSummary(Frozen):
    """Summary of one run: its state, times, ranks, and why it ended.

    Attributes
    ----------
    path : Path
        Its directory.
    workflow : str
        The workflow's name.
    state : str
    started_s : float
        Seconds since 1970.
    duration_s : float or None
        So far, if it is running; until its last record, if it was killed; None if it never started.
    ranks : int or None
    reason : str
        Why it failed or stopped, how often it was started again, or what is damaged, in one line;
        empty if that is not known.
    parameters : mapping of str to value
        The values of the file's parameters, and of other keys that the command line has set.
    versions : mapping of str to str
        Of ``diel``, ``python`` and ``mpi``, as far as they are recorded.
    part : str
        The options that say which groups of the file it runs; empty if all do.
    """

    path: Path
    workflow: str
    state: State
    started_s: float
    duration_s: float | None
    ranks: int | None
    reason: str
    parameters: Mapping[str, Any]
    versions: Mapping[str, str]
    part: str = ""

    @property
    def shown_reason(self) -> str:
        """The reason, after what part of the workflow it is."""
        return "; ".join(filter(None, (self.part, self.reason)))


def list_runs(folder: Path) -> list[RunSummary]:
    """Return the runs in a folder, newest first; of a run directory, that run alone.

    A RunDirectoryError if there is no such folder.
    """
    now_s = time.time()
    if is_run(folder):
        return [summarize(folder, now_s)]
    try:
        places = [place for place in folder.iterdir() if _may_be_run(place)]
    except OSError as error:
        raise RunDirectoryError(
            f"{folder} cannot be read: {error.strerror}; runs are in the folder that diel run was "
            "given by --runs, or else in runs"
        ) from error
    summaries = [summarize(place, now_s) for place in places]
    return sorted(summaries, key=lambda run: (-run.started_s, run.path.name))


def is_run(folder: Path) -> bool:
    """Whether a folder is a run directory.

    A RunDirectoryError if the folder cannot be read.
    """
    directory = RunDirectory(folder)
    try:
        return directory.journal.is_file() or (
            directory.workflow.is_file() and directory.logs.is_dir()
        )
    except OSError as error:
        raise RunDirectoryError(f"{folder} cannot be read: {error.strerror}") from error


DEFAULT_RUNS: Final = Path("runs")
"""Where runs are kept unless a command says otherwise."""


def find_run(path: Path) -> Path:
    """Return a run directory: the path itself, or the newest in it.

    A RunDirectoryError if the path is no run directory, and holds none.
    """
    if is_run(path):
        return path
    runs = list_runs(path) if path.is_dir() else []
    if not runs:
        raise RunDirectoryError(
            f"{path} is no run's directory, and holds none: diel runs DIR lists those in a folder"
        )
    return runs[0].path


def _may_be_run(folder: Path) -> bool:
    try:
        return is_run(folder)
    except RunDirectoryError:  # a folder of another user, say
        return False


def summarize(folder: Path, now_s: float) -> RunSummary:
    """Return the summary of one run directory, whatever state it is in."""
    directory = RunDirectory(folder)
    journal = directory.journal
    name = _STAMP.sub("", folder.name)
    # Between two starts of a run that has lost ranks, only its launcher holds a lock.
    is_launched = is_locked(directory.launcher_log)
    is_running = is_launched or is_locked(journal)
    try:
        start, given, last, problem = _ends_of(journal)
    except OSError as error:
        start, given, last = None, [], []
        problem = "" if isinstance(error, FileNotFoundError) else str(error)
    if start is None or not last:
        state: State = "running" if is_running else "damaged" if problem else "never started"
        reason = problem or ("" if is_running else _reason(last) or _last_launcher_line(folder))
        keys = _set_keys(given, {})
        return RunSummary(folder, name, state, _made_s(folder), None, None, reason, keys, {})
    end, started_s = last[-1], start.time_s
    ended_s = end.time_s
    if isinstance(end, (RunEnded, RunRefused)) and (
        # Its launcher may start it again, if lost ranks have kept it from ending well.
        end.exit_code == 0 or not is_launched
    ):
        state = ENDS.get(end.exit_code, "failed")
    elif is_running:
        state, ended_s = "running", now_s
    else:
        state = "killed"
    reason = _reason(last) if state in ("failed", "stopped", "killed") else _restarts(end)
    if state == "killed" and not isinstance(end, RunLost) and directory.is_lost_or_ended():
        # Its launcher would have recorded the loss of a rank. Programs have had the signal too.
        number = directory.stop_reason().partition(" ")[0]
        reason = f"diel run, or the job, was ended: {number} came to the ranks"
    return RunSummary(
        path=folder,
        workflow=start.workflow,
        state=state,
        started_s=started_s,
        duration_s=max(0.0, ended_s - started_s),
        ranks=start.ranks,
        reason=reason,
        parameters={**start.parameters, **_set_keys(given, start.parameters)},
        versions={
            name: version
            for name in ("diel", "python", "mpi")
            if (version := getattr(start, name)) and isinstance(version, str)
        },
        part=start.part,
    )


def _set_keys(given: Sequence[str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that settings of the command line set, but for parameters of the file."""
    found = {}
    for setting in given:
        key, _, text = setting.partition("=")
        key = key.strip()
        if key.removeprefix("parameters.") not in parameters:
            found[key] = plain(from_toml(text))
    return found


def _ends_of(journal: Path) -> tuple[RunStarted | None, Sequence[str], list[Record], str]:
    """Return the record of the start, the settings, the last records; and why there is no start."""
    with open_regular(journal) as file:
        start, given, problem = _start_in(file, journal.name)
        size_bytes, tail_bytes = os.fstat(file.fileno()).st_size, _TAIL_BYTES
        while True:  # the last record may be a long one
            begin = max(0, size_bytes - tail_bytes)
            file.seek(begin)
            if begin:
                file.readline()  # the rest of a line
            last = list(_records(file.read()))
            if last or not begin or tail_bytes >= _LONGEST_TAIL_BYTES:
                return start, given, last, problem
            tail_bytes *= 16


def _start_in(file: BinaryIO, name: str) -> tuple[RunStarted | None, Sequence[str], str]:
    given: Sequence[str] = ()
    problem = ""
    for number in range(1, _FIRST_LINES):
        line = file.readline(_LONGEST_TAIL_BYTES)
        if not line.endswith(b"\n"):
            break
        try:
            record = decode(line)
        except DamagedRecord as error:
            problem = problem or f"{name}, line {number}: no record: {error}"
            continue
        if isinstance(record, RunCreated):
            given = record.given
        if isinstance(record, RunStarted):
            return record, given, ""
        if not isinstance(record, _BEFORE_START):
            problem = problem or f"{name} has no record of the start"
    return None, given, problem


def _records(data: bytes) -> Iterator[Record]:
    """Yield the records that can be read; a rank that is killed may leave half a line."""
    for line in data.split(b"\n"):
        try:
            yield decode(line)
        except DamagedRecord:
            continue


def _made_s(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:  # it has just been removed
        return 0.0


def _reason(records: list[Record]) -> str:
    """Return the root cause among the last records: the first failure that stopped the run."""
    resumed = [at for at, record in enumerate(records) if isinstance(record, RunResumed)]
    records = records[resumed[-1] :] if resumed else records
    for record in records:
        if isinstance(record, ModuleFailed) and record.stops_run:
            return f"{record.name}: {record.error}"
        if isinstance(record, DeadlockFound):
            return DEADLOCK
        if isinstance(record, JournalLost):
            return record.explanation
        if isinstance(record, RanksLost) and record.stops_run:
            return record.explanation.partition("\n")[0]
        if isinstance(record, RunRefused):
            return record.error
        if isinstance(record, RunLost) and not record.restart:
            return record.explanation
    stops = (record.reason for record in records if isinstance(record, StopOrdered))
    return next(stops, "")


def _restarts(end: Record) -> str:
    """Return in words how often a run that has ended was started again; empty if never."""
    times = end.restarts if isinstance(end, RunEnded) else 0
    return f"restarted {format_times(times)}" if times else ""


def _last_launcher_line(folder: Path) -> str:
    """Return the last line of the launcher's log, for a run without a record of its start."""
    lines = RunDirectory(folder).launcher_output().split("\n")
    said = (line.strip() for line in reversed(lines))
    return next((line for line in said if line and not re.fullmatch(_RULE, line)), "")
