"""A rank that raises in the middle of an exchange ends all others, under a bare mpirun."""

from __future__ import annotations

import sys
from pathlib import Path

from support import ROOT, execute, mpiexec

PROGRAM = """
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI
from dnn.distributed import communicator_of

comm = communicator_of(MPI.COMM_WORLD)
half = comm.split(comm.rank % 2)
comm.sum(np.zeros(200_000))
try:
    if comm.rank == 1:
        comm.start_sum(np.zeros(200_000), routine="ring")
        raise KeyError("no such row")
    if comm.rank == 2:
        half.sum(np.zeros(10))  # with rank 0, who waits for rank 1
    comm.sum(np.zeros(200_000), routine="ring")
except BaseException as error:
    Path(sys.argv[1], f"rank_{comm.rank}").write_text(f"{type(error).__name__}: {error}")
    comm.report_failure(error)
    raise
"""


def test_a_rank_that_raises_ends_all_others(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    finished = execute([*mpiexec(3), sys.executable, file, tmp_path], cwd=ROOT, timeout_s=60)
    assert finished.status != 0
    heard = [(tmp_path / f"rank_{rank}").read_text() for rank in range(3)]
    root = "KeyError: 'no such row'"
    assert heard == [f"PeerError: rank 1: {root}", root, f"PeerError: rank 1: {root}"]
    assert f"\n{root}\n" in finished.stderr
    assert "MPI_ABORT" not in finished.output
