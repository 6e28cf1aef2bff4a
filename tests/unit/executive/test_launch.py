from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from support import record

from diel.comm.mpi import check_that_tasks_are_ranks
from diel.comm.waiting import wait_for
from diel.errors import LaunchError
from diel.executive import launch
from diel.exit_codes import NOT_FINISHED, STOPPED
from diel.programs.supervisor import descendants
from diel.run.directory import RunDirectory
from diel.run.journal import JournalWriter


def launched_as(command: list[str], directory: RunDirectory, threads: int) -> launch.Launched:
    return launch.Launched(command, directory, threads, log_size_bytes=2**16)


# -- a run of it ----------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    (tmp_path / "w.toml").write_text("")
    return RunDirectory.create(tmp_path / "runs", "w", tmp_path / "w.toml")


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def wait_until_printed(directory: RunDirectory) -> None:
    """Wait until the launcher has printed something: it has started then."""
    assert wait_for(lambda: directory.launcher_output() or None, 30)


def test_the_status_and_the_output_are_kept(directory: RunDirectory) -> None:
    script = "echo out $OMP_NUM_THREADS; echo err >&2; exit 3"
    refreshed = []
    launched = launched_as(shell(script), directory, threads=5)
    assert launched.wait(lambda: refreshed.append(1)) == 3
    assert refreshed  # at least once, after the end
    assert sorted(directory.launcher_log.read_text().split()) == ["5", "err", "out"]


def test_a_command_that_is_not_there(directory: RunDirectory) -> None:
    launched = launched_as(["/no/such/mpiexec"], directory, threads=1)
    with pytest.raises(LaunchError, match="/no/such/mpiexec cannot be started"):
        launched.wait(lambda: None)


class CtrlC:
    """What is new is that somebody pressed Ctrl-C, once."""

    def __init__(self) -> None:
        self.pressed = False

    def __call__(self) -> None:
        if not self.pressed:
            self.pressed = True
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_asks_the_run_to_stop(directory: RunDirectory) -> None:
    before = signal.getsignal(signal.SIGINT)
    script = f"while [ ! -e {directory.stop_request} ]; do sleep 0.02; done; exit 9"
    launched = launched_as(shell(script), directory, threads=1)
    assert launched.wait(CtrlC()) == 9
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("number", "exit_code"),
    [
        (signal.SIGINT, STOPPED),
        (signal.SIGHUP, STOPPED),
        (signal.SIGTERM, NOT_FINISHED),
        (signal.SIGUSR1, NOT_FINISHED),
    ],
)
def test_a_stop_has_the_exit_code_of_its_signal(
    directory: RunDirectory, number: signal.Signals, exit_code: int
) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with launch.LauncherSignals() as signals:
            os.kill(os.getpid(), number)
            assert signals.is_asked
            signals.request_stop(directory)
    finally:
        signal.signal(number, before)
    assert directory.exit_code_of_stop() == exit_code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_was_ignored_stays_ignored(
    directory: RunDirectory, number: signal.Signals
) -> None:
    """As nohup has it for SIGHUP, and a shell for SIGINT of what it starts in the background."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        launched = launched_as(shell("sleep 0.2; exit 9"), directory, threads=1)
        assert launched.wait(lambda: os.kill(os.getpid(), number)) == 9
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
    assert not directory.stop_requested()


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_run_that_does_not_stop_is_killed(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, asked_before: bool
) -> None:
    monkeypatch.setattr(launch, "_POLITE_STOP_S", 0.3)
    monkeypatch.setattr(launch, "_TERMINATION_S", 0.3)
    if asked_before:
        directory.request_stop()
    # It ignores SIGTERM, and so does its child.
    script = "trap '' TERM; echo began; sleep 60 & wait; sleep 60"
    launched = launched_as(shell(script), directory, 1)
    wait_until_printed(directory)
    started_s = time.monotonic()
    assert launched.wait(CtrlC()) == 128 + signal.SIGKILL
    assert time.monotonic() - started_s < 30
    assert directory.stop_requested()


def test_a_stop_that_a_rank_has_asked_for_has_the_same_limit(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a rank was killed, and mpiexec has told the others and then hangs."""
    monkeypatch.setattr(launch, "_POLITE_STOP_S", 0.3)
    launched = launched_as(["sleep", "60"], directory, threads=1)
    directory.request_stop()
    assert launched.wait(lambda: None) == 128 + signal.SIGTERM


def test_a_run_whose_folder_is_gone_can_be_stopped(directory: RunDirectory) -> None:
    launched = launched_as(shell("echo began; exec sleep 60"), directory, threads=1)
    wait_until_printed(directory)
    shutil.rmtree(directory.path)
    started_s = time.monotonic()
    assert launched.wait(CtrlC()) != 0
    assert time.monotonic() - started_s < 30


def test_a_launcher_that_outlives_its_run_is_killed(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_AFTER_SUCCESS_S", 0.2)
    launched = launched_as(["sleep", "60"], directory, threads=1)
    assert launched.wait(lambda: 0) == 128 + signal.SIGTERM


def test_a_launcher_that_outlives_rank_0_is_killed(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a host and its network die at once: mpiexec waits for a daemon, and says nothing."""
    monkeypatch.setattr(launch, "_JOURNAL_LOOK_S", 0.02)
    monkeypatch.setattr(launch, "_ABANDONED_S", 0.3)
    launched = launched_as(["sleep", "60"], directory, threads=1)
    begun_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(JournalWriter(directory.journal))

        def end_rank_0_after_a_while() -> None:
            if time.monotonic() - begun_s > 1:
                stack.close()

        assert launched.wait(end_rank_0_after_a_while) == 128 + signal.SIGTERM
    assert 1 < time.monotonic() - begun_s < 30
    assert not directory.stop_requested()


def test_a_journal_that_nobody_has_locked_yet_is_not_abandoned(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_JOURNAL_LOOK_S", 0.01)
    monkeypatch.setattr(launch, "_ABANDONED_S", 0.01)
    directory.journal.touch()
    assert launched_as(["sleep", "0.5"], directory, threads=1).wait(lambda: None) == 0


def test_a_launcher_whose_supervisor_is_killed_says_so(directory: RunDirectory) -> None:
    began = directory.path / "began"
    earlier = set(descendants())  # helpers of other tests
    script = f"setsid sleep 60 & echo > {began}; exec sleep 60"
    launched = launched_as(shell(script), directory, threads=1)
    killed = launched._supervisor.pid
    assert killed is not None

    def kill_once() -> None:
        if began.exists():
            began.unlink()
            os.kill(killed, signal.SIGKILL)

    started_s = time.monotonic()
    assert launched.wait(kill_once) == 1
    assert time.monotonic() - started_s < 30
    said = directory.launcher_log.read_text()
    assert f"its supervisor (process {killed}) was killed by SIGKILL" in said
    assert set(descendants()) <= earlier


def test_only_bad_luck_before_any_rank_is_tried_again(directory: RunDirectory) -> None:
    directory.launcher_log.write_text("There are not enough slots available\n")
    assert not launch.failed_before_ranks(directory)
    with directory.launcher_log.open("a") as log:
        log.write("The PMIx server's listener thread failed to start. We cannot\ncontinue.\n")
    assert launch.failed_before_ranks(directory)
    with JournalWriter(directory.journal) as journal:
        journal.write(record("RunResumed", checkpoint=0, file=None, finished={}))
        assert launch.failed_before_ranks(directory)
        journal.write(record("RunStarted", workflow="w", ranks=3, groups=[]))
        assert not launch.failed_before_ranks(directory)
    directory.journal.unlink()
    directory.request_stop()
    assert not launch.failed_before_ranks(directory)


def test_a_module_whose_spawned_processes_cannot_be_reached_ends_the_run(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "At least one pair of MPI processes are unable to reach each other for"
    directory.launcher_log.write_text(f"{text}\n")  # of the run that is resumed
    monkeypatch.setattr(launch, "_POLITE_STOP_S", 0.1)
    before = launched_as(["sleep", "0.2"], directory, threads=1)
    assert before.wait(lambda: None) == 0
    assert not directory.stop_requested()
    launched = launched_as(["sh", "-c", f"echo '{text}'; sleep 60"], directory, threads=1)
    assert launched.wait(lambda: None) == 128 + signal.SIGTERM
    assert "OMPI_MCA_btl=^ofi diel run" in directory.stop_reason()


def test_what_ranks_print_past_their_logs_is_limited_too(directory: RunDirectory) -> None:
    line = ["sh", "-c", "yes | head -c 300000; sleep 0.3; echo the end"]
    assert launched_as(line, directory, threads=1).wait(lambda: None) == 0
    text = directory.launcher_log.read_text()
    assert len(text) < 2**16 + 200
    assert "bytes are left out here" in text
    assert text.endswith("the end\n")


# -- where ranks will be --------------------------------------------------------------------------


def test_outside_of_a_batch_job_all_ranks_are_here() -> None:
    assert launch.is_one_machine({"CUDA_VISIBLE_DEVICES": "1,3"})
    node = launch.node_of_all(range(2, 4), {"CUDA_VISIBLE_DEVICES": "1,3"})
    assert (node.ranks, node.gpus) == ((2, 3), ("1", "3"))


@pytest.mark.parametrize(
    "name",
    [
        "SLURM_JOB_ID",
        "PBS_NODEFILE",
        "FLUX_URI",
        "PRTE_MCA_prte_default_hostfile",
        "HYDRA_HOST_FILE",
    ],
)
def test_in_a_batch_job_ranks_may_be_elsewhere(name: str) -> None:
    assert not launch.is_one_machine({name: "1", "CUDA_VISIBLE_DEVICES": "0"})


# -- tasks of srun that are no ranks --------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "ranks"),
    [
        ({}, 1),
        # A batch script, whose variables are those of the job; srun --pty with one task.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, 1),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"}, 1),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_STEP_NUM_TASKS": "8"}, 8),
        # Open MPI starts its daemons by srun: ranks have the variables of theirs.
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, 8),
        ({"OMPI_COMM_WORLD_SIZE": "1", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, 1),
        ({"PMI_SIZE": "many"}, 1),
    ],
)
def test_tasks_that_may_run(environment: dict[str, str], ranks: int) -> None:
    check_that_tasks_are_ranks(environment, ranks)


@pytest.mark.parametrize(
    ("size", "rank", "words"),
    [
        ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "srun has .*--mpi=pmix.* leave it to diel run"),
        ("FLUX_JOB_SIZE", "FLUX_TASK_RANK", "flux run has .* -o pmi=pmix"),
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "mpiexec has .* another MPI"),
        ("PMI_SIZE", "PMI_RANK", "mpiexec has .* another MPI"),
    ],
)
def test_of_tasks_that_are_no_ranks_the_first_says_so(size: str, rank: str, words: str) -> None:
    with pytest.raises(LaunchError, match=words) as caught:
        check_that_tasks_are_ranks({size: "8", rank: "0"})
    assert "\n" not in str(caught.value)
    assert "8 processes" in str(caught.value)
    with pytest.raises(SystemExit) as ended:
        check_that_tasks_are_ranks({size: "8", rank: "7"})
    assert ended.value.code == 2
