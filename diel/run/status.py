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
from typing import Any

from diel.run.directory import RunDirectory


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
    unfinished.write_text(json.dumps(status), encoding="utf-8")
    os.replace(unfinished, directory.status)


def read_status(directory: RunDirectory) -> StatusView:
    """Return the status of a run; an empty one if there is none that can be read."""
    try:
        status = json.loads(directory.status.read_text(encoding="utf-8"))
        return StatusView(
            [WaitView(**one) for one in status["waiting"]],
            [ServerView(**one) for one in status["servers"]],
            [ProgressView(**one) for one in status.get("progress", [])],
        )
    except (OSError, ValueError, TypeError, KeyError):
        return StatusView()
