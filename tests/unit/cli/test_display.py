"""What a run looks like in plain lines, from a journal written by hand."""

from __future__ import annotations

import time

import pytest
from unit.cli.journals import RUDE, Journal

from diel.cli import display
from diel.cli.display import LiveDisplay, PlainDisplay
from diel.executive.rank0 import NullObserver
from diel.run.directory import RunDirectory
from diel.run.status import write_status


def lines(text: str) -> list[str]:
    """Return printed lines without the seconds at their starts."""
    return [line.split("] ", 1)[-1] for line in text.splitlines()]


def test_a_run_in_plain_lines(
    directory: RunDirectory, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    with PlainDisplay(directory) as shown:
        assert shown.refresh() is None
        journal.start()
        journal.declare()
        journal.row(0, "a", 0.5)
        assert shown.refresh() is None
        journal.message(RUDE)
        journal.row(1, "b", 0.75)
        journal.add("GroupFinished", group="g")
        journal.end(0)
        assert shown.refresh() is not None
    found = lines(capsys.readouterr().out)
    assert found == [
        "study on 4 ranks (Open MPI v5)",
        "group g started: master x 1, trainer x 2",
        "master: 1 of 2 results, best accuracy 0.5",
        f"warning from trainer.1: {RUDE}",
        "group g finished",
        "master: 2 of 2 results, best accuracy 0.75",
    ]


def test_what_was_shown_is_not_shown_again(
    directory: RunDirectory, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = PlainDisplay(directory)
    journal.start()
    shown.refresh()
    capsys.readouterr()
    shown.refresh()
    assert capsys.readouterr().out == ""


def test_results_are_told_now_and_then_and_when_complete(
    directory: RunDirectory,
    journal: Journal,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    shown = PlainDisplay(directory)
    journal.declare(expected=None)
    journal.declare(expected=5, module="other")
    told = []
    for trial in range(5):
        journal.row(trial, "a", trial)
        journal.add(
            "ResultAdded",
            module="other",
            copy=0,
            row={"trial": trial, "note": "", "accuracy": -trial},
        )
        shown.refresh()
        told.append(lines(capsys.readouterr().out))
        now_s[0] += 0.9
    assert told == [
        ["master: 1 results, best accuracy 0", "other: 1 of 5 results, best accuracy 0"],
        [],
        [],
        ["master: 4 results, best accuracy 3", "other: 4 of 5 results, best accuracy 0"],
        ["other: 5 of 5 results, best accuracy 0"],
    ]


def test_copies_that_tell_are_heard_where_nothing_else_is_said(
    directory: RunDirectory,
    journal: Journal,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now_s[0])
    shown = PlainDisplay(directory)
    journal.start()
    placement = {f"trainer.{copy}": [copy + 2] for copy in range(6)}
    journal.add("GroupStarted", group="h", copies={"trainer": 6}, placement=placement)
    progress = [
        {"copy": f"trainer.{copy}", "done": copy, "total": 9, "text": "18 networks" * (copy > 0)}
        for copy in range(6)
    ]
    write_status(directory, {"waiting": [], "servers": [], "progress": progress})
    shown.refresh()
    now_s[0] += 9.0
    shown.refresh()
    assert "18 networks" not in capsys.readouterr().out
    for _ in range(2):
        now_s[0] += 2.0
        shown.refresh()
    assert lines(capsys.readouterr().out) == [
        "trainer.0: 0 of 9", "trainer.1: 18 networks", "trainer.2: 18 networks",
        "trainer.3: 18 networks", "... and 2 more copies",
    ]  # fmt: skip


def test_a_failure_is_told_once_with_its_place(
    directory: RunDirectory, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    observer = PlainDisplay(directory)
    journal.start()
    failure = journal.failure()
    observer.announce(failure)
    journal.add("StopOrdered", reason="trainer.1 failed")
    journal.end(1)
    observer.refresh()
    observer.conclude()
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        "",
        f"diel: module 'trainer' failed: ValueError: {RUDE}",
        "  copy 1, rank 3 (rank 0 of the copy), host node17, group 'g'",
        "",
        "  trainer.1 | Traceback",
        f"  trainer.1 | {RUDE}",
        "",
    ]
    assert "stopping" not in printed.out
    assert "study failed after" in printed.out
    assert str(directory.path) in printed.out


def test_a_stop_that_was_asked_for_is_told(
    directory: RunDirectory, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.start()
    journal.add("StopOrdered", reason="a stop was asked for")
    journal.end(130)
    assert PlainDisplay(directory).conclude() == 130
    out = capsys.readouterr().out
    assert "stopping: a stop was asked for" in out
    assert "study was stopped after" in out


def test_rank_0_shows_nothing_where_the_launcher_shows_the_run(
    journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.start()
    observer = NullObserver()
    observer.refresh()
    observer.announce(journal.failure())
    observer.conclude()
    assert capsys.readouterr() == ("", "")


def test_the_display_fits_where_the_output_goes(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(display.display_for(directory), PlainDisplay)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert isinstance(display.display_for(directory), LiveDisplay)
