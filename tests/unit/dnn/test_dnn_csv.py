"""Tables in CSV files: what is read, and what is refused, with its line and column."""

import numpy as np
import pytest

import dnn
from dnn.errors import DataError, LabelError
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
    (tmp_path / "table.csv").write_bytes(b"\xff\xfe1,2\n")
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
