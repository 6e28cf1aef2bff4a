"""``diel runs``: what ran, when, how long, and how it ended."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Final

from diel.cli.output import aligned
from diel.run.history import RunSummary, list_runs
from diel.text import format_duration

_HERE: Final = Path("runs")
_LONGEST_REASON: Final = 100


def runs(options: argparse.Namespace) -> int:
    """Print the runs; return the exit code.

    Raises
    ------
    RunDirectoryError
        If there is no such folder.
    """
    folder = options.folder or _HERE
    is_first_time = options.folder is None and not folder.exists()
    found = [] if is_first_time else list_runs(folder)
    if options.json:
        told = [asdict(one) | {"path": str(one.path.absolute())} for one in found]
        print(json.dumps(told, indent=2, ensure_ascii=False))
    elif found:
        head = ("started", "took", "ranks", "state", "run", "")
        print("\n".join(aligned([head, *map(_row, found)])))
    else:
        print(f"no runs in {folder}: diel run makes a folder for each")
    return 0


def _row(run: RunSummary) -> tuple[str, ...]:
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started_s))
    took = "" if run.duration_s is None else format_duration(run.duration_s)
    reason = " ".join(run.reason.split())
    if len(reason) > _LONGEST_REASON:
        reason = f"{reason[: _LONGEST_REASON - 3]}..."
    ranks = "" if run.ranks is None else str(run.ranks)
    return started, took, ranks, run.state, str(run.path), reason
