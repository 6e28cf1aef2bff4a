"""From a file to a workflow, or to all of its problems at once in the order of the file."""

from __future__ import annotations

import difflib
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from unit.workflow.samples import GOOD, GROUP, MODULE, problems_of

from diel.errors import Problem, WorkflowError
from diel.workflow.load import Draft, load_workflow, read_draft


def test_a_good_file_gives_its_workflow(folder: Path) -> None:
    file = folder / "some.toml"
    file.write_text(GOOD)
    workflow = load_workflow(file)
    assert workflow.name == "study"
    assert workflow.file == file
    assert workflow.file.parent == folder
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
    assert {name: location.file for name, location in draft.locations.items()} == {
        "master": folder / "work.py",
        "trainer": folder / "work.py",
    }
    assert [index for index, _ in draft.modules] == [0, 1, 2]


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("study", "study"),
        ("my study (2)", "my-study-2"),
        ("..x", "x"),
        ("…", "workflow"),
        ("gro\u0308ße 名", "größe-名"),
        ("名" * 60, "名" * 33),
        ("हिन्दी", "हिन्दी"),
        ("a😀b", "a-b"),
        ("\u0301x", "x"),
        ("\u0301", "workflow"),
    ],
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


def test_what_is_no_regular_file_is_refused_without_opening_it(folder: Path) -> None:
    """Opening a pipe would wait for a writer, and a device may never end."""
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        for file, kind in ((folder / "pipe", "a pipe"), (folder / "socket", "a socket")):
            assert only(file).message == f"is {kind}, not a workflow file"
    assert only(Path("/dev/zero")) == Problem(
        "", "is a device, not a workflow file", "save the workflow in a file, and name that"
    )


def test_a_huge_file_is_not_read(folder: Path) -> None:
    with (folder / "huge").open("wb") as file:
        file.truncate(2**40)
    assert only(folder / "huge") == Problem(
        "",
        "is no workflow file: it has 1,048,576.0 MiB, at most 8 are read",
        "keep data in files of its own, and name these in the options",
    )


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b'[workflow]\nname = "\xff"\n', 2),
        (GOOD.encode("utf-16"), 1),
        (GOOD.encode("utf-32"), 1),
        (b"#\n" + "näme = 1".encode("latin-1"), 2),
    ],
)
def test_other_encodings(folder: Path, data: bytes, line: int) -> None:
    (problem,) = problems_of(folder, data)
    assert problem == Problem("", "not UTF-8 text", "save the file with the encoding UTF-8")
    assert problem.line == line


@pytest.mark.parametrize(
    ("text", "said", "remedy"),
    [
        ("[workflow]\nname = study", "2: not valid TOML at column 8: invalid", "text needs quotes"),
        ("[workflow]\nname = ", "2: not valid TOML at the end of the file", "write a value"),
        ("a = # none", "1: not valid TOML at column 5: invalid value", "write a value behind"),
        ("a = True", "1: not valid TOML", "true or false, all small"),
        ("a = None", "1: not valid TOML", "leave the key out"),
        ("a = $HOME/data", "1: not valid TOML", 'path = "$HOME/data"'),
        ("a = (1, 2)", "1: not valid TOML", "as in [1, 2]"),
        ("a = “b”", "1: not valid TOML", "straight quotes"),
        ("a = .5", "1: not valid TOML", "as in 0.5"),
        ("a = 5.", "1: not valid TOML", "as in 5.0"),
        ("a = 01", "1: not valid TOML", "does not begin with 0"),
        ('a = "b\nc = 1', "1: not valid TOML", "close the text"),
        ("a = 'b\nc = 1", "2: not valid TOML", "close the text with '"),
        ('\na = """b\nc = 1', "3: not valid TOML at the end of the file", "three quotes"),
        ('a = "C:\\path"', "1: not valid TOML", "single quotes"),
        ('a = "\x01"', "1: not valid TOML", "as an escape"),
        ("a = 'don't'", "1: not valid TOML", "quotes of the other kind"),
        ('a = "b" c = 1', "1: not valid TOML", "one key = value in a line"),
        ("a = [1 2]", "1: not valid TOML at column 8: unclosed array", "a comma between two items"),
        ("a = { b = 1 c = 2 }", "1: not valid TOML", "a comma between two keys"),
        ("a: 1", "1: not valid TOML", "write = in place of :"),
        ("my name = 1", "1: not valid TOML", "write _ for them"),
        ("näme = 1", "1: not valid TOML", "put a key of other letters in quotes"),
        ("a", "1: not valid TOML", "one key = value in a line"),
        ("// a", "1: not valid TOML", "a comment begins with #"),
        ("[workflow\n", "1: not valid TOML at column 10: expected ']'", "close the header"),
        ("[[module]\n", "1: not valid TOML", "[[name]] for one of several"),
        ("a = 1\na = 2\n", "2: not valid TOML", "remove one"),
        ("[a]\n[a]\n", "2: not valid TOML", "[[...]] for each of several tables"),
        ("a = 2026-13-45", "1: not valid TOML", "put it in quotes"),
        ("\n\nb = 1_0\na = " + "9_" * 5000 + "9", "4: not valid TOML: exceeds the", "many digits"),
        ("\na = " + "[" * 5000, "2: nested more than 64 deep", "use fewer"),
        ("\na = " + "{ a = " * 70 + "1" + "}" * 70, "2: nested more than 64 deep", "use fewer"),
        ("\n\n[" + ".".join("a" * 3000) + "]", "3: nested more than 64 deep", "use fewer"),
        (GOOD + "[[module]]\n" + ".".join("a" * 200_000) + " = 1", ": nested more than", ""),
    ],
)
def test_not_toml(folder: Path, text: str, said: str, remedy: str) -> None:
    (problem,) = problems_of(folder, text)
    assert problem.path == ""
    assert said in str(problem)
    assert str(problem).startswith("line ")
    assert remedy in problem.remedy


def test_what_is_just_not_too_deep_is_read(folder: Path) -> None:
    deep = "options.a = " + "[" * 60 + "]" * 60  # module[0].options.a, and the lists
    (folder / "study.toml").write_text(MODULE + deep + "\n" + GROUP)
    assert load_workflow(folder / "study.toml").name == "study"


LINES = """\
# One
[workflow]
name = "x y"
[tuple_space]  # = [
servers = 0
memory = '''
[[module]]
b'''

[[module]]
name = "a"
function = "./work.py:nobody"
"copies" = 0
options."an \\"odd\\" key".b = 1
[[module]]
function = "./work.py:master"
environment = { A = "}", B = [{ c = 1 }] }
[[group]]
name = "g"
modules = [  # ] is not yet
  "a", [1],
  [ 1 ], "b",
]
[group.colour]
"""


def test_each_problem_names_its_line(folder: Path) -> None:
    found = {problem.path: problem.line for problem in problems_of(folder, LINES)}
    assert found == {
        "workflow.name": 3,
        "tuple_space.servers": 5,
        "tuple_space.memory": 6,
        "module[0].function": 12,
        "module[0].copies": 13,
        "module[1].name": 15,  # is missing
        "module[1].environment.A": 17,
        "module[1].environment.B": 17,
        "group[0].modules[1]": 21,
        "group[0].modules[2]": 22,
        "group[0].colour": 24,
    }
    assert list(found.values()) == sorted(found.values())
    with pytest.raises(WorkflowError, match=r"\n  line 13, module\[0\]\.copies: expected"):
        load_workflow(folder / "study.toml")


def test_only_the_first_of_very_many_problems_are_shown(folder: Path) -> None:
    text = "".join(f"a{number} = 1\n" for number in range(500))
    with pytest.raises(WorkflowError, match="103 problems") as caught:
        Draft(Path("w.toml"), "w.toml", problems=problems_of(folder, text)).finish()
    words = [problem.message for problem in caught.value.problems]
    assert sum(message.startswith("unknown table") for message in words) == 100
    assert words.count("there may be more problems from here on") == 1
    assert str(caught.value).endswith("\n  and 3 more")


MANY = 3000
PROGRAM = "[[module]]\nname = 'a'\nexecutable = ['true']\n"
LONG_TEXTS = {
    "keys": "[workflow]\n" + "".join(f"key{n} = {n}\n" for n in range(MANY)),
    "options": "[[module]]\nname = 'a'\n" + "".join(f"nam{n} = {n}\n" for n in range(MANY)),
    "tables": "".join(f"[modul{n}]\n" for n in range(MANY)),
    "modules": "".join(f"[[module]]\nnam = 'a{n}'\n" for n in range(MANY)),
    "functions": "".join(f"[[module]]\nname = 'a{n}'\nfunction = './a{n}.py:f'\n"
                         for n in range(MANY)),
    "names": f"{PROGRAM}[[group]]\nname = 'g'\nmodules = {[f'b{n}' for n in range(MANY)]}\n",
    "groups": PROGRAM + "".join(f"[[group]]\nname = 'g{n}'\ndepends = ['h{n}']\n"
                               for n in range(MANY)),
    "boundaries": "".join(f"[[boundary]]\nname = 'b{n}'\n" for n in range(MANY)),
}  # fmt: skip


@pytest.mark.parametrize("kind", LONG_TEXTS)
def test_of_very_many_mistakes_so_many_are_described_and_compared_as_anybody_reads(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0
    ask = difflib.get_close_matches

    def counted(word: str, known: Iterable[str], *more: Any, **named: Any) -> list[str]:
        nonlocal compared
        listed = list(known)
        compared += len(listed)
        return list(ask(word, listed, *more, **named))

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    problems = problems_of(folder, LONG_TEXTS[kind])
    assert 100 <= len(problems) <= 420
    assert any("more problems from here on" in problem.message for problem in problems)
    assert compared < 60_000  # 100 names with 500 others, and a few
    assert max(len(problem.remedy) for problem in problems) < 2000


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
        'module[0].options."odd key"',  # where its table begins
        "module[0].options.points[1]",
        "module[0].options.nested.rate",
        "module[1].threads",
    ]
