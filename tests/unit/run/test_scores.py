"""The best scores of runs, from their journals as they grow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diel.run.scores import Score, ScoreReader

DECLARED = {
    "event": "ResultsDeclared", "module": "m", "columns": ["x", "loss"], "objective": "loss",
    "maximise": False, "expected": None,
}  # fmt: skip
OWN = {**DECLARED, "module": "master", "objective": "x", "maximise": True, "file": "results.csv"}


def added(loss: Any) -> dict[str, Any]:
    return {"event": "ResultAdded", "module": "m", "row": {"x": 1, "loss": loss}}


def shown(*best: float) -> dict[str, Any]:
    rows = {"best": [{"x": x, "loss": 0} for x in best]} if best else {}
    return {"event": "ResultsShown", "module": "master", "file": "results.csv", "count": 9, **rows}


def write(run: Path, *records: dict[str, Any], rest: str = "") -> None:
    run.mkdir(exist_ok=True)
    with (run / "journal.jsonl").open("a") as journal:
        for record in records:
            journal.write(json.dumps({"time_s": 1.0, **record}) + "\n")
        journal.write(rest)


def test_the_best_of_each_table(tmp_path: Path) -> None:
    run = tmp_path / "a"
    write(run, {"event": "GroupStarted", "group": "g"}, DECLARED, OWN, added(3.0), added(0.5))
    write(run, added("nan"), added("no number"), shown(0.25, 0.75), shown(), rest="{half a li")
    assert ScoreReader().scores(run, goes_on=False) == [
        Score("m", "loss", maximise=False, best=0.5),
        Score("master", "x", maximise=True, best=0.75),
    ]


def test_a_journal_that_grows_is_read_on(tmp_path: Path) -> None:
    run, reader = tmp_path / "a", ScoreReader()
    assert reader.scores(run, goes_on=True) == []  # there is none yet
    write(run, DECLARED)
    assert reader.scores(run, goes_on=True) == []  # no row yet
    for loss, best in ((3.0, 3.0), (0.5, 0.5), (2.0, 0.5)):
        write(run, added(loss))
        for _ in range(2):
            assert [score.best for score in reader.scores(run, goes_on=True)] == [best]
    write(run, added(0.25))
    assert [score.best for score in reader.scores(run, goes_on=False)] == [0.25]
    write(run, added(0.125))  # it was resumed since
    assert [score.best for score in reader.scores(run, goes_on=True)] == [0.125]
    (run / "journal.jsonl").rename(run / "old.jsonl")
    write(run, DECLARED, added(7.0))
    assert [score.best for score in reader.scores(run, goes_on=True)] == [7.0]


def test_rows_that_a_resumed_run_takes_back_do_not_count(tmp_path: Path) -> None:
    run = tmp_path / "a"
    write(run, DECLARED, added(3.0), {"event": "CheckpointSaved", "number": 1, "file": None})
    write(run, added(0.5), {"event": "RunResumed", "checkpoint": 1, "file": None, "finished": {}})
    (score,) = ScoreReader().scores(run, goes_on=False)
    assert score.best == 3.0


def test_tables_without_a_number_have_no_score(tmp_path: Path) -> None:
    run = tmp_path / "a"
    write(run, DECLARED, added("nan"), added("inf"))
    assert ScoreReader().scores(run, goes_on=False) == []
