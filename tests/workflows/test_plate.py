"""The plate of workflows/compiled: Fortran, C and Python together, and the same in one program."""

from __future__ import annotations

import math
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from support import WORKFLOWS, check_end, diel, execute, run_dir

FOLDER = WORKFLOWS / "compiled"
NX, NY, STEPS, COUNT = 24, 16, 50, 40

Grid = list[list[float]]


def move(x: float, speed: float, length: float) -> tuple[float, float]:
    x += speed
    if x < 0:
        return -x, -speed
    return (2 * length - x, -speed) if x > length else (x, speed)


def step_particle(particle: list[float], T: Grid) -> None:
    x, y, u, v = particle
    i, j = min(int(x), NX - 1), min(int(y), NY - 1)
    u -= 0.05 * (T[j][min(i + 1, NX - 1)] - T[j][max(i - 1, 0)])
    v -= 0.05 * (T[min(j + 1, NY - 1)][i] - T[max(j - 1, 0)][i])
    x, u = move(x, u, NX)
    y, v = move(y, v, NY)
    particle[:] = x, y, u, v


def step_heat(T: Grid, load: Grid, heater: float) -> Grid:
    sides = [[0.0, *line, 0.0] for line in T]
    all_lines = [[heater] * (NX + 2), *sides, [0.0] * (NX + 2)]
    new = []
    for j in range(1, NY + 1):
        below, here, above = all_lines[j - 1 : j + 2]
        line = []
        for i in range(1, NX + 1):
            around = (here[i - 1] + here[i + 1]) + (below[i] + above[i])
            warmer = here[i] + 0.2 * (around - 4.0 * here[i])
            line.append(warmer + 0.01 * load[j - 1][i - 1])
        new.append(line)
    return new


def in_one_program() -> tuple[np.ndarray, np.ndarray]:
    """Return the temperatures and the particles after all steps, by Python's own numbers."""
    T = [[0.0] * NX for _ in range(NY)]
    particles = [
        [
            NX * math.fmod((k + 1) * 0.6180339887498949, 1.0),
            NY * math.fmod((k + 1) * 0.4142135623730951, 1.0),
            *(0.0, 0.0),
        ]
        for k in range(COUNT)
    ]
    for _ in range(STEPS):
        load = [[0.0] * NX for _ in range(NY)]
        for particle in particles:
            step_particle(particle, T)
            load[min(int(particle[1]), NY - 1)][min(int(particle[0]), NX - 1)] += 1
        total = 0.0
        for value in T[8]:
            total += value
        T = step_heat(T, load, max(0.0, 1.0 + 4.0 * (0.3 - total / NX)))
    return np.array(T), np.array(particles)


def build(folder: Path) -> None:
    """Copy the plate into a folder and build its libraries; skipped without what builds them."""
    for program in ("make", "gfortran", "cc"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} here to build with")
    for name in ("Makefile", "control.py", "heat.f90", "particles.c", "plate.toml"):
        shutil.copy(FOLDER / name, folder)
    here = str(Path(sys.executable).parent)
    built = execute(
        ["make", "-s"], cwd=folder, environment={"PATH": f"{here}:{os.environ['PATH']}"}
    )
    assert built.status == 0, built.output
    assert built.output == ""  # no warnings


def test_coupled_codes_compute_what_one_program_does_to_the_bit(tmp_path: Path) -> None:
    build(tmp_path)
    finished = diel("run", "plate.toml", cwd=tmp_path)
    check_end(finished, tmp_path)
    temperature, particles = in_one_program()
    assert 0.1 < temperature.max() < 2
    assert abs(particles[:, 2:]).max() > 0.01
    found = {
        name: np.loadtxt(run_dir(tmp_path) / f"{name}.csv", delimiter=",")
        for name in ("temperature", "particles")
    }
    assert np.array_equal(found["temperature"], temperature)
    assert np.array_equal(found["particles"], particles)
