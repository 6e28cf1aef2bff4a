"""What openDIEL has, each row of the list of its features end to end: one test, named after it.

::

    executive library       test_executive_library
    driver mode             test_driver_mode
    managed modules         test_managed_modules
    executable modules      test_executable_modules, test_executable_modules_that_fail
    resources               test_resources
    groups                  test_groups
    tuple space             test_tuple_space
    distributed tuples      test_distributed_tuples
    direct communication    test_direct_communication
    ModMaker                test_modmaker
    grid engine             test_grid_engine_without_a_barrier

Its GUI launcher has no counterpart yet. Where two of its defects were, the tests would fail with
them: a non-zero exit status that counts as success, and a barrier after each batch of trials.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from support import diel, execute, journal, mpiexec, results, run_dir, workflow


def module(name: str, function: str | None = None, **keys: object) -> str:
    """Return the entry of a function module; values are TOML."""
    keys = {"function": f'"{function or "./m.py:" + name}"', **keys}
    return entry(name, **keys)


def entry(name: str, **keys: object) -> str:
    lines = ["[[module]]", f'name = "{name}"', *(f"{key} = {value}" for key, value in keys.items())]
    return "\n".join(lines) + "\n"


def group(name: str, *modules: str, **keys: object) -> str:
    what = {"modules": list(modules), **keys} if modules else keys
    return "\n".join([f'[[group]]\nname = "{name}"', *(f"{k} = {v}" for k, v in what.items()), ""])


def run(folder: Path, toml: str, code: str = "") -> list[dict[str, Any]]:
    """Run a workflow; return its journal."""
    finished = diel("run", workflow(folder, toml, m=code), cwd=folder)
    assert finished.status == 0, finished.output
    return journal(folder)


def of(records: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [record for record in records if record["event"] == event]


def returned(records: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return what the copies of each module returned, in the order of copies."""
    ended = sorted(of(records, "CopyFinished"), key=lambda record: record["copy"])
    found: dict[str, list[Any]] = {}
    for record in ended:
        found.setdefault(record["module"], []).append(record["returned"])
    return found


def test_executive_library(tmp_path: Path) -> None:
    """One file; a communicator a module, and one a copy; modules start by the dependency graph."""
    code = """
from mpi4py import MPI
def part(ctx):
    return [ctx.comm.size, ctx.module_comm.size, MPI.COMM_WORLD.size, ctx.copy_index]
def whole(ctx):
    return [ctx.comm.size, ctx.module_comm.size]
"""
    toml = (
        module("part", processes=2, copies=2)
        + module("whole", processes=3)
        + group("last", "whole", depends=["first", "second"])
        + group("first", "part")
        + group("second", "whole", depends=["first"])
    )
    records = run(tmp_path, toml, code)
    assert returned(records) == {"part": [[2, 4, 6, 0], [2, 4, 6, 1]], "whole": [[3, 3], [3, 3]]}
    order = [
        (record["event"], record["group"])
        for record in records
        if record["event"].startswith("Group")
    ]
    assert [what for what in order if what[0] == "GroupStarted"] == [
        ("GroupStarted", name) for name in ("first", "second", "last")
    ]
    assert order.index(("GroupFinished", "first")) < order.index(("GroupStarted", "second"))


def test_driver_mode(tmp_path: Path) -> None:
    """A main file of one's own: ``IELAddModule(function, name)``, then ``IELExecutive``."""
    program = """
from mpi4py import MPI
from diel.iel import IELAddModule, IELExecutive, IEL_tget, IEL_tput
IELAddModule(lambda ctx: IEL_tput("x", 7), "giver")
IELAddModule(lambda ctx: IEL_tget("x"), "taker")
raise SystemExit(IELExecutive(MPI.COMM_WORLD, "w.toml"))
"""
    workflow(tmp_path, entry("giver") + entry("taker") + group("g", "giver", "taker"), main=program)
    finished = execute([*mpiexec(4), sys.executable, "main.py"], cwd=tmp_path)
    assert finished.status == 0, finished.output
    assert returned(journal(tmp_path)) == {"giver": [None], "taker": [7]}


def test_managed_modules(tmp_path: Path) -> None:
    """A function that is called in the process: it keeps what it has in memory for the next one."""
    code = """
import os
SEEN = []
def one(ctx):
    SEEN.append(ctx.options["word"])
    return [os.getpid(), SEEN]
"""
    toml = module("one", options='{ word = "kept" }') + group("g", "one", iterations=2)
    records = run(tmp_path, toml, code)
    first, second = (record["returned"] for record in of(records, "CopyFinished"))
    assert first[0] == second[0]
    assert second[1] == ["kept", "kept"]


def test_executable_modules(tmp_path: Path) -> None:
    """Any program with its arguments, a process of its own for each copy."""
    words = '["sh", "-c", "echo $0 $$ from $PPID; cat", "copy {copy} of {copies}"]'
    (tmp_path / "input.txt").write_text("from standard input\n")
    run(
        tmp_path,
        entry("program", executable=words, copies=2, stdin='"input.txt"') + group("g", "program"),
    )
    logs = [(run_dir(tmp_path) / "logs" / f"program.{copy}.0.log").read_text() for copy in (0, 1)]
    assert [log.split(" from ")[0].rsplit(" ", 1)[0] for log in logs] == [
        "copy 0 of 2",
        "copy 1 of 2",
    ]
    assert logs[0].split()[4] != logs[1].split()[4]  # their process numbers
    assert all(log.endswith("from standard input\n") for log in logs)


def test_executable_modules_that_fail(tmp_path: Path) -> None:
    """Its defect: a non-zero exit status was printed, and then counted as success."""
    toml = (
        entry("bad", executable='["sh", "-c", "echo the disk is full >&2; exit 3"]')
        + entry("after", executable='["touch", "after-it"]')
        + group("g", "bad")
        + group("h", "after", depends=["g"])
    )
    finished = diel("run", workflow(tmp_path, toml), cwd=tmp_path)
    assert finished.status == 1
    assert "exited with status 3" in finished.stderr
    assert "bad.0 | the disk is full" in finished.stderr
    assert not (tmp_path / "after-it").exists()
    records = journal(tmp_path)
    assert not of(records, "CopyFinished")
    assert records[-1]["exit_code"] == 1


def test_resources(tmp_path: Path) -> None:
    """Cores, GPUs, processes and copies of each module come from the file."""
    code = """
import os
from threadpoolctl import threadpool_info
import numpy
def run(ctx):
    pools = [pool["num_threads"] for pool in threadpool_info()]
    seen = os.environ["CUDA_VISIBLE_DEVICES"]
    return [ctx.comm.allgather(seen), ctx.threads, sorted(set(pools)), ctx.copies]
"""
    toml = module("m", "./m.py:run", processes=2, copies=2, threads=2, gpus=1) + group("g", "m")
    finished = diel(
        "run",
        workflow(tmp_path, toml, m=code),
        cwd=tmp_path,
        environment={"CUDA_VISIBLE_DEVICES": "4,5,6,7"},
    )
    assert finished.status == 0, finished.output
    found = returned(journal(tmp_path))["m"]
    assert sorted(gpu for copy in found for gpu in copy[0]) == ["4", "5", "6", "7"]
    assert all(copy[1:] == [2, [2], 2] for copy in found)


def test_groups(tmp_path: Path) -> None:
    """``{a x2, b x3} x2``, with b after a, and then c: the order, and what each iteration is."""
    code = """
def run(ctx):
    ctx.tuples.tput("trace", [ctx.group, *ctx.iteration])
def tell(ctx):
    return [ctx.tuples.tget("trace") for _ in range(ctx.tuples.count("trace"))]
"""
    toml = (
        module("m", "./m.py:run")
        + module("tell")
        + group("a", "m", iterations=2)
        + group("b", "m", iterations=3, depends=["a"])
        + group("ab", groups=["a", "b"], iterations=2)
        + group("c", "tell", depends=["ab"])
    )
    (trace,) = returned(run(tmp_path, toml, code))["tell"]
    expected = [
        [name, outer, inner]
        for outer in range(2)
        for name, times in (("a", 2), ("b", 3))
        for inner in range(times)
    ]
    assert trace == expected


def test_tuple_space(tmp_path: Path) -> None:
    """``IEL_tput`` does not wait, ``IEL_tget`` does, by tag, over several servers."""
    code = """
from diel.iel import IEL_tget, IEL_tput
def asks(ctx):
    for number in range(20):
        IEL_tput(("question", number), number)  # nobody answers yet
    IEL_tput("ready", True)
    return [IEL_tget(("answer", number)) for number in range(20)]
def answers(ctx):
    IEL_tget("ready")
    for number in reversed(range(20)):
        IEL_tput(("answer", number), IEL_tget(("question", number)) ** 2)
"""
    toml = "[tuple_space]\nservers = 2\n" + module("asks") + module("answers")
    records = run(tmp_path, toml + group("g", "asks", "answers"), code)
    assert returned(records)["asks"] == [[number**2 for number in range(20)]]
    assert records[-1]["tuples_left"] == 0


def test_distributed_tuples(tmp_path: Path) -> None:
    """``IEL_dist_tput`` spreads data over all servers, ``IEL_dist_tget`` puts them together."""
    code = """
import numpy as np
from diel.iel import IEL_dist_tget, IEL_dist_tput
FIELD = np.random.default_rng(0).random((3, 400_001))  # 9.6 MB: no server could hold half of it
def gives(ctx):
    IEL_dist_tput("field", FIELD)
def takes(ctx):
    found = IEL_dist_tget("field")
    return [bool((found == FIELD).all()), list(found.shape)]
"""
    space = '[tuple_space]\nservers = 3\nmemory = "4 MiB"\nwhen_full = "raise"\n'
    records = run(
        tmp_path, space + module("gives") + module("takes") + group("g", "gives", "takes"), code
    )
    assert returned(records)["takes"] == [[True, [3, 400_001]]]
    assert records[-1]["tuples_left"] == 0


def test_direct_communication(tmp_path: Path) -> None:
    """``IEL_send``, ``IEL_recv`` and ``IEL_move``, and a declared array with owners and readers."""
    code = """
import numpy as np
from diel.iel import IEL_move, IEL_recv, IEL_send
def fluid(ctx):
    IEL_send(np.arange(5.0), "solid")
    IEL_move({"viscosity": 0.1}, "solid")
    wall = ctx.boundary("wall")
    wall.owned[0][...] = 1
    IEL_send(wall)
    IEL_recv(wall)
    return wall.array.tolist()
def solid(ctx):
    rank = ctx.comm.rank
    got = [IEL_recv("fluid").tolist(), IEL_recv("fluid")] if rank == 0 else None
    wall = ctx.boundary("wall")
    IEL_recv(wall)
    wall.owned[0][...] = wall.array[:4].sum() + rank
    IEL_send(wall)
    return got
"""
    wall = """
[[boundary]]
name = "wall"
shape = [8]
owners = [{ module = "fluid", section = [[0, 4]] },
          { module = "solid", section = [[4, 8]], split = 0 }]
readers = [{ module = "solid", section = [[0, 4]] }, { module = "fluid", section = [[4, 8]] }]
"""
    toml = module("fluid") + module("solid", processes=2) + group("g", "fluid", "solid") + wall
    found = returned(run(tmp_path, toml, code))
    assert found["solid"] == [[[0.0, 1.0, 2.0, 3.0, 4.0], {"viscosity": 0.1}]]
    assert found["fluid"] == [[1.0, 1.0, 1.0, 1.0, 4.0, 4.0, 5.0, 5.0]]


def test_modmaker(tmp_path: Path) -> None:
    """``diel new-module`` makes the skeleton of a module: its test passes and its workflow runs."""
    assert diel("new-module", "adder", cwd=tmp_path).status == 0
    tested = execute([sys.executable, "-m", "pytest", "-q", "test_adder.py"], cwd=tmp_path)
    assert tested.status == 0, tested.output
    finished = diel("run", "adder.toml", cwd=tmp_path)
    assert finished.status == 0, finished.output
    assert returned(journal(tmp_path))["adder"] == [499_500, None]


def test_grid_engine_without_a_barrier(tmp_path: Path) -> None:
    """Its defect: a barrier after every batch. Here the first trial ends after many later ones.

    There are two trainers, so a batch would have two trials; who has the first one waits for the
    end of the seventh, which would be in the fourth batch.
    """
    code = """
import time
def train(parameters, report):
    if report.trial == 0:
        while not (report.folder / "ended-6").exists():
            time.sleep(0.01)
    (report.folder / f"ended-{report.trial}").touch()
    return {"accuracy": 1 - parameters["rate"]}
"""
    space = "{ rate = [0.1, 0.2, 0.3, 0.4], size = [1, 2, 3] }"
    toml = (
        module("master", "modules.master:run", options=f"{{ space = {space} }}")
        + module("trainer", "modules.trainer:run", copies=2, options='{ train = "./m.py:train" }')
        + group("search", "master", "trainer")
    )
    run(tmp_path, toml, code)
    rows = results(tmp_path)
    assert sorted(int(row["trial"]) for row in rows) == list(range(12))
    order = [int(row["trial"]) for row in rows]
    assert order.index(0) > order.index(5)
    assert {row["trainer"] for row in rows} == {"0", "1"}
    (best,) = returned(journal(tmp_path))["master"]
    assert best["rate"] == 0.1
