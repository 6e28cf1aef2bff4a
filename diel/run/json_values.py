"""JSON in the files of a run and from other processes: writing, parsing and its limits.

Whatever comes from outside is checked here: `parse_json` takes text apart, `as_integer` and
`as_number` turn what it found into numbers that arithmetic, clocks and arrays can take.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Final, NoReturn

from diel.frozen import Frozen

if TYPE_CHECKING:
    from typing import TypeGuard

DEEPEST: Final = 100
"""How deep lists and tables may be nested, in JSON that is written or read."""
# A record nests a value within its own fields.
_DEEPEST_VALUE: Final = DEEPEST - 10
# Python refuses to write longer integers as decimals (sys.set_int_max_str_digits).
_LONGEST_INTEGER_BITS: Final = 10_000
_LONGEST_SHOWN: Final = 60

LARGEST_INTEGER: Final = 2**63 - 1
LARGEST_NUMBER: Final = 1e300

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False)


class DamagedRecord(ValueError):
    """Bytes are no record of a journal; the message says why."""


def parse_json(line: bytes, *, with_nan: bool = False) -> Any:
    """Return the value that a line of JSON holds, nested 100 deep at most.

    Parameters
    ----------
    line : bytes
    with_nan : bool, optional
        Whether NaN and infinities, which JSON lacks and Python writes, are taken as numbers.

    Raises
    ------
    DamagedRecord
        If it is no JSON, or nested too deeply.
    """
    try:
        value = (_DECODER_WITH_NAN if with_nan else _DECODER).decode(line.decode())
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
_DECODER_WITH_NAN: Final = json.JSONDecoder()


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


def is_integer(
    value: object, least: float = -LARGEST_INTEGER, most: float = LARGEST_INTEGER
) -> TypeGuard[int]:
    """Whether a value from outside is a whole number within limits; True and False are none."""
    return type(value) is int and least <= value <= most


def is_number(
    value: object, least: float = -LARGEST_NUMBER, most: float = LARGEST_NUMBER
) -> TypeGuard[float]:
    """Whether a value from outside is a number within limits, so neither NaN nor infinite."""
    return type(value) in (int, float) and least <= value <= most  # type: ignore[operator]


def as_integer(
    value: object, least: float = -LARGEST_INTEGER, most: float = LARGEST_INTEGER
) -> int:
    """Return a whole number that came from outside.

    Raises
    ------
    ValueError
        If it is none, or beyond the limits.
    """
    if is_integer(value, least, most):
        return value
    raise ValueError(f"{_shown(value)} is no whole number from {least} to {most}")


def as_number(value: object, least: float = -LARGEST_NUMBER, most: float = LARGEST_NUMBER) -> float:
    """Return a number that came from outside as a float.

    Raises
    ------
    ValueError
        If it is none, NaN, or beyond the limits.
    """
    if is_number(value, least, most):
        return float(value)
    raise ValueError(f"{_shown(value)} is no number from {least:g} to {most:g}")


def _shown(value: object) -> str:
    is_short = not isinstance(value, int) or value.bit_length() < _LONGEST_INTEGER_BITS
    text = repr(value) if is_short else "an integer of very many digits"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def as_json(readable: Any) -> bytes:
    """Return a value in JSON's own types as the journal writes it."""
    # A file name with bytes that are no UTF-8, say, may turn up in a message.
    return _ENCODER.encode(readable).encode("utf-8", "replace")


def plain(value: Any, _depth: int = 0) -> Any:
    """Return a value in JSON's own types.

    NumPy's numbers and arrays become numbers and lists; NaN and infinities become text, since JSON
    has neither. Any other value becomes its ``repr``, and so does a list or table that is nested
    too deep: its records would be nested more than 100 deep. Where a user's class raises when it is
    converted, text says so.
    """
    if value is None or type(value) is str or isinstance(value, bool):
        return value
    try:
        return _converted(value, _depth)
    except Exception:  # a user's class can raise anything
        return _repr(value)


def _converted(value: Any, _depth: int) -> Any:
    # Exactly int, str and float: a subclass of a user's, such as an IntEnum, would not travel.
    if isinstance(value, int):
        number = int.__int__(value)
        return number if number.bit_length() < _LONGEST_INTEGER_BITS else hex(number)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        real = float.__float__(value)
        return real if math.isfinite(real) else repr(real)
    if isinstance(value, (dict, list, tuple)):
        if _depth >= _DEEPEST_VALUE:
            return _repr(value)
        if isinstance(value, dict):
            return {_key(key): plain(item, _depth + 1) for key, item in value.items()}
        return [plain(item, _depth + 1) for item in value]
    if hasattr(value, "tolist") and not isinstance(value, type) and _depth < DEEPEST:
        return plain(value.tolist(), _depth + 1)
    return _repr(value)


def _key(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # a user's class can raise anything
        return _repr(value)


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except RecursionError:
        return f"<{type(value).__name__} nested too deeply>"
    except Exception as error:  # a user's class can raise anything
        return f"<{type(value).__name__}: its __repr__ raises {type(error).__name__}>"


class StoredValue(Frozen):
    """Description of a returned value that is too large for the journal, and its file.

    Attributes
    ----------
    type : str
        Its Python type; for an array also its shape and dtype.
    size_bytes : int
        Of the file.
    file : str or None
        Its name in the folder ``returned``; None if it could not be written.
    problem : str
        Why it could not be written, or what the file lacks; empty if nothing is wrong, or the
        problem was reported before.
    """

    type: str
    size_bytes: int
    file: str | None
    problem: str = ""

    def __str__(self) -> str:
        where = "kept nowhere" if self.file is None else f"returned/{self.file}"
        return f"{self.type} of {self.size_bytes:,} bytes: {where}"
