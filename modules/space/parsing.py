"""From an entry of a workflow file to the values of a parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from .dimensions import (
    Choices,
    Dimension,
    LogIntegers,
    LogIntegerSteps,
    LogSteps,
    Range,
    Steps,
    same,
)
from .errors import SpaceError

FORMS = (
    "a list of choices, { from = a, to = b, step = c }, { from = a, to = b, log_steps = n }, "
    "or a single value; for other strategies than a grid also { from = a, to = b } and "
    '{ from = a, to = b, scale = "log" }'
)

_LARGEST = 1e300
_MOST_VALUES = 2**53  # of one parameter: beyond, floats cannot count them
_MOST_LOG_STEPS = 100_000


def parse_dimension(entry: object) -> tuple[Dimension, Mapping[str, Any]]:
    """Read one parameter.

    Parameters
    ----------
    entry : object
        What stands behind the parameter's name.

    Returns
    -------
    (Dimension, mapping)
        Its values, and what stands in its ``if``, unread.

    Raises
    ------
    SpaceError
        If it is malformed, or has no values.
    """
    if not isinstance(entry, Mapping):
        return _dimension(entry), {}
    rest = {key: value for key, value in entry.items() if key != "if"}
    wanted = entry.get("if", {})
    if not isinstance(wanted, Mapping) or ("if" in entry and not wanted):
        raise SpaceError(f"if = {wanted!r} is no condition; write if = {{ parameter = value }}")
    return _table(rest), wanted


def _dimension(entry: object) -> Dimension:
    if isinstance(entry, Sequence) and not isinstance(entry, str):
        return _choices(entry)
    return Choices((entry,))


def _table(table: Mapping[str, Any]) -> Dimension:
    keys = set(table)
    if keys == {"value"}:
        return Choices((table["value"],))
    if keys == {"choices"}:
        if not isinstance(table["choices"], Sequence) or isinstance(table["choices"], str):
            raise SpaceError("choices is a list")
        return _choices(table["choices"])
    if keys == {"from", "to", "step"}:
        return _steps(table["from"], table["to"], table["step"])
    if keys == {"from", "to", "log_steps"}:
        return _log_steps(table["from"], table["to"], table["log_steps"])
    if keys in ({"from", "to"}, {"from", "to", "scale"}):
        return _range(table["from"], table["to"], table.get("scale", "linear"))
    raise SpaceError(f"{{ {', '.join(table)} }} is no range; write {FORMS}")


def _choices(values: Sequence[Any]) -> Choices:
    if not values:
        raise SpaceError("an empty list, so the grid has no points")
    for index, one in enumerate(values):
        if one != one:
            raise SpaceError("nan is a value that equals nothing, not even itself: leave it out")
        if any(same(one, earlier) for earlier in values[:index]):
            raise SpaceError(f"{one!r} stands there twice: its points would too")
    return Choices(tuple(values))


def _steps(start: object, stop: object, step: object) -> Steps:
    if not (_is_number(start) and _is_number(stop) and _is_number(step)):
        raise SpaceError("from, to and step are numbers")
    if step == 0:
        raise SpaceError(f"a step of 0 never arrives at {stop}")
    steps = (stop - start) / step
    if steps >= _MOST_VALUES:
        raise SpaceError(f"from {start} to {stop} in steps of {step}: too many values")
    # A whole step that rounding makes one ten-millionth too short still counts.
    count = math.floor(max(steps, -1.0) + 1e-7) + 1
    if count < 1:
        raise SpaceError(
            f"from {start} to {stop} in steps of {step}: no values, so the grid has no points"
        )
    last = start + (count - 1) * step
    if count > 1 and math.ulp(max(abs(start), abs(last))) > abs(step):
        raise SpaceError(f"steps of {step} are too small beside {max(start, last, key=abs)}")
    return Steps(start, step, count)


def _log_steps(start: object, stop: object, count: object) -> Dimension:
    start, stop = _ends_of_log(start, stop)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise SpaceError(f"log_steps is the number of values, at least 1; got {count!r}")
    if count == 1 and start != stop:
        raise SpaceError(f"log_steps = 1 cannot reach from {start} to {stop}")
    if count > _MOST_LOG_STEPS:
        raise SpaceError(f"log_steps = {count}: at most {_MOST_LOG_STEPS}")
    if all(type(end) is int for end in (start, stop)):
        # Between integers the values are integers.
        if abs(stop - start) + 1 < count or _repeats(LogIntegerSteps(start, stop, count)):
            raise SpaceError(f"not so many integers from {start} to {stop}: {count}")
        return LogIntegerSteps(start, stop, count)
    if _repeats(LogSteps(float(start), float(stop), count)):
        raise SpaceError(f"from {start} to {stop}: too close together for {count} values")
    return LogSteps(float(start), float(stop), count)


def _repeats(values: LogSteps) -> bool:
    return len(set(values)) < len(values)


def _range(start: object, stop: object, scale: object) -> Dimension:
    if scale not in ("linear", "log"):
        raise SpaceError(f'scale is "linear" or "log"; got {scale!r}')
    if not (_is_number(start) and _is_number(stop)):
        raise SpaceError("from and to are numbers")
    if scale == "log":
        _ends_of_log(start, stop)
    if start == stop:
        return Choices((start,))
    if not all(type(end) is int for end in (start, stop)):
        return Range(float(start), float(stop), scale == "log")
    if scale == "log":
        return LogIntegers(int(start), int(stop))
    return _steps(start, stop, 1 if stop > start else -1)


def _ends_of_log(start: object, stop: object) -> tuple[float, float]:
    if not (_is_number(start) and _is_number(stop)):
        raise SpaceError("from and to are numbers")
    if start <= 0 or stop <= 0:
        raise SpaceError(f"a logarithmic range from {start} to {stop} cannot touch 0")
    return start, stop


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= _LARGEST  # neither NaN, nor infinite, nor beyond all floats
