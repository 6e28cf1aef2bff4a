"""Mapping between point sets that do not match: nearest, linear and radial-basis weights.

A mapping is a sparse matrix of weights, a row for each target point and a column for each source
point, whose rows sum to 1::

    consistent      weights(source, target) @ values            temperatures, displacements
    conservative    weights(target, source).T @ values          forces, heat: their sum is kept

A row depends on the source points and on its own target point alone, so ranks that have different
targets compute different rows. SciPy is imported by the first call.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import numpy as np

from diel.errors import BoundaryError, MissingPackage

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Array = np.ndarray[Any, Any]
MappingMethod: TypeAlias = Literal["nearest", "linear", "rbf"]

_FLAT: Final = 1e-6
"""Points extend in a direction if they do so by more than this part of their largest extent."""
_INSIDE: Final = 1e-9
"""A point is in a cell if no weight of it is further below 0."""
_NEAR: Final = 6
"""Cells that meet at so many nearest points of a target are compared."""
_CHUNK: Final = 100
"""Targets whose systems of equations are solved at once."""


def mapping_weights(
    source: Any,
    target: Any,
    method: MappingMethod = "linear",
    *,
    cells: Any = None,
    neighbours: int = 50,
) -> csr_array:
    """Return the weights by which values at source points give values at target points.

    Parameters
    ----------
    source, target : array_like, shape (points, dimensions)
        Coordinates, in up to three dimensions; of shape (points,) on a line.
    method : {"nearest", "linear", "rbf"}
        The value of the nearest source point; linear interpolation in the cell that a target is
        in, or in the point of all cells that is nearest to it; or thin plate splines.
    cells : array_like of int, shape (cells, 2, 3 or 4), optional
        Of "linear": edges, triangles or tetrahedra, as indices of source points. Without them,
        source points on a line are joined one by one, and others by a Delaunay triangulation in
        the plane or the space in which they lie: so a curved surface needs its cells.
    neighbours : int, optional
        Of "rbf": from how many nearest source points each target is interpolated.

    Returns
    -------
    scipy.sparse.csr_array of float64, shape (target points, source points)
        Its rows sum to 1. "linear" and "rbf" are exact for linear functions, "linear" inside the
        cells; the weights of "nearest" and "linear" are at least 0.

    Raises
    ------
    BoundaryError
        If the points or cells are none, or no source point is there for a target.
    MissingPackage
        If SciPy is not installed.

    Notes
    -----
    "rbf" is the interpolant of radial basis functions ``r**2 log r`` and a linear polynomial [1]_
    through the nearest points. Its weights w are those of the dual system of equations, with P the
    polynomial's terms at the source points, p and phi those and the basis functions at the target::

        [ Phi  P ] [ w ]   [ phi ]
        [ P^T  0 ] [   ] = [  p  ]

    Directions in which the source points do not extend have no term in the polynomial.

    References
    ----------
    .. [1] Beckert, Wendland, Multivariate interpolation for fluid-structure-interaction problems
       using radial basis functions, Aerospace Science and Technology 5, 2001.
    """
    source, target = as_points(source, "source"), as_points(target, "target")
    if len(source) and len(target) and source.shape[1] != target.shape[1]:
        raise BoundaryError(
            f"source points have {source.shape[1]} coordinates, and target points {target.shape[1]}"
        )
    if method not in get_args(MappingMethod):
        known = ", ".join(f'"{name}"' for name in get_args(MappingMethod))
        raise BoundaryError(f"there is no mapping method {method!r}: use {known}")
    if not len(source) and len(target):
        raise BoundaryError(f"there is no source point for {len(target)} target points")
    try:
        from scipy.sparse import csr_array
    except ImportError:
        raise MissingPackage(
            'mapping between point sets needs SciPy: pip install "diel[coupling]"'
        ) from None
    if not len(target):
        return csr_array((0, len(source)))
    # Ranks that share a point both give it.
    points, first, place = np.unique(source, axis=0, return_index=True, return_inverse=True)
    if method == "nearest":
        columns, weights = _nearest(points, target, 1), np.ones((len(target), 1))
    elif method == "rbf":
        columns, weights = _radial_basis(points, target, neighbours)
    elif cells is not None:
        columns, weights = _on_cells(
            points, target, place.reshape(-1)[as_cells(cells, len(source))]
        )
    else:
        columns, weights = _linear(points, target)
    weights = weights / weights.sum(axis=1, keepdims=True)
    rows = np.arange(len(target) + 1) * columns.shape[1]
    found = csr_array(
        (weights.reshape(-1), first[columns].reshape(-1), rows), (len(target), len(source))
    )
    found.eliminate_zeros()
    return found


def as_points(points: Any, noun: str = "points") -> Array:
    """Return coordinates as an array of shape (points, dimensions)."""
    try:
        found = np.asarray(points, float)
    except (TypeError, ValueError):
        raise BoundaryError(f"{noun}: coordinates are numbers, of shape (points, 3)") from None
    if found.ndim == 1:
        found = found[:, np.newaxis]
    if found.ndim != 2 or not 1 <= found.shape[1] <= 3:
        raise BoundaryError(
            f"{noun}: coordinates have the shape (points, 1, 2 or 3), not {found.shape}"
        )
    if not np.isfinite(found).all():
        raise BoundaryError(f"{noun}: there are coordinates that are not finite")
    return found


def as_cells(cells: Any, points: int) -> Array:
    """Return edges, triangles or tetrahedra as an array of indices of so many points."""
    found = np.asarray(cells)
    if found.ndim != 2 or found.shape[1] not in (2, 3, 4) or found.dtype.kind not in "iu":
        raise BoundaryError(
            f"cells are whole numbers of shape (cells, 2, 3 or 4), not {found.dtype} of shape "
            f"{found.shape}"
        )
    if found.size and not 0 <= found.min() <= found.max() < points:
        raise BoundaryError(
            f"cells are indices of {points} points, from 0: there are {found.min()} to "
            f"{found.max()}"
        )
    return found


# -- each returns (columns, weights), both of shape (targets, any) ---------------------------------


def _nearest(points: Array, target: Array, count: int) -> Array:
    """Return the indices of the nearest points of each target, shape (targets, count)."""
    from scipy.spatial import cKDTree

    found: Array = cKDTree(points).query(target, k=np.arange(1, min(count, len(points)) + 1))[1]
    return found


def _linear(points: Array, target: Array) -> tuple[Array, Array]:
    """Interpolate in a triangulation of the points, in the line, plane or space that they span."""
    centre = points.mean(axis=0)
    _, spread, axes = np.linalg.svd(points - centre, full_matrices=False)
    axes = axes[spread > _FLAT * spread[0]]
    flat, at = (points - centre) @ axes.T, (target - centre) @ axes.T
    if len(axes) == 0:
        return _nearest(points, target, 1), np.ones((len(target), 1))
    if len(axes) == 1:
        order = np.argsort(flat[:, 0])
        return _on_line(flat[order, 0], at[:, 0], order)
    from scipy.spatial import Delaunay

    triangulation = Delaunay(flat)
    cell = triangulation.find_simplex(at)
    columns = triangulation.simplices[cell]
    weights, _ = _barycentric(flat[columns], at)
    outside = (cell < 0) | (weights.min(axis=1) < -_INSIDE)
    if outside.any():
        on_hull = _on_cells(flat, at[outside], triangulation.convex_hull)
        columns[outside] = np.pad(on_hull[0], ((0, 0), (0, 1)))
        weights[outside] = np.pad(on_hull[1], ((0, 0), (0, 1)))
    return columns, weights.clip(0)


def _on_line(x: Array, at: Array, order: Array) -> tuple[Array, Array]:
    """Interpolate between points with ascending x, as `numpy.interp` does."""
    right = np.searchsorted(x, at).clip(1, len(x) - 1)
    gap = x[right] - x[right - 1]
    part = ((at - x[right - 1]) / np.where(gap > 0, gap, 1.0)).clip(0, 1)
    return order[np.stack([right - 1, right], axis=1)], np.stack([1 - part, part], axis=1)


def _on_cells(points: Array, target: Array, cells: Array) -> tuple[Array, Array]:
    """Interpolate in the nearest point of the cells, which may lie on a facet or be a corner."""
    used = np.unique(cells)
    if not len(used):
        raise BoundaryError("there are no cells to interpolate in")
    near = used[_nearest(points[used], target, _NEAR)]
    columns = np.zeros((len(target), cells.shape[1]), int)
    weights = np.zeros(columns.shape)
    best = np.full(len(target), np.inf)
    for size in range(cells.shape[1], 0, -1):
        corners = [cells[:, list(some)] for some in combinations(range(cells.shape[1]), size)]
        facets = np.unique(np.sort(np.concatenate(corners), axis=1), axis=0)
        row, facet, part, distance = _nearest_facets(points, target, facets, near)
        is_better = distance < best[row] * (1 - _INSIDE)
        row, facet, part, distance = (each[is_better] for each in (row, facet, part, distance))
        best[row] = distance
        columns[row], weights[row] = 0, 0
        columns[row, :size], weights[row, :size] = facets[facet], part.clip(0)
    return columns, weights


def _nearest_facets(
    points: Array, target: Array, facets: Array, near: Array
) -> tuple[Array, Array, Array, Array]:
    """Find the nearest facet of each target, of those that it has a projection in.

    Parameters
    ----------
    points, target : ndarray
    facets : ndarray of int, shape (facets, size)
        Cells, their sides, edges or corners, as indices of points.
    near : ndarray of int, shape (targets, any)
        Points near each target; facets that have one of them as a corner are compared.

    Returns
    -------
    tuple of ndarray
        Targets that have found one, their facets, the weights of its corners, squared distances.
    """
    from scipy.sparse import csr_array

    def relation(rows: Array, of: Array, shape: tuple[int, int]) -> Any:
        return csr_array((np.ones(of.size, bool), (rows.reshape(-1), of.reshape(-1))), shape)

    has_near = relation(
        np.repeat(np.arange(len(target)), near.shape[1]), near, (len(target), len(points))
    )
    is_corner = relation(
        facets, np.repeat(np.arange(len(facets)), facets.shape[1]), (len(points), len(facets))
    )
    row, facet = (has_near @ is_corner).nonzero()
    part, distance = _barycentric(points[facets[facet]], target[row])
    order = np.lexsort((distance, row))
    order = order[part[order].min(axis=1) >= -_INSIDE]
    row, first = np.unique(row[order], return_index=True)
    order = order[first]
    return row, facet[order], part[order], distance[order]


def _barycentric(corners: Array, at: Array) -> tuple[Array, Array]:
    """Return where points lie in cells, projected on them, and their squared distances.

    Parameters
    ----------
    corners : ndarray, shape (n, corners, dimensions)
    at : ndarray, shape (n, dimensions)

    Returns
    -------
    tuple of ndarray
        Weights of the corners, shape (n, corners): their sum is 1, and one is below 0 outside of
        the cell. Squared distances, shape (n,).
    """
    edges = corners[:, 1:] - corners[:, :1]
    offset = at - corners[:, 0]
    part = np.einsum("nd,ndc->nc", offset, np.linalg.pinv(edges))
    rest = offset - np.einsum("nc,ncd->nd", part, edges)
    weights = np.concatenate([1 - part.sum(axis=1, keepdims=True), part], axis=1)
    return weights, np.einsum("nd,nd->n", rest, rest)


def _radial_basis(points: Array, target: Array, neighbours: int) -> tuple[Array, Array]:
    if neighbours < 1:
        raise BoundaryError(f"neighbours is at least 1, not {neighbours!r}")
    columns = _nearest(points, target, neighbours)
    weights = [
        _spline_weights(points[columns[at : at + _CHUNK]], target[at : at + _CHUNK])
        for at in range(0, len(target), _CHUNK)
    ]
    return columns, np.concatenate(weights)


def _spline_weights(nodes: Array, target: Array) -> Array:
    """Return the weights w of `mapping_weights` of nodes for a target, n times.

    Parameters
    ----------
    nodes : ndarray, shape (n, nodes, dimensions)
    target : ndarray, shape (n, dimensions)

    Returns
    -------
    ndarray, shape (n, nodes)
    """
    centre = nodes.mean(axis=1, keepdims=True)
    nodes, at = nodes - centre, target[:, np.newaxis] - centre
    scale = np.sqrt((nodes**2).sum(axis=2).max(axis=1))[:, np.newaxis, np.newaxis]
    scale[scale == 0] = 1.0
    nodes, at = nodes / scale, at / scale
    _, spread, axes = np.linalg.svd(nodes, full_matrices=False)
    extends = (spread > 0) & (spread > _FLAT * spread[:, :1])
    axes = axes * extends[:, :, np.newaxis]  # 0 where the nodes do not extend
    at = at @ axes.transpose(0, 2, 1) @ axes
    count, polynomial = nodes.shape[1], _linear_terms(nodes, axes)
    matrix = np.zeros((len(nodes), count + polynomial.shape[2], count + polynomial.shape[2]))
    matrix[:, :count, :count] = _thin_plate(nodes, nodes)
    matrix[:, :count, count:] = polynomial
    matrix[:, count:, :count] = polynomial.transpose(0, 2, 1)
    missing = np.arange(count + 1, matrix.shape[1])
    matrix[:, missing, missing] = ~extends
    right = np.concatenate([_thin_plate(at, nodes), _linear_terms(at, axes)], axis=2)
    found: Array = np.linalg.solve(matrix, right.transpose(0, 2, 1))[:, :count, 0]
    return found


def _linear_terms(at: Array, axes: Array) -> Array:
    """Return the terms of a linear polynomial: 1, and the coordinates along the axes."""
    return np.concatenate([np.ones((*at.shape[:2], 1)), at @ axes.transpose(0, 2, 1)], axis=2)


def _thin_plate(at: Array, nodes: Array) -> Array:
    """Return ``r**2 log r`` of the distances r between points."""
    squares = np.zeros((len(at), at.shape[1], nodes.shape[1]))
    for axis in range(at.shape[2]):  # faster than a sum over an axis of so few
        squares += (at[:, :, np.newaxis, axis] - nodes[:, np.newaxis, :, axis]) ** 2
    found: Array = squares * np.log(np.where(squares > 0, squares, 1.0)) / 2
    return found
