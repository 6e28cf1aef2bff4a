"""A convolutional network by name on MNIST, Fashion-MNIST or CIFAR-10, tested once, at the end.

The test images had no part in any choice: hyperparameters and the number of epochs stand in the
workflow file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

import dnn

SETS = {
    "mnist": dnn.load_mnist,
    "fashion_mnist": dnn.load_fashion_mnist,
    "cifar10": dnn.load_cifar10,
}
NETWORKS = {"lenet5": dnn.lenet5, "vgg16": dnn.vgg16, "resnet18": dnn.resnet18}


class Augment(BaseModel):
    """How images are changed at random, each epoch anew."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    shift: int = Field(0, ge=0, description="up to so many pixels, the image mirrored at its edge")
    flip: bool = Field(False, description="left and right change places in half of the images")
    cutout: int = Field(0, ge=0, description="a square of so many pixels becomes the mean")


class Options(BaseModel):
    """What the workflow file says."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    network: Literal["lenet5", "vgg16", "resnet18"]
    dataset: Literal["mnist", "fashion_mnist", "cifar10"]
    path: str = Field(description="the folder of the data; $NAME is an environment variable")
    images: int | None = Field(None, ge=1, description="of training; all, if left out")
    augment: Augment = Augment()
    learning_rate: float
    momentum: float = 0.9
    weight_decay: float = 0.0
    warm_up: float = Field(0.0, ge=0, description="epochs in which the learning rate grows")
    batch_size: int
    epochs: int
    seed: int = 0

    @field_validator("path")
    @classmethod
    def _find_data(cls, path: str, info: ValidationInfo) -> str:
        expanded = os.path.expanduser(os.path.expandvars(path))
        if "$" in expanded:
            raise ValueError(f"path = {path!r}: that environment variable is not set")
        folder = (info.context or {}).get("folder", Path()) / expanded
        if not folder.exists():
            name = info.data.get("dataset", "mnist")
            call = f"import dnn; dnn.download({name!r}, {str(folder)!r})"
            raise ValueError(f'no data at {folder}; python -c "{call}" gets them')
        return str(folder)


class Progress(dnn.Callback):
    """Reports the progress of the training to the run."""

    def __init__(self, ctx) -> None:
        self.ctx = ctx

    def on_epoch_end(self, epoch) -> None:
        """Report the epoch and its loss."""
        done = len(epoch.history)
        self.ctx.log.info("epoch %d: loss %.4f", done, epoch.loss)
        self.ctx.progress(done, self.ctx.options.epochs, f"loss {epoch.loss:.4f}")


def run(ctx) -> dict[str, float]:
    """Train a network, test it, and record the results."""
    options: Options = ctx.options
    train, test = SETS[options.dataset](options.path)
    if options.images is not None:
        train = train.take(slice(options.images))
    normalise = dnn.Normalise.of(train.images)
    changes = []
    if options.augment.shift:
        changes.append(dnn.Shift(options.augment.shift, "reflect"))
    if options.augment.flip:
        changes.append(dnn.Flip())
    if options.augment.cutout:
        changes.append(dnn.Cutout(options.augment.cutout))
    steps_an_epoch = -(-len(train) // options.batch_size)
    warm = round(options.warm_up * steps_an_epoch)
    falling = dnn.Cosine(max(1, options.epochs * steps_an_epoch - warm))  # to 0 after the last step
    optimizer = dnn.SGD(
        options.learning_rate,
        options.momentum,
        options.weight_decay,
        nesterov=True,
        schedule=dnn.WarmUp(warm, then=falling) if warm else falling,
    )
    layers = NETWORKS[options.network](train.image_shape, train.classes)
    model = dnn.NeuralNetwork(layers, optimizer=optimizer, seed=options.seed)
    history = model.fit(
        dnn.Images(train.images, [*changes, normalise]),
        train.y,
        epochs=options.epochs,
        batch_size=options.batch_size,
        callbacks=[Progress(ctx)],
        progress=False,
    )
    tested = model.evaluate(dnn.Images(test.images, [normalise]), test.y)
    row = {"seed": options.seed, **tested, "training_time_s": history.training_time_s}
    ctx.results.declare([*row], objective="accuracy", maximise=True)
    ctx.results.add(row)
    return row
