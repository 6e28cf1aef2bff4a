"""The contender ``redis`` of `tuple_space.py`: a server of our own, and redis-py.

At its best: a Unix socket and no TCP port, no persistence, one connection that no pool hands out,
hiredis to parse where it is installed, and the pair of commands that is faster at the size:
LPUSH and LPOP for small values, SET and GETDEL for large ones.

Where the system puts client and server decides about small values: a core that sleeps takes long
to wake up in a virtual machine. So there are two settings: ``any core``, where both may run
anywhere, like the ranks of the others; and ``one core``, which both share and nobody has to wake.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness

SMALL_BYTES = 2**16
READ_BYTES = 2**20  # redis-py's own 64 KiB are slower with large values
START_S = 10.0


def about(python: str) -> tuple[str, bool]:
    """Say in words what the peer is, and whether it is there."""
    server = shutil.which("redis-server")
    client = harness.version_of("redis", python)
    if server is None or client is None:
        lacking = "redis-server" if server is None else "redis-py"
        return f"Redis: no {lacking} here", False
    words = subprocess.run([server, "--version"], capture_output=True, text=True, check=True).stdout
    (number,) = (word[2:] for word in words.split() if word.startswith("v="))
    hiredis = harness.version_of("hiredis", python)
    parser = f", hiredis {hiredis}" if hiredis else " without hiredis"
    return f"Redis {number}, redis-py {client}{parser}", True


@contextlib.contextmanager
def server() -> Iterator[Any]:
    """Start a server, yield a client of it, and end it."""
    import redis

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "socket"
        options = {"port": "0", "unixsocket": path, "dir": folder, "save": "", "appendonly": "no"}
        line = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
        process = subprocess.Popen(["redis-server", *line], stdout=subprocess.DEVNULL)
        try:
            pool = redis.ConnectionPool(
                connection_class=redis.UnixDomainSocketConnection,
                path=str(path),
                socket_read_size=READ_BYTES,
            )
            deadline_s = time.monotonic() + START_S
            while not path.exists() and time.monotonic() < deadline_s:
                time.sleep(0.01)
            yield redis.Redis(connection_pool=pool, single_connection_client=True)
        finally:
            process.terminate()
            process.wait()


def put_take(client: Any, size: int, pairs: int) -> Iterator[None]:
    """Put and take bytes."""
    value = bytes(range(64)) * (size // 64)
    put, take = (client.lpush, client.lpop) if size <= SMALL_BYTES else (client.set, client.getdel)
    yield
    for _ in range(pairs):
        put("point", value)
        out = take("point")
        yield
    assert out == value


def main() -> None:
    setting = harness.parser(__doc__).parse_args().setup
    if setting == "one core":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    blocks = harness.Blocks()
    with server() as client:

        def work(task: str, size: int = 0, block_s: float = 0.0) -> dict[str, Any]:
            if task == "ready":
                return {}
            repeat = functools.partial(put_take, client, size)
            return {"seconds": blocks.seconds_each(size, repeat, block_s)}

        harness.serve(work)


if __name__ == "__main__":
    main()
