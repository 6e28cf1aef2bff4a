"""Data sets of the shipped trainers: paths, how they are read, shapes, and a split of the rows."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from diel import OneOf
from dnn import catalogue

from .problems import meant, problem

if TYPE_CHECKING:
    from dnn import Augmentation, Dataset

SETS: Final[Mapping[str, Any]] = catalogue("data set")
"""Data sets of `dnn.load_dataset`, and what is known of each before it is read."""

DEFAULTS: Final[Mapping[str, Any]] = {"dataset": "digits"}
"""Options of the functions that come with diel, where these are left out."""
OF_IMAGES = ("labels", "size", "grey", "values", "alpha", "background", "table", "file")
OF_ARRAYS = ("x", "y", "lengths")
"""Options of how images, and arrays of an npz file, are read; the others are of tables."""

DatasetName = Annotated[str, OneOf(lambda: SETS)]

SampleShape = tuple[int, ...]
"""Channels, height and width of an image, or time steps and features of a sequence."""


class DataShape(NamedTuple):
    """Features of a data set, outputs of a network for it, and the shape of a sample.

    `embeds` are the numbers of categories of the last columns, if these are to be embedded.
    """

    features: int
    outputs: int
    shape: SampleShape | None = None
    embeds: tuple[int, ...] = ()

    @classmethod
    def of(cls, data: Dataset) -> DataShape:
        """Return the shape of data."""
        shape = data.image_shape or data.sequence_shape
        return cls(data.x.shape[1], data.outputs, shape, data.embeds)


class ReadingOptions(BaseModel):
    """How a file of data is to be read, as `dnn.load_dataset` takes it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    label: str | int | list[str] = Field(
        default=-1,
        description="of a table: the column of the labels, by name or number: whole numbers from "
        "0, or texts; a list of columns of 0 and 1 where samples may have several labels",
    )
    target: str | int | list[str | int] | None = Field(
        default=None, description="of a table, in place of a label: columns of numbers to predict"
    )
    label_separator: str = Field(
        default="", description="of a table: what separates several labels in the label's column"
    )
    features: list[str] = Field(
        default=[], description="of a table: columns to train on; by default all with no other use"
    )
    drop: list[str] = Field(default=[], description="of a table: columns that are not read")
    rename: dict[str, str] = Field(
        default={}, description="of a table: new names of columns, by those in the file"
    )
    categories: list[str] = Field(
        default=[],
        description="of a table: columns whose numbers are names of categories or classes; "
        "columns of texts are categories",
    )
    dates: list[str] | dict[str, str] = Field(
        default=[],
        description='of a table: columns of dates, or their formats by column, as "%d.%m.%Y"; '
        "those such as 2024-05-31 are recognised",
    )
    weight: str = Field(
        default="", description="of a table: a column that says how much each sample weighs"
    )
    skip_unlabelled: bool = Field(
        default=False, description="of a table: whether rows without a label or target are left out"
    )
    beside: list[str] = Field(
        default=[], description="of a table: columns that are kept, and not trained on"
    )
    delimiter: str | None = Field(
        default=None,
        description="of a text: what separates cells; by default as its name or its first line "
        "suggests",
        min_length=1,
        max_length=1,
    )
    header: bool | None = Field(
        default=None, description="of a text: whether the first row holds names"
    )
    missing: list[str] = Field(
        default=[], description='of a table: texts that stand for a missing cell, such as "NA"'
    )
    decimal: Literal[".", ","] = Field(
        default=".", description="of a text: what stands before the decimals of numbers"
    )
    labels: Literal["fine", "coarse"] = Field(default="fine", description="cifar100")
    size: list[int] | None = Field(
        default=None, description="image_folder: rows and columns", min_length=2, max_length=2
    )
    grey: bool = Field(default=False, description="image_folder: one channel of brightness")
    values: Literal["bytes", "floats"] = Field(
        default="bytes",
        description="image_folder: bytes, or floats, which keep grey values of 16 bits and floats",
    )
    alpha: Literal["drop", "channel"] = Field(
        default="drop", description="image_folder: transparency is dropped, or a further channel"
    )
    background: str | None = Field(
        default=None,
        description="image_folder: a colour such as white or #ff8800, on which transparent images "
        "are laid",
    )
    table: str | None = Field(
        default=None,
        description="image_folder: a file in it with names of images and their labels or targets, "
        "in place of a folder for each class",
    )
    file: str | int = Field(
        default=0, description="image_folder: the table's column of names of files"
    )
    x: str = Field(default="x", description="npz: the array of samples")
    y: str = Field(default="y", description="npz: the array of labels")
    lengths: str | None = Field(
        default=None, description="npz: the array of lengths, of samples that are sequences"
    )

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given, for `dnn.load_dataset`."""
        return {name: getattr(self, name) for name in self.model_fields_set}

    def with_beside(self, columns: Iterable[str]) -> ReadingOptions:
        """Return the options with further columns to be kept beside the features."""
        further = [column for column in columns if column not in self.beside]
        return self.model_copy(update={"beside": [*self.beside, *further]}) if further else self

    def problem_with(self, dataset: str) -> tuple[str, str] | None:
        """Return the option that a data set does not take, and why; None if it takes all."""
        from dnn import reading_options

        known = reading_options(dataset)
        wrong = [name for name in self.given if name not in known]
        if not wrong:
            return None
        there = f"it takes {', '.join(known)}" if known else "it takes nothing"
        return wrong[0], f"reading: dataset {dataset!r} takes no {wrong[0]}: {there}"


def known_shape(dataset: object) -> DataShape | None:
    """Return the shape of a data set that is the same everywhere; None for others."""
    known = SETS.get(str(dataset))
    if known is None or not known.outputs:
        return None
    return DataShape(known.features, known.outputs, known.shape)


def known_task(options: Mapping[str, Any]) -> str | None:
    """Return what data are for, as `dnn.Dataset.task`, from the options of a trainer.

    Those of the functions that come with diel are among its ``options``. None if it calls another
    function, or the options are wrong, which is said there.
    """
    train = options.get("train")
    if train is not None:
        given = options.get("options")
        if not comes_with_diel(train) or not isinstance(given, Mapping):
            return None
        options = {**DEFAULTS, **given}
    dataset, reading = options.get("dataset"), options.get("reading")
    if not isinstance(dataset, str) or dataset not in SETS:
        return None
    known: str = SETS[dataset].task
    if isinstance(reading, Mapping):
        if reading.get("target") is not None:
            return "regression"
        if isinstance(reading.get("label"), list) or reading.get("label_separator"):
            return "multilabel"
    return known


def comes_with_diel(train: object) -> bool:
    """Whether a function for trials is one of this package, whose options are those of data."""
    return re.fullmatch(r"modules\.\w+_trainer:train", str(train)) is not None


def is_table(dataset: object) -> bool:
    """Whether a data set is known to be no images."""
    return dataset in SETS and SETS[str(dataset)].is_table


def is_own(dataset: object) -> bool:
    """Whether a data set is a user's own, about which nothing is known."""
    return dataset in SETS and SETS[str(dataset)].is_own


def augmentations_of(given: Sequence[str | Mapping[str, Any]]) -> list[Augmentation]:
    """Return the augmentations in a list of names, or of tables of a name and its options.

    A `PydanticCustomError` if there is no such change, or no such option, or not with that value.
    """
    import dnn

    changes = dnn.catalogue("augmentation")
    found: list[Augmentation] = []
    for entry in given:
        options = {} if isinstance(entry, str) else {**entry}
        name = entry if isinstance(entry, str) else options.pop("name", None)
        if not isinstance(name, str) or name not in changes:
            text = "name is missing" if name is None else f"there is no change {name!r} of images"
            raise problem(text, meant(str(name), changes))
        kind = changes[name]
        known = inspect.signature(kind).parameters
        for key in options:
            if key not in known:
                remedy = meant(key, known) if known else "it has no options: remove it"
                raise problem(f'{name}: unknown key "{key}"', remedy)
        wanted = [key for key, parameter in known.items() if parameter.default is parameter.empty]
        missing = [key for key in wanted if key not in options]
        if missing:
            raise problem(f"{name}: {missing[0]} is missing", f"add {missing[0]}")
        if isinstance(options.get("size"), list):
            options["size"] = tuple(options["size"])
        try:
            found.append(kind(**options))
        except (dnn.DnnError, TypeError) as error:
            raise problem(str(error)) from error
    return found


def problem_with_augmentations(changes: Sequence[Augmentation], shape: SampleShape | None) -> str:
    """Return why changes are not of images of such a shape, or of no images; empty if they are."""
    import numpy as np

    from dnn import Images, ShapeError

    if not changes or shape is None or len(shape) != 3:
        return ""
    try:
        Images(np.zeros((1, *shape), np.float32), changes)
    except ShapeError as error:
        return str(error)
    return ""


def metrics_of(predicted: Any, validation: Dataset) -> dict[str, Any]:
    """Return the metrics of predictions of a regression or of several labels.

    Predictions and rows are as `modules.trainer_data.load_split` scales them, and metrics in the
    units of the targets.
    """
    import numpy as np

    from dnn import metrics_of_targets

    scale = validation.scale
    return metrics_of_targets(
        validation.task,
        validation.y,
        np.asarray(predicted).reshape(validation.y.shape),
        1.0 if scale is None else scale.deviation,
    )


def place_of_data(path: str, folder: Path, option: str = "path") -> Path:
    """Return the place that a path in a workflow file means, relative to the file's folder.

    ``$NAME`` stands for an environment variable, ``~`` for the home folder. A ValueError with a
    ``remedy`` if such a variable is not set; `option` is the name of the path in the file.
    """
    expanded = os.path.expanduser(os.path.expandvars(path))
    if found := re.search(r"\$(?:\{(\w+)\}|(\w+))", expanded):
        name = found[1] or found[2]
        error = ValueError(f"{option} = {path!r}: the environment variable {name} is not set")
        error.remedy = f"set it, as in export {name}=/a/folder, or write the place itself"  # type: ignore[attr-defined]
        raise error
    return folder / expanded
