"""Modules that fail, and runs that are stopped: named at the root, ended in time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import (
    diel,
    is_alive,
    journal,
    mpiexec,
    mpirun_diel,
    pid_in,
    processes_in,
    records_of,
    run_dir,
    started_diel,
    wait_until,
    workflow,
)

from diel.exit_codes import NOT_FINISHED, STOPPED

MODULES = """\
import time

def fails(ctx):
    time.sleep(0.3)
    raise ValueError("the flow diverged")

def fails_on_rank_1(ctx):
    if ctx.comm.rank == 1:
        raise ValueError("only here")
    computes(ctx)

def waits(ctx):
    ctx.tuples.tget("a tuple that never comes")

def waits_and_raises_something_else(ctx):
    try:
        ctx.tuples.tget("a tuple that never comes")
    except Exception:
        raise KeyError("a consequence")

def computes(ctx):
    time.sleep(60)  # no less deaf than a loop, and others have the core meanwhile

def receives(ctx):
    ctx.comm.recv(source=0)
"""


def entry(name: str, function: str, **keys: object) -> str:
    lines = [f'[[module]]\nname = "{name}"\nfunction = "./m.py:{function}"']
    return "\n".join([*lines, *(f"{key} = {value}" for key, value in keys.items())]) + "\n"


def program(name: str, *command: str) -> str:
    return f'[[module]]\nname = "{name}"\nexecutable = {list(command)!r}\n'


def one_group(*entries: str) -> str:
    names = [text.split('"')[1] for text in entries]
    return "".join(entries) + f'[[group]]\nname = "g"\nmodules = {names!r}\n'.replace("'", '"')


def failures(folder: Path) -> list[dict[str, object]]:
    return records_of(folder, "ModuleFailed")


@pytest.mark.sample
@pytest.mark.parametrize("start", ["diel", "mpirun"])
def test_a_module_that_raises(start: str, tmp_path: Path) -> None:
    toml = one_group(
        entry("bad", "fails"),
        entry("waiter", "waits", copies=2),
        entry("follower", "waits_and_raises_something_else"),
        program("sleeper", "sleep", "60"),
    )
    workflow(tmp_path, toml, m=MODULES)
    if start == "diel":
        finished = diel("run", "w.toml", cwd=tmp_path)
    else:
        finished = mpirun_diel(7, "run", "w.toml", cwd=tmp_path)
    assert finished.status == 1, finished.output
    (failure,) = failures(tmp_path)
    assert failure["module"] == "bad"
    assert failure["copy"] == 0
    assert failure["rank"] == 2
    assert failure["host"] in finished.stderr
    assert "module 'bad' failed: ValueError: the flow diverged" in finished.stderr
    assert "rank 2" in finished.stderr
    assert "in fails" in finished.stderr  # its traceback ...
    assert "in fails" in failure["detail"]
    assert "worker.py" not in finished.stderr  # ... without our frames
    assert "a consequence" not in finished.output
    assert finished.output.count("failed:") == 1
    events = [record["event"] for record in journal(tmp_path)]
    assert events[events.index("StopOrdered") :] == ["StopOrdered", "TimeAccounted", "RunEnded"]
    trace = json.loads((run_dir(tmp_path) / "trace.json").read_text())["traceEvents"]
    spans = {span["name"]: span["args"] for span in trace if "ended" in span.get("args", {})}
    assert {name for name, facts in spans.items() if facts["ended"] == "failed"} == {"bad.0"}
    assert {name for name, facts in spans.items() if facts["ended"] == "stopped"} == {
        *("waiter.0", "waiter.1", "follower.0", "sleeper.0")
    }
    assert not records_of(tmp_path, "RanksAborted")


def test_ranks_that_never_listen_are_aborted_after_5_s(tmp_path: Path) -> None:
    toml = one_group(entry("bad", "fails"), entry("busy", "computes"), entry("deaf", "receives"))
    workflow(tmp_path, toml, m=MODULES)
    finished = diel("run", "w.toml", cwd=tmp_path)
    assert finished.status == 1, finished.output
    assert finished.seconds > 5
    assert [failure["module"] for failure in failures(tmp_path)] == ["bad"]
    (aborted,) = records_of(tmp_path, "RanksAborted")
    assert aborted["ranks"] == [3, 4]
    assert "MPI_Abort" in (run_dir(tmp_path) / "logs" / "launcher.log").read_text().replace(
        "MPI_ABORT", "MPI_Abort"
    )
    assert "ABORT" not in finished.output.upper()  # the launcher's words stay in its log


@pytest.mark.thorough
def test_under_mpirun_the_cause_comes_before_the_launchers_words(tmp_path: Path) -> None:
    toml = one_group(entry("bad", "fails_on_rank_1", processes=2))
    workflow(tmp_path, toml, m=MODULES)
    finished = mpirun_diel(4, "run", "w.toml", cwd=tmp_path)
    assert finished.status != 0
    (failure,) = failures(tmp_path)
    assert (failure["rank"], failure["copy_rank"]) == (3, 1)
    assert "ValueError: only here" in finished.stderr
    words = finished.stderr.upper()
    if "ABORT" in words:
        assert words.index("ONLY HERE") < words.index("ABORT")


WITHOUT_MEMORY = """\
import diel.cli.run, diel.executive.worker

def no_memory(*_, **__):
    raise MemoryError

def fails(ctx):
    diel.executive.worker.detail = no_memory  # it cannot even be told that it failed
    if ctx.options["is_mute"]:
        diel.cli.run._end_in_words = no_memory
    raise ValueError("why")

def waits(ctx):
    ctx.tuples.tget("never", timeout=60)
"""


@pytest.mark.sample
@pytest.mark.parametrize("is_mute", ["false", "true"])
def test_a_rank_without_memory_for_words_ends_the_run(is_mute: str, tmp_path: Path) -> None:
    fails = entry("bad", "fails", options=f"{{ is_mute = {is_mute} }}")
    workflow(tmp_path, one_group(fails, entry("other", "waits")), m=WITHOUT_MEMORY)
    finished = diel("run", "w.toml", cwd=tmp_path, timeout_s=50)
    assert finished.status not in (0, 2)
    log = (run_dir(tmp_path) / "logs" / "launcher.log").read_text()
    assert ("has no memory left (MemoryError), so the run ends" in log) == (is_mute == "false")


@pytest.mark.sample
@pytest.mark.parametrize(
    ("number", "exit_code"),
    [(signal.SIGINT, STOPPED), (signal.SIGUSR1, NOT_FINISHED)],
)
def test_a_signal_stops_the_run_and_its_children(
    number: signal.Signals, exit_code: int, tmp_path: Path
) -> None:
    """Also a module in MPI, a program with a child, and one that waits in ``diel tuple``."""
    marker = f"{60 + os.getpid() % 1000 / 1000:.3f}"  # finds our own children again
    toml = one_group(
        entry("waiter", "waits"),
        program("sleeper", "sh", "-c", f"sleep {marker} & sleep {marker}"),
        program("asker", "sh", "-c", "echo $$ ready > pid; diel tuple get never; echo went on"),
    )
    workflow(tmp_path, f'[workflow]\ncheckpoint_every = "1 h"\n{toml}', m=MODULES)
    # A run leaves alone what is ignored where it starts, as SIGHUP is under nohup.
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with started_diel("run", "w.toml", cwd=tmp_path) as process:
            wait_until(lambda: _running(marker))
            asker = pid_in(tmp_path / "pid")
            process.send_signal(number)
            stdout, stderr = process.communicate(timeout=30)
    finally:
        signal.signal(number, before)
    assert process.returncode == exit_code, stderr
    assert "was stopped" in stdout
    assert not _running(marker)
    assert not is_alive(asker)
    assert (run_dir(tmp_path) / "logs" / "asker.0.0.log").read_text() == ""
    records = journal(tmp_path)
    assert records[-1]["exit_code"] == exit_code
    assert "CheckpointSaved" in [record["event"] for record in records]


@pytest.mark.sample
@pytest.mark.parametrize("what", ["the folder", "the journal"])
def test_a_run_whose_records_are_lost_is_ended_and_says_so(what: str, tmp_path: Path) -> None:
    marker = f"{90 + os.getpid() % 1000 / 1000:.3f}"
    toml = one_group(entry("waiter", "waits"), program("sleeper", "sleep", marker))
    workflow(tmp_path, toml, m=MODULES)
    with started_diel("run", "w.toml", cwd=tmp_path) as process:
        wait_until(lambda: _running(marker))
        folder = run_dir(tmp_path)
        if what == "the folder":
            # At once: what the run writes while a folder is emptied would keep it.
            folder.rename(tmp_path / "removed")
            told = f"diel: {folder} was removed while the run went on"
        else:
            os.truncate(folder / "journal.jsonl", 0)
            told = f"diel: {folder / 'journal.jsonl'} was cut short while the run went on"
        stdout, stderr = process.communicate(timeout=15)
    assert process.returncode == 1, stderr
    (line,) = stderr.strip().splitlines()
    assert line.startswith(told)
    assert line.endswith("Start the workflow again")
    assert "w failed after" in stdout
    assert "--resume" not in stdout
    assert "Traceback" not in stdout
    assert not _running(marker)
    assert folder.exists() == (what == "the journal")
    if folder.exists():
        written = (folder / "logs" / "launcher.log").read_text()
        assert "Traceback" not in written


def test_a_rank_that_ends_by_itself_is_reported(tmp_path: Path) -> None:
    """`test_resume.py` has one that is killed."""
    workflow(
        tmp_path, one_group(entry("bad", "run")), m="import os\ndef run(ctx):\n    os._exit(3)\n"
    )
    finished = diel("run", "w.toml", cwd=tmp_path)
    assert finished.status == 1
    assert f"to go on with it: diel run --resume {run_dir(tmp_path)}" in finished.stderr
    assert "Traceback" not in finished.output
    told = f"diel: module bad.0 crashed: os._exit(3) at {tmp_path / 'm.py'}, line 3, in run"
    assert told in finished.stderr
    assert "launcher |" not in finished.stderr


def _running(marker: str) -> bool:
    found = subprocess.run(["pgrep", "-f", f"^sleep {marker}"], capture_output=True, check=False)
    return found.returncode == 0


@pytest.mark.sample
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_a_bare_mpirun_ends_every_rank(number: signal.Signals, tmp_path: Path) -> None:
    """Open MPI kills ranks at once, MPICH never: both ways they end, and the journal is whole."""
    marker = f"{70 + os.getpid() % 1000 / 1000:.3f}"
    toml = one_group(entry("busy", "computes"), program("sleeper", "sleep", marker))
    workflow(tmp_path, toml, m=MODULES)
    process = subprocess.Popen(
        [*mpiexec(4), sys.executable, "-m", "diel", "run", "w.toml"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(lambda: _running(marker))
        process.send_signal(number)
        assert process.wait(12) != 0
        wait_until(lambda: not _running(marker), 5)
        assert not processes_in(tmp_path), "a rank has outlived the run"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert journal(tmp_path)[0]["event"] == "RunStarted"


def test_when_the_command_itself_is_killed_nothing_is_left(tmp_path: Path) -> None:
    marker = f"{80 + os.getpid() % 1000 / 1000:.3f}"
    toml = one_group(entry("busy", "computes"), program("sleeper", "sleep", marker))
    workflow(tmp_path, toml, m=MODULES)
    with started_diel("run", "w.toml", cwd=tmp_path):
        wait_until(lambda: _running(marker))
    wait_until(lambda: not processes_in(tmp_path), 10)
    assert not _running(marker)
