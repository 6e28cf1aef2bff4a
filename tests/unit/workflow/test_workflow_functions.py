"""Functions are found without running a line of anybody's code."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from diel import plugins
from diel.workflow.functions import FORMS, FunctionNotFound, locate

# Importing this file fails: whoever finds its names did so by reading it.
TOPS = """\
raise SystemExit("this file was executed")
import os.path, json as spelt
from math import sin as sine
pattern = "\\d"
number = 3
pair, other = [1, 2], print
made: object = print
declared: object
def plain(ctx): ...
async def waits(ctx): ...
class Options:
    def method(self): ...
class Callable_: ...
if pattern:
    def in_if(ctx): ...
else:
    def in_else(ctx): ...
try:
    from fast import kernel
except ImportError:
    kernel = None
    def in_except(ctx): ...
finally:
    def in_finally(ctx): ...
with open("x") as f:
    def in_with(ctx): ...
def outer(ctx):
    def hidden(): ...
    global late
"""


UNFIT = """\
def flows(ctx):
    for step in range(3):
        yield step
def bare(): ...
def two(ctx, other): ...
def keyword(ctx, *, other): ...
def fine(ctx, other=1, *, third=2): ...
def spread(*arguments): ...
def outer(ctx):
    def inner():
        yield 1
    return list(inner())
@wraps
def wrapped(): ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def trap(*_: object) -> None:
        raise AssertionError("something was imported")

    (tmp_path / "tops.py").write_text(TOPS)
    monkeypatch.setattr(importlib, "import_module", trap)
    return tmp_path


def write(file: Path, text: str = "def run(ctx): ...\n") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def failure(spec: str, folder: Path) -> tuple[str, str]:
    with pytest.raises(FunctionNotFound) as caught:
        locate(spec, folder)
    return caught.value.message, caught.value.remedy


NAMES = "plain Options Callable_ in_if in_else in_except in_finally in_with kernel sine spelt os "


@pytest.mark.parametrize("name", (NAMES + "other made outer").split())
@pytest.mark.parametrize("form", ["./tops.py", "tops"])
def test_top_level_names_are_found(folder: Path, form: str, name: str) -> None:
    found = locate(f"{form}:{name}", folder)
    assert found.spec == f"{form}:{name}"
    assert found.function == name
    assert found.file == folder / "tops.py"
    assert found.module_name == "tops"
    assert found.root == folder
    assert not found.is_installed
    assert found.classes == {"Options", "Callable_"}
    assert "tops" not in sys.modules


@pytest.mark.parametrize("name", ["hidden", "method", "zzz", "declared"])
def test_an_unknown_function(folder: Path, name: str) -> None:
    message, _ = failure(f"tops:{name}", folder)
    assert message == f"there is no function {name} in {folder / 'tops.py'}"


def test_an_unknown_function_says_what_there_is(folder: Path) -> None:
    assert failure("tops:plane", folder)[1] == 'did you mean "plain"?'
    assert failure("tops:zzz", folder)[1] == (
        "it defines plain, Options, Callable_, in_if, in_else, in_except"
    )
    write(folder / "more.py", "from tops import run_master\ndef run(ctx): pass\n")
    assert failure("more:master", folder)[1] == "it defines run"
    write(folder / "empty.py", "")
    assert failure("empty:zzz", folder)[1] == "define it at the top level of the file"


def test_what_cannot_be_called(folder: Path) -> None:
    file = folder / "tops.py"
    assert failure("tops:waits", folder) == (
        f"waits in {file} is an async function",
        'make it a plain function: "def"',
    )
    with_yield = write(folder / "unfit.py", UNFIT)
    for name, what in {"flows": "has a yield in it", "bare": "takes no argument"}.items():
        assert failure("unfit:" + name, folder)[0].startswith(f"{name} in {with_yield} {what}")
    for name in ("two", "keyword"):
        assert failure("unfit:" + name, folder)[0].endswith("needs more than one argument")
    for name in ("fine", "spread", "outer", "wrapped"):
        assert locate("unfit:" + name, folder).function == name
    assert failure("tops:number", folder)[0] == f"number in {file} is a value, not a function"


@pytest.mark.parametrize(
    "text", ["from x import *\n", "def __getattr__(name): ...\n", "if 1:\n    from x import *\n"]
)
def test_a_file_with_names_that_cannot_be_read_off_is_trusted(folder: Path, text: str) -> None:
    write(folder / "open_.py", text)
    assert locate("open_:anything", folder).file == folder / "open_.py"


@pytest.mark.parametrize(
    "spec",
    ["", "foo", "a.b", "a:b:c", "1x:y", ":f", "f:", "a..b:f", "a:b c", "a:1", "a:class", "a-b:f"],
)
def test_a_malformed_name(folder: Path, spec: str) -> None:
    assert failure(spec, folder) == (f'"{spec}" does not name a function', FORMS)


def test_files_are_relative_to_the_folder_or_absolute(folder: Path, tmp_path: Path) -> None:
    file = write(folder / "sub" / "odd name.py")
    assert locate("sub/odd name.py:run", folder).file == file
    found = locate(f"{file}:run", Path("/"))
    assert (found.file, found.root, found.module_name) == (file, file.parent, "odd name")


def test_an_unknown_file(folder: Path) -> None:
    assert failure("./topps.py:run", folder) == (
        f"there is no file {folder / 'topps.py'}",
        'did you mean "tops.py"?',
    )
    assert failure("./zzz.py:run", folder)[1] == (
        "paths are relative to the workflow file's folder"
    )
    assert failure("no/zzz.py:run", folder)[1] == f"there is no folder {folder / 'no'} either"


def test_a_syntax_error_names_its_line(folder: Path) -> None:
    file = write(folder / "bad.py", "x = 1\ndef run(:\n")
    message, remedy = failure("bad:run", folder)
    assert message == f"{file}:2: invalid syntax: def run(:"
    assert remedy == "correct the syntax error in this file"


def test_a_file_that_is_not_text(folder: Path) -> None:
    (folder / "bad.py").write_bytes(b"x = '\xff'\n")
    assert str(folder / "bad.py") in failure("bad:run", folder)[0]
    (folder / "bad.py").write_bytes(b"x = 1\0\n")
    assert str(folder / "bad.py") in failure("bad:run", folder)[0]


def test_packages_are_followed_without_importing_them(folder: Path) -> None:
    write(folder / "pack" / "__init__.py", "raise SystemExit\ndef run(ctx): ...\n")
    inner = write(folder / "pack" / "inner" / "deep.py")
    assert locate("pack:run", folder).root == folder
    found = locate("pack.inner.deep:run", folder)
    assert (found.file, found.root, found.module_name) == (inner, folder, "pack.inner.deep")
    write(folder / "plain_folder" / "x.py")
    assert locate("plain_folder.x:run", folder).root == folder


def test_the_folder_comes_before_the_search_path(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.syspath_prepend(str(elsewhere))
    write(elsewhere / "shared_name.py")
    assert locate("shared_name:run", folder).root == elsewhere
    write(folder / "shared_name.py")
    assert locate("shared_name:run", folder).root == folder


def test_an_unknown_module(folder: Path) -> None:
    where = f"neither in {folder} nor on Python's search path"
    assert failure("topz:run", folder) == (
        f"there is no module topz, {where}",
        'did you mean "tops"?',
    )
    assert failure("zzz.y:run", folder) == (
        f"there is no module zzz.y, {where}",
        "put it there, or install it",
    )
    assert failure("tops.y:run", folder) == (
        "there is no module tops.y: tops is a single file, not a package",
        'write "tops:function"',
    )
    assert failure("email.mime.txt:run", folder)[1] == 'did you mean "email.mime.text"?'


def test_a_folder_holds_no_functions(folder: Path) -> None:
    write(folder / "space" / "x.py")
    assert failure("space:run", folder) == (
        "space is a folder without __init__.py, it holds no functions",
        f"name a module in {folder / 'space'}",
    )


def test_what_is_not_python_source_is_trusted(folder: Path) -> None:
    found = locate("time:sleep", folder)
    assert (found.file, found.root, found.classes) == (None, None, frozenset())
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    (folder / f"compiled{suffix}").write_bytes(b"\x7fELF")
    assert locate("compiled:run", folder).file == folder / f"compiled{suffix}"


def test_an_error_reads_as_one_sentence(folder: Path) -> None:
    assert str(FunctionNotFound("a", "b")) == "a (b)"
    assert str(FunctionNotFound("a")) == "a"


# --- the package "modules" that comes with diel -------------------------------------------------


@pytest.fixture
def ours(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path_factory.mktemp("site")
    write(root / "modules" / "__init__.py", "")
    write(root / "modules" / "trainer.py", "def run(ctx): ...\nclass Options: ...\n")
    monkeypatch.setattr(plugins, "INSTALL_ROOT", root)
    return root


def test_ours_is_found_without_a_folder_of_that_name(folder: Path, ours: Path) -> None:
    found = locate("modules.trainer:run", folder)
    assert found.file == ours / "modules" / "trainer.py"
    assert (found.is_installed, found.root) == (True, ours)
    assert found.classes == {"Options"}


@pytest.mark.parametrize("has_init", [True, False])
def test_theirs_hides_of_ours_only_what_it_has(folder: Path, ours: Path, has_init: bool) -> None:
    if has_init:
        write(folder / "modules" / "__init__.py", "")
    mine = write(folder / "modules" / "mine.py")
    package = write(folder / "modules" / "pack" / "__init__.py")
    for spec, file in [("modules.mine:run", mine), ("modules.pack:run", package)]:
        found = locate(spec, folder)
        assert (found.file, found.root, found.is_installed) == (file, folder, False)
    assert locate("modules.trainer:run", folder).is_installed
    own_trainer = write(folder / "modules" / "trainer.py")
    found = locate("modules.trainer:run", folder)
    assert (found.file, found.is_installed) == (own_trainer, False)


def test_a_misspelt_name_is_looked_for_in_both(folder: Path, ours: Path) -> None:
    write(folder / "modules" / "mine.py")
    message, remedy = failure("modules.trianer:run", folder)
    places = f"{folder / 'modules'}, {ours / 'modules'}"
    assert message.startswith(f'there is no "trianer" in {places}')
    assert remedy == 'did you mean "modules.trainer"?'
    assert failure("modules.mien:run", folder)[1] == 'did you mean "modules.mine"?'
    assert failure("module.trainer:run", folder)[1] == 'did you mean "modules"?'


def test_a_workflow_beside_ours_still_finds_ours(ours: Path) -> None:
    assert locate("modules.trainer:run", ours).is_installed
    assert locate("./modules/trainer.py:run", ours).is_installed


@pytest.mark.parametrize("where", ["a" * 300, "a/" * 3000 + "b"])
def test_a_name_too_long_for_any_file_is_a_missing_file(folder: Path, where: str) -> None:
    message, remedy = failure(f"./{where}.py:run", folder)
    assert message.startswith("there is no file ")
    assert "no folder" in remedy or "workflow file's folder" in remedy
