"""Going on with a run that has ended too early: where it stood at its last checkpoint.

A checkpoint is a record of the journal and, where the tuple space was not empty, a file::

    CheckpointSaved   number, file (null: the tuple space was empty), states of modules

What is finished at that moment follows from the records before it.

Everything returns to that moment: the tuples, the iterations that were finished, what modules had
saved of their own state, and the rows of results. What began later is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from diel.errors import RunDirectoryError
from diel.frozen import Frozen
from diel.run.directory import RunDirectory
from diel.run.fields import Record
from diel.run.journal import Damage, JournalReader, JournalWriter
from diel.run.json_lines import locked_file
from diel.run.records import (
    FORMAT,
    CheckpointSaved,
    Finished,
    GroupFinished,
    RunCreated,
    RunEnded,
    RunResumed,
    RunStarted,
)


class Resumption(Frozen):
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
    restart : int
        Which restart by the launcher it is, counted from 1; 0 if a person has resumed it.
    states : sequence of str
        The names of the files in which modules had saved their own state by then.
    """

    file: str
    finished: dict[str, Finished]
    checkpoint: Path | None
    number: int
    restart: int = 0
    states: Sequence[str] = ()


def order_resumption(directory: RunDirectory, restart: int = 0) -> Resumption | None:
    """Note in the journal that the run goes on from its last checkpoint.

    A run that was killed before anything was recorded begins in its directory.

    Parameters
    ----------
    directory : RunDirectory
    restart : int, optional
        Which restart by its launcher it is; 0 if a person asks.

    Returns
    -------
    Resumption or None
        None if the run has finished and nobody has asked for more: there is nothing to go on with.

    Raises
    ------
    RunDirectoryError
        If it is no run's directory, somebody runs it, its workflow file has changed, its
        journal is damaged where it matters, or it holds links that would be written through.
    """
    past = _Past.read(directory)
    if past.has_finished and not directory.more_requested():
        return None
    _check_unchanged(past.file, directory)
    directory.refuse_links()
    directory.logs.mkdir(exist_ok=True)
    if not restart and directory.launcher_log.exists():
        # Between two starts of its ranks nobody writes the journal, but their launcher is there.
        with locked_file(directory.launcher_log):
            pass
    with JournalWriter(directory.journal) as journal:
        # A person's request that comes while ranks are started again is one to these.
        if not restart or directory.is_lost_or_ended():
            directory.withdraw_stop()
        directory.keep_states(past.states)  # later ones do not go with the tuples
        directory.withdraw_more()
        directory.forget_crashes()  # of ranks that are started anew
        journal.write(
            RunResumed(
                checkpoint=past.number,
                file=past.checkpoint,
                finished=past.finished,
                format=FORMAT,
                restart=restart,
            )
        )
    return resumption(directory)


def workflow_file_of(directory: RunDirectory) -> Path:
    """Return the workflow file of a run.

    Raises
    ------
    RunDirectoryError
        If it is no run's directory, or the file is not what it was when the run began.
    """
    past = _Past.read(directory)
    _check_unchanged(past.file, directory)
    return past.file


def is_behind(directory: RunDirectory, group: str) -> bool:
    """Whether a group is finished at the last checkpoint: then a resumed run does not run it.

    Raises
    ------
    RunDirectoryError
        If the journal cannot be read.
    """
    finished = _Past.read(directory).finished.get(group)
    return finished is not None and finished.is_last


def has_ended(directory: RunDirectory, group: str) -> bool:
    """Whether a group of a run has ended for the last time, as far as its journal says."""
    finished = finished_in(JournalReader(directory.journal).new_records()).get(group)
    return finished is not None and finished.is_last


def resumption(directory: RunDirectory) -> Resumption:
    """Return where a run begins for which `order_resumption` was called.

    Raises
    ------
    RunDirectoryError
        If it was not.
    """
    past = _Past.read(directory)
    if past.resumed is None:
        raise RunDirectoryError(f"nobody has asked to resume {directory.path}")
    resumed = past.resumed
    checkpoint = None if resumed.file is None else directory.checkpoints / resumed.file
    return Resumption(
        str(past.file),
        dict(resumed.finished),
        checkpoint,
        resumed.checkpoint,
        resumed.restart,
        tuple(past.states),
    )


def finished_in(records: Iterable[Record]) -> dict[str, Finished]:
    """Return what a run has behind it.

    Parameters
    ----------
    records : iterable of Record
        From its journal, in order. Where it was resumed, what the last resumption started from
        counts, and what has finished since.
    """
    finished: dict[str, Finished] = {}
    for record in records:
        _take_in(finished, record)
    return finished


def _take_in(finished: dict[str, Finished], record: Record) -> None:
    if isinstance(record, GroupFinished):
        is_last = record.ended_by is not None
        finished[record.group] = Finished(record.iteration, is_last)
    elif isinstance(record, (RunStarted, CheckpointSaved)) and (
        isinstance(record, RunStarted) or record.finished
    ):
        finished.clear()
        finished.update(record.finished or {})


@dataclass
class _Past:
    """What a journal says of a run that is to go on.

    Attributes
    ----------
    file : Path
        The workflow file.
    number : int
        Of the last checkpoint that counts: not of those that a resumption has left behind; 0 if
        there is none.
    checkpoint : str or None
        Its file.
    states : sequence of str
        Files with the states of modules that belong to it.
    finished : dict
        What was behind at that moment, by group.
    resumed : RunResumed or None
        The last resumption.
    """

    file: Path
    number: int = 0
    checkpoint: str | None = None
    states: Sequence[str] = ()
    finished: dict[str, Finished] = field(default_factory=dict)
    resumed: RunResumed | None = None
    has_finished: bool = False

    @classmethod
    def read(cls, directory: RunDirectory) -> _Past:
        """Read a journal to its end.

        Raises
        ------
        RunDirectoryError
            If there is none, or what the run would go on from is damaged.
        """
        reader = JournalReader(directory.journal)
        past: _Past | None = None
        now: dict[str, Finished] = {}
        damage: list[Damage] = []  # since when there is nothing that counts
        damage_saved: list[Damage] = []  # before the last checkpoint
        for entry in reader.new_entries():
            if isinstance(entry, Damage):
                damage.append(entry)
                continue
            if isinstance(entry, (RunCreated, RunStarted)) and entry.file:
                past = past or cls(Path(entry.file))
            if past is None:
                continue
            _take_in(now, entry)
            if isinstance(entry, CheckpointSaved):
                past.number, past.checkpoint = entry.number, entry.file
                past.states = entry.states
                past.finished, damage_saved = dict(now), list(damage)
            elif isinstance(entry, RunResumed):
                if entry.checkpoint != past.number:
                    past.number, past.checkpoint = entry.checkpoint, entry.file
                    past.states = ()
                    damage_saved = list(damage) if past.number else []
                past.finished = dict(entry.finished)
                past.resumed, past.has_finished = entry, False
                damage = list(damage_saved)
            elif isinstance(entry, RunEnded):
                past.has_finished = entry.exit_code == 0
        if past is None:
            raise RunDirectoryError(_why_nothing(directory, reader))
        if damage_saved and not past.has_finished:
            first = damage_saved[0]
            raise RunDirectoryError(
                f"{directory.journal}, line {first.line}: no record: {first.problem}. It is "
                "damaged before its last checkpoint, so the run cannot go on from there: "
                f"diel run {past.file}"
            )
        return past


def _why_nothing(directory: RunDirectory, reader: JournalReader) -> str:
    if reader.complaint:
        return reader.complaint
    if directory.workflow.is_file():
        return (
            f"{directory.path} was made by an earlier version of diel, or not to its end: it does "
            "not say of which workflow file it is. Start a new run"
        )
    return f"{directory.path} is no run's directory: it has no journal.jsonl"


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
