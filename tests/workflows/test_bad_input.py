"""Bad input: exit code 2 and one clear message, without a traceback, before any rank works."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from support import diel, execute, mpi_implementation, mpiexec, mpirun_diel, status_of, workflow

from diel.loading.environment import THREAD_VARIABLES

MODULE = 'def run(ctx):\n    open("rank-worked", "w").close()\n'
GOOD = """\
[[module]]
name = "a"
function = "./m.py:run"

[[group]]
name = "g"
modules = ["a"]
"""
SWEEP = """\
[[module]]
name = "master"
function = "modules.master:run"
options.space = { learning_rate = [0.1], epochs = 1 }
[[module]]
name = "trainer"
function = "modules.trainer:run"
options = { dataset = "digits" }
[[group]]
name = "g"
modules = ["master", "trainer"]
"""

# name: (the workflow file, what the message must say)
BAD = {
    "misspelt_key": (
        GOOD.replace('name = "a"', 'name = "a"\ncopeis = 2'),
        ["module[0].copeis", "copies"],
    ),
    "wrong_type": (
        GOOD.replace('name = "a"', 'name = "a"\ncopies = "two"'),
        ["module[0].copies", "two", "fill"],
    ),
    "unknown_function": (
        GOOD.replace("m.py:run", "m.py:rum"),
        ["module[0].function", "rum", "run"],
    ),
    "unknown_function_file": (GOOD.replace("m.py", "n.py"), ["module[0].function", "n.py"]),
    "unknown_package": (
        GOOD.replace("./m.py:run", "nowhere.m:run"),
        ["module[0].function", "nowhere"],
    ),
    "unknown_program": (
        GOOD.replace('function = "./m.py:run"', 'executable = ["no-such-program"]'),
        ["module[0].executable", "no-such-program"],
    ),
    "cycle": (
        GOOD + 'depends = ["h"]\n[[group]]\nname = "h"\nmodules = ["a"]\ndepends = ["g"]\n',
        ["group[0].depends", "g -> h -> g"],
    ),
    "module_in_no_group": (
        GOOD + '[[module]]\nname = "b"\nfunction = "./m.py:run"\n',
        ["module[1]", "no group"],
    ),
    "unknown_module_in_group": (
        GOOD.replace('modules = ["a"]', 'modules = ["a", "b"]'),
        ["group[0].modules", "b"],
    ),
    "not_toml": (GOOD + "[[group\n", ["line 8"]),
    "empty_grid": (
        SWEEP.replace("[0.1]", "[]"),
        ["module[0].options.space", "learning_rate", "no points"],
    ),
    "unknown_hyperparameter": (
        SWEEP.replace("learning_rate", "learning_rat"),
        ["module[0].options", "learning_rat", "learning_rate"],
    ),
    "impossible_hyperparameter": (
        SWEEP.replace("[0.1]", '[0.1, "0.2"]'),
        [
            "line 4, module[0].options.space.learning_rate: expected a number above 0",
            'got the string "0.2" (for example learning_rate = 0.2)',
        ],
    ),
    "unknown_option": (
        SWEEP.replace("dataset =", "datasat ="),
        ["module[1].options.datasat", "dataset"],
    ),
    "unknown_dataset": (
        SWEEP.replace('"digits"', '"digitz"'),
        ["module[1].options.dataset", "digits"],
    ),
    "missing_data_file": (
        SWEEP.replace('"digits"', '"cleveland", path = "no/such.data"'),
        ["module[1].options", "no/such.data"],
    ),
    "unset_variable": (
        SWEEP.replace('"digits"', '"cleveland", path = "$DIEL_NOT_SET/such.data"'),
        ["line 8, module[1].options.path", "variable DIEL_NOT_SET is", "export DIEL_NOT_SET="],
    ),
}


Said: TypeAlias = "Callable[..., str]"


@pytest.fixture
def refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Said:
    """Return what runs the command line in this process, and returns why it has refused."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for variable in THREAD_VARIABLES:  # the command sets them: give them back afterwards
        monkeypatch.setenv(variable, "1")

    def run(*arguments: object) -> str:
        status = status_of(*arguments)
        output = capsys.readouterr()
        assert status == 2, output
        assert "Traceback" not in output.err
        assert output.out == ""
        assert not (tmp_path / "runs").exists()
        assert not (tmp_path / "rank-worked").exists()
        return output.err

    return run


@pytest.mark.parametrize("name", BAD)
def test_bad_file(name: str, tmp_path: Path, refusal: Said) -> None:
    text, expected = BAD[name]
    workflow(tmp_path, text, m=MODULE)
    for command in ("check", "run"):
        said = refusal(command, "w.toml")
        assert "w.toml" in said
        for words in expected:
            assert words in said


def test_bad_file_under_mpirun(tmp_path: Path) -> None:
    text, expected = BAD["empty_grid"]
    workflow(tmp_path, text, m=MODULE)
    finished = mpirun_diel(4, "run", "w.toml", cwd=tmp_path)
    assert finished.status == 2, finished.output
    for words in expected:
        assert finished.stderr.count(words) >= 1
    assert finished.stderr.count("1 problem") == 1  # rank 0 speaks, the others leave
    assert "Traceback" not in finished.output
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "rank-worked").exists()


@pytest.mark.thorough
def test_what_this_machine_lacks_is_said_under_mpirun_too(tmp_path: Path, refusal: Said) -> None:
    """By rank 0, before anything starts, as `diel run` says it."""
    code = """
from pydantic import BaseModel

class Options(BaseModel):
    pass

def missing_here(options, module):
    return f"{module.name} needs a telescope", "buy one"

def run(ctx):
    (ctx.folder / "rank-worked").touch()
"""
    workflow(tmp_path, GOOD, m=code)
    said = refusal("run", "w.toml")
    finished = mpirun_diel(4, "run", "w.toml", cwd=tmp_path)
    assert finished.status == 2, finished.output
    for text in (said, finished.stderr):
        assert "on this machine module 'a' could not run: a needs a telescope" in text
    assert finished.stderr.count("buy one") == said.count("buy one") > 0
    assert "Traceback" not in finished.output
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "rank-worked").exists()


def test_every_problem_in_one_go(tmp_path: Path, refusal: Said) -> None:
    text = GOOD.replace('name = "a"', 'name = "a"\ncopeis = 2\nthreads = 0')
    text = text.replace("m.py:run", "m.py:rum") + 'depends = ["nobody"]\n'
    workflow(tmp_path, text, m=MODULE)
    said = refusal("check", "w.toml")
    assert "4 problems" in said
    for place in ("copeis", "threads", "module[0].function", "group[0].depends"):
        assert place in said


def test_a_problem_that_only_follows_from_another_is_not_reported(
    tmp_path: Path, refusal: Said
) -> None:
    workflow(tmp_path, SWEEP.replace("options = {", "copeis = 2\noptions = {"), m=MODULE)
    said = refusal("check", "w.toml")
    assert "1 problem\n" in said
    assert "module[1].copeis" in said


def test_missing_file(tmp_path: Path) -> None:
    """In a process of its own, as a user starts it."""
    workflow(tmp_path, GOOD, m=MODULE).rename(tmp_path / "study.toml")
    finished = diel("run", "stduy.toml", cwd=tmp_path)
    assert finished.status == 2
    assert "stduy.toml" in finished.stderr
    assert 'did you mean "study.toml"?' in finished.stderr
    assert "Traceback" not in finished.output


def test_too_few_ranks(tmp_path: Path, refusal: Said) -> None:
    file = workflow(tmp_path, GOOD.replace('name = "a"', 'name = "a"\ncopies = 3', 1), m=MODULE)
    for command in ("run", "check"):
        assert "5 needed, 4 available" in refusal(command, "-n", 4, file)


@pytest.mark.thorough
def test_a_single_rank_is_too_few(tmp_path: Path) -> None:
    workflow(tmp_path, GOOD, m=MODULE)
    finished = mpirun_diel(1, "run", "w.toml", cwd=tmp_path)
    assert finished.status == 2
    assert "3 needed, 1 available" in finished.stderr
    assert "Traceback" not in finished.output
    assert not (tmp_path / "rank-worked").exists()


@pytest.mark.thorough
def test_a_number_of_ranks_that_mpirun_did_not_start(tmp_path: Path) -> None:
    workflow(tmp_path, GOOD, m=MODULE)
    finished = mpirun_diel(3, "run", "-n", 5, "w.toml", cwd=tmp_path)
    assert finished.status == 2
    assert "-n 5 was asked for" in finished.stderr


def test_open_mpi_as_root_says_what_it_wants(tmp_path: Path) -> None:
    if os.geteuid() != 0 or mpi_implementation() != "Open MPI":
        pytest.skip("only Open MPI minds, and only as root")
    workflow(tmp_path, GOOD, m=MODULE)
    without = {name: "" for name in os.environ if name.endswith(("AS_ROOT", "AS_ROOT_CONFIRM"))}
    finished = diel("run", "w.toml", cwd=tmp_path, environment=without)
    assert finished.status == 2
    assert "--allow-run-as-root" in finished.stderr
    assert not (tmp_path / "runs").exists()
    allowed = diel("run", "--allow-run-as-root", "w.toml", cwd=tmp_path, environment=without)
    assert allowed.status == 0, allowed.output


def test_no_mpiexec(tmp_path: Path) -> None:
    """With another interpreter's folder and an empty PATH there is none to be found."""
    workflow(tmp_path, GOOD, m=MODULE)
    code = (
        "import sys; sys.executable = '/nowhere/python'; "
        "from diel.cli.main import main; main(['run', 'w.toml'])"
    )
    finished = execute([sys.executable, "-c", code], cwd=tmp_path, environment={"PATH": ""})
    assert finished.status == 2
    assert "pip install" in finished.stderr
    assert mpiexec(1)  # it is there all the same
