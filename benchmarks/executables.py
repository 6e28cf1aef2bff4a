"""What an executable costs as a task: diel against a pool of threads, Parsl and GNU parallel.

executables_vs_pool, executables_vs_htex, executables_vs_parallel (1/s)
    Tasks a second of an executable module, ``true``, with `tasks` and a copy a core, from the start
    of its group to its end in the journal, against as many ``true`` by

    - a pool of threads, one a core: each spawns the program (posix_spawn, which takes half the time
      of the package subprocess here) and waits for it;
    - Parsl's HighThroughputExecutor with a worker a core, ready before the clock starts, whose apps
      do the same (a bash_app costs a shell more);
    - GNU parallel with a job a core; its clock includes its start, before which nobody sees it.

    A peer that is not installed is left out.
executable_ms (ms)
    What a task of that run keeps a copy for; the peer is what one of the pool keeps a thread for.
executable_group_ms (ms)
    An iteration of a group that is one program: what it costs with orders and reports. The peer is
    a loop that spawns it and waits.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from harness import Result, Worker, compare, parser, report, serve
from launching import diel_run

PROGRAM = "/bin/true"
CORES = len(os.sched_getaffinity(0))

MODULE = """\
[[module]]
name = "program"
executable = ["{program}"]
{module}
[[group]]
name = "all"
modules = ["program"]
{group}
"""


def spawn(_: object = None) -> None:
    """Start the program and wait for it."""
    import os

    program = "/bin/true"  # Parsl sends the function without what is around it
    os.waitpid(os.posix_spawn(program, [program], os.environ), 0)


# -- ours -----------------------------------------------------------------------------------------


def run_s(folder: Path, *, module: str = "", group: str = "") -> float:
    """Return the seconds from the start of the first iteration of a group to the end of the last.

    Of many iterations the first is left out: it starts the supervisors.
    """
    file = folder / "programs.toml"
    file.write_text(MODULE.format(program=PROGRAM, module=module, group=group))
    ran = diel_run(file, folder)
    ends_s = [record["time_s"] for record in ran.of("GroupFinished")]
    began_s = ends_s[0] if len(ends_s) > 1 else ran.of("GroupStarted")[0]["time_s"]
    return float(ends_s[-1] - began_s)


# -- the peers ------------------------------------------------------------------------------------


def pool(tasks: int, threads: int) -> float:
    with ThreadPoolExecutor(threads) as executor:
        list(executor.map(spawn, range(threads)))
        started_s = time.perf_counter()
        list(executor.map(spawn, range(tasks)))
        return time.perf_counter() - started_s


def parallel(tasks: int, _: int) -> float:
    numbers = "\n".join(map(str, range(tasks)))
    line = ["parallel", "-j", str(CORES), "-n0", PROGRAM]
    started_s = time.perf_counter()
    subprocess.run(line, input=numbers, text=True, check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started_s


def htex(stack: ExitStack) -> Callable[[int, int], float]:
    import parsl
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    folder = stack.enter_context(tempfile.TemporaryDirectory())
    executor = HighThroughputExecutor(
        label="htex",
        address="127.0.0.1",
        max_workers_per_node=CORES,
        worker_logdir_root=folder,
        provider=LocalProvider(init_blocks=1, max_blocks=1),
    )
    kernel = parsl.load(
        Config(executors=[executor], run_dir=folder, strategy="none", usage_tracking=0)
    )
    stack.callback(parsl.clear)
    stack.callback(kernel.cleanup)
    app = parsl.python_app(spawn)

    def measure(tasks: int, _: int) -> float:
        for future in [app(number) for number in range(2 * CORES)]:
            future.result()
        started_s = time.perf_counter()
        for future in [app(number) for number in range(tasks)]:
            future.result()
        return time.perf_counter() - started_s

    return measure


def be_peer(name: str) -> None:
    with ExitStack() as stack:
        measure = {"pool": lambda: pool, "parallel": lambda: parallel, "htex": lambda: htex(stack)}
        contender = measure[name]()

        def work(tasks: int, threads: int) -> dict[str, Any]:
            return {"seconds": contender(tasks, threads)}

        serve(work)


def peers() -> dict[str, str]:
    """Return the peers that are here, each with what it is called."""
    found = {"pool": f"{CORES} threads that spawn"}
    if importlib.util.find_spec("parsl") is not None:
        found["htex"] = "Parsl's HighThroughputExecutor"
    if shutil.which("parallel") is not None:
        found["parallel"] = "GNU parallel"
    return found


# -- all ------------------------------------------------------------------------------------------


def main() -> None:
    options = parser(__doc__).parse_args()
    if options.worker:
        be_peer(options.worker)
        return
    rounds, tasks, iterations = (3, 1000, 400) if options.quick else (7, 5000, 2000)
    ours: list[float] = []
    ours_group: list[float] = []
    alone: list[float] = []
    theirs: dict[str, list[float]] = {name: [] for name in peers()}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        workers = {
            peer: stack.enter_context(Worker(__file__, peer, sys.executable, 1)) for peer in theirs
        }
        for _ in range(rounds):
            ours.append(run_s(Path(name), module=f"tasks = {tasks}\ncopies = {CORES}") / tasks)
            for peer, seconds in theirs.items():
                seconds.append(workers[peer].ask(tasks=tasks, threads=CORES)["seconds"] / tasks)
            seconds_s = run_s(Path(name), group=f"iterations = {iterations + 1}")
            ours_group.append(seconds_s / iterations)
            alone.append(workers["pool"].ask(tasks=iterations, threads=1)["seconds"] / iterations)
    rates = [1 / each_s for each_s in ours]
    rows: list[Result] = [
        compare(
            f"executables_vs_{peer}",
            rates,
            [1 / each_s for each_s in theirs[peer]],
            words,
            "1/s",
            more_is_better=True,
        )
        for peer, words in peers().items()
    ]
    busy_ms, pool_ms = (
        [1e3 * CORES * each_s for each_s in seconds] for seconds in (ours, theirs["pool"])
    )
    rows.append(compare("executable_ms", busy_ms, pool_ms, peers()["pool"], "ms"))
    group_ms, alone_ms = ([1e3 * each_s for each_s in one] for one in (ours_group, alone))
    rows.append(compare("executable_group_ms", group_ms, alone_ms, "a loop that spawns", "ms"))
    report(rows, options.json)


if __name__ == "__main__":
    main()
