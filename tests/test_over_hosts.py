"""Ranks on several hosts: communicators over TCP, where the developers' hosts can be made.

The tool `nodes` makes hosts of network namespaces on one machine, which takes root.
"""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT, execute, mpi_implementation

# Beside the project where its developers keep it, as their data are.
NODES = Path(os.environ.get("DIEL_NODES", ROOT.parent / "shared" / "tools" / "nodes"))
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


@pytest.fixture
def two_hosts() -> Iterator[None]:
    if not NODES.is_file():
        pytest.skip(f"there is no {NODES}, which makes hosts")
    if os.geteuid() != 0:
        pytest.skip("hosts are network namespaces: making them takes root")
    if mpi_implementation() != "Open MPI":
        pytest.skip("the hosts are reached through options of Open MPI")
    with (Path(tempfile.gettempdir()) / "diel-nodes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = execute([NODES, "up", 2], timeout_s=20)
        if made.status:
            pytest.skip(f"no hosts can be made here, or somebody has made some: {made.output}")
        try:
            yield
        finally:
            assert execute([NODES, "down"], timeout_s=20).status == 0


@pytest.mark.slow
@pytest.mark.usefixtures("two_hosts")
def test_communicators_over_two_hosts(tmp_path: Path) -> None:
    script = tmp_path / "checks.py"
    script.write_text(CHECKS)
    done = execute(
        [NODES, "mpiexec", "-n", 4, sys.executable, script],
        timeout_s=60,
        environment={"NODES_SLOTS": "2", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
    )
    assert done.status == 0, done.output
    assert done.stdout.count("checks") == 4, done.output
