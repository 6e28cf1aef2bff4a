"""Three contenders of `tuple_space.py` that a rank and a server rank make up, with mpi4py alone.

``raw``
    ``Send``/``Recv`` there and back between preallocated buffers: what the hardware gives.
``pickled``
    ``send``/``recv`` of bytes there and back.
``naive``
    The tuple server that one writes in an afternoon: pickled messages, a queue for each tag.

Rank 0 is the client and answers the referee; rank 1 waits for the next block without spinning.
"""

from __future__ import annotations

import functools
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness
import relay
from launching import mpiexec

if TYPE_CHECKING:
    from mpi4py import MPI

CLIENT, SERVER = 0, 1


# -- raw ------------------------------------------------------------------------------------------


def raw_client(comm: MPI.Comm, size: int, round_trips: int) -> Iterator[None]:
    value, out = harness.arrays(size)
    tell_server(comm, (size, round_trips))
    yield
    for _ in range(round_trips):
        comm.Send(value, SERVER)
        comm.Recv(out, SERVER)
        yield
    assert (out == value).all()


def raw_server(comm: MPI.Comm) -> None:
    while (order := rest_until_told(comm)) is not None:
        size, round_trips = order
        _, buffer = harness.arrays(size)
        for _ in range(round_trips):
            comm.Recv(buffer, CLIENT)
            comm.Send(buffer, CLIENT)


# -- pickled --------------------------------------------------------------------------------------


def pickled_client(comm: MPI.Comm, size: int, round_trips: int) -> Iterator[None]:
    value = bytes(range(size))
    tell_server(comm, round_trips)
    yield
    for _ in range(round_trips):
        comm.send(value, SERVER)
        out = comm.recv(source=SERVER)
        yield
    assert out == value


def pickled_server(comm: MPI.Comm) -> None:
    while (round_trips := rest_until_told(comm)) is not None:
        for _ in range(round_trips):
            comm.send(comm.recv(source=CLIENT), CLIENT)


# -- naive ----------------------------------------------------------------------------------------


def naive_client(comm: MPI.Comm, size: int, pairs: int) -> Iterator[None]:
    def put(tag: Any, value: Any) -> None:
        comm.send(("put", tag, value), SERVER)

    def take(tag: Any) -> Any:
        comm.send(("take", tag), SERVER)
        return comm.recv(source=SERVER)

    value = bytes(range(size))
    tell_server(comm, "serve")
    yield
    for _ in range(pairs):
        put("point", value)
        out = take("point")
        yield
    comm.send(("rest",), SERVER)
    assert out == value


def naive_server(comm: MPI.Comm) -> None:
    while rest_until_told(comm) is not None:
        serve_naively(comm)


def serve_naively(comm: MPI.Comm) -> None:
    from mpi4py import MPI

    queues: dict[Any, deque[Any]] = defaultdict(deque)
    takers: dict[Any, deque[int]] = defaultdict(deque)
    status = MPI.Status()
    while True:
        request = comm.recv(source=MPI.ANY_SOURCE, status=status)
        if request[0] == "put":
            _, tag, value = request
            if takers[tag]:
                comm.send(value, takers[tag].popleft())
            else:
                queues[tag].append(value)
        elif request[0] == "take":
            tag = request[1]
            if queues[tag]:
                comm.send(queues[tag].popleft(), status.Get_source())
            else:
                takers[tag].append(status.Get_source())
        else:
            return


# -- what they share ------------------------------------------------------------------------------

CLIENTS = {"raw": raw_client, "pickled": pickled_client, "naive": naive_client}
SERVERS = {"raw": raw_server, "pickled": pickled_server, "naive": naive_server}


def rest_until_told(comm: MPI.Comm) -> Any:
    """Wait for the next block; leave the core to the contender whose turn it is."""
    while not comm.Iprobe(CLIENT):
        time.sleep(1e-3)
    order = comm.recv(source=CLIENT)
    comm.send("here", CLIENT)
    return order


def tell_server(comm: MPI.Comm, order: Any) -> None:
    """Let the server begin, and return when it is awake."""
    comm.send(order, SERVER)
    comm.recv(source=SERVER)


def be_client(comm: MPI.Comm, name: str, socket: str) -> None:
    """Do what the referee asks for, and let the server go at the end."""
    blocks = harness.Blocks()

    def work(task: str, size: int = 0, block_s: float = 0.0) -> dict[str, Any]:
        if task == "ready":
            return {}
        repeat = functools.partial(CLIENTS[name], comm, size)
        return {"seconds": blocks.seconds_each(size, repeat, block_s)}

    relay.answer(socket, work)
    tell_server(comm, None)


def command(folder: Path, name: str) -> list[str | Path]:
    """Return the line that starts the two ranks as ``diel run`` starts its own."""
    script = str(Path(__file__).resolve())
    return [*mpiexec(2), sys.executable, script, "--worker", name, "--setup", folder / relay.SOCKET]


def main() -> None:
    options = harness.parser(__doc__).parse_args()
    if not options.setup:
        relay.relay(functools.partial(command, name=options.worker))
        return
    from mpi4py import MPI

    if MPI.COMM_WORLD.Get_rank() == CLIENT:
        be_client(MPI.COMM_WORLD, options.worker, options.setup)
    else:
        SERVERS[options.worker](MPI.COMM_WORLD)


if __name__ == "__main__":
    main()
