"""MagmaDNN's memory manager, tensor and what it computes with tensors: a test a row, end to end.

::

    MemoryManager    test_memory_manager, test_training_prefetches_the_next_batch
    Tensor           test_tensor, test_tensor_initializers, test_tensor_csv
    arithmetic       test_tensor_arithmetic_is_that_of_nodes
    variables        test_variables_with_initializers
    minimise         test_a_graph_is_minimised
    linear algebra   test_svd_eigenvalues_fft

What needs a GPU is tested on a stand-in for CuPy by the tests of `dnn.memory`, and in tests/gpu.
"""

import cuda_emulator
import device_checks
import fake_cupy
import numpy as np
import pytest

import dnn
from dnn import GradientDescent, MemoryManager, Tensor, graph, linalg
from dnn.initializers import CONSTANT, UNIFORM
from dnn.table import read_csv
from dnn.training.epoch import Stage, Trainer


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_memory_manager(dtype):
    managers = [MemoryManager(4, dtype, kind) for kind in ("host", "managed")]
    for source in managers:
        source.write_host()[...] = [1, 2, 3, 4]
        for target in managers:
            target.write_host()[...] = 0
            source.write_host()[...] = [1, 2, 3, 4]
            target.copy_from(source)
            assert target.read_host().tolist() == [1, 2, 3, 4]
        source.prefetch("host")
        assert source.size_bytes == 4 * np.dtype(dtype).itemsize


def test_memory_manager_of_a_device_that_is_not_there():
    for kind in ("device", "cuda_managed"):
        with pytest.raises(dnn.DeviceError):
            MemoryManager(4, "float32", kind, "cuda:63")


def streamed_training(resident):
    """Train 3 epochs of 4 batches; return the losses, and the copies begun before each graph."""
    x, y = device_checks.data()
    log = fake_cupy.Stream.log
    log.clear()
    model = dnn.NeuralNetwork(dnn.mlp(6, [5], 3), device="cuda", seed=1)
    options = {"epochs": 3, "batch_size": 16, "class_weight": {0: 2.0}, "progress": False}
    losses = [model.fit(x, y, resident=resident, **options).loss]
    begun, copies = 0, []
    for event in log:
        begun += event == "copy to device begins"
        if event == "graph":
            copies.append(begun)
    networks = dnn.Ensemble(dnn.mlp(6, [5], 3), seeds=[1, 2], device="cuda")
    rows = [np.arange(40), np.arange(5, 45)]
    options = {"rows": rows, "validation_rows": rows, "epochs": 2, "batch_size": 16}
    histories = networks.fit(x, y, resident=resident, **options)
    losses += [(history.loss, history.validation) for history in histories]
    return losses, copies


@pytest.mark.skipif(cuda_emulator.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_training_prefetches_the_next_batch(monkeypatch):
    """On the stand-in for CuPy, where a copy is done when it is waited for and not before."""
    fake_cupy.install(monkeypatch)
    resident, none_begun = streamed_training(resident=True)
    assert set(none_begun) == {0}
    streamed, begun = streamed_training(resident=False)
    assert streamed == resident
    # Samples, targets and weights: those of batches 0 and 1 before step 0, of 2 before step 1 ...
    epoch = [number - 2 * 12 for number in begun[-4:]]
    assert epoch == [6, 9, 12, 12]

    monkeypatch.setattr(Trainer, "ahead", 0)
    streamed, begun = streamed_training(resident=False)
    assert streamed == resident
    assert set(begun) == {0}  # nothing is prefetched: each is sent when it is needed

    monkeypatch.setattr(Trainer, "ahead", 1)
    monkeypatch.setattr(Stage, "arrive", lambda stage: None)
    streamed, _ = streamed_training(resident=False)
    assert streamed != resident  # a step that does not wait for its batch


@pytest.mark.skipif(cuda_emulator.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_what_does_not_fit_on_the_gpu_is_streamed(monkeypatch):
    fake_cupy.install(monkeypatch)
    x, y = device_checks.data()
    bytes_of_data = x.nbytes + y.astype(np.intp).nbytes
    losses = {}
    for free, begins in ((2 * bytes_of_data, False), (2 * bytes_of_data - 1, True)):
        monkeypatch.setattr("dnn.training.data.free_bytes", lambda device, n=free: (n, n))
        for given in ((x, y), (dnn.DeviceData(x, y),)):
            fake_cupy.Stream.log.clear()
            model = dnn.NeuralNetwork(dnn.mlp(6, [5], 3), device="cuda", seed=1)
            losses[begins, len(given)] = model.fit(*given, progress=False).loss
            assert ("copy to device begins" in fake_cupy.Stream.log) == begins
            assert model.evaluate(*given) == model.evaluate(x, y)
    assert len({tuple(each) for each in losses.values()}) == 1


def test_tensor():
    tensor = Tensor.from_array(np.arange(24.0).reshape(2, 3, 4))
    assert tensor[-1, -1, -1] == 23
    assert tensor[-1:, -1, -1].item() == 23
    assert tensor[0, 1:, ::2].numpy().tolist() == [[4, 6], [8, 10]]
    assert tensor.reshape(6, -1).shape == (6, 4)
    assert tensor.unsqueeze(1).shape == (2, 1, 3, 4)
    assert tensor.unsqueeze(1).squeeze(1).shape == (2, 3, 4)
    tensor[0] = -1.0
    assert tensor.reshape(24).numpy()[:12].tolist() == [-1.0] * 12  # the same memory
    with pytest.raises(dnn.OutOfRangeError):
        _ = tensor[2]
    with pytest.raises(dnn.ShapeError):
        tensor.reshape(5, 5)


@pytest.mark.parametrize(
    "initializer", ["uniform", "glorot", "mask", 2.5, "zero", "one", "diagonal", "identity"]
)
def test_tensor_initializers(initializer):
    first, second = (Tensor((6, 6), initializer, seed=seed).numpy() for seed in (1, 2))
    assert first.shape == (6, 6)
    random = initializer in ("uniform", "glorot", "mask")
    assert (first.tobytes() != second.tobytes()) == random
    by_itself = [Tensor((6, 6), initializer).numpy().tobytes() for _ in range(2)]
    assert (by_itself[0] != by_itself[1]) == random  # not all from the same seed
    expected = {2.5: np.full((6, 6), 2.5), "zero": np.zeros((6, 6)), "one": np.ones((6, 6))}
    if initializer in expected or initializer == "identity":
        np.testing.assert_array_equal(first, expected.get(initializer, np.eye(6)))


def test_tensor_csv(tmp_path):
    tensor = Tensor((5, 3), "uniform", seed=3)
    tensor.to_csv(tmp_path / "t.csv")
    again = Tensor.from_csv(tmp_path / "t.csv")
    assert again.numpy().tobytes() == tensor.numpy().tobytes()
    np.testing.assert_allclose(read_csv(tmp_path / "t.csv").values, tensor.numpy())


def test_tensor_arithmetic_is_that_of_nodes():
    """`a + b`, `a * b` (Hadamard), `a @ b`, comparisons and reductions; MANAGED and zero."""
    assert (Tensor((2, 2)).memory.kind.value, Tensor((2, 2)).sum().item()) == ("managed", 0)
    values = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32)
    tensors = [Tensor.from_array(each) for each in values]
    nodes = [graph.variable(value=each) for each in values]
    for expression in (
        lambda a, b: a + b * 2.0 - b / a,
        lambda a, b: a * b,
        lambda a, b: a @ b.T,
        lambda a, b: abs(-a),
        lambda a, b: a > b,
    ):
        result = expression(*tensors)
        assert isinstance(result, Tensor)
        np.testing.assert_allclose(result, expression(*nodes).eval(), rtol=1e-6)
    for name in ("sum", "mean", "max", "min", "prod", "argmax"):
        expected = getattr(graph, name)(nodes[0], 1).eval()
        np.testing.assert_allclose(getattr(tensors[0], name)(1), expected, rtol=1e-5)
    batches = [Tensor.from_array(values), Tensor.from_array(values[::-1].copy())]
    (expected,) = graph.evaluate([graph.bmatmul(*map(graph.constant, batches))], {})
    np.testing.assert_array_equal(dnn.bmatmul(*batches), expected)
    batches[0].set(1, 2, 0, 4.0)
    assert batches[0].get(1, 2, 0) == 4


def test_variables_with_initializers():
    weight = graph.var("W", (6, 5), UNIFORM)
    assert (weight.name, weight.shape) == ("W", (6, 5))
    assert 0 <= weight.eval().min() < weight.eval().max() <= 1
    np.testing.assert_array_equal(graph.var("b", (5,), CONSTANT(0.5)).eval(), 0.5)


def test_a_graph_is_minimised():
    x, c = graph.var("x", (), 2.0), graph.constant(3.0)
    training = GradientDescent(0.05).minimize(x**2 + c, {x})
    losses = [training.step() for _ in range(100)]
    assert losses[0] == 7
    assert losses[-1] == pytest.approx(3)


def test_svd_eigenvalues_fft():
    x = Tensor.from_array(np.array([[2.0, 1.0], [1.0, 2.0]]))
    np.testing.assert_allclose(linalg.svd(x)[1], [3, 1])
    np.testing.assert_allclose(linalg.eigvalsh(x), [1, 3])
    np.testing.assert_allclose(sorted(linalg.eigvals(x)), [1, 3])
    np.testing.assert_allclose(linalg.fft(x), [[3, 1], [3, -1]])
