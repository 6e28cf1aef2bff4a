"""Compiled steps as one program: linked, in parts on threads, stored as machine code."""

import contextlib
import ctypes
import importlib
import os
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest
from operation_cases import formula_step
from support import ROOT
from threadpoolctl import threadpool_limits

import dnn
from dnn.backend import Ops, ops_for, routines
from dnn.backend.formula import UpdateFormula
from dnn.backend.routines import CACHE_VARIABLE
from dnn.seeds import epoch_order
from dnn.training.data import Samples
from dnn.training.epoch import Trainer, TrainingTask

pytest.importorskip("numba", reason="Numba is not installed: there are no compiled loops")

from dnn.backend.cpu import cache, program
from dnn.backend.cpu.cache import HEADER, entry_of
from dnn.backend.cpu.ops import CpuOps
from dnn.backend.cpu.program import Program
from dnn.backend.cpu.thread_pool import ASLEEP, ThreadPool
from dnn.backend.cpu.updates import fuse_update

DESCENT = UpdateFormula("descent", ("w", "g"), ("rate",), (("w", "w - rate * g"),))


@pytest.fixture
def ops():
    return CpuOps()


def test_the_benchmark_that_counts_arrays_of_a_step_counts_none(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    before = set(sys.modules)
    assert importlib.import_module("graph").arrays_in_a_step() == 0
    for name in {"graph", "harness"} - before:
        del sys.modules[name]


def test_a_step_with_dropout_choices_and_clipping_is_one_program():
    layers = [dnn.Input(5), dnn.FullyConnected(8), dnn.Activation("leaky_relu"), dnn.Dropout(0.3)]
    optimizer = dnn.SGD(0.1, clip_value=1.0, clip_norm=2.0)
    model = dnn.NeuralNetwork([*layers, dnn.FullyConnected(3)], optimizer=optimizer, seed=1)
    network = model._network
    steps = [*network.plan("training", 4).plan.steps, *model._update.steps]
    assert len(network.ops.link(steps)) == 1


def test_a_product_is_cut_into_parts_only_where_that_is_said():
    a, out = np.ones((256, 256), "f4"), np.empty((256, 256), "f4")
    step = (CpuOps.gemm, (a, a, out))
    with threadpool_limits(2, "blas"):
        ((parts, _),) = program.link([step])
        ((whole, _),) = program.link([step], lambda function, arguments: False)
    assert whole is program.runner()
    assert parts is not program.runner()


OPTIMIZERS = [
    dnn.SGD(0.1),
    dnn.SGD(0.1, weight_decay=0.01),
    dnn.SGD(0.1, momentum=0.9),
    dnn.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    dnn.AdaGrad(0.1),
    dnn.RMSProp(0.01),
    dnn.RMSProp(0.01, momentum=0.5, weight_decay=0.01),
    dnn.Adam(0.01, weight_decay=0.01),
    dnn.AdamW(0.01),
    dnn.NAdam(0.01),
]


def blobs(rows=90, inputs=6, classes=3):
    generator = np.random.default_rng(5)
    y = generator.integers(0, classes, rows)
    return (np.eye(classes, inputs)[y] * 3 + generator.normal(size=(rows, inputs))).astype("f4"), y


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_training_is_that_of_the_oracle_to_rounding(optimizer):
    x, y = blobs()
    losses = []
    for device in ("cpu", "numpy"):
        layers = dnn.mlp(6, [8, 7], 3, "tanh")
        model = dnn.NeuralNetwork(layers, optimizer=optimizer, seed=1, device=device)
        losses.append(model.fit(x, y, epochs=4, batch_size=20).loss)
    np.testing.assert_allclose(*losses, rtol=2e-4)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("optimizer", [dnn.SGD(0.1, weight_decay=0.1), dnn.Adam(0.01)], ids=repr)
def test_a_linked_step_has_the_bits_of_its_parts(optimizer, threads):
    """The update interleaved, gradients in shared memory; or inspected, and then updated."""
    x, y = blobs(240, 150, 3)
    results = []
    with threadpool_limits(threads, "blas"):
        for inspect in (None, lambda plan: None):
            model = dnn.NeuralNetwork(dnn.mlp(150, [140, 140], 3), optimizer=optimizer, seed=1)
            network = model._network
            labels = y.astype(np.intp)
            trainer = Trainer(
                network, TrainingTask(model._update, Samples(x, labels), 100, inspect)
            )
            for epoch in range(2):
                trainer.epoch(epoch_order(len(x), 1, epoch))
            results.append(network.parameters.flat.copy())
    np.testing.assert_array_equal(*results)


def test_networks_on_two_threads_have_the_bits_of_each_alone():
    """Their products are cut as each would be: with OpenBLAS for AVX2 bits depend on the cut."""
    x, y = blobs(400, 100, 3)
    options = {"epochs": 2, "batch_size": 100}
    layers = [100, [200, 200], 3]  # products of the hidden layers are cut, of the last one not
    with threadpool_limits(2, "blas"):
        together = dnn.Ensemble(dnn.mlp(*layers), seeds=[1, 2, 3], optimizer=dnn.SGD(0.1))
        histories = together.fit(x, y, **options)
        for seed, history in enumerate(histories, 1):
            alone = dnn.NeuralNetwork(dnn.mlp(*layers), seed=seed, optimizer=dnn.SGD(0.1))
            assert alone.fit(x, y, **options).loss == history.loss
            np.testing.assert_array_equal(alone.predict(x), together.predict(x)[seed - 1])


@pytest.mark.parametrize("reads_weight", [False, True])
def test_an_update_does_not_move_before_a_step_that_reads_the_weight(ops, reads_weight):
    generator = np.random.default_rng(4)
    x, dy = (generator.normal(size=(16, 16)).astype("f4") for _ in range(2))
    results = []
    for scratch in (False, True):
        w, g = np.ones(256, "f4"), np.zeros(256, "f4")
        back, rate = np.empty((16, 16), "f4"), np.array(0.5, "f4")
        steps = [
            (ops.gemm, (x, dy, g.reshape(16, 16))),
            (ops.gemm, (dy, w.reshape(16, 16) if reads_weight else x, back)),
            ops.update(DESCENT, (w, g), (rate,), None),
        ]
        order = fuse_update(steps, g, ops.gemm) if scratch else steps
        places = [function for function, _ in order]
        if scratch:  # right behind its gradient, unless that would change what is read
            assert places.index(steps[2][0]) == (2 if reads_weight else 1)
        for function, arguments in order:
            function(*arguments)
        results.append((w, back))
    for mine, wanted in zip(*results, strict=True):
        np.testing.assert_array_equal(mine, wanted)


def test_a_replayed_step_allocates_no_array():
    x, y = blobs(320, 13, 2)
    model = dnn.NeuralNetwork(dnn.mlp(13, [16] * 3, 2), optimizer=dnn.Adam(0.01), seed=1)
    network = model._network
    trainer = Trainer(network, TrainingTask(model._update, Samples(x, y.astype(np.intp)), 32))
    trainer.epoch(epoch_order(len(x), 1, 0))
    ((piece,),) = trainer._pieces[0]
    ((call, arguments),) = piece.calls  # one call, all of it compiled
    numpys = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    trainer._position[:2] = 0
    tracemalloc.start()
    try:
        for _ in range(10):
            call(*arguments)
        taken = tracemalloc.take_snapshot().filter_traces([numpys])
    finally:
        tracemalloc.stop()
    assert sum(trace.count for trace in taken.statistics("lineno")) == 0


def test_parts_on_helpers_are_the_whole(ops):
    """Elementwise kernels and updates have the same bits; products to rounding."""
    generator = np.random.default_rng(7)
    a, b = (generator.normal(size=(220, 300)).astype("f4") for _ in range(2))
    square = generator.normal(size=(300, 260)).astype("f4")
    for threads in (2, 3):
        total, product = np.empty_like(a), np.empty((220, 260), "f4")
        w, g = a.ravel().copy(), b.ravel()
        rate = np.array(0.1, "f4")
        steps = [
            formula_step(ops, "add", (a, b), total),
            (ops.gemm, (a, square, product)),
            ops.update(DESCENT, (w, g), (rate,), None),
        ]
        with threadpool_limits(threads, "blas"):
            calls = program.link(steps)
            for function, arguments in calls * 20:
                function(*arguments)
        np.testing.assert_array_equal(total, a + b)
        np.testing.assert_allclose(product, a @ square, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(w, a.ravel() - np.float32(2) * g, rtol=1e-4, atol=1e-4)


def test_parts_of_what_has_workspace_and_of_a_batch_are_the_whole(ops):
    generator = np.random.default_rng(8)
    a, b = (generator.normal(size=(130, 300)).astype("f4") for _ in range(2))
    x = generator.normal(size=(200, 300)).astype("f4")
    order, position = generator.permutation(200), np.array([60, 0, 130])
    zero = np.zeros((), "f4")
    calls = {
        "sigmoid": lambda out: formula_step(ops, "sigmoid", [a], out),
        "positive": lambda out: formula_step(ops, "positive", [a], out),
        "where_greater": lambda out: formula_step(ops, "where_greater", (a, b, zero), out),
        "where_equal": lambda out: formula_step(ops, "where_equal", (a, np.maximum(a, 0), a), out),
        "clip": lambda out: formula_step(ops, "clip", (a, zero, b[:1]), out),
        "take_batch": lambda out: (ops.take_batch, (x, order, position, out)),
    }
    for name, call in calls.items():
        whole, parts = np.empty_like(a), np.full_like(a, np.nan)
        function, arguments = call(whole)
        function(*arguments)
        function, arguments = call(parts)
        assert len(function.parts(arguments, 3)) == 3, name
        for record in function.parts(arguments, 3):
            Program([record], arguments).run()
        np.testing.assert_array_equal(parts, whole, name)
    np.testing.assert_array_equal(whole, x[order[60:190]])


ADD_ONE = f"{HEADER}    carray(pointer(r[0]), (1,), i8)[0] += 1  # {{}}\n"


def adds_one(address):
    words = np.array([0, 41], np.int64)
    words[0] = words[1:].ctypes.data
    ctypes.CFUNCTYPE(None, ctypes.c_int64)(address)(words.ctypes.data)
    return words[1] == 42


def test_where_the_cache_cannot_be_written_kernels_are_compiled_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "below"))
    assert adds_one(entry_of(ADD_ONE.format(tmp_path)))


def test_machine_code_is_stored_once_and_compiled_anew_where_it_is_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    source = ADD_ONE.format(tmp_path)
    assert adds_one(entry_of(source))
    (path,) = tmp_path.glob("kernel_*.o")
    whole = path.read_bytes()
    assert cache._stored(path.stem) == whole[32:]
    for damaged in (b"", whole[:100], whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(damaged)
        assert cache._stored(path.stem) is None


def test_a_kernel_is_compiled_by_one_process_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    source = ADD_ONE.format(f"{tmp_path}, by another process")
    tried = []

    @contextlib.contextmanager
    def compiled_meanwhile(lock):
        with routines.one_process(lock):
            with lock.open() as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            symbol = lock.name.removeprefix(".").removesuffix(".lock")
            tried.append(cache._compiled(source, symbol))
            monkeypatch.setattr(cache, "_compiled", None)
            yield

    fcntl = pytest.importorskip("fcntl", reason="no locks of files here")
    monkeypatch.setattr(cache, "one_process", compiled_meanwhile)
    assert adds_one(entry_of(source))
    assert len(tried) == 1
    assert [path.suffix for path in tmp_path.iterdir()] == [".o"]


def test_code_that_calls_functions_of_numba_is_not_stored(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    body = "    carray(pointer(r[0]), (1,), i8)[0] += np.ones(r[0] // r[0]).size"
    assert adds_one(entry_of(f"{HEADER}{body}  # {tmp_path}\n"))
    assert not list(tmp_path.iterdir())


def test_a_process_that_finds_its_kernels_stored_does_not_import_numba():
    code = """
import sys, numpy as np, dnn
x = np.random.default_rng(1).normal(size=(400, 200)).astype("f4")
y = (x[:, 0] > 0).astype(int)
layers = [dnn.Input(200), dnn.FullyConnected(200), dnn.BatchNorm(), dnn.Activation("gelu")]
layers += [dnn.Dropout(0.2), dnn.FullyConnected(2)]
model = dnn.NeuralNetwork(layers, optimizer=dnn.Adam(0.1, clip_norm=1.0), seed=1)
history = model.fit(x, y, batch_size=100, epochs=3, validation=0.2)
print("numba" in sys.modules, history.loss)
"""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}  # kernels in parts too
    first, second = (
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=environment,
            timeout=300,
        ).stdout
        for _ in range(2)
    )
    assert second.startswith("False [")
    assert first.split(" ", 1)[1] == second.split(" ", 1)[1]


def test_without_numba_the_oracle_runs(monkeypatch):
    monkeypatch.setattr(dnn.backend, "has_numba", lambda: False)
    assert type(ops_for("cpu")) is Ops
    assert type(ops_for("numpy")) is Ops


def test_a_helper_looks_for_work_as_long_as_a_program_runs():
    pool = ThreadPool()
    running = ctypes.c_int64.from_address(pool.blas_fields[0])
    asleep = ctypes.c_int64.from_address(pool.slots + ASLEEP)

    def sleeps(within_s):
        until = time.monotonic() + within_s
        while not asleep.value and time.monotonic() < until:
            time.sleep(0.001)
        return bool(asleep.value)

    running.value = 1
    pool.wake(1)
    try:
        assert not sleeps(0.1), "it sleeps while a program runs"
        running.value = 0
        assert sleeps(10)
        running.value = 1
        pool.wake(1)
        assert not sleeps(0.1), "it was called and sleeps"
    finally:
        running.value = 0
        pool.dismiss()


def test_a_process_with_helpers_ends_and_forks(tmp_path):
    code = """
import os, numpy as np, dnn
x = np.random.default_rng(1).normal(size=(400, 200)).astype("f4")
y = (x[:, 0] > 0).astype(int)
def train():
    model = dnn.NeuralNetwork(dnn.mlp(200, [200, 200], 2), optimizer=dnn.SGD(0.1), seed=1)
    return model.fit(x, y, batch_size=100, epochs=3).loss
first = train()
child = os.fork()
if not child:
    os._exit(0 if train() == first else 1)
print(os.waitpid(child, 0)[1], train() == first)
"""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "2", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "0 True\n"), done.stderr


def test_a_kernel_without_numpy_refuses_what_it_was_not_compiled_for():
    kernel = program.Native(lambda x: None)
    with pytest.raises(AssertionError, match="was compiled for arrays that it does not take"):
        kernel(np.zeros(3))
