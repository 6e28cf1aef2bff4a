"""openDIEL's resources, GPUs and threads of modules: each copy sees its own and no others.

No GPU is needed: the ranks are told of some by the environment, and nothing starts CUDA.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from support import (
    diel,
    execute,
    journal,
    mpiexec,
    mpirun_diel,
    records_of,
    run_dir,
    status_of,
    workflow,
)

from diel.loading.environment import THREAD_VARIABLES

FOUR = {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}

SEEN_AT_IMPORT = """
import os
AT_IMPORT = os.environ.get("CUDA_VISIBLE_DEVICES")

def run(ctx):
    assert AT_IMPORT == os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = AT_IMPORT if ctx.comm.size == 1 else ctx.comm.gather(AT_IMPORT)
    return [seen, list(ctx.gpus), ctx.comm.rank]
"""

SHOW = "import os; print(*(os.environ[name] for name in NAMES))".replace(
    "NAMES", '("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")'
)
PROGRAM = f"executable = [{sys.executable!r}, '-c', '{SHOW}']"


def module(name: str, *lines: str) -> str:
    return "\n".join(["[[module]]", f'name = "{name}"', *lines, ""])


def function(name: str, *lines: str) -> str:
    return module(name, 'function = "./seen.py:run"', *lines)


def group(name: str, *modules: str, depends: str = "") -> str:
    after = f'depends = ["{depends}"]\n' if depends else ""
    return f'[[group]]\nname = "{name}"\nmodules = {list(modules)}\n{after}'


def returned(folder: Path, name: str) -> list[Any]:
    """Return what each copy of a module returned, in the order of copies."""
    found = {
        record["copy"]: record["returned"]
        for record in records_of(folder, "CopyFinished", module=name)
    }
    return [found[copy] for copy in sorted(found)]


def printed(folder: Path, name: str) -> str:
    return (run_dir(folder) / "logs" / f"{name}.0.0.log").read_text().strip()


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_each_copy_sees_its_own_gpus(tmp_path: Path) -> None:
    file = workflow(
        tmp_path,
        function("pair", "copies = 1", "processes = 2", "gpus = 1")
        + function("lone", "gpus = 2")
        + function("plain")
        + module("program", PROGRAM, "processes = 2", "gpus = 1", "threads = 3")
        + module("plain_program", PROGRAM)
        + group("first", "pair", "lone", "plain", "plain_program")
        + group("second", "program", depends="first"),
        seen=SEEN_AT_IMPORT,
    )
    finished = diel("run", file, cwd=tmp_path, environment=FOUR)
    assert finished.status == 0, finished.output
    ((lone, lone_gpus, _),) = returned(tmp_path, "lone")
    ((pair, pair_gpus, _),) = returned(tmp_path, "pair")
    assert (lone, lone_gpus) == ("4,5", [0, 1])
    assert (pair, pair_gpus) == (["6", "7"], [0])
    assert returned(tmp_path, "plain") == [["", [], 0]]
    assert printed(tmp_path, "plain_program") == "1 1"
    # All that the ranks of its copy have, and the threads of each of them.
    assert printed(tmp_path, "program") == "6,7 3 3"
    (node,) = journal(tmp_path)[0]["nodes"]
    assert node["gpus"] == ["4", "5", "6", "7"]
    assert node["ranks"] == list(range(2, 7))


@pytest.mark.thorough
def test_a_rank_keeps_its_gpus_from_group_to_group(tmp_path: Path) -> None:
    file = workflow(
        tmp_path,
        function("early", "copies = 2", "gpus = 1")
        + function("late", "copies = 'fill'", "gpus = 1")
        + group("first", "early")
        + group("second", "late", depends="first"),
        seen=SEEN_AT_IMPORT,
    )
    finished = mpirun_diel(7, "run", file, cwd=tmp_path, environment=FOUR)
    assert finished.status == 0, finished.output
    assert [seen for seen, _, _ in returned(tmp_path, "early")] == ["4", "5"]
    # Five ranks, but four GPUs.
    assert [seen for seen, _, _ in returned(tmp_path, "late")] == ["4", "5", "6", "7"]


@pytest.mark.usefixtures("once")
def test_copies_share_gpus(tmp_path: Path) -> None:
    code = """
import os
def run(ctx):
    return [os.environ["CUDA_VISIBLE_DEVICES"], list(ctx.gpus), ctx.gpu_share]
"""
    file = workflow(
        tmp_path, function("m", "copies = 'fill'", "gpus = 0.5") + group("g", "m"), seen=code
    )
    environment = {"CUDA_VISIBLE_DEVICES": "4,5"}
    finished = diel("run", "-n", "7", file, cwd=tmp_path, environment=environment)
    assert finished.status == 0, finished.output
    # Five ranks, but room for four.
    assert returned(tmp_path, "m") == [[gpu, [0], 0.5] for gpu in ("4", "5", "4", "5")]


@pytest.mark.thorough
@pytest.mark.parametrize("variable", ["3", ""])
@pytest.mark.usefixtures("once")
def test_who_asks_for_none_finds_the_environment_as_it_was(tmp_path: Path, variable: str) -> None:
    file = workflow(
        tmp_path,
        function("plain") + module("program", PROGRAM) + group("g", "plain", "program"),
        seen=SEEN_AT_IMPORT,
    )
    environment = {"CUDA_VISIBLE_DEVICES": variable}
    finished = diel("run", file, cwd=tmp_path, environment=environment)
    assert finished.status == 0, finished.output
    assert returned(tmp_path, "plain") == [[variable, [], 0]]
    assert printed(tmp_path, "program") == f"{variable} 1 1".strip()


def test_too_few_gpus_are_found_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in THREAD_VARIABLES:  # the command sets them: give them back afterwards
        monkeypatch.setenv(variable, "1")
    monkeypatch.chdir(tmp_path)
    file = workflow(
        tmp_path, function("m", "copies = 3", "gpus = 2") + group("g", "m"), seen=SEEN_AT_IMPORT
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert status_of("run", file) == 2
    finished = mpirun_diel(5, "run", file, cwd=tmp_path)
    assert finished.status == 2, finished.output
    for told in (capsys.readouterr().err, finished.stderr):
        assert "too few GPUs for 'g': 6 needed (3 ranks with 2)" in told
        assert "available: 4 for 3 ranks on " in told
        assert "Traceback" not in told
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert status_of("run", file) == 2
    told = capsys.readouterr().err
    assert "available: none on " in told
    assert "(is there an NVIDIA driver (nvidia-smi)? CUDA_VISIBLE_DEVICES is '')" in told
    assert not (tmp_path / "runs").exists()


BOUND = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # as a launcher does
from diel.__main__ import main
main()
"""


@pytest.mark.thorough
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="there is one core to be bound to")
def test_ranks_that_are_bound_to_a_core_are_warned_of(tmp_path: Path) -> None:
    words = 'executable = ["true"]'
    file = workflow(
        tmp_path,
        module("threads", words, "threads = 2")
        + module("two", words, 'launcher = ["env"]', "processes = 2")
        + module("one", words)
        + group("g", "threads", "two", "one"),
    )
    line = [*mpiexec(6), sys.executable, "-c", BOUND, "run", file]
    finished = execute(line, cwd=tmp_path, can_stay_alone=True)
    assert finished.status == 0, finished.output
    warned = {
        record["module"]: record["text"]
        for record in records_of(tmp_path, "MessageLogged")
        if "take turns" in record["text"]
    }
    assert set(warned) == {"executive", "threads", "two"}
    assert warned["threads"].startswith("threads = 2 on rank ")
    assert warned["two"].startswith("2 processes on rank ")
    assert "ranks 2, 3, 4, 5 are all bound to core " in warned["executive"]
