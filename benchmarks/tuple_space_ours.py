"""The contender ``ours`` of `tuple_space.py`: a module of a workflow that ``diel run`` starts.

The module is the client; the tuple server is rank 1. The tuple space is whatever ``diel run``
gives to a module, with nothing set up by hand.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import relay

SERVER_RANK = 1
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")  # Open MPI, MPICH
BURST = 100  # tuples that are in the space at a time while memory is watched

WORKFLOW = """\
[[module]]
name = "client"
function = "{script}:answer"
options = {{ socket = "{socket}" }}
[[group]]
name = "all"
modules = ["client"]
"""
SERVERS = """\
[tuple_space]
servers = {servers}
"""


# -- the run --------------------------------------------------------------------------------------


def command(folder: Path, servers: int) -> list[str | Path]:
    """Return the line that starts the run."""
    file = write_workflow(folder, servers)
    line = [sys.executable, "-m", "diel", "run", "--allow-run-as-root"]
    return [*line, "--runs", folder, file]


def write_workflow(folder: Path, servers: int) -> Path:
    """Write the workflow file; with one server it leaves the number to the default."""
    text = WORKFLOW.format(script=Path(__file__).resolve(), socket=folder / relay.SOCKET)
    if servers != 1:
        text = SERVERS.format(servers=servers) + text
    file = folder / "tuple_space.toml"
    file.write_text(text)
    return file


def refusal(servers: int) -> str | None:
    """Say why this version cannot run with so many servers; None where it can.

    Raises
    ------
    RuntimeError
        If it refuses anything but the key.
    """
    with tempfile.TemporaryDirectory() as folder:
        verdict = subprocess.run(
            [sys.executable, "-m", "diel", "check", write_workflow(Path(folder), servers)],
            env=relay.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
    if verdict.returncode == 0:
        return None
    if "unknown" in verdict.stderr and "tuple_space" in verdict.stderr:
        return "[tuple_space] servers is not known to this version"
    raise RuntimeError(verdict.stdout + verdict.stderr)


# -- the module -----------------------------------------------------------------------------------


def answer(ctx: Any) -> None:
    """Module: do one task after the other."""
    blocks = harness.Blocks()

    def work(task: str, **arguments: Any) -> dict[str, Any]:
        if task == "ready":
            return {}
        if task == "blocked":
            return {"percent": blocked_cpu_percent(ctx.tuples, **arguments)}
        if task == "growth":
            return {"MiB": server_growth_mib(ctx.tuples, **arguments)}
        size, block_s = arguments["size"], arguments["block_s"]
        repeat = functools.partial(REPEATS[task], ctx.tuples, size)
        return {"seconds": blocks.seconds_each((task, size), repeat, block_s)}

    relay.answer(ctx.options["socket"], work)


def small(tuples: Any, size: int, pairs: int) -> Iterator[None]:
    """Put and take bytes."""
    value = bytes(range(size))
    yield
    for _ in range(pairs):
        tuples.tput("point", value)
        taken = tuples.tget("point")
        yield
    assert taken == value


def large(tuples: Any, size: int, pairs: int) -> Iterator[None]:
    """Put an array and take it into another one."""
    value, out = harness.arrays(size)
    yield
    for _ in range(pairs):
        tuples.tput("field", value)
        tuples.tget("field", out=out)
        yield
    assert (out == value).all()


def striped(tuples: Any, size: int, pairs: int) -> Iterator[None]:
    """Put an array in stripes over all servers and take it into another one."""
    value, out = harness.arrays(size)
    yield
    for _ in range(pairs):
        tuples.dist_tput("field", value)
        tuples.dist_tget("field", out=out)
        yield
    assert (out == value).all()


REPEATS = {"small": small, "large": large, "striped": striped}


def blocked_cpu_percent(tuples: Any, seconds: float) -> float:
    """Return the CPU time, in percent of the time, of this process while blocked in a tget."""
    from diel.errors import TupleTimeout

    started_s, cpu_s = time.perf_counter(), time.process_time()
    with contextlib.suppress(TupleTimeout):
        tuples.tget("never", timeout=seconds)
    return 100 * (time.process_time() - cpu_s) / (time.perf_counter() - started_s)


def server_growth_mib(tuples: Any, count: int, warm_up: int) -> float:
    """Return how much the server's memory grows while so many tuples come and go."""
    server = _process_of(SERVER_RANK)
    _come_and_go(tuples, range(warm_up))
    before_kib = _resident_kib(server)
    _come_and_go(tuples, range(warm_up, warm_up + count))
    return (_resident_kib(server) - before_kib) / 1024


def _come_and_go(tuples: Any, numbers: range) -> None:
    """Put and take in bursts; each tuple has a tag that no other one ever has."""
    for start in range(0, len(numbers), BURST):
        burst = numbers[start : start + BURST]
        for number in burst:
            tuples.tput(("point", number), b"x" * 64)
        for number in burst:
            tuples.tget(("point", number))


def _process_of(rank: int) -> Path:
    """Return the folder under /proc of another rank of this run: they have the same parent."""
    wanted = {f"{name}={rank}".encode() for name in RANK_VARIABLES}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # of other users, or gone by now
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (process / "environ").read_bytes().split(b"\0")
            if parent == os.getppid() and not wanted.isdisjoint(variables):
                return process
    raise RuntimeError(f"no rank {rank} is to be found in /proc")


def _resident_kib(process: Path) -> int:
    for line in (process / "status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise RuntimeError(f"{process}/status does not name VmRSS")


if __name__ == "__main__":
    number_of_servers = int(harness.parser(__doc__).parse_args().setup)
    relay.relay(functools.partial(command, servers=number_of_servers))
