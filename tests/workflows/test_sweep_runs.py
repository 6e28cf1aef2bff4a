"""Sweeps under MPI: trials and trainers that die, several ranks each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import Finished, diel, journal, mpirun_diel, run_dir, workflow

TRAINER = """
import ctypes, os, time
def train(parameters, report):
    with open(report.folder / "tried.txt", "a") as file:
        file.write(f"{report.trial}\\n")
    return {"score": -abs(parameters["x"] - 7) + report.seed * 1e-12}

def dangerous(parameters, report):
    kind = parameters["kind"]
    if kind == "raises":
        raise ValueError("as it does")
    if kind == "segfault":
        ctypes.string_at(0)
    if kind == "hangs":
        time.sleep(60)
    if kind == "leaves":
        os._exit(3)
    if kind == "eats":
        hoard = [bytearray(b"x") * 2**20 for _ in range(2000)]
        time.sleep(60)
    report(1, score=0.5)
    return {"score": 1.0, "pid": os.getpid()}

def together(parameters, report):
    total = report.comm.allreduce(parameters["x"])
    report(1, score=total)
    return {"score": total, "ranks": report.comm.size}
"""

SWEEP = """\
[[module]]
name = "master"
function = "modules.master:run"
[module.options]
objective = "score"
maximise = true
seed = 9
[module.options.space]
{space}
[[module]]
name = "trainer"
function = "modules.trainer:run"
{more}
[module.options]
train = "./m.py:{train}"
{options}
[[group]]
name = "search"
modules = ["master", "trainer"]
"""


def sweep(
    folder: Path, space: str, train: str = "train", options: str = "", more: str = "copies = 2"
) -> Path:
    text = SWEEP.format(space=space, train=train, options=options, more=more)
    return workflow(folder, text, m=TRAINER)


def trials(folder: Path, sweep: str = "search.master") -> list[dict[str, Any]]:
    path = run_dir(folder) / "sweeps" / sweep / "trials.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


# -- trainers in trouble --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_sweeps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """Return the folder of one run of two sweeps, and how the command ended."""
    folder = tmp_path_factory.mktemp("sweeps")
    isolated = SWEEP.format(
        space='kind = ["fine", "raises", "segfault", "hangs", "leaves", "eats", "good"]',
        train="dangerous",
        options='time_limit = 1.5\nmemory_limit = "300 MiB"',
        more="copies = 2",
    )
    ranks = SWEEP.format(
        space="x = [1, 2, 3, 4, 5]", train="together", options="", more="copies = 2\nprocesses = 2"
    )
    for name in ("master", "trainer", "search"):
        ranks = ranks.replace(f'"{name}"', f'"{name}_of_ranks"')
    ranks = ranks.replace("seed = 9", 'seed = 9\ntrainer = "trainer_of_ranks"')
    toml = f'{isolated}{ranks}depends = ["search"]\n'
    finished = diel("run", workflow(folder, toml, m=TRAINER), cwd=folder)
    assert finished.status == 0, finished.output
    return folder, finished


def test_a_trial_in_a_process_of_its_own_may_die_in_any_way(
    two_sweeps: tuple[Path, Finished],
) -> None:
    folder, finished = two_sweeps
    states = {trial["parameters"]["kind"]: trial for trial in trials(folder)}
    reasons = {kind: state.get("reason", "") for kind, state in states.items()}
    assert reasons["fine"] == reasons["good"] == ""
    assert reasons["raises"] == "ValueError: as it does"
    assert reasons["segfault"] == "died by SIGSEGV"
    assert reasons["hangs"] == "took more than 1.5 s"
    assert reasons["leaves"] == "ended by itself with status 3"
    assert "MiB of memory, more than 300 MiB" in reasons["eats"]
    assert {state["state"] for state in states.values()} == {"finished", "failed"}
    assert "5 of 7 trials failed" in finished.stdout
    own = {int(state["metrics"]["pid"]) for state in states.values() if "pid" in state["metrics"]}
    assert not any(Path(f"/proc/{pid}").exists() for pid in own)  # nobody is left


def check_passed_over(folder: Path, reason: str) -> None:
    records = sorted(trials(folder), key=lambda record: record["trial"])
    assert [record["state"] for record in records] == ["finished", "failed", "finished"]
    assert records[1]["reason"] == reason
    assert list((run_dir(folder) / "sweeps").glob("*.under-way")) == []


def test_a_trial_that_kills_its_rank_is_named_and_then_passed_over(tmp_path: Path) -> None:
    sweep(tmp_path, 'kind = ["fine", "segfault", "good"]', "dangerous")
    finished = diel("run", "w.toml", cwd=tmp_path)
    assert finished.status == 1
    assert "trial 1 was under way on trainer." in finished.stderr
    assert "isolated = true in the options of trainer" in finished.stderr
    assert f"diel run --resume {run_dir(tmp_path)} goes on" in finished.stderr
    finished = diel("run", "--resume", str(run_dir(tmp_path)), cwd=tmp_path)
    assert finished.status == 0, finished.output
    check_passed_over(tmp_path, "died by SIGSEGV")


@pytest.mark.thorough
def test_a_trial_that_kills_its_rank_is_passed_over_after_a_restart(tmp_path: Path) -> None:
    file = sweep(tmp_path, 'kind = ["fine", "leaves", "good"]', "dangerous")
    file.write_text(f"[workflow]\nrestarts = 5\n{file.read_text()}")
    finished = diel("run", "w.toml", cwd=tmp_path)
    assert finished.status == 0, finished.output
    assert "crashed: os._exit(3) at" in finished.stdout
    assert "restarted once" in finished.stdout
    check_passed_over(tmp_path, "ended by itself with status 3")


def test_a_trainer_may_have_several_ranks(two_sweeps: tuple[Path, Finished]) -> None:
    folder, _ = two_sweeps
    found = {
        trial["parameters"]["x"]: trial["metrics"]
        for trial in trials(folder, "search_of_ranks.master_of_ranks")
    }
    assert found == {x: {"score": 2.0 * x, "ranks": 2} for x in range(1, 6)}
    assert journal(folder)[-1]["tuples_left"] == 0


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_the_trials_of_a_copy_that_is_given_up_are_done_all_the_same(tmp_path: Path) -> None:
    """A trainer of somebody's own fails in the middle of a lease, in one of its copies."""
    code = """
from modules.trainer import run as serve
from modules.trainer import Options as Theirs

class Options(Theirs):
    pass

def run(ctx):
    mark = ctx.folder / "failed"
    if ctx.copy_index == 0 and not mark.exists():
        mark.touch()
        with ctx.tuples.claim((ctx.group, ctx.module, "lease")):
            raise OSError("the disk is full")
    return serve(ctx)
"""
    file = sweep(
        tmp_path, "x = { from = 0, to = 39, step = 1 }", more='copies = 2\non_failure = "continue"'
    )
    file.write_text(file.read_text().replace("modules.trainer:run", "./own.py:run"))
    (tmp_path / "own.py").write_text(code)
    finished = mpirun_diel(5, "run", "w.toml", cwd=tmp_path)
    assert finished.status == 0, finished.output
    assert (tmp_path / "failed").exists()
    assert sorted(trial["trial"] for trial in trials(tmp_path)) == list(range(40))
    assert len((tmp_path / "tried.txt").read_text().split()) == 40
