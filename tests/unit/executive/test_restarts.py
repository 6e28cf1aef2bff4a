"""Whether a run that has lost ranks is started again, and on what; how losses are told."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from support import record

from diel.executive.restarts import Restarts, after_loss, is_lost
from diel.executive.run_losses import find_loss
from diel.run.directory import LOST_OR_ENDED, RunDirectory
from diel.run.journal import JournalReader
from diel.run.records import RunLost
from diel.run.view import RunView

OPEN_MPI = (
    "prterun noticed that process rank 2 with PID 4711 on node n2 exited on\nsignal 9 (Killed).\n"
)
MPICH = (
    "= BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 4711 RUNNING AT n2\n"
    "=   EXIT CODE: 9\n"
)
SLURM = "srun: error: n2: task 2: Killed\n"
HOST = (
    "PRTE has lost communication with a remote daemon.\n"
    "  HNP daemon   : [prterun-vm-1@0,0] on node vm\n"
    "  Remote daemon: [prterun-vm-1@0,1] on node n2\n"
)


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    (tmp_path / "w.toml").write_text("")
    return RunDirectory.create(tmp_path / "runs", "w", tmp_path / "w.toml")


def started() -> RunView:
    view = RunView()
    nodes = [{"host": "n1", "ranks": [2]}, {"host": "n2", "ranks": [3, 4]}]
    view.apply(
        record(
            "RunStarted", workflow="w", ranks=5, groups=["a"], host="n1", nodes=nodes, servers=[1]
        )
    )
    view.placement[2] = "module solver.0"
    return view


@pytest.mark.parametrize(
    ("log", "explanation", "ranks"),
    [
        (OPEN_MPI, "module solver.0 (rank 2, host n2) was killed by SIGKILL", (2,)),
        (SLURM, "module solver.0 (rank 2, host n2) was killed by SIGKILL", (2,)),
        (
            MPICH,
            "a rank on host n2 was killed by SIGKILL; MPICH's mpiexec does not say which",
            (),
        ),
        (HOST, "host n2 can no longer be reached", ()),
        ("diel: mpiexec was killed by SIGKILL\n", "mpiexec was killed by SIGKILL", ()),
    ],
)
def test_each_launcher_is_understood(
    directory: RunDirectory, log: str, explanation: str, ranks: tuple[int, ...]
) -> None:
    directory.launcher_log.write_text(f"{OPEN_MPI.replace('rank 2', 'rank 3')}")
    directory.note_start()  # what came before is of an earlier start
    with directory.launcher_log.open("a") as file:
        file.write(log)
    loss = find_loss(started(), directory, 137)
    assert (loss.explanation, tuple(loss.ranks)) == (explanation, ranks)


def test_the_last_words_in_the_log_of_a_lost_rank_are_shown(directory: RunDirectory) -> None:
    view = started()
    copies, placement = {"solver": 1}, {"solver.0": [3, 2]}
    view.apply(record("GroupStarted", group="a", copies=copies, placement=placement))
    directory.launcher_log.write_text(OPEN_MPI)
    said = "step 1\n\nERROR STOP the boundary is open\n[n2:7] *** Process received signal ***\n"
    directory.module_log("solver", 0, 1).write_text(said)
    directory.module_log("solver", 0, 0).write_text("another rank\n")
    lines = find_loss(view, directory, 137).lines
    assert [line for line in lines if line.startswith("solver")] == [
        "solver.0.1.log | step 1",
        "solver.0.1.log | ERROR STOP the boundary is open",
    ]


def test_an_mpi_that_does_not_start_is_the_cause_of_what_its_launcher_then_ends(
    directory: RunDirectory,
) -> None:
    said = "*** An error occurred in MPI_Init_thread\n*** on a NULL communicator\n"
    ended = (
        "srun: error: n1: task 2: Exited with exit code 14\nsrun: error: n2: task 3: Terminated\n"
    )
    directory.launcher_log.write_text(said + ended)
    assert find_loss(RunView(), directory, 143).explanation == (
        "MPI did not start on the ranks; where srun or flux starts them, --launcher mpiexec "
        "leaves it to MPI itself"
    )
    # A module of a run that has started may call MPI_Init for itself.
    assert "rank 3" in find_loss(started(), directory, 143).explanation


def test_a_rank_that_is_killed_while_mpi_starts_is_the_cause(directory: RunDirectory) -> None:
    said = "*** An error occurred in MPI_Init_thread\n*** on a NULL communicator\n"
    directory.launcher_log.write_text(OPEN_MPI + said)
    assert find_loss(RunView(), directory, 137).explanation == (
        "a rank that was starting (rank 2, host n2) was killed by SIGKILL"
    )


def test_a_rank_that_alone_had_a_signal_is_named(directory: RunDirectory) -> None:
    directory.launcher_log.write_text("   Process name: [prterun-vm-8785@1,2]\n   Exit code: 75\n")
    directory.request_stop(f"SIGTERM came: {LOST_OR_ENDED}")
    assert find_loss(started(), directory, 75).explanation == (
        "module solver.0 (rank 2) has ended after SIGTERM, which diel run has not sent: somebody "
        "else, or a module itself, has"
    )


def test_ranks_that_are_ended_while_the_run_stops_are_told_so(directory: RunDirectory) -> None:
    directory.launcher_log.write_text("Abort is in progress...\n")
    directory.request_stop("SIGTERM came, as before a time limit")
    assert find_loss(started(), directory, 1).explanation == (
        "the ranks were ended before the run could stop in order: "
        "SIGTERM came, as before a time limit"
    )


def test_a_quota_that_is_used_up_is_named_and_another_start_would_end_so_too(
    directory: RunDirectory,
) -> None:
    aborted = "prterun has exited due to process rank 0 with PID 0 on node n1 calling\n"
    said = f"\0diel: {os.strerror(errno.EDQUOT)}: {directory.journal}\n"
    directory.launcher_log.write_text(said + aborted)
    loss = find_loss(started(), directory, 1)
    assert loss.is_final
    assert loss.explanation == (
        f"the run has ended for want of room: Disk quota exceeded: {directory.journal}"
    )


def test_restarts_end_when_they_are_used_up_or_in_vain() -> None:
    restarts = Restarts(9)
    for progress in [(0, 100, 0), (0, 100, 0), (1, 100, 0), (1, 100, 0), (1, 50, 0)]:
        assert restarts.refusal(progress) == "", progress
    assert "3 times in a row" in restarts.refusal((1, 99, 0))
    twice = Restarts(2)
    assert [twice.refusal((n, 0, 0)) for n in (1, 2)] == ["", ""]
    assert "2 times already" in twice.refusal((3, 0, 0))


def test_what_counts_as_a_loss(directory: RunDirectory) -> None:
    view = started()
    assert is_lost(view, directory, 0)  # Open MPI's own status where a host dies
    assert not is_lost(RunView(), directory, 2)  # its ranks could not begin
    view.apply(record("RunEnded", exit_code=130))
    assert not is_lost(view, directory, 130)
    directory.request_stop(f"SIGTERM came: {LOST_OR_ENDED}")
    assert is_lost(view, directory, 130)
    view.apply(record("RunEnded", exit_code=0))
    assert not is_lost(view, directory, 0)


def lost(
    directory: RunDirectory,
    view: RunView,
    answers: dict[str, bool],
    why_not: str = "",
    restarts: Restarts | None = None,
) -> tuple[object, RunLost]:
    found = after_loss(
        restarts or Restarts(3),
        view,
        directory,
        1,
        ranks=5,
        hosts=lambda started: answers,
        fits=lambda ranks: why_not and f"{ranks} ranks are left, and {why_not}",
    )
    last = JournalReader(directory.journal).new_records()[-1]
    assert isinstance(last, RunLost)
    return found, last


def test_the_ranks_of_a_host_that_is_gone_are_left_out(directory: RunDirectory) -> None:
    found, noted = lost(directory, started(), {})
    assert (found.ranks, found.hosts) == (5, ())  # type: ignore[attr-defined]
    found, noted = lost(directory, started(), {"n1": True, "n2": True})
    assert (found.ranks, found.hosts) == (5, ())  # type: ignore[attr-defined]
    once = Restarts(3)
    once.places_ranks = True  # another host is gone since an earlier loss
    found, noted = lost(directory, started(), {"n1": True, "n2": True}, restarts=once)
    assert found.hosts == (("n1", 3), ("n2", 2))  # type: ignore[attr-defined]
    found, noted = lost(directory, started(), {"n1": True, "n2": False})
    assert (found.ranks, found.hosts) == (3, (("n1", 3),))  # type: ignore[attr-defined]
    assert "n2 no longer answers" in noted.explanation
    assert (noted.restart, noted.on_ranks) == (1, 3)
    found, noted = lost(directory, started(), {"n1": True, "n2": False}, "a group needs 4")
    assert found is None
    assert noted.refusal == "3 ranks are left, and a group needs 4"
