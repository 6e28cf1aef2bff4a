"""What ranks that wait cost those that compute, when there are more ranks than cores.

Two copies of a module compute while the executive, the tuple server and two more ranks, blocked
in ``tget``, wait: six ranks. The peer is the same computation in two plain processes with nobody
beside them. Both sides time the same steps over the same number of seconds, in turn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import REPOSITORY, THREAD_VARIABLES, compare, parser, report

COMPUTING = 2
WAITING = 2
READY_S = 4.0  # from the start of a block to that of its steps: processes start, NumPy loads

WORKFLOW = """\
[[module]]
name = "computing"
function = "{script}:compute"
copies = {computing}
options = {{ start_at_s = {start_at_s}, seconds = {seconds} }}
[[module]]
name = "waiting"
function = "{script}:wait"
copies = {waiting}
[[group]]
name = "all"
modules = ["computing", "waiting"]
"""


def step_us(start_at_s: float, seconds: float) -> float:
    """Compute for a number of seconds from a moment on; return microseconds for one step."""
    import numpy as np

    matrix = np.full((160, 160), 1e-3, np.float32)
    product = np.empty_like(matrix)
    if time.time() > start_at_s:
        raise RuntimeError("started too late: the blocks of the two sides would not overlap")
    time.sleep(start_at_s - time.time())
    steps = 0
    started_s = time.perf_counter()
    while (passed_s := time.perf_counter() - started_s) < seconds:
        for _ in range(10):
            np.matmul(matrix, matrix, out=product)
            sum(range(2000))  # the interpreter's share
        steps += 10
    return passed_s / steps * 1e6


def compute(ctx: Any) -> float:
    """Module: the steps; lets those who wait go."""
    rate = step_us(ctx.options["start_at_s"], ctx.options["seconds"])
    ctx.tuples.tput("done", None)
    return rate


def wait(ctx: Any) -> None:
    """Module: block until a computing copy is done."""
    ctx.tuples.tget("done")


def under_diel(seconds: float, folder: Path) -> float:
    """Return microseconds for one step with ranks that wait beside; mean of the copies."""
    file = folder / "waiting.toml"
    script = Path(__file__).resolve()
    start_at_s = time.time() + READY_S
    file.write_text(
        WORKFLOW.format(
            script=script,
            computing=COMPUTING,
            waiting=WAITING,
            start_at_s=start_at_s,
            seconds=seconds,
        )
    )
    paths = [str(REPOSITORY), str(script.parent), os.environ.get("PYTHONPATH", "")]
    run = subprocess.run(
        [sys.executable, "-m", "diel", "run", "--allow-run-as-root", file, "--runs", folder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise RuntimeError(run.stdout + run.stderr)
    (journal,) = folder.glob("waiting-*/journal.jsonl")
    records = [json.loads(line) for line in journal.read_text().splitlines()]
    journal.rename(folder / f"{start_at_s}.jsonl")
    steps = [
        record["returned"]
        for record in records
        if record["event"] == "CopyFinished" and record["module"] == "computing"
    ]
    return sum(steps) / len(steps)


def alone(seconds: float) -> float:
    """Return microseconds for one step in processes with nobody beside; mean of them."""
    start_at_s = time.time() + READY_S
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--worker", "alone", "--setup", f"{start_at_s} {seconds}"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")},
        )
        for _ in range(COMPUTING)
    ]
    steps = [float(process.communicate()[0]) for process in processes]
    return sum(steps) / len(steps)


def main() -> None:
    options = parser(__doc__).parse_args()
    if options.worker:
        print(step_us(*map(float, options.setup.split())))
        return
    blocks, seconds = (3, 2.0) if options.quick else (7, 5.0)
    ours, peer = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(blocks):
            ours.append(under_diel(seconds, Path(folder)))
            peer.append(alone(seconds))
    name = f"waiting_{2 + WAITING}_ranks"
    peer_name = f"{COMPUTING} processes alone"
    report([compare(name, ours, peer, peer_name, "us a step")], options.json)


if __name__ == "__main__":
    main()
