"""The data of a trainer: loaded once, looked at before a run, and split as its options say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from .evaluation import (
    PreparedSplits,
    RareClassError,
    TrainingJob,
    data_warnings,
    jobs_of,
    prepared,
    strata_of,
    training_weights,
)
from .pretrained import oddity_of_columns, place_of_weights, written_by_run
from .tabular import (
    DEFAULTS,
    DataShape,
    ReadingOptions,
    augmentations_of,
    comes_with_diel,
    is_own,
    is_table,
    known_shape,
    problem_with_augmentations,
)
from .trainer_options import TrainerOptions

if TYPE_CHECKING:
    from dnn import Dataset

_OF_SPLIT: Final = (
    *("dataset", "path", "reading", "validation_fraction", "split_seed"),
    *("groups", "time", "split", "impute", "encode", "standardise"),
)


def splits_of(options: TrainerOptions, folder: Path) -> PreparedSplits:
    """Load the data, and return the rows of each training of a trial."""
    data = data_of(options, folder)
    forget()  # the splits keep it
    jobs = jobs_of_options(data, options)
    rows = f"{len(jobs[0].train)} rows to train on, {len(jobs[0].test)} to validate"
    print(f"{data.name}: {len(jobs)} trainings a trial, the first with {rows}")
    split = {name: getattr(options, name) for name in ("validation_fraction", "split_seed")}
    if (wanted := options.rows) is not None:
        split = wanted.model_dump(mode="json", exclude_none=True)
    changes = augmentations_of(options.augment)
    ways = options.impute, options.encode, options.class_weight
    return PreparedSplits(data, jobs, options.standardise, changes, split, *ways)


def data_of(options: TrainerOptions, folder: Path) -> Dataset:
    """Return all rows of the data, loaded once."""
    path = options.resolve(folder) if options.path is not None else None
    written = None
    if path is not None and path.exists():
        status = path.stat()
        written = status.st_mtime_ns, status.st_size
    rows = options.rows
    given = options.reading.with_beside(rows.columns.values() if rows is not None else ())
    reading = given.model_dump_json(exclude_unset=True)
    return _loaded(options.dataset, path, reading, written)


@lru_cache(maxsize=1)
def _loaded(
    dataset: str, path: Path | None, reading: str, written: tuple[int, int] | None
) -> Dataset:
    """Load a data set, again if its file was written meanwhile."""
    from dnn import load_dataset

    given = ReadingOptions.model_validate_json(reading).given
    return load_dataset(dataset, path, **given)


def forget() -> None:
    """Keep no data set any more."""
    _loaded.cache_clear()


def jobs_of_options(data: Dataset, options: TrainerOptions) -> list[TrainingJob]:
    """Return the trainings of a trial, by the numbers of their rows."""
    if (rows := options.rows) is not None:
        try:
            return jobs_of(rows.cut(strata_of(data), data.beside))
        except RareClassError as error:
            raise error.named(data.class_names) from None
    return [_own_split(data, options)]


def _own_split(data: Dataset, options: TrainerOptions) -> TrainingJob:
    """Return the rows of `dnn.train_validation_split`, in its order."""
    import numpy as np

    from dnn import Dataset, train_validation_split

    # The rows' numbers stand in place of the rows; float32 counts 16 million of them.
    numbers = np.arange(len(data))[:, None]
    rows = Dataset(numbers, data.y, data.classes, data.name, task=data.task)
    training, validation = train_validation_split(
        rows, options.validation_fraction, options.split_seed
    )
    return TrainingJob(training.x[:, 0].astype(np.intp), validation.x[:, 0].astype(np.intp), 0)


def shape_of(options: TrainerOptions, folder: Path) -> DataShape:
    """Return the shape of the data as networks take them; they are read if need be."""
    known = known_shape(options.dataset)
    if known is not None:
        return known
    data = data_of(options, folder)
    return DataShape.of(_split(data, options)[0])


def load_split(options: Mapping[str, Any], folder: Path) -> tuple[Dataset, Dataset]:
    """Return training and validation rows, loaded once for equal options.

    The options are ``dataset``, ``path`` (relative to the workflow file's folder), ``reading``,
    ``validation_fraction``, ``split_seed``, ``groups``, ``time``, ``split``, ``impute``, ``encode``
    and ``standardise``, as those of `modules.trainer`; others are ignored. Rows that a split calls
    test are in neither part.
    """
    given = {name: options[name] for name in _OF_SPLIT if name in options}
    return _loaded_split(json.dumps(given, sort_keys=True), folder)


@lru_cache(maxsize=2)
def _loaded_split(text: str, folder: Path) -> tuple[Dataset, Dataset]:
    options = _options_of(json.loads(text))
    return _split(data_of(options, folder), options)


def _split(data: Dataset, options: TrainerOptions) -> tuple[Dataset, Dataset]:
    ways = options.standardise, options.impute, options.encode
    return prepared(data, jobs_of_options(data, options)[0], *ways)


def _options_of(given: Mapping[str, Any]) -> TrainerOptions:
    """Return options of a function that comes with diel as those of a trainer of networks."""
    known = {name: given[name] for name in _OF_SPLIT if name in given}
    reading = ReadingOptions.model_validate(known.pop("reading", {}))
    return TrainerOptions.model_construct(**{**DEFAULTS, **known}, reading=reading)


def look_at_data(
    options: TrainerOptions, folder: Path, largest_bytes: int | None = None
) -> tuple[str, list[str]]:
    """Look at the samples and labels that trials would train on.

    Returns why no trial could train on them, empty if trials can, and what is odd about them.
    `folder` is that of the workflow file. A file larger than `largest_bytes`, and a folder, is not
    read then.
    """
    if comes_with_diel(options.train):
        try:
            options = _options_of(options.options)
        except ValidationError:
            return "", []  # said by its first trial
    if options.dataset is None or options.path is None:
        return "", []
    try:
        data = data_to_look_at(options, folder, largest_bytes)
        if data is None:
            return "", [_not_read(options.resolve(folder))] * is_own(options.dataset)
        jobs = jobs_of_options(data, options)
        training_weights(data.take(jobs[0].train), options.class_weight)
        changes = augmentations_of(options.augment)
        if text := problem_with_augmentations(changes, data.image_shape):
            return f"augment: {text}", []
        if is_table(options.dataset):  # what the first split learns
            prepared(data, jobs[0], options.standardise, options.impute, options.encode)
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}", []
    if not is_own(options.dataset):
        return "", []
    found = list(data_warnings(data, [(job.train, job.test) for job in jobs]))
    if options.weights is not None and not written_by_run(options.weights):
        weights = place_of_weights(options.weights, folder)
        found += [odd] if (odd := oddity_of_columns(weights, data)) else []
    return "", found


def data_to_look_at(
    options: TrainerOptions, folder: Path, largest_bytes: int | None = None
) -> Dataset | None:
    """Load the data of trials, as `look_at_data` does; None if they are too large for a look.

    An OSError or a ValueError if they cannot be read.
    """
    if options.path is not None and largest_bytes is not None:
        place = options.resolve(folder)
        if place.is_dir() or place.stat().st_size > largest_bytes:
            return None
    return data_of(options, folder)


def _not_read(place: Path) -> str:
    size = "a folder" if place.is_dir() else f"{place.stat().st_size / 2**20:,.0f} MiB"
    return f"{place} was not read ({size}): diel sweep FILE --dry-run looks at it"
