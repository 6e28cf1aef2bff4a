"""Names and docstrings use the field's words: see the table in CONTRIBUTING.md."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from support import ROOT

# Words of a dialect that this project had, each with what is said instead.
INSTEAD = {
    "bent": "rectifier",
    "chronicle": "journal writer",
    "deaf": "unresponsive",
    "door": "socket",
    "doorway": "protocol of the socket",
    "faces": "observers",
    "fillers": "initializers",
    "followers": "peers",
    "guilty": "failed",
    "house": "architecture",
    "keeper": "supervisor",
    "nest": "group tree",
    "roster": "peers",
    "seat": "rank assignment",
    "seating": "placement",
    "seats": "rank assignment",
    "sitting": "schedule preview",
    "sittings": "schedule preview",
    "slopes": "gradients",
    "storyline": "trace builder",
    "surroundings": "environment",
    "suspects": "quarantined trials",
    "teller": "reporter",
    "timesheet": "rank times",
    "trier": "trial runner",
    "underway": "in flight",
}
# Names of variables that stand for no noun. `one` is a name for the number 1 alone, in arithmetic.
PRONOUNS = {"it", "one", "that", "them", "thing", "things", "those", "who"}
ARITHMETIC = ("dnn/backend/", "dnn/graph/operations/", "dnn/optimizers/")
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield names, docstrings and comments of a file, each with its line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NAME, tokenize.COMMENT):
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""


def replaced_words(text: str) -> list[str]:
    return [word for word in map(str.lower, WORD.findall(text)) if word in INSTEAD]


def odd_words(file: str, source: str) -> Iterator[tuple[int, str]]:
    texts = [(1, file.rpartition("/")[2])]
    if replaced_words(source):  # strings count too; what it is in takes ten times as long to tell
        texts += texts_of(source)
    yield from ((line, word) for line, text in texts for word in replaced_words(text))


def test_names_comments_and_docstrings_are_looked_at() -> None:
    source = 'def sittings():\n    """Return each seat."""\n    a.the_house  # nested, deaf\n'
    found = sorted(odd_words("diel/nest.py", source))
    assert found == [(1, "nest"), (1, "seat"), (1, "sittings"), (3, "deaf"), (3, "house")]


def test_nobody_speaks_the_old_dialect() -> None:
    wrong = [
        f'{path.relative_to(ROOT)}:{line} says "{word}": {INSTEAD[word]}'
        for root in ("diel", "dnn", "modules")
        for path in sorted((ROOT / root).rglob("*.py"))
        for line, word in odd_words(path.name, path.read_text(encoding="utf-8"))
    ]
    assert wrong == []


def pronouns(source: str) -> Iterator[tuple[int, str]]:
    """Yield variables and parameters of a file that are called by a pronoun, with their lines."""
    for node in ast.walk(ast.parse(source)):
        name = ""
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        if name in PRONOUNS:
            yield node.lineno, name


def test_variables_are_nouns() -> None:
    found = pronouns("def f(who, copy):\n    return [one for one in copy] + [it := 1]\n")
    assert sorted(found) == [(1, "who"), (2, "it"), (2, "one")]
    wrong = [
        f"{file}:{line} has a variable {name!r}: name what it stands for"
        for root in ("diel", "dnn", "modules", "workflows")
        for path in sorted((ROOT / root).rglob("*.py"))
        for file in [path.relative_to(ROOT).as_posix()]
        for line, name in pronouns(path.read_text(encoding="utf-8"))
        if not (name == "one" and file.startswith(ARITHMETIC))
    ]
    assert wrong == []
