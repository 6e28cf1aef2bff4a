"""Five epochs of MNIST on a GPU, against PyTorch eager, compiled, and in a CUDA graph.

The network of MagmaDNN's papers: 784 inputs, 1 to 4 hidden layers of 528 sigmoid units, 10
classes, batches of 100, SGD with a learning rate of 0.05 and a weight decay of 0.001, float32
without TF32. MNIST's training set where ``DIEL_DATA`` has it, else made-up data of its shape. All
start from the same parameters, hold the data on the GPU, visit the samples in the same order,
gather each batch from the whole data and end with the same loss, which is checked. PyTorch takes
``SGD(fused=True)``; with ``torch.compile`` it compiles network and loss, and with a CUDA graph it
replays a whole step, as dnn does. A peer that does not start is left out, with a line that says so.

Needs a GPU, CuPy for this interpreter and a PyTorch with CUDA for the peer's.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np

DEPTHS = (1, 2, 3, 4)
INPUTS, HIDDEN, CLASSES, BATCH = 784, 528, 10, 100
RATE, DECAY = 0.05, 0.001
EPOCHS = 5
SEED = 1


def data(samples: int) -> tuple[Any, Any]:
    """Return MNIST's training set, or made-up data of its shape."""
    from dnn import load_mnist

    folder = Path(os.environ.get("DIEL_DATA", "")) / "mnist"
    if os.environ.get("DIEL_DATA") and folder.is_dir():
        train, _ = load_mnist(folder)
        return train.x[:samples].astype(np.float32), train.y[:samples].astype(np.int64)
    generator = np.random.default_rng(SEED)
    y = generator.integers(0, CLASSES, samples)
    centres = generator.random((CLASSES, INPUTS), np.float32)
    x = generator.random((samples, INPUTS), np.float32)
    return np.float32(0.3) * centres[y] + np.float32(0.7) * x, y


def write_setup(path: Path, samples: int, epochs: int) -> None:
    """Write data, first parameters and orders, from which all contenders start."""
    from dnn import batches

    x, y = data(samples)
    generator = np.random.default_rng(SEED)
    arrays = {"x": x, "y": y}
    for depth in DEPTHS:
        widths = [INPUTS, *[HIDDEN] * depth, CLASSES]
        for i, (rows, units) in enumerate(itertools.pairwise(widths), start=1):
            limit = math.sqrt(6 / (rows + units))
            weight = generator.uniform(-limit, limit, (rows, units))
            arrays[f"{depth}.weight.{i}"] = weight.astype("f4")
    orders = [np.concatenate(list(batches(len(x), BATCH, SEED, epoch))) for epoch in range(epochs)]
    np.savez(path, orders=np.array(orders), **arrays)


def dnn_worker(setup: str) -> None:
    """Train with dnn: plain `fit`, five epochs a block."""
    from dnn import SGD, NeuralNetwork, mlp

    given = np.load(setup)
    x, y = given["x"], given["y"]
    models = {}
    for depth in DEPTHS:
        layers = mlp(INPUTS, [HIDDEN] * depth, CLASSES, "sigmoid")
        optimizer = SGD(RATE, weight_decay=DECAY)
        model = NeuralNetwork(layers, optimizer=optimizer, seed=SEED, device="cuda")
        for i in range(1, depth + 2):
            model.parameters[f"fully_connected_{i}.weight"][...] = given[f"{depth}.weight.{i}"]
        models[depth] = model

    def work(depth: int) -> dict[str, Any]:
        history = models[depth].fit(x, y, epochs=EPOCHS, batch_size=BATCH, progress=False)
        return {"seconds": history.training_time_s, "loss": history.loss[-1]}

    harness.serve(work)


def torch_worker(setup: str, how: str) -> None:
    """Train with PyTorch, five epochs a block, each step "eager", "compiled" or "captured"."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    captured = how == "captured"
    device = torch.device("cuda")
    given = np.load(setup)
    x, y = (torch.from_numpy(given[name]).to(device) for name in ("x", "y"))
    orders = torch.from_numpy(given["orders"])
    criterion = torch.nn.CrossEntropyLoss()
    rows = torch.zeros(BATCH, dtype=torch.int64, device=device)
    steps, totals, done = {}, {}, dict.fromkeys(DEPTHS, 0)
    captured_from = []  # a graph writes where its network's arrays are, so that they have to stay

    def step_of(depth: int) -> tuple[Any, Any]:
        widths = [INPUTS, *[HIDDEN] * depth, CLASSES]
        layers: list[torch.nn.Module] = []
        for i, (inputs, units) in enumerate(itertools.pairwise(widths), start=1):
            linear = torch.nn.Linear(inputs, units)
            with torch.no_grad():
                weight = given[f"{depth}.weight.{i}"]
                linear.weight.copy_(torch.from_numpy(np.ascontiguousarray(weight.T)))
                linear.bias.zero_()
            layers += [linear, torch.nn.Sigmoid()]
        net = torch.nn.Sequential(*layers[:-1]).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
        total = torch.zeros((), device=device)

        def loss_of(rows: Any) -> Any:
            return criterion(net(x[rows]), y[rows])

        if how == "compiled":
            loss_of = torch.compile(loss_of)

        def step() -> None:
            if not captured:
                optimizer.zero_grad(set_to_none=True)
            loss = loss_of(rows)
            loss.backward()
            optimizer.step()
            total.add_(loss.detach())

        if not captured:
            return step, total
        before = [parameter.detach().clone() for parameter in net.parameters()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # what PyTorch asks for before it captures
                optimizer.zero_grad(set_to_none=True)
                step()
        torch.cuda.current_stream().wait_stream(stream)
        # Gradients that are captured as new are written and not added to at each replay.
        optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        with torch.no_grad():
            for parameter, start in zip(net.parameters(), before, strict=True):
                parameter.copy_(start)
        captured_from.append((net, optimizer, step))
        return graph.replay, total

    for depth in DEPTHS:
        steps[depth], totals[depth] = step_of(depth)

    def work(depth: int) -> dict[str, Any]:
        step, total = steps[depth], totals[depth]
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(EPOCHS):
            order = orders[done[depth]].to(device)
            done[depth] += 1
            total.zero_()
            for start in range(0, len(order) - BATCH + 1, BATCH):
                rows.copy_(order[start : start + BATCH])
                step()
            loss = total.item() / (len(order) // BATCH)
        return {"seconds": time.perf_counter() - began, "loss": loss}

    harness.serve(work)


WORKERS = {
    "dnn": dnn_worker,
    "torch": lambda setup: torch_worker(setup, "eager"),
    "torch_compile": lambda setup: torch_worker(setup, "compiled"),
    "torch_graph": lambda setup: torch_worker(setup, "captured"),
}
PEERS = {"torch": "eager", "torch_compile": "torch.compile", "torch_graph": "CUDA graph"}


def measure(
    setup: str,
    pythons: dict[str, str],
    version: str | None,
    restarts: int,
    blocks: int,
    compiled_depths: Sequence[int] = DEPTHS,
    depths: Sequence[int] = DEPTHS,
) -> Iterator[harness.Result]:
    """Let the contenders train in turn, the deepest network first.

    A depth's rows are of all blocks so far, and come again after each restart.
    """
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(restarts):
        with contextlib.ExitStack() as stack:
            contenders = [
                stack.enter_context(harness.Worker(__file__, name, python, 2, setup))
                for name, python in pythons.items()
            ]
            for depth in reversed(depths):
                for block in range(1 + blocks):  # the first warms up
                    losses = {}
                    for contender in list(contenders):
                        if contender.name == "torch_compile" and depth not in compiled_depths:
                            continue
                        try:
                            answer = contender.ask(depth=depth)
                        except RuntimeError as error:
                            if contender.name == "dnn":
                                raise
                            print(f"left out: {error}")
                            contenders.remove(contender)
                            continue
                        losses[contender.name] = answer["loss"]
                        if block:
                            times.setdefault((contender.name, depth), []).append(answer["seconds"])
                    if not math.isclose(max(losses.values()), min(losses.values()), rel_tol=1e-2):
                        raise RuntimeError(f"depth {depth}: the losses differ: {losses}")
                for peer, about in PEERS.items():
                    yield harness.compare(
                        f"mnist_depth{depth}_vs_{peer}",
                        times["dnn", depth],
                        times.get((peer, depth)),
                        f"PyTorch {version}, {about}",
                        f"s for {EPOCHS} epochs",
                    )


def main() -> None:
    options = harness.gpu_parser(__doc__).parse_args()
    sys.path.insert(0, str(harness.REPOSITORY))
    if options.worker:
        WORKERS[options.worker](options.setup)
        return
    harness.require_gpu("mlp_gpu")
    restarts, blocks, samples = (1, 3, 12000) if options.quick else (3, 5, 60000)
    if options.tiny:
        restarts, blocks, samples = 1, 1, BATCH
    pythons = {"dnn": sys.executable}
    version = harness.version_of("torch", options.peer_python)
    if version and harness.torch_finds_gpu(options.peer_python):
        pythons |= dict.fromkeys(PEERS, options.peer_python)
    with tempfile.TemporaryDirectory() as folder:
        setup = Path(folder) / "setup.npz"
        write_setup(setup, samples, EPOCHS * (1 + blocks))
        # A network takes torch.compile some 10 s.
        compiled_depths = DEPTHS[-1:] if options.quick else DEPTHS
        depths = DEPTHS[:2] if options.tiny else DEPTHS
        rows = measure(str(setup), pythons, version, restarts, blocks, compiled_depths, depths)
        harness.report(rows, options.json, **harness.gpu(), samples=str(samples))


if __name__ == "__main__":
    main()
