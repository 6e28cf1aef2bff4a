"""Which trials a rank is running, in a file that outlives it, for whoever finds the rank dead.

::

    sweeps/<group>.<trainer>.<copy>.<rank>.under-way    first trial, last trial + 1; 0, 0 between

    sweeps/<group>.<master>/interrupted.txt             a line for each time that a trial was found

A rank removes its file when it leaves, so a file that is there is of a rank that was killed, or
runs. It is a page of memory shared with the system: to note a trial takes no call of the system.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from .messages import Tags

_SUFFIX: Final = ".under-way"
_BOUNDS: Final = struct.Struct("<qq")
_INTERRUPTED: Final = "interrupted.txt"
_MOST_TRIES: Final = 2
"""Of a trial that has no process of its own: so often the run may end while it is under way."""
_SHOWN: Final = 8
_MOST_TRIALS: Final = 2**20
"""More than any lease has."""


@dataclass(frozen=True)
class LeftInFlight:
    """The trials that a rank was running."""

    trainer: str
    """Its copy, as ``trainer.0``."""
    rank: int
    """Within the copy."""
    trials: range

    def __str__(self) -> str:
        first, last = self.trials[0], self.trials[-1]
        if first == last:
            return f"trial {first} was under way on {self.trainer}"
        return f"trials {first} to {last} were under way on {self.trainer}"


class InFlightTrials:
    """Notes which trials this rank of a trainer is running."""

    def __init__(self, run_dir: Path, tags: Tags, copy_index: int, copy_rank: int) -> None:
        self._path = _folder(run_dir) / f"{_prefix(tags)}{copy_index}.{copy_rank}{_SUFFIX}"
        self._page: mmap.mmap | None = None

    def note(self, start: int, stop: int) -> None:
        """Note that the trials from `start` to before `stop` are under way; none if both are 0."""
        if self._page is None:
            self._page = self._open()
        _BOUNDS.pack_into(self._page, 0, start, stop)

    def _open(self) -> mmap.mmap:
        """Make the file: at the first trial, when a master has read what earlier ones have left."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("w+b") as file:
            file.write(bytes(_BOUNDS.size))  # a page without a place on the disk would kill us
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
    """Return the trials of ranks, of all trainers or one, that have not left by themselves."""
    return list(_read(_paths(run_dir, tags)))


def take_in_flight(run_dir: Path, tags: Tags) -> list[LeftInFlight]:
    """Return, and forget, what was under way when an earlier session was ended."""
    found = read_in_flight(run_dir, tags)
    for path in _paths(run_dir, tags):  # those of ranks that were between two trials too
        path.unlink(missing_ok=True)
    return found


def take_left_by_dead(run_dir: Path, tags: Tags, copy_index: int, lease: range) -> frozenset[int]:
    """Return, and forget, which trials of a lease were under way on a rank that has died.

    All of them where that cannot be seen, as from another host for a while. `copy_index` is the
    trainer that holds the lease now: nobody else who lives runs its trials.
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
    """Note, in the folder of a ledger, which trials were under way when a session was ended.

    Returns
    -------
    frozenset of int
        Trials of which that has been noted twice or more often: another one may have ended the run
        the first time, or a machine may have failed, which does not go on for long.
    """
    file = folder / _INTERRUPTED
    folder.mkdir(parents=True, exist_ok=True)
    with file.open("a+", encoding="ascii") as lines:
        lines.writelines(f"{trial}\n" for trial in sorted(set(trials)))
        lines.seek(0)
        times = Counter(int(line) for line in lines if line.strip().isdecimal())
    return frozenset(trial for trial, count in times.items() if count >= _MOST_TRIES)


def explain_lost_ranks(run_dir: Path, lost: Collection[str]) -> list[str]:
    """Return in lines which trials were under way when a run was ended by the death of a rank.

    `lost` are the copies whose ranks have died, as ``trainer.0``; empty if that is not known. No
    lines if there was no sweep.
    """
    found = read_in_flight(run_dir)
    goes_on = f"no recorded trial is lost: diel run --resume {run_dir} goes on"
    if not found:
        return [goes_on] if any(_folder(run_dir).glob("*/trials.jsonl")) else []
    failed = [left for left in found if left.trainer in lost]
    shown = list(dict.fromkeys(map(str, failed or found)))
    lines = shown[:_SHOWN]
    if len(shown) > _SHOWN:
        lines.append(f"... and others on {len(shown) - _SHOWN} more trainers")
    if any(left.rank for left in found):  # of several ranks, which have no process beside them
        return [*lines, goes_on]
    if failed or not lost:
        modules = dict.fromkeys(left.trainer.rpartition(".")[0] for left in failed or found)
        lines.append(
            "a trial that may crash needs a process of its own: isolated = true in the options of "
            f"{' and '.join(modules)}"
        )
    return [*lines, f"{goes_on}, and tries what was under way in a process of its own first"]


def _paths(run_dir: Path, tags: Tags | None) -> list[Path]:
    whose = "" if tags is None else _prefix(tags)
    return sorted(_folder(run_dir).glob(f"{whose}*{_SUFFIX}"))


def _read(paths: Iterable[Path]) -> Iterator[LeftInFlight]:
    for path in paths:
        try:
            if not path.is_file():  # somebody's pipe, say
                continue
            start, stop = _BOUNDS.unpack(path.read_bytes()[: _BOUNDS.size])
            *_, module, copy, rank = path.stem.split(".")
            copy_rank = int(rank)
        except (OSError, struct.error, ValueError):  # it goes away, or was never filled
            continue
        if 0 <= start < stop <= start + _MOST_TRIALS:
            yield LeftInFlight(f"{module}.{copy}", copy_rank, range(start, stop))


def _prefix(tags: Tags) -> str:
    return f"{tags.group}.{tags.trainer}."


def _folder(run_dir: Path) -> Path:
    return run_dir / "sweeps"
