"""Tables of any kind of column, from any source, and new rows coded as those of the training."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dnn
from dnn import ConfigurationError, DataError, LabelError
from dnn.data.columns import Columns, read_rows

TEXT = """\
species,island,bill,sex,seen,tagged
Adelie,Torgersen,39.1,male,2007-11-11,true
Adelie,Dream,NA,female,2007-11-11,false
Gentoo,Biscoe,46.1,NA,2008-11-06,true
Chinstrap,Dream,46.5,female,2009-11-21,false
"""
DAYS = [13828, 13828, 14189, 14569]
EXPECTED = np.array(
    [
        [2, 39.1, 1, DAYS[0], 1],
        [1, np.nan, 0, DAYS[1], 0],
        [0, 46.1, np.nan, DAYS[2], 1],
        [1, 46.5, 0, DAYS[3], 0],
    ],
    np.float32,
)
KINDS = ("category", "number", "category", "date", "boolean")


def written(folder: Path, text: str, name: str = "birds.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def load(source: Any, **options: Any) -> dnn.Dataset:
    return dnn.load_table(source, "species", missing=["NA"], **options)


def columns_of(text: str) -> dict[str, list[str]]:
    head, *rows = [line.split(",") for line in text.splitlines()]
    return {name: [row[at] for row in rows] for at, name in enumerate(head)}


def frame_of(text: str, library: Any) -> Any:
    """Return the table as a frame whose columns have types of their own."""
    texts = columns_of(text)
    dates = np.array(texts["seen"], "datetime64[ms]")
    return library.DataFrame(
        {
            "seen": dates,
            "tagged": [cell == "true" for cell in texts["tagged"]],
            "sex": [None if cell == "NA" else cell for cell in texts["sex"]],
            "bill": [None if cell == "NA" else float(cell) for cell in texts["bill"]],
            "island": texts["island"],
            "species": texts["species"],
        }
    )


def check(data: dnn.Dataset) -> None:
    columns = data.columns
    assert columns is not None
    order = [columns.features.index(name) for name in ("island", "bill", "sex", "seen", "tagged")]
    np.testing.assert_array_equal(data.x[:, order], EXPECTED)
    assert tuple(columns.kinds[at] for at in order) == KINDS
    assert data.class_names == ("Adelie", "Chinstrap", "Gentoo")
    assert data.y.tolist() == [0, 0, 2, 1]
    assert columns.categories["island"] == ("Biscoe", "Dream", "Torgersen")
    assert Columns.from_json(json.loads(json.dumps(columns.to_json()))) == columns


def test_text_of_any_delimiter_and_compressed(tmp_path: Path) -> None:
    check(load(written(tmp_path, TEXT)))
    check(load(written(tmp_path, TEXT.replace(",", "\t"), "birds.tsv")))
    check(load(written(tmp_path, TEXT.replace(",", ";"), "birds.txt")))
    packed = tmp_path / "birds.csv.gz"
    packed.write_bytes(gzip.compress(TEXT.encode()))
    check(load(packed))
    assert load(packed).name == "birds"
    packed.write_bytes(packed.read_bytes()[:40])
    with pytest.raises(DataError, match=r"birds\.csv\.gz: cannot be read"):
        load(packed)


def test_mappings_and_files_of_arrays(tmp_path: Path) -> None:
    texts = columns_of(TEXT)
    check(load(texts))
    np.savez(tmp_path / "birds.npz", **{name: np.array(cells) for name, cells in texts.items()})
    check(load(tmp_path / "birds.npz"))
    (tmp_path / "birds.npz").write_bytes((tmp_path / "birds.npz").read_bytes()[:300])
    with pytest.raises(DataError, match=r"birds\.npz: cannot be read"):
        load(tmp_path / "birds.npz")
    np.savez(tmp_path / "birds.npz", species=np.array(["a", 1], object))
    with pytest.raises(DataError, match=r"birds\.npz: species: holds Python objects"):
        load(tmp_path / "birds.npz")


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames(library: str, tmp_path: Path) -> None:
    frame = frame_of(TEXT, pytest.importorskip(library))
    check(load(frame))
    new = read_rows(frame, load(written(tmp_path, TEXT)).columns, 5)
    np.testing.assert_array_equal(new.x.astype(np.float32), EXPECTED)
    assert new.labels == ["Adelie", "Adelie", "Gentoo", "Chinstrap"]


def test_lazy_frames_and_tables_of_arrow() -> None:
    frame = frame_of(TEXT, pytest.importorskip("polars"))
    check(load(frame.lazy()))
    pytest.importorskip("pyarrow")
    check(load(frame.to_arrow()))


def test_categories_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"zone": pandas.Categorical([10, 9, 10]), "a": [1, 2, 3], "y": [0, 1, 0]}
    )
    data = dnn.load_table(frame)
    assert data.columns is not None
    assert data.columns.categories == {"zone": ("9", "10")}
    assert data.x.tolist() == [[1, 1], [0, 2], [1, 3]]
    new = read_rows({"zone": [9, 11, None], "a": [1, 2, 3]}, data.columns, 2)
    np.testing.assert_array_equal(new.x[:, 0], [0, 2, np.nan])


def test_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    polars = pytest.importorskip("polars")
    frame = frame_of(TEXT, polars)
    frame.write_parquet(tmp_path / "birds.parquet")
    check(load(tmp_path / "birds.parquet"))
    new = read_rows(tmp_path / "birds.parquet", load(written(tmp_path, TEXT)).columns, 5)
    assert new.names == ("seen", "tagged", "sex", "bill", "island", "species")
    assert new.cells[0][-2:] == ("Torgersen", "Adelie")
    frame = frame.with_columns(
        polars.Series("notes", [[1, 2]] * 4)
    )  # which the network does not read
    frame.write_parquet(tmp_path / "birds.parquet")
    new = read_rows(tmp_path / "birds.parquet", load(written(tmp_path, TEXT)).columns, 5)
    assert new.cells[0][-2:] == ("Adelie", "[1 2]")
    (tmp_path / "none.parquet").write_text("no parquet")
    with pytest.raises(DataError, match=r"none\.parquet: cannot be read"):
        load(tmp_path / "none.parquet")


def test_new_rows_get_the_codes_of_the_training(tmp_path: Path) -> None:
    columns = load(written(tmp_path, TEXT)).columns
    new = "tagged,seen,sex,bill,island,note\nTRUE,2007-11-11,female,NA,Dotson,x\n"
    new += "false,NA,M,1,Dream,y\n"
    rows = read_rows(written(tmp_path, new, "new.csv"), columns, 5)
    expected = [[3, np.nan, 0, DAYS[0], 1], [1, 1, 2, np.nan, 0]]
    np.testing.assert_array_equal(rows.x, expected)
    assert rows.labels is None
    text = "\n".join(rows.notes)
    assert "not trained on note: not read" in text
    assert "column 'island': a cell holds a category" in text
    assert "'Dotson' (1)" in text
    with pytest.raises(DataError, match="line 2, column 'tagged': 'perhaps' is neither true nor"):
        read_rows(written(tmp_path, new.replace("TRUE", "perhaps")), columns, 5)
    with pytest.raises(DataError, match="line 2, column 'seen': '11/11' is no date"):
        read_rows(written(tmp_path, new.replace("2007-11-11", "11/11")), columns, 5)


def test_dates_and_times_are_two_features(tmp_path: Path) -> None:
    text = "when,y\n2020-01-01T00:00:00,0\n2020-01-02 06:30:15.25,1\n2020-01-02T23:00:00-02:00,1\n"
    data = dnn.load_table(written(tmp_path, text))
    assert data.columns is not None
    assert data.columns.features == ("when", "when (time of day)")
    assert data.columns.kinds == ("date", "time")
    assert data.x.tolist() == [[18262, 0], [18263, 23415.25], [18264, 3600]]
    moments = np.array(
        ["2020-01-01", "2020-01-02T06:30:15.25", "2020-01-03T01:00"], "datetime64[ms]"
    )
    for new in ({"when": moments}, written(tmp_path, text), {"when": ["2020-01-01"] * 3}):
        rows = read_rows(new, data.columns, 2)
        assert rows.x.shape == (3, 2)
        assert rows.x[0].tolist() == [18262, 0]
    german = dnn.load_table(
        written(tmp_path, "when,y\n31.12.1969,0\n01.01.1970,1\n"), dates={"when": "%d.%m.%Y"}
    )
    assert german.x.tolist() == [[-1], [0]]
    with pytest.raises(
        DataError, match=r"line 2, column 'when': '31\.12\.1969' is no date such as"
    ):
        dnn.load_table(written(tmp_path, "when,y\n31.12.1969,0\n"), dates=["when"])
    columns = german.columns
    assert read_rows({"when": ["02.01.1970"]}, columns, 1).x.tolist() == [[1]]


def test_columns_are_chosen_dropped_and_renamed(tmp_path: Path) -> None:
    path = written(tmp_path, "id,a b,c,w,kind\n7,1,2,0.5,x\n8,3,4,1.5,y\n")
    data = dnn.load_csv(
        path, "label", drop=["id"], rename={"a b": "a", "kind": "label"}, weight="w", beside=["c"]
    )
    assert data.columns is not None
    assert data.columns.features == ("a",)
    assert data.x.tolist() == [[1], [3]]
    assert data.weights is not None
    assert data.weights.tolist() == [0.5, 1.5]
    assert data.beside["c"].tolist() == [2, 4]
    assert data.take(np.array([1])).beside["c"].tolist() == [4]
    chosen = dnn.load_csv(path, "kind", features=["w", "c"], beside=["id", "c"])
    assert chosen.x.tolist() == [[0.5, 2], [1.5, 4]]
    assert chosen.beside["id"].tolist() == [7, 8]
    rows = read_rows(path, data.columns, 1)
    assert (rows.x.tolist(), rows.labels) == ([[1], [3]], ["x", "y"])
    assert read_rows({"a": [5]}, data.columns, 1).x.tolist() == [[5]]


def test_columns_without_names_are_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, "7,red,1,0\n8,blue,2,1\n")
    data = dnn.load_csv(path, header=False, drop=["1"])
    assert data.x.tolist() == [[1, 1], [0, 2]]
    assert data.columns is not None
    assert data.columns.features == ("2", "3")
    assert read_rows(path, data.columns, 2).x.tolist() == [[1, 1], [0, 2]]
    assert read_rows(written(tmp_path, "red,1\n"), data.columns, 2).x.tolist() == [[1, 1]]


def test_labels_that_are_numbers_but_names(tmp_path: Path) -> None:
    path = written(tmp_path, "a,y\n1,-1\n2,1\n3,10\n")
    with pytest.raises(
        LabelError, match=r'label -1 in row 0.*categories = \["y"\] takes numbers as'
    ):
        dnn.load_csv(path)
    data = dnn.load_csv(path, categories=["y"])
    assert (data.class_names, data.y.tolist()) == (("-1", "1", "10"), [0, 1, 2])
    rows = read_rows({"a": [1, 2], "y": [10.0, -1]}, data.columns, 1)
    assert [data.columns and data.columns.class_of(label) for label in rows.labels or ()] == [2, 0]


def test_samples_with_several_labels(tmp_path: Path) -> None:
    path = written(tmp_path, "a,red,big\n1,0,1\n2,1,0\n")
    data = dnn.load_csv(path, ["red", "big"])
    assert (data.task, data.targets, data.y.tolist()) == (
        "multilabel",
        ("red", "big"),
        [[0, 1], [1, 0]],
    )
    rows = read_rows(path, data.columns, 1)
    assert rows.targets is not None
    assert rows.targets.tolist() == data.y.tolist()
    path = written(tmp_path, "a,tags\n1,red|big\n2,NA\n3,big\n")
    data = dnn.load_csv(path, "tags", label_separator="|", missing=["NA"])
    assert (data.targets, data.y.tolist()) == (("big", "red"), [[1, 1], [0, 0], [1, 0]])
    rows = read_rows({"a": [1, 2], "tags": ["big", "tiny|red"]}, data.columns, 1)
    np.testing.assert_array_equal(rows.targets, [[1, 0], [np.nan, np.nan]])
    with pytest.raises(LabelError, match="label 'red' is 2, not 0 or 1"):
        dnn.load_csv(written(tmp_path, "a,red,big\n1,2,1\n"), ["red", "big"])


@pytest.mark.parametrize(
    ("text", "options", "error", "words"),
    [
        (
            TEXT,
            {},
            DataError,
            r"line 3, column 'bill': 'NA' is no number; say missing = \[\"NA\"\]",
        ),
        (
            "a,y\nx,0\n5,1\n",
            {},
            DataError,
            "line 2, column 'a': 'x' is no number; .* categories = ",
        ),
        (
            "a,y\n" + "x,0\n" * 5000 + "5,1\n",
            {},
            DataError,
            "line 5002, column 'a': '5' is a number",
        ),
        (
            "a,b,y\n1,x,0\n2,,1\n",
            {},
            DataError,
            r"line 3, column 'b': the cell is empty; .*\[\"\"\]",
        ),
        (
            "a,y\n1,x\n2,NA\n",
            {"missing": ["NA"]},
            LabelError,
            "line 3: label in row 1 .* is missing",
        ),
        (
            "a,y\n1,x\n2,z\n",
            {"target": "y"},
            DataError,
            "'x' is no number, as targets are; say label",
        ),
        ("a,y\n1,0.5\n", {}, LabelError, "for a regression say target = 'y'"),
        ("a,y\n1,0\n", {"drop": ["b"]}, DataError, "there is no column 'b'"),
        ("age,y\n1,0\n", {"drop": ["ages"]}, DataError, "no column 'ages'; is it 'age'"),
        (
            "a,y\n1,0\n",
            {"features": ["y"]},
            ConfigurationError,
            "'y' is to be predicted, and among",
        ),
        ("a,y\n1,0\n", {"features": ["a"], "drop": ["y"]}, ConfigurationError, "features and drop"),
        (
            "a,y\n1,0\n",
            {"target": "y", "label_separator": ";"},
            ConfigurationError,
            "target and la",
        ),
        ("a,y\n1,0\n", {"rename": {"a": "y"}}, ConfigurationError, "two columns the name 'y'"),
        ("a,y\n1,0\n", {"drop": ["a"]}, DataError, "no column beside the labels, 'y'"),
        ("a,y\n1,0\n", {"weight": "w"}, DataError, "there is no column 'w'"),
        ("a,y\n1,0\n2\n", {}, DataError, "line 3: 1 cell, not 2"),
        (
            "a,w,y\n1,-1,0\n",
            {"weight": "w"},
            DataError,
            "line 2, column 'w': the weight is -1, and",
        ),
        (
            "a,w,y\n1,,0\n",
            {"weight": "w", "missing": [""]},
            DataError,
            "line 2.* weight is missing",
        ),
        ("a,y\n1,0\n2,20000\n", {}, LabelError, "line 3.*20000 in row 1 is too.*categories = ..y"),
        ("a,w,y\n1,x,0\n", {"weight": "w"}, DataError, "'x' is no number, as weights are"),
        (
            "a;y\n1,5;0\n2,5;1\n",
            {},
            DataError,
            "line 2, column 'a': '1,5' is no number; say decimal",
        ),
        ("a,y\n31.5.24,0\n", {}, DataError, r"'31\.5\.24' is no number; say dates = { a = "),
        ("day of birth,y\n31.5.24,0\n", {}, DataError, r'say dates = { "day of birth" = '),
        ("a,y\n1,0\nnan,1\n", {}, DataError, r"'nan' is not finite; .* missing = ..nan"),
        ("a b,y\n31.5.24,0\n", {}, DataError, r'say dates = \{ "a b" = "%d'),
        ("a,y\n5/31/24,0\n", {"dates": ["a"]}, DataError, "is no date such as .* say dates = { a"),
        ("2020,2021\n1,0\n", {"target": "2021"}, DataError, "no column '2021'.* header = true"),
        # Separators of thousands, in a column of numbers and in all its cells.
        ('a,y\n"1,257.3",0\n2,1\n', {}, DataError, "'1,257.3' is no number: write it without"),
        ('a,y\n"1,257.3",0\n', {}, DataError, "write numbers without separators of thousands"),
        ("a;y\n1,5;0\n1.257,3;1\n", {"decimal": ","}, DataError, "line 3.*'1.257,3' is no number"),
        ("a;y\n1,5;0\n1.257;1\n", {"decimal": ","}, DataError, "line 3.*without separators"),
        ("a;y\n1,5;0\n1.5;1\n", {"decimal": ","}, DataError, "line 3.*'1.5' has a point, and"),
        (
            "a;y\n1,5;0\nNA;1\n",
            {"decimal": ","},
            DataError,
            "line 3.*'NA' is no number; say missing",
        ),
        ("a;y\nx;0\n1,5;1\n", {"decimal": ","}, DataError, "line 2.*'x' is no number; say missing"),
        ('a,y\n"1,100",0\n', {}, DataError, "say decimal = .* write numbers without separators"),
        ("a,y\n5%,0\n10 %,1\n", {}, DataError, "'5%' is no number; write numbers without their"),
        ("a,y\n$5,0\n$1.50,1\n", {}, DataError, "write numbers without their unit, or categories"),
        ("a,y\n1/13/2024,0\n2/1/2024,1\n", {}, DataError, 'say dates = { a = "%m/%d/%Y" }'),
        ("a,y\n13/1/24,0\n2/1/24,1\n", {}, DataError, 'say dates = { a = "%d/%m/%y" }'),
        ("a,y\n2024/1/31,0\n", {}, DataError, 'say dates = { a = "%Y/%m/%d" }'),
        ("a,y\n1,2024-05-31\n", {"target": "y"}, DataError, "give dates as numbers of days"),
        ("a,a,y\n1,2,0\n", {}, DataError, "same name 'a': give each a name of its own"),
        ("a,y\n1,x,p\n", {}, DataError, "3 cells, not 2; a cell in which there is a ','"),
        ("a,y\n1,0\n", {"decimal": ";"}, ConfigurationError, "decimal must be a point or a comma"),
    ],
)
def test_what_is_wrong_is_said_with_a_remedy(
    text: str, options: Any, error: type[Exception], words: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        dnn.load_csv(written(tmp_path, text), -1 if "species" not in text else "species", **options)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            {"a": [1, 2], "y": [0]},
            "columns are vectors of one length, and there are 'a' of 2, 'y' of 1",
        ),
        ({"a": [[1], [2]], "y": [0, 1]}, r"column 'a' has the shape \(2, 1\)"),
        ({"a": [1, object()], "y": [0, 1]}, "row 1, column 'a': <object"),
        ({"a": np.array([1, 2], "timedelta64[s]"), "y": [0, 1]}, "holds durations"),
        ({"a": [1.0, np.inf], "y": [0, 1]}, "row 1, column 'a': inf is not finite"),
        ({"a": [], "y": []}, "no rows"),
        (5, "a table is a path, a frame of pandas or polars, or a mapping of columns, not int"),
    ],
)
def test_tables_in_memory_that_are_none(table: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        dnn.load_table(table)


def test_a_file_of_many_blocks_is_read_as_one(tmp_path: Path) -> None:
    count = 10_000
    rows = [f"{i / 7!r},{'odd' if i % 2 else 'even'},{i % 3}" for i in range(count)]
    data = dnn.load_csv(written(tmp_path, "\n".join(["a,b,y", *rows])))
    np.testing.assert_array_equal(data.x[:, 0], (np.arange(count) / 7).astype(np.float32))
    np.testing.assert_array_equal(data.x[:, 1], np.arange(count) % 2)
    np.testing.assert_array_equal(data.y, np.arange(count) % 3)


def test_rows_without_a_label_are_left_out_if_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, "a,p,y\n1,5,x\n2,NA,NA\n3,7,z\n4,1e39,x\n")
    data = dnn.load_csv(path, missing=["NA"], skip_unlabelled=True, drop=["p"])
    assert (data.x.tolist(), data.y.tolist()) == ([[1], [3], [4]], [0, 1, 0])
    assert "1 of 4 rows have no 'y': left out" in caplog.text
    # Lines are still those of the file.
    for answer in ({"label": "y"}, {"target": "p", "drop": ["y"]}):
        with pytest.raises(DataError, match=r"line 5, .*p.?: 1e\+39 is beyond float32"):
            dnn.load_csv(path, missing=["NA"], skip_unlabelled=True, **answer)
    prices = dnn.load_table({"a": [1, 2], "p": [None, 3]}, target="p", skip_unlabelled=True)
    assert (prices.x.tolist(), prices.y.tolist()) == ([[2]], [[3]])
    with pytest.raises(DataError, match="no row has a 'p'"):
        dnn.load_table({"a": [1], "p": [None]}, target="p", skip_unlabelled=True)


def test_numbers_with_a_decimal_comma(tmp_path: Path) -> None:
    path = written(tmp_path, "a;b;y\n1,5;NA;p\n-2;0,25;q\n")
    data = dnn.load_csv(path, missing=["NA"], decimal=",")
    np.testing.assert_array_equal(data.x, [[1.5, np.nan], [-2, 0.25]])
    rows = read_rows(path, data.columns, 2)
    np.testing.assert_array_equal(rows.x, data.x)
    prices = dnn.load_csv(path, target="a", missing=["NA"], decimal=",", drop=["y"])
    rows = read_rows(path, prices.columns, 1)
    assert rows.targets is not None
    assert rows.targets.tolist() == prices.y.tolist() == [[1.5], [-2]]
    texts = dnn.load_csv(path, missing=["NA"], categories=["a"], drop=["b"])
    assert texts.columns is not None
    assert texts.columns.categories == {"a": ("-2", "1,5")}


@pytest.mark.parametrize(("mark", "decimal"), [("n_a", "."), ("n.a.", ","), ("-,-", ",")])
def test_marks_of_missing_cells_may_look_like_parts_of_numbers(
    mark: str, decimal: str, tmp_path: Path
) -> None:
    path = written(tmp_path, f"a;y\n1{decimal}5;p\n{mark};q\n")
    data = dnn.load_csv(path, missing=[mark], decimal=decimal)
    np.testing.assert_array_equal(data.x, [[1.5], [np.nan]])


def test_a_mark_that_is_a_number_is_one_however_it_is_written(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b,y\n-999.0,1,p\n2,-999,q\n-9.99e2,0,q\n")
    data = dnn.load_csv(path, missing=["-999"])
    np.testing.assert_array_equal(data.x, [[np.nan, 1], [2, np.nan], [np.nan, 0]])
    columns = {"a": np.array([-999.0, 2, -999]), "b": [1, -999, 0], "y": ["p", "q", "q"]}
    np.testing.assert_array_equal(dnn.load_table(columns, missing=["-999"]).x, data.x)
    np.testing.assert_array_equal(read_rows(columns, data.columns, 2).x, data.x)


@pytest.mark.parametrize("compressed", [False, True])
def test_texts_in_utf_16_are_read_and_other_files_named(compressed: bool, tmp_path: Path) -> None:
    pack = gzip.compress if compressed else bytes
    path = tmp_path / "table.txt"
    path.write_bytes(pack("größe\ty\r\n1\tä\r\n2\tö\r\n".encode("utf-16")))
    data = dnn.load_csv(path)
    assert (data.x.tolist(), data.class_names) == ([[1], [2]], ("ä", "ö"))
    for head, words in ((b"PK\x03\x04", "workbook: save"), (b"PAR1", r"ends in \.parquet")):
        path.write_bytes(pack(head + b"\0" * 60))
        with pytest.raises(DataError, match=f"is no text but .*{words}"):
            dnn.load_csv(path)


def test_empty_cells_of_new_rows_are_missing_where_a_table_of_arrays_had_such(
    tmp_path: Path,
) -> None:
    data = dnn.load_table({"a": [1.0, None], "b": ["x", "y"], "y": [0, 1]})
    rows = read_rows(written(tmp_path, "a,b\n,x\n2,\n"), data.columns, 2)
    np.testing.assert_array_equal(rows.x, [[np.nan, 0], [2, np.nan]])
    whole = dnn.load_table({"a": [1.0, 2.0], "b": ["x", "y"], "y": [0, 1]})
    with pytest.raises(DataError, match=r"column .b.: the cell is empty .the network was"):
        read_rows(written(tmp_path, "a,b\n1,x\n2,\n"), whole.columns, 2)


def test_categories_keep_their_zeros_and_other_encodings_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, "zip,y\n01234,0\n1234,1\n")
    data = dnn.load_csv(path, categories=["zip"])
    assert data.columns is not None
    assert data.columns.categories == {"zip": ("01234", "1234")}
    path.write_bytes("größe,y\n1,0\n".encode("latin-1"))
    with pytest.raises(DataError, match="not in UTF-8: iconv -f WINDOWS-1252"):
        dnn.load_csv(path)


def test_labels_are_0_or_1_or_words_for_them(tmp_path: Path) -> None:
    path = written(tmp_path, "a,p,q,r\n1,1,true,Yes\n2,0,false,no\n")
    data = dnn.load_csv(path, ["p", "q", "r"])
    assert data.y.tolist() == [[1, 1, 1], [0, 0, 0]]
    rows = read_rows(path, data.columns, 1)
    assert rows.targets is not None
    assert rows.targets.tolist() == data.y.tolist()
    for cell, words in (
        ("maybe", "label 'r' is 'maybe', not 0 or 1"),
        ("NA", "label 'r' is missing"),
    ):
        written(tmp_path, f"a,p,q,r\n1,1,true,Yes\n2,0,false,{cell}\n")
        with pytest.raises(LabelError, match=f"line 3: .*{words}"):
            dnn.load_csv(path, ["p", "q", "r"], missing=["NA"])


@pytest.mark.parametrize(
    ("label", "options", "words"),
    [
        ([], {}, "label = ..: name a column"),
        (-1, {"target": []}, "target = ..: name a column"),
        (["p", "p"], {}, "label: 'p' is there twice"),
        (-1, {"target": ["p", 1]}, "target: 'p' is there twice"),
        (-1, {"target": "p", "categories": ["p"]}, "'p' is a target, a number, and among categ"),
        (-1, {"target": "p", "dates": ["p"]}, "'p' is a target, a number, and among dates"),
        (-1, {"weight": "p", "categories": ["p"]}, "'p' is the weight of a sample, a number, and"),
    ],
)
def test_columns_have_one_use(label: Any, options: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=words):
        dnn.load_csv(written(tmp_path, "a,p,q\n1,1,0\n2,0,1\n"), label, **options)


def test_a_table_has_a_label_or_a_target(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="target and label: give one"):
        dnn.load_csv(written(tmp_path, "a,p,q\n1,1,true\n"), "q", target="p")


def test_new_rows_of_texts_have_no_names_where_the_table_had_none(tmp_path: Path) -> None:
    data = dnn.load_csv(written(tmp_path, "p,x,u\nq,y,v\n"), header=False)
    rows = read_rows(written(tmp_path, "q,x\np,y\n", "new.csv"), data.columns, 2)
    assert rows.x.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    "text",
    [
        "sep=;\na;b;y\n1;x;p\n2;y;q\n",
        '"sep=\t"\r\na\tb\ty\r\n1\tx\tp\r\n2\ty\tq\r\n',
        "# from a sensor, 2024, in metres, of May\n\n#\na;b;y\n1;x;p\n2;y;q\n",
        "a,b,y\n1,x,p\n2,y,q",
    ],
)
def test_lines_above_the_names_are_none_of_the_table(text: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    data = dnn.load_csv(path)
    assert data.columns is not None
    assert data.columns.features == ("a", "b")
    assert (data.x.tolist(), data.class_names) == ([[1, 0], [2, 1]], ("p", "q"))
    rows = read_rows(path, replace(data.columns, delimiter="|"), 2)  # whatever that of new rows is
    assert (rows.x.tolist(), rows.labels) == (data.x.tolist(), ["p", "q"])
    written(tmp_path, text.replace("2", "two"))
    line = 1 + text[: text.rindex("2")].count("\n")
    with pytest.raises(DataError, match=f"line {line}, column 'a': 'two' is no number"):
        dnn.load_csv(path)


def test_names_and_cells_may_begin_with_a_hash(tmp_path: Path) -> None:
    data = dnn.load_csv(written(tmp_path, "# made by us\n#a,b,y\n1,2,0\n3,4,1\n"))
    assert data.columns is not None
    assert data.columns.features == ("#a", "b")
    data = dnn.load_csv(written(tmp_path, "#ff0000,0\n#00ff00,1\n" * 80), header=False)
    assert len(data) == 160


def test_a_title_above_the_names_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no column beside .* remove a title above the names"):
        dnn.load_csv(written(tmp_path, "Report of May\na,y\n1,0\n"))


def test_columns_that_spreadsheets_leave_empty_are_none(tmp_path: Path) -> None:
    path = written(tmp_path, "a,y,,\n1,p,,\n2,q,,\n3,p\n")
    data = dnn.load_csv(path)
    assert (data.x.tolist(), data.class_names) == ([[1], [2], [3]], ("p", "q"))
    assert read_rows(path, data.columns, 1).x.tolist() == data.x.tolist()
    data = dnn.load_csv(written(tmp_path, "a,y,\n1,p,0\n2,q,1\n"))  # has a label without a name
    assert data.y.tolist() == [0, 1]


def test_numbers_that_are_alike_in_float32_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = "".join(f"{1_700_000_000_000 + i},{i % 2}\n" for i in range(9))
    dnn.load_csv(written(tmp_path, f"t,y\n{rows}"))
    assert "column 't': its 9 different numbers are 1 in float32" in caplog.text
