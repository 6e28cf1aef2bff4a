"""A run directory that is read again and again, while the run goes on or afterwards."""

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
    """State of a run, read from its directory at the last `look`.

    Any thread may call `look`; `unchanged` keeps it from changing the view while a thread reads.

    Attributes
    ----------
    directory : RunDirectory
    view : RunView
    status : StatusView
    state : str
        As of a second ago at most.
    version : int
        A number that grows whenever any of these has changed.
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
        """Whether the run has ended, by itself or killed."""
        return self.state != "running"

    @property
    def complaint(self) -> str:
        """The damage found in the journal so far, in a line; empty if there was none."""
        return self._journal.complaint

    @contextlib.contextmanager
    def unchanged(self) -> Iterator[RunView]:
        """Keep the view as it is for the length of a block."""
        with self._changing:
            yield self.view

    def latest_s(self) -> float:
        """Return the time of the view, since 1970: now, the run's end, or a killed run's last sign.

        The last sign of a killed run is its last record.
        """
        now_s = time.time()
        if self.state == "killed":
            lasted_s = summarize(self.directory.path, now_s).duration_s or 0.0
            return self.view.started_s + lasted_s
        return self.view.ended_s or now_s

    def look(self) -> None:
        """Read new records and the status, and update the state.

        A RunDirectoryError if the run's directory cannot be read.
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
        """Return the parts that may change without a new record."""
        return self.state, self.status, self.complaint, self._is_stopping

    def _check(self) -> None:
        """Update the state, once a second at most: whether the run still goes on."""
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
    """Return the progress of copies by name: done, total where it is known, and a text."""
    # The status file is of a moment ago, while the journal may be further behind.
    latest = {copy.copy: (copy.done, copy.total, copy.text) for copy in status.progress}
    running = {name: progress for name, progress in latest.items() if name in view.running}
    return {**view.progress, **running}
