"""Every bad input of a workflow file: where it is said to be, in which words, with which remedy."""

from __future__ import annotations

import os
import string
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from diel.errors import Problem, WorkflowError
from diel.executive.placement import needs, plan_groups, pool_ranks
from diel.executive.scheduler import Scheduler
from diel.workflow.load import load_workflow, read_draft
from diel.workflow.model import Group, Module
from diel.workflow.placeholders import PLACEHOLDERS

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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work.py").write_text("def master(ctx): ...\ndef train(ctx): ...\n")
    program = tmp_path / "report.sh"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return tmp_path


def problems_of(folder: Path, text: str | bytes) -> list[Problem]:
    file = folder / "study.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(WorkflowError) as caught:
        load_workflow(file)
    return list(caught.value.problems)


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


# --- the file itself ---------------------------------------------------------------------------


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


# --- tables and keys ---------------------------------------------------------------------------

A_NAME = 'a name: a letter, then letters, digits, "_" or "-", 100 at most'
COPIES = 'a whole number of at least 1 or "fill"'
KEYS = ", ".join(Module.model_fields)
GROUP_KEYS = ", ".join(Group.model_fields)
PROGRAM = '[[module]]\nname = "a"\nexecutable = ["./report.sh"]\n'
KNOWN = "known: " + ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
BRACE = "for a brace, write it twice: {{ or }}"

# One wrong thing in a file -> where, what, what next.
ONE_PROBLEM: dict[str, tuple[str, str, str, str]] = {
    "unknown table": (
        MODULE + GROUP + "[extras]\nservers = 2",
        "extras",
        "unknown table extras",
        "known tables: workflow, tuple_space, module, group, boundary",
    ),
    "no servers": (
        MODULE + GROUP + "[tuple_space]\nservers = 0",
        "tuple_space.servers",
        "expected a whole number of at least 1, got 0",
        "for example servers = 2",
    ),
    "no size": (
        MODULE + GROUP + '[tuple_space]\nmemory = "2 GB"',
        "tuple_space.memory",
        "'2 GB' is no size; write a number and one of B, KiB, MiB, GiB, TiB",
        "",
    ),
    "too little memory": (
        MODULE + GROUP + "[tuple_space]\nmemory = 1000",
        "tuple_space.memory",
        "a server needs 64 KiB at least; got 1000",
        "",
    ),
    "absurdly many": (
        MODULE.replace("\n", "\ncopies = 99999999999\n", 1) + GROUP,
        "module[0].copies",
        "99,999,999,999 are more than any machine has",
        "",
    ),
    "misspelt table": (
        '[[modules]]\nname = "a"\nfunction = "./work.py:master"\n' + GROUP,
        "modules",
        "unknown table modules",
        'did you mean "module"?',
    ),
    "misspelt group table": (
        MODULE + '[[groups]]\nname = "g"\nmodules = ["a"]',
        "groups",
        "unknown table groups",
        'did you mean "group"?',
    ),
    "single module": (
        '[module]\nname = "a"\nfunction = "./work.py:master"\n' + GROUP,
        "module",
        "expected a list of tables, got a single table",
        "write [[module]] instead of [module]",
    ),
    "single group": (
        MODULE + '[group]\nname = "g"\nmodules = ["a"]',
        "group",
        "expected a list of tables, got a single table",
        "write [[group]] instead of [group]",
    ),
    "module under its name": (
        '[module.a]\nfunction = "./work.py:master"\n' + GROUP,
        "module",
        "expected a list of tables, got a single table",
        'write [[module]] with name = "a", instead of [module.a]',
    ),
    "module is a number": (
        "module = 3\n" + GROUP,
        "module",
        "expected a list of tables, got 3",
        "write [[module]], and the module's keys below it",
    ),
    "module in a list is a number": (
        'module = [3, { name = "a", function = "./work.py:master" }]\n' + GROUP,
        "module[0]",
        "expected a table, got 3",
        "",
    ),
    "several headers": (
        "[[workflow]]\n" + MODULE + GROUP,
        "workflow",
        "expected one table, got a list of them",
        "write [workflow], once",
    ),
    "header is text": (
        'workflow = "study"\n' + MODULE + GROUP,
        "workflow",
        'expected a table, got the string "study"',
        "",
    ),
    "unknown key in the header": (
        "[workflow]\nnmae = 'x'\n" + MODULE + GROUP,
        "workflow.nmae",
        "unknown key nmae",
        'did you mean "name"?',
    ),
    "name with a slash": (
        "[workflow]\nname = '../x'\n" + MODULE + GROUP,
        "workflow.name",
        'expected a name for a folder: a letter or digit, then letters, digits, ".", "_" or "-", '
        '100 at most, got the string "../x"',
        'for example name = "study"',
    ),
    "misspelt key": (
        MODULE + "copeis = 2\n" + GROUP,
        "module[0].copeis",
        "unknown key copeis",
        'did you mean "copies"?',
    ),
    "unknown key": (
        MODULE + "colour = 2\n" + GROUP,
        "module[0].colour",
        "unknown key colour",
        f"known keys: {KEYS}",
    ),
    "misspelt required key": (
        '[[module]]\nnaem = "a"\nfunction = "./work.py:master"\n' + GROUP,
        "module[0].naem",
        "unknown key naem",
        'did you mean "name"?',
    ),
    "misspelt function key": (
        '[[module]]\nname = "a"\nfuncton = "./work.py:master"\n' + GROUP,
        "module[0].functon",
        "unknown key functon",
        'did you mean "function"?',
    ),
    "misspelt key of a group": (
        MODULE + '[[group]]\nname = "g"\nmodule = ["a"]',
        "group[0].module",
        "unknown key module",
        'did you mean "modules"?',
    ),
    "unknown key of a group": (
        MODULE + GROUP + "speed = 3",
        "group[0].speed",
        "unknown key speed",
        f"known keys: {GROUP_KEYS}",
    ),
    "no name": (
        '[[module]]\nfunction = "./work.py:master"\n' + GROUP,
        "module[0].name",
        "is missing",
        'add name = "trainer"',
    ),
    "name with a space": (
        '[[module]]\nname = "a b"\nfunction = "./work.py:master"\n'
        '[[group]]\nname = "g"\nmodules = ["a b"]',
        "module[0].name",
        f'expected {A_NAME}, got the string "a b"',
        'for example name = "trainer"',
    ),
    "name is a number": (
        '[[module]]\nname = 3\nfunction = "./work.py:master"\n' + GROUP,
        "module[0].name",
        f"expected {A_NAME}, got 3",
        'for example name = "trainer"',
    ),
    "copies as text": (
        MODULE + 'copies = "2"\n' + GROUP,
        "module[0].copies",
        f'expected {COPIES}, got the string "2"',
        "for example copies = 2",
    ),
    "copies misspelt": (
        MODULE + 'copies = "Fill"\n' + GROUP,
        "module[0].copies",
        f'expected {COPIES}, got the string "Fill"',
        'for example copies = "fill"',
    ),
    "no copies": (
        MODULE + "copies = 0\n" + GROUP,
        "module[0].copies",
        f"expected {COPIES}, got 0",
        "for example copies = 2",
    ),
    "threads is true": (
        MODULE + "threads = true\n" + GROUP,
        "module[0].threads",
        "expected a whole number of at least 1, got true",
        "for example threads = 2",
    ),
    "processes with a point": (
        MODULE + "processes = 4.0\n" + GROUP,
        "module[0].processes",
        "expected a whole number of at least 1, got 4.0",
        "for example processes = 4",
    ),
    "options is a list": (
        MODULE + "options = [1]\n" + GROUP,
        "module[0].options",
        "expected a table, got the list [1]",
        "",
    ),
    "nothing to run": (
        '[[module]]\nname = "a"\n' + GROUP,
        "module[0]",
        "says nothing to run: it has neither function nor executable",
        'add function = "package.module:function" or executable = ["./a.out"]',
    ),
    "two things to run": (
        MODULE + 'executable = ["./report.sh"]\n' + GROUP,
        "module[0].executable",
        "a module is either a function or an executable, and both are given",
        "keep one of the two, or make it two modules",
    ),
    "executable as text": (
        '[[module]]\nname = "a"\nexecutable = "./report.sh"\n' + GROUP,
        "module[0].executable",
        'expected a non-empty list of strings, got the string "./report.sh"',
        'for example executable = ["./report.sh"]',
    ),
    "empty executable": (
        '[[module]]\nname = "a"\nexecutable = []\n' + GROUP,
        "module[0].executable",
        "expected a non-empty list of strings, got the list []",
        'for example executable = ["./a.out", "--fast", "--seed={copy}"]',
    ),
    "argument is a number": (
        '[[module]]\nname = "a"\nexecutable = ["./report.sh", 3]\n' + GROUP,
        "module[0].executable[1]",
        "expected a string, got 3",
        'for example "3"',
    ),
    "executable without a name": (
        '[[module]]\nname = "a"\nexecutable = [""]\n' + GROUP,
        "module[0].executable",
        "the program's name is empty",
        "",
    ),
    "NUL in an argument": (
        '[[module]]\nname = "a"\nexecutable = ["./report.sh", "\\u0000"]\n' + GROUP,
        "module[0].executable[1]",
        "a NUL character cannot be passed to a program",
        "",
    ),
    "options of an executable": (
        '[[module]]\nname = "a"\nexecutable = ["./report.sh"]\noptions = { a = 1 }\n' + GROUP,
        "module[0].options",
        "an executable takes no options: only a function has a context to find them in",
        "pass them as arguments, in executable",
    ),
    "unknown placeholder": (
        PROGRAM.replace('sh"]', 'sh", "x{cpoy}"]') + GROUP,
        "module[0].executable[1]",
        "there is no placeholder {cpoy}",
        f"{KNOWN}; {BRACE}",
    ),
    "lonely brace": (
        PROGRAM + 'directory = "a}"\n' + GROUP,
        "module[0].directory",
        '"}" opens or closes no placeholder',
        BRACE,
    ),
    "placeholder in a launcher": (
        PROGRAM + 'launcher = ["sh", "{ranks}"]\n' + GROUP,
        "module[0].launcher[1]",
        "there is no placeholder {ranks}",
        f"{KNOWN}; {BRACE}",
    ),
    "launcher of a function": (
        MODULE + 'launcher = ["sh"]\n' + GROUP,
        "module[0].launcher",
        "only an executable has a launcher: a function runs on ranks of this job",
        "remove it",
    ),
    "directory of a function": (
        MODULE + 'directory = "x"\n' + GROUP,
        "module[0].directory",
        "only an executable has a working directory: a function runs on ranks of this job",
        "remove it",
    ),
    "environment of a function": (
        MODULE + "environment = { A = 1 }\n" + GROUP,
        "module[0].environment",
        "only an executable has an environment: a function runs on ranks of this job",
        "remove it",
    ),
    "standard input of a function": (
        MODULE + 'stdin = "x"\n' + GROUP,
        "module[0].stdin",
        "only an executable has a standard input: a function runs on ranks of this job",
        "remove it",
    ),
    "launcher as text": (
        PROGRAM + 'launcher = "mpiexec"\n' + GROUP,
        "module[0].launcher",
        'expected a non-empty list of strings, got the string "mpiexec"',
        'for example launcher = ["mpiexec"]',
    ),
    "launcher without a name": (
        PROGRAM + 'launcher = ["", "-n"]\n' + GROUP,
        "module[0].launcher",
        "the program's name is empty",
        "",
    ),
    "launcher not installed": (
        PROGRAM + 'launcher = ["no-such-program"]\n' + GROUP,
        "module[0].launcher[0]",
        'there is no program "no-such-program" on PATH',
        "install it, or write its path",
    ),
    "program of a launcher": (
        PROGRAM.replace("report", "reprot") + 'launcher = ["sh"]\n' + GROUP,
        "module[0].executable[0]",
        "there is no file {folder}/reprot.sh",
        'did you mean "report.sh"?',
    ),
    "program not on a path of its own": (
        PROGRAM.replace("./report.sh", "ls") + 'environment = { PATH = "/{{}}" }\n' + GROUP,
        "module[0].executable[0]",
        'there is no program "ls" on PATH',
        "install it, or write its path",
    ),
    "program with a path, though PATH is not known": (
        PROGRAM.replace("report", "reprot") + 'environment = { PATH = "{run_dir}" }\n' + GROUP,
        "module[0].executable[0]",
        "there is no file {folder}/reprot.sh",
        'did you mean "report.sh"?',
    ),
    "variable is true": (
        PROGRAM + "environment = { A = true }\n" + GROUP,
        "module[0].environment.A",
        "expected a string or a number, got true",
        'for example A = "text"',
    ),
    "placeholder in a variable": (
        PROGRAM + 'environment = { A = "{b}" }\n' + GROUP,
        "module[0].environment.A",
        "there is no placeholder {b}",
        f"{KNOWN}; {BRACE}",
    ),
    "name of no variable": (
        PROGRAM + 'environment = { "A=B" = 1 }\n' + GROUP,
        'module[0].environment."A=B"',
        'expected a name without "=" as a key, got the string "A=B"',
        "",
    ),
    "variable of diel": (
        PROGRAM + 'environment = { DIEL_COPY = "7" }\n' + GROUP,
        "module[0].environment.DIEL_COPY",
        "DIEL_COPY is what diel itself tells the program",
        "choose another name",
    ),
    "empty standard input": (
        PROGRAM + 'stdin = ""\n' + GROUP,
        "module[0].stdin",
        'expected a string of at least 1 character, got the string ""',
        'for example stdin = "input.{copy}.txt"',
    ),
    "module named twice in a group": (
        MODULE + '[[group]]\nname = "g"\nmodules = ["a", "a"]',
        "group[0].modules",
        '"a" is named more than once',
        "name each once",
    ),
    "empty group": (
        MODULE + GROUP + '[[group]]\nname = "h"\nmodules = []',
        "group[1].modules",
        "expected a non-empty list of strings, got the list []",
        'for example modules = ["master", "trainer"]',
    ),
    "depends as text": (
        MODULE + GROUP + '[[group]]\nname = "h"\nmodules = ["a"]\ndepends = "g"',
        "group[1].depends",
        'expected a list of strings, got the string "g"',
        'for example depends = ["g"]',
    ),
    # --- entries together ---
    "no module at all": (
        GROUP,
        "module",
        "the file has no module",
        'add [[module]] with a name and a function = "package.module:function"',
    ),
    "no group at all": (
        MODULE,
        "group",
        "the file has no group",
        "add [[group]] with a name and the modules that run together",
    ),
    "two modules of one name": (
        MODULE + MODULE + GROUP,
        "module[1].name",
        'module[0] is called "a" too',
        "give each its own name",
    ),
    "two groups of one name": (
        MODULE + GROUP + GROUP,
        "group[1].name",
        'group[0] is called "g" too',
        "give each its own name",
    ),
    "misspelt module in a group": (
        MODULE.replace('"a"', '"trainer"') + '[[group]]\nname = "g"\nmodules = ["trianer"]',
        "group[0].modules[0]",
        'there is no module "trianer"',
        'did you mean "trainer"?',
    ),
    "unknown module in a group": (
        MODULE + '[[group]]\nname = "g"\nmodules = ["a", "zzz"]',
        "group[0].modules[1]",
        'there is no module "zzz"',
        "the file has a",
    ),
    "misspelt group in depends": (
        MODULE
        + GROUP.replace('"g"', '"search"')
        + '[[group]]\nname = "h"\nmodules = ["a"]\ndepends = ["serach"]',
        "group[1].depends[0]",
        'there is no group "serach"',
        'did you mean "search"?',
    ),
    "group depends on itself": (
        MODULE + GROUP + 'depends = ["g"]',
        "group[0].depends[0]",
        'group "g" depends on itself',
        "remove it",
    ),
    "cycle": (
        MODULE
        + '[[group]]\nname = "first"\nmodules = ["a"]\n'
        + '[[group]]\nname = "x"\nmodules = ["a"]\ndepends = ["first", "z"]\n'
        + '[[group]]\nname = "y"\nmodules = ["a"]\ndepends = ["x"]\n'
        + '[[group]]\nname = "z"\nmodules = ["a"]\ndepends = ["y"]\n',
        "group[1].depends",
        "groups wait for each other: x -> z -> y -> x",
        "remove one of these dependencies",
    ),
    "module in no group": (
        MODULE + MODULE.replace('"a"', '"b"') + GROUP,
        "module[1]",
        'module "b" is in no group, so it would never run',
        "add it to the modules of a [[group]], or remove it",
    ),
    # --- what runs ---
    "malformed function": (
        MODULE.replace("./work.py:master", "master") + GROUP,
        "module[0].function",
        '"master" does not name a function',
        'write "package.module:function", or "./file.py:function" for a file beside this one',
    ),
    "misspelt function": (
        MODULE.replace("master", "mastr") + GROUP,
        "module[0].function",
        "there is no function mastr in {folder}/work.py",
        'did you mean "master"?',
    ),
    "misspelt file": (
        MODULE.replace("work.py", "wrok.py") + GROUP,
        "module[0].function",
        "there is no file {folder}/wrok.py",
        'did you mean "work.py"?',
    ),
    "misspelt module of a function": (
        MODULE.replace("./work.py", "wrok") + GROUP,
        "module[0].function",
        "there is no module wrok, neither in {folder} nor on Python's search path",
        'did you mean "work"?',
    ),
    "misspelt program": (
        '[[module]]\nname = "a"\nexecutable = ["./reprot.sh"]\n' + GROUP,
        "module[0].executable[0]",
        "there is no file {folder}/reprot.sh",
        'did you mean "report.sh"?',
    ),
    "unknown program with a path": (
        '[[module]]\nname = "a"\nexecutable = ["./zzz"]\n' + GROUP,
        "module[0].executable[0]",
        "there is no file {folder}/zzz",
        "a path is relative to the workflow file's folder",
    ),
    "program is a folder": (
        '[[module]]\nname = "a"\nexecutable = ["./"]\n' + GROUP,
        "module[0].executable[0]",
        "{folder} is a folder, not a program",
        "",
    ),
    "program may not be executed": (
        '[[module]]\nname = "a"\nexecutable = ["./work.py"]\n' + GROUP,
        "module[0].executable[0]",
        "{folder}/work.py is not executable",
        "chmod +x {folder}/work.py",
    ),
    "program beside the file": (
        '[[module]]\nname = "a"\nexecutable = ["report.sh"]\n' + GROUP,
        "module[0].executable[0]",
        'there is no program "report.sh" on PATH',
        'write "./report.sh" for the file beside this one',
    ),
    "program not installed": (
        '[[module]]\nname = "a"\nexecutable = ["no-such-program"]\n' + GROUP,
        "module[0].executable[0]",
        'there is no program "no-such-program" on PATH',
        "install it, or write its path",
    ),
}


@pytest.mark.parametrize("case", ONE_PROBLEM)
def test_one_wrong_thing_gives_one_problem(folder: Path, case: str) -> None:
    text, path, message, remedy = ONE_PROBLEM[case]
    expected = Problem(
        path,
        message.replace("{folder}", str(folder)),
        remedy if "known:" in remedy else remedy.replace("{folder}", str(folder)),
    )
    assert problems_of(folder, text) == [expected]


def test_what_is_only_known_in_a_run_is_not_looked_for(folder: Path) -> None:
    for line in (
        'executable = ["{run_dir}/solver", "{{}}"]',
        'executable = ["solver"]\nenvironment = { PATH = "{run_dir}/bin" }',
        'executable = ["/in/a/container"]\nlauncher = ["sh"]',
        'executable = ["./report.sh"]\nstdin = "not/yet"\ndirectory = "neither"',
    ):
        (folder / "study.toml").write_text(f'[[module]]\nname = "a"\n{line}\n' + GROUP)
        assert read_draft(folder / "study.toml").problems == [], line


def test_the_keys_of_an_executable(folder: Path) -> None:
    (folder / "study.toml").write_text(
        PROGRAM
        + 'launcher = ["sh", "-x"]\ndirectory = "{run_dir}/{copy}"\nstdin = "in.txt"\n'
        + 'environment = { A = 1, B = 0.5, C = "{copy}" }\n'
        + GROUP
    )
    module = load_workflow(folder / "study.toml").module("a")
    assert module.launcher == ("sh", "-x")
    assert (module.directory, module.stdin) == ("{run_dir}/{copy}", "in.txt")
    assert module.environment == {"A": 1, "B": 0.5, "C": "{copy}"}


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


def test_two_cycles_are_two_problems(folder: Path) -> None:
    text = MODULE + "".join(
        f'[[group]]\nname = "{name}"\nmodules = ["a"]\ndepends = ["{other}"]\n'
        for name, other in [("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")]
    )
    assert [problem.message for problem in problems_of(folder, text)] == [
        "groups wait for each other: a -> b -> a",
        "groups wait for each other: c -> d -> c",
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


def test_a_program_is_found_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    (folder / "study.toml").write_text(GOOD.replace("./report.sh", "report.sh"))
    assert load_workflow(folder / "study.toml").module("report").executable is not None


# --- anything at all ---------------------------------------------------------------------------

NEST = """\
[[group]]
name = "study"
groups = ["search", "report"]
iterations = 3
until = ["converged", 1]
"""
LINES = (GOOD + NEST).splitlines()
VALUES = ["3", "0", "true", '""', "[]", "{}", '"x"', '["x"]', "[[1]]", "{ a = 1 }", "1.5", "nan"]
VALUES += ["1979-05-27", "'fill'", '["search", "report"]', "[{}]", '"\\u0000"', '"a:b"', '"./:x"']
KEYWORDS = [*Module.model_fields, *Group.model_fields, "x"]


@st.composite
def mutated_files(draw: st.DrawFn) -> str:
    lines = list(LINES)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        change = draw(
            st.sampled_from(["drop", "double", "value", "key", "swap", "table", "letter"])
        )
        key, equals, _ = lines[at].partition(" = ")
        if change == "drop":
            lines[at] = ""
        elif change == "double":
            lines.insert(at, lines[at])
        elif change == "value" and equals:
            lines[at] = f"{key} = {draw(st.sampled_from(VALUES))}"
        elif change == "key":
            lines[at] = f"{draw(st.sampled_from(KEYWORDS))} = {draw(st.sampled_from(VALUES))}"
        elif change == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
        elif change == "table":
            lines[at] = lines[at].replace("[[", "[").replace("]]", "]")
        elif change == "letter":
            letter = draw(st.sampled_from(string.printable + "é\0\ufeff"))
            column = draw(st.integers(0, len(lines[at])))
            lines[at] = lines[at][:column] + letter + lines[at][column + 1 :]
    return "\n".join(lines)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=mutated_files() | st.text(max_size=30))
@example(text="group = [[]]\nmodule = [[]]")
@example(text='[[module]]\nname = ""\n[[group]]\nname = ""\nmodules = [""]\ndepends = [""]')
@example(text="[[module]]\nfunction = ''\nexecutable = ['.']\n")
def test_any_file_is_a_workflow_or_a_workflow_error(folder: Path, text: str) -> None:
    file = folder / "study.toml"
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    draft = read_draft(file)
    if draft.problems:
        assert len(set(draft.problems)) == len(draft.problems)
        with pytest.raises(WorkflowError):
            draft.finish()
        return
    workflow = draft.finish()
    size = needs(workflow, cores=1).minimum
    if size < 1000:  # what the reader accepts, the scheduler does
        Scheduler(plan_groups(workflow, size, "w.toml"), pool_ranks(workflow, size)).start()
    used = {name for group in workflow.groups for name in group.modules}
    assert used == {module.name for module in workflow.modules}
