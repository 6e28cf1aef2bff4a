"""Networks of the trainer score what others do on the same rows: diabetes, digits, images."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
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


def ours(options: dict[str, Any], repeats: int = 1) -> tuple[list[dict[str, float]], Any]:
    """Return the scores of each fold, and the rows with their folds."""
    folds = {"method": "k_fold", "folds": 5, "repeats": repeats}
    given = {**options, "evaluation": folds}
    task = trainer.Options.model_validate(given, context={"folder": Path()}).task(Path())
    train = task.load()
    splits = train(POINT, task.report(Trial(0, {}, 1)))["splits"]
    return splits["choice"], train._rounds


def write_digits(folder: Path, form: str) -> tuple[dict[str, Any], Any, Any]:
    """Write digits as images, in folders of classes or with a table of labels.

    Returns the options that read them, and the pixels and labels themselves, in the order of the
    images.
    """
    from PIL import Image
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    for number, (image, label) in enumerate(zip(x.reshape(-1, 8, 8), y, strict=True)):
        place = folder / (str(label) if form == "folders" else "images") / f"{number:04d}.png"
        place.parent.mkdir(exist_ok=True)
        Image.fromarray(np.round(image * 255 / 16).astype(np.uint8)).save(place)
    reading: dict[str, Any] = {"grey": True}
    order = np.argsort(y, kind="stable")
    if form == "table":
        order = np.arange(len(y))
        rows = [f"images/{number:04d}.png,{label}\n" for number, label in enumerate(y)]
        (folder / "labels.csv").write_text("file,digit\n" + "".join(rows))
        reading["table"] = "labels.csv"
    return {"dataset": "image_folder", "path": str(folder), "reading": reading}, x[order], y[order]


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
    name = "rmse" if dataset == "diabetes" else "accuracy"
    choice, rows = ours({"dataset": dataset}, 2 if dataset == "diabetes" else 1)
    mine, splits = [each[name] for each in choice], [prepared(rows.data, job) for job in rows.jobs]
    sign = -1 if dataset == "diabetes" else 1
    room = 1.0 if dataset == "diabetes" else 0.005
    print(dataset, f"ours {fmean(mine):.4g}")
    for predict in (ridge, multilayer, of_torch):
        theirs = [score(*split, predict) for split in splits]
        gains = [sign * (a - b) for a, b in zip(mine, theirs, strict=True)]
        print(dataset, predict.__name__, f"{fmean(theirs):.4g} +- {stdev(gains):.3g}")
        assert fmean(gains) > -2 * stdev(gains) / math.sqrt(len(gains)) - room


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize("form", ["folders", "table"])
def test_images_are_learned_as_well(form: str, tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="Pillow writes and reads images")
    options, x, y = write_digits(tmp_path, form)
    choice, rows = ours(options)
    mine = [each["accuracy"] for each in choice]
    print(form, f"ours {fmean(mine):.4g}")
    # With rows it is compared with both.
    for predict in (ridge, multilayer if form == "folders" else of_torch):
        theirs = []
        for job in rows.jobs:  # of the pixels themselves, by one scale, as images are
            mean, deviation = x[job.train].mean(), x[job.train].std()
            scaled = ((x - mean) / deviation).astype(np.float32)
            train = SimpleNamespace(
                x=scaled[job.train], y=y[job.train], task="classification", outputs=10
            )
            theirs.append(float((predict(train, scaled[job.test]) == y[job.test]).mean()))
        gains = [a - b for a, b in zip(mine, theirs, strict=True)]
        print(form, predict.__name__, f"{fmean(theirs):.4g} +- {stdev(gains):.3g}")
        assert fmean(gains) > -2 * stdev(gains) / math.sqrt(len(gains)) - 0.005
