"""Sweeps under MPI: killed at random moments and resumed, trainers that die, several ranks each."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import diel, journal, mpirun_diel, results, run_dir, workflow

KILLS = int(os.environ.get("DIEL_SWEEP_KILLS", "6"))
"""How often the job is killed; set it to 100, say, for a longer test."""

TRAINER = """
import ctypes, os, time
def train(parameters, report):
    with open(report.folder / "tried.txt", "a") as file:
        file.write(f"{report.trial}\\n")
    time.sleep(report.options.get("seconds", 0))
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


def trials(folder: Path) -> list[dict[str, Any]]:
    path = run_dir(folder) / "sweeps" / "search.master" / "trials.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def same(records: list[dict[str, Any]]) -> list[Any]:
    keys = ("trial", "state", "parameters", "metrics", "seed")
    return sorted([[record[key] for key in keys] for record in records], key=lambda one: one[0])


# -- killed and resumed ---------------------------------------------------------------------------


def family(pid: int) -> list[int]:
    """Return a process and all that it has started."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(status.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a job as a machine does that goes down: all its processes at once."""
    for one in family(process.pid):
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def recorded(folder: Path) -> set[int]:
    try:
        path = run_dir(folder) / "sweeps" / "search.master" / "trials.jsonl"
        lines = path.read_bytes().split(b"\n")[1:-1]
    except (OSError, ValueError):
        return set()
    return {json.loads(line)["trial"] for line in lines}


@pytest.mark.slow
def test_a_sweep_that_is_killed_again_and_again_is_as_if_it_had_not_been(tmp_path: Path) -> None:
    space = "x = { from = 0, to = 299, step = 1 }"
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for folder in (undisturbed, killed):
        folder.mkdir()
        sweep(folder, space, options="options = { seconds = 0.01 }")
    finished = diel("run", "w.toml", cwd=undisturbed)
    assert finished.status == 0, finished.output
    expected = same(trials(undisturbed))
    assert len(expected) == 300

    moments = random.Random(1)
    count = 0
    command = ["run", "w.toml"]
    done: set[int] = set()
    tried_when_done = Counter[int]()
    while True:
        process = subprocess.Popen(
            [sys.executable, "-m", "diel", *command],
            cwd=killed,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        if count >= KILLS:
            assert process.wait(60) == 0
            break
        # It is killed a moment after it has recorded something new, or had the time to.
        deadline_s = time.monotonic() + 20
        while len(recorded(killed)) <= len(done) and time.monotonic() < deadline_s:
            if process.poll() is not None:
                break
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 1.2 / KILLS))
        kill(process)
        count += 1
        now = recorded(killed)
        assert done <= now  # nothing that was recorded is lost
        tried = Counter(map(int, (killed / "tried.txt").read_text().split()))
        for trial in done:  # nothing that was recorded has run again
            assert tried[trial] == tried_when_done[trial]
        done, tried_when_done = now, tried
        command = ["run", "--resume", str(run_dir(killed))]
    assert 0 < len(done) < 300
    records = trials(killed)
    assert len(records) == 300  # each exactly once
    assert same(records) == expected
    with (run_dir(killed) / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(int(row["trial"]) for row in rows) == list(range(300))
    assert journal(killed)[-1]["event"] == "RunEnded"
    assert sum(one["event"] == "RunResumed" for one in journal(killed)) == KILLS


# -- trainers in trouble --------------------------------------------------------------------------


def test_a_trial_in_a_process_of_its_own_may_die_in_any_way(tmp_path: Path) -> None:
    sweep(
        tmp_path,
        'kind = ["fine", "raises", "segfault", "hangs", "leaves", "eats", "good"]',
        "dangerous",
        'time_limit = 1.5\nmemory_limit = "300 MiB"',
    )
    finished = diel("run", "w.toml", cwd=tmp_path)
    assert finished.status == 0, finished.output
    states = {one["parameters"]["kind"]: one for one in trials(tmp_path)}
    reasons = {kind: one.get("reason", "") for kind, one in states.items()}
    assert reasons["fine"] == reasons["good"] == ""
    assert reasons["raises"] == "ValueError: as it does"
    assert reasons["segfault"] == "died by SIGSEGV"
    assert reasons["hangs"] == "took more than 1.5 s"
    assert reasons["leaves"] == "ended by itself with status 3"
    assert "MiB of memory, more than 300 MiB" in reasons["eats"]
    assert {one["state"] for one in states.values()} == {"finished", "failed"}
    assert "5 of 7 trials failed" in finished.stdout
    own = {int(one["metrics"]["pid"]) for one in states.values() if "pid" in one["metrics"]}
    assert not any(Path(f"/proc/{pid}").exists() for pid in own)  # nobody is left


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("segfault", "died by SIGSEGV"), ("leaves", "ended by itself with status 3")],
)
def test_a_trial_that_kills_its_rank_is_named_and_then_passed_over(
    kind: str, reason: str, tmp_path: Path
) -> None:
    sweep(tmp_path, f'kind = ["fine", "{kind}", "good"]', "dangerous")
    finished = diel("run", "w.toml", cwd=tmp_path)
    assert finished.status == 1
    assert "trial 1 was under way on trainer." in finished.stderr
    assert "isolated = true in the options of trainer" in finished.stderr
    assert f"diel run --resume {run_dir(tmp_path)} goes on" in finished.stderr
    finished = diel("run", "--resume", str(run_dir(tmp_path)), cwd=tmp_path)
    assert finished.status == 0, finished.output
    records = sorted(trials(tmp_path), key=lambda one: one["trial"])
    assert [one["state"] for one in records] == ["finished", "failed", "finished"]
    assert records[1]["reason"] == reason
    assert list((run_dir(tmp_path) / "sweeps").glob("*.under-way")) == []


def test_a_trainer_may_have_several_ranks(tmp_path: Path) -> None:
    sweep(tmp_path, "x = [1, 2, 3, 4, 5]", "together", more="copies = 2\nprocesses = 2")
    finished = diel("run", "w.toml", cwd=tmp_path)
    assert finished.status == 0, finished.output
    rows = {int(row["x"]): row for row in results(tmp_path)}
    assert {x: float(row["score"]) for x, row in rows.items()} == {x: 2.0 * x for x in range(1, 6)}
    assert {row["ranks"] for row in rows.values()} == {"2"}
    assert journal(tmp_path)[-1]["tuples_left"] == 0


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
    assert [one[0] for one in same(trials(tmp_path))] == list(range(40))
    assert len((tmp_path / "tried.txt").read_text().split()) == 40
