"""Training on a GPU with all samples there, and with samples that travel batch by batch.

A network of two hidden layers of 2,048 units on made-up samples of MNIST's shape, in batches of
1,024. An epoch's time, without the first, in which plans are captured:

========== =================================================================================
resident   all samples lie on the GPU; that they were sent, once, is not counted
streamed   each batch is gathered in pinned memory, and sent while the one before is computed
not_ahead  each batch is gathered and sent when the one before is done
========== =================================================================================

All three end with the same loss, which is checked. Needs a GPU, and CuPy for this interpreter.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import harness
import numpy as np

INPUTS, HIDDEN, CLASSES, BATCH = 784, [2048, 2048], 10, 1024
SEED = 1
UNIT = "s for an epoch"


def epochs_s(way: str, data: Any, hidden: list[int], epochs: int) -> tuple[list[float], float]:
    """Train; return how long each epoch took but the first, and the last loss."""
    from dnn import SGD, NeuralNetwork, mlp
    from dnn.training.epoch import Trainer

    Trainer.ahead = 0 if way == "not_ahead" else 1
    layers = mlp(INPUTS, hidden, CLASSES, "relu")
    model = NeuralNetwork(layers, optimizer=SGD(0.01), seed=SEED, device="cuda")
    resident = way == "resident"
    history = model.fit(
        data, epochs=1 + epochs, batch_size=BATCH, progress=False, resident=resident
    )
    return history.epoch_times_s[1:], history.loss[-1]


def measure(data: Any, hidden: list[int], rounds: int, epochs: int) -> Iterator[harness.Result]:
    """Train in each way, in turn; the rows are of all rounds so far, and come after each."""
    times: dict[str, list[float]] = {"resident": [], "streamed": [], "not_ahead": []}
    resident, streamed, not_ahead = times.values()
    losses = set()
    for _ in range(rounds):
        for way, measured in times.items():
            measured_s, loss = epochs_s(way, data, hidden, epochs)
            measured += measured_s
            losses.add(loss)
        if len(losses) > 1:
            raise RuntimeError(f"the losses differ: {losses}")
        yield harness.compare("prefetch_resident", resident, None, "", UNIT)
        yield harness.compare("prefetch_streamed", streamed, resident, "all on the GPU", UNIT)
        yield harness.compare("prefetch_not_ahead", not_ahead, streamed, "sent ahead", UNIT)


def main() -> None:
    options = harness.gpu_parser(__doc__).parse_args()
    sys.path.insert(0, str(harness.REPOSITORY))
    from dnn import DeviceData

    harness.require_gpu("prefetch")
    hidden, rounds, epochs, samples = HIDDEN, 3, 10, 60_000
    if options.quick:
        rounds, epochs, samples = 2, 3, 20_000
    if options.tiny:
        hidden, rounds, epochs, samples = [16, 16], 1, 1, 2 * BATCH
    generator = np.random.default_rng(SEED)
    y = generator.integers(0, CLASSES, samples)
    centres = generator.random((CLASSES, INPUTS), np.float32)
    data = DeviceData(centres[y] + generator.random((samples, INPUTS), np.float32), y)
    rows = measure(data, hidden, rounds, epochs)
    harness.report(rows, options.json, samples=str(samples), **harness.gpu())


if __name__ == "__main__":
    main()
