"""Steps that are counted across attempts, as a program; two functions that look at their time."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the program starts sooner without it
    import diel

TRY_AGAIN = 75  # any status but 0: the copy has failed, and retries let it begin again


def count(total: int, file: Path) -> int:
    """Do steps until there are so many, or until it is told to stop; return the exit status."""
    told: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: told.append(number))
    steps = json.loads(file.read_text()) if file.exists() else []
    attempt = steps[-1]["attempt"] + 1 if steps else 1
    while len(steps) < total and not told:
        time.sleep(0.05)
        steps.append({"step": len(steps), "attempt": attempt})
    file.write_text(json.dumps(steps))
    print(f"{len(steps)} of {total} steps, until {os.environ['DIEL_END_TIME']} at the latest")
    return TRY_AGAIN if len(steps) < total else 0


def watch(ctx: diel.Context) -> dict[str, Any]:
    """Work in small pieces until it is time to save the state."""
    pieces = 0
    while not ctx.ends_soon:
        time.sleep(0.02)
        pieces += 1
    return {"pieces": pieces, "has_time_left": (ctx.time_left_s or 0) > 0}


def report(ctx: diel.Context) -> dict[str, Any]:
    """Return in which attempt each step was done, and on how many cores this ran."""
    steps = json.loads((ctx.run_dir / "steps.json").read_text())
    return {
        "steps": [step["step"] for step in steps],
        "attempts": max(step["attempt"] for step in steps),
        "cores": len(os.sched_getaffinity(0)),
        "time_left_s": ctx.time_left_s,
    }


if __name__ == "__main__":
    sys.exit(count(int(sys.argv[1]), Path(sys.argv[2])))
