"""Executables in whole runs: what they find, what they leave, how they use the tuple space."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from support import (
    DETACH,
    WORKFLOWS,
    Finished,
    check_end,
    diel,
    is_alive,
    journal,
    mpi_implementation,
    parent_of,
    pid_in,
    records_of,
    run_dir,
    started_diel,
    workflow,
)

from diel.comm.waiting import wait_for
from diel.run.history import summarize
from diel.workflow.programs import FACTS

PATIENCE_S = 30


def program(name: str, *words: str, **keys: str) -> str:
    lines = [f'[[module]]\nname = "{name}"\nexecutable = {list(words)!r}']
    return "\n".join([*lines, *(f"{key} = {value}" for key, value in keys.items())]) + "\n"


def function(name: str) -> str:
    return f'[[module]]\nname = "{name}"\nfunction = "./m.py:{name}"\n'


def one_group(*entries: str, name: str = "g") -> str:
    names = [text.split('"')[1] for text in entries]
    return "".join(entries) + f'[[group]]\nname = "{name}"\nmodules = {names!r}\n'.replace("'", '"')


def log(folder: Path, name: str) -> str:
    return (run_dir(folder) / "logs" / name).read_text()


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_the_ensemble_agrees_with_theory(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler, cc")
    check_end(diel("run", WORKFLOWS / "ensemble.toml", cwd=tmp_path), tmp_path)
    (returned,) = [
        record["returned"] for record in records_of(tmp_path, "CopyFinished", module="reduction")
    ]
    assert returned["particles"] == 8 * 20_000
    # Of the Ornstein-Uhlenbeck process at t = 2, from 1: exp(-2), and (1 - exp(-4)) / 8.
    assert returned["mean"] == pytest.approx(0.1353352832, abs=3 * 0.000876)
    assert returned["variance"] == pytest.approx(0.1227105451, abs=3 * 0.000434)
    means = [log(tmp_path, f"walker.{copy}.0.log") for copy in range(8)]
    assert len(set(means)) == 8  # each has random numbers of its own


FUNCTIONS = """\
import numpy as np

def take(ctx):
    return [ctx.tuples.tget(("sum", copy)) for copy in range(2)]

def boss(ctx):
    for job in range(6):
        ctx.tuples.tput(("job", job), np.full(3, job))
    found = sorted(ctx.tuples.tget(("done", job)) for job in range(6))
    for copy in range(2):
        ctx.tuples.tput(f"over {copy}", None)
    return found
"""
SOLVER = """\
import subprocess, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
total = comm.allreduce(comm.rank + 1)
if comm.rank == 0:
    text = f"[{comm.size}, {total}]"
    subprocess.run(["diel", "tuple", "put", "--json", sys.argv[1], text], check=True)
"""
ABORTS = "from mpi4py import MPI\nMPI.COMM_WORLD.Abort(7)\n"
WORK = """\
set -e
i=0
while [ $i -lt 3 ]; do
    # Whatever it is called: the server that has one tells.
    diel tuple get --npy --with-tag '["job", null]' > job
    tag=$(head -n 1 job); tail -n +2 job | diel tuple put --npy "mine/of/$DIEL_COPY" -
    sum=$(diel tuple get --json "*/of/$DIEL_COPY" | tr -d '[] ' | tr ',' '+')
    diel tuple put --json "done/${tag#job/}" $(($sum))
    i=$((i + 1))
done
diel tuple get "over $DIEL_COPY"
diel tuple get --nowait "over $DIEL_COPY" || echo "exit code $?"
"""


@pytest.fixture(scope="module")
def ended_well(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """One run, of several tuple servers, for several tests: a folder, and how the command ended."""
    folder = tmp_path_factory.mktemp("ended_well")
    (folder / "work.sh").write_text(WORK)
    task = (
        "echo $DIEL_TASK >> done; echo task {task} of $DIEL_TASKS; "
        "[ {task} != 3 ] || [ -e failed ] || {{ touch failed; exit 5; }}"
    )
    python = sys.executable
    more = ["--oversubscribe"] if mpi_implementation() == "Open MPI" else []
    on_two = {"launcher": repr(["mpiexec", "-n", "{processes}", *more]), "processes": "2"}
    groups = {
        "programs": [
            program("facts", "env"),
            program("t", "sh", "-c", task, tasks="10", copies="2", retries="1"),
            program("careless", python, "daemon.py", "pid"),
        ],
        "mpi": [
            program("solver", python, "solver.py", "sum/{copy}", copies="2", **on_two),
            function("take"),
        ],
        "aborted": [program("aborts", python, "aborts.py", on_failure='"continue"', **on_two)],
        "tuples": [
            function("boss"),
            program("worker", "sh", "{folder}/work.sh", copies="2", directory='"{run_dir}/{copy}"'),
        ],
    }
    toml = "[tuple_space]\nservers = 3\n"
    for (name, entries), before in zip(groups.items(), ["", *groups], strict=False):
        toml += one_group(*entries, name=name) + (f'depends = ["{before}"]\n' if before else "")
    files = {"daemon": DETACH, "solver": SOLVER, "aborts": ABORTS, "m": FUNCTIONS}
    finished = diel("run", workflow(folder, toml, **files), cwd=folder)
    assert finished.status == 0, finished.output
    return folder, finished


def test_a_program_gets_its_facts_and_not_the_launchers(
    ended_well: tuple[Path, Finished],
) -> None:
    folder, _ = ended_well
    lines = log(folder, "facts.0.0.log").splitlines()
    facts = dict(line.split("=", 1) for line in lines if "=" in line)
    assert set(FACTS) - set(facts) == {"DIEL_END_TIME"}  # nothing ends this run
    assert facts["DIEL_RUN_DIR"] == str(run_dir(folder))
    assert facts["DIEL_MODULE"] == "facts"
    assert (facts["DIEL_COPY"], facts["DIEL_COPIES"], facts["DIEL_PROCESSES"]) == ("0", "1", "1")
    assert facts["DIEL_ITERATION"] == "0"
    assert facts["OMP_NUM_THREADS"] == "1"
    launchers = ("OMPI_COMM", "PMIX_", "PMI_", "PRTE_LAUNCHED", "HYDI_", "MPI_LOCAL")
    assert not [name for name in facts if name.startswith(launchers)]


def test_copies_share_tasks_and_one_that_failed_is_done_again(
    ended_well: tuple[Path, Finished],
) -> None:
    folder, _ = ended_well
    done = map(int, (folder / "done").read_text().split())
    assert sorted(done) == sorted([*range(10), 3])
    logs = (run_dir(folder) / "logs").glob("t.*.0.log")
    assert "task 9 of 10\n" in "".join(file.read_text() for file in logs)
    (failure,) = records_of(folder, "ModuleFailed", module="t")
    assert failure["error"].startswith("ModuleFailed: task 3: sh -c ")
    assert journal(folder)[-1]["tuples_left"] == 0


def test_what_a_program_leaves_behind_is_ended_with_a_warning(
    ended_well: tuple[Path, Finished],
) -> None:
    folder, finished = ended_well
    assert "warning from careless.0: 1 process(es) that it had left behind" in finished.stdout
    assert not is_alive(pid_in(folder / "pid"))


def test_an_mpi_program_runs_inside_a_rank(ended_well: tuple[Path, Finished]) -> None:
    assert "take.0 returned [[2, 3], [2, 3]]" in ended_well[1].stdout


def test_an_mpi_program_that_aborts_is_a_failure(ended_well: tuple[Path, Finished]) -> None:
    (failure,) = records_of(ended_well[0], "ModuleFailed", module="aborts")
    assert failure["error"].startswith("ModuleFailed: mpiexec -n 2")
    assert "exited with status 7" in failure["error"]


def test_scripts_and_functions_exchange_tuples_over_several_servers(
    ended_well: tuple[Path, Finished],
) -> None:
    folder, finished = ended_well
    assert "boss.0 returned [0, 3, 6, 9, 12, 15]" in finished.stdout
    assert log(folder, "worker.0.0.log") == "null\nexit code 1\n"
    assert journal(folder)[-1]["tuples_left"] == 0


def test_a_rank_that_is_killed_leaves_no_process_of_its_program(tmp_path: Path) -> None:
    script = f"{sys.executable} daemon.py daemon; echo $$ ready > pid; sleep 300"
    workflow(tmp_path, one_group(program("solver", "sh", "-c", script)), daemon=DETACH)
    with started_diel("run", "w.toml", cwd=tmp_path) as run:
        pids = [pid_in(tmp_path / "pid"), pid_in(tmp_path / "daemon")]
        supervisor = parent_of(pids[0])
        rank = parent_of(supervisor)
        assert b"diel" in Path(f"/proc/{rank}/cmdline").read_bytes()
        os.kill(rank, signal.SIGKILL)
        _, stderr = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 1
    assert "was killed by SIGKILL" in stderr
    for pid in (*pids, supervisor):
        assert wait_for(lambda pid=pid: True if not is_alive(pid) else None, 10), pid


@pytest.mark.thorough
def test_the_death_of_diel_run_is_no_failure_of_a_program_that_it_ends(tmp_path: Path) -> None:
    script = "echo $$ ready > pid; exec sleep 300"
    workflow(tmp_path, one_group(program("solver", "sh", "-c", script)))
    with started_diel("run", "w.toml", cwd=tmp_path) as run:
        pid = pid_in(tmp_path / "pid")
        run.kill()
        run.wait()
        assert wait_for(lambda: True if not is_alive(pid) else None, PATIENCE_S)
        directory = run_dir(tmp_path)
        is_over = wait_for(
            lambda: None if summarize(directory, time.time()).state == "running" else True,
            PATIENCE_S,
        )
    assert is_over
    summary = summarize(directory, time.time())
    assert summary.state in ("killed", "stopped")  # the ranks may be in time to end it in order
    assert "SIGTERM came" in summary.reason
    assert "solver" not in summary.reason
