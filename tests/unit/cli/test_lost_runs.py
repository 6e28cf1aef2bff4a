"""What is said of a run that could not say it itself."""

from __future__ import annotations

import shutil

import pytest

from diel.cli.conclusion import print_conclusion
from diel.run.directory import RunDirectory
from diel.run.view import CopyView, RunView
from modules.sweep.messages import Tags
from modules.sweep.under_way import UnderWay


def test_a_full_disk_is_named(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_conclusion(RunView(), directory, 70) == 1
    assert "the disk is full" not in capsys.readouterr().err
    total = shutil.disk_usage(directory.path).total
    usage = shutil._ntuple_diskusage(total, total - 100, 100)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert print_conclusion(RunView(), directory, 70) == 1
    assert f"the disk is full: {directory.path}" in capsys.readouterr().err


def test_the_trial_of_a_lost_rank_is_named(
    directory: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    directory.launcher_log.write_text("prterun noticed that process rank 4 with PID 7 exited\n")
    view = RunView()
    for copy, rank in ((0, 3), (1, 4)):
        name = f"trainer.{copy}"
        view.running[name] = CopyView(name, "search", [rank], 0.0)
    tags = Tags("search", "trainer")
    with UnderWay(directory.path, tags, 0, 0) as one, UnderWay(directory.path, tags, 1, 0) as other:
        one.note(5, 6)
        other.note(8, 9)
        assert print_conclusion(view, directory, 139) == 1
    told = capsys.readouterr().err
    assert "trial 8 was under way on trainer.1" in told
    assert "trial 5" not in told
    assert "isolated = true in the options of trainer" in told
