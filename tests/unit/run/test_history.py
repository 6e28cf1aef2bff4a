"""What ran: a summary of each run directory, whatever state it is in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from diel.errors import RunDirectoryError
from diel.run.directory import LOST_OR_ENDED, RunDirectory
from diel.run.history import is_run, list_runs, summarize
from diel.run.journal import JournalWriter

STARTED = {"time_s": 100.0, "event": "RunStarted", "workflow": "study", "ranks": 4, "groups": []}
FAILED = {
    "time_s": 103.0,
    "event": "ModuleFailed",
    "module": "solver",
    "copy": 2,
    "error": "ValueError: no",
}
STOPPING = {"time_s": 103.1, "event": "StopOrdered", "reason": "solver.2 failed"}
NOW_S = 1000.0


def ended(exit_code: int, time_s: float = 110.0) -> dict[str, Any]:
    return {"time_s": time_s, "event": "RunEnded", "exit_code": exit_code, "tuples_left": 0}


def run(folder: Path, name: str, *records: dict[str, Any], rest: str = "") -> Path:
    """Make a run directory whose journal has these records, and half a line perhaps."""
    path = folder / name
    (path / "logs").mkdir(parents=True)
    (path / "workflow.toml").write_text("")
    text = "".join(json.dumps(record) + "\n" for record in records) + rest
    if text:
        (path / "journal.jsonl").write_text(text)
    return path


def summary(path: Path) -> tuple[Any, ...]:
    one = summarize(path, NOW_S)
    return one.state, one.duration_s, one.reason


def test_a_run_that_finished(tmp_path: Path) -> None:
    one = summarize(run(tmp_path, "study-20261121-120928", STARTED, ended(0)), NOW_S)
    assert (one.workflow, one.state, one.started_s, one.duration_s, one.ranks, one.reason) == (
        *("study", "finished", 100.0, 10.0, 4, ""),
    )


def test_runs_that_failed(tmp_path: Path) -> None:
    later = FAILED | {"module": "other"}
    path = run(tmp_path, "a", STARTED, FAILED, STOPPING, later, ended(1))
    assert summary(path) == ("failed", 10.0, "solver.2: ValueError: no")
    deadlock = {"time_s": 1.0, "event": "DeadlockFound", "explanation": "..."}
    path = run(tmp_path, "b", STARTED, deadlock, ended(1))
    assert summary(path)[2].startswith("deadlock: every module waits")


def test_a_failure_that_was_lived_with_is_no_cause(tmp_path: Path) -> None:
    borne = FAILED | {"policy": "continue", "module": "borne"}
    assert summary(run(tmp_path, "a", STARTED, borne, ended(0))) == ("finished", 10.0, "")
    path = run(tmp_path, "b", STARTED, borne, FAILED | {"policy": "stop"}, ended(1))
    assert summary(path)[2] == "solver.2: ValueError: no"


def test_a_run_that_was_stopped(tmp_path: Path) -> None:
    asked = {"time_s": 1.0, "event": "StopOrdered", "reason": "a stop was asked for"}
    assert summary(run(tmp_path, "a", STARTED, asked, ended(130))) == (
        *("stopped", 10.0, "a stop was asked for"),
    )


def test_a_run_whose_ranks_were_killed(tmp_path: Path) -> None:
    group = {"time_s": 107.0, "event": "GroupStarted", "group": "g"}
    assert summary(run(tmp_path, "a", STARTED, group)) == ("killed", 7.0, "")


def test_a_run_whose_launcher_was_killed(tmp_path: Path) -> None:
    ended_by_signal = FAILED | {"error": "ModuleFailed: sleep 30 was killed by SIGTERM"}
    path = run(tmp_path, "a", STARTED, ended_by_signal, STOPPING)
    RunDirectory(path).request_stop(f"SIGTERM came: {LOST_OR_ENDED}")
    assert summary(path)[::2] == (
        "killed",
        "diel run, or the job, was ended: SIGTERM came to the ranks",
    )
    lost = {"time_s": 104.0, "event": "RunLost", "explanation": "rank 2 was killed", "restart": 0}
    path = run(tmp_path, "b", STARTED, lost)
    RunDirectory(path).request_stop(f"SIGTERM came: {LOST_OR_ENDED}")
    assert summary(path)[::2] == ("killed", "rank 2 was killed")


def test_a_run_that_was_lost_before_it_had_started(tmp_path: Path) -> None:
    lost = {"time_s": 104.0, "event": "RunLost", "explanation": "rank 2 was killed", "restart": 0}
    created = {"time_s": 99.0, "event": "RunCreated", "file": "w.toml"}
    assert summary(run(tmp_path, "a", created, lost))[2] == "rank 2 was killed"
    path = run(tmp_path, "b", created)
    RunDirectory(path).launcher_log.write_text(f"what it says\n{'-' * 40}\n")
    assert summary(path)[2] == "what it says"


def test_a_run_that_is_still_going(tmp_path: Path) -> None:
    path = run(tmp_path, "a", STARTED)
    writer = JournalWriter(RunDirectory(path).journal)
    assert summary(path) == ("running", 900.0, "")
    with pytest.raises(RunDirectoryError, match="is being written"):
        JournalWriter(RunDirectory(path).journal)
    writer.close()
    assert summary(path) == ("killed", 0.0, "")
    with_nothing = run(tmp_path, "b")
    writer = JournalWriter(RunDirectory(with_nothing).journal)
    assert summary(with_nothing) == ("running", None, "")
    writer.close()


@pytest.mark.parametrize("rest", ['{"time_s": 109.0, "ev', "{", "\0\0\0", "é"])
def test_half_a_line_at_the_end_is_passed_over(tmp_path: Path, rest: str) -> None:
    assert summary(run(tmp_path, "a", STARTED, FAILED, rest=rest)) == (
        *("killed", 3.0, "solver.2: ValueError: no"),
    )


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = run(tmp_path, "a", STARTED)
    with (path / "journal.jsonl").open("ab") as file:
        file.write(b'\xff\xfe{"a": 1}\n[1, 2]\n"text"\n' + json.dumps(ended(0)).encode() + b"\n")
    assert summary(path) == ("finished", 10.0, "")


@pytest.mark.parametrize("journal", ["", '{"time_s": 100.0, "event": "RunSta'])
def test_a_run_that_came_to_no_record(tmp_path: Path, journal: str) -> None:
    path = run(tmp_path, "my-study-20261121-120928-2", rest=journal)
    assert summary(path) == ("never started", None, "")
    (path / "logs" / "launcher.log").write_text("one\nmpiexec: no slots\n\n")
    one = summarize(path, NOW_S)
    assert (one.state, one.reason) == ("never started", "mpiexec: no slots")
    assert one.workflow == "my-study"


def test_a_long_journal_is_not_read_whole(tmp_path: Path) -> None:
    rows = [
        {"time_s": 101.0, "event": "ResultAdded", "row": {"x": "x" * 1000}, "module": "m"}
    ] * 1000
    path = run(tmp_path, "a", STARTED, *rows, FAILED, ended(1))
    assert summary(path) == ("failed", 10.0, "solver.2: ValueError: no")


def test_the_newest_comes_first_and_other_folders_are_passed_over(tmp_path: Path) -> None:
    for index, name in enumerate(("b", "c", "a")):
        run(tmp_path, name, STARTED | {"time_s": 100.0 + index}, ended(0))
    run(tmp_path, "c2", STARTED | {"time_s": 101.0}, ended(0))
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "workflow.toml").write_text("")
    (tmp_path / "file").write_text("")
    assert [one.path.name for one in list_runs(tmp_path)] == ["a", "c", "c2", "b"]
    assert not is_run(tmp_path / "notes")


def test_a_run_directory_is_a_list_of_itself(tmp_path: Path) -> None:
    path = run(tmp_path, "a", STARTED, ended(0))
    assert [one.path for one in list_runs(path)] == [path]


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="No such file"):
        list_runs(tmp_path / "gone")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="Not a directory"):
        list_runs(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_journal_that_may_not_be_read(tmp_path: Path) -> None:
    path = run(tmp_path, "a", STARTED, ended(0))
    (path / "journal.jsonl").chmod(0)
    assert summary(path)[0] == "never started"


def test_what_the_command_line_has_set_is_among_the_parameters(tmp_path: Path) -> None:
    given = ["dt=0.1", "parameters.seed=2", "module.m.options.when = 2026-01-01", "a.b=[1, 2]"]
    created = {"time_s": 99.0, "event": "RunCreated", "file": "w.toml", "given": given}
    started = STARTED | {"parameters": {"dt": 0.1, "seed": 2}, "diel": "1.2", "python": 3}
    one = summarize(run(tmp_path, "a", created, started, ended(0)), NOW_S)
    set_keys = {"module.m.options.when": "datetime.date(2026, 1, 1)", "a.b": [1, 2]}
    assert one.parameters == {"dt": 0.1, "seed": 2, **set_keys}
    assert one.versions == {"diel": "1.2", "mpi": "MPI"}
    one = summarize(run(tmp_path, "b", created), NOW_S)  # it never started
    assert one.parameters["dt"] == 0.1
    assert one.versions == {}
