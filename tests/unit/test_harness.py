"""What benchmarks share: the rows that were measured are kept, whatever ends the benchmark."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ROOT


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("harness")


def test_rows_are_kept_as_they_come(harness: Any, tmp_path: Path) -> None:
    file = tmp_path / "made" / "rows.json"

    def kept() -> list[tuple[str, float]]:
        rows = json.loads(file.read_text())["results"]
        return [(row["name"], row["ours"]) for row in rows]

    def rows() -> Iterator[Any]:
        yield harness.compare("first", [1.0], None, "", "s")
        assert kept() == [("first", 1.0)]
        yield harness.compare("second", [2.0], [4.0], "", "s")
        yield harness.compare("first", [1.0, 3.0], None, "", "s")  # measured again
        assert kept() == [("first", 2.0), ("second", 2.0)]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        harness.report(rows(), file, samples="5")
    assert kept() == [("first", 2.0), ("second", 2.0)]
    assert json.loads(file.read_text())["machine"]["samples"] == "5"
    assert list(file.parent.iterdir()) == [file]
