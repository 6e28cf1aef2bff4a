"""What a misspelt name may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Final

_LONGEST_NAME: Final = 1000


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return the known name nearest to a misspelt one, None if none is near."""
    if len(name) > _LONGEST_NAME:  # nobody has typed that
        return None
    by_lower = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[near[0]] if near else None


def near_file_name(name: str, known: Iterable[str]) -> str | None:
    """Return the file name nearest to a misspelt one; an ending in common makes none near."""
    stem = Path(name).stem
    return did_you_mean(name, [one for one in known if did_you_mean(stem, [Path(one).stem])])
