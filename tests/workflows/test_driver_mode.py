"""A program of one's own that runs a workflow: openDIEL's way, and Python's."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest
from support import execute, mpiexec, records_of

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
import os, random, sys
from pydantic import BaseModel

random.seed(1)
os.environ.pop("OMP_NUM_THREADS", None)
numbers = random.getstate()

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
assert (random.getstate(), os.environ.get("OMP_NUM_THREADS")) == (numbers, None)
total = MPI.COMM_WORLD.allreduce(1)  # MPI goes on, and every rank knows how it ended
print(f"rank {MPI.COMM_WORLD.rank} of {total}: status {status}", flush=True)
with open(f"status.{MPI.COMM_WORLD.rank}", "w") as file:
    file.write(f"{status} of {total}")
MPI.COMM_WORLD.Barrier()  # mpirun ends all once the first has failed, and what they print is lost
sys.exit(status)
"""


def run_driver(folder: Path, program: str, file: str = FILE, ranks: int = 5):  # type: ignore[no-untyped-def]
    (folder / "driver.py").write_text(program)
    (folder / "w.toml").write_text(file)
    return execute([*mpiexec(ranks), sys.executable, "driver.py"], cwd=folder)


@pytest.mark.thorough
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
    ended = records_of(tmp_path, "CopyFinished")
    assert [record["returned"] for record in ended if record["module"] == "listener"] == [
        "hello",
        "hello",
    ]


def test_a_failure_is_known_to_every_rank(tmp_path: Path) -> None:
    program = PYTHON.replace("def greet(ctx):", "def greet(ctx):\n    raise ValueError('no')")
    # A rank that is slow to leave, on a busy machine, would be aborted, and all others with it.
    patience = "import diel.executive.driver\ndiel.executive.driver._FAREWELL_TIMEOUT_S = 60.0\n"
    finished = run_driver(tmp_path, patience + program + END)
    assert finished.status == 1, finished.output
    assert "module 'greet' failed: ValueError: no" in finished.stderr
    assert [(tmp_path / f"status.{rank}").read_text() for rank in range(5)] == ["1 of 5"] * 5


# What is wrong with a workflow file, how the program adds its functions, and what is said.
_WRONG = {
    "unknown module": (FILE, {"listner": "listen"}, 'did you mean "listener"?'),
    "two functions": (
        FILE.replace('"greet"\n', '"greet"\nfunction = "./driver.py:greet"\n'),
        {"listener": "listen"},
        "has added a function",
    ),
    "options": (
        FILE.replace("greeting =", "greting ="),
        {"listener": "listen"},
        "unknown key greting",
    ),
    "no function": (FILE, {}, "add its function in the program that runs this file"),
}


@pytest.mark.thorough
def test_what_cannot_be_run_is_said_once(tmp_path: Path) -> None:
    """One after the other, in one program: it goes on after each."""
    program = FUNCTIONS.replace("(BaseModel):", "(BaseModel, extra='forbid'):")
    program += "import diel\nfrom mpi4py import MPI\nrank = MPI.COMM_WORLD.rank\n"
    for number, (file, functions, _) in enumerate(_WRONG.values()):
        (tmp_path / f"{number}.toml").write_text(file)
        added = "".join(f'.add_module({what}, "{name}")' for name, what in functions.items())
        program += f"""
status = diel.Executive("{number}.toml").add_module(greet){added}.run()
print(f"file {number}, rank {{rank}}: status {{status}}", flush=True)
"""
    finished = run_driver(tmp_path, program, ranks=3)
    assert finished.status == 0, finished.output
    told = finished.stderr.split("diel: ")[1:]
    assert len(told) == len(_WRONG), finished.stderr
    for number, (name, (_, _, words)) in enumerate(_WRONG.items()):
        assert told[number].startswith(f"{number}.toml: ")
        assert told[number].count(words) == 1, f"{name}: {told[number]}"
        for rank in range(3):
            assert f"file {number}, rank {rank}: status 2" in finished.stdout
    assert "Traceback" not in finished.output
