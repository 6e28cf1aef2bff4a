"""Large returned values lie in files of their own, which need no pickle to be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diel.executive.outcome import recordable
from diel.run.records import StoredValue

LIMIT_BYTES = 1000


class Stranger:
    def __init__(self, length: int) -> None:
        self.length = length

    def __repr__(self) -> str:
        return "?" * self.length


def stored(value: Any, folder: Path) -> tuple[StoredValue, Path]:
    found = recordable(value, folder, "m.0.g.0", LIMIT_BYTES)
    assert isinstance(found, StoredValue)
    assert found.file is not None
    (path,) = folder.iterdir()  # and no part of another
    assert path == folder / found.file
    assert found.size_bytes == path.stat().st_size
    return found, path


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (0.5, 0.5),
        (float("nan"), "nan"),
        ("x" * 998, "x" * 998),
        (b"ab", "b'ab'"),
        (np.arange(3), [0, 1, 2]),
        (np.array([1, "a"], object), [1, "a"]),
        ({"a": np.float32(0.5)}, {"a": 0.5}),
        (Stranger(3), "???"),
    ],
)
def test_a_small_value_goes_into_the_journal(value: Any, expected: Any, tmp_path: Path) -> None:
    assert recordable(value, tmp_path / "returned", "m.0.g.0", LIMIT_BYTES) == expected
    assert not (tmp_path / "returned").exists()


@pytest.mark.parametrize(
    "array", [np.linspace(0, 1, 60).reshape(3, 20), np.zeros(501, [("x", "f4"), ("n", "S3")])]
)
def test_an_array(array: np.ndarray[Any, Any], tmp_path: Path) -> None:
    found, path = stored(array, tmp_path / "returned")
    assert path.suffix == ".npy"
    assert str(found.type).startswith(f"array {array.dtype}")
    np.testing.assert_array_equal(np.load(path, allow_pickle=False), array)


def test_a_large_array_is_never_a_list(tmp_path: Path) -> None:
    wide = np.broadcast_to(np.float64(1), 501)
    assert stored(wide, tmp_path / "returned")[0].type == "array float64 501"


# 300 zeros are 1,200 characters of JSON: what counts is what the journal would get.
@pytest.mark.parametrize("value", [b"\0" * 300, bytearray(b"a" * 1001)])
def test_bytes(value: bytes | bytearray, tmp_path: Path) -> None:
    found, path = stored(value, tmp_path / "returned")
    assert (path.suffix, found.type) == (".bin", type(value).__name__)
    assert path.read_bytes() == value


def test_text_is_kept_whole_and_a_surrogate_is_no_error(tmp_path: Path) -> None:
    _, path = stored("é" * 2_000_000 + "\ud800", tmp_path / "returned")
    assert path.name == "m.0.g.0.txt"
    assert path.read_text(encoding="utf-8") == "é" * 2_000_000 + "?"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (list(range(1000)), list(range(1000))),
        ({"weights": np.ones(400)}, {"weights": [1.0] * 400}),
        (np.array(["a" * 1000], object), ["a" * 1000]),
    ],
)
def test_lists_and_tables(value: Any, expected: Any, tmp_path: Path) -> None:
    _, path = stored(value, tmp_path / "returned")
    assert path.suffix == ".json"
    assert json.loads(path.read_text()) == expected


def test_of_anything_else_the_beginning_of_its_repr(tmp_path: Path) -> None:
    found, path = stored(Stranger(2**20 + 1), tmp_path / "returned")
    assert path.read_text() == "?" * 2**20
    assert found.problem == "it has the first 1,048,576 of 1,048,577 characters of its repr"
    assert found.type == "Stranger"


def test_the_same_iteration_again_replaces_its_file(tmp_path: Path) -> None:
    stored("x" * 2000, tmp_path / "returned")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    (tmp_path / "returned" / "m.0.g.0.txt.part").symlink_to(elsewhere)  # not written through
    _, path = stored("y" * 2000, tmp_path / "returned")
    assert path.read_text() == "y" * 2000
    assert elsewhere.read_text() == "mine"


def test_a_value_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "returned").write_text("no folder")
    found = recordable(b"\0" * 2000, tmp_path / "returned", "m.0.g.0", LIMIT_BYTES)
    assert isinstance(found, StoredValue)
    assert found.file is None
    assert "m.0.g.0.bin: File exists" in found.problem
    assert str(found).endswith("bytes: kept nowhere")
