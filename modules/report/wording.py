"""Values as text, and text that is safe in HTML."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from diel import format_value

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
    """Return an element.

    Parameters
    ----------
    name : str
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
    """Return parts behind one another; what is no `Markup` is escaped."""
    return Markup("".join(escape(part) for part in parts if part is not None))


def _value(value: Any) -> str:
    return place(value) if isinstance(value, float) else str(value).translate(_ESCAPES)


def place(number: float) -> str:
    """Return a coordinate, to a tenth of a pixel."""
    text = f"{number:.1f}"
    return text[:-2] if text.endswith(".0") else text


def as_number(value: Any) -> float | None:
    """Return a value as a number, if it is one and finite; True and False are words."""
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
