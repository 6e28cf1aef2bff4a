"""What a task of a workflow graph costs: graphs as they are published, of functions of 1 ms.

Three seeded graphs of the shapes that dominate the instances of WfCommons, about as large:

fan_ms_per_task (ms)
    902 tasks: three times one task, 299 that wait for it, and one that waits for these.
chain_ms_per_task (ms)
    401 tasks: one task, eight chains of 50 after it, so there are never more than eight at once.
join_ms_per_task (ms)
    263 tasks in layers; each waits for one to four tasks of the layer before, drawn at random.

The time from the first start to the last end, by the number of tasks. Each task is a group of one
module that sleeps for 1 ms; four ranks run them. The peer is Parsl with four threads of one
process; ``fan_vs_threads`` and ``fan_vs_htex`` compare the fans with Parsl's threads and with its
executor of processes, HighThroughputExecutor, which has four workers. A peer that is not installed
is left out.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from harness import Result, compare, parser, report, version_of
from launching import diel_run, output_of

WORKERS = 4
SERVICE_RANKS = 2  # the executive and the tuple server
TASK_S = 1e-3
SEED = 20
_SCRIPT = Path(__file__).resolve()

Graph = list[list[int]]
"""For each task the tasks that it waits for; these come before it."""


def one_millisecond(ctx: object) -> None:
    """Module: what a task does."""
    time.sleep(TASK_S)


# -- the graphs -----------------------------------------------------------------------------------


def fans(width: int = 299) -> Graph:
    """Return three fans, one after the other."""
    graph: Graph = []
    for _ in range(3):
        first = len(graph)
        graph.append([first - 1] if first else [])
        graph += [[first] for _ in range(width)]
        graph.append(list(range(first + 1, first + 1 + width)))
    return graph[:-1]  # the last fan is joined by nobody


def chains(length: int = 50, count: int = 8) -> Graph:
    """Return chains beside each other, after one task."""
    graph: Graph = [[]]
    for _ in range(count):
        last = 0
        for _ in range(length):
            graph.append([last])
            last = len(graph) - 1
    return graph


def joins(tasks: int = 263, width: int = 16) -> Graph:
    """Return layers whose tasks wait for some of the layer before."""
    draw = random.Random(SEED)
    graph: Graph = [[] for _ in range(width)]
    while len(graph) < tasks:
        first = len(graph) - width
        for _ in range(min(width, tasks - len(graph))):
            before = draw.sample(range(first, first + width), draw.randint(1, 4))
            graph.append(sorted(before))
    return graph


GRAPHS = {"fan": fans, "chain": chains, "join": joins}
SMALL = {"fan": lambda: fans(99), "chain": lambda: chains(20), "join": lambda: joins(131)}


# -- ours -----------------------------------------------------------------------------------------


def our_ms_per_task(graph: Graph, folder: Path) -> float:
    """Run a graph with ``diel run``."""
    file = folder / "graph.toml"
    file.write_text("".join(_tables_of(graph)))
    ran = diel_run(file, folder, ranks=SERVICE_RANKS + WORKERS)
    started_s = [record["time_s"] for record in ran.of("GroupStarted")]
    finished_s = [record["time_s"] for record in ran.of("GroupFinished")]
    if len(finished_s) != len(graph):
        raise RuntimeError(f"{len(finished_s)} of {len(graph)} tasks have run")
    return 1e3 * (max(finished_s) - min(started_s)) / len(graph)


def _tables_of(graph: Graph) -> Iterator[str]:
    for task, before in enumerate(graph):
        depends = json.dumps([f"g{one}" for one in before])
        yield f'[[module]]\nname = "t{task}"\nfunction = "{_SCRIPT}:one_millisecond"\n'
        yield f'[[group]]\nname = "g{task}"\nmodules = ["t{task}"]\ndepends = {depends}\n'


# -- the peers ------------------------------------------------------------------------------------


def parsl_ms_per_task(python: str, executor: str, shapes: dict[str, Graph]) -> dict[str, float]:
    """Run graphs with Parsl, in a process of its own; return milliseconds for a task of each."""
    line = [python, _SCRIPT, "--worker", executor, "--setup", json.dumps(shapes)]
    found: dict[str, float] = json.loads(output_of(line).splitlines()[-1])
    return found


def be_parsl(executor: str, shapes: dict[str, Graph]) -> None:
    """Be the peer; print milliseconds for a task of each graph."""
    import parsl
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor, ThreadPoolExecutor
    from parsl.providers import LocalProvider

    def task(*_: object) -> None:
        import time

        time.sleep(1e-3)

    if executor == "threads":
        chosen = ThreadPoolExecutor(max_threads=WORKERS)
    else:
        chosen = HighThroughputExecutor(
            max_workers_per_node=WORKERS,
            address="127.0.0.1",
            provider=LocalProvider(init_blocks=1, max_blocks=1),
        )
    with tempfile.TemporaryDirectory() as folder:
        config = Config(executors=[chosen], run_dir=folder, initialize_logging=False)
        with contextlib.redirect_stdout(sys.stderr), parsl.load(config):
            app = parsl.python_app(task)
            for done in [app() for _ in range(4 * WORKERS)]:  # its workers are there then
                done.result()
            found = {}
            for name, graph in shapes.items():
                started_s = time.perf_counter()
                futures: list[object] = []
                for before in graph:
                    futures.append(app(*(futures[one] for one in before)))
                for future in futures:
                    future.result()  # type: ignore[attr-defined]
                found[name] = 1e3 * (time.perf_counter() - started_s) / len(graph)
    print(json.dumps(found), flush=True)


# -- all ------------------------------------------------------------------------------------------


def main() -> None:
    options = parser(__doc__).parse_args()
    if options.worker:
        be_parsl(options.worker, json.loads(options.setup))
        return
    rounds, made = (2, SMALL) if options.quick else (5, GRAPHS)
    shapes = {name: make() for name, make in made.items()}
    version = version_of("parsl", options.peer_python)
    ours: dict[str, list[float]] = {name: [] for name in shapes}
    theirs: dict[str, dict[str, list[float]]] = {"threads": {}, "htex": {}}
    with tempfile.TemporaryDirectory() as name:
        for _ in range(rounds):
            for shape, graph in shapes.items():
                ours[shape].append(our_ms_per_task(graph, Path(name)))
            for executor, times in theirs.items() if version else ():
                for shape, ms in parsl_ms_per_task(options.peer_python, executor, shapes).items():
                    times.setdefault(shape, []).append(ms)
    peer = f"Parsl {version}" if version else "Parsl is not installed"
    rows: list[Result] = [
        compare(
            f"{shape}_ms_per_task",
            ours[shape],
            theirs["threads"].get(shape),
            f"{peer}, threads",
            "ms",
        )
        for shape in shapes
    ]
    rows += [
        compare(f"fan_vs_{executor}", ours["fan"], times.get("fan"), f"{peer}, {executor}", "ms")
        for executor, times in theirs.items()
    ]
    report(rows, options.json)


if __name__ == "__main__":
    main()
