from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from diel.errors import ModuleFailed
from diel.loading.module_spec import ExecutableSpec, ModuleSpec
from diel.loading.outputs import CopyOutputs, contents
from diel.run.files import locked_file

WORDS = ("sh", "-c", "cat data/*.csv > made/all.csv")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "a.csv").write_text("1\n")
    (tmp_path / "data" / "b.csv").write_text("2\n")
    (tmp_path / "w.toml").touch()
    (tmp_path / "run").mkdir()
    return tmp_path


def outputs_of(folder: Path, words: tuple[str, ...] = WORDS, **keys: Any) -> CopyOutputs:
    keys = {"inputs": ("data/*.csv",), "outputs": ("made/all.csv",), **keys}
    spec = ModuleSpec("m", None, ExecutableSpec(words), 1, {}, **keys)
    places = spec.places(
        copy=0,
        copies=1,
        processes=1,
        group="g",
        iteration=(0,),
        run_dir=folder / "run",
        folder=folder,
    )
    return CopyOutputs(spec, places, folder / "w.toml")


def make(folder: Path, outputs: CopyOutputs | None = None) -> None:
    with (outputs or outputs_of(folder)).making() as is_current:
        assert not is_current
        assert not (folder / "made" / "all.csv").exists()
        (folder / "made" / "all.csv").write_text("12")


def test_what_was_made_of_the_same_is_current(folder: Path) -> None:
    assert outputs_of(folder).why() == "never run"
    make(folder)
    assert outputs_of(folder).why() == ""
    with outputs_of(folder).making() as is_current:
        assert is_current
    assert (folder / "made" / "all.csv").read_text() == "12"
    os.utime(folder / "data" / "a.csv", (1, 1))  # its time counts for nothing
    assert outputs_of(folder).why() == ""
    with outputs_of(folder).making(force=True) as is_current:
        assert not is_current
        (folder / "made" / "all.csv").touch()


def changed(folder: Path, name: str, text: str | None) -> CopyOutputs:
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)
    return outputs_of(folder)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("data/a.csv", "3\n", "input data/a.csv has changed"),
        ("data/a.csv", None, "input data/a.csv is gone"),
        ("data/c.csv", "", "input data/c.csv is new"),
        ("made/all.csv", None, "output missing: made/all.csv"),
        ("made/all.csv", "1", "output made/all.csv has changed"),
        (".diel/w/m.0.g.0.json", None, "never run"),
        (".diel/w/m.0.g.0.json", '{"state": "ma', "never run"),
        (".diel/w/m.0.g.0.json", '{"state": "made", "inputs": 3}', "never run"),
    ],
)
def test_why_it_would_run(folder: Path, name: str, text: str | None, why: str) -> None:
    make(folder)
    outputs = changed(folder, name, text)
    assert outputs.why() == why
    make(folder, outputs)
    assert outputs.why() == ""


def test_the_command_counts(folder: Path) -> None:
    program = folder / "tool"
    program.write_text("1")
    outputs = outputs_of(folder, ("./tool", "{copy}"))
    make(folder, outputs)
    assert outputs.why() == ""
    other = outputs_of(folder, ("./tool", "{group}"))
    assert other.why() == "command has changed: executable"
    program.write_text("2")
    assert outputs.why() == "command has changed: the file of executable"
    assert outputs_of(folder, outputs=("made/one",)).why().startswith("command has changed")


def test_what_is_left_of_a_copy_that_failed_or_was_killed_is_removed(folder: Path) -> None:
    made = folder / "made" / "all.csv"

    def fail() -> None:
        made.touch()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), outputs_of(folder).making():
        fail()
    assert not made.exists()
    assert outputs_of(folder).why() == "not finished when it ran last"
    with (
        pytest.raises(ModuleFailed, match=r"ended well without making its output .*all\.csv"),
        outputs_of(folder).making(),
    ):
        pass
    pid = os.fork()
    if not pid:
        with outputs_of(folder).making():
            made.write_text("half")
            os._exit(0)
    os.waitpid(pid, 0)
    assert made.exists()
    assert outputs_of(folder).why() == "not finished when it ran last"
    make(folder)


def test_two_runs_do_not_make_the_same_at_a_time(folder: Path) -> None:
    make(folder)
    held = locked_file(folder / ".diel" / "w" / "m.0.g.0.lock")
    refused = pytest.raises(ModuleFailed, match=r"m\.0\.g\.0\.lock is being written")
    with held, refused, outputs_of(folder).making():
        pytest.fail("it began")
    assert (folder / "made" / "all.csv").exists()


def test_a_module_without_outputs_always_runs(folder: Path) -> None:
    for _ in range(2):
        with outputs_of(folder, outputs=()).making() as is_current:
            assert not is_current
    with (
        pytest.raises(ModuleFailed, match=r'its input "data/\*\.txt" is missing'),
        outputs_of(folder, inputs=("data/*.txt",), outputs=()).making(),
    ):
        pytest.fail("it began")


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("w.toml", "of which it is made"),
        ("data/a.csv", "of which it is made"),
        ("data", "of which it is made"),
        ("../other", "outside"),
        ("/etc/passwd", "outside"),
        (".", "outside"),
        ("run", "a folder that the run itself is in"),
        ("run/journal.jsonl", "diel's own"),
        ("run/logs/m.log", "diel's own"),
        (".diel/w", "diel's own"),
        ("run/.diel/w", "diel's own"),
        ("link", "is a link"),
        ("away/file", "outside"),
    ],
)
def test_an_output_that_must_not_be_removed_is_refused(
    folder: Path, output: str, problem: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    away = tmp_path_factory.mktemp("away")
    (away / "file").touch()
    (folder / "link").symlink_to(away / "file")
    (folder / "away").symlink_to(away)
    before = sorted(folder.rglob("*"))
    with pytest.raises(ModuleFailed, match=problem), outputs_of(folder, outputs=(output,)).making():
        pytest.fail("it began")
    assert (away / "file").exists()
    assert {*before} <= {*folder.rglob("*")}


def test_nothing_is_written_beside_a_file_whose_outputs_are_in_the_run_directory(
    folder: Path,
) -> None:
    with outputs_of(folder, outputs=("{run_dir}/made/x",)).making():
        (folder / "run" / "made" / "x").touch()
    assert not (folder / ".diel").exists()
    assert (folder / "run" / ".diel" / "w" / "m.0.g.0.json").exists()


def test_folders_are_compared_file_by_file(folder: Path) -> None:
    (folder / "data" / "deep" / "c.csv").write_text("3")
    found = contents([folder / "data"])
    assert [Path(name).name for name in found] == ["a.csv", "b.csv", "c.csv"]
    assert contents([folder / "run"]) == {str(folder / "run"): [0, 0, "an empty folder"]}
    known = {name: [*entry[:2], "as before"] for name, entry in found.items()}
    assert {entry[2] for entry in contents([folder / "data"], known).values()} == {"as before"}
    os.mkfifo(folder / "pipe")
    with pytest.raises(ModuleFailed, match="neither a file nor a folder"):
        contents([folder / "pipe"])
