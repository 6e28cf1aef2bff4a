"""The search space of a sweep, as a workflow file says it, and its grid.

::

    learning_rate = [0.01, 0.1]                          a list of choices
    batch_size = { from = 16, to = 64, step = 16 }       16, 32, 48, 64
    batch_size = { from = 16, to = 128, log_steps = 4 }  16, 32, 64, 128
    weight_decay = { from = 1e-5, to = 1e-1, log_steps = 5 }   1e-5, 1e-4, ... 1e-1
    epochs = 20                                          the same for every point

The grid is never stored: a point is decoded from its index by mixed radix, the last parameter
varying fastest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

FORMS = (
    "a list of choices, { from = a, to = b, step = c }, { from = a, to = b, log_steps = n }, "
    "or a single value"
)

_LARGEST = 1e300
_MOST_VALUES = 2**53  # of one parameter: beyond, floats cannot count them


class SpaceError(ValueError):
    """A search space is malformed or empty."""


class Dimension(Protocol):
    """The values that one parameter takes."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True)
class Choices:
    """Values from a list."""

    values: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        return self.values[index]


@dataclass(frozen=True)
class Steps:
    """``start + i * step`` for i below `count`: never accumulated, so no error builds up."""

    start: float
    step: float
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int | float:
        return self.start + index * self.step


@dataclass(frozen=True)
class LogSteps:
    """`count` values from `start` to `stop`, both included, in equal ratios."""

    start: float
    stop: float
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> float:
        if index == self.count - 1:
            return self.stop
        exponent = math.log10(self.start) + index * (
            math.log10(self.stop) - math.log10(self.start)
        ) / (self.count - 1)
        # 12 digits: 0.1 and not 0.10000000000000002 where the ratio is a power of ten.
        return float(f"{10**exponent:.12g}") if index else self.start


@dataclass(frozen=True)
class Space:
    """A grid over named parameters.

    Attributes
    ----------
    dimensions : mapping of str to Dimension
    """

    dimensions: Mapping[str, Dimension]

    @classmethod
    def parse(cls, table: Mapping[str, Any]) -> Space:
        """Return the space of a table in a workflow file.

        Raises
        ------
        SpaceError
            If a parameter is malformed, or the grid has no points.
        """
        if not table:
            raise SpaceError("the grid is empty: name at least one parameter")
        return cls({name: _dimension(name, value) for name, value in table.items()})

    @property
    def size(self) -> int:
        """The number of points."""
        return math.prod(len(dimension) for dimension in self.dimensions.values())

    def point(self, index: int) -> dict[str, Any]:
        """Return the parameters of one point.

        Parameters
        ----------
        index : int
            From 0 to ``size - 1``.

        Raises
        ------
        IndexError
            If it is not.
        """
        if not 0 <= index < self.size:
            raise IndexError(f"point {index} of a grid of {self.size}")
        digits: list[int] = []
        for dimension in reversed(list(self.dimensions.values())):
            index, digit = divmod(index, len(dimension))
            digits.append(digit)
        return {
            name: dimension[digit]
            for (name, dimension), digit in zip(
                self.dimensions.items(), reversed(digits), strict=True
            )
        }


def _dimension(name: str, value: object) -> Dimension:
    if isinstance(value, Sequence) and not isinstance(value, str):
        if not value:
            raise SpaceError(f"{name}: an empty list, so the grid has no points")
        twice = [one for index, one in enumerate(value) if one in value[:index]]
        if twice:
            raise SpaceError(f"{name}: {twice[0]!r} stands there twice: its points would too")
        return Choices(tuple(value))
    if not isinstance(value, Mapping):
        return Choices((value,))
    if set(value) == {"from", "to", "step"}:
        return _steps(name, value["from"], value["to"], value["step"])
    if set(value) == {"from", "to", "log_steps"}:
        return _log_steps(name, value["from"], value["to"], value["log_steps"])
    raise SpaceError(f"{name}: {{ {', '.join(value)} }} is no range; write {FORMS}")


def _steps(name: str, start: object, stop: object, step: object) -> Steps:
    if not (_is_number(start) and _is_number(stop) and _is_number(step)):
        raise SpaceError(f"{name}: from, to and step are numbers")
    if step == 0:
        raise SpaceError(f"{name}: a step of 0 never arrives at {stop}")
    steps = (stop - start) / step
    if steps >= _MOST_VALUES:
        raise SpaceError(f"{name}: from {start} to {stop} in steps of {step}: too many values")
    # A whole step that rounding makes one ten-millionth too short still counts.
    count = math.floor(max(steps, -1.0) + 1e-7) + 1
    if count < 1:
        raise SpaceError(
            f"{name}: from {start} to {stop} in steps of {step}: no values, "
            "so the grid has no points"
        )
    return Steps(start, step, count)


def _log_steps(name: str, start: object, stop: object, count: object) -> Dimension:
    if not (_is_number(start) and _is_number(stop)):
        raise SpaceError(f"{name}: from and to are numbers")
    if start <= 0 or stop <= 0:
        raise SpaceError(f"{name}: a logarithmic range from {start} to {stop} cannot touch 0")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise SpaceError(f"{name}: log_steps is the number of values, at least 1; got {count!r}")
    if count == 1 and start != stop:
        raise SpaceError(f"{name}: log_steps = 1 cannot reach from {start} to {stop}")
    if not all(type(end) is int for end in (start, stop)):
        return LogSteps(float(start), float(stop), count)
    # Between integers the values are integers.
    exact = LogSteps(float(start), float(stop), count)
    rounded = tuple(round(exact[index]) for index in range(count))
    if len(set(rounded)) < count:
        raise SpaceError(f"{name}: not so many integers from {start} to {stop}: {count}")
    return Choices(rounded)


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= _LARGEST  # neither NaN, nor infinite, nor beyond all floats
