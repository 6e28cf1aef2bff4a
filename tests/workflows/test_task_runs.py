"""Tasks of executables: whatever fails or is killed, what is done is not done again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest
from support import (
    THOROUGH,
    check_end,
    diel,
    parent_of,
    processes_in,
    records_of,
    run_dir,
    started_diel,
    wait_until,
    workflow,
)

from diel.run.directory import RunDirectory
from diel.run.tasks import _merged

KILLS = 30 if THOROUGH else 2
TASKS = 60
KILLED = f"""\
[[module]]
name = "task"
executable = ["sh", "square.sh", "{{task}}"]
tasks = {TASKS}
copies = 2
[[module]]
name = "sum"
executable = ["sh", "-c", "cat out/* | sort -n > sum.txt; echo >> ran/sum"]
[[module]]
name = "prepare"
executable = ["true"]
[[group]]
name = "before"
modules = ["prepare"]
[[group]]
name = "each"
modules = ["task"]
depends = ["before"]
when = "outcome('before') == 'finished'"
[[group]]
name = "together"
modules = ["sum"]
depends = ["each"]
"""


SQUARE = "echo $1 >> ran/$1; sleep 0.15; echo $(($1 * $1)) > out/$1"


def family(pid: int) -> list[int]:
    """Return the processes that a process has started, and theirs."""
    parents: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(place.name)] = parent_of(int(place.name))
        except (OSError, ValueError, IndexError):  # it has ended
            continue
    found, new = [], {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new}
        found += sorted(new)
    return found


@pytest.mark.slow
def test_no_recorded_task_is_done_twice_whoever_is_killed(tmp_path: Path) -> None:
    """A run is killed at moments that a seed draws: all of it, or one process; then resumed."""
    draw = random.Random(7)
    for folder in ("ran", "out"):
        (tmp_path / folder).mkdir()
    (tmp_path / "square.sh").write_text(SQUARE)
    file = workflow(tmp_path, KILLED)
    recorded: dict[int, int] = {}

    def executions(task: object) -> int:
        ran = tmp_path / "ran" / str(task)
        return len(ran.read_text().splitlines()) if ran.exists() else 0

    def all_executions() -> int:
        return sum(map(executions, range(TASKS)))

    def note_recorded() -> None:
        files = RunDirectory(run_dir(tmp_path)).tasks.glob("*.jsonl")
        for tasks in _merged(files).values():
            for task in tasks:
                recorded.setdefault(task, executions(task))
                assert executions(task) == recorded[task], f"task {task} was recorded, and repeated"

    for kill in range(KILLS):
        line = ["run", "--resume", run_dir(tmp_path)] if kill else ["run", file]
        enough = all_executions() + draw.randint(1, 2)
        with started_diel(*line, cwd=tmp_path) as started:

            def is_over(run: subprocess.Popen[str] = started) -> bool:
                return run.poll() is not None

            wait_until(lambda: is_over() or all_executions() >= enough)  # noqa: B023
            time.sleep(draw.random() * 0.15)
            while not is_over():  # a program that ignores the death of its child goes on
                there = [started.pid, *family(started.pid)]
                for pid in there if draw.random() < 0.4 else [draw.choice(there)]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    started.wait(0.5)
        wait_until(lambda: not processes_in(tmp_path))
        if executions("sum"):
            break
        note_recorded()
    print(
        f"{kill + 1} kills, {all_executions()} executions of {TASKS} tasks, {len(recorded)} noted"
    )
    if not executions("sum"):
        finished = diel("run", "--resume", run_dir(tmp_path), cwd=tmp_path)
        assert finished.status == 0, finished.output
    assert recorded or not THOROUGH
    assert all(executions(task) == count for task, count in recorded.items())
    assert all(executions(task) for task in range(TASKS))
    squares = (tmp_path / "sum.txt").read_text().split()
    assert [int(square) for square in squares] == [task**2 for task in range(TASKS)]


FAILING = """\
[[module]]
name = "case"
executable = ["sh", "-c", "echo {task} >> cases; test -e mended || test {task} != 7 || exit 3"]
tasks = 20
max_failures = "10%"
[[module]]
name = "other"
executable = ["sh", "-c", "echo other >> others"]
[[module]]
name = "table"
function = "./m.py:table"
[[group]]
name = "each"
modules = ["case"]
[[group]]
name = "beside"
modules = ["other"]
depends = ["each"]
[[group]]
name = "together"
modules = ["table"]
depends = ["each"]
"""
TABLE = """\
def table(ctx):
    ctx.results.declare(["cases"], objective="cases")
    ctx.results.add({"cases": len((ctx.folder / "cases").read_text().split())})
"""


@pytest.mark.usefixtures("once")
def test_a_finished_run_repeats_the_tasks_that_failed(tmp_path: Path) -> None:
    finished = diel("run", workflow(tmp_path, FAILING, m=TABLE), cwd=tmp_path)
    check_end(finished, tmp_path)
    assert "19 of 20 tasks, 1 failed: 7" in finished.stdout
    assert f"to repeat what failed: diel run --resume {run_dir(tmp_path)}" in finished.stdout
    (failed,) = records_of(tmp_path, "TaskFailed")
    assert failed["error"].endswith("exited with status 3")
    cases = tmp_path / "cases"
    assert sorted(map(int, cases.read_text().split())) == [*range(20)]

    (tmp_path / "mended").touch()
    again = diel("run", "--resume", run_dir(tmp_path), cwd=tmp_path)
    assert again.status == 0, again.output
    assert "failed" not in again.stdout
    assert sorted(map(int, cases.read_text().split())) == sorted([*range(20), 7])
    # What came after the failed task is done once more, and has its results once.
    assert (run_dir(tmp_path) / "results.csv").read_text().split() == ["cases", "21"]
    assert (tmp_path / "others").read_text().split() == ["other", "other"]
    last = diel("run", "--resume", run_dir(tmp_path), cwd=tmp_path)
    assert "has finished: nothing is left to run" in last.stdout


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_too_many_failed_tasks_fail_the_module(tmp_path: Path) -> None:
    file = workflow(tmp_path, FAILING.replace('"10%"', "0"), m=TABLE)
    finished = diel("run", file, cwd=tmp_path)
    assert finished.status == 1, finished.output
    assert "1 of 20 tasks have failed, and none may (max_failures); task 7: sh" in finished.stderr
    (tmp_path / "mended").touch()
    again = diel("run", "--resume", run_dir(tmp_path), cwd=tmp_path)
    assert again.status == 0, again.output
    done = Counter(map(int, (tmp_path / "cases").read_text().split()))
    assert done[7] == 2
    assert done[0] == done[1] == 1
