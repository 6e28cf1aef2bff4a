from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from diel.executive.checkpoints import Checkpoints
from diel.executive.messages import StateSaved
from diel.run.directory import RunDirectory
from diel.run.journal import JournalReader, Recorder
from diel.run.records import CheckpointSaved, RunCreated
from diel.tuples.client import TupleClient
from diel.tuples.transport import LocalTransport


class Clock:
    """A clock on which saving takes as long as it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.step_s = 0.0

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    (tmp_path / "w.toml").write_text("")
    recorder = Recorder(RunDirectory.create(tmp_path / "runs", "w", tmp_path / "w.toml"))
    yield recorder
    recorder.close()


def test_tuples_and_what_is_finished_are_saved(recorder: Recorder) -> None:
    tuples = TupleClient(LocalTransport())
    checkpoints = Checkpoints(recorder, lambda: tuples, number=4)
    checkpoints.save()
    tuples.tput("x", 7)
    checkpoints.save()
    _, first, second = JournalReader(recorder.directory.journal).new_records()
    assert isinstance(first, CheckpointSaved)
    assert isinstance(second, CheckpointSaved)
    assert (first.number, first.file) == (5, None)  # there was nothing to save
    assert (second.number, second.file) == (6, "000006.tuples")
    other = TupleClient(LocalTransport())
    assert other.restore(recorder.directory.checkpoint_file(6)) == 1
    assert other.tget("x", timeout=0) == 7


def test_one_after_failures_is_kept_and_there_is_one_of_these(recorder: Recorder) -> None:
    tuples = TupleClient(LocalTransport())
    tuples.tput("x", 7)
    checkpoints = Checkpoints(recorder, lambda: tuples)
    checkpoints.save()
    for _ in range(4):
        checkpoints.note_failures()
        checkpoints.save()
    assert not checkpoints.is_pin_due
    names = sorted(file.name for file in recorder.directory.checkpoints.iterdir())
    assert names == ["000002.tuples", "000004.tuples", "000005.tuples"]
    records = JournalReader(recorder.directory.journal).new_records()
    pinned = [
        each.number for each in records if isinstance(each, CheckpointSaved) and each.is_pinned
    ]
    assert pinned == [2]


def test_the_last_two_are_kept(recorder: Recorder) -> None:
    tuples = TupleClient(LocalTransport())
    tuples.tput("x", 7)
    checkpoints = Checkpoints(recorder, lambda: tuples)
    for _ in range(4):
        checkpoints.save()
    names = sorted(file.name for file in recorder.directory.checkpoints.iterdir())
    assert names == ["000003.tuples", "000004.tuples"]


def test_they_take_a_twentieth_of_the_time_at_most(recorder: Recorder) -> None:
    clock = Clock()
    tuples = TupleClient(LocalTransport())
    checkpoints = Checkpoints(recorder, lambda: tuples, clock=clock)
    assert checkpoints.is_due()
    clock.step_s = 0.5
    checkpoints.save()
    clock.step_s = 0.0
    ended_s = clock.now_s
    clock.now_s = ended_s + 9.4
    assert not checkpoints.is_due()
    clock.now_s = ended_s + 9.6
    assert checkpoints.is_due()


def test_one_is_due_by_time_and_for_a_state(recorder: Recorder) -> None:
    clock = Clock()
    tuples = TupleClient(LocalTransport())
    seldom = Checkpoints(recorder, lambda: tuples, clock=clock)
    often = Checkpoints(recorder, lambda: tuples, every_s=300, clock=clock)
    assert not often.is_due_by_time()
    clock.now_s += 300
    assert often.is_due_by_time()
    often.save()
    assert not often.is_due_by_time()
    clock.now_s += 1e6
    assert not seldom.is_due_by_time()
    seldom.note_state(StateSaved("solver.0.0.work.0_1.zip"))
    assert seldom.is_due_by_time()
    clock.step_s = 0.5
    seldom.save()
    seldom.note_state(StateSaved("solver.0.0.work.0_2.zip"))
    assert not seldom.is_due_by_time()  # they would take more than their share


def test_states_are_kept_as_long_as_a_checkpoint_needs_them(recorder: Recorder) -> None:
    tuples = TupleClient(LocalTransport())
    folder = recorder.directory.states
    folder.mkdir()
    checkpoints = Checkpoints(recorder, lambda: tuples, states=["a.0.0.work.0_1.zip"])

    def note(name: str) -> None:
        (folder / name).touch()
        checkpoints.note_state(StateSaved(name))

    def kept() -> list[str]:
        return sorted(file.name for file in folder.iterdir())

    (folder / "a.0.0.work.0_1.zip").touch()
    for version in (1, 2):
        note(f"b.0.0.loop.3_{version}.zip")
    checkpoints.save(lambda: note("a.0.0.work.0_2.zip"))  # which is heard of just in time
    assert kept() == ["a.0.0.work.0_1.zip", "a.0.0.work.0_2.zip", "b.0.0.loop.3_2.zip"]
    checkpoints.forget_states("loop")  # its iteration has finished
    checkpoints.save()
    assert kept() == ["a.0.0.work.0_2.zip", "b.0.0.loop.3_2.zip"]
    checkpoints.save()
    assert kept() == ["a.0.0.work.0_2.zip"]
    *_, last = JournalReader(recorder.directory.journal).new_records()
    assert isinstance(last, CheckpointSaved)
    assert last.states == ["a.0.0.work.0_2.zip"]


def test_a_full_disk_is_asked_again_later(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    tuples = TupleClient(LocalTransport())
    tuples.tput("x", 7)
    checkpoints = Checkpoints(recorder, lambda: tuples, clock=clock)

    def fail(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tuples, "checkpoint", fail)
    with pytest.raises(OSError, match="No space"):
        checkpoints.save()
    assert not checkpoints.is_due()
    clock.now_s += 61
    assert checkpoints.is_due()
    records = JournalReader(recorder.directory.journal).new_records()
    assert [type(record) for record in records] == [RunCreated]
