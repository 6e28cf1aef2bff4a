"""A workflow file as HTML, its comments, tables, keys and texts told apart."""

from __future__ import annotations

import re
from typing import Final

from .wording import Markup, escape, join, tag

_PARTS: Final = re.compile(
    r"""(?P<table>^[ \t]*\[{1,2}[^\]\n]*\]{1,2})"""
    r"""|(?P<comment>\#[^\n]*)"""
    r"""|(?P<text>\"\"\".*?\"\"\"|'''.*?'''|"(?:\\.|[^"\\\n])*"|'[^'\n]*')"""
    r"""|(?P<key>[A-Za-z0-9_-]+(?=\s*=))""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)


def highlight(toml: str) -> Markup:
    """Return the text with its parts marked."""
    found, last = [], 0
    for match in _PARTS.finditer(toml):
        found.append(escape(toml[last : match.start()]))
        found.append(tag("span", match.group(), class_=f"toml-{match.lastgroup}"))
        last = match.end()
    return join(*found, escape(toml[last:]))
