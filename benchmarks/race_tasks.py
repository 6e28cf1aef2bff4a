"""The data of the race, split and scaled the same for every contender: digits, and a table."""

from __future__ import annotations

from typing import Any

import numpy as np


def raw(name: str) -> tuple[Any, Any]:
    """Return all samples of a task and their classes."""
    from sklearn.datasets import load_digits, make_classification

    if name == "digits":
        digits = load_digits()
        return digits.data.astype(np.float32), digits.target.astype(np.int64)
    x, y = make_classification(
        20000,
        54,
        n_informative=30,
        n_redundant=10,
        n_classes=7,
        n_clusters_per_class=2,
        class_sep=0.8,
        random_state=0,
    )
    return x.astype(np.float32), y.astype(np.int64)


def split(name: str, most: int | None = None) -> dict[str, Any]:
    """Return scaled samples and classes, and the rows of training, validation and test.

    A fifth is for the test, a fifth of the rest for validation; `most` cuts the training rows.
    """
    from sklearn.model_selection import train_test_split

    x, y = raw(name)
    rest, test = train_test_split(np.arange(len(x)), test_size=0.2, stratify=y, random_state=0)
    train, val = train_test_split(rest, test_size=0.2, stratify=y[rest], random_state=0)
    train = train[:most]
    mean, deviation = x[train].mean(0), x[train].std(0)
    x = ((x - mean) / np.where(deviation > 0, deviation, 1)).astype(np.float32)
    return {"x": x, "y": y, "train": train, "held": {"val": val, "test": test}}
