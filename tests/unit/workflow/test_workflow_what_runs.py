"""What a module runs, a function or a program, and everything that can be wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.workflow.samples import (
    BRACE,
    GOOD,
    GROUP,
    KNOWN,
    MODULE,
    PROGRAM,
    OneProblem,
    assert_only_problem,
)

from diel.workflow.load import load_workflow, read_draft

ONE_PROBLEM: dict[str, OneProblem] = {
    "nothing to run": (
        '[[module]]\nname = "a"\n' + GROUP,
        "module[0]",
        "says nothing to run: it has neither function nor library nor executable",
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
    "failures of a function": (
        MODULE + "max_failures = 3\n" + GROUP,
        "module[0].max_failures",
        "only an executable has a limit of failed tasks: a function runs on ranks of this job",
        "remove it",
    ),
    "failures without tasks": (
        PROGRAM + "max_failures = 3\n" + GROUP,
        "module[0]",
        "max_failures has no effect without tasks",
        "add tasks, or remove max_failures",
    ),
    "more failures than tasks": (
        PROGRAM + 'tasks = 3\nmax_failures = "101%"\n' + GROUP,
        "module[0].max_failures",
        'a number of tasks from 0, or a share of all such as "5%"; got "101%"',
        "",
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
    assert_only_problem(folder, *ONE_PROBLEM[case])


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


def test_a_program_is_found_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    (folder / "study.toml").write_text(GOOD.replace("./report.sh", "report.sh"))
    assert load_workflow(folder / "study.toml").module("report").executable is not None
