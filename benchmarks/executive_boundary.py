"""What a shared boundary costs beside a bare ``Sendrecv`` of the same bytes.

Two modules of a workflow that ``diel run`` starts own half a boundary each, 1 MiB, and read the
other one's: ``exchange()`` in a loop. The peer is a loop of ``Sendrecv`` between two ranks that
mpiexec starts, on the same arrays. Both return when both arrays may be used again.

`row` measures it for a referee that has other rows; started by itself this file prints its own.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness
import relay
from launching import mpiexec

if TYPE_CHECKING:
    from mpi4py import MPI

NAME = "boundary_exchange_vs_sendrecv"
MIB = 2**20
ASKED, OTHER = 0, 1  # who answers the referee, and who takes part

WORKFLOW = """\
[[module]]
name = "asked"
function = "{script}:asked"
options = {{ socket = "{socket}" }}
[[module]]
name = "other"
function = "{script}:other"
[[group]]
name = "both"
modules = ["asked", "other"]
[[boundary]]
name = "wall"
dtype = "uint8"
shape = [2, {size}]
owners = [
    {{ module = "asked", section = [[0, 1], [0, {size}]] }},
    {{ module = "other", section = [[1, 2], [0, {size}]] }},
]
readers = [
    {{ module = "asked", section = [[1, 2], [0, {size}]] }},
    {{ module = "other", section = [[0, 1], [0, {size}]] }},
]
"""


# -- ours -----------------------------------------------------------------------------------------


def our_command(folder: Path) -> list[str | Path]:
    """Return the line that starts the run."""
    file = folder / "boundary.toml"
    script = Path(__file__).resolve()
    file.write_text(WORKFLOW.format(script=script, socket=folder / relay.SOCKET, size=MIB))
    line = [sys.executable, "-m", "diel", "run", "--allow-run-as-root"]
    return [*line, "--runs", folder, file]


def asked(ctx: Any) -> None:
    """Module: answer the referee."""
    wall = ctx.boundary("wall")

    def repeat(exchanges: int) -> Iterator[None]:
        mine, theirs = wall.owned[0], wall.read[0]
        mine += 1
        ctx.move(exchanges, to="other")
        yield
        for _ in range(exchanges):
            wall.exchange()
            yield
        assert (theirs == mine).all()

    serve(ctx.options["socket"], repeat)
    ctx.move(None, to="other")


def other(ctx: Any) -> None:
    """Module: take part."""
    wall = ctx.boundary("wall")
    while (exchanges := ctx.recv("asked")) is not None:
        wall.owned[0][...] += 1
        for _ in range(exchanges):
            wall.exchange()


# -- the peer -------------------------------------------------------------------------------------


def peer_command(folder: Path) -> list[str | Path]:
    """Return the line that starts two ranks as ``diel run`` starts its own."""
    script = str(Path(__file__).resolve())
    return [
        *mpiexec(2),
        sys.executable,
        script,
        "--worker",
        "peer",
        "--setup",
        folder / relay.SOCKET,
    ]


def be_peer(comm: MPI.Comm, socket: str) -> None:
    """Be one of the two ranks."""
    import numpy as np

    mine, theirs = np.zeros(MIB, np.uint8), np.zeros(MIB, np.uint8)
    partner = 1 - comm.Get_rank()

    def repeat(exchanges: int) -> Iterator[None]:
        comm.send(exchanges, partner)
        comm.recv(source=partner)
        mine[...] += 1
        yield
        for _ in range(exchanges):
            comm.Sendrecv(mine, partner, recvbuf=theirs, source=partner)
            yield
        assert (theirs == mine).all()

    if comm.Get_rank() == ASKED:
        serve(socket, repeat)
        comm.send(None, partner)
        return
    while True:
        while not comm.Iprobe(partner):  # leaves the core to whose turn it is
            time.sleep(1e-3)
        exchanges = comm.recv(source=partner)
        if exchanges is None:
            return
        comm.send("here", partner)
        mine[...] += 1
        for _ in range(exchanges):
            comm.Sendrecv(mine, partner, recvbuf=theirs, source=partner)


# -- both -----------------------------------------------------------------------------------------


def serve(socket: str, repeat: harness.Repeat) -> None:
    """Answer the referee's tasks."""
    blocks = harness.Blocks()

    def work(task: str, block_s: float = 0.0) -> dict[str, Any]:
        if task == "ready":
            return {}
        return {"seconds": blocks.seconds_each(task, repeat, block_s)}

    relay.answer(socket, work)


def row(*, quick: bool) -> harness.Result:
    """Measure, in turn, and return the row."""
    restarts, blocks, block_s = (2, 5, 0.5) if quick else (3, 10, 1.0)
    samples: dict[str, list[float]] = {"ours": [], "peer": []}
    script = str(Path(__file__).resolve())
    for _ in range(restarts):
        with (
            harness.Worker(script, "ours", sys.executable, threads=1) as ours,
            harness.Worker(script, "peer", sys.executable, threads=1) as peer,
        ):
            sides = {"ours": ours, "peer": peer}
            for side in sides.values():
                side.ask(task="ready")
            for block in range(1 + blocks):
                for name, side in sides.items():
                    answer = side.ask(task="exchange", block_s=block_s)
                    if block:  # the first one warms up
                        samples[name].append(1e6 * answer["seconds"])
    name = "Sendrecv, preallocated"
    return harness.compare(NAME, samples["ours"], samples["peer"], name, "us")


def main() -> None:
    options = harness.parser(__doc__).parse_args()
    if options.setup:
        from mpi4py import MPI

        be_peer(MPI.COMM_WORLD, options.setup)
    elif options.worker:
        commands = {"ours": our_command, "peer": peer_command}
        relay.relay(functools.partial(commands[options.worker]))
    else:
        harness.report([row(quick=options.quick)], options.json)


if __name__ == "__main__":
    main()
