"""Record the learning curves that `replay.py` searches: networks of the race, trained to the end.

    python replay_curves.py TASK [--budget-s 480 | --costs | --fit]

A structure is a depth, a width, an activation and a batch size; there are 180. For each, some
points of learning rate, momentum and weight decay are trained at once, 30 epochs each, and scored
on the validation rows after every epoch, on the test rows after the last. What is recorded stays in
``curves/TASK.npz``: a call goes on where the last one ended, narrow networks first, see `PASSES`.

Seconds are those of the process' CPU, so that other processes hardly change them: an epoch of each
plan with its look at the validation rows, by the number of networks in it.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

if __name__ == "__main__":  # before NumPy is loaded
    os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1")

import numpy as np
from race_tasks import split

EPOCHS = 30
MOST_ROWS = 4000
"""Training rows of the table, cut so that all of this takes minutes."""
DEPTHS, WIDTHS, BATCHES = (1, 2, 3), (16, 32, 64, 128, 256, 512), (16, 32, 64, 128, 256)
ACTIVATIONS = ("relu", "tanh")
STRUCTURES = [
    (depth, width, activation, batch)
    for depth in DEPTHS
    for width in WIDTHS
    for activation in range(len(ACTIVATIONS))
    for batch in BATCHES
]
PASSES = (
    ((16, 32, 64, 128), 0, 8),
    ((256,), 0, 4),
    ((512,), 0, 4),
    ((16, 32, 64, 128), 8, 8),
    ((256,), 4, 4),
    ((512,), 4, 4),
)
"""In which order points are recorded: of which widths, from which point on, how many at once."""
FOLDER = Path(__file__).parent / "curves"


def drawn(structure: int, first: int, count: int) -> np.ndarray:
    """Return points of a structure from one on: learning rate, momentum, weight decay.

    They follow from the structure's number alone: additive recurrence with a start of its own, so
    that a few fill the cube evenly.
    """
    root = 1.2207440846057596  # of x**4 = x + 1
    start = np.random.default_rng([structure, 7]).random(3)
    steps = np.arange(first, first + count)[:, None] * (1 / root) ** np.arange(1, 4)
    share = (start + steps) % 1
    return np.column_stack(
        (1e-4 * 1e4 ** share[:, 0], 0.95 * share[:, 1], 1e-6 * 1e4 ** share[:, 2])
    ).astype(np.float32)


def trained(task: dict, structure: int, points: np.ndarray, seeds: list[int], epochs: int):
    """Train the points of a structure at once.

    Returns validation accuracies (points, epochs), test accuracies (points), and the seconds of CPU
    of the shortest epoch.
    """
    from dnn import SGD, Ensemble, mlp

    depth, width, activation, batch = STRUCTURES[structure]
    x, y, held = task["x"], task["y"], task["held"]
    layers = mlp(x.shape[1], [width] * depth, int(y.max()) + 1, ACTIVATIONS[activation])
    rate, momentum, decay = points.astype(float).T
    networks = Ensemble(
        layers,
        optimizer=SGD(list(rate), momentum=list(momentum), weight_decay=list(decay)),
        seeds=seeds,
    )
    times = [time.process_time()]

    def on_epoch(epoch: int, active: object, histories: object) -> tuple[int, ...]:
        times.append(time.process_time())
        return ()

    count = len(points)
    with np.errstate(all="ignore"):
        networks.fit(
            x,
            y,
            rows=[task["train"]] * count,
            epochs=epochs,
            batch_size=batch,
            validation_rows=[held["val"]] * count,
            on_epoch=on_epoch,
        )
        scores = networks.evaluate(x, y, rows=[held["test"]] * count)
    curves = np.zeros((count, epochs))
    for k, history in enumerate(networks.histories):
        values = [row["accuracy"] for row in history.validation]
        curves[k, : len(values)] = values
        curves[k, len(values) :] = values[-1]
    return curves, np.array([score["accuracy"] for score in scores]), float(np.diff(times).min())


def record(name: str, budget_s: float) -> None:
    """Record curves of a task until the time is over or all are there."""
    began_s = saved_s = time.monotonic()
    path = FOLDER / f"{name}.npz"
    task = split(name, MOST_ROWS)
    columns = ("structure", "number", "together", "val", "test", "cost")
    rows: dict[str, list] = {key: [] for key in columns}
    if path.exists():
        with np.load(path) as kept:
            rows |= {key: list(kept[key]) for key in kept.files}
    done = set(zip(map(int, rows["structure"]), map(int, rows["number"]), strict=True))
    order = np.random.default_rng(0).permutation(len(STRUCTURES))
    for widths, first, count in PASSES:
        for structure in map(int, order):
            if (structure, first) in done or STRUCTURES[structure][1] not in widths:
                continue
            if time.monotonic() - began_s > budget_s:
                save(path, rows)
                return
            seeds = [structure * 1000 + first + k for k in range(count)]
            chosen = drawn(structure, first, count)
            val, test, epoch_s = trained(task, structure, chosen, seeds, EPOCHS)
            rows["structure"] += [np.int16(structure)] * count
            rows["number"] += [np.int16(first + k) for k in range(count)]
            rows["together"] += [np.uint8(count)] * count
            rows["val"] += list(np.rint(val * 1e4).astype(np.uint16))
            rows["test"] += list(np.rint(test * 1e4).astype(np.uint16))
            rows["cost"] += [np.float32(epoch_s)] * count
            if time.monotonic() - saved_s > 30:
                save(path, rows)
                saved_s = time.monotonic()
    save(path, rows)


def measure(name: str) -> None:
    """Record what an epoch of one network alone costs, ours and PyTorch's, for each structure."""
    path = FOLDER / f"{name}.npz"
    task = split(name, MOST_ROWS)
    with np.load(path) as kept:
        rows = {key: list(kept[key]) for key in kept.files}
    ours, theirs = np.zeros(len(STRUCTURES), np.float32), np.zeros(len(STRUCTURES), np.float32)
    for structure, (_, width, activation, _) in enumerate(STRUCTURES):
        epochs = 4 if width < 256 else 2
        ours[structure] = trained(task, structure, drawn(structure, 0, 1), [0], epochs)[2]
        if activation == 0:
            theirs[structure] = torch_epoch_s(task, structure, epochs)
        else:  # recorded for one activation: the other costs the same within the noise
            depth, width, _, batch = STRUCTURES[structure]
            theirs[structure] = theirs[STRUCTURES.index((depth, width, 0, batch))]
    rows |= {"alone": list(ours), "torch": list(theirs)}
    save(path, rows)
    print(f"an epoch alone: ours {ours.mean():.4f} s, PyTorch {theirs.mean():.4f} s, means")


def torch_epoch_s(task: dict, structure: int, epochs: int) -> float:
    """Return the seconds of CPU of the shortest epoch of a network alone in PyTorch."""
    import torch

    torch.set_num_threads(1)
    depth, width, _, batch = STRUCTURES[structure]
    x, y = torch.from_numpy(task["x"]), torch.from_numpy(task["y"])
    held_x, held_y = x[task["held"]["val"]], y[task["held"]["val"]]
    x, y = x[task["train"]], y[task["train"]]
    layers, before = [], x.shape[1]
    for _ in range(depth):
        layers += [torch.nn.Linear(before, width), torch.nn.ReLU()]
        before = width
    model = torch.nn.Sequential(*layers, torch.nn.Linear(before, int(y.max()) + 1))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.5, weight_decay=1e-4, fused=True
    )
    loss, times = torch.nn.CrossEntropyLoss(), []
    for _ in range(epochs):
        began_s = time.process_time()
        order = torch.randperm(len(x))
        shuffled, labels = x[order], y[order]
        for rows, wanted in zip(shuffled.split(batch), labels.split(batch), strict=True):
            optimizer.zero_grad(set_to_none=True)
            loss(model(rows), wanted).backward()
            optimizer.step()
        with torch.inference_mode():
            (model(held_x).argmax(1) == held_y).float().mean().item()
        times.append(time.process_time() - began_s)
    return min(times)


def features(structures: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Return what curves are predicted from: a row for each point, in units of its own.

    Depth, width, activation, batch size, learning rate, momentum, weight decay, and the length of
    a step in all: learning rate / (1 - momentum) / batch size.
    """
    depth, width, activation, batch = np.asarray(structures, float).T
    rate, momentum, decay = np.asarray(rates, float).T
    slow = -np.log10(1 - momentum)
    step = np.log10(rate) + slow - np.log10(batch)
    columns = (depth, np.log2(width), activation, np.log2(batch))
    return np.column_stack((*columns, np.log10(rate), slow, np.log10(decay), step))


def fit(name: str) -> None:
    """Record the lengths of a Gaussian process, by which curves between the points are predicted.

    They are those of the largest likelihood of the last accuracy's logit, on 600 of the points.
    """
    from scipy.special import logit
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    path = FOLDER / f"{name}.npz"
    with np.load(path) as kept:
        rows = {key: list(kept[key]) for key in kept.files}
    x = features(*points_of(rows["structure"], rows["number"]))
    y = logit(np.clip(np.array([row[-1] for row in rows["val"]]) / 1e4, 0.02, 0.998))
    some = np.random.default_rng(0).permutation(len(x))[:600]
    lengths = Matern(np.full(x.shape[1], 3.0), (0.05, 100), nu=1.5)
    kernel = ConstantKernel(4.0) * lengths + WhiteKernel(0.05, (1e-4, 1.0))
    found = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit(x[some], y[some])
    kernel = found.kernel_
    signal, noise = kernel.k1.k1.constant_value, kernel.k2.noise_level
    rows["lengths"] = list(np.float32([*kernel.k1.k2.length_scale, noise / signal]))
    print(kernel)
    save(path, rows)


def points_of(structures: list, numbers: list) -> tuple[np.ndarray, np.ndarray]:
    """Return the structures of recorded points, and their learning rates, momenta and decays."""
    places = [
        (int(structure), int(number)) for structure, number in zip(structures, numbers, strict=True)
    ]
    rates = [drawn(structure, number, 1)[0] for structure, number in places]
    return np.array([STRUCTURES[structure] for structure, _ in places]), np.array(rates)


def save(path: Path, rows: dict[str, list]) -> None:
    path.parent.mkdir(exist_ok=True)
    part = path.with_suffix(".part.npz")
    np.savez_compressed(part, **{key: np.array(values) for key, values in rows.items()})
    part.replace(path)
    best = max(row[-1] for row in rows["val"])
    print(f"{path.name}: {len(rows['val'])} curves, best {best / 1e4:.4f}", flush=True)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("task", choices=["digits", "table"])
    options.add_argument("--budget-s", type=float, default=480)
    options.add_argument("--costs", action="store_true", help="measure what an epoch alone costs")
    options.add_argument("--fit", action="store_true", help="fit what predicts other points")
    given = options.parse_args()
    if given.costs:
        measure(given.task)
    elif given.fit:
        fit(given.task)
    else:
        record(given.task, given.budget_s)
