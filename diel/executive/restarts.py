"""Restarts of a run after ranks, a host or mpiexec have died: whether, and on how many ranks.

::

    mpiexec ends ── before the run has ended ─> the journal gets a record of the loss, RunLost
                 ── a restart is left ────────> RunResumed, mpiexec with the remaining ranks
                 ── else ─────────────────────> the run is lost

A run that ended since a module failed or a person asked it to stop is not started again. No
extension of MPI is needed: the new ranks go on from journal and checkpoint, as the ranks of ``diel
run --resume`` do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from diel.errors import RunDirectoryError
from diel.executive.run_losses import find_loss
from diel.exit_codes import BAD_INPUT
from diel.frozen import Frozen
from diel.run.directory import RunDirectory
from diel.run.fields import Record
from diel.run.journal import JournalWriter
from diel.run.records import LOSSES, RunEnded, RunLost, RunStarted, StopOrdered
from diel.run.tasks import recorded_tasks
from diel.run.view import RunView
from diel.text import format_duration

_MOST_FRUITLESS: Final = 3
"""The most times in a row that a run may die without progress."""
_LOCK_S: Final = 15.0
"""How long rank 0, on a host that cannot be reached, may go on writing before this gives up."""
_LOOK_EVERY_S: Final = 0.1

Progress: TypeAlias = "tuple[int, ...]"


class Restarts:
    """Counts the restarts of a run, and decides whether it may be started again; pure.

    Parameters
    ----------
    most : int
        The most restarts.

    Attributes
    ----------
    places_ranks : bool
        Whether a host is gone: from then on the launcher is given the hosts of all ranks. Until
        then it places them as it did at the first start.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.count = 0
        self.places_ranks = False
        self._furthest: Progress = ()
        self._fruitless = 0

    def refusal(self, progress: Progress) -> str:
        """Return why a run that has just died is not started again; an empty text if it is.

        `progress` is from `progress_of`.
        """
        furthest = self._furthest or (0,) * len(progress)
        pairs = list(zip(progress, furthest, strict=True))
        is_further = any(now > before for now, before in pairs)
        self._fruitless = 0 if is_further else self._fruitless + 1
        self._furthest = tuple(map(max, pairs))
        if not self.most:
            return ""
        if self._fruitless >= _MOST_FRUITLESS:
            return (
                f"it has died {_MOST_FRUITLESS} times in a row without getting any further, so the "
                "cause would come again"
            )
        if self.count >= self.most:
            return f"it has been started again {self.most} times already (restarts = {self.most})"
        self.count += 1
        return ""


def progress_of(view: RunView, directory: RunDirectory) -> Progress:
    """Return how far a run has come, as numbers: some number grows if a restart made progress.

    These are its checkpoints, the bytes that its sweeps have recorded, its finished groups, and the
    tasks of groups that have not finished.
    """
    finished = sum(group.state in ("finished", "skipped") for group in view.groups.values())
    return view.checkpoint, directory.recorded_bytes(), finished, recorded_tasks(directory)


def is_lost(view: RunView, directory: RunDirectory, launcher_status: int) -> bool:
    """Whether a run was ended by the death of ranks, of a host or of mpiexec.

    Parameters
    ----------
    view : RunView
        The state of the run by its journal, now that mpiexec has ended.
    directory : RunDirectory
    launcher_status : int
    """
    if view.refusal:
        return False
    if view.exit_code is None:
        # The ranks may have refused their work before they wrote anything.
        return view.started is not None or launcher_status != BAD_INPUT
    if view.exit_code == 0:
        return False
    if isinstance(view.failure, LOSSES):
        return True
    return view.failure is None and directory.is_lost_or_ended()


class Restart(Frozen):
    """A restart: its number, its ranks and their hosts.

    Attributes
    ----------
    number : int
        Counted from 1.
    ranks : int
    hosts : tuple of (str, int)
        The hosts, and how many ranks on each; empty if the launcher chooses.
    """

    number: int
    ranks: int
    hosts: tuple[tuple[str, int], ...] = ()


def after_loss(
    restarts: Restarts,
    view: RunView,
    directory: RunDirectory,
    launcher_status: int,
    *,
    ranks: int,
    hosts: Callable[[RunStarted], Mapping[str, bool]],
    fits: Callable[[int], str],
) -> Restart | None:
    """Record what a run has lost; return the restart that follows, None without one.

    So many ranks had been started. `hosts` tells from the record of the start which hosts its ranks
    were on, and whether each answers; none if all ranks are on this host. `fits` tells why the
    workflow cannot run on a number of ranks; an empty text if it can. A RunDirectoryError if
    another process still writes the journal.
    """
    loss = find_loss(view, directory, launcher_status)
    refusal = restarts.refusal(progress_of(view, directory))
    restart = None
    if loss.is_final:
        refusal = loss.explanation
    elif restarts.most and not refusal:
        answers = {} if view.started is None else hosts(view.started)
        gone = [host for host, is_there in answers.items() if not is_there]
        restarts.places_ranks = restarts.places_ranks or bool(gone)
        restart = Restart(restarts.count, ranks)
        if restarts.places_ranks:
            restart = _on_answering_hosts(restart, view.started, answers)
        if gone:
            named = ", ".join(gone)
            loss = loss.replace(explanation=f"{loss.explanation}; {named} no longer answers")
        refusal = fits(restart.ranks)
        if refusal:
            restart = None
    record = RunLost(
        explanation=loss.explanation,
        detail="\n".join(loss.lines),
        ranks=list(loss.ranks),
        restart=0 if restart is None else restart.number,
        on_ranks=0 if restart is None else restart.ranks,
        refusal=refusal if restarts.most else "",
    )
    try:
        _write(directory, record)
    except RunDirectoryError:
        raise
    except OSError:  # the folder was removed, or the disk is full: reported when the run concludes
        return None
    return restart


def _on_answering_hosts(
    restart: Restart, started: RunStarted | None, answers: Mapping[str, bool]
) -> Restart:
    """Return a restart on the hosts that answer, each with as many ranks as it had."""
    if started is None or not answers:
        return restart
    ranks = dict.fromkeys(answers, 0) | {node.host: len(node.ranks) for node in started.nodes}
    # Rank 0 and the tuple servers come first.
    first = next((host for host, is_there in answers.items() if is_there), "")
    ranks[first] = ranks.get(first, 0) + started.ranks - sum(ranks.values())
    hosts = tuple(
        (host, ranks[host]) for host, is_there in answers.items() if is_there and ranks[host]
    )
    return restart.replace(ranks=sum(count for _, count in hosts), hosts=hosts)


def record_stop(directory: RunDirectory, restarts: int) -> None:
    """Record that a run ends because a stop was requested before its next restart.

    A FileNotFoundError if the run directory was removed, a RunDirectoryError if another process
    still writes the journal.
    """
    stop = StopOrdered(reason=directory.stop_reason())
    ended = RunEnded(exit_code=directory.exit_code_of_stop(), restarts=restarts)
    _write(directory, stop, ended)


def _write(directory: RunDirectory, *records: Record) -> None:
    """Write records to the journal, as soon as no other process has it open for writing."""
    deadline_s = time.monotonic() + _LOCK_S
    while True:
        if not directory.journal.is_file():
            raise FileNotFoundError(directory.journal)
        try:
            with JournalWriter(directory.journal) as journal:
                for record in records:
                    journal.write(record)
            return
        except RunDirectoryError as error:
            if time.monotonic() >= deadline_s:
                raise RunDirectoryError(
                    f"rank 0 of the run still writes {directory.journal}, "
                    f"{format_duration(_LOCK_S)} after mpiexec has ended: it may be on a host that "
                    "cannot be reached. End it there, and then: diel run --resume "
                    f"{directory.path}"
                ) from error
            time.sleep(_LOOK_EVERY_S)
