"""Several runs and one sweep: some share it, one joins it, and two of them are killed."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import diel, wait_until
from workflows.kills import family
from workflows.test_sweep_runs import sweep

from modules.trial import trial_seed

TRIALS = 300
WAITS = """
import time
from pathlib import Path
def train(parameters, report):
    deadline_s = time.monotonic() + 0.25
    while time.monotonic() < deadline_s and not (report.folder / "hurry").exists():
        time.sleep(0.01)
    return {"score": parameters["x"] + report.seed * 1e-12}
"""


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a job as a machine does that goes down: all its processes at once."""
    for pid in family(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def records_in(ledger: Path) -> list[dict[str, Any]]:
    if not ledger.exists():
        return []
    return [json.loads(line) for line in ledger.read_bytes().split(b"\n")[1:-1]]


@pytest.mark.usefixtures("once")
def test_runs_share_a_sweep_whoever_is_killed(tmp_path: Path) -> None:
    sweep(tmp_path, f"x = {{ from = 0, to = {TRIALS - 1}, step = 1 }}", more="copies = 1")
    (tmp_path / "m.py").write_text(WAITS)
    folder = tmp_path / "shared" / "sweeps" / "search.master"
    ledger, terms = folder / "trials.jsonl", folder / "terms"
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: object) -> subprocess.Popen[bytes]:
        with (tmp_path / f"{name}.out").open("wb") as out:
            command = [sys.executable, "-m", "diel", *map(str, arguments)]
            process = subprocess.Popen(
                command, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )
        started.append(process)
        return process

    def workers_with_trials(after: int = 0) -> set[str]:
        return {record.get("worker", "") for record in records_in(ledger)[after:]}

    try:
        runs = {
            name: start(
                name, "run", "w.toml", "--share", "shared", "--runs", name, "--silence", "4"
            )
            for name in ("a", "b")
        }
        wait_until(lambda: len(workers_with_trials()) == 2, 100)
        # Where a run takes seconds to begin, another may have led since.
        term = max(int(file.name) for file in terms.iterdir() if file.name.isdigit())
        leads = json.loads((terms / f"{term:06d}").read_bytes())["run_dir"]
        leader, other = ("a", "b") if f"{tmp_path}/a/" in leads else ("b", "a")

        joined = start("c", "join", other, "--silence", "2")
        wait_until(lambda: len(workers_with_trials()) == 3, 60)
        kill(runs[leader])
        count = len(records_in(ledger))
        wait_until(lambda: (terms / f"{term + 1:06d}").exists(), 60)
        wait_until(lambda: len(workers_with_trials(count) - {""}) == 1, 60)  # the one that joined
        kill(joined)

        (tmp_path / "hurry").touch()
        assert runs[other].wait(60) == 0, (tmp_path / f"{other}.out").read_text()
    finally:
        for process in started:
            kill(process)
    (run,) = (tmp_path / other).iterdir()
    records = records_in(run / "sweeps" / "search.master" / "trials.jsonl")
    assert sorted(record["trial"] for record in records) == list(range(TRIALS))
    for record in records:
        seed = trial_seed(9, record["trial"])
        expected = (record["trial"], seed, {"score": record["trial"] + seed * 1e-12})
        assert (record["parameters"]["x"], record["seed"], record["metrics"]) == expected
    with (run / "results.csv").open(newline="") as file:
        assert sorted(int(row["trial"]) for row in csv.DictReader(file)) == list(range(TRIALS))
    listed = diel("workers", other, cwd=tmp_path).stdout
    assert listed.count("search.master") >= 2  # the run that led at last, before, and who joined
    assert diel("join", other, cwd=tmp_path).output.endswith(
        "has finished: there is no sweep to join\n"
    )
