"""Predictions of the best trial for rows that it was not trained on: written, read, drawn.

::

    row,class,predicted class             of a classification, by the names of classes
    row,price,predicted price             of a regression, in the units of the file
    row,red,predicted red,blue,...        of several labels, 0 or 1

The file lies beside the model. Where a trial trains on several splits, each row is predicted by the
network of a split that did not train on it.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from diel import replacing

if TYPE_CHECKING:
    import numpy.typing as npt

    from dnn import Dataset

_PREFIX: Final = "predicted "
_CLASS: Final = "class"
_MOST: Final = 100_000
"""Most rows that are written."""


@dataclass(frozen=True)
class Predictions:
    """What is true and what is predicted, by the names of targets.

    Attributes
    ----------
    is_class : bool
        There is one column, of the names of classes.
    names : tuple of str
    true, predicted : sequence of sequence of str
        The cells of each name.
    """

    is_class: bool
    names: tuple[str, ...]
    true: Sequence[Sequence[str]]
    predicted: Sequence[Sequence[str]]

    @property
    def are_values(self) -> bool:
        """Whether they are numbers, and no classes and not 0 or 1 for each label."""
        return not self.is_class and any({*true} - {"0", "1"} for true in self.true)

    def pairs(self) -> Iterator[tuple[str, list[float], list[float]]]:
        """Yield the name of each target, and the numbers that are true and predicted."""
        for name, *columns in zip(self.names, self.true, self.predicted, strict=True):
            pairs = [(_number(a), _number(b)) for a, b in zip(*columns, strict=True)]
            kept = [pair for pair in pairs if all(map(math.isfinite, pair))]
            if kept:
                yield name, [a for a, _ in kept], [b for _, b in kept]


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def place_of_predictions(model: Path) -> Path:
    """Return the place of the predictions of a model's file."""
    return model.with_name(f"{model.stem}-predictions.csv")


def write_predictions(
    file: Path, data: Dataset, parts: Iterable[tuple[npt.NDArray[Any], npt.NDArray[Any]]]
) -> None:
    """Write predictions of some rows of data, an OSError if that is not possible.

    Parameters
    ----------
    file : Path
    data : Dataset
        As it was read.
    parts : iterable of (array of int, array)
        Numbers of rows, and the classes, values or labels that are predicted of them.
    """
    names = [_CLASS] if data.task == "classification" else _names(data)
    head = ["row", *(cell for name in names for cell in (name, f"{_PREFIX}{name}"))]
    with replacing(file, text=True) as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(_rows(data, parts))


def _names(data: Dataset) -> list[str]:
    return list(data.targets) or [f"target {number + 1}" for number in range(data.outputs)]


def _rows(
    data: Dataset, parts: Iterable[tuple[npt.NDArray[Any], npt.NDArray[Any]]]
) -> Iterator[list[Any]]:
    written = 0
    classes = data.class_names or range(data.classes)
    for rows, predicted in parts:
        for row, guess in zip(rows.tolist(), predicted.tolist(), strict=True):
            if written == _MOST:
                return
            written += 1
            if data.task == "classification":
                yield [row + 1, classes[data.y[row]], classes[guess]]
                continue
            pairs = zip(data.y[row].tolist(), guess, strict=True)
            yield [row + 1, *(f"{cell:.7g}" for pair in pairs for cell in pair)]


def read_predictions(file: Path) -> Predictions | None:
    """Return the predictions in a file; None if there are none that can be read."""
    try:
        with file.open(newline="", encoding="utf-8") as opened:
            head, *rows = csv.reader(opened)
    except (OSError, ValueError):
        return None
    names, guesses = head[1::2], head[2::2]
    is_right = guesses == [f"{_PREFIX}{name}" for name in names] and names
    if not is_right or not rows or any(len(row) != len(head) for row in rows):
        return None
    columns = list(zip(*rows, strict=True))
    return Predictions(names == [_CLASS], tuple(names), columns[1::2], columns[2::2])
