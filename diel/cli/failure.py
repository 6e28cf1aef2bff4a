"""Why a run failed, for people: the root cause, or what is known of ranks that were killed."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Final

from diel.loading.reports import explain_lost_ranks
from diel.run.directory import RunDirectory
from diel.run.records import (
    DeadlockFound,
    Failure,
    JournalLost,
    LeaveIgnored,
    ModuleFailed,
    Record,
)
from diel.run.view import RunView

_LAUNCHER_LINES: Final = 15
_EXPLAINED: Final[dict[type[Record], str]] = {
    DeadlockFound: "deadlock: every module waits for a tuple that nobody puts",
    LeaveIgnored: "a copy that had failed could not be ended",
}
_FULL_BYTES: Final = 64 * 1024
_FRAMES_SHOWN: Final = 10
_DIEL: Final = str(Path(__file__).parent.parent)
_PYTHON_FRAME: Final = r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$'
_OF_LIBRARIES: Final = r".*/(lib/python3|site-packages/|dist-packages/)|<frozen "
# What Open MPI prints of a rank that crashes: a person looks for the line of Python.
_C_FRAMES: Final = r"\[\S+:\d+\] (\*\*\*|\[ ?\d+\]|Signal|Failing at)"
# As Open MPI names it after a signal, and after an exit.
_LOST_RANK: Final = r"process rank (\d+)|Process name: \[.*,(\d+)\]"


def print_failure(failure: Failure) -> None:
    """Print the root cause of a failure to standard error: who, where and why."""
    if isinstance(failure, JournalLost):
        print(f"\ndiel: {failure.explanation}\n", file=sys.stderr, flush=True)
        return
    if not isinstance(failure, ModuleFailed):
        print(f"\ndiel: {_EXPLAINED[type(failure)]}", file=sys.stderr)
        for line in failure.explanation.splitlines():
            print(f"  {line}", file=sys.stderr)
        print(file=sys.stderr, flush=True)
        return
    if failure.rank is None:
        where = f"ranks {', '.join(map(str, failure.ranks))}"
    else:
        where = f"rank {failure.rank} (rank {failure.copy_rank} of the copy), host {failure.host}"
    tries = f", attempt {failure.attempt}" if failure.attempt > 1 else ""
    print(
        f"\ndiel: module {failure.module!r} failed: {failure.error}\n"
        f"  copy {failure.copy}, {where}, group {failure.group!r}{tries}\n",
        file=sys.stderr,
    )
    for line in failure.detail.splitlines():
        print(f"  {failure.name} | {line}", file=sys.stderr)
    print(file=sys.stderr, flush=True)


def print_lost(view: RunView, directory: RunDirectory, launcher_status: int) -> None:
    """Print what is known of a run whose ranks were killed."""
    crashes = _crashes(directory)
    log = directory.launcher_words()
    if _is_full(directory):
        print(f"\ndiel: the disk is full, so the run has ended: {directory.path}", file=sys.stderr)
    elif crashes:
        rank, why, frames = crashes[0]
        own = [frame for frame in frames if not re.match(_OF_LIBRARIES, frame)]
        where = f" at {[*own, *frames][0]}" if frames else ""
        print(f"\ndiel: {view.who_is_on(rank)} crashed: {why}{where}", file=sys.stderr)
    else:
        print(
            f"\ndiel: the run ended without a word: a rank was killed, or MPI gave up "
            f"(mpiexec exited with status {launcher_status})",
            file=sys.stderr,
        )
    found = re.findall(_LOST_RANK, log)
    lost = list(dict.fromkeys(int(first or second) for first, second in found))
    for rank in lost:
        print(f"  the launcher lost rank {rank}: {view.who_is_on(rank)}", file=sys.stderr)
    for rank, why, frames in crashes:
        print(f"  rank {rank} | {why}", file=sys.stderr)
        for frame in frames:
            print(f"  rank {rank} |   {frame}", file=sys.stderr)
    if not crashes:
        lines = [line for line in log.splitlines() if not re.match(_C_FRAMES, line)]
        for line in lines[-_LAUNCHER_LINES:]:
            print(f"  launcher | {line}", file=sys.stderr)
    ranks = {*lost, *(rank for rank, _, _ in crashes)}
    copies = {copy.name for copy in view.running.values() if not ranks.isdisjoint(copy.ranks)}
    for line in explain_lost_ranks(directory, copies):
        print(f"  {line}", file=sys.stderr)
    if view.started_s:
        print(f"to go on with it: diel run --resume {directory.path}", file=sys.stderr)
    print(f"everything about it: {directory.path}", file=sys.stderr, flush=True)


def _is_full(directory: RunDirectory) -> bool:
    try:
        return shutil.disk_usage(directory.path).free < _FULL_BYTES
    except OSError:  # somebody has removed the folder
        return False


def _crashes(directory: RunDirectory) -> list[tuple[int, str, list[str]]]:
    """Return which ranks have crashed, why, and where in the module: the innermost frame first."""
    found = []
    for rank, text in directory.crashes():
        why, *lines = text.splitlines()
        frames: list[str] = []
        for frame in re.finditer(_PYTHON_FRAME, "\n".join(lines), re.MULTILINE):
            if frame["file"].startswith(_DIEL):
                if frames:
                    break  # what called the module
                continue
            frames.append(f"{frame['file']}, line {frame['line']}, in {frame['name']}")
        found.append((rank, why.removeprefix("Fatal Python error: "), frames[:_FRAMES_SHOWN]))
    return found
