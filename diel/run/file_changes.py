"""What has changed in a workflow file since a run began with it, and must not when it goes on.

What says how long something may take, how often it is tried again, or what is kept of it changes no
result. All else has to be what it was: the run has results of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from diel.text import join_path, show

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAY_CHANGE: Final[Mapping[str, frozenset[str]]] = {
    "workflow": frozenset(
        [
            *("log_size", "returned_size", "returned_total", "private", "restarts"),
            *("checkpoint_every", "signal_before", "on_rank_loss", "heartbeat_timeout"),
            "resources",
        ]
    ),
    "tuple_space": frozenset(["memory", "when_full", "spill"]),
    "module": frozenset(
        [
            *("max_failures", "memory", "on_failure", "retries", "retry_memory"),
            *("pin", "resources", "signal", "signal_before", "time_limit"),
        ]
    ),
    "group": frozenset(["at_once", "max_failures"]),
    "parameters": frozenset(["text"]),
}
"""Keys of each table that may change."""

_NOTHING: Final = object()


def changes_of_results(before: str, now: str) -> list[str]:
    """Return what has changed between two texts of a workflow file, without what may change.

    Returns
    -------
    list of str
        A key with both values each, such as ``module.solver.copies is 3, and was 2``. Entries of a
        list of tables are known by their names, and may stand in any order.

    Raises
    ------
    ValueError
        If the later text is not TOML.
    """
    then, there = _document(before), _document(now)
    return [text for key in [*there, *(then.keys() - there)] for text in _changed(key, then, there)]


def differing_keys(before: str, now: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield each key that differs between two texts of workflow files, with both values.

    A value is None where there is no such key. A ValueError if a text is not TOML.
    """
    for place, *values in _differences((), _document(before), _document(now)):
        first, second = (None if value is _NOTHING else value for value in values)
        yield join_path("", place), first, second


def _document(text: str) -> dict[str, Any]:
    """Return the tables of a file; entries of lists of tables by their names."""
    return {key: _by_name(value) for key, value in tomllib.loads(text).items()}


def _changed(key: str, then: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[str]:
    """Yield what has changed in a table or list of tables."""
    free = MAY_CHANGE.get(key, frozenset())
    depth = 1 if key in ("workflow", "tuple_space") else 2
    for place, before, now in _differences((key,), then.get(key, {}), there.get(key, {})):
        if len(place) > depth and place[depth] in free:
            continue
        path = join_path("", place)
        if before is _NOTHING:
            yield f"{path} is {show(now)}, and was not there"
        elif now is _NOTHING:
            yield f"{path} is gone, and was {show(before)}"
        else:
            yield f"{path} is {show(now)}, and was {show(before)}"


def _differences(
    place: tuple[str, ...], before: Any, now: Any
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    if not isinstance(before, dict) or not isinstance(now, dict):
        # 1 and 1.0 are equal, and so are 1 and true; in a file they are not the same.
        if type(before) is not type(now) or before != now:
            yield place, before, now
        return
    for key in dict.fromkeys([*now, *before]):
        yield from _differences((*place, key), before.get(key, _NOTHING), now.get(key, _NOTHING))


def _by_name(value: Any) -> Any:
    """Return a list of tables as a table by their names; anything else as it is."""
    if not isinstance(value, list):
        return value
    return {
        str(entry.get("name", number)) if isinstance(entry, dict) else str(number): entry
        for number, entry in enumerate(value)
    }
