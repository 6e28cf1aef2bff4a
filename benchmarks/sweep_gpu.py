"""A thousand networks for heart disease, many in one plan on a GPU, against PyTorch's vmap.

heart_fused_64_vs_vmap and the like (trials a second)
    The trials of `sweep_heart`: 13-16x5-2, batches of 32, 40 epochs, learning rate, momentum and
    weight decay of its own for each, so many networks at a time. Ours: an `Ensemble` after the
    other, made, trained and evaluated. The peer: ``vmap`` of ``grad`` over as many networks, in a
    CUDA graph for each step where it can be captured, made and captured before the clock starts.
heart_sweep_run (trials a second)
    The whole of ``diel run`` with one trainer on one GPU, from the first trial's start to the
    group's end.

Every trial is trained as long on both sides, and mean accuracies have to be alike. Needs a GPU,
CuPy for this interpreter and a PyTorch with CUDA for the peer's.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
import sweep_heart
from sweep_heart import BATCH, EPOCHS, FEATURES, HIDDEN, ROWS

TRIALS, AT_ONCE = 1000, (64, 250, 1000)


def points() -> list[dict[str, float]]:
    """Return what `sweep_heart` draws from."""
    draw = random.Random(1)
    return [
        {
            "learning_rate": 0.003 * (0.1 / 0.003) ** draw.random(),
            "momentum": draw.uniform(0, 0.9),
            "weight_decay": 1e-5 * 100 ** draw.random(),
        }
        for _ in range(TRIALS)
    ]


def data(path: str) -> tuple[Any, Any, Any, Any]:
    """Return standardised rows to train on and their classes, and a fifth held back."""
    with open(path, newline="") as file:
        table = np.array([[float(cell) for cell in row] for row in csv.reader(file)], np.float32)
    order, held = np.random.default_rng(1).permutation(ROWS), ROWS // 5
    x, y = table[:, :-1], table[:, -1].astype(np.int64)
    kept, others = order[held:], order[:held]
    x = (x - x[kept].mean(0)) / x[kept].std(0)
    return x[kept], y[kept], x[others], y[others]


def dnn_worker(path: str) -> None:
    """Train an ensemble after the other."""
    from dnn import SGD, Ensemble, Tensor, mlp

    def there(array: Any) -> Any:
        return Tensor.from_array(array, device="cuda")

    x, y, held_x, held_y = map(there, data(path))

    def work(at_once: int, trials: int, epochs: int) -> dict[str, Any]:
        drawn, accuracies = points()[:trials], []
        began = time.perf_counter()
        for first in range(0, trials, at_once):
            some = drawn[first : first + at_once]
            optimizer = SGD(
                [point["learning_rate"] for point in some],
                [point["momentum"] for point in some],
                [point["weight_decay"] for point in some],
            )
            seeds = list(range(first, first + len(some)))
            layers = mlp(FEATURES, HIDDEN, 2, "tanh")
            ensemble = Ensemble(layers, optimizer=optimizer, seeds=seeds, device="cuda")
            ensemble.fit(x, y, epochs=epochs, batch_size=BATCH)
            accuracies += [found["accuracy"] for found in ensemble.evaluate(held_x, held_y)]
        seconds = time.perf_counter() - began
        return {"per_s": trials / seconds, "accuracy": statistics.mean(accuracies)}

    harness.serve(work)


def torch_worker(path: str) -> None:
    """Train as many networks at once by vmap."""
    import torch
    from torch.func import functional_call, grad, vmap

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y, held_x, held_y = (torch.from_numpy(array).to(device) for array in data(path))
    layers: list[Any] = []
    for inputs, units in zip([FEATURES, *HIDDEN], HIDDEN, strict=False):
        layers += [torch.nn.Linear(inputs, units), torch.nn.Tanh()]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(HIDDEN[-1], 2)).to(device)
    shapes = {name: parameter.shape for name, parameter in net.named_parameters()}
    whole = len(x) // BATCH * BATCH
    made: dict[int, Any] = {}

    def loss_of(parameters: Any, x: Any, y: Any) -> Any:
        return torch.nn.functional.cross_entropy(functional_call(net, parameters, (x,)), y)

    gradients_of = vmap(grad(loss_of))

    def prepare(count: int) -> tuple[Any, ...]:
        """Return parameters, velocities, settings, the rows of a step and the step."""
        values = {name: torch.zeros(count, *shape, device=device) for name, shape in shapes.items()}
        velocities = {name: torch.zeros_like(value) for name, value in values.items()}
        settings = {
            name: torch.zeros(count, device=device)
            for name in ("learning_rate", "momentum", "weight_decay")
        }

        def step_of(rows: Any) -> Any:
            def step() -> None:
                found = gradients_of(values, x[rows], y[rows])
                for name, value in values.items():
                    shape = (-1,) + (1,) * (value.ndim - 1)
                    rate, momentum, decay = (setting.view(shape) for setting in settings.values())
                    velocities[name].mul_(momentum).add_(found[name] + decay * value)
                    value.sub_(rate * velocities[name])

            return step

        steps = []
        for size in (BATCH, len(x) - whole):
            rows = torch.zeros((count, size), dtype=torch.int64, device=device)
            steps.append((rows, captured(torch, step_of(rows)) if size else None))
        return values, velocities, settings, steps

    def train(drawn: list[dict[str, float]], epochs: int) -> list[float]:
        count = len(drawn)
        values, velocities, settings, steps = made[count]
        for name, value in values.items():
            limit = shapes[name.replace("bias", "weight")][1] ** -0.5
            value.uniform_(-limit, limit)
            velocities[name].zero_()
        for name, setting in settings.items():
            setting.copy_(torch.tensor([point[name] for point in drawn]))
        (rows, step), (last_rows, last_step) = steps
        for _ in range(epochs):
            orders = torch.rand(count, len(x), device=device).argsort(1)
            for start in range(0, whole, BATCH):
                rows.copy_(orders[:, start : start + BATCH])
                step()
            if last_step is not None:
                last_rows.copy_(orders[:, whole:])
                last_step()
        scores = vmap(lambda parameters: functional_call(net, parameters, (held_x,)))(values)
        return (scores.argmax(2) == held_y).float().mean(1).tolist()

    def work(at_once: int, trials: int, epochs: int) -> dict[str, Any]:
        torch.manual_seed(1)
        drawn = points()[:trials]
        parts = [drawn[first : first + at_once] for first in range(0, trials, at_once)]
        with torch.no_grad():
            for count in {len(part) for part in parts} - set(made):
                made[count] = prepare(count)
            began = time.perf_counter()
            accuracies = [accuracy for part in parts for accuracy in train(part, epochs)]
            seconds = time.perf_counter() - began
        return {"per_s": trials / seconds, "accuracy": statistics.mean(accuracies)}

    harness.serve(work)


def captured(torch: Any, step: Any) -> Any:
    """Return a replay of a step as a CUDA graph, or the step where it cannot be captured."""
    if not torch.cuda.is_available():
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # what PyTorch asks for before it captures
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            step()
    except RuntimeError as error:
        print(f"vmap is not captured: {error}", file=sys.stderr)
        return step
    return graph.replay


def measure(
    pythons: dict[str, str], version: str | None, options: argparse.Namespace
) -> Iterator[harness.Result]:
    """Let both train so many networks at a time, in turn; then time a whole run."""
    sizes: Sequence[int] = AT_ONCE[::2] if options.quick else AT_ONCE
    trials, epochs, blocks = TRIALS, EPOCHS, 2 if options.quick else 5
    if options.tiny:
        sizes, trials, epochs, blocks = (2, 4), 4, 1, 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        setup = folder / "heart.data"
        sweep_heart.write_data(setup)
        with contextlib.ExitStack() as stack:
            contenders = [
                stack.enter_context(harness.Worker(__file__, name, python, 2, str(setup)))
                for name, python in pythons.items()
            ]
            for at_once in sizes:
                rates: dict[str, list[float]] = {}
                accuracies = {}
                for each in contenders:
                    each.ask(at_once=at_once, trials=at_once, epochs=2)  # compiles, captures
                for _ in range(blocks):
                    for each in contenders:
                        answer = each.ask(at_once=at_once, trials=trials, epochs=epochs)
                        rates.setdefault(each.name, []).append(answer["per_s"])
                        accuracies[each.name] = answer["accuracy"]
                if max(accuracies.values()) - min(accuracies.values()) > 0.1:
                    raise RuntimeError(f"{at_once} at once: mean accuracies differ: {accuracies}")
                yield harness.compare(
                    f"heart_fused_{at_once}_vs_vmap",
                    rates["dnn"],
                    rates.get("torch"),
                    f"PyTorch {version}, vmap",
                    "trials/s",
                    more_is_better=True,
                )
        run_rate, _, _ = sweep_heart.sweep(folder, "copies = 1\ngpus = 1", trials, epochs)
    yield harness.compare("heart_sweep_run", [run_rate], None, "none", "trials/s")


def main() -> None:
    options = harness.gpu_parser(__doc__).parse_args()
    sys.path.insert(0, str(harness.REPOSITORY))
    if options.worker:
        {"dnn": dnn_worker, "torch": torch_worker}[options.worker](options.setup)
        return
    harness.require_gpu("sweep_gpu")
    pythons = {"dnn": sys.executable}
    version = harness.version_of("torch", options.peer_python)
    if version and harness.torch_finds_gpu(options.peer_python):
        pythons["torch"] = options.peer_python
    harness.report(measure(pythons, version, options), options.json, **harness.gpu())


if __name__ == "__main__":
    main()
