"""Tables in CSV files: what is read, and what is refused, with its line and column."""

import numpy as np
import pytest

import dnn
from dnn.errors import ConfigurationError, DataError, LabelError
from dnn.table import read_csv


def written(folder, text):
    path = folder / "table.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_table_with_names(tmp_path):
    path = written(tmp_path, "age, weight ,sick\n63,70.5,1\n\n41,-1e2,0\n")
    table = read_csv(path)
    assert table.columns == ("age", "weight", "sick")
    np.testing.assert_array_equal(table.values, [[63, 70.5, 1], [41, -100, 0]])
    loaded = dnn.load_csv(path)
    assert (loaded.name, loaded.classes) == ("table", 2)
    np.testing.assert_array_equal(loaded.x, [[63, 70.5], [41, -100]])
    assert loaded.y.tolist() == [1, 0]


@pytest.mark.parametrize("text", ["1,2\n3,4\n", "1,2\r\n3,4", "\ufeff1,2\n3,4\n", '"1","2"\n3,4\n'])
def test_a_table_without_names(tmp_path, text):
    table = read_csv(written(tmp_path, text))
    assert table.columns == ("1", "2")
    np.testing.assert_array_equal(table.values, [[1, 2], [3, 4]])


def test_the_first_row_as_one_says(tmp_path):
    path = written(tmp_path, "2020,2021\n1,2\n")
    assert read_csv(path, header=True).columns == ("2020", "2021")
    assert len(read_csv(path).values) == 2
    path = written(tmp_path, "a,b\n1,2\n")
    with pytest.raises(DataError, match=r"line 1, column '1': 'a' is no number"):
        read_csv(path, header=False)


def test_other_delimiters(tmp_path):
    table = read_csv(written(tmp_path, "1;2\n3;4\n"), delimiter=";")
    np.testing.assert_array_equal(table.values, [[1, 2], [3, 4]])


def test_marked_cells_are_missing(tmp_path):
    path = written(tmp_path, "a,b,c\n1,?,0\n,5,1\n")
    table = read_csv(path, missing=["", "?"])
    np.testing.assert_array_equal(table.values, [[1, np.nan, 0], [np.nan, 5, 1]])
    loaded = dnn.load_csv(path, missing=["", "?"])
    (filled,) = dnn.impute(loaded)
    np.testing.assert_array_equal(filled.x, [[1, 5], [1, 5]])
    with pytest.raises(DataError, match=r"line 3, column 'a': the cell is empty"):
        read_csv(path, missing="?")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,,3", "line 3, column 'b': the cell is empty"),
        ("1,  ,3", "line 3, column 'b': the cell is empty"),
        ("1,2", "line 3: 2 cells, not 3"),
        ("1,2,3,4", "line 3: 4 cells, not 3"),
        ("1,tall,3", "line 3, column 'b': 'tall' is no number"),
        ("1,2,nan", "line 3, column 'c': 'nan' is not finite"),
        ("1,-inf,2", "line 3, column 'b': '-inf' is not finite"),
        ("1,1e999,2", "line 3, column 'b': '1e999' is not finite"),
        ("2024_01,2,3", "line 3, column 'a': '2024_01' is no number"),
        (f"1,{'9' * 400},3", r"line 3, column 'b': '9{60}\.\.\.' is not finite"),
        ('1,"2,3', "cannot be read"),
    ],
)
def test_a_csv_with_a_hole_a_text_or_a_ragged_row(tmp_path, row, message):
    path = written(tmp_path, f"a,b,c\n1,2,3\n{row}\n")
    with pytest.raises(DataError, match=message):
        read_csv(path)
    if "cannot" not in message:
        with pytest.raises(DataError, match=message):
            read_csv(path, missing="?")  # other marks excuse nothing


def test_files_without_rows(tmp_path):
    for text, message in [("", "no rows"), ("\n\n", "no rows"), ("a,b\n", "no rows below")]:
        with pytest.raises(DataError, match=message):
            read_csv(written(tmp_path, text))
    with pytest.raises(DataError, match="nowhere"):
        read_csv(tmp_path / "nowhere")
    (tmp_path / "table.csv").write_bytes(b"\xff1,2\n")
    with pytest.raises(DataError, match="cannot be read"):
        read_csv(tmp_path / "table.csv")


def test_the_column_of_the_labels(tmp_path):
    path = written(tmp_path, "kind,a,b\n2,1,0.5\n0,3,0.25\n")
    for label in ("kind", 0, -3):
        loaded = dnn.load_csv(path, label)
        assert loaded.y.tolist() == [2, 0]
        assert loaded.classes == 3
        np.testing.assert_array_equal(loaded.x, [[1, 0.5], [3, 0.25]])
    for label in ("kin", 3, -4):
        with pytest.raises(DataError, match="no column"):
            dnn.load_csv(path, label)


@pytest.mark.parametrize("label", ["0.5", "-1"])
def test_labels_that_are_no_integers_from_0(tmp_path, label):
    path = written(tmp_path, f"a,kind\n1,0\n2,{label}\n")
    with pytest.raises(LabelError, match=rf"{label} in row 1 of column 'kind'") as caught:
        dnn.load_csv(path)
    assert caught.value.row == 1


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b,y\n1,2,0\n5,1e39,1\n", {}, r"line 3, column 'b': 1e\+39 is beyond float32"),
        ("y,a,b\n0,2,1\n1,5,-1e39\n", {"label": "y"}, r"line 3, column 'b': -1e\+39 is beyond"),
        ("1;2;0\n\n3;1e39;1\n", {"delimiter": ";"}, r"line 3, column '2': 1e\+39 is beyond"),
        ('"a\nb",c,y\n1,2,0\n\n1e39,2,1\n', {}, r"line 5, column 'a\\nb': 1e\+39 is beyond"),
        ("1,2,0\n1,?,0\n3,1e39,1\n", {"missing": "?"}, r"line 3, column '2': 1e\+39"),
        ('a,b,y\n1,"2\n",0\n1,x,0\n', {}, r"line 4, column 'b': 'x' is no number"),
        ('a,b,y\n1,2,0\n1,"2\n",x\n', {}, r"line 4, column 'y': 'x' is no number"),
        ("a,y\n1,0\n\n2,1e39\n", {}, r"line 4, column 'y': label 1e\+39 in row 1 is too large"),
        ("a,b,y\n1,2,0\n1,2,0.5\n", {}, r"line 3: label 0.5 in row 1 of column 'y'"),
        ("a,b,y\n1,2,0\n1,2,?\n", {"missing": "?"}, r"line 3: label in row 1"),
        ("a,y,a\n1,0,2\n", {}, "line 1: columns 1 and 3 have the same name 'a'"),
        ("y\n1\n0\n", {}, "there is no column beside the labels, 'y'"),
    ],
)
def test_what_is_wrong_is_named_by_line_and_column(tmp_path, text, options, message):
    with pytest.raises(DataError, match=message):
        dnn.load_csv(written(tmp_path, text), **options)


def test_numbers_at_the_ends_of_float32(tmp_path):
    path = written(tmp_path, "a,b,y\n3.4028235e38,1e-50,0\n-3.40282350000001e38,-1e-300,1\n")
    largest = np.finfo(np.float32).max
    np.testing.assert_array_equal(dnn.load_csv(path).x, [[largest, 0], [-largest, 0]])


@pytest.mark.parametrize(
    ("dtype", "fine", "wrong", "message"),
    [
        ("float16", "65504", "1e5", "beyond float16, which ends at 65504"),
        ("float32", "1e38", "-1e39", "beyond float32"),
        ("float64", "1e308", "1e309", "not finite"),
        ("int8", "-128", "128", r"beyond int8, which has -128 \.\. 127"),
        ("int32", "7.0", "1.5", "no whole number, for int32"),
        ("int64", "9007199254740993", "9223372036854775808", "beyond int64"),
        ("uint8", "255", "-1", "beyond uint8"),
        ("uint64", "18446744073709551615", "1e30", "beyond uint64"),
        ("bool", "1", "2", "beyond bool, which has 0 and 1"),
    ],
)
def test_a_tensor_holds_what_the_file_says_or_none(tmp_path, dtype, fine, wrong, message):
    path = written(tmp_path, f"0,1\n{fine},0\n")
    tensor = dnn.Tensor.from_csv(path, dtype=dtype)
    assert tensor.dtype == dtype
    assert tensor.numpy()[1, 0] == np.array(
        float(fine) if "." in fine or "e" in fine else int(fine)
    ).astype(dtype)
    with pytest.raises(DataError, match=f"line 2, column '1': '{wrong}' is .*{message}"):
        dnn.Tensor.from_csv(written(tmp_path, f"0,1\n{wrong},0\n"), dtype=dtype)


@pytest.mark.parametrize("delimiter", [";;", "", 1, "\n", '"', b","])
def test_delimiters_that_are_none(tmp_path, delimiter):
    path = written(tmp_path, "1,2\n3,4\n")
    for call in (
        lambda: dnn.load_csv(path, delimiter=delimiter),
        lambda: dnn.Tensor.from_csv(path, delimiter=delimiter),
        lambda: dnn.Tensor((2, 2)).to_csv(path, delimiter=delimiter),
    ):
        with pytest.raises(ConfigurationError, match="delimiter must be"):
            call()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": True}, "label must be text or an integer or a list of texts, not True"),
        ({"label": 1.0}, "label must be text or an integer"),
        ({"label": None}, "label must be text or an integer"),
        ({"header": "yes"}, "header must be true or false"),
        ({"missing": 5}, "missing must be a list of texts"),
        ({"missing": [1]}, "missing must be a list of texts"),
    ],
)
def test_options_of_a_table_that_are_none(tmp_path, options, message):
    path = written(tmp_path, "1,2\n3,4\n")
    with pytest.raises(ConfigurationError, match=message):
        dnn.load_csv(path, **options)
    with pytest.raises(ConfigurationError, match=message):
        dnn.load_dataset("csv", path, **options)


def test_arrays_are_checked_where_they_become_float32(tmp_path):
    x = np.ones((6, 2))
    x[4, 1] = 1e39
    y = np.array([0, 1] * 3)
    with pytest.raises(DataError, match=r"mine: row 4, attribute 1: 1e\+39 is beyond float32"):
        dnn.Dataset(x, y, 2, "mine")
    model = dnn.NeuralNetwork(dnn.mlp(2, [4], 2), seed=1)
    for call in (model.fit, model.evaluate):
        with pytest.raises(DataError, match=r"x row 4, column 1: 1e\+39 is beyond float32"):
            call(x, y)
    with pytest.raises(DataError, match=r"x row 4, column 1: 1e\+39 is beyond float32"):
        model.fit(dnn.DeviceData(x, y))
    with pytest.raises(DataError, match=r"x row 4, column 1: 1e\+39"):
        model.predict(x)
    with pytest.raises(DataError, match=r"the weight of row 4: 1e\+39"):
        model.fit(np.ones((6, 2)), y, sample_weight=x[:, 1], progress=False)
    line = dnn.NeuralNetwork(dnn.mlp(2, [4], 1), "mean_squared_error", seed=1)
    with pytest.raises(DataError, match=r"targets, row 4: 1e\+39"):
        line.fit(np.ones((6, 2)), x[:, 1], progress=False)
    with pytest.raises(DataError, match=r"image 4, at \(0, 0, 1\): 1e\+39"):
        dnn.Images(x.reshape(6, 1, 1, 2))
    np.savez(tmp_path / "a.npz", x=x, y=y)
    with pytest.raises(DataError, match=r"a.npz: x\[4, 1\]: 1e\+39"):
        dnn.load_npz(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", x=x.reshape(3, 2, 2), y=y[:3], n=[2, 2, 2])
    with pytest.raises(DataError, match=r"a.npz: x\[2, 0, 1\]: 1e\+39"):
        dnn.load_npz(tmp_path / "a.npz", lengths="n")
    x[4, 1] = np.inf
    np.savez(tmp_path / "a.npz", x=x, y=y)
    with pytest.raises(DataError, match=r"a.npz: x\[4, 1\] is inf"):
        dnn.load_npz(tmp_path / "a.npz")
    with pytest.raises(DataError, match="mine: row 4, attribute 1 is inf"):
        dnn.standardise(dnn.Dataset(x, y, 2, "mine"))


def test_names_of_columns_are_no_numbers_though_python_reads_them(tmp_path):
    table = read_csv(written(tmp_path, "2023_12,2024_01\n1,2\n"))
    assert table.columns == ("2023_12", "2024_01")
