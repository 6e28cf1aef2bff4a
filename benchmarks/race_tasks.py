"""The data of the race, split and scaled the same for every contender: digits, a table, MNIST."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

STANDARDISED: Final = {"digits": "columns", "table": "columns", "mnist": "one scale"}
"""The tasks of the race, and how their samples are scaled."""
_IMAGES: Final = 10_000
"""Of MNIST the first of its training images, to train and to validate; all of its test images."""


def raw(name: str) -> tuple[Any, Any]:
    """Return all samples of a task and their classes."""
    import numpy as np
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


def write(name: str, folder: Path, mnist: Path) -> tuple[Path, Path]:
    """Write the rows of a task into two files, and return these.

    The first has the rows that diel is given, unscaled, which it splits itself; the second the
    same split, scaled the same, and the rows of the test, also unscaled, by the name ``raw_test``.
    """
    import numpy as np

    import dnn
    from dnn import Dataset
    from modules.trainer_data import load_split

    if name == "mnist":
        given, held = dnn.load_mnist(mnist)
        x, y, test_x, test_y = given.x[:_IMAGES], given.y[:_IMAGES], held.x, held.y
    else:
        from sklearn.model_selection import train_test_split

        x, y = raw(name)
        x, test_x, y, test_y = train_test_split(x, y, test_size=0.2, stratify=y, random_state=0)
    ours, theirs = folder / f"{name}.npz", folder / f"{name}_split.npz"
    np.savez(ours, x=x, y=y)
    options = {"dataset": "npz", "path": ours.name, "standardise": "none"}
    train, val = load_split(options, folder)
    by: Any = STANDARDISED[name]
    test = Dataset(test_x, test_y, train.classes, name)
    scaled, val = dnn.standardise(train, val, by=by)
    again, scaled_test = dnn.standardise(train, test, by=by)
    if not np.array_equal(scaled.x, again.x):
        raise RuntimeError("scaled by other numbers")
    parts = {"train": scaled, "val": val, "test": scaled_test}
    arrays = {f"x_{part}": rows.x for part, rows in parts.items()}
    arrays |= {f"y_{part}": rows.y for part, rows in parts.items()}
    np.savez(theirs, raw_test=test_x, **arrays)
    return ours, theirs


def split(name: str, most: int | None = None) -> dict[str, Any]:
    """Return scaled samples and classes, and the rows of training, validation and test.

    A fifth is for the test, a fifth of the rest for validation; `most` cuts the training rows.
    """
    import numpy as np
    from sklearn.model_selection import train_test_split

    x, y = raw(name)
    rest, test = train_test_split(np.arange(len(x)), test_size=0.2, stratify=y, random_state=0)
    train, val = train_test_split(rest, test_size=0.2, stratify=y[rest], random_state=0)
    train = train[:most]
    mean, deviation = x[train].mean(0), x[train].std(0)
    x = ((x - mean) / np.where(deviation > 0, deviation, 1)).astype(np.float32)
    return {"x": x, "y": y, "train": train, "held": {"val": val, "test": test}}
