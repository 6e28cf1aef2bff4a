"""``status.json``: what was so a moment ago, for whoever watches a run.

::

    {"waiting": [{"rank", "copy", "what", "since_s"}, ...],
     "servers": [{"rank", "tuples", "size_bytes", "capacity_bytes"}, ...],
     "progress": [{"copy", "done", "total", "text"}, ...]}

It is replaced as a whole, so a reader finds the old one or the new one. `since_s` counts from 1970.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any, Final

from diel.run.directory import RunDirectory, open_anew, open_regular
from diel.run.records import PROGRESS, SERVER, WAIT, DamagedRecord, parsed

_LONGEST_BYTES: Final = 2**26


@dataclass(frozen=True)
class WaitView:
    """A rank that has waited for a while; `since_s` counts from 1970."""

    rank: int
    copy: str
    what: str
    since_s: float


@dataclass(frozen=True)
class ServerView:
    """What a tuple server holds."""

    rank: int
    tuples: int
    size_bytes: int
    capacity_bytes: int


@dataclass(frozen=True)
class ProgressView:
    """How far a copy is, as it says itself; `total` is None where that is not known."""

    copy: str
    done: float
    total: float | None
    text: str


@dataclass(frozen=True)
class StatusView:
    """What `status.json` says."""

    waiting: list[WaitView] = field(default_factory=list)
    servers: list[ServerView] = field(default_factory=list)
    progress: list[ProgressView] = field(default_factory=list)


def write_status(directory: RunDirectory, status: dict[str, Any]) -> None:
    """Replace the status of a run."""
    unfinished = directory.status.with_suffix(".json.part")
    with open_anew(unfinished) as file:
        file.write(json.dumps(status))
    os.replace(unfinished, directory.status)


def read_status(directory: RunDirectory) -> StatusView:
    """Return the status of a run; an empty one if there is none that can be read."""
    try:
        with open_regular(directory.status) as file:
            status = parsed(file.read(_LONGEST_BYTES))
    except (OSError, DamagedRecord):
        return StatusView()
    if not isinstance(status, dict):
        return StatusView()
    return StatusView(
        [
            WaitView(one["rank"], one["copy"], one["what"], one["since_s"])
            for one in _items(status.get("waiting"))
            if WAIT.fits(one)
        ],
        [
            ServerView(one["rank"], one["tuples"], one["size_bytes"], one["capacity_bytes"])
            for one in _items(status.get("servers"))
            if SERVER.fits(one)
        ],
        [
            ProgressView(one["copy"], one["done"], one["total"], one["text"])
            for one in _items(status.get("progress"))
            if PROGRESS.fits(one)
        ],
    )


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
