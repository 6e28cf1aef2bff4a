"""A sweep whose trainers are killed one after the other ends by itself, with the same table."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import mpi_implementation
from workflows.killed_trainers import Plan, kill_trainers


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["restarts", "continue"])
def test_a_sweep_ends_as_if_no_trainer_had_been_killed(way: str, tmp_path: Path) -> None:
    if way == "continue" and mpi_implementation() != "Open MPI":
        pytest.skip("only Open MPI lets ranks live on when one is killed")
    trainers = 2 if way == "restarts" else 3  # of three two may be gone
    plan = Plan(way, trials=80, trial_s=0.05, trainers=trainers, kills=2, every_s=0.3)
    assert kill_trainers(tmp_path, plan, timeout_s=150).kills == 2
