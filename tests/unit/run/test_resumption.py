from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support import record

from diel.errors import LaunchError, RunDirectoryError
from diel.run.directory import LOST_OR_ENDED, RunDirectory
from diel.run.files import locked_file
from diel.run.journal import JournalReader, JournalWriter, Recorder
from diel.run.resumption import order_resumption, resumption
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
        if b"RunStarted" not in directory.journal.read_bytes():
            journal.write(record("RunStarted", **started))
        for event, fields in events:
            journal.write(record(event, **fields))


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


def test_groups_that_have_finished_are_repeated_with_what_depends_on_them(
    directory: RunDirectory,
) -> None:
    links = {"groups": ["a", "b", "c"], "depends": {"b": ["a"]}}
    file = str(directory.path.parent.parent / "w.toml")
    started = {"workflow": "w", "ranks": 4, "file": file, **links}
    done = [[0], True]
    event, fields = saved(3, a=done, b=done, c=done)
    of_a, of_c = "m.0.0.a.0_1.zip", "m.0.0.c.0_1.zip"
    states = [of_a, of_c]
    write(directory, ("RunStarted", started), (event, {**fields, "states": states}), ended(0))
    assert order_resumption(directory) is None
    found = order_resumption(directory, repeats=["a"])
    assert found is not None
    assert found.finished == {"c": ((0,), True)}
    assert (found.number, list(found.states)) == (3, [of_c])
    again = order_resumption(directory)  # it was killed at once: the same groups are repeated
    assert again is not None
    assert (again.finished, again.states) == (found.finished, found.states)


def test_what_cannot_be_repeated_is_refused(directory: RunDirectory) -> None:
    with pytest.raises(RunDirectoryError, match="has never begun"):
        order_resumption(directory, repeats=["a"])
    write(directory, saved(1, a=[[0], True]), ended(0))
    with pytest.raises(LaunchError, match=r"--from aa: there is no such group; did you mean a\?"):
        order_resumption(directory, repeats=["aa"])
    ledger = directory.path / "sweeps" / "a.master" / "trials.jsonl"
    ledger.parent.mkdir(parents=True)
    ledger.touch()
    with pytest.raises(LaunchError, match=r"a sweep.*diel run .*w\.toml --from a$"):
        order_resumption(directory, repeats=["a"])


def test_a_run_whose_launcher_starts_its_ranks_again_is_not_resumed_by_another(
    directory: RunDirectory,
) -> None:
    write(directory, saved(1))
    before = directory.journal.read_bytes()
    with locked_file(directory.launcher_log):
        with pytest.raises(RunDirectoryError, match="a run goes on there"):
            order_resumption(directory)
        assert directory.journal.read_bytes() == before
        assert order_resumption(directory, restart=1) is not None


def test_a_stop_that_is_asked_for_before_ranks_are_started_again_is_for_these(
    directory: RunDirectory,
) -> None:
    write(directory, saved(1))
    directory.request_stop(f"SIGTERM came: {LOST_OR_ENDED}")
    order_resumption(directory, restart=1)
    assert not directory.stop_requested()
    directory.request_stop("enough")
    order_resumption(directory, restart=2)
    assert directory.stop_reason() == "enough"


def test_states_that_are_newer_than_the_tuples_are_removed(directory: RunDirectory) -> None:
    names = ["m.0.0.a.0_1.zip", "m.0.0.a.0_2.zip", ".m.0.0.a.0_3.zip.part"]
    directory.states.mkdir()
    for name in names:
        (directory.states / name).touch()
    event, fields = saved(1)
    write(directory, (event, {**fields, "states": names[:1]}))
    found = order_resumption(directory)
    assert found is not None
    assert [file.name for file in directory.states.iterdir()] == list(found.states) == names[:1]


def test_payloads_that_servers_have_left_on_the_disk_are_removed(directory: RunDirectory) -> None:
    write(directory, saved(1))
    left = directory.spill / "0123abcd" / "server-1" / "0" / "1.payload"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x")
    order_resumption(directory)
    assert not directory.spill.exists()


STOP = ("StopOrdered", {"reason": "a stop was asked for"})
DIED = ("RanksLost", {"explanation": "rank 2 died", "ranks": [2], "hosts": []})
ENDS: list[tuple[list[tuple[str, dict[str, Any]]], bool]] = [
    ([STOP, ended(130)], False),
    ([ended(1)], False),
    ([], True),  # everything was killed
    ([DIED, ended(1)], True),
    ([STOP], True),
    ([("StopOrdered", {"reason": f"SIGTERM came: {LOST_OR_ENDED}"}), ended(75)], True),
    ([ended(1), ("RunLost", {"explanation": "rank 3 was killed"})], True),
]


@pytest.mark.parametrize(("end", "is_suspect"), ENDS)
def test_a_trial_that_was_running_when_a_run_was_told_to_stop_is_no_suspect(
    directory: RunDirectory, end: list[tuple[str, dict[str, Any]]], is_suspect: bool
) -> None:
    write(directory, saved(1), *end)
    note = directory.path / "sweeps" / "search.trainer.0.0.under-way"
    note.parent.mkdir()
    note.write_bytes(b"")
    order_resumption(directory)
    assert note.exists() == is_suspect
    # What an earlier session has left is of that one alone.
    write(directory, DIED, ended(1))
    note.write_bytes(b"")
    order_resumption(directory)
    assert note.exists()


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
    assert events == ["RunCreated", "RunStarted", "CheckpointSaved", "RunResumed"]


def test_what_cannot_be_resumed(directory: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="has no journal"):
        order_resumption(RunDirectory(tmp_path))
    directory.journal.write_text("")
    with pytest.raises(RunDirectoryError, match="does not say of which workflow file it is"):
        order_resumption(directory)
    directory.journal.write_text("[1, 2]\n")
    with pytest.raises(RunDirectoryError, match="line 1: no record, left out: it is no table"):
        order_resumption(directory)
    directory.journal.write_text("")
    write(directory)
    with pytest.raises(RunDirectoryError, match="nobody has asked"):
        resumption(directory)
    with JournalWriter(directory.journal), pytest.raises(RunDirectoryError, match="being written"):
        order_resumption(directory)
    (tmp_path / "w.toml").write_text("[workflow]\nname = 1\n")
    with pytest.raises(RunDirectoryError, match=r"is not what it was .* workflow.name is 1, and"):
        order_resumption(directory)
    (tmp_path / "w.toml").write_text("[workflow\n")
    with pytest.raises(RunDirectoryError, match="it is not TOML any more"):
        order_resumption(directory)
    (tmp_path / "w.toml").unlink()
    with pytest.raises(RunDirectoryError, match="cannot be read"):
        order_resumption(directory)


def test_what_changes_no_result_is_taken_over(directory: RunDirectory, tmp_path: Path) -> None:
    write(directory)
    edited = "# a comment\n[workflow]\nrestarts = 3\n"
    (tmp_path / "w.toml").write_text(edited)
    order_resumption(directory, restart=1)
    assert directory.workflow.read_text() != edited
    order_resumption(directory)
    assert directory.workflow.read_text() == edited


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
    recorder.record(record(added(3)[0], **added(3)[1]))
    recorder.close()
    assert directory.results_table(1).read_text().split() == ["x", "1", "3"]
    view = RunView()
    for one in JournalReader(directory.journal).new_records():
        view.apply(one)
    (table,) = view.results.values()
    assert [row["x"] for row in table.rows] == [1, 3]
    assert table.expected == 4
    assert view.exit_code is None
    assert view.resumed == 1


def finished(group: str, iteration: int, ended_by: str | None) -> tuple[str, dict[str, Any]]:
    return "GroupFinished", {"group": group, "iteration": [iteration], "ended_by": ended_by}


def checkpoint(number: int) -> tuple[str, dict[str, Any]]:
    return "CheckpointSaved", {"number": number, "file": None}


def test_what_is_finished_follows_from_the_records_before_a_checkpoint(
    directory: RunDirectory,
) -> None:
    write(directory, finished("a", 0, None), checkpoint(1), finished("a", 1, "iterations"))
    write(directory, checkpoint(2), finished("b", 0, None))
    found = order_resumption(directory)
    assert found is not None
    assert (found.number, found.finished) == (2, {"a": ((1,), True)})
    # What the resumed run has done counts from where it began.
    fields = {"workflow": "w", "ranks": 4, "groups": ["a", "b"], "finished": {"a": [[1], True]}}
    write(directory, ("RunStarted", fields), finished("b", 0, None), checkpoint(3))
    found = order_resumption(directory)
    assert found is not None
    assert (found.number, found.finished) == (3, {"a": ((1,), True), "b": ((0,), False)})


def test_checkpoints_do_not_repeat_what_was_finished_before(directory: RunDirectory) -> None:
    """A journal that did grew with the square of the groups."""
    from diel.executive.checkpoints import Checkpoints
    from diel.tuples.client import TupleClient
    from diel.tuples.transport import LocalTransport

    recorder, tuples = Recorder(directory), TupleClient(LocalTransport())
    checkpoints = Checkpoints(recorder, lambda: tuples)
    names = [f"g{number}" for number in range(300)]
    recorder.record(record("RunStarted", workflow="w", ranks=3, groups=names))
    sizes_bytes = []
    for name in names:
        before = directory.journal.stat().st_size
        recorder.record(record("GroupFinished", group=name, iteration=[0], ended_by="iterations"))
        checkpoints.save()
        sizes_bytes.append(directory.journal.stat().st_size - before)
    recorder.close()
    assert max(sizes_bytes) < sizes_bytes[0] + 20


def test_a_run_that_was_killed_before_its_first_record_begins(directory: RunDirectory) -> None:
    """So that a chain of jobs that resume goes on, however early one of them was ended."""
    for _ in range(2):
        found = order_resumption(directory)
        assert found is not None
        assert found.file == str(directory.path.parent.parent / "w.toml")
        assert (found.finished, found.checkpoint, found.number) == ({}, None, 0)
    (directory.path / "logs").rmdir()
    order_resumption(directory)
    assert directory.logs.is_dir()


def damage_line(directory: RunDirectory, event: str) -> None:
    lines = directory.journal.read_bytes().splitlines(keepends=True)
    (at,) = (number for number, line in enumerate(lines) if event.encode() in line)
    lines[at] = b"\0\1garbage\n"
    directory.journal.write_bytes(b"".join(lines))


def test_damage_behind_the_last_checkpoint_does_not_matter(directory: RunDirectory) -> None:
    write(directory, finished("a", 0, None), checkpoint(1), ("StopOrdered", {"reason": "x"}))
    damage_line(directory, "StopOrdered")
    for _ in range(2):
        found = order_resumption(directory)
        assert found is not None
        assert (found.number, found.finished) == (1, {"a": ((0,), False)})
    write(directory, finished("b", 0, None), checkpoint(2))
    found = order_resumption(directory)
    assert found is not None
    assert (found.number, sorted(found.finished)) == (2, ["a", "b"])


def test_damage_before_the_last_checkpoint_ends_it(directory: RunDirectory) -> None:
    write(directory, finished("a", 0, None), checkpoint(1))
    damage_line(directory, "GroupFinished")
    with pytest.raises(RunDirectoryError, match=r"line 3: no record: .* before its last check"):
        order_resumption(directory)


@pytest.mark.parametrize(
    "name",
    [
        "journal.jsonl",
        "results.csv",
        "results-2.csv",
        "logs/m.0.0.log",
        "trace/rank-1.jsonl",
        "checkpoints",
        "sweeps/g.m/trials.jsonl",
        "returned/g.m.0.json",
        "stop",
    ],
)
def test_nothing_is_written_through_a_link(
    directory: RunDirectory, tmp_path: Path, name: str
) -> None:
    write(directory)
    mine = tmp_path / "mine"
    place = directory.path / name
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.exists():
        place.rename(mine)
    else:
        mine.write_text("")
    before = mine.read_bytes()
    place.symlink_to(mine)
    with pytest.raises(RunDirectoryError, match="is a link: a run that goes on would write"):
        order_resumption(directory)
    assert mine.read_bytes() == before
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(RunDirectoryError, match="is no"):
        order_resumption(directory)


def test_links_of_a_users_own_are_left_alone(directory: RunDirectory, tmp_path: Path) -> None:
    write(directory)
    (directory.path / "snapshots").symlink_to(tmp_path)
    assert order_resumption(directory) is not None


# -- what is not repeated --------------------------------------------------------------------------


def of_group(name: str, *, failed: Sequence[int] = ()) -> list[tuple[str, dict[str, Any]]]:
    """Return the records of a group of one executable, of which tasks may have failed."""
    copy = {"group": name, "module": name}
    tasks = {**copy, "failed": failed, "total": 9, "is_repeatable": True}
    return [
        ("GroupStarted", {"group": name, "copies": {name: 1}}),
        ("CopyFinished", {**copy, "copy": 0, "is_apart": True}),
        *([("TasksFailed", tasks)] if failed else []),
        ("GroupFinished", {"group": name}),
    ]


def begin_of_executables(directory: RunDirectory) -> None:
    started = {"workflow": "w", "ranks": 4, "groups": ["a", "b", "c"], "depends": {"b": ["a"]}}
    copies = {name: {name: 1} for name in "abc"}
    file = str(directory.path.parent.parent / "w.toml")
    with JournalWriter(directory.journal) as journal:
        journal.write(record("RunStarted", **started, copies=copies, file=file))


DONE = ((0,), True)


def test_groups_of_executables_stay_finished(directory: RunDirectory) -> None:
    begin_of_executables(directory)
    write(directory, saved(1), *of_group("a", failed=[4]), *of_group("b"))
    found = order_resumption(directory)
    assert found is not None
    assert (found.number, found.finished) == (1, {"a": DONE, "b": DONE})


def test_a_finished_run_goes_back_to_its_failed_tasks(directory: RunDirectory) -> None:
    begin_of_executables(directory)
    pinned = ("CheckpointSaved", {"number": 1, "file": None, "is_pinned": True})
    write(directory, *of_group("a", failed=[4]), pinned)
    write(directory, *of_group("c"), ("CheckpointSaved", {"number": 2, "file": None}))
    write(directory, *of_group("b"), ended(0))
    assert order_resumption(directory, repeats_failed=False) is None
    found = order_resumption(directory)
    assert found is not None
    # The group that comes after the failed tasks is repeated too.
    assert (found.number, found.finished, found.pinned) == (1, {"c": DONE}, None)
    # All tasks are done now.
    begin_of_executables(directory)
    write(directory, *of_group("a"), *of_group("b"), ended(0))
    assert order_resumption(directory) is None


def test_a_pinned_checkpoint_goes_when_nothing_can_go_back_to_it(directory: RunDirectory) -> None:
    begin_of_executables(directory)
    names = [f"{number:06d}.tuples" for number in (1, 2, 3, 4, 5)]
    directory.checkpoints.mkdir()
    for name in names:
        (directory.checkpoints / name).touch()
    pinned = ("CheckpointSaved", {"number": 1, "file": names[0], "is_pinned": True})
    write(directory, *of_group("a", failed=[4]), pinned, *of_group("c", failed=[2]))
    write(directory, *of_group("b"), ("CheckpointSaved", {"number": 4, "file": names[3]}), ended(0))

    def repeat(group: str) -> list[str]:
        found = order_resumption(directory, repeats=[group])
        assert found is not None
        begin_of_executables(directory)
        write(directory, *of_group(group), ended(0))
        return sorted(place.name for place in directory.checkpoints.iterdir())

    assert repeat("a") == [names[0], *names[2:4]]  # tasks of the other group can be repeated
    assert repeat("c") == names[2:4]
    assert order_resumption(directory) is None


def test_a_finished_run_stays_so_without_the_checkpoint(directory: RunDirectory) -> None:
    begin_of_executables(directory)
    pinned = ("CheckpointSaved", {"number": 1, "file": "000001.tuples", "is_pinned": True})
    write(directory, *of_group("a", failed=[4]), pinned, ended(0))
    assert order_resumption(directory) is None
