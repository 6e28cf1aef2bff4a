"""Files of a run that a person may look at: which belong to a module, and opening them safely."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from diel.errors import RunDirectoryError
from diel.run.directory import RunDirectory
from diel.run.files import open_regular
from diel.run.log_tail import log_names

_MOST_FILES: Final = 200
_DEEPEST: Final = 4
_SECRET: Final = (("tuples.json",),)
"""It has the token by which the tuples of a run are reached."""


def logs_of(directory: RunDirectory, modules: Iterable[str]) -> list[str]:
    """Return the names of the log files of all copies of some modules, in the order of copies."""
    own = re.compile(rf"(?:{'|'.join(map(re.escape, modules)) or '(?!)'})\.\d+\.\d+\.log")
    return [name for name in log_names(directory.logs) if own.fullmatch(name)]


def files_of(
    directory: RunDirectory, group: str, module: str, working_directory: str = ""
) -> list[str]:
    """Return the files that a module of a group has left, beside its logs.

    Parameters
    ----------
    directory : RunDirectory
    group, module : str
    working_directory : str, optional
        Of an executable, as the workflow file has it.

    Returns
    -------
    list of str
        Paths relative to the run's directory, sorted: values that copies returned, saved states,
        the files of a sweep, and what an executable wrote into a folder of the run. At most 200.
    """
    name, own_group = glob.escape(module), glob.escape(group)
    patterns = [
        f"returned/{name}.*.{own_group}.*",
        f"states/{name}.*.{own_group}.*",
        f"sweeps/{own_group}.{name}/*",
        f"sweeps/{own_group}.{name}-[0-9]*/*",  # of further iterations
    ]
    if working_directory.startswith("{run_dir}/"):
        place = working_directory.removeprefix("{run_dir}/").replace("{module}", module)
        place = re.sub(r"\{\w+\}", "*", glob.escape(place))
        if ".." not in PurePosixPath(place).parts:
            patterns.append(place)
    found: set[str] = set()
    root = directory.path.resolve()
    for pattern in patterns:
        for place_found in directory.path.glob(pattern):
            if place_found.resolve() != root / place_found.relative_to(directory.path):
                continue  # it lies behind a link
            for file in _files_in(place_found, _DEEPEST):
                found.add(file.relative_to(directory.path).as_posix())
                if len(found) == _MOST_FILES:
                    return sorted(found)
    return sorted(found)


def _files_in(place: Path, depth: int) -> Iterator[Path]:
    """Yield a file, or the files of a folder and those below it; no links, and no hidden ones."""
    if place.name.startswith(".") or place.is_symlink():
        return
    if place.is_file():
        yield place
    elif place.is_dir() and depth:
        try:
            entries = sorted(os.listdir(place))
        except OSError:  # a folder that this user cannot read
            return
        for name in entries:
            yield from _files_in(place / name, depth - 1)


def open_shown(directory: RunDirectory, name: str) -> BinaryIO:
    """Open a file of a run to show it, by its path within the run's directory.

    Raises
    ------
    RunDirectoryError
        If there is no such regular file, or a link leads there, or it is none to be shown.
    """
    parts = PurePosixPath(name).parts
    is_inside = bool(parts) and not {"/", ".."}.intersection(parts) and "\0" not in name
    if not is_inside or parts in _SECRET or any(part.startswith(".") for part in parts):
        raise RunDirectoryError(f"{name[:200]!a} is no file of a run that is shown")
    file = directory.path.joinpath(*parts)
    try:
        if file.resolve() != directory.path.resolve().joinpath(*parts):
            raise RunDirectoryError(f"{name[:200]!a} is a link, or lies behind one")
        return open_regular(file)
    except (OSError, RuntimeError) as error:
        if isinstance(error, RunDirectoryError):
            raise
        why = getattr(error, "strerror", None) or error
        raise RunDirectoryError(f"{name[:200]!a} cannot be read: {why}") from error
