"""What differs between two runs: keys of their files, parameters, versions and outcomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from diel.errors import RunDirectoryError
from diel.frozen import Frozen
from diel.run.directory import RunDirectory
from diel.run.file_changes import differing_keys
from diel.run.files import open_regular
from diel.run.listing import ListedRun
from diel.text import format_value, show


class Difference(Frozen):
    """A key whose values differ between two runs; None stands for a key that is not there.

    Attributes
    ----------
    part : str
        ``file``, ``parameters``, ``ran with`` or ``outcome``.
    key : str
    first, second : object
        Values in JSON's own types, or dates.
    """

    part: str
    key: str
    first: Any
    second: Any

    def texts(self) -> tuple[str, str, str, str]:
        """Return it as a row of a table: the part, the key, both values."""
        return self.part, self.key, self._text(self.first), self._text(self.second)

    def _text(self, value: Any) -> str:
        if value is None:
            return "-"
        return show(value) if self.part in ("file", "parameters") else format_value(value)


def differences(first: ListedRun, second: ListedRun) -> list[Difference]:
    """Return what differs between two runs, the files first.

    Raises
    ------
    RunDirectoryError
        If the copy of a workflow file in a run's directory cannot be read.
    """
    texts = _workflow_of(first), _workflow_of(second)
    try:
        found = [Difference("file", *each) for each in differing_keys(*texts)]
    except ValueError as error:
        both = f"{first.summary.path} or {second.summary.path}"
        raise RunDirectoryError(f"workflow.toml in {both} is not TOML: {error}") from error
    for part, values in _PARTS.items():
        found += [Difference(part, *each) for each in _differing(values(first), values(second))]
    return found


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for key in dict.fromkeys([*before, *now]):
        values = before.get(key), now.get(key)
        if type(values[0]) is not type(values[1]) or values[0] != values[1]:
            yield key, *values


def _outcome(run: ListedRun) -> dict[str, Any]:
    summary = run.summary
    found = {"state": summary.state, "why": summary.reason or None, "seconds": summary.duration_s}
    for score in run.scores:
        found.setdefault(f"best {score.objective}", score.best)
    return found


_PARTS = {
    "parameters": lambda run: run.summary.parameters,
    "ran with": lambda run: {**run.summary.versions, "ranks": run.summary.ranks},
    "outcome": _outcome,
}


def _workflow_of(run: ListedRun) -> str:
    """Return the text of the workflow file that a run has kept."""
    file = RunDirectory(run.summary.path).workflow
    try:
        with open_regular(file) as opened:
            return opened.read().decode(errors="replace")
    except OSError as error:
        raise RunDirectoryError(f"{file} cannot be read: {error.strerror or error}") from error
