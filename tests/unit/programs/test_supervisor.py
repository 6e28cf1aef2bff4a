"""Nothing that a program has started outlives its supervisor, however that, or the rank, ends."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diel.comm.waiting import wait_for
from diel.programs import supervisor as supervisor_module
from diel.programs.executables import child_environment
from diel.programs.supervised import Ending, Supervised

PATIENCE_S = 20

# A daemon, by the book: in a session of its own, and nobody's child. Writes its number, then ready.
DETACH = """
import os, signal, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
with open(sys.argv[1], "w") as file:
    file.write(f"{os.getpid()} ready\\n")
time.sleep(300)
"""


def detached(folder: Path, name: str = "daemon", *more: str) -> str:
    """Return a shell command that leaves a daemon behind."""
    (folder / "detach.py").write_text(DETACH)
    return " ".join([sys.executable, "-S", str(folder / "detach.py"), str(folder / name), *more])


def pid_in(file: Path) -> int:
    def look() -> int | None:
        text = file.read_text() if file.exists() else ""
        return int(text.split()[0]) if text.endswith("ready\n") else None

    pid = wait_for(look, PATIENCE_S)
    assert pid is not None, f"{file} was not written"
    return pid


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def is_gone_soon(pid: int) -> bool:
    return wait_for(lambda: True if not is_alive(pid) else None, PATIENCE_S) is True


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    """Return what starts a command under a supervisor; none is left after the test."""
    started = []

    def begin(*command: str, grace_s: float = 0.3, **keys: str) -> Supervised:
        with (tmp_path / "out").open("ab") as out, (tmp_path / "err").open("ab") as err:
            program = Supervised(
                command,
                directory=tmp_path,
                environment=child_environment(),
                added={},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                grace_s=grace_s,
                **keys,
            )
        started.append(program)
        return program

    yield begin
    for program in started:
        if program.poll() is None:
            program.end()


def ending_of(program: Supervised) -> Ending:
    ending = wait_for(program.poll, PATIENCE_S)
    assert ending is not None
    return ending


# -- how a program ends ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "ending", "words"),
    [
        ("exit 0", Ending(status=0), "exited with status 0"),
        ("exit 3", Ending(status=3), "exited with status 3"),
        ("exit 255", Ending(status=255), "exited with status 255"),
        ("kill -SEGV $$", Ending(signal=11), "was killed by SIGSEGV"),
        ("kill -KILL $$", Ending(signal=9), "was killed by SIGKILL"),
        ("kill -40 $$", Ending(signal=40), "was killed by signal 40"),
        # Of a shell, which is a status like any other.
        ("sh -c 'kill -TERM $$'; exit $?", Ending(status=143), "exited with status 143"),
    ],
)
def test_how_a_program_ends(
    start: Callable[..., Supervised], script: str, ending: Ending, words: str
) -> None:
    found = ending_of(start("sh", "-c", script))
    assert (found, str(found), found.is_success) == (ending, words, ending.status == 0)


def test_a_program_that_cannot_be_started(start: Callable[..., Supervised], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    for program, words in [
        ("no-such-program-anywhere", "cannot be started: No such file or directory"),
        (str(tmp_path / "text"), "cannot be started: Permission denied"),
        (str(tmp_path), "cannot be started: Permission denied"),
    ]:
        assert str(ending_of(start(program))) == words
    # Exiting with the status that shells use for this is something else.
    assert str(ending_of(start("sh", "-c", "exit 127"))) == "exited with status 127"


def test_a_program_has_the_usual_signals(start: Callable[..., Supervised], tmp_path: Path) -> None:
    assert ending_of(start("grep", "^Sig[BI]", "/proc/self/status")).is_success
    masks = dict(line.split(":\t") for line in (tmp_path / "out").read_text().splitlines())
    assert int(masks["SigBlk"], 16) == 0
    ignored = int(masks["SigIgn"], 16)
    assert not ignored & sum(1 << (number - 1) for number in (signal.SIGPIPE, signal.SIGTERM))


def test_a_program_holds_no_file_of_the_rank(
    start: Callable[..., Supervised], tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)  # as a library that knows no better may leave it
    script = "import os; print([n for n in range(3, 200) if os.path.exists(f'/proc/self/fd/{n}')])"
    start_held = start(sys.executable, "-I", "-S", "-c", script)
    os.close(writing)
    assert ending_of(start_held).is_success
    assert (tmp_path / "out").read_text() == "[]\n"
    assert os.read(reading, 1) == b""  # nobody has the other end
    os.close(reading)


# -- what it leaves behind ------------------------------------------------------------------------


def test_a_daemon_ends_with_its_program(start: Callable[..., Supervised], tmp_path: Path) -> None:
    ending = ending_of(start("sh", "-c", detached(tmp_path)))
    assert (ending.status, ending.left_behind) == (0, 1)
    assert not is_alive(pid_in(tmp_path / "daemon"))


def test_a_daemon_that_is_deaf_is_killed(start: Callable[..., Supervised], tmp_path: Path) -> None:
    ending = ending_of(start("sh", "-c", f"{detached(tmp_path, 'daemon', 'deaf')}; exit 4"))
    assert (ending.status, ending.left_behind) == (4, 1)
    assert not is_alive(pid_in(tmp_path / "daemon"))


def test_what_ends_by_itself_in_a_moment_is_waited_for(
    start: Callable[..., Supervised], tmp_path: Path
) -> None:
    ending = ending_of(start("sh", "-c", "(sleep 0.2; echo the tail) & exit 0"))
    assert ending == Ending(status=0)
    assert (tmp_path / "out").read_text() == "the tail\n"


def test_ending_a_program_ends_its_daemons(
    start: Callable[..., Supervised], tmp_path: Path
) -> None:
    script = f"{detached(tmp_path)}; {detached(tmp_path, 'deaf', 'deaf')}; exec sleep 300"
    program = start("sh", "-c", script)
    pids = [pid_in(tmp_path / "daemon"), pid_in(tmp_path / "deaf")]
    program.end()
    ending = program.poll()
    assert ending is not None
    assert ending.signal == signal.SIGTERM
    assert not any(map(is_alive, pids))


def test_a_program_that_is_stopped_is_ended_too(
    start: Callable[..., Supervised], tmp_path: Path
) -> None:
    program = start("sh", "-c", "echo $$ ready > pid; trap 'exit 9' TERM; kill -STOP $$")
    pid = pid_in(tmp_path / "pid")
    stat = Path(f"/proc/{pid}/stat")
    assert wait_for(lambda: " T " in stat.read_text() or None, PATIENCE_S)
    program.end()
    assert program.poll() == Ending(status=9)


# -- when somebody dies ---------------------------------------------------------------------------

RANK = """
import sys
from pathlib import Path
from diel.programs import executables
from diel.programs.executables import Command, run_executable
executables._TERMINATION_GRACE_S = 0.3
folder = Path(sys.argv[1])
script, tuple_socket = sys.argv[2:]
command = Command(("sh", "-c", script), folder, {})
keys = {"log": folder / "log", "safe_point": lambda: None, "tuple_socket": tuple_socket}
run_executable(command, run_dir=folder, **keys)
"""


def rank_with(folder: Path, script: str, tuple_socket: str = "") -> subprocess.Popen[bytes]:
    """Start a process that runs a shell script as a rank does."""
    return subprocess.Popen(
        [sys.executable, "-c", RANK, folder, script, tuple_socket],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_rank_that_is_killed(number: int, tmp_path: Path) -> None:
    tuple_socket = tmp_path / "socket" / "tuple_socket"
    tuple_socket.parent.mkdir()
    tuple_socket.touch()
    script = (
        f"{detached(tmp_path)}; {detached(tmp_path, 'deaf', 'deaf')}; "
        "(trap '' TERM; sleep 300) & echo $$ ready > pid; wait"
    )
    rank = rank_with(tmp_path, script, str(tuple_socket))
    pids = [pid_in(tmp_path / name) for name in ("daemon", "deaf", "pid")]
    assert all(map(is_alive, pids))
    rank.send_signal(number)
    # What holds its output would let mpirun wait: there is nobody, though all are still alive.
    began_s = time.monotonic()
    output = rank.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - began_s < 0.3 + 5
    assert output == (b"", b"")
    assert all(map(is_gone_soon, pids))
    assert wait_for(lambda: True if not tuple_socket.parent.exists() else None, PATIENCE_S)


def test_a_supervisor_that_is_killed_takes_its_program_along(
    start: Callable[..., Supervised], tmp_path: Path
) -> None:
    program = start("sh", "-c", "sleep 300 & echo $! ready > child; echo $$ ready > pid; wait")
    pids = [pid_in(tmp_path / "pid"), pid_in(tmp_path / "child")]
    os.kill(program.supervisor_pid, signal.SIGKILL)
    ending = ending_of(program)
    assert str(ending) == "was ended when its supervisor died"
    assert not ending.is_success
    assert all(map(is_gone_soon, pids))


def test_a_supervisor_that_is_killed_takes_its_program_along_though_the_rank_sleeps(
    tmp_path: Path,
) -> None:
    with rank_with(
        tmp_path, "echo $PPID ready > supervisor; echo $$ ready > pid; sleep 300"
    ) as rank:
        try:
            supervisor, pid = pid_in(tmp_path / "supervisor"), pid_in(tmp_path / "pid")
            rank.send_signal(signal.SIGSTOP)
            os.kill(supervisor, signal.SIGKILL)
            assert is_gone_soon(pid)
        finally:
            rank.send_signal(signal.SIGCONT)
            rank.communicate(timeout=PATIENCE_S)


def test_a_supervisor_that_does_not_listen_is_killed(
    start: Callable[..., Supervised], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diel.programs.supervised._SUPERVISOR_EXTRA_S", 0.1)
    program = start("sh", "-c", "echo $$ ready > pid; sleep 300")
    pid = pid_in(tmp_path / "pid")
    os.kill(program.supervisor_pid, signal.SIGSTOP)
    program.end()
    assert program.poll() == Ending()
    assert is_gone_soon(pid)


def test_a_supervisor_whose_rank_has_died_before_starts_nothing(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    line = [sys.executable, "-I", "-S", supervisor_module.__file__, str(writing)]
    subprocess.run(
        [*line, "999999999", "1", "", "touch", tmp_path / "started"],
        pass_fds=[writing],
        check=True,
        timeout=PATIENCE_S,
    )
    os.close(writing)
    assert os.read(reading, 100) == b""
    assert not (tmp_path / "started").exists()
    os.close(reading)


def test_a_supervisor_imports_little() -> None:
    """It has to start in milliseconds, once for each run of each copy."""
    tree = ast.parse(Path(supervisor_module.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in imports
        for alias in node.names
    }
    assert names == {"ctypes", "os", "signal", "sys", "time", "collections.abc"}
