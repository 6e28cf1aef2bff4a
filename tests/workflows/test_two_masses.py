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


KILL = """\
        if window == 5 and ctx.restored is None and not options["leads"]:
            deadline_s = time.monotonic() + 30
            while "left.0.0.coupled.0_6.zip" not in (ctx.run_dir / "journal.jsonl").read_text():
                assert time.monotonic() < deadline_s
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_they_go_on_from_the_last_window_that_both_have_saved(tmp_path: Path) -> None:
    """The right one is killed after 5 windows; a checkpoint has the left one's state after 6."""
    source = FILE.with_suffix(".py").read_text()
    save = "        states = ["
    assert source.count(save) == 1
    source = "import os, signal, time\n" + source.replace(save, KILL + save)
    (tmp_path / "two_masses.py").write_text(source)
    (tmp_path / FILE.name).write_text(FILE.read_text())
    check_end(diel("run", "--restarts", "1", FILE.name, cwd=tmp_path), tmp_path)
    returned = {r["module"]: r["returned"] for r in journal(tmp_path) if r.get("returned")}
    assert 3 <= returned["left"]["computed"] == returned["right"]["computed"] < 20
    found = [returned[name]["position"] for name in ("left", "right")]
    np.testing.assert_allclose(found, exact(), atol=1e-3)
