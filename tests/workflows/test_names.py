"""Names of a user's files: a folder ``modules`` beside ours, files of one name in two folders."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support import diel, execute, records_of

TOML = """\
[[module]]
name = "theirs"
function = "modules.solver:run"
[[module]]
name = "master"
function = "modules.master:run"
options.space = { learning_rate = [0.1, 0.2], epochs = 1, hidden = [[4]] }
[[module]]
name = "trainer"
function = "modules.trainer:run"
options = { dataset = "digits" }
[[group]]
name = "both"
modules = ["theirs", "master", "trainer"]
[[group]]
name = "again"
modules = ["theirs"]
depends = ["both"]
"""


@pytest.mark.usefixtures("once")
def test_both_packages_work_in_one_run(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    package = tmp_path / "modules"
    package.mkdir()
    (package / "solver.py").write_text(
        "from modules.space import ANSWER\ndef run(ctx):\n    return ANSWER\n"
    )
    # A name that ours has too, with something else in it.
    (package / "space.py").write_text("ANSWER = 42\n")
    (tmp_path / "w.toml").write_text(TOML)
    finished = diel("run", "w.toml", cwd=tmp_path)
    assert finished.status == 0, finished.output
    returned = [
        (record["module"], record["returned"])
        for record in records_of(tmp_path, "CopyFinished", module="theirs")
    ]
    assert returned == [("theirs", 42), ("theirs", 42)]
    assert "2 best of 2 by highest accuracy" in finished.stdout


HELPER = """\
class Value:
    def __init__(self, number): self.number = number
    def where(self):
        import late  # of its own folder, wherever it is called
        return late.WHERE
"""
FOLDERS = {
    "flow/a/run.py": """\
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
import helper
def made(number): return helper.Value(number)
def run(ctx):
    shared = ctx.module_comm.bcast(helper.Value(5) if ctx.copy_index == 0 else None)
    ctx.tuples.tput("value", helper.Value(ctx.copy_index))
    if ctx.copy_index == 0:
        ctx.send([helper.Value(7)], to="b")
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
            assert type(executor.submit(made, 3).result(60)) is helper.Value
    return type(shared) is helper.Value, helper.Value(0).where()
""",
    "flow/b/run.py": """\
import helper
def run(ctx):
    values = [ctx.tuples.tget("value", timeout=60) for _ in range(2)] + ctx.recv("a", timeout=60)
    assert not any(isinstance(value, helper.Value) for value in values)
    numbers = sorted(value.number for value in values)
    return numbers, [value.where() for value in values], helper.Value(0).where()
""",
    "flow/b/last.py": """\
import importlib
def run(ctx): return importlib.import_module("helper").Value(0).where()
""",
    "outside/tool.py": """\
import late
class Tool: where = late.WHERE
def run(ctx): ctx.tuples.tput("tool", Tool())
""",
    "flow/beside.py": """\
import late
def run(ctx): return late.WHERE, ctx.tuples.tget("tool", timeout=60).where
""",
}
FILES = {
    "a": "./a/run.py:run",
    "b": "./b/run.py:run",
    "last": "./b/last.py:run",
    "tool": "../outside/tool.py:run",
    "beside": "beside:run",
}


# One after the other on one rank.
IN_TURN = [
    "./top.py:run",
    "./in/a/one.py:run",
    "./in/b/run.py:run",
    "./in/a/two.py:run",
    "./top.py:run",
]
TOLD = "import os, beside_top\ndef run(ctx): return beside_top.WHERE, os.getpid()\n"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what the copies of one run have returned, of files in many folders."""
    tmp_path = tmp_path_factory.mktemp("names")
    files = dict(FOLDERS)
    for folder in ("flow", "flow/a", "flow/b", "outside"):
        files[f"{folder}/late.py"] = f"WHERE = {folder!r}\n"
    for folder in ("a", "b"):
        files[f"flow/{folder}/helper.py"] = HELPER
    modules = [
        f'[[module]]\nname = "{name}"\nfunction = "{function}"\n'
        for name, function in FILES.items()
    ]
    modules[0] += "copies = 2\n"
    groups = [("first", ["a", "b"], []), ("second", ["tool"], ["first"])]
    groups += [("third", ["beside"], ["second"]), ("fourth", ["last"], ["third"])]
    for folder in ("", "in/a", "in/b"):
        files[f"flow/{folder}/beside_top.py"] = f"WHERE = {folder!r}\n"
    for number, function in enumerate(IN_TURN):
        files[f"flow/{function.removesuffix(':run')}"] = TOLD
        modules.append(f'[[module]]\nname = "m{number}"\nfunction = "{function}"\n')
        groups.append((f"g{number}", [f"m{number}"], [groups[-1][0]]))
    # None of these is what diel imports.
    for name in ("random.py", "diel.py", "rich.py"):
        files[name] = "raise ImportError('this is not the one')"
    files["flow/w.toml"] = "".join(modules) + "".join(
        f'[[group]]\nname = "{name}"\nmodules = {members}\ndepends = {depends}\n'
        for name, members, depends in groups
    )
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    start = "from diel.cli.main import main; main(['run', 'flow/w.toml'])"
    line = [sys.executable, "-c", f"import sys; sys.path.pop(0)\n{start}"]
    finished = execute(line, cwd=tmp_path)
    assert finished.status == 0, finished.output
    return records_of(tmp_path, "CopyFinished")


@pytest.mark.usefixtures("once")
def test_files_of_one_name_in_several_folders(records: list[dict[str, Any]]) -> None:
    returned = {record["module"]: record["returned"] for record in records}
    assert {name: returned[name] for name in FILES} == {
        "a": [True, "flow/a"],
        "b": [[0, 1, 7], ["flow/a"] * 3, "flow/b"],
        "tool": None,
        "beside": ["flow", "outside"],
        "last": "flow/b",
    }


@pytest.mark.usefixtures("once")
def test_files_of_one_folder_meet_no_helper_of_another_on_their_rank(
    records: list[dict[str, Any]],
) -> None:
    """And files in the current folder hide nothing from any of them."""
    names = [f"m{number}" for number in range(len(IN_TURN))]
    told = [record["returned"] for record in records if record["module"] in names]
    assert [where for where, _ in told] == ["", "in/a", "in/b", "in/a", ""]
    assert len({pid for _, pid in told}) == 1
