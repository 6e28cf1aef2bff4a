"""Workflow files that are right, to make others of, and how to look at what is wrong with those."""

from __future__ import annotations

from pathlib import Path

import pytest

from diel.errors import Problem, WorkflowError
from diel.workflow.load import load_workflow
from diel.workflow.programs import PLACEHOLDERS

GOOD = """\
[workflow]
name = "study"

[[module]]
name = "master"
function = "./work.py:master"
options = { points = [1, 2], nested = { rate = 0.1 } }

[[module]]
name = "trainer"
function = "work:train"
processes = 2
copies = "fill"
threads = 3

[[module]]
name = "report"
executable = ["./report.sh", "--fast"]

[[group]]
name = "search"
modules = ["master", "trainer"]

[[group]]
name = "report"
modules = ["report"]
depends = ["search"]
"""

MODULE = '[[module]]\nname = "a"\nfunction = "./work.py:master"\n'
GROUP = '[[group]]\nname = "g"\nmodules = ["a"]\n'
PROGRAM = '[[module]]\nname = "a"\nexecutable = ["./report.sh"]\n'
KNOWN = "known: " + ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
BRACE = "for a brace, write it twice: {{ or }}"

OneProblem = tuple[str, str, str, str]
"""A file with one wrong thing; where, what, what next, with {folder} in place of its path."""


def problems_of(folder: Path, text: str | bytes) -> list[Problem]:
    file = folder / "study.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(WorkflowError) as caught:
        load_workflow(file)
    return list(caught.value.problems)


def assert_only_problem(folder: Path, text: str, path: str, message: str, remedy: str) -> None:
    expected = Problem(
        path,
        message.replace("{folder}", str(folder)),
        remedy if "known:" in remedy else remedy.replace("{folder}", str(folder)),
    )
    assert problems_of(folder, text) == [expected]
