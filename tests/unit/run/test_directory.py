from __future__ import annotations

import errno
import json
import os
import resource
import stat
import time
from pathlib import Path

import pytest

from diel.errors import RunDirectoryError
from diel.exit_codes import NOT_FINISHED, STOPPED
from diel.run.directory import LOST_OR_ENDED, RunDirectory


@pytest.fixture
def workflow(tmp_path: Path) -> Path:
    file = tmp_path / "w.toml"
    file.write_bytes(b"# any bytes \xff\r\n")
    return file


@pytest.fixture
def _stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda _: "20260102-030405")


@pytest.mark.usefixtures("_stopped_clock")
def test_a_run_gets_a_directory_with_its_workflow(tmp_path: Path, workflow: Path) -> None:
    run = RunDirectory.create(tmp_path / "deep" / "runs", "study", workflow)
    assert run.path == tmp_path / "deep" / "runs" / "study-20260102-030405"
    assert run.workflow.read_bytes() == workflow.read_bytes()
    assert run.logs.is_dir()
    assert run.module_log("trainer", 3, 1) == run.path / "logs" / "trainer.3.1.log"
    assert run.launcher_log.parent == run.logs
    created = json.loads(run.journal.read_text())
    assert (created["event"], created["file"]) == ("RunCreated", str(workflow))


@pytest.mark.usefixtures("_stopped_clock")
def test_runs_of_the_same_second_get_directories_of_their_own(
    tmp_path: Path, workflow: Path
) -> None:
    names = [RunDirectory.create(tmp_path, "w", workflow).path.name for _ in range(3)]
    assert names == ["w-20260102-030405", "w-20260102-030405-2", "w-20260102-030405-3"]


@pytest.mark.usefixtures("_stopped_clock")
def test_a_file_of_that_name_is_left_alone(tmp_path: Path, workflow: Path) -> None:
    taken = tmp_path / "w-20260102-030405"
    taken.write_text("mine")
    assert RunDirectory.create(tmp_path, "w", workflow).path.name == "w-20260102-030405-2"
    assert taken.read_text() == "mine"


def test_a_place_that_cannot_be_used_is_an_error(tmp_path: Path, workflow: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(RunDirectoryError, match=r"cannot make a run directory in .*runs: .*--runs"):
        RunDirectory.create(tmp_path / "runs", "w", workflow)


def test_a_workflow_that_went_away_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="No such file"):
        RunDirectory.create(tmp_path, "w", tmp_path / "gone.toml")


def test_a_relative_path_outlives_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunDirectory("here")
    monkeypatch.chdir("/")
    assert run.path == tmp_path / "here"


def test_a_stop_can_be_asked_for_more_than_once(tmp_path: Path, workflow: Path) -> None:
    run = RunDirectory.create(tmp_path, "w", workflow)
    assert not run.stop_requested()
    run.request_stop("enough")
    run.request_stop()
    assert RunDirectory(run.path).stop_requested()
    assert RunDirectory(run.path).stop_reason() == "enough"
    run.withdraw_stop()
    run.stop_request.touch()
    assert (run.stop_reason(), run.exit_code_of_stop()) == ("a stop was asked for", STOPPED)
    for text, why in (("by hand\n", "by hand"), ('{"exit_code": 1e9}', "a stop was asked for")):
        run.stop_request.write_text(text)
        assert (run.stop_reason(), run.exit_code_of_stop()) == (why, STOPPED)
    run.withdraw_stop()
    run.request_stop("no time is left", NOT_FINISHED)
    assert (run.stop_reason(), run.exit_code_of_stop()) == ("no time is left", NOT_FINISHED)


def test_a_rank_that_had_a_signal_gives_way_to_whoever_asks_for_a_stop(
    tmp_path: Path, workflow: Path
) -> None:
    run = RunDirectory.create(tmp_path, "w", workflow)
    assert not run.is_lost_or_ended()
    run.request_stop(f"SIGTERM came: {LOST_OR_ENDED}", NOT_FINISHED)
    run.request_stop(f"SIGINT came: {LOST_OR_ENDED}")
    assert run.is_lost_or_ended()
    assert run.exit_code_of_stop() == NOT_FINISHED
    run.request_stop("enough")
    run.request_stop(f"SIGTERM came: {LOST_OR_ENDED}", NOT_FINISHED)
    assert (run.stop_reason(), run.exit_code_of_stop()) == ("enough", STOPPED)
    assert not run.is_lost_or_ended()


def test_what_a_sweep_was_asked_is_nothing_that_it_has_recorded(
    tmp_path: Path, workflow: Path
) -> None:
    run = RunDirectory.create(tmp_path, "w", workflow)
    ledger = run.path / "sweeps" / "g.master" / "trials.jsonl"
    ledger.parent.mkdir(parents=True)
    for text, recorded in (("", 0), ('{"format"', 0), ('{"format": 1}\n', 0), ("{}\n{}\n", 3)):
        ledger.write_text(text)
        assert run.recorded_bytes() == recorded, text


def test_a_stop_that_cannot_be_written_is_not_asked_for(tmp_path: Path, workflow: Path) -> None:
    run = RunDirectory.create(tmp_path, "w", workflow)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # as on a disk that is full
    try:
        with pytest.raises(OSError, match="too large"):
            run.request_stop("SIGTERM came")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not run.stop_requested()
    assert not list(run.path.glob("stop*"))


def test_a_stop_is_asked_for_where_files_have_one_name_only(
    tmp_path: Path, workflow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(os, "link", link)
    run = RunDirectory.create(tmp_path, "w", workflow)
    run.request_stop("enough")
    run.request_stop("more than enough")
    assert run.stop_reason() == "enough"
    assert not list(run.path.glob("*.part"))


def test_a_run_can_be_given_its_directory(tmp_path: Path, workflow: Path) -> None:
    place = tmp_path / "deep" / "here"
    run = RunDirectory.create(tmp_path / "runs", "w", workflow, at=place)
    assert run.path == place
    assert not (tmp_path / "runs").exists()
    with pytest.raises(RunDirectoryError, match=r"here: File exists; .*--run-dir"):
        RunDirectory.create(tmp_path / "runs", "w", workflow, at=place)


@pytest.mark.parametrize("umask", [0, 0o022])
def test_its_owner_alone_may_enter_unless_the_file_says_otherwise(
    tmp_path: Path, workflow: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        private = RunDirectory.create(tmp_path / "runs", "w", workflow)
        shared = RunDirectory.create(tmp_path / "runs", "w", workflow, private=False)
    finally:
        os.umask(before)
    assert stat.S_IMODE(private.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(shared.path.stat().st_mode) == 0o777 & ~umask
    assert stat.S_IMODE((tmp_path / "runs").stat().st_mode) == 0o777 & ~umask


def test_a_folder_in_place_of_a_crash_file_is_named(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.crash_note(2).mkdir(parents=True)
    with pytest.raises(RunDirectoryError, match=r"rank-2\.crash cannot be removed: Is a directory"):
        directory.forget_crashes()
