"""The files that docs/executables.md shows run as they are, and do what it says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from support import (
    ROOT,
    Finished,
    as_one_workflow,
    diel,
    journal,
    mpi_implementation,
    run_dir,
)

from diel.cli.completion import levels
from diel.cli.main import build_parser
from diel.workflow.model import Module
from diel.workflow.programs import FACTS, PLACEHOLDERS

TEXT = (ROOT / "docs" / "executables.md").read_text(encoding="utf-8")
SIGNATURES = re.compile(r"^```c\n((?:int|void) .*?)^```$", re.DOTALL | re.M)
HEADER = ROOT / "diel" / "programs" / "clients" / "diel_tuple.h"


def files() -> dict[str, str]:
    found = re.findall(
        r"^```(?:python|toml|sh|c)\n(?:# |/\* )(\S+)(?: \*/)?\n(.*?)^```$", TEXT, re.DOTALL | re.M
    )
    shown = TEXT.count("```") / 2 - len(SIGNATURES.findall(TEXT))
    assert len(found) == shown, "each block is a file and begins with its name"
    return dict(found)


def written(folder: Path) -> Path:
    for name, content in files().items():
        (folder / name).write_text(content)
    (folder / "palette.txt").write_text("red\ngreen\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """Return the folder of one run of several files, and how it ended."""
    folder = written(tmp_path_factory.mktemp("page"))
    stems = ("render", "cases", "attempts", "long")
    toml = as_one_workflow({stem: (folder / f"{stem}.toml").read_text() for stem in stems})
    (folder / "together.toml").write_text(toml)
    return folder, run(folder, "together.toml")


def run(folder: Path, name: str) -> Finished:
    finished = diel("run", name, cwd=folder)
    assert finished.status == 0, finished.output
    assert finished.stderr == ""
    return finished


def log(folder: Path, name: str) -> str:
    return (run_dir(folder) / "logs" / name).read_text()


def test_every_file_of_the_page_is_tested() -> None:
    assert {name for name in files() if name.endswith(".toml")} == {
        "render.toml",
        "parallel.toml",
        "jobs.toml",
        "squares.toml",
        "cells.toml",
        "cases.toml",
        "long.toml",
        "licences.toml",
        "attempts.toml",
        "steps.toml",
    }


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_each_copy_has_arguments_a_folder_and_an_input_of_its_own(
    ran: tuple[Path, Finished],
) -> None:
    folder, _ = ran
    for copy in range(3):
        said = f"frame {copy} of 3: --shade={copy}, 64 pixels, red\n"
        assert log(folder, f"render_frame.{copy}.0.log") == said
        place = run_dir(folder) / "frames" / str(copy)
        assert (place / "where.txt").read_text() == f"{place}\n"


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_copies_share_the_tasks(ran: tuple[Path, Finished]) -> None:
    folder, _ = ran
    for task in range(20):
        assert (run_dir(folder) / f"{task}.txt").read_text() == f"{task}: {task**2}\n"


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_limits(ran: tuple[Path, Finished]) -> None:
    folder, _ = ran
    assert log(folder, "long_solver.0.0.log").startswith("step 20; the end is in 3")


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_resources(folder: Path) -> None:
    run(folder, "licences.toml")
    assert log(folder, "solve.0.0.log").startswith("a solution, with both licences")


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_tasks_may_fail(ran: tuple[Path, Finished]) -> None:
    _, finished = ran
    assert "19 of 20 tasks, 1 failed: 7" in finished.stdout


def test_what_is_up_to_date_is_not_run_again(folder: Path) -> None:
    (folder / "raw").mkdir()
    (folder / "raw" / "a.csv").write_text("1\n2\n")
    run(folder, "steps.toml")
    assert (folder / "made" / "lines.txt").read_text().split() == ["2"]
    assert "up to date, and not run: clean.0, count.0" in run(folder, "steps.toml").stdout
    (folder / "raw" / "a.csv").write_text("1\n")
    assert "input raw/a.csv has changed" in diel("explain", "steps.toml", cwd=folder).stdout


@pytest.mark.thorough
def test_a_program_with_a_launcher_of_its_own(folder: Path) -> None:
    if mpi_implementation() == "Open MPI":
        file = folder / "parallel.toml"
        file.write_text(file.read_text().replace('es}"]', 'es}", "--oversubscribe"]'))
    run(folder, "parallel.toml")
    assert "pi is 3.141592654 on 2 ranks" in log(folder, "area.0.0.log")


@pytest.mark.sample
@pytest.mark.parametrize("name", ["jobs.toml", "squares.toml", "cells.toml"])
@pytest.mark.usefixtures("once")
def test_a_program_works_through_the_tuple_space(name: str, folder: Path) -> None:
    if name == "cells.toml" and shutil.which("cc") is None:
        pytest.skip("there is no C compiler, cc")
    run(folder, name)
    returned = [record["returned"] for record in journal(folder) if record.get("module") == "boss"]
    assert returned == [{str(length): length**2 for length in (2, 3, 5, 7, 11, 13)}]
    assert journal(folder)[-1]["tuples_left"] == 0


def test_the_functions_for_c_are_those_of_the_header() -> None:
    header = " ".join(HEADER.read_text(encoding="utf-8").split())
    there = re.findall(r"static inline ((?:int|void) diel_tuple_\w*[a-z]\(.*?\)) \{", header)
    (shown,) = SIGNATURES.findall(TEXT)
    assert sorted(shown.split(";\n")[:-1]) == sorted(there)


def test_the_tables_are_complete() -> None:
    for name in PLACEHOLDERS:
        assert f"`{{{name}}}`" in TEXT, name
    for fact in FACTS:
        assert f"`{fact}`" in TEXT, fact
    for key in ("executable", "launcher", "directory", "environment", "stdin", "tasks"):
        assert key in Module.model_fields
        assert f"| `{key}` |" in TEXT
    tuple_levels = [level for level in levels(build_parser()) if level.words[:1] == ("tuple",)]
    for option in (name for level in tuple_levels for one in level.options for name in one.names):
        assert option in ("-h", "--help") or option in TEXT, option
