from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diel.errors import ModuleFailed, RunStopped
from diel.loading.module_spec import ExecutableSpec
from diel.programs.executables import (
    ProgramRunner,
    last_lines,
    program_of,
)
from diel.programs.supervised import Ending, Program
from diel.testing import TupleSpace
from diel.workflow.programs import PLACEHOLDERS, child_environment


def never_stop() -> None:
    pass


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "program.0.0.log"


PLACES = {**dict.fromkeys(PLACEHOLDERS, "?"), "copy": 2, "copies": 8, "iteration": "2.0"}


def run(
    words: list[str],
    log: Path,
    safe_point: Callable[[], None] = never_stop,
    facts: dict[str, object] | None = None,
    **keys: Any,
) -> Ending:
    spec = ExecutableSpec(words=tuple(words), **keys)
    places = {**PLACES, "folder": log.parent, "run_dir": log.parent / "runs" / "one"}
    command = program_of(spec, places, facts or {})
    with TupleSpace() as space:
        runner = ProgramRunner(space.client())
        try:
            (outcome,) = runner.run(
                [command], run_dir=log.parent / "runs" / "one", log=log, safe_point=safe_point
            )
            if isinstance(outcome, ModuleFailed):
                raise outcome
            return outcome
        finally:
            runner.close()


def shell(script: str, log: Path, safe_point: Callable[[], None] = never_stop) -> Ending:
    return run(["sh", "-c", script], log, safe_point)


def test_output_and_errors_have_files_of_their_own(log: Path) -> None:
    shell("echo out; echo err >&2", log)
    assert log.read_text() == "out\n"
    assert log.with_suffix(".err").read_text() == "err\n"


def test_facts_folder_and_an_empty_standard_input(log: Path) -> None:
    run(["sh", "-c", "echo $DIEL_COPY; pwd; cat"], log, facts={"DIEL_COPY": 3})
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
    program = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "SOMETHING": "else", "PMI": "no prefix of ours"}
    for name, value in {**ours, **program}.items():
        monkeypatch.setenv(name, value)
    environment = child_environment()
    assert ours.keys().isdisjoint(environment)
    assert environment["OMPI_ALLOW_RUN_AS_ROOT"] == "1"
    assert environment["PMI"] == "no prefix of ours"
    assert environment["SOMETHING"] == os.environ["SOMETHING"] == "else"


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
    monkeypatch.setattr("diel.programs.executables._TERMINATION_GRACE_S", 0.3)
    pids = log.parent / "pids"
    with pytest.raises(type(error)):
        shell(script, log, stop_once(pids, error))
    numbers = [int(number) for number in pids.read_text().split()[:2]]
    assert len(numbers) == 2
    assert not any(map(is_alive, numbers))


def test_a_failure_shows_the_lines_of_this_run_alone(log: Path) -> None:
    shell("echo first >&2; echo out", log)
    with pytest.raises(ModuleFailed) as caught:
        shell("echo second >&2; echo out; exit 1", log)
    assert str(caught.value).splitlines()[1:] == ["last lines of its standard error:", "second"]
    assert log.read_text() == "out\nout\n"
    assert log.with_suffix(".err").read_text() == "first\nsecond\n"


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


# -- what a module's entry says -------------------------------------------------------------------


def command(folder: Path, words: list[str], **keys: Any) -> Program:
    places = {**PLACES, "folder": folder, "run_dir": folder / "runs" / "one"}
    return program_of(ExecutableSpec(words=tuple(words), **keys), places, {"DIEL_COPY": 2})


def test_every_placeholder_has_a_value(tmp_path: Path) -> None:
    words = [f"{{{name}}}" for name in PLACEHOLDERS]
    places = {name: f"<{name}>" for name in PLACEHOLDERS} | {"folder": tmp_path}
    filled = program_of(ExecutableSpec(words=("echo", *words)), places, {}).words
    assert filled == ("echo", *(str(places[name]) for name in PLACEHOLDERS))


def test_a_command_line_is_filled_in(tmp_path: Path) -> None:
    line = command(
        tmp_path,
        ["./solve", "--seed={copy}", "{{{iteration}}}", "{run_dir}/out"],
        launcher=("mpiexec", "-n", "{copies}"),
        environment={"WHO": "{copy} of {copies}"},
        directory="{run_dir}/w.{copy}",
        stdin="in.{copy}",
    )
    run_dir = tmp_path / "runs" / "one"
    program = f"{tmp_path}/solve"
    assert line.words == (
        *("mpiexec", "-n", "8", program),
        *("--seed=2", "{2.0}", f"{run_dir}/out"),
    )
    assert line.added == {"DIEL_COPY": "2", "WHO": "2 of 8"}
    assert line.directory == run_dir / "w.2"
    assert line.stdin == tmp_path / "in.2"


def test_places_are_absolute_or_below_the_folder(tmp_path: Path) -> None:
    line = command(tmp_path, ["/bin/true"])
    assert (line.words, line.directory, line.stdin) == (("/bin/true",), tmp_path, None)
    line = command(tmp_path, ["bin/x", "a/b"], directory="/abs", stdin="/abs/in")
    assert line.words == (f"{tmp_path}/bin/x", "a/b")
    assert (line.directory, line.stdin) == (Path("/abs"), Path("/abs/in"))


def test_a_working_directory_in_the_run_directory_is_made(log: Path) -> None:
    run(["pwd"], log, directory="{run_dir}/deep/{copy}")
    assert log.read_text().strip() == str(log.parent / "runs/one/deep/2")
    run(["pwd"], log, directory="{run_dir}/deep/{copy}")  # again, in the next iteration


@pytest.mark.parametrize(
    ("directory", "words"),
    [
        ("elsewhere", "does not exist"),
        ("{run_dir}/../outside", "does not exist"),
        ("file", "is not a folder"),
        ("{run_dir}", "cannot be used: File exists"),
    ],
)
def test_a_working_directory_that_is_none(log: Path, directory: str, words: str) -> None:
    (log.parent / "file").touch()
    (log.parent / "runs").mkdir()
    (log.parent / "runs" / "one").touch()
    with pytest.raises(ModuleFailed, match=f"the working directory .* {words}"):
        run(["true"], log, directory=directory)


def test_a_working_directory_that_is_there(log: Path) -> None:
    (log.parent / "cases").mkdir()
    run(["pwd"], log, directory="cases")
    assert log.read_text().strip() == str(log.parent / "cases")


def test_a_program_reads_a_file_as_its_standard_input(log: Path) -> None:
    (log.parent / "in.2").write_text("from the file\n")
    run(["cat"], log, stdin="in.{copy}")
    assert log.read_text() == "from the file\n"


def test_a_standard_input_that_cannot_be_read(log: Path) -> None:
    os.mkfifo(log.parent / "pipe")  # opening it would wait for somebody who writes
    for stdin, words in [("none", "does not exist"), ("pipe", "is not a file"), (".", "is not a")]:
        with pytest.raises(ModuleFailed, match=f"the standard input .*{words}"):
            run(["cat"], log, stdin=stdin)


def test_variables_of_the_file_come_on_top(log: Path) -> None:
    facts = {"OMP_NUM_THREADS": 1, "DIEL_COPY": 2}
    run(["env"], log, facts=facts, environment={"OMP_NUM_THREADS": "4", "EMPTY": "", "E": "a=b"})
    lines = log.read_text().splitlines()
    for line in ("OMP_NUM_THREADS=4", "DIEL_COPY=2", "EMPTY=", "E=a=b"):
        assert line in lines
    assert not [line for line in lines if line.startswith("DIEL_SET_")]


def test_variables_act_on_the_program_and_not_on_its_supervisor(log: Path) -> None:
    run(["sh", "-c", "echo $LD_PRELOAD"], log, environment={"LD_PRELOAD": "", "PYTHONHOME": "/x"})
    with pytest.raises(ModuleFailed, match="true cannot be started: No such file"):
        run(["true"], log, environment={"PATH": "/nowhere"})


def test_the_command_diel_is_on_the_path(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    run(["diel", "--version"], log)
    assert log.read_text().startswith("diel ")


def test_programs_run_one_after_the_other_whatever_comes_of_each(log: Path) -> None:
    scripts = ["echo one >&2", "echo two; exit 3", None, "echo err >&2; exit 4", "echo last"]
    lines = [("sh", "-c", script) if script else ("./no",) for script in scripts]
    commands = [Program(line, log.parent, {}) for line in lines]
    nowhere = log.parent / "nowhere"
    commands.append(Program(("true",), nowhere, {}))
    with TupleSpace() as space:
        runner = ProgramRunner(space.client())
        run_dir = log.parent / "run"
        outcomes = runner.run(commands, run_dir=run_dir, log=log, safe_point=never_stop)
        runner.close()
    assert [str(outcome).splitlines() for outcome in outcomes] == [
        ["exited with status 0"],
        ["sh -c echo two; exit 3 exited with status 3"],
        ["./no cannot be started: No such file or directory"],
        [
            "sh -c echo err >&2; exit 4 exited with status 4",
            "last lines of its standard error:",
            "err",
        ],
        ["exited with status 0"],
        [f"the working directory {nowhere} does not exist; one below {{run_dir}} is made by diel"],
    ]
    assert log.read_text() == "two\nlast\n"
