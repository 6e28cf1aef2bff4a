"""Pages that are followed step by step: every file is written, every command is run."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import ROOT, execute

from diel.cli.templates import MODULE
from diel.loading.context import Context

PAGE = ROOT / "docs" / "modules.md"
PAGES = [PAGE, ROOT / "docs" / "running-sweeps.md"]
COMPILED = ROOT / "docs" / "compiled-modules.md"
SWEEPS = ROOT / "docs" / "sweeps.md"
FENCE = re.compile(r"^```(\w+)(?: status=(\d))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^```toml file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: a file, a command, or what the command before it prints."""

    page: Path
    kind: str
    status: int
    text: str
    line: int

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path = PAGE) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(page, found[1], int(found[2] or 0), found[3], line)


def contains(output: str, line: str) -> bool:
    """Whether a line of the page is in the output; three dots stand for anything."""
    pattern = ".*".join(map(re.escape, line.split("...")))
    return re.search(pattern, output) is not None


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.usefixtures("once")
def test_the_page_step_by_step(page: Path, tmp_path: Path) -> None:
    kinds = follow(blocks(page), tmp_path)
    assert kinds.count("sh") > 5
    assert len(kinds) == page.read_text().count("```") // 2


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.usefixtures("once")
def test_from_a_first_grid_to_nested_evaluation(tmp_path: Path) -> None:
    """The commands of docs/sweeps.md; its other snippets have tests/unit/modules."""
    pytest.importorskip("sklearn", reason="the rows of the page come with scikit-learn")
    for name, text in FILE.findall(SWEEPS.read_text(encoding="utf-8")):
        (tmp_path / name).write_text(text)
    steps = (block for block in blocks(SWEEPS) if block.kind in ("sh", "text"))
    assert follow(steps, tmp_path) == ["sh", "text"] * 3


@pytest.mark.usefixtures("once")
def test_from_nothing_to_a_coupled_run_in_fortran(tmp_path: Path) -> None:
    for program in ("make", "gfortran"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here to build with")
    line = COMPILED.read_text(encoding="utf-8").partition("\n## From nothing")[0].count("\n")
    steps = [block for block in blocks(COMPILED) if block.line > line]
    kinds = [block.kind for block in steps]
    assert kinds == ["sh", "text", "fortran", "python", "toml", "sh", "text", "sh"]
    follow(steps[:-1], tmp_path)  # the last is for the folder of the project: test_plate


def follow(steps: Iterable[Block], folder: Path) -> list[str]:
    """Write the files, run the commands and compare what they print; return the blocks' kinds."""
    here = str(Path(sys.executable).parent)
    environment = {
        "PATH": f"{here}:{os.environ['PATH']}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # the tests of the page need no plugin
    }
    output = ""
    kinds = []
    for block in steps:
        kinds.append(block.kind)
        if block.kind in ("python", "toml", "fortran"):
            name = re.match(r"[#!] (\w+\.\w+)\n", block.text)
            assert name, f"{block} is no file"
            (folder / name[1]).write_text(block.text)
        elif block.kind == "sh":
            command: list[object] = ["bash", "-e", "-c", block.text]
            done = execute(command, cwd=folder, environment=environment)
            assert done.status == block.status, f"{block}\n{done.output}"
            output = done.output
        else:
            assert block.kind == "text", block
            for line in filter(None, block.text.splitlines()):
                assert contains(output, line), f"{block}: {line!r} is not in\n{output}"
    return kinds


def test_the_module_that_is_explained_is_the_one_that_is_written() -> None:
    (explained,) = [
        block.text for block in blocks() if block.text.startswith("# adder_explained.py")
    ]
    code = [line.partition("  #")[0] for line in explained.splitlines()[1:]]
    written = re.sub(r'^( *)""".*?"""\n\n?', "", MODULE, flags=re.MULTILINE | re.DOTALL)
    assert [line for line in code if line] == [line for line in written.splitlines() if line]


def test_the_page_knows_all_of_the_context() -> None:
    named = set(re.findall(r"\bctx\.(\w+)", PAGE.read_text(encoding="utf-8")))
    attributes = set(re.findall(r"^    (\w+(?:, \w+)*) : ", Context.__doc__ or "", re.MULTILINE))
    offered = {name for names in attributes for name in names.split(", ")}
    offered |= {name for name in vars(Context) if not name.startswith("_")}
    offered -= {"comm_was_made", "module_comm_was_made", "forget_communicators"}  # for diel itself
    offered -= {"sections", "lanes", "waiting_outside"}  # for modules in C
    assert offered == named
