"""What the executive costs: starting groups, starting a run, and exchanging a boundary.

group_starts_per_s (a second)
    A group of two modules with two ranks each that do nothing, one iteration after the other, from
    its first start to its last end in the journal. The peer is a bare loop: rank 0 sends the same
    four ranks a pickled message, waiting politely, and they build the same communicators, meet in a
    barrier, free them and report back.
startup_vs_bare_mpiexec (s)
    ``diel run workflows/hello.toml``, against mpiexec with the same number of ranks that import
    mpi4py and leave. The ratio is theirs to ours.
hello_s (s)
    The first of these by itself: from the command to its end.
wake_us (us)
    There and back between two ranks that both sleep while they wait, beside two processes that are
    busy. The peer is two processes that block in a pipe, beside the same.
boundary_exchange_vs_sendrecv (GB/s)
    See `executive_boundary.py`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import executive_boundary
import executive_wake
from harness import REPOSITORY, Result, compare, parser, report
from launching import diel_run, mpiexec, output_of

MODULES, PROCESSES = 2, 2
SERVICE_RANKS = 2  # the executive and the tuple server

WORKFLOW = """\
[[module]]
name = "left"
function = "{script}:do_nothing"
processes = {processes}
[[module]]
name = "right"
function = "{script}:do_nothing"
processes = {processes}
[[group]]
name = "both"
modules = ["left", "right"]
iterations = {iterations}
"""


def do_nothing(ctx: object) -> None:
    """Module: return at once."""


# -- starting groups ------------------------------------------------------------------------------


def our_starts_per_s(iterations: int, folder: Path) -> float:
    """Return how many iterations of the group run in a second."""
    file = folder / "starts.toml"
    script = Path(__file__).resolve()
    file.write_text(WORKFLOW.format(script=script, processes=PROCESSES, iterations=iterations))
    finished_s = [record["time_s"] for record in diel_run(file, folder).of("GroupFinished")]
    if len(finished_s) != iterations:
        raise RuntimeError(f"{len(finished_s)} of {iterations} iterations have run")
    return (iterations - 1) / (finished_s[-1] - finished_s[0])


def bare_starts_per_s(iterations: int) -> float:
    """Return how often in a second the bare loop goes round."""
    script = Path(__file__).resolve()
    ranks = 1 + MODULES * PROCESSES
    line = [*mpiexec(ranks), sys.executable, script, "--worker", "bare"]
    return float(output_of([*line, "--setup", str(iterations)]).splitlines()[-1])


def bare_loop(iterations: int) -> None:
    """Be a rank of the peer; rank 0 prints how often a second it went round."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    group = comm.Get_group()
    if comm.rank == 0:
        started_s = 0.0
        for iteration in range(iterations + 1):
            if iteration == 1:  # the first one warms up
                started_s = time.perf_counter()
            for rank in range(1, comm.size):
                comm.send(("start", iteration), rank)
            for _ in range(1, comm.size):
                _wait_politely(lambda: comm.iprobe())
                comm.recv()
        print(iterations / (time.perf_counter() - started_s), flush=True)
        return
    first = 1 + (comm.rank - 1) // PROCESSES * PROCESSES
    members = group.Incl(list(range(first, first + PROCESSES)))
    for iteration in range(iterations + 1):
        _wait_politely(lambda: comm.iprobe(0))
        comm.recv(source=0)
        module = comm.Create_group(members, tag=iteration % 32768)
        barrier = module.Ibarrier()
        _wait_politely(barrier.Test)
        module.Free()
        comm.send(("done", iteration), 0)


def _wait_politely(is_there: object) -> None:
    """Poll, then sleep a little between polls, as whoever shares cores has to."""
    polls = 0
    while not is_there():  # type: ignore[operator]
        polls += 1
        if polls > 250:
            time.sleep(min(1e-3, 20e-6 * 1.5 ** min(polls - 250, 20)))
        elif polls > 50:
            os.sched_yield()


# -- starting a run -------------------------------------------------------------------------------


def our_startup_s(folder: Path) -> tuple[float, int]:
    """Return the seconds from the command to its end, and its number of ranks."""
    file = REPOSITORY / "workflows" / "hello.toml"
    ran = diel_run(file, folder)
    return ran.wall_s, ran.of("RunStarted")[0]["ranks"]


def bare_startup_s(ranks: int) -> float:
    """Return the seconds that mpiexec takes with ranks that do nothing."""
    started_s = time.perf_counter()
    output_of([*mpiexec(ranks), sys.executable, "-c", "from mpi4py import MPI"])
    return time.perf_counter() - started_s


# -- all ------------------------------------------------------------------------------------------


def main() -> None:
    options = parser(__doc__).parse_args()
    if options.worker:
        bare_loop(int(options.setup))
        return
    rounds, iterations = (3, 500) if options.quick else (7, 2000)
    rows: list[Result] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours, bare = [], []
        for _ in range(rounds):
            ours.append(our_starts_per_s(iterations, folder))
            bare.append(bare_starts_per_s(iterations))
        rows.append(
            compare("group_starts_per_s", ours, bare, "a bare loop", "1/s", more_is_better=True)
        )
        ours, bare = [], []
        for _ in range(rounds):
            seconds, ranks = our_startup_s(folder)
            ours.append(seconds)
            bare.append(bare_startup_s(ranks))
        rows.append(compare("startup_vs_bare_mpiexec", ours, bare, f"mpiexec -n {ranks}", "s"))
        rows.append(compare("hello_s", ours, None, "none", "s"))
        rows.append(executive_wake.row(folder, quick=options.quick))
    rows.append(executive_boundary.row(quick=options.quick))
    report(rows, options.json)


if __name__ == "__main__":
    main()
