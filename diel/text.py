"""Durations and sizes, from text and to text; values, errors and TOML as text; near names."""

from __future__ import annotations

import errno
import json
import re
import sys
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

LONGEST_SHOWN: Final = 60
LONGEST_S: Final = 100 * 365 * 86400.0
"""The longest duration; Python's functions that wait take no more than three times that."""
_LARGEST_SIZE_BYTES: Final = 2**63 - 1
_LONGEST_NAME: Final = 1000
_MOST_COMPARED: Final = 500
_MOST_NAMED: Final = 20
BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_LARGE_UNITS: Final = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
_UNITS_BYTES: Final = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def duration_s(duration: float | str) -> float:
    """Return a duration in seconds.

    Parameters
    ----------
    duration : float or str
        Seconds, or a number and one of ms, s, min, h, d, as in ``"10 min"``.

    Raises
    ------
    ValueError
        If it is neither, not above 0, or above 100 years.
    """
    if isinstance(duration, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", duration)
        if found is None or found[2] not in _UNITS_S:
            units = ", ".join(_UNITS_S)
            raise ValueError(f'"{duration}" is no duration; write a number and one of {units}')
        seconds = float(found[1]) * _UNITS_S[found[2]]
    else:
        seconds = duration
    if not 0 < seconds <= LONGEST_S:
        raise ValueError("a duration is longer than 0 s, and no longer than 100 years")
    return float(seconds)


def format_duration(seconds: float) -> str:
    """Write a duration for people, in two units at most: ``2 h 5 min``, ``3.2 s``, ``40 ms``."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    large, small = next(pair for pair in pairwise(_LARGE_UNITS) if whole >= pair[0][1])
    text = f"{whole // large[1]} {large[0]}"
    rest = whole % large[1] // small[1]
    return f"{text} {rest} {small[0]}" if rest else text


def format_times(count: int) -> str:
    """Write how often something was done: ``once``, ``twice``, ``3 times``."""
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def size_bytes(size: str | int) -> int:
    """Return a size that a file gives in bytes or with a unit: ``"2 GiB"``.

    Raises
    ------
    ValueError
        If the text is not a size, or it is 2**63 bytes or more.
    """
    if isinstance(size, int):
        if abs(size) > _LARGEST_SIZE_BYTES:
            raise ValueError("a size is less than 2**63 bytes")
        return size
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)
    if found is None or found[2] not in _UNITS_BYTES:
        units = ", ".join(unit for unit in _UNITS_BYTES if unit)
        raise ValueError(f"{size!r} is no size; write a number and one of {units}")
    number = float(found[1]) * _UNITS_BYTES[found[2]]
    if number > _LARGEST_SIZE_BYTES:
        raise ValueError("a size is less than 2**63 bytes")
    return int(number)


def format_bytes(size_bytes: int) -> str:
    """Write a size for people, in the largest unit that is no larger than the size: ``1.5 MiB``."""
    size, units = float(size_bytes), iter(("bytes", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while size >= 1024 and (larger := next(units, "")):
        size, unit = size / 1024, larger
    return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"


def format_value(value: Any, *, digits: int = 4, longest: int = 60) -> str:
    """Write a value of a table for people.

    Parameters
    ----------
    value : object
        A number, of Python or NumPy, is written with a few digits, a list as ``64x32``, an empty
        list as ``none``, a table as ``key value, ...``, None not at all.
    digits : int, optional
        Significant digits of a number with a fraction.
    longest : int, optional
        In characters; longer text is cut.
    """
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.{digits}g}".replace("e-0", "e-").replace("e+0", "e") if value else "0"
    if isinstance(value, (list, tuple)):
        text = "x".join(format_value(item, digits=digits) for item in value) or "none"
    elif isinstance(value, Mapping):
        text = ", ".join(
            f"{key} {format_value(item, digits=digits)}" for key, item in value.items()
        )
    else:
        text = str(value)
    return _shortened(text, longest)


def describe_error(error: BaseException) -> str:
    """Return an exception in one line: its class, and the first line of its message."""
    name = type(error).__name__
    try:
        text = str(error).strip().splitlines()
        return f"{name}: {text[0]}" if text else name
    except BaseException:  # the __str__ of a user's exception may raise anything
        return name


def describe_traceback(error: BaseException) -> str:
    """Return an exception with its traceback, or in one line where even that cannot be made."""
    import traceback

    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except BaseException:  # without memory, say; and a user's exception may have any attributes
        return describe_error(error)


def is_short_of_memory(error: BaseException) -> bool:
    """Whether an error says that the system has no memory left for this process."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, RuntimeError) and error.args == ("can't start new thread",))
    )


def _shortened(text: str, longest: int = 60) -> str:
    """Cut a text that is too long for a label or a cell."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def show(value: Any) -> str:
    """Write a value as TOML does, cut to a length that fits a message."""
    text = as_toml(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def as_toml(value: Any) -> str:
    """Write a value as TOML does, in one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int):
        # Python refuses to write a whole number of thousands of digits.
        return str(value) if value.bit_length() < 1000 else "a very long number"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{show_key(key)} = {as_toml(item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(as_toml(entry) for entry in value)}]"
    if value is None:
        return "nothing"
    return str(value)


def from_toml(text: str) -> Any:
    """Return the value that a text is in TOML; the text itself if it is none."""
    if sys.version_info >= (3, 11):  # here, as few commands read TOML
        import tomllib
    else:
        import tomli as tomllib
    try:
        found: dict[str, Any] = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if found.keys() == {"value"} else text


def as_tables(document: Mapping[str, Any]) -> str:
    """Write a document as a TOML file: each table with a header, lists of tables as ``[[name]]``.

    A table within a table has a header of its own where it holds further tables, or would be long;
    else it is written in line.
    """
    blocks: list[str] = []
    for name, value in document.items():
        tables = value if isinstance(value, list) else [value]
        for table in tables:
            bracket = "[[{}]]" if isinstance(value, list) else "[{}]"
            blocks += _table_blocks(bracket, show_key(name), table)
    return "\n".join(blocks)


def _table_blocks(bracket: str, name: str, table: Mapping[str, Any]) -> list[str]:
    """Return the text of a table, then the texts of its inner tables that have headers."""
    apart = {
        key: value for key, value in table.items() if isinstance(value, Mapping) and _is_long(value)
    }
    keys = [f"{show_key(k)} = {as_toml(v)}\n" for k, v in table.items() if k not in apart]
    blocks = ["".join([f"{bracket.format(name)}\n", *keys])]
    for key, value in apart.items():
        blocks += _table_blocks("[{}]", f"{name}.{show_key(key)}", value)
    return blocks


def _is_long(table: Mapping[str, Any]) -> bool:
    holds_tables = any(isinstance(value, Mapping) for value in table.values())
    return holds_tables or len(as_toml(table)) > LONGEST_SHOWN


def show_key(key: Any) -> str:
    """Write a key as TOML does: bare where that is allowed, quoted otherwise."""
    return str(key) if BARE_KEY.fullmatch(str(key)) else json.dumps(str(key), ensure_ascii=False)


def show_with_type(value: Any) -> str:
    """Write a value as TOML does, after the name of its type if it is a string, table or list."""
    kinds: dict[type, str] = {str: "the string ", dict: "the table ", list: "the list "}
    return f"{kinds.get(type(value), '')}{show(value)}"


def join_path(prefix: str, steps: Iterable[str | int]) -> str:
    """Write a place in a file: ``join_path("module[2]", ["options", "a"])``."""
    path = prefix
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{show_key(step)}" if path else show_key(step)
    return path


def shortened(text: str, longest: int, where: str) -> str:
    """Return a text, or its beginning with how much is left out, and where all of it is."""
    more = len(text) - longest
    return text if more <= 0 else f"{text[:longest]} ... ({more:,} letters more, in {where})"


def some_of(names: Iterable[str]) -> str:
    """Return names with commas between them: of very many the first, and how many more."""
    listed = list(names)
    more = len(listed) - _MOST_NAMED
    return ", ".join(listed[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return the known name nearest to a misspelt one, None if none is near."""
    if len(name) > _LONGEST_NAME:  # no typing error, and slow to compare
        return None
    from difflib import get_close_matches  # not before a message needs it

    by_lower = {name.lower(): name for name in known}
    if len(by_lower) > _MOST_COMPARED:
        likely = sorted(by_lower, key=lambda other: abs(len(other) - len(name)))
        by_lower = {other: by_lower[other] for other in likely[:_MOST_COMPARED]}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[near[0]] if near else None


def near_file_name(name: str, known: Iterable[str]) -> str | None:
    """Return the file name nearest to a misspelt one; names must be near without their endings."""
    stem = Path(name).stem
    return did_you_mean(name, [name for name in known if did_you_mean(stem, [Path(name).stem])])


def trials_in_words(size: int | None) -> str:
    """Return how many trials a sweep has, None for no limit, as ``1 trial`` or ``5,000 trials``."""
    if size is None:
        return "no last trial"
    return "1 trial" if size == 1 else f"{size:,} trials"
