"""``diel new-module``, openDIEL's ModMaker: what it writes works, and it overwrites nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, diel, execute, status_of

from diel.cli.templates import LONGEST_NAME, write_new
from diel.errors import NewModuleError

LONGEST = "n" * LONGEST_NAME


def new_module(*arguments: object) -> object:
    return status_of("new-module", *arguments)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["adder", "A1_b", LONGEST])
def test_its_test_passes_and_its_workflow_is_fine(folder: Path, name: str) -> None:
    assert new_module(name, "--in", "new/place") == 0
    place = folder / "new" / "place"
    assert sorted(path.name for path in place.iterdir()) == sorted(
        [f"{name}.py", f"test_{name}.py", f"{name}.toml"]
    )
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", f"test_{name}.py"]
    done = subprocess.run(
        command, cwd=place, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout
    finished = diel("check", f"{name}.toml", cwd=place)
    assert finished.status == 0, finished.output


@pytest.mark.parametrize(
    ("language", "suffix", "compiler"),
    [("c", "c", "cc"), ("cpp", "cpp", "c++"), ("fortran", "f90", "gfortran")],
)
def test_a_compiled_module_is_built_and_passes_its_test(
    folder: Path, language: str, suffix: str, compiler: str
) -> None:
    assert new_module("adder", "--language", language) == 0
    written = {path.name for path in folder.iterdir()}
    assert written == {f"adder.{suffix}", "Makefile", "test_adder.py", "adder.toml"}
    for program in ("make", compiler):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here to build with")
    here = str(Path(sys.executable).parent)
    warnings = dict.fromkeys(("CFLAGS", "CXXFLAGS", "FFLAGS"), "-O2 -Wall -Wextra -Werror")
    built = execute(
        ["make", *(f"{name}={flags}" for name, flags in warnings.items())],
        cwd=folder,
        environment={"PATH": f"{here}:{os.environ['PATH']}"},
    )
    assert built.status == 0, built.output
    tested = execute([sys.executable, "-m", "pytest", "-q", "test_adder.py"], cwd=folder)
    assert tested.status == 0, tested.output
    assert "1 passed" in tested.stdout


def test_options_of_the_workflow_are_checked(folder: Path) -> None:
    assert new_module("adder") == 0
    file = folder / "adder.toml"
    file.write_text(file.read_text().replace("count = 1000", "count = 0"))
    finished = diel("check", "adder.toml", cwd=folder)
    assert finished.status == 2
    assert "module[0].options.count: expected a whole number of at least 1" in finished.stderr


@pytest.mark.parametrize("name", ["adder", LONGEST])
@pytest.mark.parametrize("rules", ["of this project", "by default"])
@pytest.mark.parametrize("language", ["python", "c"])
def test_ruff_has_nothing_to_say(folder: Path, name: str, rules: str, language: str) -> None:
    ruff = shutil.which("ruff", path=str(Path(sys.executable).parent)) or shutil.which("ruff")
    if ruff is None:
        pytest.skip("ruff is not installed")
    assert new_module(name, "--language", language) == 0
    ours = rules == "of this project"
    setting = ["--config", str(ROOT / "pyproject.toml")] if ours else ["--isolated"]
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [ruff, *command, "--no-cache", *setting, folder],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("there", ["adder.py", "test_adder.py", "adder.toml"])
def test_nothing_is_overwritten(
    folder: Path, there: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / there).write_text("mine")
    assert new_module("adder") == 2
    assert [path.name for path in folder.iterdir()] == [there]
    assert (folder / there).read_text() == "mine"
    err = capsys.readouterr().err
    assert f"{there} is there already: nothing was written" in err


def test_a_link_to_nowhere_is_there_too(folder: Path) -> None:
    (folder / "adder.py").symlink_to("nowhere.py")
    assert new_module("adder") == 2
    assert not (folder / "nowhere.py").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "'' is no name for a module"),
        ("my-solver", "my_solver, for example"),
        ("2d", "'2d' is no name for a module: a letter, then letters, digits or _; d, for example"),
        ("a b", "a_b, for example"),
        ("_a", "a, for example"),
        ("größe-2", "is no name for a module"),
        ("ﬁx", "is no name for a module"),  # which Python takes for fix
        ("../x", "x, for example"),
        ("a\n", "is no name for a module"),
        ("class", "'class' is a word of Python's; class_module, for example"),
        ("random", "there is a package 'random' already, which random.py would hide"),
        ("numpy", "numpy_module, for example"),
        ("diel", "there is a package 'diel' already"),
        ("n" * (LONGEST_NAME + 1), "is too long"),
    ],
)
def test_names_that_will_not_do(
    folder: Path, name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new_module("--", name) == 2
    assert words in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_made(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "file").write_text("")
    assert new_module("adder", "--in", "file") == 2
    assert "cannot be written" in capsys.readouterr().err
    assert new_module("adder", "--in", "file/inside") == 2


def test_all_files_or_none(folder: Path) -> None:
    (folder / "file").write_text("")
    with pytest.raises(NewModuleError, match="cannot be written"):
        write_new({folder / "a.py": "x", folder / "file" / "b.py": "x"})
    assert [path.name for path in folder.iterdir()] == ["file"]
