"""What modules in C have of boundaries and tuples, beside bare MPI and beside Python.

c_boundary_exchange (us): ``diel_exchange`` of 1 MiB each way between two ranks, and
    ``MPI_Sendrecv`` of the same memory, block by block in turn, in one function of one library
c_put_take_small (us a put and take): 100 bytes from C, and from Python, which is the peer: groups
    in turn, on the same rank
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import harness

from diel.compiled.layout import HEADER_FOLDER

SMALL_BYTES = 100
MIB = 2**20

SOURCE = r"""
#include <mpi.h>
#include <diel.h>
#include <stdlib.h>

#define MIB (1 << 20)

int exchange(diel *d) {
    int64_t blocks = 10, times = 1000, block, i;
    int other = 1 - d->rank;
    unsigned char *mine = malloc(MIB), *theirs = malloc(MIB);
    double ours[100], peer[100];
    MPI_Comm comm = diel_comm(d);
    diel_boundary wall;
    diel_array value;

    if (diel_option_int(d, "blocks", &blocks) || diel_option_int(d, "times", &times)) return 1;
    if (diel_boundary_open(d, "wall", &wall)) return 1;
    if (diel_bind(d, &wall, DIEL_OWNED, 0, mine, NULL)) return 1;
    if (diel_bind(d, &wall, DIEL_READS, 0, theirs, NULL)) return 1;
    memset(mine, d->rank + 1, MIB);
    memset(theirs, 0, MIB);
    for (block = -1; block < blocks; block++) { /* the first one warms up */
        double began;
        MPI_Barrier(comm);
        began = MPI_Wtime();
        for (i = 0; i < times; i++)
            if (diel_exchange(d, &wall, -1)) return 1;
        if (block >= 0) ours[block] = (MPI_Wtime() - began) / (double)times;
        if (theirs[MIB - 1] != other + 1) return 2;
        theirs[MIB - 1] = 0;
        MPI_Barrier(comm);
        began = MPI_Wtime();
        for (i = 0; i < times; i++)
            MPI_Sendrecv(mine, MIB, MPI_BYTE, other, 5, theirs, MIB, MPI_BYTE, other, 5, comm,
                         MPI_STATUS_IGNORE);
        if (block >= 0) peer[block] = (MPI_Wtime() - began) / (double)times;
        if (theirs[MIB - 1] != other + 1) return 3;
        theirs[MIB - 1] = 0;
    }
    value = diel_vector(DIEL_FLOAT64, ours, blocks);
    if (diel_result(d, "ours", &value)) return 1;
    value = diel_vector(DIEL_FLOAT64, peer, blocks);
    return diel_result(d, "peer", &value);
}

int put_take(diel *d) {
    char bytes[100], taken[100];
    int64_t times = 1000, i;
    diel_array value = diel_vector(DIEL_BYTES, bytes, 100), back = value;
    double began = 0;

    if (diel_option_int(d, "times", &times)) return 1;
    memset(bytes, 7, sizeof bytes);
    back.data = taken;
    for (i = -times / 10; i < times; i++) {
        if (i == 0) began = MPI_Wtime();
        back.bytes = 100;
        if (diel_put(d, "small", &value) || diel_get(d, "small", &back, -1)) return 1;
    }
    return diel_result_double(d, "seconds", (MPI_Wtime() - began) / (double)times);
}
"""

PEER = """
import time

def put_take(ctx):
    data, tuples, times = bytes(100), ctx.tuples, ctx.options["times"]
    for i in range(-times // 10, times):
        if i == 0:
            began_s = time.perf_counter()
        tuples.tput("small", data)
        tuples.tget("small")
    return {"seconds": (time.perf_counter() - began_s) / times}
"""

EXCHANGE = """
[[module]]
name = "pair"
library = "./compiled.so:exchange"
processes = 2
options = {{ blocks = {blocks}, times = {times} }}

[[group]]
name = "all"
modules = ["pair"]

[[boundary]]
name = "wall"
dtype = "uint8"
shape = [2, {size}]
owners = [
    {{ module = "pair", rank = 0, section = [[0, 1], [0, {size}]] }},
    {{ module = "pair", rank = 1, section = [[1, 2], [0, {size}]] }},
]
readers = [
    {{ module = "pair", rank = 0, section = [[1, 2], [0, {size}]] }},
    {{ module = "pair", rank = 1, section = [[0, 1], [0, {size}]] }},
]
"""

PUT_TAKE = """
[[module]]
name = "ours"
library = "./compiled.so:put_take"
options = {{ times = {times} }}

[[module]]
name = "peer"
function = "./peer.py:put_take"
options = {{ times = {times} }}

[[group]]
name = "first"
modules = ["ours"]

[[group]]
name = "second"
modules = ["peer"]
depends = ["first"]

[[group]]
name = "all"
groups = ["first", "second"]
iterations = {blocks}
"""


def compile_source(folder: Path) -> None:
    """Compile the library of both rows."""
    (folder / "compiled.c").write_text(SOURCE)
    (folder / "peer.py").write_text(PEER)
    words = ["mpicc", "-O2", "-shared", "-fPIC", f"-I{HEADER_FOLDER}", "-o", "compiled.so"]
    subprocess.run([*words, "compiled.c"], cwd=folder, check=True)


def returned(folder: Path, text: str) -> list[tuple[str, dict[str, Any]]]:
    """Run a workflow file; return what its copies have returned, with the modules' names."""
    (folder / "w.toml").write_text(text)
    runs = folder / f"runs-{len(list(folder.glob('runs-*')))}"
    line = [sys.executable, "-m", "diel", "run", "--allow-run-as-root", "--runs", runs, "w.toml"]
    subprocess.run([*map(str, line)], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (journal,) = runs.glob("*/journal.jsonl")
    records = map(json.loads, journal.read_text().splitlines())
    return [
        (record["module"], record["returned"])
        for record in records
        if record["event"] == "CopyFinished"
    ]


def exchange_row(folder: Path, *, quick: bool) -> harness.Result:
    """Measure exchanges."""
    ours: list[float] = []
    peer: list[float] = []
    for _ in range(2 if quick else 3):
        text = EXCHANGE.format(blocks=10 if quick else 20, times=1000, size=MIB)
        ((_, found),) = returned(folder, text)
        ours += [1e6 * seconds for seconds in found["ours"]]
        peer += [1e6 * seconds for seconds in found["peer"]]
    return harness.compare("c_boundary_exchange", ours, peer, "MPI_Sendrecv in C", "us")


def put_take_row(folder: Path, *, quick: bool) -> harness.Result:
    """Measure puts and takes."""
    text = PUT_TAKE.format(blocks=8 if quick else 20, times=10_000)
    found = returned(folder, text)
    samples = {
        name: [1e6 * each["seconds"] for module, each in found if module == name][1:]
        for name in ("ours", "peer")
    }
    return harness.compare(
        "c_put_take_small", samples["ours"], samples["peer"], "the same in Python", "us"
    )


def main() -> None:
    options = harness.parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compile_source(folder)
        rows = (row(folder, quick=options.quick) for row in (exchange_row, put_take_row))
        harness.report(rows, options.json)


if __name__ == "__main__":
    main()
