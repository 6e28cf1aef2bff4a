"""``diel runs`` on real runs: going on, finished, killed; `test_resume.py` has failures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import diel, records_of, run_dir, workflow

SEEN_FROM_WITHIN = """
import subprocess, sys
def run(ctx):
    command = [sys.executable, "-m", "diel", "runs", ctx.run_dir, "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
"""

# All that mpiexec has started: the executive is not asked either.
KILLS = """
import os, signal
from pathlib import Path
def run(ctx):
    ranks = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getppid() and int(status.parent.name) != os.getpid():
            ranks.append(int(status.parent.name))
    for rank in [*ranks, os.getpid()]:
        os.kill(rank, signal.SIGKILL)
"""

WORKFLOW = """
[[module]]
name = "m"
function = "./m.py:run"
[[group]]
name = "g"
modules = ["m"]
"""


def listed(folder: Path) -> dict[str, object]:
    finished = diel("runs", "--json", cwd=folder)
    assert finished.status == 0, finished.output
    (only,) = json.loads(finished.stdout)
    return only


@pytest.mark.usefixtures("once")
def test_while_it_runs_and_afterwards(tmp_path: Path) -> None:
    finished = diel("run", workflow(tmp_path, WORKFLOW, m=SEEN_FROM_WITHIN), cwd=tmp_path)
    assert finished.status == 0, finished.output
    (record,) = records_of(tmp_path, "CopyFinished")
    (then,) = json.loads(str(record["returned"]))
    assert (then["state"], then["workflow"], then["ranks"]) == ("running", "w", 3)
    assert then["path"] == str(run_dir(tmp_path))
    now = listed(tmp_path)
    assert (now["state"], now["reason"]) == ("finished", "")
    assert now["duration_s"] >= then["duration_s"]


@pytest.mark.thorough
def test_after_all_ranks_were_killed(tmp_path: Path) -> None:
    assert diel("run", workflow(tmp_path, WORKFLOW, m=KILLS), cwd=tmp_path).status == 1
    assert listed(tmp_path)["state"] == "killed"
