"""The race at equal wall time: its rows, what it keeps, and the workflow file of our side."""

from __future__ import annotations

import importlib
import json
import math
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture(scope="module")
def race() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield importlib.import_module("race")


def search(*rows: tuple[float, float, float]) -> dict[str, Any]:
    return {"finished": [*rows], "begun": 9, "ended": len(rows)}


def test_what_a_search_had_at_a_time(race: Any) -> None:
    rows = [(4.0, 0.7, 0.6), (9.0, 0.6, 0.9), (2.0, 0.5, 0.4), (12.0, 0.8, 0.7)]
    found = search(*race.better(rows))
    assert [row[0] for row in found["finished"]] == [2.0, 4.0, 12.0]
    assert [race.at(found, time) for time in (1, 3, 10, 12)] == [-math.inf, 0.5, 0.7, 0.8]
    assert race.at(found, 10, 2) == 0.6
    assert [race.reached(found, value) for value in (0.5, 0.6, 0.9)] == [2.0, 4.0, math.inf]


def test_rows_are_medians_beside_the_best_peer(race: Any) -> None:
    quick, slow = search((5, 0.8, 0.7), (20, 0.9, 0.8)), search((25, 0.7, 0.9))
    found = {
        "ours": [quick, search((8, 0.9, 0.9)), slow],
        "optuna": [search((9, 0.6, 0.5), (29, 0.8, 0.8))] * 3,
        "ray_random": [search((12, 0.7, 0.6)), search(), search((28, 0.6, 0.6))],
    }
    rows = {row.name: row for row in race.rows_of("table", found, [10, 30])}
    early = rows["race_table_val_at_10s"]
    assert (early.ours, early.peer, early.peer_name) == (0.8, 0.6, "Optuna, TPE, Hyperband")
    late = rows["race_table_test_at_30s"]
    assert (late.ours, late.peer) == (0.9, 0.8)
    # Ours has the peer's 0.8 after 5 s, 8 s and never; the peer after 29 s.
    reached = rows["race_table_time_to_best_of_optuna"]
    assert (reached.ours, reached.peer, reached.ratio) == (8.0, 29.0, 29 / 8)
    assert "0.8000" in reached.peer_name
    assert rows["race_table_time_to_best_of_ray_random"].ours == 8.0


def test_a_search_that_is_kept_is_not_run_again(
    race: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, int]] = []

    def ours(file: Path, split: Path, task: str, seed: int, seconds: int) -> dict[str, Any]:
        ran.append((task, seed))
        return search((1.0, 0.5, 0.5))

    monkeypatch.setattr(race, "search_ours", ours)
    monkeypatch.setattr(race, "write", lambda name, folder, mnist: (folder, folder))
    monkeypatch.setattr(race, "version_of", lambda package, python: None)
    for seeds in (1, 2):
        given = {"task": ["digits"], "only": ["ours", "optuna"], "seeds": seeds, "times": [5]}
        places = {"kept": tmp_path, "mnist": tmp_path, "ray_python": "", "optuna_python": ""}
        rows = list(race.results(Namespace(**given, **places), tmp_path))
        assert [row.name for row in rows] == ["race_digits_val_at_5s", "race_digits_test_at_5s"]
    assert ran == [("digits", 1), ("digits", 2)]
    assert json.loads((tmp_path / "digits-ours-2-5s.json").read_text())["begun"] == 9


def test_our_file_names_no_strategy(race: Any, tmp_path: Path) -> None:
    from modules.options import SweepOptions
    from modules.strategies import STRATEGIES

    text = race._WORKFLOW.format(seed=1, seconds=60, path=tmp_path / "table.npz", by="columns")
    given = tomllib.loads(text)["module"][0]["options"]
    assert "strategy" not in given
    choice = SweepOptions.model_validate(given).choice
    assert choice is not None
    assert choice.strategy["name"] in STRATEGIES
