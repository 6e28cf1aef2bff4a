"""Whole sweeps with ``gpus = 1`` where there is no GPU: on the stand-in for CuPy, and without it.

What runs is all of diel, the modules and dnn, its own CUDA kernels compiled for the CPU among it;
CuPy, cuBLAS and the GPU are the tests' own (`tests/standin`).
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import cuda_emulator
import pytest
from support import (
    ROOT,
    WORKFLOWS,
    check_end,
    diel,
    execute,
    results,
    run_dir,
    workflow,
)

DIGITS = WORKFLOWS / "digits_gpu.toml"


@pytest.fixture
def standin() -> dict[str, str]:
    """Return the environment in which there are two GPUs."""
    if importlib.util.find_spec("sklearn") is None:  # to import it takes seconds
        pytest.skip("the digits come with scikit-learn")
    if cuda_emulator.COMPILER is None:
        pytest.skip("there is no C++ compiler to run CUDA kernels with")
    folder = str(ROOT / "tests" / "standin")
    return {"PYTHONPATH": folder, "CUDA_VISIBLE_DEVICES": "0,1"}


SWEEP = """\
[[module]]
name = "master"
function = "modules.master:run"
[module.options]
strategy = "random"
trials = {trials}
objective = "accuracy"
seed = 1
{master}
[module.options.space]
learning_rate = {{ from = 0.05, to = 0.5, scale = "log" }}
hidden = [[32]]
batch_size = 64
epochs = {epochs}
[[module]]
name = "trainer"
function = "modules.trainer:run"
{trainer}
[module.options]
dataset = "digits"
{options}
[[group]]
name = "search"
modules = ["master", "trainer"]
"""


def trials(folder: Path) -> list[dict[str, Any]]:
    (ledger,) = run_dir(folder).glob("sweeps/*/trials.jsonl")
    return [json.loads(line) for line in ledger.read_text().splitlines()[1:]]


@pytest.mark.usefixtures("once")
def test_a_sweep_trains_on_one_gpu_a_copy(standin: dict[str, str], tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    environment = {**standin, "DIEL_STANDIN_LOG": str(logs)}
    few = ("--set", "module.master.options.trials=4")
    finished = diel("run", "-n", 5, DIGITS, *few, cwd=tmp_path, environment=environment)
    check_end(finished, tmp_path)
    assert "best of 4 by highest accuracy" in finished.stdout
    records = trials(tmp_path)
    assert sorted(record["trial"] for record in records) == list(range(4))
    assert {record["state"] for record in records} == {"finished"}
    assert max(float(row["accuracy"]) for row in results(tmp_path)) > 0.9
    # What computed stands with the first record of each trainer, and in the report.
    computed = [
        (record["trainer"], record["computed_by"]) for record in records if "computed_by" in record
    ]
    assert Counter(trainer for trainer, _ in computed) == Counter({r["trainer"] for r in records})
    for _, facts in computed:
        assert (facts["device_name"], facts["precision"]) == ("stand-in GPU", "float16")
    report = (run_dir(tmp_path) / "report.html").read_text()
    assert "stand-in GPU" in report
    assert "float16" in report
    assert list(run_dir(tmp_path).glob("sweeps/*/best.safetensors"))
    # Each of two processes saw one of the GPUs, and multiplied nothing but float16.
    ranks = [json.loads(file.read_text()) for file in logs.iterdir()]
    busy = [rank for rank in ranks if rank["products"]]
    assert {rank["visible"] for rank in busy} <= {"0", "1"}
    assert len(busy) == len({rank["visible"] for rank in busy}) == len(computed)
    for rank in busy:
        assert set(rank["products"]) <= {"(2, 2, 2)", "(2, 2, 0)"}
        assert rank["graphs"] > 0


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_copies_share_a_gpu_and_say_once_why_no_graph_is_captured(
    standin: dict[str, str], tmp_path: Path
) -> None:
    """Folds and early stopping too, as on the CPU."""
    text = SWEEP.format(
        trials=4,
        epochs=2,
        master='early_stopping = { rule = "median", startup_trials = 1, warmup_steps = 1 }',
        trainer="copies = 2\ngpus = 0.5",
        options='evaluation = { method = "k_fold", folds = 2 }\nprecision = "bfloat16"',
    )
    environment = {**standin, "CUDA_VISIBLE_DEVICES": "0", "DIEL_STANDIN_FAIL": "capture"}
    finished = diel("run", workflow(tmp_path, text), cwd=tmp_path, environment=environment)
    check_end(finished, tmp_path)
    records = trials(tmp_path)
    assert len(records) == 4
    assert {record["state"] for record in records} <= {"finished", "stopped"}
    facts = [record["computed_by"] for record in records if "computed_by" in record]
    assert {fact["precision"] for fact in facts} == {"bfloat16"}
    for log in (run_dir(tmp_path) / "logs").glob("trainer.*.log"):
        said = re.findall(r"a plan of \d+ calls is launched call by call, .*", log.read_text())
        assert len(said) <= 1
        assert all("DIEL_STANDIN_FAIL" in line for line in said)
    assert "not as a CUDA graph: DIEL_STANDIN_FAIL says that nothing is captured" in finished.stdout


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_networks_that_do_not_fit_on_the_gpu_are_trained_in_halves(
    standin: dict[str, str], tmp_path: Path
) -> None:
    text = SWEEP.format(trials=16, epochs=1, master="", trainer="gpus = 1", options="")
    # cuBLAS takes 32 MiB of it.
    environment = {**standin, "DIEL_STANDIN_BYTES": "35000000"}
    finished = diel("run", workflow(tmp_path, text), cwd=tmp_path, environment=environment)
    check_end(finished, tmp_path)
    assert [record["state"] for record in trials(tmp_path)] == ["finished"] * 16
    said = re.findall(r"(\d+) networks at once do not fit on cuda:0: (\d+) from", finished.stdout)
    assert said
    assert all(int(now) == int(before) // 2 for before, now in said)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.usefixtures("once")
def test_the_tests_for_a_gpu_pass_on_the_stand_in(standin: dict[str, str]) -> None:
    """So that a GPU is the only thing that is new to them.

    Without those whose functions other tests run on the stand-in, and those that need PyTorch's
    GPU, one that computes while the host goes on, or a fast one.
    """
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ROOT / "tests" / "gpu"]
    left_out = (
        "operation",
        "kinks",
        "test_training",
        "options",
        "torch",
        "computed_by_then",
        "large_convolution",
        "convolves",
    )
    elsewhere = " and ".join(f"not {name}" for name in left_out)
    # A GPU rounds a product and a sum at once, where its compiler likes to.
    environment = {**standin, "CUDA_VISIBLE_DEVICES": "0", "DIEL_STANDIN_FMA": "1"}
    # Every kernel may be new to this kind of rounding, and to be compiled.
    faulthandler.cancel_dump_traceback_later()
    command = [*line, "-k", elsewhere]
    finished = execute(command, cwd=ROOT, environment=environment, timeout_s=400)
    assert finished.status == 0, finished.output
    assert "skipped" not in finished.stdout


def test_without_a_gpu_no_rank_starts(tmp_path: Path) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": ""}
    finished = diel("run", "-n", 5, DIGITS, cwd=tmp_path, environment=environment)
    assert finished.status == 2
    assert "1 problem" in finished.stderr
    assert "GPU" in finished.stderr
    assert "Traceback" not in finished.output
    assert not (tmp_path / "runs").exists()
