"""A program of one's own that runs a workflow: openDIEL's way, and Python's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from support import execute, journal, mpiexec

FILE = """\
[[module]]
name = "greet"
options = { greeting = "hello" }
[[module]]
name = "listener"
processes = 2
[[group]]
name = "talk"
modules = ["greet", "listener"]
iterations = 2
"""

FUNCTIONS = """\
import sys
from pydantic import BaseModel

class Options(BaseModel):
    greeting: str = "nothing"

def greet(ctx):
    ctx.tuples.tput("greeting", ctx.options.greeting)

def listen(ctx):
    if ctx.comm.rank == 0:
        return ctx.tuples.tget("greeting")
"""

PYTHON = (
    FUNCTIONS
    + """
import diel
executive = diel.Executive("w.toml")
status = executive.add_module(greet).add_module(listen, "listener").run()
"""
)

OPENDIEL = (
    FUNCTIONS
    + """
from mpi4py import MPI
from diel.iel import IELAddModule, IELExecutive
IELAddModule(greet, "greet")
IELAddModule(listen, "listener")
status = IELExecutive(MPI.COMM_WORLD, "w.toml")
"""
)

END = """
from mpi4py import MPI
total = MPI.COMM_WORLD.allreduce(1)  # MPI goes on, and every rank knows how it ended
print(f"rank {MPI.COMM_WORLD.rank} of {total}: status {status}", flush=True)
sys.exit(status)
"""


def run_driver(folder: Path, program: str, file: str = FILE, ranks: int = 5):  # type: ignore[no-untyped-def]
    (folder / "driver.py").write_text(program)
    (folder / "w.toml").write_text(file)
    import sys

    return execute([*mpiexec(ranks), sys.executable, "driver.py"], cwd=folder)


@pytest.mark.parametrize(
    ("program", "table", "others_may"),
    [(PYTHON, "", 0), (OPENDIEL, "[workflow]\nprivate = false\n", 0o055)],
    ids=["Executive", "IELExecutive"],
)
def test_a_program_runs_its_functions_as_modules(
    program: str, table: str, others_may: int, tmp_path: Path
) -> None:
    before = os.umask(0o022)
    try:
        finished = run_driver(tmp_path, program + END, table + FILE)
    finally:
        os.umask(before)
    assert finished.status == 0, finished.output
    (run,) = (tmp_path / "runs").iterdir()
    assert stat.S_IMODE(run.stat().st_mode) == 0o700 | others_may
    for rank in range(5):
        assert f"rank {rank} of 5: status 0" in finished.stdout
    ended = [one for one in journal(tmp_path) if one["event"] == "CopyFinished"]
    assert [one["returned"] for one in ended if one["module"] == "listener"] == ["hello", "hello"]


def test_a_failure_is_known_to_every_rank(tmp_path: Path) -> None:
    program = PYTHON.replace("def greet(ctx):", "def greet(ctx):\n    raise ValueError('no')")
    finished = run_driver(tmp_path, program + END)
    assert finished.status == 1, finished.output
    assert "module 'greet' failed: ValueError: no" in finished.stderr
    for rank in range(5):
        assert f"rank {rank} of 5: status 1" in finished.stdout


@pytest.mark.parametrize(
    ("program", "file", "words"),
    [
        (PYTHON.replace('"listener"', '"listner"'), FILE, 'did you mean "listener"?'),
        (
            PYTHON,
            FILE.replace('"greet"\n', '"greet"\nfunction = "./driver.py:greet"\n'),
            "has added a function",
        ),
        (PYTHON, FILE.replace("greeting =", "greting ="), "unknown key greting"),
        (
            PYTHON.replace('.add_module(listen, "listener")', ""),
            FILE,
            "add its function in the program that runs this file",
        ),
    ],
    ids=["unknown module", "two functions", "options", "no function"],
)
def test_what_cannot_be_run_is_said_once(
    program: str, file: str, words: str, tmp_path: Path
) -> None:
    program = program.replace("(BaseModel):", "(BaseModel, extra='forbid'):")
    finished = run_driver(tmp_path, program + END, file)
    assert finished.status == 2, finished.output
    assert finished.stderr.count(words) == 1
    assert "Traceback" not in finished.output
    assert "rank 4 of 5: status 2" in finished.stdout
