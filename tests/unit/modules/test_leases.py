"""What is given out and comes back, the best rows, the ledger: without a tuple space."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modules.sweep import ledger
from modules.sweep.leases import MOST_TRIALS, TARGET_S, Bitmap, Pace, TrialQueue
from modules.sweep.ledger import (
    Ledger,
    LedgerError,
    about_of,
    has_begun,
    ledger_path,
    records_of,
    trials_of,
)
from modules.sweep.output import CsvTable
from modules.sweep.results import BestRows
from modules.sweep.runners import parse_memory

# -- a bit for each trial -------------------------------------------------------------------------

RANGES = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40)), max_size=12)


@given(RANGES)
def test_a_bitmap_is_a_set_of_numbers(ranges: list[tuple[int, int]]) -> None:
    bitmap, model = Bitmap(), set[int]()
    for start, length in ranges:
        new = set(range(start, start + length))
        assert bitmap.add_range(start, start + length) == (not new & model)
        if not new & model:
            model |= new
        for number in (start, start + 7):
            assert bitmap.add(number) == (number not in model)
            model.add(number)
    assert len(bitmap) == len(model)
    for number in range(360):
        assert (number in bitmap) == (number in model)
        missing = next(one for one in itertools.count(number) if one not in model)
        assert bitmap.next_missing(number) == missing
        present = next((one for one in range(number, 350) if one in model), max(number, 350))
        assert bitmap.next_present(number, max(number, 350)) == present


def test_a_million_trials_take_little_memory() -> None:
    bitmap = Bitmap()
    for start in range(0, 1_000_000, 4096):
        assert bitmap.add_range(start, min(start + 4096, 1_000_000))
    assert len(bitmap) == 1_000_000
    assert len(bitmap._bytes) < 200_000
    assert bitmap.next_missing(0) == 1_000_000


# -- leases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_every_trial_is_recorded_once_whatever_comes_back(seed: int) -> None:
    """Leases come back in any order, whole or in part, some trials fail a few times."""
    random = Random(seed)
    total = random.randint(1, 120)
    before = {trial for trial in range(120) if random.random() < 0.2 * (seed % 3)}
    recorded = Bitmap()
    for trial in before:
        if trial < total:
            recorded.add(trial)
    queue = TrialQueue(total, recorded)
    out: list[Any] = []
    done = [trial for trial in sorted(before) if trial < total]
    while queue.to_give or queue.leases_out:
        grant = queue.take(random.randint(1, 9)) if random.random() < 0.7 else None
        if grant is not None:
            assert not set(range(grant.start, grant.stop)) & set(done)
            out.append(grant)
        elif out:
            grant = out.pop(random.randrange(len(out)))
            tried = random.randint(0, grant.stop - grant.start)
            retried = {
                trial
                for trial in range(grant.start, grant.start + tried)
                if grant.attempt < 4 and random.random() < 0.3
            }
            assert queue.came_back(grant.lease, tried, retried) == grant
            assert queue.came_back(grant.lease, tried) is None  # done twice: counts once
            done += [
                trial for trial in range(grant.start, grant.start + tried) if trial not in retried
            ]
    assert sorted(done) == list(range(total))
    assert queue.leases_out == 0
    assert queue.take(5) is None
    assert queue.to_give == 0


def test_a_trial_that_is_tried_again_counts_its_attempts() -> None:
    queue = TrialQueue(3)
    grant = queue.take(3)
    assert grant is not None
    queue.came_back(grant.lease, 3, {1})
    again = queue.take(3)
    assert again is not None
    assert (again.start, again.stop, again.attempt) == (1, 2, 2)
    assert len(queue.recorded) == 2


def test_an_enqueued_trial_is_still_to_be_given_where_more_is_recorded_than_wanted() -> None:
    queue = TrialQueue(10)
    grant = queue.take(8)
    assert grant is not None
    queue.came_back(grant.lease, 8)
    trial = queue.next_enqueued()
    queue.enqueue(trial)
    queue.total = 5
    assert (queue.to_give, queue.expected) == (1, 9)
    again = queue.take(3)
    assert again is not None
    assert (again.start, again.stop) == (trial, trial + 1)
    assert (queue.to_give, queue.expected) == (0, 9)


def test_a_book_without_end_goes_on() -> None:
    queue = TrialQueue(None)
    assert queue.to_give is None
    for expected in (0, 100, 200):
        grant = queue.take(100)
        assert grant is not None
        assert (grant.start, grant.stop) == (expected, expected + 100)
    assert queue.to_give is None


def test_short_trials_travel_by_the_thousand_and_long_ones_alone() -> None:
    for seconds, size in ((1.0, 1), (TARGET_S / 10, 10), (1e-6, MOST_TRIALS)):
        pace = Pace()
        assert pace.size(1_000_000, 2) == 1  # nothing is known
        for _ in range(10):
            last = pace.size(1_000_000, 2)
            pace.observe(last, seconds * last)
        assert pace.size(1_000_000, 2) == size
        assert pace.trial_s == pytest.approx(seconds)
        # Near the end the rest is shared.
        assert pace.size(16, 2) <= 2
        assert pace.size(0, 2) == 1


def test_what_gains_by_being_together_goes_out_in_few_sizes() -> None:
    pace, left, sizes = Pace(), 1000, []
    pace.at_once = 128
    pace.observe(1, 0.002)
    while left:
        sizes.append(min(left, pace.size(left, 2)))
        left -= sizes[-1]
    assert sizes == sorted(sizes, reverse=True)
    assert set(sizes[:-1]) == {128, 64, 32, 16}
    assert sum(sizes) == 1000
    for at_once in (1, 2, 3, 10, 100):
        pace.at_once = at_once
        assert 1 <= pace.size(7, 3) <= max(at_once, 50)


@pytest.mark.parametrize(
    ("to_give", "trainers", "trial_s", "size"),
    [
        (1000, 2, 0.05, 128),  # a share of 250 trials is more than what is liked best
        (256, 2, 0.05, 64),
        (256, 3, 0.05, 32),
        (100, 2, 0.05, 32),  # a third more than the share of 25
        (20, 2, 0.05, 4),
        (20, 2, 0.001, 16),  # so short that an eighth of what is liked best is soon done
        (20, 2, 1.0, 4),
        (1, 2, 1.0, 1),
    ],
)
def test_how_many_go_out_that_gain_by_being_together(
    to_give: int, trainers: int, trial_s: float, size: int
) -> None:
    pace = Pace()
    pace.at_once = 128
    assert (pace.size(2, 2), pace.size(20, 2)) == (1, 4)  # nothing is known
    pace.observe(0, 7.0)  # nothing was tried
    assert pace.trial_s is None
    pace.observe(1, trial_s)
    assert pace.trial_s == trial_s
    assert pace.size(to_give, trainers) == size


def test_results_that_judge_others_come_soon() -> None:
    pace = Pace()
    assert pace.soon() == MOST_TRIALS  # nothing is gained by being together
    pace.at_once = 128
    assert pace.soon() == 16
    found = {}
    for trial_s in (1e-4, 0.01, 0.04, 3.0):
        pace.trial_s = trial_s
        found[trial_s] = pace.soon()
    assert found == {1e-4: 128, 0.01: 64, 0.04: 16, 3.0: 16}


def test_what_a_trial_takes_follows_slower_ones_at_once_and_faster_ones_by_halves() -> None:
    pace = Pace()
    for trials, seconds, expected in ((2, 2.0, 1.0), (1, 4.0, 4.0), (2, 4.0, 3.0), (4, 4.0, 2.0)):
        pace.observe(trials, seconds)
        assert pace.trial_s == expected


def test_the_first_leases_grow_eightfold_and_the_last_are_shared() -> None:
    pace = Pace()
    pace.observe(1, TARGET_S / 1000)
    assert [pace.size(None, 2) for _ in range(5)] == [8, 64, 512, 1000, 1000]
    assert [pace.size(to_give, 2) for to_give in (80, 16, 8, 7, 0)] == [10, 2, 1, 1, 1]


def test_a_slow_trial_counts_at_once() -> None:
    pace = Pace()
    for _ in range(20):
        size = pace.size(None, 2)
        pace.observe(size, 1e-5 * size)
    pace.observe(10, 10.0)
    assert pace.size(None, 2) == 1


# -- the best rows --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("results", "best"),
    [
        ([(0, 0.5), (1, 0.7), (2, 0.6)], 1),
        ([(2, 0.7), (0, 0.7), (1, 0.7)], 0),  # of equals, the earlier point
        ([(2, math.nan), (1, 0.1), (0, math.nan)], 1),
        ([(2, math.nan), (1, -math.inf), (0, math.nan)], 1),
        ([(1, math.nan), (0, math.nan)], 0),
    ],
)
@pytest.mark.parametrize("maximise", [True, False])
def test_the_best_does_not_depend_on_who_was_faster(
    results: list[tuple[int, float]], best: int, maximise: bool
) -> None:
    sign = 1 if maximise else -1
    for order in itertools.permutations(results):
        standing = BestRows("x", maximise=maximise)
        for trial, value in order:
            standing.add({"trial": trial, "x": sign * value})
        assert standing.best[0]["trial"] == best


@given(st.lists(st.floats(), max_size=60), st.integers(1, 8))
def test_the_best_rows_are_those_of_sorting_all(values: list[float], kept: int) -> None:
    standing = BestRows("x", maximise=True, kept=kept)
    for trial, value in enumerate(values):
        standing.add({"trial": trial, "x": value, "same": 1, "other": trial % 3})
    order = sorted(range(len(values)), key=lambda i: (values[i] != values[i], -values[i], i))
    if not any(value != value for value in values):
        assert [row["trial"] for row in standing.best] == order[:kept]
    assert len(standing.best) == min(kept, len(values))
    constants = {"trial": 0, "same": 1, "other": 0} if len(values) == 1 else {"same": 1}
    assert standing.constants == (constants if values else {})


def test_a_column_that_a_row_lacks_is_no_constant() -> None:
    standing = BestRows("x", maximise=True)
    standing.add({"trial": 0, "x": 1.0, "same": 1, "lacks": 2})
    standing.add({"trial": 1, "x": 1.0, "same": 1, "more": 3})
    assert standing.constants == {"same": 1}


@pytest.mark.parametrize("maximise", [True, False])
def test_which_rows_would_be_kept(maximise: bool) -> None:
    sign = 1 if maximise else -1
    standing = BestRows("x", maximise=maximise, kept=2)
    for trial, value in enumerate((3.0, 5.0, 1.0)):
        assert standing.would_keep(sign * value) == (value > 1)
        assert standing.add({"trial": trial, "x": sign * value}) == (value > 1)
    assert [standing.would_keep(sign * value) for value in (2.9, 3.0, 9.0)] == [False, True, True]
    assert not standing.would_keep(math.nan)
    assert not BestRows("x", maximise=maximise).would_keep(math.nan)


# -- the ledger -----------------------------------------------------------------------------------

RECORD = {
    "trial": 3,
    "state": "finished",
    "parameters": {"rate": 0.1, "hidden": [64, 32], "name": "é\n"},
    "metrics": {"loss": math.nan, "other": -math.inf, "third": 0.1 + 0.2},
}


def test_a_record_reads_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a" / "trials.jsonl"
    file = Ledger(path, {"seed": 1})
    numpy = {"trial": 4, "metrics": {"a": np.float32(0.5), "b": np.float64("nan")}}
    nested = {"a": np.array([math.nan, 0.5]), "b": [(math.inf,)]}
    file.write([RECORD, numpy, {"trial": 5, "metrics": {"a": np.arange(2)}}])
    file.write([{"trial": 6, "metrics": nested}])
    file.close()
    first, second, third, fourth = records_of(path)
    assert first["parameters"] == RECORD["parameters"]
    assert first["metrics"] == {"loss": "nan", "other": "-inf", "third": 0.1 + 0.2}
    assert math.isnan(float(first["metrics"]["loss"]))
    assert second["metrics"] == {"a": 0.5, "b": "nan"}
    assert third["metrics"] == {"a": [0, 1]}
    assert fourth["metrics"] == {"a": ["nan", 0.5], "b": [["inf"]]}
    assert [record["state"] for record in trials_of(path)] == [
        "finished",
        "failed",
        "failed",
        "failed",
    ]
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_ledger_has_begun_with_its_first_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    assert not has_begun(path)
    path.write_text('{"format": 1, "sweep": {}}')
    assert not has_begun(path)
    path.write_text('{"format": 1, "sweep": {}}\n{"trial"')
    assert has_begun(path)


def test_each_iteration_of_a_group_has_a_ledger_of_its_own(tmp_path: Path) -> None:
    names = [ledger_path(tmp_path, "g", "m", one).parent.name for one in ((), (0,), (0, 0), (0, 2))]
    assert names == ["g.m", "g.m", "g.m", "g.m-1.3"]


def test_a_ledger_of_the_first_format_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    path.write_text('{"format": 1, "sweep": {"seed": 1}}\n{"trial": 7}\n{"trial": 8')
    assert about_of(path) == {"seed": 1}
    assert list(records_of(path)) == [{"trial": 7}]
    (trial,) = trials_of(path)
    assert (trial["state"], trial["parameters"], trial["metrics"]) == ("failed", {}, {})
    assert trial["reason"] == "its record has no state and no parameters and no metrics"
    path.write_text('{"format": 2, "sweep": {}}\n')
    with pytest.raises(LedgerError, match="no ledger"):
        about_of(path)


def test_half_a_line_is_cut_off_and_the_rest_kept(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    with_file = Ledger(path, {"seed": 1})
    with_file.write([{"trial": trial} for trial in range(50)])
    with_file.close()
    whole = path.read_bytes()
    for cut in range(0, len(whole) + 1, 3):
        path.write_bytes(whole[:cut])
        lines = whole[:cut].count(b"\n")
        if lines:
            assert [record["trial"] for record in records_of(path)] == list(
                range(max(0, lines - 1))
            )
        again = Ledger(path, {"seed": 1})
        again.write([{"trial": 99}])
        again.close()
        expected = [*range(max(0, lines - 1)), 99]
        assert [record["trial"] for record in records_of(path)] == expected
        if cut > 300:
            break


def test_the_ledger_of_another_sweep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    Ledger(path, {"seed": 1, "space": {"x": [1, 2]}}).close()
    assert about_of(path) == {"seed": 1, "space": {"x": [1, 2]}}
    Ledger(path, {"seed": 1, "space": {"x": [1, 2]}}).close()
    with pytest.raises(LedgerError, match="another sweep: see seed"):
        Ledger(path, {"seed": 2, "space": {"x": [1, 2]}})
    path.write_text("{}\n")
    with pytest.raises(LedgerError, match="no ledger"):
        Ledger(path, {})


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    Ledger(path, {}).close()
    with path.open("a") as file:
        file.write('{"trial": 0}\nnonsense\n')
    with pytest.raises(LedgerError, match="line 3"):
        list(records_of(path))


def test_lines_reach_the_disk_now_and_then(tmp_path: Path, monkeypatch: Any) -> None:
    now_s, synced = [0.0], []
    monkeypatch.setattr(ledger.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr("os.fdatasync", lambda file: synced.append(now_s[0]))
    file = Ledger(tmp_path / "trials.jsonl", {})
    for tenth in range(1, 41):
        now_s[0] = tenth / 10
        file.write([{"trial": tenth}])
    assert len(synced) in (3, 4)  # once a second
    file.close()


def test_a_table_leaves_cells_empty_that_a_row_lacks(tmp_path: Path) -> None:
    table = CsvTable(tmp_path / "results.csv", ["trial", "a", "b"])
    table.write([{"trial": 0, "a": 0.1 + 0.2}, {"trial": 1, "b": [64, 32], "c": 1}])
    table.close()
    text = (tmp_path / "results.csv").read_text()
    assert text == "trial,a,b\n0,0.30000000000000004,\n1,,64x32\n"


@pytest.mark.parametrize(
    ("text", "amount"), [("512 MiB", 2**29), ("1.5GiB", 3 * 2**29), ("100B", 100), (7, 7)]
)
def test_memory_as_people_write_it(text: str | int, amount: int) -> None:
    assert parse_memory(text) == amount


@pytest.mark.parametrize("text", ["", "4", "4 GB", "-1 GiB", 0])
def test_what_is_no_memory(text: str | int) -> None:
    with pytest.raises(ValueError, match="memory_limit"):
        parse_memory(text)
