"""From a file to a workflow, or to all of its problems at once in the order of the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from unit.workflow.samples import GOOD, GROUP, MODULE, problems_of

from diel.errors import Problem, WorkflowError
from diel.workflow.load import load_workflow, read_draft


def test_a_good_file_gives_its_workflow(folder: Path) -> None:
    file = folder / "some.toml"
    file.write_text(GOOD)
    workflow = load_workflow(file)
    assert workflow.name == "study"
    assert workflow.file == file
    assert workflow.folder == folder
    assert [module.name for module in workflow.modules] == ["master", "trainer", "report"]
    assert workflow.module("master").options == {"points": [1, 2], "nested": {"rate": 0.1}}
    assert workflow.module("trainer").copies == "fill"
    assert workflow.module("report").executable == ("./report.sh", "--fast")
    assert workflow.group("report").depends == ("search",)
    assert workflow.max_threads == 3


def test_a_draft_knows_where_functions_are(folder: Path) -> None:
    (folder / "a.toml").write_text(GOOD)
    draft = read_draft(folder / "a.toml")
    assert draft.problems == []
    assert {name: one.file for name, one in draft.locations.items()} == {
        "master": folder / "work.py",
        "trainer": folder / "work.py",
    }
    assert [index for index, _ in draft.modules] == [0, 1, 2]


@pytest.mark.parametrize(
    ("stem", "name"),
    [("study", "study"), ("my study (2)", "my-study-2"), ("..x", "x"), ("…", "workflow")],
)
def test_the_file_names_the_workflow(folder: Path, stem: str, name: str) -> None:
    file = folder / f"{stem}.toml"
    file.write_text(MODULE + GROUP)
    assert load_workflow(file).name == name


def test_a_byte_order_mark_and_windows_line_ends_are_read(folder: Path) -> None:
    file = folder / "study.toml"
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load_workflow(file).name == "study"


def test_a_relative_name_is_kept_for_messages(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    draft = read_draft("none.toml")
    assert draft.shown_as == "none.toml"
    assert draft.file == folder / "none.toml"
    with pytest.raises(WorkflowError, match=r"^none\.toml: 1 problem\n  there is no such file$"):
        draft.finish()


def only(file: Path) -> Problem:
    (problem,) = read_draft(file).problems
    return problem


def test_a_missing_file(folder: Path) -> None:
    (folder / "study.toml").write_text(GOOD)
    assert only(folder / "stduy.toml") == Problem(
        "", "there is no such file", 'did you mean "study.toml"?'
    )
    assert only(folder / "zzz") == Problem("", "there is no such file")
    assert only(folder / "gone.toml") == Problem(
        "", "there is no such file"
    )  # only the ending is near
    assert only(folder / "no" / "a.toml") == Problem(
        "", "there is no such file", f"there is no folder {folder / 'no'} either"
    )


def test_a_folder(folder: Path) -> None:
    assert only(folder) == Problem("", "is a folder, not a workflow file", "name a TOML file")
    (folder / "study.toml").write_text(GOOD)
    assert only(folder).remedy == "name a file in it: study.toml"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(folder: Path) -> None:
    (folder / "a.toml").write_text(GOOD)
    (folder / "a.toml").chmod(0)
    assert only(folder / "a.toml").message == "cannot be read: Permission denied"


def test_a_name_that_no_file_can_have(folder: Path) -> None:
    assert only(folder / "a\0b").message.startswith("cannot be read: ")
    assert only(folder / ("a" * 300)).message == "cannot be read: File name too long"


def test_not_utf_8(folder: Path) -> None:
    assert problems_of(folder, b'[workflow]\nname = "\xff"\n') == [
        Problem("", "is not UTF-8 text (line 2)", "save the file with the encoding UTF-8")
    ]


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        (
            "[workflow]\nname = study\n",
            "line 2, column 8: not valid TOML: invalid value",
            'text needs quotes, as in name = "study"',
        ),
        (
            "[workflow\n",
            "line 1, column 10: not valid TOML: expected ']' at the end of a table declaration",
            "",
        ),
        (
            "[workflow]\nname = ",
            "line 2, end of the file: not valid TOML: invalid value",
            'text needs quotes, as in name = "study"',
        ),
        ("a = " + "[" * 5000, "is nested too deeply", ""),
    ],
)
def test_not_toml(folder: Path, text: str, message: str, remedy: str) -> None:
    assert problems_of(folder, text) == [Problem("", message, remedy)]


def test_a_number_too_long_for_python(folder: Path) -> None:
    (problem,) = problems_of(folder, f"a = {'9' * 5000}")
    assert "not valid TOML: exceeds the limit" in problem.message


def test_an_empty_file(folder: Path) -> None:
    assert [problem.path for problem in problems_of(folder, "")] == ["module", "group"]


def test_every_problem_is_found_at_once_in_file_order(folder: Path) -> None:
    text = """\
[workflow]
nam = "x"
[[module]]
name = "a"
copies = "3"
function = "./work.py:mastr"
[[module]]
name = "b"
executable = ["./zzz"]
options = { a = 1 }
[[module]]
name = "b"
threads = 0
[[group]]
name = "g"
modules = ["a", "c"]
depends = ["g", "h"]
[[group]]
name = "h"
modules = ["b"]
depends = ["g"]
[other]
"""
    assert [problem.path for problem in problems_of(folder, text)] == [
        "workflow.nam",
        "module[0].copies",
        "module[0].function",
        "module[1].executable[0]",
        "module[1].options",
        "module[2]",
        "module[2].name",
        "module[2].threads",
        "group[0].modules[1]",
        "group[0].depends",
        "group[0].depends[0]",
        "other",
    ]


def test_a_draft_takes_the_problems_of_others_in_their_place(folder: Path) -> None:
    file = folder / "study.toml"
    file.write_text(GOOD.replace("threads = 3", "threads = 0").replace("study", "a/b"))
    extra = [
        Problem("module[0].options.nested.rate", "is too small"),
        Problem('module[0].options."odd key"', "is missing"),
        Problem("module[0].options.points[1]", "is odd"),
    ]
    with pytest.raises(WorkflowError) as caught:
        read_draft(file).finish(extra)
    assert [problem.path for problem in caught.value.problems] == [
        "workflow.name",
        "module[0].options.points[1]",
        "module[0].options.nested.rate",
        'module[0].options."odd key"',
        "module[1].threads",
    ]
