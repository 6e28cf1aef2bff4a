"""Precisions, routines, memory and data of a GPU.

On the stand-in these pass too, which shows that they run; what a GPU rounds and captures is seen
on one alone.
"""

from __future__ import annotations

import device_checks
import numpy as np
import pytest

import dnn
from dnn.backend import device_facts, empty
from dnn.backend.cuda.ops import CudaOps
from dnn.backend.device import free_bytes, free_memory
from dnn.backend.rounding import narrow, round_tf32, widen
from dnn.backend.routines import CANDIDATES, RoutineTable
from dnn.errors import OutOfDeviceMemory

TYPES = {"float32": "f4", "tf32": "f4", "float16": "f2", "bfloat16": "u2"}
UNITS = {"float32": 1e-5, "tf32": 1e-2, "float16": 2**-10, "bfloat16": 2**-7}


def narrowed(x, code):
    """Round to a type, which may be float32 itself."""
    out = np.empty(x.shape, code)
    np.copyto(out, x) if code == "f4" else narrow(x, out)
    return out


def widened(x):
    out = np.empty(x.shape, "f4")
    np.copyto(out, x) if x.dtype == np.float32 else widen(x, out)
    return out


def run(steps):
    for function, arguments in steps:
        function(*arguments)


def test_what_computes_is_known(ops):
    facts = device_facts("cuda")
    assert all(facts[key] for key in ("device_name", "cupy", "cuda", "cublas", "driver"))
    free, total = free_bytes("cuda")
    assert 0 < free <= total


def test_too_much_memory_is_an_error_with_numbers(ops):
    with pytest.raises(OutOfDeviceMemory, match=r"cuda:0 has no room: .* wanted, .* free") as error:
        ops.memory(1 << 50)
    assert error.value.wanted_bytes == 1 << 50
    assert 0 < error.value.free_bytes <= error.value.total_bytes
    free_memory("cuda")
    assert ops.memory(1 << 20).nbytes == 1 << 20


@pytest.mark.parametrize("code", ["f2", "u2"])
def test_every_narrow_number_is_widened_and_rounded_as_on_the_cpu(ops, code):
    every = widened(np.arange(1 << 16, dtype=np.uint16).view(code))
    every = np.sort(every[np.isfinite(every)])
    between = every[:-1] / 2 + every[1:] / 2
    near = [np.nextafter(between, np.float32(sign * np.inf)) for sign in (-1, 1)]
    wide = np.concatenate([every, between, *near, np.array([np.inf, -np.inf, np.nan], "f4")])
    expected, found = narrowed(wide, code), empty(ops, wide.shape, code)
    run(ops.convert(ops.asarray(wide), found))
    same = ops.to_host(found).view(np.uint16) == expected.view(np.uint16)
    assert (same | np.isnan(wide)).all()
    back = empty(ops, wide.shape, "f4")
    run(ops.convert(found, back))
    np.testing.assert_array_equal(ops.to_host(back), widened(expected))


@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("models", [(), (3,)])
@pytest.mark.parametrize("by", ["cublasLt", "cublas"])
def test_products_with_bias_and_relu(ops, monkeypatch, precision, models, by):
    if by == "cublas":
        monkeypatch.setattr(type(ops.lt), "prepare", lambda *_: None)
    generator = np.random.default_rng(0)
    shapes = (*models, 96, 200), (*models, 200, 64), (*models, 1, 64)
    given = [generator.normal(size=shape).astype("f4") for shape in shapes]
    given = [narrowed(x, TYPES[precision]) for x in given]
    a, b, bias = map(widened, given)
    if precision == "tf32":
        for x in (a, b):
            round_tf32(x.copy(), x)
    exact = np.maximum(a.astype("f8") @ b + bias, 0)
    out = empty(ops, exact.shape, TYPES[precision])
    steps = ops.product(*map(ops.asarray, given[:2]), out, precision, ops.asarray(given[2]), True)
    assert len(steps) == (1 if by == "cublasLt" else 2)
    run(steps)
    found = widened(ops.to_host(out))
    np.testing.assert_allclose(found, exact, rtol=UNITS[precision], atol=UNITS[precision] * 15)


@pytest.mark.parametrize("precision", TYPES)
def test_training_in_each_precision(ops, precision):
    x, y = device_checks.data()
    losses = []
    for device in ("cuda", "numpy"):
        layers = dnn.mlp(6, [16, 8], 3, "relu")
        networks = dnn.Ensemble(
            layers, optimizer=dnn.SGD([0.1, 0.2], 0.9), seeds=[1, 2], dtype=precision, device=device
        )
        histories = networks.fit(x, y, epochs=4, batch_size=10)
        losses.append([history.loss for history in histories])
        if device == "cuda":
            graphs = networks._network.ops.replays()
            assert any(text.endswith("as one CUDA graph") for text in graphs)
            assert not [text for text in graphs if "launches" in text and "second run" not in text]
    assert all(loss[-1] < loss[0] for loss in losses[0])
    np.testing.assert_allclose(*losses, rtol=2e-4 if precision == "float32" else 5e-2)


@pytest.mark.parametrize("precision", ["tf32", "float16", "bfloat16"])
def test_convolutions_in_each_precision(ops, precision):
    device_checks.check_precisions_of_images("cuda", precision)


def test_steps_whose_gradients_overflow_are_left_out(ops):
    x, _ = device_checks.data()
    model = dnn.NeuralNetwork(
        dnn.mlp(6, [16], 1), "mean_squared_error", dnn.SGD(1e-3), dtype="float16", device="cuda"
    )
    history = model.fit(x, x[:, :1] + 1000, epochs=10, batch_size=10, progress=False)
    assert 0 < history.skipped_steps < 40
    assert history.loss[-1] < history.loss[0]


def test_sums_by_every_routine(ops):
    x = np.random.default_rng(0).normal(size=(3, 300, 130)).astype("f4")
    for routine in CANDIDATES["gpu_sum"]:
        chosen = dnn.ops_for("cuda", RoutineTable({"gpu_sum": [(0, routine)]}))
        for axis in (-2, -1):
            expected = x.sum(axis, keepdims=True)
            out = empty(chosen, expected.shape, "f4")
            steps = chosen.link([(chosen.sum, (chosen.asarray(x), (axis,), out))])
            for _ in range(3):
                run(steps)
                np.testing.assert_allclose(chosen.to_host(out), expected, rtol=1e-4, atol=1e-4)


def test_routines_are_measured(ops, monkeypatch):
    monkeypatch.setattr(CudaOps, "SIZES", (16, 64))
    assert [list(calls) for _, _, calls in ops.candidates()] == [list(CANDIDATES["gpu_sum"])] * 2
    (rows,) = RoutineTable.measure(ops).choices.values()
    assert rows[0][0] == 0


def test_batches_that_travel_give_the_losses_of_data_that_are_there(ops):
    x, y = device_checks.data(120)
    losses = []
    for resident in (True, False):
        model = dnn.NeuralNetwork(dnn.mlp(6, [16], 3), device="cuda", seed=1)
        history = model.fit(x, y, epochs=3, batch_size=16, progress=False, resident=resident)
        losses.append(history.loss)
    assert losses[0] == losses[1]
