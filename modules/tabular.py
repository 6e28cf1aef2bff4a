"""The data of the shipped trainers for other frameworks: loaded once, prepared, split."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dnn import Dataset

_OPTIONS = {"dataset": "digits", "path": None, "validation_fraction": 0.2, "split_seed": 0}


def load_split(options: Mapping[str, Any], folder: Path) -> tuple[Dataset, Dataset]:
    """Return training and validation rows; of equal options the same ones, loaded once.

    The options are ``dataset``, ``path`` (relative to the workflow file's folder),
    ``validation_fraction``, ``split_seed`` and ``standardise``, as our own trainer has them; others
    do not matter here.
    """
    dataset, path, fraction, seed = (options.get(name, _OPTIONS[name]) for name in _OPTIONS)
    place = None if path is None else place_of_data(path, folder)
    return _load(dataset, place, float(fraction), int(seed), options.get("standardise"))


def place_of_data(path: str, folder: Path) -> Path:
    """Return the place that a path in a workflow file means, relative to the file's folder.

    ``$NAME`` stands for an environment variable, ``~`` for the home folder. A ValueError with a
    ``remedy`` if such a variable is not set.
    """
    expanded = os.path.expanduser(os.path.expandvars(path))
    if found := re.search(r"\$(?:\{(\w+)\}|(\w+))", expanded):
        name = found[1] or found[2]
        error = ValueError(f"path = {path!r}: the environment variable {name} is not set")
        error.remedy = f"set it, as in export {name}=/a/folder, or write the place itself"  # type: ignore[attr-defined]
        raise error
    return folder / expanded


@lru_cache(maxsize=2)
def _load(
    dataset: str, place: Path | None, fraction: float, seed: int, by: str | None
) -> tuple[Dataset, Dataset]:
    from dnn import impute, load_dataset, standardise, train_validation_split

    parts = train_validation_split(load_dataset(dataset, place), fraction, seed)
    # What is learned about the rows is learned from the training rows only.
    training, validation = standardise(*impute(*parts), by=by)
    return training, validation
