"""Graphs and training on the stand-in for CuPy: plans, fused chains, recorded replays."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import cuda_emulator
import device_checks
import fake_cublas
import fake_cupy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operation_cases import CASES, drawn, formula_step

import dnn
from dnn import graph
from dnn.backend.cuda import launch
from dnn.backend.cuda.ops import CudaOps
from dnn.backend.device import Device
from dnn.graph.plan import Plan

if cuda_emulator.COMPILER is None:
    pytest.skip("there is no C++ compiler to run CUDA kernels with", allow_module_level=True)


@pytest.fixture(scope="module")
def ops() -> CudaOps:
    return CudaOps(Device("cuda"), fake_cupy, fake_cupy.Blas())


@pytest.fixture
def cuda(ops, monkeypatch) -> str:
    """Make `device="cuda"` the stand-in."""
    fake_cupy.install(monkeypatch)
    there = dnn.backend.ops_for
    monkeypatch.setattr(
        "dnn.model.ops_for",
        lambda device, routines=None: ops if device == "cuda" else there(device, routines),
    )
    return "cuda"


@pytest.mark.sample(12)
@pytest.mark.parametrize("case", CASES)
@given(data=st.data())
@settings(max_examples=1, deadline=None)
def test_every_operation_and_its_gradient(ops, case, data):
    expression, values, _, generator = data.draw(drawn(case))
    device_checks.check_operation(ops, expression, values, generator)


@pytest.mark.parametrize("name", device_checks.EDGES)
def test_kinks_and_extremes(ops, name):
    device_checks.check_edges(ops, name)


# All of them train in `tests/gpu`; their steps are compared in `test_dnn_cuda_ops`.
@pytest.mark.parametrize("optimizer", device_checks.OPTIMIZERS[1::4], ids=repr)
def test_training_is_the_oracles_to_rounding(cuda, ops, optimizer):
    launched = fake_cupy.Graph.launched
    device_checks.check_training(cuda, optimizer)
    # Three epochs of three whole batches and a partial one. The first run of each plan is no
    # graph, and the gradients' plan and the update are one.
    assert fake_cupy.Graph.launched - launched >= 8 + 2


@pytest.mark.parametrize("name", device_checks.NETS)
def test_images_and_sequences_are_the_oracles_to_rounding(cuda, ops, name):
    device_checks.check_images_and_sequences(cuda, name)
    assert all("launches" not in text or "second run" in text for text in ops.replays())


@pytest.mark.parametrize("precision", ["tf32", "float16", "bfloat16"])
def test_precisions_of_images(cuda, precision):
    before = len(fake_cublas.Library.multiplications)
    device_checks.check_precisions_of_images(cuda, precision)
    asked = {(x.types[0], x.compute) for x in fake_cublas.Library.multiplications[before:]}
    assert asked == {{"tf32": (0, 77), "float16": (2, 68), "bfloat16": (14, 68)}[precision]}


def test_several_models_in_one_plan(cuda, ops):
    device_checks.check_several_models(ops)


def test_precisions(cuda):
    device_checks.check_precisions(cuda)


def test_a_step_that_is_left_out_changes_no_running_statistics(cuda):
    device_checks.check_statistics_of_skipped_steps(cuda)


@pytest.mark.parametrize("resident", [True, False])
def test_a_layer_that_overflows_is_named(cuda, resident):
    x, y = device_checks.data()
    networks = dnn.Ensemble(
        dnn.mlp(6, [5, 4], 3, "relu"), seeds=[1, 2, 3], dtype="float16", device="cuda"
    )
    networks.parameters["fully_connected_2.weight"][1] = 6e4
    histories = networks.fit(x * 1e3, y, epochs=2, batch_size=16, resident=resident)
    assert [history.diverged for history in histories] == [False, True, False]
    assert networks.explain_divergence(1) == "fully_connected_2"
    model = dnn.NeuralNetwork(dnn.mlp(6, [5], 3, "relu"), dtype="float16", device=cuda)
    model.parameters["fully_connected_1.weight"][...] = 6e4
    with pytest.warns(dnn.MixedPrecisionWarning, match="fully_connected_1 is the first layer"):
        model.fit(np.abs(x) + 1, y, resident=resident, progress=False)


def test_a_checkpoint_goes_from_the_gpu_to_the_cpu(cuda, tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    mine, _ = device_checks.trained(cuda, dnn.Adam(0.01))
    mine.save(tmp_path / "model.safetensors")
    other, _ = device_checks.trained("numpy", dnn.Adam(0.01), epochs=1, seed=9)
    other.load(tmp_path / "model.safetensors")
    x, _ = device_checks.data()
    np.testing.assert_allclose(mine.predict_proba(x), other.predict_proba(x), rtol=1e-4)


# -- replays --------------------------------------------------------------------------------------


def counting_plan(ops):
    state = graph.variable((3,), np.float32, "state")
    array = ops.asarray(np.zeros(3, np.float32))
    step = graph.placeholder((3,), np.float32)
    y = graph.sum((state + step) * 2.0)
    plan = Plan([y, step, graph.assign(state, state + step)], ops, {state: array})
    ops.load(np.array([1, 2, 3]), plan[step])
    return plan, array, y


def test_a_plan_is_replayed_as_one_graph_from_the_second_run_on(ops):
    plan, array, y = counting_plan(ops)
    np.testing.assert_array_equal(ops.to_host(array), 0)  # compiling computes nothing
    for run in range(1, 5):
        plan.run()
        np.testing.assert_array_equal(ops.to_host(array), [run, 2 * run, 3 * run])
        assert float(plan[y]) == 12 * run
    ((replay, _),) = plan._calls
    assert replay.__self__.how == "one CUDA graph"


def test_a_plan_that_cannot_be_captured_is_launched_call_by_call_and_says_why(
    ops, monkeypatch, caplog
):
    monkeypatch.setattr(fake_cupy.Stream, "fails", "operation not permitted when capturing")
    monkeypatch.setattr("dnn.backend.cuda.launch._logged", set())
    for _ in range(2):
        plan, array, _ = counting_plan(ops)
        for run in range(1, 4):
            plan.run()
            np.testing.assert_array_equal(ops.to_host(array), [run, 2 * run, 3 * run])
        ((replay, _),) = plan._calls
        assert replay.__self__.how == "launches: operation not permitted when capturing"
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("dnn", "WARNING")
    assert record.message == (
        "a plan of 1 calls is launched call by call, not as a CUDA graph: "
        "operation not permitted when capturing"
    )


def test_a_function_from_outside_is_called_between_graphs(ops):
    calls = []
    x = ops.asarray(np.zeros(2))
    steps = [formula_step(ops, "add", (x, 1.0), x), (lambda: calls.append(ops.to_host(x)[0]), ())]
    steps += [formula_step(ops, name, (x, n), x) for name, n in (("multiply", 2.0), ("add", 1.0))]
    linked = ops.link(steps)
    assert len(linked) == 3
    np.testing.assert_array_equal(ops.to_host(x), 0)
    for _ in range(3):
        for function, arguments in linked:
            function(*arguments)
    assert calls == [1, 4, 10]
    np.testing.assert_array_equal(ops.to_host(x), 21)


def test_a_fused_chain_is_one_kernel(ops):
    x = graph.placeholder((40, 8), np.float32)
    y = graph.tanh(x * 2.0 + 1.0) * graph.sigmoid(x) - x
    plan = Plan([y], ops)
    values = np.random.default_rng(0).normal(size=(40, 8)).astype("f4")
    ops.load(values, plan[x])
    fake_cupy.RawModule.launches.clear()
    plan.run()
    assert [name.split("_")[0] for name in fake_cupy.RawModule.launches] == ["chain"]
    expected = np.tanh(values * 2 + 1) / (1 + np.exp(-values)) - values
    np.testing.assert_allclose(ops.to_host(plan[y]), expected, rtol=1e-5, atol=1e-6)
    assert "(40, 8) () () -> (40, 8)" in str(plan)


def test_networks_of_a_thread_share_kernels_and_the_handle_of_cublas(monkeypatch):
    fake_cupy.install(monkeypatch)
    compiled = []

    class Counting(fake_cupy.RawModule):
        def __init__(self, code, options=()):
            compiled.append(code)
            super().__init__(code, options=options)

    monkeypatch.setattr(fake_cupy, "RawModule", Counting)
    launch.compiled.cache_clear()
    first, second = (dnn.ops_for("cuda") for _ in range(2))
    assert first.blas is second.blas
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(dnn.ops_for, "cuda").result().blas is not first.blas
    for ops in (first, second):
        x = ops.asarray(np.ones((3, 4), "f4"))
        ops.fill(2.0, x)
        ops.sum(x, (0,), x[:1])
    assert len(compiled) == 2
    launch.compiled.cache_clear()


def test_best_epochs_are_kept_on_the_device_and_a_training_goes_on(cuda, tmp_path):
    pytest.importorskip("safetensors")
    x, y = device_checks.data()

    def networks(seeds):
        made = dnn.Ensemble(
            [*dnn.mlp(6, [5], 3, "relu")], optimizer=dnn.Adam([0.3, 0.01]), seeds=seeds, device=cuda
        )
        rules = [dnn.EarlyStopping("validation_loss", 30, 0.2) for _ in seeds]
        return made, rules

    def fit(made, rules, epochs, keep=None):
        held_out = [np.arange(8)] * 2
        made.fit(
            *(x, y),
            rows=[np.arange(8, len(x))] * 2,
            epochs=epochs,
            batch_size=16,
            validation_rows=held_out,
            early_stopping=rules,
            before_restoring=keep,
        )

    whole, of_whole = networks([1, 2])
    fit(whole, of_whole, 6)
    first, of_first = networks([1, 2])
    kept = []
    fit(
        *(first, of_first, [3, 3]),
        lambda: kept.extend(dnn.progress_of(first, [rule.snapshot for rule in of_first])),
    )
    for k, progress in enumerate(kept):
        progress.save(tmp_path / f"{k}.safetensors")
    loaded = [dnn.load_progress(tmp_path / f"{k}.safetensors")[0] for k in range(2)]
    second, of_second = networks([7, 8])
    snapshots = dnn.resume_training(second, loaded)
    for rule, before, snapshot in zip(of_second, of_first, snapshots, strict=True):
        rule.go_on(before.best, before.best_epoch, before.waited, snapshot)
    fit(second, of_second, 3)
    outputs = whole(x), second(x)
    np.testing.assert_array_equal(*outputs)
    assert [rule.best_epoch for rule in of_second] == [rule.best_epoch for rule in of_whole]
    # One of them goes on alone.
    alone = dnn.NeuralNetwork([*dnn.mlp(6, [5], 3, "relu")], optimizer=dnn.Adam(0.01), device=cuda)
    rule = dnn.EarlyStopping("validation_loss", 30, 0.2)
    (snapshot,) = dnn.resume_training(alone, loaded[1:])
    rule.go_on(of_first[1].best, of_first[1].best_epoch, of_first[1].waited, snapshot)
    alone.fit(
        *(x[8:], y[8:]),
        validation=(x[:8], y[:8]),
        epochs=3,
        batch_size=16,
        callbacks=[rule],
        progress=False,
    )
    assert rule.best_epoch == of_whole[1].best_epoch
    np.testing.assert_allclose(alone(x), outputs[0][1], rtol=1e-4)
