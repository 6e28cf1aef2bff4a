"""Trials that go on from the end of others: their checkpoints, and the lineage of each trial.

::

    sweeps/GROUP.MASTER/trials.jsonl
                        checkpoints/trial-17        the state of a training at the end of a trial

Of a trial that goes on from another one the ledger says which: ``"parent": {"trial": 17, "step":
6}``, with the last step that the parent has reported; of one that begins anew, ``"parent": null``.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from diel import as_integer, format_value

FOLDER: Final = "checkpoints"
PARENT: Final = "parent"
"""Key in the record of a trial that may go on from another one."""
LINEAGE: Final = "went on from"
"""Key of a row's lineage, as `drawn` returns it: no column, and no parameter's name."""
_NAME: Final = re.compile(r"trial-([0-9]{1,10})")


def checkpoint_of(folder: Path | None, trial: int | None) -> Path | None:
    """Return where the checkpoint of a trial is, or is to be; None without a folder or trial."""
    return None if folder is None or trial is None else folder / f"trial-{trial}"


class Parent(NamedTuple):
    """From which trial another one goes on."""

    trial: int
    step: int
    """The last step that it has reported; 0 if none."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Parent | None:
        """Return the parent in a trial's record; None if there is none, or it is damaged."""
        found = record.get(PARENT)
        if not isinstance(found, Mapping):
            return None
        with contextlib.suppress(KeyError, TypeError, ValueError):
            return cls(as_integer(found["trial"], 0), as_integer(found["step"], 0))
        return None


@dataclass(frozen=True)
class Stage:
    """What a trial has of its lineage: its parameters, and the steps that it has trained."""

    trial: int
    start: int
    stop: int
    """After which step it began, and the last one that it has reported."""
    parameters: Mapping[str, Any]


def drawn(record: Mapping[str, Any]) -> tuple[int | None, int, int]:
    """Return the parent of a trial, the step at which that has ended, and the trial's last one."""
    parent, stop = Parent.of(record), last_step(record.get("reports", ()))
    return (None, 0, stop) if parent is None else (parent.trial, parent.step, stop)


class Lineage:
    """The lineage of all trials of a sweep, as they are recorded."""

    def __init__(self) -> None:
        self._stages: dict[int, tuple[int | None, Stage]] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """Add the record of a trial."""
        parent = Parent.of(record)
        start = 0 if parent is None else parent.step
        stop = last_step(record.get("reports", ())) or start
        trial = record["trial"]
        stage = Stage(trial, start, stop, record["parameters"])
        self._stages[trial] = (None if parent is None else parent.trial, stage)

    def parent(self, trial: int) -> int | None:
        """Return the trial from which a trial went on; None for none."""
        known = self._stages.get(trial)
        return None if known is None else known[0]

    def last_step(self, trial: int) -> int:
        """Return the last step of a trial; 0 if it is not known."""
        known = self._stages.get(trial)
        return 0 if known is None else known[1].stop

    def of(self, trial: int) -> list[Stage]:
        """Return a trial and those that it comes from, the first one first."""
        found: list[Stage] = []
        at: int | None = trial
        while at is not None and at in self._stages:
            at, stage = self._stages[at]
            if found and stage.trial >= found[-1].trial:
                break  # a damaged ledger; else parents are earlier trials
            found.append(stage)
        return found[::-1]

    def schedule(self, trial: int) -> list[dict[str, Any]]:
        """Return from which step on the lineage of a trial had which parameters.

        Those alone that change in it; an entry for each change, with the trial that began there.
        """
        stages = self.of(trial)
        names = [
            name
            for name in dict.fromkeys(name for stage in stages for name in stage.parameters)
            if any(stage.parameters.get(name) != stages[0].parameters.get(name) for stage in stages)
        ]
        found: list[dict[str, Any]] = []
        before: dict[str, Any] | None = None
        for stage in stages:
            own = {name: stage.parameters.get(name) for name in names}
            if own != before:
                found.append({"step": stage.start, "trial": stage.trial, **own})
            before = own
        return found

    def lines(self, trial: int) -> list[str]:
        """Return the lineage of a trial as lines of text; none if it comes from no other."""
        stages = self.of(trial)
        if len(stages) < 2:
            return []
        first = f"trial {trial} is the last of {len(stages)} that went on from each other:"
        lines = [first]
        for entry in self.schedule(trial) or [{"step": stages[0].start, "trial": stages[0].trial}]:
            step, number = entry.pop("step"), entry.pop("trial")
            own = ", ".join(f"{name} {format_value(value)}" for name, value in entry.items())
            lines.append(f"  from step {step}: {own or 'all as they were'} (trial {number})")
        return lines


def last_step(reports: Iterable[Any]) -> int:
    """Return the last step of a learning curve; 0 of an empty one."""
    return max((step for step, _ in reports), default=0)


class TrialCheckpoints:
    """The checkpoints of a sweep's trials, of which those stay that are needed.

    `possible_parents` returns from which trials others may still go on; None if that may be any.
    """

    def __init__(self, folder: Path, possible_parents: Callable[[], set[int] | None]) -> None:
        self._folder, self._possible_parents = folder, possible_parents
        self._there = {
            int(found[1])
            for path in (folder.iterdir() if folder.is_dir() else ())
            if (found := _NAME.fullmatch(path.name))
        }

    def prepare(self) -> None:
        """Make the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def recorded(self, trials: Iterable[int], kept: Collection[int]) -> None:
        """Note trials that are recorded; remove what is no longer needed, but for those `kept`."""
        self._there.update(trials)
        possible = self._possible_parents()
        if possible is None:
            return
        for trial in self._there.difference(possible, kept):
            path = checkpoint_of(self._folder, trial)
            assert path is not None
            with contextlib.suppress(OSError):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
            self._there.discard(trial)
