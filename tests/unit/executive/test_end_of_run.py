"""What rank 0 does when all modules are done, without MPI."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diel.executive.driver import Driver
from diel.executive.listener import TimeTable
from diel.executive.outside_socket import OutsideSocket
from diel.run.directory import RunDirectory
from diel.run.journal import JournalReader, Recorder
from diel.run.records import JournalLost, RunEnded


@pytest.fixture
def announced() -> list[Any]:
    return []


@pytest.fixture
def driver(tmp_path: Path, announced: list[Any]) -> Any:
    """One without other ranks, whose modules have all finished."""
    directory = RunDirectory(tmp_path / "run")
    directory.path.mkdir()
    driver: Any = object.__new__(Driver)
    driver._recorder = Recorder(directory)
    driver._observer = SimpleNamespace(announce=announced.append)
    driver._pool = driver._server_ranks = ()
    driver._listener = SimpleNamespace(present=set(), tuples_left=3)
    driver._parent = SimpleNamespace(dead_ranks=SimpleNamespace(ranks=set(), look=lambda: None))
    driver._resumption = SimpleNamespace(restart=0)
    driver._lost = SimpleNamespace(silent=set())
    driver._heartbeats = SimpleNamespace(close=lambda *, kills: None)
    driver._time_table = TimeTable((), (), str)
    driver._outside = OutsideSocket(directory, lambda: None, print)  # type: ignore[arg-type,return-value]
    return driver


def test_a_run_that_succeeded_says_so_in_its_last_record(driver: Any, announced: list[Any]) -> None:
    assert driver._conclude(0) == 0
    *_, last = JournalReader(driver._recorder.directory.journal).new_records()
    assert last == RunEnded(exit_code=0, tuples_left=3)
    assert announced == []


def test_a_run_whose_directory_is_gone_at_its_end_has_failed(
    driver: Any, announced: list[Any]
) -> None:
    shutil.rmtree(driver._recorder.directory.path)
    assert driver._conclude(0) == 1
    (lost,) = announced
    assert isinstance(lost, JournalLost)
    assert f"{driver._recorder.directory.path} was removed" in lost.explanation


def test_a_run_that_failed_keeps_its_reason_where_its_directory_is_gone(
    driver: Any, announced: list[Any]
) -> None:
    shutil.rmtree(driver._recorder.directory.path)
    assert driver._conclude(130) == 130
    assert announced == []
