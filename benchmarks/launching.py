"""Starting runs and ranks: what the benchmarks of the executive and of sweeps share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import REPOSITORY


@dataclass(frozen=True)
class Ran:
    """A run of ``diel run`` that has ended well.

    Attributes
    ----------
    directory : Path
    wall_s : float
        From the command to its end.
    records : list of dict
        Of its journal.
    """

    directory: Path
    wall_s: float
    records: list[dict[str, Any]]

    def of(self, event: str) -> list[dict[str, Any]]:
        """Return the records of an event."""
        return [record for record in self.records if record["event"] == event]


def diel_run(file: Path, folder: Path, ranks: int | None = None) -> Ran:
    """Run a workflow file; its directory is made in a folder. By default diel counts the ranks."""
    runs = Path(tempfile.mkdtemp(dir=folder))
    started_s = time.perf_counter()
    count = [] if ranks is None else ["-n", ranks]
    line = [sys.executable, "-m", "diel", "run", "--allow-run-as-root", *count]
    output_of([*line, file, "--runs", runs])
    wall_s = time.perf_counter() - started_s
    (run,) = runs.iterdir()
    journal = (run / "journal.jsonl").read_text()
    return Ran(run, wall_s, [json.loads(line) for line in journal.splitlines()])


def mpiexec(ranks: int) -> list[str]:
    """Return the line that starts ranks here, as diel itself starts them."""
    from diel.executive.rank_launcher import Mpiexec, find_mpiexec, mpi_implementation

    command = find_mpiexec()
    return Mpiexec(command, mpi_implementation(command), True).line(ranks)


def output_of(line: list[object]) -> str:
    """Run a command that finds diel and the benchmarks; return what it prints."""
    paths = [str(REPOSITORY), str(REPOSITORY / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [str(part) for part in line],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return done.stdout
