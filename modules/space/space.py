"""A search space: named parameters, their values, and the conditions under which they exist."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from .conditions import Condition, parents_first, parse_conditions
from .decoding import PointTree
from .dimensions import (
    LARGEST,
    Choices,
    Dimension,
    Finite,
    LogIntegers,
    LogIntegerSteps,
    LogSteps,
    Range,
    SpaceError,
    Steps,
    same,
)

FORMS = (
    "a list of choices, { from = a, to = b, step = c }, { from = a, to = b, log_steps = n }, "
    "or a single value; for other strategies than a grid also { from = a, to = b } and "
    '{ from = a, to = b, scale = "log" }'
)

_MOST_VALUES = 2**53  # of one parameter: beyond, floats cannot count them
_MOST_LOG_STEPS = 100_000


def parse_dimension(entry: object) -> tuple[Dimension, Mapping[str, Any]]:
    """Parse the entry of a parameter: return its values, and its ``if`` as it stands in the file.

    A `SpaceError` if it is malformed, or has no values.
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
    for index, value in enumerate(values):
        if value != value:
            raise SpaceError("nan is a value that equals nothing, not even itself: leave it out")
        if any(same(value, earlier) for earlier in values[:index]):
            raise SpaceError(f"{value!r} stands there twice: its points would too")
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
    return abs(value) <= LARGEST


Parameters = dict[str, Any]
"""The parameters of one point, in the order of the file; absent ones are not in it."""


class Space:
    """A search space: named parameters, each with its values and conditions.

    Parameters
    ----------
    dimensions : mapping of str to Dimension
    conditions : mapping of str to mapping of str to Condition, optional
        With which values of its parents a parameter exists; without an entry, always.

    Attributes
    ----------
    dimensions : mapping of str to Dimension
    endless : list of str
        Parameters whose values cannot be counted: no grid can go through them.

    Raises
    ------
    SpaceError
        If conditions run in a circle or never hold.
    """

    def __init__(
        self,
        dimensions: Mapping[str, Dimension],
        conditions: Mapping[str, Mapping[str, Condition]] | None = None,
    ) -> None:
        self.dimensions = dict(dimensions)
        self.conditions = {name: dict((conditions or {}).get(name, {})) for name in dimensions}
        self._order = parents_first(self.conditions)
        self._is_in_order = self._order == list(self.dimensions)
        self.endless = [
            name for name, dimension in self.dimensions.items() if not isinstance(dimension, Finite)
        ]
        self._tree = PointTree(self._order, self.dimensions, self.conditions)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the dimensions and conditions alone: the tree of points may be deep."""
        return Space, (self.dimensions, self.conditions)

    @classmethod
    def parse(cls, table: Mapping[str, Any]) -> Space:
        """Return the space of a table in a workflow file.

        A `SpaceError` if a parameter is malformed, or the grid has no points.
        """
        if not table:
            raise SpaceError("the grid is empty: name at least one parameter")
        dimensions, wanted = {}, {}
        for name, entry in table.items():
            try:
                dimensions[name], wanted[name] = parse_dimension(entry)
            except SpaceError as error:
                raise SpaceError(error.reason, name) from None
        return cls(dimensions, parse_conditions(dimensions, wanted))

    @property
    def names(self) -> list[str]:
        """The names of all parameters, in the order of the file."""
        return list(self.dimensions)

    @property
    def parents_first(self) -> list[str]:
        """The names of all parameters, each after those that its conditions are about."""
        return list(self._order)

    @property
    def size(self) -> int:
        """The number of points; a `SpaceError` if they cannot be counted."""
        if self.endless:
            raise SpaceError(
                "every number between two, which a grid cannot go through; "
                "add step or log_steps, or choose another strategy",
                self.endless[0],
            )
        return self._tree.root.size

    def counted(self) -> Space | None:
        """Return the space with an index for each value; None if there are real numbers between.

        Integers on a logarithmic scale can be counted, though a grid does not go through them.
        """
        dimensions = {
            name: Steps(min(each.start, each.stop), 1, abs(each.stop - each.start) + 1)
            if isinstance(each, LogIntegers)
            else each
            for name, each in self.dimensions.items()
        }
        if not all(isinstance(each, Finite) for each in dimensions.values()):
            return None
        return Space(dimensions, self.conditions)

    def indices(self, parameters: Mapping[str, Any]) -> tuple[int, ...]:
        """Return a key of a point of a counted space: of each parameter the index, -1 if absent.

        A ValueError if it is no such point.
        """
        return tuple(
            dimension.index_of(parameters[name]) if name in parameters else -1
            for name, dimension in self.dimensions.items()
            if isinstance(dimension, Finite)
        )

    def point(self, index: int) -> Parameters:
        """Return the parameters of one point of the grid, the last one varying fastest.

        An IndexError if the index is not from 0 to ``size - 1``, a `SpaceError` if the points
        cannot be counted.
        """
        if not 0 <= index < self.size:
            raise IndexError(f"point {index} of a grid of {self.size}")
        return self._in_order(self._tree.point(index))

    def sample(self, draw: Callable[[str], float]) -> Parameters:
        """Return a point whose parameters are drawn one by one, each after its parents.

        `draw` takes a parameter's name and returns a share of its values, from 0 to below 1; it is
        called only for parameters that exist in the point.
        """
        return self.build(lambda name: self.dimensions[name].at(draw(name)))

    def build(self, choose: Callable[[str], Any]) -> Parameters:
        """Return a point whose values are chosen one by one, each after its parents.

        `choose` takes a parameter's name and returns its value; it is called only for parameters
        that exist in the point.
        """
        chosen: Parameters = {}
        for name in self._order:
            if self._is_there(name, chosen):
                chosen[name] = choose(name)
        return self._in_order(chosen)

    def check(self, parameters: Mapping[str, Any]) -> None:
        """Check that parameters are a point of the space.

        A `SpaceError` if a parameter cannot have its value, is missing, or should not be there.
        """
        for error in self.problems(parameters):
            raise error

    def problems(self, parameters: Mapping[str, Any]) -> Iterator[SpaceError]:
        """Yield why parameters are no point of the space: an error for each that is wrong.

        A parameter that depends on a wrong one is not judged.
        """
        wrong: set[str] = set()
        for name in self._order:
            if not wrong.isdisjoint(self.conditions[name]):
                wrong.add(name)
                continue
            reason = self._problem_of(name, parameters)
            if reason:
                wrong.add(name)
                yield SpaceError(reason, name)
        for name in parameters:
            if name not in self.dimensions:
                yield SpaceError("is no parameter", name)

    def _problem_of(self, name: str, parameters: Mapping[str, Any]) -> str:
        try:
            wanted = self._is_there(name, parameters)
            if wanted != (name in parameters):
                return "is missing" if wanted else "should not be there"
            if wanted:
                self.dimensions[name].share(parameters[name])
        except (TypeError, ValueError) as error:
            return str(error)
        return ""

    def _is_there(self, name: str, chosen: Mapping[str, Any]) -> bool:
        return all(
            parent in chosen and condition.holds(chosen[parent])
            for parent, condition in self.conditions[name].items()
        )

    def _in_order(self, parameters: Parameters) -> Parameters:
        if self._is_in_order:
            return parameters
        return {name: parameters[name] for name in self.dimensions if name in parameters}
