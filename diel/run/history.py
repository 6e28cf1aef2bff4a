"""What ran: a summary of each run in a folder, from the beginning and the end of its journal.

A journal may hold a million records; how a run began and ended stands in its first and last lines.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from diel.errors import RunDirectoryError
from diel.run.directory import RunDirectory
from diel.run.journal import Record

State: TypeAlias = Literal["running", "finished", "failed", "stopped", "killed", "never started"]

_ENDS: Final[dict[int, State]] = {0: "finished", 1: "failed", 130: "stopped"}
_TAIL_BYTES: Final = 256 * 1024
_STAMP: Final = re.compile(r"-(\d{8}-\d{6})(-\d+)?$")


@dataclass(frozen=True)
class RunSummary:
    """One run.

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
        So far, if it is running; until the last sign of life, if it was killed; None if it never
        started.
    ranks : int or None
    reason : str
        Why it failed or stopped, in one line; empty if that is not known.
    """

    path: Path
    workflow: str
    state: State
    started_s: float
    duration_s: float | None
    ranks: int | None
    reason: str


def list_runs(folder: Path, now_s: float | None = None) -> list[RunSummary]:
    """Return the runs in a folder, newest first.

    Parameters
    ----------
    folder : Path
        Where run directories are; or a run directory, which is then the only one.
    now_s : float, optional
        Seconds since 1970; default: now.

    Raises
    ------
    RunDirectoryError
        If there is no such folder.
    """
    now_s = time.time() if now_s is None else now_s
    if is_run(folder):
        return [summarize(folder, now_s)]
    try:
        places = [one for one in folder.iterdir() if is_run(one)]
    except OSError as error:
        raise RunDirectoryError(
            f"{folder} cannot be read: {error.strerror}; runs are in the folder that diel run was "
            "given by --runs, or else in runs"
        ) from error
    summaries = [summarize(place, now_s) for place in places]
    return sorted(summaries, key=lambda one: (-one.started_s, one.path.name))


def is_run(folder: Path) -> bool:
    """Whether a folder is a run directory."""
    directory = RunDirectory(folder)
    return directory.journal.is_file() or (directory.workflow.is_file() and directory.logs.is_dir())


def summarize(folder: Path, now_s: float) -> RunSummary:
    """Return the summary of one run directory, whatever state it is in."""
    journal = RunDirectory(folder).journal
    first, last = _ends_of(journal)
    start = next((one for one in first if one.get("event") == "RunStarted"), None)
    end = last[-1] if last else None
    name = _STAMP.sub("", folder.name)
    if start is None or end is None:
        made_s = folder.stat().st_mtime
        state: State = "running" if _is_written(journal) else "never started"
        reason = "" if state == "running" else _last_words(folder)
        return RunSummary(folder, name, state, made_s, None, None, reason)
    started_s = _number(start.get("time_s"))
    if end.get("event") in ("RunEnded", "RunRefused"):
        state = _ENDS.get(end.get("exit_code", 1), "failed")
        ended_s = _number(end.get("time_s"))
    elif _is_written(journal):
        state, ended_s = "running", now_s
    else:
        state, ended_s = "killed", _number(end.get("time_s"))
    return RunSummary(
        path=folder,
        workflow=str(start.get("workflow", name)),
        state=state,
        started_s=started_s,
        duration_s=max(0.0, ended_s - started_s),
        ranks=start.get("ranks"),
        reason=_reason(last) if state in ("failed", "stopped", "killed") else "",
    )


def _ends_of(journal: Path) -> tuple[list[Record], list[Record]]:
    """Return the first record, in a list, and the last ones, as far as they are whole."""
    try:
        with journal.open("rb") as file:
            first = list(_records(file.readline()))
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            if size > _TAIL_BYTES:
                file.readline()  # the rest of a line
            return first, list(_records(file.read()))
    except OSError:
        return [], []


def _records(data: bytes) -> Iterator[Record]:
    """Yield what can be read; a rank that is killed may leave half a line."""
    for line in data.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def _reason(records: list[Record]) -> str:
    """Return the root cause among the last records: the first failure that stopped the run."""
    resumed = [at for at, record in enumerate(records) if record.get("event") == "RunResumed"]
    records = records[resumed[-1] :] if resumed else records
    for record in records:
        if record.get("event") == "ModuleFailed" and record.get("policy", "stop") == "stop":
            return f"{record.get('module')}.{record.get('copy')}: {record.get('error')}"
        if record.get("event") == "DeadlockFound":
            return "deadlock: every module waits for a tuple that nobody puts"
        if record.get("event") == "RunRefused":
            return str(record.get("error"))
    stops = (record for record in records if record.get("event") == "StopOrdered")
    return str(next((record.get("reason") for record in stops), ""))


def _last_words(folder: Path) -> str:
    """Return the last line that the launcher wrote, for a run that came to no record."""
    try:
        with RunDirectory(folder).launcher_log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _is_written(journal: Path) -> bool:
    """Whether a process that is alive holds the journal, on whatever machine.

    A run whose file system has no locks counts as killed until its last record is there.
    """
    try:
        with journal.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
