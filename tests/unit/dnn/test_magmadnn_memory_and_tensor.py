"""MagmaDNN's memory manager and tensor: one test for each of the two rows, end to end.

::

    MemoryManager    test_memory_manager
    Tensor           test_tensor, test_tensor_initializers, test_tensor_csv

What needs a GPU is tested on a stand-in for CuPy by the tests of `dnn.memory`, and in tests/gpu.
"""

import numpy as np
import pytest

import dnn
from dnn import MemoryManager, Tensor
from dnn.data import read_csv


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
