"""What the page of a run is sent, without a browser."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from support import record

from diel.gui.snapshot import _BY_KEY, SharedSnapshot, Snapshot, difference, snapshot
from diel.run.directory import RunDirectory
from diel.run.status import ServerView, StatusView, WaitView, write_status
from diel.run.watched_run import WatchedRun


@pytest.fixture
def watched(tmp_path: Path) -> WatchedRun:
    run = WatchedRun(RunDirectory(tmp_path))
    add(
        run,
        "RunStarted",
        workflow="study",
        ranks=5,
        groups=["g", "h"],
        servers=[1],
        nodes=[{"host": "node1", "ranks": [2, 3, 4]}],
        iterations={"g": 3},
        file="study.toml",
    )
    add(
        run,
        "GroupStarted",
        group="g",
        iteration=[1],
        copies={"master": 1, "trainer": 1},
        placement={"master.0": [2], "trainer.0": [3, 4]},
    )
    return run


def add(run: WatchedRun, event: str, **fields: Any) -> None:
    run.view.apply(record(event, time_s=100.0, **fields))


def test_a_running_run_says_who_works_and_who_waits_for_what(watched: WatchedRun) -> None:
    watched.status = StatusView(
        waiting=(WaitView(3, "trainer.0", "tget(('work',))", 90.0),),
        servers=(ServerView(1, 2000, 2**20, 2**30),),
    )
    shown = snapshot(watched)
    assert shown["head"]["state"] == "running"
    assert shown["head"]["ended_s"] is None
    assert shown["groups"] == {"g": ["running", "iteration 2 of 3"], "h": ["waiting", "waiting"]}
    assert shown["copies"] == {
        "master.0": ["g", "2", 100.0, 1, "", 0.0],
        "trainer.0": ["g", "3, 4", 100.0, 1, "1 of 2 ranks: tget(('work',))", 90.0],
    }
    assert shown["ranks"] == {
        0: ["", "executive", "serving", "", 0.0],
        1: ["", "tuple server", "serving", "", 0.0],
        2: ["node1", "master.0", "working", "", 100.0],
        3: ["node1", "trainer.0", "waiting", "tget(('work',))", 90.0],
        4: ["node1", "trainer.0", "working", "", 100.0],
    }
    assert shown["servers"] == [[1, "2,000 tuples, 1.0 MiB of 1.0 GiB", 2**-10]]
    json.dumps(shown, allow_nan=False)


def test_nothing_is_sent_while_nothing_happens(
    watched: WatchedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.status = StatusView(waiting=(WaitView(3, "trainer.0", "tget(('work',))", 90.0),))
    shown = snapshot(watched)
    monkeypatch.setattr(time, "time", lambda: 10_000.0)
    assert difference(shown, snapshot(watched)) == {}


def test_pages_of_a_run_share_a_snapshot_that_is_made_when_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diel.gui.snapshot._SHARED_S", 0.0)
    run = RunDirectory.create(tmp_path, "study", Path(__file__))
    start = {"event": "RunStarted", "workflow": "study", "ranks": 30_000, "groups": ["g"]}
    with run.journal.open("a") as journal:
        journal.write(json.dumps({"time_s": 1.0, **start}) + "\n")
    pages = SharedSnapshot(WatchedRun(run))
    shown = pages.look()
    assert pages.look() is shown
    assert len(shown["ranks"]) == 10_001  # whatever a damaged journal says
    assert shown["ranks"][10_000][1] == "... and 20,000 more"
    run.request_stop()
    assert pages.look()["head"]["is_stopping"] or pages.watched.has_ended
    assert pages.look() is not shown
    shown = pages.look()
    write_status(run, {"waiting": [], "servers": [], "progress": []})
    assert pages.look() is shown  # written again, and the same
    with run.journal.open("a") as journal:
        journal.write('{"time_s": 2.0, "event": "RunEnded", "exit_code": 1}\nno record\n')
    assert pages.look()["head"]["state"] == "failed"
    assert "left out" in pages.look()["alerts"][0]


def with_difference(before: Snapshot, changed: Snapshot) -> Snapshot:
    """Return a snapshot with a difference applied, as `page.js` does in the browser."""
    after = dict(before)
    for part, value in changed.items():
        if part in _BY_KEY:
            rows = {k: row for k, row in before.get(part, {}).items() if k not in value["gone"]}
            after[part] = {**rows, **value["set"]}
        else:
            after[part] = value
    return after


def test_of_a_change_only_the_rows_that_differ_are_sent(watched: WatchedRun) -> None:
    before = snapshot(watched)
    add(watched, "CopyFinished", group="g", iteration=[1], module="master", copy=0)
    add(watched, "ProgressMade", module="trainer", copy=0, done=2, total=4, text="epoch 2")
    after = snapshot(watched)
    changed = difference(before, after)
    assert set(changed) == {"copies", "ranks", "bars"}
    assert changed["copies"] == {"set": {}, "gone": ["master.0"]}
    assert changed["ranks"] == {"set": {2: ["node1", "", "idle", "", 0.0]}, "gone": []}
    assert changed["bars"] == [["trainer.0", 2, 4, "epoch 2"]]
    assert with_difference(before, changed) == after
    assert with_difference({}, difference({}, after)) == after


def test_what_failed_and_what_never_started_is_said(watched: WatchedRun) -> None:
    add(
        watched,
        "ModuleFailed",
        group="g",
        iteration=[1],
        module="trainer",
        copy=0,
        rank=3,
        copy_rank=0,
        host="node1",
        error="ValueError: <b>no</b>",
        detail="",
    )
    add(watched, "RunEnded", exit_code=1)
    watched.state = "failed"
    shown = snapshot(watched)
    assert shown["alerts"] == ["trainer.0 failed on rank 3 (node1): ValueError: <b>no</b>"]
    assert shown["groups"] == {"g": ["failed", "failed"], "h": ["waiting", "never started"]}
    assert shown["copies"] == {}
    assert shown["ranks"][3] == ["node1", "trainer.0", "ended", "", 0.0]


def test_tasks_that_have_failed_are_said(watched: WatchedRun) -> None:
    placed = {"group": "g", "iteration": [1], "module": "trainer"}
    add(watched, "TaskFailed", **placed, copy=0, task=7, total=20, error="it failed")
    assert snapshot(watched)["alerts"] == ["trainer: 1 of 20 tasks failed: 7"]
    add(watched, "TasksFailed", **placed, failed=[7], total=20)
    assert snapshot(watched)["alerts"] == ["trainer: 19 of 20 tasks, 1 failed: 7"]


def test_many_copies_are_named_and_the_rest_counted(watched: WatchedRun) -> None:
    for copy in range(100):
        watched.view.progress[f"trainer.{copy}"] = (1.0, None, "")
    bars = snapshot(watched)["bars"]
    assert len(bars) == 13
    assert bars[-1][0] == "... and 88 more copies"


def test_of_a_long_record_the_beginning_is_sent_and_where_the_rest_is(watched: WatchedRun) -> None:
    long = "a" * 3_000_000
    placed = {"module": "trainer", "copy": 0}
    for _ in range(60):
        add(watched, "MessageLogged", **placed, level="WARNING", text=long)
    add(watched, "ModuleFailed", **placed, group="g", rank=3, host="node1", error=long)
    add(watched, "ProgressMade", **placed, done=1, total=2, text=long)
    watched.status = StatusView(waiting=(WaitView(3, "trainer.0", long, 90.0),))
    shown = snapshot(watched)
    assert len(json.dumps(shown)) < 200_000
    told = "... (2,998,000 letters more, in journal.jsonl)"
    assert shown["messages"][-1][2] == f"{'a' * 2000} {told}"
    assert shown["alerts"][0].endswith("letters more, in journal.jsonl)")
    assert shown["ranks"][3][3].endswith(told)
