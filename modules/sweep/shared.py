"""Runs that share a sweep with other runs, or that join the sweep of a run in progress.

::

    SHARED/sweeps/<group>.<master>/     trials.jsonl, workers/: of all runs that share it
        terms/000001                    the leader of the first term: made by link(), once
        terms/000001.ended              that this term has ended, and how: made by its leader
    RUN_DIR/sweeps/takes-part.json      written before a run begins: which sweep it takes part in
    RUN_DIR/sweeps/<group>.<master>/    a copy of the ledger, so that each run has it whole

Runs that share a sweep are equal. One of their masters leads, the one that makes the file of a
term: it gives out trials and writes the ledger. The others are its workers (`joining`), so that a
strategy that learns gets all results, from whichever run they are.

A leader that has died makes no second file. The others find that out by its silence, and one of
them takes the next term. A leader that was only slow finds its ledger replaced: a new leader goes
on with a copy of it, so what the old leader still writes is in no file any more.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from diel import (
    JsonLinesFile,
    as_number,
    open_regular,
    part_of,
    read_json,
    replace_file,
    replacing,
    whole_lines,
)
from diel.errors import ModuleFailed

from ..trial_ranks import RANKS
from .joined_workers import JoinedLoop, MasterLink, WorkerEnd
from .joining import SILENCE_S, Identity, is_finished
from .ledger import LedgerError, LedgerReplaced, about_of, as_written, has_begun, ledger_path
from .master_loop import SweepPlan, conclude_sweep, dismiss_trainers, run_master
from .messages import Tags
from .steering import RequestReader, ask

if TYPE_CHECKING:
    from diel import Context

_FILE: Final = "takes-part.json"
_LOOK_EVERY_S: Final = 0.5
_PATIENCE: Final = 10
"""A worker waits so many times the limit of silence for a master that starts again."""
FINISHED: Final = "finished"
STOPPED: Final = "stopped"
_FOLDER: Final = "terms"
_LONGEST_WORDS_BYTES: Final = 100
_TERM: Final = re.compile(r"([0-9]{1,9})(\.ended)?")
_WITHOUT_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
"""Errors of a file system that has no hard links."""


@dataclass(frozen=True)
class Participation:
    """Which sweep of other runs a run takes part in, and for how long."""

    share: str | None = None
    """A folder that runs share."""
    join: str | None = None
    """The ledger of a sweep of another run."""
    silence_s: float = SILENCE_S
    """For how long this run may be silent before its trials are given to others."""
    leave_after_s: float | None = None
    """How long it takes part; None: to the end of the sweep."""

    def save(self, run_dir: Path) -> None:
        """Write the part to the directory of a run that has not begun."""
        file = run_dir / "sweeps" / _FILE
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, json.dumps(asdict(self)))

    @classmethod
    def of_run(cls, run_dir: Path) -> Participation | None:
        """Return what `save` has written; None for a run whose sweeps are its own.

        A `LedgerError` if the file is damaged, an OSError if it cannot be read.
        """
        file = run_dir / "sweeps" / _FILE
        try:
            said = read_json(file)
            share, join = said.get("share"), said.get("join")
            leave_after_s = said.get("leave_after_s")
            if not all(place is None or _is_path(place) for place in (share, join)):
                raise ValueError("its places are none")
            return cls(
                share,
                join,
                as_number(said.get("silence_s", SILENCE_S), 1e-3),
                None if leave_after_s is None else as_number(leave_after_s, 0),
            )
        except FileNotFoundError:
            return None
        except (ValueError, AttributeError) as error:
            raise LedgerError(
                f"{file} is damaged, so nobody knows in which sweep this run takes part: {error}. "
                "Write it anew, or start another run"
            ) from error


def _is_path(place: object) -> bool:
    try:
        return isinstance(place, str) and place != "" and b"\0" not in os.fsencode(place)
    except UnicodeEncodeError:  # JSON can hold half of a surrogate pair
        return False


def run_sweep(ctx: Context, tags: Tags, plan: SweepPlan, trainers: int) -> dict[str, Any]:
    """Run the sweep of a master, alone or with other runs; return the row of its best trial.

    A run that has joined the sweep of another run returns how many trials it ran. Errors as
    `run_master`.
    """
    part = Participation.of_run(ctx.run_dir)
    if part is None:
        return run_master(ctx, tags, plan, trainers)
    if plan.ranks_of is not None:
        raise ModuleFailed(
            f"trials have different numbers of ranks ({RANKS} of {tags.trainer}), and such a sweep "
            f"runs in one run alone: remove {RANKS}, or run it by itself"
        )
    if part.join is not None:
        return _join(ctx, tags, plan, trainers, part)
    return _share(ctx, tags, plan, trainers, part)


# -- joining a sweep that runs ---------------------------------------------------------------------


def _join(
    ctx: Context, tags: Tags, plan: SweepPlan, trainers: int, part: Participation
) -> dict[str, Any]:
    """Run trials of another run's sweep, until it is over or it is time to leave."""
    assert part.join is not None
    ledger = Path(part.join)
    _check_is_of(ledger, plan)
    leave_s = None if part.leave_after_s is None else time.monotonic() + part.leave_after_s
    me = Identity.of_this_process(ctx.run_dir)
    link = MasterLink(ledger, me, trainers, part.silence_s)
    ctx.log.info("takes part in the sweep of %s as %s", ledger.parent, me.name)
    loop = JoinedLoop(
        ctx,
        tags,
        plan.search.space,
        link,
        patience_s=lambda: part.silence_s * (_PATIENCE if ledger.exists() else 1),
        leave_s=leave_s,
        is_finished=_SweepWatch(ledger, link, part.silence_s),
    )
    how = loop.run()
    if how is WorkerEnd.SILENT:
        raise ModuleFailed(
            f"the master of {ledger.parent} has said nothing for {link.silent_for_s:.0f} s: see "
            f"whether its run goes on, diel watch {ledger.parents[2]}"
        )
    dismiss_trainers(ctx, tags, trainers)
    ctx.log.info("%s: %d trials were run here", how.value, loop.trials)
    return {"trials": loop.trials, "left": how.value}


class _SweepWatch:
    """Finds out whether a sweep is over, for a worker that its master may have forgotten."""

    def __init__(self, ledger: Path, link: MasterLink, silence_s: float) -> None:
        self._ledger, self._link, self._silence_s = ledger, link, silence_s
        self._look, self._look_at_run = _Interval(), _Interval(silence_s)
        self._is_over = False

    def __call__(self) -> bool:
        if not self._is_over and self._look.is_due():
            self._is_over = is_finished(self._ledger) or self._has_run_finished()
        return self._is_over

    def _has_run_finished(self) -> bool:
        """Whether the run of the sweep has finished, once its master has said nothing for long."""
        from diel import open_run

        if self._link.silent_for_s < self._silence_s or not self._look_at_run.is_due():
            return False
        with contextlib.suppress(OSError):  # the ledger is in a folder that runs share
            return open_run(self._ledger.parents[2]).state == "finished"
        return False


def _check_is_of(ledger: Path, plan: SweepPlan) -> None:
    """Check that a ledger is of the sweep in this run's workflow file; a `LedgerError` if not."""
    there = {**about_of(ledger), "table": ""}
    here = as_written({**plan.about, "table": ""})
    if odd := sorted(key for key in {*there, *here} if there.get(key) != here.get(key)):
        raise LedgerError(f"{ledger} is of another sweep: see {', '.join(odd)}")


# -- sharing a sweep -------------------------------------------------------------------------------


def _share(
    ctx: Context, tags: Tags, plan: SweepPlan, trainers: int, part: Participation
) -> dict[str, Any]:
    """Run a sweep together with all runs that share its folder, as its leader or as a worker."""
    assert part.share is not None
    where = (ctx.group, ctx.module, ctx.iteration)
    ledger, own = ledger_path(Path(part.share), *where), ledger_path(ctx.run_dir, *where)
    try:
        ledger.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModuleFailed(f"a sweep cannot be shared in {part.share}: {error.strerror}") from error
    silent_term = 0
    while True:
        me = Identity.of_this_process(ctx.run_dir)
        terms = Terms(ledger, me)
        term, ended = terms.latest()
        with contextlib.closing(LedgerCopy(ledger, own)) as copy:
            if ended == FINISHED:
                copy.refresh()
                break
            # At first the silent term is 0: there has been none yet.
            if ended or term == silent_term or terms.is_of_this_run(term):
                if terms.take(term + 1):
                    ctx.log.info("leads the sweep that is shared in %s", part.share)
                    with contextlib.suppress(LedgerReplaced):
                        return _lead(ctx, tags, plan, trainers, Leader(terms, term + 1, copy))
                    ctx.log.warning("another master has gone on with the sweep: it leads now")
                continue
            if has_begun(ledger):
                _check_is_of(ledger, plan)
            ctx.log.info("takes part in a sweep that %s leads", terms.leader(term))
            link = MasterLink(ledger, me, trainers, part.silence_s)
            loop = JoinedLoop(
                ctx,
                tags,
                plan.search.space,
                link,
                patience_s=lambda: part.silence_s,
                is_over=_TermWatch(terms, term, copy),
            )
            if loop.run() is WorkerEnd.SILENT and terms.latest() == (term, ""):
                ctx.log.warning("%s has said nothing for %g s", terms.leader(term), part.silence_s)
                silent_term = term
    return conclude_sweep(ctx, tags, plan, trainers)


class _TermWatch:
    """Finds out whether a term has ended, and keeps this run's copy of the ledger up to date."""

    def __init__(self, terms: Terms, term: int, copy: LedgerCopy) -> None:
        self._terms, self._term, self._copy = terms, term, copy
        self._look = _Interval()
        self._has_ended = False

    def __call__(self) -> bool:
        if not self._has_ended and self._look.is_due():
            with contextlib.suppress(OSError):  # a file system that does not answer for a while
                self._copy.refresh()
                self._has_ended = self._terms.latest() != (self._term, "")
        return self._has_ended


def _lead(
    ctx: Context, tags: Tags, plan: SweepPlan, trainers: int, leader: Leader
) -> dict[str, Any]:
    try:
        return run_master(ctx, tags, plan, trainers, leader)
    finally:
        leader.close()


class Leader:
    """The leadership of a shared sweep in one term, for the master that has it."""

    def __init__(self, terms: Terms, term: int, copy: LedgerCopy) -> None:
        self.ledger, self.term = copy.ledger, term
        self._terms, self._copy = terms, copy
        self._look = _Interval()
        self._has_finished = False

    def look(self) -> None:
        """Bring the copy of the ledger up to date, if it is time for that."""
        if self._look.is_due():
            with contextlib.suppress(OSError):  # a file system that does not answer for a while
                self._copy.refresh()

    def goes_on(self) -> bool:
        """Whether no other master has begun a term."""
        return self._terms.latest()[0] == self.term

    def finish(self) -> None:
        """Record that no trial of the sweep is left."""
        self._terms.end(self.term, FINISHED)
        self._has_finished = True
        self._copy.refresh()  # the log of trials reads it

    def close(self) -> None:
        """End the term: if trials are left, another master may go on."""
        if not self._has_finished:
            self._terms.end(self.term, STOPPED)
        self._copy.refresh()


class LedgerCopy:
    """A run's own copy of the ledger of a shared sweep; passes on requests made beside the copy."""

    def __init__(self, ledger: Path, own: Path) -> None:
        self.ledger, self._own = ledger, own
        self._lines: JsonLinesFile | None = None
        self._offset = 0
        self._requests = RequestReader(own)

    def refresh(self) -> None:
        """Copy new lines, and pass on requests that were made in this run's directory."""
        requests = self._requests.new_requests()
        if requests:
            ask(self.ledger, requests)
        if self._lines is None:
            if not self.ledger.exists():
                return
            self._begin()
        assert self._lines is not None
        if lines := list(whole_lines(self.ledger, self._offset)):
            self._lines.append(b"".join(lines))
            self._offset = self._lines.size_bytes

    def close(self) -> None:
        """Close the copy."""
        if self._lines is not None:
            self._lines.close()

    def _begin(self) -> None:
        """Copy the whole ledger at once, so that no reader finds a part of it."""
        self._own.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self._own) as file:
            file.writelines(whole_lines(self.ledger))
        self._lines = JsonLinesFile(self._own)
        self._offset = self._lines.size_bytes


class _Interval:
    """Limits how often something is done: twice a second, or as asked."""

    def __init__(self, every_s: float = _LOOK_EVERY_S) -> None:
        self._every_s, self._due_s = every_s, 0.0

    def is_due(self) -> bool:
        """Whether it is time again."""
        now_s = time.monotonic()
        if now_s < self._due_s:
            return False
        self._due_s = now_s + self._every_s
        return True


# -- which master leads ----------------------------------------------------------------------------


class Terms:
    """The terms of a shared sweep, beside its ledger; `me` identifies this master."""

    def __init__(self, ledger: Path, me: Identity) -> None:
        self._ledger = ledger
        self._folder = ledger.with_name(_FOLDER)
        self._me = me

    def latest(self) -> tuple[int, str]:
        """Return the latest term, 0 if there is none, and how it has ended: empty if it has not."""
        try:
            names = [entry.name for entry in os.scandir(self._folder)]
        except FileNotFoundError:
            return 0, ""
        terms = [int(found[1]) for name in names if (found := _TERM.fullmatch(name))]
        term = max(terms, default=0)
        ended = self._file(term, ".ended")
        return term, _words_in(ended) if ended.name in names else ""

    def take(self, term: int) -> bool:
        """Begin a term, unless another master has; return whether this master leads.

        The ledger is replaced by a copy of itself, to which a former leader does not write.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        part = part_of(self._file(term))
        try:
            with part.open("x", encoding="utf-8") as file:
                file.write(json.dumps(asdict(self._me)) + "\n")
            is_taken = self._make(part, self._file(term))
        finally:
            part.unlink(missing_ok=True)
        if is_taken and self._ledger.exists():
            with replacing(self._ledger, sync=True) as copy:
                copy.writelines(whole_lines(self._ledger))
        return is_taken

    @staticmethod
    def _make(part: Path, file: Path) -> bool:
        """Make the file of a term; return whether this process has made it."""
        try:
            os.link(part, file)
        except FileExistsError:
            pass  # it may be our own link: the answer of a file server is lost at times
        except OSError as error:
            if error.errno not in _WITHOUT_LINKS:
                raise
            try:
                file.open("x").close()
            except FileExistsError:
                return False
            return True
        return part.stat().st_nlink > 1

    def end(self, term: int, how: str) -> None:
        """Record that a term of this master has ended, and how."""
        replace_file(self._file(term, ".ended"), how)

    def leader(self, term: int) -> str:
        """Return the run and the host of a term's leader as text; empty if that cannot be read."""
        identity = self._leader_identity(term)
        return f"{identity['run_dir']} on {identity['host']}" if identity else ""

    def is_of_this_run(self, term: int) -> bool:
        """Whether a term is of an earlier session of this run, which is over."""
        return self._leader_identity(term).get("run_dir") == self._me.run_dir

    def _leader_identity(self, term: int) -> dict[str, str]:
        try:
            identity = read_json(self._file(term))
            return {name: str(identity[name]) for name in ("run_dir", "host")}
        except (OSError, ValueError, LookupError, TypeError):
            return {}

    def _file(self, term: int, suffix: str = "") -> Path:
        return self._folder / f"{term:06d}{suffix}"


def _words_in(file: Path) -> str:
    """Return how a term has ended; that its leader stopped, if its file cannot be read."""
    try:
        with open_regular(file) as opened:
            return opened.read(_LONGEST_WORDS_BYTES).decode(errors="replace") or STOPPED
    except FileNotFoundError:
        raise
    except OSError:
        return STOPPED
