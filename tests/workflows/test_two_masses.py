"""Coupled modules with different steps agree with the solution of both as one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import WORKFLOWS, check_end, diel, journal

from diel import load_workflow

FILE = WORKFLOWS / "two_masses.toml"


def exact() -> np.ndarray[Any, Any]:
    """Return the positions at the end, by the modes of both masses as one system."""
    left, right = (module.options for module in load_workflow(FILE).modules)
    inner = left["inner"]
    stiffness = np.array(
        [[left["outer"] + inner, -inner], [-inner, right["outer"] + inner]]
    ) / np.array([[left["mass"]], [right["mass"]]])
    squares, modes = np.linalg.eig(stiffness)
    amplitudes = np.linalg.solve(modes, [left["position"], right["position"]])
    found: np.ndarray[Any, Any] = modes @ (
        np.cos(np.sqrt(squares) * left["window"] * left["windows"]) * amplitudes
    )
    return found


def positions(folder: Path, *options: str) -> np.ndarray[Any, Any]:
    folder.mkdir()
    check_end(diel("run", FILE, *options, cwd=folder), folder)
    records = journal(folder)
    assert not [record for record in records if record["event"] == "MessageLogged"]
    returned = {r["module"]: r["returned"] for r in records if r.get("returned")}
    assert returned["left"]["computed"] == returned["right"]["computed"] > 16
    return np.array([returned[name]["position"] for name in ("left", "right")])


@pytest.mark.sample
@pytest.mark.parametrize(("degree", "order", "accuracy"), [(3, 4, 1e-3), (1, 2, 1e-2)])
def test_two_masses_are_those_of_one_system(
    degree: int, order: int, accuracy: float, tmp_path: Path
) -> None:
    steps = {"as it stands": (), "finer": ("--set", "left_steps=10", "--set", "right_steps=16")}
    errors = [
        np.abs(positions(tmp_path / name, "--set", f"degree={degree}", *more) - exact()).max()
        for name, more in steps.items()
    ]
    assert errors[0] < accuracy
    assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.5)
