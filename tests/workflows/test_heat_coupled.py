"""The coupled heat solvers agree with one solver of the whole domain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import WORKFLOWS, check_end, diel, journal, run_dir

from diel import load_workflow

FILE = WORKFLOWS / "heat_coupled.toml"


def single_domain(fluid: dict[str, Any], solid: dict[str, Any], columns: int) -> np.ndarray:
    """Solve fluid and solid as one linear system; temperatures by (row from below, column).

    The same finite volumes: cell centres, upwind, half a cell to a given temperature below, a
    whole one to the inlet, two half cells of different conductivity in series at the wall.
    """
    dx = fluid["length"] / columns
    rows = solid["cells"] + fluid["cells"]
    k = np.r_[np.full(solid["cells"], solid["conductivity"])]
    k = np.r_[k, np.full(fluid["cells"], fluid["conductivity"])]
    dy_s, dy_f = solid["height"] / solid["cells"], fluid["height"] / fluid["cells"]
    dy = np.r_[np.full(solid["cells"], dy_s), np.full(fluid["cells"], dy_f)]
    y = (np.arange(fluid["cells"]) + 0.5) * dy_f / fluid["height"]
    flow = np.r_[np.zeros(solid["cells"]), 6 * fluid["speed"] * y * (1 - y) * dy_f]
    above = dx / (dy[:-1] / (2 * k[:-1]) + dy[1:] / (2 * k[1:]))  # between row j and j + 1
    matrix = np.zeros((rows * columns, rows * columns))
    right = np.zeros(rows * columns)
    for j in range(rows):
        side = k[j] * dy[j] / dx
        for i in range(columns):
            p = j * columns + i
            if i + 1 < columns:
                matrix[p, p] += side
                matrix[p, p + 1] -= side
            has_inlet = j >= solid["cells"]
            if i > 0:
                matrix[p, p] += side + flow[j]
                matrix[p, p - 1] -= side + flow[j]
            elif has_inlet:
                matrix[p, p] += side + flow[j]
            for other, through in ((j - 1, above[j - 1]), (j + 1, above[j % (rows - 1)])):
                if 0 <= other < rows:
                    matrix[p, p] += through
                    matrix[p, other * columns + i] -= through
            if j == 0:
                below = 2 * k[0] * dx / dy[0]
                matrix[p, p] += below
                right[p] += below
    return np.linalg.solve(matrix, right).reshape(rows, columns)


# As it stands, and with ranks whose columns do not face each other.
@pytest.mark.sample
@pytest.mark.parametrize(("fluid_ranks", "solid_ranks"), [(2, 2), (3, 1)])
def test_coupled_heat_is_that_of_a_single_domain(
    fluid_ranks: int, solid_ranks: int, tmp_path: Path
) -> None:
    text = FILE.read_text().replace("processes = 2", f"processes = {fluid_ranks}", 1)
    head, _, tail = text.partition('name = "solid"')
    text = head + 'name = "solid"' + tail.replace("processes = 2", f"processes = {solid_ranks}", 1)
    (tmp_path / FILE.name).write_text(text)
    (tmp_path / "heat_coupled.py").write_text(FILE.with_suffix(".py").read_text())
    workflow = load_workflow(tmp_path / FILE.name)
    assert [module.processes for module in workflow.modules] == [fluid_ranks, solid_ranks, 1]

    finished = diel("run", FILE.name, cwd=tmp_path)
    check_end(finished, tmp_path)
    records = journal(tmp_path)
    assert not [record for record in records if record["event"] == "MessageLogged"]

    x, y, found = np.loadtxt(run_dir(tmp_path) / "heat.csv", delimiter=",").T
    fluid, solid = workflow.module("fluid").options, workflow.module("solid").options
    (columns,) = {len(set(x)), workflow.boundaries[0].shape[1]}
    expected = single_domain(fluid, solid, columns)
    rows = np.digitize(y, np.unique(y)) - 1  # from below
    order = np.lexsort((x, rows))
    np.testing.assert_allclose(found[order], expected.reshape(-1), rtol=0, atol=1e-9)
    # It is no trivial solution: the fluid is heated along the wall, from the inlet's 0 on.
    wall_row = expected[solid["cells"]]
    assert 0.01 < wall_row[0] < wall_row[-1] < 0.99
    history = np.loadtxt(run_dir(tmp_path) / "history.csv", delimiter=",")
    assert history[-1, 1] < 1e-11 < history[-2, 1]
    (steps,) = [r["returned"] for r in records if r.get("module") == "report" and "returned" in r]
    assert len(history) == steps
