"""The command line within this process: arguments, verdicts, exit codes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, status_of

from diel import __version__
from diel.cli.commands import COMMANDS
from diel.cli.completion import levels
from diel.cli.main import build_parser
from diel.loading.environment import THREAD_VARIABLES

WORKFLOW = """
[[module]]
name = "a"
executable = ["echo"]
copies = 2

[[module]]
name = "b"
executable = ["echo"]
copies = "fill"
processes = 2

[[group]]
name = "first"
modules = ["a"]

[[group]]
name = "second"
modules = ["a", "b"]
depends = ["first"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in THREAD_VARIABLES:  # the command sets them: give them back afterwards
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr("diel.cli.workflow_file.available_cores", lambda: 3)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.toml").write_text(WORKFLOW)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_the_verdict_counts_the_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("check", "w.toml") == 0
    assert capsys.readouterr().out == (
        "w.toml: fine; 2 modules, 2 groups\n"
        "ranks, 1 for the executive and 1 for tuples included:\n"
        "      6  the largest group: the least that it runs on\n"
        "     10  the largest moment: what diel run takes, on 3 cores\n"
        "     12  in sum\n"
    )


@pytest.mark.usefixtures("folder")
def test_the_verdict_for_a_number_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("check", "w.toml", "-n", "9") == 0
    out = capsys.readouterr().out
    assert "on 9 ranks, group first: a x 2\non 9 ranks, group second: a x 2, b x 2\n" in out


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", "w.toml", "-n", "5"], "6 needed, 5 available"),
        (["run", "w.toml", "-n", "3"], "6 needed, 3 available"),
        (["check", "gone.toml"], "diel: gone.toml: 1 problem"),
        (["check", "w.toml", "-n", "0"], "must be at least 1"),
        (["check", "w.toml", "-n", "many"], "invalid count value: 'many'"),
        (["chekc", "w.toml"], "there is no command 'chekc': did you mean \"diel check\"?"),
        (["w.toml"], 'did you mean "diel run w.toml"?'),
        (["help"], 'did you mean "diel --help"?'),
        (["resume"], 'did you mean "diel run --resume RUN_DIR"?'),
        (["zzz"], "there are run, check, "),
        (["run", "--alow-run-as-root", "w.toml"], 'did you mean "--allow-run-as-root"?'),
        (["tuple", "get", "a", "--timeuot", "3"], 'did you mean "--timeout"?'),
        (["tuple", "gte", "a"], 'did you mean "get"?'),
        (["graph", "w.toml", "--format", "txt"], 'did you mean "text"?'),
        (["run", "w.toml", "v.toml"], "unrecognized arguments: v.toml\n"),
        ([], "required: COMMAND"),
        (["run"], "say what to run"),
        (["run", "w.toml", "--share", "w.toml"], "cannot share a sweep in w.toml: File exists"),
        (["run", "w.toml", "--share", "w.toml/x"], "cannot share a sweep in w.toml/x: Not a dir"),
        (["run", "w.toml", "--share", "a" * 300], "File name too long"),
        (["explain", "a" * 300], "cannot be read: File name too long"),
    ],
)
def test_bad_input_ends_with_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert status_of(*arguments) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.out == ""
    assert not Path("runs").exists()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_processes_of_srun_that_are_no_ranks_start_no_run(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    said = []
    for task in range(8):
        monkeypatch.setenv("SLURM_PROCID", str(task))
        assert status_of(command, "w.toml") == 2
        said += capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "--mpi=pmix" in said[0]
    assert not Path("runs").exists()


# -- the documents --------------------------------------------------------------------------------


def documented(text: str) -> list[list[str]]:
    """Return the command lines in a document, each as its words behind ``diel``."""
    lines = re.findall(r"`diel ([^`\n]*)`|^(?:[$] )?diel ([a-z-]+ .*)$", text, re.MULTILINE)
    return [(line or other).split() for line, other in lines if line or other]


def test_the_readme_has_every_command_in_its_table() -> None:
    table = (ROOT / "README.md").read_text().partition("## The commands")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `diel")]
    named = {words[0] for row in rows for words in documented(row)}
    assert named == {command.name for command in COMMANDS}


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_every_command_line_in_a_document_can_be_given(page: Path) -> None:
    known = {level.words: level for level in levels(build_parser())}
    for words in documented(page.read_text()):
        if words[0].startswith("-") or words[0] == "checkpoint":
            continue  # the first line of such a file
        level = known.get(tuple(words[:2])) or known.get((words[0],))
        assert level is not None, f"{page.name}: there is no diel {' '.join(words)}"
        names = {name for option in level.options for name in option.names}
        given = {word.partition("=")[0].strip("[],;") for word in words if word.startswith("--")}
        assert given <= names, f"{page.name}: diel {' '.join(words)}"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("--version") == 0
    assert capsys.readouterr().out == f"diel {__version__}\n"


@pytest.mark.parametrize("place", ["/dev/full", "closed", "pipe"])
def test_output_that_cannot_be_written_is_dropped(place: str) -> None:
    line = [sys.executable, "-m", "diel", "check", str(ROOT / "workflows" / "hello.toml")]
    redirect = {"/dev/full": ">/dev/full", "closed": ">&-", "pipe": "| true"}[place]
    script = f'set -o pipefail; "$@" {redirect}'
    done = subprocess.run(
        ["bash", "-c", script, "bash", *line],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_output_that_is_lost_is_a_failure() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        finished = subprocess.run(
            [sys.executable, "-m", "diel", "schema"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert finished.returncode == 1
    assert finished.stderr == (
        "diel: standard output could not be written: No space left on device\n"
    )


# Ctrl-C in the middle of an import: as soon as Python looks for the file of a module.
INTERRUPTED = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == INTERRUPTED:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
INTERRUPTED = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupt())
runpy.run_module("diel", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("module", "status", "told"),
    [
        ("diel.cli.main", -signal.SIGINT, ""),
        ("argparse", -signal.SIGINT, ""),
        ("diel.workflow.load", 130, "diel: interrupted\n"),
    ],
)
def test_ctrl_c_while_diel_is_being_imported_is_no_traceback(
    module: str, status: int, told: str
) -> None:
    line = [sys.executable, "-c", INTERRUPTED, module, "check", "w.toml"]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr) == (status, told)


@pytest.mark.parametrize("error", [MemoryError(), OSError(12, "Cannot allocate memory")])
def test_a_command_without_memory_says_so(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def perform(*_: object) -> None:
        raise error

    monkeypatch.setattr("diel.cli.commands.Command.perform", perform)
    assert status_of("runs") == 1
    assert capsys.readouterr().err.startswith("diel: there is no memory left for this command (")
