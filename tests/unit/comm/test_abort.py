"""The end of all ranks by one that has failed: whatever else fails, or hangs, on the way there."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SCRIPT = """\
import os, sys, threading, time
from diel.comm import mpi

class Comm:
    def Abort(self, exit_code):
        os.write(1, b"aborted")
        os._exit(exit_code)

class Full:
    def write(self, text):
        raise OSError(28, "No space left on device")
    flush = write

def no_memory(*_):
    raise MemoryError

def exits():
    sys.exit(0)

def no_words():
    sys.stdout = sys.stderr = Full()
    sys.stderr.write("why")

def hangs():
    time.sleep(60)

mpi._ABORT_TIMEOUT_S = mpi._FINALIZE_TIMEOUT_S = 0.2
"""


def ended(what: str) -> tuple[int, str]:
    """Run the script and some lines more; return the exit status and what it has printed."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + what],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("before", ["no_memory", "exits", "no_words", "lambda: None"])
def test_other_ranks_are_ended_whatever_fails_before(before: str) -> None:
    assert ended(f"mpi.abort(Comm(), 7, {before})") == (7, "aborted")


@pytest.mark.parametrize("before", ["hangs", "lambda: None"])
def test_a_rank_that_hangs_on_the_way_is_ended_by_the_kernel(before: str) -> None:
    lines = "import signal\nclass Comm:\n    def Abort(self, exit_code): hangs()\n"
    lines += "signal.signal(signal.SIGALRM, lambda *_: None)\n"
    status, _ = ended(f"{lines}mpi.abort(Comm(), 7, {before})")
    assert status == -signal.SIGALRM


@pytest.mark.parametrize(("finalize", "status"), [("lambda: None", 3), ("hangs", -signal.SIGALRM)])
def test_without_memory_for_a_thread_mpi_is_finalized_within_limits(
    finalize: str, status: int
) -> None:
    lines = f"""
import types
library = types.SimpleNamespace(Is_finalized=lambda: False, Finalize={finalize})
sys.modules["mpi4py"] = types.SimpleNamespace(MPI=library)
def no_thread(self):
    raise RuntimeError("can't start new thread")
threading.Thread.start = no_thread
mpi.finalize_and_exit(3)
"""
    assert ended(lines)[0] == status
