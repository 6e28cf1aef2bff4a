"""Training steps of a multilayer perceptron on the CPU, against PyTorch.

The network of MagmaDNN's papers: 784 inputs, 1 to 4 hidden layers of 528 sigmoid units, 10
classes, batches of 100, SGD with a learning rate of 0.05 and a weight decay of 0.001, float32.
The data have the shape of MNIST and are made up. Both sides start from the same parameters, visit
the samples in the same order, gather each batch from the whole data and end with the same loss,
which is checked. PyTorch takes ``SGD(fused=True)``, its fastest, with its default beside it; both
take 2 threads.

``mlp_depth4_vs_its_gemms`` sets the matrix products of our step alone against the whole step, and
``mlp_depth4_of_best_sgemm`` what the step computes in a second against one large product.
``seconds_per_added_layer`` is the slope over the depths, for 5 epochs of 60,000 samples.
``adam_update`` moves the parameters of depth 4, alone.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np

DEPTHS = (1, 2, 3, 4)
THREADS = 2
INPUTS, HIDDEN, CLASSES, BATCH = 784, 528, 10, 100
RATE, DECAY = 0.05, 0.001
SEED = 1


def write_setup(path: Path, samples: int, epochs: int) -> None:
    """Write data, first parameters and orders, from which both contenders start."""
    from dnn import batches

    generator = np.random.default_rng(SEED)
    y = generator.integers(0, CLASSES, samples)
    centres = generator.random((CLASSES, INPUTS))
    x = (0.3 * centres[y] + 0.7 * generator.random((samples, INPUTS))).astype("f4")
    arrays = {"x": x, "y": y}
    for depth in DEPTHS:
        widths = [INPUTS, *[HIDDEN] * depth, CLASSES]
        for i, (rows, units) in enumerate(itertools.pairwise(widths), start=1):
            limit = math.sqrt(6 / (rows + units))
            weight = generator.uniform(-limit, limit, (rows, units))
            arrays[f"{depth}.weight.{i}"] = weight.astype("f4")
    orders = [list(batches(samples, BATCH, SEED, epoch)) for epoch in range(epochs)]
    np.savez(path, orders=np.array(orders), **arrays)


def dnn_worker(setup: str) -> None:
    """Train with dnn: plain `fit`, one epoch a block."""
    from dnn import SGD, NeuralNetwork, mlp

    given = np.load(setup)
    x, y = given["x"], given["y"]
    models = {}
    for depth in DEPTHS:
        layers = mlp(INPUTS, [HIDDEN] * depth, CLASSES, "sigmoid")
        model = NeuralNetwork(layers, optimizer=SGD(RATE, weight_decay=DECAY), seed=SEED)
        for i in range(1, depth + 2):
            model.parameters[f"fully_connected_{i}.weight"][...] = given[f"{depth}.weight.{i}"]
        models[depth] = model

    def work(depth: int, task: str) -> dict[str, Any]:
        if task == "products":
            return time_products(models[depth])
        if task == "adam":
            return {"ms_per_step": adam_ms(models[depth])}
        history = models[depth].fit(x, y, epochs=1, batch_size=BATCH)
        return {
            "ms_per_step": 1e3 * history.training_time_s / history.steps,
            "loss": history.loss[0],
        }

    harness.serve(work)


def time_products(model: Any) -> dict[str, Any]:
    """Time the matrix products of a step, each on its own arrays, and one large product."""
    plan = model._network.plan("training", BATCH).plan
    products = [step for step in plan.steps if step[0] is model._network.ops.gemm]
    calls = model._network.ops.link(products)

    def all_products() -> None:
        for function, arguments in calls:
            function(*arguments)

    operations = sum(2 * out.size * a.shape[-1] for _, (a, _, out) in products)
    large = np.random.default_rng(SEED).random((2048, 2048), dtype="f4")
    into = np.empty_like(large)
    large_ms = median_ms(lambda: np.matmul(large, large, into), 4)
    return {
        "ms_per_step": median_ms(all_products, 30),
        "gflop": operations / 1e9,
        "best_gflop_per_s": 2 * 2048**3 / large_ms / 1e6,
    }


def adam_ms(model: Any) -> float:
    """Time one update of all parameters of a model by Adam."""
    from dnn import Adam

    network = model._network
    network.gradients.flat[...] = gradients_of(network.gradients.flat.size)
    update = Adam(RATE).bind(network.ops, network.parameters, network.gradients)
    return median_ms(update.run, 60)


def gradients_of(size: int) -> Any:
    return np.random.default_rng(SEED).normal(size=size).astype("f4")


def median_ms(function: Any, times: int) -> float:
    # It takes a moment until the system has given each thread a core.
    until = time.perf_counter() + 0.2
    while time.perf_counter() < until:
        function()
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        function()
        taken.append(time.perf_counter() - began)
    return 1e3 * float(np.median(taken))


def torch_worker(setup: str) -> None:
    """Train with PyTorch, one epoch a block."""
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    given = np.load(setup)
    x, y = torch.from_numpy(given["x"]), torch.from_numpy(given["y"])
    orders = [[torch.from_numpy(rows) for rows in order] for order in given["orders"]]
    criterion = torch.nn.CrossEntropyLoss()
    variants = list(itertools.product(DEPTHS, ("fused", "default")))
    nets, optimizers, done = {}, {}, dict.fromkeys(variants, 0)
    for depth, task in variants:
        widths = [INPUTS, *[HIDDEN] * depth, CLASSES]
        layers: list[torch.nn.Module] = []
        for i, (rows, units) in enumerate(itertools.pairwise(widths), start=1):
            linear = torch.nn.Linear(rows, units)
            with torch.no_grad():
                weight = given[f"{depth}.weight.{i}"]
                linear.weight.copy_(torch.from_numpy(np.ascontiguousarray(weight.T)))
                linear.bias.zero_()
            layers += [linear, torch.nn.Sigmoid()]
        nets[depth, task] = torch.nn.Sequential(*layers[:-1])
        optimizers[depth, task] = torch.optim.SGD(
            nets[depth, task].parameters(),
            lr=RATE,
            weight_decay=DECAY,
            fused=True if task == "fused" else None,
        )

    def adam_ms(depth: int) -> float:
        parameters = list(nets[depth, "fused"].parameters())
        for parameter in parameters:
            gradient = gradients_of(parameter.numel()).reshape(parameter.shape)
            parameter.grad = torch.from_numpy(gradient)
        return median_ms(torch.optim.Adam(parameters, lr=RATE, fused=True).step, 60)

    def work(depth: int, task: str) -> dict[str, Any]:
        if task == "adam":
            return {"ms_per_step": adam_ms(depth)}
        variant = depth, task
        net, optimizer, order = nets[variant], optimizers[variant], orders[done[variant]]
        done[variant] += 1
        total = torch.zeros(())
        began = time.perf_counter()
        for rows in order:
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(net(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            total += loss.detach()
        seconds = time.perf_counter() - began
        return {"ms_per_step": 1e3 * seconds / len(order), "loss": total.item() / len(order)}

    harness.serve(work)


Times = dict[tuple[str, str, int], list[float]]


def measure(setup: str, pythons: dict[str, str], restarts: int, blocks: int) -> Times:
    """Let the contenders train in turn; return milliseconds a step of each block.

    `pythons` has the interpreter of each contender.
    """
    tasks = {"dnn": ("step",), "torch": ("fused", "default")}
    times: Times = {}
    for _ in range(restarts):
        with contextlib.ExitStack() as stack:
            contenders = [
                stack.enter_context(harness.Worker(__file__, name, python, THREADS, setup))
                for name, python in pythons.items()
            ]
            for depth in DEPTHS:
                losses: dict[str, float] = {}
                for block in range(1 + blocks):  # the first warms up
                    for contender in contenders:
                        for task in tasks[contender.name]:
                            answer = contender.ask(depth=depth, task=task)
                            losses[f"{contender.name} {task}"] = answer["loss"]
                            if block:
                                key = (contender.name, task, depth)
                                times.setdefault(key, []).append(answer["ms_per_step"])
                    if depth == DEPTHS[-1] and block:
                        note_products(contenders[0].ask(depth=depth, task="products"), times)
                if not math.isclose(max(losses.values()), min(losses.values()), rel_tol=1e-3):
                    raise RuntimeError(f"depth {depth}: the losses differ: {losses}")
    return times


def note_products(answer: dict[str, float], times: Times) -> None:
    for name, value in answer.items():
        times.setdefault(("dnn", name if name != "ms_per_step" else "products", 4), []).append(
            value
        )


def measure_adam(setup: str, pythons: dict[str, str], threads: int, restarts: int) -> Times:
    """Let the contenders move parameters in turn."""
    times: Times = {}
    for _ in range(restarts):
        with contextlib.ExitStack() as stack:
            contenders = [
                stack.enter_context(harness.Worker(__file__, name, python, threads, setup))
                for name, python in pythons.items()
            ]
            for block in range(4):
                for contender in contenders:
                    answer = contender.ask(depth=DEPTHS[-1], task="adam")
                    if block:
                        key = (contender.name, "adam", threads)
                        times.setdefault(key, []).append(answer["ms_per_step"])
    return times


def rows_of(times: Times, version: str | None) -> list[harness.Result]:
    """Make the table."""
    torch = f"PyTorch {version}" if version else "PyTorch"
    rows = []
    for task, kind in (("fused", "SGD(fused=True)"), ("default", "its default, SGD()")):
        for depth in DEPTHS:
            suffix = "" if task == "fused" else "_vs_default"
            ours, theirs = times["dnn", "step", depth], times.get(("torch", task, depth))
            name = f"mlp_depth{depth}{suffix}"
            rows.append(harness.compare(name, ours, theirs, f"{torch}, {kind}", "ms per step"))
    step, products = times["dnn", "step", 4], times["dnn", "products", 4]
    rows.append(
        harness.compare(
            "mlp_depth4_vs_its_gemms", step, products, "its products alone", "ms per step"
        )
    )
    gflop = times["dnn", "gflop", 4][0]
    best = times["dnn", "best_gflop_per_s", 4]
    rates = [1e3 * gflop / ms for ms in step]
    rows.append(
        harness.compare(
            "mlp_depth4_of_best_sgemm", rates, best, "sgemm of 2048", "GFLOP/s", more_is_better=True
        )
    )
    seconds = {
        name: added_layer_s(times, name, task)
        for name, task in (("dnn", "step"), ("torch", "fused"))
    }
    rows.append(
        harness.compare(
            "seconds_per_added_layer",
            seconds["dnn"],
            seconds["torch"] or None,
            torch,
            "s, 5 epochs",
        )
    )
    for threads in (1, 2):
        name = "adam_update" if threads == 1 else "adam_update_2_threads"
        ours, theirs = times["dnn", "adam", threads], times.get(("torch", "adam", threads))
        rows.append(harness.compare(name, ours, theirs, f"{torch}, Adam(fused=True)", "ms"))
    return rows


def added_layer_s(times: Times, contender: str, task: str) -> list[float]:
    """Return what a layer adds to 5 epochs of 60,000 samples: the slope over the depths."""
    if (contender, task, DEPTHS[0]) not in times:
        return []
    medians = [statistics.median(times[contender, task, depth]) for depth in DEPTHS]
    slope_ms = float(np.polyfit(DEPTHS, medians, 1)[0])
    return [slope_ms * 5 * 60000 / BATCH / 1e3]


def main() -> None:
    options = harness.parser(__doc__).parse_args()
    if options.worker:
        {"dnn": dnn_worker, "torch": torch_worker}[options.worker](options.setup)
        return
    sys.path.insert(0, str(harness.REPOSITORY))
    restarts, blocks, samples = (3, 3, 3000) if options.quick else (5, 8, 10000)
    version = harness.version_of("torch", options.peer_python)
    pythons = {"dnn": sys.executable}
    if version:
        pythons["torch"] = options.peer_python
    with tempfile.TemporaryDirectory() as folder:
        setup = Path(folder) / "setup.npz"
        write_setup(setup, samples, 1 + blocks)
        times = measure(str(setup), pythons, restarts, blocks)
        for threads in (1, 2):
            times |= measure_adam(str(setup), pythons, threads, 1 if options.quick else 3)
    harness.report(rows_of(times, version), options.json)


if __name__ == "__main__":
    main()
