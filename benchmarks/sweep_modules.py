"""What the workflows of `sweep.py` run: no-op and slow trials, a master that weighs itself."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from sweep_objective import objective

from modules import master


def train(parameters: dict[str, Any], report: object) -> dict[str, float]:
    """Do nothing else."""
    return {"score": objective(parameters)}


def sleep(parameters: dict[str, Any], report: Any) -> dict[str, float]:
    """Take the seconds that the workflow file says."""
    time.sleep(report.options["seconds"])
    return {"score": objective(parameters)}


class Options(master.Options):
    """Those of the master."""


def weighed_master(ctx: Any) -> dict[str, float]:
    """Be the master; return by how many MiB its memory has grown."""
    before = _resident_mib()
    best = master.run(ctx)
    return {"best": best["score"], "growth_MiB": _resident_mib(peak=True) - before}


def _resident_mib(*, peak: bool = False) -> float:
    name = "VmHWM" if peak else "VmRSS"
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {name}")
