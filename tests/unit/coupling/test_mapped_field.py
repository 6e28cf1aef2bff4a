"""Fields between modules whose points differ, on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import case_count

from diel import Context, MappedField, mapping_weights
from diel.coupling.mapping import MappingMethod
from diel.errors import BoundaryError, CouplingTimeout
from diel.testing import Module, run_modules

pytest.importorskip("scipy", reason="SciPy is not installed")

SOURCE = np.random.default_rng(0).random((40, 2))
TARGET = np.random.default_rng(1).random((25, 2))


def share(of: Any, ctx: Context) -> Any:
    """Return the part that a copy has of an array."""
    return np.array_split(of, ctx.copies)[ctx.copy_index]


def mapped(
    values: Any, sources: int, targets: int, then: Callable[[MappedField], Any], **options: Any
) -> list[Any]:
    """Map values from SOURCE, distributed among copies, to TARGET; what each copy has then."""

    def fluid(ctx: Context) -> None:
        field = MappedField(ctx, "force", "fluid", "solid", share(SOURCE, ctx), **options)
        for scale in (1, 2):
            field.push(scale * share(values, ctx))

    def solid(ctx: Context) -> Any:
        field = MappedField(ctx, "force", "fluid", "solid", share(TARGET, ctx), **options)
        first = then(field)
        np.testing.assert_allclose(field.pull(), 2 * first)
        return first

    runs = run_modules(
        {"fluid": Module(fluid, copies=sources), "solid": Module(solid, None, targets)}
    )
    assert [run.warnings for run in runs["fluid"] + runs["solid"]] == [[]] * (sources + targets)
    return [run.returned for run in runs["solid"]]


@settings(max_examples=case_count(30), deadline=None)
@given(
    st.sampled_from(["nearest", "linear", "rbf"]),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([(), (3,), (2, 2), (0,)]),
    st.booleans(),
)
def test_it_is_the_same_on_any_number_of_ranks(
    method: MappingMethod, sources: int, targets: int, inner: tuple[int, ...], conservative: bool
) -> None:
    values = np.random.default_rng(2).random((40, *inner))
    found = mapped(
        values,
        sources,
        targets,
        MappedField.pull,
        method=method,
        conservative=conservative,
        neighbours=12,
    )
    if conservative:
        weights = mapping_weights(TARGET, SOURCE, method, neighbours=12).T
    else:
        weights = mapping_weights(SOURCE, TARGET, method, neighbours=12)
    expected = np.einsum("ts,s...->t...", weights.toarray(), values)
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-12)


@pytest.mark.parametrize("conservative", [False, True])
def test_ranks_without_points_take_part(conservative: bool) -> None:
    def fluid(ctx: Context) -> None:
        points = np.zeros((1, 2)) if ctx.copy_index == 1 else np.zeros((0, 2))
        points = [] if ctx.copy_index == 2 else points
        field = MappedField(ctx, "f", "fluid", "solid", points, conservative=conservative)
        field.push(np.full((len(points), 3), 5.0))

    def solid(ctx: Context) -> Any:
        points = [[1, 1], [2, 2]] if ctx.copy_index == 2 else []
        return MappedField(ctx, "f", "fluid", "solid", points, conservative=conservative).pull()

    runs = run_modules({"fluid": Module(fluid, copies=3), "solid": Module(solid, copies=3)})
    found = [run.returned for run in runs["solid"]]
    assert [part.shape for part in found] == [(0, 3), (0, 3), (2, 3)]
    assert found[2].tolist() == [[5.0] * 3, [0.0 if conservative else 5.0] * 3]


def test_only_values_that_are_needed_travel() -> None:
    sent: list[int] = []

    def fluid(ctx: Context) -> None:
        field = MappedField(ctx, "f", "fluid", "solid", np.arange(100.0))
        send = ctx.send
        ctx.send = lambda value, *to, **more: sent.append(len(value)) or send(value, *to, **more)  # type: ignore[method-assign]
        field.push(np.arange(100.0) ** 2)

    def solid(ctx: Context) -> Any:
        x = [10.5, 11.5] if ctx.copy_index else [60.0]
        return MappedField(ctx, "f", "fluid", "solid", x).pull().tolist()

    runs = run_modules({"fluid": fluid, "solid": Module(solid, copies=2)})
    assert [run.returned for run in runs["solid"]] == [[3600.0], [110.5, 132.5]]
    assert sorted(sent) == [1, 3]


def test_cells_of_ranks_are_joined() -> None:
    angles = np.linspace(0, 2 * np.pi, 41)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)

    def fluid(ctx: Context) -> None:
        half = slice(20, 41) if ctx.copy_index else slice(0, 21)  # two points are in both
        edges = np.stack([np.arange(20), np.arange(1, 21)], axis=1)
        field = MappedField(ctx, "f", "fluid", "solid", circle[half], cells=edges)
        field.push(angles[half] % (2 * np.pi))

    def solid(ctx: Context) -> Any:
        target = (circle[1:] + circle[:-1]) / 2
        return MappedField(ctx, "f", "fluid", "solid", target[:-1]).pull()

    runs = run_modules({"fluid": Module(fluid, copies=2), "solid": solid})
    np.testing.assert_allclose(
        runs["solid"][0].returned, ((angles[1:] + angles[:-1]) / 2)[:-1], atol=1e-12
    )


def test_two_fields_may_be_made_in_any_order() -> None:
    def fluid(ctx: Context) -> Any:
        forth = MappedField(ctx, "forth", "fluid", "solid", SOURCE)
        back = MappedField(ctx, "back", "solid", "fluid", SOURCE, conservative=True)
        forth.push(np.ones(40))
        return back.pull().sum()

    def solid(ctx: Context) -> None:
        back = MappedField(ctx, "back", "solid", "fluid", TARGET, conservative=True)
        forth = MappedField(ctx, "forth", "fluid", "solid", TARGET)
        back.push(3 * forth.pull())

    returned = run_modules({"fluid": fluid, "solid": solid})["fluid"][0].returned
    assert returned == pytest.approx(75)


# -- what is refused -------------------------------------------------------------------------------


def idle(ctx: Context) -> None:
    """Take no part."""


def test_modules_that_have_no_part_in_it_are_refused() -> None:
    def alone(ctx: Context) -> None:
        for source, target in (("alone", "alone"), ("idle", "other")):
            with pytest.raises(BoundaryError, match=r"two modules, of which alone\.0 rank 0 "):
                MappedField(ctx, "f", source, target, [0.0])
        with pytest.raises(BoundaryError, match='no fluid in group "group", which has alone, idle'):
            MappedField(ctx, "f", "alone", "fluid", [0.0])
        with pytest.raises(BoundaryError, match='field "f": coordinates have the shape'):
            MappedField(ctx, "f", "alone", "idle", np.zeros((1, 4)))
        with pytest.raises(CouplingTimeout):
            MappedField(ctx, "f", "idle", "alone", [0.0], timeout=0.01)

    run_modules({"alone": alone, "idle": idle})


@pytest.mark.parametrize(
    ("of_fluid", "of_solid", "differ"),
    [
        ({}, {"method": "nearest"}, ["'linear'", "'nearest'"]),
        ({"conservative": True}, {}, ["True", "False"]),
        ({}, {"conservative": True}, ["True", "False"]),
    ],
)
def test_modules_have_to_agree(of_fluid: Any, of_solid: Any, differ: list[str]) -> None:
    def fluid(ctx: Context) -> None:
        MappedField(ctx, "f", "fluid", "solid", SOURCE, **of_fluid).push(np.zeros(40))

    def solid(ctx: Context) -> None:
        MappedField(ctx, "f", "fluid", "solid", TARGET, **of_solid).pull()

    with pytest.raises(BoundaryError, match=r"is \(.* on \w+\.0 rank 0, and \(.* on \w") as raised:
        run_modules({"fluid": fluid, "solid": solid})
    assert all(word in str(raised.value) for word in differ)  # whichever module is the first


def test_points_of_all_ranks_have_as_many_coordinates() -> None:
    def fluid(ctx: Context) -> None:
        MappedField(ctx, "f", "fluid", "solid", np.zeros((1, 2 + ctx.copy_index)))

    def solid(ctx: Context) -> None:
        MappedField(ctx, "f", "fluid", "solid", TARGET)

    with pytest.raises(BoundaryError, match="ranks of fluid give points of 2 and 3 coordinates"):
        run_modules({"fluid": Module(fluid, copies=2), "solid": solid})


@pytest.mark.parametrize(
    ("cells_of", "message"),
    [
        ([None, [[0, 1]]], "cells are given by all ranks that have points"),
        ([[[0, 1]], [[0, 1, 2]]], "are all of one kind"),
        ([[[0, 1]], [[0, 40]]], "cells are indices of 40 points, from 0: there are 0 to 40"),
    ],
)
def test_cells_that_do_not_fit_are_refused(cells_of: list[Any], message: str) -> None:
    def fluid(ctx: Context) -> None:
        MappedField(ctx, "f", "fluid", "solid", SOURCE, cells=cells_of[ctx.copy_index])

    def solid(ctx: Context) -> None:
        MappedField(ctx, "f", "fluid", "solid", TARGET)

    with pytest.raises(BoundaryError, match=message):
        run_modules({"fluid": Module(fluid, copies=2), "solid": solid})


def test_values_that_are_not_of_the_points_are_refused() -> None:
    def fluid(ctx: Context) -> None:
        field = MappedField(ctx, "f", "fluid", "solid", SOURCE)
        for wrong in (np.zeros(39), 1.0):
            with pytest.raises(BoundaryError, match="has 40 points, and gives values of shape"):
                field.push(wrong)
        with pytest.raises(BoundaryError, match=r"fluid\.0 rank 0 is of its source"):
            field.pull()
        field.push(np.zeros(40))

    def solid(ctx: Context) -> None:
        field = MappedField(ctx, "f", "fluid", "solid", TARGET)
        with pytest.raises(BoundaryError, match=r"solid\.0 rank 0 is of its target"):
            field.push(np.zeros(25))
        field.pull()
        with pytest.raises(CouplingTimeout):
            field.pull(timeout=0.01)

    run_modules({"fluid": fluid, "solid": solid})
