"""What is shown of groups that repeat, and of failures that do not end the run."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from diel.cli.display import LiveDisplay, PlainDisplay
from diel.run.directory import RunDirectory


class Journal:
    """Writes records, a second after each other."""

    def __init__(self, directory: RunDirectory, **more: Any) -> None:
        self._file = directory.journal
        self._time_s = 1000.0
        self.add(
            "RunStarted",
            workflow="study",
            ranks=4,
            groups=["loop", "nest", "end"],
            iterations={"loop": 50, "nest": 2, "end": 1},
            inside={"loop": "nest"},
            until=["nest"],
            mpi="Open MPI v5",
            **more,
        )

    def add(self, event: str, seconds: float = 0.1, **fields: Any) -> None:
        self._time_s += seconds
        record = {"time_s": self._time_s, "event": event, **fields}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def loop(self, outer: int, count: int, ended_by: str = "iterations") -> None:
        for inner in range(count):
            place: dict[str, Any] = {"group": "loop", "iteration": [outer, inner]}
            self.add("GroupStarted", copies={"a": 2}, placement={}, **place)
            self.add("GroupFinished", ended_by=ended_by if inner == count - 1 else None, **place)

    def fail(self, policy: str, attempt: int, **more: Any) -> None:
        self.add(
            "ModuleFailed",
            group="loop",
            iteration=[0, 3],
            module="a",
            copy=1,
            attempt=attempt,
            policy=policy,
            whole_module=False,
            error="ValueError: it diverged",
            **more,
        )


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line.split("] ", 1)[-1] for line in capsys.readouterr().out.splitlines()]


def test_iterations_are_shown_now_and_then(
    directory: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(directory)
    journal.add("GroupStarted", group="nest", iteration=[0], groups=["loop"])
    journal.loop(0, 50)  # 10 s
    journal.add("GroupFinished", group="nest", iteration=[0], ended_by=None)
    journal.add("GroupStarted", group="nest", iteration=[1], groups=["loop"])
    journal.loop(1, 3, "until")
    journal.add("GroupFinished", group="nest", iteration=[1], ended_by="until")
    journal.add("GroupStarted", group="end", iteration=[0], copies={"b": 1})
    journal.add("GroupFinished", group="end", iteration=[0], ended_by="iterations")
    PlainDisplay(directory).refresh()
    lines = printed(capsys)
    assert lines[:4] == [
        "study on 4 ranks (Open MPI v5)",
        "group nest started, iteration 1 of 2: loop",
        "group loop started, iteration 1 of 50, in iteration 1: a x 2",
        "group loop: iteration 11 of 50, in iteration 1",
    ]
    assert lines[-5:] == [
        "group nest: iteration 2 of 2",
        "group loop: iteration 1 of 50, in iteration 2",
        "group nest finished after 2 iterations: the tuple that ends it is there",
        "group end started: b x 1",
        "group end finished",
    ]
    assert len(lines) < 15


def test_a_limit_that_came_before_the_tuple_is_said(
    directory: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(directory)
    journal.add("GroupFinished", group="nest", iteration=[1], ended_by="iterations")
    PlainDisplay(directory).refresh()
    assert printed(capsys)[-1] == (
        "group nest finished after 2 iterations, its limit: the tuple that would have ended it "
        "never came"
    )


def test_failures_that_do_not_end_the_run_are_told_as_they_happen_and_at_the_end(
    directory: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(directory)
    journal.loop(0, 1)
    where: dict[str, Any] = {"rank": 3, "copy_rank": 0, "ranks": [3], "host": "h", "detail": ""}
    journal.fail("retry", 1, **where)
    journal.fail("continue", 2, **where)
    for copy in range(12):
        journal.add(
            "CopyGivenUp",
            group="loop",
            iteration=[0, 3],
            module="a",
            copy=copy,
            attempt=2,
            error="ValueError: it diverged",
        )
    journal.add("RunEnded", exit_code=0)
    assert PlainDisplay(directory).conclude() == 0
    lines = printed(capsys)
    assert "a.1 failed at attempt 1, starts again: ValueError: it diverged" in lines
    assert "a.1 failed, the run goes on without it: ValueError: it diverged" in lines
    warning = next(line for line in lines if line.startswith("warning"))
    assert warning.endswith("went on without 12 copies that failed:")
    where = "group loop, iteration 4 of 50, in iteration 1, 2 attempts"
    assert f"  a.1 ({where}): ValueError: it diverged" in lines
    assert "  ... and 2 more, in the journal" in lines


def test_a_time_limit_and_a_deaf_rank_as_root_causes(
    directory: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(directory)
    journal.fail("stop", 3, rank=None, copy_rank=None, ranks=[3, 4], host="", detail="")
    PlainDisplay(directory).refresh()
    error = capsys.readouterr().err
    assert "module 'a' failed: ValueError: it diverged" in error
    assert "copy 1, ranks 3, 4, group 'loop', attempt 3" in error


def test_ranks_that_did_not_leave_are_explained(
    directory: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(directory)
    journal.add("LeaveIgnored", group="loop", module="a", copy=1, ranks=[3], explanation="1\n2")
    PlainDisplay(directory).refresh()
    error = capsys.readouterr().err
    assert error.splitlines()[1:4] == [
        "diel: a copy that had failed could not be ended",
        "  1",
        "  2",
    ]


def test_the_live_display_shows_nests_and_iterations(directory: RunDirectory) -> None:
    journal = Journal(directory)
    journal.add("GroupStarted", group="nest", iteration=[1], groups=["loop"])
    journal.add("GroupStarted", group="loop", iteration=[1, 6], copies={"a": 2}, placement={})
    shown = LiveDisplay(directory)
    shown.refresh()
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(shown._render())
    text = console.export_text()
    assert "  loop iteration 7 of 50" in text
    assert "iteration 2 of 2" in text


def test_the_tag_that_ends_a_group_is_named(
    directory: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(directory, tags={"nest": "('done', 1)"})
    journal.add("GroupFinished", group="nest", iteration=[1], ended_by="until")
    journal.add("GroupFinished", group="nest", iteration=[1], ended_by="iterations")
    PlainDisplay(directory).refresh()
    assert printed(capsys)[-2:] == [
        "group nest finished after 2 iterations: the tuple that ends it, ('done', 1), is there",
        "group nest finished after 2 iterations, its limit: the tuple that would have ended it, "
        "('done', 1), never came",
    ]
