"""The values that a parameter of a search space can take.

::

    Dimension                at(share): the value at a share of the way through
    ├── Finite               len(), [index], index_of(value): a grid can go through it
    │   ├── Choices          a list, whose order means nothing
    │   ├── Steps            start + i * step
    │   └── LogSteps         equal ratios
    ├── Range                every real number between two, or every ratio alike
    └── LogIntegers          every integer between two, small ones as often as large ones
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

LARGEST: Final = 1e300
"""Of the numbers in a space: neither NaN, nor infinite, nor beyond all floats."""


class SpaceError(ValueError):
    """A search space is malformed or empty.

    Attributes
    ----------
    parameter : str or None
        The parameter whose entry is wrong; None if it is the space as a whole.
    reason : str
        What is wrong with it, without the parameter's name.
    """

    def __init__(self, reason: str, parameter: str | None = None) -> None:
        super().__init__(reason, parameter)
        self.reason = reason
        self.parameter = parameter

    def __str__(self) -> str:
        return f"{self.parameter}: {self.reason}" if self.parameter else self.reason


class Dimension:
    """The values that one parameter takes.

    Attributes
    ----------
    is_ordered : bool
        Whether values near each other may be expected to give similar results.
    """

    is_ordered = True

    def at(self, share: float) -> Any:
        """Return the value at a share of the way through, from 0 to below 1.

        Uniformly drawn shares give each value its proper probability.
        """
        raise NotImplementedError

    def share(self, value: Any) -> float:
        """Return the share in whose middle a value lies: ``at(share(value)) == value``.

        A ValueError if it is not among the values.
        """
        raise NotImplementedError

    def examples(self) -> Iterator[Any]:
        """Return an iterator over the values, or over some of them with both ends."""
        return (self.at(share) for share in (0.0, 0.5, 1 - 2**-53))


class Finite(Dimension):
    """A finite number of values, which have indices."""

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def examples(self) -> Iterator[Any]:
        """Return an iterator over all values."""
        return iter(self)

    def index_of(self, value: Any) -> int:
        """Return the index of a value; a ValueError if it is not among the values."""
        raise NotImplementedError

    def at(self, share: float) -> Any:
        """Return the value at a share of the way through."""
        return self[int(share * len(self))]

    def share(self, value: Any) -> float:
        """Return the share in whose middle a value lies."""
        return (self.index_of(value) + 0.5) / len(self)


def same(first: Any, second: Any) -> bool:
    """Whether two values of a file are the same; 1 and true are not, 1 and 1.0 are."""
    return isinstance(first, bool) == isinstance(second, bool) and bool(first == second)


@dataclass(frozen=True)
class Choices(Finite):
    """Values from a list."""

    values: tuple[Any, ...]
    is_ordered = False

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        return self.values[index]

    def index_of(self, value: Any) -> int:
        """Return where a value stands."""
        for index, known in enumerate(self.values):
            if same(known, value):
                return index
        raise ValueError(f"{value!r} is not among {', '.join(map(repr, self.values))}")


@dataclass(frozen=True)
class Steps(Finite):
    """``start + i * step`` for i below `count`: never accumulated, so no error builds up."""

    start: float
    step: float
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int | float:
        return self.start + index * self.step

    def index_of(self, value: Any) -> int:
        """Return where a value stands."""
        index = round((value - self.start) / self.step) if _is_real(value) else -1
        if not 0 <= index < self.count or not _near(self[index], value, self.step):
            raise ValueError(
                f"{value!r} is none of {self[0]} to {self[self.count - 1]} in steps of {self.step}"
            )
        return index


@dataclass(frozen=True)
class LogSteps(Finite):
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

    def index_of(self, value: Any) -> int:
        """Return where a value stands."""
        if _is_real(value) and value > 0:
            ratio = math.log(self.stop / self.start) / max(self.count - 1, 1)
            guess = round(math.log(value / self.start) / ratio) if ratio else 0
            for index in (guess, guess - 1, guess + 1):  # rounding may move it by a place
                if 0 <= index < self.count and math.isclose(self[index], value, rel_tol=1e-11):
                    return index
        raise ValueError(
            f"{value!r} is none of the {self.count} values from {self.start} to {self.stop}"
        )


@dataclass(frozen=True)
class LogIntegerSteps(LogSteps):
    """`LogSteps` rounded to integers."""

    def __getitem__(self, index: int) -> int:
        return round(super().__getitem__(index))


@dataclass(frozen=True)
class Range(Dimension):
    """Every real number from `start` to `stop`; on a logarithmic scale, every ratio alike."""

    start: float
    stop: float
    is_log: bool = False

    def at(self, share: float) -> float:
        """Return the value at a share of the way through."""
        if not self.is_log:
            return self.start + share * (self.stop - self.start)
        low, high = math.log(self.start), math.log(self.stop)
        value = math.exp(low + share * (high - low))
        # exp and log may round to just outside.
        return min(max(value, min(self.start, self.stop)), max(self.start, self.stop))

    def share(self, value: Any) -> float:
        """Return the share in whose middle a value lies."""
        low, high = sorted((self.start, self.stop))
        if not _is_real(value) or not low <= value <= high:
            raise ValueError(f"{value!r} is not between {self.start} and {self.stop}")
        if self.is_log:
            return math.log(value / self.start) / math.log(self.stop / self.start)
        return float((value - self.start) / (self.stop - self.start))


@dataclass(frozen=True)
class LogIntegers(Dimension):
    """Every integer from `start` to `stop`, each ratio as often as another."""

    start: int
    stop: int

    def at(self, share: float) -> int:
        """Return the value at a share of the way through."""
        low, high = sorted((self.start, self.stop))
        bottom, top = math.log(low - 0.5), math.log(high + 0.5)
        return min(max(round(math.exp(bottom + share * (top - bottom))), low), high)

    def share(self, value: Any) -> float:
        """Return the share in whose middle a value lies."""
        low, high = sorted((self.start, self.stop))
        if not _is_real(value) or value != int(value) or not low <= value <= high:
            raise ValueError(f"{value!r} is no integer between {self.start} and {self.stop}")
        bottom, top = math.log(low - 0.5), math.log(high + 0.5)
        return (math.log(value) - bottom) / (top - bottom)


def _is_real(value: object) -> bool:
    """Whether a value, of whatever origin, is a number that all arithmetic here can take."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and abs(value) <= LARGEST  # type: ignore[arg-type]


def _near(first: float, second: float, step: float) -> bool:
    return abs(first - second) <= 1e-9 * abs(step) or first == second
