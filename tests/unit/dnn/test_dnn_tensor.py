"""Tensors on the host: initializers, parts, shapes, CSV, DLPack, NumPy, nodes."""

import operator
import os
import re
import sys

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import ROOT, case_count

from dnn import Ensemble, NeuralNetwork, graph, initializers, mlp
from dnn.backend.device import cuda_problem
from dnn.errors import (
    ConfigurationError,
    DataError,
    DeviceError,
    DtypeError,
    OutOfRangeError,
    ShapeError,
)
from dnn.memory import MemoryManager
from dnn.tensor import Tensor
from dnn.training.data import checked_samples


def numbered(*shape):
    return Tensor.from_array(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


# -- networks -------------------------------------------------------------------------------------


def test_a_network_takes_tensors_as_they_are():
    x, y = Tensor((40, 5), "uniform"), Tensor.from_array(np.arange(40) % 3)
    models = [NeuralNetwork(mlp(5, [4], 3), seed=2) for _ in range(2)]
    given = checked_samples(models[0]._network, "x", x)
    assert np.shares_memory(given, x.numpy())
    models[0].fit(x, y, epochs=3)
    models[1].fit(x.numpy(), y.numpy(), epochs=3)
    assert models[0].history.loss == models[1].history.loss
    assert models[0].evaluate(x, y) == models[1].evaluate(x.numpy(), y.numpy())


def test_parameters_are_tensors_of_the_networks_memory():
    model = NeuralNetwork(mlp(5, [4], 3), seed=2)
    weight, bias, *_ = model.parameters.values()
    assert isinstance(weight, Tensor)
    assert weight.memory is bias.memory is model._network.parameters.memory
    x = np.ones((1, 5), np.float32)
    before = model(x)
    weight[...] = 0
    weight[0] += 1
    assert weight.numpy().sum() == 4
    assert not np.array_equal(model(x), before)
    model.fit(x, [1])  # what a fit changes is seen
    assert not np.isin(weight, [0, 1]).all()


def test_parameters_of_an_ensemble_are_strided_tensors():
    networks = Ensemble(mlp(5, [4], 3), seeds=[1, 2, 3])
    for name, tensor in networks.parameters.items():
        assert tensor.shape[0] == 3
        np.testing.assert_array_equal(tensor, networks._network.parameters[name])
    networks.parameters["fully_connected_1.weight"][1] = 0.5
    assert (networks._network.parameters["fully_connected_1.weight"][1] == 0.5).all()


OPERATORS = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.mod),
    *(operator.gt, operator.ge, operator.lt, operator.le, operator.eq, operator.ne),
]


@pytest.mark.parametrize("compute", OPERATORS, ids=lambda function: function.__name__)
def test_operators_give_tensors(compute):
    a, b = numbered(2, 3) + 1, numbered(3) + 2
    for left, right in ((a, b), (a, 2.0), (3, b), (a.numpy(), b), (a, [1, 2, 3])):
        result = compute(left, right)
        assert isinstance(result, Tensor)
        expected = compute(np.asarray(left), np.asarray(right))
        np.testing.assert_array_equal(result, expected)
        assert result.dtype in (expected.dtype, np.float32)


def test_functions_and_products_give_tensors():
    a, b = numbered(2, 3), numbered(3)
    assert (-a).tolist() == (-a.numpy()).tolist()
    assert np.exp(a).dtype == np.float32
    assert np.add.reduce(a).tolist() == [3, 5, 7]
    assert (a @ b).tolist() == a.dot(b).tolist() == [5, 14]
    assert b.dot(b).item() == 5
    assert b.dot(b).shape == ()
    assert (a.T @ a).tolist() == (a.numpy().T @ a.numpy()).tolist()
    assert a.T.memory is a.memory
    whole, part = np.divmod(a, 2)
    assert (whole * 2 + part == a).all()
    assert isinstance(np.emath.sqrt(a.numpy() - 1) * a, np.ndarray)  # complex numbers
    row = a[1]
    row *= 2
    assert isinstance(row, Tensor)
    assert a.tolist() == [[0, 1, 2], [6, 8, 10]]
    assert a.tobytes() == a.numpy().tobytes()
    masked = np.add(a, 1, out=Tensor((2, 3)), where=a > 1)
    assert masked.tolist() == [[0, 0, 3], [7, 9, 11]]
    with pytest.raises(ShapeError, match=r"\(2, 3\) and \(2, 3\) do not fit"):
        a.dot(a)
    with pytest.raises(ShapeError, match="fewer than two axes"):
        _ = b.T


def test_reductions_as_in_numpy():
    values = np.random.default_rng(1).normal(size=(2, 3, 4)).astype("f4")
    tensor = Tensor.from_array(values)
    for name in ("sum", "mean", "prod", "max", "min", "all", "any", "argmax"):
        for axis in (None, 1, -1) if name == "argmax" else (None, 1, (0, 2)):
            for keepdims in (False, True):
                result = getattr(tensor, name)(axis=axis, keepdims=keepdims)
                expected = getattr(values, name)(axis=axis, keepdims=keepdims)
                assert isinstance(result, Tensor)
                assert result.dtype == expected.dtype
                np.testing.assert_array_equal(result, expected)
                assert np.array_equal(getattr(np, name)(tensor, axis=axis), expected.squeeze())
    assert tensor.sum(dtype="f8").dtype == np.float64
    out = Tensor((3, 4))
    assert tensor.max(0, out=out) is out
    assert (out == values.max(0)).all()
    with pytest.raises(ShapeError, match=r"use any\(\) or all\(\)"):
        bool(tensor > 0)


def test_get_and_set():
    tensor = Tensor((2, 3))
    tensor.set(1, -1, 2.5)
    assert (tensor.get(1, 2), tensor.get(-1, -1), tensor.get(0, 0)) == (2.5, 2.5, 0)
    assert isinstance(tensor.get(0, 0), float)
    scalar = Tensor(())
    scalar.set(4)
    assert scalar.get() == 4
    for wrong in ((), (1,), (1, 1, 1, 1)):
        with pytest.raises(OutOfRangeError, match=r"indices for an element of a tensor \(2, 3\)"):
            tensor.set(*wrong)
    with pytest.raises(OutOfRangeError, match="1 indices"):
        tensor.get(1)
    with pytest.raises(OutOfRangeError, match="index 2 is outside axis 0"):
        tensor.get(2, 0)


def test_a_tensor_is_managed_where_nothing_is_said():
    assert Tensor((2,)).memory.kind.value == "managed"
    assert numbered(2).memory.kind.value == "managed"
    assert Tensor((2,), device="cpu").memory.kind.value == "host"
    assert Tensor((2,), kind="host").memory.kind.value == "host"
    for kind in ("host", "managed"):
        tensor = Tensor((2,), "one", kind=kind, device="cpu")
        assert (tensor + 1).memory.kind.value == tensor.sum().memory.kind.value == kind


def test_without_a_driver_nobody_looks_for_a_gpu(monkeypatch):
    """It takes a second: CuPy is imported for it."""
    asked = []
    problem = "a driver and no GPU"
    monkeypatch.setattr("dnn.backend.device.cuda_problem", lambda *i: asked.append(i) or problem)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    assert str(Tensor((2,)).device) == "cpu"
    assert not asked
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/proc/driver/nvidia")
    assert str(Tensor((2,)).device) == "cpu"
    assert asked


def test_a_tensor_of_given_memory():
    memory = MemoryManager.on("cpu", 12, "f4")
    memory.write()[...] = np.arange(12)
    assert Tensor.of_memory(memory, (2, 3), 4).tolist() == [[4, 5, 6], [7, 8, 9]]
    assert Tensor.of_memory(memory, (3,), 11, (-4,)).tolist() == [11, 7, 3]
    assert Tensor.of_memory(memory, (0, 3), 12).shape == (0, 3)
    for shape, offset, strides in (((13,), 0, None), ((2,), -1, None), ((3,), 6, (-4,))):
        with pytest.raises(ShapeError, match="of memory of 12"):
            Tensor.of_memory(memory, shape, offset, strides)


# -- initializers ---------------------------------------------------------------------------


def test_initializers_that_are_not_random():
    np.testing.assert_array_equal(Tensor((2, 3)), np.zeros((2, 3)))
    np.testing.assert_array_equal(Tensor((2, 3), "one"), np.ones((2, 3)))
    np.testing.assert_array_equal(Tensor((2, 3), 2.5), np.full((2, 3), 2.5))
    np.testing.assert_array_equal(Tensor((2, 3), initializers.constant(4)), np.full((2, 3), 4))
    np.testing.assert_array_equal(Tensor((2, 3), "identity"), np.eye(2, 3))
    np.testing.assert_array_equal(Tensor((2, 3, 3), "diagonal"), [np.eye(3)] * 2)
    filled = Tensor((3, 3), initializers.diagonal([1, 2, 3]))
    np.testing.assert_array_equal(filled, np.diag([1, 2, 3]))
    assert Tensor(5).shape == (5,)
    assert Tensor(()).item() == 0


def test_random_initializers():
    u = Tensor((200, 50), initializers.uniform(-3, -1)).numpy()
    assert u.min() >= -3
    assert u.max() < -1
    assert abs(u.mean() + 2) < 0.05
    g = Tensor((300, 100), "glorot").numpy()
    assert np.abs(g).max() <= np.sqrt(6 / 400)
    assert g.std() == pytest.approx(np.sqrt(2 / 400), rel=0.05)
    m = Tensor((200, 50), initializers.mask(0.2)).numpy()
    assert set(np.unique(m)) == {0, 1}
    assert m.mean() == pytest.approx(0.2, abs=0.02)
    assert 0.4 < Tensor((100, 50), "mask").numpy().mean() < 0.6
    assert 0.4 < Tensor((100, 50), "uniform").numpy().mean() < 0.6


@pytest.mark.parametrize("name", ["uniform", "glorot", "mask", "he_normal"])
def test_every_tensor_is_filled_differently_and_a_seed_repeats_one(name):
    first, second = Tensor((20, 20), name), Tensor((20, 20), name)
    assert not np.array_equal(first, second)
    a, b, c = (Tensor((20, 20), name, seed=seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


def test_types_of_elements_that_there_are_not():
    for dtype, message in (("half a float", "'half a float' is no type"), ("c8", "real numbers")):
        with pytest.raises(DtypeError, match=f"tensor: .*{message}"):
            Tensor((2,), dtype=dtype)
        with pytest.raises(DtypeError, match=f"memory: .*{message}"):
            MemoryManager(2, dtype)


def test_initializers_that_do_not_fit():
    with pytest.raises(ConfigurationError, match="'unifrom'; did you mean 'uniform'"):
        Tensor((2,), "unifrom")
    with pytest.raises(ShapeError, match=r"\(2,\) are no diagonal of \(3, 3\)"):
        Tensor((3, 3), initializers.diagonal([1, 2]))
    with pytest.raises(ShapeError, match="diagonal"):
        Tensor((3,), "identity")
    with pytest.raises(ShapeError, match=r"made \(1,\) for a tensor \(3,\)"):
        Tensor((3,), lambda generator, shape, dtype: np.zeros(1))
    with pytest.raises(ConfigurationError, match="probability"):
        initializers.mask(1.5)
    with pytest.raises(ConfigurationError, match="normal: deviation must not be negative"):
        initializers.normal(0.0, -1.0)
    with pytest.raises(ConfigurationError, match="below"):
        initializers.uniform(1, 1)
    with pytest.raises(ConfigurationError, match="seed"):
        Tensor((2,), seed=-1)


@pytest.mark.parametrize("shape", [(2, -1), (1.5,), "ab"])
def test_shapes_that_are_none(shape):
    with pytest.raises(ShapeError):
        Tensor(shape)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64"])
def test_types_of_elements(dtype):
    tensor = Tensor((2, 2), "one", dtype=dtype)
    assert tensor.dtype == tensor.numpy().dtype == dtype
    assert tensor.astype("float64")[1, 1] == 1
    with pytest.raises(DtypeError):
        Tensor((2,), dtype="complex64")


# -- parts ----------------------------------------------------------------------------------------


@st.composite
def arrays_and_indices(draw):
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    index = draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape), index


@given(arrays_and_indices(), st.data())
@settings(max_examples=case_count(200), deadline=None)
def test_parts_as_in_numpy(drawn, data):
    array, index = drawn
    tensor = Tensor.from_array(array)
    part, expected = tensor[index], array[index]
    np.testing.assert_array_equal(part, expected)
    assert np.shape(part) == expected.shape
    if isinstance(part, Tensor):
        again = data.draw(hnp.basic_indices(part.shape))
        np.testing.assert_array_equal(part[again], expected[again])
        np.testing.assert_array_equal(part.copy(), expected)
        np.testing.assert_array_equal(part.reshape(-1), expected.reshape(-1))
    tensor[index] = -1
    array[index] = -1
    np.testing.assert_array_equal(tensor, array)


def test_negative_indices_give_numbers_and_parts_share_memory():
    tensor = numbered(3, 4)
    assert tensor[-1, -1] == 11
    assert isinstance(tensor[-1, -1], float)
    column = tensor[:, -2]
    assert column.memory is tensor.memory
    tensor[0, 2] = 50
    np.testing.assert_array_equal(column, [50, 6, 10])
    column[...] = [1, 2, 3]
    assert [tensor[i, 2] for i in range(3)] == [1, 2, 3]
    tensor[1] = numbered(4)
    np.testing.assert_array_equal(tensor[1], range(4))
    np.testing.assert_array_equal(tensor[::-1, ::2][0], [8, 3])
    assert [row.shape for row in tensor] == [(4,)] * 3


def test_indices_out_of_range():
    tensor = numbered(3, 4)
    with pytest.raises(OutOfRangeError, match=r"index -4 is outside axis 0 of a tensor \(3, 4\)"):
        tensor[-4]
    with pytest.raises(OutOfRangeError, match="index 4 is outside axis 1"):
        tensor[..., 4]
    with pytest.raises(IndexError, match="3 indices"):
        tensor[0, 0, 0]
    with pytest.raises(OutOfRangeError, match="at most one"):
        tensor[..., ...]
    with pytest.raises(OutOfRangeError, match="step"):
        tensor[::0]
    for index in ([0, 1], True, np.array([True, False, True]), 1.0, "a"):
        with pytest.raises(DtypeError, match="integers, slices"):
            tensor[index]
    with pytest.raises(ShapeError, match=r"\(3,\) does not broadcast to \(4,\)"):
        tensor[0] = [1, 2, 3]


# -- shapes ---------------------------------------------------------------------------------------


def test_reshape_squeeze_unsqueeze_share_memory():
    tensor = numbered(2, 6)
    reshaped = tensor.reshape(3, -1)
    assert reshaped.shape == (3, 4)
    np.testing.assert_array_equal(reshaped, np.arange(12).reshape(3, 4))
    assert tensor.reshape((12,)).memory is tensor.memory
    thick = tensor.unsqueeze(1)
    assert thick.shape == (2, 1, 6)
    assert tensor.unsqueeze(-1).shape == (2, 6, 1)
    assert thick.squeeze().shape == thick.squeeze(1).shape == thick.squeeze(-2).shape == (2, 6)
    thick[1, 0, 5] = -7
    assert tensor[1, 5] == reshaped[2, 3] == -7
    transposed_part = tensor[:, ::2].reshape(6)  # not one behind the other: a copy
    assert transposed_part.memory is not tensor.memory
    np.testing.assert_array_equal(transposed_part, [0, 2, 4, 6, 8, 10])
    part = tensor[1].reshape(2, 3)
    assert part.memory is tensor.memory
    np.testing.assert_array_equal(part, [[6, 7, 8], [9, 10, -7]])


def test_shapes_that_do_not_fit():
    tensor = numbered(2, 6)
    with pytest.raises(ShapeError, match=r"\(2, 6\) does not fill \(5,\)"):
        tensor.reshape(5)
    with pytest.raises(ShapeError, match="does not fill"):
        tensor.reshape(5, -1)
    with pytest.raises(ShapeError, match="negative"):
        tensor.reshape(-1, -1)
    with pytest.raises(ShapeError, match="has not length 1"):
        tensor.squeeze(0)
    with pytest.raises(OutOfRangeError, match=r"axis 2 is outside -2 \.\. 1"):
        tensor.squeeze(2)
    with pytest.raises(OutOfRangeError, match=r"axis 3 is outside -3 \.\. 2"):
        tensor.unsqueeze(3)
    with pytest.raises(ShapeError, match="12 elements"):
        tensor.item()
    with pytest.raises(ShapeError, match="no length"):
        len(Tensor(()))
    with pytest.raises(ShapeError, match=r"^add: \(2, 6\) and \(5,\) do not fit: ") as raised:
        _ = tensor + np.ones(5)
    assert raised.value.shapes == ((2, 6), (5,))
    for call in (lambda: tensor @ tensor, lambda: tensor.dot([1, 2]), lambda: np.ones(3) @ tensor):
        with pytest.raises(ShapeError, match=r"^matmul: .* do not fit"):
            call()
    with pytest.raises(ShapeError, match=r"^multiply: .*\(3, 1, 6\)"):
        tensor *= np.ones((3, 1, 6))
    with pytest.raises(ValueError, match="casting") as other:  # no shape is to blame
        np.add(tensor, tensor, casting="nonsense")
    assert not isinstance(other.value, ShapeError)


# -- CSV ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "bool"])
def test_csv_there_and_back_is_exact(tmp_path, dtype):
    values = np.random.default_rng(0).normal(size=(20, 3)) * 1e3
    tensor = Tensor.from_array(values.astype(dtype))
    tensor.to_csv(tmp_path / "t.csv")
    back = Tensor.from_csv(tmp_path / "t.csv", dtype=dtype)
    assert back.dtype == dtype
    np.testing.assert_array_equal(back, tensor)


def test_csv_with_another_delimiter_and_a_header(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a;b\n1;2\n\n3; 4.5\n")
    read = Tensor.from_csv(path, delimiter=";", header=True)
    np.testing.assert_array_equal(read, [[1, 2], [3, 4.5]])
    read[:, 1].to_csv(path)
    assert path.read_text() == "2.0\n4.5\n"
    with pytest.raises(ShapeError, match="reshape"):
        read.unsqueeze().to_csv(path)


def test_a_csv_with_a_hole_names_line_and_column(tmp_path):
    """All else that is refused is refused by the reader that data use, too."""
    path = tmp_path / "t.csv"
    path.write_text("1,2\n3,\n")
    with pytest.raises(DataError, match=r"t\.csv, line 2, column '2': the cell is empty"):
        Tensor.from_csv(path)


# -- other libraries ------------------------------------------------------------------------------


def test_numpy_takes_tensors():
    tensor = numbered(2, 3)
    assert float(np.sum(tensor)) == 15
    assert (np.ones((2, 3)) + tensor)[1, 2] == 6
    assert np.asarray(tensor, dtype=np.float64).dtype == np.float64
    np.array(tensor)[0, 0] = 9
    assert tensor[0, 0] == 0
    with pytest.raises(ValueError, match="read-only"):
        tensor.numpy()[0, 0] = 9
    with pytest.raises(ValueError, match="only in a copy"):
        tensor.__array__(np.float64, copy=False)
    with pytest.raises(DtypeError, match="real numbers"):
        Tensor.from_array(["a"])
    assert Tensor.from_array([[1.5, 2]]).dtype == np.float32
    assert Tensor.from_array(np.ones(2)).dtype == np.float64
    assert Tensor.from_array([1, 2]).dtype == np.int64
    copied = Tensor.from_array(tensor[:, 1])
    assert copied.memory is not tensor.memory
    np.testing.assert_array_equal(copied, [1, 4])


def test_dlpack_with_numpy_shares_memory():
    tensor = numbered(2, 3)
    array = np.from_dlpack(tensor[:, 1:])
    tensor[1, 2] = 40
    np.testing.assert_array_equal(array, [[1, 2], [4, 40]])
    source = np.arange(6.0)
    back = Tensor.from_dlpack(source)
    source[0] = 7
    assert back[0] == 7
    assert back.dtype == np.float64
    strided = Tensor.from_dlpack(source[::2])
    np.testing.assert_array_equal(strided, [7, 2, 4])


def test_dlpack_with_torch_shares_memory_both_ways():
    torch = pytest.importorskip("torch", reason="torch, the other side, is not installed")
    tensor = numbered(2, 3)
    theirs = torch.from_dlpack(tensor)
    theirs[0, 0] = 5
    assert tensor[0, 0] == 5
    ours = Tensor.from_dlpack(theirs)
    np.testing.assert_array_equal(ours, tensor)


def test_dlpack_from_a_device_that_is_none():
    class Elsewhere:
        def __dlpack_device__(self):
            return 7, 0  # kDLVulkan

    with pytest.raises(DeviceError, match="type 7"):
        Tensor.from_dlpack(Elsewhere())


def test_nodes_take_tensors():
    tensor = numbered(2, 3)
    x = graph.placeholder((2, 3))
    (y,) = graph.evaluate([x * tensor + graph.constant(tensor[0])], {x: tensor})
    np.testing.assert_array_equal(y, np.square(tensor) + np.arange(3))
    (y,) = graph.evaluate([tensor - x], {x: tensor})
    np.testing.assert_array_equal(y, np.zeros((2, 3)))


# -- devices --------------------------------------------------------------------------------------


def test_to_the_same_device_is_the_tensor_itself():
    tensor = numbered(2, 3)
    assert tensor.to("cpu") is tensor
    other = tensor[:, 1:].to("cpu", "managed")
    assert other.memory.kind.value == "managed"
    np.testing.assert_array_equal(other, tensor[:, 1:])
    with pytest.raises(ConfigurationError, match="device 'tpu'"):
        tensor.to("tpu")


@pytest.mark.skipif(cuda_problem() is None, reason="this machine has a GPU")
def test_without_a_gpu_the_error_says_what_is_missing():
    with pytest.raises(DeviceError, match=r"needs a GPU: .*(CuPy|CUDA|GPU|driver)"):
        Tensor((2, 2), device="cuda")
    with pytest.raises(DeviceError, match="needs a GPU"):
        numbered(2).to("cuda:1")
    with pytest.raises(DeviceError, match="device"):
        numbered(2).cupy()
    assert not hasattr(numbered(2), "__cuda_array_interface__")


def test_repr_shows_shape_type_place_and_values():
    here = Tensor.from_array(np.float32([[0, 1], [2, 3]]), device="cpu")
    assert repr(here) == ("<Tensor (2, 2) float32, host memory, cpu:\n  [[0. 1.]\n   [2. 3.]]>")
    assert repr(here[:1, 0].reshape(())) == "<Tensor () float32, host memory, cpu: 0.>"
    assert len(repr(Tensor((1000, 1000)))) < 500


def test_the_page_about_gpus_does_what_it_says():
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == page.count("```python") > 0
    names = {}
    for block in blocks:
        exec(block, names)
