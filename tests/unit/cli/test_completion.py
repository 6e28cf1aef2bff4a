"""What shells complete, in real shells where they are installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from diel.cli.commands import COMMANDS
from diel.cli.completion import SCRIPTS, levels
from diel.cli.main import build_parser
from diel.cli.workflow_file import DRAWINGS
from diel.executive.batch_scripts import SCHEDULERS

NAMES = sorted(command.name for command in COMMANDS)
FILES = ["a b.toml", "w.toml"]
FOLDERS = ["data", "runs"]
FORMATS = ["csv", "json", "optuna", "parquet"]
OF_GRAPH = ["--format", "--from", "--help", "--only", "--set", "-h"]

# What has been typed, the last word being completed: what is offered.
CASES: list[tuple[list[str], list[str]]] = [
    ([""], NAMES),
    (["ch"], ["check"]),
    (["--v"], ["--version"]),
    (["zzz"], []),
    (["check", ""], [*FILES, *FOLDERS]),
    (["check", "a"], ["a b.toml"]),
    (["check", "w.toml", "--per"], ["--per-node"]),
    (["check", "-n", ""], []),
    (["graph", "-"], OF_GRAPH),
    *(([name, "w.toml", "--fo"], ["--force"]) for name in ("batch", "run", "sweep")),
    *(([name, "w.toml", "--fr"], ["--from"]) for name in ("batch", "run", "sweep")),
    (["graph", "--format", ""], sorted(DRAWINGS)),
    (["graph", "--format", "dot", "w"], ["w.toml"]),
    (["batch", "--scheduler", ""], sorted(SCHEDULERS)),
    (["completion", ""], sorted(SCRIPTS)),
    (["run", "--resume", ""], FOLDERS),
    (["run", "--resume", "r"], ["runs"]),
    (["runs", ""], FOLDERS),
    (["report", "d"], ["data"]),
    (["tuple", "ge"], ["get"]),
    (["tuple", "get", "--w"], ["--with-tag"]),
    (["tuple", "put", "a", "--j"], ["--json"]),
    (["completion", ""], ["bash", "fish", "zsh"]),
    (["examples", "digits_g"], ["digits_gpu", "digits_grid"]),
    (["sweep", "w.toml", "--export", ""], FORMATS),
    (["sweep", "w.toml", "--export", "csv", "p"], ["parquet"]),
    (["explain", "w"], ["w.toml"]),
    (["gui", "w"], ["w.toml"]),
    (["batch", "--output", "no"], ["notes.txt"]),
    (["compare", "runs", "--report", "no"], ["notes.txt"]),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).touch()
    for name in FOLDERS:
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").touch()
    for shell, script in SCRIPTS.items():
        (tmp_path / f".{shell}").write_text(script(list(levels(build_parser()))))
    return tmp_path


def in_shell(line: list[str], folder: Path) -> str:
    if shutil.which(line[0]) is None:
        pytest.skip(f"{line[0]} is not installed")
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_bash(folder: Path) -> None:
    words = [" ".join(f'"{word}"' for word in typed) for typed, _ in CASES]
    words.append('"graph" "--format" "="')  # its way with an equals sign
    words.append('"graph" "--format" "=" "te"')
    asked = "\n".join(
        f"COMP_WORDS=(diel {word}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _diel\n"
        '[[ ${#COMPREPLY[@]} -eq 0 ]] || printf "%s\\n" "${COMPREPLY[@]}"; echo ---'
        for word in words
    )
    printed = in_shell(["bash", "--norc", "-c", f"source ./.bash; {asked}"], folder)
    offered = [sorted(one.split("\n")[:-1]) for one in printed.split("---\n")[:-1]]
    expected = [sorted(one) for _, one in CASES]
    assert offered == [*expected, ["dot", "mermaid", "svg", "text"], ["text"]]


def test_fish(folder: Path) -> None:
    lines = [" ".join(["diel", *typed]) for typed, _ in CASES]
    asked = "\n".join(f'complete -C "{line}"; echo ---' for line in lines)
    printed = in_shell(["fish", "--no-config", "-c", f"source ./.fish; {asked}"], folder)
    for (typed, expected), one in zip(CASES, printed.split("---\n"), strict=False):
        offered = {line.split("\t")[0].rstrip("/") for line in one.splitlines()}
        assert set(expected) <= offered, typed
        # After workflow files it offers the others; where nothing fits, files that may.
        if expected and expected[0] not in [*FILES, "notes.txt"]:
            assert not offered & {*FILES, "notes.txt"}, typed


def test_zsh(folder: Path) -> None:
    (folder / "_diel").write_text((folder / ".zsh").read_text())
    script = "fpath=($PWD $fpath); autoload -Uz compinit; compinit -D -u; print $_comps[diel]"
    assert in_shell(["zsh", "-f", "-n", "_diel"], folder) == ""
    assert in_shell(["zsh", "-f", "-c", script], folder) == "_diel\n"


# Arguments that can be anything: numbers, names of one's own, and values that depend on a run.
FREE = {
    *("ranks", "restarts", "silence", "per_node", "gpus_per_node", "cores_per_node", "nodes"),
    *(
        "time",
        "partition",
        "account",
        "requeue",
        "top",
        "repeat",
        "enqueue",
        "stop_trial",
        "trials",
        "trial",
        "delimiter",
    ),
    *("average", "set", "sweep", "port", "host", "timeout", "where", "only", "from"),
}


def test_every_option_with_a_known_set_of_values_is_completed() -> None:
    free = {
        option.names[-1].lstrip("-").replace("-", "_")
        for level in levels(build_parser())
        for option in level.options
        if option.values == "any"
    }
    assert free == FREE
    arguments = {level.words: level.arguments for level in levels(build_parser())}
    assert {words for words, values in arguments.items() if "any" in values} == {
        ("new-module",),
        *(("tuple", name) for name in ("put", "get", "read")),
    }


@pytest.mark.parametrize("shell", SCRIPTS)
def test_every_command_and_option_is_in_each_script(folder: Path, shell: str) -> None:
    script = (folder / f".{shell}").read_text()
    for level in levels(build_parser()):
        for option in level.options:
            for name in option.names:
                assert (name if shell != "fish" else name.lstrip("-")) in script, name
        assert all(word in script for word in level.words)


def test_the_command_prints_the_script(folder: Path) -> None:
    line = [sys.executable, "-m", "diel", "completion", "bash"]
    assert in_shell(line, folder) == (folder / ".bash").read_text()
