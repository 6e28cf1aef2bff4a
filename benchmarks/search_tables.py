"""Make `search_tables.npz`: losses of scikit-learn's models over whole grids.

``python benchmarks/search_tables.py`` takes some minutes. `search.py` looks scores up in it.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PATH = Path(__file__).with_name("search_tables.npz")
SVC = {
    "C": {"from": 1e-2, "to": 1e3, "log_steps": 16},
    "gamma": {"from": 1e-5, "to": 1.0, "log_steps": 16},
    "kernel": ["rbf", "sigmoid"],
}
BOOSTING = {
    "learning_rate": {"from": 0.01, "to": 1.0, "log_steps": 7},
    "max_depth": {"from": 1, "to": 4},
    "subsample": {"from": 0.4, "to": 1.0, "step": 0.3},
    "n_estimators": {"from": 5, "to": 100, "step": 5},
}
MLP = {
    "hidden": {"from": 8, "to": 64, "log_steps": 4},
    "learning_rate": {"from": 1e-4, "to": 1e-1, "log_steps": 8},
    "alpha": {"from": 1e-5, "to": 10.0, "log_steps": 3},
    "activation": ["relu", "tanh", "logistic"],
}
GRIDS: dict[str, dict[str, Any]] = {"svc": SVC, "boosting": BOOSTING, "mlp": MLP}
"""Spaces as in a workflow file; the axes of a table are their parameters, in this order."""


def table(name: str, losses: Callable[[dict[str, Any]], Any], last: int = 1) -> Any:
    """Return the losses at all points; `losses` returns those over the last axis, if `last` > 1."""
    from modules.space import Space

    space = Space.parse(GRIDS[name])
    shape = [len(dimension) for dimension in space.dimensions.values()]  # type: ignore[arg-type]
    found = np.empty(shape, np.float32)
    for index in itertools.product(*map(range, shape if last == 1 else shape[:-1])):
        point = {key: d[i] for (key, d), i in zip(space.dimensions.items(), index, strict=False)}
        found[index] = losses(point)
    return found


def main() -> None:
    from sklearn.datasets import load_breast_cancer, load_digits
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.metrics import log_loss
    from sklearn.model_selection import StratifiedKFold
    from sklearn.neural_network import MLPClassifier
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC as Machine

    warnings.simplefilter("ignore")
    folds = StratifiedKFold(2, shuffle=True, random_state=0)
    x, y = load_digits(return_X_y=True)
    x = x / 16
    parts = list(folds.split(x, y))

    def svc(point: dict[str, Any]) -> float:
        train, test = parts[0]
        return float(1 - Machine(**point).fit(x[train], y[train]).score(x[test], y[test]))

    def mlp(point: dict[str, Any]) -> float:
        train, test = parts[0]
        model = MLPClassifier(
            (point["hidden"],),
            activation=point["activation"],
            learning_rate_init=point["learning_rate"],
            alpha=point["alpha"],
            max_iter=10,
            random_state=0,
        ).fit(x[train], y[train])
        return float(log_loss(y[test], model.predict_proba(x[test])))

    cancer, labels = load_breast_cancer(return_X_y=True)
    cancer = StandardScaler().fit_transform(cancer)
    cuts = list(folds.split(cancer, labels))

    def boosting(point: dict[str, Any]) -> Any:
        """Return the losses after 5, 10, ... trees."""
        losses = np.zeros(20)
        for train, test in cuts:
            model = GradientBoostingClassifier(n_estimators=100, random_state=0, **point)
            model.fit(cancer[train], labels[train])
            stages = list(model.staged_predict_proba(cancer[test]))[4::5]
            losses += [log_loss(labels[test], stage) / len(cuts) for stage in stages]
        return losses

    tables = {"svc": table("svc", svc), "mlp": table("mlp", mlp)}
    tables["boosting"] = table("boosting", boosting, last=20)
    np.savez_compressed(PATH, **tables)


if __name__ == "__main__":
    main()
