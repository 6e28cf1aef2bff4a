from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diel.errors import ModuleFailed, RunStopped
from diel.loading.executables import child_environment, last_lines, run_executable


def never_stop() -> None:
    pass


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "program.0.0.log"


def run(
    command: list[str],
    log: Path,
    safe_point: Callable[[], None] = never_stop,
    **facts: object,
) -> None:
    run_executable(command, folder=log.parent, facts=facts, log=log, safe_point=safe_point)


def shell(script: str, log: Path, safe_point: Callable[[], None] = never_stop) -> None:
    run(["sh", "-c", script], log, safe_point)


def test_output_and_errors_have_files_of_their_own(log: Path) -> None:
    shell("echo out; echo err >&2", log)
    assert log.read_text() == "out\n"
    assert log.with_suffix(".err").read_text() == "err\n"


def test_facts_folder_and_an_empty_standard_input(log: Path) -> None:
    run(["sh", "-c", "echo $DIEL_COPY; pwd; cat"], log, DIEL_COPY=3)
    assert log.read_text().split() == ["3", str(log.parent.resolve())]


def test_a_program_with_a_slash_is_relative_to_the_folder(log: Path) -> None:
    program = log.parent / "bin" / "tool"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    run(["./bin/tool", "one", "two three"], log)
    assert log.read_text() == "one two three\n"


def test_an_exit_status_is_a_failure_with_the_last_lines(log: Path) -> None:
    with pytest.raises(ModuleFailed) as caught:
        shell("seq 100 >&2; exit 3", log)
    head, *tail = str(caught.value).splitlines()
    assert head == "sh -c seq 100 >&2; exit 3 exited with status 3"
    assert tail[0] == "last lines of its standard error:"
    assert tail[1:] == [str(number) for number in range(81, 101)]


def test_a_silent_failure_has_no_last_lines(log: Path) -> None:
    with pytest.raises(ModuleFailed) as caught:
        run(["false"], log)
    assert str(caught.value) == "false exited with status 1"


def test_a_signal_is_named(log: Path) -> None:
    with pytest.raises(ModuleFailed, match="was killed by SIGSEGV"):
        shell("kill -SEGV $$", log)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("no-such-program-anywhere", "No such file"),
        ("./missing", "No such file"),
        ("./plain.txt", "Permission denied"),
        ("./broken", "Exec format error"),
    ],
)
def test_a_program_that_cannot_start(log: Path, program: str, reason: str) -> None:
    (log.parent / "plain.txt").write_text("text")
    (log.parent / "broken").write_text("neither a script nor a binary")
    (log.parent / "broken").chmod(0o755)
    with pytest.raises(ModuleFailed, match=f"{program} cannot be started: {reason}"):
        run([program], log)


def test_the_launchers_variables_do_not_reach_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {
        "OMPI_COMM_WORLD_RANK": "3",
        "PMIX_RANK": "3",
        "PMI_FD": "7",
        "PRTE_X": "1",
        "OPAL_X": "1",
        "HYDI_CONTROL_FD": "9",
        "MPI_LOCALRANKID": "0",
    }
    kept = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "SOMETHING": "else", "PMI": "no prefix of ours"}
    for name, value in {**ours, **kept}.items():
        monkeypatch.setenv(name, value)
    environment = child_environment({"DIEL_COPY": 2, "SOMETHING": Path("/new")})
    assert ours.keys().isdisjoint(environment)
    assert environment["OMPI_ALLOW_RUN_AS_ROOT"] == "1"
    assert environment["PMI"] == "no prefix of ours"
    assert (environment["DIEL_COPY"], environment["SOMETHING"]) == ("2", "/new")
    assert os.environ["SOMETHING"] == "else"


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def stop_once(file: Path, error: BaseException) -> Callable[[], None]:
    """Return a safe point that raises when a program has written its process numbers."""

    def safe_point() -> None:
        if file.exists() and file.read_text().endswith("ready\n"):
            raise error

    return safe_point


CHILDREN = {
    "obedient": "sleep 60 & echo $$ $! > pids; echo ready >> pids; wait",
    "deaf child": "(trap '' TERM; sleep 60) & echo $$ $! > pids; echo ready >> pids; wait",
    "all deaf": "trap '' TERM; sleep 60 & echo $$ $! > pids; echo ready >> pids; wait; sleep 60",
}  # fmt: skip


@pytest.mark.parametrize("script", CHILDREN.values(), ids=CHILDREN)
@pytest.mark.parametrize("error", [RunStopped("the run is stopping"), KeyboardInterrupt()])
def test_a_stop_ends_the_program_and_its_children(
    log: Path, monkeypatch: pytest.MonkeyPatch, script: str, error: BaseException
) -> None:
    monkeypatch.setattr("diel.loading.executables._TERMINATION_GRACE_S", 0.3)
    pids = log.parent / "pids"
    started_s = time.monotonic()
    with pytest.raises(type(error)):
        shell(script, log, stop_once(pids, error))
    assert time.monotonic() - started_s < 20
    deadline_s = time.monotonic() + 5
    numbers = [int(number) for number in pids.read_text().split()[:2]]
    assert len(numbers) == 2
    while any(map(is_alive, numbers)) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not any(map(is_alive, numbers))


def test_a_program_may_end_by_itself_when_asked(log: Path) -> None:
    script = "trap 'echo cleaned; exit 0' TERM; echo x > pids; echo ready >> pids; sleep 60 & wait"
    with pytest.raises(RunStopped):
        shell(script, log, stop_once(log.parent / "pids", RunStopped("stop")))
    assert log.read_text() == "cleaned\n"


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", ""),
        (b"one\ntwo\nthree\n", "two\nthree"),
        (b"no end", "no end"),
        (b"\xff\xfe\n", "\ufffd\ufffd"),
        (b"x" * 200_000 + b"\nlast", "x" * (64 * 1024 - 5) + "\nlast"),
    ],
)
def test_the_last_lines_of_anything(tmp_path: Path, content: bytes, lines: str) -> None:
    file: Any = tmp_path / "file"
    file.write_bytes(content)
    assert last_lines(file, 2) == lines
