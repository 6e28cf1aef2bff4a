"""The script for a machine with a GPU: its time limits, what is left of it, and a rehearsal.

The rehearsal is on a machine as bare as the script is told to expect: an environment without diel
and most of what it needs, wheels that were carried there, no network; CuPy is the tests' stand-in.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.metadata
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
from packaging.requirements import Requirement
from support import ROOT, Finished, execute

SCRIPT = ROOT / "benchmarks" / "on_a_gpu.sh"
STEPS = (
    *("facts", "tests", "mlp_gpu", "mixed_precision", "conv_gpu", "sweep_gpu", "prefetch"),
    *("reductions", "digits_gpu"),
)
BENCHMARKS = STEPS[2:-1]

# In place of Python: a benchmark that has measured one row and takes long with the next.
SLOW = """\
#!{python}
import os, sys, time
from pathlib import Path
sys.path.insert(0, {benchmarks!r})
import harness

def rows():
    yield harness.compare("first", [1.0], None, "", "s")
    Path({folder!r}, "measuring").write_text(str(os.getpid()))
    time.sleep(300)

harness.report(rows(), Path(sys.argv[sys.argv.index("--json") + 1]))
"""

# In place of Python: it says what it was asked.
ECHO = """\
#!/bin/sh
echo "$@"
"""


def on_a_gpu(*arguments: object, timeout_s: float = 90, **environment: str) -> Finished:
    return execute(["bash", SCRIPT, *arguments], timeout_s=timeout_s, environment=environment)


def program(folder: Path, text: str) -> Path:
    file = folder / "python"
    file.write_text(text)
    file.chmod(0o755)
    return file


def kept(archive: Path) -> dict[str, str]:
    """Return the files of an archive of results, as text."""
    with tarfile.open(archive) as packed:
        files = {each.name: packed.extractfile(each) for each in packed if each.isfile()}
        return {
            name: file.read().decode("utf-8", "replace") for name, file in files.items() if file
        }


@pytest.mark.parametrize("minutes", [1, 9, 18])
@pytest.mark.parametrize("install", [[], ["--no-install"], ["--wheels", "/"]])
def test_all_limits_together_are_what_was_asked_for(minutes: int, install: list[str]) -> None:
    shown = on_a_gpu("--dry-run", "--minutes", minutes, *install).stdout.splitlines()
    limits = {line.split()[2]: int(line.split()[0]) for line in shown}
    total_s = limits.pop("in")
    assert [name for name in limits if name not in ("install", "wheels")] == [*STEPS]
    assert sum(limits.values()) == total_s < 60 * minutes
    if minutes > 1:
        assert min(limits.values()) >= 20
        assert total_s >= 60 * minutes - 20


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "mlp_gpu,mlp"], "--only: there is no step mlp; there are facts tests"),
        (["--minutes", "soon"], "--minutes is a whole number, not soon"),
        (["--wheels", "/nowhere/wheels"], "--wheels: there is no /nowhere/wheels"),
        (["--out"], "--out needs a value"),
        (["--quick"], "unknown option --quick"),
    ],
)
def test_what_was_not_meant_is_said(arguments: list[str], said: str) -> None:
    finished = on_a_gpu(*arguments)
    assert finished.status == 2
    assert said in finished.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_whoever_ends_it_finds_the_rows_so_far(number: signal.Signals, tmp_path: Path) -> None:
    python = program(
        tmp_path,
        SLOW.format(
            python=sys.executable, benchmarks=str(ROOT / "benchmarks"), folder=str(tmp_path)
        ),
    )
    out, begun = tmp_path / "out", tmp_path / "measuring"
    line = ["bash", SCRIPT, "--no-install", "--python", python, "--only", "mlp_gpu,conv_gpu"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([*line, "--out", out], env=environment) as process:
        until_s = time.monotonic() + 60
        while not begun.exists() or not begun.read_text():
            assert time.monotonic() < until_s
            time.sleep(0.02)
        process.send_signal(number)
    assert process.returncode == 128 + number
    found = kept(out / "results.tgz")
    (row,) = json.loads(found["results/mlp_gpu.json"])["results"]
    assert (row["name"], row["ours"]) == ("first", 1.0)
    assert f"ended by {number.name}, as the script was" in found["results/summary.txt"]
    assert "KeyboardInterrupt" in found["results/mlp_gpu.log"]
    assert "results/conv_gpu.log" not in found
    with pytest.raises(ProcessLookupError):
        os.kill(int(begun.read_text()), 0)


def test_kernels_and_failed_tests_of_an_earlier_machine(tmp_path: Path) -> None:
    """What it leaves behind is what it takes."""
    python = program(tmp_path, ECHO)
    first, second = tmp_path / "first", tmp_path / "second"
    arguments = ["--no-install", "--python", python]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(first))
        compiled = first / f"diel-on-a-gpu-{os.getuid()}" / "kernels" / "cupy"
        compiled.mkdir(parents=True)
        (compiled / "kernel.cubin").write_text("machine code")
        failed = first / "results" / "pytest" / "v" / "cache" / "lastfailed"
        failed.parent.mkdir(parents=True)
        failed.write_text('{"tests/gpu/test_gpu.py::test_a": true}')
        assert on_a_gpu(*arguments, "--only", "facts", "--out", first).status == 0
    archives = ["--failed", first / "results.tgz", "--kernels", first / "kernels.tgz"]
    finished = on_a_gpu(*arguments, "--out", second, *archives, TMPDIR=str(second))
    assert finished.status == 0, finished.output
    found = kept(second / "results.tgz")
    assert found["results/pytest/v/cache/lastfailed"] == failed.read_text()
    assert "--last-failed" in found["results/tests.log"]
    assert "results/facts.log" not in found
    assert kept(second / "kernels.tgz") == {"./cupy/kernel.cubin": "machine code"}
    # Of tests that have not failed, none can be run again.
    archives[1] = first / "kernels.tgz"
    finished = on_a_gpu(*arguments, "--out", second, *archives, TMPDIR=str(second))
    assert finished.status == 2
    assert "names no test that failed" in finished.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="there is no shellcheck")
def test_no_script_has_a_mistake_that_shellcheck_finds() -> None:
    done = subprocess.run(["shellcheck", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# -- the rehearsal ---------------------------------------------------------------------------------

THERE = ("numba", "numpy", "pytest", "pytest-xdist", "hypothesis", "rich", "scikit-learn", "pip")


def closure(names: tuple[str, ...]) -> dict[str, importlib.metadata.Distribution]:
    """Return what is installed of some packages and all that these need."""
    found: dict[str, importlib.metadata.Distribution] = {}
    left = [*names, "safetensors", "threadpoolctl"]
    while left:
        name = left.pop()
        if name in found:
            continue
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.distribution(name)
            for text in found[name].requires or []:
                requirement = Requirement(text)
                if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                    left.append(requirement.name)
    return found


def bare_machine(folder: Path) -> Path:
    """Make an environment with some packages of this one, without diel and MPI; its Python."""
    line = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(line, check=True, capture_output=True)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    for found in closure(THERE).values():
        tops = {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}
        for top in tops:
            link = packages / top
            if not link.exists():
                link.symlink_to(str(found.locate_file(top)))
    return python


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="wheels are prepared for x86-64")
def test_a_rehearsal_on_a_bare_machine(once: None, tmp_path: Path) -> None:
    if cuda_emulator.COMPILER is None:
        pytest.skip("there is no C++ compiler to run CUDA kernels with")
    faulthandler.cancel_dump_traceback_later()  # each command has a limit of its own
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    wheels = tmp_path / "wheels"
    prepare = ("--python", sys.executable, "--for", version, "--prepare", wheels)
    prepared = on_a_gpu(*prepare, timeout_s=150)
    if prepared.status and "No matching distribution" in prepared.stderr:
        pytest.skip("wheels are not to be had: there is no network")
    assert prepared.status == 0, prepared.output
    python = bare_machine(tmp_path / "bare")
    lacks = subprocess.run([python, "-c", "import pydantic"], capture_output=True, check=False)
    assert lacks.returncode == 1
    environment: dict[str, Any] = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT / "tests" / "standin"),
        "CUDA_VISIBLE_DEVICES": "0",
        "TMPDIR": str(tmp_path),
        "DNN_ROUTINES": "fixed",
        "DIEL_DATA": "",
    }
    finished = on_a_gpu(
        *("--python", python, "--wheels", wheels, "--out", tmp_path / "out"),
        *("--tiny", "--minutes", 6, "--tests", "training_twice or test_tuples"),
        timeout_s=400,
        **environment,
    )
    assert finished.status == 0, finished.output
    found = kept(tmp_path / "out" / "results.tgz")
    ended = {
        line.split()[0]: line.split()[-1] for line in found["results/summary.txt"].splitlines()
    }
    assert ended == dict.fromkeys(("wheels", *STEPS), "ok")
    facts = json.loads(found["results/facts.json"])
    assert (facts["cuda_problem"], facts["gpu"]["device_name"]) == (None, "stand-in GPU")
    assert facts["programs"]["mpiexec"].startswith(str(tmp_path))
    for benchmark in BENCHMARKS:
        kept_rows = json.loads(found[f"results/{benchmark}.json"])
        assert kept_rows["machine"]["gpu"] == "stand-in GPU"
        # Of whatever sign: some rows are differences of two times, and these are of tiny networks.
        assert all(math.isfinite(row["ours"]) for row in kept_rows["results"])
    assert " passed" in found["results/tests.log"]
    assert "skipped" not in found["results/tests.log"]
    (ledger,) = (name for name in found if name.endswith("trials.jsonl"))
    assert len(found[ledger].splitlines()) == 3
    assert (tmp_path / "out" / "kernels.tgz").exists()
