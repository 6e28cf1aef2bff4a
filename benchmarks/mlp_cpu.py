"""Training steps of a multilayer perceptron on the CPU, against PyTorch.

The network of MagmaDNN's papers: 784 inputs, 1 to 4 hidden layers of 528 sigmoid units, 10
classes, batches of 100, SGD with a learning rate of 0.05 and a weight decay of 0.001, float32.
The data have the shape of MNIST and are made up. Both sides start from the same parameters, visit
the samples in the same order, gather each batch from the whole data and end with the same loss,
which is checked. PyTorch takes ``SGD(fused=True)``, its fastest; both take 2 threads.
"""

from __future__ import annotations

import contextlib
import itertools
import math
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

    def work(depth: int) -> dict[str, Any]:
        history = models[depth].fit(x, y, epochs=1, batch_size=BATCH)
        return {
            "ms_per_step": 1e3 * history.training_time_s / history.steps,
            "loss": history.loss[0],
        }

    harness.serve(work)


def torch_worker(setup: str) -> None:
    """Train with PyTorch, one epoch a block."""
    import torch

    torch.set_num_threads(THREADS)
    given = np.load(setup)
    x, y = torch.from_numpy(given["x"]), torch.from_numpy(given["y"])
    orders = [[torch.from_numpy(rows) for rows in order] for order in given["orders"]]
    criterion = torch.nn.CrossEntropyLoss()
    nets, optimizers, done = {}, {}, dict.fromkeys(DEPTHS, 0)
    for depth in DEPTHS:
        widths = [INPUTS, *[HIDDEN] * depth, CLASSES]
        layers: list[torch.nn.Module] = []
        for i, (rows, units) in enumerate(itertools.pairwise(widths), start=1):
            linear = torch.nn.Linear(rows, units)
            with torch.no_grad():
                weight = given[f"{depth}.weight.{i}"]
                linear.weight.copy_(torch.from_numpy(np.ascontiguousarray(weight.T)))
                linear.bias.zero_()
            layers += [linear, torch.nn.Sigmoid()]
        nets[depth] = torch.nn.Sequential(*layers[:-1])
        optimizers[depth] = torch.optim.SGD(
            nets[depth].parameters(), lr=RATE, weight_decay=DECAY, fused=True
        )

    def work(depth: int) -> dict[str, Any]:
        net, optimizer, order = nets[depth], optimizers[depth], orders[done[depth]]
        done[depth] += 1
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


def measure(
    setup: str, pythons: dict[str, str], restarts: int, blocks: int
) -> dict[tuple[str, int], list[float]]:
    """Let the contenders train in turn; return milliseconds a step of each block.

    `pythons` has the interpreter of each contender.
    """
    times: dict[tuple[str, int], list[float]] = {}
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
                        answer = contender.ask(depth=depth)
                        losses[contender.name] = answer["loss"]
                        if block:
                            key = (contender.name, depth)
                            times.setdefault(key, []).append(answer["ms_per_step"])
                if not math.isclose(max(losses.values()), min(losses.values()), rel_tol=1e-3):
                    raise RuntimeError(f"depth {depth}: the losses differ: {losses}")
    return times


def main() -> None:
    options = harness.parser(__doc__).parse_args()
    if options.worker:
        {"dnn": dnn_worker, "torch": torch_worker}[options.worker](options.setup)
        return
    sys.path.insert(0, str(harness.REPOSITORY))
    restarts, blocks, samples = (3, 3, 4000) if options.quick else (5, 8, 10000)
    version = harness.version_of("torch", options.peer_python)
    pythons = {"dnn": sys.executable}
    if version:
        pythons["torch"] = options.peer_python
    with tempfile.TemporaryDirectory() as folder:
        setup = Path(folder) / "setup.npz"
        write_setup(setup, samples, 1 + blocks)
        times = measure(str(setup), pythons, restarts, blocks)
    name = f"PyTorch {version}, SGD(fused=True)" if version else "PyTorch"
    harness.report(
        [
            harness.compare(
                f"mlp_depth{depth}",
                times["dnn", depth],
                times.get(("torch", depth)),
                name,
                "ms per step",
            )
            for depth in DEPTHS
        ],
        options.json,
    )


if __name__ == "__main__":
    main()
