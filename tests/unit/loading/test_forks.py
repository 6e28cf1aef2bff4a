"""Forks of a rank, in processes of their own: those of the tests have threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAD = """\
import os, sys
from diel.loading.forks import NotARank, ending_forks, handling_forks, refuse
from diel.loading.output import RankOutput

class Space:
    def tput(self): print("put")

output, space = RankOutput(2**20), Space()
put = space.tput
def begin_fork():
    output.begin_fork()
    refuse(space)
print("before, ", end="")
with handling_forks(output.flush, begin_fork), ending_forks():
    pid = os.fork()
    if pid == 0:
"""
TAIL = """
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
space.tput()
print("parent", status)
output.close()
"""


@pytest.mark.parametrize(
    ("child", "printed", "status"),
    [
        ("pass", "", 0),
        ("print('child')", "child\n", 0),
        ("print('no end of line, ', end='')", "no end of line, ", 0),
        ("sys.exit()", "", 0),
        ("sys.exit(3)", "", 3),
        ("sys.exit('a reason')", "a reason\n", 1),
        ("1 / 0", "ZeroDivisionError: division by zero\n", 1),
        ("os._exit(5)", "", 5),
        ("space.tput()", "", 1),
        (
            "\n        try: space.tput()\n        except NotARank as e: print(str(e)[:35])",
            "this process was forked from a rank\n",
            0,
        ),
        (
            "\n        try: sys.exit(4)\n        finally: space.tput()",
            "",
            4,
        ),
        (
            "\n        if os.fork() == 0: print('grandchild')\n        else: os.wait()",
            "grandchild\n",
            0,
        ),
    ],
)
def test_a_fork_ends_where_it_would_leave_the_modules_code(
    child: str, printed: str, status: int
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", f"{HEAD}        {child}{TAIL}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout.startswith("before, ")
    assert ran.stdout.count("before, ") == 1  # it is in the memory of both
    assert ran.stdout.endswith(f"{printed}put\nparent {status}\n")
    assert ("Traceback" in ran.stdout) == (status == 1 and "exit" not in child)


SIGNALLED = """
import os, signal
from diel.loading.forks import handling_forks

def let_go():
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

# Before what a rank has the child do, as a pool that ends its processes may.
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
reading, writing = os.pipe()
os.set_blocking(reading, False)
os.set_blocking(writing, False)
signal.set_wakeup_fd(writing)
signal.signal(signal.SIGTERM, lambda *_: None)
with handling_forks(lambda: None, let_go):
    if not (child := os.fork()):
        os._exit(0)
_, status = os.waitpid(child, 0)
print(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM)
try:
    print(os.read(reading, 1))
except BlockingIOError:
    print("nothing came to the rank")
print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


def test_a_signal_to_a_process_just_forked_does_not_reach_the_rank() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SIGNALLED], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.splitlines() == ["True", "nothing came to the rank", "set()"], ran.stderr
