"""Hosts and ranks that fall silent: named, and the run ends, where it would wait for good."""

from __future__ import annotations

import os
import platform
import shlex
import signal
import sys
from pathlib import Path

import pytest
from hosts import hosts
from support import (
    check_end,
    execute,
    is_alive,
    journal,
    pid_in,
    records_of,
    started_diel,
    wait_until,
    workflow,
)

MODULES = """
import os, platform, time

def computes(ctx):
    name = f"pid.{platform.node()}.{ctx.copy_index}"
    with open(name + ".new", "w") as file:
        file.write(f"{os.getpid()} ready\\n")
    os.rename(name + ".new", name)
    time.sleep(120)  # no safe point of diel's

def waits(ctx):
    ctx.tuples.tget("never")
"""
DROPPING = """
import time
from pathlib import Path

def puts(ctx):
    Path("begun").touch()
    count, longest_s = 0, 0.0
    while not Path("begun.done").exists():
        time.sleep(0.01)
        put_s = time.monotonic()
        ctx.tuples.tput("number", 1)
        count += 1
        assert ctx.tuples.tget("answer", timeout=60) == count
        longest_s = max(longest_s, time.monotonic() - put_s)
    ctx.tuples.tput("number", None)
    return longest_s

def answers(ctx):
    taken = 0
    while (number := ctx.tuples.tget("number", timeout=60)) is not None:
        taken += number
        ctx.tuples.tput("answer", taken)
"""
DROPPING_TOML = """
[workflow]
heartbeat_timeout = "4 s"
[[module]]
name = "puts"
function = "./m.py:puts"
[[module]]
name = "answers"
function = "./m.py:answers"
[[group]]
name = "g"
modules = ["puts", "answers"]
"""
TOML = """
[workflow]
heartbeat_timeout = "2 s"
[[module]]
name = "busy"
function = "./m.py:computes"
copies = {copies}
[[module]]
name = "idle"
function = "./m.py:waits"
time_limit = "100 s"
[[group]]
name = "g"
modules = ["busy", "idle"]
"""


def lost(folder: Path) -> dict[str, object]:
    """Return the one record of ranks that were lost."""
    (found,) = records_of(folder, "RanksLost")
    return found


def test_a_host_whose_network_is_cut_is_lost(tmp_path: Path) -> None:
    workflow(tmp_path, TOML.format(copies=3), m=MODULES)
    with hosts(2) as two:
        environment = two.environment(slots=3)
        line = two.on("hosta", sys.executable, "-m", "diel", "run", "w.toml", "-n", 6)
        cutter = "while [ ! -e pid.hostb.0 ]; do sleep 0.1; done"
        cut = shlex.join(["ip", *two.port("hostb"), "down"])
        waiting = ["sh", "-c", f'({cutter}; {cut}) & exec "$@"', "sh"]
        done = execute([*waiting, *line], timeout_s=60, cwd=tmp_path, environment=environment)
        assert done.status == 1, done.output
        record = lost(tmp_path)
        assert record["hosts"] == ["hostb"]
        assert record["ranks"] == [3, 4, 5]
        assert "host hostb has not been heard of for 2" in done.stderr
        assert "rank 5 on hostb: busy.2" in done.stderr
        # What is left there ends by itself, and does not meet what is started elsewhere.
        left = [pid_in(file) for file in tmp_path.glob("pid.hostb.*")]
        assert left
        wait_until(lambda: not any(map(is_alive, left)))


@pytest.mark.thorough
def test_a_host_whose_packets_are_dropped_for_less_than_that_is_not_lost(tmp_path: Path) -> None:
    workflow(tmp_path, DROPPING_TOML, m=DROPPING)
    with hosts(2) as two:
        environment = two.environment(slots=2)
        line = two.on("hosta", sys.executable, "-m", "diel", "run", "w.toml", "-n", 4)
        dropping = two.dropping("hostb", after=tmp_path / "begun", times=2, for_s=1)
        line = [*dropping, *line]
        done = execute(line, timeout_s=60, cwd=tmp_path, environment=environment)
    check_end(done, tmp_path)
    records = journal(tmp_path)
    (started,) = [record for record in records if record["event"] == "RunStarted"]
    assert started["nodes"] == [{"host": "hostb", "ranks": [2, 3], "gpus": []}]
    returned = [record["returned"] for record in records if record["event"] == "CopyFinished"]
    assert max(filter(None, returned)) > 0.7  # packets were dropped
    assert not records_of(tmp_path, "RanksLost")
    said = [str(record["text"]) for record in records_of(tmp_path, "MessageLogged")]
    assert not [text for text in said if not text.endswith("slow to answer")]  # as it was


@pytest.mark.thorough
def test_a_rank_that_is_stopped_is_lost(tmp_path: Path) -> None:
    workflow(tmp_path, TOML.format(copies=1), m=MODULES)
    with started_diel("run", "w.toml", cwd=tmp_path) as process:
        pid = pid_in(tmp_path / f"pid.{platform.node()}.0")
        os.kill(pid, signal.SIGSTOP)
        try:
            _, errors = process.communicate(timeout=40)
        finally:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
    assert process.returncode == 1
    assert "rank 2 has not been heard of for 2" in errors
    assert lost(tmp_path)["ranks"] == [2]
    assert not is_alive(pid)
