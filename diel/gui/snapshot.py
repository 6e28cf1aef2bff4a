"""The content of a run's page as plain values, and the differences between two of them.

A browser is sent a snapshot once, and from then on differences: a run of 1,000 ranks costs what has
happened in it. Points in time are sent, never durations, which would change all the time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, Final, TypeAlias

from diel.executive.explanation import WaitExplanation, explain
from diel.gui.processes import in_words_of_the_page
from diel.run.records import Failure, ModuleFailed, RunLost, RunStarted
from diel.run.status import StatusView, WaitView
from diel.run.view import GroupView, RunView, time_table
from diel.run.watched_run import WatchedRun, latest_progress
from diel.text import format_bytes, shortened

Snapshot: TypeAlias = dict[str, Any]

_BARS: Final = 12
_MESSAGES: Final = 50
_GIVEN_UP: Final = 10
_REASONS: Final = 50
_WAITS: Final = 6
_NAMED: Final = 4
_MOST_RANKS: Final = 10_000
"""The number of ranks that are listed; if there are more, the first ones."""
_LONGEST: Final = 2000
"""Letters of a text that are sent; the journal has all of it."""
_SHARED_S: Final = 0.1
_NOT_RUN: Final = ("starting", "queued", "waiting", "skipped")
_BY_KEY: Final = ("groups", "copies", "ranks")
"""Parts that are tables: only rows that have changed are sent, by their keys."""


def snapshot(watched: WatchedRun) -> Snapshot:
    """Return the content of a run's page.

    Returns
    -------
    dict
        ``groups``, ``copies`` and ``ranks`` are rows by name or number; all else is shown whole.
    """
    with watched.unchanged() as view:
        is_over = watched.has_ended
        status = StatusView() if is_over else watched.status
        waits = {wait.rank: wait for wait in status.waiting}
        return {
            "head": _head(watched, view),
            "alerts": _alerts(watched, view),
            "groups": _groups(view, is_over=is_over),
            "reasons": _reasons(view, status) if not is_over else [],
            "copies": {} if is_over else _copies(view, waits),
            "ranks": _ranks(view, waits, is_over=is_over),
            "servers": [
                [
                    server.rank,
                    f"{server.tuples:,} tuples, {format_bytes(server.size_bytes)} of "
                    f"{format_bytes(server.capacity_bytes)}",
                    server.size_bytes / max(1, server.capacity_bytes),
                ]
                for server in status.servers
            ],
            "bars": _bars(view, status),
            "messages": [
                [level, _short(copy), _short(text)]
                for level, copy, text in view.messages[-_MESSAGES:]
            ],
            "times": [list(row) for row in time_table(view)] if is_over else [],
        }


class SharedSnapshot:
    """The snapshot of a run that all its pages share; made anew only after a change."""

    def __init__(self, watched: WatchedRun) -> None:
        self.watched = watched
        self._lock = Lock()
        self._looked_s = -_SHARED_S
        self._version = -1
        self._made: Snapshot = {}

    def look(self) -> Snapshot:
        """Read new records, unless another page has just done so; return the snapshot.

        Raises
        ------
        RunDirectoryError
            If the run's directory cannot be read.
        """
        with self._lock:
            if time.monotonic() - self._looked_s >= _SHARED_S:
                self.watched.look()
                self._looked_s = time.monotonic()
            version = self.watched.version
            if version != self._version:
                self._made = snapshot(self.watched)
                self._version = version
            return self._made


def difference(before: Snapshot, after: Snapshot) -> Snapshot:
    """Return the parts of two snapshots that differ; of tables, ``{"set": rows, "gone": keys}``.

    `page.js` makes `after` of `before` and this difference.
    """
    changed: Snapshot = {}
    for part, value in after.items():
        old = before.get(part)
        if old == value:
            continue
        if part not in _BY_KEY:
            changed[part] = value
            continue
        old = old or {}
        changed[part] = {
            "set": {key: row for key, row in value.items() if old.get(key) != row},
            "gone": [key for key in old if key not in value],
        }
    return changed


def _head(watched: WatchedRun, view: RunView) -> dict[str, Any]:
    ended_s = watched.latest_s() if watched.has_ended and view.started_s else None
    return {
        "name": _short(view.name),
        "state": watched.state,
        "is_starting": not view.started_s and not watched.has_ended,
        "is_stopping": not watched.has_ended and watched.directory.stop_requested(),
        "ranks": view.ranks,
        "started_s": view.started_s,
        "ended_s": ended_s,
        "resumed": view.resumed,
        "part": _short(view.part),
        "up_to_date": len(view.up_to_date),
    }


def _alerts(watched: WatchedRun, view: RunView) -> list[str]:
    alerts = []
    if view.failure is not None:
        alerts.append(_failure(view.failure))
    if view.refusal:
        alerts.append(view.refusal)
    alerts += [_loss(loss) for loss in view.losses[-_GIVEN_UP:]]
    shown = view.given_up[-_GIVEN_UP:]
    alerts += [f"{copy.name} was given up" for copy in shown]
    if len(view.given_up) > len(shown):
        alerts.append(f"... and {len(view.given_up) - len(shown)} more copies")
    alerts += [f"{each.module}: {each}" for each in list(view.failed_tasks.values())[-_GIVEN_UP:]]
    if watched.complaint:
        alerts.append(watched.complaint)
    return [_short(in_words_of_the_page(alert)) for alert in alerts]


def _short(text: str) -> str:
    """Return a text of a record as it is sent: a record may have many megabytes."""
    return shortened(text, _LONGEST, "journal.jsonl")


def _loss(loss: RunLost) -> str:
    again = f"; restart {loss.restart}, on {loss.on_ranks} ranks" if loss.restart else ""
    refused = f"; not started again: {loss.refusal}" if loss.refusal else ""
    return f"{loss.explanation}{again}{refused}"


def _failure(failure: Failure) -> str:
    if isinstance(failure, ModuleFailed):
        return f"{failure.name} failed on rank {failure.rank} ({failure.host}): {failure.error}"
    return failure.explanation


def _groups(view: RunView, *, is_over: bool) -> dict[str, list[str]]:
    """Return the state of each group of the file; of elements, how many have come so far."""
    rows: dict[str, list[str]] = {}
    elements: dict[str, Counter[str]] = {}
    for name, group in view.groups.items():
        row = _group(group, view, is_over=is_over)
        in_file = view.name_in_file(name)
        if not group.array:
            rows[name] = row
        elif in_file != group.array:
            elements.setdefault(in_file, Counter())[row[0]] += 1
    for name, array in view.arrays.items():
        if rows[name][0] in ("running", "stopped", "failed") or array.failed:
            rows[name][1] = str(array)
    for name, states in elements.items():
        order = ("running", "failed", "stopped", "waiting", "finished", "skipped")
        state = next(each for each in order if states[each])
        words = ", ".join(f"{states[each]} {each}" for each in order if states[each])
        rows[name] = [state, words if len(states) > 1 else state]
    return rows


def _group(group: GroupView, view: RunView, *, is_over: bool) -> list[str]:
    state, words = group.state, ""
    if is_over and state == "running":  # of a run that was killed
        state = "stopped"
    elif is_over and state == "waiting":
        words = "never started"
    failure = view.failure
    if isinstance(failure, ModuleFailed) and failure.group == group.name and state == "stopped":
        state = "failed"
    if state == "running" and group.repeats and group.iteration:
        words = group.describe_iteration(group.iteration[-1:])
    elif state == "running" and group.copies:
        words = f"{group.copies_finished} of {group.copies} copies finished"
    return [state, words or state]


def _reasons(view: RunView, status: StatusView) -> list[list[str]]:
    """Return why each group that does not run waits, and which ranks could end ranks' waits."""
    try:
        found = explain(view, status, time.time())
    except ValueError:  # the groups of a damaged journal
        return []
    reasons = [
        [_short(each.group), _short(each.text)]
        for each in found.groups
        if each.situation in _NOT_RUN
    ]
    reasons = reasons[:_REASONS]
    reasons += [[f"rank {each.rank}", _could_end(each)] for each in found.waits[:_WAITS]]
    if len(found.waits) > _WAITS:
        reasons.append([f"... and {len(found.waits) - _WAITS} more ranks", "wait"])
    return reasons


def _could_end(wait: WaitExplanation) -> str:
    """Describe who could end a wait, without its duration, which would change all the time."""
    enders = wait.could_end_it
    named = ", ".join(enders[:_NAMED])
    named += f" and {len(enders) - _NAMED} more" * (len(enders) > _NAMED)
    return f"{_short(wait.what)}: {f'could be ended by {named}' if enders else 'nobody can end it'}"


def _copies(view: RunView, waits: Mapping[int, WaitView]) -> dict[str, list[Any]]:
    return {
        copy.name: [
            copy.group,
            _named(copy.ranks),
            copy.started_s,
            copy.attempt,
            *_waiting([waits[rank] for rank in copy.ranks if rank in waits], len(copy.ranks)),
        ]
        for copy in view.running.values()
    }


def _waiting(waits: Sequence[WaitView], ranks: int) -> tuple[str, float]:
    """Return what a copy waits for, with how many of its ranks wait, and since when."""
    if not waits:
        return "", 0.0
    first = min(waits, key=lambda wait: wait.since_s)
    share = "" if ranks == 1 else f"{len(waits)} of {ranks} ranks: "
    return f"{share}{_short(first.what)}", first.since_s


def _ranks(view: RunView, waits: Mapping[int, WaitView], *, is_over: bool) -> dict[int, list[Any]]:
    """Return for each rank its host, what runs there, its state, what it waits for, since when."""
    started = view.started or RunStarted(workflow="", ranks=1, groups=())
    hosts = {rank: node.host for node in started.nodes for rank in node.ranks}
    copies = {rank: copy for copy in view.running.values() for rank in copy.ranks}
    servers = set(started.servers)
    rows: dict[int, list[Any]] = {}
    for rank in range(min(view.ranks, _MOST_RANKS)):
        task, state, waits_for, since_s = "", "idle", "", 0.0
        if rank == 0:
            task, state = "executive", "serving"
        elif rank in servers:
            task, state = "tuple server", "serving"
        elif (copy := copies.get(rank)) is not None:
            task, state, since_s = copy.name, "working", copy.started_s
        if (wait := waits.get(rank)) is not None and rank in copies:
            state, waits_for, since_s = "waiting", _short(wait.what), wait.since_s
        if is_over:
            state, since_s = "ended", 0.0
            task = task or view.placement.get(rank, "").removeprefix("module ")
        rows[rank] = [hosts.get(rank, ""), task, state, waits_for, since_s]
    if view.ranks > _MOST_RANKS:
        rows[_MOST_RANKS] = ["", f"... and {view.ranks - _MOST_RANKS:,} more", "", "", 0.0]
    return rows


def _named(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:_NAMED]))
    return named + (f", ... ({len(ranks)})" if len(ranks) > _NAMED else "")


def _bars(view: RunView, status: StatusView) -> list[list[Any]]:
    """Return the progress bars: name, amount done, total or None, and a text."""
    bars: list[list[Any]] = [
        [
            _short(f"{results.module}: results"),
            results.count,
            results.expected,
            _short(results.best_text),
        ]
        for results in view.results.values()
    ]
    bars += [
        [_short(name), array.ended, len(array.rows), f"{array.failed} failed" * (array.failed > 0)]
        for name, array in view.arrays.items()
    ]
    progress = latest_progress(view, status)
    room = max(0, _BARS - len(bars))
    bars += [
        [_short(name), done, total, _short(text)]
        for name, (done, total, text) in list(progress.items())[:room]
    ]
    if len(progress) > room:
        bars.append([f"... and {len(progress) - room} more copies", 0, None, ""])
    return bars
