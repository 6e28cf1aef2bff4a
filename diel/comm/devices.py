"""The GPUs of the machine that a rank runs on, found without loading CUDA.

CUDA reads ``CUDA_VISIBLE_DEVICES`` once, when it is first used. So nothing here may start it: the
variable is set for a rank before a module is imported.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

VISIBLE_GPUS: Final = "CUDA_VISIBLE_DEVICES"
_DRIVER_FOLDER: Final = Path("/proc/driver/nvidia/gpus")
_NVIDIA_SMI_TIMEOUT_S: Final = 20.0


def visible_gpus(
    environment: Mapping[str, str] | None = None, driver_folder: Path = _DRIVER_FOLDER
) -> tuple[str, ...]:
    """Return the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them.

    Where that variable is set, as by a batch system, it alone decides. Otherwise all GPUs count for
    which the driver has a folder, or else those that ``nvidia-smi -L`` lists.
    """
    environment = os.environ if environment is None else environment
    given = environment.get(VISIBLE_GPUS)
    if given is not None:
        return _listed(given)
    if driver_folder.is_dir():
        count = sum(1 for _ in driver_folder.iterdir())
    else:
        count = _count_by_nvidia_smi(environment)
    return tuple(str(index) for index in range(count))


def no_gpu_remedy(environment: Mapping[str, str]) -> str:
    """Return what a user should check where `visible_gpus` finds no GPU."""
    given = environment.get(VISIBLE_GPUS)
    said = "is not set" if given is None else f"is {given!r}"
    return f"is there an NVIDIA driver (nvidia-smi)? {VISIBLE_GPUS} {said}"


def _listed(variable: str) -> tuple[str, ...]:
    """Return the names in the variable; like CUDA, end at the first invalid name."""
    names: dict[str, None] = {}
    for name in map(str.strip, variable.split(",")):
        # Slurm writes NoDevFiles for a job without GPUs.
        if not name or name.startswith("-") or name == "NoDevFiles":
            break
        names[name] = None
    return tuple(names)


def _count_by_nvidia_smi(environment: Mapping[str, str]) -> int:
    tool = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if tool is None:
        return 0
    from diel.processes import run_tool  # here, since few ranks need it

    try:
        answer = run_tool([tool, "-L"], _NVIDIA_SMI_TIMEOUT_S)
    except OSError:
        return 0
    if answer.returncode:
        return 0
    return sum(line.startswith("GPU ") for line in answer.stdout.splitlines())
