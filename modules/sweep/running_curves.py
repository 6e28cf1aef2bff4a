"""The learning curves of trials in flight, in files that other processes read meanwhile.

::

    sweeps/<group>.<trainer>.<copy>.curve    {"trial": 17, "curve": [[1, {"loss": 0.9}], ...]}

A trainer writes its file now and then, and only where a trial takes that long; the curve of a trial
that has ended is in the ledger. A reader may find half of a text, since it is written in place, and
ignores that: the next text comes soon.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, Final

from diel import as_integer, file_opener, read_json

from ..trial import LearningCurve, Reports
from .ledger import encode
from .messages import Tags

_SUFFIX: Final = ".curve"
_EVERY_S: Final = 1.0
_WRITES_PER_S: Final = 100.0
"""Most writes by all trainers of a module together."""


class RunningCurve:
    """Writes the learning curve of the trial that a trainer runs; of several ranks, the first does.

    Parameters
    ----------
    run_dir : Path
    tags : Tags
    copy_index : int
        Copy index of the trainer.
    copies : int, optional
        How many trainers there are.
    clock : callable, optional
        Returns seconds since any fixed moment.
    """

    def __init__(
        self,
        run_dir: Path,
        tags: Tags,
        copy_index: int,
        copies: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        name = f"{tags.group}.{tags.trainer}.{copy_index}{_SUFFIX}"
        self._path = run_dir / "sweeps" / name
        self._every_s = max(_EVERY_S, copies / _WRITES_PER_S)
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
    for path in sorted((run_dir / "sweeps").glob(f"{group}.{trainer}.*{_SUFFIX}")):
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
    for path in (run_dir / "sweeps").glob(f"{tags.group}.{tags.trainer}.*{_SUFFIX}"):
        path.unlink(missing_ok=True)
