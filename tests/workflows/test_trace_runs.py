"""Whole runs, and what they leave for whoever looks at them: traces, accounts, ``diel watch``."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import (
    ROOT,
    WORKFLOWS,
    check_end,
    diel,
    mpirun_diel,
    records_of,
    run_dir,
    wait_until,
    workflow,
)
from trace_rules import checked_events, spans_of

MODULES = """
import time
import numpy as np

def source(ctx):
    time.sleep(0.4)
    for round in range(3):
        ctx.tuples.tput(("field", round), np.zeros(100_000))
    ctx.tuples.tget("done")

def sink(ctx):
    for round in range(3):
        ctx.tuples.tget(("field", round))
    ctx.tuples.tput("done", b"x")

def patient(ctx):
    ctx.tuples.tget("never")

def slow(ctx):
    (ctx.run_dir / "started").touch()
    time.sleep(60)
"""
COUPLED = """
[[module]]
name = "source"
function = "./m.py:source"
[[module]]
name = "sink"
function = "./m.py:sink"
[[group]]
name = "g"
modules = ["source", "sink"]
iterations = 2
"""


def events_of(folder: Path) -> list[dict[str, Any]]:
    return checked_events(run_dir(folder) / "trace.json")


def names(spans: list[dict[str, Any]]) -> list[str]:
    return [span["name"] for span in spans]


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_the_trace_tells_the_story_of_a_pipeline(tmp_path: Path) -> None:
    """Which hands a file to an executable."""
    check_end(diel("run", WORKFLOWS / "pipeline.toml", cwd=tmp_path), tmp_path)
    log = (run_dir(tmp_path) / "logs" / "summary.0.0.log").read_text()
    assert len(re.findall(r"copy \d: 3\.1", log)) == 3
    starts = [record["group"] for record in records_of(tmp_path, "GroupStarted")]
    assert starts == ["estimate", "report"]
    events = events_of(tmp_path)
    estimate, report = spans_of(events, "group")
    assert names([estimate, report]) == ["group estimate 0", "group report 0"]
    assert estimate["ts"] + estimate["dur"] <= report["ts"]
    modules = spans_of(events, "module")
    assert sorted(names(modules)) == [
        "collector.0",
        "sampler.0",
        "sampler.1",
        "sampler.2",
        "summary.0",
    ]
    for module in modules:
        assert module["args"]["ended"] == "finished"
        assert module["dur"] > 0
        # The journal is written while the ranks work already.
        around = report if module["name"] == "summary.0" else estimate
        assert module["args"]["group"] == around["name"].split()[1]
        assert module["ts"] < around["ts"] + around["dur"]
    assert len({module["tid"] for module in modules[:4]}) == 4
    assert modules[-1]["name"] == "summary.0"


def test_waits_and_transfers_are_in_the_trace_and_in_the_account(tmp_path: Path) -> None:
    finished = diel("run", workflow(tmp_path, COUPLED, m=MODULES), cwd=tmp_path)
    assert finished.status == 0, finished.output
    events = events_of(tmp_path)
    waits = [wait for wait in spans_of(events, "wait") if wait["args"].get("tag")]
    assert "wait: tget(('field', 0))" in names(waits)
    first = next(wait for wait in waits if wait["args"]["tag"] == "('field', 0)")
    assert first["dur"] > 0.3e6
    transfers = spans_of(events, "transfer")
    for round in range(3):
        for what in ("send", "receive"):
            (one, two) = [t for t in transfers if t["name"] == f"{what}(('field', {round}))"]
            assert one["args"]["bytes"] == two["args"]["bytes"] == 800_000
    assert spans_of(events, "tuples") == []  # single calls only where that was asked for
    (accounts,) = records_of(tmp_path, "TimeAccounted")
    ranks: list[Any] = accounts["ranks"]  # type: ignore[assignment]
    ran = {rank["rank"]: rank["copies"] for rank in ranks}
    assert ran == {1: ["tuple server"], 2: ["source.0"], 3: ["sink.0"]}
    sink = next(rank for rank in ranks if rank["copies"] == ["sink.0"])
    assert sink["waiting_s"] > 0.6
    assert sink["communicating_s"] > 0
    modules: list[Any] = accounts["modules"]  # type: ignore[assignment]
    assert {module["module"]: module["ranks"] for module in modules} == {"source": 1, "sink": 1}
    table = finished.stdout[finished.stdout.index("what ran there") :].splitlines()
    assert [line.split()[2:4] for line in table[1:3]] == [
        ["tuple", "server"],
        ["source.0", table[2].split()[3]],
    ]


GPUS = """
import numpy as np

def source(ctx):
    import cupy
    field = cupy.asarray(np.arange(1000.0))
    ctx.tuples.tput("field", field)
    ctx.send(field, "sink")

def sink(ctx):
    import cupy
    for receive in (lambda out: ctx.tuples.tget("field", out=out), lambda out: ctx.recv(out=out)):
        out = cupy.asarray(np.zeros(1000))
        assert receive(out) is out
        assert out.get().sum() == 499_500
"""


@pytest.mark.thorough
@pytest.mark.parametrize("is_aware", [False, True])
@pytest.mark.usefixtures("once")
def test_the_way_of_arrays_of_gpus_is_in_the_trace(tmp_path: Path, is_aware: bool) -> None:
    """The GPUs are the stand-in's, whose memory is the host's: any MPI can take its addresses."""
    file = workflow(tmp_path, COUPLED.replace("iterations = 2\n", ""), m=GPUS)
    environment = {
        "PYTHONPATH": str(ROOT / "tests" / "standin"),
        "DIEL_GPU_AWARE_MPI": str(int(is_aware)),
    }
    finished = diel("run", file, cwd=tmp_path, environment=environment)
    assert finished.status == 0, finished.output
    found = [
        (name, event["args"].get("bytes"))
        for event in spans_of(events_of(tmp_path), "transfer")
        if " the GPU, " in (name := event["name"])
    ]
    message = "GPU-aware MPI" if is_aware else "through pinned memory"
    assert sorted(found) == sorted(
        [
            ("from the GPU, through pinned memory('field')", 8000),
            ("to the GPU, through pinned memory('field')", 8000),
            (f"from the GPU, {message}", 8000),
            (f"to the GPU, {message}", 8000),
        ]
    )


def test_every_call_is_traced_where_that_is_asked_for(tmp_path: Path) -> None:
    """Under a bare mpirun, where rank 0 writes the trace."""
    finished = mpirun_diel(
        4, "run", "--trace", workflow(tmp_path, COUPLED, m=MODULES), cwd=tmp_path
    )
    assert finished.status == 0, finished.output
    events = events_of(tmp_path)
    calls = spans_of(events, "tuples")
    for name in ("tput(('field', 2))", "tget(('field', 2))", "tput('done')", "tget('done')"):
        assert names(calls).count(name) == 2, name  # once in each iteration
    small = next(call for call in calls if call["name"] == "tput('done')")
    assert small["args"] == {"tag": "'done'", "bytes": 1}


@pytest.mark.usefixtures("once")
def test_a_run_is_watched_from_another_terminal(tmp_path: Path) -> None:
    toml = """
[[module]]
name = "slow"
function = "./m.py:slow"
[[module]]
name = "patient"
function = "./m.py:patient"
[[module]]
name = "source"
function = "./m.py:source"
[[group]]
name = "g"
modules = ["slow", "patient", "source"]
"""
    file = workflow(tmp_path, toml, m=MODULES)
    running = subprocess.Popen(
        [sys.executable, "-m", "diel", "run", file],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    shown = ""

    def tells_of_waits() -> bool:
        nonlocal shown
        if not (tmp_path / "runs").is_dir():
            return False
        watched = diel("watch", "--once", cwd=tmp_path)
        assert (watched.status, watched.stderr) == (0, "")
        shown = watched.stdout
        return "waits: tget('never')" in shown and "waits: tget('done')" in shown

    try:
        wait_until(tells_of_waits)
        assert "3 tuples, 2.3 MiB of" in shown
        assert "slow.0" in shown
        until_the_end = subprocess.Popen(
            [sys.executable, "-m", "diel", "watch"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        (run_dir(tmp_path) / "stop").touch()
        text, _ = until_the_end.communicate(timeout=60)
        assert until_the_end.returncode == 0
        assert "was a stop" in text or "stopped" in text
    finally:
        if running.poll() is None:
            try:
                running.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    assert diel("trace", run_dir(tmp_path), cwd=tmp_path).status == 0
    ended = {
        module["name"]: module["args"]["ended"]
        for module in spans_of(events_of(tmp_path), "module")
    }
    # The one that sleeps has heard nothing and was aborted.
    assert ended == {"slow.0": "cut short", "patient.0": "stopped", "source.0": "stopped"}
