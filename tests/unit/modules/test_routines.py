"""The table of routines of a run: measured once, recorded, sent to every rank, taken again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diel.testing import Module, run_modules
from dnn import RoutineTable, ops_for
from dnn.backend import Ops
from modules.compute import _ROUTINES_FILE, routines_of_run

TABLES: list[RoutineTable] = []


def train(ctx: Any) -> None:
    for rank in range(2):  # as two ranks of one copy
        with routines_of_run(ctx, rank, 2) as table:
            TABLES.append(table)


def tables(run_dir: Path) -> list[RoutineTable]:
    TABLES.clear()
    runs = run_modules({"trainer": Module(train, copies=3)}, folder=run_dir, run_dir=run_dir)
    assert runs["trainer"][0].tuples == []
    return list(TABLES)


def test_every_rank_has_the_table_that_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, times = RoutineTable.measure, list[int]()

    def counted(ops: Ops) -> RoutineTable:
        times.append(1)
        return measure(ops)

    monkeypatch.setattr(RoutineTable, "measure", counted)
    first = tables(tmp_path)
    text = (tmp_path / _ROUTINES_FILE).read_text()
    assert first == [RoutineTable.from_json(text)] * 6
    assert len(times) == 1
    assert tables(tmp_path) == first
    assert (tmp_path / _ROUTINES_FILE).read_text() == text
    assert [file.name for file in tmp_path.glob("routines*")] == [_ROUTINES_FILE]
    assert len(times) == 1


def test_a_resumed_run_takes_the_table_it_finds(tmp_path: Path) -> None:
    found = RoutineTable({"sum": [(0, "numpy"), (77, "ones")]})
    (tmp_path / _ROUTINES_FILE).write_text(found.to_json())
    assert tables(tmp_path) == [found] * 6


def failing_once(ctx: Any) -> None:
    with routines_of_run(ctx) as table:
        first = table
    if ctx.copy_index:
        return
    ctx.tuples.tput((ctx.group, ctx.module, "routines", 0, 1), first.to_json())
    with pytest.raises(ZeroDivisionError), routines_of_run(ctx, 1):
        raise ZeroDivisionError
    with routines_of_run(ctx, 1) as table:  # started again, it waits for nobody
        assert table == first


def test_what_failed_and_is_started_again_finds_the_table_again(tmp_path: Path) -> None:
    module = Module(failing_once, copies=2)
    runs = run_modules({"trainer": module}, folder=tmp_path, run_dir=tmp_path)
    assert runs["trainer"][0].tuples == []


def meet(ctx: Any) -> None:
    with routines_of_run(ctx, measured=False) as given:
        table = RoutineTable.from_json(given.to_json())  # as a process is told
    CHOSEN.append(table.convolutions.keep("a shape", {"routine": f"that of {ctx.copy_index}"}))


CHOSEN: list[str] = []


def test_the_first_rank_that_meets_a_shape_chooses_for_the_run(tmp_path: Path) -> None:
    for _ in range(2):  # and again, as a run that is resumed
        run_modules({"trainer": Module(meet, copies=3)}, folder=tmp_path, run_dir=tmp_path)
    assert len(CHOSEN) == 6
    assert len(set(CHOSEN)) == 1
    assert [file.name for file in (tmp_path / "routines").iterdir()] == ["a shape.json"]


def test_what_computes_without_numba_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dnn.backend.has_numba", lambda: False)
    assert "diel[fast]" in ops_for("cpu").description
