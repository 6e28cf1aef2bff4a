"""Time until a network recognises so many test images, on the CPU, against PyTorch.

``mnist_99_s``: LeNet-5 until 99% of MNIST's test digits are right; seconds, the mean of five seeds.
``cifar10_90_s``: a small fast network of the kind that holds the published records [1]_, [2]_ until
90% of CIFAR-10's test images are right; a first layer that whitens and is not trained, three blocks
of two convolutions that begin by passing channels on as they are, shifts that learn 64 times as
fast as weights, a schedule of one cycle, label smoothing, images shifted and flipped, and test
images judged in six views. It runs if it is asked for by name.

Both sides start from the same weights and take the same batches in the same order, with the same
rates; images are prepared by `dnn.Images` for both. The test images are looked at after each epoch,
of CIFAR-10 after the last ones, which counts. Kernels are compiled before, on both sides.

    python image_training.py DIEL_DATA [--net cifar10_90_s] [--images 2000] [--epochs 1]

With ``--images`` and ``--epochs`` it is a trial of the script: of a part of an epoch follows the
time of a whole one. CIFAR-10's binary files are looked for in ``cifar10``; where they were made of
JPEGs, whose quality is lower, say so beside the number.

References
----------
.. [1] Jordan, 94% on CIFAR-10 in 3.29 seconds on a single GPU, arXiv:2404.00498, 2024.
.. [2] Page, How to train your ResNet 8: bag of tricks, 2019.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import harness
import numpy as np

THREADS = 2
SEEDS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Recipe:
    """What is trained, how, and how good it has to be."""

    accuracy: float
    epochs: int
    batch: int
    rate: float
    momentum: float
    decay: float
    smoothing: float
    rise: float
    seeds: tuple[int, ...]
    views: bool = False
    """Whether a test image is judged together with its mirror image, and both shifted."""
    first_look: int = 1
    """The epoch after which the test images are looked at for the first time."""

    def trial(self) -> Recipe:
        """Return the same for one epoch, with a look at the test images."""
        return replace(self, epochs=1, first_look=1)

    def schedule(self, samples: int) -> Any:
        """Return the factor of the rate, from the number of steps done."""
        import dnn

        steps = self.epochs * -(-samples // self.batch)
        if not self.views:
            return dnn.OneCycle(steps, self.rise)
        return dnn.OneCycle(steps, self.rise, start=0.2, end=0.0, linear=True)


DATA = {
    "mnist_99_s": "mnist/train-images-idx3-ubyte.gz",
    "cifar10_90_s": "cifar10/data_batch_1.bin",
}
"""A file of each data set."""
SLOW = "cifar10_90_s"
RECIPES = {
    "mnist_99_s": Recipe(0.99, 5, 100, 0.05, 0.9, 0.0, 0.0, 0.3, SEEDS),
    "cifar10_90_s": Recipe(
        *(0.90, 25, 256, 0.375, 0.85, 1.3e-3, 0.2, 0.23, (1,)), views=True, first_look=25
    ),
}
WHITENED = 24
"""Channels of the whitening: both signs of the 12 directions of patches of 2 x 2 pixels."""
WIDTHS = (64, 128, 256)
FASTER = 8.0
"""What a shift of the normalised is a multiple of: it learns 64 times as fast."""
MOMENTUM = 0.6
"""Of the running statistics."""
SOFTER = 1 / 9
"""What the scores are multiplied by."""


def data(net: str, folder: str, images: int | None) -> tuple[Any, ...]:
    """Return images and labels of training, and of the test, as `dnn.Images` prepares them."""
    import dnn

    if net == "mnist_99_s":
        train, test = dnn.load_mnist(Path(folder, "mnist"))
        changes = []
    else:
        train, test = dnn.load_cifar10(Path(folder, "cifar10"))
        changes = [dnn.Shift(2, "reflect"), dnn.Flip()]
    if images is not None:
        train, test = train.take(slice(images)), test.take(slice(images))
    normalise = dnn.Normalise.of(train.images)
    x = dnn.Images(train.images, [*changes, normalise])
    held_out = dnn.Images(test.images, [normalise])[:]
    if not changes:  # nothing is left to do for each batch
        x = x[:]
    return x, train.y, held_out, test.y


def whitening(x: Any) -> Any:
    """Return filters (24, 3, 2, 2) that decorrelate neighbouring pixels and scale them alike."""
    part = x[:5000]
    patches = np.lib.stride_tricks.sliding_window_view(part, (2, 2), axis=(2, 3))
    rows = patches.transpose(0, 2, 3, 1, 4, 5).reshape(-1, 12)[::7].astype(np.float64)
    values, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    # What JPEG leaves of the finest differences is not blown up.
    filters = (vectors / np.sqrt(values + 1e-2)).T.reshape(12, 3, 2, 2)
    return np.concatenate([filters, -filters]).astype(np.float32)


def layers(net: str, filters: Any) -> list[Any]:
    """Return the layers of a network."""
    import dnn
    from dnn import graph

    if net == "mnist_99_s":
        return dnn.lenet5()

    class Whiten(dnn.Layer):
        """A convolution that is not trained."""

        def build(self, shape: Any) -> None:
            self.weight = self.state("weight", filters.shape, lambda *_: filters)

        def forward(self, x: Any) -> Any:
            return graph.conv2d(x, self.weight)

    class Shifted(dnn.BatchNorm):
        """Normalised images with a shift that learns fast, and no scale."""

        def build(self, shape: Any) -> None:
            super().build(shape)
            del self.parameters[:]
            self.scale = self.state("scale", shape[:1], "ones")
            self.trained = self.parameter("shift", shape[:1], "zeros")

        def forward(self, x: Any) -> Any:
            self.shift = self.trained * FASTER
            return super().forward(x)

    def passed_on(generator: Any, shape: Any, dtype: Any) -> Any:
        """Return filters of which the first ones pass a channel on as it is."""
        rows, columns, channels, filters = shape
        bound = (channels * rows * columns) ** -0.5
        weights = generator.uniform(-bound, bound, shape)
        same = np.arange(min(filters, channels))
        weights[..., same] = 0.0
        weights[rows // 2, columns // 2, same, same] = 1.0
        return weights.astype(dtype)

    def convolution(width: int) -> Any:
        return dnn.Conv2D(width, 3, padding="same", bias=False, initializer=passed_on)

    def norm() -> list[Any]:
        return [Shifted(MOMENTUM), dnn.Activation("relu")]

    found = [dnn.Input(3, 32, 32), Whiten(), dnn.Activation("relu")]
    for width in WIDTHS:
        found += [convolution(width), dnn.MaxPool2D(2), *norm(), convolution(width), *norm()]
    head = dnn.FullyConnected(10, bias=False)
    return [*found, dnn.MaxPool2D(3), dnn.Flatten(), head, dnn.Activation(lambda x: x * SOFTER)]


def is_looked_at(recipe: Recipe, epoch: int) -> bool:
    """Say whether the test images are looked at after an epoch, the first one being 1."""
    return epoch >= min(recipe.first_look, recipe.epochs)


def share_right(recipe: Recipe, scores: Any, x: Any, y: Any) -> float:
    """Return the share of test images that are right, from what gives scores of images."""
    found = scores(x)
    if recipe.views:
        wider = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)], "reflect")
        shifted = [wider[..., :-2, :-2], wider[..., 2:, 2:]]
        found = 2 * (found + scores(np.ascontiguousarray(x[..., ::-1])))
        for view in shifted:
            found += scores(np.ascontiguousarray(view))
            found += scores(np.ascontiguousarray(view[..., ::-1]))
    return float((found.argmax(1) == y).mean())


def model_of(net: str, recipe: Recipe, x: Any, seed: int) -> Any:
    """Return a network of ours, before its first step."""
    import dnn

    return dnn.NeuralNetwork(
        layers(net, None if net == "mnist_99_s" else whitening(x)),
        dnn.SoftmaxCrossEntropy(label_smoothing=recipe.smoothing),
        dnn.SGD(
            recipe.rate,
            recipe.momentum,
            recipe.decay,
            nesterov=True,
            schedule=recipe.schedule(len(x)),
        ),
        seed=seed,
    )


class DnnContender:
    """Trains with dnn: plain `fit`."""

    def __init__(self, net: str, recipe: Recipe, given: tuple[Any, ...]) -> None:
        self.net, self.recipe, self.given = net, recipe, given
        self._fit(SEEDS[0], 2 * recipe.batch)  # compiles

    def _fit(self, seed: int, rows: int | None = None) -> dict[str, Any]:
        import dnn

        recipe = self.recipe if rows is None else self.recipe.trial()
        x, y, *held_out = self.given
        if rows is not None:
            part = np.arange(min(rows, len(x)))
            x, y = x.take(part, 0), y[part]

        scores: list[float] = []

        class Enough(dnn.Callback):
            def on_epoch_end(self, epoch: Any) -> str | None:
                if not is_looked_at(recipe, epoch.index + 1):
                    return None
                scores.append(share_right(recipe, epoch.model, *held_out))
                return "good enough" if scores[-1] >= recipe.accuracy else None

        model = model_of(self.net, recipe, x, seed)
        began = time.perf_counter()
        history = model.fit(
            x,
            y,
            epochs=recipe.epochs,
            batch_size=recipe.batch,
            callbacks=[Enough()],
            progress=False,
        )
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "losses": history.loss, "scores": scores}

    def train(self, seed: int) -> dict[str, Any]:
        """Train until it is good enough, or all epochs are over."""
        return self._fit(seed)


class TorchContender:
    """Trains with PyTorch, channels last, with its fused SGD."""

    def __init__(self, net: str, recipe: Recipe, given: tuple[Any, ...]) -> None:
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        self.net, self.recipe, self.given = net, recipe, given
        self._fit(SEEDS[0], 2 * recipe.batch)

    def _module(self, mine: Any) -> Any:
        """Return the same network with the same weights."""
        from torch import nn

        if self.net == "mnist_99_s":
            module = nn.Sequential(
                *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
                *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
                nn.Linear(84, 10),
            )
        else:

            class Shifted(nn.BatchNorm2d):
                def __init__(self, width: int) -> None:
                    super().__init__(width, momentum=1 - MOMENTUM)
                    self.weight.requires_grad_(False)

                def forward(self, x: Any) -> Any:
                    running = self.running_mean, self.running_var, self.weight
                    shift, share = FASTER * self.bias, self.momentum
                    return nn.functional.batch_norm(x, *running, shift, self.training, share)

            class Softer(nn.Module):
                def forward(self, x: Any) -> Any:
                    return x * SOFTER

            steps: list[Any] = [nn.Conv2d(3, WHITENED, 2, bias=False), nn.ReLU()]
            channels = WHITENED
            for width in WIDTHS:
                first = nn.Conv2d(channels, width, 3, padding=1, bias=False)
                steps += [first, nn.MaxPool2d(2), Shifted(width), nn.ReLU()]
                second = nn.Conv2d(width, width, 3, padding=1, bias=False)
                steps += [second, Shifted(width), nn.ReLU()]
                channels = width
            head = nn.Linear(channels, 10, bias=False)
            steps += [nn.MaxPool2d(3), nn.Flatten(), head, Softer()]
            module = nn.Sequential(*steps)
        self._copy(mine, module)
        return module

    def _copy(self, mine: Any, module: Any) -> None:
        import torch

        weights = [np.asarray(w) for w in mine.parameters.values() if w.ndim > 1]
        if self.net != "mnist_99_s":
            weights.insert(0, whitening(self.given[0]))
        with torch.no_grad():
            wanted = [p for p in module.parameters() if p.ndim > 1]
            for theirs, weight in zip(wanted, weights, strict=True):
                theirs.copy_(torch.tensor(weight.T if weight.ndim == 2 else weight))
            for layer in module:
                if not hasattr(layer, "running_mean") and getattr(layer, "bias", None) is not None:
                    layer.bias.zero_()
        if self.net != "mnist_99_s":
            wanted[0].requires_grad_(False)

    def _batches(self, x: Any, seed: int, epoch: int) -> Iterator[tuple[Any, Any]]:
        """Yield rows of each batch and its images."""
        from dnn import batches
        from dnn.seeds import epoch_order

        rows = batches(len(x), self.recipe.batch, seed, epoch)
        if isinstance(x, np.ndarray):
            yield from ((part, x[part]) for part in rows)
        else:
            order = epoch_order(len(x), seed, epoch)
            yield from zip(rows, x.batches(order, self.recipe.batch, [seed], epoch), strict=True)

    def _fit(self, seed: int, rows: int | None = None) -> dict[str, Any]:
        import torch

        recipe = self.recipe if rows is None else self.recipe.trial()
        x, y, test_x, test_y = self.given
        if rows is not None:
            part = np.arange(min(rows, len(x)))
            x, y = x.take(part, 0), y[part]
        last = torch.channels_last
        mine = model_of(self.net, recipe, x, seed)
        module = self._module(mine).to(memory_format=last)
        trained = [p for p in module.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(
            trained,
            recipe.rate,
            recipe.momentum,
            weight_decay=recipe.decay,
            nesterov=True,
            fused=True,
        )
        rates = torch.optim.lr_scheduler.LambdaLR(optimizer, recipe.schedule(len(x)))
        criterion = torch.nn.CrossEntropyLoss(label_smoothing=recipe.smoothing)
        labels = torch.from_numpy(y)

        def scores_of(images: Any) -> Any:
            parts = []
            with torch.inference_mode():
                for start in range(0, len(images), 1024):
                    part = torch.from_numpy(images[start : start + 1024])
                    parts.append(module(part.contiguous(memory_format=last)).numpy())
            return np.concatenate(parts)

        losses: list[float] = []
        scores: list[float] = []
        began = time.perf_counter()
        for epoch in range(recipe.epochs):
            module.train()
            total = torch.zeros(())
            for part, images in self._batches(x, seed, epoch):
                batch = torch.from_numpy(images).contiguous(memory_format=last)
                optimizer.zero_grad(set_to_none=True)
                loss = criterion(module(batch), labels[part])
                loss.backward()
                optimizer.step()
                rates.step()
                total += len(part) * loss.detach()
            losses.append(float(total) / len(x))
            if not is_looked_at(recipe, epoch + 1):
                continue
            module.eval()
            scores.append(share_right(recipe, scores_of, test_x, test_y))
            if scores[-1] >= recipe.accuracy:
                break
        return {"seconds": time.perf_counter() - began, "losses": losses, "scores": scores}

    def train(self, seed: int) -> dict[str, Any]:
        """Train until it is good enough, or all epochs are over."""
        return self._fit(seed)


CONTENDERS: dict[str, Any] = {"dnn": DnnContender, "torch": TorchContender}


def work(contender: str, setup: str) -> None:
    """Be a contender: train once for each seed that is asked for."""
    given = json.loads(setup)
    recipe = Recipe(**given["recipe"])
    net = given["net"]
    trained = CONTENDERS[contender](net, recipe, data(net, given["folder"], given["images"]))
    harness.serve(trained.train)


def measure(
    net: str,
    folder: str,
    peer_python: str | None,
    *,
    images: int | None = None,
    epochs: int | None = None,
    seeds: tuple[int, ...] | None = None,
) -> harness.Result:
    """Measure one row; without `peer_python` our side alone.

    The losses of the first epoch are compared: the same recipe on both sides.
    """
    recipe = RECIPES[net]
    fields = {**vars(recipe), "epochs": epochs or recipe.epochs}
    setup = json.dumps({"net": net, "folder": folder, "images": images, "recipe": fields})
    found: dict[str, list[dict[str, Any]]] = {"dnn": [], "torch": []}
    with (
        harness.Worker(__file__, "dnn", sys.executable, THREADS, setup) as ours,
        harness.Worker(__file__, "torch", peer_python or sys.executable, THREADS, setup)
        if peer_python
        else ours as theirs,
    ):
        for seed in seeds or recipe.seeds:
            found["dnn"].append(ours.ask(seed=seed))
            if theirs is not ours:
                found["torch"].append(theirs.ask(seed=seed))
            for name, runs in found.items():
                if runs:
                    shown = [
                        [round(value, 4) for value in runs[-1][key]] for key in ("losses", "scores")
                    ]
                    print(
                        net, name, "seed", seed, f"{runs[-1]['seconds']:.2f} s", *shown, flush=True
                    )
    for one, other in zip(found["dnn"], found["torch"], strict=False):
        a, b = one["losses"][0], other["losses"][0]
        if not abs(a - b) <= 0.05 * abs(b):
            raise RuntimeError(f"{net}: losses of the first epoch differ: {a} and {b}")
    if images is None and epochs is None:
        for name, runs in found.items():
            missed = [run["scores"][-1] for run in runs if run["scores"][-1] < recipe.accuracy]
            if missed:
                raise RuntimeError(f"{net}: {name} ends at {missed}, below {recipe.accuracy}")
    ours_s, peer_s = ([run["seconds"] for run in runs] for runs in found.values())
    mean = [[statistics.mean(seconds)] if seconds else None for seconds in (ours_s, peer_s)]
    return harness.compare(net, mean[0] or [], mean[1], "PyTorch", "s")


def rows(peer_python: str | None, asked_for: str) -> Iterator[harness.Result]:
    """Measure networks whose data are in ``$DIEL_DATA``; of the others the row is empty.

    Those whose names begin as is asked for; what takes most of an hour by its whole name alone.
    """
    folder = os.environ.get("DIEL_DATA", ".")
    for net in RECIPES:
        if not net.startswith(asked_for) or (net == SLOW and asked_for != net):
            continue
        if Path(folder, DATA[net]).exists():
            yield measure(net, folder, peer_python)
        else:
            yield harness.compare(net, [], None, f"no {DATA[net]} in {folder}", "s")


def main() -> None:
    options = harness.parser(__doc__)
    options.add_argument("folder", nargs="?", default=os.environ.get("DIEL_DATA", "."))
    options.add_argument("--net", choices=RECIPES, action="append")
    options.add_argument("--images", type=int)
    options.add_argument("--epochs", type=int)
    options.add_argument("--seeds", type=int, nargs="+")
    given = options.parse_args()
    if given.worker:
        work(given.worker, given.setup)
        return
    peer = given.peer_python if harness.version_of("torch", given.peer_python) else None
    rows = [
        measure(
            net,
            given.folder,
            peer,
            images=given.images,
            epochs=given.epochs,
            seeds=given.seeds and tuple(given.seeds),
        )
        for net in given.net or ["mnist_99_s"]
    ]
    harness.report(rows, given.json)


if __name__ == "__main__":
    main()
