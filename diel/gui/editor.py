"""The editor of a workflow's text, which joins what is typed with changes that forms make."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any, Final

from nicegui import ui
from nicegui.events import GenericEventArguments

_EARLIER: Final = 16
_CODE: Final = "utf-16-le"  # browsers count in its units


class TextEditor(ui.codemirror):
    """A CodeMirror editor that keeps what is typed while a new text is sent to the browser.

    The browser sends the changes of the text that it shows, which may be an earlier text: they are
    made in the new text too, unless both changes are at the same place. Then the new text stays.
    """

    def __init__(self, text: str, **options: Any) -> None:
        self._earlier: deque[str] = deque(maxlen=_EARLIER)  # texts that the browser may show
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
    """Return a text with changes that are given in the format of CodeMirror.

    Parameters
    ----------
    text : str
    sections : sequence of int
        For each part of the text, in order, its length and the length of its replacement, -1 if it
        stays; in units of UTF-16.
    inserted : sequence of sequence of str
        For each part the lines that replace it.
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
    """Merge two changes of a text: return the changed text with what was typed meanwhile.

    Parameters
    ----------
    base : str
        The earlier text.
    typed : str
        The earlier text as the user has changed it by typing.
    now : str
        The earlier text as it was changed otherwise; returned if both changes are at the same
        place.
    """
    start, end, added = _change(base, typed)
    other_start, other_end, other_added = _change(base, now)
    if end <= other_start:
        return now[:start] + added + now[end:]
    if other_end <= start:
        shift = len(other_added) - (other_end - other_start)
        return now[: start + shift] + added + now[end + shift :]
    return now


def _change(before: str, after: str) -> tuple[int, int, str]:
    """Return the range of a text that was changed, its start and end, and the new text in it."""
    most = min(len(before), len(after))
    start = next((n for n in range(most) if before[n] != after[n]), most)
    same = 0
    while same < most - start and before[-1 - same] == after[-1 - same]:
        same += 1
    return start, len(before) - same, after[start : len(after) - same]
