"""What a rank was at when it died."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from modules.sweep.in_flight import (
    InFlightTrials,
    explain_lost_ranks,
    note_interrupted,
    read_in_flight,
    take_in_flight,
    take_left_by_dead,
)
from modules.sweep.messages import Tags

TAGS = Tags("search", "trainer")


def test_a_rank_that_leaves_leaves_nothing(tmp_path: Path) -> None:
    with InFlightTrials(tmp_path, TAGS, 0, 0) as one:
        assert read_in_flight(tmp_path) == []  # no trial yet
        one.note(7, 8)
        assert [str(left) for left in read_in_flight(tmp_path)] == [
            "trial 7 was under way on trainer.0"
        ]
        one.note(0, 0)
        assert read_in_flight(tmp_path) == []
    assert [path.name for path in tmp_path.rglob("*")] == ["sweeps"]


def dies(folder: Path, note: str, copy: int, rank: int = 0, module: str = "trainer") -> None:
    """Have a process die while it is at something."""
    code = (
        "import os; from pathlib import Path; from modules.sweep.messages import Tags\n"
        "from modules.sweep.in_flight import InFlightTrials\n"
        f"one = InFlightTrials(Path({str(folder)!r}), Tags('search', {module!r}), {copy}, {rank})\n"
        f"one.note({note}); os.kill(os.getpid(), 9)"
    )
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, check=False
    )
    assert done.returncode == -9


def test_what_a_killed_process_was_at_is_there(tmp_path: Path) -> None:
    dies(tmp_path, "5, 6", 0)
    dies(tmp_path, "64, 128", 1)
    dies(tmp_path, "0, 0", 2)
    dies(tmp_path, "3, 4", 0, module="other")
    assert [str(left) for left in read_in_flight(tmp_path, TAGS)] == [
        "trial 5 was under way on trainer.0",
        "trials 64 to 127 were under way on trainer.1",
    ]
    whole = explain_lost_ranks(tmp_path, set())
    assert whole[:3] == [
        "trial 3 was under way on other.0",
        "trial 5 was under way on trainer.0",
        "trials 64 to 127 were under way on trainer.1",
    ]
    assert "isolated = true in the options of other and trainer" in whole[3]
    lines = explain_lost_ranks(tmp_path, {"trainer.1"})
    assert lines[0] == "trials 64 to 127 were under way on trainer.1"
    assert "isolated = true in the options of trainer" in lines[1]
    assert f"diel run --resume {tmp_path} goes on" in lines[2]
    assert len(lines) == 3
    # The master has died, say: no trial is to blame.
    assert not any("isolated" in line for line in explain_lost_ranks(tmp_path, {"master.0"}))
    assert [left.trials for left in take_in_flight(tmp_path, TAGS)] == [range(5, 6), range(64, 128)]
    names = [path.name for path in (tmp_path / "sweeps").iterdir()]
    assert names == ["search.other.0.0.under-way"]  # and nothing of those between two trials
    assert read_in_flight(tmp_path, TAGS) == []
    assert len(read_in_flight(tmp_path)) == 1


def test_a_sweep_without_a_trial_under_way_goes_on_as_well(tmp_path: Path) -> None:
    """Its master has died, say, and its trainers have left."""
    assert explain_lost_ranks(tmp_path, {"master.0"}) == []
    ledger = tmp_path / "sweeps" / "search.master" / "trials.jsonl"
    ledger.parent.mkdir(parents=True)
    ledger.write_text("")
    (line,) = explain_lost_ranks(tmp_path, {"master.0"})
    assert f"diel run --resume {tmp_path} goes on" in line


@pytest.mark.parametrize("of_another", ["5, 6", "0, 0"])
def test_several_ranks_are_promised_no_process(of_another: str, tmp_path: Path) -> None:
    """All at one trial, or some between two trials of other numbers of ranks."""
    dies(tmp_path, "5, 6", 0, 0)
    dies(tmp_path, of_another, 0, 1)
    lines = explain_lost_ranks(tmp_path, {"trainer.0"})
    assert lines[0] == "trial 5 was under way on trainer.0"
    assert len(lines) == 2
    assert "process of its own" not in lines[1]


def test_a_trial_is_counted_that_was_under_way_when_a_session_was_ended(tmp_path: Path) -> None:
    folder = tmp_path / "search.master"
    assert note_interrupted(folder, []) == frozenset()
    assert note_interrupted(folder, [5, 6, 5]) == frozenset()  # on two ranks, at one time
    assert note_interrupted(folder, [6]) == {6}
    with (folder / "interrupted.txt").open("a") as file:
        file.write("half\n")  # somebody's editor
    assert note_interrupted(folder, [5]) == {5, 6}


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 16])
def test_a_file_that_says_nothing_is_passed_over(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "sweeps" / "search.trainer.0.0.under-way"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    assert explain_lost_ranks(tmp_path, set()) == []


def test_of_a_lease_of_a_dead_rank_those_under_way_are_found_or_all(tmp_path: Path) -> None:
    dies(tmp_path, "5, 6", 0)
    with InFlightTrials(tmp_path, TAGS, 1, 0) as living:
        living.note(8, 9)
        assert take_left_by_dead(tmp_path, TAGS, 1, range(4, 8)) == {5}
        # Its file is forgotten, or is not to be seen here yet.
        assert take_left_by_dead(tmp_path, TAGS, 1, range(4, 8)) == {4, 5, 6, 7}
        assert [left.trainer for left in read_in_flight(tmp_path)] == ["trainer.1"]
