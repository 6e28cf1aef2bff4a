"""A program of one's own that runs workflows: openDIEL's way, and Python's.

It is started once: a run that ends well each way, one that fails, and files that cannot be run, one
after the other. After each of them the program goes on.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest
from support import Finished, execute, mpiexec, records_of

RANKS = 5
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
PROGRAM = """\
import os, random, sys
from pydantic import BaseModel

random.seed(1)
os.environ.pop("OMP_NUM_THREADS", None)
numbers = random.getstate()

class Options(BaseModel, extra="forbid"):
    greeting: str = "nothing"

def greet(ctx):
    ctx.tuples.tput("greeting", ctx.options.greeting)

def listen(ctx):
    if ctx.comm.rank == 0:
        return ctx.tuples.tget("greeting")

def fails(ctx):
    raise ValueError("no")

import diel
import diel.executive.driver
from diel.iel import IELAddModule, IELExecutive, IEL_tget, IEL_tput
from mpi4py import MPI

# A rank that is slow to leave, on a busy machine, would be aborted, and all others with it.
diel.executive.driver._FAREWELL_TIMEOUT_S = 60.0
here, world = os.getcwd(), MPI.COMM_WORLD

def run(name, start):
    os.chdir(os.path.join(here, name))
    status = start()
    assert (random.getstate(), os.environ.get("OMP_NUM_THREADS")) == (numbers, None)
    total = world.allreduce(1)  # MPI goes on, and every rank knows how it ended
    with open(f"status.{world.rank}", "w") as file:
        file.write(f"{status} of {total}")
    return status

def with_iel():
    IELAddModule(lambda ctx: IEL_tput("greeting", ctx.options.greeting), "greet")
    IELAddModule(lambda ctx: IEL_tget("greeting") if ctx.comm.rank == 0 else None, "listener")
    return IELExecutive(world, "w.toml")

def executive(**functions):
    added = diel.Executive("w.toml").add_module(greet)
    for name, function in functions.items():
        added.add_module(function, name)
    return added.run

run("Executive", executive(listener=listen))
run("IELExecutive", with_iel)
"""
# What is wrong with a workflow file, how the program adds its functions, and what is said.
WRONG = {
    "unknown module": (FILE, "listner=listen", 'did you mean "listener"?'),
    "two functions": (
        FILE.replace('"greet"\n', '"greet"\nfunction = "./driver.py:greet"\n'),
        "listener=listen",
        "has added a function",
    ),
    "options": (
        FILE.replace("greeting =", "greting ="),
        "listener=listen",
        "unknown key greting",
    ),
    "no function": (FILE, "", "add its function in the program that runs this file"),
}
END = """
run("failure", diel.Executive("w.toml").add_module(fails, "greet").add_module(listen, "listener").run)
world.Barrier()  # mpirun ends all once the first has failed, and what they print is lost
sys.exit(1)
"""  # noqa: E501


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """Return the folder with a folder for each run, and how the program ended."""
    folder = tmp_path_factory.mktemp("driver")
    program = PROGRAM
    files = {"Executive": FILE, "IELExecutive": f"[workflow]\nprivate = false\n{FILE}"}
    for name, (file, functions, _) in WRONG.items():
        files[name] = file
        program += f"run({name!r}, executive({functions}))\n"
    for name, file in {**files, "failure": FILE}.items():
        (folder / name).mkdir()
        (folder / name / "w.toml").write_text(file)
    (folder / "driver.py").write_text(program + END)
    before = os.umask(0o022)
    try:
        finished = execute([*mpiexec(RANKS), sys.executable, "driver.py"], cwd=folder)
    finally:
        os.umask(before)
    assert finished.status == 1, finished.output
    return folder, finished


def statuses(folder: Path) -> list[str]:
    """Return what each rank has been told."""
    return [(folder / f"status.{rank}").read_text() for rank in range(RANKS)]


@pytest.mark.parametrize(("name", "others_may"), [("Executive", 0), ("IELExecutive", 0o055)])
def test_a_program_runs_its_functions_as_modules(
    ran: tuple[Path, Finished], name: str, others_may: int
) -> None:
    folder = ran[0] / name
    assert statuses(folder) == [f"0 of {RANKS}"] * RANKS
    (run,) = (folder / "runs").iterdir()
    assert stat.S_IMODE(run.stat().st_mode) == 0o700 | others_may
    ended = records_of(folder, "CopyFinished", module="listener")
    assert [record["returned"] for record in ended] == ["hello", "hello"]


def test_a_failure_is_known_to_every_rank(ran: tuple[Path, Finished]) -> None:
    folder, finished = ran
    assert "module 'greet' failed: ValueError: no" in finished.stderr
    assert statuses(folder / "failure") == [f"1 of {RANKS}"] * RANKS


def test_what_cannot_be_run_is_said_once(ran: tuple[Path, Finished]) -> None:
    folder, finished = ran
    told = [text for text in finished.stderr.split("diel: ") if text.startswith("w.toml: ")]
    assert len(told) == len(WRONG), finished.stderr
    for text, (name, (_, _, words)) in zip(told, WRONG.items(), strict=True):
        assert text.count(words) == 1, f"{name}: {text}"
        assert "Traceback" not in text
        assert statuses(folder / name) == [f"2 of {RANKS}"] * RANKS
        assert not (folder / name / "runs").exists()
