"""What is said of a run that could not say it itself."""

from __future__ import annotations

import shutil

import pytest

import diel.executive.worker
from diel.cli.conclusion import print_conclusion
from diel.run.directory import RunDirectory
from diel.run.view import CopyView, RunView
from modules.sweep.in_flight import InFlightTrials
from modules.sweep.messages import Tags


def test_a_full_disk_is_named(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_conclusion(RunView(), directory, 70) == 1
    assert "the disk is full" not in capsys.readouterr().err
    total = shutil.disk_usage(directory.path).total
    usage = shutil._ntuple_diskusage(total, total - 100, 100)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert print_conclusion(RunView(), directory, 70) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[1] == f"diel: the disk is full, so the run has ended: {directory.path}"


def crash(directory: RunDirectory, rank: int, text: str) -> None:
    directory.crash_note(rank).write_text(text)


def test_a_crash_is_told_by_the_modules_own_line(
    directory: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    view = RunView()
    view.started_s = 1.0
    view.placement[2] = "module solver.0"
    directory.launcher_log.write_text(
        "[vm:01539] *** Process received signal ***\n[vm:01539] [ 9] lib(+0x2e)[0x7f]\n"
    )
    crash(directory, 3, "")  # lives, or was killed
    crash(
        directory,
        2,
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x7 (most recent call first):\n"
        '  File "/opt/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n'
        '  File "/home/me/solver.py", line 3 in solve\n'
        f'  File "{diel.executive.worker.__file__}", line 360 in _call\n'
        '  File "<string>", line 1 in <module>\n',
    )
    assert print_conclusion(view, directory, 139) == 1
    assert capsys.readouterr().err.splitlines()[1:] == [
        "diel: module solver.0 crashed: Segmentation fault at /home/me/solver.py, line 3, in solve",
        "  rank 2 | Segmentation fault",
        "  rank 2 |   /opt/lib/python3.11/ctypes/__init__.py, line 519, in string_at",
        "  rank 2 |   /home/me/solver.py, line 3, in solve",
        f"to go on with it: diel run --resume {directory.path}",
        f"everything about it: {directory.path}",
    ]


def test_without_a_crash_the_launcher_has_the_word_but_for_its_frames_of_c(
    directory: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    directory.launcher_log.write_text("[vm:01539] [ 9] lib(+0x2e)[0x7f]\nrank 2 was killed\n")
    assert print_conclusion(RunView(), directory, 137) == 1
    told = capsys.readouterr().err
    assert "launcher | rank 2 was killed" in told
    assert "lib(+0x2e)" not in told


def test_the_trial_of_a_lost_rank_is_named(
    directory: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    directory.launcher_log.write_text("prterun noticed that process rank 4 with PID 7 exited\n")
    view = RunView()
    for copy, rank in ((0, 3), (1, 4)):
        name = f"trainer.{copy}"
        view.running[name] = CopyView(name, "search", [rank], 0.0)
    tags = Tags("search", "trainer")
    with (
        InFlightTrials(directory.path, tags, 0, 0) as one,
        InFlightTrials(directory.path, tags, 1, 0) as other,
    ):
        one.note(5, 6)
        other.note(8, 9)
        assert print_conclusion(view, directory, 139) == 1
    told = capsys.readouterr().err
    assert "trial 8 was under way on trainer.1" in told
    assert "trial 5" not in told
    assert "isolated = true in the options of trainer" in told
