"""A training step on a GPU in float32, tf32, float16 and bfloat16, against ours in float32.

Three hidden layers of 528 or 4,096 ReLU units behind as many inputs, 10 classes, SGD; batches of
100 at width 528, as in MagmaDNN's papers, and of 4,096 at width 4,096, where products are what
counts. A step is the difference between a long `fit` and a short one on data that are on the GPU,
over the steps that one has more. The peer is PyTorch, eager, with ``SGD(fused=True)``: autocast for
the 16-bit types, with its GradScaler for float16, and its own switch for TF32.

width4096_float16_vs_float32 and the like
    Ours against ours in float32.
width4096_float16 and the like
    Ours against PyTorch in the same precision.

Needs a GPU, CuPy for this interpreter and a PyTorch with CUDA for the peer's.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import harness
import numpy as np

BATCH_OF_WIDTH = {528: 100, 4096: 4096}
TINY = {16: 8}
PRECISIONS = ("float32", "tf32", "float16", "bfloat16")
HIDDEN_LAYERS, CLASSES, BATCHES, RATE, SEED = 3, 10, 4, 1e-3, 1


def data(width: int, batch: int) -> tuple[Any, Any]:
    """Return four batches in which each class has a centre of its own."""
    generator = np.random.default_rng(SEED)
    samples = BATCHES * batch
    y = generator.integers(0, CLASSES, samples)
    centres = generator.random((CLASSES, width), np.float32) - np.float32(0.5)
    return centres[y] + generator.random((samples, width), np.float32) - np.float32(0.5), y


def dnn_worker() -> None:
    """Train with dnn."""
    from dnn import SGD, DeviceData, NeuralNetwork, mlp

    sent = functools.cache(lambda width, batch: DeviceData(*data(width, batch)))

    def training(width: int, batch: int, precision: str) -> Train:
        layers = mlp(width, [width] * HIDDEN_LAYERS, CLASSES, "relu")
        model = NeuralNetwork(
            layers, optimizer=SGD(RATE), seed=SEED, device="cuda", dtype=precision
        )

        def train(epochs: int) -> tuple[float, float]:
            given = sent(width, batch)
            history = model.fit(given, epochs=epochs, batch_size=batch, progress=False)
            return history.training_time_s, history.loss[-1]

        return train

    serve(training)


def torch_worker() -> None:
    """Train with PyTorch."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    sent = functools.cache(
        lambda width, batch: [torch.from_numpy(array).to(device) for array in data(width, batch)]
    )

    def training(width: int, batch: int, precision: str) -> Train:
        torch.manual_seed(SEED)
        layers: list[Any] = []
        for _ in range(HIDDEN_LAYERS):
            layers += [torch.nn.Linear(width, width), torch.nn.ReLU()]
        net = torch.nn.Sequential(*layers, torch.nn.Linear(width, CLASSES)).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE, fused=True)
        criterion = torch.nn.CrossEntropyLoss()
        half = {"float16": torch.float16, "bfloat16": torch.bfloat16}.get(precision)
        scaler = torch.amp.GradScaler(device, enabled=precision == "float16")

        def train(epochs: int) -> tuple[float, float]:
            torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
            x, y = sent(width, batch)
            began = time.perf_counter()
            for _ in range(epochs):
                total = torch.zeros((), device=device)
                for rows in torch.randperm(len(x), device=device).split(batch):
                    optimizer.zero_grad(set_to_none=True)
                    with torch.autocast(device, half, enabled=half is not None):
                        loss = criterion(net(x[rows]), y[rows])
                    scaler.scale(loss).backward()
                    scaler.step(optimizer)
                    scaler.update()
                    total += loss.detach()
                last = total.item() / BATCHES
            return time.perf_counter() - began, last

        return train

    serve(training)


Train = Callable[[int], tuple[float, float]]
"""Trains for a number of epochs; returns the seconds and the last epoch's loss."""


def serve(training: Callable[[int, int, str], Train]) -> None:
    """Answer with the time of a step: of more epochs less that of a few, over their steps."""
    made: dict[Any, tuple[Train, float]] = {}

    def work(width: int, batch: int, precision: str, steps: int) -> dict[str, float]:
        few, many = 3, 3 + max(1, steps // BATCHES)
        if (width, precision) not in made:
            train = training(width, batch, precision)
            made[width, precision] = train, train(few)[1]  # compiles, captures
        train, first = made[width, precision]
        (few_s, _), (many_s, last) = train(few), train(many)
        return {"ms": (many_s - few_s) / (many - few) / BATCHES * 1e3, "first": first, "last": last}

    harness.serve(work)


def measure(
    pythons: dict[str, str], version: str | None, blocks: int, *, tiny: bool
) -> Iterator[harness.Result]:
    """Let both train in turn, in each precision after the other."""
    times: dict[tuple[str, int, str], list[float]] = {}
    with contextlib.ExitStack() as stack:
        contenders = [
            stack.enter_context(harness.Worker(__file__, name, python, 2))
            for name, python in pythons.items()
        ]
        for width, batch in (TINY if tiny else BATCH_OF_WIDTH).items():
            task = {
                "width": width,
                "batch": batch,
                "steps": 8 if tiny else 2000 if width < 1000 else 40,
            }
            for precision in PRECISIONS:
                for _ in range(blocks):
                    for each in contenders:
                        answer = each.ask(precision=precision, **task)
                        if not math.isfinite(answer["last"]) or answer["last"] > answer["first"]:
                            about = f"{each.name}, {precision}"
                            raise RuntimeError(f"{about}: nothing is learned: {answer}")
                        times.setdefault((each.name, width, precision), []).append(answer["ms"])
                row, ours = f"width{width}_{precision}", times["dnn", width, precision]
                theirs = times.get(("torch", width, precision))
                yield harness.compare(row, ours, theirs, f"PyTorch {version}", "ms per step")
                if precision != "float32":
                    plain = times["dnn", width, "float32"]
                    name = f"{row}_vs_float32"
                    yield harness.compare(name, ours, plain, "ours, float32", "ms per step")


def main() -> None:
    options = harness.gpu_parser(__doc__).parse_args()
    sys.path.insert(0, str(harness.REPOSITORY))
    if options.worker:
        {"dnn": dnn_worker, "torch": torch_worker}[options.worker]()
        return
    harness.require_gpu("mixed_precision")
    pythons = {"dnn": sys.executable}
    version = harness.version_of("torch", options.peer_python)
    if version and harness.torch_finds_gpu(options.peer_python):
        pythons["torch"] = options.peer_python
    rows = measure(pythons, version, 2 if options.quick else 5, tiny=options.tiny)
    harness.report(rows, options.json, **harness.gpu())


if __name__ == "__main__":
    main()
