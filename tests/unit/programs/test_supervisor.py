"""Nothing that a program has started outlives its supervisor, however that, or the rank, ends."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from support import DETACH, is_alive, parent_of, pid_in

from diel.comm.waiting import wait_for
from diel.programs import supervisor as supervisor_module
from diel.programs.supervised import Ending, Program, SupervisedProgram, Supervisor
from diel.workflow.programs import child_environment

PATIENCE_S = 20


def detached(folder: Path, name: str = "daemon", *more: str) -> str:
    """Return a shell command that leaves a daemon behind."""
    (folder / "detach.py").write_text(DETACH)
    return " ".join([sys.executable, "-S", str(folder / "detach.py"), str(folder / name), *more])


def is_gone_soon(pid: int) -> bool:
    return wait_for(lambda: True if not is_alive(pid) else None, PATIENCE_S) is True


def has_stopped(pid: int) -> bool:
    return " T " in Path(f"/proc/{pid}/stat").read_text()


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    supervisor = Supervisor(child_environment())
    yield supervisor
    supervisor.close()


Start: TypeAlias = "Callable[..., SupervisedProgram]"


@pytest.fixture
def start(supervisor: Supervisor, tmp_path: Path) -> Start:
    """Return what starts a command under a supervisor; none is left after the test."""

    def begin(*command: str, grace_s: float = 0.3, **keys: Any) -> SupervisedProgram:
        given = {key: keys.pop(key, None) for key in ("stdin", "memory_bytes", "signal", "cpus")}
        program = Program(command, tmp_path, added={}, **given)
        files = {"stdout": tmp_path / "out", "stderr": tmp_path / "err", **keys}
        return supervisor.start([program], grace_s=grace_s, **files)

    return begin


def ending_of(program: SupervisedProgram) -> Ending:
    ending = wait_for(program.poll, PATIENCE_S, wakes=[program])
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
def test_how_a_program_ends(start: Start, script: str, ending: Ending, words: str) -> None:
    found = ending_of(start("sh", "-c", script))
    assert (found, str(found), found.is_success) == (ending, words, ending.status == 0)


def test_a_program_that_cannot_be_started(start: Start, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    for program, words in [
        ("no-such-program-anywhere", "cannot be started: No such file or directory"),
        (str(tmp_path / "text"), "cannot be started: Permission denied"),
        (str(tmp_path), "cannot be started: Permission denied"),
    ]:
        assert str(ending_of(start(program))) == words
    # Exiting with the status that shells use for this is something else.
    assert str(ending_of(start("sh", "-c", "exit 127"))) == "exited with status 127"


def test_a_program_has_the_usual_signals(start: Start, tmp_path: Path) -> None:
    assert ending_of(start("grep", "^Sig[BI]", "/proc/self/status")).is_success
    masks = dict(line.split(":\t") for line in (tmp_path / "out").read_text().splitlines())
    assert int(masks["SigBlk"], 16) == 0
    ignored = int(masks["SigIgn"], 16)
    assert not ignored & sum(1 << (number - 1) for number in (signal.SIGPIPE, signal.SIGTERM))


def test_a_program_holds_no_file_of_the_rank(start: Start, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)  # as a library that knows no better may leave it
    script = "import os; print([n for n in range(3, 200) if os.path.exists(f'/proc/self/fd/{n}')])"
    start_held = start(sys.executable, "-I", "-S", "-c", script)
    os.close(writing)
    assert ending_of(start_held).is_success
    assert (tmp_path / "out").read_text() == "[]\n"
    assert os.read(reading, 1) == b""  # nobody has the other end
    os.close(reading)


# -- memory ---------------------------------------------------------------------------------------

HOLDS = "held = bytearray({} << 20); import time; time.sleep(30)"


def test_a_program_with_more_memory_than_it_may_have_is_killed(start: Start) -> None:
    ending = ending_of(start(sys.executable, "-c", HOLDS.format(64), memory_bytes=48 << 20))
    assert (ending.signal, ending.is_success) == (9, False)
    assert ending.memory_bytes is not None
    assert 48 << 20 < ending.memory_bytes < 128 << 20
    assert re.fullmatch(r"was killed: it had [\d.]+ MiB in memory", str(ending))


def test_the_memory_of_all_that_it_starts_counts(start: Start, tmp_path: Path) -> None:
    child = f'{sys.executable} -c "{HOLDS.format(32)}"'
    # The daemon is there before the children have so much that all are killed.
    there = f"{detached(tmp_path)}; until [ -s {tmp_path}/daemon ]; do sleep 0.01; done"
    program = start("sh", "-c", f"{there}; {child} & {child} & wait", memory_bytes=1 << 26)
    assert ending_of(program).memory_bytes is not None
    assert not is_alive(pid_in(tmp_path / "daemon"))


def test_a_program_that_keeps_within_its_memory(start: Start) -> None:
    found = ending_of(
        start(sys.executable, "-c", "held = bytearray(1 << 20)", memory_bytes=1 << 30)
    )
    assert found == Ending(status=0)


def test_what_the_kernel_kills_for_memory_is_said() -> None:
    assert supervisor_module.starved_processes() >= 0
    ending = Ending(signal=9, is_starved=True)
    assert str(ending) == "was killed by SIGKILL, as this machine ran out of memory"


# -- the end of its time, and its cores -----------------------------------------------------------

WAITS = """trap 'echo saved; exit 75' {}; echo ready; while :; do sleep 0.05; done"""


def in_s(seconds: float, number: int = signal.SIGTERM) -> tuple[int, float]:
    return number, time.monotonic() + seconds


def test_a_program_is_told_that_its_time_is_nearly_over(start: Start, tmp_path: Path) -> None:
    found = ending_of(start("sh", "-c", WAITS.format("USR1"), signal=in_s(1, signal.SIGUSR1)))
    assert (tmp_path / "out").read_text() == "ready\nsaved\n"
    assert found == Ending(status=75, warning=signal.SIGUSR1)
    assert str(found) == "exited with status 75 after SIGUSR1, sent by signal_before"


def test_a_program_that_does_not_listen_is_ended_by_it(start: Start) -> None:
    found = ending_of(start("sleep", "60", signal=in_s(0.2), memory_bytes=1 << 30))
    assert found == Ending(signal=signal.SIGTERM, warning=signal.SIGTERM)
    assert str(found) == "was killed by SIGTERM, sent by signal_before"


def test_what_a_program_has_started_is_told_too(start: Start, tmp_path: Path) -> None:
    script = f"trap : TERM; sh -c '{WAITS.format('TERM')}'; echo its status was $?"
    script = script.replace("'echo saved; exit 75'", '"echo saved; exit 75"')
    assert ending_of(start("sh", "-c", script, signal=in_s(1))).is_success
    assert (tmp_path / "out").read_text() == "ready\nsaved\nits status was 75\n"


@pytest.mark.parametrize("seconds", [-1, 60])
def test_a_program_outside_of_that_time_is_told_nothing(start: Start, seconds: float) -> None:
    assert ending_of(start("sleep", "0.1", signal=in_s(seconds))) == Ending(status=0)


def test_a_program_is_bound_and_the_next_one_is_not(supervisor: Supervisor, tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    shows = [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"]
    programs = [Program(shows, tmp_path, {}, cpus=cpus) for cpus in ([max(before)], None, [10**6])]
    files = {"stdout": tmp_path / "out", "stderr": tmp_path / "err"}
    running = supervisor.start(programs, grace_s=0.3, **files)
    assert str(ending_of(running)) == "cannot be started: Invalid argument"
    assert [ending.status for ending in running.endings] == [0, 0, None]
    assert (tmp_path / "out").read_text() == f"[{max(before)}]\n{sorted(before)}\n"


# -- what it leaves behind ------------------------------------------------------------------------


def test_a_daemon_ends_with_its_program(start: Start, tmp_path: Path) -> None:
    ending = ending_of(start("sh", "-c", detached(tmp_path)))
    assert (ending.status, ending.left_behind) == (0, 1)
    assert not is_alive(pid_in(tmp_path / "daemon"))


def test_a_daemon_that_ignores_signals_is_killed(start: Start, tmp_path: Path) -> None:
    ending = ending_of(start("sh", "-c", f"{detached(tmp_path, 'daemon', 'deaf')}; exit 4"))
    assert (ending.status, ending.left_behind) == (4, 1)
    assert not is_alive(pid_in(tmp_path / "daemon"))


def test_what_ends_by_itself_in_a_moment_is_waited_for(start: Start, tmp_path: Path) -> None:
    ending = ending_of(start("sh", "-c", "(sleep 0.2; echo the tail) & exit 0"))
    assert ending == Ending(status=0)
    assert (tmp_path / "out").read_text() == "the tail\n"


def test_ending_a_program_ends_its_daemons(start: Start, tmp_path: Path) -> None:
    script = f"{detached(tmp_path)}; {detached(tmp_path, 'deaf', 'deaf')}; exec sleep 300"
    program = start("sh", "-c", script)
    pids = [pid_in(tmp_path / "daemon"), pid_in(tmp_path / "deaf")]
    program.end()
    ending = program.poll()
    assert ending is not None
    assert ending.signal == signal.SIGTERM
    assert not any(map(is_alive, pids))


def test_a_program_that_is_stopped_is_ended_too(start: Start, tmp_path: Path) -> None:
    program = start("sh", "-c", "echo $$ ready > pid; trap 'exit 9' TERM; kill -STOP $$")
    pid = pid_in(tmp_path / "pid")
    assert wait_for(lambda: has_stopped(pid) or None, PATIENCE_S)
    program.end()
    assert program.poll() == Ending(status=9)


# -- when somebody dies ---------------------------------------------------------------------------

RANK = """
import sys
from pathlib import Path
from diel.programs import executables
executables._TERMINATION_GRACE_S = 0.3
folder, script = Path(sys.argv[1]), sys.argv[2]
runner = executables.ProgramRunner(None)
for words in (("true",), ("sh", "-c", script)):
    program = executables.Program(words, folder, {})
    log = folder / "log"
    (outcome,) = runner.run([program], run_dir=folder, log=log, safe_point=lambda: None)
    if isinstance(outcome, Exception):
        raise outcome
"""

# A shell, its child, and two grandchildren in sessions of their own, one of which does not listen;
# each says who it is. The last number is of a process that goes on to start others.
FOREST = """
sleep 300 & echo $! ready > child
setsid sh -c 'echo $$ ready > grandchild; sleep 300; :' &
setsid sh -c "trap '' TERM HUP INT; (sleep 300; sleep 300) & echo \\$! ready > deaf; wait" &
(i=0; while [ $i -lt 40 ]; do setsid sleep 300 & i=$((i + 1)); done; wait) &
echo $! ready > forking
echo $DIEL_TUPLE_SOCKET ready > socket
echo $PPID ready > supervisor
echo $$ ready > pid
wait
"""
NAMES = ("pid", "child", "grandchild", "deaf", "forking")


def rank_line(folder: Path, script: str = FOREST) -> list[str]:
    """Return the line of a process that runs a shell script as a rank does."""
    return [sys.executable, "-c", RANK, str(folder), script]


def in_folder(folder: Path) -> list[int]:
    """Return every process whose working directory is this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(process / "cwd") == str(folder):
                found.append(int(process.name))
    return found


def nothing_is_left_in(folder: Path) -> bool:
    return wait_for(lambda: True if not in_folder(folder) else None, PATIENCE_S) is True


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_rank_that_is_killed(number: int, tmp_path: Path) -> None:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(rank_line(tmp_path), **pipes) as rank:
        pids = [pid_in(tmp_path / name) for name in NAMES]
        assert all(map(is_alive, pids))
        tuple_socket = Path((tmp_path / "socket").read_text().split()[0])
        assert tuple_socket.is_socket()
        rank.send_signal(number)
        # What holds its output would let mpirun wait: there is nobody.
        assert rank.communicate(timeout=PATIENCE_S) == (b"", b"")
    assert nothing_is_left_in(tmp_path)
    assert wait_for(lambda: True if not tuple_socket.parent.exists() else None, PATIENCE_S)


def test_nothing_outlives_a_rank_that_ends(tmp_path: Path) -> None:
    """Its supervisor goes with it, and the socket, also when nobody has closed them."""
    subprocess.run(
        rank_line(tmp_path, "echo $PPID ready > supervisor; echo $DIEL_TUPLE_SOCKET > socket"),
        check=True,
        timeout=PATIENCE_S,
    )
    assert is_gone_soon(pid_in(tmp_path / "supervisor"))
    assert not Path((tmp_path / "socket").read_text().strip()).parent.exists()


def test_a_supervisor_that_is_killed_takes_the_whole_tree_along(
    supervisor: Supervisor, start: Start, tmp_path: Path
) -> None:
    unrelated = subprocess.Popen(["sleep", "300"])
    program = start("sh", "-c", FOREST)
    pids = [pid_in(tmp_path / name) for name in NAMES]
    assert all(map(is_alive, pids))
    pid = supervisor.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    ending = ending_of(program)
    assert in_folder(tmp_path) == []  # at once, not soon
    assert not any(map(is_alive, pids))
    assert str(ending) == (
        "was ended, with all that it had started, since its supervisor "
        f"(process {pid}) was killed by SIGKILL"
    )
    assert not ending.is_success
    assert unrelated.poll() is None  # a child of an earlier time is none of its orphans
    unrelated.kill()
    unrelated.wait()
    # The next program has another one.
    assert ending_of(start("true")).is_success
    assert supervisor.pid != pid


def test_a_tree_that_grows_while_it_is_killed(
    supervisor: Supervisor, start: Start, tmp_path: Path
) -> None:
    fork = "setsid sh -c 'sleep 300 & exec sleep 300' &"
    loop = f"(i=0; while [ $i -lt 100 ]; do {fork} i=$((i + 1)); done) &"
    program = start("sh", "-c", f"{loop} {loop} echo $$ ready > pid; wait")
    pid_in(tmp_path / "pid")
    assert supervisor.pid is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    ending_of(program)
    assert in_folder(tmp_path) == []


def test_the_message_of_a_rank_names_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    with subprocess.Popen(rank_line(tmp_path), stderr=subprocess.PIPE) as rank:
        pid_in(tmp_path / "pid")
        killed = pid_in(tmp_path / "supervisor")
        rank.send_signal(signal.SIGSTOP)  # even if it cannot do anything about it at once
        os.kill(killed, signal.SIGKILL)
        rank.send_signal(signal.SIGCONT)
        _, errors = rank.communicate(timeout=PATIENCE_S)
    assert f"its supervisor (process {killed}) was killed by SIGKILL" in errors.decode()
    assert in_folder(tmp_path) == []


@pytest.mark.parametrize("first", ["rank", "supervisor"])
def test_when_both_are_killed_the_launchers_supervisor_ends_the_rest(
    start: Start, tmp_path: Path, first: str
) -> None:
    """The rank stands for mpiexec with its ranks."""
    rank = start(*rank_line(tmp_path), grace_s=0.1)
    both = {"supervisor": pid_in(tmp_path / "supervisor")}
    both["rank"] = parent_of(both["supervisor"])
    for name in NAMES:
        pid_in(tmp_path / name)
    for pid in both.values():  # else the second one might end some of the rest before it dies
        os.kill(pid, signal.SIGSTOP)
        assert wait_for(lambda pid=pid: has_stopped(pid) or None, PATIENCE_S)
    for who in (first, *(both.keys() - {first})):
        os.kill(both[who], signal.SIGKILL)
    ending = ending_of(rank)
    assert in_folder(tmp_path) == []
    assert ending.signal == signal.SIGKILL
    assert ending.left_behind > len(NAMES)


def test_a_supervisor_that_is_killed_while_it_has_nothing_to_do(
    supervisor: Supervisor, start: Start
) -> None:
    assert ending_of(start("true")).is_success
    first = supervisor.pid
    assert ending_of(start("true")).is_success
    assert supervisor.pid == first
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert is_gone_soon(first)
    assert ending_of(start("true")).is_success
    assert supervisor.pid != first


def test_a_supervisor_that_does_not_listen_is_killed(
    supervisor: Supervisor, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diel.programs.supervised._SUPERVISOR_EXTRA_S", 0.1)
    program = start("sh", "-c", "echo $$ ready > pid; sleep 300")
    pid_in(tmp_path / "pid")
    assert supervisor.pid is not None
    os.kill(supervisor.pid, signal.SIGSTOP)
    program.end()
    assert "was killed by SIGKILL" in str(program.poll())
    assert in_folder(tmp_path) == []


def test_a_supervisor_whose_rank_has_died_before_starts_nothing(tmp_path: Path) -> None:
    ours, its = socket.socketpair()
    line = [sys.executable, "-I", "-S", supervisor_module.__file__, str(its.fileno())]
    with ours, its:
        ours.sendall(b"never read")
        subprocess.run(
            [*line, "999999999", ""], pass_fds=[its.fileno()], check=True, timeout=PATIENCE_S
        )
        assert its.recv(100) == b"never read"


def test_a_supervisor_imports_little() -> None:
    """It has to start in milliseconds."""
    tree = ast.parse(Path(supervisor_module.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in imports
        for alias in node.names
    }
    small = {"ctypes", "errno", "marshal", "os", "select", "signal", "sys", "time"}
    assert names == {*small, "__future__", "collections.abc", "typing"}  # the last one for types
