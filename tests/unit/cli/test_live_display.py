"""What a run looks like on a terminal, from a journal written by hand."""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest
from rich.console import Console
from unit.cli.journals import RUDE, Journal

from diel.cli.display import LiveDisplay
from diel.run.directory import RunDirectory
from diel.run.status import write_status


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


def test_the_status_knows_more_than_the_journal(
    live: LiveDisplay, journal: Journal, directory: RunDirectory
) -> None:
    journal.start()
    journal.add("GroupStarted", group="h", copies={"t": 1}, placement={"trainer.0": [2]})
    journal.progress(done=3)
    progress = {"copy": "trainer.0", "done": 7, "total": 10, "text": "18 networks, epoch 7 of 10"}
    write_status(directory, {"waiting": [], "servers": [], "progress": [progress]})
    live.refresh()
    text = " ".join(drawn(live).split())
    assert "7/10 18 networks, epoch 7 of 10" in text
    assert "3/10" not in text


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
    assert "g running 0 of 3 copies finished" in " ".join(text.split())
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
