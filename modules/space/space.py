"""A search space: named parameters, their values, and when they are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .conditions import Condition, parents_first, parse_conditions
from .decoding import Tree
from .dimensions import Dimension, Finite
from .errors import SpaceError
from .parsing import parse_dimension

Parameters = dict[str, Any]
"""The parameters of one point, in the order of the file; absent ones are not in it."""


class Space:
    """Named parameters, each with its values.

    Parameters
    ----------
    dimensions : mapping of str to Dimension
    conditions : mapping of str to mapping of str to Condition, optional
        Beside what a parameter exists; without an entry, always.

    Attributes
    ----------
    dimensions : mapping of str to Dimension
    is_finite : bool
        Whether a grid can go through it.

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
            name for name, one in self.dimensions.items() if not isinstance(one, Finite)
        ]
        self._tree = Tree(self._order, self.dimensions, self.conditions)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as what it is made of: the tree of its points may be deep."""
        return Space, (self.dimensions, self.conditions)

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
    def is_finite(self) -> bool:
        """Whether its points can be counted."""
        return not self.endless

    @property
    def size(self) -> int:
        """The number of points.

        Raises
        ------
        SpaceError
            If they cannot be counted.
        """
        if self.endless:
            raise SpaceError(
                "every number between two, which a grid cannot go through; "
                "add step or log_steps, or choose another strategy",
                self.endless[0],
            )
        return self._tree.root.size

    def point(self, index: int) -> Parameters:
        """Return the parameters of one point of the grid, the last one varying fastest.

        Parameters
        ----------
        index : int
            From 0 to ``size - 1``.

        Raises
        ------
        IndexError
            If it is not.
        SpaceError
            If the points cannot be counted.
        """
        if not 0 <= index < self.size:
            raise IndexError(f"point {index} of a grid of {self.size}")
        return self._in_order(self._tree.point(index))

    def sample(self, draw: Callable[[str], float]) -> Parameters:
        """Return a point whose parameters are drawn one by one, each after those it asks about.

        Parameters
        ----------
        draw : function
            Takes a parameter's name, gives a share of its values, from 0 to below 1; called only
            for parameters that are there.
        """
        return self.build(lambda name: self.dimensions[name].at(draw(name)))

    def build(self, choose: Callable[[str], Any]) -> Parameters:
        """Return a point whose values are chosen one by one, each after those it asks about.

        Parameters
        ----------
        choose : function
            Takes a parameter's name, gives its value; called only for parameters that are there.
        """
        chosen: Parameters = {}
        for name in self._order:
            if self._is_there(name, chosen):
                chosen[name] = choose(name)
        return self._in_order(chosen)

    def check(self, parameters: Mapping[str, Any]) -> None:
        """Check that parameters are a point of the space.

        Raises
        ------
        SpaceError
            If a value is none of its parameter's, or one is missing or should be.
        """
        for name in [*self._order, *(one for one in parameters if one not in self.dimensions)]:
            wanted = name in self.dimensions and self._is_there(name, parameters)
            if wanted != (name in parameters):
                raise SpaceError("is missing" if wanted else "should not be there", name)
            if wanted:
                try:
                    self.dimensions[name].share(parameters[name])
                except ValueError as error:
                    raise SpaceError(str(error), name) from None

    def _is_there(self, name: str, chosen: Mapping[str, Any]) -> bool:
        return all(
            other in chosen and condition.holds(chosen[other])
            for other, condition in self.conditions[name].items()
        )

    def _in_order(self, parameters: Parameters) -> Parameters:
        if self._is_in_order:
            return parameters
        return {name: parameters[name] for name in self.dimensions if name in parameters}
