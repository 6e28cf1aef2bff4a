"""What function modules leave running on a rank is ended, and named."""

from __future__ import annotations

import subprocess
import sys

# A process of its own: that it adopts orphans cannot be taken back.
SCRIPT = """
import multiprocessing.resource_tracker, os, subprocess, time
from diel.executive import leftovers
from diel.executive.leftovers import ChildProcesses, children as present

leftovers._GRACE_S = 0.2
leftovers._COMMAND_CHARACTERS = 60  # less than the path of a Python and its helper's name
told = []

def start(line, **options):
    return subprocess.Popen(line, shell=True, **options)

def ends(process):
    try:
        process.wait(0)
    except subprocess.TimeoutExpired:
        return False
    return True

users_own = start("exec sleep 60")
rank = ChildProcesses(lambda *what: told.append(what))

one = start("exec sleep 61", start_new_session=True)
os.system("sleep 62 >/dev/null &")  # its parent ends at once
multiprocessing.resource_tracker.ensure_running()
rank.note_copy(("a", 0), is_function=True, failed=False)
assert not told and not ends(one)

stubborn = start("trap '' TERM; echo; while :; do sleep 0.1; done", stdout=subprocess.PIPE)
stubborn.stdout.readline()
rank.note_copy(("b", 3), is_function=True, failed=True)
((module, copy, text),) = told
assert (module, copy) == ("b", 3) and "trap '' TERM" in text and str(stubborn.pid) in text, told
assert stubborn.pid not in present() and not ends(one)

of_a_program = start("exec sleep 63")
rank.note_copy(("c", 0), is_function=False, failed=False)
told.clear()
rank.end()
((module, copy, text),) = told
assert (module, copy) == ("a", 0) and f"{one.pid} (sleep 61)" in text and "(sleep 62)" in text, told
assert "tracker" not in text
assert not ends(users_own) and not ends(of_a_program)
assert multiprocessing.resource_tracker._resource_tracker._pid in present()
assert len(present()) == 3, present()
users_own.kill(), of_a_program.kill()
print("fine")
"""


def test_what_a_module_leaves_running_ends_with_its_rank_or_with_a_copy_that_failed() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=30, check=False
    )
    assert answer.stdout == "fine\n", answer.stderr
