"""Resuming a run that has ended too early, from its state at the last checkpoint.

A checkpoint is a record of the journal and, where the tuple space was not empty, a file::

    CheckpointSaved   number, file (null: the tuple space was empty), states of modules

The groups that are finished at a checkpoint follow from the records before it.

Everything returns to the checkpoint: the tuples, the finished iterations, the saved states of
modules, and the rows of results. What began later is repeated, except groups and tasks of
executables that have not used the tuple space: `diel.run.kept_groups`, `diel.run.tasks`.

A run that has finished although tasks have failed goes back to the checkpoint after the first group
with such tasks, which was kept for that, and repeats these tasks and what came after them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Final

from diel.errors import LaunchError, RunDirectoryError
from diel.frozen import Frozen
from diel.run.directory import LOST_OR_ENDED, RunDirectory, group_of_state
from diel.run.fields import Record
from diel.run.files import locked_file, open_regular, replacing
from diel.run.journal import Damage, JournalReader, JournalWriter
from diel.run.kept_groups import KeptGroups
from diel.run.part import GroupLinks, Part, groups_of
from diel.run.records import (
    FORMAT,
    LOSSES,
    CheckpointSaved,
    Elements,
    Finished,
    GroupFinished,
    GroupSkipped,
    JournalLost,
    LeaveIgnored,
    RunCreated,
    RunEnded,
    RunLost,
    RunResumed,
    RunStarted,
    StopOrdered,
)
from diel.run.tasks import forget_tasks
from diel.text import show

_CHANGES_SHOWN: Final = 5


class Resumption(Frozen):
    """The state from which a resumed run goes on.

    Attributes
    ----------
    file : str
        The workflow file.
    finished : dict
        By group, the last finished iteration, and whether no further one follows.
    checkpoint : Path or None
        The file with the tuples; None if there were none.
    number : int
        Of that checkpoint; 0 if there was none.
    restart : int
        Which restart by the launcher it is, counted from 1; 0 if a person has resumed it.
    states : sequence of str
        The names of the files in which modules had saved their own state by then.
    outcomes : mapping of str to str
        How the groups in `finished` have ended, where not as ``finished``.
    pinned : CheckpointSaved or None
        A checkpoint that is kept until the run has ended.
    """

    file: str
    finished: dict[str, Finished]
    checkpoint: Path | None
    number: int
    restart: int = 0
    states: Sequence[str] = ()
    outcomes: Mapping[str, str] = {}
    pinned: CheckpointSaved | None = None


def check_elements(directory: RunDirectory, now: Iterable[Elements]) -> None:
    """Raise a RunDirectoryError unless groups with ``foreach`` have the elements that they had."""
    started = _Past.read(directory).started
    before = {each.group: each for each in (() if started is None else started.elements)}
    for each in now:
        then = before.get(each.group, each)
        pairs = {"names": (then.columns, each.columns)} | {
            f"element {number}": rows
            for number, rows in enumerate(zip_longest(then.rows, each.rows))
        }
        for what, (old, new) in pairs.items():
            was, is_now = ("none" if row is None else show([*row]) for row in (old, new))
            if was != is_now:
                raise RunDirectoryError(
                    f"foreach of group {each.group} is not what it was when {directory.path} was "
                    f"started: {what} was {was}, and is {is_now}. Restore its table, or start a "
                    "new run"
                )


def order_resumption(
    directory: RunDirectory,
    restart: int = 0,
    *,
    repeats: Sequence[str] = (),
    repeats_failed: bool = True,
) -> Resumption | None:
    """Write to the journal that the run goes on from its last checkpoint.

    A run that was killed before its first checkpoint starts from the beginning, in its directory.
    `restart` is which restart by its launcher it is; 0 if a person asks. The groups `repeats`, and
    all that depend on them, are run again even if they have finished. Returns None if the run has
    finished and no more was requested; with `repeats_failed`, only if no task of it has failed that
    can be repeated.

    What may change in the workflow file, such as a time limit, is taken over from there.

    A RunDirectoryError if it is no run's directory, the run goes on, the workflow file has changes
    that would change results, its journal is damaged where it matters, or it holds links that would
    be written through. A LaunchError if groups cannot be repeated.
    """
    past = _Past.read(directory)
    repeated = _repeated(directory, past, repeats) if repeats else set()
    is_over = past.has_finished and not directory.extension_requested() and not repeated
    if is_over and not (repeats_failed and past.goes_back(directory)):
        return None
    past.forget(repeated)
    changed = _check_changes(past.file, directory)
    directory.refuse_links()
    if changed is not None and not restart:  # a launcher goes on with the file that it has read
        with replacing(directory.workflow) as copy:
            copy.write(changed)
    directory.logs.mkdir(exist_ok=True)
    if not restart and directory.launcher_log.exists():
        # Between two starts of its ranks only the launcher holds a lock, on its own log.
        with locked_file(directory.launcher_log):
            pass
    with JournalWriter(directory.journal) as journal:
        # A person's request to stop, made while ranks are started again, is for the new ranks.
        if not restart or directory.is_lost_or_ended():
            directory.withdraw_stop()
        directory.remove_parts()
        pinned_states = () if past.pinned is None else past.pinned.states
        directory.keep_states([*past.states, *pinned_states])  # later ones do not match the tuples
        directory.withdraw_extension()
        directory.forget_crashes()  # of ranks that are started anew
        if past.ended_in_order:
            directory.forget_in_flight()  # no trial has ended that session
        directory.forget_spilled()  # their tuples are in the checkpoint
        forget_tasks(directory, repeated)
        journal.write(
            RunResumed(
                checkpoint=past.number,
                file=past.checkpoint,
                finished=past.finished,
                format=FORMAT,
                restart=restart,
                outcomes=past.kept.outcomes,
                states=list(past.states),
            )
        )
    found = resumption(directory)
    pinned = () if found.pinned is None else (found.pinned.number,)
    directory.keep_checkpoints([found.number - 1, found.number, *pinned])
    return found


def _repeated(directory: RunDirectory, past: _Past, repeats: Sequence[str]) -> set[str]:
    """Return the groups that are not finished any more when some are repeated."""
    if past.started is None:
        raise RunDirectoryError(
            f"{directory.path} has never begun, so nothing can be repeated: leave --from out"
        )
    chosen, around = groups_of(Part(from_groups=repeats), GroupLinks.of_run(past.started))
    for name in sorted(chosen & past.finished.keys()):
        if any(directory.path.glob(f"sweeps/{name}.*/trials.jsonl")):
            raise LaunchError(
                f"group {name} has a sweep, whose trials are kept and would not run again: begin "
                f"a new run with diel run {past.file} {Part(from_groups=repeats).flags}"
            )
    return chosen | around


def workflow_file_of(directory: RunDirectory) -> Path:
    """Return the workflow file of a run.

    A RunDirectoryError if it is no run's directory, or the file has changes that would change
    results.
    """
    past = _Past.read(directory)
    _check_changes(past.file, directory)
    return past.file


def is_finished_at_checkpoint(directory: RunDirectory, group: str) -> bool:
    """Whether a group is finished at the last checkpoint: then a resumed run does not run it.

    A RunDirectoryError if the journal cannot be read.
    """
    finished = _Past.read(directory).finished.get(group)
    return finished is not None and finished.is_last


def has_ended(directory: RunDirectory, group: str) -> bool:
    """Whether a group of a run has ended for the last time, as far as its journal says."""
    finished = finished_in(JournalReader(directory.journal).new_records()).get(group)
    return finished is not None and finished.is_last


def resumption(directory: RunDirectory) -> Resumption:
    """Return the state from which a run goes on, once `order_resumption` was called for it.

    A RunDirectoryError if that was not called.
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
        dict(resumed.outcomes),
        past.pinned,
    )


def finished_in(records: Iterable[Record]) -> dict[str, Finished]:
    """Return the last finished iteration of each group of a run, from the records of its journal.

    For a resumed run, the groups that its last start names as finished count, and those that have
    finished since.
    """
    finished: dict[str, Finished] = {}
    for record in records:
        _update_finished(finished, record)
    return finished


def _update_finished(finished: dict[str, Finished], record: Record) -> None:
    if isinstance(record, GroupSkipped):
        finished[record.group] = Finished(record.iteration, True)
    elif isinstance(record, GroupFinished):
        is_last = record.ended_by is not None
        finished[record.group] = Finished(record.iteration, is_last)
    elif isinstance(record, (RunStarted, CheckpointSaved)) and (
        isinstance(record, RunStarted) or record.finished
    ):
        finished.clear()
        finished.update(record.finished or {})


def _update_outcomes(outcomes: dict[str, str], record: Record) -> None:
    if isinstance(record, GroupSkipped):
        outcomes[record.group] = "skipped"
    elif isinstance(record, GroupFinished):
        outcomes[record.group] = record.outcome
        if record.outcome == "finished":
            del outcomes[record.group]
    elif isinstance(record, RunStarted):
        outcomes.clear()
        outcomes.update(record.outcomes)


@dataclass
class _Past:
    """State of a run at its last checkpoint, from its journal, for a resumption.

    Attributes
    ----------
    file : Path
        The workflow file.
    number : int
        Of the last checkpoint, without those that an earlier resumption has discarded; 0 if there
        is none.
    checkpoint : str or None
        Its file.
    states : sequence of str
        Files with the states of modules that belong to it.
    kept : KeptGroups
        What was finished at that checkpoint, and what has finished since and is not repeated.
    pinned : CheckpointSaved or None
        The checkpoint to which a finished run goes back to repeat tasks that have failed.
    repeating : KeptGroups
        What is not repeated then.
    resumed : RunResumed or None
        The last resumption.
    started : RunStarted or None
        The last start of its ranks.
    ended_in_order : bool
        Whether rank 0 has ended the last session, by a stop or after a failure, and no rank was
        lost or could not be ended.
    """

    file: Path
    number: int = 0
    checkpoint: str | None = None
    states: Sequence[str] = ()
    kept: KeptGroups = field(default_factory=lambda: KeptGroups(None, {}, {}))
    pinned: CheckpointSaved | None = None
    repeating: KeptGroups = field(default_factory=lambda: KeptGroups(None, {}, {}))
    resumed: RunResumed | None = None
    started: RunStarted | None = None
    has_finished: bool = False
    has_lost: bool = False  # ranks, in its last session
    ended_in_order: bool = False

    @property
    def finished(self) -> dict[str, Finished]:
        """The last finished iteration of each group that is not repeated."""
        return self.kept.finished

    def goes_back(self, directory: RunDirectory) -> bool:
        """Return to where failed tasks can be repeated; False if there is no such checkpoint."""
        saved = self.pinned
        if saved is None or (saved.file and not (directory.checkpoints / saved.file).is_file()):
            return False
        self.number, self.checkpoint, self.states = saved.number, saved.file, saved.states
        self.kept, self.pinned = self.repeating, None
        return True

    @classmethod
    def read(cls, directory: RunDirectory) -> _Past:
        """Read a journal to its end.

        A RunDirectoryError if there is none, or it is damaged before the last checkpoint.
        """
        reader = JournalReader(directory.journal)
        past: _Past | None = None
        now: dict[str, Finished] = {}
        outcomes: dict[str, str] = {}
        damage: list[Damage] = []  # so far, without what a resumption has discarded
        damage_saved: list[Damage] = []  # before the last checkpoint
        for entry in reader.new_entries():
            if isinstance(entry, Damage):
                damage.append(entry)
                for groups in () if past is None else (past.kept, past.repeating):
                    groups.note_damage()
                continue
            if isinstance(entry, (RunCreated, RunStarted)) and entry.file:
                past = past or cls(Path(entry.file))
            if past is None:
                continue
            _update_finished(now, entry)
            _update_outcomes(outcomes, entry)
            past._note_end(entry)
            past.kept.apply(entry)
            past.repeating.apply(entry)
            if isinstance(entry, RunStarted):
                past.started, past.kept = entry, KeptGroups(entry, now, entry.outcomes)
            elif isinstance(entry, CheckpointSaved):
                past.number, past.checkpoint = entry.number, entry.file
                past.states = entry.states
                if entry.is_pinned:
                    past._pin(entry, past.kept.at(now, outcomes, repeats_failed=True))
                past.kept, damage_saved = past.kept.at(now, outcomes), list(damage)
            elif isinstance(entry, RunResumed):
                if entry.checkpoint != past.number:
                    damage_saved = list(damage) if entry.checkpoint else []
                past.number, past.checkpoint = entry.checkpoint, entry.file
                past.states = entry.states
                past._forget_failures(entry.finished)
                past.kept = KeptGroups(past.started, entry.finished, entry.outcomes)
                past.resumed, past.has_finished = entry, False
                damage = list(damage_saved)
            elif isinstance(entry, RunEnded):
                past.has_finished = entry.exit_code == 0
        if past is None:
            raise RunDirectoryError(_missing_start(directory, reader))
        if damage_saved and not past.has_finished:
            first = damage_saved[0]
            raise RunDirectoryError(
                f"{directory.journal}, line {first.line}: no record: {first.problem}. It is "
                "damaged before its last checkpoint, so the run cannot go on from there: "
                f"diel run {past.file}"
            )
        return past

    def _pin(self, saved: CheckpointSaved, groups: KeptGroups) -> None:
        for group, iteration in self.kept.failed:
            groups.repeat(group, iteration)
            groups.failed.append((group, iteration))
        self.pinned, self.repeating = saved, groups

    def _forget_failures(self, finished: Mapping[str, Finished]) -> None:
        """Forget failures of what is not finished any more; without others nothing stays pinned."""
        self.repeating.failed = [
            (group, iteration)
            for group, iteration in self.repeating.failed
            if group in finished and finished[group].iteration >= iteration
        ]
        if not self.repeating.failed:
            self.pinned = None

    def forget(self, groups: Collection[str]) -> None:
        """Count groups as not begun, and drop what their modules have saved."""
        self.kept.forget(groups)
        self._forget_failures(self.finished)
        self.states = [name for name in self.states if group_of_state(name) not in groups]

    def _note_end(self, record: Record) -> None:
        """Note how the present session has ended, as far as a record says that."""
        if isinstance(record, (RunStarted, RunResumed)):
            self.has_lost = self.ended_in_order = False
        elif isinstance(record, (*LOSSES, LeaveIgnored, JournalLost, RunLost)) or (
            isinstance(record, StopOrdered) and LOST_OR_ENDED in record.reason
        ):
            self.has_lost, self.ended_in_order = True, False
        elif isinstance(record, RunEnded):
            self.ended_in_order = not self.has_lost


def _missing_start(directory: RunDirectory, reader: JournalReader) -> str:
    if reader.complaint:
        return reader.complaint
    if directory.workflow.is_file():
        return (
            f"{directory.path} was made by an earlier version of diel, or not to its end: it does "
            "not say of which workflow file it is. Start a new run"
        )
    return f"{directory.path} is no run's directory: it has no journal.jsonl"


def _check_changes(file: Path, directory: RunDirectory) -> bytes | None:
    """Return the text of a run's workflow file if it has changed; None if it is what it was.

    A RunDirectoryError if it cannot be read, or what has changed would change results.
    """
    try:
        with open_regular(file) as source, open_regular(directory.workflow) as copy:
            now, then = source.read(), copy.read()
    except OSError as error:
        raise RunDirectoryError(
            f"the workflow file of {directory.path} cannot be read: "
            f"{error if error.filename is None else f'{error.filename}: {error.strerror}'}"
        ) from error
    if now == then:
        return None
    from diel.run.file_changes import changes_of_results

    try:
        changes = changes_of_results(then.decode("utf-8-sig"), now.decode("utf-8-sig"))
    except ValueError as error:
        changes = [f"it is not TOML any more: {error}"]
    if changes:
        more = f"; and {len(changes) - _CHANGES_SHOWN} more" if changes[_CHANGES_SHOWN:] else ""
        raise RunDirectoryError(
            f"{file} is not what it was when {directory.path} was started: "
            f"{'; '.join(changes[:_CHANGES_SHOWN])}{more}. Restore it from {directory.workflow}, "
            "or start a new run; time limits, retries and sizes of logs may change"
        )
    return now
