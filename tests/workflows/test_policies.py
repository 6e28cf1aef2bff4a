"""What follows a failure: stop, continue, retries and time limits, on real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import diel, journal, records_of, run_dir, workflow

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

def only_the_first_shares(ctx):
    if ctx.copy_index == 0:
        ctx.module_comm

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


def group(name: str, *modules: str, depends: str = "") -> str:
    text = f'[[group]]\nname = "{name}"\nmodules = {list(modules)!r}\n'.replace("'", '"')
    return text + (f'depends = ["{depends}"]\n' if depends else "")


def returned(folder: Path) -> dict[str, Any]:
    return {
        f"{record['module']}.{record['copy']}": record["returned"]
        for record in records_of(folder, "CopyFinished")
    }


def test_copies_start_again_on_clean_ranks(tmp_path: Path) -> None:
    """Of two ranks, of those that share a communicator, and of one that held a claim."""
    toml = (
        entry("flaky", "fails_twice", processes=2, retries=2)
        + entry("clean", "clean", processes=1)
        + entry("shares", "shares", copies=2, retries=1)
        + entry("job", "puts_a_job")
        + entry("holder", "holds_and_fails", on_failure='"continue"', retries=1)
        + entry("counts", "counts")
        + group("again", "flaky")
        + group("after", "clean", depends="again")
        + group("together", "shares", depends="after")
        + group("jobs", "job")
        + group("held", "holder", depends="jobs")
        + group("given back", "counts", depends="held").replace("given back", "given-back")
    )
    finished = diel("run", workflow(tmp_path, toml, m=MODULES), cwd=tmp_path)
    assert finished.status == 0, finished.output
    failures = [
        (record["module"], record["copy"], record["attempt"], record["copy_rank"], record["policy"])
        for record in records_of(tmp_path, "ModuleFailed")
    ]
    assert [failure for failure in failures if failure[0] == "flaky"] == [
        ("flaky", 0, 1, 1, "retry"),
        ("flaky", 0, 2, 0, "retry"),
    ]
    assert [failure for failure in failures if failure[0] == "shares"] == [
        ("shares", 1, 1, 0, "retry")
    ]
    assert [failure for failure in failures if failure[0] == "holder"] == [
        ("holder", 0, 1, 0, "retry"),
        ("holder", 0, 2, 0, "continue"),
    ]
    (again,) = records_of(tmp_path, "CopiesRestarted", module="shares")
    assert again["copies"] == [0, 1]
    assert again["attempt"] == 2
    assert returned(tmp_path) == {
        "flaky.0": [6, 3],
        "clean.0": "mine",
        "shares.0": 2,
        "shares.1": 2,
        "job.0": None,
        "counts.0": 42,
    }
    (flaky,) = records_of(tmp_path, "CopyFinished", module="flaky")
    assert flaky["attempt"] == 3
    assert "went on without a copy that failed:" in finished.stdout
    assert "holder.0 (group held, 2 attempts): ValueError: with a claim" in finished.stdout
    assert "shares.1 failed at attempt 1, starts again, with all copies" in finished.stdout
    assert finished.stderr == ""


def test_time_limits_end_what_waits_and_programs(tmp_path: Path) -> None:
    toml = (
        entry("waiter", "waits", time_limit=0.5, on_failure='"continue"', copies=2)
        + '[[module]]\nname = "sleeper"\nexecutable = ["sleep", "60"]\n'
        'time_limit = "700 ms"\non_failure = "continue"\nprocesses = 2\n'
        + entry("fine", "fine", time_limit='"1 h"')
        + group("g", "waiter", "sleeper")
        + group("h", "fine", depends="g")
    )
    finished = diel("run", workflow(tmp_path, toml, m=MODULES), cwd=tmp_path)
    assert finished.status == 0, finished.output
    errors = {
        (record["module"], record["copy"]): record["error"]
        for record in records_of(tmp_path, "ModuleFailed")
    }
    assert errors == {
        ("waiter", 0): "time limit of 0.5 s exceeded",
        ("waiter", 1): "time limit of 0.5 s exceeded",
        ("sleeper", 0): "time limit of 0.7 s exceeded",
    }
    assert returned(tmp_path) == {"fine.0": "fine"}
    assert len(records_of(tmp_path, "CopyGivenUp")) == 3
    assert "told: the copy" in (run_dir(tmp_path) / "logs" / "waiter.0.0.log").read_text()
    assert "went on without 3 copies" in finished.stdout


@pytest.mark.thorough
def test_a_time_limit_stops_the_run_by_default(tmp_path: Path) -> None:
    toml = entry("waiter", "waits", time_limit=0.5) + group("g", "waiter")
    finished = diel("run", workflow(tmp_path, toml, m=MODULES), cwd=tmp_path)
    assert finished.status == 1, finished.output
    assert "module 'waiter' failed: time limit of 0.5 s exceeded" in finished.stderr


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


@pytest.mark.thorough
def test_a_time_limit_that_is_yet_to_pass_is_no_deadlock(tmp_path: Path) -> None:
    """All wait, but one of them will start again and then do better."""
    toml = (
        entry("helper", "waits_then_helps", time_limit=4, retries=1)
        + entry("needy", "needs_help")
        + group("g", "helper", "needy")
    )
    finished = diel("run", workflow(tmp_path, toml, m=MODULES), cwd=tmp_path)
    assert finished.status == 0, finished.output
    assert returned(tmp_path)["needy.0"] == 1


@pytest.mark.thorough
def test_a_communicator_that_not_all_ask_for_is_a_deadlock(tmp_path: Path) -> None:
    toml = entry("shares", "only_the_first_shares", copies=2) + group("g", "shares")
    finished = diel("run", workflow(tmp_path, toml, m=MODULES), cwd=tmp_path)
    assert finished.status == 1, finished.output
    assert "shares.0 has waited" in finished.stderr
    assert "in ctx.module_comm for the module's other ranks" in finished.stderr
