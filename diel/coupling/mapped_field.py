"""`MappedField`: values at the points of one module, mapped to the points of another.

::

    at the start, once      all ranks tell those of the other module what they have been asked for;
                            the ranks whose points are interpolated send them along; each of the
                            others computes the weights of its own points, and tells those ranks
                            which of their points it needs
    consistent              a source rank sends the values that a target rank needs, which adds
                            them up by its weights
    conservative            a source rank adds up its values by its weights, and sends each target
                            rank what is to be added at its points
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from diel.coupling.address import Address
from diel.coupling.mapping import MappingMethod, as_cells, as_points, mapping_weights
from diel.errors import BoundaryError

if TYPE_CHECKING:
    from diel.loading.context import Context

Array = np.ndarray[Any, Any]


class MappedField:
    """A field that one module of a group gives at its points and another one reads at its own.

    Both modules make it by the same call, each rank with its own points: any number of them, also
    none. All ranks of all copies of the two modules take part.

    Parameters
    ----------
    ctx : Context
    name : str
        The same in both modules, and different for each field.
    source, target : str
        The module that pushes, and the module that pulls.
    points : array_like, shape (points, dimensions)
        Of this rank; of shape (points,) on a line.
    method : {"nearest", "linear", "rbf"}, optional
        As for `mapping_weights`.
    conservative : bool, optional
        Keep the sum of the values over all points, as forces need it. By default the mapping is
        consistent: it keeps constants, as temperatures need it.
    cells : array_like of int, optional
        Of this rank's own points, as for `mapping_weights`: those of the source's, or of the
        target's where the mapping is conservative.
    neighbours : int, optional
        As for `mapping_weights`.
    timeout : float, seconds, optional
        How long to wait for the points of the other module; by default as long as the run lasts.

    Raises
    ------
    BoundaryError
        If this module is neither source nor target, the modules do not agree, or points or cells
        are none.
    MissingPackage
        If SciPy is not installed.
    """

    def __init__(
        self,
        ctx: Context,
        name: str,
        source: str,
        target: str,
        points: Any,
        method: MappingMethod = "linear",
        *,
        conservative: bool = False,
        cells: Any = None,
        neighbours: int = 50,
        timeout: float | None = None,
    ) -> None:
        _check_modules(ctx, name, source, target)
        self.name = name
        self._ctx = ctx
        self._is_source = ctx.module == source
        self._conservative = conservative
        self._peers = _ranks_of(ctx, target if self._is_source else source)
        points = as_points(points, f'field "{name}"')
        self._size = len(points)
        self._weights: Any = None
        self._routes: list[Array] | None = None
        """Indices of the peers' points of which values are needed; without weights, of own ones."""
        self._agreed = source, target, method, conservative, neighbours
        computes = self._is_source == conservative
        sent = None if computes else points
        checked = None if computes or cells is None else as_cells(cells, len(points))
        for peer in self._peers:
            ctx.send((self._agreed, sent, checked), peer, tag=self._tag("points"))
        if computes:
            self._weigh(points, *self._receive_points(timeout), method, neighbours)

    def _receive_points(self, timeout: float | None) -> tuple[list[Any], list[Any]]:
        """Wait for the peers to make the field; return the points and cells that they send."""
        tag, points, cells = self._tag("points"), [], []
        for peer in self._peers:
            theirs, of_peer, cells_of_peer = self._ctx.recv(peer, tag=tag, timeout=timeout)
            if theirs != self._agreed:
                raise BoundaryError(
                    f'field "{self.name}": (source, target, method, conservative, neighbours) is '
                    f"{self._agreed} on {self._ctx.address}, and {theirs} on {Address(*peer)}"
                )
            points.append(of_peer)
            cells.append(cells_of_peer)
        return points, cells

    def _weigh(
        self,
        points: Array,
        of_peers: list[Array],
        cells: list[Array | None],
        method: MappingMethod,
        neighbours: int,
    ) -> None:
        """Compute the weights of own points, and tell each peer which of its points they need."""
        dimensions = {each.shape[1] for each in of_peers if len(each)}
        if len(dimensions) > 1:
            raise BoundaryError(
                f'field "{self.name}": ranks of {self._peers[0][0]} give points of '
                f"{' and '.join(map(str, sorted(dimensions)))} coordinates"
            )
        starts = np.cumsum([0, *map(len, of_peers)])
        weights = mapping_weights(
            np.concatenate([each for each in of_peers if len(each)] or of_peers[:1]),
            points,
            method,
            cells=self._joined(cells, of_peers, starts),
            neighbours=neighbours,
        )
        used = np.unique(weights.indices)
        self._weights = weights[:, used]
        bounds = np.searchsorted(used, starts)
        self._routes = [
            used[bounds[peer] : bounds[peer + 1]] - starts[peer] for peer in range(len(of_peers))
        ]
        for peer, route in zip(self._peers, self._routes, strict=True):
            self._ctx.send(route, peer, tag=self._tag("wanted"))

    def _joined(
        self, cells: list[Array | None], points: list[Array], starts: Array
    ) -> Array | None:
        """Return the cells of all peers as indices of their points, one peer after the other."""
        given = [
            (each, start) for each, start in zip(cells, starts, strict=False) if each is not None
        ]
        if not given:
            return None
        is_missing = any(
            each is None and len(of_peer) for each, of_peer in zip(cells, points, strict=True)
        )
        if is_missing or len({each.shape[1] for each, _ in given}) > 1:
            raise BoundaryError(
                f'field "{self.name}": cells are given by all ranks that have points, and are all '
                "of one kind"
            )
        return np.concatenate([each + start for each, start in given])

    def push(self, values: Any, timeout: float | None = None) -> None:
        """Send values at the points of this rank, of the source, to the ranks that need them.

        It does not wait, but for the first time, for the other module to make the field too.

        Parameters
        ----------
        values : array_like, shape (points, ...)
            Numbers, vectors or more for each point; the same shape of each on all ranks.
        timeout : float, seconds, optional

        Raises
        ------
        BoundaryError
            If this is a rank of the target, or the number of values is not that of the points.
        """
        if not self._is_source:
            raise BoundaryError(f'field "{self.name}": {self._ctx.address} is of its target')
        values = np.asarray(values)
        if values.ndim < 1 or len(values) != self._size:
            raise BoundaryError(
                f'field "{self.name}": {self._ctx.address} has {self._size} points, and gives '
                f"values of shape {values.shape}"
            )
        routes = self._await_routes(timeout)
        if self._conservative:
            sums = _times(self._weights.T, values)
            parts = np.split(sums, np.cumsum([len(route) for route in routes[:-1]]))
        else:
            parts = [values[route] for route in routes]
        for peer, part in zip(self._peers, parts, strict=True):
            if len(part) or self._is_first(self._ctx.address):
                self._ctx.send(part, peer, tag=self._tag("values"), copy=False)  # nobody else's

    def pull(self, timeout: float | None = None) -> Array:
        """Wait for the source's next push, and return the values at the points of this rank.

        Parameters
        ----------
        timeout : float, seconds, optional
            How long to wait for each rank; by default as long as the run lasts.

        Returns
        -------
        ndarray, shape (points, ...)

        Raises
        ------
        BoundaryError
            If this is a rank of the source.
        CouplingTimeout
            If a rank of the source has not pushed in time.
        RunStopped
            If the run is stopping.
        """
        if self._is_source:
            raise BoundaryError(f'field "{self.name}": {self._ctx.address} is of its source')
        parts = [
            (route, self._ctx.recv(peer, tag=self._tag("values"), timeout=timeout))
            for peer, route in zip(self._peers, self._await_routes(timeout), strict=True)
            if len(route) or self._is_first(peer)
        ]
        values = [part for _, part in parts]
        if not self._conservative:
            return _times(self._weights, np.concatenate(values))
        sums = np.zeros((self._size, *values[0].shape[1:]), np.result_type(float, *values))
        for route, part in parts:
            sums[route] += part
        return sums

    def _await_routes(self, timeout: float | None) -> list[Array]:
        if self._routes is None:
            self._receive_points(timeout)
            tag = self._tag("wanted")
            self._routes = [self._ctx.recv(peer, tag=tag, timeout=timeout) for peer in self._peers]
        return self._routes

    def _is_first(self, rank: tuple[str, int, int]) -> bool:
        """Whether a rank sends to all, even nothing: a rank that needs nothing learns the shape."""
        return rank[1:] == (0, 0)

    def _tag(self, what: str) -> tuple[str, str, str]:
        return "mapped field", self.name, what


def _check_modules(ctx: Context, name: str, source: str, target: str) -> None:
    if source == target or ctx.module not in (source, target):
        raise BoundaryError(
            f'field "{name}" goes from {source} to {target}: two modules, of which {ctx.address} '
            "has to be a rank"
        )
    absent = [module for module in (source, target) if module not in ctx.copies_of]
    if absent:
        raise BoundaryError(
            f'field "{name}": there is no {absent[0]} in group "{ctx.group}", which has '
            f"{', '.join(ctx.copies_of)}"
        )


def _ranks_of(ctx: Context, module: str) -> list[tuple[str, int, int]]:
    copies = ctx.copies_of[module]
    ranks = ctx.ranks_of(module) // copies
    return [(module, copy, rank) for copy in range(copies) for rank in range(ranks)]


def _times(matrix: Any, values: Array) -> Array:
    """Return the product of a sparse matrix and values of any shape at each point."""
    inner = values.shape[1:]
    found: Array = matrix @ values.reshape(len(values), math.prod(inner))
    return found.reshape(len(found), *inner)
