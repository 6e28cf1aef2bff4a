"""Acceleration of implicit coupling, without ranks: formulas, a linear problem, an elastic tube."""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import WORKFLOWS

from diel import IQNILS, Aitken, ConstantRelaxation
from diel.coupling.acceleration import Acceleration, filtered_least_squares
from diel.errors import CouplingError

TUBE = SimpleNamespace(**runpy.run_path(str(WORKFLOWS / "elastic_tube.py")))
# The first time windows in precice-Fluid-iterations.log of the tutorial's Python solvers.
ITERATIONS_OF_PRECICE = [20, 11, 10, 8, 8]
KINDS = [ConstantRelaxation, Aitken, IQNILS]


def repeat(
    coupling: Acceleration, solve: Callable[[Any], Any], x: Any, most: int = 2000
) -> tuple[int, Any]:
    """Iterate until it has converged; return the number of iterations, and the values."""
    for _ in range(most):
        x = coupling.next(x, solve(x))
        if coupling.converged:
            return coupling.iterations, x
    raise AssertionError(f"after {most} iterations the residual is {coupling.residual}")


def linear_problem(unknowns: int, strongest: float) -> tuple[Callable[[Any], Any], Any]:
    """Return an H(x) whose plain iteration diverges, and its fixed point."""
    generator = np.random.default_rng(1)
    base, _ = np.linalg.qr(generator.normal(size=(unknowns, unknowns)))
    matrix = base @ np.diag(-np.linspace(0.1, strongest, unknowns)) @ base.T
    right = generator.normal(size=unknowns)
    return lambda x: matrix @ x + right, np.linalg.solve(np.eye(unknowns) - matrix, right)


# -- formulas --------------------------------------------------------------------------------------


def test_constant_relaxation_goes_a_part_of_the_way() -> None:
    coupling = ConstantRelaxation(0.25)
    assert coupling.next([[0.0, 4.0]], [[4.0, 8.0]]).tolist() == [[1.0, 5.0]]
    assert not coupling.converged
    assert coupling.residual == pytest.approx(math.sqrt(32 / 80))


def test_aitken_finds_a_linear_scalar_problem_with_its_third_value() -> None:
    coupling, x = Aitken(0.5, tolerance=1e-12), 0.0
    for _ in range(3):
        x = float(coupling.next(x, 7 - 3 * x))
    assert x == pytest.approx(7 / 4)
    assert coupling.converged


def test_aitken_begins_a_step_with_the_smaller_factor() -> None:
    for slope, factor in ((-9.0, 0.1), (0.9, 0.5)):  # the best ones are 0.1 and 10
        coupling = Aitken(0.5)
        repeat(coupling, lambda x, slope=slope: slope * x + 1, np.zeros(1))
        assert coupling.next(np.zeros(1), np.ones(1)) == pytest.approx(factor)


def test_aitken_does_not_stay_where_its_factor_is_zero() -> None:
    coupling = Aitken(0.5)
    coupling.next([0.0, 0.0], [1.0, 0.0])
    chosen = coupling.next([0.5, 0.0], [1.5, 1.0])  # the residual has changed at a right angle
    assert chosen.tolist() == [1.0, 0.5]
    assert coupling.next(chosen, chosen + 1.0).tolist() == [1.5, 1.0]  # or not at all


def test_iqn_ils_solves_a_linear_problem_in_as_many_iterations_as_it_has_unknowns() -> None:
    solve, expected = linear_problem(6, strongest=50)
    iterations, x = repeat(IQNILS(0.01, tolerance=1e-10, filter_limit=1e-10), solve, np.zeros(6))
    assert iterations <= 6 + 2
    np.testing.assert_allclose(x, expected, rtol=1e-8)


def test_earlier_steps_are_reused_as_far_as_they_are_to_be() -> None:
    solve, _ = linear_problem(6, strongest=50)
    counts: dict[int, list[int]] = {}
    for reused in (0, 1):
        coupling = IQNILS(0.01, tolerance=1e-9, filter_limit=1e-10, reused_steps=reused)
        shifts = (0.0, 1.0, 1.0)
        counts[reused] = [
            repeat(coupling, lambda x, by=by: solve(x) + by, np.zeros(6))[0] for by in shifts
        ]
    assert min(counts[0]) >= 6
    assert counts[1][0] == counts[0][0]
    assert counts[1][1] <= 3  # the same matrix: all is known


def test_no_more_than_most_columns_are_kept() -> None:
    solve, expected = linear_problem(6, strongest=0.9)
    few = IQNILS(0.5, tolerance=1e-10, most_columns=2, filter_limit=1e-10)
    iterations, x = repeat(few, solve, np.zeros(6))
    assert iterations > 6 + 2
    np.testing.assert_allclose(x, expected, rtol=1e-8)


def test_columns_that_say_nothing_new_are_left_out() -> None:
    V = np.array([[1.0, 2.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1e-4], [0.0, 0.0, 0.0, 0.0]])
    columns = np.column_stack([V, [3.0, 1.0, 5.0]])
    strict, loose = (filtered_least_squares(columns, limit) for limit in (1e-3, 1e-6))
    assert strict.tolist() == [-3.0, 0.0, 0.0, 0.0]
    assert loose == pytest.approx([1e4 - 3, 0.0, 0.0, -1e4])
    assert filtered_least_squares(np.zeros((3, 2)), 1e-3).tolist() == [0.0]


def test_where_nothing_is_known_iqn_ils_relaxes() -> None:
    coupling = IQNILS(0.5)
    coupling.next([0.0], [1.0])
    assert coupling.next([0.5], [1.5]).tolist() == [1.0]  # the residual has not changed


# -- what all of them have in common ---------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_ends_with_what_was_solved(kind: type[Any]) -> None:
    coupling = kind(0.5, tolerance=1e-3)
    tried = np.array([1.0, 2.0])
    solved = tried * (1 + 1e-4)
    chosen = coupling.next(tried, solved)
    assert coupling.converged
    assert chosen.tolist() == solved.tolist()
    assert chosen is not solved
    assert coupling.next(np.zeros(2), np.zeros(2)).tolist() == [0.0, 0.0]
    assert coupling.residual == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_iterations_are_counted_anew_in_each_step(kind: type[Any]) -> None:
    coupling = kind(0.5, tolerance=1e-3)
    for _ in range(3):
        coupling.next([1.0], [2.0])
    assert coupling.iterations == 3
    coupling.end_step()
    assert coupling.iterations == 3
    coupling.next([1.0], [2.0])
    assert coupling.iterations == 1


@pytest.mark.parametrize("kind", KINDS)
def test_values_that_are_not_finite_are_refused(kind: type[Any]) -> None:
    coupling = kind(0.5)
    coupling.next([1.0], [2.0])
    with pytest.raises(CouplingError, match=r"in iteration 2 .* not finite: begin with a smaller"):
        coupling.next([1.0], [math.nan])


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_that_make_no_sense_are_refused(kind: type[Any]) -> None:
    with pytest.raises(CouplingError, match="a relaxation factor is above 0"):
        kind(0.0)
    with pytest.raises(CouplingError, match="a relative tolerance is between 0 and 1"):
        kind(0.5, tolerance=1)
    with pytest.raises(CouplingError, match=r"shape \(2,\) were tried, and \(3,\) solved"):
        kind(0.5).next(np.zeros(2), np.zeros(3))


def test_options_of_iqn_ils_that_make_no_sense_are_refused() -> None:
    for wrong in ({"reused_steps": -1}, {"most_columns": 0}, {"filter_limit": 0}):
        with pytest.raises(CouplingError, match="reused_steps is at least 0"):
            IQNILS(0.5, **wrong)


# -- a stiff problem of two modules ----------------------------------------------------------------


def tube_iterations(coupling: Acceleration, points: int, steps: int) -> tuple[list[int], Any]:
    """Couple the flow and the wall of the tube on the same mesh; iterations of each step, flow."""
    flow, wider, counts = TUBE.Flow(points, dt=0.01), np.zeros(points), []
    for _ in range(steps):
        iterations, wider = repeat(
            coupling, lambda wider: TUBE.widened(flow.solve(1 + wider)), wider
        )
        flow.end_step()
        counts.append(iterations)
    return counts, flow


def test_iqn_ils_needs_fewer_iterations_than_aitken_and_aitken_than_constant_relaxation() -> None:
    """Twice as large a constant factor is unstable here, in a tube of 41 points."""
    points, steps = 41, 2
    of_iqn, _ = tube_iterations(IQNILS(0.02), points, steps)
    of_aitken, _ = tube_iterations(Aitken(0.02), points, steps)
    of_constant, _ = tube_iterations(ConstantRelaxation(0.02), points, steps)
    for iqn, aitken, constant in zip(of_iqn, of_aitken, of_constant, strict=True):
        assert 2 * iqn < aitken
        assert 2 * aitken < constant
    with pytest.raises((CouplingError, np.linalg.LinAlgError)):
        tube_iterations(ConstantRelaxation(0.04), points, steps)


def test_no_more_iterations_are_needed_than_by_precice() -> None:
    coupling = TUBE.acceleration_of("iqn-ils")
    counts, _ = tube_iterations(coupling, points=101, steps=len(ITERATIONS_OF_PRECICE))
    assert sum(counts) <= sum(ITERATIONS_OF_PRECICE), counts


def test_the_coupled_tube_is_that_of_a_single_solver() -> None:
    """Newton's method for velocity and pressure, the cross section a function of the latter."""
    points, steps = 21, 3
    _, coupled = tube_iterations(IQNILS(0.02, tolerance=1e-10, filter_limit=1e-6), points, steps)
    flow = TUBE.Flow(points, dt=0.01)
    for _ in range(steps):
        unknowns = np.concatenate([flow.u, flow.p])

        def residual(unknowns: Any, flow: Any = flow) -> Any:
            u, p = unknowns[:points], unknowns[points:]
            return flow.equations(1 + TUBE.widened(p), u, p)[0]

        for _ in range(8):
            shifts = 1e-6 * np.eye(2 * points)
            jacobian = [(residual(unknowns + d) - residual(unknowns - d)) / 2e-6 for d in shifts]
            unknowns = unknowns - np.linalg.solve(np.transpose(jacobian), residual(unknowns))
        u, p = unknowns[:points], unknowns[points:]
        flow.solved = u, p, 1 + TUBE.widened(p)
        flow.end_step()
    np.testing.assert_allclose(coupled.p, flow.p, rtol=0, atol=1e-6 * abs(flow.p).max())
    np.testing.assert_allclose(coupled.u, flow.u, rtol=1e-6)
