"""What is known of a run while somebody watches it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support import record

from diel.run import watched_run
from diel.run.directory import RunDirectory
from diel.run.journal import JournalWriter


def test_a_clock_that_is_set_back_hides_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w.toml").write_text("")
    directory = RunDirectory.create(tmp_path, "w", tmp_path / "w.toml")
    monkeypatch.setattr(watched_run, "_CHECK_EVERY_S", 0.01)
    with JournalWriter(directory.journal) as journal:
        journal.write(record("RunStarted", workflow="w", ranks=3, groups=["g"]))
        run = watched_run.WatchedRun(directory)
        run.look()
        assert run.state == "running"
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s - 3600)
    time.sleep(0.02)
    run.look()
    assert run.state == "killed"
