from __future__ import annotations

import signal
import subprocess
import sys
import time

from diel.exit_codes import NOT_FINISHED, STOPPED

SCRIPT = """\
import os, sys, time
from diel.executive.signals import StopSignals

signals = StopSignals(patience_s=float(sys.argv[1]))
signals.set_stop_request(lambda why, code: os.write(1, f"asked: {why[:7]} {code}\\n".encode()))
os.write(1, b"ready\\n")
if sys.argv[2] == "python":
    deadline_s = time.monotonic() + 100
    while time.monotonic() < deadline_s:
        pass
else:  # a single long call into C, where no handler of Python's runs
    import ctypes
    for _ in range(100):
        ctypes.CDLL(None).usleep(200_000_000)
"""


def told(number: signal.Signals, where: str, patience_s: float = 0.3) -> tuple[int, str, float]:
    """Start the script, signal it twice, and return its status, its words, and how long it took.

    By itself it would end later, and otherwise.
    """
    command = [sys.executable, "-c", SCRIPT, str(patience_s), where]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    started_s = time.monotonic()
    process.send_signal(number)
    process.send_signal(number)
    status = process.wait(60)
    words = process.stdout.read()
    process.stdout.close()
    return status, words, time.monotonic() - started_s


def test_a_signal_asks_once_and_ends_the_process_later() -> None:
    status, words, seconds = told(signal.SIGTERM, "python")
    assert (status, words) == (NOT_FINISHED, f"asked: SIGTERM {NOT_FINISHED}\n")
    assert seconds > 0.2


def test_in_the_middle_of_a_long_call_too() -> None:
    status, words, _ = told(signal.SIGINT, "c")
    assert (status, words) == (STOPPED, f"asked: SIGINT  {STOPPED}\n")


NO_THREAD = """\
import threading
from diel.executive.signals import StopSignals
signals = StopSignals(patience_s=0.1)
def no_thread(self):
    raise RuntimeError("can't start new thread")
threading.Timer.start = no_thread
import os, signal, time
signals.set_stop_request(lambda why, code: os.write(1, why.split()[0].encode()))
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""


def test_without_memory_for_a_thread_a_signal_ends_the_process_too() -> None:
    told = subprocess.run(
        [sys.executable, "-c", NO_THREAD], capture_output=True, text=True, timeout=50, check=False
    )
    assert (told.returncode, told.stdout) == (NOT_FINISHED, "SIGTERM")


# Which signal asked is known before anybody can be asked, and others than these do not count.
EARLY = """\
import os, signal, time
from diel.executive.signals import StopSignals

signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
signals = StopSignals(patience_s=20)
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda *_: None)  # a module's own
for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
    os.kill(os.getpid(), number)
while not signals._number:
    time.sleep(0.001)
signals.set_stop_request(lambda why, _: print(why.split()[0]))
"""


def test_an_early_signal_is_told_later_and_those_of_others_never() -> None:
    told = subprocess.run(
        [sys.executable, "-c", EARLY], capture_output=True, text=True, timeout=20, check=True
    )
    assert told.stdout == "SIGTERM\n"
