"""Going on with a run that has ended too early: where it stood at its last checkpoint.

A checkpoint is a record of the journal and, where the tuple space was not empty, a file::

    CheckpointSaved   number, file (null: the tuple space was empty), finished

Everything returns to that moment: the tuples, the iterations that were finished, and the rows of
results. What began later is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diel.errors import RunDirectoryError
from diel.run.directory import RunDirectory
from diel.run.journal import JournalReader, JournalWriter, Record


@dataclass(frozen=True)
class Resumption:
    """Where a resumed run begins.

    Attributes
    ----------
    file : str
        The workflow file.
    finished : dict
        What is behind, by group: the last iteration and whether it was the last of all.
    checkpoint : Path or None
        The file with the tuples; None if there were none.
    number : int
        Of that checkpoint; 0 if there was none.
    """

    file: str
    finished: dict[str, tuple[tuple[int, ...], bool]]
    checkpoint: Path | None
    number: int


def order_resumption(directory: RunDirectory) -> Resumption | None:
    """Note in the journal that the run goes on from its last checkpoint.

    Returns
    -------
    Resumption or None
        None if the run has finished: there is nothing to go on with.

    Raises
    ------
    RunDirectoryError
        If it is no run's directory, somebody writes there, or its workflow file has changed.
    """
    records = read_records(directory)
    if records and _has_finished(records):
        return None
    started = next((one for one in records if one["event"] == "RunStarted"), None)
    if started is None:
        raise RunDirectoryError(f"{directory.path} holds no run that has started")
    _check_unchanged(Path(started["file"]), directory)
    with JournalWriter(directory.journal) as journal:
        directory.withdraw_stop()
        saved = _last_checkpoint(records)
        journal.write(
            "RunResumed",
            checkpoint=saved["number"] if saved else 0,
            file=saved["file"] if saved else None,
            finished=saved["finished"] if saved else {},
        )
    return resumption(directory)


def resumption(directory: RunDirectory) -> Resumption:
    """Return where a run begins for which `order_resumption` was called.

    Raises
    ------
    RunDirectoryError
        If it was not.
    """
    records = read_records(directory)
    resumed = next((one for one in reversed(records) if one["event"] == "RunResumed"), None)
    if resumed is None:
        raise RunDirectoryError(f"nobody has asked to resume {directory.path}")
    started = next(one for one in records if one["event"] == "RunStarted")
    finished = {
        group: (tuple(iteration), bool(is_last))
        for group, (iteration, is_last) in resumed["finished"].items()
    }
    name = resumed["file"]
    checkpoint = None if name is None else directory.checkpoints / Path(name).name
    return Resumption(started["file"], finished, checkpoint, resumed["checkpoint"])


def read_records(directory: RunDirectory) -> list[Record]:
    """Return the whole records of a run's journal.

    Raises
    ------
    RunDirectoryError
        If there is no journal, or what it holds is none.
    """
    if not directory.journal.is_file():
        raise RunDirectoryError(f"{directory.path} is no run's directory: it has no journal.jsonl")
    try:
        records = JournalReader(directory.journal).new_records()
        if all(isinstance(record["event"], str) for record in records):
            return records
    except (ValueError, TypeError, KeyError):
        pass
    raise RunDirectoryError(f"{directory.journal} is no journal, or damaged")


def _last_checkpoint(records: list[Record]) -> dict[str, Any] | None:
    """Return the last checkpoint that counts: not those that a resumption has left behind."""
    numbers = {}
    last: dict[str, Any] | None = None
    for record in records:
        if record["event"] == "CheckpointSaved":
            last = numbers[record["number"]] = record
        elif record["event"] == "RunResumed":
            last = numbers.get(record["checkpoint"])
    return last


def _has_finished(records: list[Record]) -> bool:
    ended = [one for one in records if one["event"] in ("RunEnded", "RunResumed")]
    return bool(ended) and ended[-1].get("exit_code") == 0


def _check_unchanged(file: Path, directory: RunDirectory) -> None:
    try:
        is_same = file.read_bytes() == directory.workflow.read_bytes()
    except OSError as error:
        raise RunDirectoryError(
            f"the workflow file of {directory.path} cannot be read: "
            f"{error.filename}: {error.strerror}"
        ) from error
    if not is_same:
        raise RunDirectoryError(
            f"{file} is not what it was when {directory.path} was started: "
            f"restore it from {directory.workflow}, or start a new run"
        )
