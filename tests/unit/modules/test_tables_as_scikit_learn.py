"""Networks of the trainer on tables score what those of scikit-learn do, on the same rows."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from support import WORKFLOWS

from modules import trainer
from modules.trial import Trial

pytest.importorskip("sklearn", reason="scikit-learn is what is compared with")
pandas = pytest.importorskip("pandas", reason="frames are what scikit-learn takes names from")

POINT = {"hidden": [16], "epochs": 30, "learning_rate": 0.05, "batch_size": 32, "momentum": 0.9}


def write_iris(path: Path) -> None:
    from sklearn.datasets import load_iris

    found = load_iris(as_frame=True)
    frame = found.data.assign(species=found.target_names[found.target])
    frame.to_csv(path, index=False)


def ours(options: dict[str, Any], folder: Path) -> tuple[list[float], Any]:
    """Return the accuracy of each fold, and the folds."""
    given = {
        "dataset": "csv",
        "evaluation": {"method": "k_fold", "folds": 5, "repeats": 2},
        **options,
    }
    task = trainer.Options.model_validate(given, context={"folder": folder}).task(folder)
    train = task.load()
    splits = train(POINT, task.report(Trial(0, {}, 1)))["splits"]
    return [split["accuracy"] for split in splits["choice"]], train._rounds.jobs


def theirs(frame: Any, label: str, jobs: Any) -> list[float]:
    """Return the accuracy of each fold of a pipeline with the same steps."""
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    x, y = frame.drop(columns=label), frame[label]
    texts = make_pipeline(
        SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore")
    )
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    scores = []
    for job in jobs:
        steps = make_column_transformer(
            (numbers, make_column_selector(dtype_include="number")),
            (texts, make_column_selector(dtype_exclude="number")),
        )
        network = MLPClassifier(
            (16,), solver="sgd", learning_rate_init=0.05, batch_size=32, max_iter=30,
            n_iter_no_change=30, random_state=1,
        )  # fmt: skip
        model = make_pipeline(steps, network).fit(x.iloc[job.train], y.iloc[job.train])
        scores.append(model.score(x.iloc[job.test], y.iloc[job.test]))
    return scores


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize("name", ["penguins", "iris"])
def test_a_table_is_learned_as_well(name: str, tmp_path: Path) -> None:
    path, missing = tmp_path / "iris.csv", [""]
    if name == "penguins":
        path, missing = WORKFLOWS / "penguins.csv", ["NA"]
    else:
        write_iris(path)
    reading = {"label": "species", "missing": missing}
    mine, jobs = ours({"path": str(path), "reading": reading}, tmp_path)
    frame = pandas.read_csv(path)
    other = theirs(frame, "species", jobs)
    differences = [a - b for a, b in zip(mine, other, strict=True)]
    print(name, f"{fmean(mine):.4f} {fmean(other):.4f} +- {stdev(differences):.4f}")
    assert fmean(differences) > -2 * stdev(differences) / math.sqrt(len(differences)) - 0.01
    assert fmean(mine) > 0.94
