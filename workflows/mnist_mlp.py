"""One network on the handwritten digits of MNIST: 60,000 to train on, 10,000 to test.

The test digits had no part in any choice: hyperparameters and the number of epochs stand in the
workflow file, and the network is tested once, after its last epoch. Where the module has several
processes, ``training.parallel`` says how they train it together.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from dnn import LARS, SGD, Callback, Cosine, GrowingBatch, NeuralNetwork, WarmUp, load_mnist, mlp
from modules.parallel import TrainingOptions


class Options(BaseModel):
    """What the workflow file says."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    path: str = Field(description="the folder with the four files of MNIST; $NAME is a variable")
    images: int | None = Field(None, ge=1, description="of training; all, if left out")
    hidden: list[int]
    activation: str = "relu"
    optimizer: Literal["sgd", "lars"] = "sgd"
    trust: float = Field(0.001, description="of lars")
    learning_rate: float
    rate_of: int | None = Field(
        None, ge=1, description="the size of batches that the rate is for; it grows with them"
    )
    warm_up: float = Field(0.0, ge=0, description="epochs in which the learning rate grows")
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = Field(description="of all processes together")
    doubled_every: int | None = Field(
        None, ge=1, description="epochs after which batches double, at a constant learning rate"
    )
    largest_batch: int | None = None
    epochs: int
    seed: int = 0
    training: TrainingOptions = TrainingOptions(parallel=None)

    @field_validator("path")
    @classmethod
    def _find_data(cls, path: str, info: ValidationInfo) -> str:
        expanded = os.path.expanduser(os.path.expandvars(path))
        if "$" in expanded:
            raise ValueError(f"path = {path!r}: that environment variable is not set")
        folder = (info.context or {}).get("folder", Path()) / expanded
        if not folder.is_dir():
            raise ValueError(f"no data at {folder}")
        return str(folder)


class Progress(Callback):
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
    train, test = load_mnist(options.path)
    if options.images is not None:
        train = train.take(slice(options.images))
    layers = mlp(train.features, options.hidden, train.classes, options.activation)
    scheme = None if options.training.parallel is None else options.training.scheme(ctx.comm)
    model = NeuralNetwork(
        layers, optimizer=optimizer_of(options, len(train)), seed=options.seed, parallel=scheme
    )
    batch_size = options.batch_size
    if options.doubled_every is not None:
        batch_size = GrowingBatch(batch_size, options.doubled_every, most=options.largest_batch)
    is_first = scheme is None or ctx.comm.rank == 0
    history = model.fit(
        train.x,
        train.y,
        epochs=options.epochs,
        batch_size=batch_size,
        callbacks=[Progress(ctx)] if is_first else [],
        progress=False,
    )
    tested = model.evaluate(test.x, test.y)
    row = {"seed": options.seed, **tested, "training_time_s": history.training_time_s}
    if is_first:
        ctx.results.declare([*row], objective="accuracy", maximise=True)
        ctx.results.add(row)
    return row


def optimizer_of(options: Options, images: int) -> SGD | LARS:
    """Return the optimizer; its rate falls along half a cosine, to 0 after the last step."""
    rate, schedule = options.learning_rate, None
    if options.rate_of is not None:
        rate *= options.batch_size / options.rate_of
    steps = -(-images // options.batch_size)
    warm = round(options.warm_up * steps)
    if options.doubled_every is None:
        schedule = Cosine(max(1, options.epochs * steps - warm))
    if warm:
        schedule = WarmUp(warm, then=schedule or "constant")
    settings = {"momentum": options.momentum, "weight_decay": options.weight_decay}
    if options.optimizer == "lars":
        return LARS(rate, **settings, trust=options.trust, schedule=schedule)
    return SGD(rate, **settings, schedule=schedule)
