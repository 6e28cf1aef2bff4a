"""Which tasks count as done in a run that goes on, whatever its processes have left."""

from __future__ import annotations

from pathlib import Path

import pytest

from diel.run.directory import RunDirectory
from diel.run.tasks import TaskRecords, keep_done, recorded_tasks, tasks_in_words

FIRST = ("g", (0,), "m")
SECOND = ("g", (1,), "m")


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    (tmp_path / "w.toml").touch()
    return RunDirectory.create(tmp_path / "runs", "w", tmp_path / "w.toml")


def record(directory: RunDirectory, session: str, rank: int, *tasks: int) -> None:
    records = TaskRecords(directory, session)
    records.add(rank, FIRST, tasks)
    records.close()


def test_a_session_sees_what_earlier_ones_have_done_and_nothing_of_its_own(
    directory: RunDirectory,
) -> None:
    keep_done(directory, {FIRST[:2]})  # a run that begins
    record(directory, "a", 1, 0, 2)
    record(directory, "a", 2, 1)
    keep_done(directory, {FIRST[:2]})
    record(directory, "b", 1, 3)
    assert set(TaskRecords(directory, "b").done_earlier(FIRST)) == {0, 1, 2}
    assert not TaskRecords(directory, "b").done_earlier(SECOND)
    assert recorded_tasks(directory) == 4
    keep_done(directory, {FIRST[:2]})
    assert set(TaskRecords(directory, "c").done_earlier(FIRST)) == {0, 1, 2, 3}
    assert [file.name for file in directory.tasks.iterdir()] == ["done.jsonl"]


def test_tasks_of_what_does_not_begin_at_once_are_forgotten(directory: RunDirectory) -> None:
    record(directory, "a", 1, 0)
    keep_done(directory, {SECOND[:2]})
    keep_done(directory, {FIRST[:2]})
    assert not TaskRecords(directory, "b").done_earlier(FIRST)


@pytest.mark.parametrize(
    "left", ['["g",[0],"m",[7', '["g",[0],"m",[7]]', '["g",[0],"m",[7]\n', "\0\n", "7\n", "[]\n"]
)
def test_half_a_line_is_none(directory: RunDirectory, left: str) -> None:
    record(directory, "a", 1, 0, 1)
    file = directory.tasks / "a.1.jsonl"
    file.write_text(file.read_text() + left)
    keep_done(directory, {FIRST[:2]})
    assert set(TaskRecords(directory, "b").done_earlier(FIRST)) == {0, 1}


def test_failed_tasks_in_words() -> None:
    assert tasks_in_words(1000, [17, 403]) == "998 of 1000 tasks, 2 failed: 17, 403"
    assert tasks_in_words(100, range(30)).endswith(" 18, 19, ...")
