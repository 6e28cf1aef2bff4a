"""The cause of a run's end where ranks, a host or mpiexec died before the journal could name it.

::

    logs/rank-<rank>.crash    the Python stack of a rank that crashed
    logs/launcher.log         messages of mpiexec, srun or the supervisor about ranks and hosts
    logs/<module>.<copy>.<copy rank>.log    the last words of a rank, and of the C library there

Each launcher has messages of its own, and a rank that was killed writes none. So these causes are
tried in order: a full disk, a crash, a host, a rank, and the launcher itself.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import diel
from diel.frozen import Frozen
from diel.processes import signal_name
from diel.run.directory import RunDirectory
from diel.run.records import LOSSES
from diel.run.view import RunView

_LAUNCHER_LINES: Final = 15
_FULL_BYTES: Final = 64 * 1024
_FRAMES_SHOWN: Final = 10
_RANKS_SHOWN: Final = 3
_LAST_LINES: Final = 5
_DIEL: Final = str(Path(diel.__file__).parent)
_PYTHON_FRAME: Final = r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$'
_C_STACK: Final = r"^C stack, innermost first:\n((?:.+\n?)*)\n?"
_OF_CTYPES: Final = r".*/libffi[^/]*\.so|.*/_ctypes\."
_OF_HANDLER: Final = r"\((diel_crashed_|diel_exited_)\+"
_SIGNAL_FRAME: Final = r".*/libc\.so\.\d+\(\+"
_OF_LIBRARIES: Final = (
    r".*/(lib/python3|site-packages/|dist-packages/)|<frozen |(/usr)?/lib(64)?/.*\.so\S*\("
)
# What Open MPI prints of a rank that crashes; left out, since the Python line is what matters.
_C_FRAMES: Final = r"\[\S+:\d+\] (\*\*\*|\[ ?\d+\]|Signal|Failing at)"
_RULE: Final = r"[-=]{20,}$"

# Messages of Open MPI, after a signal and after an exit, and of Slurm.
_RANK_LOST: Final = (
    r"process rank (?P<rank>\d+)(?: with PID \d+ on\s+node (?P<host>\S+) exited\s+on\s+signal"
    r"\s+(?P<signal>\d+))?"
    r"|Process name: \[.*,(?P<named>\d+)\]"
    r"|srun: error: (?P<node>\S+): tasks? (?P<task>\d+): (?P<word>\w+)"
)
# MPICH's mpiexec names a process, but maybe one that it has ended itself.
_PROCESS_LOST: Final = r"PID \d+ RUNNING AT (?P<host>\S+)\n=\s+EXIT CODE: (?P<status>\d+)"
# Messages of Open MPI, during a run and at its start, and of Slurm.
_HOST_LOST: Final = (
    r"Remote daemon:\s+\[[^]]*\] on node (\S+)"
    r"|Remote host:\s+(\S+)\s+Daemon exit status|Node failure on (\S+)"
)
# Messages of Open MPI and MPICH if ranks have been started but cannot find each other.
_NO_START: Final = r"An error occurred in MPI_Init|Fatal error in internal_Init"
_OWN_WORDS: Final = r"^diel: (.*)$"
_NO_ROOM: Final = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))
_SIGNALS_OF_SLURM: Final = {"Killed": "SIGKILL", "Terminated": "SIGTERM", "Aborted": "SIGABRT"}


class Crash(Frozen):
    """A rank's crash: why, and the frames of its Python stack, the innermost first."""

    rank: int
    why: str
    frames: Sequence[str]

    @property
    def where(self) -> str:
        """The text " at " and the innermost frame outside of libraries; empty if unknown."""
        own = [frame for frame in self.frames if not re.match(_OF_LIBRARIES, frame)]
        return f" at {[*own, *self.frames][0]}" if self.frames else ""


class Loss(Frozen):
    """The cause and further details, as far as known, of the end of a run whose ranks died.

    Attributes
    ----------
    explanation : str
        The cause, in one line.
    lines : sequence of str
        Further details.
    ranks : sequence of int
        The ranks that died first, as far as known.
    hosts : sequence of str
        The hosts that were lost, as far as the launcher says so.
    is_final : bool
        Whether a restart would end in the same way.
    """

    explanation: str
    lines: Sequence[str] = ()
    ranks: Sequence[int] = ()
    hosts: Sequence[str] = ()
    is_final: bool = False


def find_loss(view: RunView, directory: RunDirectory, launcher_status: int) -> Loss:
    """Find out why a run ended, if its journal does not say so."""
    evidence = _Evidence(view, directory)
    lines, ranks, hosts = evidence.details(), evidence.ranks, evidence.hosts
    if want := evidence.want_of_room():
        return Loss(want, lines, ranks, hosts, is_final=True)
    explanation = next(filter(None, evidence.causes(launcher_status)))
    return Loss(explanation, lines, ranks, hosts)


class _Evidence:
    """What a run whose ranks died has left: crashes, messages of the launcher, and its journal."""

    def __init__(self, view: RunView, directory: RunDirectory) -> None:
        self._view, self._directory = view, directory
        self._log = directory.launcher_output().replace("\0", "")  # Open MPI ends messages so
        self._own_lines = re.findall(_OWN_WORDS, self._log, re.MULTILINE)
        self._crashes = find_crashes(directory)
        self._lost, self._first_loss = _lost_ranks(self._log, view)
        crashed = [crash.rank for crash in self._crashes]
        self.ranks = tuple(dict.fromkeys([*crashed, *self._lost]))
        named = (name for found in re.findall(_HOST_LOST, self._log) for name in found if name)
        self.hosts = tuple(dict.fromkeys(named))

    def details(self) -> list[str]:
        """Return the lost ranks, their crashes, and the last lines that they and others wrote."""
        view, crashes = self._view, self._crashes
        lost = [(rank, view.describe_rank(rank)) for rank in self._lost]
        lines = [f"the launcher lost rank {rank}: {described}" for rank, described in lost]
        for crash in crashes:
            lines.append(f"rank {crash.rank} | {crash.why}")
            lines += [f"rank {crash.rank} |   {frame}" for frame in crash.frames]
        running = [rank for copy in view.running.values() for rank in copy.ranks]
        for rank in (self.ranks or (running if self._first_loss else ()))[:_RANKS_SHOWN]:
            name = _log_name(view, rank)
            words = _readable_lines(self._directory.end_of_log(name)) if name else []
            lines += [f"{name} | {line}" for line in words[-_LAST_LINES:]]
        if not crashes:
            words = _readable_lines(self._log)
            lines += [f"launcher | {line}" for line in words[-_LAUNCHER_LINES:]]
        return lines

    def want_of_room(self) -> str:
        """Return that no room is left on the disk; empty if there is some."""
        if is_full(self._directory):
            return f"the disk is full, so the run has ended: {self._directory.path}"
        without_room = [words for words in self._own_lines if words.startswith(_NO_ROOM)]
        # Such as a quota: the disk itself may have room.
        return f"the run has ended for want of room: {without_room[0]}" if without_room else ""

    def causes(self, launcher_status: int) -> Iterator[str]:
        """Yield the causes that there is evidence of, the most telling first; some are empty."""
        view, directory = self._view, self._directory
        for crash in self._crashes[:1]:
            yield f"{view.describe_rank(crash.rank)} crashed: {crash.why}{crash.where}"
        if isinstance(view.failure, LOSSES):
            yield getattr(view.failure, "explanation", "").partition("\n")[0]
        if view.started is None:
            yield self._failed_start()
        if self.hosts:
            named = ", ".join(self.hosts)
            yield f"host{'s' if len(self.hosts) > 1 else ''} {named} can no longer be reached"
        yield self._first_loss
        yield from self._own_lines[-1:]
        if self._lost and directory.is_lost_or_ended():
            rank, number = self._lost[0], directory.stop_reason().partition(" ")[0]
            yield (
                f"{view.describe_rank(rank)} (rank {rank}) has ended after {number}, which diel "
                "run has not sent: somebody else, or a module itself, has"
            )
        if directory.stop_requested():
            reason = directory.stop_reason()
            yield f"the ranks were ended before the run could stop in order: {reason}"
        yield (
            "the run ended without a word: a rank was killed, or MPI gave up "
            f"(the launcher exited with status {launcher_status})"
        )

    def _failed_start(self) -> str:
        """Return why the ranks did not start; empty if that is not known."""
        if self._lost and f"(rank {self._lost[0]}," in self._first_loss:
            return self._first_loss  # the other ranks then print that MPI has failed
        if re.search(_NO_START, self._log):
            return (
                "MPI did not start on the ranks; where srun or flux starts them, --launcher "
                "mpiexec leaves it to MPI itself"
            )
        return ""


def _readable_lines(log: str) -> list[str]:
    return [
        line
        for line in log.splitlines()
        if line.strip() and not re.match(_C_FRAMES, line) and not re.match(_RULE, line)
    ]


def _log_name(view: RunView, rank: int) -> str:
    """Return the name of the log of the copy that ran on a rank; empty if none did."""
    for copy in view.running.values():
        if rank in copy.ranks:
            return f"{copy.name}.{copy.ranks.index(rank)}.log"
    return ""


def _lost_ranks(log: str, view: RunView) -> tuple[list[int], str]:
    """Return the ranks that a launcher reports as lost, and a line on how the first was lost."""
    ranks: dict[int, None] = {}
    first_loss = ""
    for found in re.finditer(_RANK_LOST, log):
        rank = int(found["rank"] or found["named"] or found["task"])
        ranks[rank] = None
        if first_loss:
            continue
        name, host = "", found["host"] or found["node"]
        if found["signal"]:
            name = signal_name(int(found["signal"]))
        elif found["word"]:
            name = _SIGNALS_OF_SLURM.get(found["word"], "")
        if name:
            first_loss = (
                f"{view.describe_rank(rank)} (rank {rank}, host {host}) was killed by {name}"
            )
    process = re.search(_PROCESS_LOST, log)
    if not first_loss and process is not None:
        status = int(process["status"])
        ending = f"was killed by {signal_name(status)}" if status in set(signal.Signals) else ""
        ending = ending or f"ended by itself with status {status}"
        first_loss = (
            f"a rank on host {process['host']} {ending}; MPICH's mpiexec does not say which"
        )
    return list(ranks), first_loss


def is_full(directory: RunDirectory) -> bool:
    """Whether the disk of the run directory has less than 64 KiB left."""
    try:
        return shutil.disk_usage(directory.path).free < _FULL_BYTES
    except OSError:  # the run directory was removed
        return False


def find_crashes(directory: RunDirectory) -> list[Crash]:
    """Return the crashes of ranks, from the files that they have left in the run directory."""
    found = []
    for rank, text in directory.crashes():
        native, text = _native_stack(text)
        why, *lines = text.splitlines() or [""]
        frames: list[str] = []
        for frame in re.finditer(_PYTHON_FRAME, "\n".join(lines), re.MULTILINE):
            if frame["file"].startswith(_DIEL):
                if frames:
                    break  # what called the module
                continue
            frames.append(f"{frame['file']}, line {frame['line']}, in {frame['name']}")
        why = why.removeprefix("Fatal Python error: ")
        found.append(Crash(rank, why, (native or tuple(frames))[:_FRAMES_SHOWN]))
    return found


def _native_stack(text: str) -> tuple[tuple[str, ...], str]:
    """Return the frames of the C stack that a library has written, and the text without them."""
    found = re.search(_C_STACK, text, re.MULTILINE)
    if found is None:
        return (), text
    frames: list[str] = []
    for line in found[1].splitlines():
        frame = re.sub(r" ?\[0x[0-9a-f]+\]$", "", line)
        if re.match(_OF_CTYPES, frame):
            break  # what called the library
        if re.search(_OF_HANDLER, frame):
            frames = []
        elif frames or not re.match(_SIGNAL_FRAME, frame):
            frames.append(frame)
    return tuple(frames), (text[: found.start()] + text[found.end() :]).lstrip()
