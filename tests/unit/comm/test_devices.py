"""How many GPUs a rank sees, without CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from diel.comm.devices import visible_gpus


@pytest.fixture
def no_driver(tmp_path: Path) -> Path:
    return tmp_path / "driver"


def nvidia_smi(folder: Path, script: str) -> dict[str, str]:
    """Return an environment in which this is nvidia-smi."""
    file = folder / "bin" / "nvidia-smi"
    file.parent.mkdir()
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return {"PATH": str(file.parent)}


@pytest.mark.parametrize(
    ("variable", "gpus"),
    [
        ("0,1", ("0", "1")),
        (" 2 , 5 ", ("2", "5")),
        ("GPU-8932f937,MIG-1/2", ("GPU-8932f937", "MIG-1/2")),
        ("1,1,0", ("1", "0")),
        ("0,-1,1", ("0",)),  # as CUDA reads it
        ("-1", ()),
        ("", ()),
        ("NoDevFiles", ()),
    ],
)
def test_the_variable_is_taken_at_its_word(
    no_driver: Path, variable: str, gpus: tuple[str, ...]
) -> None:
    for index in range(4):
        (no_driver / f"0000:0{index}:00.0").mkdir(parents=True)
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": variable}, no_driver) == gpus


def test_without_it_the_driver_counts(no_driver: Path, tmp_path: Path) -> None:
    for index in range(2):
        (no_driver / f"0000:0{index}:00.0").mkdir(parents=True)
    assert visible_gpus(nvidia_smi(tmp_path, "echo GPU 0: x"), no_driver) == ("0", "1")


def test_without_its_folder_the_tool_counts(no_driver: Path, tmp_path: Path) -> None:
    lines = ["GPU 0: H200 (UUID: a)", "  MIG 1g.18gb Device 0: (UUID: b)", "GPU 1: H200 (UUID: c)"]
    environment = nvidia_smi(tmp_path, "\n".join(f"echo '{line}'" for line in lines))
    assert visible_gpus(environment, no_driver) == ("0", "1")


@pytest.mark.parametrize(
    "script", ["exit 9", "echo NVIDIA-SMI has failed; exit 1", "echo GPU 0:; exit 1"]
)
def test_a_tool_that_fails_has_seen_nothing(no_driver: Path, tmp_path: Path, script: str) -> None:
    assert visible_gpus(nvidia_smi(tmp_path, script), no_driver) == ()


def test_a_machine_without_any(no_driver: Path, tmp_path: Path) -> None:
    assert visible_gpus({"PATH": str(tmp_path)}, no_driver) == ()
