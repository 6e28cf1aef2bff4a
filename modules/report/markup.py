"""Values as text, text that is safe in HTML, and the pieces that a page is made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from diel import format_value

NOT_SET: Final = "not set"
"""Text for a parameter that a trial does not have."""
LARGEST: Final = 1e150
"""Numbers beyond this, whose squares no float holds, count as infinite."""
_ESCAPES: Final = str.maketrans(
    {
        "&": "&amp;",
        "<": "&lt;",
        ">": "&gt;",
        '"': "&quot;",
        "'": "&#39;",
        "\0": "\N{REPLACEMENT CHARACTER}",
    }
)


class Markup(str):
    """Text that is HTML already; any other text is escaped on its way into a page."""

    __slots__ = ()


def escape(text: str) -> Markup:
    """Return text as HTML; `Markup` stays as it is."""
    return text if isinstance(text, Markup) else Markup(str(text).translate(_ESCAPES))


def tag(name: str, /, *children: str | None, **attributes: Any) -> Markup:
    """Return an HTML element.

    Parameters
    ----------
    *children : str or None
        Text, which is escaped, or `Markup`; None is left out.
    **attributes
        ``class_`` for ``class``; other underscores become hyphens, but in ``viewBox`` there is
        none. An attribute that is None or False is left out, True stands without a value.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{_value(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    inside = "".join(escape(child) for child in children if child is not None)
    if name in ("meta", "input"):
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{inside}</{name}>")


def join(*parts: str | None) -> Markup:
    """Return parts as one text; parts that are no `Markup` are escaped."""
    return Markup("".join(escape(part) for part in parts if part is not None))


def _value(value: Any) -> str:
    return place(value) if isinstance(value, float) else str(value).translate(_ESCAPES)


def place(number: float) -> str:
    """Return a coordinate as text, to a tenth of a pixel."""
    text = f"{number:.1f}"
    return text[:-2] if text.endswith(".0") else text


def as_number(value: Any) -> float | None:
    """Return a value as a float if it is a finite number, else None; True and False are none."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        return None
    try:
        number = float(value)
    except (OverflowError, TypeError):
        return None
    return number if abs(number) <= LARGEST else None


def show(value: Any) -> str:
    """Write a value for people; a dash stands for None."""
    return "–" if value is None else format_value(value)


def words(name: str) -> str:
    """Write a column's name for people: ``training time`` and ``learning rate``."""
    return (name[:-2] if name.endswith("_s") else name).replace("_", " ")


def with_unit(name: str) -> str:
    """Write a column's name for an axis, with its unit where the name tells it."""
    return words(name) + (", seconds" if name.endswith("_s") else "")


def section(
    name: str, title: str, *content: str | None, note: str | None = None, wide: bool = False
) -> Markup:
    """Return a section: a heading, a line that says what it shows, and its content."""
    return tag(
        "section",
        tag("h2", title),
        tag("p", note, class_="note") if note else None,
        *content,
        id=name,
        class_="card wide" if wide else "card",
    )


def figure(name: str, value: str, about: str, style: str = "") -> Markup:
    """Return a number with its name above and what it is about below."""
    return tag(
        "div",
        tag("span", name, class_="what"),
        tag("b", value),
        tag("span", about, class_="about"),
        class_=f"figure {style}".strip(),
    )


def bar(*parts: tuple[float, str]) -> Markup:
    """Return a bar of parts: how long each is, from 0 to 1, and its style."""
    pieces = [
        tag("i", class_=style, style=f"width:{max(0.0, min(1.0, share)):.2%}")
        for share, style in parts
    ]
    return tag("span", *pieces, class_="track")


def bar_row(label: str, share: str, *parts: tuple[float, str], title: str | None = None) -> Markup:
    """Return a bar between its label and its share as text."""
    return tag(
        "div",
        tag("span", label, class_="label", title=title),
        bar(*parts),
        tag("span", share, class_="share"),
        class_="row",
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], style: str = "") -> Markup:
    """Return a table; a cell that is `Markup` stays as it is."""
    head = tag("thead", tag("tr", *(tag("th", name) for name in heads))) if heads else None
    body = [tag("tr", *(tag("td", escape(cell)) for cell in row)) for row in rows]
    return tag("table", head, tag("tbody", *body), class_=style or None)


def between(name: str, content: Markup) -> Markup:
    """Return content that can be found, and replaced, in a document by its name."""
    first, last = marks(name)
    return join(Markup(first), content, Markup(last))


def marks(name: str) -> tuple[str, str]:
    """Return the HTML comments between which `between` puts content of a name."""
    # Text from outside cannot contain them, since it is escaped.
    return f"<!--{name}-->", f"<!--/{name}-->"


def copy_button() -> Markup:
    """Return a button that copies the code beside it; the script shows it where it can."""
    return tag("button", "copy", type="button", class_="copy", hidden=True)


@cache
def asset(name: str) -> str:
    """Return the text of a style sheet or a script of this package, without its comments."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return re.sub(r"/\*.*?\*/\n?", "", text, flags=re.DOTALL)


_TOML_PARTS: Final = re.compile(
    r"""(?P<table>^[ \t]*\[{1,2}[^\]\n]*\]{1,2})"""
    r"""|(?P<comment>\#[^\n]*)"""
    r"""|(?P<text>\"\"\".*?\"\"\"|'''.*?'''|"(?:\\.|[^"\\\n])*"|'[^'\n]*')"""
    r"""|(?P<key>[A-Za-z0-9_-]+(?=\s*=))""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)


def highlight(toml: str) -> Markup:
    """Return TOML as HTML in which tables, comments, texts and keys are marked."""
    found, last = [], 0
    for match in _TOML_PARTS.finditer(toml):
        found.append(escape(toml[last : match.start()]))
        found.append(tag("span", match.group(), class_=f"toml-{match.lastgroup}"))
        last = match.end()
    return join(*found, escape(toml[last:]))
