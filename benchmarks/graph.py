"""What compiling a graph brings: a chain of elementwise operations, and a step without arrays.

`elementwise_chain`: eight operations, ``(sigmoid(a * b + c) - a) * tanh(b - c) + c``, on float32
arrays, against PyTorch eager, without gradients, and, but for --quick, against torch.compile where
it works. On a million elements, on one thread and on two, and as `elementwise_chain_layer` on a
hidden layer's activations, 100 x 528, where nothing leaves the cache anyway.

`arrays_in_a_step`: the arrays that NumPy allocates in a replayed training step, counted with
tracemalloc, over a thousand steps.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import tracemalloc
from typing import Any

import harness
import numpy as np

SIZES = {"": (1024, 1024), "_layer": (100, 528)}
SEED = 1
STEPS = 1000


def arrays_of(shape: tuple[int, ...]) -> list[Any]:
    generator = np.random.default_rng(SEED)
    return [generator.normal(size=shape).astype("f4") for _ in range(3)]


def time_us(function: Any, block_s: float = 0.15) -> float:
    """Return the median over ten parts of a block."""
    function()
    began = time.perf_counter()
    function()
    count = max(1, int(block_s / 10 / max(time.perf_counter() - began, 1e-6)))
    parts = []
    for _ in range(10):
        began = time.perf_counter()
        for _ in range(count):
            function()
        parts.append((time.perf_counter() - began) / count)
    return 1e6 * float(np.median(parts))


def dnn_worker(setup: str) -> None:
    """Replay the chain as a plan."""
    from dnn import graph
    from dnn.backend import ops_for
    from dnn.graph import Plan

    def work(task: str, size: str) -> dict[str, Any]:
        if task == "arrays":
            return {"arrays": arrays_in_a_step()}
        a, b, c = nodes = [graph.placeholder(SIZES[size]) for _ in range(3)]
        y = (graph.sigmoid(a * b + c) - a) * graph.tanh(b - c) + c
        plan = Plan([y], ops_for("cpu"))
        for node, array in zip(nodes, arrays_of(SIZES[size]), strict=True):
            plan[node][...] = array
        us = time_us(plan.run)
        return {"us": us, "sum": float(plan[y].sum(dtype="f8"))}

    harness.serve(work)


def arrays_in_a_step() -> float:
    """Count what is allocated in NumPy's name while steps are replayed."""
    from dnn import SGD, NeuralNetwork, mlp
    from dnn.seeds import epoch_order
    from dnn.training.data import Samples
    from dnn.training.epoch import Trainer, TrainingTask

    generator = np.random.default_rng(SEED)
    x = generator.normal(size=(32 * STEPS, 13)).astype("f4")
    y = generator.integers(0, 2, len(x))
    model = NeuralNetwork(mlp(13, [16] * 5, 2, "relu"), optimizer=SGD(0.05), seed=SEED)
    network = model._network
    trainer = Trainer(network, TrainingTask(model._update, Samples(x, y), 32))
    trainer.epoch(epoch_order(len(x), SEED, 0))
    order = epoch_order(len(x), SEED, 1)
    trainer._order[...] = order
    trainer._position[:2] = 0
    tracemalloc.start()
    numpys = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    before = tracemalloc.take_snapshot().filter_traces([numpys])
    for _ in range(STEPS):
        for function, arguments in trainer._pieces[0][0][0].calls:
            function(*arguments)
    after = tracemalloc.take_snapshot().filter_traces([numpys])
    tracemalloc.stop()
    new = sum(max(0, s.count_diff) for s in after.compare_to(before, "lineno"))
    return new / STEPS


def torch_worker(setup: str) -> None:
    """Run the chain eagerly, or compiled."""
    import os

    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

    def chain(a: Any, b: Any, c: Any) -> Any:
        return (torch.sigmoid(a * b + c) - a) * torch.tanh(b - c) + c

    compiled: dict[str, Any] = {}

    def work(task: str, size: str) -> dict[str, Any]:
        arrays = [torch.from_numpy(array) for array in arrays_of(SIZES[size])]
        function = chain
        if task == "compiled":
            if "chain" not in compiled:
                compiled["chain"] = torch.compile(chain)
            function = compiled["chain"]
        with torch.no_grad():
            try:
                total = float(function(*arrays).sum(dtype=torch.float64))
            except Exception as error:
                if task != "compiled":
                    raise
                print(f"torch.compile: {type(error).__name__}", file=sys.stderr)
                return {"us": None, "sum": None}
            return {"us": time_us(lambda: function(*arrays)), "sum": total}

    harness.serve(work)


Times = dict[tuple[str, str, int], list[float]]


def measure(pythons: dict[str, str], restarts: int, blocks: int, compiles: bool) -> Times:
    """Let the contenders compute in turn; return microseconds of each block."""
    times: Times = {}
    tasks = {"dnn": ["chain"], "torch": ["eager", *(["compiled"] if compiles else [])]}
    for threads, sizes in ((1, ["", "_layer"]), (2, [""])):
        for _ in range(restarts):
            with contextlib.ExitStack() as stack:
                contenders = [
                    stack.enter_context(harness.Worker(__file__, name, python, threads))
                    for name, python in pythons.items()
                ]
                for size in sizes:
                    for block in range(1 + blocks):
                        sums = {}
                        for contender in contenders:
                            for task in tasks[contender.name]:
                                answer = contender.ask(task=task, size=size)
                                if answer["us"] is None:
                                    tasks[contender.name] = ["eager"]
                                    continue
                                sums[task] = answer["sum"]
                                if block:
                                    key = task, size, threads
                                    times.setdefault(key, []).append(answer["us"])
                        if max(sums.values()) - min(sums.values()) > 1e-3 * len(sums) * 100:
                            raise RuntimeError(f"the sums differ: {json.dumps(sums)}")
    return times


def main() -> None:
    options = harness.parser(__doc__).parse_args()
    if options.worker:
        {"dnn": dnn_worker, "torch": torch_worker}[options.worker](options.setup)
        return
    sys.path.insert(0, str(harness.REPOSITORY))
    restarts, blocks = (3, 2) if options.quick else (5, 6)
    version = harness.version_of("torch", options.peer_python)
    pythons = {"dnn": sys.executable}
    if version:
        pythons["torch"] = options.peer_python
    times = measure(pythons, restarts, blocks, compiles=not options.quick)
    torch = f"PyTorch {version}" if version else "PyTorch"
    rows = []
    for size, threads in (("", 1), ("", 2), ("_layer", 1)):
        for task, peer in (("eager", f"{torch}, eager"), ("compiled", f"{torch}, torch.compile")):
            name = f"elementwise_chain{size}{'_2_threads' if threads == 2 else ''}"
            name += "" if task == "eager" else "_vs_compiled"
            theirs = times.get((task, size, threads))
            ours = times["chain", size, threads]
            rows.append(harness.compare(name, ours, theirs, peer, "us"))
    with harness.Worker(__file__, "dnn", sys.executable, 1) as worker:
        arrays = worker.ask(task="arrays", size="")["arrays"]
    rows.append(harness.compare("arrays_in_a_step", [arrays], None, "none", "arrays"))
    harness.report(rows, options.json)


if __name__ == "__main__":
    main()
