from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diel.errors import RunDirectoryError
from diel.run.directory import RunDirectory
from diel.run.journal import JournalReader, JournalWriter
from diel.run.recorder import Recorder
from diel.run.resuming import order_resumption, resumption
from diel.run.view import RunView


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    (tmp_path / "w.toml").write_text("# a workflow\n")
    return RunDirectory.create(tmp_path / "runs", "w", tmp_path / "w.toml")


def write(directory: RunDirectory, *events: tuple[str, dict[str, Any]]) -> None:
    started = {
        "workflow": "w",
        "ranks": 4,
        "groups": ["a", "b"],
        "file": str(directory.path.parent.parent / "w.toml"),
    }
    with JournalWriter(directory.journal) as journal:
        if not directory.journal.stat().st_size:
            journal.write("RunStarted", **started)
        for event, fields in events:
            journal.write(event, **fields)


def saved(number: int, **finished: Any) -> tuple[str, dict[str, Any]]:
    file = f"{number:06d}.tuples"
    return "CheckpointSaved", {"number": number, "file": file, "finished": finished}


def ended(exit_code: int) -> tuple[str, dict[str, Any]]:
    return "RunEnded", {"exit_code": exit_code, "tuples_left": 0}


def test_a_run_goes_on_from_its_last_checkpoint(directory: RunDirectory) -> None:
    write(directory, saved(1, a=[[0], False]), saved(2, a=[[1], True]), ended(1))
    directory.request_stop()
    found = order_resumption(directory)
    assert found is not None
    assert found.finished == {"a": ((1,), True)}
    assert found.checkpoint == directory.checkpoints / "000002.tuples"
    assert found.number == 2
    assert found == resumption(directory)
    assert not directory.stop_requested()


def test_without_a_checkpoint_it_begins_at_the_beginning(directory: RunDirectory) -> None:
    write(directory)
    found = order_resumption(directory)
    assert found is not None
    assert (found.finished, found.checkpoint, found.number) == ({}, None, 0)


def test_checkpoints_behind_an_earlier_resumption_count_again(directory: RunDirectory) -> None:
    write(directory, saved(1, a=[[0], False]), ended(1))
    order_resumption(directory)
    found = order_resumption(directory)
    assert found is not None
    assert found.number == 1
    write(directory, saved(2, a=[[1], False]), ended(130))
    found = order_resumption(directory)
    assert found is not None
    assert found.number == 2


def test_a_run_that_has_finished_is_left_as_it_is(directory: RunDirectory) -> None:
    write(directory, ended(0))
    before = directory.journal.read_bytes()
    assert order_resumption(directory) is None
    assert directory.journal.read_bytes() == before


def test_half_a_record_at_the_end_is_cut_off(directory: RunDirectory) -> None:
    write(directory, saved(1))
    with directory.journal.open("ab") as file:
        file.write(b'{"event": "RunEn')
    order_resumption(directory)
    events = [json.loads(line)["event"] for line in directory.journal.read_text().splitlines()]
    assert events == ["RunStarted", "CheckpointSaved", "RunResumed"]


def test_what_cannot_be_resumed(directory: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="has no journal"):
        order_resumption(RunDirectory(tmp_path))
    directory.journal.write_text("")
    with pytest.raises(RunDirectoryError, match="no run that has started"):
        order_resumption(directory)
    directory.journal.write_text("[1, 2]\n")
    with pytest.raises(RunDirectoryError, match="is no journal"):
        order_resumption(directory)
    directory.journal.write_text("")
    write(directory)
    with pytest.raises(RunDirectoryError, match="nobody has asked"):
        resumption(directory)
    with JournalWriter(directory.journal), pytest.raises(RunDirectoryError, match="being written"):
        order_resumption(directory)
    (tmp_path / "w.toml").write_text("# another one\n")
    with pytest.raises(RunDirectoryError, match="is not what it was"):
        order_resumption(directory)
    (tmp_path / "w.toml").unlink()
    with pytest.raises(RunDirectoryError, match="cannot be read"):
        order_resumption(directory)


def declared(expected: int) -> tuple[str, dict[str, Any]]:
    fields = {"columns": ["x"], "objective": "x", "maximise": True, "expected": expected}
    return "ResultsDeclared", {"module": "m", "copy": 0, **fields}


def added(x: int) -> tuple[str, dict[str, Any]]:
    return "ResultAdded", {"module": "m", "copy": 0, "row": {"x": x}}


def test_results_return_to_the_checkpoint(directory: RunDirectory) -> None:
    recorder = Recorder(directory)
    recorder.close()
    write(directory, declared(4), added(1), saved(1), added(2), declared(4), ended(1))
    order_resumption(directory)
    recorder = Recorder(directory)
    recorder.record(*added(3)[:1], **added(3)[1])
    recorder.close()
    assert directory.results_table(1).read_text().split() == ["x", "1", "3"]
    view = RunView()
    for record in JournalReader(directory.journal).new_records():
        view.apply(record)
    (table,) = view.results.values()
    assert [row["x"] for row in table.rows] == [1, 3]
    assert table.expected == 4
    assert view.exit_code is None
    assert view.resumed == 1
