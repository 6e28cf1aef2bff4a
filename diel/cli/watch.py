"""``diel watch``: a run of another terminal, from its run directory alone."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

from diel.cli import panels
from diel.cli.conclusion import rank_times_lines
from diel.cli.display import PlainDisplay
from diel.cli.output import console
from diel.errors import RunDirectoryError
from diel.run.directory import RunDirectory
from diel.run.history import State, find_run, summarize
from diel.run.journal import JournalReader
from diel.run.status import StatusView, read_status
from diel.run.view import RunView

if TYPE_CHECKING:
    from rich.console import RenderableType

_HERE: Final = Path("runs")
_LOOK_EVERY_S: Final = 0.25
_CHECK_EVERY_S: Final = 1.0
_STARTING_S: Final = 30.0
_PLAIN_WIDTH: Final = 120


def watch(options: argparse.Namespace) -> int:
    """Show a run until it ends; return the exit code.

    Raises
    ------
    RunDirectoryError
        If there is no such run.
    """
    watched = Watched(RunDirectory(find_run(options.run_dir or _HERE)))
    if options.once:
        watched.look()
        _print(watched)
        return 0
    with contextlib.suppress(KeyboardInterrupt):
        if sys.stdout.isatty():
            _watch_live(watched)
        else:
            _watch_plainly(watched)
    return 0


class Watched:
    """A run directory that is looked at again and again."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory
        self.view = RunView()
        self.state: State = "running"
        self._status = StatusView()
        self._journal = JournalReader(directory.journal)
        self._changing = Lock()  # Rich draws from a thread of its own
        self._next_check_s = 0.0

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is to come."""
        return self.state != "running"

    def look(self) -> None:
        """Read what is new.

        Raises
        ------
        RunDirectoryError
            If the run's directory cannot be read.
        """
        # Before the journal is read: what a run writes last is then read, however it ends.
        self._check()
        records = self._journal.new_records()
        with self._changing:
            for record in records:
                self.view.apply(record)
            self._status = read_status(self.directory)
        if self.state == "damaged" and not self.view.started_s:
            raise RunDirectoryError(summarize(self.directory.path, time.time()).reason)
        if self.view.exit_code is not None:
            self.state = summarize(self.directory.path, time.time()).state

    def _check(self) -> None:
        """Find out now and then whether the run still goes on."""
        now_s = time.time()
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + _CHECK_EVERY_S
        state = summarize(self.directory.path, now_s).state
        try:
            is_young = now_s - self.directory.path.stat().st_mtime < _STARTING_S
        except OSError as error:
            raise RunDirectoryError(
                f"{self.directory.path} cannot be read any more: {error.strerror}"
            ) from error
        self.state = "running" if state == "never started" and is_young else state

    def draw(self, *, is_lively: bool = True) -> RenderableType:
        """Draw all that there is."""
        from rich.console import Group
        from rich.text import Text

        with self._changing:
            view, now_s, damage = self.view, time.time(), self._journal.complaint
            if not view.started_s:
                waits = self.state == "running"
                words = "starting the MPI ranks ..." if waits else view.refusal or self.state
                return Text(f"{words}\n{damage}".rstrip(), style="dim")
            if self.state == "killed":  # then nothing goes on since its last sign of life
                now_s = view.started_s + (summarize(self.directory.path, now_s).duration_s or 0.0)
            parts = [
                panels.head(view, self.state, now_s),
                *panels.failure(view),
                panels.groups(view, is_lively=is_lively and not self.has_ended),
                *panels.copies(view, self._status, now_s),
            ]
            if not self.has_ended:
                parts += panels.servers(self._status)
            parts += panels.bars(view, StatusView() if self.has_ended else self._status)
            if self.has_ended:
                parts += [Text(line) for line in rank_times_lines(view)]
            if damage:
                parts.append(Text(damage, style="yellow"))
            return Group(*parts)


def _print(watched: Watched) -> None:
    printer = console(width=_PLAIN_WIDTH, color_system=None, force_terminal=False)
    with printer.capture() as capture:
        printer.print(watched.draw(is_lively=False))
    print("\n".join(line.rstrip() for line in capture.get().splitlines()), flush=True)


def _watch_live(watched: Watched) -> None:
    from rich.live import Live

    watched.look()
    with Live(get_renderable=watched.draw, console=console(), refresh_per_second=8):
        while not watched.has_ended:
            time.sleep(_LOOK_EVERY_S)
            watched.look()


def _watch_plainly(watched: Watched) -> None:
    """Print a line for each thing that happens: there is no screen to redraw."""
    display = PlainDisplay(watched.directory)
    watched.look()
    while not watched.has_ended:
        display.refresh()
        time.sleep(_LOOK_EVERY_S)
        watched.look()
    display.refresh()
    _print(watched)
