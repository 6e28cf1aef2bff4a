"""Large returned values lie in files of their own, which need no pickle to be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from diel.executive import outcome
from diel.executive.outcome import ReturnedFolder, recordable
from diel.run.json_values import StoredValue

LIMIT_BYTES = 1000


def folder_at(path: Path, limit_bytes: int = 2**30, ranks: int = 4) -> ReturnedFolder:
    return ReturnedFolder(path, limit_bytes, ranks)


class Stranger:
    def __init__(self, length: int) -> None:
        self.length = length

    def __repr__(self) -> str:
        return "?" * self.length


def stored(value: Any, folder: Path) -> tuple[StoredValue, Path]:
    found = recordable(value, folder_at(folder), "m.0.g.0", LIMIT_BYTES)
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
    assert recordable(value, folder_at(tmp_path / "returned"), "m.0.g.0", LIMIT_BYTES) == expected
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
    _, before = stored("x" * 2000, tmp_path / "returned")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    before.unlink()
    before.symlink_to(elsewhere)  # not written through
    _, path = stored("y" * 2000, tmp_path / "returned")
    assert path.read_text() == "y" * 2000
    assert elsewhere.read_text() == "mine"


def test_a_value_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "returned").write_text("no folder")
    found = recordable(b"\0" * 2000, folder_at(tmp_path / "returned"), "m.0.g.0", LIMIT_BYTES)
    assert isinstance(found, StoredValue)
    assert found.file is None
    assert "m.0.g.0.bin: File exists" in found.problem
    assert str(found).endswith("bytes: kept nowhere")


# -- a limit on all of them together --------------------------------------------------------------

REASON = "the folder returned may hold 10,000 bytes (returned_total in [workflow])"


def test_files_together_have_a_limit_and_the_first_that_is_left_out_says_so(tmp_path: Path) -> None:
    folders = [folder_at(tmp_path / "returned", 10_000, ranks=2) for _ in range(2)]
    found = [
        recordable(b"\0" * 3000, folders[number % 2], f"m.0.g.{number}", LIMIT_BYTES)
        for number in range(6)
    ]
    assert [each.file is not None for each in found] == [True] * 3 + [False] * 3
    assert [each.problem.startswith(REASON) for each in found] == [False] * 3 + [True, False, False]
    assert {(each.type, each.size_bytes) for each in found} == {("bytes", 3000)}
    names = sorted(path.name for path in (tmp_path / "returned").iterdir())
    assert names == ["left_out.txt", "m.0.g.0.bin", "m.0.g.1.bin", "m.0.g.2.bin"]
    assert REASON in (tmp_path / "returned" / "left_out.txt").read_text()
    # A smaller one still fits, and one that replaces another.
    assert recordable("x" * 500, folders[0], "m.0.g.6", 100).file is not None
    assert recordable(b"\1" * 3000, folders[0], "m.0.g.0", LIMIT_BYTES).file is not None


def test_a_rank_looks_at_the_folder_once_for_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    scandir = outcome.os.scandir
    monkeypatch.setattr(outcome.os, "scandir", lambda path: looks.append(path) or scandir(path))
    folder = folder_at(tmp_path / "returned", 101_000, ranks=2)
    for number in range(50):
        assert recordable(b"\0" * 1001, folder, f"m.0.g.{number}", LIMIT_BYTES).file is not None
    assert len(looks) == 1


@pytest.mark.parametrize("value", [{"weights": np.broadcast_to(1.0, 10**15)}, ["x" * 20_000]])
def test_what_has_no_room_is_not_even_converted(
    value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(outcome, "plain")
    found = recordable(value, folder_at(tmp_path / "returned", 10_000), "m.0.g.0", LIMIT_BYTES)
    assert found.file is None
    assert found.problem.startswith(REASON)


def test_a_list_that_holds_itself(tmp_path: Path) -> None:
    value: list[Any] = ["x" * 1000]
    value.append(value)
    assert stored(value, tmp_path / "returned")[1].suffix == ".json"
