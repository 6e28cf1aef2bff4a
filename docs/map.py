"""Write the map of the code, ``docs/map.md``, and the tables of packages in ``architecture.md``.

``python docs/map.py`` writes both from the first line of each file's docstring, or from the first
sentence of its first comment if it is not Python. A package is described by its ``__init__.py``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("diel", "dnn", "modules")
MAP = ROOT / "docs" / "map.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
COMMAND = "python docs/map.py"
KINDS = {".py", ".js", ".css", ".sh", ".h"}

# The first comment of a script or a style sheet, and what begins each of its lines.
COMMENT = re.compile(r"^(?:# .*\n)+|^(?:// .*\n)+|^/\*(?:.|\n)*?\*/", re.MULTILINE)
MARK = re.compile(r"^ *(?:#|//|/?\*+/?)|\*/$", re.MULTILINE)


def main() -> None:
    """Write the pages anew."""
    ARCHITECTURE.write_text(architecture(), encoding="utf-8")
    MAP.write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the page with all files, a table for each folder."""
    parts = [
        f"<!-- Written by `{COMMAND}` from the first line of each file. -->\n\n"
        "# What each file holds\n\n"
        "[architecture.md](architecture.md) says how they work together.\n"
    ]
    for folder in folders():
        rows = [(f"`{path.name}`", first_line(path)) for path in files(folder)]
        text = f"\n## {name(folder)}\n"
        if described(folder):
            text += f"\n{described(folder)}\n"
        parts.append(f"{text}\n{table('file', rows)}" if rows else text)
    return "".join(parts)


def architecture() -> str:
    """Return the page on the architecture, with tables of the packages as they are now."""
    text = ARCHITECTURE.read_text(encoding="utf-8")
    for root in PACKAGES:
        rows = [
            (f"[`{name(folder)}`](map.md#{anchor(folder)})", described(folder))
            for folder in folders()
            if folder.is_relative_to(ROOT / root) and described(folder)
        ]
        begin, end = f"<!-- packages of {root}: {COMMAND} -->\n", "<!-- end -->\n"
        before, found, after = text.partition(begin)
        if not found or end not in after:
            raise SystemExit(f"{ARCHITECTURE} needs the lines {begin!r} and {end!r}")
        text = f"{before}{begin}\n{table('package', rows)}\n{end}{after.partition(end)[2]}"
    return text


def folders() -> Iterator[Path]:
    """Yield the folders that have files of the code, each before the folders in it."""
    for root in PACKAGES:
        folders = {path.parent for path in (ROOT / root).rglob("*") if path.suffix in KINDS}
        yield from sorted(folders)


def files(folder: Path) -> list[Path]:
    """Return the files of a folder that a table describes."""
    found = (path for path in folder.iterdir() if path.suffix in KINDS)
    return sorted(path for path in found if path.name != "__init__.py")


def described(folder: Path) -> str:
    """Return what a package holds, "" for a folder that is none."""
    path = folder / "__init__.py"
    return first_line(path) if path.is_file() else ""


def first_line(path: Path) -> str:
    """Return what a file says that it holds, as Markdown."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        line = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    else:
        comment = COMMENT.search(text)
        words = " ".join(MARK.sub("", comment[0]).split()) if comment else ""
        line = re.split(r"(?<=\.) ", words)[0]
    if not line.endswith("."):
        raise SystemExit(f"{path}: its first line has to be a sentence that says what it holds")
    return line.replace("``", "`").replace("|", "\\|")


def name(folder: Path) -> str:
    """Return the name of a folder, from the root of the checkout."""
    return folder.relative_to(ROOT).as_posix()


def anchor(folder: Path) -> str:
    """Return the anchor of a folder's heading, as GitHub makes it."""
    return name(folder).replace("/", "")


def table(head: str, rows: list[tuple[str, str]]) -> str:
    """Return a table of names and what they hold."""
    lines = [f"| {head} | what it holds |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
