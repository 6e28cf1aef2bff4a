"""``diel check --per-node``: where each copy would run."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest
from support import ROOT, status_of

from diel.executive.placement.preview import spans
from diel.loading.environment import THREAD_VARIABLES

WORKFLOW = """
[tuple_space]
servers = 2
[[module]]
name = "master"
executable = ["true"]
[[module]]
name = "trainer"
executable = ["true"]
copies = 4
threads = 2
gpus = 1
[[module]]
name = "wide"
executable = ["true"]
copies = 2
processes = 2
placement = "spread"
[[group]]
name = "search"
modules = ["master", "trainer"]
[[group]]
name = "report"
modules = ["wide"]
depends = ["study"]
[[group]]
name = "study"
groups = ["search"]
iterations = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in THREAD_VARIABLES:  # the command sets them: give them back afterwards
        monkeypatch.setenv(name, "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.toml").write_text(WORKFLOW)
    return tmp_path


def check(*arguments: str) -> object:
    return status_of("check", "w.toml", *arguments)


def test_who_would_sit_where(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--ranks", "9", "--per-node", "5") == 0
    _, _, table = capsys.readouterr().out.partition("placement, ")
    assert table == textwrap.dedent(
        """\
        with 5 ranks on each node and 2 GPUs, as few as are needed:

        node    moment  who              copies  ranks  GPUs  threads
        node 0          the executive            0
                        tuple servers            1-2
                1       search: trainer  0-1     3-4    0-1   2 x 2
                2       report: wide     1       3-4          2 x 1
        node 1  1       search: master   0       7            1 x 1
                1       search: trainer  2-3     5-6    0-1   2 x 2
                2       report: wide     0       7-8          2 x 1
        """
    )


def test_ranks_and_gpus_that_nobody_uses_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--ranks", "12", "--per-node", "12", "--gpus-per-node", "6") == 0
    out = capsys.readouterr().out
    assert "with 12 ranks on each node and 6 GPUs:" in out
    assert "nobody                   7-8\n" in out


def test_without_a_number_of_ranks_it_is_what_run_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert check("--per-node", "100") == 0
    out = capsys.readouterr().out
    assert "    8  the largest moment" in out
    assert "3-6" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--per-node", "5", "--gpus-per-node", "1"], "too few GPUs for 'search': 4 needed"),
        (["--gpus-per-node", "1"], "go with --per-node M"),
        (["--cores-per-node", "1"], "go with --per-node M"),
        (["--per-node", "0"], "must be at least 1"),
        (["--per-node", "5", "--gpus-per-node", "-1"], "must be at least 0"),
        (["--per-node", "5", "--cores-per-node", "x"], "invalid count value: 'x'"),
    ],
)
def test_what_is_wrong_with_it(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert check(*arguments) == 2
    assert words in capsys.readouterr().err


def test_more_threads_than_cores(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--ranks", "9", "--per-node", "5", "--cores-per-node"]
    assert check(*arguments, "5") == 0
    assert check(*arguments, "4") == 2
    err = capsys.readouterr().err
    assert "node 1 has 4 cores, and at one moment its ranks have 5 threads: " in err
    assert "1 of master and 4 of trainer" in err


@pytest.mark.parametrize("file", sorted((ROOT / "workflows").glob("*.toml")), ids=lambda f: f.stem)
def test_every_workflow_can_be_seated(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "$DIEL_DATA" in file.read_text(encoding="utf-8") and "DIEL_DATA" not in os.environ:
        pytest.skip("DIEL_DATA is not set: it names the folder with this file's data")
    assert status_of("check", file, "--per-node", "4") == 0
    assert "the executive" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([3], "3"), ([1, 2, 3], "1-3"), ([5, 1, 2, 9, 1], "1-2, 5, 9")],
)
def test_spans(numbers: list[int], text: str) -> None:
    assert spans(numbers) == text
