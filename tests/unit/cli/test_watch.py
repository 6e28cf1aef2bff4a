"""A run of another terminal, from files that are written by hand."""

from __future__ import annotations

import fcntl
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from rich.console import Console
from support import status_of

from diel.run import watched_run
from diel.run.directory import RunDirectory
from diel.run.status import write_status
from diel.run.watched_run import WatchedRun
from diel.text import format_bytes

RUDE = "[red]x[/] :smile:"


class Run:
    """A run directory, whose journal is locked as long as the run goes on."""

    def __init__(self, path: Path) -> None:
        (path / "logs").mkdir(parents=True)
        (path / "workflow.toml").write_text("")
        self.directory = RunDirectory(path)
        self._lock: IO[str] | None = None

    def add(self, event: str, **fields: Any) -> None:
        record = {"time_s": time.time(), "event": event, **fields}
        with self.directory.journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def start(self) -> None:
        self.add(
            "RunStarted",
            workflow="study",
            ranks=6,
            groups=["outer", "g", "h"],
            mpi="Open MPI v5",
            iterations={"outer": 2, "g": 3, "h": 1},
            inside={"g": "outer"},
        )
        self._lock = self.directory.journal.open("a")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.add("GroupStarted", group="outer", iteration=[1], groups=["g"])
        self.add(
            "GroupStarted",
            group="g",
            iteration=[1, 2],
            copies={"master": 1, "trainer": 2},
            placement={"master.0": [2], "trainer.0": [3, 4], "trainer.1": [5]},
        )

    def die(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def end(self, exit_code: int = 0) -> None:
        self.add("RunEnded", exit_code=exit_code)
        self.die()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.chdir(tmp_path)
    one = Run(tmp_path / "runs" / "study-20250101-000000")
    yield one
    one.die()


def diel(*arguments: str) -> int:
    status = status_of(*arguments)
    assert isinstance(status, int)
    return status


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_run_that_goes_on(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.start()
    run.add("CopiesRestarted", group="g", module="trainer", copies=[1], attempt=2)
    table = {"columns": ["trial", "accuracy"], "objective": "accuracy", "maximise": True}
    run.add("ResultsDeclared", module="master", copy=0, expected=36, **table)
    run.add("ResultAdded", module="master", copy=0, row={"trial": 0, "accuracy": 0.5})
    run.add("ProgressMade", module="trainer", copy=1, done=3, total=10, text=RUDE)
    since_s = time.time() - 7.0
    write_status(
        run.directory,
        {
            "waiting": [
                {"rank": 3, "copy": "trainer.0", "what": f"recv({RUDE})", "since_s": since_s},
                {"rank": 4, "copy": "trainer.0", "what": "barrier", "since_s": since_s},
                {"rank": 2, "copy": "master.0", "what": "tget('result')", "since_s": since_s},
            ],
            "servers": [
                {"rank": 1, "tuples": 1234, "size_bytes": 3 * 2**19, "capacity_bytes": 2**30}
            ],
            "progress": [
                {"copy": "trainer.1", "done": 120, "total": 200, "text": f"18 networks {RUDE}"},
                {"copy": "gone.7", "done": 1, "total": 2, "text": "of a copy that has ended"},
            ],
        },
    )
    assert diel("watch", "--once", str(run.directory.path)) == 0
    text = words(capsys.readouterr().out)
    assert text.startswith("study on 6 ranks, 0.")
    assert "▸ outer iteration 2 of 2" in text
    assert "▸ g iteration 3 of 3 0 of 3 copies finished" in text
    assert "· h waiting" in text
    assert "master.0 rank 2" in text
    assert "waits: tget('result'), 7." in text
    assert "trainer.0 ranks 3, 4" in text
    assert f"waits: 2 of 2 ranks: recv({RUDE}), 7." in text
    assert "trainer.1 rank 5 " in text
    assert "attempt 2" in text
    assert "tuple server on rank 1: 1,234 tuples, 1.5 MiB of 1.0 GiB" in text
    assert "1/36 best accuracy 0.5" in text
    assert f"120/200 18 networks {RUDE}" in text  # later than what the journal has
    assert "3/10" not in text
    assert "gone.7" not in text


def test_a_copy_that_has_ended_is_not_shown(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.start()
    run.add("CopyFinished", group="g", module="master", copy=0, returned=None)
    run.add("CopyGivenUp", group="g", module="trainer", copy=1, attempt=1, error="E: x")
    assert diel("watch", "--once") == 0
    text = capsys.readouterr().out
    assert "trainer.0" in text
    assert "master.0" not in text
    assert "trainer.1" not in text


@pytest.mark.parametrize(("exit_code", "state"), [(0, "finished"), (1, "failed"), (130, "stopped")])
def test_a_run_that_has_ended(
    run: Run, capsys: pytest.CaptureFixture[str], exit_code: int, state: str
) -> None:
    run.start()
    times = {"working_s": 3.0, "waiting_s": 1.0, "communicating_s": 0.0}
    rank = {"rank": 2, "host": "node1", "copies": ["master.0"], **times}
    run.add("TimeAccounted", ranks=[rank], modules=[])
    run.end(exit_code)
    write_status(
        run.directory,
        {
            "waiting": [],
            "servers": [{"rank": 1, "tuples": 1, "size_bytes": 2, "capacity_bytes": 3}],
        },
    )
    assert diel("watch") == 0  # by itself: there is nothing to wait for
    text = words(capsys.readouterr().out)
    assert f"study on 6 ranks, 0.0 s, {state}" in text
    assert "master.0 75% 25% 0%" in text
    assert "tuple server on" not in text


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (
            {"event": "ModuleFailed", "module": "trainer", "copy": 1, "error": f"E: {RUDE}"},
            f"trainer.1 failed: E: {RUDE}",
        ),
        (
            {"event": "DeadlockFound", "explanation": "a.0 has waited\nb.0 too"},
            "a.0 has waited",
        ),
    ],
)
def test_why_a_run_failed(
    run: Run, capsys: pytest.CaptureFixture[str], record: dict[str, Any], words: str
) -> None:
    run.start()
    run.add(**record)
    run.end(1)
    assert diel("watch", "--once") == 0
    assert capsys.readouterr().out.splitlines()[1] == words


def test_a_run_that_was_killed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.start()
    run.die()
    assert diel("watch") == 0
    text = words(capsys.readouterr().out)
    assert ", killed" in text
    assert "trainer.1 rank 5" in text


def test_a_run_that_never_started(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert diel("watch", "--once") == 0
    assert capsys.readouterr().out == "starting the MPI ranks ...\n"
    monkeypatch.setattr(watched_run, "_STARTING_S", 0.0)
    assert diel("watch") == 0
    assert capsys.readouterr().out == "never started\n"


def test_the_newest_run_of_a_folder(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.start()
    run.end()
    other = Run(run.directory.path.parent / "other")
    other.add("RunStarted", time_s=1000.0, workflow="older", ranks=2, groups=[], mpi="")
    assert diel("watch", "--once") == 0
    assert capsys.readouterr().out.startswith("study")
    assert diel("watch", "--once", "runs") == 0
    assert capsys.readouterr().out.startswith("study")
    assert diel("watch", "--once", "runs/other") == 0
    assert capsys.readouterr().out.startswith("older")


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_there_is_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert diel("watch", name) == 2
    assert f"diel: {name} is no run's directory, and holds none" in capsys.readouterr().err
    assert diel("trace", name) == 2
    assert f"{name} holds no run that has started" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[1, 2]\n", "{}\n", "nonsense\n", '{"event": "RunStarted"}\n'])
def test_a_journal_that_is_damaged(run: Run, capsys: pytest.CaptureFixture[str], text: str) -> None:
    run.directory.journal.write_text(text)
    for command in ("watch", "trace"):
        assert diel(command, str(run.directory.path)) == 2
        assert "journal.jsonl, line 1: no record" in capsys.readouterr().err


def test_it_ends_with_the_run_in_plain_lines(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.start()
    threading.Timer(0.6, run.end).start()
    began_s = time.monotonic()
    assert diel("watch") == 0
    assert time.monotonic() - began_s > 0.4
    text = capsys.readouterr().out
    assert "study on 6 ranks (Open MPI v5)" in text
    assert "group g: iteration 3 of 3" in text
    assert "finished" in text


def test_it_ends_with_the_run_on_a_terminal(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    screens: list[Console] = []

    class Screen(Console):
        def __init__(self, **options: Any) -> None:
            super().__init__(
                force_terminal=True, width=100, height=40, color_system=None, **options
            )
            screens.append(self)

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("rich.console.Console", Screen)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    run.start()
    threading.Timer(0.6, run.end).start()
    assert diel("watch") == 0
    assert screens
    text = words(capsys.readouterr().out)
    assert "g iteration 3 of 3" in text
    assert "finished" in text


def test_ctrl_c_leaves(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: WatchedRun) -> None:
        raise KeyboardInterrupt

    run.start()
    monkeypatch.setattr(WatchedRun, "look", interrupt)
    assert diel("watch") == 0


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (1023, "1,023 bytes"), (1024, "1.0 KiB"), (3 * 2**29, "1.5 GiB")],
)
def test_sizes(size: int, text: str) -> None:
    assert format_bytes(size) == text
    assert format_bytes(2**60) == "1,048,576.0 TiB"
