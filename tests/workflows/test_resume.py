"""Runs that ended too early go on from their last checkpoint."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support import diel, journal, mpirun_diel, results, run_dir, started_diel, wait_until, workflow

MODULES = """\
import os, signal, time
from pathlib import Path

def note(ctx, text):
    with Path("seen.txt").open("a") as file:
        file.write(f"{ctx.group} {ctx.iteration} {text}\\n")

def prepare(ctx):
    ctx.tuples.tput("sum", 0)
    note(ctx, "")

def add(ctx):
    # In its third iteration it fails as the file `how` says, once.
    ctx.results.declare(["iteration", "sum"], objective="sum")
    total = ctx.tuples.tget("sum") + ctx.iteration[-1]
    ctx.tuples.tput("sum", total)
    ctx.results.add({"iteration": ctx.iteration[-1], "sum": total})
    how = Path("how")
    if ctx.iteration[-1] == 1:
        time.sleep(0.5)  # so that the end of this one is saved, but on a slow machine
    if ctx.iteration[-1] == 2 and how.exists():
        text = how.read_text()
        how.unlink()
        if text == "raise":
            raise ValueError("only this once")
        if text == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        Path("waiting").touch()
        ctx.tuples.tget("never", timeout=60)
    note(ctx, total)

def report(ctx):
    note(ctx, "")
    return ctx.tuples.tget("sum")
"""

STUDY = """\
[[module]]
name = "prepare"
function = "./m.py:prepare"
[[module]]
name = "add"
function = "./m.py:add"
[[module]]
name = "report"
function = "./m.py:report"
[[group]]
name = "first"
modules = ["prepare"]
[[group]]
name = "loop"
depends = ["first"]
modules = ["add"]
iterations = 5
[[group]]
name = "last"
depends = ["loop"]
modules = ["report"]
"""


def started(folder: Path, how: str) -> Path:
    """Write the study, which will end in its third iteration; return its file."""
    (folder / "how").write_text(how)
    return workflow(folder, STUDY, m=MODULES)


def check_result(folder: Path) -> None:
    """The study is whole: what the last checkpoint had was not run again, the rest was."""
    records = journal(folder)
    returned = [record["returned"] for record in records if record["event"] == "CopyFinished"]
    assert returned[-1] == 0 + 1 + 2 + 3 + 4
    assert records[-1]["event"] == "RunEnded"
    assert records[-1]["exit_code"] == 0
    before = next(record for record in records if record["event"] == "RunResumed")["finished"]
    done = before["loop"][0][0] + 1 if "loop" in before else 0
    assert "first" in before, "the end of the first group is always saved"
    sums = [f"loop ({index},) {sum(range(index + 1))}" for index in range(5)]
    seen = (folder / "seen.txt").read_text().splitlines()
    assert seen == ["first (0,) ", *sums[:2], *sums[done:], "last (0,) "]
    rows = [(int(row["iteration"]), int(row["sum"])) for row in results(folder)]
    assert rows == [(index, sum(range(index + 1))) for index in range(5)]
    assert len(list((run_dir(folder) / "checkpoints").iterdir())) <= 2


@pytest.mark.sample
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_a_run_that_failed_goes_on_from_its_last_checkpoint(tmp_path: Path, how: str) -> None:
    file = started(tmp_path, how)
    first = diel("run", file, cwd=tmp_path)
    assert first.status == 1, first.output
    directory = run_dir(tmp_path)
    second = diel("run", "--resume", directory, cwd=tmp_path)
    assert second.status == 0, second.output
    check_result(tmp_path)
    third = diel("run", "--resume", directory, cwd=tmp_path)
    assert third.status == 0
    assert "has finished: nothing is left to run" in third.output


def test_a_run_that_was_stopped_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    file = started(tmp_path, "wait")
    again = ("run", file, "--run-dir", "runs/here")
    with started_diel(*again, cwd=tmp_path) as process:
        wait_until(lambda: (tmp_path / "waiting").exists())
        directory = run_dir(tmp_path)
        assert directory.name == "here"
        too_early = diel("run", "--resume", directory, cwd=tmp_path)
        assert too_early.status == 2
        assert "is being written: a run goes on there" in too_early.output
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    resumed = mpirun_diel(5, "run", "--resume", directory, cwd=tmp_path)
    assert resumed.status == 0, resumed.output
    check_result(tmp_path)
    once_more = diel(*again, cwd=tmp_path)
    assert once_more.status == 0
    assert "has finished: nothing is left to run" in once_more.output


def test_what_cannot_be_resumed_is_said(tmp_path: Path) -> None:
    file = started(tmp_path, "raise")
    assert diel("run", file, cwd=tmp_path).status == 1
    directory = run_dir(tmp_path)
    file.write_text(STUDY + "\n# changed\n")
    changed = diel("run", "--resume", directory, cwd=tmp_path)
    assert (changed.status, "is not what it was" in changed.output) == (2, True)
    file.write_text(STUDY)
    (saved,) = sorted((directory / "checkpoints").iterdir())[-1:]
    saved.write_bytes(saved.read_bytes()[:-40])
    damaged = diel("run", "--resume", directory, cwd=tmp_path)
    assert damaged.status == 2, damaged.output
    assert "cannot be resumed" in damaged.output
    (tmp_path / "empty").mkdir()
    for arguments, text in [
        (["--resume", tmp_path / "empty"], "is no run's directory"),
        ([], "say what to run"),
        ([file, "--resume", directory], "name one"),
    ]:
        wrong = diel("run", *arguments, cwd=tmp_path)
        assert wrong.status == 2
        assert text in wrong.output
        assert "Traceback" not in wrong.output
