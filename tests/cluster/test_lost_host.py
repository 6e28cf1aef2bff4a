"""A host that is gone: the run goes on with the ranks of the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import hosts, ip
from support import records_of, results, run_dir, wait_until, workflow

TRAINER = """
import time
def train(parameters, report):
    time.sleep(0.05)
    return {"score": parameters["x"]}
"""
SWEEP = """\
[workflow]
restarts = 2
[[module]]
name = "master"
function = "modules.master:run"
options.objective = "score"
options.maximise = true
options.space.x = { from = 1, to = 60, step = 1 }
[[module]]
name = "trainer"
function = "modules.trainer:run"
copies = "fill"
options.train = "./m.py:train"
[[group]]
name = "search"
modules = ["master", "trainer"]
"""


def has_begun(folder: Path) -> bool:
    ledgers = list(folder.glob("runs/*/sweeps/*/trials.jsonl"))
    return bool(ledgers) and len(ledgers[0].read_bytes().splitlines()) > 3


@pytest.mark.thorough
def test_a_run_goes_on_without_a_host_that_is_gone(tmp_path: Path) -> None:
    workflow(tmp_path, SWEEP, m=TRAINER)
    with hosts(2) as two:
        line = two.on("hosta", sys.executable, "-m", "diel", "run", "-n", 8, "w.toml")
        process = subprocess.Popen(
            [str(word) for word in line],
            cwd=tmp_path,
            env={**os.environ, **two.environment(slots=4)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            wait_until(lambda: has_begun(tmp_path))
            two.kill("hostb")
            ip("netns", "del", "hostb")
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, output
    (lost,) = records_of(tmp_path, "RunLost")
    assert "hostb" in str(lost["explanation"])
    assert (lost["restart"], lost["on_ranks"]) == (1, 4)
    assert sorted(float(row["score"]) for row in results(tmp_path)) == list(range(1, 61))
    assert "restarted once" in output, run_dir(tmp_path)
