"""Pieces that the sections of a report are made of."""

from __future__ import annotations

from collections.abc import Sequence

from .wording import Markup, escape, join, tag


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
    """Return what stands before and behind what `between` has marked."""
    # Nobody else can write these: what comes from outside is escaped.
    return f"<!--{name}-->", f"<!--/{name}-->"


def nothing(text: str) -> Markup:
    """Return what stands in place of a picture."""
    return tag("p", text, class_="nothing")


def copy_button() -> Markup:
    """Return a button that copies the code beside it; the script shows it where it can."""
    return tag("button", "copy", type="button", class_="copy", hidden=True)
