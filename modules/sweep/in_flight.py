"""Which trials each rank is running, and their learning curves, as files that survive its death.

::

    sweeps/<group>.<trainer>.<copy>.<rank>.under-way    first trial, last trial + 1; 0, 0 between
    sweeps/<group>.<trainer>.<copy>.curve    {"trial": 17, "curve": [[1, {"loss": 0.9}], ...]}

    sweeps/<group>.<master>/interrupted.txt             a trial on each line, which was in
                                                        flight when a session was ended

A rank removes its files when it leaves, so a file that is there is of a rank that was killed, or
runs. The first is mapped into memory, so that no system call is needed to note a trial.

A trainer writes a curve now and then, and only where a trial takes that long; the curve of a trial
that has ended is in the ledger. A reader may find half of a text, since it is written in place, and
ignores that: the next text comes soon.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Final

from diel import as_integer, file_opener, open_regular, read_json

from ..trial import LearningCurve, Reports
from .ledger import encode, ledgers_in
from .messages import Tags

_SUFFIX: Final = ".under-way"
_BOUNDS: Final = struct.Struct("<qq")
_INTERRUPTED: Final = "interrupted.txt"
_MOST_TRIES: Final = 2
"""How often a run may end while a trial without a process of its own is in flight."""
_SHOWN: Final = 8
_DIGITS: Final = 10
_MOST_TRIALS: Final = 2**20
"""More than any lease has."""
_CURVE_SUFFIX: Final = ".curve"
_WRITE_CURVE_EVERY_S: Final = 1.0
_CURVES_PER_S: Final = 100.0
"""Most writes of curves by all trainers of a module together."""


@dataclass(frozen=True)
class LeftInFlight:
    """The trials that a rank was running, by the file that it has left."""

    trainer: str
    """The rank's copy of the trainer, as ``trainer.0``."""
    rank: int
    """Number of the rank within the copy."""
    trials: range

    def __str__(self) -> str:
        first, last = self.trials[0], self.trials[-1]
        if first == last:
            return f"trial {first} was under way on {self.trainer}"
        return f"trials {first} to {last} were under way on {self.trainer}"


class InFlightTrials:
    """Keeps the file in which this rank of a trainer notes which trials it is running."""

    def __init__(self, run_dir: Path, tags: Tags, copy_index: int, copy_rank: int) -> None:
        self._path = _folder(run_dir) / f"{_prefix(tags)}{copy_index}.{copy_rank}{_SUFFIX}"
        self._page: mmap.mmap | None = None

    def note(self, start: int, stop: int) -> None:
        """Note that the trials from `start` to before `stop` are in flight; none if both are 0."""
        if self._page is None:
            self._page = self._open()
        _BOUNDS.pack_into(self._page, 0, start, stop)

    def _open(self) -> mmap.mmap:
        """Make the file: at the first trial, when a master has read the files of earlier ranks."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "w+b", opener=file_opener) as file:
            file.write(bytes(_BOUNDS.size))  # to use a page without a place on the disk kills
            file.flush()
            return mmap.mmap(file.fileno(), _BOUNDS.size)

    def __enter__(self) -> InFlightTrials:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._page is not None:
            self._page.close()
            self._path.unlink(missing_ok=True)


def read_in_flight(run_dir: Path, tags: Tags | None = None) -> list[LeftInFlight]:
    """Return the trials of ranks that have not left by themselves, of all trainers or one."""
    return list(_read(_paths(run_dir, tags)))


def take_in_flight(run_dir: Path, tags: Tags) -> list[LeftInFlight]:
    """Return, and forget, the trials that were in flight when an earlier session was ended."""
    found = read_in_flight(run_dir, tags)
    for path in _paths(run_dir, tags):  # also the files of ranks that were between two trials
        path.unlink(missing_ok=True)
    return found


def take_left_by_dead(run_dir: Path, tags: Tags, copy_index: int, lease: range) -> frozenset[int]:
    """Return, and forget, which trials of a lease were in flight on a rank that has died.

    Return all trials of the lease where that cannot be seen, as from another host for a while.
    `copy_index` is the trainer that holds the lease now: no other living trainer runs its trials.
    """
    found: set[int] = set()
    for path in _paths(run_dir, tags):
        for left in _read([path]):
            is_own = left.trainer == f"{tags.trainer}.{copy_index}"
            trials = set() if is_own else set(left.trials).intersection(lease)
            if trials:
                found |= trials
                path.unlink(missing_ok=True)
    return frozenset(found or lease)


def note_interrupted(folder: Path, trials: Iterable[int]) -> frozenset[int]:
    """Note, in the folder of a ledger, which trials were in flight when a session was ended.

    Returns the trials of which that has been noted twice or more often. Once does not prove
    anything: another trial, or a failure of the machine, may have ended the run.
    """
    file = folder / _INTERRUPTED
    folder.mkdir(parents=True, exist_ok=True)
    with open(file, "a+", encoding="ascii", errors="replace", opener=file_opener) as lines:
        lines.writelines(f"{trial}\n" for trial in sorted(set(trials)))
        lines.seek(0)
        found = (line.strip() for line in lines)
        times = Counter(int(line) for line in found if line.isdecimal() and len(line) <= _DIGITS)
    return frozenset(trial for trial, count in times.items() if count >= _MOST_TRIES)


def explain_lost_ranks(run_dir: Path, lost: Collection[str]) -> list[str]:
    """Return lines on which trials were in flight when a run was ended by the death of a rank.

    `lost` are the copies whose ranks have died, as ``trainer.0``; empty if that is not known. No
    lines if there was no sweep.
    """
    found = read_in_flight(run_dir)
    goes_on = f"no recorded trial is lost: diel run --resume {run_dir} goes on"
    if not found:
        return [goes_on] if ledgers_in(run_dir) else []
    failed = [left for left in found if left.trainer in lost]
    shown = list(dict.fromkeys(map(str, failed or found)))
    lines = shown[:_SHOWN]
    if len(shown) > _SHOWN:
        lines.append(f"... and others on {len(shown) - _SHOWN} more trainers")
    # A trainer of several ranks has no child process. Its other ranks may be between two trials.
    together: set[str] = set()
    for path in _paths(run_dir, None):
        with contextlib.suppress(ValueError):
            trainer, rank = _rank_of(path)
            if rank:
                together.add(trainer)
    if together.issuperset(left.trainer for left in failed or found):
        return [*lines, goes_on]
    if failed or not lost:
        modules = dict.fromkeys(left.trainer.rpartition(".")[0] for left in failed or found)
        lines.append(
            "a trial that may crash needs a process of its own: isolated = true in the options of "
            f"{' and '.join(modules)}"
        )
    return [*lines, f"{goes_on}, and tries what was under way in a process of its own first"]


def _paths(run_dir: Path, tags: Tags | None) -> list[Path]:
    prefix = "" if tags is None else _prefix(tags)
    return sorted(_folder(run_dir).glob(f"{prefix}*{_SUFFIX}"))


def _read(paths: Iterable[Path]) -> Iterator[LeftInFlight]:
    for path in paths:
        try:
            with open_regular(path) as file:
                start, stop = _BOUNDS.unpack(file.read(_BOUNDS.size))
            trainer, rank = _rank_of(path)
        except (OSError, struct.error, ValueError):  # removed meanwhile, or never filled
            continue
        if 0 <= start < stop <= start + _MOST_TRIALS:
            yield LeftInFlight(trainer, rank, range(start, stop))


def _rank_of(path: Path) -> tuple[str, int]:
    """Return a file's copy of the trainer, as ``trainer.0``, and the rank within it.

    A ValueError if the file has another name.
    """
    *_, module, copy, rank = path.stem.split(".")
    return f"{module}.{copy}", int(rank)


def _prefix(tags: Tags) -> str:
    return f"{tags.group}.{tags.trainer}."


def _folder(run_dir: Path) -> Path:
    return run_dir / "sweeps"


# -- learning curves ------------------------------------------------------------------------------


class RunningCurve:
    """Writes the learning curve of the trial that a trainer runs; of several ranks, the first does.

    `copies` is how many trainers there are; `clock` returns seconds since any fixed moment.
    """

    def __init__(
        self,
        run_dir: Path,
        tags: Tags,
        copy_index: int,
        copies: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = _folder(run_dir) / f"{_prefix(tags)}{copy_index}{_CURVE_SUFFIX}"
        self._every_s = max(_WRITE_CURVE_EVERY_S, copies / _CURVES_PER_S)
        self._clock = clock
        self._file: IO[bytes] | None = None
        self._trial = -1
        self._curve = LearningCurve()
        self._due_s: float | None = None

    def begin(self, trial: int, curve: LearningCurve) -> None:
        """Write the curve of this trial, which begins, from now on."""
        self._trial, self._curve, self._due_s = trial, curve, None

    def write_if_due(self) -> None:
        """Write the curve, if it is time for that; an error, such as a full disk, ends no trial."""
        now_s = self._clock()
        if self._due_s is None:  # `begin` reads no clock, since most trials end before this
            self._due_s = now_s + self._every_s
        if now_s < self._due_s or self._curve.last is None:
            return
        self._due_s = now_s + self._every_s
        text = encode({"trial": self._trial, "curve": self._curve.points}).encode() + b"\n"
        with contextlib.suppress(OSError):
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = open(  # noqa: SIM115
                    self._path, "wb", buffering=0, opener=file_opener
                )
            self._file.seek(0)
            self._file.write(text)
            self._file.truncate()

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)
            self._file = None


def read_running_curves(
    run_dir: Path, group: str, trainer: str, recorded: Collection[int] = ()
) -> dict[int, Reports]:
    """Return the curves of trials in flight, by their numbers.

    A trainer that was killed leaves its file: trials in `recorded` have ended, and are left out.
    """
    found: dict[int, Reports] = {}
    for path in sorted(_folder(run_dir).glob(f"{group}.{trainer}.*{_CURVE_SUFFIX}")):
        with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
            entry = read_json(path)
            trial = as_integer(entry["trial"], 0)
            if trial not in recorded:
                points = [(as_integer(step), metrics) for step, metrics in entry["curve"]]
                if all(isinstance(metrics, dict) for _, metrics in points):
                    found[trial] = points
    return found


def forget_running_curves(run_dir: Path, tags: Tags) -> None:
    """Remove the files that killed trainers of an earlier session have left."""
    for path in _folder(run_dir).glob(f"{_prefix(tags)}*{_CURVE_SUFFIX}"):
        path.unlink(missing_ok=True)
