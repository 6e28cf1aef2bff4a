"""Which files of a run belong to a module, and which may be shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from diel.errors import RunDirectoryError
from diel.run.directory import RunDirectory
from diel.run.shown_files import files_of, logs_of, open_shown


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    run = tmp_path / "run"
    for name in (
        *("logs/a.0.0.log", "logs/a.10.0.log", "logs/a.2.1.log", "logs/ab.0.0.log"),
        *(
            "logs/launcher.log",
            "logs/a.0.0.log.old",
            "returned/a.0.g.0.npy",
            "returned/a.0.h.0.npy",
        ),
        *("states/a.0.0.g.0_1.zip", "sweeps/g.a/trials.jsonl", "sweeps/g.a-2/trials.jsonl"),
        *("sweeps/g.ab/trials.jsonl", "a.0/out.txt", "a.0/deep/out.txt", "a.0/.hidden", "b.0/out"),
        *("tuples.json", "results.csv"),
    ):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(name)
    (tmp_path / "secret").write_text("secret")
    (run / "a.0" / "link").symlink_to(tmp_path / "secret")
    (run / "linked").symlink_to(run / "a.0")
    return RunDirectory(run)


def test_the_logs_of_modules(directory: RunDirectory) -> None:
    assert logs_of(directory, ["a"]) == ["a.0.0.log", "a.2.1.log", "a.10.0.log"]
    assert logs_of(directory, ["ab", "a"])[-1] == "ab.0.0.log"
    assert logs_of(directory, []) == logs_of(directory, [".*"]) == []


def test_the_files_of_a_module(directory: RunDirectory) -> None:
    left = [
        *("returned/a.0.g.0.npy", "states/a.0.0.g.0_1.zip"),
        *("sweeps/g.a-2/trials.jsonl", "sweeps/g.a/trials.jsonl"),
    ]
    assert files_of(directory, "g", "a") == left
    written = ["a.0/deep/out.txt", "a.0/out.txt"]
    assert files_of(directory, "g", "a", "{run_dir}/{module}.{copy}") == [*written, *left]
    for other in (
        "elsewhere",
        "{run_dir}/../{module}",
        "{run_dir}/linked",
        "{run_dir}/linked/{copy}",
    ):
        assert files_of(directory, "g", "a", other) == left
    assert files_of(directory, "*", "*") == []


def test_of_very_many_files_some_are_named(directory: RunDirectory) -> None:
    for number in range(300):
        (directory.path / "a.0" / f"{number}.txt").touch()
    assert len(files_of(directory, "g", "a", "{run_dir}/a.{copy}")) == 200


@pytest.mark.parametrize("name", ["results.csv", "logs/a.0.0.log", "a.0/deep/out.txt"])
def test_files_are_opened(directory: RunDirectory, name: str) -> None:
    with open_shown(directory, name) as file:
        assert file.read().decode() == name


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "/", "..", "../secret", "logs/../../secret", "/etc/passwd", "a\0b", "\0"),
        *("tuples.json", "./tuples.json", ".//tuples.json", "a.0/.hidden", "a.0/link"),
        *("linked/out.txt", "logs", "gone", "gone/x", "pipe", "x" * 5000, "results.csv/x"),
    ],
)
def test_others_are_not(directory: RunDirectory, name: str) -> None:
    os.mkfifo(directory.path / "pipe")
    with pytest.raises(RunDirectoryError):
        open_shown(directory, name)
