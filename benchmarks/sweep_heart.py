"""Many small networks on data of the shape of the Cleveland set, against PyTorch.

heart_sweep_vs_pytorch (trials a second)
    Random search over learning rate, momentum and weight decay: networks 13-16x5-2, 303 rows,
    batches of 32. Ours: a sweep with two trainers, from the first trial's start to the group's end.
    The peer: two processes with a thread each, a plain loop, ``SGD(fused=True)``, a sample of the
    same trials.
heart_sweep_vs_pytorch_bmm (trials a second)
    The same peer, but its user batches by hand: 64 networks in batched products.

Every trial is trained as long on both sides; the peer's accuracies have to be like ours.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import random
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from harness import REPOSITORY, Result, compare, parser, serve, version_of
from launching import diel_run

TRIALS, EPOCHS, HIDDEN, BATCH = 1000, 40, [16] * 5, 32
ROWS, FEATURES, MODELS, CORES = 303, 13, 64, 2

WORKFLOW = """\
[[module]]
name = "master"
function = "modules.master:run"
[module.options]
strategy = "random"
trials = {trials}
objective = "accuracy"
[module.options.space]
learning_rate = {{ from = 0.003, to = 0.1, scale = "log" }}
momentum = {{ from = 0.0, to = 0.9 }}
weight_decay = {{ from = 1e-5, to = 1e-3, scale = "log" }}
hidden = [{hidden}]
activation = "tanh"
batch_size = {batch}
epochs = {epochs}
[[module]]
name = "trainer"
function = "modules.trainer:run"
{trainer}
options = {{ dataset = "cleveland", path = "heart.data" }}
[[group]]
name = "search"
modules = ["master", "trainer"]
"""


def write_data(path: Path) -> None:
    """Write rows like those of the Cleveland set, in its format: a rule, and some noise."""
    draw = random.Random(1)
    weights = [draw.gauss(0, 1) for _ in range(FEATURES)]
    with path.open("w", newline="") as file:
        for _ in range(ROWS):
            row = [round(draw.gauss(0, 1), 3) for _ in range(FEATURES)]
            score = sum(w * x for w, x in zip(weights, row, strict=True)) + draw.gauss(0, 1)
            csv.writer(file).writerow([*row, int(score > 0)])


def rows(folder: Path, python: str, *, quick: bool) -> list[Result]:
    """Compare with PyTorch, where the other interpreter has it."""
    write_data(folder / "heart.data")
    ours, points, accuracy = sweep(folder, f"copies = {CORES}", TRIALS, EPOCHS)
    found = []
    version = version_of("torch", python)
    for name, sample in (("", 16 if quick else 200), ("_bmm", 128 if quick else 512)):
        rate = None
        if version is not None:
            rate, theirs = _pytorch(folder, python, f"torch{name}", points[:sample])
            if abs(theirs - accuracy) > 0.1:
                raise RuntimeError(f"mean accuracies {accuracy} and {theirs}")
        title = f"PyTorch {version}" if version else "PyTorch, not installed"
        rates = None if rate is None else [rate]
        row = f"heart_sweep_vs_pytorch{name}"
        found.append(compare(row, [ours], rates, title, "1/s", more_is_better=True))
    return found


def sweep(
    folder: Path, trainer: str, trials: int, epochs: int
) -> tuple[float, list[dict[str, Any]], float]:
    """Return trials a second, the points, and the mean accuracy; `trainer` is lines of TOML."""
    file = folder / "heart.toml"
    text = WORKFLOW.format(
        trials=trials, hidden=HIDDEN, batch=BATCH, epochs=epochs, trainer=trainer
    )
    file.write_text(text)
    ran = diel_run(file, folder)
    (ended_s,) = (record["time_s"] for record in ran.of("GroupFinished"))
    (ledger,) = ran.directory.glob("sweeps/*/trials.jsonl")
    records = [json.loads(line) for line in ledger.read_text().splitlines()[1:]]
    if {record["trial"] for record in records} != set(range(trials)):
        raise RuntimeError(f"{len(records)} of {trials} trials")
    records.sort(key=lambda record: record["trial"])
    began_s = min(record["started_s"] for record in records)
    accuracy = statistics.mean(record["metrics"]["accuracy"] for record in records)
    return trials / (ended_s - began_s), [record["parameters"] for record in records], accuracy


# -- the peer -------------------------------------------------------------------------------------


def _pytorch(
    folder: Path, python: str, name: str, points: list[dict[str, Any]]
) -> tuple[float, float]:
    """Return how many trials a second both processes do together, and the mean accuracy."""
    line = [python, str(Path(__file__).resolve()), "--worker", name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    workers = [
        subprocess.Popen(
            [*line, "--setup", str(folder / "heart.data")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(CORES)
    ]
    for core, worker in enumerate(workers):
        assert worker.stdin is not None
        print(json.dumps({"points": points[core::CORES]}), file=worker.stdin, flush=True)
    answers = []
    for worker in workers:
        assert worker.stdout is not None
        answers.append(json.loads(worker.stdout.readline()))
    for worker in workers:
        worker.communicate()
    return (
        sum(answer["per_s"] for answer in answers),
        statistics.mean(answer["accuracy"] for answer in answers),
    )


def be_torch(data: str, *, bmm: bool) -> None:
    """Be one process of the peer."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with open(data, newline="") as file:
        table = torch.tensor([[float(cell) for cell in row] for row in csv.reader(file)])
    order = torch.randperm(ROWS)
    held = ROWS // 5
    x, y = table[:, :-1], table[:, -1].long()
    x = (x - x[order[held:]].mean(0)) / x[order[held:]].std(0)
    parts = (x[order[held:]], y[order[held:]], x[order[:held]], y[order[:held]])

    def work(points: list[dict[str, Any]]) -> dict[str, Any]:
        train = _train_bmm if bmm else _train_one_by_one
        train(torch, parts, points[:1] * (MODELS if bmm else 1), 2)  # warm
        started_s = time.perf_counter()
        accuracies = train(torch, parts, points, EPOCHS)
        seconds = time.perf_counter() - started_s
        return {"per_s": len(points) / seconds, "accuracy": statistics.mean(accuracies)}

    serve(work)


def _train_one_by_one(
    torch: Any, parts: Any, points: list[dict[str, Any]], epochs: int
) -> list[float]:
    x, y, held_x, held_y = parts
    found = []
    for point in points:
        layers, width = [], FEATURES
        for units in HIDDEN:
            layers += [torch.nn.Linear(width, units), torch.nn.Tanh()]
            width = units
        model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 2))
        optimizer = torch.optim.SGD(
            model.parameters(),
            lr=point["learning_rate"],
            momentum=point["momentum"],
            weight_decay=point["weight_decay"],
            fused=True,
        )
        loss = torch.nn.CrossEntropyLoss()
        for _ in range(epochs):
            for rows in torch.randperm(len(x)).split(BATCH):
                optimizer.zero_grad()
                loss(model(x[rows]), y[rows]).backward()
                optimizer.step()
        with torch.no_grad():
            found.append(float((model(held_x).argmax(1) == held_y).float().mean()))
    return found


def _train_bmm(torch: Any, parts: Any, points: list[dict[str, Any]], epochs: int) -> list[float]:
    """Train 64 networks at a time: weights as (K, in, out), products as baddbmm."""
    x, y, held_x, held_y = parts
    found: list[float] = []
    for first in range(0, len(points), MODELS):
        some = points[first : first + MODELS]
        models = len(some)
        sizes = [FEATURES, *HIDDEN, 2]
        weights = []
        for fan_in, fan_out in itertools.pairwise(sizes):
            bound = fan_in**-0.5
            weights.append((torch.rand(models, fan_in, fan_out) * 2 - 1) * bound)
            weights.append((torch.rand(models, 1, fan_out) * 2 - 1) * bound)
        for weight in weights:
            weight.requires_grad_()
        velocity = [torch.zeros_like(weight) for weight in weights]
        rate, momentum, decay = (
            torch.tensor([point[name] for point in some])[:, None, None]
            for name in ("learning_rate", "momentum", "weight_decay")
        )

        def outputs(batch: Any, weights: Any = weights) -> Any:
            for layer in range(0, len(weights), 2):
                batch = torch.baddbmm(weights[layer + 1], batch, weights[layer])
                if layer + 2 < len(weights):
                    batch = batch.tanh()
            return batch

        for _ in range(epochs):
            orders = torch.stack([torch.randperm(len(x)) for _ in range(models)])
            for start in range(0, len(x), BATCH):
                rows = orders[:, start : start + BATCH]
                scores = outputs(x[rows])
                loss = (
                    torch.nn.functional.cross_entropy(
                        scores.flatten(0, 1), y[rows].flatten(), reduction="sum"
                    )
                    / rows.shape[1]
                )
                gradients = torch.autograd.grad(loss, weights)
                with torch.no_grad():
                    for one, v, gradient in zip(weights, velocity, gradients, strict=True):
                        v.mul_(momentum).add_(gradient + decay * one)
                        one.sub_(rate * v)
        with torch.no_grad():
            scores = outputs(held_x.expand(models, -1, -1))
            right = (scores.argmax(2) == held_y).float().mean(1)
        found += right.tolist()
    return found


def main() -> None:
    options = parser(__doc__).parse_args()
    be_torch(options.setup, bmm=options.worker == "torch_bmm")


if __name__ == "__main__":
    main()
