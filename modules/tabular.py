"""Data sets of the shipped trainers: paths, how they are read, shapes, and a split of the rows."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
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

DatasetName = Annotated[str, OneOf(lambda: SETS)]

SampleShape = tuple[int, ...]
"""Channels, height and width of an image, or time steps and features of a sequence."""


class DataShape(NamedTuple):
    """Features and classes of a data set, and the shape of a sample."""

    features: int
    classes: int
    shape: SampleShape | None = None


class ReadingOptions(BaseModel):
    """How a file of data is to be read, as `dnn.load_dataset` takes it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    label: str | int = Field(
        default=-1, description="csv: the column of the labels, by name or number"
    )
    delimiter: str = Field(default=",", description="csv", min_length=1, max_length=1)
    header: bool | None = Field(default=None, description="csv: whether the first row holds names")
    missing: list[str] = Field(default=[], description="csv: what stands for a missing cell")
    labels: Literal["fine", "coarse"] = Field(default="fine", description="cifar100")
    size: list[int] | None = Field(
        default=None, description="image_folder: rows and columns", min_length=2, max_length=2
    )
    grey: bool = Field(default=False, description="image_folder: one channel of brightness")
    x: str = Field(default="x", description="npz: the array of samples")
    y: str = Field(default="y", description="npz: the array of labels")
    lengths: str | None = Field(
        default=None, description="npz: the array of lengths, of samples that are sequences"
    )

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given, for `dnn.load_dataset`."""
        return {name: getattr(self, name) for name in self.model_fields_set}

    def problem_with(self, dataset: str) -> str:
        """Return why a data set does not take these options; empty if it takes all."""
        from dnn import reading_options

        known = reading_options(dataset)
        wrong = [name for name in self.given if name not in known]
        if not wrong:
            return ""
        there = f"it takes {', '.join(known)}" if known else "it takes nothing"
        return f"reading: dataset {dataset!r} takes no {wrong[0]}: {there}"


def known_shape(dataset: object) -> DataShape | None:
    """Return the shape of a data set that is the same everywhere; None for others."""
    known = SETS.get(str(dataset))
    if known is None or not known.classes:
        return None
    return DataShape(known.features, known.classes, known.shape)


def is_table(dataset: object) -> bool:
    """Whether a data set is known to be no images."""
    return dataset in SETS and SETS[str(dataset)].is_table


def is_own(dataset: object) -> bool:
    """Whether a data set is a user's own, about which nothing is known."""
    return dataset in SETS and SETS[str(dataset)].is_own


def shape_of(options: Mapping[str, Any], folder: Path) -> DataShape:
    """Return the shape of the data that the options of a trainer name, as `load_split` has them.

    The data are read, once, where their name does not determine the shape.
    """
    known = known_shape(options.get("dataset"))
    if known is not None:
        return known
    training, _ = load_split(options, folder)
    shape = training.image_shape or training.sequence_shape
    return DataShape(training.x.shape[1], training.classes, shape)


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


_OPTIONS = {"dataset": "digits", "path": None, "validation_fraction": 0.2, "split_seed": 0}


def load_split(options: Mapping[str, Any], folder: Path) -> tuple[Dataset, Dataset]:
    """Return training and validation rows, loaded once for equal options.

    The options are ``dataset``, ``path`` (relative to the workflow file's folder),
    ``reading``, ``validation_fraction``, ``split_seed`` and ``standardise``, as those of
    `modules.trainer`; others are ignored.
    """
    dataset, path, fraction, seed = (options.get(name, _OPTIONS[name]) for name in _OPTIONS)
    place = None if path is None else place_of_data(path, folder)
    reading = ReadingOptions.model_validate(options.get("reading", {}))
    text = reading.model_dump_json(exclude_unset=True)
    return _load(dataset, place, text, float(fraction), int(seed), options.get("standardise"))


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


@lru_cache(maxsize=2)
def _load(
    dataset: str, place: Path | None, reading: str, fraction: float, seed: int, by: str | None
) -> tuple[Dataset, Dataset]:
    from dnn import impute, load_dataset, standardise, train_validation_split

    given = ReadingOptions.model_validate_json(reading).given
    parts = train_validation_split(load_dataset(dataset, place, **given), fraction, seed)
    # Means and deviations are those of the training rows only.
    training, validation = standardise(*impute(*parts), by=by)
    return training, validation
