"""From a workflow file to the document that TOML reads from it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from diel.errors import Problem
from diel.workflow.nearest import near_file_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class SourceProblem(Exception):
    """The file has no content to look at; ``problem`` says why."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.problem = Problem("", message, remedy)


def read_document(file: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises
    ------
    SourceProblem
        If it cannot be read, or is not TOML.
    """
    text = _decode(_read(file))
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise SourceProblem("is nested too deeply") from None
    except ValueError as error:
        raise _syntax_problem(str(error), text) from None


def near_file(file: Path) -> str:
    """Say which file was probably meant by one that is not there; empty if none is near."""
    try:
        names = sorted(one.name for one in file.parent.iterdir() if one.is_file())
    except OSError:
        return f"there is no folder {file.parent} either"
    near = near_file_name(file.name, names)
    return f'did you mean "{near}"?' if near else ""


def _read(file: Path) -> bytes:
    try:
        if file.is_dir():
            raise SourceProblem("is a folder, not a workflow file", _files_in(file))
        return file.read_bytes()
    except FileNotFoundError:
        raise SourceProblem("there is no such file", near_file(file)) from None
    except (OSError, ValueError) as error:
        raise SourceProblem(
            f"cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None


def _files_in(folder: Path) -> str:
    names = sorted(one.name for one in folder.glob("*.toml"))[:6]
    return f"name a file in it: {', '.join(names)}" if names else "name a TOML file"


def _decode(data: bytes) -> str:
    try:
        # Some editors put a byte order mark in front.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SourceProblem(
            f"is not UTF-8 text (line {line})", "save the file with the encoding UTF-8"
        ) from None


def _syntax_problem(message: str, text: str) -> SourceProblem:
    place = re.search(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    words = message[: place.start()] if place else message
    where = ""
    if place:
        line, column = place.groups()
        last = text.count("\n") + 1
        where = f"line {line}, column {column}: " if line else f"line {last}, end of the file: "
    hint = 'text needs quotes, as in name = "study"' if words == "Invalid value" else ""
    return SourceProblem(f"{where}not valid TOML: {words[:1].lower()}{words[1:]}", hint)
