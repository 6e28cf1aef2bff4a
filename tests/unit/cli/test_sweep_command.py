"""``diel sweep``: before a run and after it, without MPI."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import pytest
from support import diel, execute, status_of, workflow

from diel.run.directory import RunDirectory
from diel.run.journal import JournalWriter
from diel.run.records import ResultsDeclared, ResultsShown, RunEnded, RunStarted
from diel.run.resumption import order_resumption
from modules.sweep.ledger import Ledger

SWEEP = """\
[[module]]
name = "master"
function = "modules.master:run"
[module.options]
objective = "score"
maximise = true
space = { x = { from = 0, to = 99, step = 1 }, kind = ["a", "b"] }
[[module]]
name = "trainer"
function = "modules.trainer:run"
copies = 4
options = { train = "./m.py:train" }
[[group]]
name = "search"
modules = ["master", "trainer"]
"""
TRAIN = (
    "import time\ndef train(parameters, report):\n    time.sleep(0.1)\n    return {'score': 1}\n"
)


def test_a_dry_run_says_what_would_be_run(tmp_path: Path) -> None:
    workflow(tmp_path, SWEEP, m=TRAIN)
    finished = diel("sweep", "w.toml", "--dry-run", cwd=tmp_path)
    assert finished.status == 0, finished.output
    lines = finished.stdout.splitlines()
    assert lines[0] == "master: 200 trials, grid, 4 trainers on 7 ranks"
    assert [line.split() for line in lines[1:4]] == [
        ["trial", "x", "kind"],
        ["0", "0", "a"],
        ["1", "0", "b"],
    ]
    takes_s = re.search(r"the sweep takes (\d+)\.\d s", lines[-1])
    assert takes_s, lines[-1]
    assert int(takes_s[1]) >= 5
    assert not (tmp_path / "runs").exists()


def test_a_trial_that_fails_in_a_dry_run_is_told(tmp_path: Path) -> None:
    workflow(tmp_path, SWEEP, m="def train(parameters, report): raise ValueError('no data')")
    finished = diel("sweep", "w.toml", "--dry-run", cwd=tmp_path)
    assert finished.status == 1
    assert "trial 0 failed: ValueError: no data (m.py:1)" in finished.stdout


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import nowhere\n" + TRAIN, "No module named 'nowhere' (m.py:1)"),
        (TRAIN.replace("'score'", "'scroe'"), "the trainer reported no 'score' (did you mean"),
    ],
)
def test_what_every_trial_would_fail_with_is_told_in_a_dry_run(
    code: str, words: str, tmp_path: Path
) -> None:
    workflow(tmp_path, SWEEP, m=code)
    finished = diel("sweep", "w.toml", "--dry-run", cwd=tmp_path)
    assert finished.status == 1
    assert words in finished.stdout
    assert "Traceback" not in finished.output


def test_a_file_without_a_sweep_has_none_to_look_at(tmp_path: Path) -> None:
    text = '[[module]]\nname = "a"\nfunction = "./m.py:run"\n[[group]]\nname = "g"\n'
    workflow(tmp_path, text + 'modules = ["a"]\n', m="def run(ctx): pass\n")
    finished = diel("sweep", "w.toml", "--dry-run", cwd=tmp_path)
    assert finished.status == 2
    assert "w.toml has no sweep" in finished.stderr


def test_a_sweep_that_has_run_is_ranked_and_exported(tmp_path: Path) -> None:
    file = workflow(tmp_path, SWEEP, m=TRAIN)
    directory = RunDirectory.create(tmp_path / "runs", "w", file)
    rows = [{"trial": n, "x": n, "kind": "a", "score": -abs(n - 30)} for n in range(50)]
    with (directory.path / "results.csv").open("w", newline="") as table:
        writer = csv.DictWriter(table, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    with JournalWriter(directory.journal) as journal:
        journal.write(RunStarted(workflow="w", ranks=4, groups=["search"], file=str(file)))
        journal.write(
            ResultsDeclared(
                module="master",
                columns=[*rows[0]],
                objective="score",
                maximise=True,
                expected=50,
                file="results.csv",
            )
        )
        journal.write(
            ResultsShown(
                module="master",
                file="results.csv",
                count=50,
                best=sorted(rows, key=lambda row: -row["score"])[:20],
                constants={"kind": "a"},
                notes=["warning: all by luck"],
            )
        )
    ledger = Ledger(
        directory.path / "sweeps" / "search.master" / "trials.jsonl",
        {"objective": ["score"], "maximise": True},
    )
    ledger.write(
        {"trial": row["trial"], "state": "finished", "parameters": {"x": row["x"]},
         "metrics": {"score": row["score"]}}
        for row in rows
    )  # fmt: skip
    ledger.close()
    for top, last in ((3, 31), (25, None)):  # more than the journal holds: from the table
        finished = diel(
            "sweep", directory.path, "--top", top, "--export", "csv", "json", cwd=tmp_path
        )
        assert finished.status == 0, finished.output
        assert f"{top} best of 50 by highest score" in finished.stdout
        assert "\nfor all: kind a\nwarning: all by luck\n" in finished.stdout
        shown = [line.split() for line in finished.stdout.splitlines()]
        ranks = [line for line in shown if len(line) == 4 and line[0].isdigit()]
        assert len(ranks) == top
        assert ranks[0][1] == "30"
        if last is not None:
            assert ranks[-1][1] == str(last)
        assert str(ledger_file(directory, "trials.csv")) in finished.stdout
    with ledger_file(directory, "trials.csv").open(newline="") as exported:
        assert [int(row["x"]) for row in csv.DictReader(exported)] == list(range(50))
    finished = diel("sweep", directory.path, "--export", "xml", cwd=tmp_path)
    assert finished.status == 2
    assert "no such format: xml" in finished.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--export", "csv", "xml"], "no such format: xml; there are csv, json, parquet, optuna"),
        (["--dry-run", "--export", "csv"], "--dry-run records nothing that --export could write"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_runs(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    workflow(tmp_path, SWEEP, m=TRAIN)
    finished = diel("sweep", "w.toml", *arguments, cwd=tmp_path)
    assert finished.status == 2
    assert words in finished.stderr
    assert not (tmp_path / "runs").exists()


def test_what_has_been_run_has_no_preview(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "runs", "w", workflow(tmp_path, SWEEP, m=TRAIN))
    JournalWriter(directory.journal).close()
    finished = diel("sweep", directory.path, "--dry-run", cwd=tmp_path)
    assert finished.status == 2
    assert "has been run: --dry-run goes with a workflow file" in finished.stderr
    finished = diel("sweep", directory.path, "--force", cwd=tmp_path)
    assert "--force goes with a workflow file" in finished.stderr


def ledger_file(directory: RunDirectory, name: str) -> Path:
    return directory.path / "sweeps" / "search.master" / name


@pytest.mark.parametrize("arguments", [["--help"], ["sweep", "--help"]])
def test_help_loads_nothing(tmp_path: Path, arguments: list[str]) -> None:
    script = (
        "import sys\nimport diel.cli.main\n"
        f"try: diel.cli.main.main({arguments})\nexcept SystemExit: pass\n"
        "print([one for one in ('numpy', 'pydantic', 'mpi4py', 'modules', 'rich') "
        "if one in sys.modules])"
    )
    finished = execute([sys.executable, "-c", script], cwd=tmp_path)
    assert finished.stdout.splitlines()[-1] == "[]"


def test_what_is_asked_of_a_sweep_that_has_ended_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = workflow(tmp_path, SWEEP, m=TRAIN)
    path = RunDirectory.create(tmp_path / "runs", "w", file).path
    with JournalWriter(path / "journal.jsonl") as journal:
        journal.write(RunStarted(workflow="w", ranks=4, groups=["search"], file=str(file)))
        journal.write(RunEnded(exit_code=0, tuples_left=0))
    point = '{"x": 3, "kind": "a"}'
    assert status_of("sweep", path, "--enqueue", point) == 2
    assert "has no sweep that has begun" in capsys.readouterr().err
    space = {"x": {"from": 0, "to": 99, "step": 1}, "kind": ["a", "b"]}
    ledger = Ledger(path / "sweeps" / "search.master" / "trials.jsonl", {"space": space})
    ledger.close()
    for line, words in (
        (["--enqueue", "{"], "no JSON"),
        (["--enqueue", "[1]"], "write a point as"),
        (["--enqueue", '{"x": 3}'], "kind: is missing"),
        (["--pause", "--resume"], "choose one"),
        (["--pause"], "has finished: there is nothing to pause"),
        (["--trials", "3", "--sweep", "other"], "there are search.master"),
    ):
        assert status_of("sweep", path, *line) == 2
        assert words in capsys.readouterr().err
    assert status_of("sweep", file, "--pause") == 2
    assert "is no run's directory" in capsys.readouterr().err
    assert order_resumption(RunDirectory(path)) is None
    assert status_of("sweep", path, "--enqueue", point, "--trials", "3") == 0
    kept = f"kept: diel run --resume {path} does it"
    assert capsys.readouterr().out == f"enqueue: {kept}\ntrials: {kept}\n"
    assert order_resumption(RunDirectory(path)) is not None
    assert not RunDirectory(path).extension_requested()
