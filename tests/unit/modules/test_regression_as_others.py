"""Networks of the trainer on diabetes and digits score what others do, on the same rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest

from modules import trainer
from modules.evaluation import prepared
from modules.trial import Trial

pytest.importorskip("sklearn", reason="scikit-learn is what is compared with")
torch = pytest.importorskip("torch", reason="PyTorch is what is compared with")

POINT = {
    **{"hidden": [16], "activation": "tanh", "epochs": 30, "batch_size": 32},
    **{"optimizer": "adam", "learning_rate": 0.01},
}


def ours(dataset: str) -> tuple[list[float], Any]:
    """Return the score of each fold, rmse or accuracy, and the folds with their rows."""
    folds = {"method": "k_fold", "folds": 5, "repeats": 2 if dataset == "diabetes" else 1}
    given = {"dataset": dataset, "evaluation": folds}
    task = trainer.Options.model_validate(given, context={"folder": Path()}).task(Path())
    train = task.load()
    splits = train(POINT, task.report(Trial(0, {}, 1)))["splits"]
    name = "rmse" if dataset == "diabetes" else "accuracy"
    rows = train._rounds
    return [split[name] for split in splits["choice"]], [
        prepared(rows.data, job) for job in rows.jobs
    ]


def score(train: Any, test: Any, predict: Callable[[Any, Any], Any]) -> float:
    guess = predict(train, test.x)
    if test.task == "classification":
        return float((guess == test.y).mean())
    errors = (guess.reshape(-1) - test.y[:, 0]) * test.scale.deviation
    return float(np.sqrt(np.square(errors).mean()))


def ridge(train: Any, x: Any) -> Any:
    from sklearn.linear_model import LogisticRegression, Ridge

    model = Ridge(1.0) if train.task == "regression" else LogisticRegression(max_iter=2000)
    return model.fit(train.x, train.y.reshape(-1)).predict(x)


def multilayer(train: Any, x: Any) -> Any:
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    kind = MLPRegressor if train.task == "regression" else MLPClassifier
    model = kind(
        hidden_layer_sizes=(16,), activation="tanh", learning_rate_init=0.01, batch_size=32,
        max_iter=30, n_iter_no_change=30, alpha=0.0, random_state=1,
    )  # fmt: skip
    return model.fit(train.x, train.y.reshape(-1)).predict(x)


def of_torch(train: Any, x: Any) -> Any:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    is_regression = train.task == "regression"
    model = torch.nn.Sequential(
        torch.nn.Linear(train.x.shape[1], 16), torch.nn.Tanh(), torch.nn.Linear(16, train.outputs)
    )
    loss_of = torch.nn.MSELoss() if is_regression else torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    inputs = torch.as_tensor(train.x)
    y = torch.as_tensor(train.y).float() if is_regression else torch.as_tensor(train.y).long()
    for _ in range(30):
        for rows in torch.split(torch.randperm(len(inputs)), 32):
            optimizer.zero_grad()
            loss_of(model(inputs[rows]), y[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        found = model(torch.as_tensor(x)).numpy()
    return found if is_regression else found.argmax(1)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize("dataset", ["diabetes", "digits"])
def test_rows_are_learned_as_well(dataset: str) -> None:
    mine, splits = ours(dataset)
    sign = -1 if dataset == "diabetes" else 1
    room = 1.0 if dataset == "diabetes" else 0.005
    print(dataset, f"ours {fmean(mine):.4g}")
    for predict in (ridge, multilayer, of_torch):
        theirs = [score(*split, predict) for split in splits]
        gains = [sign * (a - b) for a, b in zip(mine, theirs, strict=True)]
        print(dataset, predict.__name__, f"{fmean(theirs):.4g} +- {stdev(gains):.3g}")
        assert fmean(gains) > -2 * stdev(gains) / math.sqrt(len(gains)) - room
