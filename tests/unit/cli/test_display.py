"""What a run looks like, from a journal written by hand."""

from __future__ import annotations

import io
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from diel.cli import conclusion, display
from diel.cli.display import LiveDisplay, PlainDisplay, PlainFace, SilentFace, face_for_rank_0
from diel.run.directory import RunDirectory

RUDE = "[red]x[/] [/nothing] :smile: [link=a]"  # Rich would take it as markup


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    (tmp_path / "w.toml").write_text("")
    return RunDirectory.create(tmp_path, "w", tmp_path / "w.toml")


class Journal:
    """Writes records as rank 0 does, at times of its own choice."""

    def __init__(self, directory: RunDirectory) -> None:
        self.file = directory.journal

    def add(self, event: str, **fields: Any) -> dict[str, Any]:
        record = {"time_s": time.time(), "event": event, **fields}
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        return record

    def start(self) -> None:
        self.add("RunStarted", workflow="study", ranks=4, groups=["g", "h"], mpi="Open MPI v5")
        self.add("GroupStarted", group="g", copies={"master": 1, "trainer": 2})

    def declare(self, expected: int | None = 2, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "module": "master",
            "copy": 0,
            "columns": ["trial", "note", "accuracy"],
            "objective": "accuracy",
            "maximise": True,
            "expected": expected,
        }
        self.add("ResultsDeclared", **{**fields, **changes})

    def row(self, trial: int, note: Any, accuracy: Any) -> None:
        row = {"trial": trial, "note": note, "accuracy": accuracy}
        self.add("ResultAdded", module="master", copy=0, row=row)

    def message(self, text: str) -> None:
        self.add("MessageLogged", module="trainer", copy=1, level="WARNING", text=text)

    def progress(self, **fields: Any) -> None:
        self.add(
            "ProgressMade", **{"module": "trainer", "copy": 0, "total": 10, "text": "", **fields}
        )

    def failure(self) -> dict[str, Any]:
        return self.add(
            "ModuleFailed",
            group="g",
            module="trainer",
            copy=1,
            rank=3,
            copy_rank=0,
            host="node17",
            error=f"ValueError: {RUDE}",
            detail=f"Traceback\n{RUDE}",
        )

    def end(self, exit_code: int) -> None:
        self.add("RunEnded", exit_code=exit_code)


@pytest.fixture
def journal(directory: RunDirectory) -> Journal:
    return Journal(directory)


def lines(text: str) -> list[str]:
    """Return printed lines without the seconds at their starts."""
    return [line.split("] ", 1)[-1] for line in text.splitlines()]


# -- plain lines ----------------------------------------------------------------------------------


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


def test_a_failure_is_told_once_with_its_place(
    directory: RunDirectory, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    face = PlainFace(directory)
    journal.start()
    failure = journal.failure()
    face.announce(failure)
    journal.add("StopOrdered", reason="trainer.1 failed")
    journal.end(1)
    face.refresh()
    face.conclude()
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


def test_a_silent_face_says_nothing(
    directory: RunDirectory, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.start()
    face = face_for_rank_0(directory, silent=True)
    face.refresh()
    face.announce(journal.failure())
    face.conclude()
    assert capsys.readouterr() == ("", "")
    assert isinstance(face, SilentFace)
    assert isinstance(face_for_rank_0(directory, silent=False), PlainFace)


# -- the end --------------------------------------------------------------------------------------


def conclude(directory: RunDirectory, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    shown = PlainDisplay(directory)
    shown.refresh()
    capsys.readouterr()
    status = shown.conclude()
    return status, capsys.readouterr().out


def test_the_table_is_ranked_and_says_what_modules_said(
    directory: RunDirectory, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.start()
    journal.declare(3)
    journal.row(0, RUDE, 0.123456)
    journal.row(1, "b" * 90, "nan")
    journal.row(2, [64, 32], 0.9)
    journal.end(0)
    status, out = conclude(directory, capsys)
    assert status == 0
    _, title, _, header, _, *rows = out.splitlines()
    assert title.strip() == "3 best of 3 by highest accuracy"
    assert header.split() == ["#", "trial", "note", "accuracy"]
    assert rows[0].split() == ["1", "2", "64x32", "0.9"]
    assert rows[1].split(maxsplit=2) == ["2", "0", f"{RUDE}{' ' * (90 - len(RUDE))}     0.1235"]
    assert rows[2].split() == ["3", "1", "b" * 90, "nan"]
    assert "study finished after" in out
    assert not any(line.endswith(" ") for line in out.splitlines())


def test_columns_that_say_the_same_everywhere_go_below_the_table(
    directory: RunDirectory, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.start()
    journal.declare(20)
    for trial in range(20):
        journal.row(trial, RUDE, 0.5)
    journal.end(0)
    _, out = conclude(directory, capsys)
    out = " ".join(out.split())  # a title wraps at the width of its table
    assert "10 best of 20 by highest accuracy" in out
    assert out.count(RUDE) == 1
    assert f"note {RUDE}" in out
    assert "accuracy 0.5" not in out  # the objective stays a column


def test_each_table_is_shown(
    directory: RunDirectory, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.start()
    journal.declare()
    journal.declare(module="other", objective="trial", maximise=False)
    journal.row(0, "a", 0.5)
    journal.add("ResultAdded", module="other", row={"trial": 1, "note": "b", "accuracy": 0.1})
    journal.end(0)
    _, out = conclude(directory, capsys)
    assert "by highest accuracy" in out
    assert "by lowest trial" in out


def test_without_results_what_modules_returned_is_shown(
    directory: RunDirectory, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.start()
    for copy in range(15):
        journal.add("CopyFinished", group="g", module="m", copy=copy, returned=f"{copy} {RUDE}")
    journal.end(0)
    _, out = conclude(directory, capsys)
    assert out.splitlines()[0] == f"m.0 returned 0 {RUDE}"
    assert "m.11 returned" in out
    assert "m.12 returned" not in out
    assert "... and 3 more, in the journal" in out


def test_what_is_long_is_shown_in_part(
    directory: RunDirectory, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.start()
    journal.add("CopyFinished", group="g", module="m", copy=0, returned="x" * 2_000_000)
    journal.end(0)
    _, out = conclude(directory, capsys)
    assert out.startswith("m.0 returned xxx")
    assert "xxx ... (2,000,000 characters, in the journal)" in out
    assert len(out) < 2000


def test_a_run_that_ended_without_a_word(
    directory: RunDirectory, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.start()
    directory.launcher_log.write_bytes(b"".join(b"line %d \xff\n" % n for n in range(30)))
    assert PlainDisplay(directory).conclude(launcher_status=137) == conclusion.FAILED
    err = capsys.readouterr().err
    assert "mpiexec exited with status 137" in err
    assert "launcher | line 29" in err
    assert "launcher | line 14" not in err
    assert str(directory.path) in err


# -- live -----------------------------------------------------------------------------------------


class Screen(Console):
    """A terminal that keeps what is drawn on it."""

    def __init__(self, **options: Any) -> None:
        self.text = io.StringIO()
        super().__init__(
            file=self.text, force_terminal=True, width=100, height=40, color_system=None, **options
        )


@pytest.fixture
def live(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> LiveDisplay:
    monkeypatch.setattr("rich.console.Console", Screen)
    monkeypatch.setenv("TERM", "xterm")
    return LiveDisplay(directory)


def drawn(live: LiveDisplay) -> str:
    """Draw what the display shows now, on a screen of its own."""
    console = live._live.console
    assert isinstance(console, Screen)
    with console.capture() as capture:
        console.print(live._render())
    return capture.get()


def test_before_the_run_starts(live: LiveDisplay) -> None:
    assert live.refresh() is None
    assert "starting the MPI ranks" in drawn(live)


def test_a_live_run(live: LiveDisplay, journal: Journal) -> None:
    journal.start()
    journal.declare()
    journal.row(0, "a", 0.5)
    journal.progress(done=3, text=RUDE)
    journal.progress(done=2.5, total=None, copy=1)
    journal.progress(done=0, total=0, copy=2)
    assert live.refresh() is None
    text = drawn(live)
    assert "study on 4 ranks" in text
    assert "g running 0/3 copies" in " ".join(text.split())
    assert "h waiting" in " ".join(text.split())
    assert "1/2" in text
    assert "best accuracy 0.5" in text
    assert "3/10" in text
    assert RUDE in text
    assert "trainer.1" in text
    assert "2.5" in text
    journal.add("GroupFinished", group="g")
    journal.add("GroupStarted", group="h", copies={"m": 1})
    journal.end(1)
    assert live.refresh() is not None
    text = " ".join(drawn(live).split())
    assert "✓ g finished" in text
    assert "✗ h stopped" in text


def test_what_modules_say_on_a_terminal_is_shown_as_it_is(
    live: LiveDisplay, journal: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    journal.start()
    with live:
        journal.message(RUDE)
        live.refresh()
        live.refresh()
        journal.end(0)
        assert live.refresh() is not None
    console = live._live.console
    assert isinstance(console, Screen)
    assert console.text.getvalue().count(f"warning from trainer.1: {RUDE}") == 1
    assert live.conclude() == 0
    assert "study finished after" in capsys.readouterr().out


def test_the_ranked_table_on_a_terminal(
    live: LiveDisplay,
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    screens: list[Screen] = []

    class Kept(Screen):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            screens.append(self)

    monkeypatch.setattr("rich.console.Console", Kept)
    journal.start()
    journal.declare(objective="accuracy", columns=["trial", "note", "accuracy"])
    journal.row(0, RUDE, 0.5)
    journal.failure()
    journal.end(1)
    assert live.conclude() == 1
    assert RUDE in screens[0].text.getvalue()
    assert "module 'trainer' failed" in capsys.readouterr().err


def test_drawing_and_new_records_do_not_meet(live: LiveDisplay, journal: Journal) -> None:
    """Rich draws from its own thread: what it walks through must not change meanwhile."""
    journal.start()
    live.refresh()
    failures: list[BaseException] = []
    done = threading.Event()

    def draw() -> None:
        try:
            while not done.is_set():
                live._render()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=draw)
    thread.start()
    for copy in range(400):
        journal.progress(done=1, copy=copy)
        if copy % 20 == 0:
            live.refresh()
    done.set()
    thread.join()
    assert failures == []


def test_the_display_fits_where_the_output_goes(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(display.display_for(directory), PlainDisplay)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert isinstance(display.display_for(directory), LiveDisplay)
