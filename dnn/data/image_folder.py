"""Folders of images: one for each class, or one with a table of names of files and labels.

New images are read as those of the training: a file, a folder of them, or such a table.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from dnn.data.columns import NewRows, read_rows
from dnn.data.dataset import Dataset
from dnn.data.image_reading import PICTURES, ImageReading
from dnn.data.table_readers import open_table
from dnn.data.tables import load_table
from dnn.errors import ConfigurationError, DataError, explains_arguments

__all__ = ["load_image_folder", "read_images"]


@explains_arguments
def load_image_folder(
    folder: str | PathLike[str],
    size: int | tuple[int, int] | None = None,
    *,
    grey: bool = False,
    values: str = "bytes",
    alpha: str = "drop",
    background: str | None = None,
    table: str | None = None,
    file: str | int = 0,
    label: str | int | Sequence[str] = -1,
    target: str | int | Sequence[str | int] | None = None,
    label_separator: str = "",
    missing: Collection[str] = (),
    weight: str = "",
    beside: Sequence[str] = (),
    decimal: str = ".",
    skip_unlabelled: bool = False,
) -> Dataset:
    """Read images from a folder that has a folder for each class, or a table of labels.

    Parameters
    ----------
    folder : path
        With ``cat/1.jpg``, ``cat/2.png``, ``dog/...``; classes are numbered in the order of their
        names. Images are turned as their EXIF data say.
    size : int or (int, int), optional
        Rows and columns to which images are scaled. By default all are of one size.
    grey : bool
        One channel of brightness instead of red, green and blue.
    values : {"bytes", "floats"}
        Bytes, to which grey values of 16 bits are scaled, white to white; or float32: brightness in
        0 .. 1 of 8 or 16 bits, to the last of these, and images of floats or of 32-bit integers as
        they are.
    alpha : {"drop", "channel"}
        Transparency is left out: a pixel keeps its colour; or it is a further channel, the last,
        opaque where an image has none.
    background : str, optional
        A colour, such as ``"white"`` or ``"#ff8800"``, on which transparent images, and palettes
        with transparent colours, are laid.
    table : str, optional
        A CSV file in the folder, or any table that `load_table` reads, with a row for each image,
        in place of folders of classes.
    file : str or int
        Its column of the names of files, which are relative to the folder, and stay inside.
    label, target, label_separator, missing, weight, beside, decimal, skip_unlabelled
        As of `load_table`: the classes of images, several labels each, or numbers to predict.

    Returns
    -------
    Dataset
        x (n, channels * rows * columns) of uint8 or float32; a large array is mapped from a
        temporary file, which is removed with the array.

    Raises
    ------
    ConfigurationError
        If `size` is not above 0, or arguments do not go together.
    DataError
        If there is no image, one cannot be read, lies outside of the folder (a link), is of
        another size, has several frames or pages, or, read as bytes, is of floats or 32-bit
        integers, which do not say what is black and what is white, or, read as floats, has several
        channels of 16 bits; the message names it.
    LabelError
        As of `load_table`.
    MissingDependencyError
        If Pillow is not installed.
    """
    reading = ImageReading.of(size, grey, values, alpha, background)
    given: dict[str, Any] = {
        **{"label": label, "target": target, "label_separator": label_separator},
        **{"missing": missing, "weight": weight, "beside": beside, "decimal": decimal},
        "skip_unlabelled": skip_unlabelled,
    }
    usual = inspect.signature(load_table).parameters
    given = {
        name: value
        for name, value in given.items()
        if value != usual[name].default and value not in ([], ())
    }
    top = Path(folder)
    if table is not None:
        return _of_table(top, table, file, reading, given)
    if given or file != 0:
        name = next(iter(given), "file")
        raise ConfigurationError(
            f"{name} is of a table: add table, a file in {top}, or leave it out"
        )
    by_class = _by_class(top)
    names = tuple(by_class)
    if not names:
        raise DataError(f"{top}: there is no folder of a class in it")
    if empty := [name for name, files in by_class.items() if not files]:
        raise DataError(f"{top / empty[0]}: no images of this class")
    files = [file for each in by_class.values() for file in each]
    x = reading.read(files)
    return Dataset(
        x.reshape(len(files), -1),
        np.repeat(np.arange(len(names)), [len(each) for each in by_class.values()]),
        len(names),
        top.name,
        standardise_by="one scale",
        image_shape=x.shape[1:],
        class_names=names,
        reading=reading,
    )


def _of_table(
    folder: Path, table: str, file: str | int, reading: ImageReading, given: dict[str, Any]
) -> Dataset:
    """Return the images that a table names, with its labels or targets."""
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder")
    place = _inside(folder, table, f"table = {table!r}")
    if isinstance(file, int):
        names = open_table(place).names
        if not 0 <= file < len(names):
            raise DataError(f"{place}: there is no column {file}: it has {len(names)}")
        if (folder / names[file]).is_file():  # the first row is one of an image
            given["header"] = False
            names = open_table(place, header=False).names
        file = names[file]
    labelled = load_table(place, features=[file], categories=[file], **given)
    columns = labelled.columns
    assert columns is not None
    ((name, texts),) = columns.categories.items()
    codes = labelled.x[:, 0]
    if np.isnan(codes).any():
        row = int(np.argmax(np.isnan(codes)))
        raise DataError(f"{place}: row {row} names no file in column {name!r}")
    files = [_inside(folder, texts[int(code)], str(place)) for code in codes]
    x = reading.read(files)
    # Names of files are no categories that a model keeps.
    kept = replace(columns, categories={name: ()})
    return replace(
        labelled,
        x=x.reshape(len(files), -1),
        name=folder.name,
        standardise_by="one scale",
        image_shape=x.shape[1:],
        columns=None,
        reading=replace(reading, table=kept),
    )


def read_images(
    path: str | PathLike[str], reading: ImageReading, shape: tuple[int, ...], classes: Sequence[Any]
) -> NewRows:
    """Return new images, read as those of the training, as rows.

    They are an image; a folder of images, or of folders that are called as `classes`; or a table of
    names of files beside it, with or without labels. `shape` is that of an image. Rows have the
    labels that folders or a table say, and the names of files as cells. A `DataError` if there is
    no image, or a file is none, or of another size.
    """
    place = Path(path)
    labels = targets = None
    if place.is_dir():
        files = _pictures_in(place, place)
        if not files:
            files = [file for each in _by_class(place).values() for file in each]
            named = [file.parent.name for file in files]
            labels = named if {*named} <= {*map(str, classes)} else None
        if not files:
            raise DataError(f"{place}: no images in this folder")
        shown = [file.relative_to(place).as_posix() for file in files]
    elif place.suffix.lower() in PICTURES or not place.exists():
        if not place.is_file():
            raise DataError(f"{place}: there is no such file or folder")
        files, shown = [place], [place.name]
    else:
        if reading.table is None:
            message = "the model takes images: give an image, or a folder of them"
            raise DataError(f"{place}: is no image, and {message}")
        rows = read_rows(str(place), reading.table, 1)
        labels, targets = rows.labels, rows.targets
        column = reading.table.features[0] if reading.table.features else ""
        at = rows.names.index(column) if column in rows.names else 0
        shown = [cells[at] for cells in rows.cells]
        files = [_inside(place.parent, name, str(place)) for name in shown]
    x = reading.read(files, shape)
    cells = [[name] for name in shown]
    return NewRows(
        x.reshape(len(files), -1), labels, ("file",), cells, targets=targets, are_files=True
    )


def _inside(folder: Path, name: str, where: str) -> Path:
    """Return a file in a folder by its name in a table, or raise `DataError`."""
    file = folder / name
    if "\\" in name and not file.exists():  # as Windows writes it
        file = folder / name.replace("\\", "/")
    if not file.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{where}: {name!r} lies outside of {folder}")
    if not file.exists():
        raise DataError(f"{where}: there is no file {name!r} in {folder}")
    if not file.is_file():
        raise DataError(f"{where}: {name!r} is no file")
    return file


def _by_class(folder: Path) -> dict[str, list[Path]]:
    """Return the images in each folder of a folder, by its name."""
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder")
    return {each.name: _pictures_in(each, folder) for each in _listed(folder) if each.is_dir()}


def _pictures_in(folder: Path, top: Path) -> list[Path]:
    """Return the images in a folder, or raise `DataError` if one lies outside of `top`."""
    files = [file for file in _listed(folder) if file.suffix.lower() in PICTURES]
    for file in files:
        if not file.resolve().is_relative_to(top.resolve()):
            raise DataError(f"{file}: a link to {file.resolve()}, outside of {top.resolve()}")
        # Opening anything but a file, such as a pipe, may wait for ever.
        if file.exists() and not file.is_file():
            raise DataError(f"{file}: is no file")
    return files


def _listed(folder: Path) -> list[Path]:
    """Return what is in a folder, but for what is hidden: macOS and Jupyter leave such files."""
    try:
        return sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror}") from error
