"""The editor of the workflow's text, into which somebody types while forms change the text too."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

_EARLIER: Final = 16
_CODE: Final = "utf-16-le"  # in whose units browsers count


class TextEditor(ui.codemirror):
    """An editor whose browser tells what was changed of the text that it shows.

    That may be an earlier one: what is typed while a new text is on its way is changed there too,
    unless both changes are of the same place. Then the new text stays.
    """

    def __init__(self, text: str, **options: Any) -> None:
        self._earlier: deque[str] = deque(maxlen=_EARLIER)  # which the browser may still show
        super().__init__(text, **options)

    def show(self, text: str) -> None:
        """Show another text."""
        if self.value != text:
            self._earlier.append(self.value or "")
            self.value = text

    def _event_args_to_value(self, e: GenericEventArguments) -> str:
        sections, inserted = e.args["sections"], e.args["inserted"]
        now, length = self.value or "", sum(sections[::2])
        if _units(now) == length:
            return str(super()._event_args_to_value(e))
        base = next((text for text in reversed(self._earlier) if _units(text) == length), None)
        if base is not None:
            typed = with_changes(base, sections, inserted)
            self._earlier.append(typed)
            now = merged(base, typed, now)
        self._codepoints = self._encode_codepoints(now)
        self.update()  # the browser shows another text
        return now


def _units(text: str) -> int:
    return len(text.encode(_CODE, "surrogatepass")) // 2


def with_changes(text: str, sections: Sequence[int], inserted: Sequence[Sequence[str]]) -> str:
    """Return a text with changes as CodeMirror tells them.

    Parameters
    ----------
    text : str
    sections : sequence of int
        Of each part, one behind another, its length and that of what replaces it, -1 if it stays;
        in units of UTF-16.
    inserted : sequence of sequence of str
        Of each part the lines that replace it.
    """
    units = text.encode(_CODE, "surrogatepass")
    parts, at = [], 0
    lines = chain(inserted, repeat(()))
    for old, new, added in zip(sections[::2], sections[1::2], lines, strict=False):
        kept = units[2 * at : 2 * (at + old)]
        parts.append(kept if new == -1 else "\n".join(added).encode(_CODE, "surrogatepass"))
        at += old
    return b"".join(parts).decode(_CODE, "surrogatepass")


def merged(base: str, typed: str, now: str) -> str:
    """Return a text that has changed since, with what was typed into the earlier one.

    Parameters
    ----------
    base : str
        The earlier text.
    typed : str
        What it became where somebody typed.
    now : str
        What it has become elsewhere; it stays as it is if both changes are of the same place.
    """
    start, end, added = _change(base, typed)
    other_start, other_end, other = _change(base, now)
    if end <= other_start:
        return now[:start] + added + now[end:]
    if other_end <= start:
        shift = len(other) - (other_end - other_start)
        return now[: start + shift] + added + now[end + shift :]
    return now


def _change(before: str, after: str) -> tuple[int, int, str]:
    """Return what differs: from where to where of the text before, and what stands there after."""
    most = min(len(before), len(after))
    start = next((n for n in range(most) if before[n] != after[n]), most)
    same = 0
    while same < most - start and before[-1 - same] == after[-1 - same]:
        same += 1
    return start, len(before) - same, after[start : len(after) - same]
