"""Names of a user's files: a folder ``modules`` beside ours, files of one name in two folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import diel, records_of

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


@pytest.mark.sample
@pytest.mark.parametrize("with_init", [True, False])
def test_both_packages_work_in_one_run(with_init: bool, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    package = tmp_path / "modules"
    package.mkdir()
    (package / "solver.py").write_text(
        "from modules.space import ANSWER\ndef run(ctx):\n    return ANSWER\n"
    )
    # A name that ours has too, with something else in it.
    (package / "space.py").write_text("ANSWER = 42\n")
    if with_init:
        (package / "__init__.py").write_text("")
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


@pytest.mark.thorough
def test_files_of_one_name_in_several_folders(tmp_path: Path) -> None:
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
    files["flow/w.toml"] = "".join(modules) + "".join(
        f'[[group]]\nname = "{name}"\nmodules = {members}\ndepends = {depends}\n'
        for name, members, depends in groups
    )
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    finished = diel("run", "w.toml", cwd=tmp_path / "flow")
    assert finished.status == 0, finished.output
    returned = {
        record["module"]: record["returned"]
        for record in records_of(tmp_path / "flow", "CopyFinished")
    }
    assert returned == {
        "a": [True, "flow/a"],
        "b": [[0, 1, 7], ["flow/a"] * 3, "flow/b"],
        "tool": None,
        "beside": ["flow", "outside"],
        "last": "flow/b",
    }


def test_files_of_one_folder_meet_no_helper_of_another_on_their_rank(tmp_path: Path) -> None:
    functions = [
        "./top.py:run",
        "./a/one.py:run",
        "./b/run.py:run",
        "./a/two.py:run",
        "./top.py:run",
    ]
    text = "import helper\ndef run(ctx): return helper.WHERE\n"
    for folder in ("", "a", "b"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "helper.py").write_text(f"WHERE = {folder!r}\n")
    for function in functions:
        (tmp_path / function.removesuffix(":run")).write_text(text)
    groups = "".join(
        f'[[module]]\nname = "m{n}"\nfunction = "{function}"\n[[group]]\nname = "g{n}"\n'
        f'modules = ["m{n}"]\ndepends = {[f"g{n - 1}"] if n else []}\n'
        for n, function in enumerate(functions)
    )
    (tmp_path / "w.toml").write_text(groups)
    finished = diel("run", "w.toml", "-n", 3, cwd=tmp_path)
    assert finished.status == 0, finished.output
    records = records_of(tmp_path, "CopyFinished")
    assert [record["returned"] for record in records] == ["", "a", "b", "a", ""]
