"""Acceleration of values that are distributed over ranks: as on a single one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from diel import IQNILS, Aitken, ConstantRelaxation

UNKNOWNS = 7


def history(coupling: Any, mine: slice, comm: MPI.Intracomm) -> list[np.ndarray]:
    """Solve three times for the same matrix; return all values that were tried, of all ranks."""
    generator = np.random.default_rng(1)
    matrix = generator.normal(size=(UNKNOWNS, UNKNOWNS)) / 4
    x, tried = np.zeros(UNKNOWNS), []
    for step in range(3):
        for _ in range(6):
            solved = matrix @ x + np.arange(step, step + UNKNOWNS)
            x = np.concatenate(comm.allgather(coupling.next(x[mine], solved[mine])))
            tried.append(x)
        coupling.end_step()
    return tried


@pytest.mark.parametrize("kind", [ConstantRelaxation, Aitken, IQNILS])
def test_ranks_choose_the_same_values_together(kind: Any) -> None:
    comm = MPI.COMM_WORLD
    # The first rank of several has none of the values.
    places = np.array([0, *np.linspace(0, UNKNOWNS, max(comm.size - 1, 1) + 1).astype(int)])
    begin, end = places[-comm.size - 1 :][comm.rank : comm.rank + 2]
    found = history(kind(0.3, comm=comm), slice(begin, end), comm)
    alone = history(kind(0.3), slice(None), MPI.COMM_SELF)
    np.testing.assert_allclose(found, alone, rtol=1e-9)
