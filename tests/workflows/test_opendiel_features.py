"""What openDIEL has, each row of the list of its features end to end: one test, named after it.

::

    executive library       test_executive_library
    driver mode             test_driver_mode.py
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

import pytest
from support import diel, execute, journal, results, run_dir, workflow


def module(name: str, function: str, **keys: object) -> str:
    """Return the entry of a function module; values are TOML."""
    keys = {"function": f'"{function}"', **keys}
    return entry(name, **keys)


def entry(name: str, **keys: object) -> str:
    lines = ["[[module]]", f'name = "{name}"', *(f"{key} = {value}" for key, value in keys.items())]
    return "\n".join(lines) + "\n"


def group(name: str, *modules: str, **keys: object) -> str:
    what = {"modules": list(modules), **keys} if modules else keys
    return "\n".join([f'[[group]]\nname = "{name}"', *(f"{k} = {v}" for k, v in what.items()), ""])


PARTS: dict[str, tuple[str, str]] = {}
"""Of each feature its modules and groups, and the Python file with its functions.

They stand before their test, and all of them are one workflow file, which is run once.
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the run of all parts, on the fewest ranks that do."""
    folder = tmp_path_factory.mktemp("features")
    (folder / "input.txt").write_text("from standard input\n")
    space = '[tuple_space]\nservers = 3\nmemory = "4 MiB"\nwhen_full = "raise"\n'
    toml = space + "".join(toml for toml, _ in PARTS.values())
    files = {stem: code for stem, (_, code) in PARTS.items()}
    gpus = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    line = ("run", "-n", 8, workflow(folder, toml, **files))
    finished = diel(*line, cwd=folder, environment=gpus)
    assert finished.status == 0, finished.output
    return folder


def of(records: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [record for record in records if record["event"] == event]


def returned(folder: Path) -> dict[str, list[Any]]:
    """Return what the copies of each module returned, in the order of copies."""
    ended = sorted(of(journal(folder), "CopyFinished"), key=lambda record: record["copy"])
    found: dict[str, list[Any]] = {}
    for record in ended:
        found.setdefault(record["module"], []).append(record["returned"])
    return found


PARTS["library"] = (
    module("part", "./library.py:part", processes=2, copies=2)
    + module("whole", "./library.py:whole", processes=3)
    + group("last", "whole", depends=["first", "second"])
    + group("first", "part")
    + group("second", "whole", depends=["first"]),
    """
from mpi4py import MPI
def part(ctx):
    return [ctx.comm.size, ctx.module_comm.size, MPI.COMM_WORLD.size, ctx.copy_index]
def whole(ctx):
    return [ctx.comm.size, ctx.module_comm.size]
""",
)


def test_executive_library(ran: Path) -> None:
    """One file; a communicator a module, and one a copy; modules start by the dependency graph."""
    found = returned(ran)
    assert found["part"] == [[2, 4, 8, 0], [2, 4, 8, 1]]
    assert found["whole"] == [[3, 3], [3, 3]]
    order = [
        (record["event"], record["group"])
        for record in journal(ran)
        if record["event"].startswith("Group") and record["group"] in ("first", "second", "last")
    ]
    assert [what for what in order if what[0] == "GroupStarted"] == [
        ("GroupStarted", name) for name in ("first", "second", "last")
    ]
    assert order.index(("GroupFinished", "first")) < order.index(("GroupStarted", "second"))


PARTS["managed"] = (
    # On all ranks that there are: those of the second iteration are those of the first.
    module("one", "./managed.py:one", options='{ word = "kept" }', copies=4)
    + group("remembering", "one", iterations=2),
    """
import os
SEEN = []
def one(ctx):
    SEEN.append(ctx.options["word"])
    return [os.getpid(), SEEN]
""",
)


def test_managed_modules(ran: Path) -> None:
    """A function that is called in the process: it keeps what it has in memory for the next one."""
    found = [
        (record["iteration"], *record["returned"])
        for record in of(journal(ran), "CopyFinished")
        if record["module"] == "one"
    ]
    first, second = ([one for one in found if one[0] == [number]] for number in (0, 1))
    assert {pid for _, pid, _ in first} == {pid for _, pid, _ in second}
    assert [seen for _, _, seen in second] == [["kept", "kept"]] * 4


PARTS["executables"] = (
    entry(
        "program",
        executable='["sh", "-c", "echo $0 $$ from $PPID; cat", "copy {copy} of {copies}"]',
        copies=2,
        stdin='"input.txt"',
    )
    + group("programs", "program"),
    "",
)


def test_executable_modules(ran: Path) -> None:
    """Any program with its arguments, a process of its own for each copy."""
    logs = [(run_dir(ran) / "logs" / f"program.{copy}.0.log").read_text() for copy in (0, 1)]
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


PARTS["resources"] = (
    module("m", "./resources.py:run", processes=2, copies=2, threads=2, gpus=1)
    + group("resourceful", "m"),
    """
import os
from threadpoolctl import threadpool_info
import numpy
def run(ctx):
    pools = [pool["num_threads"] for pool in threadpool_info()]
    seen = os.environ["CUDA_VISIBLE_DEVICES"]
    return [ctx.comm.allgather(seen), ctx.threads, sorted(set(pools)), ctx.copies]
""",
)


def test_resources(ran: Path) -> None:
    """Cores, GPUs, processes and copies of each module come from the file."""
    found = returned(ran)["m"]
    assert sorted(gpu for copy in found for gpu in copy[0]) == ["4", "5", "6", "7"]
    assert all(copy[1:] == [2, [2], 2] for copy in found)


PARTS["groups"] = (
    module("traced", "./groups.py:run")
    + module("tell", "./groups.py:tell")
    + group("a", "traced", iterations=2)
    + group("b", "traced", iterations=3, depends=["a"])
    + group("ab", groups=["a", "b"], iterations=2)
    + group("c", "tell", depends=["ab"]),
    """
def run(ctx):
    ctx.tuples.tput("trace", [ctx.group, *ctx.iteration])
def tell(ctx):
    return [ctx.tuples.tget("trace") for _ in range(ctx.tuples.count("trace"))]
""",
)


def test_groups(ran: Path) -> None:
    """``{a x2, b x3} x2``, with b after a, and then c: the order, and what each iteration is."""
    (trace,) = returned(ran)["tell"]
    expected = [
        [name, outer, inner]
        for outer in range(2)
        for name, times in (("a", 2), ("b", 3))
        for inner in range(times)
    ]
    assert trace == expected


PARTS["space"] = (
    module("asks", "./space.py:asks")
    + module("answers", "./space.py:answers")
    + group("asking", "asks", "answers"),
    """
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
""",
)


def test_tuple_space(ran: Path) -> None:
    """``IEL_tput`` does not wait, ``IEL_tget`` does, by tag, over several servers."""
    assert returned(ran)["asks"] == [[number**2 for number in range(20)]]
    assert journal(ran)[-1]["tuples_left"] == 0


PARTS["spread"] = (
    module("gives", "./spread.py:gives")
    + module("takes", "./spread.py:takes")
    + group("spreading", "gives", "takes"),
    """
import numpy as np
from diel.iel import IEL_dist_tget, IEL_dist_tput
def field():
    return np.random.default_rng(0).random((3, 400_001))  # 9.6 MB: no server could hold half of it
def gives(ctx):
    IEL_dist_tput("field", field())
def takes(ctx):
    found = IEL_dist_tget("field")
    return [bool((found == field()).all()), list(found.shape)]
""",
)


def test_distributed_tuples(ran: Path) -> None:
    """``IEL_dist_tput`` spreads data over all servers, ``IEL_dist_tget`` puts them together."""
    assert returned(ran)["takes"] == [[True, [3, 400_001]]]


PARTS["direct"] = (
    module("fluid", "./direct.py:fluid")
    + module("solid", "./direct.py:solid", processes=2)
    + group("flow", "fluid", "solid")
    + """
[[boundary]]
name = "wall"
shape = [8]
owners = [{ module = "fluid", section = [[0, 4]] },
          { module = "solid", section = [[4, 8]], split = 0 }]
readers = [{ module = "solid", section = [[0, 4]] }, { module = "fluid", section = [[4, 8]] }]
""",
    """
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
""",
)


def test_direct_communication(ran: Path) -> None:
    """``IEL_send``, ``IEL_recv`` and ``IEL_move``, and a declared array with owners and readers."""
    found = returned(ran)
    assert found["solid"] == [[[0.0, 1.0, 2.0, 3.0, 4.0], {"viscosity": 0.1}]]
    assert found["fluid"] == [[1.0, 1.0, 1.0, 1.0, 4.0, 4.0, 5.0, 5.0]]


@pytest.mark.usefixtures("once")
def test_modmaker(tmp_path: Path) -> None:
    """``diel new-module`` makes the skeleton of a module: its test passes and its workflow runs."""
    assert diel("new-module", "adder", cwd=tmp_path).status == 0
    tested = execute([sys.executable, "-m", "pytest", "-q", "test_adder.py"], cwd=tmp_path)
    assert tested.status == 0, tested.output
    finished = diel("run", "adder.toml", cwd=tmp_path)
    assert finished.status == 0, finished.output
    assert finished.stderr == ""
    assert f"adder.0 returned {sum(range(1000))}" in finished.stdout
    assert returned(tmp_path)["adder"] == [499_500, None]
    assert journal(tmp_path)[-1]["tuples_left"] == 0


PARTS["engine"] = (
    module(
        "master",
        "modules.master:run",
        options="{ space = { rate = [0.1, 0.2, 0.3, 0.4], size = [1, 2, 3] } }",
    )
    + module("trainer", "modules.trainer:run", copies=2, options='{ train = "./engine.py:train" }')
    + group("search", "master", "trainer"),
    """
import time
def train(parameters, report):
    if report.trial == 0:
        while not (report.folder / "ended-6").exists():
            time.sleep(0.01)
    (report.folder / f"ended-{report.trial}").touch()
    return {"accuracy": 1 - parameters["rate"]}
""",
)


def test_grid_engine_without_a_barrier(ran: Path) -> None:
    """Its defect: a barrier after every batch. Here the first trial ends after many later ones.

    There are two trainers, so a batch would have two trials; who has the first one waits for the
    end of the seventh, which would be in the fourth batch.
    """
    rows = results(ran)
    assert sorted(int(row["trial"]) for row in rows) == list(range(12))
    order = [int(row["trial"]) for row in rows]
    assert order.index(0) > order.index(5)
    assert {row["trainer"] for row in rows} == {"0", "1"}
    (best,) = returned(ran)["master"]
    assert best["rate"] == 0.1
