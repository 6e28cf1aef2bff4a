"""Weights between point sets: what is exact, what is kept, and SciPy's own interpolants."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diel import mapping_weights
from diel.coupling.mapping import MappingMethod
from diel.errors import BoundaryError, MissingPackage

interpolate = pytest.importorskip("scipy.interpolate", reason="SciPy is not installed")

METHODS = get_args(MappingMethod)


def random_points(count: int, dimensions: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((count, dimensions))


def circle(count: int, turn: float = 0.0) -> np.ndarray:
    angles = np.linspace(0, 2 * np.pi, count, endpoint=False) + turn
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def edges_of_circle(count: int) -> np.ndarray:
    return np.stack([np.arange(count), np.roll(np.arange(count), -1)], axis=1)


def sphere(rows: int, turn: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return points of a sphere without its poles, and the triangles between them."""
    down, around = np.meshgrid(
        np.linspace(0.1, np.pi - 0.1, rows),
        np.linspace(0, 2 * np.pi, 2 * rows, endpoint=False) + turn,
        indexing="ij",
    )
    points = np.stack(
        [np.sin(down) * np.cos(around), np.sin(down) * np.sin(around), np.cos(down)], axis=-1
    )
    at = np.arange(points[..., 0].size).reshape(rows, -1)
    here, below = at[:-1], at[1:]
    beside, below_beside = np.roll(here, -1, axis=1), np.roll(below, -1, axis=1)
    triangles = [[here, below, beside], [beside, below, below_beside]]
    return points.reshape(-1, 3), np.concatenate(
        [np.stack(each, axis=-1).reshape(-1, 3) for each in triangles]
    )


# -- every method ----------------------------------------------------------------------------------


@given(
    st.sampled_from(METHODS),
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(0, 10),
    st.integers(0, 10**6),
)
def test_constants_and_sums_are_kept(
    method: MappingMethod, dimensions: int, sources: int, targets: int, seed: int
) -> None:
    source, target = (random_points(n, dimensions, seed + n) for n in (sources, targets))
    weights = mapping_weights(source, target, method)
    assert weights.shape == (targets, sources)
    np.testing.assert_allclose(weights @ np.full(sources, 7.0), 7.0, rtol=1e-12)
    forces = np.arange(1.0, targets + 1)
    np.testing.assert_allclose((weights.T @ forces).sum(), forces.sum(), rtol=1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_between_the_same_points_nothing_changes(method: MappingMethod, dimensions: int) -> None:
    points = random_points(80, dimensions)
    found = mapping_weights(points, points, method).toarray()
    np.testing.assert_allclose(found, np.eye(80), atol=1e-8)


@pytest.mark.parametrize("method", METHODS)
def test_points_that_are_given_twice_count_once(method: MappingMethod) -> None:
    points, target = random_points(30, 2), random_points(10, 2, seed=1)
    twice = mapping_weights(np.concatenate([points, points[::-1]]), target, method).toarray()
    assert not twice[:, 30:].any()
    np.testing.assert_allclose(twice[:, :30], mapping_weights(points, target, method).toarray())


@pytest.mark.parametrize("method", METHODS)
def test_a_row_depends_on_its_own_target_alone(method: MappingMethod) -> None:
    points, target = random_points(70, 3), random_points(20, 3, seed=1) * 1.4 - 0.2
    whole = mapping_weights(points, target, method).toarray()
    for index in range(20):
        row = mapping_weights(points, target[[index]], method).toarray()
        np.testing.assert_allclose(row[0], whole[index], atol=1e-10)


@pytest.mark.parametrize("method", ["linear", "rbf"])
@pytest.mark.parametrize("extent", [1, 2])
def test_points_on_a_line_or_a_plane_in_space(method: MappingMethod, extent: int) -> None:
    axes = np.array([[2.0, 1.0, -1.0], [0.0, 1.0, 1.0]])[:extent]
    source, target = random_points(60, extent), random_points(20, extent, seed=1) * 0.6 + 0.2
    above = target @ axes + 0.01 * np.cross([2.0, 1.0, -1.0], [0.0, 1.0, 1.0])
    weights = mapping_weights(source @ axes, above, method)
    np.testing.assert_allclose(weights @ source @ axes, target @ axes, atol=1e-9)


def test_finer_methods_have_smaller_errors() -> None:
    x = np.linspace(0, 1, 15)
    source = np.stack(np.meshgrid(x, x), axis=-1).reshape(-1, 2)
    target = random_points(200, 2)

    def wave(at: np.ndarray) -> np.ndarray:
        return np.sin(3 * at[:, 0]) * np.cos(4 * at[:, 1])

    errors = [
        abs(mapping_weights(source, target, method) @ wave(source) - wave(target)).max()
        for method in METHODS
    ]
    assert errors[0] > 4 * errors[1] > 8 * errors[2]


# -- each method -----------------------------------------------------------------------------------


def test_nearest_is_the_nearest() -> None:
    source, target = random_points(50, 3), random_points(40, 3, seed=1)
    distances = np.linalg.norm(target[:, None] - source, axis=2)
    found = mapping_weights(source, target, "nearest") @ np.arange(50)
    assert found.tolist() == distances.argmin(axis=1).tolist()


def test_linear_on_a_line_is_that_of_numpy_also_outside() -> None:
    source, target = random_points(20, 1)[:, 0], np.linspace(-0.5, 1.5, 41)
    values, order = np.sin(9 * source), np.argsort(source)
    found = mapping_weights(source, target) @ values
    np.testing.assert_allclose(found, np.interp(target, source[order], values[order]), atol=1e-12)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_linear_is_that_of_scipy_in_the_hull_and_goes_on_from_its_border(dimensions: int) -> None:
    source = random_points(100, dimensions)
    target = random_points(200, dimensions, seed=1) * 1.2 - 0.1
    values = np.sin(source @ np.arange(1, dimensions + 1))
    weights = mapping_weights(source, target)
    expected = interpolate.LinearNDInterpolator(source, values)(target)
    inside = np.isfinite(expected)
    assert 50 < inside.sum() < 190
    np.testing.assert_allclose((weights @ values)[inside], expected[inside], atol=1e-12)
    assert weights.data.min() >= 0
    # A target outside has the value of the hull's nearest point: no point of it is nearer.
    at = (weights @ source)[~inside]
    distance = np.linalg.norm(at - target[~inside], axis=1)
    along = np.einsum("td,tsd->ts", target[~inside] - at, source[None] - at[:, None])
    assert (along <= 1e-9 * distance[:, None]).all()


def test_linear_on_a_curve_follows_its_edges() -> None:
    source, target = circle(40), circle(61, turn=0.01)
    weights = mapping_weights(source, target, cells=edges_of_circle(40))
    angle = np.arctan2(target[:, 1], target[:, 0])
    np.testing.assert_allclose(
        weights @ np.sin(3 * np.arctan2(source[:, 1], source[:, 0])), np.sin(3 * angle), atol=0.03
    )
    assert weights.data.min() > 0
    assert np.diff(weights.indptr).max() == 2


def test_cells_keep_the_sides_of_a_thin_plate_apart() -> None:
    x = np.linspace(0, 1, 11)
    above, below = np.stack([x, 0 * x + 1e-4], axis=1), np.stack([x, 0 * x - 1e-4], axis=1)
    edges = np.stack([np.arange(10), np.arange(1, 11)], axis=1)
    source, target = np.concatenate([above, below]), above + np.array([0.05, 0])
    weights = mapping_weights(source, target, cells=np.concatenate([edges, edges + 11]))
    np.testing.assert_allclose(weights @ np.repeat([1.0, -1.0], 11), 1.0)


def test_linear_on_a_surface_follows_its_triangles() -> None:
    (source, triangles), (target, _) = sphere(20), sphere(13, turn=0.1)
    weights = mapping_weights(source, target, cells=triangles)
    np.testing.assert_allclose(weights @ source, target, atol=0.02)
    assert weights.data.min() >= 0
    assert np.diff(weights.indptr).max() == 3
    in_the_air = mapping_weights(source, 1.5 * target, cells=triangles)
    np.testing.assert_allclose(in_the_air @ source, target, atol=0.03)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_rbf_is_that_of_scipy(dimensions: int) -> None:
    source, target = random_points(90, dimensions), random_points(40, dimensions, seed=1)
    values = np.sin(2 * source @ np.arange(1, dimensions + 1))
    expected = interpolate.RBFInterpolator(source, values, neighbors=30)(target)
    found = mapping_weights(source, target, "rbf", neighbours=30) @ values
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_rbf_of_all_points_is_exact_for_linear_functions() -> None:
    source, target = random_points(40, 3), random_points(30, 3, seed=1) * 2 - 0.5
    weights = mapping_weights(source, target, "rbf", neighbours=1000)
    np.testing.assert_allclose(weights @ source, target, atol=1e-10)


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((np.zeros((2, 2)), np.zeros((2, 3))), {}, "have 2 coordinates, and target points 3"),
        ((np.zeros((2, 4)), np.zeros((2, 4))), {}, r"source: coordinates have the shape \(points,"),
        (([[0.0], [np.inf]], [0.0]), {}, "source: there are coordinates that are not finite"),
        (([0.0], ["here"]), {}, "target: coordinates are numbers"),
        (([], [0.0]), {}, "there is no source point for 1 target points"),
        (([0.0], [0.0], "cubic"), {}, 'no mapping method \'cubic\': use "nearest", "linear", '),
        (([0.0], [0.0], "rbf"), {"neighbours": 0}, "neighbours is at least 1, not 0"),
        (([0.0], [0.0]), {"cells": [0, 1]}, "cells are whole numbers of shape"),
        (([0.0], [0.0]), {"cells": [[0, 1]]}, "indices of 1 points, from 0: there are 0 to 1"),
        (([0.0], [0.0]), {"cells": np.zeros((0, 2), int)}, "there are no cells"),
    ],
)
def test_what_is_refused(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(BoundaryError, match=message):
        mapping_weights(*arguments, **options)


def test_without_scipy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(MissingPackage, match=r'pip install "diel\[coupling\]"'):
        mapping_weights([0.0], [0.0])


def test_scipy_is_not_imported_before_it_is_used() -> None:
    code = "import sys, diel; diel.MappedField, diel.mapping_weights; print('scipy' in sys.modules)"
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout == "False\n"
