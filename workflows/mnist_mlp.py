"""One network on the handwritten digits of MNIST: 60,000 to train on, 10,000 to test.

No choice was left to the test digits: hyperparameters and the number of epochs stand in the
workflow file, and the network is tested once, after its last epoch.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from dnn import SGD, Callback, NeuralNetwork, load_mnist, mlp
from dnn.optimizers import Cosine


class Options(BaseModel):
    """What the workflow file says."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    path: str = Field(description="the folder with the four files of MNIST; $NAME is a variable")
    hidden: list[int]
    activation: str = "relu"
    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
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
        if not folder.is_dir():
            raise ValueError(f"no data at {folder}")
        return str(folder)


class Progress(Callback):
    """Tells the run how far the training is."""

    def __init__(self, ctx) -> None:
        self.ctx = ctx

    def on_epoch_end(self, epoch) -> None:
        """Report the epoch and its loss."""
        done = len(epoch.history)
        self.ctx.log.info("epoch %d: loss %.4f", done, epoch.loss)
        self.ctx.progress(done, self.ctx.options.epochs, f"loss {epoch.loss:.4f}")


def run(ctx) -> dict[str, float]:
    """Train, test, report."""
    options: Options = ctx.options
    train, test = load_mnist(options.path)
    layers = mlp(train.features, options.hidden, train.classes, options.activation)
    steps = options.epochs * -(-len(train) // options.batch_size)
    optimizer = SGD(
        options.learning_rate,  # falls along half a cosine, to 0 after the last step
        options.momentum,
        options.weight_decay,
        schedule=Cosine(steps),
    )
    model = NeuralNetwork(layers, optimizer=optimizer, seed=options.seed)
    history = model.fit(
        train.x,
        train.y,
        epochs=options.epochs,
        batch_size=options.batch_size,
        callbacks=[Progress(ctx)],
        progress=False,
    )
    tested = model.evaluate(test.x, test.y)
    row = {"seed": options.seed, **tested, "training_time_s": history.training_time_s}
    ctx.results.declare([*row], objective="accuracy", maximise=True)
    ctx.results.add(row)
    return row
