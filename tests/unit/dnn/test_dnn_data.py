"""Loading, splitting and preparing data."""

import gzip
import struct
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from support import DATA

import dnn
from dnn.data.loading import DATASETS
from dnn.errors import (
    ConfigurationError,
    DataError,
    LabelError,
    MissingDependencyError,
    ShapeError,
)


def dataset(n=100, classes=3, d=4):
    generator = np.random.default_rng(0)
    return dnn.Dataset(generator.normal(3, 2, (n, d)), np.arange(n) % classes, classes, "made")


def users(path):
    if not (DATA / path).exists():
        pytest.skip(f"there is no {path} in the folder DIEL_DATA")
    return DATA / path


@pytest.mark.parametrize(
    ("name", "shape", "classes"), [("digits", (1797, 64), 10), ("breast_cancer", (569, 30), 2)]
)
def test_bundled_sets(name, shape, classes, monkeypatch):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    loaded = dnn.load_dataset(name)
    monkeypatch.setattr(Path, "is_file", lambda path: False)  # where the file is not as expected
    theirs = dnn.load_dataset(name)
    np.testing.assert_array_equal(loaded.x, theirs.x)
    np.testing.assert_array_equal(loaded.y, theirs.y)
    assert (loaded.x.shape, loaded.x.dtype, loaded.y.dtype) == (shape, np.float32, np.intp)
    assert loaded.classes == classes == np.unique(loaded.y).size
    assert len(loaded) == shape[0]
    assert loaded.name == name
    assert loaded.standardise_by == "columns"


def test_without_scikit_learn_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "diel\[data\]"'):
        dnn.load_digits()


def test_bundled_sets_do_not_need_the_import_of_scikit_learn(run_python):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    code = "import sys, dnn; dnn.load_digits(); print('sklearn' in sys.modules)"
    assert run_python(code).stdout == "False\n"


def test_names_of_data_sets(tmp_path):
    with pytest.raises(ConfigurationError, match="'digits'"):
        dnn.load_dataset("digit")
    with pytest.raises(ConfigurationError, match="path"):
        dnn.load_dataset("mnist")
    with pytest.raises(ConfigurationError, match="no path"):
        dnn.load_dataset("digits", tmp_path)
    with pytest.raises(DataError, match="read"):
        dnn.load_dataset("cleveland", tmp_path / "nowhere")
    assert {"breast_cancer", "cleveland", "csv", "digits", "mnist"} < {*DATASETS}


def test_a_data_set_checks_itself():
    with pytest.raises(ShapeError, match=r"\(3, 2\).*\(4,\)"):
        dnn.Dataset(np.zeros((3, 2)), np.zeros(4, int), 2, "made")
    with pytest.raises(LabelError, match="label 2 in row 1") as caught:
        dnn.Dataset(np.zeros((2, 2)), np.array([0, 2]), 2, "made")
    assert caught.value.row == 1
    with pytest.raises(LabelError, match="integers"):
        dnn.Dataset(np.zeros((2, 2)), np.zeros(2), 2, "made")
    with pytest.raises(DataError, match="no samples"):
        dnn.Dataset(np.zeros((0, 2)), np.zeros(0, int), 2, "made")


def test_cleveland():
    loaded = dnn.load_cleveland(users("heart/processed.cleveland.data"))
    assert loaded.x.shape == (303, 13)
    assert loaded.standardise_by == "columns"
    assert np.isnan(loaded.x).sum() == 6
    assert np.bincount(loaded.y).tolist() == [164, 139]
    train, validation = dnn.train_validation_split(loaded, 0.2, seed=1)
    train, validation = dnn.standardise(*dnn.impute(train, validation))
    assert np.isfinite(validation.x).all()


ROW = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,?,6.0,2"


def test_cleveland_rows(tmp_path):
    path = tmp_path / "heart.data"
    path.write_text(f"{ROW}\n\n{ROW[:-1]}0\n")
    loaded = dnn.load_cleveland(path)
    assert loaded.y.tolist() == [1, 0]
    assert np.isnan(loaded.x[:, 11]).all()
    for bad, message in [
        ("1,2,3", "line 2: 3 cells"),
        (ROW.replace("145.0", "tall"), "line 2.*tall"),
        (ROW[:-1] + "7", "line 2.*'7'"),
        (ROW[:-1] + "?", "line 2"),
    ]:
        path.write_text(f"{ROW}\n{bad}\n")
        with pytest.raises(DataError, match=message):
            dnn.load_cleveland(path)
    path.write_text("")
    with pytest.raises(DataError, match="no rows"):
        dnn.load_cleveland(path)


def idx_bytes(array, code):
    header = struct.pack(f">2x2B{array.ndim}I", code, array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize(("code", "dtype"), [(8, "u1"), (0x0B, "i2"), (0x0C, "i4"), (0x0D, "f4")])
@pytest.mark.parametrize("compressed", [False, True])
def test_idx(tmp_path, code, dtype, compressed):
    array = np.arange(24, dtype=dtype).reshape(2, 3, 4)
    raw = idx_bytes(array, code)
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(raw) if compressed else raw)
    loaded = dnn.load_idx(path)
    assert loaded.dtype == array.dtype
    np.testing.assert_array_equal(loaded, array)


def test_damaged_idx(tmp_path):
    raw = idx_bytes(np.arange(24, dtype="u1").reshape(4, 6), 8)
    path = tmp_path / "file"
    for damaged, message in [
        (raw[:-1], "truncated, 35 bytes where 36"),
        (raw + b"x", "too long"),
        (raw[:7], "header"),
        (b"\x89PNG" + raw, "no IDX file"),
        (b"", "no IDX file"),
        (gzip.compress(raw)[:-9], "gzip"),
        (gzip.compress(raw)[:20] + b"\xff\xff\xff\xff", "gzip"),
    ]:
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=message):
            dnn.load_idx(path)
    with pytest.raises(DataError, match="nowhere"):
        dnn.load_idx(tmp_path / "nowhere")


def test_no_more_is_unpacked_than_an_idx_header_states(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros((4, 6), "u1"), 8) + bytes(1 << 24), 1))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="too long, more bytes where 36"):
            dnn.load_idx(path)
        path.write_bytes(struct.pack(">2x2B2I", 8, 2, 2**31, 2**31))
        with pytest.raises(DataError, match="truncated, 12 bytes where"):
            dnn.load_idx(path)
        path.write_bytes(struct.pack(">2x2B", 8, 255) + bytes(4 * 255))
        with pytest.raises(DataError, match="255 axes"):
            dnn.load_idx(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


def test_mnist_folder(tmp_path):
    images = np.arange(2 * 784, dtype=np.int64).reshape(2, 28, 28).astype("u1")
    for part in ("train", "t10k"):
        raw = idx_bytes(images, 8)
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(raw))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes(np.array([7, 3], "u1"), 8))
    train, test = dnn.load_mnist(tmp_path)
    assert train.x.shape == test.x.shape == (2, 784)
    assert train.x.max() == 1
    assert train.standardise_by == test.standardise_by == "one scale"
    assert train.y.tolist() == [7, 3]
    assert (train.name, train.images.shape) == ("mnist", (2, 1, 28, 28))
    np.testing.assert_array_equal(train.images[:, 0], images.astype("f4") / np.float32(255))
    fashion, _ = dnn.load_fashion_mnist(tmp_path)
    np.testing.assert_array_equal(fashion.x, train.x)
    assert (fashion.name, fashion.class_names[7]) == ("fashion_mnist", "Sneaker")
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.array([7], "u1"), 8))
    with pytest.raises(DataError, match="t10k"):
        dnn.load_mnist(tmp_path)
    with pytest.raises(DataError, match="neither"):
        dnn.load_mnist(tmp_path / "nowhere")


def test_real_mnist():
    folder = users("mnist")
    test = dnn.load_idx(folder / "t10k-labels-idx1-ubyte.gz")
    assert test.shape == (10000,)
    assert test[:5].tolist() == [7, 2, 1, 0, 4]


def test_a_split_is_stratified_and_complete():
    y = np.repeat([0, 1, 2], [70, 21, 9])
    made = dnn.Dataset(np.arange(100.0)[:, None], y, 3, "made")
    train, validation = dnn.train_validation_split(made, 0.25, seed=3)
    assert len(validation) == 25
    assert np.bincount(validation.y).tolist() in ([18, 5, 2], [17, 5, 3])
    rows = np.concatenate([train.x, validation.x]).ravel()
    assert sorted(rows) == list(range(100))
    again = dnn.train_validation_split(made, 0.25, seed=3)[1]
    other = dnn.train_validation_split(made, 0.25, seed=4)[1]
    np.testing.assert_array_equal(validation.x, again.x)
    assert not np.array_equal(validation.x, other.x)


def test_splits_that_cannot_be():
    for fraction in (0, 1, -0.5, 2):
        with pytest.raises(ConfigurationError, match="fraction"):
            dnn.train_validation_split(dataset(), fraction)
    with pytest.raises(DataError, match="2 samples"):
        dnn.train_validation_split(dataset(2), 0.1)


def test_standardising_learns_from_training_samples_only():
    train, validation = dnn.train_validation_split(dataset(), 0.3)
    far = dnn.Dataset(validation.x + 100, validation.y, 3, "far")
    ready, shifted = dnn.standardise(train, far)
    np.testing.assert_allclose(ready.x.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(ready.x.std(axis=0), 1, rtol=1e-6)
    np.testing.assert_allclose(
        shifted.x, (far.x - train.x.mean(axis=0)) / train.x.std(axis=0), rtol=1e-4
    )
    assert shifted.x.dtype == np.float32


def test_standardising_leaves_constant_attributes_finite():
    x = np.full((10, 2), 0.1, "f4")
    x[:, 1] = np.arange(10)
    (ready,) = dnn.standardise(dnn.Dataset(x, np.zeros(10, int), 1, "made"))
    np.testing.assert_array_equal(ready.x[:, 0], 0)
    constant = dnn.Dataset(np.full((10, 2), 0.1), np.zeros(10, int), 1, "made")
    (ready,) = dnn.standardise(constant, by="one scale")
    np.testing.assert_array_equal(ready.x, 0)


def test_a_border_that_hardly_varies_is_blown_up_by_columns_and_not_by_one_scale():
    x = np.random.default_rng(0).uniform(size=(1000, 9))
    x[:, 0] = 0
    x[3, 0] = 4 / 255  # a speck on one of a thousand images
    train = dnn.Dataset(x, np.arange(1000) % 3, 3, "images")
    x = x[:10].copy()
    x[0, 0] = 1
    other = dnn.Dataset(x, np.arange(10) % 3, 3, "images")
    ready, held_out = dnn.standardise(train, other, by="columns")
    assert ready.x[3, 0] > 30
    assert held_out.x[0, 0] > 2000
    ready, held_out = dnn.standardise(train, other, by="one scale")
    assert max(np.abs(ready.x).max(), np.abs(held_out.x).max()) < 2
    assert ready.x.mean() == pytest.approx(0, abs=1e-6)
    assert ready.x.std() == pytest.approx(1, rel=1e-6)
    centre, spread = train.x.mean(dtype=float), train.x.std(dtype=float)
    np.testing.assert_allclose(held_out.x, (other.x - centre) / spread, rtol=1e-5, atol=1e-6)


def test_standardising_by_what_the_data_set_says_unless_told():
    x = np.array([[1, np.nan], [2, 50], [3, 60], [4, 70]])
    table = dnn.Dataset(x, np.arange(4) % 2, 2, "made")
    images = dnn.Dataset(x, np.arange(4) % 2, 2, "made", standardise_by="one scale")
    assert table.standardise_by == "columns"
    # It stays with the samples, whatever is done to them.
    train, other = dnn.impute(*dnn.train_validation_split(images, 0.5))
    assert train.take(slice(1)).standardise_by == other.standardise_by == "one scale"
    for source, by in ((table, "columns"), (images, "one scale")):
        (filled,) = dnn.impute(source)
        (ready,), (told,) = dnn.standardise(filled), dnn.standardise(filled, by=by)
        np.testing.assert_array_equal(ready.x, told.x)
        assert (ready.x.mean(axis=0) == pytest.approx(0, abs=1e-6)) == (by == "columns")
    train, other = dnn.standardise(images, table, by="none")
    assert train is images
    assert other is table
    with pytest.raises(ConfigurationError, match=r"unknown standardisation 'column'.*'columns'"):
        dnn.standardise(table, by="column")


def test_missing_cells_are_filled_from_training_samples_only():
    nan = np.nan
    train = dnn.Dataset(np.array([[1, 5], [nan, 6], [3, nan], [8, 7]]), np.arange(4), 4, "made")
    other = dnn.Dataset(np.array([[nan, nan]]), np.array([0]), 4, "made")
    with pytest.raises(DataError, match="row 1, attribute 0"):
        dnn.standardise(train)
    filled, also = dnn.impute(train, other)
    np.testing.assert_array_equal(filled.x, [[1, 5], [3, 6], [3, 6], [8, 7]])
    np.testing.assert_array_equal(also.x, [[3, 6]])
    with pytest.raises(DataError, match="attribute 0"):
        dnn.impute(other)
    with pytest.raises(ShapeError, match="attributes"):
        dnn.impute(train, dataset())


def test_batches_visit_every_sample_once_in_an_order_of_their_own():
    first = list(dnn.batches(10, 4, seed=1, epoch=0))
    assert [len(rows) for rows in first] == [4, 4, 2]
    order = np.concatenate(first)
    assert sorted(order) == list(range(10))
    assert order.tolist() != list(range(10))
    assert order.dtype == np.intp
    assert np.concatenate(list(dnn.batches(10, 4, seed=1, epoch=0))).tolist() == order.tolist()
    assert np.concatenate(list(dnn.batches(10, 4, seed=1, epoch=1))).tolist() != order.tolist()
    assert np.concatenate(list(dnn.batches(10, 4, seed=2, epoch=0))).tolist() != order.tolist()
