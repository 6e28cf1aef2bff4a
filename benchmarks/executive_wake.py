"""The row ``wake_us`` of `executive.py`: how soon a rank that sleeps answers a message."""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from harness import Result, compare
from launching import diel_run, output_of

BUSY = 2
ASLEEP_S = 2e-3  # before each message: whoever waits for it sleeps by then
WARM_UP = 20

WORKFLOW = """\
[[module]]
name = "asking"
function = "{script}:ask"
options = {{ times = {times}, busy_s = {busy_s} }}
[[module]]
name = "answering"
function = "{script}:answer"
options = {{ times = {times} }}
[[module]]
name = "busy"
function = "{script}:compute"
copies = {busy}
options = {{ busy_s = {busy_s} }}
[[group]]
name = "all"
modules = ["asking", "answering", "busy"]
"""


def ask(ctx: Any) -> float:
    """Module: send, and wait for the answer; return the median in microseconds."""
    ctx.recv("answering")  # it is there
    taken = []
    for _ in range(ctx.options["times"]):
        time.sleep(ASLEEP_S)
        started_s = time.perf_counter()
        ctx.send(b"", "answering")
        ctx.recv("answering")
        taken.append(time.perf_counter() - started_s)
    return 1e6 * statistics.median(taken[WARM_UP:])


def answer(ctx: Any) -> None:
    """Module: send back what comes."""
    ctx.send(b"", "asking")
    for _ in range(ctx.options["times"]):
        ctx.recv("asking")
        ctx.send(b"", "asking")


def compute(ctx: Any) -> None:
    """Module: be busy."""
    be_busy(ctx.options["busy_s"])


def be_busy(seconds: float) -> None:
    """Compute for some seconds."""
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        sum(range(100))


def through_pipes(times: int, busy_s: float) -> float:
    """Return what the peer takes, in microseconds, measured here: two processes and two pipes."""
    for _ in range(BUSY):
        if not os.fork():
            be_busy(busy_s)
            os._exit(0)
    (asked, asking), (answered, answering) = os.pipe(), os.pipe()
    if not os.fork():
        for _ in range(times):
            os.read(asked, 1)
            os.write(answering, b"x")
        os._exit(0)
    taken = []
    for _ in range(times):
        time.sleep(ASLEEP_S)
        started_s = time.perf_counter()
        os.write(asking, b"x")
        os.read(answered, 1)
        taken.append(time.perf_counter() - started_s)
    for _ in range(BUSY + 1):
        os.wait()
    return 1e6 * statistics.median(taken[WARM_UP:])


def row(folder: Path, *, quick: bool) -> Result:
    """Measure both."""
    rounds, times = (2, 200) if quick else (5, 500)
    busy_s = 3 * times * (ASLEEP_S + 1e-3)  # longer than all of it
    file = folder / "wake.toml"
    script = Path(__file__).resolve()
    file.write_text(WORKFLOW.format(script=script, times=times, busy=BUSY, busy_s=busy_s))
    ours, peer = [], []
    for _ in range(rounds):
        ended = diel_run(file, folder).of("CopyFinished")
        ours += [record["returned"] for record in ended if record["module"] == "asking"]
        peer.append(float(output_of([sys.executable, script, times, busy_s])))
    return compare("wake_us", ours, peer, "two processes, pipes", "us there and back")


if __name__ == "__main__":
    print(through_pipes(int(sys.argv[1]), float(sys.argv[2])))
