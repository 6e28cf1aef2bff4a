"""Runs that ended too early are shown so, and go on from their last checkpoint."""

from __future__ import annotations

import contextlib
import io
import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import (
    Finished,
    diel,
    journal,
    mpirun_diel,
    records_of,
    results,
    run_dir,
    started_diel,
    status_of,
    wait_until,
    workflow,
)
from trace_rules import checked_events, spans_of

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


@dataclass(frozen=True)
class Story:
    """A run that has ended too early, was looked at, was refused to go on, and went on."""

    folder: Path
    first: Finished
    losses: list[dict[str, Any]]
    trace: list[dict[str, Any]]
    watched: Finished
    listed: dict[str, Any]
    refused: dict[str, tuple[object, str]]
    second: Finished
    third: Finished


def said(*arguments: object) -> tuple[object, str]:
    """Run the command line in this process; return its exit status and what it has printed."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        status = status_of(*arguments)
    return status, out.getvalue()


def story(folder: Path, how: str, *options: object) -> Story:
    file = started(folder, how)
    first = diel("run", *options, file, cwd=folder)
    directory = run_dir(folder)
    losses = records_of(folder, "RunLost")
    trace = checked_events(directory / "trace.json")
    watched = diel("watch", "--once", cwd=folder)
    (listed,) = json.loads(diel("runs", "--json", cwd=folder).stdout)
    file.write_text(STUDY.replace("iterations = 5", "iterations = 6"))
    refused = {"changed": said("run", "--resume", directory)}
    file.write_text(STUDY.replace('"add"\n', '"add"\ntime_limit = "10 min"  # new\n', 1))
    saved = sorted((directory / "checkpoints").iterdir())[-1]
    whole = saved.read_bytes()
    saved.write_bytes(whole[:-40])
    refused["damaged"] = said("run", "--resume", directory)
    saved.write_bytes(whole)
    second = diel("run", "--resume", directory, cwd=folder)
    third = diel("run", "--resume", directory, cwd=folder)
    return Story(folder, first, losses, trace, watched, listed, refused, second, third)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """A module has raised; the run may start again by itself, but not for that."""
    return story(tmp_path_factory.mktemp("failed"), "raise", "--restarts", 9)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return story(tmp_path_factory.mktemp("killed"), "kill")


@pytest.mark.usefixtures("once")
def test_a_run_that_failed_is_shown(failed: Story) -> None:
    assert failed.first.status == 1, failed.first.output
    assert "module 'add' failed: ValueError: only this once" in failed.first.stderr
    assert failed.losses == []  # what the run itself has ended is not done again
    check_cut_short(failed, "failed", "failed")
    assert failed.listed["reason"] == "add.0: ValueError: only this once"
    assert "add.0 failed: ValueError: only this once" in failed.watched.stdout


@pytest.mark.thorough
def test_a_run_whose_rank_was_killed_is_shown(killed: Story) -> None:
    assert killed.first.status == 1, killed.first.output
    assert "was killed by SIGKILL" in killed.first.stderr
    assert "launcher |" in killed.first.stderr
    go_on = f"to go on with it: diel run --resume {run_dir(killed.folder)}"
    assert go_on in killed.first.stderr
    assert "Traceback" not in killed.first.output
    check_cut_short(killed, "killed", "cut short")
    assert "add.0 failed" not in killed.watched.stdout


def check_cut_short(story: Story, state: str, ended: str) -> None:
    """The trace, ``diel watch`` and ``diel runs`` say how the run and its last module ended."""
    last = max(spans_of(story.trace, "module"), key=lambda span: span["ts"])
    assert (last["name"], last["args"]["ended"]) == ("add.0", ended)
    around = max(spans_of(story.trace, "group"), key=lambda span: span["ts"])
    assert around["args"]["ended_by"] == "cut short"
    assert (story.watched.status, story.watched.stderr) == (0, "")
    assert state in story.watched.stdout
    assert story.listed["state"] == state


@pytest.mark.usefixtures("once")
def test_a_run_that_failed_goes_on_from_its_last_checkpoint(failed: Story) -> None:
    check_went_on(failed)
    spans = [
        span
        for span in spans_of(checked_events(run_dir(failed.folder) / "trace.json"), "module")
        if span["name"] == "add.0"
    ]
    ends = [span["args"]["ended"] for span in sorted(spans, key=lambda span: span["ts"])]
    assert ends.count("failed") == 1
    assert ends[-1] == "finished"  # it goes on in its trace


@pytest.mark.thorough
def test_a_run_whose_rank_was_killed_goes_on_from_its_last_checkpoint(killed: Story) -> None:
    check_went_on(killed)


def check_went_on(story: Story) -> None:
    assert story.second.status == 0, story.second.output
    check_result(story.folder)
    assert story.third.status == 0
    assert "has finished: nothing is left to run" in story.third.output


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


@pytest.mark.usefixtures("once")
def test_what_cannot_be_resumed_is_said(failed: Story, tmp_path: Path) -> None:
    for what, words in (
        ("changed", "group.loop.iterations is 6, and was 5"),
        ("damaged", "cannot be resumed"),
    ):
        status, output = failed.refused[what]
        assert (status, words in output) == (2, True), output
    file = workflow(tmp_path, STUDY, m=MODULES)
    (tmp_path / "empty").mkdir()
    for arguments, words in [
        (["--resume", tmp_path / "empty"], "is no run's directory"),
        ([], "say what to run"),
        ([file, "--resume", run_dir(failed.folder)], "name one"),
    ]:
        status, output = said("run", *arguments)
        assert (status, words in output) == (2, True), output
        assert "Traceback" not in output
