"""Ranks on several hosts: communicators over TCP."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hosts import hosts
from support import ROOT, execute, mpiexec

CHECKS = """
from communicator_cases import CASES
from mpi4py import MPI
from dnn.distributed import communicator_of

for check in CASES:
    comm = communicator_of(MPI.COMM_WORLD, timeout_s=20)
    assert comm.nodes == (0, 0, 1, 1), comm.nodes
    check(comm)
    MPI.COMM_WORLD.Barrier()
print("rank", comm.rank, "has done", len(CASES), "checks")
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_communicators_over_two_hosts(tmp_path: Path) -> None:
    script = tmp_path / "checks.py"
    script.write_text(CHECKS)
    with hosts(2) as two:
        environment = two.environment(slots=2) | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
        forwarded = [word for name in environment if name[:5] != "PRTE_" for word in ("-x", name)]
        line = [*mpiexec(4)[:3], "--bind-to", "none", *forwarded, sys.executable, script]
        done = execute(two.on("hosta", *line), timeout_s=60, environment=environment)
    assert done.status == 0, done.output
    assert done.stdout.count("checks") == 4, done.output
