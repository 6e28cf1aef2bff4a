"""A run directory that is looked at again and again, while the run goes on or afterwards."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from threading import Lock
from typing import Final

from diel.errors import RunDirectoryError
from diel.run.directory import RunDirectory
from diel.run.history import State, summarize
from diel.run.journal import JournalReader
from diel.run.status import StatusView, read_status
from diel.run.view import RunView

_CHECK_EVERY_S: Final = 1.0
_STARTING_S: Final = 30.0


class WatchedRun:
    """What a run's directory says of it, as of the last `look`.

    Any thread may look; `unchanged` keeps the others from doing so while one reads the view.

    Attributes
    ----------
    directory : RunDirectory
    view : RunView
    status : StatusView
    state : str
        As of a second ago at most.
    version : int
        Another one whenever anything of this has changed.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.view = RunView()
        self.status = StatusView()
        self.state: State = "running"
        self.version = 0
        self._is_stopping = False
        self._journal = JournalReader(directory.journal)
        self._looking = Lock()
        self._changing = Lock()
        self._next_check_s = 0.0

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is to come."""
        return self.state != "running"

    @property
    def complaint(self) -> str:
        """What was wrong with the journal so far, in a line; empty if nothing was."""
        return self._journal.complaint

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[RunView]:
        """Keep the view as it is for the length of a block."""
        with self._changing:
            yield self.view

    def latest_s(self) -> float:
        """Return the moment of the view, in seconds since 1970: of a killed run, its last sign."""
        now_s = time.time()
        if self.state == "killed":
            lasted_s = summarize(self.directory.path, now_s).duration_s or 0.0
            return self.view.started_s + lasted_s
        return self.view.ended_s or now_s

    def look(self) -> None:
        """Read what is new.

        Raises
        ------
        RunDirectoryError
            If the run's directory cannot be read.
        """
        with self._looking:
            before = self._other_parts()
            # Before the journal is read: what a run writes last is then read, however it ends.
            self._check()
            records = self._journal.new_records()
            status = read_status(self.directory)
            self._is_stopping = self.directory.stop_requested()
            with self._changing:
                for record in records:
                    self.view.apply(record)
                self.status = status
            if self.view.exit_code is not None:
                self.state = summarize(self.directory.path, time.time()).state
            if records or self._other_parts() != before:
                self.version += 1
            if self.state == "damaged" and not self.view.started_s:
                raise RunDirectoryError(summarize(self.directory.path, time.time()).reason)

    def _other_parts(self) -> tuple[object, ...]:
        """Return what may change without a new record."""
        return self.state, self.status, self.complaint, self._is_stopping

    def _check(self) -> None:
        """Find out now and then whether the run still goes on."""
        if time.monotonic() < self._next_check_s:
            return
        self._next_check_s = time.monotonic() + _CHECK_EVERY_S
        now_s = time.time()
        state = summarize(self.directory.path, now_s).state
        try:
            is_young = now_s - self.directory.path.stat().st_mtime < _STARTING_S
        except OSError as error:
            raise RunDirectoryError(
                f"{self.directory.path} cannot be read any more: {error.strerror}"
            ) from error
        self.state = "running" if state == "never started" and is_young else state


def latest_progress(
    view: RunView, status: StatusView
) -> dict[str, tuple[float, float | None, str]]:
    """Return how far copies are: done, of how much where that is known, and their words."""
    # What the status file says is of a moment ago, the journal may be behind.
    latest = {copy.copy: (copy.done, copy.total, copy.text) for copy in status.progress}
    running = {who: said for who, said in latest.items() if who in view.running}
    return {**view.progress, **running}
