"""The examples that come with diel: listed, and copied with the files that they need.

They are the files in ``workflows/`` of a checkout, which an installed package carries in
``diel/example_files``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from diel.errors import LaunchError
from diel.frozen import Frozen
from diel.text import did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PACKAGE: Final = Path(__file__).parents[1]
_FOLDERS: Final = (_PACKAGE / "example_files", _PACKAGE.parent / "workflows")
_MARKER_FILE: Final = "hello.toml"
"""A folder of that name without this file is not diel's folder of examples."""
_SENTENCE: Final = re.compile(r".*?[.?!](?=\s|$)", re.DOTALL)


class Example(Frozen):
    """A workflow file that comes with diel.

    Attributes
    ----------
    name : str
        The name of its file, without ``.toml``.
    file : Path
    text : str
        What it does: the first sentence of the comment at its beginning.
    needs : tuple of Path
        Files beside it that it names, or in folders that it names: its modules' code, programs to
        compile, data.
    """

    name: str
    file: Path
    text: str
    needs: tuple[Path, ...]


def list_examples() -> list[Example]:
    """Return the examples, sorted by name; none where diel was installed without them."""
    folder = next((folder for folder in _FOLDERS if (folder / _MARKER_FILE).is_file()), None)
    if folder is None:
        return []
    return [_example(file) for file in sorted(folder.glob("*.toml"))]


def find_example(name: str) -> Example:
    """Return the example with a name, given with or without ``.toml``.

    A LaunchError if there is no such example; the message lists the examples.
    """
    known = {example.name: example for example in list_examples()}
    found = known.get(name.removesuffix(".toml"))
    if found is None:
        near = did_you_mean(name, known)
        meant = f'did you mean "{near}"?' if near else f"there are {', '.join(known) or 'none'}"
        raise LaunchError(f"there is no example {name!r}: {meant}")
    return found


def copy_example(example: Example, folder: Path, remedy: str = "choose --to DIR") -> list[Path]:
    """Copy an example and the files that it needs into a folder; return the paths of the copies.

    A file that is there already with the same content is left alone.

    Parameters
    ----------
    example : Example
    folder : Path
    remedy : str, optional
        The advice of the error where another file is in the way.

    Raises
    ------
    LaunchError
        If a file with another content is there, or the folder cannot be written; then nothing has
        been replaced.
    """
    top = example.file.parent
    files = (example.file, *example.needs)
    copies = {folder / file.relative_to(top): _content(file) for file in files}
    try:
        for place in {path.parent for path in copies}:
            place.mkdir(parents=True, exist_ok=True)
        there = {path for path in copies if os.path.lexists(path)}
        for path in there:
            if not path.is_file() or path.read_bytes() != copies[path]:
                raise LaunchError(f"{path} is there already, and differs: {remedy}")
        for path in copies.keys() - there:
            with path.open("xb") as file:
                file.write(copies[path])
    except OSError as error:
        raise LaunchError(f"{folder} cannot be written: {error.strerror or error}") from error
    return list(copies)


def _content(file: Path) -> bytes:
    if file.suffix != ".toml":
        return file.read_bytes()
    # Comments name the file with the folder that it has in a checkout, which the copy has not.
    return b"".join(
        line.replace(b"workflows/", b"") if line.startswith(b"#") else line
        for line in file.read_bytes().splitlines(keepends=True)
    )


def _example(file: Path) -> Example:
    text = file.read_text(encoding="utf-8")
    words = {word for value in _strings(tomllib.loads(text)) for word in (value, *value.split(":"))}
    beside = {Path(word).name for word in words if Path(word).parent == Path() and word}
    named = sorted(file.with_name(name) for name in beside if name != file.name)
    inside = (path for each in named if each.is_dir() for path in sorted(each.iterdir()))
    return Example(
        name=file.stem,
        file=file,
        text=_first_sentence(text),
        needs=tuple(path for path in (*named, *inside) if path.is_file()),
    )


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _first_sentence(text: str) -> str:
    comment = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("#").strip())
    found = _SENTENCE.match(" ".join(comment))
    return found[0] if found is not None else ""
