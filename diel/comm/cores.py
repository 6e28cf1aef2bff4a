"""The cores of this host: which hardware threads share one, which a NUMA node; binding to them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from diel.frozen import Frozen

_SYSTEM: Final = Path("/sys/devices/system")
_THREADS: Final = Path("/proc/self/task")


class Topology(Frozen):
    """The CPUs of a host by the numbers of the kernel, which counts each hardware thread as one.

    Attributes
    ----------
    cores : tuple of tuple of int
        The CPUs of each core.
    nodes : tuple of tuple of int
        The CPUs of each NUMA node.
    """

    cores: tuple[tuple[int, ...], ...]
    nodes: tuple[tuple[int, ...], ...]

    @property
    def cpus(self) -> tuple[int, ...]:
        """All CPUs."""
        return tuple(sorted(cpu for core in self.cores for cpu in core))

    def __str__(self) -> str:
        threads = max(map(len, self.cores), default=1)
        words = [f"{len(self.cores)} core{'s' if len(self.cores) > 1 else ''}"]
        if threads > 1:
            words.append(f"of {threads} hardware threads")
        words.append(f"on {len(self.nodes)} NUMA node{'s' if len(self.nodes) > 1 else ''}")
        return " ".join(words)


def read_topology(system: Path = _SYSTEM) -> Topology:
    """Return the topology of this host, as the folder `system` of the kernel has it.

    What cannot be read there is taken as simple as it can be: a core for each CPU, one node.
    """
    online = _listed(system / "cpu" / "online") or tuple(range(os.cpu_count() or 1))
    cores: dict[tuple[int, ...], None] = {}
    for cpu in online:
        topology = system / "cpu" / f"cpu{cpu}" / "topology"
        siblings = _listed(topology / "thread_siblings_list") or (cpu,)
        cores[tuple(each for each in siblings if each in online) or (cpu,)] = None
    nodes = []
    with contextlib.suppress(OSError):
        for node in sorted((system / "node").glob("node[0-9]*")):
            if there := tuple(cpu for cpu in _listed(node / "cpulist") if cpu in online):
                nodes.append(there)
    return Topology(tuple(cores), tuple(sorted(nodes)) or (online,))


def _listed(file: Path) -> tuple[int, ...]:
    """Return the numbers in a file of the kernel, such as ``0-3,8-11``; none if there is none."""
    numbers: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for part in file.read_text().strip().split(","):
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)


@contextlib.contextmanager
def bound_to(cpus: Collection[int] | None) -> Iterator[None]:
    """Bind all threads of this process to some CPUs within a block; None binds nothing.

    Threads and processes that are started in the block inherit it. After it each thread may use
    what it could before, and new ones what this thread could.
    """
    if cpus is None:
        yield
        return
    own = os.sched_getaffinity(0)
    before = {}
    for thread in _threads():
        with contextlib.suppress(OSError):  # it has just ended
            before[thread] = os.sched_getaffinity(thread)
            os.sched_setaffinity(thread, cpus)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        for thread in _threads():
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread, before.get(thread, own))


def _threads() -> Sequence[int]:
    return [int(name) for name in os.listdir(_THREADS)]
