"""The tuple space against what one would use in its place; ratios above 1 where ours is better.

One client puts a tuple and takes it back, again and again, through a server in another process:
a function module and the tuple server of a run that ``diel run`` started. All MPI contenders
use the same MPI and the same launch line.

put_take_small_vs_redis (us a put and take)
    64 bytes, against Redis through redis-py (see `tuple_space_redis.py`), its processes wherever
    the system puts them, like ours. On two cores in a virtual machine this is five times slower
    than on one, so the figure may be either, or between.
put_take_small_vs_redis_one_core (us a put and take)
    The same with Redis' server and client held on one core, where it is fastest.
put_take_small_vs_naive (us a put and take)
    Against a tuple server of 20 lines: pickled messages and a dict of deques.
put_take_small_vs_pickled (us), put_take_small_vs_raw_roundtrip (us)
    Against one round trip of 64 bytes: mpi4py's ``send``/``recv``, and ``Send``/``Recv`` between
    preallocated buffers, which is the floor.
put_take_1MiB_vs_raw, put_take_64MiB_vs_raw (GB/s)
    2 * size / time of a put and a take with ``out=``, against ``Send``/``Recv`` there and back
    between preallocated buffers.
put_take_64MiB_vs_redis (GB/s)
    Against Redis as above.
dist_put_take_256MiB_vs_single (GB/s)
    Striped over two servers, against an ordinary put and take with one. Three ranks are busy.
blocked_cpu_percent (% of a core)
    CPU time of a rank that is blocked in a ``tget`` for 10 s (3 s with ``--quick``).
million_tuples_rss_growth_MiB (MiB)
    How much the server's memory grows over a million puts and takes (100,000 with ``--quick``)
    of 64 bytes, each with a tag of its own, at most 100 at a time, after 100,000 (10,000).

Each contender runs in processes of its own, and none has more than a rank and a server that work.
Contenders take turns block by block, and all of them start anew a few times.
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tuple_space_ours
import tuple_space_redis
from harness import Result, Worker, compare, parser, report

SMALL_BYTES = 64
MIB = 2**20
BLOCKED = "blocked_cpu_percent"
GROWTH = "million_tuples_rss_growth_MiB"
FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    restarts: int
    blocks: int
    block_s: float
    blocked_s: float
    tuples: int
    warm_up_tuples: int


FULL = Effort(3, 7, 0.2, 10.0, 1_000_000, 100_000)
QUICK = Effort(1, 5, 0.1, 3.0, 100_000, 10_000)


@dataclass(frozen=True)
class Row:
    """A comparison: a task, and who does it. The peer's own name for the task may differ."""

    name: str
    task: str
    size: int
    peer: str
    ours: str = "ours"
    peer_task: str = "put_take"

    @property
    def in_bandwidth(self) -> bool:
        return self.size >= MIB

    @property
    def unit(self) -> str:
        return "GB/s" if self.in_bandwidth else "us"


ROWS = (
    Row("put_take_small_vs_redis", "small", SMALL_BYTES, "redis"),
    Row("put_take_small_vs_redis_one_core", "small", SMALL_BYTES, "redis_one_core"),
    Row("put_take_small_vs_naive", "small", SMALL_BYTES, "naive"),
    Row("put_take_small_vs_pickled", "small", SMALL_BYTES, "pickled"),
    Row("put_take_small_vs_raw_roundtrip", "small", SMALL_BYTES, "raw"),
    Row("put_take_1MiB_vs_raw", "large", MIB, "raw"),
    Row("put_take_64MiB_vs_raw", "large", 64 * MIB, "raw"),
    Row("put_take_64MiB_vs_redis", "large", 64 * MIB, "redis"),
    Row("dist_put_take_256MiB_vs_single", "striped", 256 * MIB, "ours", "two_servers", "large"),
)

# Who: (script, --worker, --setup)
CONTENDERS = {
    "ours": ("tuple_space_ours.py", "ours", "1"),
    "two_servers": ("tuple_space_ours.py", "ours", "2"),
    "raw": ("tuple_space_mpi.py", "raw", ""),
    "pickled": ("tuple_space_mpi.py", "pickled", ""),
    "naive": ("tuple_space_mpi.py", "naive", ""),
    "redis": ("tuple_space_redis.py", "redis", "any core"),
    "redis_one_core": ("tuple_space_redis.py", "redis", "one core"),
}

PEER_NAMES = {
    "naive": "a naive tuple server, mpi4py",
    "pickled": "mpi4py send/recv",
    "raw": "Send/Recv, preallocated",
    "ours": "tput/tget with one server",
}


@contextlib.contextmanager
def contenders(names: Sequence[str], redis_python: str) -> Iterator[dict[str, Worker]]:
    """Start contenders, wait until all are ready, and end them."""
    with contextlib.ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in names:
            script, known_as, setup = CONTENDERS[name]
            python = redis_python if known_as == "redis" else sys.executable
            contender = Worker(str(FOLDER / script), known_as, python, threads=1, setup=setup)
            workers[name] = stack.enter_context(contender)
        for worker in workers.values():
            worker.ask(task="ready")
        yield workers


class Measurements:
    """What all restarts have measured: by the row's name, of ours and of its peer."""

    def __init__(self, effort: Effort) -> None:
        self._effort = effort
        self.ours: defaultdict[str, list[float]] = defaultdict(list)
        self.peer: defaultdict[str, list[float]] = defaultdict(list)

    def take(self, workers: dict[str, Worker]) -> None:
        """Measure all rows once, with contenders that have just started."""
        effort, ours = self._effort, workers["ours"]
        # First: memory that large payloads leave behind would hide growth.
        growth = ours.ask(task="growth", count=effort.tuples, warm_up=effort.warm_up_tuples)
        self.ours[GROWTH].append(growth["MiB"])
        blocked = ours.ask(task="blocked", seconds=effort.blocked_s)
        self.ours[BLOCKED].append(blocked["percent"])
        for row in ROWS:
            self._take_turns(row, workers)

    def _take_turns(self, row: Row, workers: dict[str, Worker]) -> None:
        sides = [(self.ours, row.ours, row.task), (self.peer, row.peer, row.peer_task)]
        present = [side for side in sides if side[1] in workers]
        for block in range(1 + self._effort.blocks):
            for samples, contender, task in present:
                sample = self._block(row, workers[contender], task)
                if block > 0:  # the first one warms up
                    samples[row.name].append(sample)

    def _block(self, row: Row, worker: Worker, task: str) -> float:
        answer = worker.ask(task=task, size=row.size, block_s=self._effort.block_s)
        seconds: float = answer["seconds"]
        return 2e-9 * row.size / seconds if row.in_bandwidth else 1e6 * seconds


def table(
    measured: Measurements, effort: Effort, notes: dict[str, str], absent: set[str]
) -> list[Result]:
    """Make the rows of the report; `notes` says what each peer is, or why it is absent."""
    results = [
        compare(
            row.name,
            measured.ours[row.name],
            measured.peer[row.name],
            notes[row.ours] if row.ours in absent else notes[row.peer],
            row.unit,
            more_is_better=row.in_bandwidth,
        )
        for row in ROWS
    ]
    blocked = f"none; blocked for {effort.blocked_s:g} s"
    growth = f"none; {effort.tuples:,} puts and takes"
    return [
        *results,
        compare(BLOCKED, measured.ours[BLOCKED], None, blocked, "% of a core"),
        compare(GROWTH, measured.ours[GROWTH], None, growth, "MiB"),
    ]


def main() -> None:
    options = parser(__doc__).parse_args()
    effort = QUICK if options.quick else FULL
    redis, redis_is_there = tuple_space_redis.about(options.peer_python)
    notes, absent = dict(PEER_NAMES), set()
    for name, cores in (("redis", "any core"), ("redis_one_core", "one core")):
        notes[name] = f"{redis}, {cores}" if redis_is_there else redis
        if not redis_is_there:
            absent.add(name)
    if why_not := tuple_space_ours.refusal(servers=2):
        absent.add("two_servers")
        notes["two_servers"] = why_not
    present = [name for name in CONTENDERS if name not in absent]
    measured = Measurements(effort)
    for _ in range(effort.restarts):
        with contenders(present, options.peer_python) as workers:
            measured.take(workers)
    report(table(measured, effort, notes, absent), options.json)


if __name__ == "__main__":
    main()
