"""What networks are trained on: a CPU or a GPU, the latter on a stand-in for CuPy."""

from __future__ import annotations

import gc
import json
import logging
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cuda_emulator
import fake_cupy
import pytest
from pydantic import ValidationError
from unit.modules.sweeping import GRID, Sweep

import dnn
from dnn.memory import allocation_statistics
from modules import compute, fused, trainer
from modules.compute import MOST_NETWORKS, Compute
from modules.hyperparameters import Hyperparameters
from modules.reporter import SweepReporter
from modules.sweep.runners import InProcessRunner, Task
from modules.trial import Report, Trial, TrialResult, trial_seed


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a GPU whose kernels the CPU runs."""
    pytest.importorskip("sklearn", reason="the data come with scikit-learn")
    if cuda_emulator.COMPILER is None:
        pytest.skip("needs a C++ compiler")
    fake_cupy.install(monkeypatch)


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [("auto", (), "cpu"), ("auto", (0,), "cuda"), ("cuda", (), "cuda"), ("cpu", (0,), "cpu")],
)
def test_which_device_is_meant(device: str, gpus: tuple[int, ...], expected: str) -> None:
    meant = Compute.of(device, "float16", gpus, 0.5)
    assert meant == Compute(expected, "float16", 0.5)
    assert Compute(**meant.to_options()) == meant


def checked(module: Any, others: Any = (), **options: Any) -> str:
    """Return the problem of a trainer's options while a file is checked; empty if there is none."""
    modules = {one.name: one for one in (module, *others)}
    context = {"folder": Path(), "module": module, "modules": modules}
    given = {"dataset": "cleveland", "path": ".", **options}
    try:
        trainer.Options.model_validate(given, context=context)
    except ValidationError as error:
        (problem,) = error.errors()
        assert problem["loc"] == ("device",)
        return f"{problem['msg']}: {problem['ctx']['remedy']}"
    return ""


def test_a_file_that_asks_for_gpus_and_does_not_use_them() -> None:
    without, one = (SimpleNamespace(name="trainer", processes=1, gpus=gpus) for gpus in (0, 1))
    assert checked(one, device="cpu") == (
        "module 'trainer' asks for 1 GPU and says device = \"cpu\": nothing would use it: "
        'remove gpus, or say device = "auto"'
    )
    assert checked(SimpleNamespace(name="trainer", processes=1, gpus=2)) == (
        "module 'trainer' asks for 2 GPUs for each copy, and a copy trains on one: nothing would "
        "use the others: say gpus = 1, and raise copies"
    )
    assert not checked(one, device="auto") + checked(one, device="cuda")
    assert not checked(without, device="cpu") + checked(without, device="cuda")
    other = SimpleNamespace(name="other", processes=1, gpus=2)
    assert checked(without, [other], device="cuda") == (
        "device = \"cuda\", and module 'trainer' asks for no GPU: as soon as any module does, "
        "this one sees none: add gpus = 1"
    )


def test_what_a_machine_lacks_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(gpus: float, **options: Any) -> Any:
        given = {"dataset": "cleveland", "path": ".", **options}
        return trainer.missing_here(
            trainer.Options.model_validate(given),
            SimpleNamespace(name="trainer", processes=1, gpus=gpus),
        )

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(compute.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "cupy", None)
    dnn.cuda_problem.cache_clear()
    assert missing(1) == missing(0.25) == ("CuPy is not installed", "pip install 'diel[gpu]'")
    assert missing(0, device="cuda") is not None
    assert missing(0) is None
    assert list(SweepReporter().describe_machine()) == [
        ("GPUs", "none: CuPy is not installed (pip install 'diel[gpu]')")
    ]


ASKED = """
import os
from types import SimpleNamespace as Has

devices = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
runtime = Has(
    driverGetVersion=lambda: 13000, runtimeGetVersion=lambda: 13000,
    getDeviceCount=lambda: len(devices) - ("" in devices), deviceGetAttribute=lambda *which: 0,
)
cuda = Has(runtime=runtime)
"""


def test_another_process_asks_for_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text(ASKED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(compute.importlib.util, "find_spec", lambda name: name)
    assert compute.missing_gpu() == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "is CUDA_VISIBLE_DEVICES empty?" in compute.missing_gpu()
    (tmp_path / "cupy.py").write_text("raise SystemExit('broken')")
    assert compute.missing_gpu() == "a process that asked the driver failed: broken"


def test_what_a_machine_with_gpus_has(gpu: None) -> None:
    (first, driver, cupy, cublas) = SweepReporter().describe_machine()
    assert first == ("GPU 0", "stand-in GPU, 1024.0 GiB, 1024.0 free, compute 9.0")
    assert driver == ("driver", "CUDA 13.0")
    assert cupy[0] == "CuPy"
    assert cublas[0] == "cuBLAS"


def test_networks_in_one_plan_by_their_size_and_the_memory() -> None:
    small, large = Hyperparameters(hidden=[16]), Hyperparameters(hidden=[4096, 4096])
    assert Compute().most_networks(small) == MOST_NETWORKS
    assert Compute().most_networks(large) == 1
    gpu, plenty = Compute("cuda"), 1 << 40
    assert gpu.most_networks(small, 13, 2, plenty) == 1024
    assert gpu.most_networks(large, 784, 10, plenty) == 1
    few = gpu.most_networks(small, 13, 2, 1 << 20)
    assert 1 < few < 1024
    assert Compute("cuda", share=0.5).most_networks(small, 13, 2, 1 << 20) in (
        few // 2,
        few // 2 + 1,
    )
    assert Compute("cuda", "float64").most_networks(small, 13, 2, 1 << 20) < few
    assert gpu.most_networks(small, 13, 2, 10) == 1


FOLDS = {"method": "k_fold", "folds": 3}


@pytest.mark.parametrize("evaluation", [None, FOLDS])
def test_a_gpu_trains_networks_together_as_alone(
    gpu: None, evaluation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices: list[str] = []

    def ops_for(device: str, routines: Any = None) -> Any:
        devices.append(device)
        return dnn.ops_for(device, routines)

    for file in ("model", "ensemble"):
        monkeypatch.setattr(f"dnn.{file}.ops_for", ops_for)
    given = {"dataset": "breast_cancer", **({"evaluation": evaluation} if evaluation else {})}
    train = trainer.prepare({**given, "compute": {"device": "cuda"}}, Path())
    points: list[dict[str, Any]] = [
        {"hidden": [8], "epochs": 2, "batch_size": 64, "learning_rate": rate}
        for rate in (0.01, 0.1, 0.3)
    ]
    reports = [Report(0, trial_seed(3, k), options={}, folder=Path()) for k in range(3)]
    before = train.at_once
    found = train.train_together(list(zip(points, reports, strict=True)))
    assert train.at_once > before  # of networks this small more fit than a CPU takes
    results = []
    for k, point in enumerate(points):
        report = Report(0, trial_seed(3, k), options={}, folder=Path())
        alone, same = train(point, report), found[k]
        assert set(devices) == {"cuda"}
        assert same is not None
        assert all(alone[name] == same[name] for name in ("accuracy", "loss", "mcc"))
        results.append(alone)
    on_cpu = trainer.prepare(given, Path())
    for k, point in enumerate(points):
        cpu = on_cpu(point, Report(0, trial_seed(3, k), options={}, folder=Path()))
        assert results[k]["loss"] == pytest.approx(cpu["loss"], rel=1e-4)
    assert train.facts["device_name"] == "stand-in GPU"
    assert (train.facts["device"], train.facts["precision"]) == ("cuda", "float32")
    if evaluation is None:
        pytest.importorskip("safetensors")
        assert train.save_model(points[0], reports[0], tmp_path / "best").exists()


def test_precision_reaches_the_networks_on_the_cpu() -> None:
    pytest.importorskip("sklearn", reason="the data come with scikit-learn")
    losses = set()
    for precision in ("float32", "float64"):
        given = {"dataset": "breast_cancer", "compute": {"precision": precision}}
        train = trainer.prepare(given, Path())
        point = {"hidden": [4], "epochs": 1, "batch_size": 64}
        reports = [Report(0, seed, options={}, folder=Path()) for seed in (1, 2)]
        together = train.train_together([(point, report) for report in reports])
        alone = train(point, Report(0, 1, options={}, folder=Path()))
        assert together[0] is not None
        assert alone["loss"] == together[0]["loss"]
        assert train.facts["precision"] == precision
        losses.add(alone["loss"])
    assert len(losses) == 2


def test_how_many_networks_pay_on_a_gpu_is_measured(
    gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Compute("cuda")._epoch_per_network_s([4], 2) > 0
    timed: list[tuple[int, int]] = []

    def epoch_of_one_s(self: Compute, hidden: Any, networks: int) -> float:
        timed.append((hidden[0], networks))
        return abs(networks - {16: 64, 128: 64, 230: 256, 750: 16, 2000: 1}[hidden[0]])

    monkeypatch.setattr(Compute, "_epoch_per_network_s", epoch_of_one_s)
    sums = dnn.RoutineTable({"gpu_sum": [(0, "kernel")]})
    monkeypatch.setattr(dnn.RoutineTable, "measure", lambda ops: sums)
    assert Compute().measure_routines() == sums
    table = Compute("cuda").measure_routines()
    assert table.choices == {
        **sums.choices,
        "gpu_models": [(0, "64"), (20_000, "256"), (200_000, "16"), (2_000_000, "1")],
    }
    assert len(timed) == len(set(timed))
    assert max(networks for hidden, networks in timed if hidden == 2000) == 1
    options = {"dataset": "breast_cancer", "compute": {"device": "cuda"}, "table": table.to_json()}
    train = trainer.prepare(options, Path())
    for hidden, expected in (([4], 64), ([300, 300], 256)):  # memory is no bound here
        assert train._together._most_networks(Hyperparameters(hidden=hidden)) == expected


@pytest.mark.parametrize(
    "layers",
    [
        {"recurrent": [4]},
        pytest.param({"channels": [2], "kernel": 2}, marks=pytest.mark.thorough),
    ],
)
def test_how_many_networks_of_other_layers_pay_is_measured_when_they_are_met(
    gpu: None, layers: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = dnn.RoutineTable({"gpu_models": [(0, "64")]}).to_json()
    point = {**layers, "hidden": [4], "epochs": 1, "batch_size": 512}
    given = {"dataset": "digits", "standardise": "one scale", "compute": {"device": "cuda"}}
    asked: list[int] = []
    clock = {1: 1.0, 4: 0.5, 16: 0.6}  # seconds of a network, by how many are in the plan
    measure = Compute._layers_epoch_s

    def layers_epoch_s(self: Compute, *of_networks: Any) -> float:
        networks = of_networks[-2]
        asked.append(networks)
        assert networks > 1 or measure(self, *of_networks) > 0
        return clock[networks]

    def losses(table: str | None) -> list[Any]:
        options = {**given, **({"table": table} if table else {})}
        train = trainer.prepare(options, Path())
        table = train._setting.table
        train._together._table = table and table.kept_in(tmp_path)
        reports = [Report(0, seed, options={}, folder=Path()) for seed in (1, 2, 3)]
        together = train.train_together([(point, report) for report in reports])
        assert [found is None for found in together] == [table is None] * 3
        found = [one or train(point, report) for one, report in zip(together, reports, strict=True)]
        return [{**metrics, "training_time_s": 0} for metrics in found]

    monkeypatch.setattr(Compute, "_layers_epoch_s", layers_epoch_s)
    monkeypatch.setattr(compute, "_STEPS_MEASURED", 1)
    monkeypatch.setattr(fused, "_TIMED_EPOCHS", 1)
    alone = losses(None)
    assert not asked  # only if the run measures
    assert losses(table) == alone
    assert asked == [1, 4, 16]  # 16 are slower
    (file,) = tmp_path.glob("networks-*.json")
    assert json.loads(file.read_text())["routine"] == "4"

    def count() -> int:
        there = dnn.RoutineTable.from_json(table).kept_in(tmp_path)
        wanted = Hyperparameters.model_validate(point)
        return Compute("cuda").fastest_count(wanted, 64, 10, (1, 8, 8), there)

    assert count() == 4
    assert asked == [1, 4, 16]  # the run knows it, whichever process asks
    # Memory ends it, too.
    file.unlink()

    def out_of_memory(self: Compute, *of_networks: Any) -> float:
        if of_networks[-2] > 1:
            raise dnn.OutOfDeviceMemory("cuda:0", 2, 1, 1)
        return 1.0

    monkeypatch.setattr(Compute, "_layers_epoch_s", out_of_memory)
    assert count() == 1


def test_data_go_to_the_gpu_once(gpu: None) -> None:
    train = trainer.prepare({"dataset": "breast_cancer", "compute": {"device": "cuda"}}, Path())
    point = {"epochs": 1, "batch_size": 128}
    sent = []
    for hidden in ([4], [5], [6], [4]):
        reports = [Report(0, seed, options={}, folder=Path()) for seed in (1, 2)]
        before = allocation_statistics().to_device_bytes
        train.train_together([({**point, "hidden": hidden}, report) for report in reports])
        train({**point, "hidden": hidden}, reports[0])
        sent.append(allocation_statistics().to_device_bytes - before)
    assert sent[0] > 0
    assert sent[1:] == [0, 0, 0]


@pytest.mark.thorough
def test_networks_that_do_not_fit_are_trained_in_halves_then_fail(
    gpu: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"dataset": "breast_cancer", "compute": {"device": "cuda"}}
    pool, point = fake_cupy.MemoryPool, {"hidden": [64], "epochs": 1, "batch_size": 128}

    def trained(most: int, count: int, room_bytes: int | None = None) -> tuple[list[Any], int]:
        """Return what trials give, at most so many at once, and what memory they took."""
        monkeypatch.setattr(Compute, "most_networks", lambda self, *of_networks: most)
        gc.collect()
        pool().free_all_blocks()
        before = pool().used_bytes()
        monkeypatch.setattr(pool, "capacity", 2**40 if room_bytes is None else before + room_bytes)
        here = InProcessRunner(Task(trainer.prepare, given, Path()))
        trials = [Trial(number, point, trial_seed(3, number)) for number in range(count)]
        together = here.run_together(trials)
        results = [
            result or here(trial, None) for trial, result in zip(trials, together, strict=True)
        ]
        monkeypatch.setattr(pool, "capacity", 2**40)
        return results, pool().total_bytes() - before

    expected, all_bytes = trained(8, 8)
    _, two_bytes = trained(2, 8)
    room_bytes = two_bytes + 2**16  # for what Python has not freed yet
    assert not caplog.messages
    found, bytes_taken = trained(8, 8, room_bytes)
    assert bytes_taken <= room_bytes < all_bytes
    assert caplog.messages == [
        "8 networks at once do not fit on cuda:0: 4 from now on",
        "4 networks at once do not fit on cuda:0: 2 from now on",
    ]
    for one, same in zip(expected, found, strict=True):
        assert not same.reason
        assert one.metrics["loss"] == same.metrics["loss"]
        assert [step for step, _ in one.reports] == [step for step, _ in same.reports]
    # The small network of `prepare` fits, and not those of the trials.
    point["hidden"] = [2**18]
    failed, _ = trained(8, 2, room_bytes)
    full, _ = trained(8, 2, 1000)  # not even that one fits
    for result in [*failed, *full]:
        assert re.search(r"cuda:0 has no room: .* wanted, .* free", result.reason)


def test_copies_that_share_a_gpu_share_its_memory(
    gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = fake_cupy.get_default_memory_pool()
    monkeypatch.setitem(pool.rooms, 0, fake_cupy.Room())
    Compute("cuda").begin()
    Compute("cpu", share=0.5).begin()
    assert pool.get_limit() == 0
    Compute("cuda", share=0.25).begin()
    assert pool.get_limit() == pool.capacity // 4


def test_a_loss_that_is_never_finite_in_float16_fails_with_the_layer() -> None:
    pytest.importorskip("sklearn", reason="the data come with scikit-learn")
    point = {"hidden": [64, 64], "epochs": 3, "batch_size": 64}

    def tried(precision: str) -> list[TrialResult]:
        options = {"dataset": "breast_cancer", "compute": {"precision": precision}}
        here = InProcessRunner(Task(trainer.prepare, options, Path()))
        trials = [
            Trial(number, {**point, "learning_rate": rate}, number)
            for number, rate in enumerate((0.01, 1e6))
        ]
        together = here.run_together(trials)
        assert together[0] is not None
        assert (together[1] is None) == (precision == "float16")
        return [result or here(trial, None) for trial, result in zip(trials, together, strict=True)]

    fine, failed = tried("float16")
    assert fine.metrics["skipped_steps"] >= 0
    assert re.search(
        r"float16: the loss is \w+ in the first epoch: fully_connected_\d is the first layer with "
        r'infinity \(float16 ends at 65504\); .* or precision = "bfloat16"',
        failed.reason,
    )
    _, diverged = tried("bfloat16")
    assert diverged.metrics["diverged"]
    assert "skipped_steps" not in diverged.metrics


FACTUAL = """
import os
class Train:
    def __call__(self, parameters, report):
        return {"score": parameters["x"]}
    @property
    def facts(self):
        return {"device": "cuda", "device_name": os.environ["CARD"], "precision": "float16"}
train = Train()
"""


def test_the_ledger_says_once_what_computed_and_a_resumed_sweep_what_is_other(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file stays as it is: another GPU is on the machine where the run goes on."""
    monkeypatch.setenv("CARD", "A")
    (sweep.folder / "mine.py").write_text(FACTUAL)
    sweep.run(GRID)
    computed = [record for record in sweep.records if "computed_by" in record]
    assert len(computed) == len({record["trainer"] for record in sweep.records})
    expected = {"device": "cuda", "device_name": "A", "precision": "float16"}
    assert all(record["computed_by"] == expected for record in computed)
    page = (sweep.run_dir / "report.html").read_text()
    assert "float16" in page
    sweep.cut_ledger(20)
    assert not any("rounding" in said for said in logged(sweep.run(GRID)))
    sweep.cut_ledger(20)
    monkeypatch.setenv("CARD", "B")
    said = [text for text in logged(sweep.run(GRID)) if "rounding" in text]
    assert said == [
        "trials until now were computed on A in float16, these on B in float16: "
        "results differ in rounding"
    ]
    assert said[0] in (sweep.run_dir / "report.html").read_text()


def test_what_dnn_and_modules_log_is_in_the_log_of_the_rank(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ctx: Any = SimpleNamespace(log=logging.getLogger("of a rank"))
    with trainer._logged(ctx):
        for name in ("dnn", "modules.fused", "elsewhere"):
            logging.getLogger(name).warning("%d calls of %s", 7, name)
    logging.getLogger("dnn").warning("after the run")
    forwarded = [text for name, _, text in caplog.record_tuples if name == "of a rank"]
    assert forwarded == ["7 calls of dnn", "7 calls of modules.fused"]


def logged(done: Any) -> list[str]:
    """Return what a module logged."""
    return [record["text"] for record in done.records if record["event"] == "MessageLogged"]
