"""A trainer: takes trials, trains a multilayer perceptron for each, reports the metrics."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from .trial import Outcome, Trial, result_tag, trial_tag

if TYPE_CHECKING:
    from diel import Context
    from dnn import Dataset

METRICS = ("accuracy", "loss", "mcc", "training_time_s")

_NEEDS_PATH = frozenset({"cleveland", "mnist"})


class Hyperparameters(BaseModel):
    """The parameters of a trial; a search space may name any of them."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    learning_rate: float = Field(0.1, gt=0, allow_inf_nan=False)
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False)
    batch_size: int = Field(32, ge=1)
    epochs: int = Field(20, ge=1)
    hidden: list[Annotated[int, Field(ge=1)]] = Field(
        [64], description="units of each hidden layer"
    )
    activation: Literal["sigmoid", "tanh", "relu"] = "relu"


class Options(BaseModel):
    """What the workflow file says of a trainer."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    dataset: Literal["digits", "breast_cancer", "cleveland", "mnist"] = Field(
        description="digits and breast_cancer come with scikit-learn, the others need a path"
    )
    path: str | None = Field(
        None,
        description="the data's file or folder, relative to the workflow file; $NAME stands for "
        "an environment variable, ~ for the home folder",
    )
    validation_fraction: float = Field(0.2, gt=0, lt=1)
    split_seed: int = Field(0, ge=0, description="of the split into training and validation rows")

    @model_validator(mode="after")
    def _find_data(self, info: ValidationInfo) -> Options:
        if self.dataset not in _NEEDS_PATH:
            if importlib.util.find_spec("sklearn") is None:
                raise ValueError(
                    f"dataset {self.dataset!r} comes with scikit-learn, which is not installed: "
                    'pip install "diel[data]"'
                )
            if self.path is not None:
                raise ValueError(
                    f"dataset {self.dataset!r} comes with scikit-learn: leave out path"
                )
            return self
        if self.path is None:
            raise ValueError(f"dataset {self.dataset!r} needs path, the place of its data")
        folder = (info.context or {}).get("folder", Path())
        if not self.resolve(folder).exists():
            raise ValueError(f"no data at {self.resolve(folder)} (path = {self.path!r})")
        return self

    def resolve(self, folder: Path) -> Path:
        """Return the data's place; `folder` is that of the workflow file.

        Raises
        ------
        ValueError
            If the path names an environment variable that is not set.
        """
        expanded = os.path.expanduser(os.path.expandvars(self.path or ""))
        if "$" in expanded:
            raise ValueError(f"path = {self.path!r}: that environment variable is not set")
        return folder / expanded


def run(ctx: Context) -> int:
    """Train until the master has no more trials; return how many there were."""
    training, validation = _load(ctx)
    trials = 0
    while True:
        trial: Trial | None = ctx.tuples.tget(trial_tag(ctx.group))
        if trial is None:
            return trials
        metrics = train(trial, training, validation)
        ctx.tuples.tput(result_tag(ctx.group), Outcome(trial, metrics, ctx.copy_index))
        trials += 1


def train(trial: Trial, training: Dataset, validation: Dataset) -> dict[str, float]:
    """Train one network.

    Parameters
    ----------
    trial : Trial
    training, validation : Dataset
        Prepared rows.

    Returns
    -------
    dict of str to float
        `METRICS`: accuracy, loss and Matthews correlation coefficient on the validation rows,
        and the time spent in training, in seconds.
    """
    from dnn import SGD, NeuralNetwork, mlp

    wanted = Hyperparameters.model_validate(trial.parameters)
    features = training.x.shape[1]
    model = NeuralNetwork(
        mlp(features, wanted.hidden, training.classes, wanted.activation),
        optimizer=SGD(wanted.learning_rate, wanted.momentum, wanted.weight_decay),
        seed=trial.seed,
    )
    history = model.fit(training.x, training.y, epochs=wanted.epochs, batch_size=wanted.batch_size)
    metrics: dict[str, Any] = model.evaluate(validation.x, validation.y)
    return {**metrics, "training_time_s": history.training_time_s}


def _load(ctx: Context) -> tuple[Dataset, Dataset]:
    from dnn import impute, load_dataset, standardise, train_validation_split

    options: Options = ctx.options
    path = options.resolve(ctx.folder) if options.path is not None else None
    data = load_dataset(options.dataset, path)
    parts = train_validation_split(data, options.validation_fraction, options.split_seed)
    # What is learned about the rows is learned from the training rows only.
    training, validation = standardise(*impute(*parts))
    ctx.log.info(
        "%s: %d rows to train on, %d to validate", data.name, len(training), len(validation)
    )
    return training, validation
