"""Jobs of a real Slurm: what `diel sbatch` prints starts one run, and goes on later."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from slurm_cluster import Slurm
from support import diel, journal, run_dir, wait_until

from diel.exit_codes import NOT_FINISHED

MODULES = """\
import time
from pathlib import Path

def part(ctx):
    ctx.tuples.tput(("part", ctx.copy_index), ctx.copy_index)

def add(ctx):
    total = ctx.tuples.tget("total", timeout=0) if ctx.iteration[-1] else 0
    total += sum(ctx.tuples.tget(("part", copy), timeout=60) for copy in range(2))
    waited = len(list(Path().glob("waiting-*")))
    if ctx.iteration[-1] == 2 and waited < 2:
        Path(f"waiting-{waited}").touch()
        ctx.tuples.tget("never", timeout=60)
    ctx.tuples.tput("total", total)

def tell(ctx):
    return ctx.tuples.tget("total", timeout=0)
"""

STUDY = """\
[workflow]
restarts = 2
[[module]]
name = "part"
function = "./m.py:part"
copies = 2
[[module]]
name = "add"
function = "./m.py:add"
[[module]]
name = "tell"
function = "./m.py:tell"
[[group]]
name = "loop"
modules = ["part", "add"]
iterations = {iterations}
[[group]]
name = "end"
depends = ["loop"]
modules = ["tell"]
"""


def study(folder: Path, *, iterations: int) -> Path:
    folder.mkdir()
    (folder / "m.py").write_text(MODULES)
    (folder / "w.toml").write_text(STUDY.format(iterations=iterations))
    return folder


def submit(slurm: Slurm, folder: Path, *options: object) -> str:
    written = diel("sbatch", "w.toml", *options, "--output", "job.sh", cwd=folder)
    assert written.status == 0, written.output
    return slurm.submit(folder / "job.sh")


def output(folder: Path, job: str) -> str:
    return (folder / f"slurm-{job}.out").read_text()


@pytest.mark.slow
def test_scripts_start_one_run_whoever_starts_the_ranks(slurm: Slurm, tmp_path: Path) -> None:
    folders = {name: study(tmp_path / name, iterations=1) for name in ("mpiexec", "srun")}
    jobs = {
        # Debian's Slurm has PMIx 4, of which Open MPI's PMIx 5 can use two ranks a node.
        name: submit(slurm, folder, "--launcher", name, "--time", "5", "--per-node", 2)
        for name, folder in folders.items()
    }
    for name, folder in folders.items():
        slurm.wait_for(jobs[name])
        said = output(folder, jobs[name])
        assert slurm.exit_code(jobs[name]) == 0, said
        assert "5 ranks are started by " in said
        assert name in said
        assert "tell.0 returned 1" in said
        assert "finished after" in said
        records = journal(folder)  # of the only run
        (started,) = [record for record in records if record["event"] == "RunStarted"]
        assert started["ranks"] == 5
        assert records[-1]["exit_code"] == 0


@pytest.mark.thorough
@pytest.mark.slow
def test_a_run_goes_on_after_a_loss_and_in_the_next_job(slurm: Slurm, tmp_path: Path) -> None:
    folder = study(tmp_path / "chain", iterations=4)
    first = submit(slurm, folder, "--nodes", 2, "--time", "5", "--requeue", "3")

    def wait_for(name: str) -> None:
        try:
            wait_until((folder / name).exists, 90)
        except AssertionError:
            raise AssertionError(output(folder, first)) from None

    wait_for("waiting-0")
    assert slurm.command("scancel", "--signal=KILL", f"{first}.0").status == 0  # a node's tasks
    wait_for("waiting-1")
    # As Slurm itself does some time before the limit, which is minutes.
    assert slurm.command("scancel", "--signal=USR1", "--batch", first).status == 0
    slurm.wait_for(first)
    said = output(folder, first)
    assert slurm.exit_code(first) == NOT_FINISHED, said
    assert "was stopped" in said
    assert "restart 1" in said
    second = said.split("Submitted batch job ")[1].split()[0]
    slurm.wait_for(second)
    said = output(folder, second)
    assert slurm.exit_code(second) == 0, said
    assert "tell.0 returned 4" in said
    assert run_dir(folder).name == f"w-{first}"
    assert not list(folder.glob("slurm-*.out"))[2:]


@pytest.mark.slow
def test_tasks_that_are_no_ranks_run_nothing(slurm: Slurm, tmp_path: Path) -> None:
    folder = study(tmp_path / "alone", iterations=1)
    line = ["srun", "-n", 3, "--mpi=none", sys.executable, "-m", "diel", "run", "w.toml"]
    done = slurm.command(*line, cwd=folder)
    assert done.status == 2
    (told,) = [text for text in done.stderr.splitlines() if text.startswith("diel: ")]
    assert "srun has started 3 processes that do not know each other" in told
    assert not (folder / "runs").exists()
