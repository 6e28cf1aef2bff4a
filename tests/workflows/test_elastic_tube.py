"""The elastic tube on two meshes is nearly that on a single mesh, for any number of ranks."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support import WORKFLOWS, check_end, diel, journal, records_of, run_dir

pytest.importorskip("scipy", reason="SciPy is not installed")

FILE = WORKFLOWS / "elastic_tube.toml"
STEPS = 3


@pytest.mark.sample
@pytest.mark.parametrize(
    ("acceleration", "ranks", "least", "most"), [("iqn-ils", 2, 20, 60), ("aitken", 3, 90, 600)]
)
def test_the_tube_on_two_meshes_is_that_on_one(
    acceleration: str, ranks: int, least: int, most: int, tmp_path: Path
) -> None:
    options = {"acceleration": acceleration, "steps": STEPS, "module.wall.processes": ranks}
    arguments = [part for name, value in options.items() for part in ("--set", f"{name}={value}")]
    finished = diel("run", FILE, *arguments, cwd=tmp_path)
    check_end(finished, tmp_path)
    assert not [record for record in journal(tmp_path) if record["event"] == "MessageLogged"]
    returned = {r["module"]: r["returned"] for r in records_of(tmp_path, "CopyFinished")}
    assert least < returned["wall"]["iterations"] < most

    x, area, velocity, pressure = np.loadtxt(run_dir(tmp_path) / "tube.csv", delimiter=",").T
    tube = SimpleNamespace(**runpy.run_path(str(FILE.with_suffix(".py"))))
    flow, coupling = tube.Flow(len(x), dt=0.01), tube.acceleration_of("iqn-ils")
    wider = np.zeros(len(x))
    for _ in range(STEPS):
        for _ in range(100):
            wider = coupling.next(wider, tube.widened(flow.solve(1 + wider)))
            if coupling.converged:
                break
        flow.end_step()
    assert abs(flow.p).max() > 100
    np.testing.assert_allclose(pressure, flow.p, rtol=0, atol=0.01 * abs(flow.p).max())
    np.testing.assert_allclose(velocity, flow.u, rtol=0.01)
    np.testing.assert_allclose(area - 1, flow.a - 1, rtol=0, atol=0.01 * abs(flow.a - 1).max())
