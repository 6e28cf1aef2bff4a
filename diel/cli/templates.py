"""``diel new-module`` and ``diel examples``: files to begin with, which work as they are."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import shlex
import sys
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from diel.cli.output import aligned
from diel.errors import LaunchError, NewModuleError
from diel.workflow.examples import copy_example, find_example, list_examples

LONGEST_NAME: Final = 60  # lines with it stay shorter than most formatters allow

MODULE: Final = '''\
"""The module NAME.

Copies share the work and meet in the tuple space.
"""

from pydantic import BaseModel, ConfigDict, Field


class Options(BaseModel):
    """What the workflow file may say in `options`."""

    model_config = ConfigDict(extra="forbid")

    count: int = Field(default=100, ge=1, description="How many numbers to add.")


def run(ctx):
    """Add the numbers below `count`: each copy a part, copy 0 the sums of all."""
    numbers = range(ctx.copy_index, ctx.options.count, ctx.copies)
    ctx.log.info("this copy adds %d numbers", len(numbers))
    ctx.tuples.tput("partial sum", sum(numbers))
    if ctx.copy_index > 0:
        return None
    total = 0
    for copy in range(ctx.copies):
        total += ctx.tuples.tget("partial sum", timeout=60)
        ctx.progress(copy + 1, ctx.copies)
    return total
'''

TEST: Final = '''\
"""Tests of NAME, without MPI."""

from pathlib import Path

import pytest
from diel.testing import Module, run_module, run_modules
from pydantic import ValidationError

HERE = Path(__file__).parent
SPEC = "./NAME.py:run"


def test_one_copy_adds_everything():
    """And leaves nothing in the tuple space."""
    run = run_module(SPEC, {"count": 10}, folder=HERE)
    assert run.returned == 45
    assert run.tuples == []


def test_copies_share_the_work():
    """The first one returns the sum of all."""
    module = Module(SPEC, {"count": 10}, copies=3)
    runs = run_modules({"adder": module}, folder=HERE)
    assert [run.returned for run in runs["adder"]] == [45, None, None]


def test_bad_options_are_refused():
    """As they are by diel check."""
    with pytest.raises(ValidationError):
        run_module(SPEC, {"count": 0}, folder=HERE)
'''

WORKFLOW: Final = """\
# Two copies of NAME.   diel run NAME.toml
[[module]]
name = "NAME"
function = "./NAME.py:run"
copies = 2
options = { count = 1000 }

[[group]]
name = "work"
modules = ["NAME"]
"""


def new_module(options: argparse.Namespace) -> int:
    """Write a new module, its test and its workflow, and print their paths; return the exit code.

    Raises
    ------
    NewModuleError
        If a module cannot have the name, or a file is there already.
    """
    name, folder = options.name, options.folder
    check_name(name)
    texts = {"NAME.py": MODULE, "test_NAME.py": TEST, "NAME.toml": WORKFLOW}
    is_compiled = options.language != "python"
    if is_compiled:
        from diel.cli.compiled_templates import FILES

        texts = {**FILES[options.language]}
    files = {
        folder / file.replace("NAME", name): text.replace("NAME", name)
        for file, text in texts.items()
    }
    write_new(files)
    print(*files, sep="\n")
    build = f"build it:  make -C {folder}\n" if is_compiled else ""
    page = "docs/compiled-modules.md" if is_compiled else "docs/modules.md"
    print(
        f"\n{build}test it:   pytest {folder / f'test_{name}.py'}\n"
        f"run it:    diel run {folder / f'{name}.toml'}\n"
        f"what else a module can do: {page}"
    )
    return 0


def check_name(name: str) -> None:
    """Check that a module can have this name.

    Raises
    ------
    NewModuleError
        If it cannot; the message suggests another name.
    """
    # Python normalizes identifiers to NFKC, which must not change the name.
    plain = unicodedata.normalize("NFKC", name) == name and not name.startswith("_")
    if not (plain and name.isidentifier()):
        raise NewModuleError(
            f"{name!r} is no name for a module: a letter, then letters, digits or _"
            f"{_instead(re.sub(r'^[^A-Za-z]+|[^A-Za-z0-9_]+', '_', name).strip('_'))}"
        )
    if len(name.encode()) > LONGEST_NAME:
        raise NewModuleError(
            f"{name!r} is too long: a module's name has {LONGEST_NAME} bytes in UTF-8 at most"
        )
    if keyword.iskeyword(name):
        raise NewModuleError(f"{name!r} is a word of Python's{_instead(f'{name}_module')}")
    if name in sys.stdlib_module_names or _is_installed(name):
        # The folder of a test comes first on sys.path: its module would hide the other package.
        raise NewModuleError(
            f"there is a package {name!r} already, which {name}.py would hide"
            f"{_instead(f'{name}_module')}"
        )


def _instead(name: str) -> str:
    return f"; {name}, for example" if name.isidentifier() and not keyword.iskeyword(name) else ""


def _is_installed(name: str) -> bool:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):  # an installed package that is broken
        return True
    if found is None:
        return False
    # With `python -m diel` the current folder is searched too: a file there is the user's own.
    return found.origin is None or Path(found.origin).parent != Path.cwd()


def write_new(files: Mapping[Path, str]) -> None:
    """Write files that are not there yet: all of them or none.

    Raises
    ------
    NewModuleError
        If one of them is there already, or cannot be written.
    """
    there = [str(file) for file in files if file.exists() or file.is_symlink()]
    if there:
        raise NewModuleError(
            f"{', '.join(there)} {'is' if len(there) == 1 else 'are'} there already: nothing was "
            "written; choose another name, or another folder with --in"
        )
    written: list[Path] = []
    try:
        for file, text in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("x", encoding="utf-8") as stream:
                written.append(file)
                stream.write(text)
    except OSError as error:
        for file in written:
            file.unlink(missing_ok=True)
        raise NewModuleError(
            f"{error.filename or file.parent} cannot be written: {error.strerror}; choose another "
            "folder with --in"
        ) from error


# -- diel examples --------------------------------------------------------------------------------


def examples(options: argparse.Namespace) -> int:
    """List the examples, or copy an example; return the exit code.

    Raises
    ------
    LaunchError
        If there are no examples, none has that name, or the copy would replace a file.
    """
    if options.name is not None:
        files = copy_example(find_example(options.name), options.to)
        for file in files:
            print(file)
        print(f"diel run {shlex.quote(str(files[0]))}")
        return 0
    found = list_examples()
    if not found:
        raise LaunchError("this installation of diel carries no examples: pip install diel again")
    print("\n".join(aligned([(example.name, example.text) for example in found])))
    print("diel examples NAME copies one, with the files that it needs")
    return 0
