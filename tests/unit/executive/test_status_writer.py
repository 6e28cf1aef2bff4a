"""Rank 0 writes who waits and what servers hold, where that changes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from diel.executive.deadlock import WaitWatch
from diel.executive.listener import StatusWriter
from diel.executive.messages import ServerStatus, Waiting
from diel.executive.plans import CopyPlan
from diel.run.directory import RunDirectory
from diel.run.records import ProgressMade
from diel.run.status import ProgressView, ServerView, WaitView, read_status

PLAN = CopyPlan(1, "g", "m", 2, 3, (4,), 9, (4,))
WAITING = Waiting(
    serial=1,
    what="tget('a')",
    tag="'a'",
    has_timeout=not math.inf,
    at_server=True,
    puts=(),
    waited_s=1.5,
)


def test_what_has_changed_is_written_now_and_then(tmp_path: Path) -> None:
    directory, waits = RunDirectory(tmp_path), WaitWatch()
    status = StatusWriter(directory, waits)
    status.write_if_due(10.0, lambda: 1010.0)
    assert not directory.status.exists()  # there is nothing to say
    waits.note(4, PLAN, WAITING, 10.1)
    status.note_server(1, ServerStatus(3, 700, 1000))
    status.write_if_due(10.2, lambda: 1010.2)
    assert not directory.status.exists()  # not so soon
    status.write_if_due(11.0, lambda: 1011.03)
    found = read_status(directory)
    assert found.waiting == (WaitView(4, "m.2", "tget('a')", 1008.6),)
    assert found.servers == (ServerView(1, 3, 700, 1000),)
    directory.status.unlink()
    status.write_if_due(12.0, lambda: 1012.0)
    assert not directory.status.exists()  # nothing is new
    waits.forget(4)
    status.write_if_due(13.0, lambda: 1013.0)
    assert read_status(directory).waiting == ()


def test_progress_is_in_the_status_until_its_copy_ends(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    status = StatusWriter(directory, WaitWatch())
    first: Any = ProgressMade(
        module="m", copy=0, done=np.float32(120), total=200, text="18 networks"
    )
    status.note_progress(first)
    status.note_progress(ProgressMade(module="m", copy=1, done=3, total=None, text=""))
    status.write_if_due(1.0)
    assert read_status(directory).progress == (
        ProgressView("m.0", 120.0, 200, "18 networks"),
        ProgressView("m.1", 3, None, ""),
    )
    status.forget_progress("m.0")
    status.write_if_due(2.0)
    assert [one.copy for one in read_status(directory).progress] == ["m.1"]


def test_a_folder_that_is_gone_does_not_end_a_run(tmp_path: Path) -> None:
    status = StatusWriter(RunDirectory(tmp_path / "gone"), WaitWatch())
    status.note_server(1, ServerStatus(3, 700, 1000))
    status.write_if_due(1.0)
