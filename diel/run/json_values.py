"""Values as JSON: what the files of a run hold of modules' values, and what they say when read."""

from __future__ import annotations

import json
import math
from typing import Any, Final, NoReturn

from diel.frozen import Frozen

DEEPEST: Final = 100
"""How many lists and tables may lie in one another, in what is written and what is read."""
# A record lays its fields around a value.
_DEEPEST_VALUE: Final = DEEPEST - 10
# Python refuses to write longer integers as decimals (sys.set_int_max_str_digits).
_LONGEST_INTEGER_BITS: Final = 10_000

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False)


class DamagedRecord(ValueError):
    """Bytes are no record of a journal; the message says why."""


def parsed(line: bytes) -> Any:
    """Return what a line says as JSON, nested 100 deep at most.

    Raises
    ------
    DamagedRecord
        If it is no JSON, or nested too deeply.
    """
    try:
        value = _DECODER.decode(line.decode())
    except RecursionError:
        raise DamagedRecord(f"it is nested more than {DEEPEST} deep") from None
    except ValueError:
        raise DamagedRecord("it is no JSON") from None
    if line.count(b"[") + line.count(b"{") > DEEPEST and _is_deep(value):
        raise DamagedRecord(f"it is nested more than {DEEPEST} deep")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [
            item
            for outer in level
            if isinstance(outer, (list, dict))
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def as_json(readable: Any) -> bytes:
    """Return a value in JSON's own types as the journal writes it."""
    # A file name with bytes that are no UTF-8, say, may turn up in a message.
    return _ENCODER.encode(readable).encode("utf-8", "replace")


def plain(value: Any, _depth: int = 0) -> Any:
    """Return a value in JSON's own types.

    NumPy's numbers and arrays become numbers and lists, NaN and infinities text, since JSON has
    neither, and whatever else there is its ``repr``, as is what is nested more than 100 deep.
    """
    if value is None or type(value) is str or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # Exactly int: a subclass of a user's, such as an IntEnum, would not travel.
        number = int(value)
        return number if number.bit_length() < _LONGEST_INTEGER_BITS else hex(number)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if isinstance(value, (dict, list, tuple)):
        if _depth >= _DEEPEST_VALUE:
            return _repr(value)
        if isinstance(value, dict):
            return {str(key): plain(item, _depth + 1) for key, item in value.items()}
        return [plain(item, _depth + 1) for item in value]
    if hasattr(value, "tolist") and not isinstance(value, type):
        return plain(value.tolist(), _depth)
    return _repr(value)


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except RecursionError:
        return f"<{type(value).__name__} nested too deeply>"


class StoredValue(Frozen):
    """A returned value that the journal only describes.

    Attributes
    ----------
    type : str
        As Python calls it; of an array its shape and the type of its elements too.
    size_bytes : int
        Of the file.
    file : str or None
        Its name in the folder ``returned``; None if it could not be written.
    problem : str
        Why not, or what the file lacks; empty if nothing is wrong, or it was said before.
    """

    type: str
    size_bytes: int
    file: str | None
    problem: str = ""

    def __str__(self) -> str:
        where = "kept nowhere" if self.file is None else f"returned/{self.file}"
        return f"{self.type} of {self.size_bytes:,} bytes: {where}"
