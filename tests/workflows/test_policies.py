"""What follows a failure: stop, continue, retries and time limits, on real ranks."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support import Finished, diel, journal, records_of, run_dir, workflow

MODULES = """
import time
from diel.errors import CopyStopped, RunStopped

def fails_twice(ctx):
    attempt = ctx.tuples.increment(("attempts", ctx.comm.rank))
    ctx.comm.Barrier()  # both have counted: whoever fails does not stop the other before
    if attempt == 1 and ctx.comm.rank == 1:
        raise ValueError("rank 1 at first")
    if attempt == 2 and ctx.comm.rank == 0:
        raise ValueError("rank 0 then")
    if attempt < 3:  # the other rank waits, in the tuple space or for an end of all
        if ctx.comm.rank == 0:
            ctx.tuples.tget("never")
        return None
    ctx.tuples.tput(("fine", ctx.comm.rank), attempt)
    return [int(ctx.comm.allreduce(attempt)), ctx.tuples.tget(("fine", ctx.comm.rank), timeout=20)]

def clean(ctx):
    # What the earlier attempts waited for is nobody's: it is there for whoever comes next.
    ctx.tuples.tput("never", "mine")
    return ctx.tuples.tget("never", timeout=20)

def holds_and_fails(ctx):
    news = ctx.tuples.subscribe("news")
    claim = ctx.tuples.claim("job")  # without "with": it goes back when its holder fails
    raise ValueError("with a claim")

def counts(ctx):
    return ctx.tuples.tget("job", timeout=20)

def puts_a_job(ctx):
    ctx.tuples.tput("job", 42)

def shares(ctx):
    comm = ctx.module_comm
    attempt = ctx.tuples.increment(("shared", ctx.copy_index))
    if attempt == 1 and ctx.copy_index == 1:
        raise ValueError("one of those who share")
    if attempt == 1:
        ctx.tuples.tget("never to come")
    return int(comm.allreduce(1))

def waits(ctx):
    try:
        ctx.tuples.tget("a tuple that never comes")
    except CopyStopped as error:
        ctx.log.info("told: %s", error)
        raise

def computes(ctx):
    time.sleep(60)  # no less deaf than a loop, and others have the core meanwhile

def fine(ctx):
    return "fine"

def waits_then_helps(ctx):
    if ctx.tuples.increment(("waited", ctx.copy_index)) == 1:
        ctx.tuples.tget("a tuple that the second attempt puts")
    ctx.tuples.tput("a tuple that the second attempt puts", 1)
    ctx.tuples.tput("help", 1)

def needs_help(ctx):
    return ctx.tuples.tget("help")

def fails_beside_one_that_computes(ctx):
    if ctx.comm.rank == 0:
        raise ValueError("the flow diverged")
    computes(ctx)
"""


def entry(name: str, function: str, **keys: object) -> str:
    lines = [f'[[module]]\nname = "{name}"\nfunction = "./m.py:{function}"']
    return "\n".join([*lines, *(f"{key} = {value}" for key, value in keys.items())]) + "\n"


def program(name: str, keys: str) -> str:
    """Return the entry of a program that has 150 MiB in memory."""
    code = "held = bytearray(150 << 20); import time; time.sleep(4)"
    words = [sys.executable, "-I", "-S", "-c", code]
    return f'[[module]]\nname = "{name}"\nexecutable = {json.dumps(words)}\n{keys}\n'


def group(name: str, *modules: str, depends: str = "") -> str:
    text = f'[[group]]\nname = "{name}"\nmodules = {list(modules)!r}\n'.replace("'", '"')
    return text + (f'depends = ["{depends}"]\n' if depends else "")


def returned(folder: Path) -> dict[str, Any]:
    return {
        f"{record['module']}.{record['copy']}": record["returned"]
        for record in records_of(folder, "CopyFinished")
    }


@pytest.fixture(scope="module")
def went_on(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """Return the folder of one run of groups one after the other, and how the command ended."""
    folder = tmp_path_factory.mktemp("went_on")
    groups = {
        "again": ["flaky"],
        "after": ["clean"],
        "together": ["shares"],
        "jobs": ["job"],
        "held": ["holder"],
        "given-back": ["counts"],
        "limited": ["waiter", "sleeper"],
        "fed": ["hungry", "glutton"],
        "then": ["fine"],
        "last": ["helper", "needy"],  # nobody else runs, so that all wait
    }
    toml = (
        entry("flaky", "fails_twice", processes=2, retries=2)
        + entry("clean", "clean", processes=1)
        + entry("shares", "shares", copies=2, retries=1)
        + entry("job", "puts_a_job")
        + entry("holder", "holds_and_fails", on_failure='"continue"', retries=1)
        + entry("counts", "counts")
        + entry("waiter", "waits", time_limit=0.5, on_failure='"continue"', copies=2)
        + '[[module]]\nname = "sleeper"\nexecutable = ["sleep", "60"]\n'
        'time_limit = "700 ms"\non_failure = "continue"\nprocesses = 2\n'
        + program("hungry", 'memory = "100 MiB"\nretries = 1\nretry_memory = 4')
        + program("glutton", 'memory = "100 MiB"\non_failure = "continue"')
        + entry("fine", "fine", time_limit='"1 h"')
        + entry("helper", "waits_then_helps", time_limit=4, retries=1)
        + entry("needy", "needs_help")
    )
    for (name, modules), before in zip(groups.items(), ["", *groups], strict=False):
        toml += group(name, *modules, depends=before)
    finished = diel("run", workflow(folder, toml, m=MODULES), cwd=folder)
    assert finished.status == 0, finished.output
    assert finished.stderr == ""
    return folder, finished


def failures(folder: Path, module: str) -> list[tuple[object, ...]]:
    return [
        tuple(record[key] for key in ("copy", "attempt", "copy_rank", "policy"))
        for record in records_of(folder, "ModuleFailed", module=module)
    ]


def test_copies_start_again_on_clean_ranks(went_on: tuple[Path, Finished]) -> None:
    """Of two ranks, of those that share a communicator, and of one that held a claim."""
    folder, finished = went_on
    assert failures(folder, "flaky") == [(0, 1, 1, "retry"), (0, 2, 0, "retry")]
    assert failures(folder, "shares") == [(1, 1, 0, "retry")]
    assert failures(folder, "holder") == [(0, 1, 0, "retry"), (0, 2, 0, "continue")]
    (again,) = records_of(folder, "CopiesRestarted", module="shares")
    assert again["copies"] == [0, 1]
    assert again["attempt"] == 2
    found = returned(folder)
    assert (found["flaky.0"], found["clean.0"]) == ([6, 3], "mine")
    assert (found["shares.0"], found["shares.1"]) == (2, 2)
    assert found["counts.0"] == 42
    assert "holder.0" not in found
    (flaky,) = records_of(folder, "CopyFinished", module="flaky")
    assert flaky["attempt"] == 3
    assert "holder.0 (group held, 2 attempts): ValueError: with a claim" in finished.stdout
    assert "shares.1 failed at attempt 1, starts again, with all copies" in finished.stdout


def test_time_limits_end_what_waits_and_programs(went_on: tuple[Path, Finished]) -> None:
    folder, finished = went_on
    errors = {
        (record["module"], record["copy"]): record["error"]
        for record in records_of(folder, "ModuleFailed", group="limited")
    }
    assert errors == {
        ("waiter", 0): "time limit of 0.5 s exceeded",
        ("waiter", 1): "time limit of 0.5 s exceeded",
        ("sleeper", 0): "time limit of 0.7 s exceeded",
    }
    assert len(records_of(folder, "CopyGivenUp", group="limited")) == 3
    assert returned(folder)["fine.0"] == "fine"
    assert "told: the copy" in (run_dir(folder) / "logs" / "waiter.0.0.log").read_text()
    assert "went on without 5 copies that failed:" in finished.stdout


def test_a_program_with_too_much_memory_ends_and_may_have_more(
    went_on: tuple[Path, Finished],
) -> None:
    folder, finished = went_on
    assert failures(folder, "hungry") == [(0, 1, 0, "retry")]
    assert failures(folder, "glutton") == [(0, 1, 0, "continue")]
    for record in records_of(folder, "ModuleFailed", group="fed"):
        words = r"was killed: it had 1\d\d(\.\d)? MiB in memory, and may have 100.0 MiB"
        assert re.search(words, record["error"])
    (hungry,) = records_of(folder, "CopyFinished", module="hungry")
    assert hungry["attempt"] == 2
    assert "glutton.0 (group fed)" in finished.stdout


def test_a_time_limit_that_is_yet_to_pass_is_no_deadlock(went_on: tuple[Path, Finished]) -> None:
    """All wait, but one of them will start again and then do better."""
    folder, _ = went_on
    assert len(failures(folder, "helper")) == 1
    assert returned(folder)["needy.0"] == 1


@pytest.mark.thorough
def test_a_rank_that_cannot_be_told_ends_the_run(tmp_path: Path) -> None:
    toml = (
        entry("solver", "fails_beside_one_that_computes", processes=2, retries=3)
        + entry("fine", "fine")
        + group("g", "solver")
        + group("h", "fine", depends="g")
    )
    finished = diel("run", workflow(tmp_path, toml, m=MODULES), cwd=tmp_path)
    assert finished.status == 1, finished.output
    assert finished.seconds > 10
    (deaf,) = records_of(tmp_path, "LeaveIgnored")
    assert deaf["ranks"] == [3]
    assert "solver.0 failed at attempt 1, starts again: ValueError" in finished.stdout
    assert "rank 3 did not leave solver.0, which has failed, within 5 s" in finished.stderr
    assert "it computes, or sits in an MPI call of its own" in finished.stderr
    assert records_of(tmp_path, "RanksAborted")[0]["ranks"] == [3]
    assert journal(tmp_path)[-1]["event"] == "RunEnded"
