"""``status.json``: waits, tuple servers and progress of a run, as of a moment ago.

::

    {"waiting": [{"rank", "copy", "what", "since_s", "has_timeout"}, ...],
     "servers": [{"rank", "tuples", "size_bytes", "capacity_bytes"}, ...],
     "progress": [{"copy", "done", "total", "text"}, ...]}

It is replaced as a whole, so a reader finds the old or the new status. `since_s` counts from 1970.
"""

# Annotations are evaluated here: they hold what the fields may be.
import json
from collections.abc import Sequence
from typing import Annotated, Any

from diel.frozen import Frozen
from diel.run.directory import RunDirectory
from diel.run.fields import NUMBER, SECONDS, TRUTH, Count, Text, or_none, table_like
from diel.run.files import read_json, replace_file
from diel.run.json_values import DamagedRecord


class WaitView(Frozen):
    """A rank that has waited for a while; `since_s` counts from 1970."""

    rank: Count
    copy: Text
    what: Text
    since_s: Annotated[float, SECONDS]
    has_timeout: Annotated[bool, TRUTH] = False


class ServerView(Frozen):
    """Contents of a tuple server: how many tuples, their size, and its capacity."""

    rank: Count
    tuples: Count
    size_bytes: Count
    capacity_bytes: Count


class ProgressView(Frozen):
    """Progress that a copy has reported; `total` is None where it is not known."""

    copy: Text
    done: Annotated[float, NUMBER]
    total: Annotated[float | None, or_none(NUMBER)]
    text: Text


class StatusView(Frozen):
    """Content of `status.json`."""

    waiting: Sequence[WaitView] = ()
    servers: Sequence[ServerView] = ()
    progress: Sequence[ProgressView] = ()


def write_status(directory: RunDirectory, status: dict[str, Any]) -> None:
    """Replace the status of a run."""
    replace_file(directory.status, json.dumps(status))


def read_status(directory: RunDirectory) -> StatusView:
    """Return the status of a run; an empty one if there is none that can be read."""
    try:
        status = read_json(directory.status)
    except (OSError, DamagedRecord):
        return StatusView()
    if not isinstance(status, dict):
        return StatusView()
    return StatusView(
        _parts(status.get("waiting"), WaitView),
        _parts(status.get("servers"), ServerView),
        _parts(status.get("progress"), ProgressView),
    )


def _parts(tables: Any, part: type) -> tuple[Any, ...]:
    """Return the tables of a list as instances of a class, without tables that do not fit."""
    kind = table_like(part)
    assert kind.convert is not None
    tables = tables if isinstance(tables, list) else []
    return tuple(kind.convert(table) for table in tables if kind.fits(table))
