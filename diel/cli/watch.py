"""``diel watch``: show a run of another terminal, read from its run directory alone."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from typing import TYPE_CHECKING, Final

from diel.cli.conclusion import rank_times_lines
from diel.cli.display import (
    PlainDisplay,
    draw_bars,
    draw_copies,
    draw_failure,
    draw_groups,
    draw_head,
    draw_servers,
)
from diel.cli.output import console
from diel.run.directory import RunDirectory
from diel.run.history import DEFAULT_RUNS, find_run
from diel.run.status import StatusView
from diel.run.watched_run import WatchedRun

if TYPE_CHECKING:
    from rich.console import RenderableType

_LOOK_EVERY_S: Final = 0.25
_PLAIN_WIDTH: Final = 120


def watch(options: argparse.Namespace) -> int:
    """Show a run until it ends; return the exit code.

    Raises
    ------
    RunDirectoryError
        If there is no such run.
    """
    watched = WatchedRun(RunDirectory(find_run(options.run_dir or DEFAULT_RUNS)))
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


def draw(watched: WatchedRun, *, is_lively: bool = True) -> RenderableType:
    """Draw a run: its state, failure, groups, copies, tuple servers, progress and rank times."""
    from rich.console import Group
    from rich.text import Text

    with watched.unchanged() as view:
        now_s, damage = watched.latest_s(), watched.complaint
        if not view.started_s:
            waits = not watched.has_ended
            words = "starting the MPI ranks ..." if waits else view.refusal or watched.state
            return Text(f"{words}\n{damage}".rstrip(), style="dim")
        parts = [
            draw_head(view, watched.state, now_s),
            *draw_failure(view),
            draw_groups(view, is_lively=is_lively and not watched.has_ended),
            *draw_copies(view, watched.status, now_s),
        ]
        if not watched.has_ended:
            parts += draw_servers(watched.status)
        parts += draw_bars(view, StatusView() if watched.has_ended else watched.status)
        if watched.has_ended:
            parts += [Text(line) for line in rank_times_lines(view)]
        if damage:
            parts.append(Text(damage, style="yellow"))
        return Group(*parts)


def _print(watched: WatchedRun) -> None:
    printer = console(width=_PLAIN_WIDTH, color_system=None, force_terminal=False)
    with printer.capture() as capture:
        printer.print(draw(watched, is_lively=False))
    print("\n".join(line.rstrip() for line in capture.get().splitlines()), flush=True)


def _watch_live(watched: WatchedRun) -> None:
    from rich.live import Live

    watched.look()
    with Live(get_renderable=lambda: draw(watched), console=console(), refresh_per_second=8):
        while not watched.has_ended:
            time.sleep(_LOOK_EVERY_S)
            watched.look()


def _watch_plainly(watched: WatchedRun) -> None:
    """Print a line for each event, for an output that cannot be redrawn."""
    display = PlainDisplay(watched.directory)
    watched.look()
    while not watched.has_ended:
        display.refresh()
        time.sleep(_LOOK_EVERY_S)
        watched.look()
    display.refresh()
    _print(watched)
